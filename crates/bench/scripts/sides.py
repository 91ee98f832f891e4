"""Calls of several sides that compute the same: our problems in them, errors, device times and ratios, as torch_glu.py and torch_cross_entropy.py
print them."""

import argparse
import json
import os
import time

from held import Held

# Samples of each side, at least.
SAMPLES = 60


def answered():
    """How often ours has run each problem."""
    from tilewright import _native, _operators

    found = dict(_operators.launched())
    for *_, problem, calls, by_us, _ in _native.torch_calls():
        if by_us:
            found[problem] = found.get(problem, 0) + calls
    return found


def tuned(calls, seconds, at="cuda:0"):
    """Runs calls once, and tunes the problems that they consist of, for so many seconds each. Prints each problem's seconds. Gives the plans by problem."""
    from tilewright import _core

    before, plans, begin = answered(), {}, time.monotonic()
    for call in calls:
        call()
    problems = {problem: count - before.get(problem, 0) for problem, count in answered().items() if count > before.get(problem, 0)}

    def settled(problem, outcome):
        plans[problem] = outcome and outcome["plan"]
        print(f"{time.monotonic() - begin:.0f} s: {len(plans)} of {len(problems)} tuned: {problem}", flush=True)
        return {}

    _core.tune_all(_core.context_for(at), problems, seconds=seconds, settled=settled)
    return plans


def compare(held, calls, want, size, notes, of_what=""):
    """Times `calls`, by name, alternately. `want`: results of torch's eager side, with which all but `of_what` are compared. Names of ours begin with "ours".

    Gives errors (relative, Frobenius), times and peaks of memory for a JSON line, and prints them with the ratios of ours to the best rival."""
    torch = held.torch
    norm = lambda got, expected: ((got.detach().double() - expected).norm() / expected.norm()).item()  # noqa: E731
    errors, peaks = {}, {}
    for name, call in calls.items():
        call()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        got = call()
        torch.cuda.synchronize()
        peaks[name] = round((torch.cuda.max_memory_allocated() - before) / 2**20)
        if name != of_what:
            errors[name] = max(norm(a, b) for a, b in zip(got, want))
        del got
    waiting = {name for name, call in calls.items() if held.waits(call)}
    free = [n for n, name in enumerate(calls) if name in waiting]
    spreads = dict(zip(calls, held.spreads(list(calls.values()), SAMPLES, free=free, names=[f"{size} {name}" for name in calls])))
    for name, spread in spreads.items():
        marks = (" wide" if spread.wide else "") + (" with the host's time, as it waits for the device" if name in waiting else "")
        marks += " WRONG" if errors.get(name, 0.0) > 2e-2 else ""
        print(f"{size} {name}: {spread.median:.1f} us, {peaks[name]} MiB{marks} {notes.get(name, '')}", flush=True)
    print(f"{size}: {'; '.join(ratios(spreads, waiting, of_what))}", flush=True)
    return {"errors": errors, "peak_mib": peaks, "waits": sorted(waiting), "times": {name: spread.record() for name, spread in spreads.items()}}


def ratios(spreads, waiting, of_what=""):
    """Lines with the ratios of ours to the best rival, and to `of_what`. Sides in `waiting` and wide ones have no ratio."""
    counts = {name for name, spread in spreads.items() if name not in waiting and not spread.wide}
    ours = [name for name in spreads if name.startswith("ours")]
    rivals = [name for name in spreads if name not in ours and name != of_what and name in counts]
    ratio = lambda a, b: f"{spreads[a].median / spreads[b].median:.3f}"  # noqa: E731
    lines = [f"no ratio of {name}: it waits for the device, or is wide" for name in spreads if name not in counts]
    if rivals:
        best = min(rivals, key=lambda name: spreads[name].median)
        lines += [f"{best} takes {ratio(best, name)} of {name}" for name in ours if name in counts]
    lines += [f"{name} takes {ratio(name, of_what)} of {of_what}" for name in ours if {name, of_what} <= counts]
    return lines


def main(doc, measure, sizes, metavar, meaning, gradients=None):
    """The command line of a script: `measure` gives the JSON object of a size, from torch, our operators, `Held`, the size and the options.

    `gradients`: the help of --backward. A script without it compares forward calls alone, with fixed modes of torch.compile."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sizes", nargs="*", default=sizes, metavar=metavar, help=meaning)
    parser.set_defaults(backward=False, softcap=None)
    if gradients:
        parser.add_argument("--backward", action="store_true", help=gradients)
        parser.add_argument("--autotune", action="store_true", help="torch.compile with max-autotune-no-cudagraphs, too")
        parser.add_argument("--softcap", type=float, help="Z: logits are Z tanh(logits / Z)")
    parser.add_argument("--seconds", type=float, default=10.0, help="of tuning for each of our problems")
    parser.add_argument("--out", default=os.devnull, help="JSON lines, appended")
    args = parser.parse_args()
    import torch

    import tilewright as tw
    import tilewright.torch as twt

    tw.use("cuda:0")
    held = Held(torch)
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}", flush=True)
    with torch.set_grad_enabled(args.backward), open(args.out, "a", encoding="utf-8") as out:
        for size in args.sizes:
            out.write(json.dumps(measure(torch, twt, held, size, args)) + "\n")
            out.flush()
            torch._dynamo.reset()
