"""A plan as an order of node ids, without its forgetting: which nodes may run twice, and what it keeps over the loss."""

from __future__ import annotations

from collections.abc import Sequence

from remat_codegen.graph.ir import Graph, Kind
from remat_codegen.schedule.steps import Compute, Schedule


def order_of(schedule: Schedule) -> tuple[int, ...]:
    """The nodes that a schedule runs, in order."""
    return tuple(step.node for step in schedule.steps if isinstance(step, Compute))


def is_same_but_for_turns(graph: Graph, order: Sequence[int], other: Sequence[int]) -> bool:
    """Whether the same nodes run again between the same backward nodes, in whatever order among each other: which comes first
    follows from how autograd asks for them."""
    return _between(graph, order) == _between(graph, other)


def _between(graph: Graph, order: Sequence[int]) -> list[list[int]]:
    """The nodes that run up to each backward node, and after the last one."""
    found: list[list[int]] = [[]]
    for node in order:
        found[-1].append(node)
        if node > graph.loss:
            found[-1].sort()
            found.append([])
    return found


def runs_once(graph: Graph) -> frozenset[int]:
    """The nodes that must not run again: those that change what outlives them, and those that write what the caller holds."""
    outputs = set(graph.outputs)
    return frozenset(n.id for n in graph.nodes if n.id >= graph.loss or not n.recomputable or outputs.intersection(n.writes))


def fixed(graph: Graph) -> frozenset[int]:
    """The nodes that run once: those of `runs_once`, and those that write a value together with others."""
    shared = {p for writing in graph.producers if len(writing) > 1 for p in writing}
    return runs_once(graph) | shared


def settled_lives(graph: Graph) -> dict[int, tuple[int, int]]:
    """Of the data that the loss or a backward node writes first, the nodes during which each begins and ends to live: the same
    in every order, because these nodes run once, and in order."""
    outputs, end, loss = set(graph.outputs), len(graph.nodes) - 1, graph.loss
    lives = enumerate(zip(graph.producers, graph.readers, strict=True))
    return {d: (ws[0], end if d in outputs else max((*rs, *ws))) for d, (ws, rs) in lives if ws[0] >= loss}


def without_dead_runs(graph: Graph, order: Sequence[int]) -> tuple[int, ...]:
    """Drops the repeated runs of which no copy is read. First runs stay, because a step runs every node."""
    nodes, data, gradient = graph.nodes, graph.data, Kind.GRADIENT
    first: dict[int, int] = {}
    for position, number in enumerate(order):
        first.setdefault(number, position)
    wanted = [False] * len(data)
    for output in graph.outputs:
        wanted[output] = True
    kept: list[int] = []
    for position in range(len(order) - 1, -1, -1):
        number = order[position]
        node = nodes[number]
        if first[number] != position and not any(wanted[d] for d in node.writes):
            continue
        kept.append(number)
        for d in node.writes:
            wanted[d] = data[d].kind is gradient
        for d in node.reads:
            wanted[d] = True
    return tuple(kept[::-1])


def saved_bytes(graph: Graph, order: Sequence[int]) -> int:
    """What an order keeps over the loss, beside what the loss reads."""
    return sum(graph.data[d].nbytes for d in alive_at_loss(graph, order) if d not in graph.nodes[graph.loss].reads)


def alive_at_loss(graph: Graph, order: Sequence[int]) -> frozenset[int]:
    """The data that an order holds while the loss runs, without those the loss writes."""
    where = order.index(graph.loss)
    made = {d for i in order[:where] for d in graph.nodes[i].writes}
    needed = set(graph.outputs)
    for i in reversed(order[where:]):
        needed -= set(graph.nodes[i].writes)
        needed |= set(graph.nodes[i].reads)
    return frozenset(made & needed)
