"""Improvement: a local search over the order of any plan, which never makes it worse and never breaks its budget.

An order is any sequence in which the first runs stand in the graph's order and only repeated runs were added after the loss:
dropping, moving or adding a repeated run always leaves a valid one, because what it wrote is then held from an earlier
run. Moves, in rounds until none helps:

- drop: leave a repeated run out (with the runs that only it needed), the most time first;
- late: move a repeated run to just before the first reader of what it writes;
- swap: drop a run that does not fit, and instead give up, over the time where memory is short, data that cost less
  time to rebuild;
- keep: instead of dropping one run, drop all runs of a node.

A change is taken only if the peak stays within the budget and the time falls (`late`: if the memory near the budget falls), so
each step is an improvement; the result is judged by the simulator, and the plan returned as it was if it is not better.

Cost model: the simulator's, as a sum over lifetimes of copies. Complexity: O(steps) for each move tried, at most `moves` of
them until the effort's deadline. Deterministic unless that ends it. Ties: the first found, runs in order. Oracle: never
worse (random graphs), never below `least_time` of `tests/graphs.py`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from remat_codegen.graph.ir import Graph, Kind
from remat_codegen.planners.base.deadline import NO_LIMIT, Effort
from remat_codegen.planners.base.keeping import candidate
from remat_codegen.planners.base.result import Plan, Status
from remat_codegen.profile.costs import Profile
from remat_codegen.schedule import Compute
from remat_codegen.schedule.order import fixed

MOVES = 20000
SECONDS = 10.0  # if there is no deadline
SWAPS = 12  # how many cheaper things to give up are tried for one run
NEAR = 0.9  # the part of the budget from which on memory counts as short


def improve(
    graph: Graph,
    profile: Profile,
    budget_bytes: int,
    plan: Plan,
    *,
    moves: int = MOVES,
    effort: Effort = NO_LIMIT,
) -> Plan:
    """The plan, or a faster one within the budget."""
    if plan.schedule is None or plan.peak_bytes > budget_bytes or plan.time_ns == sum(profile.time_ns):
        return plan
    order = tuple(s.node for s in plan.schedule.steps if isinstance(s, Compute))
    loss = order.index(graph.loss)
    if order[: loss + 1] != tuple(range(graph.loss + 1)):
        return plan
    search = _Search(graph, profile, budget_bytes, order, moves, effort.until(SECONDS))
    search.run(effort)
    found = candidate(graph, profile, search.order)
    if (found.time_ns, found.peak_bytes) >= (plan.time_ns, plan.peak_bytes) or found.peak_bytes > budget_bytes:
        return plan
    status = Status.OPTIMAL if found.time_ns == sum(profile.time_ns) else plan.status
    notes = (*plan.notes, f"improved from {plan.time_ns / 1e6:.3f} ms")
    return replace(
        plan, schedule=found.schedule, time_ns=found.time_ns, peak_bytes=found.peak_bytes, status=status, notes=notes
    )


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy of a data node: made at a position of an order, read last at another; `reads` are the positions in between."""

    data: int
    made: int
    reads: tuple[int, ...]
    end: int


class Tables:
    """A graph and its profile as lists, for the many evaluations of a search."""

    def __init__(self, graph: Graph, profile: Profile) -> None:
        self.nbytes = [d.nbytes for d in graph.data]
        self.gradient = [d.kind is Kind.GRADIENT for d in graph.data]
        self.reads = [n.reads for n in graph.nodes]
        self.writes = [n.writes for n in graph.nodes]
        self.time_ns = profile.time_ns
        self.workspace = np.array(profile.workspace_bytes, dtype=np.int64)
        self.outputs = graph.outputs

    def live(self, order: Sequence[int]) -> tuple[int, ...]:
        """`without_dead_runs`, faster."""
        first: dict[int, int] = {}
        for position, node in enumerate(order):
            first.setdefault(node, position)
        wanted = [False] * len(self.nbytes)
        for data in self.outputs:
            wanted[data] = True
        kept = []
        for position in range(len(order) - 1, -1, -1):
            node = order[position]
            writes = self.writes[node]
            if first[node] != position and not any(wanted[d] for d in writes):
                continue
            kept.append(node)
            for data in writes:
                wanted[data] = self.gradient[data]
            for data in self.reads[node]:
                wanted[data] = True
        return tuple(reversed(kept))


