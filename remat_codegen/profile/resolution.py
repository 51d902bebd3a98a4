"""Times to the resolution of what measures them. What a planner compares is what forgetting a byte costs. Where operations take
about as long for each byte that they make, as all products of one depth do, the noise of a run would say which of
them run again, and another run something else: they cost the same here, and the plan's own order decides. Backward nodes run
once in any plan, and keep their times.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from remat_codegen.graph.ir import Graph, Phase, total_bytes
from remat_codegen.profile.clock import COARSEST


def to_resolution(graph: Graph, time_ns: Sequence[int]) -> tuple[int, ...]:
    """`time_ns` in nanoseconds by node. Forward nodes whose times per byte are at most COARSEST apart have the same one: that
    of all of them together, so that a step takes as long as before."""
    nbytes = {n.id: total_bytes(graph, n.writes) for n in graph.nodes if n.phase is Phase.FORWARD and time_ns[n.id]}
    by_rate: dict[float, list[int]] = {}
    for node, made in nbytes.items():
        if made:
            by_rate.setdefault(time_ns[node] / made, []).append(node)
    found = list(time_ns)
    for rates in _groups(sorted(by_rate)):
        nodes = [node for rate in rates for node in by_rate[rate]]
        rate = sum(time_ns[n] for n in nodes) / sum(nbytes[n] for n in nodes)
        for node in nodes if len(rates) > 1 else ():
            found[node] = max(1, round(rate * nbytes[node]))
    return tuple(found)


def _groups(rates: Sequence[float]) -> list[list[float]]:
    """Sorted numbers, in groups that span at most COARSEST: those that are closest come together first (complete linkage)."""
    groups = [[rate] for rate in rates]
    while len(groups) > 1:
        spans = [right[-1] / left[0] for left, right in pairwise(groups)]
        least = min(range(len(spans)), key=spans.__getitem__)
        if spans[least] > 1 + COARSEST:
            break
        groups[least : least + 2] = [groups[least] + groups[least + 1]]
    return groups
