"""Giving up: a data node is dropped over a gap in which nothing reads it, and rebuilt just before its next reader.

`squeeze` does so where an order needs most memory, the most bytes for the time first, until it fits.
"""

from __future__ import annotations

import heapq
import random
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from remat_codegen.planners.base.deadline import check
from remat_codegen.schedule.lives import Copy, Limits, Lives, Order, Problem
from remat_codegen.schedule.order import without_dead_runs

Splits = dict[int, list[int]]  # position -> data that are rebuilt there

PATIENCE = 12  # how many rounds of splitting may pass without a gain
PEAKS_AT_ONCE = 12  # positions above the limit that are treated in one round
FIT_WORK = 1_000_000  # the most that is visited to fit all starting orders within limits
SLOWEST = 6  # an order that takes this many times as long as the plain step is given up


class Splitter:
    """Splits chosen on one order, to be made at once. None are looked for once `last` data were visited."""

    def __init__(self, lives: Lives, last: int = sys.maxsize) -> None:
        self.lives, self.problem, self.last = lives, lives.problem, last
        self.splits: Splits = {}
        self.dropped: dict[int, list[tuple[int, int]]] = {}  # data -> gaps in which it is no longer there

    def closure(self, data: int, position: int) -> list[int] | None:
        """What must run to rebuild it there; None if something of it cannot run again."""
        problem = self.problem
        first = problem.producer[data]
        again, pending = {first}, list(problem.reads[first])
        while pending:
            read = pending.pop()
            problem.visited += 1
            if self.there(read, position):
                continue
            node = problem.producer[read]
            if node in again:
                continue
            if node in problem.once:
                return None
            again.add(node)
            pending.extend(problem.reads[node])
        return sorted(again)

    def there(self, data: int, position: int) -> bool:
        """Whether a data node is held when the step at a position begins."""
        if self.lives.alive(data, position) is None:
            return False
        return not any(start < position <= end for start, end in self.dropped.get(data, ()))

    def drop(self, copy: Copy, start: int, end: int) -> None:
        """Lets a copy go between two of its touches."""
        self.dropped.setdefault(copy.data, []).append((start, end))
        self.splits.setdefault(end, []).append(copy.data)

    def order(self) -> Order:
        """The order with all of them made."""
        problem, order = self.problem, list(self.lives.order)
        result: list[int] = []
        for position, node in enumerate(order):
            if position in self.splits:
                again: set[int] = set()
                for data in self.splits[position]:
                    again.update(self.closure(data, position) or ())
                result.extend(sorted(again))
            result.append(node)
        return without_dead_runs(problem.graph, result)


def squeeze(
    problem: Problem,
    order: Order,
    limits: Limits,
    jitter: random.Random | None = None,
    rounds: int | None = None,
    work: int = FIT_WORK,
) -> Order | None:
    """Splits until an order keeps to the limits; None where that does not work out, or not with so much `work`."""
    least, stuck, last = None, 0, problem.visited + work
    for _ in range(4 * len(problem.plain) if rounds is None else rounds):
        if problem.visited > last:
            return None
        check()
        problem.visited += len(order)
        lives = Lives(problem, order)
        over = np.maximum(lives.during - limits.along(lives), 0)
        excess = int(over.sum())
        if not excess:
            return order
        stuck = 0 if least is None or excess < least else stuck + 1
        least = excess if least is None else min(excess, least)
        if stuck > PATIENCE or problem.time_of(order) > SLOWEST * problem.plain_ns:
            return None
        splitter = Splitter(lives, last)
        for _ in range(PEAKS_AT_ONCE if jitter is None else 2):
            if not over.any() or not _split_at(splitter, over, int(over.argmax()), limits, jitter):
                break
        if not splitter.splits:
            return None
        order = splitter.order()
    return None


@dataclass(frozen=True, slots=True)
class _Gap:
    """A stretch over which nothing touches a copy. `weight`: the bytes that it would free, once for each place too full."""

    weight: float
    copy: Copy
    start: int
    end: int


def _split_at(splitter: Splitter, over: np.ndarray, peak: int, limits: Limits, jitter: random.Random | None) -> bool:
    """Chooses splits that bring one position below its limit, and takes them off `over`; whether there were any."""
    problem, found = splitter.problem, False
    for gap in _best_first(splitter, _gaps_over(splitter, over, peak, jitter), limits):
        data = gap.copy.data
        splitter.drop(gap.copy, gap.start, gap.end)
        found = True
        part = over[gap.start + 1 : gap.end]
        np.maximum(part - problem.size[data], 0, out=part)
        if not over[peak]:
            break
    return found


def _gaps_over(splitter: Splitter, over: np.ndarray, peak: int, jitter: random.Random | None) -> Iterator[_Gap]:
    """What is held idle at a position and may be rebuilt later."""
    lives, problem = splitter.lives, splitter.problem
    counts = np.concatenate(([0], np.cumsum(over > 0))).tolist()
    for copies in lives.copies:
        copy = next((c for c in reversed(copies) if c.start < peak), None)
        if copy is None or copy.end <= peak or not problem.movable(copy.data) or not problem.size[copy.data]:
            continue
        end, start = copy.next_touch(peak), copy.last_touch(peak)
        if end is None or end <= max(peak, problem.loss) or not splitter.there(copy.data, peak):
            continue
        weight = problem.size[copy.data] * (counts[end] - counts[start + 1])
        yield _Gap(weight if jitter is None else weight * jitter.uniform(0.6, 1.6), copy, start, end)


def _best_first(splitter: Splitter, gaps: Iterable[_Gap], limits: Limits) -> Iterator[_Gap]:
    """The gaps by what they free for the time of rebuilding, those left out that cannot be rebuilt.

    Rebuilding takes at least the producer's own time. What else has to run is looked up only for the gaps that are best by
    that measure, because on large graphs there are thousands of others.
    """
    problem = splitter.problem
    heap = [(-g.weight / (problem.time[problem.producer[g.copy.data]] + 1), g.copy.data, False, g) for g in gaps]
    heapq.heapify(heap)
    while heap and problem.visited <= splitter.last:
        _, data, priced, gap = heapq.heappop(heap)
        if priced:
            yield gap
        elif (cost := _cost(splitter, gap, limits)) is not None:
            heapq.heappush(heap, (-gap.weight / cost, data, True, gap))


def _cost(splitter: Splitter, gap: _Gap, limits: Limits) -> int | None:
    """The time that rebuilding at the end of a gap takes; None where it cannot be done."""
    problem, again = splitter.problem, splitter.closure(gap.copy.data, gap.end)
    if again is None:
        return None
    cost = sum(problem.time[i] for i in again) + 1
    widest = max(sum(problem.size[d] for d in problem.writes[i]) for i in again)
    if len(again) > 1 and int(splitter.lives.during[gap.end]) + widest > limits.peak:
        cost *= 4  # there is no room to rebuild it: more will have to be given up
    return cost
