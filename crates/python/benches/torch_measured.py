"""What a process of `torch_models.py` measures: host times of calls, replays of single products, models end to end."""

import copy
import json
import os
import signal
import statistics
import tempfile
import time
from contextlib import contextmanager

import torch
import torch_cases
from torch import nn
from torch.nn import functional as F

import tilewright as tw
import tilewright.torch as twt


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


def results(model, y):
    """What a step computes."""
    return [y, *(p.grad for p in model.parameters() if p.grad is not None)]


def errors(got, want):
    """The largest of a step's result, and of its gradients."""
    if len(got) != len(want):
        raise RuntimeError(f"{len(got) - 1} gradients, {len(want) - 1} are needed")
    told = [((a.double() - b).abs().max() / b.abs().max().clamp_min(1e-30)).item() for a, b in zip(got, want)]
    return f"{told[0]:.1e}, {max(told[1:]):.1e}" if told[1:] else f"{told[0]:.1e}"


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
        y = run()

    def replay():
        graph.replay()
        return y

    return replay


def ways(model, x, trains, args):
    """How a step is run, by name; each is set up when it is called."""
    ways, wanted = {"eager": lambda: lambda: step(model, x, trains)}, args.ways.split(",")
    if not args.tiny:
        ways["graph"] = lambda: captured(lambda: step(model, x, trains))
    for mode in filter(None, args.compile.split(",")):

        def compiled(mode=mode):
            torch._dynamo.reset()
            made = torch.compile(model, mode=None if mode == "default" else mode)

            def run():
                torch.compiler.cudagraph_mark_step_begin()
                return step(made, x, trains)

            start = time.perf_counter()
            for _ in range(3):
                run()
            settle()
            print(f"compile {mode}: {time.perf_counter() - start:.0f} s", flush=True)
            return run

        ways[f"compile {mode}"] = compiled
    return {way: made for way, made in ways.items() if way.split(" ")[0] in wanted}


def bounded_compiler(choices, backends):
    """Starts torch.compile's workers, so that they are there when the first model is compiled; what it measures is bounded."""
    from torch._inductor import config
    from torch._inductor.async_compile import AsyncCompile

    if choices:
        config.test_configs.max_mm_configs = choices
    if backends:
        config.max_autotune_gemm_backends = config.max_autotune_conv_backends = backends
    if torch.cuda.is_available():
        AsyncCompile.warm_pool()


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


def optimised(model, on):
    """Torch's times are those of torch's modules."""
    for module in model.modules():
        if not on and type(module) is twt.Linear:
            module.__class__ = nn.Linear
    if on:
        twt.optimize(model)


def timed_way(told, made, model, path, args):
    """Times a way without and with us, in turns, and gives the results of both. `told` is printed as a line of JSON, also where it failed or the
    limit ended it; then with what was measured by then."""
    times, got, compiles = {True: [], False: []}, {}, told["way"].startswith("compile")
    try:
        for on in (False, True, False, True)[: 2 if compiles else 4]:
            optimised(model, on)
            if on:
                told["shapes_ours"] = twt.enable(path, margin=args.margin, compiled=compiles)
            else:
                twt.disable()
            run = made()
            times[on].append(milliseconds(run, 0.02 if args.tiny else 0.5))
            told["enabled_ms" if on else "torch_ms"] = round(min(times[on]), 4)
            if on not in got:
                # What a graph has written is overwritten by its next replay.
                got[on] = [x.clone() for x in results(model, run())]
            if on:
                told["share_ours"], told["of_faster_ours"] = (round(share, 3) for share in by_layer(told["model"], told["way"], path, args))
            del run
        told["gain"] = round(told["torch_ms"] / told["enabled_ms"], 3)
    except Exception as e:  # Torch's compiler raises all kinds of them.
        told["failed"] = in_short(e)
    finally:
        print(json.dumps(told), flush=True)
    return got


def row_of(told, wrong, rows):
    name, way = told["model"], told["way"]
    if "failed" in told:
        return f"| {name} | {way} | {told['failed']} |"
    products_ms = sum(row.torch_us * row.calls for row in rows) / 1e3
    row = f"| {name}{', training' if told['trains'] else ''} | {way} | {told['torch_ms']:.3f} | {told['enabled_ms']:.3f} | {told['gain']:.2f}"
    row += f" | {told['shapes_ours']} of {len({row.problem for row in rows})} | {told['share_ours']:.2f} | {told['of_faster_ours']:.2f}"
    return f"{row} | {products_ms:.3f} | {' | '.join(wrong)} |"


