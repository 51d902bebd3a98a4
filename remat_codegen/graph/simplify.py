"""From operations to compute nodes and data nodes (rk-GB, appendix A.3 and A.6).

Three steps. *Groups*: each operation that allocates starts one, and the views, in-place operations and sizes that follow
join it; but what looks at parameters goes with what comes next. *Merging*: a group whose result is only wanted by the next
one joins it, where keeping the later result is never worse than keeping the earlier. *Nodes*: each group becomes a forward
node, and a backward node where autograd goes back through it; what they read and write comes from the record of a step.

Groups are contiguous in the order of the trace, so their backward steps are contiguous in the order of the engine.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from remat_codegen.errors import UnsupportedError
from remat_codegen.graph.allocator import allocated_bytes
from remat_codegen.graph.blocks import cut_into_blocks
from remat_codegen.graph.determinism import not_repeated
from remat_codegen.graph.ir import Data, Graph, Kind, Node, Phase, validate
from remat_codegen.graph.nature import STATISTICS, moves_statistics
from remat_codegen.graph.record import NO_MEMORY, Record
from remat_codegen.trace import Operation, Ref, Trace, called, function_call, location, substitute

LITTLE = 16384  # bytes that may stay: until the next operation (tables of positions are one node for so much), or a node's end
_NUMBERED = re.compile(r"device\(type='(\w+)', index=\d+\)")
FEW = 12  # operations; an in-place operation further from what it changes stays alone, and what it changes is not rebuilt


@dataclass(frozen=True, slots=True)
class Body:
    """What a forward node consists of. `operations` are consecutive; `values` and `phantom` are its data nodes."""

    operations: tuple[int, ...]
    values: tuple[int, ...]
    phantom: int | None


@dataclass(frozen=True, slots=True)
class Model:
    """A traced model with its graph: `bodies` by forward node, `data_of` the data node that holds each variable
    (None for what is given)."""

    trace: Trace
    record: Record
    graph: Graph
    bodies: tuple[Body, ...]
    data_of: tuple[int | None, ...]


def simplify(trace: Trace, record: Record) -> Model:
    """The graph of a traced model. Raises UnsupportedError, naming the user's line, for what cannot be planned."""
    trace = with_strides(trace, record)
    check_views(trace, record)
    groups = merge_groups(trace, record, group_operations(trace, record))
    return _Builder(trace, record, groups).build()


def with_strides(trace: Trace, record: Record) -> Trace:
    """The trace with the strides that were recorded, which are sometimes other than torch.export's."""
    pairs = zip(trace.variables, (row.strides for row in record.variables), strict=True)
    return replace(trace, variables=tuple(v if s is None or s == v.stride else replace(v, stride=s) for v, s in pairs))


def main_operation(model: Model, node: int) -> Operation:
    """The operation that a forward node is named after, else its first one."""
    own = [model.trace.operations[op] for op in model.bodies[node].operations]
    wanted = model.graph.nodes[node].name
    names = {v: model.trace.variables[v].name for op in own for v in op.made}
    return next((op for op in own if any(names.get(v) == wanted for v in op.made)), own[0])


def allocates(record: Record, operation: Operation) -> bool:
    """Whether an operation owns memory, rather than looking at or changing what exists."""
    owned = {record.maker_of(v) for v in operation.made}
    return operation.id in owned or bool(record.operations[operation.id].phantoms)


