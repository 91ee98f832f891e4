"""PyTorch beside tilewright: host time per call, replay of captured graphs, and models end to end, eager against enabled.

    python crates/python/benches/torch_models.py --budget 40 --out results

Models are built here, with random weights. Each is recorded; the shapes that take most of torch's time are searched, for `--budget` seconds in
all; every shape is compared with torch, and the model is timed with and without `tilewright.torch.enable`, in turns. Results of both are
compared with the model in f64. On CUDA the same step is also captured in a graph, by torch and enabled, where the host does not count; with
`--compile MODES` both are run by torch.compile, too. `--limit` ends a model after so many seconds, and keeps what was measured until then.
Writes `results/models.md`, per model a file of shapes, and per model and way a table by layer: who answered it, and why. `--tiny` is for machines
without CUDA: it shows that the script runs, its times mean nothing.
"""

import argparse
import copy
import os
import signal
import statistics
import tempfile
import time
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn import functional as F

import tilewright as tw
import tilewright.torch as twt


class Attention(nn.Module):
    def __init__(self, width, heads, causal):
        super().__init__()
        self.heads, self.causal = heads, causal
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        n, t, c = x.shape
        q, k, v = self.qkv(x).view(n, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.out(y.transpose(1, 2).reshape(n, t, c))


class Block(nn.Module):
    def __init__(self, width, heads, causal):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, causal)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Gpt2(nn.Module):
    """GPT-2 with its vocabulary of 50257 tokens."""

    def __init__(self, layers=12, width=768, heads=12, tokens=50257, length=1024):
        super().__init__()
        self.token, self.place = nn.Embedding(tokens, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads, True) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, tokens, bias=False)

    def forward(self, ids):
        x = self.token(ids) + self.place.weight[: ids.shape[1]]
        return self.head(self.norm(self.blocks(x)))


class Vit(nn.Module):
    """A vision transformer with 197 tokens."""

    def __init__(self, layers=12, width=768, heads=12, size=224, patch=16, classes=1000):
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.first = nn.Parameter(torch.randn(1, 1, width))
        self.place = nn.Parameter(torch.randn(1, (size // patch) ** 2 + 1, width) * 0.02)
        self.blocks = nn.Sequential(*(Block(width, heads, False) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(x.shape[0], -1, -1), x], 1) + self.place
        return self.head(self.norm(self.blocks(x))[:, 0])


class Bottleneck(nn.Module):
    def __init__(self, inside, width, stride):
        super().__init__()
        outside = 4 * width
        self.conv1, self.conv3 = nn.Conv2d(inside, width, 1, bias=False), nn.Conv2d(width, outside, 1, bias=False)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.norm1, self.norm2, self.norm3 = (nn.BatchNorm2d(n) for n in (width, width, outside))
        self.short = nn.Identity()
        if stride > 1 or inside != outside:
            self.short = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))

    def forward(self, x):
        y = F.relu(self.norm1(self.conv1(x)))
        y = F.relu(self.norm2(self.conv2(y)))
        return F.relu(self.norm3(self.conv3(y)) + self.short(x))


class ResNet(nn.Module):
    """ResNet-50, where `blocks` are (3, 4, 6, 3)."""

    def __init__(self, blocks=(3, 4, 6, 3), width=64, classes=1000):
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width)
        layers, inside = [], width
        for stage, count in enumerate(blocks):
            for n in range(count):
                layers.append(Bottleneck(inside, width << stage, 2 if n == 0 and stage > 0 else 1))
                inside = 4 * (width << stage)
        self.layers, self.head = nn.Sequential(*layers), nn.Linear(inside, classes)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.norm(self.first(x))), 3, 2, 1)
        return self.head(self.layers(x).mean((2, 3)))


