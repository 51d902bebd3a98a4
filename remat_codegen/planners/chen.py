"""Segments: keep only what crosses from one segment of the forward pass to the next (Chen, Xu, Zhang, Guestrin 2016).

With about the square root of n equal segments a chain of n equal layers needs memory for O(sqrt(n)) of them. The last segment
is left as it is, which makes a given `segments` count what `torch.utils.checkpoint.checkpoint_sequential` does.

Cost model: segments of equal numbers of units, where a unit is a block, or a forward node; the simulator judges each count.
With a budget the count of least time that fits is taken, else (no `segments`, no count fits) INFEASIBLE with the least peak.
Complexity: one simulation for each of at most `MOST_COUNTS` counts for each kind of unit. Ties: blocks before nodes, fewer
segments first. Oracle: on a chain of equal layers, the square-root law by hand; `least_time` of `tests/graphs.py` below it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from remat_codegen.graph.ir import Graph
from remat_codegen.planners.base.deadline import NO_LIMIT, Effort, stoppable
from remat_codegen.planners.base.judge import Candidate
from remat_codegen.planners.base.keeping import candidate, chosen, keeping
from remat_codegen.planners.base.result import Plan
from remat_codegen.profile.costs import Profile

MOST_COUNTS = 40


@stoppable
def plan(graph: Graph, profile: Profile, budget_bytes: int, *, segments: int | None = None, effort: Effort = NO_LIMIT) -> Plan:
    """The count of segments of least time that fits the budget, or `segments` of them."""
    tried: list[Candidate] = []
    for units in _units(graph):
        counts = [min(segments, len(units))] if segments is not None else _counts(len(units))
        for done, count in enumerate(counts):
            effort.tell("cutting segments", done, len(counts))
            tried.append(candidate(graph, profile, order_of(graph, _starts(units, count))))
        if segments is not None:
            break
    return chosen("chen", tried, profile, budget_bytes)


def order_of(graph: Graph, starts: Sequence[int]) -> tuple[int, ...]:
    """The order of the segments that begin at the forward nodes `starts`; the last one keeps all."""
    home = [0] * graph.loss
    for start in starts:
        for node in range(start, graph.loss):
            home[node] += 1
    last = max(home, default=0)
    kept = set()
    for data, (writes, reads) in enumerate(zip(graph.producers, graph.readers, strict=True)):
        if writes[0] >= graph.loss:
            continue
        forward = [home[r] for r in reads if r < graph.loss]
        if home[writes[0]] == last or any(h != home[writes[0]] for h in forward):
            kept.add(data)
    return keeping(graph, kept)


def _units(graph: Graph) -> list[list[int]]:
    """Where segments may begin: at blocks, if there are several, and at nodes."""
    blocks = [b.first for b in graph.blocks]
    nodes = list(range(graph.loss))
    return [blocks, nodes] if len(blocks) > 1 else [nodes]


def _counts(units: int) -> list[int]:
    """Numbers of segments to try: spread from 1 to all by equal factors, the square root among them."""
    steps = [round(units ** (i / (MOST_COUNTS - 1))) for i in range(MOST_COUNTS)] if units else [1]
    return sorted({*steps, max(1, math.isqrt(units))})


def _starts(units: Sequence[int], count: int) -> list[int]:
    return [units[len(units) * i // count] for i in range(1, count)]
