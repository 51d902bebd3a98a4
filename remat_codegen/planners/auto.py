"""The default: quick planners' plans as starts, improved by a search, and more budget never gives a slower plan.

    what one node needs ---- ... ---- low ---- middle ---- high ---- ... ---- no recomputation

A budget is looked for by bisection between what the largest node needs and the peak of the plain step. At each middle the
same is done, whatever budget was asked for: the plan of `low`, that of `high`, and what the quick planners make of it are
fitted to the middle and what room they leave is spent; the best are improved by `moves.Search`. Two rules make these *points*
monotonic: one is at most as slow as `low`, whose plan it may take, and never faster than `high`, because what would be is
turned down. So of two budgets the larger is never slower: where their ways part, at some middle, the smaller is at least as
slow as that one, and the larger at most. The answer is the plan of `low` once `low` and `high` are RESOLUTION apart, or their
overheads within ALIKE. Where nothing fits a middle, the least peak is looked for, which takes a third of the time; if that
does not fit, no plan does. (Its plan is the answer below the last middle that something fits, whatever that takes.)

Starts: Rockmate's dynamic program (its sequence as it comes, slots that are fine for tight budgets) where its blocks are of
few kinds and small, Rotor, DTR with several scores; where no sequence of the dynamic program fits, DTR for several budgets,
too, and segments (Chen et al.) in any number, squeezed; and what the linear relaxation of `bound` keeps over the loss, rounded
as in Checkmate (section 5), where memory is highest there: slower to begin with than sequences that treat equal blocks alike,
but a search leads further from it. Of budgets that are far from a middle little depends on its plan, so the first middles are
searched less, and, but for chains, the last ones, whose neighbours are as good already. Where memory is so tight that a node
runs twice within one stage, which a ledger does not hold, the moves of `improve` and the search of `hierarchy` go on instead.

Cost model: the simulator's, kept up to date by a `Ledger`. Complexity: about a dozen middles, for each the quick planners and
WORK of search; points are remembered for a graph, so that a second budget costs less. Limits count work, not seconds. Ties: the
earlier start. Oracle: `least_time` of `tests/graphs.py`, never below; never above its starts at the middles.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from remat_codegen.graph.ir import Block, Graph, Node, total_bytes
from remat_codegen.planners import dtr, none_and_all, rockmate, rotor
from remat_codegen.planners.base.bound import LONGEST_SECONDS, Relaxation
from remat_codegen.planners.base.deadline import NO_LIMIT, Effort, TimeUp, offer, stoppable
from remat_codegen.planners.base.judge import Candidate, is_chain, judge
from remat_codegen.planners.base.keeping import candidate, chosen, fastest, keeping
from remat_codegen.planners.base.result import Plan, Status, begun
from remat_codegen.planners.chain.chain import Chain, of_options
from remat_codegen.planners.chain.options import Grid
from remat_codegen.planners.chain.rk_rotor import Table
from remat_codegen.planners.search import hierarchy, merges
from remat_codegen.planners.search.improve import improved
from remat_codegen.planners.search.ledger import Ledger
from remat_codegen.planners.search.moves import Search, fit, spend
from remat_codegen.planners.search.segments import starting_orders
from remat_codegen.planners.search.splits import squeeze
from remat_codegen.profile.costs import Profile
from remat_codegen.schedule import Schedule, simulate, with_forgets
from remat_codegen.schedule.lives import Limits, Lives, Order, Problem
from remat_codegen.schedule.order import order_of

RESOLUTION = 1.001  # budgets that differ by less have the same plan
ALIKE = 0.004  # of the overhead: plans that differ by less are as good
WORK = 300_000  # of the search at each middle: some half a second
HARD_WORK = 600_000  # where there is no dynamic program to start from
WORK_PER_NODE = 600  # at most: small graphs need less
SMALL = 300  # nodes, up to which each of DTR's scores is tried, and far-off middles are searched as much
MOST_LEVELS, LEVEL_WORK = 32, 8000  # budgets that DTR is run for beforehand, and nodes of all these together
EVICT_WORK = 1_500_000  # storages that one of DTR's plans may look at, some half a second
LARGE = 2500  # nodes; beyond them DTR alone takes seconds
DEEP = 8  # bisections after which the two plans beside a middle are as good a start as any
SHALLOW = 4  # bisections up to which what costs more is tried as well, and the search does less: budgets asked for are far off
FAR_OFF = 3  # times less, there and after DEEP
SLOTS = 8000  # of the dynamic program: memory slots in the need of a step without recomputation
MOST_KINDS, MOST_IN_BLOCK = 12, 16  # of blocks, and of forward nodes in one, for which options are worth their integer programs
HARD, MOST_HARD = 300, 1500  # data times nodes of a kind of block whose programs may take half a second each; and of all such
MOST_APART = 6  # of blocks that differ in their costs, if those are more than their kinds
LOWER = (0.9, 0.97)  # of the least peak known: where a lower one is looked for
FITTED = 60  # starts are given up after so many splits for each hundred nodes
LOWEST_HEURISTICS, MOST_LOWERINGS = ("msps", "dtr"), 8  # of DTR, where the least peak is looked for
MOST_LESSENINGS = 4  # times that a budget is refused by naming one, if another byte less works, too
LONGEST = 4  # times as many runs as nodes in what the least peak is looked for from
FAR = 1.08  # times the limit: a peak from which on many things are given up at once, instead of one after the other
RELAXED = "a relaxation"  # the start's name
NEAR, THRESHOLDS = 1.2, (0.5, 0.95)  # times the limit: how far what a relaxation keeps may be above it; and how it is rounded
SQUEEZE_WORK = 200_000  # data that are visited for that, at most
MOVE_WORK = 16  # runs of an order that a move counts anew, for each unit of the search's work, where it is slower
STEP_WORK = 6000  # of the search, for which the slower one makes a step
LOWER_STARTS = 4  # of little peak, from which a lower one is looked for where the lowest does not lead on
LOWERED = 2  # orders of little peak that are brought lower
NEVER = 1 << 62  # nanoseconds
PROMISING = 3  # starts that are improved a little before one is chosen


@stoppable
def plan(
    graph: Graph,
    profile: Profile,
    budget_bytes: int,
    *,
    work_per_node: int | None = None,
    effort: Effort = NO_LIMIT,
) -> Plan:
    """The best plan found within the budget. `work_per_node` limits the search at each middle (None: WORK_PER_NODE)."""
    plain = candidate(graph, profile, range(len(graph.nodes)))
    if plain.peak_bytes <= budget_bytes:
        return chosen("auto", [plain], profile, budget_bytes, ("the step fits the budget without recomputation",))
    work = WORK_PER_NODE if work_per_node is None else work_per_node
    known = frontier(graph, profile, work, effort.per_solve)
    found = known.at(budget_bytes, effort)
    if not found.order:
        return _below(graph, profile, budget_bytes, known, effort)
    judged = candidate(graph, profile, found.order)
    return chosen("auto", [judged], profile, budget_bytes, (begun(found.start),))


@stoppable
def adapted(
    graph: Graph, profile: Profile, budget_bytes: int, *, order: Order, work_per_node: int, effort: Effort = NO_LIMIT
) -> Plan:
    """A plan for a smaller budget or for other costs brought within this budget, or what quick planners make of it if that is
    better: as at one middle, in a tenth of the time of a plan. INFEASIBLE where neither fits. Work as for `plan`."""
    found = frontier(graph, profile, work_per_node, effort.per_solve).beside(budget_bytes, order)
    orders = [candidate(graph, profile, found.order)] if found.order else []
    return chosen("auto", orders, profile, budget_bytes, (begun(found.start),))


def _below(graph: Graph, profile: Profile, budget_bytes: int, known: Frontier, effort: Effort) -> Plan:
    """A budget below the least peak known: whoever else keeps to it, or the least budget that is known to work."""
    if (plan := _evicted(graph, profile, budget_bytes)) is not None:
        return plan
    least, smallest = known.least.limit_bytes, with_forgets(graph, known.least.order)
    with contextlib.suppress(TimeUp):  # what is known by then is an answer
        for _ in range(MOST_LESSENINGS):
            found = _lessened(graph, profile, known, least - 1, effort)
            if found is None:
                break
            least, smallest = found
    if simulate(graph, profile, smallest).peak_bytes <= budget_bytes:
        return chosen("auto", [judge(graph, profile, smallest)], profile, budget_bytes)
    return Plan("auto", Status.INFEASIBLE, None, minimum_bytes=least, smallest=smallest)


def _lessened(graph: Graph, profile: Profile, known: Frontier, limit: int, effort: Effort) -> tuple[int, Schedule] | None:
    """A budget of at most so many bytes that works, with its schedule; None where none is found."""
    if (point := known.at(limit, effort)).order:
        return point.limit_bytes, with_forgets(graph, point.order)
    plan = None if len(graph.nodes) > LARGE else _evicted(graph, profile, limit, most_work=EVICT_WORK)
    if plan is None or plan.schedule is None:
        return None
    lower = _evicted(graph, profile, plan.peak_bytes, most_work=EVICT_WORK) is not None
    return (plan.peak_bytes if lower else limit), plan.schedule


def _evicted(graph: Graph, profile: Profile, budget_bytes: int, most_work: int = dtr.MOST_WORK) -> Plan | None:
    """DTR's plan within a budget, where one of its scores finds any."""
    plans = [dtr.plan(graph, profile, budget_bytes, heuristic=h, most_work=most_work) for h in LOWEST_HEURISTICS]
    fitting = [p for p in plans if p.schedule is not None]
    return replace(min(fitting, key=lambda p: (p.time_ns, p.peak_bytes)), planner="auto") if fitting else None


