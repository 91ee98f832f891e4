#!/usr/bin/env python3
"""Convolutions of a case file: ours, tuned here, and torch's cuDNN with `benchmark = True`, alternately in one process.

Usage: conv_beside_torch.py --cases benchmarks/cases/retinanet_conv.csv --out FILE.jsonl
Needs: PyTorch with CUDA and tilewright's Python package. CASES has the columns n, groups, c, k, r, s, h, w, stride, pad, dilation (2-D).
Times are medians with a cold cache (held.py). Prints a line per case, then per direction: n of N, geometric mean, worst.
"""

import argparse
import csv
import json
import math
import os
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from held import Held  # noqa: E402

DIRECTIONS = {"forward": "fwd", "backward-data": "bwdd", "backward-weight": "bwdw"}
TYPES = {"bf16": "bfloat16", "f16": "float16", "f32": "float32"}
TOLERANCE = {"bf16": 2e-2, "f16": 4e-3, "f32": 1e-4}


def problem(case, direction, layout, dtype):
    """Its key."""
    n, g, c, k, r, s, h, w, stride, pad, dilation = (
        int(case[x]) for x in ("n", "groups", "c", "k", "r", "s", "h", "w", "stride", "pad", "dilation")
    )
    two = lambda x: f"{x}x{x}"  # noqa: E731
    return (
        f"conv_{DIRECTIONS[direction]}_{layout}_n{n}_g{g}_c{c}_k{k}_in{h}x{w}_fil{r}x{s}_st{two(stride)}_dil{two(dilation)}"
        f"_pb{two(pad)}_pe{two(pad)}_bias0_ws1073741824_{dtype}"
    )


