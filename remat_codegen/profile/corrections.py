"""What the graph and the record say of a node's workspace, beside the peak that it took when it ran by itself.

A node alone has no other gradient to add its own to, and nobody else who holds what it is given. Nothing is run here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from remat_codegen.graph.ir import Kind, Node, Phase
from remat_codegen.graph.simplify import Model
from remat_codegen.profile.bench import given_to, gone_back_from
from remat_codegen.profile.numbers import span
from remat_codegen.trace import Origin


def workspaces(model: Model, peaks: Sequence[int], held: frozenset[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """What each node of `model.graph` needs beyond what it reads and writes, from the peak that each took alone, and by how
    much it stays below that at its peak; all in bytes. `held` is what `with_held_gradients` found: with those, a node was
    measured as it is in the step."""
    between = _bytes_between_gradients(model)
    needed, early = [], []
    for node, peak in zip(model.graph.nodes, peaks, strict=True):
        seeds = 0 if node.forward in held else _more_seeds(model, node)
        own = peak + seeds - _written_bytes(model, node)
        needed.append(max(0, own, between.get(node.id, 0)) + model.record.single_number_bytes)
        early.append(max(0, -max(own, between.get(node.id, own))) if _has_its_own_gradients(model, node, held) else 0)
    return tuple(needed), tuple(early)


def with_held_gradients(model: Model) -> frozenset[int]:
    """Forward nodes whose backward node reads a gradient that somebody else holds, such as a part of what was concatenated."""
    found = set()
    for node in model.graph.backward_nodes:
        seeded, read = _seeded_bytes(model, node)
        if node.forward is not None and len(seeded) == 1 and (read < sum(seeded) or _outlasts(model, node.forward)):
            found.add(node.forward)
    return frozenset(found)


@dataclass(frozen=True, slots=True)
class Destined:
    """What becomes of the gradients of what a node is given: those `begun` by other nodes are added to as soon as there is
    another, those of parameters `waiting` for other nodes stay. Of the rest, values' are handed on, and parameters' added to
    .grad once all in the node are there."""

    begun: frozenset[int] = frozenset()
    waiting: frozenset[int] = frozenset()


def with_sums(model: Model) -> list[Destined]:
    """By forward node: the variables that it is given, as gradients come back to them."""
    node_of = {op: node for node, body in enumerate(model.bodies) for op in body.operations}
    parameters = {v.id for v in model.trace.variables if v.origin is Origin.PARAMETER}
    begun: list[set[int]] = [set() for _ in model.bodies]
    waiting: list[set[int]] = [set() for _ in model.bodies]
    for gradient in model.record.gradients:
        born, died = (node_of.get(op) for op in (gradient.born, gradient.died))
        if born is not None and born != died:
            waiting[born] |= parameters.intersection(gradient.of)
        for op in (op for op in gradient.added if op in node_of and node_of[op] != born):
            begun[node_of[op]] |= set(gradient.of).intersection(model.trace.operations[op].reads)
    return [Destined(frozenset(b), frozenset(w - b)) for b, w in zip(begun, waiting, strict=True)]


def _bytes_between_gradients(model: Model) -> dict[int, int]:
    """By backward node: gradients that are there when it adds to one of an earlier node, beside those that nodes read, as the
    record saw them.

    The one that a node makes is needed until the sum is there. A node measured alone has no other to add, and what it makes
    seems to be what it hands on.
    """
    graph, record = model.graph, model.record
    last_read: dict[int, int] = {d: n.id for n in graph.nodes for d in n.reads}
    first_written: dict[int, int] = {d: n.id for n in reversed(graph.nodes) for d in n.writes}
    gradients = [d for d in graph.data if d.kind is Kind.GRADIENT]
    found = {}
    for node in graph.backward_nodes:
        assert node.forward is not None
        most = max(record.operations[op].added_bytes for op in model.bodies[node.forward].operations)
        known = sum(d.nbytes for d in gradients if first_written[d.id] <= node.id <= last_read[d.id])
        found[node.id] = most - known
    return found


def _has_its_own_gradients(model: Model, node: Node, held: frozenset[int]) -> bool:
    """Whether what comes to a backward node is gradients that nobody else holds: once read, they go."""
    if node.phase is not Phase.BACKWARD or node.forward is None or node.forward in held:
        return False
    seeded, read = _seeded_bytes(model, node)
    if len(seeded) == 1 or sum(seeded) != read:
        return seeded == [read]
    graph = model.graph
    shared = any(len(graph.readers[d]) > 1 for d in node.reads if graph.data[d].kind is Kind.GRADIENT)
    return not (shared or _passing(model, node.forward) or _outlasts(model, node.forward))


def _more_seeds(model: Model, node: Node) -> int:
    """By how much the gradients that a backward node was measured with exceed those that it reads: each of its results came
    with one of its own, and what of them was freed early seemed to be room."""
    if node.phase is not Phase.BACKWARD or node.forward is None:
        return 0
    seeded, read = _seeded_bytes(model, node)
    stay = sum(_seed_bytes(model, v) or 0 for v in _passing(model, node.forward))
    return max(0, sum(seeded) - stay - read) if len(seeded) > 1 else 0


def _passing(model: Model, forward: int) -> list[int]:
    """Results of a node whose gradients go through it as they come, as those of views of what other nodes have made: that of a
    slice does not, even if it is a part of one that does."""
    own = model.bodies[forward].operations
    through = [{*g.of} for g in model.record.gradients if g.born > max(own) and g.died < min(own)]
    reads = {v: model.trace.operations[op].reads for op in own for v in model.trace.operations[op].made}
    return [v for v in gone_back_from(model, own) if any(v in of and not of.isdisjoint(reads[v]) for of in through)]


def _written_bytes(model: Model, node: Node) -> int:
    """What is new of what a node writes: what it adds to a gradient that is there is needed beside that."""
    return sum(model.graph.data[d].nbytes for d in node.writes if model.graph.producers[d][0] == node.id)


def _outlasts(model: Model, forward: int) -> bool:
    """Whether a gradient that comes to a node outlives the first operation there that goes back: that of a residual waits for
    what the node makes, to be added to it."""
    own, given = model.bodies[forward].operations, {*given_to(model, forward)}
    first = max((g.born for g in model.record.gradients if g.born in own), default=-1)
    waiting = (g for g in model.record.gradients if g.born > max(own) and min(own) <= g.died < first)
    return any(not given.isdisjoint(g.of) for g in waiting)


def _seeded_bytes(model: Model, node: Node) -> tuple[list[int], int]:
    """The sizes of the gradients that a backward node is measured with, and what of them is its own to free."""
    assert node.forward is not None
    sizes = (_seed_bytes(model, v) for v in gone_back_from(model, model.bodies[node.forward].operations))
    read = sum(model.graph.data[d].nbytes for d in node.reads if model.graph.data[d].kind is Kind.GRADIENT)
    return [nbytes for nbytes in sizes if nbytes is not None], read


def _seed_bytes(model: Model, variable: int) -> int | None:
    """The bytes of the gradient that comes to a variable, if one does."""
    stride = model.record.variables[variable].gradient_strides
    v = model.trace.variables[variable]
    return None if stride is None else v.dtype.itemsize * span(replace(v, stride=stride))
