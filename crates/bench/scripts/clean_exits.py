#!/usr/bin/env python3
"""Many processes that use tilewright under PyTorch, capture CUDA graphs and end: counts how they end.

    clean_exits.py --out exits                                     # 200 processes on cuda:0, up to eight at once
    clean_exits.py --count-scale 0.1 --jobs 4 --out exits          # a tenth of them
    clean_exits.py --torch-alone --out exits-torch                 # the same processes without tilewright
    clean_exits.py --tiny --count-scale 0.02 --out exits-tiny      # CPU tensors on the emulator, no graphs: shows that the script runs

| kind | processes | a process |
|---|---:|---|
| cnn | 140 | trains a small CNN |
| mobilenet | 20 | trains torchvision's MobileNet-V3, batch 128 |
| decode | 20 | decodes 16 x 1 tokens by a Qwen2-like model of transformers; `--decode plain` has the same layers without that package |
| contexts | 20 | multiplies in two contexts of one device, a graph of each alive at the end |

Each process is a new Python. The first of a kind records its shapes, tunes them and writes the files that the others load. Each other loads the
records and the file of shapes (by `enable`; every third by `prepare`). Then it runs three steps on a side stream, captures a step, replays it, checks
the result and ends: with its graphs alive, by `sys.exit`, or after their deletion. Before all of them, one process of each kind runs with torch alone.

`OUT/exits.jsonl` gets a line per process, `OUT/KIND-N.err` what a process wrote to stderr where it failed or said a word of `SUSPECT`. The exit
code is 0 if every process ended with 0, and none said such a word.
"""

import argparse
import concurrent.futures
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from capture import graph_of  # noqa: E402

COUNTS = {"mobilenet": 20, "decode": 20, "contexts": 20, "cnn": 140}
# Of these, at most so many at once: the device's memory holds no more.
AT_ONCE = {"mobilenet": 4}
ENDINGS = ("alive", "exit", "deleted")
SUSPECT = re.compile(r"free\(\)|malloc|double free|corrupt|munmap_chunk|terminate called|Fatal Python error|Segmentation|panicked|defect of tilewright")
FIRST_SEEN = "first seen while"


# A process.


def say(**what):
    print(json.dumps(what), flush=True)


class Step:
    """A step of a model, with what holds its tensors."""

    def __init__(self, run, model=None, sure=True):
        # `sure`: whether a step gives the same result each time, up to rounding.
        self.run, self.model, self.sure = run, model, sure


def training(model, x, sure):
    def run():
        model.zero_grad(set_to_none=True)
        y = model(x)
        y.float().square().mean().backward()
        return y.detach()

    return Step(run, model, sure)


def cnn(torch, device, dtype, tiny):
    from torch import nn

    width, size = (4, 8) if tiny else (64, 32)
    model = nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.Conv2d(width, 2 * width, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(2 * width, 4 * width),
        nn.ReLU(),
        nn.Linear(4 * width, 10, bias=False),
    )
    model = model.to(device, dtype).to(memory_format=torch.channels_last)
    x = torch.randn(2 if tiny else 64, 3, size, size, device=device, dtype=dtype).contiguous(memory_format=torch.channels_last)
    return training(model, x, True)


def mobilenet(torch, device, dtype, tiny):
    from torchvision.models import mobilenet_v3_large, mobilenet_v3_small

    model = (mobilenet_v3_small if tiny else mobilenet_v3_large)(weights=None)
    model = model.to(device, dtype).to(memory_format=torch.channels_last).train()
    x = torch.randn(2 if tiny else 128, 3, *(2 * [32 if tiny else 224]), device=device, dtype=dtype).contiguous(memory_format=torch.channels_last)
    # It drops elements at random.
    return training(model, x, False)


