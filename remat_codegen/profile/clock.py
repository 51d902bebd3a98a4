"""How long a piece of work takes on a device: on the CPU from begin to end, on CUDA what the device itself needs.

On CUDA the host only queues kernels, and queueing takes longer than many of them run. In a step the host is ahead of the
device, so that making something again costs what its kernels take. Two events around the work measure just that if all of it
is queued before the device comes to the first event: a large buffer is written before, as often as keeps the device busy for
that long. This also flushes the L2 cache, in which a step's values rarely are. What events measure with nothing between them is
subtracted. The profiler would give the same durations, but needs CUPTI, which not every machine lets everybody use.

Of several runs the shortest counts, for whoever else uses the machine only makes them longer; and what `measure.py` runs, it
runs once more when all else was. It is rounded to what it is sure to, so that what is measured again costs the same more often.

Where time is short, each piece of work is run once: `hurry_at` is the moment of time.monotonic() from which on. Long work on
the CPU is not run for its time at all, if its memory was recorded: that run took as long.

A model so small that the device waits for the host costs more than this says: there no planner can see a difference.
"""

from __future__ import annotations

import functools
import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

MEASURED_SECONDS = 0.15  # a piece of work is run again until it took this long, or MOST_RUNS times
MOST_RUNS = 8
LEAST_RUNS, LONG_RUNS = 2, 1  # at least; and if one takes MEASURED_SECONDS by itself
COARSEST = 1 / 8  # of a time: what it is rounded to at most, however much runs differ
ALONE_SECONDS = 1.0  # one run that takes as long says enough, whatever it was made for
LEAST_NS = 100  # on CUDA; below what events tell apart (500 ns), so that running something again is never for nothing
LEAST_FLUSHED_BYTES = 16 << 20  # writing less takes the device no longer than queueing it takes the host
MOST_WRITES = 1000  # of the buffer before a run, some 40 ms
AHEAD = 2.0  # how many times as long as queueing the work takes, the device is kept busy


Stage = Callable[[Any], Any]  # a piece of work, given what the one before it has made


def clock_for(device: str, hurry_at: float = math.inf) -> Clock:
    """The clock for work on `device`."""
    return CudaClock(device, hurry_at) if torch.device(device).type == "cuda" else Clock(device, hurry_at)


class Clock:
    """Times work on the CPU. `is_exact` is whether it says the same each time."""

    is_exact = False

    def __init__(self, device: str = "cpu", hurry_at: float = math.inf) -> None:
        self.device, self.hurry_at = device, hurry_at

    @property
    def in_a_hurry(self) -> bool:
        """Whether work is run once from now on."""
        return time.monotonic() > self.hurry_at

    def least_ns(self, work: Callable[[], Any]) -> int:
        """The least time of several runs of `work`, after some to warm up, in nanoseconds."""
        return self.least_times_ns(lambda _: work())[0]

    def noting(self, *stages: Stage) -> tuple[list[Stage], list[int]]:
        """Pieces of work, and a list that gets what each takes when it runs; or nothing, where that is not what it costs."""
        times = list[int]()
        return [functools.partial(self._noted, stage, times) for stage in stages], times

    def _noted(self, stage: Stage, times: list[int], value: Any) -> Any:
        begin = time.perf_counter_ns()
        made = stage(value)
        times.append(time.perf_counter_ns() - begin)
        return made

    def least_times_ns(self, *stages: Stage, warm: bool = False, noted: Sequence[int] = ()) -> list[int]:
        """The same of pieces of work that follow each other, one time for each. Each is given what the one before has made,
        which is there until it is over. `warm` says that all have run before, `noted` what they took then: where that was long,
        it is the answer. Of several, the first, the third and so on prepare the next: how long these take does not matter.

        Each run begins anew, so that never more than one run's tensors exist.
        """
        if noted and sum(noted[1::2] or noted) >= ALONE_SECONDS * 1e9:
            return [self._cost_ns(ns) for ns in noted]
        self._warm_up(stages, warm)
        runs = [self._run_ns(stages)]
        while not self.in_a_hurry and not _enough(runs):
            runs.append(self._run_ns(stages))
        return [rounded_ns([self._cost_ns(ns) for ns in times]) for times in zip(*runs, strict=True)]

    def once_ns(self, work: Callable[[], Any]) -> int:
        """The time of one run of `work`, which has run before."""
        return self._cost_ns(self._run_ns([lambda _: work()])[0])

    def _warm_up(self, stages: Sequence[Stage], warm: bool) -> None:
        if not warm:
            self._run_ns(stages)

    def _run_ns(self, stages: Sequence[Stage]) -> list[int]:
        value, times = None, []
        for stage in stages:
            begin = time.perf_counter_ns()
            made = stage(value)
            times.append(time.perf_counter_ns() - begin)
            value = made  # what that was made of goes here, not while the clock runs
        return times

    def _cost_ns(self, measured_ns: int) -> int:
        return measured_ns