def group_operations(trace: Trace, record: Record) -> list[tuple[int, ...]]:
    """Consecutive operations, of which the first allocates that does more than look at parameters or inputs.

    What looks at those stands with what comes next, which is who uses it as a rule: the way back then frees a parameter's
    gradient where it is made, and does not hold it while another group is undone. Leading views belong to the first group.
    What only changes a buffer (a counter of batches) stands alone: it must not run again, its neighbours may.
    """
    groups: list[list[int]] = []
    pending: list[int] = []  # who come before the next group, if nothing sends them back to the latest
    last: list[int] | None = None  # the latest group that owns memory
    unread = unread_views(trace, record)
    for operation in trace.operations:
        if operation.id in unread:
            continue
        allocating = allocates(record, operation)
        counts = changes_given(record, operation) and not allocating
        leads = _looks_at_given(record, operation) or bool(pending and is_view(record, operation))
        if leads or (last is None and not counts and not allocating):
            pending.append(operation.id)
            continue
        if last is not None and not allocating:
            last += pending
            pending = []
        if last is None or counts or allocating:
            groups.append([*pending, operation.id])
            pending, last = [], last if counts else groups[-1]
        else:
            last.append(operation.id)
    if last is not None:
        last += pending
    elif pending:
        groups.append(pending)
    return _join_mutations(trace, record, [tuple(g) for g in groups])


def _looks_at_given(record: Record, operation: Operation) -> bool:
    """Whether an operation only looks at parameters, buffers or inputs."""
    looked_at = record.storages_of(operation.reads) - {NO_MEMORY}
    return bool(looked_at) and is_view(record, operation) and all(record.storages[s].operation is None for s in looked_at)


def unread_views(trace: Trace, record: Record) -> frozenset[int]:
    """Operations that only look at memory, and whose results nobody uses but others like them: they are left out."""
    wanted = {r.variable for r in trace.outputs if isinstance(r, Ref)}
    unread = set()
    for operation in reversed(trace.operations):
        if is_view(record, operation) and not wanted.intersection(operation.made):
            unread.add(operation.id)
        else:
            wanted.update(operation.reads)
    return frozenset(unread)


def changes_given(record: Record, operation: Operation) -> bool:
    """Whether an operation changes memory that the model holds, or was given, in place."""
    return any(record.storages[s].operation is None for s in record.operations[operation.id].mutated)


