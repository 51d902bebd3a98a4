"""Which calls and expressions become parts: a planner's schedule brought to them, and improved as they are priced.

The schedule says which nodes run again and what is forgotten. Each such node becomes a part, the smallest there is for it. Then
parts are made larger where that costs nothing (one row for a block instead of ten), and what the rule of demand.py makes of
them is improved by small changes: of all equal layers at once, which soon shows what pays, and then of single ones. The one
simulator judges each: first what is above the limit, then the time, with a little for each row and mark that a reader has to
look at. In the end, rows go that hardly pay. What ends the search is a number of tables, so that it finds the same anywhere.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import takewhile
from typing import Generic

from remat_codegen.graph.ir import Graph, Node, total_bytes
from remat_codegen.marked.candidates import Candidate, Candidates, Mark, Row, Rows, V, go_together, nested
from remat_codegen.marked.demand import Again, Held, Keeps, Part, Rule, ready_to_run
from remat_codegen.marked.layers import Layers
from remat_codegen.marked.moves import OFFERED, OPTIONS, Move, dropping, held, joining, merging, setting, splitting
from remat_codegen.profile.costs import Profile
from remat_codegen.schedule import Compute, Pricing, Schedule, alive_before

A_KEY = 2e-4  # of the step's time: what one more kind of row has to save
A_MARK = 2e-4  # the same for one more marked expression
A_COPY = 1e-3  # the same for one more call of a function of which the file has to have a copy
A_PERCENT = 0.03  # of the step's time: what it may cost to come one per cent of the limit closer to it
A_LITTLE = 1e-3  # the same: what fewer rows may cost in the end; or of the time for recomputation, if that is more
A_LITTLE_MORE = 0.02
LITTLE_GAP = 5e-3  # of the step's time: what is above a lower bound by no more is as good as found
MOST_TABLES = 1500  # that are priced from one start
MOST_NODES = 250_000  # in the tables that are priced from one start
OFTEN = 50  # tables after which the search tells how far it has come
ROUNDS = 3
ENOUGH_FIT = 2  # schedules for ever less whose rows keep to the limit: the second one's are the faster ones at times
MISSES = 3  # of equal layers in a row that a change did not help, after which it is not tried on the others
FEW = 10  # sorts of layers that each may become each other one
DIVIDED = 4  # sorts of layers at most that are looked at two by two, or one of which is divided among two others
LATE = {Again.SHARED: Again.TWICE, Again.FOURFOLD: Again.THRICE}  # what a part that is late has in their place


Moves = Iterable[Iterable[Move[V]]]  # each the same change, of equal layers one after the other


@dataclass(frozen=True, slots=True)
class Priced(Generic[V]):
    """Rows, and what the simulator says of them."""

    rows: Rows[V]
    over_bytes: int
    cost_ns: float
    time_ns: int
    peak_bytes: int

    def rank(self, price: float) -> tuple[float, ...]:
        """The less the better. `price` is the time that a byte above the limit is worth; infinite: whatever it takes."""
        over = (self.over_bytes, self.cost_ns) if price == math.inf else (0, self.cost_ns + price * self.over_bytes)
        return *over, self.peak_bytes


def parts_of(rows: Iterable[Row[V]]) -> list[tuple[Row[V], Part]]:
    """Rows in the order of their parts, each with its part. Raises ValueError where two overlap, or where they want the same
    text to be marked in different ways."""
    by_candidate = {r.candidate: r for r in rows}
    if not go_together(frozenset(mark for candidate in by_candidate for mark in candidate.marks)):
        raise ValueError("one expression is marked in two ways, or hands in what a mark within it is to hold")
    found: list[tuple[Row[V], Part]] = []
    for candidate, outer in nested(list(by_candidate)):
        row = by_candidate[candidate]
        if outer is not None and any(r.late or r.keeps is Keeps.SAVED for r in (row, found[outer][0])):
            raise ValueError("a part with /late or /result stands in another one, or around one")
        if row.late and len(candidate.vertices) > 1:  # the first of them is forgotten at once, for the next
            raise ValueError("parts that make one value together are /late")
        if row.again is not Again.ONCE and candidate.forks:  # what is given is there from the first run to the last, then
            raise ValueError("parts that make one value together, of which one gives to several, run again more than once")
        if row.keeps is Keeps.RESULT and candidate.unkept:
            raise ValueError("what a part keeps is another value by then, or more than others need")
        handed = candidate.handed_bytes, candidate.begin, candidate.often, candidate.unread
        part = Part(candidate.first, candidate.last, row.keeps, row.again, outer, row.late, candidate.given, *handed)
        found.append((row, part))
    return found


class Chooser(Generic[V]):
    """The search for one graph and limit."""

    def __init__(
        self,
        graph: Graph,
        profile: Profile,
        candidates: Candidates[V],
        limit: Callable[[Sequence[int]], int],
        held: Held | None = None,
        told: Callable[[int, int], object] = lambda tried, most: None,
    ) -> None:
        """`limit` gives the bytes that an order of nodes may take, `held` is as in `demand.schedule_of`. `told`
        is called now and then with how many tables were priced, and the most that will be."""
        self.graph, self.profile, self.candidates, self.limit = graph, profile, candidates, limit
        self.step_ns, self.pricing, self.rule = sum(profile.time_ns), Pricing(graph, profile), Rule(graph, held)
        self.tried, self.until, self.told = 0, math.inf, told
        self.layers = Layers(candidates)
        self.most = self.tables = min(MOST_TABLES, MOST_NODES // len(graph.nodes))
        self.costs: dict[tuple[Part, ...], float] = {}
        self.times_ns: dict[tuple[Part, ...], int] = {}
        self.known: dict[tuple[Part, ...], Priced[V]] = {}
        self.begun: list[Priced[V]] = []  # what each search began with

    # ------------------------------------------------------------------ what a table takes

    def price(
        self, rows: Rows[V], best: Priced[V] | None = None, price: float = math.inf, slowest_ns: float = math.inf
    ) -> Priced[V] | None:
        """What rows take; None where there are no such parts, or if it shows early that they are no better than the best, or
        slower than allowed."""
        try:
            parts = tuple(part for _, part in parts_of(rows))
        except ValueError:
            return None
        if parts not in self.known:
            if best is not None and self._is_worse(self.costs.get(parts, 0.0), best, price):
                return None
            if self.times_ns.get(parts, 0) > slowest_ns:
                return None
            self._count()
            ran = self.rule.run_of(parts)
            time_ns = self.times_ns[parts] = self.pricing.time_ns(ran.order)
            self.costs[parts] = self._cost_ns(time_ns, rows)
            if time_ns > slowest_ns or (best is not None and self._is_worse(self.costs[parts], best, price)):
                return None  # whatever its peak is
            peak_bytes = self.pricing.peak_bytes(ran.order, ran.held_at, ran.beside_bytes)
            over_bytes = max(0, peak_bytes - self.limit((*ran.order, *ready_to_run(parts))))
            self.known[parts] = Priced(rows, over_bytes, self.costs[parts], time_ns, peak_bytes)
        known = self.known[parts]
        if {r.candidate for r in known.rows} == {r.candidate for r in rows}:
            return known
        return replace(known, rows=rows, cost_ns=self._cost_ns(known.time_ns, rows))  # the same nodes, marked otherwise

    def _cost_ns(self, time_ns: int, rows: Rows[V]) -> float:
        return time_ns + self.step_ns * (A_KEY * kinds(rows) + A_MARK * _marks(rows) + A_COPY * _copies(rows))

    @staticmethod
    def _is_worse(cost_ns: float, best: Priced[V], price: float) -> bool:
        """Whether rows of that cost are worse than the best, even if they keep to the limit."""
        return cost_ns > best.rank(price)[1] and not (price == math.inf and best.over_bytes)

    def _count(self) -> None:
        self.tried += 1
        if self.tried % OFTEN == 0:
            self.told(self.tried, max(self.tried, self.most))  # no more than about so many

    # ------------------------------------------------------------------ the search

    def search(
        self, schedules: Iterable[Schedule], until: float = math.inf, before: Rows[V] = (), bound_ns: float = 0.0
    ) -> Priced[V]:
        """The best rows found, from what schedules lead to, and from those `before`. They may be over the limit. `until` is a
        moment of time.monotonic(); without one, no clock is looked at. Where equal layers in two patterns come close to the
        `bound_ns` that no schedule is below, no more is looked for."""
        self.until = until
        starts = self.starts(schedules, before)
        self.begun.append(starts[0])
        self.most = self.tried + self.tables // 4 + len(starts) * self.tables
        quick = self.in_two(self.least(starts), self.tried + self.tables // 4)
        is_enough = not quick.over_bytes and self._slowest_ns(quick) <= bound_ns + LITTLE_GAP * self.step_ns
        return self.simpler(quick if is_enough else self.least([quick, *map(self.searched, starts)]))

    def least(self, found: Iterable[Priced[V]]) -> Priced[V]:
        """The best, whatever it takes to keep to the limit; the first of equal ones."""
        return min(found, key=lambda p: p.rank(math.inf))

    def searched(self, start: Priced[V]) -> Priced[V]:
        """The best rows found from these: by moves that keep to the limit if these do, or come closer to it; and by moves that
        may leave it for a while."""
        within = self.within(start, self.tried + self.tables // 2)
        return self.least([within, self.freely(start, self.tried + self.tables // 2)])

    def freely(self, best: Priced[V], most: int) -> Priced[V]:
        """The best rows found where a byte above the limit has its price."""
        for alone in (False, True):
            for _ in range(ROUNDS):
                before = best
                for moves in (self.other_options, self.larger, self.smaller, self.without, self.further):
                    best = self.improved(best, moves(best, alone), self.a_byte, most)
                if best is before or self.enough(most):
                    break
        return self.within(best, most + self.tables // 4)

    @property
    def a_byte(self) -> float:
        """The time that a byte above the limit is worth, where moves may leave that."""
        return 100 * A_PERCENT * self.step_ns / max(1, self.limit(()))

    def within(self, best: Priced[V], most: int) -> Priced[V]:
        """Rows within the limit, whatever it takes; then with less of that. All equal layers at once, then each."""
        for alone in (False, True):
            for _ in range(ROUNDS):
                before = best
                moves = (self.other_options, self.further, self.larger) if best.over_bytes else (self.without, self.smaller)
                for kind in (*moves, self.other_options):
                    best = self.improved(best, kind(best, alone), math.inf, most)
                if best is before or self.enough(most):
                    break
        return best

    def improved(self, best: Priced[V], moves: Moves[V], price: float, most: int) -> Priced[V]:
        """What is left once every move was tried that makes rows better."""

        def better(rows: Rows[V], best: Priced[V]) -> Priced[V] | None:
            if rows == best.rows:
                return best
            found = self.price(rows, best, price)
            return found if found is not None and found.rank(price) < best.rank(price) else None

        return self._moved(best, moves, better, most)

    def _moved(
        self, best: Priced[V], moves: Moves[V], better: Callable[[Rows[V], Priced[V]], Priced[V] | None], most: int
    ) -> Priced[V]:
        """What is left once moves were tried: each on equal layers until it did not help several of them in a row. `better`
        gives rows priced where they are no worse than the best, which it gives for rows that it has nothing to say of."""
        for same in moves:
            misses = 0
            for move in same:
                if self.enough(most):
                    return best
                found = better(move(best.rows), best)
                misses = misses + 1 if found is None else 0 if found is not best else misses
                best = best if found is None else found
                if misses == MISSES:
                    break
        return best

    def simpler(self, best: Priced[V]) -> Priced[V]:
        """As good as the best but for a little, within the limit if that is, with fewer kinds of rows and marks, or rows."""
        best = self.in_two(best, self.tried + self.tables // 4)
        slowest_ns = self._slowest_ns(best)
        most = self.tried + self.tables // 2

        def good(rows: Rows[V], best: Priced[V]) -> Priced[V] | None:
            if _size(rows) >= _size(best.rows):
                return best
            found = self.price(rows, slowest_ns=slowest_ns)
            if found is None or found.over_bytes > best.over_bytes or found.time_ns > slowest_ns:
                return None
            return found

        for moves, alone in ((self.without, False), (self.joined, False), (self.alike, False), (self.without, True)):
            best = self._moved(best, moves(best, alone), good, most)
        return self.with_layers_alike(best, slowest_ns, self.tried + self.tables // 2)

    def _slowest_ns(self, best: Priced[V]) -> float:
        """The time that fewer rows may take in its place."""
        return best.time_ns + max(A_LITTLE * self.step_ns, A_LITTLE_MORE * (best.time_ns - self.step_ns))

    def in_two(self, best: Priced[V], most: int) -> Priced[V]:
        """The best, or the quickest table within the limit by which all equal layers have one of two patterns, as many of them
        the one that frees more as the limit asks for: where the search ends is not where it could have gone on alone."""
        for layers, table in self.layers.in_two(best.rows, DIVIDED) if not best.over_bytes else ():
            low, high = 0, layers
            while low < high and not self.enough(most):
                middle = (low + high) // 2
                found = self.price(table(middle), slowest_ns=best.time_ns)
                low, high = (middle + 1, high) if found is not None and found.over_bytes else (low, middle)
            found = self.price(table(low), slowest_ns=best.time_ns)
            best = found if found is not None and not found.over_bytes and found.time_ns < best.time_ns else best
        return best

    def with_layers_alike(self, best: Priced[V], slowest_ns: float, most: int) -> Priced[V]:
        """The same with fewer different layers, or rows, as long as it takes no longer than allowed: two sorts of layers become
        one, or a step of stairs goes. Where layers are of many sorts, that looks at too many pairs, and stairs come first."""

        def good(tables: Iterable[Rows[V]], best: Priced[V]) -> Iterator[Priced[V]]:
            tried = takewhile(lambda _: not self.enough(most), tables)
            priced = (self.price(rows, slowest_ns=slowest_ns) for rows in tried)
            return (p for p in priced if p is not None and p.over_bytes <= best.over_bytes and p.time_ns <= slowest_ns)

        def fewest(best: Priced[V], tables_of: Callable[[Rows[V]], Iterable[Rows[V]]]) -> Priced[V]:
            """What is left once the quickest of these tables was taken that say less, as long as there are any."""
            fewer = (rows for rows in tables_of(best.rows) if self._differences(rows) < self._differences(best.rows))
            found = min(good(fewer, best), key=lambda p: p.time_ns, default=None)
            return best if found is None else fewest(found, tables_of)

        def as_stairs(best: Priced[V]) -> Priced[V]:
            for last in (False, True):
                stairs = self.layers.stairs(best.rows, last)
                if self._differences(stairs) <= self._differences(best.rows) and (found := [*good([stairs], best)]):
                    return fewest(found[0], partial(self.layers.lower_stairs, last=last))
            return best

        if self.layers.different(best.rows) > FEW:
            best = as_stairs(best)
        best = fewest(best, self.layers.united)
        if self.layers.different(best.rows) <= DIVIDED:
            best = fewest(best, self.layers.divided)
        best = as_stairs(best)
        while (found := next(good(self.layers.sorted(best.rows), best), None)) is not None:
            best = found
        return best

    def _differences(self, rows: Rows[V]) -> tuple[int, int]:
        return self.layers.different(rows), kinds(rows)

    def enough(self, most: int) -> bool:
        """Whether more tables than `most` were priced, or the time is over."""
        return self.tried > most or (self.until < math.inf and time.monotonic() > self.until)

    # ------------------------------------------------------------------ where it starts

    def starts(self, schedules: Iterable[Schedule], before: Rows[V] = ()) -> list[Priced[V]]:
        """Where the search begins: the best of all that schedules lead to, or of rows `before`, and what the first schedule
        leads to as it is. Schedules for ever less are taken up to the second one whose rows keep to the limit: those after it
        only take longer."""
        found: list[Priced[V]] = []
        fitting = 0
        for schedule in schedules:
            priced = [p for p in map(self.price, self.tables_of(schedule)) if p is not None]
            found += priced
            fitting += any(not p.over_bytes for p in priced)
            if fitting == ENOUGH_FIT:
                break
        found += [p for p in map(self.price, ((), self.free, *([before] if before else ()))) if p is not None]
        own = [min(found, key=lambda p: p.rank(self.a_byte)), found[0]]
        return list({p.rows: p for p in own}.values())

    def tables_of(self, schedule: Schedule) -> list[Rows[V]]:
        """What a schedule runs again, as parts beside each other and within each other, and as parts of one expression or call
        each; and each of them with what costs nothing."""
        own = [self.first(schedule), self.first(schedule, nesting=True), self.first(schedule, vertices=1)]
        free = {row.candidate for row in self.free}
        return [*own, *((*(r for r in rows if r.candidate not in free), *self.free) for rows in own)] if free else own

    @cached_property
    def free(self) -> Rows[V]:
        """The largest parts that nothing is missed of, where autograd saves for gradients that nobody asks for."""
        read = {node.forward for node in self.graph.backward_nodes}
        lost = {unread.node for unread in self.rule.held.unread} - read
        ways = [c for c in self.candidates.all if read.isdisjoint(range(c.first, c.last + 1))]
        ways = [c for c in ways if not lost.isdisjoint(range(c.first, c.last + 1))]
        return tuple(Row(c) for c in ways if not any(o.holds(c) for o in ways))

    def first(self, schedule: Schedule, nesting: bool = False, vertices: float = math.inf) -> Rows[V]:
        """For each node that a schedule runs again, the smallest part there is for it, of so many vertices at most."""
        runs = Counter(s.node for s in schedule.steps if isinstance(s, Compute))
        kept = alive_before(self.graph, schedule, schedule.steps.index(Compute(self.graph.loss)) + 1)
        chosen: dict[Candidate[V], None] = {}
        marked: frozenset[Mark] = frozenset()

        def fits(c: Candidate[V]) -> bool:
            nests = all(c.nests_with(o) for o in chosen if o.last >= c.first and o.first <= c.last)
            return nests and (marked.issuperset(c.marks) or go_together(marked.union(c.marks)))

        for node in self.graph.forward_nodes:
            ways = self.candidates.around(node.id, vertices) if runs[node.id] > 1 else []
            if (way := next(filter(fits, ways), None)) is not None:
                chosen[way] = None
                marked = marked.union(way.marks)
        outermost = [c for c in chosen if nesting or not any(o.holds(c) for o in chosen)]
        return tuple(self._row(c, kept, runs, schedule) for c in outermost)

    def _row(self, candidate: Candidate[V], kept: set[int], runs: Counter[int], schedule: Schedule) -> Row[V]:
        nodes = self.graph.nodes[candidate.first : candidate.last + 1]
        again = Again.ONCE if candidate.forks else self._again_as(schedule, nodes, max(runs[n.id] for n in nodes))
        made = {d for n in nodes for d in n.writes}
        results = {d for d in made if self._leaves(d, candidate)}
        if made <= kept and len(candidate.vertices) == 1:
            return Row(candidate, again=LATE.get(again, again), late=True)
        if results & kept and not candidate.unkept:  # which nobody asks for more than once, then
            return Row(candidate, Keeps.RESULT, again if again is Again.ONCE else Again.TWICE)
        return Row(candidate, Keeps.NOTHING, again)

    def _again_as(self, schedule: Schedule, nodes: Sequence[Node], runs: int) -> Again:
        """How often a schedule has nodes run again, and whether it first does so for several others."""
        if runs <= 2:
            return Again.ONCE
        several = any(len(_first_readers(self.graph, schedule, n.id)) > 1 for n in nodes)
        return Again.SHARED if several else {3: Again.TWICE, 4: Again.THRICE}.get(runs, Again.FOURFOLD)

    def _leaves(self, data: int, candidate: Candidate[V]) -> bool:
        readers = ((r if r <= self.graph.loss else self.graph.nodes[r].forward) for r in self.graph.readers[data])
        return any(r is not None and not candidate.first <= r <= candidate.last for r in readers)

    # ------------------------------------------------------------------ what is tried
    # Each gives changes of all rows, or candidates, of the same code; or, `alone`, of single ones.

    def larger(self, best: Priced[V], alone: bool) -> Moves[V]:
        """One part for many."""
        for some in self._some(self.candidates.groups(least=2), alone):
            for keeps in OFFERED:
                for inner in (True,) if alone else (True, False):
                    yield [merging(group, keeps, inner) for group in some]

    def other_options(self, best: Priced[V], alone: bool) -> Moves[V]:
        """Other options."""
        for some in self._some(_by_key(best.rows), alone):
            for options in OPTIONS:
                yield [setting(set(group), *options) for group in some]

    def smaller(self, best: Priced[V], alone: bool) -> Moves[V]:
        """The largest parts within one for it, or within it."""
        for some in self._some(_by_key(best.rows), alone):
            within = [[c for outer in group for c in self.candidates.largest_within(outer)] for group in some]
            for keeps in OFFERED:
                for nesting in (False, True):
                    yield [splitting(group, own, keeps, nesting) for group, own in zip(some, within, strict=True) if own]

    def without(self, best: Priced[V], alone: bool) -> Moves[V]:
        """Fewer parts."""
        for some in self._some(_by_key(best.rows), alone):
            yield [dropping(set(group)) for group in some]

    def further(self, best: Priced[V], alone: bool) -> Moves[V]:
        """More parts, while the rows are above the limit."""
        for some in self._some(self.candidates.groups(), alone) if best.over_bytes else ():
            for keeps in reversed(OFFERED):
                yield [merging(group, keeps, True) for group in some]

    def joined(self, best: Priced[V], alone: bool) -> Moves[V]:
        """One part for several with the same options: of two ways to say the same, the one with fewer words."""
        for group in self.candidates.groups(least=2):
            if any(len(within) > 1 for _, within in held(group, best.rows)):
                yield [joining(group)]

    def alike(self, best: Priced[V], alone: bool) -> Moves[V]:
        """The options that some rows have for all of the same code."""
        for rows in _rows_by_key(best.rows):
            for options in dict.fromkeys((r.keeps, r.again, r.late) for r in rows):
                yield [setting({r.candidate for r in rows}, *options)]

    def _some(self, groups: Iterable[Sequence[Candidate[V]]], alone: bool) -> Iterator[list[Sequence[Candidate[V]]]]:
        """Groups; or what is in those of several, one by one, those of the same size after each other: the last, the first and
        the one in the middle before the others, as a change that helps none of these will hardly help any."""
        for group in groups:
            if not alone:
                yield [group]
            elif len(group) > 1:
                sizes: dict[int, list[Candidate[V]]] = {}
                for candidate in group:
                    sizes.setdefault(self._made_bytes(candidate), []).append(candidate)
                for same in sizes.values():
                    ends = dict.fromkeys((same[-1], same[0], same[len(same) // 2]))
                    yield [[one] for one in (ends | dict.fromkeys(same))]

    def _made_bytes(self, candidate: Candidate[V]) -> int:
        nodes = self.graph.nodes[candidate.first : candidate.last + 1]
        return sum(total_bytes(self.graph, node.writes) for node in nodes)


def kinds(rows: Iterable[Row[V]]) -> int:
    """How many different rows there are: those of the same code, and with the same options, are equal."""
    return len({(r.candidate.key, r.keeps, r.again, r.late) for r in rows})


def _marks(rows: Iterable[Row[V]]) -> int:
    return len({mark for r in rows for mark in r.candidate.marks})


def _copies(rows: Iterable[Row[V]]) -> int:
    return len({copy for r in rows for copy in r.candidate.copies})


def _size(rows: Rows[V]) -> tuple[int, int]:
    """What a reader has to look at, and what else there is."""
    return kinds(rows) + _marks(rows) + _copies(rows), len(rows)


def _first_readers(graph: Graph, schedule: Schedule, node: int) -> set[int]:
    """The forward nodes that read what a node gives between the first time that it runs again and the next."""
    runs, readers = 0, set[int]()
    for step in schedule.steps:
        if isinstance(step, Compute):
            runs += step.node == node
            reads = runs == 2 and step.node < graph.loss and set(graph.nodes[node].writes) & set(graph.nodes[step.node].reads)
            if reads:
                readers.add(step.node)
    return readers


def _rows_by_key(rows: Rows[V]) -> list[list[Row[V]]]:
    found: dict[Hashable, list[Row[V]]] = {}
    for row in rows:
        found.setdefault(row.candidate.key, []).append(row)
    return list(found.values())


def _by_key(rows: Rows[V]) -> list[list[Candidate[V]]]:
    return [[row.candidate for row in same] for same in _rows_by_key(rows)]
