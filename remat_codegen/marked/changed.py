"""Buffers and parameters that a forward pass changes in place, as what counts the tokens of each expert, or follows what is
trained: a part that runs again must not find what was changed since. Of small buffers parts keep copies; what may read others
is no part. Those of batch norms are neither: in training, nothing reads them. And what is changed where nobody sees it."""

from __future__ import annotations

import linecache
import re
from dataclasses import dataclass

import torch

from remat_codegen.graph.record import Record
from remat_codegen.parts import SMALL
from remat_codegen.trace.ir import Operation, Origin, Trace

HELD = Origin.BUFFER, Origin.PARAMETER
FILLED_LATER = {"rrelu", "rrelu_", "rrelu_with_noise", "rrelu_with_noise_"}  # autograd saves their noise while it is none yet
MOVING = "running_mean"  # of modules whose buffers the helpers put back for a run: each is another tensor there


@dataclass(frozen=True, slots=True)
class ChangedBuffer:
    """A buffer, or parameter, of this path that forward changes in place, with the last operation that does. Parameters that
    are trained may be, too, as where a temperature is clamped; `is_frozen` are others."""

    path: str
    last: int
    nbytes: int
    is_frozen: bool = False

    @property
    def is_copied(self) -> bool:
        """Whether parts have a copy of what it was when they first ran."""
        return self.nbytes <= SMALL and not self.is_frozen

    def is_within(self, module: str) -> bool:
        """Whether it is a buffer of a module, or of one inside."""
        return not module or self.path.startswith(f"{module}.")


def changed_buffers(trace: Trace, record: Record) -> tuple[ChangedBuffer, ...]:
    """What a forward pass changes in place of its modules' buffers and parameters, but for those of batch norms."""
    last = {s: op for op, row in enumerate(record.operations) for s in row.mutated}
    buffers = [(path, v) for v in trace.variables if v.origin in HELD for path in (v.path, *v.aliases)]
    norms = {path.removesuffix(MOVING) for path, _ in buffers if path.rpartition(".")[2] == MOVING}
    found = []
    for path, variable in buffers:
        storage = record.variables[variable.id].storage
        if storage in last and path[: path.rfind(".") + 1] not in norms:
            is_frozen = variable.origin is Origin.PARAMETER and not variable.requires_grad
            found.append(ChangedBuffer(path, last[storage], record.storages[storage].nbytes, is_frozen))
    return tuple(found)


def moved_again(trace: Trace, record: Record) -> dict[str, str | None]:
    """The modules with buffers and parameters that forward changes in place within a call of torch.utils.checkpoint, which does
    so once more on the way back; with the line of that call. Of a batch norm it is the counter that shows it."""
    paths = {record.variables[v.id].storage: v.path for v in trace.variables if v.origin in HELD}
    found: dict[str, str | None] = {}
    for operation, row in zip(trace.operations, record.operations, strict=True):
        for region in (r for r in operation.regions if not r.reentrant):
            found |= {paths[s].rpartition(".")[0]: region.where for s in row.mutated if s in paths}
    return found


def reading_followers(trace: Trace, record: Record) -> frozenset[int]:
    """The operations that read frozen parameters which forward changes: the next forward pass, which may come before the way
    back, changes them again, and where it does so through `x.data`, nobody notices."""
    frozen = {v.id for v in trace.variables if v.origin is Origin.PARAMETER and not v.requires_grad}
    changed = record.storages_of(frozen) & {s for row in record.operations for s in row.mutated}
    return frozenset(op.id for op in trace.operations if changed and changed & record.storages_of(op.reads))


def past_autograd(trace: Trace, record: Record) -> frozenset[int]:
    """The operations that have to do with what forward makes and changes through `x.data`, in place: neither autograd nor a
    part notices that, so that none of them can be in one. And those that save what they fill afterwards."""
    changed = {s for row in record.operations for s in row.mutated if record.storages[s].operation is not None}
    asked = [op for op in trace.operations if op.target is torch.ops.aten.detach.default and _is_data(op)] if changed else []
    changed &= record.storages_of(v for op in asked for v in op.made)
    touching = (op.id for op in trace.operations if changed and changed & record.storages_of((*op.made, *op.reads)))
    return frozenset(touching) | {op.id for op in trace.operations if op.base in FILLED_LATER}


def _is_data(operation: Operation) -> bool:
    """Whether a tensor is detached by `x.data`, for all that its source tells."""
    if not operation.calls:
        return True
    call = operation.calls[-1]
    lines = [linecache.getline(call.function.file, line) for line in range(call.span[0], call.span[2] + 1)]
    return any(re.search(r"\.data\b", line) for line in lines) or not any(lines)