@dataclass(frozen=True, slots=True)
class Point:
    """The plan for a limit: its time and order, and which start it came from. Without an order there is none."""

    limit_bytes: int
    time_ns: int
    order: Order
    start: str


@lru_cache(maxsize=8)
def frontier(graph: Graph, profile: Profile, work_per_node: int, per_solve: float | None) -> Frontier:
    """What is known of a graph; a second plan of the same graph finds it here."""
    return Frontier(graph, profile, work_per_node, Grid().timed(Effort(per_solve=per_solve)))


class Frontier:
    """The points of a graph that were found so far."""

    def __init__(self, graph: Graph, profile: Profile, work_per_node: int, grid: Grid) -> None:
        self.graph, self.profile = graph, profile
        self.problem = Problem(graph, profile)
        self.ledger = Ledger(self.problem)
        self.points: dict[int, Point] = {}
        self.sequences = _Sequences(graph, profile, grid)
        self.work = min(WORK if self.sequences.worthwhile else HARD_WORK, work_per_node * len(graph.nodes))
        self.rounds = FITTED * (len(graph.nodes) // 100 + 1)
        self.plain = Point(Lives(self.problem, self.problem.plain).peak, self.problem.plain_ns, self.problem.plain, "nothing")
        self.bottom = _nothing(max(self._need(n) for n in graph.nodes) - 1)

    def _need(self, node: Node) -> int:
        """Bytes of what a node reads, writes and works with, which no schedule is below."""
        return total_bytes(self.graph, {*node.reads, *node.writes}) + self.profile.workspace_bytes[node.id]

    def at(self, budget_bytes: int, effort: Effort = NO_LIMIT) -> Point:
        """The point of the largest limit within the budget; without an order if that is below the least peak known."""
        low, high = self.bottom, self.plain
        depth, depths = 0, self._depths(low, high)
        while (middle := self._middle(low, high)) is not None:
            effort.tell("closing in on the budget", depth, depths)
            if middle not in self.points:
                self.points[middle] = self._between(middle, low, high, depth)
            point = self.points[middle]
            low, high = (point, high) if middle <= budget_bytes else (low, point)
            if not high.order:
                break
            if low.order:
                offer(self.graph, low.order, low.time_ns, low.limit_bytes)
            depth += 1
        return low if low.order or self.least.limit_bytes > budget_bytes else self.least

    def _middle(self, low: Point, high: Point) -> int | None:
        """The limit between two points; None if they are the same for all purposes."""
        overhead_ns = high.time_ns - self.plain.time_ns
        if low.time_ns <= high.time_ns + ALIKE * overhead_ns or high.limit_bytes <= low.limit_bytes * RESOLUTION:
            return None
        middle = max(math.isqrt(low.limit_bytes * high.limit_bytes), low.limit_bytes + 1)
        return middle if middle < high.limit_bytes else None

    @staticmethod
    def _depths(low: Point, high: Point) -> int:
        ratio = math.log(max(high.limit_bytes, 1) / max(low.limit_bytes, 1)) / math.log(RESOLUTION)
        return max(1, math.ceil(math.log2(max(ratio, 1))))

    @cached_property
    def _segments(self) -> list[tuple[str, Order]]:
        """The plain step, and segments of the forward pass in growing numbers, those of Chen's among them."""
        return [("nothing" if order == self.problem.plain else "segments", order) for order in starting_orders(self.problem)]

    @cached_property
    def _evictions(self) -> list[Candidate]:
        """DTR's plans for some budgets: with more of it, its plan may be slower, and then that for less is taken."""
        count = len(self.graph.nodes)
        levels = min(MOST_LEVELS, LEVEL_WORK // count)
        heuristics = dtr.HEURISTICS if count <= SMALL else ("dtr",)
        limits = [self.plain.limit_bytes * level // (levels + 1) for level in range(1, levels + 1)]
        limits = [limit for limit in limits if limit > self.bottom.limit_bytes]
        plans = [self._evicting(limit, h) for limit in limits for h in heuristics]
        return [Candidate(p.schedule, p.time_ns, p.peak_bytes) for p in plans if p.schedule is not None]

    def _evicting(self, limit: int, heuristic: str) -> Plan:
        """DTR's plan, unless it thrashes: then it would be slow, and no better start than others."""
        return dtr.plan(self.graph, self.profile, limit, heuristic=heuristic, most_work=EVICT_WORK)

    @cached_property
    def least(self) -> Point:
        """The plan of the least peak that was found, whatever the budget."""
        orders = [("everything rebuilt", order) for order in none_and_all.least_orders(self.graph)]
        orders += self._segments
        orders += [("rockmate", order) for order in self.sequences.tightest()]
        orders = [(start, order) for start, order in orders if len(order) <= LONGEST * len(self.graph.nodes)]
        lowest = self._lowered(orders)
        orders = [lowest, *(("dtr", order) for order in self._least_evictions(Lives(self.problem, lowest[1]).peak))]
        ranked = sorted((Lives(self.problem, order).peak, i) for i, (_, order) in enumerate(orders))
        found = [self._lowest(*orders[i]) for _, i in ranked[:LOWERED]]
        return min(found, key=lambda point: (point.limit_bytes, point.time_ns))

    def _lowered(self, orders: list[tuple[str, Order]]) -> tuple[str, Order]:
        """The order of least peak that splits lead to, from whichever start goes on the furthest."""
        peaks = [Lives(self.problem, order).peak for _, order in orders]
        starts = [orders[i] for _, i in sorted(zip(peaks, range(len(orders)), strict=True))[:LOWER_STARTS]]
        best, peak = starts[0], min(peaks)
        for part in LOWER:
            while (found := self._squeezed([best, *starts], int(peak * part))) is not None:
                best, peak = found, Lives(self.problem, found[1]).peak
        return best

    def _squeezed(self, orders: list[tuple[str, Order]], limit: int) -> tuple[str, Order] | None:
        """The first of the orders that splits bring within a limit."""
        for start, order in orders:
            if (found := squeeze(self.problem, order, Limits(limit), None, work=SQUEEZE_WORK)) is not None:
                return start, found
        return None

    def _least_evictions(self, peak: int) -> Iterator[Order]:
        """DTR's plans for less and less: it finds some where other orders find none, with gaps between."""
        if len(self.graph.nodes) > LARGE:
            return
        for heuristic in LOWEST_HEURISTICS if len(self.graph.nodes) <= SMALL else LOWEST_HEURISTICS[:1]:
            limit = peak - 1
            for _ in range(MOST_LOWERINGS):
                found = self._evicting(limit, heuristic)
                limit = int(limit * LOWER[-1])
                if found.schedule is not None:
                    yield order_of(found.schedule)
                    limit = min(found.peak_bytes - 1, limit)

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
        point = Point(peak, ledger.time, ledger.order(), start)
        own = Lives(self.problem, order).peak
        if own >= peak:
            return point
        spent = merges.spend(self.problem, order, Limits(own))  # a ledger does not hold what is that low
        return Point(own, self.problem.time_of(spent), spent, start)

    def _between(self, limit: int, low: Point, high: Point, depth: int) -> Point:
        """The point of a middle: at most as slow as the one below, at least as slow as the one above."""
        tried = self._tried(limit, low, high, depth)
        if not low.order and not tried:
            low = self.least
            if low.limit_bytes > limit or low.time_ns < high.time_ns:
                return _nothing(limit)
        return self._best(limit, tried, low, high, depth)

    def beside(self, limit: int, order: Order) -> Point:
        """What an order of any peak and the quick planners lead to at a limit: not kept, as it depends on that order."""
        low, high = _nothing(limit), Point(limit, 0, order, "the plan")
        tried = self._tried(limit, low, high, DEEP - 1)
        return self._best(limit, tried, low, high, DEEP - 1) if tried else low

    def _tried(self, limit: int, low: Point, high: Point, depth: int) -> list[Point]:
        """The starts that can be brought within a limit, the fastest first."""
        tried: list[Point] = []
        for start, order in self._starts(limit, low, high, depth):
            found = self._begun(order, limit)
            tried += [] if found is None else [Point(limit, self.problem.time_of(found), found, start)]
        return [p for p in sorted(tried, key=lambda p: p.time_ns) if p.time_ns >= high.time_ns]

    def _best(self, limit: int, tried: list[Point], low: Point, high: Point, depth: int) -> Point:
        """The starts improved, the slower and slower of them less and less, and the best of them once more."""
        best = low
        promising = list({p.time_ns: p for p in reversed(tried)}.values())[::-1][:PROMISING] or [low]
        work = self.work if self._decides(depth) else self.work // FAR_OFF
        part = work // (2 * len(promising))
        improved = [self._improved(p, limit, high.time_ns, part, seed) for seed, p in enumerate(promising)]
        slower = [p for p in tried if p.start == RELAXED and p not in promising]  # they are where a search leads further
        improved += [self._improved(p, limit, high.time_ns, work // 2, seed) for seed, p in enumerate(slower)]
        best = min([*improved, best], key=lambda p: p.time_ns)
        best = self._improved(best, limit, high.time_ns, work - part * len(promising), len(promising))
        return replace(best, limit_bytes=limit)

    def _decides(self, depth: int) -> bool:
        """Whether much depends on a middle: the budget asked for is near, and neither plan beside it is as good already."""
        if depth < SHALLOW:
            return len(self.graph.nodes) <= SMALL
        return depth < DEEP or self.sequences.worthwhile

    def _begun(self, order: Order, limit: int) -> Order | None:
        """An order brought within a limit, the room that is left spent; None if that does not work out.

        From far above, many things are given up at once. That may run a node twice in one stage, which a ledger does not hold:
        such an order is spent as it is, and taken where the ledger's is slower.
        """
        ledger, limits, within = self.ledger, Limits(limit), order
        ledger.reset(ledger.keys_of(order))
        if ledger.peak > FAR * limit:
            found = squeeze(self.problem, order, limits, None, work=SQUEEZE_WORK)
            if found is None:
                return None
            within = found
            ledger.reset(ledger.keys_of(found))
        coarse = ledger.peak > limit >= Lives(self.problem, within).peak
        begun = [merges.spend(self.problem, within, limits)] if coarse else []
        if len(ledger.keys) <= LONGEST * len(self.graph.nodes) and fit(ledger, limit, self.rounds):
            spend(ledger, limit)
            begun.append(ledger.order())
        return min(begun, key=self.problem.time_of, default=None)

    def _improved(self, point: Point, limit: int, fastest_ns: int, work: int, seed: int) -> Point:
        ledger = self.ledger
        ledger.reset(ledger.keys_of(point.order))
        if ledger.peak > limit:
            return self._searched(point, limit, fastest_ns, work, seed)
        Search(ledger, seed).run(limit, work, fastest_ns)
        return replace(point, time_ns=ledger.time, order=ledger.order()) if ledger.time < point.time_ns else point

    def _searched(self, point: Point, limit: int, fastest_ns: int, work: int, seed: int) -> Point:
        """An order that a ledger does not hold, improved by moves on the order, and by the slower search of `hierarchy`."""
        order = improved(self.problem, point.order, limit, MOVE_WORK * work // len(point.order), fastest_ns)
        orders = [hierarchy.improve(self.problem, order, Limits(limit), work // STEP_WORK, seed), order]
        points = [replace(point, time_ns=self.problem.time_of(order), order=order) for order in orders]
        return min([point, *(p for p in points if p.time_ns >= fastest_ns)], key=lambda p: p.time_ns)

    def _starts(self, limit: int, low: Point, high: Point, depth: int) -> Iterator[tuple[str, Order]]:
        """Orders to start from, brought within the limit or not."""
        if low.order:
            yield low.start, low.order
        solved = self.sequences.fit(limit)  # then they lead further than the plain step, and than segments of it
        if not solved or high is not self.plain:
            yield high.start, high.order
        if depth >= DEEP:
            return
        for order in self.sequences.at(limit):
            yield "rockmate", order
        if depth < SHALLOW and not solved:
            yield from self._segments
        if not solved and (evicting := fastest(self._evictions, limit)) is not None:
            yield "dtr", order_of(evicting.schedule)
        if len(self.graph.nodes) <= LARGE and not (depth > SHALLOW and low.start == high.start == RELAXED):
            for order in self._rounded(limit):
                yield RELAXED, order
        for name, run in self._quick(depth):
            found = run(self.graph, self.profile, limit)
            if found.schedule is not None:
                yield name, order_of(found.schedule)

    def _rounded(self, limit: int) -> Iterator[Order]:
        """What the linear relaxation of `bound` keeps over the loss, rounded by several thresholds, and nothing else: near the
        limit where memory is highest at the loss."""
        graph = self.graph
        solved = Relaxation(graph, self.profile, limit).solve((graph.loss,), LONGEST_SECONDS)
        alive = solved.alive[0] if solved is not None and solved.alive else {}
        kept = dict.fromkeys(frozenset(d for d, part in alive.items() if part > threshold) for threshold in THRESHOLDS)
        orders = (keeping(graph, some) for some in kept if alive)
        yield from (order for order in orders if Lives(self.problem, order).peak <= NEAR * limit)

    def _quick(self, depth: int) -> Iterator[tuple[str, Callable[..., Plan]]]:
        if depth >= SHALLOW and self.sequences.worthwhile:
            return  # near the budget, what the dynamic program and the plans beside a middle lead to is better
        large = len(self.graph.nodes) > LARGE
        if is_chain(self.graph) and not self.sequences.worthwhile:
            yield "rotor", rotor.plan
        for heuristic in ("local",) if large else ("dtr", "msps") if depth < SHALLOW else ("msps",):
            if not large or depth < SHALLOW:
                yield f"dtr-{heuristic}", lambda g, p, b, h=heuristic: self._evicting(b, h)


def _nothing(limit: int) -> Point:
    """The point of a limit that no plan keeps to."""
    return Point(limit, NEVER, (), "")


class _Sequences:
    """Rockmate's dynamic program for all budgets at once, where its options do not cost too much."""

    def __init__(self, graph: Graph, profile: Profile, grid: Grid) -> None:
        self.graph, self.profile, self.grid = graph, profile, grid
        self.tried: dict[int, Candidate] = {}

    @cached_property
    def worthwhile(self) -> bool:
        """Whether the graph is a chain of few kinds of small blocks, which costs hardly tell apart: options are solved for each
        block that needs other memory."""
        blocks, room = self.graph.blocks, self.profile.workspace_bytes
        kinds = {b.kind for b in blocks}
        apart = {(b.kind, room[b.first : b.last + 1]): b for b in blocks}
        few = len(kinds) <= MOST_KINDS and len(apart) <= max(len(kinds), MOST_APART)
        if not (few and is_chain(self.graph) and all(b.last - b.first < MOST_IN_BLOCK for b in blocks)):
            return False
        sizes = map(self._size, apart.values())
        return sum(size for size in sizes if size > HARD) <= MOST_HARD

    def _size(self, block: Block) -> int:
        """The data that a block makes on both ways, times the nodes that do: a program has some such many variables."""
        inside = range(block.first, block.last + 1)
        nodes = [n for n in self.graph.nodes if n.id in inside or n.forward in inside]
        return len({d for n in nodes for d in n.writes}) * len(nodes)

    @cached_property
    def _solved(self) -> tuple[Chain, Table, list[int]]:
        found = of_options(self.graph, self.profile, self.grid)
        plain = candidate(self.graph, self.profile, range(len(self.graph.nodes)))
        table = found.table(plain.peak_bytes, SLOTS)
        return found, table, table.distinct()

    def _candidate(self, index: int) -> Candidate:
        chain_, table, columns = self._solved
        if index not in self.tried:
            self.tried[index] = chain_.candidate(table.operations(columns[index]))
        return self.tried[index]

    def tightest(self) -> list[Order]:
        """The sequences of the smallest memories."""
        if not self.worthwhile:
            return []
        return [order_of(self._candidate(i).schedule) for i in range(min(rockmate.TIGHTEST, len(self._solved[2])))]

    def fit(self, limit: int) -> bool:
        """Whether any sequence's schedule fits."""
        return self.worthwhile and bool(self._solved[2]) and self._candidate(0).peak_bytes <= limit

    def at(self, limit: int) -> Sequence[Order]:
        """The sequence of the largest memory whose schedule fits, and the next one, which may after a split or two."""
        if not self.worthwhile or not (count := len(self._solved[2])):
            return []
        low, high = -1, count
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._candidate(middle).peak_bytes <= limit else (low, middle)
        near = [i for i in (low, low + 1, low + 3) if 0 <= i < count]
        return [order_of(self._candidate(i).schedule) for i in near]