class RetinaHead(nn.Module):
    """The two towers of RetinaNet over five levels of an image's features."""

    def __init__(self, width=256, depth=4, anchors=9, classes=91):
        super().__init__()

        def tower(outputs):
            convs = (m for _ in range(depth) for m in (nn.Conv2d(width, width, 3, padding=1), nn.ReLU()))
            return nn.Sequential(*convs, nn.Conv2d(width, outputs, 3, padding=1))

        self.classes, self.boxes = tower(anchors * classes), tower(anchors * 4)

    def forward(self, x):
        levels = [x]
        for _ in range(4):
            levels.append(F.max_pool2d(levels[-1], 2, 2))
        return torch.cat([head(level).flatten(1) for head in (self.classes, self.boxes) for level in levels], 1)


def odd(width=1000, bias=True):
    return nn.Sequential(nn.Linear(width, width + 1, bias), nn.GELU(), nn.Linear(width + 1, width + 3, bias), nn.GELU(), nn.Linear(width + 3, width, bias))


def cases(tiny, device):
    """Name, model, input, whether a step trains."""
    kind = torch.float32 if tiny else torch.bfloat16

    def made(model):
        return model.to(device, kind)

    def images(n, size):
        return torch.randn(n, 3, size, size, device=device, dtype=kind)

    def features(n, size):
        return torch.randn(n, 256, size, size, device=device, dtype=kind)

    last = {"memory_format": torch.channels_last}
    if tiny:
        gpt2 = Gpt2(1, 16, 2, 57, 8)
        return {
            "gpt2": (made(gpt2), torch.randint(57, (2, 8)), True),
            "vit": (made(Vit(1, 16, 2, 8, 4, 10)), images(2, 8), False),
            "resnet": (made(ResNet((1,), 4, 10)).to(**last), images(1, 16).contiguous(**last), True),
            "retina-train": (made(RetinaHead(4, 1, 2, 3)), torch.randn(1, 4, 16, 16), True),
            "odd": (made(odd(20)), torch.randn(6, 20, device=device, dtype=kind), True),
        }
    return {
        "gpt2": (made(Gpt2()), torch.randint(50257, (8, 1024), device=device), True),
        "odd": (made(odd()), torch.randn(4096, 1000, device=device, dtype=kind), True),
        "vit": (made(Vit()), images(64, 224), False),
        "resnet": (made(ResNet()).to(**last), images(64, 224).contiguous(**last), False),
        "resnet-train": (made(ResNet()).to(**last), images(64, 224).contiguous(**last), True),
        "retina": (made(RetinaHead()).to(**last), features(8, 80).contiguous(**last), False),
        "retina-train": (made(RetinaHead()).to(**last), features(8, 80).contiguous(**last), True),
    }


def step(model, x, trains):
    if not trains:
        with torch.no_grad():
            return model(x)
    model.zero_grad(set_to_none=True)
    y = model(x)
    if x.dtype == torch.int64:
        F.cross_entropy(y.flatten(0, 1), x.flatten()).backward()
    else:
        y.float().square().mean().backward()
    return y.detach()


def settle():
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def milliseconds(run, least=0.4):
    """Of one run, host and device, as a user waits for it: the median of three rounds."""
    run()
    settle()
    start = time.perf_counter()
    run()
    settle()
    count = max(1, min(50, int(least / 3 / max(time.perf_counter() - start, 1e-6))))
    rounds = []
    for _ in range(3):
        start = time.perf_counter()
        for _ in range(count):
            run()
        settle()
        rounds.append((time.perf_counter() - start) / count * 1e3)
    return statistics.median(rounds)


class OutOfTime(BaseException):
    """A model has had its seconds. No `except Exception` on the way holds it up."""


@contextmanager
def limited(seconds):
    """Raises `OutOfTime` after so many seconds, and every few seconds from then on; 0: never."""

    def over(*_):
        raise OutOfTime

    former = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds, 5.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, former)