def model_rows(name, args, seconds):
    """A model's rows, a row for each way."""
    start = time.perf_counter()
    model, x, trains = torch_cases.case(name, args.tiny, "cpu" if args.tiny else args.device)
    path = os.path.join(args.out, f"{name}.csv")
    if not args.keep_shapes and os.path.exists(path):
        os.remove(path)
    with twt.record(path, model):
        step(model, x, trains)
    settle()
    recorded = time.perf_counter() - start
    rows = twt.tune_recorded(path, total=seconds)
    took = sum(row.torch_us * row.calls for row in rows) or 1.0
    compared = [row for row in rows if row.gain is not None]
    told = {"model": name, "way": "searched", "shapes": len(rows), "compared": len(compared)}
    told["share_compared"] = round(sum(row.torch_us * row.calls for row in compared) / took, 3)
    told["seconds"] = {"recorded": round(recorded, 1), "searched": round(time.perf_counter() - start - recorded, 1)}
    print(json.dumps(told), flush=True)
    measured = []
    for way, made in ways(model, x, trains, args).items():
        told = {"model": name, "way": way, "trains": trains}
        measured.append((told, timed_way(told, made, model, path, args)))
    optimised(model, False)
    twt.disable()
    # Behind all times: convolutions in f64 are slow.
    exact = copy.deepcopy(model).double()
    want = results(exact, step(exact, x if x.dtype == torch.int64 else x.double(), trains))
    for told, got in measured:
        wrong = [] if "failed" in told else [errors(got[on], want) for on in (False, True)]
        print(row_of(told, wrong, rows), flush=True)


def in_short(e):
    return f"{type(e).__name__}: {(str(e).splitlines() or [''])[0][:300]}".replace("|", "/")


def run_model(name, args, limit):
    """Prints a model's rows, those that are measured within the limit."""
    print(f"begin {name} {limit:.0f}", flush=True)
    try:
        with limited(limit):
            shares = [args.budget / args.count, limit / 2]
            model_rows(name, args, min(filter(None, shares), default=40.0))
    except Exception as e:
        print(f"| {name} | {in_short(e)} |", flush=True)
    except OutOfTime:
        print(f"| {name} | more takes longer than {limit:.0f} s |", flush=True)
    twt.disable()
    print(f"end {name}", flush=True)
    if torch.cuda.is_available():
        # After an error that stays, or in a capture that was broken off, this fails, and the next model has a process of its own.
        torch.ones(1, device=args.device).sum().item()
        torch.cuda.empty_cache()


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
    x, w = torch.randn(1, 64, 8, 8, device=device, dtype=kind), torch.randn(64, 64, 1, 1, device=device, dtype=kind)
    calls["convolution"] = lambda: torch.conv2d(x, w)
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
    layer = nn.Linear(64, 64).to(device, kind)
    for who, decide in deciders.items():
        for told, columns in (("", 64), (", of other widths", 65)):
            operators.choose_by(decide, layers=[(64, 64, columns)])
            tw._models._meet_biased(decide is not None)
            rows[f"nn.Linear as models have it{told}: {who}"] = per_call(lambda: layer(wanting), 100 if tiny else 1000)
    tw._models._meet_biased(False)
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


def part(args, wanted):
    """In the process of its own: what is left of the models."""
    begin = time.monotonic()
    if not args.tiny and not torch.cuda.is_available():
        raise SystemExit("PyTorch sees no CUDA device here: --tiny shows that the script runs")
    for name in wanted:
        if name not in torch_cases.MODELS:
            raise SystemExit(f"--models {name}: one of {', '.join(torch_cases.MODELS)}")
    if args.tiny:
        # oneDNN has no kernels for some of such sizes.
        torch.backends.mkldnn.set_flags(False)
    device = "cpu" if args.tiny else args.device
    records = args.records or os.path.join(tempfile.mkdtemp(), "records.sqlite")
    if not args.tiny:
        torch.cuda.set_device(device)
    tw.use("emu" if args.tiny else device, records=records)
    if args.compile:
        bounded_compiler(args.compile_choices, args.compile_backends)
    told = [f"torch {torch.__version__}, {tw._core.context_for(device).name}", ""]
    if not args.models_only:
        told += ["| host time per call, 64 x 64 | us |", "|---|---|", *host_rows(device, args.tiny), ""]
    if not args.tiny and not args.models_only:
        told += ["| us per call | torch, replay | torch, stream | ours, replay | ours, stream |", "|---|---|---|---|---|", *replay_rows(), ""]
    print("\n".join(told), flush=True)
    for n, name in enumerate(wanted):
        limit = args.limit
        if args.total:
            # What earlier models leave is the later ones'.
            left = max(1.0, args.total - (time.monotonic() - begin))
            limit = min(limit, left) if limit else left / (len(wanted) - n)
        run_model(name, args, limit)
