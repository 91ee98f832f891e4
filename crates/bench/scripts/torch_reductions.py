#!/usr/bin/env python3
"""Reductions by tilewright and PyTorch on one GPU: of products (a CSV of cases), or of tensors.

    torch_reductions.py --cases gemm_reduce.csv --out products.jsonl       # columns dtype,m,n,k,op,axis,keep_c; A (m,k) and B's transpose (n,k) by rows
    torch_reductions.py --alone --compile max-autotune-no-cudagraphs --out alone.jsonl
    torch_reductions.py --table products.jsonl                             # Markdown, with geometric means

    torch_reductions.py --alone --compile none --ops sum,max,argmax --axes 1 --limit-seconds 150 --resume cub.jsonl --out cub.jsonl   # CUB above all

Needs PyTorch with CUDA and the Python package; CuPy, where it is there, runs CUB (float32 and float16, over the last axis). Each case is tuned for `--budget`
seconds; then all sides run in one process, each with cold caches (other memory is read before every run, outside of the timed span), events around one
call, the median of `--repeats`. The device is kept busy until the call is issued: what a host takes for it is in no time. torch's sums of bf16 accumulate in float32 without a copy of C in float32. Floors: 790 TFLOP/s of bf16, 4.25 TB/s.
`--resume` measures what its records lack first; tables tell the last row of a case that was measured twice.
`--compile-only` fills torch's cache of compiled kernels: several processes with `--part I/N` may do so before the run that measures.
"""

import argparse
import csv
import gzip
import copy
import json
import math
import os
import re
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from held import Held  # noqa: E402

TYPES = {"bf16": "bfloat16", "f16": "float16", "f32": "float32"}
OPERATORS = {"lse": "logsumexp"}
SHAPES = [(65536, 1024), (1024, 65536), (8192, 8192), (1, 1 << 28), (1 << 22, 64), (64, 1 << 22), (4096, 50257), (333, 77777), (1 << 20, 17), (100000, 96)]
FLOPS, BANDWIDTH = 790e12, 4.25e12
# Part of a value by which two sums of a product may differ: argmax takes either one then.
TIES = {"bfloat16": 2**-7, "float16": 2**-10, "float32": 1e-5}
# Largest difference of a reduction from torch's, beside the largest value.
TOLERANCE = {"bfloat16": 2e-2, "float16": 4e-3, "float32": 1e-4}


def reduced(torch, c, op, axis):
    """What a user of torch writes."""
    if op == "sum":
        return torch.sum(c, axis, dtype=torch.float32)
    if op == "sumsq":
        return torch.sum(c.float().square(), axis)
    if op in ("max", "min"):
        return (torch.amax if op == "max" else torch.amin)(c, axis)
    if op == "absmax":
        return torch.amax(c.abs(), axis)
    if op in ("argmax", "argmin"):
        return (torch.argmax if op == "argmax" else torch.argmin)(c, axis)
    return torch.logsumexp(c.float(), axis)


def cases(args):
    """Those that `--resume`'s records lack first, and of these the tensors of 1 GiB last: the host takes seconds to verify one."""
    if args.alone:
        found = [
            dict(dtype=dtype, rows=rows, columns=columns, op=op, axis=axis)
            for dtype in args.dtypes.split(",")
            for rows, columns in SHAPES
            for op in args.ops.split(",")
            for axis in map(int, args.axes.split(","))
            if rows > 1 or axis == 1
        ]
    else:
        with open(args.cases, newline="") as file:
            found = list(csv.DictReader(file))
    part, parts = (int(x) for x in args.part.split("/"))
    found = [case for case in found if re.search(args.only, named(case))]
    found = [case for i, case in enumerate(found) if i % parts == part - 1]
    there = {row["case"] for row in recorded(path for path in args.resume if os.path.exists(path))}
    late = lambda case: case.get("rows", 0) * case.get("columns", 0) >= 1 << 28  # noqa: E731
    return sorted(found, key=lambda case: (named(case) in there, late(case)))


def recorded(paths):
    """Rows of records, of each case the last that was measured."""
    rows = {}
    for path in paths:
        with gzip.open(path, "rt", encoding="utf-8") if path.endswith(".gz") else open(path, encoding="utf-8") as file:
            for row in map(json.loads, file):
                rows[row["case"]] = row
    return list(rows.values())


def sizes(case):
    return (int(case.get(x) or 1) for x in ("m", "n", "k", "batch"))


