"""A recorded trace, run once more operation by operation: for what a plan has to know of values."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch

from remat_codegen.errors import UnsupportedError
from remat_codegen.torch_seam import TorchDispatchMode, pytree
from remat_codegen.trace.autograd_functions import called
from remat_codegen.trace.ir import Like, Operation, Run, Trace, substitute
from remat_codegen.trace.recording import copy_of, seeded
from remat_codegen.trace.refusals import line_of, location
from remat_codegen.trace.surroundings import autocasting

BY_VALUES = frozenset({torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape})  # tags of kernels that look at values
MASKS = (torch.bool, torch.uint8)


def with_run(trace: Trace, given: Mapping[int, torch.Tensor], lines: tuple[str, ...]) -> Trace:
    """A recorded trace, with what is found where its operations run on what they were `given`, by variable.

    Raises UnsupportedError where they come out otherwise than they were recorded.
    """
    replay = _Replay(trace, {v: copy_of(tensor) for v, tensor in given.items()})
    with seeded(), torch.no_grad():
        for operation in trace.operations:
            replay.run(operation)
    lines = tuple(dict.fromkeys((*lines, *replay.lines)))
    return dataclasses.replace(trace, run=Run(lines, replay.values, replay.found))


class _Finding(TorchDispatchMode):
    """Notes what kernels give whose results depend on values."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, Any]] = []
        self.by_values = False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if not BY_VALUES.isdisjoint(func.tags):
            self.found.append((str(func), pytree.tree_map(_described, out)))
            masked = any(t.dtype in MASKS for t in pytree.tree_leaves(args[1:]) if isinstance(t, torch.Tensor))
            self.by_values |= func is not torch.ops.aten.index.Tensor or masked
        return out


def _described(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return Like(tuple(value.shape), tuple(value.stride()), value.dtype, str(value.device))


class _Replay:
    def __init__(self, trace: Trace, tensors: dict[int, torch.Tensor]) -> None:
        self.trace, self.tensors = trace, tensors
        self.wanted = {r for op in trace.operations for r in op.reads}
        self.values: dict[int, torch.Tensor] = {}
        self.found: dict[int, tuple[tuple[str, Any], ...]] = {}
        self.lines: list[str] = []
        for variable, tensor in tensors.items():
            self._hold(variable, tensor)

    def run(self, op: Operation) -> None:
        """The next operation."""
        args, kwargs = substitute(op.args, self.tensors), substitute(dict(op.kwargs), self.tensors)
        try:
            with autocasting(op.autocast), _Finding() as finding:
                out = op.target(*args, **kwargs)
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, TypeError) as error:
            said = str(error).partition("\n")[0]
            what = f"{called(op.target)} cannot be run as it was recorded, which is so for sparse tensors: {said}"
            raise UnsupportedError(what, where=location(op.source), hint="use dense ones (index_add)") from error
        if finding.found:
            self.found[op.id] = tuple(finding.found)
        if finding.by_values and op.source is not None:
            line = op.source.innermost
            self.lines.append(line_of(line.file, line.line, line.text))
        for variable, tensor in zip(op.results, out if op.many else (out,), strict=True):
            if variable is not None:
                self._check(op, variable, tensor)
                self.tensors[variable] = tensor
                self._hold(variable, tensor)
        for variable in op.reads:
            if self.trace.readers[variable][-1] == op.id:
                self.tensors.pop(variable, None)

    def _hold(self, variable: int, tensor: torch.Tensor) -> None:
        number = tensor.dtype.is_floating_point or tensor.dtype.is_complex
        if not number and variable in self.wanted:
            self.values[variable] = tensor.cpu().clone()

    def _check(self, op: Operation, variable: int, tensor: torch.Tensor) -> None:
        if tuple(tensor.shape) != self.trace.variables[variable].shape:
            what = f"{called(op.target)} gives something else each time, as forward depends on what is no input and no buffer"
            hint = "draw with torch's own generators, and let no counter, file or clock decide"
            raise UnsupportedError(what, where=location(op.source), hint=hint)
