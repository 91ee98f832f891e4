"""Wrong kernels in a tuning process that holds tensors: writes out of bounds, misaligned accesses, hangs. Tensors, random state and current
device are then as before, and training goes on.

It runs on PoCL. `TILEWRIGHT_TEST_DEVICE=cuda:0 python test_torch_harm.py` runs it on a GPU. A CPU may allow a misaligned access, or not: there
only the caller's state is asked for.
"""

import ctypes
import itertools
import os
import subprocess
import sys
import tempfile
import time
import unittest
from unittest import mock

import torch
from torch import nn

import tilewright as tw
import tilewright.torch as twt
from tilewright import _beside, _shapes

DEVICE = os.environ.get("TILEWRIGHT_TEST_DEVICE", "opencl:0")
CUDA = DEVICE.startswith("cuda")
PLACE = DEVICE if CUDA else "cpu"
# The kinds of wrong kernels, in the order in which workers have them: last that after which a worker may go on.
KINDS = ("outside", "endless", "misaligned")
# What a worker that times torch may take for a shape, and cycles of a GPU's clock in about 30 s.
LIMIT, CYCLES = 20.0, 55_000_000_000
# Gives each worker of a device that starts the next kind, in its second timed run; compile workers, which inherit it, none.
WORKER = """#!/bin/sh
if [ -z "$TILEWRIGHT_WORKER_MISHAP" ]; then
    for kind in {kinds}; do
        if mkdir "{folder}/$kind" 2> /dev/null; then export TILEWRIGHT_WORKER_MISHAP=$kind:2; break; fi
    done
fi
exec "{python}" -c 'import sys; sys.path.insert(0, "{package}"); from tilewright import _native; _native.worker_main()'
"""


class Memory:
    """Memory of a GPU at an address, whatever is there."""

    def __init__(self, address, count):
        self.__cuda_array_interface__ = {"data": (address, False), "shape": (count,), "typestr": "<f4", "version": 3}


def harm(kind, place):
    """Runs a wrong kernel of torch's in this process."""
    if kind == "broken":
        # What CUDA says of every later call; no processor does.
        _beside._Served.is_broken = lambda served: True
        raise RuntimeError("CUDA error: unspecified launch failure")
    if place == "cpu":
        if kind == "outside":
            torch.frombuffer((ctypes.c_char * 64).from_address(1 << 44), dtype=torch.float32).fill_(1.0)
        while kind == "endless":
            time.sleep(1.0)
        return
    own = torch.zeros(1 << 16, device=place)
    if kind == "outside":
        torch.as_tensor(Memory(own.data_ptr(), 1 << 38), device=place)[-4096:].fill_(1.0)
    elif kind == "misaligned":
        torch.as_tensor(Memory(own.data_ptr() + 2, 4096), device=place).fill_(1.0)
    else:
        torch.cuda._sleep(CYCLES)


def harmful(kind):
    """In a worker that times torch: the second shape meets a wrong kernel."""
    measure, turns = _beside._Served.measure, itertools.count()

    def measured(served, asked):
        if next(turns) == 1:
            harm(kind, served.here)
        return measure(served, asked)

    _beside._Served.measure = measured


def held():
    """Tensors of several kinds on the device."""
    numbers = torch.arange(40_000.0, device=PLACE)
    return {
        "plain": numbers.clone(),
        "strided": numbers.view(200, 200).t()[::2],
        "halves": numbers.half().view(100, 400),
        "indices": torch.arange(70_000, device=PLACE, dtype=torch.int64),
        "special": torch.tensor([float("nan"), float("inf"), -0.0], device=PLACE),
    }


def state():
    """Random state, current device and stream, and settings."""
    of_device = (torch.cuda.get_rng_state(PLACE).tolist(), torch.cuda.current_device(), torch.cuda.current_stream()) if CUDA else ()
    return torch.get_rng_state().tolist(), of_device, _beside.settings(), torch.get_default_dtype(), torch.is_grad_enabled()


class Training:
    """A small network, whose losses are the same whenever it is trained."""

    def __init__(self):
        torch.manual_seed(7)
        self.model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 16), nn.Tanh(), nn.Linear(16, 4))
        self.model.to(PLACE)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)

    def steps(self, count):
        return [self.step() for _ in range(count)]

    def step(self):
        x, y = torch.randn(8, 3, 6, 6, device=PLACE), torch.randn(8, 4, device=PLACE)
        self.optimizer.zero_grad()
        loss = (self.model(x) - y).square().mean()
        loss.backward()
        self.optimizer.step()
        return loss.item()


