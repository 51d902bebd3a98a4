"""What a second run on a GPU may not give again: results of kernels that add in any order, and what decides by them.

Rounding that differs by a second run is as small as that of PyTorch itself, which repeats no step exactly there either. But a
router that chooses other experts, or a mask that selects other rows, computes something else: it is kept rather than made
again. A list, as PyTorch has none that can be asked: of `torch.use_deterministic_algorithms`, the operations whose forward is
not deterministic on CUDA.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from remat_codegen.graph.nature import is_opaque
from remat_codegen.graph.record import Record
from remat_codegen.trace import Operation, Trace

UNORDERED = frozenset(
    (
        "_unsafe_index_put bincount cumsum histc index_add index_copy index_put index_reduce kthvalue median nll_loss2d "
        "nll_loss_nd put scatter scatter_add scatter_reduce segment_reduce"
    ).split()
)
STEPS = frozenset("bernoulli ceil floor frac heaviside multinomial round sgn sign trunc".split())  # decide, in numbers


def not_repeated(trace: Trace, record: Record) -> frozenset[int]:
    """The operations that must not run a second time, by id: none on the CPU.

    cuDNN's recurrent networks draw their dropout from a state of their own, which nothing can put back.
    """
    on_gpu = [op for op in trace.operations if _on_gpu(trace, op)]
    return frozenset(op.id for op in on_gpu if is_opaque(op)) | _decisions(trace, record, on_gpu)


def _decisions(trace: Trace, record: Record, on_gpu: Sequence[Operation]) -> frozenset[int]:
    """Operations that turn numbers which differ from run to run into indices or masks, or beside which Python asks for them."""
    unsteady: set[int] = set()  # storages
    found = set()
    for op in on_gpu:
        reads_some = not unsteady.isdisjoint(record.storages_of(op.reads))
        numbers = record.storages_of(v for v in op.made if _is_number(trace.variables[v].dtype))
        if reads_some or _adds_in_any_order(op):
            unsteady |= numbers | (record.mutated_by([op.id]) if numbers else set())
        asks = not unsteady.isdisjoint(record.storages_of(op.asked))
        decides = op.base.rstrip("_") in STEPS or any(not _is_number(trace.variables[v].dtype) for v in op.made)
        if asks or (reads_some and decides):
            found.add(op.id)
    return frozenset(found)


def _adds_in_any_order(op: Operation) -> bool:
    """Whether two runs may differ in the last bits. What is not PyTorch's own may be anything."""
    return "::" in op.base or op.base.rstrip("_") in UNORDERED


def _is_number(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex


def _on_gpu(trace: Trace, op: Operation) -> bool:
    return any(torch.device(trace.variables[v].device).type == "cuda" for v in (*op.reads, *op.made))
