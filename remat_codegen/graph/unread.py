"""What autograd holds though the way back never comes there: `teacher(x).detach()` has saved what the teacher's gradients would
need until its result is detached, and a result that nobody reads does as long as a variable has it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from remat_codegen.graph.record import OperationRecord, Record
from remat_codegen.trace import Operation, Trace


@dataclass(frozen=True, slots=True)
class Lost:
    """What is saved for an operation that the engine does not reach, up to the operation `until`: storages, and bytes beside
    them."""

    operation: int
    until: int
    storages: tuple[int, ...]
    nbytes: int


def lost_of(trace: Trace, record: Record) -> tuple[Lost, ...]:
    """What a forward pass holds for gradients that nobody asks for."""
    until = _until(trace, record)
    rows = {op: record.operations[op] for op in until}
    return tuple(Lost(op, until[op], r.lost, sum(r.lost_bytes)) for op, r in rows.items() if _is_more(op, r, until, record))


def _is_more(operation: int, row: OperationRecord, until: Mapping[int, int], record: Record) -> bool:
    """Whether that is more than what the model has been given, and is there when another operation runs."""
    made = any(record.storages[s].operation is not None for s in row.lost)
    return until[operation] > operation and (made or any(row.lost_bytes))


def _until(trace: Trace, record: Record) -> dict[int, int]:
    """For operations that have autograd nodes and are not gone back through, the last operation that runs while these live:
    as long as their results do, and the nodes of what is made of these."""
    holders = _last_holders(trace)
    found: dict[int, int] = {}
    for op in reversed(trace.operations):
        if record.operations[op.id].backward or not _takes_gradient(op, record):
            continue
        readers = {reader for variable in op.made for reader in trace.readers[variable]}
        later = (found.get(reader, reader) for reader in readers)
        found[op.id] = max((op.id, holders.get(op.id, -1), *later))
    return found


def _last_holders(trace: Trace) -> dict[int, int]:
    return {held: op.id for op in trace.operations for held in op.held}


def _takes_gradient(op: Operation, record: Record) -> bool:
    return any(_require(op.made, record)) and op.grad_enabled


def _require(variables: Iterable[int], record: Record) -> Iterable[bool]:
    return (record.variables[v].requires_grad for v in variables)
