"""`Held` without a GPU, over a stand-in for torch that counts the device's and the host's time: python test_held.py."""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from held import LONGEST, Held  # noqa: E402

# Cycles of a microsecond, as on a device of 2 GHz.
CYCLES = 2000
# Launches that the driver queues. The next one blocks the host.
QUEUE = 1024


class Event:
    def __init__(self, device):
        self.device, self.at = device, None

    def record(self):
        self.at = max(self.device.free, self.device.now)

    def query(self):
        return self.at <= self.device.now

    def elapsed_time(self, end):
        return (end.at - self.at) * 1e-3


class Device:
    """`now`: the host's clock, `free`: when the device has done all that is queued, both in microseconds."""

    def __init__(self):
        self.now, self.free = 0.0, 0.0
        self.queued, self.sleeps = [], []

    def launch(self, us):
        self.queued = [end for end in self.queued if end > self.now]
        if len(self.queued) >= QUEUE:
            self.now = self.queued[-QUEUE]
        self.free = max(self.free, self.now) + us
        self.queued.append(self.free)

    # Called by `Held`.
    def Event(self, enable_timing=False):
        return Event(self)

    def _sleep(self, cycles):
        self.sleeps.append(cycles)
        self.launch(cycles / CYCLES)

    def synchronize(self):
        self.now = max(self.now, self.free)


class Torch:
    float32 = None

    def __init__(self):
        self.cuda = Device()

    def zeros(self, *_, **__):
        torch = self

        class Flush:
            def sum(self):
                torch.cuda.launch(100.0)

        return Flush()


class Calls(unittest.TestCase):
    def setUp(self):
        self.torch = Torch()
        self.device = self.torch.cuda
        self.held = Held(self.torch)

    def call(self, host_us, launches=1, us=10.0, waits=False):
        def run():
            for _ in range(launches):
                self.device.launch(us)
            self.device.now += host_us
            if waits:
                self.device.synchronize()

        return run

    def test_a_call_within_the_sleep_has_no_host_time(self):
        first = self.held.cycles
        self.assertAlmostEqual(self.held.sample(self.call(300.0)), 10.0)
        self.assertEqual(self.device.sleeps, [first])
        # Without a hold it has.
        late = lambda: (setattr(self.device, "now", self.device.now + 300.0), self.device.launch(10.0))  # noqa: E731
        self.assertAlmostEqual(self.held.sample(late, hold=False), 210.0)

    def test_a_call_that_returns_late_lengthens_the_sleep(self):
        first = self.held.cycles
        self.assertAlmostEqual(self.held.sample(self.call(5000.0)), 10.0)
        self.assertEqual(self.device.sleeps, [first << n for n in range(5)])
        # The next sample begins with it.
        self.assertAlmostEqual(self.held.sample(self.call(5000.0)), 10.0)
        self.assertEqual(self.device.sleeps[5:], [first << 4])

    def test_a_call_that_never_fits_is_an_error_of_its_row(self):
        first = self.held.cycles
        for run in (self.call(0.0, waits=True), self.call(0.0, launches=2 * QUEUE)):
            self.device.sleeps.clear()
            start = self.device.now
            with self.assertRaisesRegex(RuntimeError, "^row 7: not queued within a sleep of 2 s"):
                self.held.sample(run, name="row 7")
            self.assertLessEqual(max(self.device.sleeps) / CYCLES, LONGEST * 1e6)
            self.assertGreater(max(self.device.sleeps) / CYCLES, LONGEST * 1e6 / 4)
            self.assertLess(self.device.now - start, 3 * LONGEST * 1e6)
            self.assertEqual(self.held.cycles, first)

    def test_the_row_of_an_error_is_named_among_others(self):
        with self.assertRaisesRegex(RuntimeError, "^second: "):
            self.held.spreads([self.call(0.0), self.call(0.0, waits=True)], names=["first", "second"])

    def test_256_launches_fit(self):
        self.assertAlmostEqual(self.held.sample(self.call(0.0, launches=256)), 2560.0)
        self.assertEqual(len(self.device.sleeps), 1)

    def test_only_calls_that_wait_are_said_to_wait(self):
        self.assertTrue(self.held.waits(self.call(10.0, waits=True)))
        self.assertFalse(self.held.waits(self.call(10.0)))

    def test_calls_alternate_and_those_that_wait_are_free(self):
        order = []
        named = lambda name, run: lambda: (order.append(name), run())  # noqa: E731
        calls = [named("a", self.call(0.0, us=20.0)), named("b", self.call(0.0, us=30.0, waits=True))]
        one, other = self.held.spreads(calls, samples=4, free=[1])
        self.assertEqual((round(one.median), round(other.median)), (20, 30))
        self.assertEqual("".join(order), "aaabbb" + "abba" * 2)


if __name__ == "__main__":
    unittest.main(verbosity=2)
