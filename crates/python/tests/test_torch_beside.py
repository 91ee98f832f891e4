"""Comparisons in a worker process, on CPU tensors: settings are taken over, a crash or a hang costs one shape, the caller's state stays."""

import fcntl
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import warnings
from contextlib import contextmanager
from unittest import mock

import torch

import tilewright as tw
import tilewright.torch as twt
from tilewright import _beside, _shapes


# Starts a worker, and a process that holds the worker's input as a DataLoader's does.
FORKS = """
import os, time
import tilewright as tw
from tilewright import _beside
worker = _beside.Worker("cpu", tw.use("emu", records=""))
forked = os.fork()
if forked:
    print(worker.child.pid, forked, flush=True)
time.sleep(600)
"""


def runs(process):
    """Whether a process runs: one that has ended may wait for its parent."""
    try:
        with open(f"/proc/{process}/stat", encoding="utf-8") as stat:
            return stat.read().rpartition(") ")[2][0] not in "ZX"
    except FileNotFoundError:
        return False


class Beside(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(1)
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.addCleanup(twt.disable)
        self.path = os.path.join(self.folder.name, "shapes.csv")
        self.context = tw.use("emu", records="")
        # The emulator's times are no measurements: its shapes are timed in the caller's process otherwise.
        for patch in (mock.patch.object(_beside, "isolates", lambda context: True), mock.patch.object(_shapes, "_WITHIN", float("inf"))):
            patch.start()
            self.addCleanup(patch.stop)

    def recorded(self, *sizes):
        with twt.record(self.path):
            for m, k, n in sizes:
                torch.randn(m, k) @ torch.randn(k, n)

    @contextmanager
    def workers(self, asked=lambda worker, what, seconds: None):
        """Lists the workers that start; `asked` is called before each question."""
        started, start, ask = [], _beside.Worker._start, _beside.Worker.ask

        def noted(worker, variables):
            start(worker, variables)
            started.append(worker)

        def interfered(worker, what, seconds):
            asked(worker, what, seconds)
            return ask(worker, what, seconds)

        with mock.patch.object(_beside.Worker, "_start", noted), mock.patch.object(_beside.Worker, "ask", interfered):
            yield started
        for worker in started:
            self.assertIsNotNone(worker.child.returncode)

    def test_both_sides_are_timed_there_and_nothing_changes_here(self):
        self.recorded((6, 4, 5), (3, 7, 2))
        random, threads = torch.get_rng_state(), torch.get_num_threads()
        here = AssertionError("timed in the caller's process")
        with self.workers() as started, mock.patch.object(_shapes, "_timers", side_effect=here):
            rows = twt.compare(self.path, repeats=1)
        self.assertEqual([row.reason for row in rows], ["", ""])
        self.assertTrue(all(row.torch_us > 0 and row.ours_us > 0 for row in rows), rows)
        self.assertEqual(len(started), 1)
        self.assertTrue(torch.equal(torch.get_rng_state(), random))
        self.assertEqual(torch.get_num_threads(), threads)
        self.assertIs(tw._contexts.context_for("cpu"), self.context)
        # And what was found is what `enable` reads.
        self.assertEqual(twt.enable(self.path, margin=0.0), 2)

    def test_a_total_begins_when_the_worker_runs(self):
        self.recorded((6, 4, 5))
        with self.workers() as started:
            rows = twt.tune_recorded(self.path, total=20.0, trials=1)
        self.assertEqual((len(started), rows[0].reason), (1, ""))
        self.assertGreater(rows[0].gain, 0.0)

    def test_settings_are_taken_over(self):
        self.recorded((6, 4, 5))
        before = _beside.settings()
        self.addCleanup(_beside.take_over, before)
        torch.backends.cudnn.benchmark = True
        torch.backends.cudnn.deterministic = True
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
        torch.set_float32_matmul_precision("high")
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.set_num_threads(1)
        wanted = _beside.settings()
        for name in ("cudnn.benchmark", "cudnn.deterministic", "deterministic", "warn_only"):
            self.assertIs(wanted[name], True)
        self.assertNotEqual(wanted, before)
        with self.workers() as (started):
            self.assertEqual(twt.compare(self.path, repeats=1)[0].reason, "")
        self.assertEqual(started[0].settings, wanted)

    def test_a_crash_or_a_hang_costs_one_shape(self):
        self.recorded((6, 4, 5), (3, 7, 2), (2, 2, 9))
        kept = torch.arange(10.0)
        for what, words in ((signal.SIGSEGV, "ended with SIGSEGV"), (signal.SIGSTOP, "did not answer within 5 s")):
            turns = iter(range(100))

            def mishap(worker, asked, seconds):
                # The opening of the first worker is the first question.
                if next(turns) == 2:
                    os.kill(worker.child.pid, what)

            with self.workers(mishap) as started, mock.patch.object(_beside, "LIMIT", 5.0):
                rows = twt.compare(self.path, repeats=1)
            self.assertEqual([bool(row.reason) for row in rows], [False, True, False], rows)
            self.assertIn(f"the worker process that times {words}", rows[1].reason)
            self.assertEqual(rows[1].torch_us, 0.0)
            self.assertEqual(len(started), 2)
        self.assertTrue(torch.equal(kept, torch.arange(10.0)))

    def test_a_device_that_no_worker_can_use_is_refused_with_the_remedy(self):
        self.recorded((6, 4, 5), (3, 7, 2))
        fails = mock.patch.object(_beside, "settings", lambda: {})
        with self.workers() as started, fails:
            rows = twt.compare(self.path, repeats=1)
        for row in rows:
            self.assertRegex(row.reason, "the worker process that times cannot use cpu: KeyError.*in_process=True")
        # Once for all shapes.
        self.assertEqual(len(started), 1)
        with mock.patch.object(_beside, "isolates", lambda context: not context.in_process):
            tw.use("emu", records="", in_process=True)
            with self.workers() as started:
                self.assertEqual([row.reason for row in twt.compare(self.path, repeats=1)], ["", ""])
            self.assertEqual(started, [])

    def test_a_call_that_cannot_be_made_is_told(self):
        self.recorded((6, 4, 5))
        row = twt.shapes(self.path)[0]
        row.call = row.call.replace("float32", "float31")
        _shapes._write(self.path, [row])
        with self.workers():
            self.assertIn("the recorded call cannot be made", twt.compare(self.path, repeats=1)[0].reason)

    def test_a_worker_ends_with_its_caller(self):
        with _beside.comparison() as current:
            worker = current.worker("cpu", self.context)
            worker.child.stdin.close()
            self.assertEqual(worker.child.wait(5.0), 0)

    def test_a_worker_ends_with_its_caller_though_a_fork_holds_its_input(self):
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        with subprocess.Popen([sys.executable, "-W", "ignore", "-c", FORKS], stdout=subprocess.PIPE, text=True, env=environment) as caller:
            worker, forked = map(int, caller.stdout.readline().split())
            self.addCleanup(os.kill, forked, signal.SIGKILL)
            self.assertTrue(runs(worker))
            caller.kill()
        start = time.monotonic()
        while runs(worker):
            self.assertLess(time.monotonic() - start, 5.0)
            time.sleep(0.01)
        self.assertTrue(runs(forked))

    def test_who_waits_for_the_device_says_for_whom(self):
        lock = os.path.join(self.folder.name, "device.lock")
        context = mock.Mock(device="cuda:0", _native=mock.Mock(lock_file=lock))
        with _shapes._device_held(context), open(lock, encoding="utf-8") as held:
            self.assertIn(f"process {os.getpid()} (Python)", held.read())
            with mock.patch.multiple(_shapes, _SAYS=0.05, _BESIDE=0.2), self.assertWarnsRegex(RuntimeWarning, f"cuda:0: waiting for process {os.getpid()}"):
                with _shapes._device_held(context):
                    pass
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with _shapes._device_held(context), open(lock, encoding="utf-8") as other:
                with self.assertRaises(OSError):
                    fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


if __name__ == "__main__":
    unittest.main()
