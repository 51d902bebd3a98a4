"""Calls of PyTorch's functions inside of forward: one mode for all who look at them, since each takes a microsecond a call, and
the trace of a GPT-2 of 36 layers makes fifty thousand."""

from __future__ import annotations

import torch
from torch.overrides import TorchFunctionMode

from remat_codegen.torch_seam import attention_kernels
from remat_codegen.trace.hidden import check_gradients_stay
from remat_codegen.trace.sdpa_kernel import as_operation
from remat_codegen.trace.state import note_leaf


class FunctionCalls(TorchFunctionMode):
    """Refuses what changes or reads gradients, has a choice of attention's kernels traced as an operation that makes it, and
    notes the tensors that are made with a gradient of their own: ones(3, requires_grad=True)."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels = attention_kernels()

    def __torch_function__(self, func, types, args=(), kwargs=None):
        """Runs the function, or its substitute."""
        check_gradients_stay(func)
        found = as_operation(func, self.kernels)(*args, **(kwargs or {}))
        if kwargs and kwargs.get("requires_grad") and isinstance(found, torch.Tensor):
            note_leaf(found)
        return found