def named(case):
    """What a row of the table is called."""
    if "rows" in case:
        return f"{case['dtype']} {case['rows']}x{case['columns']} {case['op']} over {'columns' if case['axis'] else 'rows'}"
    m, n, k, batch = sizes(case)
    op = OPERATORS.get(case["op"], case["op"])
    return f"{case['dtype']} {batch}x({m}x{n}x{k}) {op} over {case['axis']}, {'stored' if case['keep_c'] == '1' else 'not stored'}"


class Cub:
    """CUB through CuPy: its device-wide reductions, and for indices of a row CuPy's kernel with CUB's reduction of a block."""

    def __init__(self, torch):
        self.torch, self.cupy = torch, None
        os.environ["CUPY_ACCELERATORS"] = "cub"
        try:
            import cupy
            from cupy.cuda import cub
        except ImportError as e:
            return print(f"no column of CUB: {e}", file=sys.stderr)
        self.cupy, self.cub = cupy, cub

    def run(self, x, op, axis):
        """What reduces a tensor over its last axis; None where CUB, as CuPy offers it, has no such operator or type."""
        number = {"sum": "SUM", "max": "MAX", "min": "MIN", "argmax": "ARGMAX", "argmin": "ARGMIN"}.get(op)
        if self.cupy is None or number is None or axis != 1 or x.dtype not in (self.torch.float32, self.torch.float16):
            return None
        self.cupy.cuda.ExternalStream(self.torch.cuda.current_stream().cuda_stream).use()
        array = self.cupy.from_dlpack(x)
        # One row is all of a tensor, which has a reduction of its own.
        array, axis = (array.reshape(-1), 0) if x.shape[0] == 1 else (array, 1)
        number = getattr(self.cub, f"CUPY_CUB_{number}")
        if self.cub.cub_reduction(array, number, axis) is not None:
            return lambda: self.cub.cub_reduction(array, number, axis)
        return (lambda: getattr(array, op)(axis=axis)) if op.startswith("arg") else None


