"""How long a piece of work takes on a device: on the CPU from begin to end, on CUDA what the device itself needs.

On CUDA the host only queues kernels, and queueing takes longer than many of them run. In a step the host is ahead of the
device, so that making something again costs what its kernels take. Two events around the work measure just that if all of it
is queued before the device comes to the first event: a large buffer is written before, as often as keeps the device busy for
that long. This also flushes the L2 cache, in which a step's values rarely are. What events measure with nothing between them is
subtracted. The profiler would give the same durations, but needs CUPTI, which not every machine lets everybody use.

Where time is short, each piece of work is run once: `hurry_at` is the moment of time.monotonic() from which on.

A model so small that the device waits for the host costs more than this says: there no planner can see a difference.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

MEASURED_SECONDS = 0.3  # a piece of work is run again until it took this long, or MOST_RUNS times
MOST_RUNS = 15
LEAST_RUNS = 3
LEAST_NS = 100  # on CUDA; below what events tell apart (500 ns), so that running something again is never for nothing
LEAST_FLUSHED_BYTES = 16 << 20  # writing less takes the device no longer than queueing it takes the host
MOST_WRITES = 1000  # of the buffer before a run, some 40 ms
AHEAD = 2.0  # how many times as long as queueing the work takes, the device is kept busy


def clock_for(device: str, hurry_at: float = math.inf) -> Clock:
    """The clock for work on `device`."""
    return CudaClock(device, hurry_at) if torch.device(device).type == "cuda" else Clock(device, hurry_at)


class Clock:
    """Times work on the CPU."""

    def __init__(self, device: str = "cpu", hurry_at: float = math.inf) -> None:
        self.device, self.hurry_at = device, hurry_at

    @property
    def in_a_hurry(self) -> bool:
        """Whether work is run once from now on."""
        return time.monotonic() > self.hurry_at

    def median_ns(self, work: Callable[[], Any]) -> int:
        """The median time of several runs of `work`, after some to warm up, in nanoseconds."""
        return self.median_after_ns(lambda: None, lambda _: work())

    def median_after_ns(self, prepare: Callable[[], Any], work: Callable[[Any], Any]) -> int:
        """The same of `work(prepare())`, without what `prepare` takes; what it made is there until `work` is over.

        Each run prepares anew, so that never more than one run's tensors exist.
        """
        self._warm_up(prepare, work)
        runs = [self._run_ns(prepare, work)]
        while not self.in_a_hurry and (
            len(runs) < LEAST_RUNS or (sum(runs) < MEASURED_SECONDS * 1e9 and len(runs) < MOST_RUNS)
        ):
            runs.append(self._run_ns(prepare, work))
        return self._cost_ns(int(statistics.median(runs)))

    def once_ns(self, work: Callable[[], Any]) -> int:
        """The time of one run of `work`, which has run before."""
        return self._cost_ns(self._run_ns(lambda: None, lambda _: work()))

    def _warm_up(self, prepare: Callable[[], Any], work: Callable[[Any], Any]) -> None:
        work(prepare())

    def _run_ns(self, prepare: Callable[[], Any], work: Callable[[Any], Any]) -> int:
        prepared = prepare()
        begin = time.perf_counter_ns()
        work(prepared)
        return time.perf_counter_ns() - begin

    def _cost_ns(self, measured_ns: int) -> int:
        return measured_ns


class CudaClock(Clock):
    """Times what the device does of some work, on its current stream. It holds a buffer of twice the L2 cache's size."""

    def __init__(self, device: str, hurry_at: float = math.inf) -> None:
        super().__init__(device, hurry_at)
        cache_bytes = getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 0)
        self.buffer = torch.empty(max(2 * cache_bytes, LEAST_FLUSHED_BYTES), dtype=torch.uint8, device=device)
        self.writes, self.empty_ns = 1, 0
        self._between_ns(lambda: self._write(1))  # the first one takes longer
        self.write_ns = max(1, self._between_ns(lambda: self._write(100)) // 100)
        self.empty_ns = int(statistics.median(self._run_ns(lambda: None, lambda _: None) for _ in range(MOST_RUNS)))

    def _warm_up(self, prepare: Callable[[], Any], work: Callable[[Any], Any]) -> None:
        """Runs it once for libraries to load and to choose their algorithms, and once to see how long queueing takes."""
        work(prepare())
        prepared = prepare()
        torch.cuda.synchronize(self.device)
        begin = time.perf_counter_ns()
        work(prepared)
        queueing_ns = time.perf_counter_ns() - begin
        self.writes = 1 + min(MOST_WRITES, int(AHEAD * queueing_ns / self.write_ns))

    def _run_ns(self, prepare: Callable[[], Any], work: Callable[[Any], Any]) -> int:
        prepared = prepare()
        torch.cuda.synchronize(self.device)
        self._write(self.writes)
        return self._between_ns(lambda: work(prepared))

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
