"""The largest batch that fits: one model, traced, measured and planned at one batch size after the other."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

import torch

from remat_codegen.batch import Batch, batch_sizes, parse_batch, size_of
from remat_codegen.budget import format_bytes
from remat_codegen.drafts import Draft, Least, Measure, Measured, draft_of, least_bytes, measured
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
    is the draft with the largest batch that fits. `cut_short` says that a time limit ended the search, or that of a plan.
    """

    request: Request
    places: str
    budget_of: Callable[[Traced], int]
    measure: Measure = measured
    start: int = 0
    first: Measured | None = None
    least: dict[int, int] = field(default_factory=dict)
    best: Draft | None = None
    cut_short: bool = False

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
        return largest_size(lambda size: self.excess(size, progress), self.start, most, self._ends)

    def _ends(self) -> bool:
        """Whether the time is up, asked where the search would go on."""
        self.cut_short = self.cut_short or self.request.time_is_up
        return self.request.time_is_up

    def excess(self, size: int, progress: Progress) -> float | None:
        """By how many bytes the smallest plan for a batch is above its budget, less than 1 where it fits; infinite where it
        would fit and no file was found for it, or time was too short to tell, and minus infinite where it fits and time was too
        short to tell how well. None where the model does not take such a batch, or measuring it takes more memory than there
        is."""
        try:
            found = self._at(size, progress)
        except (RematError, torch.OutOfMemoryError, MemoryError) as error:
            progress.note(f"batch {size}: {next(iter(str(error).splitlines()), 'out of memory')}")
            return None
        least, budget = least_bytes(found, progress), self.budget_of(found.traced)
        excess, in_time = float(least.nbytes - budget), least.sure
        if excess <= 0 or not in_time:
            try:
                self.best = draft_of(found, budget, progress)
                excess = excess if in_time else -math.inf
            except BudgetError as error:
                excess, in_time = math.inf, in_time and not error.out_of_time
        self._say(size, excess <= 0, least if in_time else None, progress)
        return excess

    def _say(self, size: int, fits: bool, least: Least | None, progress: Progress) -> None:
        """Notes how a size came out. `least` is None where time was too short: that says nothing about the model."""
        if least is not None:
            self.least[size] = least.nbytes
            verdict = "fits" if fits else "does not fit"
            progress.note(f"batch {size}: {verdict}, the smallest plan needs {format_bytes(least.nbytes, up=True)}")
        else:
            self.cut_short = self.cut_short or not fits
            progress.note(f"batch {size}: {'fits' if fits else 'no plan was found before the time was up'}")

    def _at(self, size: int, progress: Progress) -> Measured:
        if size == self.start and self.first is not None:
            return self.first
        return self.measure(replace(self.request, batch=str(Batch(size, self.places))), progress)

    def nothing_fits(self, tried: Iterable[int]) -> BudgetError:
        """What to say where not even the smallest batch fits, or none was found in time."""
        if self.cut_short:
            what = f"no batch was found in {self.request.time_limit:g} s that fits"
            hint = f"tried {', '.join(map(str, tried))}; raise --time-limit, or allow more memory"
            return BudgetError(what, where="--largest-batch", hint=hint, out_of_time=True)
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
