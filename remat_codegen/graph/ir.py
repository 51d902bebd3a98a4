"""The graph that everything after tracing works on: compute nodes and data nodes (Rockmate, section 3.2 and appendix A.6).

    Graph  = nodes, data, loss, blocks, outputs
    Node   = forward | loss | backward; reads data, writes data
    Data   = value | phantom | gradient; bytes

It is structure only: what a node costs stands in the profile. Ids are dense, and node ids are a topological order: the order
in which a step without recomputation runs. A *value* is the storage an operation allocates (views of it included), a
*phantom* is what autograd saves for the backward pass beside values (a dropout mask, a mean), a *gradient* is a storage that
lives from one backward node to a later one. Parameters, buffers and the model's inputs are not data nodes: they cost no budget.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import astuple, dataclass
from enum import StrEnum
from functools import cached_property


class Phase(StrEnum):
    """The part of a training step that a compute node belongs to."""

    FORWARD = "forward"
    LOSS = "loss"
    BACKWARD = "backward"


class Kind(StrEnum):
    """What a data node holds."""

    VALUE = "value"
    PHANTOM = "phantom"
    GRADIENT = "gradient"


@dataclass(frozen=True, slots=True)
class Data:
    """A piece of memory that is allocated, read and freed as one. `nbytes` in bytes."""

    id: int
    name: str
    kind: Kind
    nbytes: int


@dataclass(frozen=True, slots=True)
class Node:
    """A computation. `reads` must be alive when it runs; `writes` are alive after it.

    `forward` is, for a backward node, the id of the forward node it belongs to. A forward node that is not `recomputable`
    runs once (it changes something that outlives it). `signature` says what is computed, so that equal
    signatures cost the same.
    """

    id: int
    name: str
    phase: Phase
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    forward: int | None = None
    recomputable: bool = True
    signature: str = ""


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive forward nodes `first..last` between two 1-separators, and their backward nodes (appendix A.4).

    `input` is the one value that enters (None for the first block) and `output` the one that leaves (None for the last).
    Blocks of equal `kind` are equal but for names (appendix A.5).
    """

    id: int
    first: int
    last: int
    input: int | None
    output: int | None
    kind: int


@dataclass(frozen=True)
class Graph:
    """A training step as compute and data nodes. `loss` is a node's id; `outputs` are data that live to the end of the step."""

    nodes: tuple[Node, ...]
    data: tuple[Data, ...]
    loss: int
    outputs: tuple[int, ...]
    blocks: tuple[Block, ...] = ()

    @property
    def forward_nodes(self) -> tuple[Node, ...]:
        """The nodes before the loss."""
        return self.nodes[: self.loss]

    @property
    def backward_nodes(self) -> tuple[Node, ...]:
        """The nodes after the loss."""
        return self.nodes[self.loss + 1 :]

    @cached_property
    def producers(self) -> tuple[tuple[int, ...], ...]:
        """For each data node, the nodes that write it, in order."""
        return self._incidence(lambda node: node.writes)

    @cached_property
    def readers(self) -> tuple[tuple[int, ...], ...]:
        """For each data node, the nodes that read it, in order."""
        return self._incidence(lambda node: node.reads)

    def _incidence(self, edges) -> tuple[tuple[int, ...], ...]:
        table: list[list[int]] = [[] for _ in self.data]
        for node in self.nodes:
            for data in edges(node):
                table[data].append(node.id)
        return tuple(map(tuple, table))

    def digest(self) -> str:
        """The same for the same model, whatever it costs to run."""
        return hashlib.sha256(repr(astuple(self)).encode()).hexdigest()


def shown_name(data: Data) -> str:
    """A data node's name for people."""
    if data.kind is Kind.PHANTOM:
        return f"{data.name.removesuffix(' phantom')} (saved by autograd)"
    if data.kind is Kind.GRADIENT and " of " in data.name:
        return f"gradient of {data.name.partition(' of ')[2]}"
    return data.name


def total_bytes(graph: Graph, data: Iterable[int]) -> int:
    """The bytes of some data nodes together."""
    return sum(graph.data[d].nbytes for d in data)


def validate(graph: Graph) -> None:
    """Raises ValueError where a graph breaks the rules that the module docstring states."""
    if [n.id for n in graph.nodes] != list(range(len(graph.nodes))):
        raise ValueError("node ids are not dense")
    if [d.id for d in graph.data] != list(range(len(graph.data))):
        raise ValueError("data ids are not dense")
    if graph.nodes[graph.loss].phase is not Phase.LOSS:
        raise ValueError(f"node {graph.loss} is not the loss")
    written: set[int] = set()
    for node in graph.nodes:
        expected = Phase.FORWARD if node.id < graph.loss else Phase.LOSS if node.id == graph.loss else Phase.BACKWARD
        if node.phase is not expected:
            raise ValueError(f"node {node.id} ({node.name}) stands on the wrong side of the loss")
        for data in (*node.reads, *node.writes):
            if not 0 <= data < len(graph.data):
                raise ValueError(f"node {node.id} ({node.name}) names data {data}, which does not exist")
        missing = [graph.data[d].name for d in node.reads if d not in written]
        if missing:
            raise ValueError(f"node {node.id} ({node.name}) reads {missing[0]} before anything writes it")
        written.update(node.writes)
    for item in graph.data:
        if item.nbytes < 0:
            raise ValueError(f"data {item.id} ({item.name}) has a negative size")
        if item.id not in written:
            raise ValueError(f"data {item.id} ({item.name}) is written by no node")
