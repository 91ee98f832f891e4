"""Device times of calls on a CUDA device without host time: cold cache, calls alternate, the device sleeps until the host has queued a call.

`Held` puts sweep, sleep, start event, call, end event on the stream. A sample counts only if the start event has not passed when the call
and the end event are queued; otherwise the sleep is doubled, up to `LONGEST`, and the sample taken again. `Spread` summarises samples.
"""

import statistics


# Runs of a sample of calls that stay wide.
RUNS = 4
# Longest sleep in seconds.
LONGEST = 2.0


class Spread:
    """Median, p10 and p90 in microseconds of the means of every `runs` successive samples."""

    def __init__(self, samples, runs=1):
        self.runs = runs
        ordered = sorted(sum(samples[n : n + runs]) / runs for n in range(0, len(samples) - runs + 1, runs))
        at = lambda q: ordered[round(q * (len(ordered) - 1))]  # noqa: E731
        self.median, self.p10, self.p90 = statistics.median(ordered), at(0.1), at(0.9)

    @property
    def wide(self):
        """Too wide for a comparison: above 10 % of the median, for medians below 10 us above 1 us."""
        return self.p90 - self.p10 > 0.1 * max(self.median, 10.0)

    def record(self):
        return {"median_us": self.median, "p10_us": self.p10, "p90_us": self.p90, "runs": self.runs, "wide": self.wide}


class Held:
    """`cycles`: the sleep to begin with; about 0.4 ms."""

    def __init__(self, torch, cycles=800_000):
        self.torch, self.cycles = torch, cycles
        self.flush = torch.zeros(128 << 20, dtype=torch.float32, device="cuda")

    def waits(self, run):
        """Whether the call itself waits for the device, so that it cannot be held."""
        torch = self.torch
        torch.cuda.synchronize()
        torch.cuda._sleep(100_000_000)
        end = torch.cuda.Event()
        end.record()
        run()
        waited = end.query()
        torch.cuda.synchronize()
        return waited

    def sample(self, run, hold=True, name="a call"):
        """One time in microseconds. Without `hold` the host's time counts, too. `name`: of the row, for the error.

        RuntimeError for a call that is not queued within the longest sleep: it waits for the device, or has more launches than the driver queues."""
        torch, first = self.torch, self.cycles
        while True:
            asleep, begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(3))
            # Reading leaves nothing that would be written back within the timed span.
            self.flush.sum()
            asleep.record()
            if hold:
                torch.cuda._sleep(self.cycles)
            begin.record()
            run()
            end.record()
            held = not hold or not begin.query()
            torch.cuda.synchronize()
            if held:
                return begin.elapsed_time(end) * 1e3
            if 2e-3 * asleep.elapsed_time(begin) > LONGEST:
                # The next call begins with a short sleep again.
                self.cycles = first
                raise RuntimeError(
                    f"{name}: not queued within a sleep of {LONGEST:g} s, so that it cannot be timed without the host's time: "
                    "it waits for the device, or has more launches than the driver queues"
                )
            self.cycles *= 2

    def spreads(self, calls, samples=21, longer=4, free=(), names=()):
        """A `Spread` of each call, in the order A B, B A. While one is wide, up to `longer` times as many runs; then means of `RUNS` runs.
        Calls with an index in `free` are not held. `names`: of the rows, for errors."""
        for run in calls:
            for _ in range(3):
                run()
        self.torch.cuda.synchronize()
        times, names = [[] for _ in calls], list(names) or ["a call"] * len(calls)
        for n in range(samples * longer):
            for at in range(len(calls)) if n % 2 == 0 else reversed(range(len(calls))):
                times[at].append(self.sample(calls[at], at not in free, names[at]))
            if n + 1 >= samples and not any(Spread(of).wide for of in times):
                return [Spread(of) for of in times]
        return [Spread(of, RUNS) for of in times]
