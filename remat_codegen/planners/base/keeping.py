"""What planners that choose *what to keep* have in common: a set of kept data becomes an order, candidates become a plan.

`keeping`: forward, loss, and before each backward node the nodes that rebuild what it reads, in the graph's order. What is
rebuilt is then held for its later readers, or rebuilt again for each of them where it is `fleeting`. Complexity: O(backward
nodes x rebuilt nodes). Ties: the first candidate, in the order tried, of the least time, then of the least peak.

No planner here computes anything again before the loss, because a generated file's forward pass is plain PyTorch, each
operation once. Little is lost: the forward pass holds less than the backward pass, unless what later forward nodes read is
itself most of the memory (long skips); budgets below that are INFEASIBLE to all. `rk_checkmate.solve` and `dtr` can do without
that rule (`recompute_in_forward`); on the models of benchmarks/results/compare.md that lets DTR keep to no further budget.
`bound` holds without the rule.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence, Set

from remat_codegen.graph.ir import Graph, Node
from remat_codegen.planners.base.judge import Candidate, judge
from remat_codegen.planners.base.result import Plan, Status
from remat_codegen.profile.costs import Profile
from remat_codegen.schedule import with_forgets
from remat_codegen.schedule.order import fixed, without_dead_runs

MOST_RUNS = 60_000  # an order for looking at, not one that anybody would run


def rebuildable(graph: Graph) -> tuple[int, ...]:
    """Data written before the loss whose producer may run again."""
    once = fixed(graph)
    return tuple(d for d, p in enumerate(graph.producers) if p[0] not in once)


def reruns(graph: Graph, producers: Sequence[Sequence[int]], node: Node, missing: Set[int]) -> set[int]:
    """The nodes that have to run again so that `node` finds what it reads, where `missing` is not alive."""
    again: set[int] = set()
    pending = [d for d in node.reads if d in missing]
    while pending:
        producer = producers[pending.pop()][0]
        if producer not in again:
            again.add(producer)
            pending.extend(d for d in graph.nodes[producer].reads if d in missing)
    return again


def keeping(graph: Graph, kept: Collection[int], fleeting: Collection[int] = ()) -> tuple[int, ...]:
    """The order that keeps `kept` over the loss (and what cannot be rebuilt), and rebuilds the rest just in time.

    Of what is rebuilt, `fleeting` is rebuilt for each backward node that needs it, all else once; beyond `MOST_RUNS` runs
    nothing is fleeting any more, because on thousands of nodes that takes the square of their number.
    """
    lost = set(rebuildable(graph)) - set(kept)
    producers = graph.producers
    have = {d for d, p in enumerate(producers) if p[0] < graph.loss} - lost
    order = list(range(graph.loss + 1))
    for node in graph.backward_nodes:
        again = reruns(graph, producers, node, lost - have)
        order.extend([*sorted(again), node.id])
        short = len(order) < MOST_RUNS
        have.update(d for i in again for d in graph.nodes[i].writes if not (short and d in fleeting))
    return without_dead_runs(graph, order)


def candidate(graph: Graph, profile: Profile, order: Iterable[int]) -> Candidate:
    """An order of node ids as a judged schedule."""
    return judge(graph, profile, with_forgets(graph, without_dead_runs(graph, tuple(order))))


def fastest(candidates: Iterable[Candidate], budget_bytes: int) -> Candidate | None:
    """The first of the fastest candidates that fit, or None."""
    fitting = [c for c in candidates if c.peak_bytes <= budget_bytes]
    return min(fitting, key=lambda c: (c.time_ns, c.peak_bytes), default=None)


def chosen(
    planner: str,
    candidates: Sequence[Candidate],
    profile: Profile,
    budget_bytes: int,
    notes: Sequence[str] = (),
    status: Status = Status.FEASIBLE,
) -> Plan:
    """The plan that takes the fastest candidate that fits; INFEASIBLE, with the least peak among them, where none does."""
    found = fastest(candidates, budget_bytes)
    if found is None:
        least = min(candidates, key=lambda c: c.peak_bytes, default=None)
        peak, schedule = (None, None) if least is None else (least.peak_bytes, least.schedule)
        return Plan(planner, Status.INFEASIBLE, None, 0, 0, None, peak, schedule, tuple(notes))
    base = sum(profile.time_ns)
    status = Status.OPTIMAL if found.time_ns == base else status
    return Plan(planner, status, found.schedule, found.time_ns, found.peak_bytes, base, notes=tuple(notes))
