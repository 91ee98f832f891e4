"""PyTorch beside tilewright: host time per call, replay of captured graphs, and models end to end, eager against enabled.

    python crates/python/benches/torch_models.py --models resnet-train,retina --limit 60 --models-only --out results
    python crates/python/benches/torch_models.py --models "" --out results                                   # host times and replays alone
    python crates/python/benches/torch_models.py --models odd --limit 60 --models-only --ways compile --compile max-autotune-no-cudagraphs \\
        --compile-choices 4 --keep-shapes --budget 1 --out results                                        # with what is in results already

Models (`torch_cases.py`) have random weights, and torch has `cudnn.benchmark`. Each is recorded; then within its share of `--budget`, and half of its limit, the shapes that take
most of torch's time are searched first, each as long as its share says, and compared with torch (`tune_recorded(total=)`). The model is timed with
and without `tilewright.torch.enable`, alternately: eager, captured in a CUDA graph (where the host does not count), and with `--compile MODES` by
torch.compile, without and with us inside. Results and gradients of both are compared with the model in f64.

`results/models.jsonl` gets a line of JSON for each host time, as soon as a model is searched and as soon as a way of it is timed (also in part, where its time is over),
`results/models.md` each row when its errors are known. Per model there are a file of shapes, which `--keep-shapes` goes on with, and per way a
table by layer: who answered it, and why. Models run in a separate process. A failure is reported in the model's row, and the next models run in a new
process. `--limit` ends a model after so many seconds and keeps what was measured until then, `--total` all of them. `--tiny` is for machines without
CUDA: it shows that the script runs, its times mean nothing.
"""

import argparse
import os
import queue
import signal
import subprocess
import sys
import threading
import time

MODELS = "odd,vit,resnet,resnet-train,retina,retina-train,gpt2"
HEADER = """
| model | way | torch ms | enabled ms | gain | shapes ours | share of products' time ours | of what was compared faster | products' ms \
| torch error, of gradients | enabled error, of gradients |
"""


class Watched:
    """Models in a process of their own, which ends with the first that breaks it; then comes the next process."""

    GRACE = 15.0

    def __init__(self, args, wanted):
        self.args, self.left, self.at = args, list(wanted), None
        self.end = time.monotonic() + args.total if args.total else None
        mode = "a" if args.keep_shapes else "w"
        self.told, self.lines = (open(os.path.join(args.out, name), mode) for name in ("models.md", "models.jsonl"))

    def tell(self, line):
        file = self.lines if line.startswith("{") else self.told
        file.write(line + "\n")
        file.flush()

    def heard(self, line):
        """Gives how many seconds may pass until the next line, if the line says."""
        print(line, flush=True)
        word, *rest = line.split(" ")
        if word == "begin":
            if self.at is None and len(self.left) == self.args.count:
                self.tell(HEADER + "|" + "---|" * 11)
            self.at = rest[0]
            return float(rest[1]) + self.GRACE if float(rest[1]) else float("inf")
        if word == "end":
            self.left.remove(rest[0])
            self.at = None
            return 120.0
        if word == "torch" or line[:1] in ("", "{", "|"):
            self.tell(line)
        return None

    def process(self, options):
        """Runs those that are left until all have run or one breaks the process; gives why it broke."""
        command = [sys.executable, os.path.abspath(__file__), *sys.argv[1:], *options, "--part", "--models", ",".join(self.left)]
        command += ["--count", str(self.args.count)]
        if self.end is not None:
            command += ["--total", str(max(1.0, self.end - time.monotonic()))]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
        lines = queue.Queue()

        def pass_on():
            for line in child.stdout:
                lines.put(line.rstrip("\n"))
            lines.put(None)

        threading.Thread(target=pass_on, daemon=True).start()
        # Torch starts, and what comes before the models.
        until, why = time.monotonic() + 300.0, ""
        last = float("inf") if self.end is None else self.end + self.GRACE
        try:
            while True:
                left = min(until, last) - time.monotonic()
                line = lines.get(timeout=None if left == float("inf") else max(0.0, left))
                if line is None:
                    break
                seconds = self.heard(line)
                until = until if seconds is None else time.monotonic() + seconds
        except queue.Empty:
            why = "did not answer and was killed"
        finally:
            # Its compiler's workers, too.
            try:
                os.killpg(child.pid, signal.SIGKILL if why else signal.SIGTERM)
            except ProcessLookupError:
                pass
            code = child.wait()
        return why or (f"ended its process with {code}" if code else "")

    def run(self):
        begin, options = time.monotonic(), []
        while (self.left or not options) and (self.end is None or self.end - time.monotonic() > 10.0):
            count = len(self.left)
            why = self.process(options)
            if self.at is not None:
                self.heard(f"| {self.at} | {why} |")
                self.heard(f"end {self.at}")
            if count and len(self.left) == count:
                raise SystemExit(f"no model has run: the process {why or 'ended'}")
            options = ["--models-only"]
        for name in self.left:
            self.heard(f"| {name} | no time was left |")
        self.tell(f"\n{time.monotonic() - begin:.0f} s in all")
        print(f"{time.monotonic() - begin:.0f} s in all")


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--budget", type=float, default=0.0, help="seconds of search for all models; by default half of the limit, or 40 for each")
    options.add_argument("--margin", type=float, default=1.03, help="how much faster a shape must be to be ours")
    options.add_argument("--models", default=MODELS, help="in the order to run, some of these: %(default)s")
    options.add_argument("--compile", default="", help="also by torch.compile in these modes: default,reduce-overhead,max-autotune")
    options.add_argument("--compile-backends", default="", help="max-autotune measures these alone, and ours: ATEN is short; by default its own (ATEN,TRITON)")
    options.add_argument("--compile-choices", type=int, default=0, help="at most so many Triton kernels of a product are measured by torch.compile; 0: its own number")
    options.add_argument("--ways", default="eager,graph,compile", help="some of these: %(default)s")
    options.add_argument("--limit", type=float, default=0.0, help="seconds for a model, at most; up to half of them are for its search")
    options.add_argument("--total", type=float, default=0.0, help="seconds for all models; without --limit each has its share")
    options.add_argument("--keep-shapes", action="store_true", help="go on with the files of shapes and the tables that an earlier run left in --out")
    options.add_argument("--device", default="cuda:0", help="the CUDA device")
    options.add_argument("--out", default="results", help="folder to write to")
    options.add_argument("--records", default=None, help="records file; by default one that is forgotten")
    options.add_argument("--models-only", action="store_true", help="no host times of calls, no replays of single products")
    options.add_argument("--tiny", action="store_true", help="CPU tensors of a few elements, on the emulator")
    options.add_argument("--part", action="store_true", help=argparse.SUPPRESS)
    options.add_argument("--count", type=int, default=0, help=argparse.SUPPRESS)
    args = options.parse_args()
    os.makedirs(args.out, exist_ok=True)
    wanted = [name for name in args.models.split(",") if name]
    if args.part:
        import torch_measured

        return torch_measured.part(args, wanted)
    args.count = len(wanted)
    Watched(args, wanted).run()


if __name__ == "__main__":
    main()
