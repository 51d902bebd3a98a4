"""Which calls and expressions become parts: a planner's schedule brought to them, and improved as they are priced.

The schedule says which nodes run again and what is forgotten. Each such node becomes a part, the smallest there is for it. Then
parts are made larger where that costs nothing (one row for a block instead of ten), and what the rule of demand.py makes of
them is improved by small changes, of all equal layers at once and then of single ones. The one simulator judges each: first
what is above the limit, then the time, with a little for each row and mark that a reader has to look at.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Generic

from remat_codegen.graph.ir import Graph, Node
from remat_codegen.marked.candidates import Candidate, Candidates, V, nested
from remat_codegen.marked.demand import Again, Held, Keeps, Part, Rule, ready_to_run
from remat_codegen.profile.costs import Profile
from remat_codegen.schedule import Compute, Pricing, Schedule

A_KEY = 2e-4  # of the step's time: what one more kind of row has to save
A_MARK = 2e-4  # the same for one more marked expression
A_PERCENT = 0.03  # of the step's time: what it may cost to come one per cent of the limit closer to it
MOST_TRIED = 4000  # tables that are priced from the first start
STARTS, OFTEN = 4, 50  # rows that the search starts from; tables after which it tells how far it has come
MOST_NODES = 200_000  # nodes in the tables that are priced from each further start
ROUNDS = 3
OFFERED = (Keeps.RESULT, Keeps.NOTHING)  # not SAVED: nested, such parts were measured up to 4 % above the simulation
OPTIONS = [  # of a row: what it keeps, how often it is rebuilt, whether it is kept until it is read
    *((Keeps.RESULT, again, False) for again in (Again.ONCE, Again.TWICE)),
    *((Keeps.NOTHING, again, False) for again in Again),
    *((Keeps.NOTHING, again, True) for again in (Again.ONCE, Again.TWICE, Again.THRICE)),
]


@dataclass(frozen=True, slots=True)
class Row(Generic[V]):
    """A candidate that is a part."""

    candidate: Candidate[V]
    keeps: Keeps = Keeps.NOTHING
    again: Again = Again.ONCE
    late: bool = False


Rows = tuple[Row[V], ...]


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
    marks = {mark for candidate in by_candidate for mark in candidate.marks}
    if len({place for place, _ in marks}) < len(marks):
        raise ValueError("one expression is marked in two ways")
    found: list[tuple[Row[V], Part]] = []
    for candidate, outer in nested(list(by_candidate)):
        row = by_candidate[candidate]
        if outer is not None and any(r.late or r.keeps is Keeps.SAVED for r in (row, found[outer][0])):
            raise ValueError("a part with /late or /result stands in another one, or around one")
        found.append((row, Part(candidate.first, candidate.last, row.keeps, row.again, outer, row.late)))
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
        self.further_tables = MOST_NODES // len(graph.nodes)
        self.known: dict[tuple[Part, ...], Priced[V]] = {}

    def price(self, rows: Rows[V]) -> Priced[V] | None:
        """What rows take; None where there are no such parts."""
        try:
            parts = tuple(part for _, part in parts_of(rows))
        except ValueError:
            return None
        if parts not in self.known:
            self.tried += 1
            if self.tried % OFTEN == 0:
                self.told(self.tried, MOST_TRIED + (STARTS - 1) * self.further_tables)
            self.known[parts] = self._priced(rows, parts)
        return self.known[parts]

    def _priced(self, rows: Rows[V], parts: Sequence[Part]) -> Priced[V]:
        ran = self.rule.run_of(parts)
        time_ns = self.pricing.time_ns(ran.order)
        peak_bytes = self.pricing.peak_bytes(ran.order, ran.held_at, ran.beside_bytes)
        keys = {(r.candidate.key, r.keeps, r.again, r.late) for r in rows}
        marks = len({mark for r in rows for mark in r.candidate.marks})
        cost = time_ns + self.step_ns * (A_KEY * len(keys) + A_MARK * marks)
        limit = self.limit((*ran.order, *ready_to_run(parts)))
        return Priced(rows, max(0, peak_bytes - limit), cost, time_ns, peak_bytes)

    def search(self, schedule: Schedule, until: float = math.inf) -> Priced[V]:
        """The best rows found, from several that a schedule leads to. They may be over the limit. `until` is a moment of
        time.monotonic(); without one, no clock is looked at."""
        self.until = until
        starts = enumerate(self.starts(schedule))
        found = [self.searched(rows, self.further_tables if i else MOST_TRIED) for i, rows in starts]
        return min(found, key=lambda p: p.rank(math.inf))  # the first of equal ones

    def searched(self, rows: Rows[V], tables: int) -> Priced[V]:
        """The best rows found from these, once so many tables were priced: by moves that keep to the limit if these do, or come
        closer to it; and by moves that may leave it for a while."""
        start = self.price(rows)
        assert start is not None
        found = [self.within(start, self.tried + tables // 2), self.freely(start, self.tried + tables)]
        return min(found, key=lambda p: p.rank(math.inf))

    def freely(self, best: Priced[V], most: int) -> Priced[V]:
        """The best rows found where a byte above the limit has its price."""
        price = 100 * A_PERCENT * self.step_ns / max(1, self.limit(()))
        for _ in range(ROUNDS):
            before = best
            for moves in (self.other_options, self.larger, self.smaller, self.without):
                best = self.improved(best, moves, price, most)
            if best.over_bytes:
                best = self.improved(best, self.further, price, most)
            if best.rank(price) == before.rank(price) or self.enough(most):
                break
        return self.within(best, most)

    def within(self, best: Priced[V], most: int) -> Priced[V]:
        """Rows within the limit, whatever it takes; then with less of that."""
        for _ in range(ROUNDS):
            before = best
            moves = (self.other_options, self.further, self.larger) if best.over_bytes else (self.without, self.smaller)
            for kind in (*moves, self.other_options):
                best = self.improved(best, kind, math.inf, most)
            if best.rank(math.inf) == before.rank(math.inf):
                break
        return best

    def improved(
        self, best: Priced[V], moves: Callable[[Priced[V]], Iterator[Callable[[Rows[V]], Rows[V]]]], price: float, most: int
    ) -> Priced[V]:
        """What is left once every move was tried that makes rows better."""
        for move in moves(best):
            rows = move(best.rows)
            if rows == best.rows:
                continue
            if self.enough(most):
                break
            found = self.price(rows)
            if found is not None and found.rank(price) < best.rank(price):
                best = found
        return best

    def enough(self, most: int) -> bool:
        """Whether more tables than `most` were priced, or the time is over."""
        return self.tried > most or (self.until < math.inf and time.monotonic() > self.until)

    # ------------------------------------------------------------------ where it starts

    def starts(self, schedule: Schedule) -> Iterator[Rows[V]]:
        """Where the search begins: what the schedule runs again, as parts beside each other and within each other, and as parts
        of one expression or call each; nothing."""
        found = [self.first(schedule), self.first(schedule, nesting=True), self.first(schedule, vertices=1), ()]
        yield from dict.fromkeys(found)

    def first(self, schedule: Schedule, nesting: bool = False, vertices: float = math.inf) -> Rows[V]:
        """For each node that a schedule runs again, the smallest part there is for it, of so many vertices at most."""
        runs = Counter(s.node for s in schedule.steps if isinstance(s, Compute))
        kept = _alive_at_loss(self.graph, schedule)
        chosen: dict[Candidate[V], None] = {}
        for node in self.graph.forward_nodes:
            ways = self.candidates.around(node.id, vertices) if runs[node.id] > 1 else []
            chosen |= dict.fromkeys([c for c in ways if all(c.fits(other) for other in chosen)][:1])
        outermost = [c for c in chosen if nesting or not any(o.holds(c) for o in chosen)]
        return tuple(self._row(c, kept, runs, schedule) for c in outermost)

    def _row(self, candidate: Candidate[V], kept: set[int], runs: Counter[int], schedule: Schedule) -> Row[V]:
        nodes = self.graph.nodes[candidate.first : candidate.last + 1]
        again = self._again_as(schedule, nodes, max(runs[n.id] for n in nodes))
        made = {d for n in nodes for d in n.writes}
        results = {d for d in made if self._leaves(d, candidate)}
        if made <= kept:
            return Row(candidate, again=again if again is not Again.SHARED else Again.TWICE, late=True)
        return Row(candidate, Keeps.RESULT if results & kept else Keeps.NOTHING, again)

    def _again_as(self, schedule: Schedule, nodes: Sequence[Node], runs: int) -> Again:
        """How often a schedule has nodes run again, and whether it first does so for several others."""
        if runs <= 2:
            return Again.ONCE
        several = any(len(_first_readers(self.graph, schedule, n.id)) > 1 for n in nodes)
        return Again.SHARED if several else Again.TWICE if runs == 3 else Again.THRICE

    def _leaves(self, data: int, candidate: Candidate[V]) -> bool:
        readers = ((r if r <= self.graph.loss else self.graph.nodes[r].forward) for r in self.graph.readers[data])
        return any(r is not None and not candidate.first <= r <= candidate.last for r in readers)

    # ------------------------------------------------------------------ what is tried

    def larger(self, best: Priced[V]) -> Iterator[Callable[[Rows[V]], Rows[V]]]:
        """One part for many: for all of the same code, then for each."""
        for group in self.candidates.groups(least=2):
            for keeps in OFFERED:
                for inner in (True, False):
                    yield _merging(group, keeps, inner)
                    yield from (_merging([c], keeps, inner) for c in group if len(group) > 1 and inner)

    def other_options(self, best: Priced[V]) -> Iterator[Callable[[Rows[V]], Rows[V]]]:
        """Other options for the rows of one code, then for each row."""
        for rows in _by_key(best.rows):
            for options in OPTIONS:
                yield _setting({r.candidate for r in rows}, *options)
        for row in best.rows:
            for options in OPTIONS:
                yield _setting({row.candidate}, *options)

    def smaller(self, best: Priced[V]) -> Iterator[Callable[[Rows[V]], Rows[V]]]:
        """The largest parts within one for it: for all of the same code, then for each. And such parts within it."""
        for rows in _by_key(best.rows):
            for some in ([rows] if len(rows) == 1 else [rows, *([r] for r in rows)]):
                within = [c for r in some for c in self.candidates.largest_within(r.candidate)]
                for keeps in OFFERED if within else ():
                    yield _splitting([r.candidate for r in some], within, keeps, False)
                    yield _splitting([r.candidate for r in some], within, keeps, True)

    def without(self, best: Priced[V]) -> Iterator[Callable[[Rows[V]], Rows[V]]]:
        """Fewer parts."""
        for rows in _by_key(best.rows):
            yield _dropping({r.candidate for r in rows})
        for row in best.rows:
            yield _dropping({row.candidate})

    def further(self, best: Priced[V]) -> Iterator[Callable[[Rows[V]], Rows[V]]]:
        """More parts, while the rows are above the limit."""
        if best.over_bytes:
            for group in self.candidates.groups():
                for keeps in reversed(OFFERED):
                    yield _merging(group, keeps, True)
                    yield from (_merging([c], keeps, True) for c in group if len(group) > 1)


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


def _alive_at_loss(graph: Graph, schedule: Schedule) -> set[int]:
    alive: set[int] = set()
    for step in schedule.steps:
        if isinstance(step, Compute):
            alive.update(graph.nodes[step.node].writes)
            if step.node == graph.loss:
                return alive
        else:
            alive.discard(step.data)
    return alive


def _by_key(rows: Rows[V]) -> list[list[Row[V]]]:
    found: dict[Hashable, list[Row[V]]] = {}
    for row in rows:
        found.setdefault(row.candidate.key, []).append(row)
    return list(found.values())


def _merging(group: Sequence[Candidate[V]], keeps: Keeps, inner: bool) -> Callable[[Rows[V]], Rows[V]]:
    """Parts of these candidates for those within them; `inner` leaves the ones there that are rebuilt more than once."""

    def change(rows: Rows[V]) -> Rows[V]:
        stay = tuple(
            r
            for r in rows
            if r.candidate not in group
            and (not any(c.holds(r.candidate) for c in group) or (inner and r.again is not Again.ONCE))
        )
        left = tuple(replace(r, again=Again.ONCE) if any(c.holds(r.candidate) for c in group) else r for r in stay)
        return (*left, *(Row(c, keeps) for c in group))

    return change


def _splitting(
    candidates: Sequence[Candidate[V]], within: Sequence[Candidate[V]], keeps: Keeps, nested: bool
) -> Callable[[Rows[V]], Rows[V]]:
    """Parts within those of some candidates: instead of them, or beside them."""

    def change(rows: Rows[V]) -> Rows[V]:
        if not {r.candidate for r in rows}.issuperset(candidates):  # another move took them
            return rows
        stay = tuple(r for r in rows if r.candidate not in within and (nested or r.candidate not in candidates))
        return (*stay, *(Row(c, keeps) for c in within))

    return change


def _setting(candidates: set[Candidate[V]], keeps: Keeps, again: Again, late: bool) -> Callable[[Rows[V]], Rows[V]]:
    def change(rows: Rows[V]) -> Rows[V]:
        return tuple(replace(r, keeps=keeps, again=again, late=late) if r.candidate in candidates else r for r in rows)

    return change


def _dropping(candidates: set[Candidate[V]]) -> Callable[[Rows[V]], Rows[V]]:
    return lambda rows: tuple(r for r in rows if r.candidate not in candidates)
