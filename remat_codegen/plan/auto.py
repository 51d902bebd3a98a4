"""The default to be: quick planners' plans as starts, improved by a search, and more budget never gives a slower plan.

    least peak known ---- ... ---- lo ---- middle ---- hi ---- ... ---- no recomputation

A budget is looked for by bisection between the least peak that is known and that of the plain step. At each middle, whatever
budget was asked for, the same is done: the plan of `lo`, that of `hi` squeezed, and what the quick planners make of it are fitted,
spent, and the best is improved by `moves.Search`. What comes out is the point of that middle, and two rules make points
monotonic: it is at most as slow as `lo`, whose plan it may take, and it is never faster than `hi`, because what would be is turned
down. So of two budgets the larger is never slower: where their ways part, at some middle, the smaller is at least as slow as that
one, and the larger at most. The answer is the plan of `lo` once `lo` and `hi` are RESOLUTION apart, or take equally long.

Starts: Rockmate's dynamic program (with the sequence as it comes, slots that are fine for tight budgets) where its blocks are few
and small, Rotor, DTR with several scores, Chen's segments, and the plain step squeezed.

Cost model: the simulator's, kept up to date by a `Ledger`. Complexity: about a dozen middles, for each the quick planners and
WORK of search; points are remembered for a graph, so that a second budget costs less. Limits count work, not seconds. Ties: the
earlier start. Oracle: `least_time` of `tests/graphs.py`, never below; never above its starts at the middles.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from remat_codegen.graph.ir import Graph
from remat_codegen.plan import chain, chen, dtr, ends, rockmate, whole
from remat_codegen.plan.ends import Progress, candidate
from remat_codegen.plan.ledger import Ledger
from remat_codegen.plan.lives import Board, Lives, Order
from remat_codegen.plan.moves import Search, fit, spend
from remat_codegen.plan.options import Grid
from remat_codegen.plan.result import Plan, Status
from remat_codegen.plan.segments import starting_orders
from remat_codegen.profile.costs import Profile

RESOLUTION = 1.001  # budgets that differ by less have the same plan
WORK = 150_000  # of the search at each middle: some half a second
HARD_WORK = 400_000  # where there is no dynamic program to start from
LARGE = 2500  # nodes; beyond them DTR alone takes seconds
DEEP = 8  # bisections after which the two plans beside a middle are as good a start as any
SLOTS = 8000  # of the dynamic program: memory slots in the need of a step without recomputation
MOST_KINDS, MOST_IN_BLOCK = 12, 16  # of blocks, and of forward nodes in one, for which options are worth their integer programs
LOWER = (0.9, 0.97, 0.99)  # of the least peak known: where a lower one is looked for
FITTED = 60  # starts are given up after so many splits for each hundred nodes
PROMISING = 3  # starts that are improved a little before one is chosen


def plan(graph: Graph, profile: Profile, budget_bytes: int, *, progress: Progress | None = None) -> Plan:
    """The best plan found within the budget."""
    plain = candidate(graph, profile, range(len(graph.nodes)))
    if plain.peak_bytes <= budget_bytes:
        return ends.chosen("auto", [plain], profile, budget_bytes, ("the step fits the budget without recomputation",))
    found = _frontier(graph, profile).at(budget_bytes, progress)
    if found is None:
        return _below(graph, profile, budget_bytes)
    judged = candidate(graph, profile, found.order)
    return ends.chosen("auto", [judged], profile, budget_bytes, (f"from {found.start}",))


def _below(graph: Graph, profile: Profile, budget_bytes: int) -> Plan:
    """A budget below the least peak known: whoever else keeps to it."""
    least = _frontier(graph, profile).least
    plans = [dtr.plan(graph, profile, budget_bytes, heuristic=h) for h in ("dtr", "local")]
    fitting = [p for p in plans if p.schedule is not None]
    if not fitting:
        return Plan("auto", Status.INFEASIBLE, None, minimum_bytes=least.limit_bytes)
    return replace(min(fitting, key=lambda p: (p.time_ns, p.peak_bytes)), planner="auto")


@dataclass(frozen=True, slots=True)
class Point:
    """The plan for a limit: its time and order, and which start it came from."""

    limit_bytes: int
    time_ns: int
    order: Order
    start: str


@lru_cache(maxsize=8)
def _frontier(graph: Graph, profile: Profile) -> Frontier:
    return Frontier(graph, profile)


class Frontier:
    """The points of a graph that were found so far."""

    def __init__(self, graph: Graph, profile: Profile, work: int | None = None) -> None:
        self.graph, self.profile = graph, profile
        self.board = Board(graph, profile)
        self.ledger = Ledger(self.board)
        self.points: dict[int, Point] = {}
        self.sequences = _Sequences(graph, profile)
        self.work = work or (WORK if self.sequences.worthwhile else HARD_WORK)
        self.rounds = FITTED * (len(graph.nodes) // 100 + 1)
        self.plain = Point(Lives(self.board, self.board.plain).peak, self.board.plain_ns, self.board.plain, "nothing")

    def at(self, budget_bytes: int, progress: Progress | None = None) -> Point | None:
        """The point of the largest limit within the budget; None if it is below the least peak known."""
        low, high = self.least, self.plain
        if budget_bytes < low.limit_bytes:
            return None
        depth, depths = 0, self._depths(low, high)
        while (middle := _middle(low, high)) is not None:
            if progress is not None:
                progress("closing in on the budget", depth, depths)
            if middle not in self.points:
                self.points[middle] = self._between(middle, low, high, depth)
            point = self.points[middle]
            low, high = (point, high) if middle <= budget_bytes else (low, point)
            depth += 1
        return low

    @staticmethod
    def _depths(low: Point, high: Point) -> int:
        ratio = math.log(max(high.limit_bytes, 1) / max(low.limit_bytes, 1)) / math.log(RESOLUTION)
        return max(1, math.ceil(math.log2(max(ratio, 1))))

    @cached_property
    def least(self) -> Point:
        """The plan of the least peak that was found, whatever the budget."""
        orders = [("everything rebuilt", order) for order in ends.least_orders(self.graph)]
        orders += [("segments", order) for order in starting_orders(self.board)]
        orders += [("rockmate", order) for order in self.sequences.tightest()]
        ranked = sorted((Lives(self.board, order).peak, i) for i, (_, order) in enumerate(orders))
        found = [self._lowest(*orders[i]) for _, i in ranked[:PROMISING]]
        return min(found, key=lambda point: (point.limit_bytes, point.time_ns))

    def _lowest(self, start: str, order: Order) -> Point:
        """An order with more and more given up."""
        ledger = self.ledger
        ledger.reset(ledger.keys_of(order))
        best, peak = ledger.repeats(), ledger.peak
        for part in LOWER:
            while fit(ledger, int(peak * part), self.rounds) and ledger.peak < peak:
                best, peak = ledger.repeats(), ledger.peak
            ledger.reset(best)
        spend(ledger, peak)
        return Point(peak, ledger.time, ledger.order(), start)

    def _between(self, limit: int, low: Point, high: Point, depth: int) -> Point:
        """The point of a middle: at most as slow as the one below, at least as slow as the one above."""
        ledger, best = self.ledger, low
        tried: list[Point] = []
        for start, order in self._starts(limit, low, high, depth):
            ledger.reset(ledger.keys_of(order))
            if fit(ledger, limit, self.rounds):
                spend(ledger, limit)
                tried.append(Point(limit, ledger.time, ledger.order(), start))
        tried = [p for p in sorted(tried, key=lambda p: p.time_ns) if p.time_ns >= high.time_ns]
        promising = list({p.time_ns: p for p in reversed(tried)}.values())[::-1][:PROMISING] or [low]
        part = self.work // (2 * len(promising))
        improved = [self._improved(p, limit, high.time_ns, part, seed) for seed, p in enumerate(promising)]
        best = min([*improved, best], key=lambda p: p.time_ns)
        best = self._improved(best, limit, high.time_ns, self.work - part * len(promising), len(promising))
        return replace(best, limit_bytes=limit)

    def _improved(self, point: Point, limit: int, fastest_ns: int, work: int, seed: int) -> Point:
        ledger = self.ledger
        ledger.reset(ledger.keys_of(point.order))
        Search(ledger, seed).run(limit, work, fastest_ns)
        return replace(point, time_ns=ledger.time, order=ledger.order()) if ledger.time < point.time_ns else point

    def _starts(self, limit: int, low: Point, high: Point, depth: int) -> Iterator[tuple[str, Order]]:
        """Orders to start from, brought within the limit or not."""
        yield low.start, low.order
        yield high.start, high.order
        if depth >= DEEP:
            return
        for order in self.sequences.at(limit):
            yield "rockmate", order
        yield "the plain step, squeezed", self.board.plain
        for name, run in self._quick(depth):
            found = run(self.graph, self.profile, limit)
            if found.schedule is not None:
                yield name, whole.order_of(found.schedule)

    def _quick(self, depth: int) -> Iterator[tuple[str, Callable[..., Plan]]]:
        large = len(self.graph.nodes) > LARGE
        if not large or depth < 3:
            yield "chen", chen.plan
        if rockmate.is_chain(self.graph) and not self.sequences.worthwhile:
            yield "rotor", chain.plan
        for heuristic in ("local",) if large else ("dtr", "local", "msps"):
            if not large or depth < 4:
                yield f"dtr-{heuristic}", lambda g, p, b, h=heuristic: dtr.plan(g, p, b, heuristic=h)


def _middle(low: Point, high: Point) -> int | None:
    """The limit between two points; None if they are the same for all purposes."""
    if low.time_ns <= high.time_ns or high.limit_bytes <= low.limit_bytes * RESOLUTION:
        return None
    middle = math.isqrt(low.limit_bytes * high.limit_bytes)
    return middle if low.limit_bytes < middle < high.limit_bytes else None


class _Sequences:
    """Rockmate's dynamic program for all budgets at once, where its options do not cost too much."""

    def __init__(self, graph: Graph, profile: Profile) -> None:
        self.graph, self.profile = graph, profile
        self.tried: dict[int, rockmate.Candidate] = {}

    @cached_property
    def worthwhile(self) -> bool:
        """Whether the graph is a chain of few kinds of small blocks."""
        blocks = self.graph.blocks
        few = len({b.kind for b in blocks}) <= MOST_KINDS
        return few and rockmate.is_chain(self.graph) and all(b.last - b.first < MOST_IN_BLOCK for b in blocks)

    @cached_property
    def _solved(self) -> tuple[rockmate.Chain, rockmate.Table, list[int]]:
        found = rockmate.Chain(self.graph, self.profile, Grid(), None)
        plain = candidate(self.graph, self.profile, range(len(self.graph.nodes)))
        table = found.table(plain.peak_bytes, SLOTS)
        return found, table, table.distinct()

    def _candidate(self, index: int) -> rockmate.Candidate:
        chain_, table, columns = self._solved
        if index not in self.tried:
            self.tried[index] = chain_.candidate(table.operations(columns[index]))
        return self.tried[index]

    def tightest(self) -> list[Order]:
        """The sequences of the smallest memories."""
        if not self.worthwhile:
            return []
        return [whole.order_of(self._candidate(i).schedule) for i in range(min(rockmate.TIGHTEST, len(self._solved[2])))]

    def at(self, limit: int) -> Sequence[Order]:
        """The sequence of the largest memory whose schedule fits, and the next one, which may after a split or two."""
        if not self.worthwhile or not (count := len(self._solved[2])):
            return []
        low, high = -1, count
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._candidate(middle).peak_bytes <= limit else (low, middle)
        near = [i for i in (low, low + 1, low + 3) if 0 <= i < count]
        return [whole.order_of(self._candidate(i).schedule) for i in near]