class Costs:
    """Time and memory of an order: the memory while each position runs, as `simulate` counts it."""

    def __init__(self, tables: Tables, order: Sequence[int]) -> None:
        self.tables, self.order = tables, order
        count = len(order)
        nbytes, gradient, all_reads, all_writes = tables.nbytes, tables.gradient, tables.reads, tables.writes
        made = [-1] * len(nbytes)
        end = [0] * len(nbytes)  # the last position that touches the present copy
        delta = [0] * (count + 1)
        for position, number in enumerate(order):
            for data in all_reads[number]:
                end[data] = position
            for data in all_writes[number]:
                if made[data] < 0:
                    made[data] = position
                    delta[position] += nbytes[data]
                elif not gradient[data]:
                    delta[end[data] + 1] -= nbytes[data]
                    made[data] = position
                    delta[position] += nbytes[data]
                end[data] = position
        for data in tables.outputs:
            end[data] = count - 1
        for data, position in enumerate(made):
            if position >= 0:
                delta[end[data] + 1] -= nbytes[data]
        self.memory = np.cumsum(np.array(delta[:count], dtype=np.int64)) + tables.workspace[list(order)]
        self.peak = int(self.memory.max()) if count else 0
        self.time = sum(map(tables.time_ns.__getitem__, order))
        self._copies: list[list[Copy]] | None = None

    def copies(self) -> list[list[Copy]]:
        """The copies of each data node, in order."""
        if self._copies is None:
            self._copies = self._find_copies()
        return self._copies

    def _find_copies(self) -> list[list[Copy]]:
        made: list[list[tuple[int, list[int]]]] = [[] for _ in self.tables.nbytes]
        for position, number in enumerate(self.order):
            for data in self.tables.reads[number]:
                made[data][-1][1].append(position)
            for data in self.tables.writes[number]:
                if not (made[data] and self.tables.gradient[data]):
                    made[data].append((position, []))
        return [[Copy(d, p, tuple(r), r[-1] if r else p) for p, r in found] for d, found in enumerate(made)]


