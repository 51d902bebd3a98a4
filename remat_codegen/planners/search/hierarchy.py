"""Plans for large graphs without separators, by segments, by giving up and by spending.

All of it works on one representation: the order of node ids, forward nodes once and in order up to the loss (what the emitter
can write), and after it every backward node with the runs that rebuild what it reads. What an order holds follows from it
(`with_forgets`), so two moves reach every such plan:

    split   a data node is dropped over a gap in which nothing reads it, and rebuilt just before its next reader (`splits`)
    merge   a run is taken out, and the copy of before is held instead (`merges`)

Starting orders (`segments`) keep what crosses between segments of the forward pass (Chen et al. 2016, for any graph and any
number of segments; Chen's own sqrt(n) equal ones are among them, so a plan is never slower than theirs where theirs fits).
`squeeze` splits at the peak until an order fits a budget, the most bytes for the time first; `spend` merges while there
is room, the most time for the bytes first. `improve` repeats both around random choices and takes what is faster (large
neighbourhood search). HiRemate, which partitions a graph recursively and solves an integer program per level, is
the published alternative.

Deterministic: the random choices are seeded, and the work is counted in steps of the search and in what these visit, not in
seconds.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise

from remat_codegen.graph.ir import Graph
from remat_codegen.planners.base.deadline import check, offer
from remat_codegen.planners.search.merges import spend
from remat_codegen.planners.search.segments import starting_orders
from remat_codegen.planners.search.splits import FIT_WORK, Splitter, squeeze
from remat_codegen.profile.costs import Profile
from remat_codegen.schedule.lives import Copy, Limits, Lives, Order, Problem
from remat_codegen.schedule.order import saved_bytes

SPLIT_WORK = 50_000  # the most rounds of splitting that a starting order gets, times nodes
DESCENT_WORK = 200_000  # steps of orders that are looked at to bring one to its least peak, where the graph is large
LARGE = 1500  # nodes; beyond it the least peak is only looked for where nothing else fits
SEARCH_WORK = 1_000_000  # the most that is visited to improve orders, however large the graph
LOWER_WORK = 30_000_000  # steps of orders that are looked at to find a lower one
LOWER_PARTS = (0.9, 0.98)  # of the least peak so far: where a lower one is looked for, before one byte less
LEAST_STARTS = 2  # how many of the starting orders are brought to their least peak
TRIAL_ROUNDS = 8  # of splitting, in a step of the search
IMPROVED_STARTS = 3  # how many of the fitting orders are improved
STEPS_PER_NODE = 6  # the most steps of the search that a graph gets
WARMTH = 1.0  # how much slower an order may become for a while: in parts of its overhead for each node of the graph
PEAK_LEVELS = 3  # of a family
SAVED_LEVELS = 6


def improve(problem: Problem, order: Order, limits: Limits, steps: int, seed: int = 1, work: int = SEARCH_WORK) -> Order:
    """Large neighbourhood search: drop some of what is held in one region, fit, spend; take what is not slower."""
    rng, last = random.Random(seed), problem.visited + work
    best = current = order
    best_ns = current_ns = problem.time_of(order)
    lives = Lives(problem, current)
    offer(problem.graph, best, best_ns, limits.peak)
    for step in range(steps if best_ns > problem.plain_ns else 0):
        if problem.visited > last:
            break
        check()
        problem.visited += len(current)
        trial = _shake(lives, rng)
        fitting = None if trial is None else squeeze(problem, trial, limits, rng, TRIAL_ROUNDS, last - problem.visited)
        if fitting is None:
            continue
        found = spend(problem, fitting, limits, rng)
        found_ns = problem.time_of(found)
        warmth = WARMTH / problem.loss * (1 - step / steps) * (best_ns - problem.plain_ns)
        if found != current and found_ns <= current_ns + warmth * rng.random():
            current, current_ns, lives = found, found_ns, Lives(problem, found)
        if found_ns < best_ns:
            best, best_ns = found, found_ns
            offer(problem.graph, best, best_ns, limits.peak)
    return best


def _shake(lives: Lives, rng: random.Random) -> Order | None:
    """An order that drops a few of the data nodes that are held over a long gap, near each other."""
    problem = lives.problem
    gaps: list[tuple[int, int, Copy]] = []
    for copies in lives.copies:
        for copy in copies:
            if problem.movable(copy.data) and problem.size[copy.data]:
                touches = [copy.start, *copy.readers]
                gaps.extend((b, a, copy) for a, b in pairwise(touches) if b > problem.loss and b - a > 2)
    if not gaps:
        return None
    gaps.sort(key=lambda g: g[:2])
    centre, width = rng.randrange(len(gaps)), rng.choice((2, 6, 16, 40))
    near = gaps[max(0, centre - width) : centre + width]
    splitter = Splitter(lives)
    for end, start, copy in rng.sample(near, min(len(near), rng.choice((1, 2, 3, 5, 8)))):
        if splitter.closure(copy.data, end) is not None:
            splitter.drop(copy, start, end)
    return splitter.order()


class Search:
    """Plans of one graph for any budget."""

    def __init__(self, graph: Graph, profile: Profile) -> None:
        self.problem = Problem(graph, profile)
        self.starts = starting_orders(self.problem)
        self.large = len(graph.nodes) > LARGE
        self.rounds = SPLIT_WORK // (len(graph.nodes) + 100) + 1
        self.peaks = {order: Lives(self.problem, order).peak for order in self.starts}

    @cached_property
    def least(self) -> tuple[Order, int]:
        """The order of the least peak that the search finds, whatever the budget, and its peak."""
        ranked = sorted(self.starts, key=lambda o: self.peaks[o])[:LEAST_STARTS]
        found = [self._descend(order, self.peaks[order]) for order in dict.fromkeys([*ranked, self.problem.plain])]
        least = min(found, key=lambda f: (f[1], self.problem.time_of(f[0])))
        last = self.problem.visited + LOWER_WORK
        while least[1] and self.problem.visited < last and (lower := self._lower(least[1])):
            least = lower, Lives(self.problem, lower).peak
        return least

    def _lower(self, peak: int) -> Order | None:
        """An order below a peak from any of the starts, as somebody who asks for that budget would get one."""
        for limit in dict.fromkeys((*(int(peak * part) for part in LOWER_PARTS), peak - 1)):
            if limit < peak and (found := self._squeezed(Limits(limit))):
                return min(found, key=lambda o: Lives(self.problem, o).peak)
        return None

    def _descend(self, order: Order, peak: int) -> tuple[Order, int]:
        problem = self.problem
        last = problem.visited + (DESCENT_WORK if self.large else sys.maxsize)
        for part in (0.85, 0.95, 0.99):
            while problem.visited < last:
                rounds = min(self.rounds, (last - problem.visited) // len(order) + 1)
                lower = squeeze(problem, order, Limits(int(peak * part)), None, rounds)
                if lower is None:
                    break
                order, peak = lower, Lives(problem, lower).peak
                if not peak:
                    break
        return order, peak

    def fitted(self, limits: Limits, extra: Sequence[Order] = ()) -> list[Order]:
        """The starts and what else is known, brought within the limits and spent, fastest first."""
        found = self._squeezed(limits, extra)
        if (not self.large or not found) and limits.hold(Lives(self.problem, self.least[0])):
            found.append(self.least[0])
        spent = dict.fromkeys(spend(self.problem, o, limits) for o in dict.fromkeys(found))
        return sorted(spent, key=self.problem.time_of)

    def _squeezed(self, limits: Limits, extra: Sequence[Order] = ()) -> list[Order]:
        work = FIT_WORK // (len(extra) + len(self.starts))
        squeezed = (squeeze(self.problem, o, limits, None, self.rounds, work) for o in (*extra, *self.starts))
        return [order for order in squeezed if order is not None]

    def best(self, limits: Limits, steps: int, extra: Sequence[Order] = ()) -> Order | None:
        """The fastest order found within the limits."""
        found = self.fitted(limits, extra)[:IMPROVED_STARTS]
        part = 3 * IMPROVED_STARTS  # a third of the work says where the rest is best spent
        trial, work = steps // part, SEARCH_WORK // part
        found = [improve(self.problem, order, limits, trial, seed, work) for seed, order in enumerate(found)]
        if not found:
            return None
        rest = steps - trial * len(found)
        fastest = min(found, key=self.problem.time_of)
        return improve(self.problem, fastest, limits, rest, len(found), SEARCH_WORK - work * len(found))


def steps_for(graph: Graph, work: int) -> int:
    """How many steps of the search a graph gets. A step visits all its nodes a few times."""
    return min(work // (len(graph.nodes) + 100), STEPS_PER_NODE * len(graph.nodes))


def family_orders(graph: Graph, profile: Profile) -> list[Order]:
    """Orders of a piece for a few peaks and a few budgets of what is kept over its loss."""
    search = Search(graph, profile)
    problem, plain = search.problem, Lives(search.problem, search.problem.plain)
    saved = saved_bytes(graph, problem.plain)
    beside = int(plain.during[graph.loss]) - saved
    highest, lowest = plain.peak, search.least[1]
    orders = [*search.starts, search.least[0]]
    for level in range(PEAK_LEVELS):
        peak = highest - (highest - lowest) * level // (PEAK_LEVELS - 1)
        for part in range(SAVED_LEVELS):
            limits = Limits(peak, beside + saved * part // (SAVED_LEVELS - 1))
            orders.extend(search.fitted(limits)[:1])
    return list(dict.fromkeys(orders))
