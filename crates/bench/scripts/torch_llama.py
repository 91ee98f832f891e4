#!/usr/bin/env python3
"""Training steps of a Llama-like network of bf16: torch.compile alone, then with tilewright's products, gated MLPs and loss. Same weights, same optimiser.

Usage: torch_llama.py [--steps 20] [--total 60] [--seconds 4] [--keep] [--gates] [--out FILE.jsonl] [--tiny]
Needs: PyTorch with CUDA and tilewright's Python package. `--tiny` trains a small network on CPU tensors and the emulator: it shows that the script runs.
Four layers of width 2048 and 5632, 128,256 words, 8,192 tokens in a step. Shapes are recorded, tuned (`--total` s) and compared, as `tune_recorded` does;
products of the loss are tuned for `--seconds` each. `--gates` replaces the gated MLPs by `glu` and tunes it. Both sides run one after the other. The first steps, which compile, are not timed.
Prints each side's losses, median of a step with the host's time, and largest memory beyond weights and optimiser states.
"""

import argparse
import copy
import json
import os
import statistics
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from sides import tuned  # noqa: E402

FULL = {"width": 2048, "hidden": 5632, "heads": 16, "words": 128256, "layers": 4, "batch": 4, "tokens": 2048}
TINY = {"width": 32, "hidden": 48, "heads": 2, "words": 160, "layers": 1, "batch": 2, "tokens": 8}
# Steps that compile, of each side.
FIRST = 2


def network(torch, width, hidden, heads, words, layers, **_):
    nn, F = torch.nn, torch.nn.functional

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.before, self.between = nn.RMSNorm(width), nn.RMSNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
            self.gate, self.up = nn.Linear(width, hidden, bias=False), nn.Linear(width, hidden, bias=False)
            self.down = nn.Linear(hidden, width, bias=False)

        def forward(self, x):
            split = lambda t: t.unflatten(-1, (heads, -1)).transpose(1, 2)  # noqa: E731
            q, k, v = map(split, self.qkv(self.before(x)).chunk(3, -1))
            x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
            normed = self.between(x)
            return x + self.down(F.silu(self.gate(normed)) * self.up(normed))

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.norm = nn.Embedding(words, width), nn.RMSNorm(width)
            self.layers = nn.ModuleList(Layer() for _ in range(layers))
            self.head = nn.Linear(width, words, bias=False)

        def forward(self, tokens):
            x = self.table(tokens)
            for layer in self.layers:
                x = layer(x)
            labels = F.pad(tokens, (0, 1), value=-100)[:, 1:]
            return F.cross_entropy(self.head(self.norm(x)).float().flatten(0, 1), labels.flatten())

    return Network()


class Side:
    """A copy of the network that trains."""

    def __init__(self, torch, name, model, batches):
        self.torch, self.name, self.batches, self.model = torch, name, batches, copy.deepcopy(model)
        self.cuda = batches[0].is_cuda
        self.optimiser = torch.optim.AdamW(self.model.parameters(), lr=3e-4, fused=self.cuda)
        self.losses, self.times, self.peak_mib = [], [], 0

    def wait(self):
        if self.cuda:
            self.torch.cuda.synchronize()

    def step(self, run, tokens):
        loss = run(tokens)
        loss.backward()
        self.optimiser.step()
        self.optimiser.zero_grad()
        return loss

    def train(self):
        self.torch._dynamo.reset()
        run = self.torch.compile(self.model, dynamic=False)
        for number, tokens in enumerate(self.batches):
            self.wait()
            if self.cuda and number == FIRST:
                self.torch.cuda.reset_peak_memory_stats()
                before = self.torch.cuda.memory_allocated()
            begin = time.monotonic()
            self.losses.append(self.step(run, tokens).item())
            self.wait()
            if number >= FIRST:
                self.times.append(1e3 * (time.monotonic() - begin))
        if self.cuda:
            self.peak_mib = round((self.torch.cuda.max_memory_allocated() - before) / 2**20)
        print(f"{self.name}: {statistics.median(self.times):.2f} ms, {self.peak_mib} MiB, losses {self.losses[0]:.4f} to {self.losses[-1]:.4f}", flush=True)

    def record(self):
        return {"median_ms": statistics.median(self.times), "peak_mib": self.peak_mib, "losses": self.losses, "times_ms": self.times}


def prepare(torch, tw, twt, model, tokens, args):
    """Tunes the network's shapes and those of its loss."""
    path = os.path.join(tempfile.mkdtemp(), "shapes.csv")
    with twt.record(path, model):
        model(tokens).backward()
    with torch.no_grad(), twt.record(path, model):
        model(tokens)
    model.zero_grad()
    rows = twt.tune_recorded(path, total=args.total)
    print(f"{len(rows)} shapes, {sum((row.gain or 0) > 1.03 for row in rows)} faster than torch", flush=True)
    x = torch.zeros(tokens.numel(), model.head.in_features, device=tokens.device, dtype=model.head.weight.dtype, requires_grad=True)
    loss = lambda: twt.linear_cross_entropy(x, model.head.weight, tokens.flatten(), keep=args.keep).backward()  # noqa: E731
    layer = model.layers[0]
    mlp = lambda: twt.glu(x, layer.gate.weight, up=layer.up.weight, keep=True).sum().backward()  # noqa: E731
    tuned([loss, mlp] if args.gates else [loss], args.seconds, "cpu" if args.tiny else "cuda:0")
    model.zero_grad()
    return path


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20, help="timed steps (default: %(default)s)")
    parser.add_argument("--total", type=float, default=60.0, help="seconds for the network's shapes (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=4.0, help="for each product of the loss (default: %(default)s)")
    parser.add_argument("--keep", action="store_true", help="the loss keeps its logits")
    parser.add_argument("--gates", action="store_true", help="gated MLPs are one product and its gradients")
    parser.add_argument("--out", default=os.devnull, help="JSON lines, appended")
    parser.add_argument("--tiny", action="store_true", help="a small network on the emulator")
    args = parser.parse_args()
    import torch

    import tilewright as tw
    import tilewright.torch as twt

    tw.use("emu" if args.tiny else "cuda:0")
    torch.manual_seed(0)
    size, device = (TINY, "cpu") if args.tiny else (FULL, "cuda")
    model = network(torch, **size).to(device, torch.float32 if args.tiny else torch.bfloat16)
    shape = (size["batch"], size["tokens"])
    batches = [torch.randint(size["words"], shape, device=device) for _ in range(FIRST + args.steps)]
    theirs = Side(torch, "torch.compile", model, batches)
    theirs.train()
    path = prepare(torch, tw, twt, model, batches[0], args)
    twt.enable(path, compiled=True)
    fused = twt.fuse_losses(keep=args.keep)
    gates = twt.fuse_gated_mlps(args.gates)
    ours = Side(torch, "with tilewright", model, batches)
    ours.train()
    ratio = statistics.median(theirs.times) / statistics.median(ours.times)
    apart = max(abs(a - b) for a, b in zip(theirs.losses, ours.losses))
    print(f"{fused.count} loss and {gates.count if args.gates else 0} gated MLPs fused; a step of torch.compile takes {ratio:.3f} of ours; losses are at most {apart:.4f} apart", flush=True)
    with open(args.out, "a", encoding="utf-8") as out:
        out.write(json.dumps({"size": size, "keep": args.keep, "gates": args.gates, "torch": theirs.record(), "ours": ours.record()}) + "\n")


if __name__ == "__main__":
    main()