def plain_decoder(torch, sizes):
    """The layers of Qwen2: RMS norm, grouped heads with biases, rotary positions, gated products."""
    from torch import nn
    from torch.nn import functional as F

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            width, self.heads, self.shared = sizes["width"], sizes["heads"], sizes["kv"]
            each = width // self.heads
            self.before, self.after = nn.RMSNorm(width, eps=1e-6), nn.RMSNorm(width, eps=1e-6)
            self.q, self.o = nn.Linear(width, width), nn.Linear(width, width, bias=False)
            self.k, self.v = nn.Linear(width, each * self.shared), nn.Linear(width, each * self.shared)
            self.gate, self.up = (nn.Linear(width, sizes["wide"], bias=False) for _ in range(2))
            self.down = nn.Linear(sizes["wide"], width, bias=False)

        def forward(self, x, cos, sin):
            y = self.before(x)
            q, k, v = (f(y).unflatten(-1, (n, -1)).transpose(1, 2) for f, n in ((self.q, self.heads), (self.k, self.shared), (self.v, self.shared)))
            turned = [t * cos + torch.cat((-t[..., t.shape[-1] // 2 :], t[..., : t.shape[-1] // 2]), -1) * sin for t in (q, k)]
            k, v = (t.repeat_interleave(self.heads // self.shared, 1) for t in (turned[1], v))
            y = F.scaled_dot_product_attention(turned[0], k, v, is_causal=q.shape[2] > 1)
            x = x + self.o(y.transpose(1, 2).flatten(2))
            y = self.after(x)
            return x + self.down(F.silu(self.gate(y)) * self.up(y))

    class Decoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens = nn.Embedding(sizes["vocabulary"], sizes["width"])
            self.blocks = nn.ModuleList(Block() for _ in range(sizes["layers"]))
            self.norm = nn.RMSNorm(sizes["width"], eps=1e-6)
            angles = torch.outer(torch.arange(64.0), 1e6 ** -torch.linspace(0, 1, sizes["width"] // sizes["heads"] // 2))
            self.register_buffer("angles", torch.cat((angles, angles), -1))

        def forward(self, ids):
            x, angles = self.tokens(ids), self.angles[: ids.shape[1]]
            for block in self.blocks:
                x = block(x, angles.cos().to(x.dtype), angles.sin().to(x.dtype))
            return F.linear(self.norm(x), self.tokens.weight)

    return Decoder()


def decode(torch, device, dtype, tiny, plain):
    sizes = {"width": 1536, "wide": 8960, "layers": 6, "heads": 12, "kv": 2, "vocabulary": 151936}
    if tiny:
        sizes.update(width=32, wide=48, layers=1, heads=4, vocabulary=96)
    ids = torch.randint(0, sizes["vocabulary"], (2 if tiny else 16, 1), device=device)
    with torch.device(device):
        if plain:
            model = plain_decoder(torch, sizes)
            forward = lambda: model(ids)  # noqa: E731
        else:
            from transformers import Qwen2Config, Qwen2ForCausalLM

            config = Qwen2Config(
                hidden_size=sizes["width"],
                intermediate_size=sizes["wide"],
                num_hidden_layers=sizes["layers"],
                num_attention_heads=sizes["heads"],
                num_key_value_heads=sizes["kv"],
                vocab_size=sizes["vocabulary"],
                tie_word_embeddings=True,
            )
            model = Qwen2ForCausalLM(config)
            forward = lambda: model(input_ids=ids, use_cache=False).logits  # noqa: E731
    model = model.to(dtype).eval()

    def run():
        with torch.no_grad():
            return forward()

    return Step(run, model)


def made(torch, args, kind, device, dtype):
    torch.manual_seed(1)
    if kind == "decode":
        return decode(torch, device, dtype, args.tiny, args.decode == "plain")
    return {"cnn": cnn, "mobilenet": mobilenet}[kind](torch, device, dtype, args.tiny)


def captured(torch, run, tiny):
    """A graph of a step after three steps, and the result that its replays write."""
    if tiny:
        for _ in range(3):
            run()
        return None, run()
    return graph_of(torch, run)


def check(torch, y, want):
    if not torch.isfinite(y.float()).all():
        raise SystemExit("the result is not finite")
    if want is not None:
        error = ((y.double() - want).abs().max() / want.abs().max().clamp_min(1e-30)).item()
        if error > 0.1:
            raise SystemExit(f"the result differs from torch's by {error:.1e}")


# Graphs, tensors and contexts that are alive when the process ends.
ALIVE = []


def replayed(torch, graph, y, want, args):
    for _ in range(args.replays if graph else 0):
        graph.replay()
    if graph:
        torch.cuda.synchronize()
    check(torch, y, want)
    ALIVE.append((graph, y))


def of_a_model(torch, args, device, dtype):
    say(phase="model")
    step = made(torch, args, args.kind, device, dtype)
    want = step.run().double() if step.sure else None
    if args.way == "torch":
        say(phase="capture")
        graph, y = captured(torch, step.run, args.tiny)
        say(phase="replay")
        return replayed(torch, graph, y, want, args)
    import tilewright as tw
    import tilewright.torch as twt
    from tilewright import _shapes

    # Processes beside this one spread its times. Which calls are ours is of no account here, as long as many are.
    _shapes._WITHIN = float("inf")
    tw.use("emu" if args.tiny else device)
    path = os.path.join(args.out, f"{args.kind}.csv")
    if args.way == "tune":
        say(phase="record")
        with twt.record(path, step.model):
            step.run()
        say(phase="tune")
        twt.tune_recorded(path, total=args.tune_seconds)
        say(phase="compare")
        # Also the shapes for which no seconds were left.
        twt.compare(path, repeats=1)
    if args.way == "prepare":
        say(phase="prepare")
        twt.prepare(step.run, (), path, margin=args.margin, repeats=1)
    else:
        say(phase="enable")
        twt.enable(path, margin=args.margin)
    twt.optimize(step.model)
    say(phase="capture")
    graph, y = captured(torch, step.run, args.tiny)
    say(phase="replay")
    replayed(torch, graph, y, want, args)
    told = twt.report()
    ours = sum(line.split()[1] == "tilewright" for line in told.splitlines() if len(line.split()) > 2)
    say(ours=ours, unprepared=sum(FIRST_SEEN in line for line in told.splitlines()))


def of_contexts(torch, args, device, dtype):
    size = 48 if args.tiny else 512
    a, b, bias = (torch.randn(*shape, device=device, dtype=dtype) for shape in ((size, size), (size, size), (size,)))
    if args.way == "torch":
        for run in (lambda: a @ b, lambda: torch.nn.functional.linear(a, b, bias)):
            replayed(torch, *captured(torch, run, args.tiny), run().double(), args)
        return
    import tilewright as tw
    import tilewright.torch as twt

    names = ("one", "two")
    for turn, run in enumerate((lambda: twt.mm(a, b), lambda: twt.linear(a, b, bias, "relu"))):
        say(phase=f"context {names[turn]}")
        records = os.path.join(args.out, f"contexts-{names[turn]}.sqlite")
        ALIVE.append(tw.use("emu" if args.tiny else device, records=records))
        if args.way == "tune":
            if turn:
                twt.tune(twt.linear, a, b, bias, activation="relu", seconds=args.tune_seconds / 4)
            else:
                twt.tune(twt.mm, a, b, seconds=args.tune_seconds / 4)
        want = torch.relu(a.double() @ b.double().t() + bias.double()) if turn else a.double() @ b.double()
        say(phase=f"capture {names[turn]}")
        graph, y = captured(torch, run, args.tiny)
        replayed(torch, graph, y, want, args)
        # By the arrays' interface, whose context keeps workspace.
        check(torch, tw.gemm(a, b), a.double() @ b.double())
    say(phase="replay")
    for graph, y in [pair for pair in ALIVE if isinstance(pair, tuple)]:
        replayed(torch, graph, y, y.double(), args)
    say(ours=twt.prepared())


def process(args):
    say(phase="import")
    import torch

    device, dtype = ("cpu", torch.float32) if args.tiny else (args.device, torch.bfloat16)
    if args.tiny:
        torch.set_num_threads(1)
    else:
        torch.cuda.set_device(device)
    (of_contexts if args.kind == "contexts" else of_a_model)(torch, args, device, dtype)
    say(phase=f"end {args.ending}")
    if args.ending == "deleted":
        ALIVE.clear()
    elif args.ending == "exit":
        sys.exit(0)


# The processes together.


class Processes:
    def __init__(self, args):
        self.args, self.begin, self.rows, self.lock = args, time.monotonic(), [], threading.Lock()
        self.slots = threading.Semaphore(max(1, args.jobs))
        self.of_kinds = {kind: threading.Semaphore(AT_ONCE.get(kind, args.jobs)) for kind in COUNTS}
        self.lines = open(os.path.join(args.out, "exits.jsonl"), "w")
        self.env = {**os.environ, "PYTHONFAULTHANDLER": "1", "TILEWRIGHT_RECORDS": os.path.join(args.out, "records.sqlite")}

    def left(self):
        return self.args.seconds - (time.monotonic() - self.begin)

    def run(self, kind, *which, **options):
        """Runs one process when less than `--jobs` run; gives its row."""
        with self.of_kinds[kind], self.slots:
            return self.run_now(kind, *which, **options)

    def run_now(self, kind, number, way, ending="alive", decode=None):
        args = self.args
        command = [sys.executable, os.path.abspath(__file__), "--process", "--kind", kind, "--way", way, "--ending", ending, "--out", args.out]
        command += ["--device", args.device, "--margin", str(args.margin), "--tune-seconds", str(args.tune_seconds)]
        command += ["--replays", str(args.replays), "--decode", decode or args.decode] + (["--tiny"] if args.tiny else [])
        limit = min(args.limit * (2 if way == "tune" else 1), self.left())
        if limit < 5.0:
            return None
        name = f"{kind}-{way}" if way in ("torch", "tune") and not args.torch_alone else f"{kind}-{number}"
        begin = time.monotonic()
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace", env=self.env, start_new_session=True)
        try:
            out, err = child.communicate(timeout=limit)
            code = child.returncode
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            out, err = child.communicate()
            code = f"over {limit:.0f} s"
        told = {"phase": "start"}
        for line in out.splitlines():
            try:
                told.update(json.loads(line))
            except (TypeError, ValueError):
                err += f"\nstdout: {line}"
        row = {"kind": kind, "number": number, "way": way, "ending": ending, "code": code, "seconds": round(time.monotonic() - begin, 1), **told}
        said = SUSPECT.search(err)
        row["said"] = said[0] if said else ""
        if code != 0 or said:
            row["stderr"] = os.path.join(args.out, f"{name}.err")
            with open(row["stderr"], "w") as file:
                file.write(err)
        with self.lock:
            self.rows.append(row)
            self.lines.write(json.dumps(row) + "\n")
            self.lines.flush()
            if code != 0 or said or way in ("torch", "tune"):
                last = next((line for line in reversed(err.strip().splitlines()) if line.strip()), "") if code != 0 else ""
                print(f"{name}: {ended(code)} in {row['seconds']} s, phase {row['phase']} {row['said']} {last[:160]}", flush=True)
        return row

    def of_kind(self, pool, kind, count):
        """Queues the processes of a kind after the first, which the others load from."""
        args, decode = self.args, None
        if not args.torch_alone:
            alone = self.run(kind, 0, "torch")
            if kind == "decode" and args.decode == "transformers" and alone is not None and alone["code"] != 0:
                # Without the package, or where torch alone does not capture it either.
                decode = "plain"
                print("decode: torch alone fails with transformers, the plain layers take its place", flush=True)
                alone = self.run(kind, 0, "torch", decode=decode)
            if alone is None or alone["code"] != 0:
                print(f"{kind}: fails with torch alone, its processes are left out", flush=True)
                return []
            first = self.run(kind, 0, "tune", decode=decode)
            shapes = os.path.join(args.out, f"{kind}.csv")
            if kind != "contexts" and (first is None or first["code"] != 0) and not os.path.exists(shapes):
                print(f"{kind}: nothing was tuned, its processes are left out", flush=True)
                return []
        jobs = []
        for n in range(1, max(1, count) + (1 if args.torch_alone else 0)):
            way = "torch" if args.torch_alone else "prepare" if n % 3 == 0 and kind != "contexts" else "enable"
            jobs.append(pool.submit(self.run, kind, n, way, ENDINGS[n // 3 % len(ENDINGS)], decode))
        return jobs


def ended(code):
    if isinstance(code, int) and code < 0:
        try:
            return signal.Signals(-code).name
        except ValueError:
            return f"signal {-code}"
    return str(code)


def table(rows, wanted):
    """How the processes of each kind ended; those of torch alone before them have rows of their own."""
    groups = {}
    for row in rows:
        before = row["way"] == "torch" and row["number"] == 0
        groups.setdefault(f"{row['kind']}, torch alone" if before else row["kind"], []).append(row)
    lines = ["| kind | ran | of | exit codes | said | calls ours, least | first seen in capture | seconds, median |", "|---|---:|---:|---|---|---:|---:|---:|"]
    for name, group in groups.items():
        codes = {}
        for row in group:
            codes[ended(row["code"])] = codes.get(ended(row["code"]), 0) + 1
        told = ", ".join(f"{code}: {count}" for code, count in sorted(codes.items()))
        ours = [row["ours"] for row in group if "ours" in row]
        unprepared = sum(row.get("unprepared", 0) for row in group)
        seconds = sorted(row["seconds"] for row in group)[len(group) // 2]
        said = sum(bool(row["said"]) for row in group)
        lines.append(f"| {name} | {len(group)} | {wanted.get(name, 1)} | {told} | {said} | {min(ours, default='')} | {unprepared} | {seconds} |")
    return lines


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--out", default="exits", help="folder for the records, the files of shapes and the results (default: %(default)s)")
    options.add_argument("--count-scale", type=float, default=1.0, help="part of the 200 processes; at least one of each kind")
    options.add_argument("--kinds", default=",".join(COUNTS), help="some of these: %(default)s")
    options.add_argument("--jobs", type=int, default=8, help="processes at once, at most (default: %(default)s)")
    options.add_argument("--seconds", type=float, default=540.0, help="for all processes; those left are not started (default: %(default)s)")
    options.add_argument("--limit", type=float, default=150.0, help="seconds for a process, twice as many for those that tune (default: %(default)s)")
    options.add_argument("--tune-seconds", type=float, default=10.0, help="of search for a kind (default: %(default)s)")
    options.add_argument("--margin", type=float, default=0.0, help="as in `enable`; 0: every compared shape is ours (default: %(default)s)")
    options.add_argument("--replays", type=int, default=3, help="of each graph (default: %(default)s)")
    options.add_argument("--records", help="records to begin with, as `tilewright records export` writes them or a file of records")
    options.add_argument("--device", default="cuda:0", help="the CUDA device (default: %(default)s)")
    options.add_argument("--decode", choices=("transformers", "plain"), default="transformers")
    options.add_argument("--torch-alone", action="store_true", help="the same processes without tilewright")
    options.add_argument("--tiny", action="store_true", help="CPU tensors on the emulator, without graphs")
    for name in ("--process", "--kind", "--way", "--ending"):
        options.add_argument(name, help=argparse.SUPPRESS, **({"action": "store_true"} if name == "--process" else {}))
    args = options.parse_args()
    args.out = os.path.abspath(args.out)
    if args.process:
        return process(args)
    os.makedirs(args.out, exist_ok=True)
    kinds = [kind for kind in args.kinds.split(",") if kind]
    unknown = [kind for kind in kinds if kind not in COUNTS]
    if unknown:
        options.error(f"--kinds {','.join(unknown)}: {', '.join(COUNTS)} are possible")
    for name in os.listdir(args.out):
        # Of an earlier run.
        if name.endswith((".err", ".csv")):
            os.remove(os.path.join(args.out, name))
    processes = Processes(args)
    if args.records and not args.torch_alone:
        begin_with(args.records, processes.env, args.tiny)
    wanted = {kind: max(1, round(COUNTS[kind] * args.count_scale)) for kind in kinds}
    # The processes of a kind are queued as soon as its first has ended.
    with concurrent.futures.ThreadPoolExecutor(sum(wanted.values())) as pool:
        with concurrent.futures.ThreadPoolExecutor(min(len(kinds), max(1, args.jobs)) or 1) as firsts:
            jobs = [job for queued in [firsts.submit(processes.of_kind, pool, kind, wanted[kind]) for kind in kinds] for job in queued.result()]
        for job in jobs:
            job.result()
    lines = table(processes.rows, wanted)
    counted = [row for row in processes.rows if args.torch_alone or row["way"] != "torch"]
    bad = [row for row in processes.rows if row["code"] != 0 or row["said"]]
    aborts = sum(isinstance(row["code"], int) and row["code"] < 0 for row in counted)
    lines.append(f"\n{len(counted)} of {sum(wanted.values())} processes, {aborts} ended by a signal, {len(bad)} failed or suspect, {processes.args.seconds - processes.left():.0f} s")
    text = "\n".join(lines)
    with open(os.path.join(args.out, "exits.md"), "w") as file:
        file.write(text + "\n")
    print(text)
    return 1 if bad or len(counted) < sum(wanted.values()) else 0


def begin_with(path, env, tiny):
    """Puts records into the processes' file."""
    if path.endswith((".jsonl", ".gz")):
        code = f"import tilewright as tw; print(tw.use({'emu' if tiny else None!r}).import_records({path!r}), 'trials imported')"
        subprocess.run([sys.executable, "-c", code], env=env, check=True)
        return
    import sqlite3

    with sqlite3.connect(path) as read, sqlite3.connect(env["TILEWRIGHT_RECORDS"]) as write:
        read.backup(write)


if __name__ == "__main__":
    sys.exit(main())