def search(path, seconds):
    """Searches the shapes that take most of torch's time, longest first, each as long as its share says."""
    rows = [row for row in twt.shapes(path) if row.problem]
    total = sum(row.torch_us * row.calls for row in rows) or 1.0
    problems, end = {}, time.perf_counter() + seconds
    for row in rows:
        at = problems.setdefault((row.problem, tw._shapes._at(row)), [0.0])
        at[0] += row.torch_us * row.calls / total
    for (problem, place), (share,) in sorted(problems.items(), key=lambda item: -item[1][0]):
        left = end - time.perf_counter()
        if left < 0.5 or share < 0.005:
            break
        try:
            tw.tune(problem, context=tw._core.context_for(place), seconds=min(left, max(1.0, seconds * share)))
        except tw.Error as e:
            print(f"  {problem}: {e}", flush=True)


def largest_error(got, want):
    return ((got.double() - want).abs().max() / want.abs().max()).item()


def captured(run):
    """Replays of a step, which is run before so that nothing is first met while it is captured."""
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        run()
    return graph.replay


def ways(model, x, trains, args):
    """How a step is run, by name; each is set up when it is called."""
    ways = {"eager": lambda: lambda: step(model, x, trains)}
    if not args.tiny:
        ways["graph"] = lambda: captured(lambda: step(model, x, trains))
    for mode in filter(None, args.compile.split(",")):

        def compiled(mode=mode):
            torch._dynamo.reset()
            made = torch.compile(model, mode=None if mode == "default" else mode)

            def run():
                torch.compiler.cudagraph_mark_step_begin()
                return step(made, x, trains)

            for _ in range(3):
                run()
            return run

        ways[f"compile {mode}"] = compiled
    return ways


def by_layer(name, way, path, args):
    """Writes who answers each call and why; gives the share of the time of products that we answer, and of what we were compared to be faster
    at, in torch's time."""
    rows = sorted(twt.shapes(path), key=lambda row: -row.torch_us * row.calls)
    told = ["| layers, operator | calls | torch us | ours us | gain | answered by |", "|---|---|---|---|---|---|"]
    times = {}
    for row, why in zip(rows, tw._models.unanswered(rows)):
        took = row.torch_us * row.calls
        times[why] = times.get(why, 0.0) + took
        by = f"torch: {why}" if why else "tilewright"
        told.append(f"| {row.layers or '(no layer)'}, {row.set} | {row.calls} | {row.torch_us:.1f} | {row.ours_us:.1f} | {row.gain or 0:.2f} | {by} |")
    total, faster = (sum(row.torch_us * row.calls for row in rows if (row.gain or 0) >= least) for least in (0.0, args.margin))
    reasons = sorted(times.items(), key=lambda each: -each[1])
    told += [""] + [f"{took / (total or 1.0):.1%} by {'torch: ' + why if why else 'tilewright'}" for why, took in reasons]
    with open(os.path.join(args.out, f"{name}.{way.replace(' ', '-')}.md"), "w") as file:
        file.write("\n".join(told) + "\n")
    print("\n".join(told[-len(reasons) :]), flush=True)
    ours = times.get("", 0.0)
    return ours / (total or 1.0), ours / (faster or 1.0)


