"""A step time that no schedule within the budget can beat.

Take any valid schedule whose peak is at most the budget B, and *cuts* c_0 < c_1 < ... < c_k: the loss and some backward
nodes. Each of them runs exactly once and in this order. For each cut j and each data node d written before the loss, let
k[j,d] = 1 if d is alive while c_j runs; let y[j,i] = 1 if forward node i runs between c_j and c_{j+1} (after the last cut:
until the end). Then

    (1)  what c_j reads is alive:            k[j,d] = 1                       for each such d that c_j reads
    (2)  memory:                             sum of m_d k[j,d] <= B - (gradients alive at c_j, what it writes, its workspace)
    (3)  nothing comes from nothing:         k[j+1,d] <= k[j,d] + y[j,p]      p the producer of d
    (4)  a backward node in the interval (or c_{j+1} itself, by 1 and 3) that reads d:   k[j,d] + y[j,p] >= 1
    (5)  a node that runs again reads d:     y[j,i] <= k[j,d] + y[j,p]
    (6)  nodes that may run once:            y[j,i] = 0
    (7)  the outputs of the step are alive:  k[j,d] = 1

(1), (6) and (7) restate the rules of `schedule.validate`; (2) that of `simulate`, which counts at least all that is alive while
a node runs; a gradient is alive from its first contribution to its last reader, because no backward node runs twice. (3) to (5)
hold because a copy read or alive at some moment after c_j was alive while c_j ran, or its producer ran since: forgetting creates
nothing. Every node runs for the first time by itself, forward nodes before the loss, so the schedule's time is at least

    sum of all c_i  +  sum of c_i y[j,i],

and its 0-1 point is feasible for the program that minimises this sum under (1) to (7). The optimum of the linear
relaxation, 0 <= k, y <= 1, is therefore a lower bound, for schedules that recompute before the loss, too. Times are whole, so
it is rounded up, less what the solver's tolerance may be wrong by. One cut, the loss, gives the knapsack of what to keep,
with the ancestors that recomputation needs; each further cut adds the memory of one moment of the backward pass.

Cost model: times and sizes of the profile and graph; only the relaxation is solved. Complexity: a linear program of about
cuts x (data + nodes) columns; first the loss alone, then more cuts, spread evenly over the memory that the backward pass
takes, while columns and time allow. Ties: none. Oracle: `least_time` of `tests/graphs.py` and `checkmate.solve`, never below.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import mip

from remat_codegen.graph.ir import Graph, Kind
from remat_codegen.plan.ends import fixed
from remat_codegen.plan.milp import Program
from remat_codegen.profile.costs import Profile

MOST_COLUMNS = 20000  # a linear program of this size takes a few seconds
SCALE = 1e4  # what the sum of all times becomes in the objective, and the budget in the rows
SAFETY = 1e-6  # the solver's tolerance, relative to SCALE


@dataclass(frozen=True, slots=True)
class Bound:
    """`time_ns` that no schedule within the budget can beat; None where no schedule fits it. `cuts` it was found with."""

    time_ns: int | None
    cuts: int


def bound(graph: Graph, profile: Profile, budget_bytes: int, *, cuts: int | None = None, time_limit: float = 8.0) -> Bound:
    """The best bound found in about `time_limit` seconds, or the one of a given number of cuts."""
    base = sum(profile.time_ns)
    best = Bound(base, 0)
    started = time.monotonic()
    facts = _Facts(graph, profile, budget_bytes)
    for count in [cuts] if cuts is not None else _counts(graph, facts.columns):
        before = time.monotonic()
        found = facts.solve(_cuts(graph, count), time_limit - (before - started))
        if found is None:
            continue
        if math.isinf(found):
            return Bound(None, count)
        best = max(best, Bound(base + round(found), count), key=lambda b: b.time_ns or 0)
        now = time.monotonic()
        if best.time_ns == base or (now - before) * 3 > time_limit - (now - started):
            break
    return best


def _counts(graph: Graph, columns: int) -> list[int]:
    """Numbers of cuts to try: one, then twice as many each time."""
    most = max(1, min(len(graph.nodes) - graph.loss, MOST_COLUMNS // max(columns, 1)))
    counts = [1]
    while counts[-1] < most:
        counts.append(min(most, counts[-1] * 4))
    return counts


def _cuts(graph: Graph, count: int) -> list[int]:
    """The loss, and backward nodes that stand evenly among the others."""
    after = len(graph.nodes) - graph.loss
    return sorted({graph.loss + after * i // count for i in range(count)})


class _Facts:
    """What does not depend on the cuts."""

    def __init__(self, graph: Graph, profile: Profile, budget_bytes: int) -> None:
        self.graph, self.profile, self.budget = graph, profile, budget_bytes
        producers, readers = graph.producers(), graph.readers()
        self.maker = [p[0] for p in producers]
        self.early = [p < graph.loss for p in self.maker]
        self.once = fixed(graph) - {n.id for n in graph.nodes if n.recomputable and n.id < graph.loss and self._shares(n.id)}
        outputs = set(graph.outputs)
        self.late: list[tuple[int, int, int]] = []  # first and last node at which it is alive, and bytes
        for data, (writing, reading) in enumerate(zip(producers, readers, strict=True)):
            if not self.early[data]:
                end = len(graph.nodes) if data in outputs else reading[-1] if reading else writing[-1]
                whole = graph.data[data].kind is Kind.GRADIENT or len(writing) == 1
                self.late.append((writing[0], end if whole else writing[0], graph.data[data].nbytes))
        self.relevant = self._relevant()
        self.columns = 2 * len(self.relevant)

    def _shares(self, node: int) -> bool:
        """Whether a node is one of several that write the same data: it may run again by the validator's rules."""
        return node not in self._outputs_makers() and any(len(self.graph.producers()[d]) > 1 for d in self.graph.nodes[node].writes)

    def _outputs_makers(self) -> set[int]:
        return {n.id for n in self.graph.forward_nodes if set(n.writes) & set(self.graph.outputs)}

    def _relevant(self) -> list[int]:
        """The early data that the backward nodes read, or that rebuilding those may need."""
        found: set[int] = set()
        pending = [d for n in self.graph.nodes[self.graph.loss :] for d in n.reads if self.early[d]]
        while pending:
            data = pending.pop()
            if data not in found:
                found.add(data)
                if self.maker[data] not in self.once:
                    pending.extend(self.graph.nodes[self.maker[data]].reads)
        return sorted(found)