def _join_mutations(trace: Trace, record: Record, groups: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """An in-place operation belongs to the group that owns the memory, with the few that may stand between."""
    joined: list[tuple[int, ...]] = []
    for group in groups:
        owners = {record.storages[s].operation for s in record.mutated_by(group)} - {None}
        homes = (i for i, g in enumerate(joined) if any(o in g for o in owners)) if owners else iter(())
        home = next(homes, len(joined))
        counters = [g for g in joined[home:] if any(changes_given(record, trace.operations[op]) for op in g)]
        between = [op for g in joined[home:] if g not in counters for op in g]
        counted = record.mutated_by(op for g in counters for op in g)
        if between and len(between) <= FEW and not counted & _touched(trace, record, between):
            joined[home:] = [*counters, (*between, *group)]  # counting earlier changes nothing
        else:
            joined.append(group)
    return joined


def _touched(trace: Trace, record: Record, operations: Sequence[int]) -> set[int]:
    """The storages that operations mention."""
    return record.storages_of(v for op in operations for v in trace.operations[op].reads)


class _Uses:
    """Who reads what, by storage: the groups that read it in the forward pass, the operations whose backward needs it, and
    those that change it in place."""

    def __init__(self, trace: Trace, record: Record, groups: Sequence[tuple[int, ...]]) -> None:
        self.trace, self.record, self.groups = trace, record, groups
        self.group_of = {op: g for g, ops in enumerate(groups) for op in ops}
        self.readers: list[set[int]] = [set() for _ in record.storages]
        self.savers: list[set[int]] = [set() for _ in record.storages]
        self.changers: list[set[int]] = [set() for _ in record.storages]
        for operation in trace.operations:
            if not is_view(record, operation):
                for variable in operation.reads:
                    self.readers[record.variables[variable].storage].add(self.group_of[operation.id])
            row = record.operations[operation.id]
            for storage in row.saved:
                self.savers[storage].add(operation.id)
            for storage in row.mutated:
                self.changers[storage].add(operation.id)
        moved = [op for op in trace.operations if moves_statistics(op)]
        self.statistics = record.storages_of(v for op in moved for v in _statistics(op))
        self.outputs = record.storages_of(r.variable for r in trace.outputs if isinstance(r, Ref))

    def end_early(self, group: int) -> bool:
        """Whether no gradient goes through a group, and something ends with it that others have made."""
        if any(self.record.operations[op].backward for op in self.groups[group]):
            return False
        read = self.record.storages_of(v for op in self.groups[group] for v in self.trace.operations[op].reads) - self.outputs
        given = [self.record.storages[s] for s in read if s != NO_MEMORY]
        made = [s for s in given if s.operation is not None and self.group_of[s.operation] != group]
        ends = [s for s in made if self.readers[s.id] == {group} and not self.savers[s.id]]
        return sum(s.nbytes for s in ends) > LITTLE


def _statistics(operation: Operation) -> Iterator[int]:
    """The running statistics that an operation is given, as variables."""
    places = STATISTICS.get(operation.base, ())
    yield from (a.variable for a in (operation.args[place] for place in places) if isinstance(a, Ref))


def is_view(record: Record, operation: Operation) -> bool:
    """Whether an operation only looks at memory that exists."""
    return not allocates(record, operation) and not record.operations[operation.id].mutated


def check_views(trace: Trace, record: Record) -> None:
    """A view is taken anew from what it looks at, wherever it is needed: that has to be one tensor."""
    for operation in trace.operations:
        given = record.storages_of(operation.reads)
        looked_at = [s for s in given if record.storages[s].operation is not None]
        if len(looked_at) > 1 and is_view(record, operation):
            what = f"{called(operation.target)} looks at several tensors at once, which is not supported"
            raise UnsupportedError(what, where=location(operation.source))
        applied = function_call(operation.target)
        if applied is not None and not looked_at and is_view(record, operation):  # of a parameter: written wherever it is read
            what = f"the autograd.Function {applied.function.__name__} returns a parameter or an input as it is"
            raise UnsupportedError(what, where=location(operation.source), hint="have it return x.clone()")


def merge_groups(trace: Trace, record: Record, groups: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Joins a group with its successor where that loses nothing.

    The result u of the first must be read by the second only, be saved by autograd for none, be no output, and be at
    least as large as everything the second makes: then whoever would keep u keeps the second's result instead,
    which costs no more memory and saves a recomputation. Where no gradient goes, what only the first reads ends with it:
    nothing else would have it stay, so it is no part of the second's node.
    """
    uses = _Uses(trace, record, groups)
    owned_by: list[list[int]] = [[] for _ in groups]
    for storage in record.storages:
        if storage.operation is not None:
            owned_by[uses.group_of[storage.operation]].append(storage.id)
    lost = {s for row in record.operations for s in row.lost}
    merged: list[tuple[int, ...]] = []
    for index, group in enumerate(groups):
        made = sum(record.storages[s].nbytes for s in owned_by[index])
        made += sum(sum(record.operations[op].phantoms) for op in group)
        previous = owned_by[index - 1] if index else []
        private = bool(previous) and all(
            uses.readers[s] == {index} and not uses.savers[s] and s not in (uses.outputs | lost) for s in previous
        )
        clean = not record.mutated_by((*group, *groups[index - 1])) and not (private and uses.end_early(index - 1))
        if private and clean and sum(record.storages[s].nbytes for s in previous) >= made:
            merged[-1] = (*merged[-1], *group)
        else:
            merged.append(group)
    return merged


class _Builder:
    """Turns groups into the graph's nodes and data."""

    def __init__(self, trace: Trace, record: Record, groups: Sequence[tuple[int, ...]]) -> None:
        self.trace, self.record, self.groups = trace, record, groups
        self.uses = _Uses(trace, record, groups)
        self.once = not_repeated(trace, record)
        self.data: list[Data] = []
        self.of_storage: dict[int, int] = {}
        self.bodies: list[Body] = []
        self.owned: list[list[int]] = [[] for _ in groups]
        for storage in record.storages:
            if storage.operation is not None:
                self.owned[self.uses.group_of[storage.operation]].append(storage.id)

    def build(self) -> Model:
        for index, group in enumerate(self.groups):
            self._add_data(index, group)
        grad_writes, grad_reads = self._gradients()
        forward = [self._forward_node(i, group) for i, group in enumerate(self.groups)]
        loss = len(forward)
        outputs = self._outputs()
        nodes = [*forward, Node(loss, "loss", Phase.LOSS, outputs, tuple(grad_writes.get(loss, ())), None, False, "loss")]
        for index in reversed(range(len(self.groups))):
            if self._goes_back(index):
                nodes.append(self._backward_node(len(nodes), index, grad_reads, grad_writes))
        graph = Graph(tuple(nodes), tuple(self.data), loss, outputs)
        graph = replace(graph, blocks=cut_into_blocks(graph))
        validate(graph)
        data_of = tuple(self.of_storage.get(row.storage) for row in self.record.variables)
        return Model(self.trace, self.record, graph, tuple(self.bodies), data_of)

    def _new_data(self, name: str, kind: Kind, nbytes: int) -> int:
        self.data.append(Data(len(self.data), name, kind, allocated_bytes(nbytes, self.trace.accelerator)))
        return len(self.data) - 1

    def _add_data(self, index: int, group: tuple[int, ...]) -> None:
        values = []
        for storage in self.owned[index]:
            outside = self.uses.readers[storage] - {index}
            if outside or self.uses.savers[storage] or storage in self.uses.outputs:
                self.of_storage[storage] = self._new_data(self._name(index), Kind.VALUE, self.record.storages[storage].nbytes)
                values.append(self.of_storage[storage])
        nbytes = sum(allocated_bytes(n, self.trace.accelerator) for op in group for n in self.record.operations[op].phantoms)
        phantom = self._new_data(f"{self._name(index)} phantom", Kind.PHANTOM, nbytes) if nbytes else None
        self.bodies.append(Body(group, tuple(values), phantom))

    def _name(self, index: int) -> str:
        """After the last operation of a group that allocates."""
        last = [op for op in self.groups[index] if allocates(self.record, self.trace.operations[op])] or self.groups[index]
        operation = self.trace.operations[last[-1]]
        return self.trace.variables[operation.made[0]].name if operation.made else f"op_{operation.id}"

    def _goes_back(self, index: int) -> bool:
        return any(self.record.operations[op].backward for op in self.groups[index])

    def _outputs(self) -> tuple[int, ...]:
        found = [self.of_storage[s] for s in sorted(self.uses.outputs) if s in self.of_storage]
        return tuple(dict.fromkeys(found))

    def _gradients(self) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
        """Gradient data that live from one backward step to a later one: written and read by group (len(groups) is
        the loss)."""
        writes: dict[int, list[int]] = {}
        reads: dict[int, list[int]] = {}
        group_of = self.uses.group_of | {len(self.trace.operations): len(self.groups)}
        for gradient in self.record.gradients:
            born, died = group_of[gradient.born], group_of[gradient.died]
            if born == died:
                continue
            name = f"gradient {len(self.data)} of {self._name(died)}"
            data = self._new_data(name, Kind.GRADIENT, gradient.nbytes)
            for group in {born, *map(group_of.__getitem__, gradient.added)} - {died}:
                writes.setdefault(group, []).append(data)
            reads.setdefault(died, []).append(data)
        return writes, reads

    def _forward_node(self, index: int, group: tuple[int, ...]) -> Node:
        body = self.bodies[index]
        read: set[int] = set()
        for op in group:
            operation = self.trace.operations[op]
            if not is_view(self.record, operation):
                storages = self.record.storages_of(operation.reads)
                read.update(self.of_storage[s] for s in storages if s in self.of_storage)
        writes = (*body.values, *(() if body.phantom is None else (body.phantom,)))
        reads = tuple(sorted(read - set(writes)))
        name, recomputable = self._name(index), self._recomputable(index)
        return Node(index, name, Phase.FORWARD, reads, writes, None, recomputable, self._signature(group))

    def _recomputable(self, index: int) -> bool:
        """Whether running a group again gives the same, and changes nothing that outlives it."""
        own = set(self.owned[index])
        if any(self._changed_later(storage) for storage in own):
            return False
        if not self.once.isdisjoint(self.groups[index]):
            return False
        for op in self.groups[index]:
            if not own.issuperset(self.record.operations[op].mutated):
                return False
            operation = self.trace.operations[op]
            if any(map(self._changed_later, self.record.storages_of(operation.asked))):  # it would go another way then
                return False
            own_statistics = set(_statistics(operation)) if moves_statistics(operation) else set()
            for storage in self.record.storages_of(set(operation.reads) - own_statistics):
                if storage in self.uses.statistics or (storage not in own and self._changed_later(storage)):
                    return False
        return True

    def _changed_later(self, storage: int) -> bool:
        """Whether another group than its owner changes a storage in place: then its readers may have seen what is gone."""
        owner = self.record.storages[storage].operation
        home = None if owner is None else self.uses.group_of[owner]
        return any(self.uses.group_of[op] != home for op in self.uses.changers[storage])

    def _backward_node(self, id: int, index: int, grad_reads: dict, grad_writes: dict) -> Node:
        body = self.bodies[index]
        saved = {s for op in self.groups[index] for s in self.record.operations[op].saved}
        phantom = set() if body.phantom is None else {body.phantom}
        kept = {self.of_storage[s] for s in saved if s in self.of_storage}
        reads = tuple(sorted(kept | phantom | set(grad_reads.get(index, ()))))
        writes = tuple(sorted(grad_writes.get(index, ())))
        forward = self._signature(self.groups[index])
        return Node(id, f"{self._name(index)} backward", Phase.BACKWARD, reads, writes, index, False, f"{forward} backward")

    def _signature(self, group: Sequence[int]) -> str:
        return signature(self.trace, self.record, group)


def _cast(operation: Operation) -> str:
    return "".join(f" {device} in {dtype}" for device, dtype in operation.autocast)


def early_ends(model: Model, operations: Sequence[int]) -> dict[int, list[int]]:
    """By operation of a node: the variables whose memory ends there, of what the node makes for itself.

    Empty where that is little: it stays until the node ends, which reads better.
    """
    record, inside = model.record, set(operations)
    last: dict[int, int] = {}
    variables: dict[int, dict[int, None]] = {}
    for op in operations:
        operation = model.trace.operations[op]
        for v in (*operation.reads, *operation.made):
            storage = record.variables[v].storage
            if record.storages[storage].operation in inside and model.data_of[v] is None:
                last[storage] = op
                variables.setdefault(storage, {})[v] = None
    early = [record.storages[s].nbytes for s, op in last.items() if op != operations[-1]]
    ends: dict[int, list[int]] = {}
    for storage, op in last.items() if sum(early) > LITTLE else ():
        ends.setdefault(op, []).extend(variables[storage])
    return ends


def signature(trace: Trace, record: Record, group: Sequence[int]) -> str:
    """What a group computes, with the layout of every tensor it touches but without names: equal signatures cost the same."""
    number: dict[int, int] = {}

    def describe(variable: int) -> str:
        v = trace.variables[variable]
        layout = f"{v.dtype}{list(v.shape)}{list(v.stride)}@{torch.device(v.device).type}"
        known = variable in number
        place = number.setdefault(variable, len(number))
        grads = f"g{int(record.variables[variable].requires_grad)}"
        return f"%{place}" if known else f"%{place}:{v.origin[0]}{layout}{grads}"

    lines = []
    for op in group:
        operation = trace.operations[op]
        table = {v: describe(v) for v in operation.reads}
        args = substitute((operation.args, dict(operation.kwargs)), table)
        results = [None if v is None else (describe(v), record.variables[v].gradient_strides) for v in operation.results]
        unsaved = " unsaved" if record.operations[op].unsaved else ""
        lines.append(f"{operation.name}{args} -> {results} {operation.grad_enabled}{_cast(operation)}{unsaved}")
    text = _NUMBERED.sub(r"device(type='\1')", "\n".join(lines))  # the same on each device of a kind
    return hashlib.sha256(text.encode()).hexdigest()[:24]