def model_rows(name, case, args, seconds):
    model, x, trains = case
    path = os.path.join(args.out, f"{name}.csv")
    if os.path.exists(path):
        os.remove(path)
    exact = copy.deepcopy(model).double()
    want = step(exact, x if x.dtype == torch.int64 else x.double(), trains)
    del exact
    start = time.perf_counter()
    with twt.record(path, model):
        eager = largest_error(step(model, x, trains), want)
    twt.compare(path, repeats=1)
    search(path, seconds)
    rows = twt.compare(path, repeats=3)
    tuned = time.perf_counter() - start
    twt.optimize(model)
    answers = twt.enable(path, margin=args.margin)
    ours = largest_error(step(model, x, trains), want)
    all_us = sum(row.torch_us * row.calls for row in rows)
    print(f"{name}: {len(rows)} shapes, {answers} ours; {tuned:.0f} s", flush=True)
    for way, made in ways(model, x, trains, args).items():
        times = {True: [], False: []}
        try:
            for on in (False, True, False, True)[: 2 if way.startswith("compile") else 4]:
                if on:
                    twt.enable(path, margin=args.margin, compiled=way.startswith("compile"))
                else:
                    twt.disable()
                times[on].append(milliseconds(made(), 0.02 if args.tiny else 0.5))
                if on:
                    share, of_faster = by_layer(name, way, path, args)
            torch_ms, ours_ms = (min(times[on]) for on in (False, True))
            row = f"| {name}{', training' if trains else ''} | {way} | {torch_ms:.3f} | {ours_ms:.3f} | {torch_ms / ours_ms:.2f}"
            row += f" | {answers} of {len({r.problem for r in rows})} | {share:.2f} | {of_faster:.2f} | {all_us / 1e3:.3f} | {eager:.1e} | {ours:.1e} |"
        except RuntimeError as e:
            row = f"| {name} | {way} | {str(e).splitlines()[0]} |"
        print(row, flush=True)
        yield row


def rows_in_time(name, case, args, seconds):
    """A model's rows, those that were measured within the limit."""
    rows = []
    try:
        with limited(args.limit):
            for row in model_rows(name, case, args, min(seconds, args.limit / 3 or seconds)):
                rows.append(row)
    except (tw.Error, RuntimeError) as e:
        rows.append(f"| {name} | {str(e).splitlines()[0]} |")
        print(rows[-1], flush=True)
    except OutOfTime:
        rows.append(f"| {name} | more takes longer than {args.limit:.0f} s |")
        print(rows[-1], flush=True)
    twt.disable()
    return rows


