#!/usr/bin/env python3
"""A linear layer of bf16 with a low-rank update (LoRA), Y = X W^T + (X A^T) B^T: ours, tuned here, beside torch, alternately in one process.

Usage: torch_lora.py [--backward] [--seconds S] [--autotune] [--out FILE.jsonl] [MxKxNxR]...
Needs: PyTorch with CUDA and tilewright's Python package.
Ours is also timed as the product without the update. With --backward each call also computes the gradients of X, A and B; W is frozen.
Times are medians of at least 60 runs with a cold cache and without the host's time (held.py). A wide spread is marked.
"""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from sides import compare, main, tuned  # noqa: E402

SIZES = "8192x4096x4096x16 512x4096x4096x64 16384x2048x5632x32 3000x1000x2741x8".split()


def measure(torch, twt, held, size, args):
    m, k, n, rank = (int(extent) for extent in size.split("x"))
    random = lambda *shape: (torch.rand(*shape, device="cuda") * 2 - 1).bfloat16()  # noqa: E731
    x, weight, lora_a, lora_b, grad = random(m, k), random(n, k), random(rank, k), random(n, rank), random(m, n)
    trained = (x, lora_a, lora_b)
    for t in trained:
        t.requires_grad_(args.backward)
    linear = torch.nn.functional.linear

    def by_torch():
        return linear(x, weight) + linear(linear(x, lora_a), lora_b)

    ways = {"ours": lambda: twt.lora_linear(x, weight, lora_a, lora_b), "our product": lambda: twt.linear(x, weight), "eager": by_torch}
    for mode in ["default"] + ["max-autotune-no-cudagraphs"] * args.autotune:
        ways[mode] = torch.compile(by_torch, mode=mode, dynamic=False)
    if args.backward:
        # Without the update the gradients are others.
        del ways["our product"]
    called = lambda way: (lambda: torch.autograd.grad(way(), trained, grad)) if args.backward else (lambda: [way()])  # noqa: E731
    calls = {name: called(way) for name, way in ways.items()}
    plans = {name: tuned([calls[name]], args.seconds) for name in ("ours", "our product") if name in calls}
    want = [t.detach().double() for t in calls["eager"]()]
    row = compare(held, calls, want, size, {name: " ".join(map(str, used.values())) for name, used in plans.items()}, "" if args.backward else "our product")
    return {"size": size, "backward": args.backward, "plans": plans, **row}


if __name__ == "__main__":
    main(__doc__, measure, SIZES, "MxKxNxR", "rows, columns of X, columns of Y, rank", "with the gradients of X, A and B")