class CudaClock(Clock):
    """Times what the device does of some work, on its current stream. It holds a buffer of twice the L2 cache's size."""

    def __init__(self, device: str, hurry_at: float = math.inf) -> None:
        super().__init__(device, hurry_at)
        cache_bytes = getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 0)
        self.buffer = torch.empty(max(2 * cache_bytes, LEAST_FLUSHED_BYTES), dtype=torch.uint8, device=device)
        self.writes, self.empty_ns = [1], 0
        self._between_ns(lambda: self._write(1))  # the first one takes longer
        self.write_ns = max(1, self._between_ns(lambda: self._write(100)) // 100)
        self.empty_ns = int(statistics.median(self._run_ns([lambda _: None])[0] for _ in range(MOST_RUNS)))

    def once_ns(self, work: Callable[[], Any]) -> int:
        """As there. It runs once more, to see how long queueing takes."""
        self._warm_up([lambda _: work()], warm=True)
        return super().once_ns(work)

    def noting(self, *stages: Stage) -> tuple[list[Stage], list[int]]:
        """As there: the host's time says nothing of the device's."""
        return [*stages], []

    def _warm_up(self, stages: Sequence[Stage], warm: bool) -> None:
        """Runs it once for libraries to load and to choose their algorithms, and once to see how long queueing takes."""
        if not warm:
            _queued(stages, self.device)
        queueing_ns = _queued(stages, self.device)
        self.writes = [1 + min(MOST_WRITES, int(AHEAD * ns / self.write_ns)) for ns in queueing_ns]

    def _run_ns(self, stages: Sequence[Stage]) -> list[int]:
        made, times = [None], list[int]()
        for stage, writes in zip(stages, self.writes, strict=True):
            torch.cuda.synchronize(self.device)
            self._write(writes)
            times.append(self._between_ns(functools.partial(_replace, made, stage)))
        return times

    def _cost_ns(self, measured_ns: int) -> int:
        return max(LEAST_NS, measured_ns - self.empty_ns)

    def _write(self, times: int) -> None:
        for _ in range(times):
            self.buffer.zero_()

    def _between_ns(self, queue: Callable[[], Any]) -> int:
        """The device's time between two events, with what `queue` queues between them."""
        stream = torch.cuda.current_stream(self.device)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record(stream)
        queue()
        end.record(stream)
        end.synchronize()
        return int(begin.elapsed_time(end) * 1e6)


def rounded_ns(times: Sequence[int]) -> int:
    """The least of some times, rounded to multiples of a power of two, by at most half of what the shorter half is apart."""
    ordered = sorted(times)
    least, apart = ordered[0], ordered[len(ordered) // 2] - ordered[0]
    step = 1 << max(0, int(min(apart, COARSEST * least)).bit_length() - 1)
    return (least + step // 2) // step * step


def _enough(runs: Sequence[Sequence[int]]) -> bool:
    taken = sum(map(sum, runs))
    least = LONG_RUNS if taken >= len(runs) * MEASURED_SECONDS * 1e9 else LEAST_RUNS
    return len(runs) >= least and (taken >= MEASURED_SECONDS * 1e9 or len(runs) >= MOST_RUNS)


def _queued(stages: Sequence[Stage], device: str) -> list[int]:
    """How long the host takes for each."""
    value, times = None, list[int]()
    for stage in stages:
        torch.cuda.synchronize(device)
        begin = time.perf_counter_ns()
        value = stage(value)
        times.append(time.perf_counter_ns() - begin)
    return times


def _replace(made: list[Any], stage: Stage) -> None:
    """Puts what a stage makes of what is there in its place."""
    made[0] = stage(made[0])
