"""What a process of `torch_models.py` measures: host times of calls, replays of single products, models end to end."""

import copy
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from contextlib import contextmanager

import torch
import torch_cases
from torch import nn
from torch.nn import functional as F

import tilewright as tw
import tilewright.torch as twt

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../bench/scripts"))
from capture import graph_of  # noqa: E402


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
    """Replays of a step, which is run before so that nothing is first seen while it is captured."""
    graph, y = graph_of(torch, run, "thread_local")

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
    """Writes who answers each call and why; gives the share of the time of products that we answer, of what we were compared to be faster at,
    and of each reason, in torch's time."""
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
    whose = {why or "tilewright": round(took / (total or 1.0), 4) for why, took in reasons}
    return {"share_ours": round(ours / (total or 1.0), 3), "of_faster_ours": round(ours / (faster or 1.0), 3), "answered_by": whose}


def optimised(model, on):
    """Torch's times are those of torch's modules."""
    for module in model.modules():
        if not on and type(module) is twt.Linear:
            module.__class__ = nn.Linear
    if on:
        twt.optimize(model)


def timed_way(told, made, model, path, args):
    """Times a way without and with us, alternately, and gives the results of both. `told` is printed as a line of JSON, also after a failure or
    at the limit, with the measurements so far."""
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
                told.update(by_layer(told["model"], told["way"], path, args))
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
    # After all timings, because convolutions in f64 are slow.
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


def host_calls(device, kind):
    """Calls of few elements, by name, in torch's words: who answers them is decided elsewhere."""
    made = lambda *shape: torch.randn(shape, device=device, dtype=kind)  # noqa: E731
    a, b, bias, out, wanting = made(64, 64), made(64, 64), made(64), made(64, 64), made(64, 64).requires_grad_()
    x, w, image = made(1, 64, 8, 8), made(64, 64, 1, 1), made(1, 64, 8, 8)
    how = (None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)
    calls = {"mm": lambda: torch.mm(a, b), "mm, out=": lambda: torch.mm(a, b, out=out), "mm, with gradient": lambda: torch.mm(wanting, b)}
    calls["bmm"] = lambda: torch.bmm(a[None], b[None])
    calls["F.linear with bias"] = lambda: F.linear(a, b, bias)
    calls["convolution"] = lambda: torch.conv2d(x, w)
    calls["convolution_backward"] = lambda: torch.ops.aten.convolution_backward(image, x, w, *how, [True, True, False])
    for name in tw._operators.REDUCTIONS:
        calls[name] = lambda run=getattr(torch, name): run(a, 1)
    return calls


# Who answers torch's calls.
DECIDERS = {"torch": None, "enabled, torch answers": lambda problem: "no", "enabled, tilewright answers": lambda problem: None}


def told_host(name, who, us):
    print(json.dumps({"host": name, "by": who, "us": round(us, 3)}), flush=True)


def host_rows(device, tiny):
    """Host time per call: torch's, a fallback's and ours, measured alternately because the host's speed drifts."""
    kind, operators, count = torch.float32 if tiny else torch.bfloat16, tw._operators, 10 if tiny else 500
    calls, best = host_calls(device, kind), {}
    # Modules are ours where anything was compared.
    tw._models._compared[("", "")] = None
    for turn in range(3):
        for who, decide in DECIDERS.items():
            # A layer that falls back is of a size that has no faster shape, as `enable` reads it from its file.
            operators.choose_by(decide, layers=[(64, 64, 65 if who == "enabled, torch answers" else 64)])
            tw._models._meet_biased(decide is not None)
            for name, run in calls.items():
                best[name, who] = min(best.get((name, who), float("inf")), per_call(run, count))
                if turn == 2:
                    told_host(name, who, best[name, who])
    rows = {name: [best[name, who] for who in DECIDERS] for name in calls}
    a, b, wanting = (torch.randn(64, 64, device=device, dtype=kind) for _ in range(3))
    wanting.requires_grad_()
    operators.choose_by(None)
    rows["twt.mm (last column), torch.mm"] = [per_call(lambda: torch.mm(a, b), count), None, per_call(lambda: twt.mm(a, b), count)]
    layer = nn.Linear(64, 64).to(device, kind)
    for told, columns in (("", 64), (", of other widths", 65)):
        rows[f"nn.Linear as models have it{told}"] = times = []
        for decide in DECIDERS.values():
            operators.choose_by(decide, layers=[(64, 64, columns)])
            tw._models._meet_biased(decide is not None)
            times.append(per_call(lambda: layer(wanting), count))
    tw._models._meet_biased(False)
    layers = {"nn.Linear": nn.Linear(64, 64), "optimised nn.Linear": twt.optimize(nn.Linear(64, 64))}
    once, both = ([], [])
    for decide in DECIDERS.values():
        layer = layers["nn.Linear" if decide is None else "optimised nn.Linear"].to(device, kind)
        operators.choose_by(decide)
        once.append(per_call(lambda: layer(wanting), count))
        both.append(per_call(lambda: torch.autograd.grad(layer(wanting), (wanting, *layer.parameters()), a), count))
    rows["nn.Linear, optimised"], rows["the same and its gradients"] = once, both
    twt.disable()
    for name in list(rows)[len(calls) :]:
        [told_host(name, who, us) for who, us in zip(DECIDERS, rows[name]) if us is not None]
    told = lambda us: "" if us is None else f"{us:.2f}"  # noqa: E731
    return [f"| {name} | {' | '.join(map(told, times))} | {told(times[1] and times[1] - times[0])} |" for name, times in rows.items()]


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
        print(json.dumps({"replay": [m, n, k], "torch_us": told[0], "ours_us": told[1]}), flush=True)
        rows.append(f"| {m} x {n} x {k} | {torch_replay:.2f} | {torch_stream:.2f} | {ours_replay:.2f} | {ours_stream:.2f} |")
    return rows


def part(args, wanted):
    """Runs the remaining models in a process of its own."""
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
        # Torch's side is its fastest: the kernels of cuDNN that its own measurement chooses.
        torch.backends.cudnn.benchmark = True
    tw.use("emu" if args.tiny else device, records=records)
    if args.compile:
        bounded_compiler(args.compile_choices, args.compile_backends)
    told = [f"torch {torch.__version__} with cudnn.benchmark, {tw._core.context_for(device).name}", ""]
    if not args.models_only:
        told += ["| host us per call, 64 x 64 | " + " | ".join(DECIDERS) + " | falling back adds |", "|---|---|---|---|---|", *host_rows(device, args.tiny), ""]
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
