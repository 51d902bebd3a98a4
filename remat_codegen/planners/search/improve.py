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

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from remat_codegen.graph.ir import Graph
from remat_codegen.planners.base.deadline import NO_LIMIT, Effort, check
from remat_codegen.planners.base.keeping import candidate
from remat_codegen.planners.base.result import Plan, Status
from remat_codegen.profile.costs import Profile
from remat_codegen.schedule import Compute
from remat_codegen.schedule.lives import Copy, Lives, Order, Problem
from remat_codegen.schedule.order import without_dead_runs

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
    effort = replace(effort, deadline=effort.until(SECONDS))
    found = candidate(graph, profile, improved(Problem(graph, profile), order, budget_bytes, moves, effort=effort))
    if (found.time_ns, found.peak_bytes) >= (plan.time_ns, plan.peak_bytes) or found.peak_bytes > budget_bytes:
        return plan
    status = Status.OPTIMAL if found.time_ns == sum(profile.time_ns) else plan.status
    notes = (*plan.notes, f"improved from {plan.time_ns / 1e6:.3f} ms")
    return replace(
        plan, schedule=found.schedule, time_ns=found.time_ns, peak_bytes=found.peak_bytes, status=status, notes=notes
    )


def improved(
    problem: Problem, order: Order, limit_bytes: int, moves: int, fastest_ns: int = 0, *, effort: Effort = NO_LIMIT
) -> Order:
    """The order, which keeps to the limit, or a faster one that does: after so many moves, none of which leads below
    `fastest_ns`."""
    if tuple(order[: problem.loss + 1]) != problem.plain[: problem.loss + 1]:
        return order
    search = _Search(problem, limit_bytes, order, moves, fastest_ns, effort)
    search.run()
    return search.order


class Costs:
    """Time and memory of an order, as `Lives` counts them; its copies are made only where they are asked for."""

    def __init__(self, problem: Problem, order: Sequence[int]) -> None:
        self.problem, self.order = problem, order
        size, reads, writes = problem.size, problem.reads, problem.writes
        start = [-1] * len(size)
        end = [0] * len(size)  # the last position that touches the present copy
        change = [0] * (len(order) + 1)
        for position, node in enumerate(order):
            for data in reads[node]:
                end[data] = position
            for data in writes[node]:
                if start[data] >= 0:
                    change[end[data] + 1] -= size[data]
                start[data] = end[data] = position
                change[position] += size[data]
        for data in problem.outputs:
            end[data] = len(order) - 1
        for data, position in enumerate(start):
            if position >= 0:
                change[end[data] + 1] -= size[data]
        self.memory = np.cumsum(np.array(change[:-1], dtype=np.int64)) + problem.beside_copies(order)
        self.peak = int(self.memory.max(initial=0))
        self.time = problem.time_of(order)

    @cached_property
    def copies(self) -> list[list[Copy]]:
        """The copies of each data node, in order."""
        return Lives(self.problem, self.order).copies


class _Search:
    """The present order, and the moves."""

    def __init__(self, problem: Problem, limit_bytes: int, order: Order, moves: int, fastest_ns: int, effort: Effort) -> None:
        self.problem, self.limit, self.moves = problem, limit_bytes, moves
        self.fastest_ns, self.effort, self.deadline = fastest_ns, effort, effort.until(math.inf)
        self.order = without_dead_runs(problem.graph, order)
        self.costs = Costs(problem, self.order)

    def run(self) -> None:
        """Rounds of all kinds of moves until one changes nothing."""
        rounds = 0
        while not self._spent():
            before = self.costs.time
            self._drops()
            self._swaps()
            self._late()
            self._drops()
            rounds += 1
            self.effort.tell("improving", rounds, rounds + 1)
            if self.costs.time >= before:
                return

    def _spent(self) -> bool:
        check()
        return self.moves <= 0 or time.monotonic() > self.deadline

    def _try(self, order: Sequence[int]) -> tuple[tuple[int, ...], Costs]:
        self.moves -= 1
        live = without_dead_runs(self.problem.graph, order)
        return live, Costs(self.problem, live)

    def _take_if_faster(self, order: Sequence[int]) -> bool:
        live, costs = self._try(order)
        better = costs.peak <= self.limit and self.fastest_ns <= costs.time < self.costs.time
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
        return sorted(found, key=lambda p: (-self.problem.time[self.order[p]], p))

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
        over = self.costs.memory[first:position] + added - self.limit
        # Inputs that only this run needed may end earlier; that is left to the full evaluation.
        relief = sum(self.problem.size[d] for d in self.problem.graph.nodes[self.order[position]].reads)
        return bool((over <= relief).all())

    def _gaps(self, position: int) -> list[tuple[int, int]]:
        """For what a run writes and is read: from where the copy before would have to be held, and its bytes."""
        node = self.problem.graph.nodes[self.order[position]]
        found = []
        for data in node.writes:
            before = [c for c in self._copies(data) if c.start < position]
            here = [c for c in self._copies(data) if c.start == position]
            if before and here and here[0].readers:
                found.append((before[-1].end + 1, self.problem.size[data]))
        return [(begin, nbytes) for begin, nbytes in found if begin < position]

    def _copies(self, data: int) -> list[Copy]:
        return self.costs.copies[data]

    def _late(self) -> None:
        """Moves repeated runs towards their first readers, where memory near the budget falls."""
        for node in sorted({self.order[p] for p in self._again()}):
            nth = 1
            while nth < self.order.count(node):
                if self._spent():
                    return
                position = self._positions(node)[nth]
                nth += 1
                copies = [c for d in self.problem.graph.nodes[node].writes for c in self._copies(d) if c.start == position]
                reads = [r for c in copies for r in c.readers]
                target = min(reads, default=position) - 1
                if target <= position:
                    continue
                order = (*self.order[:position], *self.order[position + 1 : target + 1], node, *self.order[target + 1 :])
                live, costs = self._try(order)
                fits = costs.peak <= self.limit and self.fastest_ns <= costs.time <= self.costs.time
                if fits and self._short(costs) < self._short(self.costs):
                    self.order, self.costs = live, costs

    def _short(self, costs: Costs) -> int:
        """How much memory is used above the line from which on it is short."""
        return int(np.maximum(costs.memory - int(self.limit * NEAR), 0).sum())

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
        if costs.peak <= self.limit:
            if won > 0 and costs.time >= self.fastest_ns:
                self.order, self.costs = dropped, costs
            return
        for order in self._given_up(dropped, costs, won):
            if self._spent() or self._take_if_faster(order):
                return

    def _given_up(self, order: tuple[int, ...], costs: Costs, won: int) -> Iterator[tuple[int, ...]]:
        """The order with one more repeated run, for data that idle where it breaks the budget, the cheapest first."""
        over = np.flatnonzero(costs.memory > self.limit)
        first, last = int(over[0]), int(over[-1])
        need = costs.peak - self.limit
        found: list[tuple[int, int, int]] = []
        for copy in (c for copies in costs.copies for c in copies):
            maker = self.problem.producer[copy.data]
            if maker in self.problem.once or self.problem.size[copy.data] < need or self.problem.time[maker] >= won:
                continue
            following = next((r for r in copy.readers if r > last), None)
            if following is None or following <= order.index(self.problem.loss):
                continue
            if copy.start < first and not any(first <= r <= last for r in copy.readers):
                found.append((self.problem.time[maker], following, maker))
        for _, following, maker in sorted(set(found))[:SWAPS]:
            yield (*order[:following], maker, *order[following:])


def _without(order: Sequence[int], positions: set[int]) -> list[int]:
    return [node for position, node in enumerate(order) if position not in positions]