class Case:
    """Tensors of a case, and torch's call."""

    def __init__(self, torch, case, direction, layout, dtype):
        self.torch, self.direction = torch, direction
        get = lambda *names: [int(case[x]) for x in names]  # noqa: E731
        n, self.groups, c, k, r, s, h, w = get("n", "groups", "c", "k", "r", "s", "h", "w")
        self.stride, self.pad, self.dilation = get("stride", "pad", "dilation")
        kind = torch.channels_last if layout == "nhwc" else torch.contiguous_format
        out = [(size + 2 * self.pad - self.dilation * (f - 1) - 1) // self.stride + 1 for size, f in ((h, r), (w, s))]

        def random(*extents):
            values = torch.rand(*extents, device="cuda", dtype=torch.float32) * 2 - 1
            return values.to(getattr(torch, TYPES[dtype])).to(memory_format=kind)

        self.x, self.w, self.y = random(n, c, h, w), random(k, c // self.groups, r, s), random(n, k, *out)
        first, second, result = {
            "forward": (self.x, self.w, self.y),
            "backward-data": (self.y, self.w, self.x),
            "backward-weight": (self.y, self.x, self.w),
        }[direction]
        self.first, self.second, self.result = first, second, torch.full_like(result, math.nan)

    def theirs(self):
        torch = self.torch
        if self.direction == "forward":
            return torch.nn.functional.conv2d(self.x, self.w, None, self.stride, self.pad, self.dilation, self.groups)
        mask = [self.direction == "backward-data", self.direction == "backward-weight", False]
        steps = ([self.stride] * 2, [self.pad] * 2, [self.dilation] * 2)
        grads = torch.ops.aten.convolution_backward(self.y, self.x, self.w, None, *steps, False, [0, 0], self.groups, mask)
        return grads[mask.index(True)]


def measure(tw, context, held, case, args, direction):
    torch = held.torch
    key = problem(case, direction, args.layout, args.dtype)
    row = {"id": case.get("id"), "direction": direction, "problem": key}
    of = Case(torch, case, direction, args.layout, args.dtype)
    plan = tw.tune(key, context=context, seconds=args.budget).plan
    prepared = context.prepared(key, (256, 256, 256))
    space = torch.empty(max(1, prepared.workspace_bytes), dtype=torch.uint8, device="cuda")
    addresses = {"a": of.first.data_ptr(), "b": of.second.data_ptr(), "c": of.result.data_ptr(), "workspace": space.data_ptr()}
    stream = torch.cuda.current_stream().cuda_stream
    ours = lambda: prepared.launch(addresses, stream=stream)  # noqa: E731
    ours()
    reference = of.theirs()
    torch.cuda.synchronize()
    row["error"] = ((of.result.double() - reference.double()).norm() / reference.double().norm()).item()
    row["right"] = row["error"] <= TOLERANCE[args.dtype]
    mine, theirs = held.spreads([ours, of.theirs], args.samples, names=["ours", "torch"])
    row.update(plan=plan, ours=mine.record(), torch=theirs.record(), ratio=theirs.median / mine.median)
    return row


def summary(rows, asked):
    for direction in dict.fromkeys(direction for _, direction in asked):
        total = sum(d == direction for _, d in asked)
        valid = [r for r in rows if r["direction"] == direction and r.get("right") and not (r["ours"]["wide"] or r["torch"]["wide"])]
        if not valid:
            print(f"{direction}: 0 of {total}")
            continue
        mean = math.exp(sum(math.log(r["ratio"]) for r in valid) / len(valid))
        worst = min(valid, key=lambda r: r["ratio"])
        lacking = "; more than 5 % of the cases are missing: not fit to publish" if 20 * (total - len(valid)) > total else ""
        print(f"{direction}: {len(valid)} of {total}, geometric mean {mean:.3f}, worst {worst['ratio']:.3f} ({worst['problem']}){lacking}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", required=True)
    parser.add_argument("--out", required=True, help="JSON lines, appended")
    parser.add_argument("--directions", default=",".join(DIRECTIONS))
    parser.add_argument("--dtype", default="bf16", choices=TYPES)
    parser.add_argument("--layout", default="nhwc", choices=("nhwc", "nchw"))
    parser.add_argument("--budget", type=float, default=1.5, help="seconds of tuning per case")
    parser.add_argument("--samples", type=int, default=21)
    parser.add_argument("--part", default="1/1", help="I/N: every N-th case")
    parser.add_argument("--records", default=None, help="file of tuned plans")
    parser.add_argument("--limit-seconds", type=float, default=math.inf, help="begin no case after so long")
    args = parser.parse_args()
    import tilewright as tw
    import torch

    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    context, held, start = tw.use("cuda:0", records=args.records), Held(torch), time.monotonic()
    index, parts = (int(x) for x in args.part.split("/"))
    with open(args.cases, encoding="utf-8") as file:
        cases = list(csv.DictReader(file))
    asked = [(case, direction) for direction in args.directions.split(",") for case in cases][index - 1 :: parts]
    where = {"torch_version": torch.__version__, "cudnn": torch.backends.cudnn.version(), "device": torch.cuda.get_device_name()}
    print(json.dumps(where))
    rows = []
    with open(args.out, "a", encoding="utf-8") as out:
        for case, direction in asked:
            if time.monotonic() - start > args.limit_seconds:
                print("time is up")
                break
            try:
                row = measure(tw, context, held, case, args, direction)
            except Exception as e:  # noqa: BLE001: a case that fails is reported, and is missing from the means
                row = {"id": case.get("id"), "direction": direction, "failure": f"{type(e).__name__}: {str(e)[:200]}"}
            rows.append(row)
            out.write(json.dumps({**row, **where}) + "\n")
            out.flush()
            if "failure" in row:
                print(f"{direction} {row['id']}: {row['failure']}", flush=True)
                continue
            marks = "".join(f" {name} wide" for name in ("ours", "torch") if row[name]["wide"]) + ("" if row["right"] else " WRONG")
            times = f"ours {row['ours']['median_us']:.1f} us, torch {row['torch']['median_us']:.1f} us"
            print(f"{row['ratio']:.3f} {times}, error {row['error']:.1e}{marks} {row['problem']}", flush=True)
    summary(rows, asked)


if __name__ == "__main__":
    main()
