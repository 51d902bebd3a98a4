"""A step time that no schedule within the budget can beat.

Take any valid schedule whose peak is at most the budget B, and *cuts* c_0 < c_1 < ... < c_k: the loss and some backward
nodes. Each of them runs exactly once and in this order. For each cut j and each data node d written before the loss, let
k[j,d] = 1 if d is alive while c_j runs; let y[j,i] = 1 if forward node i runs between c_j and c_{j+1} (after the last cut:
until the end), and z[j,i] = 1 if it runs at any time after c_j. Then

    (1)  what c_j reads is alive:            k[j,d] = 1                       for each such d that c_j reads
    (2)  memory:                             sum of m_d k[j,d] <= B - (gradients alive at c_j, what it writes, its workspace)
    (3)  nothing comes from nothing:         k[j+1,d] <= k[j,d] + y[j,p]      p the producer of d
    (4)  a backward node in the interval (or c_{j+1} itself, by 1 and 3) that reads d:   k[j,d] + y[j,p] >= 1
    (5)  a node that runs again reads d:     y[j,i] <= k[j,d] + y[j,p]
    (6)  what is not recomputable runs once: y[j,i] = 0
    (7)  the caller holds the outputs:       k[j,d] = 1
    (8)  what runs later runs somewhere:     z[j,i] <= y[j,i] + z[j+1,i]
    (9)  as (4), any node after c_j:         k[j,d] + z[j,p] >= 1
    (10) as (5):                             z[j,i] <= k[j,d] + z[j,p]

(1), (6) and (7) restate the rules of `schedule.validate`; (2) that of `simulate`, which counts at least all that is alive while
a node runs; a gradient is alive from its first contribution to its last reader, because no backward node runs twice. (3) to
(5), (9) and (10) hold because a copy read or alive at some moment after c_j was alive while c_j ran, or its producer ran since:
forgetting creates nothing. Columns exist only for data that c_j or a later node reads, or that rebuilding those may
read, and for their producers: these sets are closed under "is read by", and shrink from cut to cut, so what (3) to (10) ask
for is among them, and other runs only add time. Every node runs for the first time by itself, forward nodes before the loss,
so the schedule's time is at least

    sum of all c_i  +  sum of c_i y[j,i],

and its 0-1 point is feasible for the program that minimises this sum under (1) to (10). The optimum of the linear relaxation
(all between 0 and 1) is therefore a lower bound, for schedules that recompute before the loss, too. Times are whole, so it is
rounded up, less what the solver's tolerance may be wrong by. One cut, the loss, gives the knapsack of what to keep, with the
ancestors that recomputation needs; each further cut adds the memory of one moment of the backward pass, and (8) to (10) see
to it that cuts never weaken the bound: without them a fractional solution runs a node by halves in two intervals, and its
ancestors by half in all.

Cost model: times and sizes of the profile and graph; only the relaxation is solved. Complexity: a linear program of about cuts
x (data + 2 nodes) columns; first the loss alone, then more cuts, most where the step without recomputation needs most memory,
some spread evenly, while columns and MOST_CUTS allow and the last ones added to the bound. (Cuts at equal distances, or the
highest of each of so many equal parts of the backward pass, bound less on the table of benchmarks/paper.py: 23.6 instead of
24.0 % where memory is tight, 9.5 instead of 10.0 where it is not.) Ties: none. Oracle: `least_time` of `tests/graphs.py` and
`rk_checkmate.solve`, never below.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from remat_codegen.graph.ir import Graph, Kind
from remat_codegen.planners.base.milp import Program
from remat_codegen.planners.base.result import Status
from remat_codegen.profile.costs import Profile
from remat_codegen.schedule import Compute, simulate, without_recomputation

MOST_COLUMNS = 20000  # a linear program of this size takes a few seconds
LONGEST_SECONDS = 3600.0  # nothing comes near it; a program that did would be left out
MOST_CUTS = 16  # each makes the program harder by more than its columns, and the last ones add next to nothing
ENOUGH = 1.001  # what more cuts have to make of the overhead, so that yet more are tried
SCALE = 1e4  # what the sum of all times becomes in the objective, and the budget in the rows
SAFETY = 1e-6  # the solver's tolerance, relative to SCALE


@dataclass(frozen=True, slots=True)
class Bound:
    """`time_ns` that no schedule within the budget can beat; None where no schedule fits it. `cuts` it was found with."""

    time_ns: int | None
    cuts: int


def bound(
    graph: Graph,
    profile: Profile,
    budget_bytes: int,
    *,
    cuts: int | None = None,
    columns: int = MOST_COLUMNS,
    seconds: float | None = None,
) -> Bound:
    """The best bound found with programs of so many columns, or the one of a given number of cuts. No clock is looked at, so
    that it is the same whenever and wherever it is asked for, unless it is to take so many `seconds` at most."""
    base, until = sum(profile.time_ns), time.monotonic() + (LONGEST_SECONDS if seconds is None else seconds)
    best = Bound(base, 0)
    if simulate(graph, profile, without_recomputation(graph)).peak_bytes <= budget_bytes:
        return best
    facts = Relaxation(graph, profile, budget_bytes)
    for count in [cuts] if cuts is not None else _counts(graph, facts.columns, columns):
        left = LONGEST_SECONDS if seconds is None else until - time.monotonic()
        found = facts.solve(cuts_of(graph, profile, count), left) if left > 0 else None
        if found is None:
            continue
        if math.isinf(found.extra_ns):
            return Bound(None, count)
        least = max(0, math.ceil(found.extra_ns - SAFETY * (found.extra_ns + base)))
        known = (best.time_ns or 0) - base
        best = max(best, Bound(base + least, count), key=lambda b: b.time_ns or 0)
        if count > 1 and least <= ENOUGH * known:
            break  # as on chains of blocks: all that is kept is alive at the loss, which is the first cut
    return best


def _counts(graph: Graph, columns: int, most_columns: int) -> list[int]:
    """Numbers of cuts to try: one, then four times as many each time."""
    most = max(1, min(len(graph.nodes) - graph.loss, MOST_CUTS, most_columns // max(columns, 1)))
    counts = [1]
    while counts[-1] < most:
        counts.append(min(most, counts[-1] * 4))
    return counts


def cuts_of(graph: Graph, profile: Profile, count: int) -> list[int]:
    """The loss and `count` - 1 backward nodes: three quarters of them where memory is highest, the others evenly spread."""
    schedule = without_recomputation(graph)
    during = simulate(graph, profile, schedule).during_bytes
    memory = {s.node: b for s, b in zip(schedule.steps, during, strict=True) if isinstance(s, Compute)}
    after = range(graph.loss + 1, len(graph.nodes))
    ranked = sorted(after, key=lambda i: (-memory[i], i))
    cuts = {graph.loss, *ranked[: count - 1 - count // 4]}
    rest = [i for i in after if i not in cuts]
    missing = min(count - len(cuts), len(rest))
    cuts.update(rest[len(rest) * i // missing] for i in range(missing))
    return sorted(cuts)


@dataclass(frozen=True, slots=True)
class Relaxed:
    """A solved relaxation: the time beyond one run of everything, infinite where there is no solution; and for each cut, how
    much of each data node is alive."""

    extra_ns: float
    alive: tuple[dict[int, float], ...] = ()


class Relaxation:
    """The linear program of a graph: what does not depend on the cuts, and `solve` for some cuts."""

    def __init__(self, graph: Graph, profile: Profile, budget_bytes: int) -> None:
        self.graph, self.profile, self.budget = graph, profile, budget_bytes
        self.maker = [next((p for p in ps if not graph.nodes[p].recomputable), ps[0]) for ps in graph.producers]
        self.from_forward = [ps[0] < graph.loss for ps in graph.producers]
        self.settled = self._settled()
        self.needed = self._needed()
        first = self.needed[graph.loss]
        self.columns = len(first) + 2 * len({self.maker[d] for d in first})

    def _settled(self) -> list[tuple[int, int, int]]:
        """For each data node written from the loss on: the first and last node at which it must be alive, and its bytes."""
        found = []
        for data, (writing, reading) in enumerate(zip(self.graph.producers, self.graph.readers, strict=True)):
            item = self.graph.data[data]
            if not self.from_forward[data]:
                throughout = reading and (item.kind is Kind.GRADIENT or len(writing) == 1)
                found.append((writing[0], reading[-1] if throughout else writing[0], item.nbytes))
        return found

    def _needed(self) -> list[frozenset[int]]:
        """For each node from the loss on, the forward's data that it or a later one reads or may need to rebuild these."""
        table: list[frozenset[int]] = [frozenset()] * (len(self.graph.nodes) + 1)
        found: set[int] = set()
        for node in reversed(range(self.graph.loss, len(self.graph.nodes))):
            pending = [d for d in self.graph.nodes[node].reads if self.from_forward[d] and d not in found]
            while pending:
                data = pending.pop()
                if data not in found:
                    found.add(data)
                    maker = self.graph.nodes[self.maker[data]]
                    pending.extend(maker.reads if maker.recomputable else ())
            if len(found) != len(table[node + 1]):
                table[node] = frozenset(found)
            else:
                table[node] = table[node + 1]
        return table

    def solve(self, cuts: Sequence[int], seconds: float) -> Relaxed | None:
        """The relaxation with these cuts; None if time ran out."""
        base = sum(self.profile.time_ns)
        scale = SCALE / max(base, 1)
        program = Program()
        objective: list[tuple[Any, float]] = []
        alive: dict[int, Any] = {}
        run: dict[int, Any] = {}
        later: dict[int, Any] = {}
        stages: list[dict[int, Any]] = []
        for cut, following in zip(cuts, [*cuts[1:], len(self.graph.nodes)], strict=True):
            before, rerun = alive, run
            alive = self._alive(program, cut)
            for data, present in alive.items() if cut != cuts[0] else ():
                self._at_most(program, present, before.get(data, 0), rerun.get(self.maker[data], 0))
            self._memory(program, cut, alive)
            stages.append(alive)
            run = self._interval(program, cut, following, alive)
            last, later = later, self._afterwards(program, cut, alive)
            for node, some in last.items():  # row 8 of the cut before
                self._at_most(program, some, rerun[node], later.get(node, 0))
            if following == len(self.graph.nodes):
                for node, some in later.items():
                    self._at_most(program, some, run[node], 0)
            objective.extend((y, self.profile.time_ns[i] * scale) for i, y in run.items())
        result = program.minimise(objective, max(seconds, 0.1), 0.0)
        if result.status is Status.INFEASIBLE:
            return Relaxed(math.inf)
        if result.status is not Status.OPTIMAL:
            return None
        values = ({d: k if isinstance(k, int) else result.values[k.idx] for d, k in stage.items()} for stage in stages)
        return Relaxed(result.objective / scale, tuple(values))

    def _alive(self, program: Program, cut: int) -> dict[int, Any]:
        held = {*self.graph.outputs, *self.graph.nodes[cut].reads}
        wanted = sorted({d for d in (*self.needed[cut], *held) if self.from_forward[d]})
        return {d: 1 if d in held else program.between(0, 1) for d in wanted}

    def _memory(self, program: Program, cut: int, alive: dict[int, Any]) -> None:
        settled = sum(nbytes for first, last, nbytes in self.settled if first <= cut <= last)
        unit = SCALE / max(self.budget, 1)
        room = (self.budget - settled - self.profile.workspace_bytes[cut]) * unit
        program.at_most([(k, self.graph.data[d].nbytes * unit) for d, k in alive.items()], room)

    def _interval(self, program: Program, cut: int, following: int, alive: dict[int, Any]) -> dict[int, Any]:
        """The runs between two cuts: rows 4 to 6."""
        run = self._runs(program, cut)
        read = {d for i in range(cut + 1, following) for d in self.graph.nodes[i].reads}
        self._supply(program, read, alive, run)
        return run

    def _afterwards(self, program: Program, cut: int, alive: dict[int, Any]) -> dict[int, Any]:
        """The nodes that run at any time after a cut: rows 9 and 10."""
        later = self._runs(program, cut)
        read = {d for i in range(cut + 1, len(self.graph.nodes)) for d in self.graph.nodes[i].reads}
        self._supply(program, read, alive, later)
        return later

    def _runs(self, program: Program, cut: int) -> dict[int, Any]:
        makers = sorted({self.maker[d] for d in self.needed[cut + 1]})
        return {i: program.between(0, 1) for i in makers if self.graph.nodes[i].recomputable}

    def _supply(self, program: Program, read: Iterable[int], alive: dict[int, Any], run: dict[int, Any]) -> None:
        """What is read by nodes that must run, or by those in `run`, was alive at the cut or is made by those in `run`."""
        for data in sorted(d for d in read if self.from_forward[d]):
            self._at_most(program, 1, alive.get(data, 0), run.get(self.maker[data], 0))
        for node, again in run.items():
            for data in self.graph.nodes[node].reads:
                self._at_most(program, again, alive.get(data, 0), run.get(self.maker[data], 0))

    @staticmethod
    def _at_most(program: Program, wanted: Any, kept: Any, made: Any) -> None:
        """wanted <= kept + made"""
        if isinstance(kept, int) and kept == 1:
            return
        program.at_most([(wanted, 1), (kept, -1), (made, -1)], 0)
