"""The largest batch that fits: one model, traced, measured and planned at one batch size after the other."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch

from remat_codegen.batch import Batch, batch_sizes, parse_batch, size_of
from remat_codegen.budget import format_bytes
from remat_codegen.drafts import Draft, Measure, Measured, draft_of, least_bytes, measured
from remat_codegen.errors import BudgetError, RematError
from remat_codegen.pipeline import Traced
from remat_codegen.report import Progress
from remat_codegen.request import Request

FASTEST_GROWTH = 16  # times the largest batch that is known to fit: what is tried next at most
LARGEST_BATCH = 2**30
Tried = tuple[tuple[int, bool], ...]  # numbers, each with whether it was good enough


@dataclass(slots=True)
class Trials:
    """One model at several batch sizes. `places` are the sizes that are the batch, `budget_of` says what a traced model may
    take, `measure` traces and measures a request's model. `least` are the smallest budgets that work, by batch size, and `best`
    is the draft with the largest batch that fits.
    """

    request: Request
    places: str
    budget_of: Callable[[Traced], int]
    measure: Measure = measured
    start: int = 0
    first: Measured | None = None
    least: dict[int, int] = field(default_factory=dict)
    best: Draft | None = None

    def begin(self, first: Measured) -> int:
        """The batch size of the model as it was asked for. Raises TargetError where it cannot be told."""
        target = first.traced.target
        given = parse_batch(self.request.batch).places if self.request.batch else ""
        self.places, self.first = self.places or given, first
        sizes = batch_sizes(self.places, target.module.forward, target.args, target.kwargs, where="--largest-batch")
        self.start = size_of(sizes)
        return self.start

    def search(self, most: int, progress: Progress) -> tuple[int, Tried]:
        """The largest batch that fits, 0 where none does, and what was tried: `most` of them at most."""
        return largest_size(lambda size: self.excess(size, progress), self.start, most, lambda: self.request.time_is_up)

    def excess(self, size: int, progress: Progress) -> float | None:
        """By how many bytes the smallest plan for a batch is above its budget, less than 1 where it fits; infinite where it
        would fit and no file was found for it. None where the model does not take such a batch, or measuring it takes more
        memory than there is."""
        try:
            found = self._at(size, progress)
        except (RematError, torch.OutOfMemoryError, MemoryError) as error:
            progress.note(f"batch {size}: {next(iter(str(error).splitlines()), 'out of memory')}")
            return None
        self.least[size] = least_bytes(found, progress)
        excess: float = self.least[size] - self.budget_of(found.traced)
        if excess <= 0:
            try:
                self.best = draft_of(found, self.budget_of(found.traced), progress)
            except BudgetError:
                excess = math.inf
        verdict = "does not fit" if excess > 0 else "fits"
        progress.note(f"batch {size}: {verdict}, the smallest plan needs {format_bytes(self.least[size], up=True)}")
        return excess

    def _at(self, size: int, progress: Progress) -> Measured:
        if size == self.start and self.first is not None:
            return self.first
        return self.measure(replace(self.request, batch=str(Batch(size, self.places))), progress)

    def nothing_fits(self) -> BudgetError:
        """What to say where not even the smallest batch fits."""
        smallest = min(self.least, default=0)
        needs = f"the smallest plan for a batch of {smallest} needs {format_bytes(self.least.get(smallest, 0), up=True)}"
        return BudgetError("no batch fits", where="--largest-batch", hint=needs)


def largest_size(
    excess: Callable[[int], float | None], start: int, most: int, time_is_up: Callable[[], bool] = lambda: False
) -> tuple[int, Tried]:
    """The largest size found for which `excess` is below 1, 0 where there is none, and all sizes that were tried.

    What a step needs grows about evenly with the batch, so that the next size to look at is where a line through two known ones
    reaches the limit; every third is in the middle of what is left, lest a bent line leads nowhere. Where a size cannot be had
    (None), multiples of `start` are looked at. After the first, it ends when the time is up.
    """
    known: dict[int, float | None] = {}
    low, high, unit, size = 0, None, 1, start
    while size > 0 and len(known) < most and not (known and time_is_up()):
        known[size] = excess(size)
        if known[size] is None:
            unit = start
        fits = (known[size] or 0) <= 0 and known[size] is not None
        low, high = (size, high) if fits else (low, size)
        if low >= LARGEST_BATCH or (high is not None and high - low <= unit):
            break
        size = _next(known, low, high, start, unit)
    return low, tuple((n, e is not None and e <= 0) for n, e in known.items())


def _next(known: dict[int, float | None], low: int, high: int | None, start: int, unit: int) -> int:
    """The size to look at next, between the largest that fits and the smallest that does not."""
    line = sorted((abs(e), n, e) for n, e in known.items() if e is not None and math.isfinite(e))[:2]
    if high is not None and len(known) % 3 == 0:
        guess = (low + high) // 2
    elif len(line) == 2 and (rise := (line[1][2] - line[0][2]) / (line[1][1] - line[0][1])) > 0:
        guess = int(line[0][1] - line[0][2] / rise)
    else:
        guess = 2 * start if high is None else (low + high) // 2
    guess = (low + high) // 2 if high is not None and guess >= high else guess
    most = FASTEST_GROWTH * low if high is None else high - 1
    guess = max(low + 1, min(guess, most))
    multiple = guess // unit * unit
    return multiple if multiple > low else min(low // unit * unit + unit, most)