class Bench:
    def __init__(self, args):
        import torch

        self.torch, self.args = torch, args
        self.held = Held(torch)
        torch.backends.cudnn.benchmark = True
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
        if not args.compile_only:
            import tilewright as tw

            self.tw, self.context = tw, tw.use("cuda:0", records=args.records)
            self.plain = {}
            self.cub = Cub(torch) if args.alone else None
        self.tuned = 0.0

    def timed(self, row, runs):
        """Medians of all sides, timed alternately, and the sides with a wide spread."""
        runs = {name: run for name, run in runs.items() if run}
        if not runs:
            return
        spreads = self.held.spreads(list(runs.values()), self.args.repeats, names=[f"{row.get('case', 'product')}: {name}" for name in runs])
        for name, spread in zip(runs, spreads):
            row[f"{name}_us"] = spread.median
            row.setdefault("spread", {})[name] = [spread.p10, spread.p90]
        row["wide"] = row.get("wide", []) + [name for name, spread in zip(runs, spreads) if spread.wide]

    def compiled(self, run, *tensors):
        """None where torch gives up."""
        if self.args.compile == "none":
            return None
        torch = self.torch
        torch._dynamo.reset()
        made = torch.compile(run, mode=None if self.args.compile == "default" else self.args.compile, dynamic=False)
        try:
            made(*tensors)
        except Exception as e:  # noqa: BLE001: whatever a compiler raises
            print(f"  torch.compile: {str(e).splitlines()[0][:120]}", file=sys.stderr)
            return None
        return lambda: made(*tensors)

    def ours(self, call, dropped=False):
        """Launches of a call's kernels, and their plan. `dropped`: the product itself is not stored."""
        problem = call.problem + ("_noc" if dropped else "")
        start = time.perf_counter()
        outcome = self.tw.tune(problem, context=self.context, seconds=self.args.budget)
        self.tuned += time.perf_counter() - start
        prepared = self.context.prepared(problem, tuple(x.alignment for x in (call.a, call.b, call.c)))
        stream = self.torch.cuda.current_stream().cuda_stream
        space = self.context.workspace(prepared.workspace_bytes, stream, self.held.flush)
        addresses = [call.a.address, call.b.address, call.c.address, 0, 0, space]
        values = [x.address for x in call.values]
        return lambda: prepared.launch(addresses, 1.0, 0.0, stream, False, values), outcome

    def sides(self, eager, tensors):
        """What torch's user has: eager, and compiled where torch can."""
        return {"eager": lambda: eager(*tensors), "compiled": self.compiled(eager, *tensors)}

    def product(self, case):
        torch = self.torch
        m, n, k, batch = sizes(case)
        op, axis, keep = OPERATORS.get(case["op"], case["op"]), case["axis"], case["keep_c"] == "1"
        dtype, first = getattr(torch, TYPES[case["dtype"]]), (batch,) if batch > 1 else ()
        a = torch.randn(*first, m, k, device="cuda", dtype=dtype)
        b = torch.randn(*first, n, k, device="cuda", dtype=dtype).transpose(-1, -2)
        along = -2 if axis == "m" else -1

        def eager(x, y):
            c = x @ y
            values = reduced(torch, c, op, along)
            return (c, values) if keep else values

        size = a.element_size() * batch * (m * k + n * k + (m * n if keep else 0))
        row = {"case": named(case), "floor_us": max(2 * batch * m * n * k / FLOPS, size / BANDWIDTH) * 1e6}
        runs = self.sides(eager, (a, b))
        if self.args.compile_only:
            return row
        if (m, n, k, batch) not in self.plain:
            plain = self.plain[m, n, k, batch] = {}
            self.timed(plain, {"product": self.ours(self.tw._core._gemm(a, b))[0], "torch_product": lambda: a @ b})
        row.update(copy.deepcopy(self.plain[m, n, k, batch]))
        call = self.tw._core._gemm(a, b, reduce=[f"{op}:{axis}"])
        run, outcome = self.ours(call, dropped=not keep)
        row["plan"] = outcome.plan
        self.timed(row, {"ours": run, **runs})
        c = a @ b
        self.compare(row, op, call.result[1], reduced(torch, c, op, along), (c, along, TIES[TYPES[case["dtype"]]]))
        return row

    def alone(self, case):
        torch = self.torch
        op, axis = case["op"], case["axis"]
        x = torch.randn(case["rows"], case["columns"], device="cuda", dtype=getattr(torch, TYPES[case["dtype"]]))
        row = {"case": named(case), "floor_us": x.numel() * x.element_size() / BANDWIDTH * 1e6}
        runs = self.sides(lambda y: reduced(torch, y, op, axis), (x,))
        if self.args.compile_only:
            return row
        call = self.tw._core._reduce(x, op, axis)
        run, outcome = self.ours(call)
        row["plan"] = outcome.plan
        self.timed(row, {"ours": run, **runs})
        self.cub_side(row, x, op, axis)
        self.compare(row, op, call.result, reduced(torch, x, op, axis), (x, axis, 0.0))
        return row

    def cub_side(self, row, x, op, axis):
        """Times CUB alone; None where CUB has no such operator, or CuPy fails."""
        row["cub_us"] = None
        try:
            self.timed(row, {"cub": self.cub.run(x, op, axis)})
        except Exception as e:  # noqa: BLE001: whatever CuPy and its compiler raise
            print(f"  CuPy: {str(e).splitlines()[0][:120]}", file=sys.stderr)

    def compare(self, row, op, ours, theirs, source):
        """Largest difference from torch's values, beside their largest; of indices, the part that differs. `wrong`: by more than rounding
        explains. Of `source` (tensor, axis, part) an index may point at a value that is less than the greatest by this part: a tie."""
        self.torch.cuda.synchronize()
        if not op.startswith("arg"):
            row["differs"] = ((ours.double() - theirs.double()).abs().max() / theirs.double().abs().max()).item()
            row["wrong"] = not row["differs"] <= TOLERANCE[str(source[0].dtype).removeprefix("torch.")]
            return
        tensor, axis, part = source
        row["differs"] = (ours != theirs).double().mean().item()
        at = lambda index: tensor.gather(axis, index.long().unsqueeze(axis)).double()  # noqa: E731
        mine, best = at(ours.reshape(theirs.shape)), at(theirs)
        row["ties"] = ((mine - best).abs() <= part * best.abs()).logical_and(ours.reshape(mine.shape) != theirs.reshape(mine.shape)).double().mean().item()
        row["wrong"] = not bool(((mine - best).abs() <= part * best.abs()).all())


def rivals(row):
    return [row[side] for side in ("eager_us", "compiled_us") if row.get(side)]


def counted(rows, *sides):
    """The right rows that have a time of each side, none of them wide."""
    return [row for row in rows if not row.get("wrong") and not set(row.get("wide", [])) & set(sides) and all(row.get(f"{side}_us") for side in sides)]


