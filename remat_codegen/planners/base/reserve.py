"""What a generated file needs at run time beside the planned tensors, and plans that leave room for it.

A random node that runs again draws from the state that the generator had the first time: on the CPU 5,056 bytes for each. In
real models that is nothing; in small ones it may be more than the results it saves. There, plans in which fewer nodes draw
again are looked at, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from remat_codegen.graph.drawing import GENERATOR_STATE_BYTES
from remat_codegen.graph.ir import Graph
from remat_codegen.planners.base.result import Plan, Status, smallest_of
from remat_codegen.profile.costs import Profile
from remat_codegen.schedule import Compute, Schedule, order_of

SLACK_BYTES = 4096  # what a step allocates beside its tensors: seeds of the backward pass, single numbers
NEGLIGIBLE = 0.005  # of the unmodified peak: states that together take less are not worth a second plan
FELT = 0.02  # of the limit: where a plan leaves more of what is reserved for states, it is worth another plan
TRIES = 2  # for that: each is given what the one before it leaves
QUICKLY_PLANNED = 500  # nodes; in larger graphs, the other plans are looked at only where the first does not fit
DRAWN_AGAIN = (1, 2)  # states that the results of a node that may draw again have to be larger than
Planner = Callable[[Graph, int], Plan]


@dataclass(frozen=True, slots=True)
class Reserve:
    """Bytes beside the planned tensors: `fixed_bytes` where anything runs again, and a state for each of `drawing`, nodes by
    id, that does; `unsplit_bytes`, which a GPU's allocator may take, in any case."""

    fixed_bytes: int = 0
    drawing: frozenset[int] = field(default_factory=frozenset)
    unsplit_bytes: int = 0

    @property
    def slack_bytes(self) -> int:
        """What even a file that recomputes nothing needs."""
        return min(SLACK_BYTES, self.fixed_bytes) + self.unsplit_bytes

    @property
    def least_bytes(self) -> int:
        """What a plan that repeats no random node needs."""
        return self.fixed_bytes + self.unsplit_bytes

    @property
    def most_bytes(self) -> int:
        """What a plan that repeats all random nodes needs."""
        return self.least_bytes + _states(len(self.drawing))

    def states_bytes(self, order: Sequence[int]) -> int:
        """The generator states that an order of node ids holds at most: one for each random node that runs again, and the
        present one while it is changed."""
        runs = Counter(order)
        return _states(sum(runs[n] > 1 for n in self.drawing))

    def with_states(self, schedule: Schedule) -> Schedule:
        """The schedule with the states that a file of functions holds beside it: that of each random node that runs again from
        its first run to the end, and the present one while it draws."""
        order = order_of(schedule)
        runs, waiting, held = Counter(order), set(self.drawing), 0
        beside = dict(schedule.beside_bytes)
        for position, node in enumerate(order):
            drawn = node in self.drawing and runs[node] > 1
            held += drawn and node in waiting
            waiting.discard(node)
            if held:
                beside[position] = beside.get(position, 0) + (held + drawn) * GENERATOR_STATE_BYTES
        return replace(schedule, beside_bytes=beside)

    def needed_bytes(self, order: Sequence[int]) -> int:
        """What an order of node ids needs: next to nothing where no node runs again."""
        return self.least_bytes + self.states_bytes(order) if repeats(order) else self.slack_bytes


def _states(count: int) -> int:
    return (count + 1) * GENERATOR_STATE_BYTES if count else 0


