#!/usr/bin/env python3
"""Times torch.compile(mode="max-autotune") on bf16 matrix products whose lines do not start at 16 bytes.

Usage: torch_compile.py [MxNxK]...        (default: 4095x4095x4095 1000x1001x1002)
Needs: PyTorch with CUDA. Each product is run with a cold cache (256 MiB of other memory are read before every run, outside of the timed
span), device events around one call, and the median of 50 runs is printed, for B as (k x n) and as the transpose of (n x k).
"""

import statistics
import sys

import torch


def median_us(run, flush):
    for _ in range(5):
        run()
    times = []
    for _ in range(50):
        # Reading leaves nothing that would be written back within the timed span.
        flush.sum()
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        run()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) * 1e3)
    return statistics.median(times)


def main():
    flush = torch.zeros(64 << 20, dtype=torch.float32, device="cuda")
    shapes = sys.argv[1:] or ["4095x4095x4095", "1000x1001x1002"]
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}")
    for shape in shapes:
        m, n, k = (int(x) for x in shape.split("x"))
        a = torch.rand(m, k, dtype=torch.bfloat16, device="cuda") * 2 - 1
        for layout in ("nn", "nt"):
            b = torch.rand(k, n, dtype=torch.bfloat16, device="cuda") * 2 - 1
            if layout == "nt":
                b = b.t().contiguous().t()
            eager = median_us(lambda: torch.mm(a, b), flush)
            product = torch.compile(lambda x, y: torch.mm(x, y), mode="max-autotune-no-cudagraphs")
            plain = median_us(lambda: product(a, b), flush)
            graphs = torch.compile(lambda x, y: torch.mm(x, y), mode="max-autotune")
            graphed = median_us(lambda: graphs(a, b), flush)
            print(f"{layout} {shape}: eager {eager:.2f} us, max-autotune {plain:.2f} us, with CUDA graphs {graphed:.2f} us", flush=True)
            torch._dynamo.reset()


if __name__ == "__main__":
    main()
