"""Captures a step in a CUDA graph as PyTorch's manual says: three steps on a side stream, then the capture."""


def graph_of(torch, run, mode="global"):
    """The graph, and the result that its replays write."""
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(aside)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode=mode):
        y = run()
    return graph, y
