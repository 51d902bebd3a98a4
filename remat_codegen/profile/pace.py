"""How much a machine does at the moment, by a fixed piece of work. Where somebody else uses its cores or its GPU, what is
measured takes longer than it will, and not everything by as much: a plan is then for another machine.

The least that this work ever took here is remembered with the measurements, and each of them with what it took then. One of a
slower moment is used as long as that moment lasts, and measured again after.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

from remat_codegen.profile.clock import Clock

SLOWED = 1.5  # times the least that the work took: one program more on two cores makes it 3
RUNS = 7
FOR_SECONDS = 2.0  # that what was seen holds
NUMBERS, WIDTH = 2**20, 512  # of what is mapped, and of the matrices: 2 ms on two cores


class Pace:
    """What the work takes now, in nanoseconds, and the least that is known."""

    def __init__(self, clock: Clock, least_ns: int | None = None) -> None:
        self.clock, self.least_ns = clock, least_ns
        self._work: Callable[[], object] | None = None
        self._seen_ns, self._seen_at = 0, -FOR_SECONDS

    def now_ns(self) -> int:
        """What the work takes; seen anew after `FOR_SECONDS`."""
        if time.monotonic() - self._seen_at >= FOR_SECONDS:
            self._work = self._work or _work_on(self.clock.device)
            self._seen_ns, self._seen_at = median_ns(self.clock, self._work), time.monotonic()
            self.least_ns = min(self._seen_ns, self.least_ns or self._seen_ns)
        return self._seen_ns

    def is_slow(self, taken_ns: int) -> bool:
        """Whether somebody else was using the machine when the work took so long."""
        return self.least_ns is not None and taken_ns > SLOWED * self.least_ns


def median_ns(clock: Clock, work: Callable[[], object]) -> int:
    """The median of a few runs."""
    return int(statistics.median(clock.once_ns(work) for _ in range(RUNS)))


def _work_on(device: str) -> Callable[[], object]:
    numbers, matrix = torch.ones(NUMBERS, device=device), torch.ones(WIDTH, WIDTH, device=device)

    def work() -> None:
        torch.sin(numbers)
        torch.mm(matrix, matrix)

    work()
    return work