class Harm(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.addCleanup(twt.disable)
        package = os.path.dirname(os.path.dirname(os.path.abspath(tw.__file__)))
        worker = os.path.join(self.folder.name, "worker")
        with open(worker, "w", encoding="utf-8") as file:
            file.write(WORKER.format(kinds=" ".join(KINDS), folder=self.folder.name, python=sys.executable, package=package))
        os.chmod(worker, 0o700)
        # What a busy machine times is not asked here.
        for patch in (mock.patch.dict(os.environ, {"TILEWRIGHT_WORKER": worker}), mock.patch.object(_shapes, "_WITHIN", float("inf"))):
            patch.start()
            self.addCleanup(patch.stop)
        self.context = tw.use(DEVICE, records=os.path.join(self.folder.name, "records.sqlite"))
        self.path = os.path.join(self.folder.name, "shapes.csv")

    def nothing_changes(self, run):
        """Runs in the middle of a training: nothing that torch has is another afterwards, and the losses are as without."""
        alone = Training().steps(6)
        training, tensors = Training(), held()
        losses = training.steps(3)
        before = {name: x.cpu().clone() for name, x in tensors.items()}
        model = {name: x.cpu().clone() for name, x in training.model.state_dict().items()}
        known = state()
        found = run()
        self.assertEqual(state(), known)
        for kept, now in ((before, tensors), (model, training.model.state_dict())):
            for name, x in now.items():
                torch.testing.assert_close(x.cpu(), kept[name], rtol=0, atol=0, equal_nan=True, msg=name)
        losses += training.steps(3)
        torch.testing.assert_close(losses, alone, rtol=1e-4 if CUDA else 0, atol=0)
        return found

    def hung(self):
        """Why trials took their worker down."""
        reasons = [record["trial"].get("reason") or "" for record in self.context.records() if record["trial"]["state"] == "hung"]
        for kind in KINDS:
            self.assertTrue(os.path.isdir(os.path.join(self.folder.name, kind)), kind)
        return reasons

    def trials_cost_workers(self):
        """Each wrong kernel was the end of one trial and of its worker."""
        reasons = self.hung()
        crashed, late = (sum(word in reason for reason in reasons) for word in ("crashed", "did not end"))
        # A misaligned access is an error on a GPU; a processor's may be none.
        self.assertIn(crashed, [2] if CUDA else [1, 2], reasons)
        self.assertEqual((late, len(reasons)), (1, crashed + 1), reasons)

    def test_tune(self):
        a, b = (torch.randn(24, 16, device=PLACE) for _ in range(2))
        kept = a.cpu().clone(), b.cpu().clone()
        tuned = self.nothing_changes(lambda: tw.tune(tw.gemm, a, b.t(), trials=12))
        self.trials_cost_workers()
        self.assertTrue(tuned.verified, tuned)
        self.assertTrue(torch.equal(a.cpu(), kept[0]) and torch.equal(b.cpu(), kept[1]))
        torch.testing.assert_close(tw.gemm(a, b.t()), a @ b.t(), rtol=1e-4, atol=1e-4)

    def test_tune_recorded(self):
        with twt.record(self.path):
            for m, k, n in ((24, 16, 24), (8, 40, 12)):
                torch.randn(m, k, device=PLACE) @ torch.randn(k, n, device=PLACE)
        rows = self.nothing_changes(lambda: twt.tune_recorded(self.path, trials=8))
        self.trials_cost_workers()
        self.assertEqual([row.reason for row in rows], ["", ""])
        self.assertEqual(twt.enable(self.path, margin=0.0), 2)

    def test_comparisons(self):
        """The worker that times torch: a wrong kernel costs the shape that was being timed."""
        with twt.record(self.path):
            for m, k, n in ((24, 16, 24), (8, 40, 12), (20, 4, 8)):
                torch.randn(m, k, device=PLACE) @ torch.randn(k, n, device=PLACE)
        for kind in KINDS:
            os.makedirs(os.path.join(self.folder.name, kind), exist_ok=True)
        start, tests = subprocess.Popen, os.path.dirname(os.path.abspath(__file__))
        for kind in KINDS if CUDA else ("outside", "endless", "broken"):
            started = []

            def spoiled(command, *args, **more):
                if "_beside.worker_main()" in command[-1]:
                    before = f"import sys; sys.path.insert(0, {tests!r}); "
                    spoil = f"import test_torch_harm; test_torch_harm.harmful({kind!r}); _beside.worker_main()"
                    command = [*command[:-1], before + command[-1].replace("_beside.worker_main()", spoil if not started else "_beside.worker_main()")]
                    started.append(command)
                return start(command, *args, **more)

            with mock.patch.object(_beside.subprocess, "Popen", spoiled), mock.patch.object(_beside, "LIMIT", LIMIT):
                rows = self.nothing_changes(lambda: twt.compare(self.path, repeats=1))
            self.assertEqual([bool(row.reason) for row in rows], [False, True, False], (kind, rows))
            words = {"outside": "illegal", "misaligned": "misaligned", "endless": "did not answer within", "broken": "launch failure"}[kind]
            words = "ended with SIG" if kind == "outside" and not CUDA else words
            # The library that is called next may report the error first.
            self.assertRegex(rows[1].reason, f"{words}|CUBLAS_STATUS_EXECUTION_FAILED" if CUDA else words)
            self.assertEqual(len(started), 2, kind)


if __name__ == "__main__":
    unittest.main()
