#!/usr/bin/env python3
"""Gated products of bf16, C = silu(X W1^T) * (X W3^T): ours, tuned here, beside torch and Liger, alternately in one process.

Usage: torch_glu.py [--seconds S] [--autotune] [--out FILE.jsonl] [MxKxN]...        (default: the sizes of six networks)
Needs: PyTorch with CUDA and tilewright's Python package; Liger takes part where its package is installed.
`two`: two weight tensors; `one`: one tensor of 2 n rows. Ours is also timed as the product of 2 n columns, which lacks the gate.
Times are medians of at least 60 runs with a cold cache and without the host's time (held.py). A wide spread is marked.
"""

import argparse
import json
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from held import Held  # noqa: E402

SIZES = "8192x4096x14336 2048x8192x28672 16384x2048x5632 4096x1536x8960 128x4096x14336 3000x1000x2741".split()
SAMPLES = 60


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


def measure(torch, twt, held, size, args):
    m, k, n = (int(extent) for extent in size.split("x"))
    random = lambda *shape: (torch.rand(*shape, device="cuda") * 2 - 1).bfloat16()  # noqa: E731
    x, w13 = random(m, k), random(2 * n, k)
    w1, w3 = w13[:n], w13[n:]
    # Parameters of two layers are not neighbours in memory.
    w3 = w3.clone()
    ours = {
        "ours two": (lambda: twt.glu(x, w1, up=w3), twt.glu, (x, w1), {"up": w3}),
        "ours one": (lambda: twt.glu(x, w13), twt.glu, (x, w13), {}),
        "our product": (lambda: twt.linear(x, w13), twt.linear, (x, w13), {}),
    }
    plans = {name: twt.tune(what, *of, seconds=args.seconds, **options).plan for name, (_, what, of, options) in ours.items()}
    calls = {name: call for name, (call, *_) in ours.items()}
    for name, way in rivals(torch, args.autotune).items():
        calls[name] = lambda way=way: way(x, w1, w3, w13)
    want = calls["eager two"]().double()
    error = lambda got: ((got.double() - want).norm() / want.norm()).item()  # noqa: E731
    errors = {name: error(call()) for name, call in calls.items() if name != "our product"}
    spreads = dict(zip(calls, held.spreads(list(calls.values()), SAMPLES)))
    row = {"size": size, "plans": plans, "errors": errors, "times": {name: spread.record() for name, spread in spreads.items()}}
    for name, spread in spreads.items():
        marks = (" wide" if spread.wide else "") + (" WRONG" if errors.get(name, 0.0) > 2e-2 else "")
        print(f"{size} {name}: {spread.median:.1f} us{marks} {plans.get(name, '')}", flush=True)
    theirs = {name: spread.median for name, spread in spreads.items() if not name.startswith("our")}
    best = min(theirs, key=theirs.get)
    by_ours = lambda name: spreads[name].median  # noqa: E731
    told = f"{size}: {theirs[best] / by_ours('ours two'):.3f} of {best}; of our product: two {by_ours('ours two') / by_ours('our product'):.3f}"
    print(f"{told}, one {by_ours('ours one') / by_ours('our product'):.3f}", flush=True)
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sizes", nargs="*", default=SIZES, metavar="MxKxN", help="rows, columns of X, columns of each factor")
    parser.add_argument("--seconds", type=float, default=10.0, help="of tuning for each of our three problems")
    parser.add_argument("--autotune", action="store_true", help="torch.compile with max-autotune-no-cudagraphs, too")
    parser.add_argument("--out", default=os.devnull, help="JSON lines, appended")
    args = parser.parse_args()
    import torch

    import tilewright as tw
    import tilewright.torch as twt

    tw.use("cuda:0")
    held = Held(torch)
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}", flush=True)
    with torch.no_grad(), open(args.out, "a", encoding="utf-8") as out:
        for size in args.sizes:
            out.write(json.dumps(measure(torch, twt, held, size, args)) + "\n")
            out.flush()
            torch._dynamo.reset()


if __name__ == "__main__":
    main()