def per_call(run, count=1000):
    """Microseconds of the host: the device is not waited for within a round, and has little to do."""
    best = float("inf")
    for _ in range(20):
        settle()
        start = time.perf_counter()
        for _ in range(count // 10):
            run()
        best = min(best, (time.perf_counter() - start) / (count // 10) * 1e6)
    settle()
    return best


def host_rows(device, tiny):
    kind = torch.float32 if tiny else torch.bfloat16
    a, b = (torch.randn(64, 64, device=device, dtype=kind) for _ in range(2))
    bias, out = torch.randn(64, device=device, dtype=kind), torch.empty(64, 64, device=device, dtype=kind)
    wanting = a.clone().requires_grad_()
    calls = {"mm": lambda: torch.mm(a, b), "mm, out=": lambda: torch.mm(a, b, out=out), "mm, with gradient": lambda: torch.mm(wanting, b)}
    calls["bmm"] = lambda: torch.bmm(a[None], b[None])
    rows, operators = {}, tw._operators
    deciders = {"torch": None, "enabled, torch answers": lambda problem: "no", "enabled, tilewright answers": lambda problem: None}
    for who, decide in deciders.items():
        operators.choose_by(decide)
        for name, run in calls.items():
            rows[f"{name}: {who}"] = per_call(run, 100 if tiny else 1000)
    operators.choose_by(None)
    rows["twt.mm"] = per_call(lambda: twt.mm(a, b), 100 if tiny else 1000)
    # Modules are ours where anything was compared.
    tw._models._compared[("", "")] = None
    layers = {"nn.Linear": nn.Linear(64, 64), "optimised nn.Linear": twt.optimize(nn.Linear(64, 64))}
    grad = torch.randn(64, 64, device=device, dtype=kind)
    for who, layer in layers.items():
        layer.to(device, kind)
        for decided, decide in deciders.items():
            if (decide is None) == (who == "nn.Linear"):
                operators.choose_by(decide)
                rows[f"{who}: {decided}"] = per_call(lambda: layer(wanting), 100 if tiny else 1000)
                back = per_call(lambda: torch.autograd.grad(layer(wanting), (wanting, *layer.parameters()), grad), 100 if tiny else 1000)
                rows[f"{who} and its gradients: {decided}"] = back
    twt.disable()
    return [f"| {name} | {us:.2f} |" for name, us in rows.items()]


def replay_rows():
    """A graph of calls against the same calls one after another, where the kernel is long enough to hide the host."""
    rows = []
    for m, n, k in [(256, 256, 256), (2048, 2048, 2048), (4096, 4097, 4096)]:
        a, b = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for shape in ((m, k), (k, n)))
        told = []
        for run in (lambda: torch.mm(a, b), lambda: twt.mm(a, b)):
            replay = tw._shapes._timer(run, True, 20)
            replay()
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            for _ in range(20):
                run()
            end.record()
            end.synchronize()
            told.append((min(replay() for _ in range(5)), begin.elapsed_time(end) * 50))
        (torch_replay, torch_stream), (ours_replay, ours_stream) = told
        rows.append(f"| {m} x {n} x {k} | {torch_replay:.2f} | {torch_stream:.2f} | {ours_replay:.2f} | {ours_stream:.2f} |")
    return rows


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--budget", type=float, default=40.0, help="seconds of search in all")
    options.add_argument("--margin", type=float, default=1.03, help="how much faster a shape must be to be ours")
    options.add_argument("--models", default="", help="some of gpt2,odd,vit,resnet,resnet-train,retina,retina-train; all by default")
    options.add_argument("--compile", default="", help="also by torch.compile in these modes: default,reduce-overhead,max-autotune")
    options.add_argument("--limit", type=float, default=0.0, help="seconds for a model, at most; a third of them is for its search")
    options.add_argument("--device", default="cuda:0", help="the CUDA device")
    options.add_argument("--out", default="results", help="folder to write to")
    options.add_argument("--records", default=None, help="records file; by default one that is forgotten")
    options.add_argument("--models-only", action="store_true", help="no host times of calls, no replays of single products")
    options.add_argument("--tiny", action="store_true", help="CPU tensors of a few elements, on the emulator")
    args = options.parse_args()
    if not args.tiny and not torch.cuda.is_available():
        options.error("PyTorch sees no CUDA device here: --tiny shows that the script runs")
    os.makedirs(args.out, exist_ok=True)
    torch.manual_seed(1)
    if args.tiny:
        # oneDNN has no kernels for some of such sizes.
        torch.backends.mkldnn.set_flags(False)
    device = "cpu" if args.tiny else args.device
    records = args.records or os.path.join(tempfile.mkdtemp(), "records.sqlite")
    if not args.tiny:
        torch.cuda.set_device(device)
    tw.use("emu" if args.tiny else device, records=records)
    begin = time.perf_counter()
    told = [f"torch {torch.__version__}, {tw._core.context_for(device if not args.tiny else 'cpu').name}", ""]
    if not args.models_only:
        told += ["| host time per call, 64 x 64 | us |", "|---|---|", *host_rows(device, args.tiny), ""]
    if not args.tiny and not args.models_only:
        told += ["| us per call | torch, replay | torch, stream | ours, replay | ours, stream |", "|---|---|---|---|---|", *replay_rows(), ""]
    print("\n".join(told), flush=True)
    told += ["| model | way | torch ms | enabled ms | gain | shapes ours | share of products' time ours | of what was compared faster | products' ms | torch error | enabled error |"]
    told += ["|" + "---|" * 11]
    all_cases = cases(args.tiny, device)
    wanted = [name for name in args.models.split(",") if name] or list(all_cases)
    for name in wanted:
        if name not in all_cases:
            options.error(f"--models {name}: one of {', '.join(all_cases)}")
        told.extend(rows_in_time(name, all_cases[name], args, args.budget / len(wanted)))
        all_cases[name] = None
    told += ["", f"{time.perf_counter() - begin:.0f} s in all"]
    with open(os.path.join(args.out, "models.md"), "w") as file:
        file.write("\n".join(told) + "\n")
    print(told[-1])


if __name__ == "__main__":
    main()
