"""The two ends of the trade, `none` and `all`.

`none` keeps everything: the step as PyTorch runs it. `all` keeps as little as possible over the loss and rebuilds each data
node just in time, for each backward node anew where holding it would raise the peak.

Cost model: the simulator's. Complexity and ties: those of `base/keeping.py`. Oracle: `least_time` of `tests/graphs.py`, and by
hand: `none` costs the sum of all times, `all` keeps nothing that can be rebuilt.
"""

from __future__ import annotations

from collections.abc import Iterator

from remat_codegen.graph.ir import Graph
from remat_codegen.planners.base.deadline import NO_LIMIT, Effort, stoppable
from remat_codegen.planners.base.keeping import candidate, chosen, keeping, rebuildable
from remat_codegen.planners.base.result import Plan, Status
from remat_codegen.profile.costs import Profile


@stoppable
def none(graph: Graph, profile: Profile, budget_bytes: int, *, effort: Effort = NO_LIMIT) -> Plan:
    """The step without recomputation; OPTIMAL if it fits, because nothing can be faster."""
    plain = candidate(graph, profile, range(len(graph.nodes)))
    return chosen("none", [plain], profile, budget_bytes, status=Status.OPTIMAL)


@stoppable
def all_(graph: Graph, profile: Profile, budget_bytes: int, *, effort: Effort = NO_LIMIT) -> Plan:
    """Recomputes as much as possible: whatever the budget, the order of least peak among the ways to rebuild everything."""
    tried = [candidate(graph, profile, order) for order in least_orders(graph, effort)]
    return chosen("all", [min(tried, key=lambda c: (c.peak_bytes, c.time_ns))], profile, budget_bytes)


def least_orders(graph: Graph, effort: Effort = NO_LIMIT) -> Iterator[tuple[int, ...]]:
    """Orders that keep nothing that can be rebuilt: held after the first rebuilding, or fleeting, or only block inputs kept."""
    nothing: frozenset[int] = frozenset()
    rebuilt = frozenset(rebuildable(graph))
    inputs = frozenset(b.input for b in graph.blocks if b.input is not None)
    ways = dict.fromkeys([(nothing, nothing), (nothing, rebuilt), (inputs, nothing), (inputs, rebuilt - inputs)])
    for done, (kept, fleeting) in enumerate(ways):
        effort.tell("rebuilding everything", done, len(ways))
        yield keeping(graph, kept, fleeting)
