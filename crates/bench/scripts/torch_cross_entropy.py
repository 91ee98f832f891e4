#!/usr/bin/env python3
"""Linear cross-entropy of bf16, the mean over rows of logsumexp(X W^T) less the label's logit: ours, tuned here, beside torch and Liger.

Usage: torch_cross_entropy.py [--backward] [--seconds S] [--autotune] [--softcap Z] [--out FILE.jsonl] [ROWSxKxVOCABULARY]...
Needs: PyTorch with CUDA and tilewright's Python package; Liger takes part where its package is installed.
Without --backward ours is also compared with our product that stores the logits in bf16. With it each call computes the gradients of X and W, by
256 MiB of logits at a time, by 1 GiB, and from kept logits.
Times are medians of at least 60 runs with a cold cache and without the host's time (held.py). MiB is the largest memory of a call beyond operands.
"""

import functools
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from sides import compare, main, tuned  # noqa: E402

SIZES = "4096x4096x128256 8192x2048x151936 4096x768x50257".split()


def rivals(torch, autotune, softcap):
    """Losses of (x, w, labels) by name."""

    def of(x, w, labels):
        logits = torch.nn.functional.linear(x, w)
        if softcap:
            logits = torch.tanh(logits / softcap) * softcap
        return torch.nn.functional.cross_entropy(logits.float(), labels)

    ways = {"eager": of}
    for mode in ["default"] + ["max-autotune-no-cudagraphs"] * autotune:
        ways[mode] = torch.compile(of, mode=mode, dynamic=False)
    try:
        from liger_kernel.ops.fused_linear_cross_entropy import LigerFusedLinearCrossEntropyFunction
    except ImportError:
        print("liger_kernel is not installed: left out", flush=True)
    else:
        ways["liger"] = lambda x, w, labels: LigerFusedLinearCrossEntropyFunction.apply(
            x, w, labels, None, None, -100, 0.0, 0.0, "mean", softcap
        )[0]
    return ways


def measure(torch, twt, held, size, args):
    rows, k, vocabulary = (int(extent) for extent in size.split("x"))
    x = torch.randn(rows, k, device="cuda").bfloat16().requires_grad_(args.backward)
    w = (torch.randn(vocabulary, k, device="cuda") * 0.02).bfloat16().requires_grad_(args.backward)
    labels = torch.randint(vocabulary, (rows,), device="cuda")
    loss = functools.partial(twt.linear_cross_entropy, softcap=args.softcap)
    losses = {"ours": loss}
    if args.backward:
        losses["ours, 1 GiB"] = functools.partial(loss, workspace=1 << 30)
        losses["ours, keep"] = functools.partial(loss, keep=True)
    losses.update(rivals(torch, args.autotune, args.softcap))

    def call(loss):
        if args.backward:
            return lambda: torch.autograd.grad(loss(x, w, labels), (x, w))
        return lambda: [loss(x, w, labels)]

    calls = {name: call(loss) for name, loss in losses.items()}
    if not args.backward:
        calls["our product"] = lambda: [twt.linear(x, w)]
    plans = tuned([call for name, call in calls.items() if name.startswith("our")], args.seconds)
    want = [t.detach().double() for t in calls["eager"]()]
    row = compare(held, calls, want, size, {}, "" if args.backward else "our product")
    for name, plan in plans.items():
        print(f"{size}: {name}: {plan}", flush=True)
    return {"size": size, "backward": args.backward, "softcap": args.softcap, "plans": plans, **row}


if __name__ == "__main__":
    main(__doc__, measure, SIZES, "ROWSxKxVOCABULARY", "rows and columns of X, rows of W", "with the gradients of X and W")
