"""A minute for a model: how much of torch's time `tune_recorded(total=60)` reaches, and the gain it finds.

    python crates/bench/scripts/minute.py --models resnet50,vit,gpt2,convnext --total 60 --more 540 --out minute

Models of torchvision and transformers have random weights and train in bf16. Each runs in a process of its own, with records and binaries in fresh files.
After the search every shape is compared with torch, outside of the budget. A shape that the search did not reach counts as torch's.
`--more N` then searches N seconds longer with the same records, and says which part of that gain the first search had found.
`OUT/MODEL.csv` has the shapes, `OUT/minute.jsonl` a line for each stage. `--tiny` runs a small model on the emulator: it shows that the script runs.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time

MARGIN = 1.03


def built(name, tiny):
    """The model and a function that computes its loss."""
    import torch
    from torch.nn import functional as F

    if tiny:
        model = torch.nn.Sequential(torch.nn.Linear(24, 40), torch.nn.ReLU(), torch.nn.Linear(40, 8))
        x = torch.randn(16, 24)
        return model, lambda: model(x).square().mean()
    if name == "gpt2":
        from transformers import GPT2Config, GPT2LMHeadModel

        model = GPT2LMHeadModel(GPT2Config(use_cache=False)).cuda().bfloat16()
        ids = torch.randint(50257, (8, 1024), device="cuda")
        return model, lambda: F.cross_entropy(model(ids).logits.flatten(0, 1).float(), ids.flatten())
    import torchvision.models as zoo

    model = {"resnet50": zoo.resnet50, "vit": zoo.vit_b_16, "convnext": zoo.convnext_tiny}[name]().cuda().bfloat16()
    images = torch.randn(64, 3, 224, 224, device="cuda", dtype=torch.bfloat16)
    if name != "vit":
        model, images = model.to(memory_format=torch.channels_last), images.contiguous(memory_format=torch.channels_last)
    labels = torch.randint(1000, (64,), device="cuda")
    return model, lambda: F.cross_entropy(model(images).float(), labels)


def judged(rows, reached):
    """Share of torch's time in reached shapes, and torch's time over that with our winners."""
    known = [row for row in rows if row.problem and row.torch_us > 0.0]
    all_us = sum(row.torch_us * row.calls for row in known) or 1.0
    ours = [row for row in known if row.problem in reached and (row.gain or 0.0) >= MARGIN]
    saved = sum((row.torch_us - row.ours_us) * row.calls for row in ours)
    share = sum(row.torch_us * row.calls for row in known if row.problem in reached) / all_us
    return {"share": share, "gain": all_us / (all_us - saved), "saved_us": saved, "torch_us": all_us, "ours": len(ours)}


def stage(twt, args, name, path, seconds):
    """Searches for so many seconds and compares; gives the figures."""
    begin, seen = time.monotonic(), []

    def heard(event):
        at = event["standing"]
        seen.append((time.monotonic() - begin, at["reached"], at["share"], at["gain"]))

    rows = twt.tune_recorded(path, total=seconds, progress=heard)
    took = time.monotonic() - begin
    reached = {row.problem for row in rows if row.problem and not row.reason.startswith("was not reached")}
    problems = {row.problem for row in rows if row.problem}
    beside = path.replace(".csv", "-compared.csv")
    shutil.copy(path, beside)
    figures = judged(twt.compare(beside), reached)
    of_95 = next((round(at, 1) for at, _, share, _ in seen if share >= 0.95), None)
    line = {"model": name, "seconds": seconds, "took": round(took, 1), "problems": len(problems), "reached": len(reached), **figures}
    line.update({"seconds_to_95": of_95, "trials": len(seen), "line": [seen[n] for n in range(0, len(seen), max(1, len(seen) // 20))]})
    with open(os.path.join(args.out, "minute.jsonl"), "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
    print(
        f"{name}: {took:.1f} s, {len(seen)} trials; {len(reached)} of {len(problems)} shapes, {figures['share']:.1%} of torch's time "
        f"(95 % after {of_95} s by the search's own weights); gain {figures['gain']:.3f}, {figures['ours']} shapes ours",
        flush=True,
    )
    return figures


def one(args, name):
    import tilewright as tw
    import tilewright.torch as twt

    path = os.path.join(args.out, f"{name}.csv")
    records = os.path.join(args.out, f"{name}.sqlite")
    for old in (path, records):
        if os.path.exists(old):
            os.remove(old)
    tw.use(args.device, records=records)
    model, loss = built(name, args.tiny)
    loss().backward()
    with twt.record(path, model):
        loss().backward()
    # The search's worker processes need the device's memory.
    del model, loss
    if not args.tiny:
        import torch

        torch.cuda.empty_cache()
    first = stage(twt, args, name, path, args.total)
    if args.more:
        second = stage(twt, args, name, path, args.more)
        most = second["saved_us"]
        print(f"{name}: the first {args.total:g} s found {first['saved_us'] / most if most else 1.0:.1%} of what {args.more:g} s more save", flush=True)


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--models", default="resnet50,vit,gpt2,convnext", help="some of these: %(default)s")
    options.add_argument("--total", type=float, default=60.0, help="seconds of the first search")
    options.add_argument("--more", type=float, default=0.0, help="seconds of a second search, which goes on")
    options.add_argument("--device", default=None, help="by default cuda:0; with --tiny emu")
    options.add_argument("--out", default="minute", help="folder to write to")
    options.add_argument("--tiny", action="store_true", help="a small model on the emulator")
    options.add_argument("--one", help=argparse.SUPPRESS)
    args = options.parse_args()
    args.device = args.device or ("emu" if args.tiny else "cuda:0")
    os.makedirs(args.out, exist_ok=True)
    if args.one:
        return one(args, args.one)
    for name in args.models.split(","):
        cache = os.path.join(args.out, f"{name}-cache")
        shutil.rmtree(cache, ignore_errors=True)
        done = subprocess.run([sys.executable, os.path.abspath(__file__), *sys.argv[1:], "--one", name], env={**os.environ, "TILEWRIGHT_CACHE": cache})
        if done.returncode:
            print(f"{name}: ended with {done.returncode}", flush=True)


if __name__ == "__main__":
    main()
