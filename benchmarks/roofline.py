"""Costs of a traced model's nodes on a V100 that is not there, for paper.py alone, by a roofline (Williams et al., 2009).

A kernel takes the time of its floating-point operations or of its bytes, whichever is longer, and at least what starting one
takes. Products and convolutions are counted; everything else moves its arguments and results through memory once, and going
back once more what it saved. Undoing a product is a product for each operand that gets a gradient.

Workspace is what a node allocates beside what it hands on: intermediate results forward, and what the record saw of gradients
that come and go backward. What a library asks for inside its kernels is not known.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from remat_codegen.graph.ir import Kind, Phase
from remat_codegen.graph.simplify import Model
from remat_codegen.profile.costs import Profile
from remat_codegen.profile.devices import Device
from remat_codegen.trace import Operation, Origin, Variable

PRODUCTS = ("matmul", "bmm", "mm")
WITHOUT_BACKWARD_BYTES = ("add", "sub")  # their gradients are handed through


def estimate(model: Model, device: Device) -> Profile:
    """Time and workspace of every node of `model.graph`. The loss costs nothing: what it is, nobody said."""
    times, room = [], []
    for node in model.graph.nodes:
        if node.phase is Phase.LOSS:
            times.append(0)
            room.append(0)
            continue
        forward = node.id if node.forward is None else node.forward
        back = node.phase is Phase.BACKWARD
        ops = [model.trace.operations[i] for i in model.bodies[forward].operations]
        times.append(sum(_time_ns(model, op, device, back) for op in ops))
        room.append(_backward_room(model, node.id) if back else _forward_room(model, node.id))
    return Profile(tuple(times), tuple(room), f"roofline: {device.name}")


def _time_ns(model: Model, op: Operation, device: Device, back: bool) -> int:
    """What one operation takes; nothing where it only looks at memory."""
    read = [model.trace.variables[v] for v in op.reads]
    made = [model.trace.variables[v] for v in op.made]
    record = model.record
    own = {record.maker_of(v.id) for v in made}
    if op.id not in own and not record.operations[op.id].mutated or back and not record.operations[op.id].backward:
        return 0
    flops, moved = _flops(op, read, made), _moved_bytes(op, read, made)
    if not back:
        return _roofline(device, flops, moved)
    operands = [v for v in read if v.dtype.is_floating_point and _gets_gradient(model, v)]
    if flops:  # one product for each operand
        return sum(_roofline(device, flops, moved) for _ in operands[:2])
    if op.base in WITHOUT_BACKWARD_BYTES:
        given = max(map(_nbytes, made), default=0)
        return sum(_roofline(device, 0, given + _nbytes(v)) for v in operands if _nbytes(v) < given)  # summed over rows
    return _roofline(device, 0, moved + sum(map(_nbytes, made)))


def _gets_gradient(model: Model, variable: Variable) -> bool:
    return variable.requires_grad or model.record.variables[variable.id].requires_grad


def _roofline(device: Device, flops: float, moved: int) -> int:
    compute = flops / (device.flops * device.reached_flops)
    memory = moved / (device.bytes_per_s * device.reached_bytes)
    return max(device.launch_ns, round(max(compute, memory) * 1e9))


def _flops(op: Operation, read: Sequence[Variable], made: Sequence[Variable]) -> float:
    """Of a product or convolution: two for each multiplication."""
    if not made or len(read) < 2:
        return 0.0
    out = math.prod(made[0].shape)
    if op.base in PRODUCTS:
        return 2.0 * out * read[0].shape[-1]
    if op.base == "addmm":
        return 2.0 * out * read[1].shape[-1]
    if op.base == "linear":
        return 2.0 * out * read[1].shape[-1]
    if op.base.startswith("conv") and len(read[1].shape) > 2:
        return 2.0 * out * math.prod(read[1].shape[1:])
    if op.base == "scaled_dot_product_attention":
        return 4.0 * out * read[1].shape[-2]
    return 0.0


def _moved_bytes(op: Operation, read: Sequence[Variable], made: Sequence[Variable]) -> int:
    """What an operation reads and writes; of a table only the rows that it looks up."""
    if op.base == "embedding":
        return 2 * sum(map(_nbytes, made)) + sum(map(_nbytes, read[1:]))
    return sum(map(_nbytes, (*read, *made)))


def _nbytes(variable: Variable) -> int:
    return math.prod(variable.shape) * variable.dtype.itemsize


def _forward_room(model: Model, node: int) -> int:
    """What intermediate results take beyond what is not yet allocated of what the node writes."""
    record, graph = model.record, model.graph
    body = model.bodies[node].operations
    kept = _kept_storages(model, node)
    last: dict[int, int] = {}
    for i in body:
        op = model.trace.operations[i]
        for variable in (*op.reads, *op.made):
            last[record.variables[variable].storage] = i
    inner = [s for s in last if record.storages[s].operation in body and s not in kept]
    written = sum(graph.data[d].nbytes for d in graph.nodes[node].writes)
    most = 0
    for i in body:
        made = sum(record.storages[s].nbytes for s in kept if (record.storages[s].operation or 0) <= i)
        alive = sum(record.storages[s].nbytes for s in inner if (record.storages[s].operation or 0) <= i <= last[s])
        most = max(most, made + alive)
    return max(0, most - written)


def _kept_storages(model: Model, node: int) -> frozenset[int]:
    """The storages of the values that a node writes."""
    values = set(model.bodies[node].values)
    return frozenset(model.record.storages_of(v.id for v in model.trace.variables if model.data_of[v.id] in values))


def _backward_room(model: Model, node: int) -> int:
    """Gradients that come and go while a backward node runs, without those of parameters."""
    graph, record = model.graph, model.record
    forward = graph.nodes[node].forward
    assert forward is not None
    body = model.bodies[forward].operations
    most = max(record.operations[op].most_gradient_bytes for op in body)
    readers, producers = graph.readers, graph.producers
    known = sum(
        d.nbytes
        for d in graph.data
        if d.kind is Kind.GRADIENT and producers[d.id][0] <= node <= max(readers[d.id], default=producers[d.id][-1])
    )
    used = {v for op in body for v in model.trace.operations[op].reads}
    parameters = (model.trace.variables[v] for v in used)
    own = sum(_nbytes(v) for v in parameters if v.origin is Origin.PARAMETER and v.requires_grad)
    return max(0, most - known - own)