def table(paths):
    found = [row for row in recorded(paths) if row.get("ours_us")]
    # Wide or wrong rows count on no side.
    rows = [row for row in counted(found, "ours") if not set(row.get("wide", [])) & {"eager", "compiled"}]
    print(f"{len(rows)} of {len(found)} cases; left out, wide or wrong: {', '.join(row['case'] for row in found if row not in rows) or 'none'}\n")
    print("| case | floor us | eager us | compiled us | ours us | ratio | our product alone | CUB |\n|---|---|---|---|---|---|---|---|")
    number = lambda x: f"{x:.1f}" if x else ""  # noqa: E731
    for row in rows:
        told = [number(row.get(x)) for x in ("floor_us", "eager_us", "compiled_us", "ours_us")]
        ratio = f"{min(rivals(row)) / row['ours_us']:.2f}"
        print(f"| {row['case']} | {' | '.join(told)} | {ratio} | {number(row.get('product_us'))} | {number(row.get('cub_us'))} |")
    if len(rows) < 0.95 * len(found):
        return print("\nno means: more than 5 % of the cases do not count")
    mean = lambda values: math.exp(sum(map(math.log, values)) / len(values)) if values else float("nan")  # noqa: E731
    both = [row for row in rows if row.get("compiled_us")]
    for name, judged in (("the better of torch's two", both), ("eager torch", rows)):
        if judged:
            ratios = [(min(rivals(row) if judged is both else [row["eager_us"]]) / row["ours_us"], row["case"]) for row in judged]
            print(f"\n{len(judged)} cases: over {name} {mean([r for r, _ in ratios]):.3f}, least {min(ratios)[0]:.3f} ({min(ratios)[1]})")
    for name, keep in (("stored", True), ("not stored", False)):
        added = [row["ours_us"] / row["product_us"] for row in counted(rows, "product") if row["case"].endswith(", stored") == keep]
        if added:
            print(f"over our own product that stores C, {name}: {mean(added):.3f}, most {max(added):.3f}")
    cub = [row["cub_us"] / row["ours_us"] for row in counted(rows, "cub")]
    if cub:
        print(f"over CUB, {len(cub)} cases: {mean(cub):.3f}, least {min(cub):.3f}")
    if not any(row.get("product_us") for row in rows):
        long = [row["ours_us"] / row["floor_us"] for row in rows if row["floor_us"] > 90]
        short = [row["ours_us"] - row["floor_us"] for row in rows if row["floor_us"] <= 90]
        print(f"of the floor beyond 90 us: {mean(long):.3f}, most {max(long, default=0):.3f}; below, us above it: at most {max(short, default=0):.1f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", help="CSV of products with reductions")
    parser.add_argument("--alone", action="store_true", help="reductions of tensors without a product")
    parser.add_argument("--dtypes", default="f32,bf16", help=f"types of the tensors: {', '.join(TYPES)}")
    parser.add_argument("--ops", default="sum,max,sumsq,logsumexp,argmax", help="operators of the tensors; also min and argmin")
    parser.add_argument("--axes", default="1,0", help="axes of the tensors: 1 over columns, 0 over rows")
    parser.add_argument("--table", nargs="+", help="print what runs wrote")
    parser.add_argument("--budget", type=float, default=2.0, help="seconds of search per case")
    parser.add_argument("--compile", default="default", help="mode of torch.compile, or none")
    parser.add_argument("--compile-only", action="store_true")
    parser.add_argument("--only", default="", help="a regular expression that a case's name in the table must have")
    parser.add_argument("--part", default="1/1", help="I/N: every N-th case")
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--limit-seconds", type=float, default=math.inf, help="begin no case after so long")
    parser.add_argument("--resume", nargs="+", default=[], help="records whose cases are measured after all others; may name --out")
    parser.add_argument("--records", default=None)
    parser.add_argument("--out", default=os.devnull)
    args = parser.parse_args()
    if args.table:
        return table(args.table)
    if bool(args.cases) == args.alone:
        parser.error("one of --cases FILE and --alone is needed")
    bench, start = Bench(args), time.perf_counter()
    measure, wrong = bench.alone if args.alone else bench.product, 0
    with open(args.out, "a", encoding="utf-8") as file:
        for case in cases(args):
            if time.perf_counter() - start > args.limit_seconds:
                break
            row = measure(case)
            if args.compile_only:
                continue
            file.write(json.dumps(row) + "\n")
            file.flush()
            cub = f", CUB {row['cub_us']:.1f}" if row.get("cub_us") else ""
            print(f"{row['case']}: ours {row['ours_us']:.1f} us, torch {' '.join(f'{x:.1f}' for x in rivals(row))}{cub}, differs {row['differs']:.1e}{' WRONG' if row['wrong'] else ''}{''.join(f' {name} wide' for name in row['wide'])}", flush=True)
            wrong += row["wrong"]
    if wrong:
        sys.exit(f"{wrong} cases are wrong")


if __name__ == "__main__":
    main()
