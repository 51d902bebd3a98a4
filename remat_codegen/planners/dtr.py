"""Dynamic Tensor Rematerialization, run at generation time (Kirisame, Lyubomirsky, Haan, Brennan, He, Roesch, Chen, Tatlock,
ICLR 2021).

The runtime performs the step's nodes in order. To perform one it locks what the node reads, rematerializes what of that was
evicted (recursively), evicts until there is room, and runs it. Evicted is the resident, unlocked storage of least score:

    dtr     (c + cost of the evicted neighbourhood) / (m s)      dtr-eq  the same, neighbourhoods as union-find components
    local   c / (m s)         lru  1 / s         size  1 / m     msps    (c + cost of the evicted ancestors needed) / m

c: time of the node that made it; m: bytes; s: time since its last access. The neighbourhood of t are the evicted storages from
which t, or that from t, can be rebuilt through evicted ones alone. A component that loses a storage by rematerialization is not
split; its cost falls (Appendix C.2). What nobody will read any more is evicted at once (`eager`), or left to the scores.

What differs: a backward node runs once, so gradients are never evicted and die at their last reader. Unless
`recompute_in_forward`, what a later forward node reads is not evictable until the last of these has run, because the emitter
cannot write recomputation before the loss. The recorded runs become an order; `with_forgets` frees each copy at its
last read, so the simulated peak is at most the runtime's.

Cost model: the runtime's own account of memory, which counts what the simulator counts (workspace; both copies of what is
written over). Complexity: each eviction scores each resident storage, or the square root of their number (`sampling`);
`dtr` and `msps` walk neighbourhoods, remembered until an eviction or rematerialization touches them; `most_work` ends what
takes too long. Ties: the least data id.
Oracle: `least_time` of `tests/graphs.py` below it, and the budget. Out of memory is INFEASIBLE.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from dataclasses import dataclass

from remat_codegen.graph.ir import Graph
from remat_codegen.planners.base.deadline import NO_LIMIT, Effort, check, stoppable
from remat_codegen.planners.base.judge import judge
from remat_codegen.planners.base.result import Plan, Status
from remat_codegen.profile.costs import Profile
from remat_codegen.schedule import simulate, validate, with_forgets
from remat_codegen.schedule.order import fixed, without_dead_runs

HEURISTICS = ("dtr", "eq", "local", "lru", "size", "msps")
SMALL = 0.01  # the filter ignores storages below this part of the mean size
MOST_RUNS = 40  # rematerializations may make the step this many times as many nodes; beyond it is thrashing
MOST_NODES = 500  # for nodes beyond these it is a fifth of that
MOST_WORK = 30_000_000  # storages scored or visited: some ten seconds, which only thrashing on large graphs takes


@dataclass(frozen=True, slots=True)
class Settings:
    """How the runtime evicts."""

    heuristic: str = "dtr"
    eager: bool = True
    ignore_small: bool = False
    sampling: bool = False
    seed: int = 0
    recompute_in_forward: bool = False
    most_work: int = MOST_WORK


class OutOfMemory(Exception):
    """Nothing is left to evict, or the runtime does nothing but rematerialize."""


@stoppable
def plan(
    graph: Graph,
    profile: Profile,
    budget_bytes: int,
    *,
    heuristic: str = "dtr",
    eager: bool = True,
    ignore_small: bool = False,
    sampling: bool = False,
    seed: int = 0,
    recompute_in_forward: bool = False,
    most_work: int = MOST_WORK,
    effort: Effort = NO_LIMIT,
) -> Plan:
    """The step as the runtime would run it within the budget."""
    if heuristic not in HEURISTICS:
        raise ValueError(f"{heuristic} is no heuristic of DTR; they are {', '.join(HEURISTICS)}")
    name = "dtr" if heuristic == "dtr" else f"dtr-{heuristic}"
    settings = Settings(heuristic, eager, ignore_small, sampling, seed, recompute_in_forward, most_work)
    runtime = Runtime(graph, profile, budget_bytes, settings)
    try:
        order = without_dead_runs(graph, runtime.run(effort))
    except OutOfMemory as reason:
        return Plan(name, Status.INFEASIBLE, None, notes=(str(reason),))
    schedule = with_forgets(graph, order)
    if recompute_in_forward:
        validate(graph, schedule)
        timeline = simulate(graph, profile, schedule)
        time_ns, peak = timeline.time_ns, timeline.peak_bytes
    else:
        found = judge(graph, profile, schedule)
        time_ns, peak = found.time_ns, found.peak_bytes
    if peak > budget_bytes:
        return Plan(name, Status.INFEASIBLE, None, minimum_bytes=peak, smallest=schedule)
    base = sum(profile.time_ns)
    notes = (f"{runtime.evictions} evictions",)
    status = Status.OPTIMAL if time_ns == base else Status.FEASIBLE
    return Plan(name, status, schedule, time_ns, peak, base, notes=notes)


class Runtime:
    """The state of the runtime. Storages are data nodes; those written from the loss on are not evictable."""

    def __init__(self, graph: Graph, profile: Profile, budget_bytes: int, settings: Settings) -> None:
        self.graph, self.profile, self.budget, self.settings = graph, profile, budget_bytes, settings
        count = len(graph.data)
        self.size = [d.nbytes for d in graph.data]
        self.maker = [p[0] for p in graph.producers]
        self.readers = graph.readers
        self.references = [len(r) for r in self.readers]
        for data in graph.outputs:
            self.references[data] += 1
        self.forward_left = [sum(r <= graph.loss for r in reading) for reading in self.readers]
        once = fixed(graph)
        self.may_evict = [p not in once for p in self.maker]
        self.last = self._last_needs()
        self.ending: list[list[int]] = [[] for _ in graph.nodes]
        for data, node in enumerate(self.last):
            self.ending[node].append(data)
        self.step = -1
        self.resident = [False] * count
        self.evicted = [False] * count
        self.locks = [0] * count
        self.accessed = [0] * count
        self.clock = self.used = self.evictions = 0
        self.order: list[int] = []
        self.score = Scores(self)
        self.random = random.Random(settings.seed)
        sizes = [s for s, e in zip(self.size, self.may_evict, strict=True) if e and s]
        self.small = SMALL * sum(sizes) / len(sizes) if sizes and settings.ignore_small else 0.0
        self.pool: set[int] = set()  # what is resident and may be evicted, once nothing is in its way

    def run(self, effort: Effort = NO_LIMIT) -> tuple[int, ...]:
        """All nodes of the step; returns the order in which nodes were performed."""
        count = len(self.graph.nodes)
        most = MOST_RUNS * min(count, MOST_NODES) + MOST_RUNS // 5 * max(0, count - MOST_NODES)
        for node in self.graph.nodes:
            check()
            self._perform(node.id, most, effort)
            self._release(node.id)
        return tuple(self.order)

    def _perform(self, node: int, most: int, effort: Effort) -> None:
        """Runs a node once all it reads is there. The recursion of the paper, as a stack of locked calls."""
        stack = [node]
        self._lock(node, 1)
        while stack:
            current = stack[-1]
            missing = next((d for d in self.graph.nodes[current].reads if not self.resident[d]), None)
            if missing is not None:
                stack.append(self.maker[missing])
                self._lock(stack[-1], 1)
                continue
            self._compute(current)
            if len(self.order) % 64 == 1:
                effort.tell("running DTR", node, len(self.graph.nodes))
            self._lock(current, -1)
            stack.pop()
            if len(self.order) > most or self.score.work > self.settings.most_work:
                raise OutOfMemory(f"DTR thrashes: {len(self.order)} runs were not enough for {len(self.graph.nodes)} nodes")
            if stack:
                self._drop_dead({*self.graph.nodes[current].reads, *self.graph.nodes[current].writes})

    def _lock(self, node: int, change: int) -> None:
        for data in self.graph.nodes[node].reads:
            self.locks[data] += change

    def _compute(self, number: int) -> None:
        node = self.graph.nodes[number]
        again = [d for d in node.writes if self.resident[d] and self.may_evict[d]]
        created = [d for d in node.writes if not self.resident[d]]
        for data in node.writes:
            self.locks[data] += 1
        needed = sum(self.size[d] for d in created + again) + self.profile.workspace_bytes[number]
        self._make_room(needed)
        self.clock += self.profile.time_ns[number]
        for data in node.reads:
            self.accessed[data] = self.clock
        for data in created:
            self.resident[data] = True
            self.used += self.size[data]
            if self.may_evict[data] and self.size[data]:
                self.pool.add(data)
            if self.evicted[data]:
                self.evicted[data] = False
                self.score.restored(data)
        for data in node.writes:
            self.accessed[data] = self.clock
            self.locks[data] -= 1
        self.order.append(number)

    def _release(self, node: int) -> None:
        """After a node of the step: its reads are one reader fewer."""
        self.step = node
        for data in self.graph.nodes[node].reads:
            self.references[data] -= 1
            self.forward_left[data] -= node <= self.graph.loss
        self._drop_dead({*self.ending[node], *self.graph.nodes[node].reads, *self.graph.nodes[node].writes})

    def _drop_dead(self, candidates: Iterable[int]) -> None:
        """Frees what no node of the step will read. A storage that can be rebuilt is evicted, else it is gone."""
        for data in sorted(candidates):
            if not self.resident[data] or self.references[data] or self.locks[data]:
                continue
            if not self.may_evict[data]:
                if self.last[data] <= self.step:
                    self._free(data)
            elif self.settings.eager and self._evictable(data):
                self._evict(data)

    def _last_needs(self) -> list[int]:
        """For each storage the last node of the step that touches it, or for which it may have to rebuild something."""
        once = fixed(self.graph)
        last = [-1] * len(self.graph.data)
        for node in reversed(self.graph.nodes):
            rebuilt = [last[d] for d in node.writes] if node.id not in once else []
            need = max(node.id, *rebuilt) if rebuilt else node.id
            for data in node.reads:
                last[data] = max(last[data], need)
            for data in node.writes:
                last[data] = max(last[data], node.id)
        return last

    def _make_room(self, needed: int) -> None:
        while self.used + needed > self.budget:
            locks, left = self.locks, self.forward_left
            anytime = self.settings.recompute_in_forward
            candidates = [d for d in self.pool if not locks[d] and (anytime or not left[d])]
            if not candidates:
                where = self.graph.nodes[self.order[-1]].name if self.order else "the start"
                raise OutOfMemory(f"out of memory after {where}: {self.used} bytes are held, {needed} more are needed")
            self._evict(self.score.least(self._searched(candidates)))

    def _searched(self, candidates: list[int]) -> list[int]:
        """The candidates that the approximations leave; all where they leave none."""
        kept = ([d for d in candidates if self.size[d] >= self.small] if self.small else []) or candidates
        if self.settings.sampling and len(kept) > 1:
            return self.random.sample(sorted(kept), math.isqrt(len(kept)))
        return kept

    def _evictable(self, data: int) -> bool:
        if not (self.resident[data] and self.may_evict[data]) or self.locks[data]:
            return False
        return self.settings.recompute_in_forward or not self.forward_left[data]

    def _evict(self, data: int) -> None:
        self._free(data)
        self.evicted[data] = True
        self.evictions += 1
        self.score.evicted(data)

    def _free(self, data: int) -> None:
        self.resident[data] = False
        self.used -= self.size[data]
        self.pool.discard(data)


class Scores:
    """The heuristics. Keeps what they need: components (`eq`), remembered neighbourhood costs (`dtr`, `msps`)."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime, self.kind = runtime, runtime.settings.heuristic
        graph = runtime.graph
        self.cost = [runtime.profile.time_ns[p] for p in runtime.maker]
        self.above = [graph.nodes[p].reads if p < graph.loss else () for p in runtime.maker]
        readers = graph.readers
        self.below = [tuple(w for r in rs if r < graph.loss for w in graph.nodes[r].writes) for rs in readers]
        self.parent = list(range(len(graph.data)))
        self.sums = [0] * len(graph.data)
        self.member = list(range(len(graph.data)))  # the present element of each storage: a new one after a restoration
        self.around = {"dtr": (self.above, self.below), "msps": (self.above,)}.get(self.kind, ())
        self.known: list[int | None] = [None] * len(graph.data)
        self.changed: dict[int, None] = {}  # evicted or restored since costs were remembered
        self.work = 0

    def least(self, candidates: list[int]) -> int:
        """The candidate of least score, of equal ones the one of the least id."""
        self.work += len(candidates)
        self._forget_around_changed()
        return min(zip(self._of_all(candidates), candidates, strict=True))[1]

    def _of_all(self, candidates: list[int]) -> Iterable[float]:
        """Their scores. Of the usual heuristic, without a call for each: it is asked a million times for a large model."""
        if self.kind != "dtr":
            return map(self.of, candidates)
        runtime, cost = self.runtime, self.cost
        size, accessed, now = runtime.size, runtime.accessed, runtime.clock + 1
        return [(cost[d] + self._around(d)) / (size[d] * (now - accessed[d])) for d in candidates]

    def of(self, data: int) -> float:
        """A storage's score."""
        runtime = self.runtime
        size = runtime.size[data]
        if self.kind == "size":
            return 1 / size
        if self.kind == "msps":
            return (self.cost[data] + self._around(data)) / size
        stale = runtime.clock - runtime.accessed[data] + 1
        if self.kind == "lru":
            return 1 / stale
        around = self._components(data) if self.kind == "eq" else self._around(data) if self.kind == "dtr" else 0
        return (self.cost[data] + around) / (size * stale)

    def _around(self, data: int) -> int:
        """The cost of making what is evicted around a storage."""
        around = self.known[data]
        if around is None:
            maker = self.runtime.maker
            reached = set[int]().union(*(self._reached([data], edges)[0] for edges in self.around))
            cost = {maker[d]: self.cost[d] for d in reached}
            cost.pop(maker[data], None)
            around = self.known[data] = sum(cost.values())
        return around

    def _reached(self, sources: Iterable[int], edges: list[tuple[int, ...]]) -> tuple[set[int], set[int]]:
        """What is evicted and reached from some storages through evicted ones alone; and all that is next to those."""
        evicted, found, beside, pending = self.runtime.evicted, set[int](), set[int](), [*sources]
        while pending:
            near = edges[pending.pop()]
            beside.update(near)
            for data in near:
                if evicted[data] and data not in found:
                    found.add(data)
                    pending.append(data)
        self.work += len(found)
        return found, beside

    def evicted(self, data: int) -> None:
        """Takes note of an eviction."""
        if self.kind == "eq":
            own = self.member[data]
            self.sums[own] += self.cost[data]
            for near in (*self.above[data], *self.below[data]):
                if self.runtime.evicted[near] and near != data:
                    self._union(self.member[near], own)
        self.changed[data] = None

    def restored(self, data: int) -> None:
        """Takes note of a rematerialization."""
        if self.kind == "eq":
            self.sums[self._find(self.member[data])] -= self.cost[data]
            self.member[data] = len(self.parent)
            self.parent.append(len(self.parent))
            self.sums.append(0)
        self.changed[data] = None

    def _forget_around_changed(self) -> None:
        """Drops the remembered costs that evictions and restorations since may have altered: of what reaches one of those
        storages through evicted ones. (On any way that is there now and was not then, or was and is not, the first storage
        that is not as it was is one of them, and those before it are evicted now.)"""
        opposite = [self.below if edges is self.above else self.above for edges in self.around]
        for data in {*self.changed}.union(*(self._reached(self.changed, edges)[1] for edges in opposite)):
            self.known[data] = None
        self.changed = {}

    def _components(self, data: int) -> int:
        near = (d for d in (*self.above[data], *self.below[data]) if self.runtime.evicted[d])
        return sum(self.sums[root] for root in {self._find(self.member[d]) for d in near})

    def _find(self, element: int) -> int:
        while self.parent[element] != element:
            self.parent[element] = self.parent[self.parent[element]]
            element = self.parent[element]
        return element

    def _union(self, one: int, other: int) -> None:
        first, second = self._find(one), self._find(other)
        if first != second:
            self.parent[second] = first
            self.sums[first] += self.sums[second]
