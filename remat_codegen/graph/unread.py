"""What autograd holds though the way back never comes there: `teacher(x).detach()` has saved what the teacher's gradients would
need until its result is detached, and a result that nobody reads does as long as a variable has it.
"""

from __future__ import annotations

from dataclasses import dataclass

from remat_codegen.graph.record import Record
from remat_codegen.trace import Operation, Trace


@dataclass(frozen=True, slots=True)
class Lost:
    """What is saved for an operation that the engine does not reach, storages and bytes beside them. It is there as long as its
    results are, and the autograd nodes of what is made of these: up to the operation `until`. What an operation has `left` in
    an attribute is there until the next step has come as far."""

    operation: int
    until: int
    storages: tuple[int, ...]
    nbytes: int
    left: int | None = None


def lost_of(trace: Trace, record: Record) -> tuple[Lost, ...]:
    """What a forward pass holds for gradients that nobody asks for."""
    holders, kept = {held: op.id for op in trace.operations for held in op.held}, {v for v, attached in trace.left if attached}
    until, left, found = dict[int, int](), dict[int, int](), list[Lost]()
    touching = _touching(trace, record)
    for op in reversed(trace.operations):
        row = record.operations[op.id]
        if row.backward or not _takes_gradient(op, record):
            continue
        readers = {reader for variable in op.made for reader in trace.readers[variable]}
        readers |= {later for storage in row.mutated for later in touching[storage] if later > op.id}
        until[op.id] = max((op.id, holders.get(op.id, -1), *(until.get(reader, reader) for reader in readers)))
        leaving = [left[reader] for reader in readers if reader in left] + [op.id] * (not kept.isdisjoint(op.made))
        if leaving:
            left[op.id] = max(leaving)
        lost = Lost(op.id, until[op.id], row.lost, sum(row.lost_bytes), left.get(op.id))
        made = any(record.storages[s].operation is not None for s in row.lost)
        if (made or lost.nbytes) and (lost.left is not None or lost.until > op.id):
            found.append(lost)
    return tuple(found)


def _touching(trace: Trace, record: Record) -> dict[int, list[int]]:
    """By storage that some operation changes in place: the operations that read it. What they make has the nodes of what was
    written into it before."""
    found: dict[int, list[int]] = {storage: [] for row in record.operations for storage in row.mutated}
    for op in trace.operations if found else ():
        for storage in found.keys() & record.storages_of(op.reads):
            found[storage].append(op.id)
    return found


def _takes_gradient(op: Operation, record: Record) -> bool:
    variables = op.reads if record.operations[op.id].mutated else op.made
    return op.grad_enabled and any(record.variables[v].requires_grad for v in variables)
