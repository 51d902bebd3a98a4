"""rk-Checkmate: the exact schedule of a small graph, or of one block, by integer programming (Rockmate, section 3.3 and
appendix B).

Stage t ends with the first run of node t; before it, forward nodes may run again, in their order. R[t,i]: node i runs in stage
t; S[t,d]: data d is alive at the start of stage t; delete[t,d,i]: d is freed in stage t after node i. What differs from the
paper:

- Backward nodes run once, so a gradient lives from its first contribution to its last reader: a constant, no variable. Values
  and phantoms have one producer, so S and P of the paper are one variable, and create is R.
- A node runs again only where nothing it writes is alive (S[t,d] + R[t,i] <= 1). No schedule is lost: a copy that is written
  over was not read since the stage began, and could have been freed before it.
- With `recompute_in_forward=False` the stages before the loss are a constant order, in which only S at the loss decides.
- R[t,i] exists only where some node at or after stage t can need what i writes.

Memory U is stated before each node of each stage: what is alive, what the node writes, its workspace. `delete` is stated
constraint by constraint (hazards one by one), which tightens the relaxation. Ties are left to the solver. Oracle:
`tests/graphs.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from remat_codegen.graph.ir import Graph
from remat_codegen.planners.base.milp import Program
from remat_codegen.planners.base.result import Plan, Status
from remat_codegen.profile.costs import Profile
from remat_codegen.schedule import runs_once, settled_lives, simulate, validate, with_forgets, without_dead_runs

MEMORY_STEPS = 1 << 21  # budgets are counted in units of about 1/MEMORY_STEPS of themselves, sizes rounded up to units
TIME_SCALE = 1e4  # the objective is scaled so that one run of everything costs this much


@dataclass(frozen=True, slots=True)
class Solution:
    """An order of node ids, `bound_ns` what no order within the budgets can beat. `order` is None when none was found."""

    status: Status
    order: tuple[int, ...] | None
    bound_ns: int = 0


def plan(
    graph: Graph,
    profile: Profile,
    budget_bytes: int,
    *,
    seconds: float = 60.0,
    gap: float = 0.0,
    recompute_in_forward: bool = False,
) -> Plan:
    """The fastest schedule within the budget, proved so unless the time runs out."""
    found = solve(graph, profile, budget_bytes, seconds=seconds, gap=gap, recompute_in_forward=recompute_in_forward)
    if found.order is None:
        notes = ("the solver found no schedule in time",) if found.status is Status.TIME_LIMIT else ()
        return Plan("checkmate", Status.INFEASIBLE, None, notes=notes)
    schedule = with_forgets(graph, found.order)
    validate(graph, schedule)
    timeline = simulate(graph, profile, schedule)
    return Plan("checkmate", found.status, schedule, timeline.time_ns, timeline.peak_bytes, found.bound_ns)


def solve(
    graph: Graph,
    profile: Profile,
    budget_bytes: int | None,
    saved_bytes: int | None = None,
    *,
    minimise_peak: bool = False,
    seconds: float = 60.0,
    gap: float = 0.0,
    recompute_in_forward: bool = False,
) -> Solution:
    """The fastest order whose peak is at most `budget_bytes`, keeping at most `saved_bytes` over the loss (None: no limit).

    What the loss itself reads is not counted as saved. `minimise_peak` asks for the least peak instead of the least time.
    """
    model = _Model(graph, profile, budget_bytes, recompute_in_forward)
    model.build(saved_bytes, minimise_peak)
    return model.solve(minimise_peak, seconds, gap)


@dataclass(slots=True)
class _Stage:
    """The variables of one stage: `run` by node, in order, the stage's own node last; `saved` by data, `freed` by
    (data, node)."""

    run: dict[int, Any]
    saved: dict[int, Any]
    freed: dict[tuple[int, int], Any] = field(default_factory=dict)


class _Model:
    """The integer program of one graph. What the loss and backward nodes write lives as long in every order (`settled`)."""

    def __init__(self, graph: Graph, profile: Profile, budget_bytes: int | None, recompute_in_forward: bool) -> None:
        self.graph, self.profile = graph, profile
        self.first_stage = 0 if recompute_in_forward else graph.loss
        self.last = len(graph.nodes) - 1
        self.producers = [p[0] for p in graph.producers]
        self.from_forward = [p < graph.loss for p in self.producers]
        if any(self.from_forward[d] and len(p) > 1 for d, p in enumerate(graph.producers)):
            raise ValueError("a value that several nodes write cannot be planned")
        self.settled = settled_lives(graph)
        self.once = runs_once(graph)
        self.needed = self._needed()
        self._scale(budget_bytes)
        self.program = Program()
        self.stages: dict[int, _Stage] = {}

    def _scale(self, budget_bytes: int | None) -> None:
        """Counts memory in units: the sizes' common divisor, or more where the budget would get too many of them."""
        sizes = [d.nbytes for d in self.graph.data] + list(self.profile.workspace_bytes)
        most = sum(d.nbytes for d in self.graph.data) + max(self.profile.workspace_bytes, default=0)
        budget = most if budget_bytes is None else min(budget_bytes, most)
        divisor = math.gcd(*sizes) or 1
        self.unit = divisor * max(1, -(-budget // (divisor * MEMORY_STEPS)))
        self.exact = self.unit == divisor  # else sizes are rounded up, and what is proved of them need not hold
        self.limit: Any = budget // self.unit
        self.size = [-(-d.nbytes // self.unit) for d in self.graph.data]
        self.workspace = [-(-w // self.unit) for w in self.profile.workspace_bytes]

    def _needed(self) -> list[frozenset[int]]:
        """For each stage, the forward's data that its node or a later one may need, directly or to rebuild something."""
        table: list[frozenset[int]] = [frozenset()] * (self.last + 2)
        for stage in range(self.last, -1, -1):
            found = set(table[stage + 1])
            again = stage > self.graph.loss or self.first_stage == 0
            pending = [d for d in self.graph.nodes[stage].reads if self.from_forward[d]]
            while pending:
                data = pending.pop()
                if data not in found:
                    found.add(data)
                    if again and self.producers[data] not in self.once:
                        pending.extend(self.graph.nodes[self.producers[data]].reads)
            table[stage] = frozenset(found)
        return table

    def build(self, saved_bytes: int | None, minimise_peak: bool) -> None:
        """States everything but the objective."""
        if minimise_peak:
            self.limit = self.program.between(0, self.limit)
        saved = self._saved_at_start()
        if self.first_stage:
            self._prefix_memory(saved)
        for stage in range(self.first_stage, self.last + 1):
            if stage == self.graph.loss and saved_bytes is not None:
                self._limit_saved(saved, saved_bytes)
            saved = self._stage(stage, saved)

    def _saved_at_start(self) -> dict[int, Any]:
        """What may be alive when the first stage begins: nothing before node 0, a choice at the loss."""
        if not self.first_stage:
            return {}
        held = {*self.graph.outputs, *self.graph.nodes[self.first_stage].reads}
        candidates = sorted(d for d in {*self.needed[self.first_stage], *held} if self.from_forward[d])
        return {d: 1 if d in held else self.program.binary() for d in candidates}

    def _limit_saved(self, saved: dict[int, Any], saved_bytes: int) -> None:
        reads = self.graph.nodes[self.graph.loss].reads
        terms = [(s, self.size[d]) for d, s in saved.items() if d not in reads]
        self.program.at_most(terms, saved_bytes // self.unit)

    def _prefix_memory(self, saved: dict[int, Any]) -> None:
        """Memory while the forward nodes run for the first and only time before the loss."""
        last_read = list(self.producers)
        for node in self.graph.forward_nodes:
            for data in node.reads:
                last_read[data] = node.id
        for node in self.graph.forward_nodes:
            alive = [d for d in range(len(self.size)) if self.from_forward[d] and self.producers[d] <= node.id]
            terms = [(1 if last_read[d] >= node.id else saved.get(d, 0), self.size[d]) for d in alive]
            self._within_budget([*terms, (1, self.workspace[node.id])])

    def _within_budget(self, terms: list) -> None:
        self.program.at_most([*terms, (self.limit, -1)], 0)

    def _stage(self, number: int, saved: dict[int, Any]) -> dict[int, Any]:
        """States stage `number`; returns what is alive after it."""
        again = number > self.graph.loss or self.first_stage == 0
        useful = sorted({self.producers[d] for d in self.needed[number]} - self.once) if again else []
        run = {i: self.program.binary() for i in useful if i < number} | {number: 1}
        stage = self.stages[number] = _Stage(run, saved)
        for node in run:
            self._reads_alive(stage, node)
        after: dict[int, Any] = {}
        for data in sorted({*saved, *(d for i in run for d in self.graph.nodes[i].writes if self.from_forward[d])}):
            after[data] = self._lifetime(number, stage, data)
        self._stage_memory(number, stage)
        return {d: s for d, s in after.items() if not (isinstance(s, int) and s == 0)}

    def _reads_alive(self, stage: _Stage, node: int) -> None:
        """R[t,i] <= R[t,k] + S[t,d] for each d, written by k, that i reads."""
        for data in self.graph.nodes[node].reads:
            if self.from_forward[data]:
                present = [(stage.run.get(self.producers[data], 0), -1), (stage.saved.get(data, 0), -1)]
                self.program.at_most([(stage.run[node], 1), *present], 0)

    def _lifetime(self, number: int, stage: _Stage, data: int) -> Any:
        """Creation and deletion of one data node in one stage; returns whether it is alive afterwards."""
        producer = self.producers[data]
        before, made = stage.saved.get(data, 0), stage.run.get(producer, 0)
        spots = [i for i in stage.run if i == producer or data in self.graph.nodes[i].reads]
        if data in self.graph.outputs:
            return 1
        wanted = data in self.needed[number + 1]
        if not spots:
            if not wanted:
                self.program.at_most([(before, 1)], 0)
            return before if wanted else 0
        if isinstance(before, int) and before == 1 and not isinstance(made, int):
            self.program.at_most([(made, 1)], 0)
        elif producer in stage.run and data in stage.saved:
            self.program.at_most([(before, 1), (made, 1)], 1)
        after = self.program.binary() if wanted else 0
        for index, node in enumerate(spots):
            freed = stage.freed[data, node] = self.program.between(0, 1)
            self.program.at_most([(freed, 1), (stage.run[node], -1)], 0)
            if wanted:
                self.program.at_most([(freed, 1), (after, 1)], 1)
            for later in spots[index + 1 :]:
                self.program.at_most([(freed, 1), (stage.run[later], 1)], 1)
        change = [(stage.freed[data, i], -1) for i in spots]
        self.program.equal([(before, 1), (made, 1), *change, (after, -1)], 0)
        return after

    def _stage_memory(self, number: int, stage: _Stage) -> None:
        """U[t,i] for each node of the stage: what is alive, what it writes, its workspace."""
        backward = [d for d, (first, last) in self.settled.items() if first < number <= last]
        alive = [(1, sum(self.size[d] for d in backward)), *((s, self.size[d]) for d, s in stage.saved.items())]
        for node, run in stage.run.items():
            writes = [d for d in self.graph.nodes[node].writes if self.from_forward[d] or self.producers[d] == node]
            written = sum(self.size[d] for d in writes)
            self._within_budget([*alive, (run, written + self.workspace[node])])
            alive.append((run, sum(self.size[d] for d in writes if self.from_forward[d])))
            touched = {*writes, *self.graph.nodes[node].reads}
            alive.extend((stage.freed[d, node], -self.size[d]) for d in sorted(touched) if (d, node) in stage.freed)

    def solve(self, minimise_peak: bool, seconds: float, gap: float) -> Solution:
        """Solves what was stated and reads the order off R."""
        base = sum(self.profile.time_ns)
        scale = TIME_SCALE / max(base, 1)
        choices = [(run, i) for stage in self.stages.values() for i, run in stage.run.items() if not isinstance(run, int)]
        # A run that costs nothing must still not happen for nothing; the share of all of these is far below one nanosecond's.
        tiny = 0.1 * scale / (len(choices) + 1)
        time = [(run, self.profile.time_ns[i] * scale + tiny) for run, i in choices]
        objective = [(self.limit, 1.0), *((r, c * 1e-9) for r, c in time)] if minimise_peak else time
        result = self.program.minimise(objective, seconds, gap)
        if not result.values:
            return Solution(result.status, None)
        order: list[int] = list(range(self.first_stage))
        for stage in self.stages.values():
            order.extend(i for i, run in stage.run.items() if isinstance(run, int) or result.values[run.idx] > 0.5)
        proved = not minimise_peak and self.exact
        least = result.bound / scale
        # Times are whole, and all the tiny shares together are below 0.1.
        bound = base + max(0, math.ceil(least - 0.1 - 1e-6 - 1e-7 * least)) if proved else base
        return Solution(result.status, without_dead_runs(self.graph, order), bound)
