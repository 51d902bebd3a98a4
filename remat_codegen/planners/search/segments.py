"""Starting orders: segments of the forward pass, for any graph; only what crosses between them is kept (Chen et al. 2016).

Cuts are placed so that the segments hold about equal bytes, each moved to where the least crosses nearby.
"""

from __future__ import annotations

from collections.abc import Sequence, Set

import numpy as np

from remat_codegen.schedule.lives import Order, Problem
from remat_codegen.schedule.order import without_dead_runs

GROWTH = 1.6  # from one number of segments to the next


def segment_orders(problem: Problem, counts: Sequence[int]) -> list[Order]:
    """Chen's plan for any graph, with sqrt(n) nodes a segment, and with other numbers of segments cut where little crosses."""
    last = _last_forward_reads(problem)
    crossing = np.zeros(problem.loss + 1, dtype=np.int64)
    weight = np.zeros(problem.loss, dtype=np.float64)
    for data, producer in enumerate(problem.producer):
        if producer < problem.loss:
            weight[producer] += problem.size[data]
            crossing[producer : max(last[data], producer)] += problem.size[data]
    total = np.cumsum(weight)
    size = max(1, round(problem.loss**0.5))
    cuts = [list(range(size - 1, problem.loss - 1, size)), *(_cuts(total, crossing, count) for count in counts)]
    return list(dict.fromkeys(rebuilding(problem, _crossing(problem, last, c)) for c in cuts))


def _crossing(problem: Problem, last: Sequence[int], cuts: Sequence[int]) -> set[int]:
    """What a forward node, or the loss, reads after one of the cuts, and was made before it."""
    return {d for d, p in enumerate(problem.producer) if p < problem.loss and any(p <= c < last[d] for c in cuts)}


def _last_forward_reads(problem: Problem) -> list[int]:
    """For each data node the last node up to the loss that reads it."""
    last = [-1] * len(problem.size)
    for node in range(problem.loss + 1):
        for data in problem.reads[node]:
            last[data] = node
    return last


def _cuts(total: np.ndarray, crossing: np.ndarray, count: int) -> list[int]:
    """Positions that part the bytes evenly, each moved to where the least crosses nearby."""
    cuts: list[int] = []
    reach = total[-1] / count / 3
    for k in range(1, count):
        aim = total[-1] * k / count
        low, high = np.searchsorted(total, [aim - reach, aim + reach])
        near = range(int(low), min(int(high) + 1, len(total)))
        if near:
            cuts.append(min(near, key=lambda p: (int(crossing[p]), abs(total[p] - aim))))
    return sorted(set(cuts))


def starting_orders(problem: Problem) -> list[Order]:
    """The plain order, and segments in growing numbers."""
    counts = sorted({round(2 * GROWTH**k) for k in range(16)})
    return list(dict.fromkeys([problem.plain, *segment_orders(problem, [c for c in counts if c <= max(2, problem.loss // 3)])]))


def rebuilding(problem: Problem, kept: Set[int]) -> Order:
    """The order that holds `kept` over the loss and rebuilds the rest when it is first read, then holds it as well."""
    order = list(range(problem.loss + 1))
    have = set(kept)
    have.update(d for i in range(problem.loss) if i in problem.once for d in problem.writes[i])
    for node in range(problem.loss + 1, len(problem.plain)):
        again = _closure(problem, problem.reads[node], have)
        order.extend([*again, node])
        have.update(d for i in again for d in problem.writes[i])
    return without_dead_runs(problem.graph, order)


def _closure(problem: Problem, wanted: Sequence[int], have: Set[int]) -> list[int]:
    """The nodes to run so that `wanted` exists, in order."""
    again: set[int] = set()
    pending = [d for d in wanted if d not in have]
    while pending:
        node = problem.producer[pending.pop()]
        if node not in again:
            again.add(node)
            pending.extend(d for d in problem.reads[node] if d not in have)
    return sorted(again)
