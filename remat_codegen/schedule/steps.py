"""The one form of every plan: a list of steps, either compute or forget (rk-Exec, appendix D). Nothing is freed unless a
`Forget` says so, and `with_forgets` says so as early as it can."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from remat_codegen.graph.ir import Graph, Kind


@dataclass(frozen=True, slots=True)
class Compute:
    """Run a node: what it reads must be alive, what it writes is alive afterwards."""

    node: int


@dataclass(frozen=True, slots=True)
class Forget:
    """Free a data node."""

    data: int


Step = Compute | Forget


@dataclass(frozen=True, slots=True)
class Schedule:
    """A whole training step, in order. `beside_bytes` are what some runs of nodes, counted from 0, find held beside the data
    that are alive: second copies of these."""

    steps: tuple[Step, ...]
    beside_bytes: Mapping[int, int] = field(default_factory=dict, hash=False)


def with_forgets(graph: Graph, order: Sequence[int], held: Mapping[int, Collection[int]] | None = None) -> Schedule:
    """The schedule that runs nodes in `order` and forgets each data node as soon as nothing reads that copy of it any more.

    A copy of a value or phantom ends where a node writes it again; further contributions to a gradient belong to the same copy.
    An output is what the first run made: whoever called has it, and another copy ends at once. `held` are data, by position in
    the order, that somebody else holds while that node runs: a variable of the program does.
    """
    outputs = set(graph.outputs)
    read_next: dict[int, bool] = {}  # walking backwards: whether the next step that touches a data node needs the present copy
    reversed_steps: list[Step] = []
    for position in range(len(order) - 1, -1, -1):
        node_id = order[position]
        node = graph.nodes[node_id]
        more = held.get(position, ()) if held else ()
        touched = sorted({*node.reads, *node.writes, *more}, reverse=True)
        reversed_steps.extend(Forget(d) for d in touched if not read_next.get(d, d in outputs))
        reversed_steps.append(Compute(node_id))
        for data in node.writes:
            read_next[data] = data in outputs or graph.data[data].kind is Kind.GRADIENT
        for data in (*node.reads, *more):
            read_next[data] = True
    return Schedule(tuple(reversed(reversed_steps)))


def without_recomputation(graph: Graph) -> Schedule:
    """The step as PyTorch runs it: every node once, everything freed as early as it can be."""
    return with_forgets(graph, range(len(graph.nodes)))
