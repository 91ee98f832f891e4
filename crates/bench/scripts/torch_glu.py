#!/usr/bin/env python3
"""Gated products of bf16, C = silu(X W1^T) * (X W3^T): ours, tuned here, beside torch and Liger, alternately in one process.

Usage: torch_glu.py [--backward] [--seconds S] [--autotune] [--out FILE.jsonl] [MxKxN]...        (default: the sizes of six networks)
Needs: PyTorch with CUDA and tilewright's Python package; Liger takes part where its package is installed.
`two`: two weight tensors; `one`: one tensor of 2 n rows. Ours is also timed as the product of 2 n columns, which lacks the gate.
With --backward each call also computes the gradients of X and the weights; ours keeps the pre-activations, and is timed under torch.compile, too.
Times are medians of at least 60 runs with a cold cache and without the host's time (held.py). A wide spread is marked.
"""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from sides import compare, main, tuned  # noqa: E402

SIZES = "8192x4096x14336 2048x8192x28672 16384x2048x5632 4096x1536x8960 128x4096x14336 3000x1000x2741".split()


def rivals(torch, autotune):
    """Calls of (x, w1, w3, w13) by name."""
    silu, linear = torch.nn.functional.silu, torch.nn.functional.linear

    def two(x, w1, w3, w13):
        return silu(linear(x, w1)) * linear(x, w3)

    def one(x, w1, w3, w13):
        gate, up = linear(x, w13).chunk(2, -1)
        return silu(gate) * up

    ways = {"eager two": two, "eager one": one}
    for mode in ["default"] + ["max-autotune-no-cudagraphs"] * autotune:
        for name, of in (("two", two), ("one", one)):
            ways[f"{mode} {name}"] = torch.compile(of, mode=mode, dynamic=False)
    try:
        from liger_kernel.ops.swiglu import LigerSiLUMulFunction
    except ImportError:
        print("liger_kernel is not installed: left out", flush=True)
    else:
        ways["liger two"] = lambda x, w1, w3, w13: LigerSiLUMulFunction.apply(linear(x, w1), linear(x, w3))
    return ways


class Operands:
    """Tensors of one size."""

    def __init__(self, torch, m, k, n, backward):
        random = lambda *shape: (torch.rand(*shape, device="cuda") * 2 - 1).bfloat16()  # noqa: E731
        self.x, self.w13, self.dy = random(m, k), random(2 * n, k), random(m, n)
        # Parameters of two layers are not neighbours in memory.
        self.w1, self.w3 = self.w13[:n].clone(), self.w13[n:].clone()
        for t in (self.x, self.w13, self.w1, self.w3):
            t.requires_grad_(backward)

    def ours(self, twt, keep):
        """Our calls."""
        x, w1, w3, w13 = self.x, self.w1, self.w3, self.w13
        return {
            "ours two": lambda: twt.glu(x, w1, up=w3, keep=keep),
            "ours one": lambda: twt.glu(x, w13, keep=keep),
            "our product": lambda: twt.linear(x, w13),
        }


def measure(torch, twt, held, size, args):
    m, k, n = (int(extent) for extent in size.split("x"))
    of = Operands(torch, m, k, n, args.backward)
    forward = of.ours(twt, args.backward)
    if args.backward:
        del forward["our product"]

    def trained(name):
        """A call for the gradients of X and of both weights."""
        if " one" not in name:
            return lambda: torch.autograd.grad(forward[name](), (of.x, of.w1, of.w3), of.dy)

        def call():
            x, both = torch.autograd.grad(forward[name](), (of.x, of.w13), of.dy)
            return (x, *both.chunk(2))

        return call

    called = lambda name: trained(name) if args.backward else lambda call=forward[name]: [call()]  # noqa: E731
    plans = {name: tuned([called(name)], args.seconds) for name in forward}
    if args.backward:
        forward.update({f"{name}, compiled": torch.compile(call, dynamic=False) for name, call in forward.items()})
    for name, way in rivals(torch, args.autotune).items():
        forward[name] = lambda way=way: way(of.x, of.w1, of.w3, of.w13)
    calls = {name: called(name) for name in forward}
    want = [t.detach().double() for t in calls["eager two"]()]
    row = compare(held, calls, want, size, {name: " ".join(map(str, used.values())) for name, used in plans.items()}, "" if args.backward else "our product")
    return {"size": size, "backward": args.backward, "plans": plans, **row}


if __name__ == "__main__":
    main(__doc__, measure, SIZES, "MxKxN", "rows, columns of X, columns of each factor", "with the gradients of X and the weights")
