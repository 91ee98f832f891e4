#!/usr/bin/env python3
"""Products of bf16 matrices whose rows are not aligned to 16 bytes: ours, tuned here, beside torch.mm and torch.compile.

Usage: torch_compile.py [--seconds S] [--out FILE.jsonl] [MxNxK]...        (default: 4095x4095x4095 1000x1001x1002)
Needs: PyTorch with CUDA and tilewright's Python package. nn: B is a (k x n) matrix, nt: the transpose of (n x k). The modes of torch.compile
are max-autotune-no-cudagraphs and max-autotune. Times are medians of at least 60 runs with a cold cache and without the host's time (held.py).
"""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from sides import compare, main, tuned  # noqa: E402

SIZES = "4095x4095x4095 1000x1001x1002".split()


def measure(torch, twt, held, size, args):
    m, n, k = (int(extent) for extent in size.split("x"))
    a = (torch.rand(m, k, device="cuda") * 2 - 1).bfloat16()
    row = {"size": size}
    for layout in ("nn", "nt"):
        b = (torch.rand(*((k, n) if layout == "nn" else (n, k)), device="cuda") * 2 - 1).bfloat16()
        b = b if layout == "nn" else b.t()
        ways = {"ours": twt.mm, "eager": torch.mm}
        for mode in ("max-autotune-no-cudagraphs", "max-autotune"):
            ways[mode] = torch.compile(lambda x, y: torch.mm(x, y), mode=mode, dynamic=False)
        calls = {name: lambda way=way, b=b: [way(a, b)] for name, way in ways.items()}
        plans = tuned([calls["ours"]], args.seconds)
        print(f"{layout} {size}: {plans}", flush=True)
        want = [t.double() for t in calls["eager"]()]
        row[layout] = {"plans": plans, **compare(held, calls, want, f"{layout} {size}", {})}
        torch._dynamo.reset()
    return row


if __name__ == "__main__":
    main(__doc__, measure, SIZES, "MxNxK", "rows, columns and length")