def plan_within(
    run: Planner, graph: Graph, profile: Profile, limit_bytes: int, plain_bytes: int, reserve: Reserve, hurried: bool = False
) -> Plan:
    """The plan of `run(graph, bytes)` that, with what it needs from the reserve, keeps to the limit.

    The unmodified step, of `plain_bytes`, needs next to nothing from it: where `run` plans that one with the whole limit, it is
    the plan. An infeasible plan's `minimum_bytes` is with the reserve: a limit that works. Of plans with fewer and
    fewer random nodes that run again the fastest is taken; where it is `hurried`, the first that fits.
    """
    if plain_bytes + reserve.slack_bytes <= limit_bytes:
        plan = run(graph, limit_bytes)
        if plan.schedule is not None and not repeats([s.node for s in plan.schedule.steps if isinstance(s, Compute)]):
            return plan
    first_fits = hurried or len(graph.nodes) > QUICKLY_PLANNED
    found: list[Plan] = []
    fitting: list[tuple[Plan, _Variant]] = []
    for variant in _variants(graph, reserve, plain_bytes):
        plan = run(variant.graph, limit_bytes - variant.most_bytes)
        found.append(_of_all(plan, variant, graph, reserve))
        fitting += [(found[-1], variant)] if plan.schedule is not None else []
        if first_fits and plan.schedule is not None:
            break
    if fitting:
        best, variant = min(fitting, key=lambda pair: pair[0].time_ns)
        return best if first_fits else _with_what_it_leaves(run, variant, best, graph, reserve, limit_bytes)
    least, smallest = smallest_of(found)
    notes = dict.fromkeys(note for p in found for note in p.notes)  # of all: time may have been too short for one of them
    return replace(plan, minimum_bytes=least, smallest=smallest, notes=tuple(notes))


def repeats(order: Sequence[int]) -> bool:
    """Whether any node runs again in an order of node ids."""
    return len(order) > len(set(order))


def _with_what_it_leaves(run: Planner, variant: _Variant, best: Plan, graph: Graph, reserve: Reserve, limit_bytes: int) -> Plan:
    """The plan, or a faster one that also has the room for states which few random nodes that run again leave."""
    assert best.schedule is not None
    needed = reserve.needed_bytes(order_of(best.schedule))
    if variant.most_bytes - needed <= FELT * limit_bytes:
        return best
    for _ in range(TRIES):
        plan = run(variant.graph, limit_bytes - needed)
        if plan.schedule is None:
            break
        needed = reserve.needed_bytes(order_of(plan.schedule))
        if plan.peak_bytes + needed <= limit_bytes:
            return min(best, _of_all(plan, variant, graph, reserve), key=lambda p: p.time_ns)
    return best


def _of_all(plan: Plan, variant: _Variant, graph: Graph, reserve: Reserve) -> Plan:
    """A variant's plan as one of the graph: what was proved of the variant, and with all states reserved, need not hold."""
    if plan.schedule is None:
        least = None if plan.minimum_bytes is None else plan.minimum_bytes + variant.most_bytes
        return replace(plan, minimum_bytes=least)
    if variant == _Variant(graph, reserve.least_bytes):
        return plan
    status = Status.FEASIBLE if plan.status is Status.OPTIMAL else plan.status
    return replace(plan, bound_ns=None, status=status)


@dataclass(frozen=True, slots=True)
class _Variant:
    """The graph with some random nodes that run once, and the most that its plans need from the reserve."""

    graph: Graph
    most_bytes: int


def _variants(graph: Graph, reserve: Reserve, plain_bytes: int) -> list[_Variant]:
    """The graph as it is, and where states are not negligible, with ever fewer random nodes that may run again."""
    found = {reserve.drawing: _Variant(graph, reserve.most_bytes)}
    if reserve.most_bytes - reserve.least_bytes > NEGLIGIBLE * plain_bytes:
        results = {n: sum(graph.data[d].nbytes for d in graph.nodes[n].writes) for n in reserve.drawing}
        for states in DRAWN_AGAIN:
            drawing = frozenset(n for n, nbytes in results.items() if nbytes > states * GENERATOR_STATE_BYTES)
            found[drawing] = _variant(graph, reserve, drawing)
        found[frozenset()] = _variant(graph, reserve, frozenset())
    return list(found.values())


def _variant(graph: Graph, reserve: Reserve, drawing: frozenset[int]) -> _Variant:
    once = reserve.drawing - drawing
    nodes = tuple(replace(n, recomputable=False) if n.id in once else n for n in graph.nodes)
    return _Variant(replace(graph, nodes=nodes), replace(reserve, drawing=drawing).most_bytes)
