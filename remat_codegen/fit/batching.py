"""The largest batch that fits: one model, traced, measured and planned at one batch size after the other.

Where time is limited, quick planners look for it first: to prove that a batch does not fit takes a planner longer than to find
a plan for one that does. What they find is planned in earnest, and larger batches are as long as there is time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import torch

from remat_codegen.ask.batch import Batch, batch_sizes, parse_batch, size_of
from remat_codegen.ask.budget import format_bytes
from remat_codegen.ask.request import Request
from remat_codegen.errors import BudgetError, RematError
from remat_codegen.fit.drafts import Costed, Draft, Least, Measure, draft_of, least_bytes, measured, quick_excess
from remat_codegen.run.traced import Traced
from remat_codegen.show.results import Progress

FASTEST_GROWTH = 16  # times the largest batch that is known to fit: what is tried next at most
LARGEST_BATCH = 2**30
QUICK_SHARE = 0.5  # of a limited time, for what quick planners find
QUICK_SECONDS = 0.03  # the share of it that they have for one plan
SLOW = ("rockmate", "auto", "best")  # planners that others are quick beside
Excess = float | None
Tried = tuple[tuple[int, bool], ...]  # numbers, each with whether it was good enough


@dataclass(slots=True)
class Trials:
    """One model at several batch sizes. `places` are the sizes that are the batch, `budget_of` says what a traced model may
    take, `measure` traces and measures a request's model. `least` are the smallest budgets that work, by batch size, and `best`
    is the draft with the largest batch that fits. `cut_short` says that a time limit ended the search, or that of a plan.
    `hints` are what quick planners make of some sizes, `quickly` says that they were done in time, and `settled` that there was
    not the time for anything better than that.
    """

    request: Request
    places: str
    budget_of: Callable[[Traced], int]
    measure: Measure = measured
    start: int = 0
    first: Costed | None = None
    least: dict[int, int] = field(default_factory=dict)
    best: Draft | None = None
    cut_short: bool = False
    hints: dict[int, Excess] = field(default_factory=dict)
    quickly: bool = False
    settled: bool = False
    _kept: dict[int, Costed] = field(default_factory=dict)

    def begin(self, first: Costed) -> int:
        """The batch size of the model as it was asked for. Raises TargetError where it cannot be told."""
        target = first.traced.target
        given = parse_batch(self.request.batch).places if self.request.batch else ""
        self.places, self.first = self.places or given, first
        sizes = batch_sizes(self.places, target.module.forward, target.args, target.kwargs, where="--largest-batch")
        self.start = size_of(sizes)
        return self.start

    def search(self, most: int, progress: Progress) -> tuple[int, Tried]:
        """The largest batch that fits, 0 where none does, and what was tried: `most` of them at most."""
        quick = self._look_quickly(most, progress) if self._in_a_hurry() else ()
        largest, tried = largest_size(lambda size: self.excess(size, progress), self.start, most, self._ends, self.hints)
        return largest, tuple((dict(quick) | dict(tried)).items())

    def _in_a_hurry(self) -> bool:
        """Whether quick planners are worth their time, and there is some."""
        limited = self.request.time_limit is not None and not self.request.time_is_up
        return limited and self.request.planner in SLOW

    def _ends(self) -> bool:
        """Whether the time is up, asked where the search would go on."""
        ends = self.settled or self.request.time_is_up
        self.cut_short = self.cut_short or ends
        return ends

    def _look_quickly(self, most: int, progress: Progress) -> Tried:
        """Looks for the largest batch that quick planners find a plan for, for a share of the time."""
        late = list[bool]()

        def ends() -> bool:
            late.append((self.request.seconds_left() or 0) < (1 - QUICK_SHARE) * (self.request.time_limit or 0))
            return late[-1]

        def excess(size: int) -> Excess:
            self.hints[size] = self._quick_excess(size, progress)
            return self.hints[size]

        _, tried = largest_size(excess, self.start, most, ends)
        self.quickly = not any(late)
        return tried

    def _quick_excess(self, size: int, progress: Progress) -> Excess:
        """The same as `excess` by quick planners, for which infeasible means nothing."""
        if (found := self._taken(size, progress)) is None:
            return None
        seconds = QUICK_SECONDS * (self.request.time_limit or 0)
        excess = quick_excess(found, self.budget_of(found.traced), seconds)
        if excess <= 0:
            self._kept = {size: found}  # to be planned in earnest; sizes that fit are ever larger
        progress.note(f"batch {size}: {'a quick plan fits' if excess <= 0 else 'no quick plan fits'}")
        return excess

    def excess(self, size: int, progress: Progress) -> Excess:
        """By how many bytes the smallest plan for a batch is above its budget, less than 1 where it fits; infinite where it
        would fit and no file was found for it, or time was too short to tell, and minus infinite where it fits and time was too
        short to tell how well. None where the model does not take such a batch, or measuring it takes more memory than there
        is."""
        found = self._taken(size, progress)
        if found is None:
            return None
        return self._excess(size, found, progress) if self.request.time_limit is None else self._hurried(size, found, progress)

    def _taken(self, size: int, progress: Progress) -> Costed | None:
        """The model at a batch size; None where it does not take that, or there is not the memory."""
        try:
            return self._at(size, progress)
        except (RematError, torch.OutOfMemoryError, MemoryError) as error:
            progress.note(f"batch {size}: {next(iter(str(error).splitlines()), 'out of memory')}")
            return None

    def _hurried(self, size: int, found: Costed, progress: Progress) -> float:
        """The excess where time is limited: the plan first, and the smallest one only where that was not cut short."""
        budget, excess = self.budget_of(found.traced), math.inf
        least: Least | None = None
        try:
            self.best = draft = draft_of(found, budget, progress)
        except BudgetError as error:
            if not error.out_of_time:
                least = least_bytes(found, progress) if error.least_bytes is None else Least(error.least_bytes)
                excess = float(least.nbytes - budget) if least.nbytes > budget else math.inf
        else:
            self.settled = self.quickly and draft.cut_short
            least = self._least_beside(draft, size, progress)
            excess = -math.inf if least is None else min(0.0, float(least.nbytes - budget))
        self._say(size, excess <= 0, least, progress)
        return excess

    def _least_beside(self, draft: Draft, size: int, progress: Progress) -> Least | None:
        """The smallest plan, where the planner found out in time most of what that takes: not if it was cut short, and not if
        it had nothing to do, which leaves room for batches that quick planners know enough of."""
        nothing_to_do = size in self.hints and not draft.plan.overhead
        if draft.cut_short or nothing_to_do or self.request.time_is_up:
            return None
        least = least_bytes(draft.measured, progress)
        return least if least.sure else None

    def _excess(self, size: int, found: Costed, progress: Progress) -> float:
        """The excess where there is time for all: the smallest plan first."""
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

    def _at(self, size: int, progress: Progress) -> Costed:
        if size == self.start and self.first is not None:
            return self.first
        if size in self._kept:
            return self._kept[size]
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
    excess: Callable[[int], Excess],
    start: int,
    most: int,
    time_is_up: Callable[[], bool] = lambda: False,
    hints: Mapping[int, Excess] = MappingProxyType({}),
) -> tuple[int, Tried]:
    """The largest size found for which `excess` is below 1, 0 where there is none, and all sizes that were tried.

    What a step needs grows about evenly with the batch, so that the next size to look at is where a line through two known ones
    reaches the limit; every third is in the middle of what is left, lest a bent line leads nowhere. Where a size cannot be had
    (None), multiples of `start` are looked at. After the first, it ends when the time is up. `hints` are what is thought of
    some sizes: it begins with the largest that may fit, else with the smallest, and takes them for known where it draws lines.
    """
    known: dict[int, Excess] = {}
    low, high, unit = 0, None, start if None in hints.values() else 1
    least = min((n for n, e in hints.items() if e is not None), default=start)
    size = max((n for n, e in hints.items() if e is not None and e <= 0), default=least)
    while size > 0 and len(known) < most and not (known and time_is_up()):
        known[size] = excess(size)
        if known[size] is None:
            unit = start
        fits = (known[size] or 0) <= 0 and known[size] is not None
        low, high = (size, high) if fits else (low, size)
        if low >= LARGEST_BATCH or (high is not None and high - low <= unit):
            break
        size = _next(dict(hints) | {n: e for n, e in known.items() if e != -math.inf}, low, high, start, unit)
    return low, tuple((n, e is not None and e <= 0) for n, e in known.items())


def _next(known: Mapping[int, Excess], low: int, high: int | None, start: int, unit: int) -> int:
    """The size to look at next, between the largest that fits and the smallest that does not."""
    line = sorted((abs(e), n, e) for n, e in known.items() if e is not None and math.isfinite(e))[:2]
    if high is not None and len(known) % 3 == 0:
        guess = (low + high) // 2
    elif len(line) == 2 and (rise := (line[1][2] - line[0][2]) / (line[1][1] - line[0][1])) > 0:
        guess = int(line[0][1] - line[0][2] / rise)
    else:
        guess = 2 * max(start, low) if high is None else (low + high) // 2
    guess = (low + high) // 2 if high is not None and guess >= high else guess
    most = FASTEST_GROWTH * low if high is None else high - 1
    guess = max(low + 1, min(guess, most))
    multiple = guess // unit * unit
    return multiple if multiple > low else min(low // unit * unit + unit, most)