class _Search:
    """The present order, and the moves."""

    def __init__(
        self, graph: Graph, profile: Profile, budget_bytes: int, order: tuple[int, ...], moves: int, deadline: float
    ) -> None:
        self.graph, self.profile, self.budget = graph, profile, budget_bytes
        self.moves, self.deadline = moves, deadline
        self.once = fixed(graph)
        self.makers = [p[0] for p in graph.producers]
        self.tables = Tables(graph, profile)
        self.order = self.tables.live(order)
        self.costs = Costs(self.tables, self.order)

    def run(self, effort: Effort) -> None:
        """Rounds of all kinds of moves until one changes nothing."""
        rounds = 0
        while not self._spent():
            before = self.costs.time
            self._drops()
            self._swaps()
            self._late()
            self._drops()
            rounds += 1
            effort.tell("improving", rounds, rounds + 1)
            if self.costs.time >= before:
                return

    def _spent(self) -> bool:
        return self.moves <= 0 or time.monotonic() > self.deadline

    def _try(self, order: Sequence[int]) -> tuple[tuple[int, ...], Costs]:
        self.moves -= 1
        live = self.tables.live(order)
        return live, Costs(self.tables, live)

    def _take_if_faster(self, order: Sequence[int]) -> bool:
        live, costs = self._try(order)
        better = costs.peak <= self.budget and costs.time < self.costs.time
        if better:
            self.order, self.costs = live, costs
        return better

    def _again(self) -> list[int]:
        """The positions of repeated runs, the most time first."""
        seen: set[int] = set()
        found = []
        for position, node in enumerate(self.order):
            if node in seen:
                found.append(position)
            seen.add(node)
        return sorted(found, key=lambda p: (-self.profile.time_ns[self.order[p]], p))

    def _drops(self) -> None:
        """Leaves out what need not run, as long as something can be left out."""
        changed = True
        while changed and not self._spent():
            changed = self._drop_runs() or self._drop_nodes()

    def _drop_runs(self) -> bool:
        """One pass over the nodes that run again, the last run of each first."""
        changed = False
        for node in dict.fromkeys(self.order[p] for p in self._again()):
            for position in reversed(self._positions(node)[1:]):
                if self._spent():
                    return False
                if position < len(self.order) and self.order[position] == node and self._room_without(position):
                    changed |= self._take_if_faster(_without(self.order, {position}))
        return changed

    def _positions(self, node: int) -> list[int]:
        return [p for p, i in enumerate(self.order) if i == node]

    def _drop_nodes(self) -> bool:
        """Leaves out all repeated runs of one node, where dropping one alone did not help."""
        again: dict[int, set[int]] = {}
        for position in self._again():
            again.setdefault(self.order[position], set()).add(position)
        for positions in again.values():
            if self._spent():
                return False
            if len(positions) > 1 and self._take_if_faster(_without(self.order, positions)):
                return True
        return False

    def _room_without(self, position: int) -> bool:
        """A quick test that says no only if holding what a run writes, instead of running it, cannot fit the budget."""
        gaps = self._gaps(position)
        if not gaps:
            return True
        first = min(g[0] for g in gaps)
        added = np.zeros(position - first, dtype=np.int64)
        for begin, nbytes in gaps:
            added[begin - first :] += nbytes
        over = self.costs.memory[first:position] + added - self.budget
        # Inputs that only this run needed may end earlier; that is left to the full evaluation.
        relief = sum(self.graph.data[d].nbytes for d in self.graph.nodes[self.order[position]].reads)
        return bool((over <= relief).all())

    def _gaps(self, position: int) -> list[tuple[int, int]]:
        """For what a run writes and is read: from where the copy before would have to be held, and its bytes."""
        node = self.graph.nodes[self.order[position]]
        found = []
        for data in node.writes:
            before = [c for c in self._copies(data) if c.made < position]
            here = [c for c in self._copies(data) if c.made == position]
            if before and here and here[0].reads:
                found.append((before[-1].end + 1, self.graph.data[data].nbytes))
        return [(begin, nbytes) for begin, nbytes in found if begin < position]

    def _copies(self, data: int) -> list[Copy]:
        return self.costs.copies()[data]

    def _late(self) -> None:
        """Moves repeated runs towards their first readers, where memory near the budget falls."""
        for node in sorted({self.order[p] for p in self._again()}):
            nth = 1
            while nth < self.order.count(node):
                if self._spent():
                    return
                position = self._positions(node)[nth]
                nth += 1
                copies = [c for d in self.graph.nodes[node].writes for c in self._copies(d) if c.made == position]
                reads = [r for c in copies for r in c.reads]
                target = min(reads, default=position) - 1
                if target <= position:
                    continue
                order = (*self.order[:position], *self.order[position + 1 : target + 1], node, *self.order[target + 1 :])
                live, costs = self._try(order)
                if costs.peak <= self.budget and costs.time <= self.costs.time and self._short(costs) < self._short(self.costs):
                    self.order, self.costs = live, costs

    def _short(self, costs: Costs) -> int:
        """How much memory is used above the line from which on it is short."""
        return int(np.maximum(costs.memory - int(self.budget * NEAR), 0).sum())

    def _swaps(self) -> None:
        """Drops runs that do not fit, giving up something cheaper."""
        for node in dict.fromkeys(self.order[p] for p in self._again()):
            for position in reversed(self._positions(node)[1:]):
                if self._spent():
                    return
                if position < len(self.order) and self.order[position] == node:
                    self._swap(position)

    def _swap(self, position: int) -> None:
        dropped, costs = self._try(_without(self.order, {position}))
        won = self.costs.time - costs.time
        if costs.peak <= self.budget:
            if won > 0:
                self.order, self.costs = dropped, costs
            return
        for order in self._given_up(dropped, costs, won):
            if self._spent() or self._take_if_faster(order):
                return

    def _given_up(self, order: tuple[int, ...], costs: Costs, won: int) -> Iterator[tuple[int, ...]]:
        """The order with one more repeated run, for data that idle where it breaks the budget, the cheapest first."""
        over = np.flatnonzero(costs.memory > self.budget)
        first, last = int(over[0]), int(over[-1])
        need = costs.peak - self.budget
        found: list[tuple[int, int, int]] = []
        for copy in (c for copies in costs.copies() for c in copies):
            maker = self.makers[copy.data]
            if maker in self.once or self.graph.data[copy.data].nbytes < need or self.profile.time_ns[maker] >= won:
                continue
            following = next((r for r in copy.reads if r > last), None)
            if following is None or following <= order.index(self.graph.loss):
                continue
            if copy.made < first and not any(first <= r <= last for r in copy.reads):
                found.append((self.profile.time_ns[maker], following, maker))
        for _, following, maker in sorted(set(found))[:SWAPS]:
            yield (*order[:following], maker, *order[following:])


def _without(order: Sequence[int], positions: set[int]) -> list[int]:
    return [node for position, node in enumerate(order) if position not in positions]
