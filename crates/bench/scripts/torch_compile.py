#!/usr/bin/env python3
"""Times torch.compile(mode="max-autotune") on bf16 matrix products whose rows are not aligned to 16 bytes.

Usage: torch_compile.py [MxNxK]...        (default: 4095x4095x4095 1000x1001x1002)
Needs: PyTorch with CUDA. The three ways are timed alternately, with a cold cache and without the host's time (held.py). Medians of 51 runs
are printed, for B as (k x n) and as the transpose of (n x k); a wide spread is marked.
"""

import os
import sys

import torch

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from held import Held  # noqa: E402


def main():
    held = Held(torch)
    shapes = sys.argv[1:] or ["4095x4095x4095", "1000x1001x1002"]
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}")
    for shape in shapes:
        m, n, k = (int(x) for x in shape.split("x"))
        a = torch.rand(m, k, dtype=torch.bfloat16, device="cuda") * 2 - 1
        for layout in ("nn", "nt"):
            b = torch.rand(k, n, dtype=torch.bfloat16, device="cuda") * 2 - 1
            if layout == "nt":
                b = b.t().contiguous().t()
            product = torch.compile(lambda x, y: torch.mm(x, y), mode="max-autotune-no-cudagraphs")
            graphs = torch.compile(lambda x, y: torch.mm(x, y), mode="max-autotune")
            runs = [lambda: torch.mm(a, b), lambda: product(a, b), lambda: graphs(a, b)]
            eager, plain, graphed = (f"{x.median:.2f} us{' (wide)' if x.wide else ''}" for x in held.spreads(runs, 51))
            print(f"{layout} {shape}: eager {eager}, max-autotune {plain}, with CUDA graphs {graphed}", flush=True)
            torch._dynamo.reset()


if __name__ == "__main__":
    main()
