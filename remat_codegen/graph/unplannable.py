"""Operations that no plan can hold, as is seen only when they run and are gone back through."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from remat_codegen.errors import UnsupportedError
from remat_codegen.torch_seam import is_fake
from remat_codegen.trace import Operation, Ref, Trace, absent, called, function_call, location

KINDS = ("cpu", "cuda", absent.TYPE)  # of devices


def check_trained(op: Operation, args: Any) -> None:
    """A Function may ask which of its arguments want a gradient: these have to be those that wanted one in the model."""
    call = function_call(op.target)
    if call is not None and call.trained != tuple(isinstance(a, torch.Tensor) and a.requires_grad for a in args):
        what = f"the autograd.Function {call.function.__name__} is given a tensor whose gradient forward has switched on"
        raise UnsupportedError(what, where=location(op.source), hint="make it a parameter, or an input")


def check_devices(trace: Trace, takes_gradient: Sequence[bool]) -> None:
    """A budget is for one device, and autograd has a thread for each: what gradients go through has to stay on one."""
    if (kind := torch.device(trace.accelerator or "cpu").type) not in KINDS:
        hint = f"devices of type {kind!r} are not supported"
        raise UnsupportedError(f"a tensor of the model is on {trace.accelerator}", hint=hint)
    for op in trace.operations:
        for result in map(trace.variables.__getitem__, op.made):
            other = result.device not in ("cpu", trace.accelerator)
            if other or (trace.accelerator and result.device == "cpu" and takes_gradient[result.id]):
                what = f"{called(op.target)} makes a value on {result.device}, and others are on {trace.accelerator}"
                hint = "keep what gradients go through on one device: a budget is for one"
                raise UnsupportedError(what, where=location(op.source), hint=hint)


def check_place(trace: Trace, asked: str) -> None:
    """A model that goes to a GPU by itself is measured, and keeps to a budget, where `--device` says only if it goes there."""
    device, found = torch.device(asked), torch.device(trace.accelerator or asked)
    if (device.type, device.index or 0) != (found.type, found.index or 0):
        what = f"the model computes on {found}, and --device is {asked}"
        raise UnsupportedError(what, hint=f"plan it with --device {found}")


def check_indices(trace: Trace, given: Sequence[Any]) -> None:
    """Inputs that look up more rows than an embedding has are found before anything is measured. `given` are the leaves of what
    forward is called with."""
    known = {v: leaf for v, leaf in zip(trace.inputs, given, strict=False) if isinstance(leaf, torch.Tensor)}
    for op in trace.operations:
        if op.target is not torch.ops.aten.embedding.default or not all(isinstance(a, Ref) for a in op.args[:2]):
            continue
        weight, indices = trace.variables[op.args[0].variable], known.get(op.args[1].variable)
        if indices is None or not indices.numel() or indices.is_meta or is_fake(indices):
            continue
        there = indices.cpu()
        least, most = int(there.min()), int(there.max())
        if least < 0 or most >= weight.shape[0]:
            name, path = trace.variables[op.args[1].variable].path, weight.path
            what = f"{name} looks up row {least if least < 0 else most} of {path}, which has {weight.shape[0]}"
            raise UnsupportedError(what, where=location(op.source), hint="give other --inputs, or a larger embedding")


@contextlib.contextmanager
def without_data(operation: Callable[[], Operation]) -> Iterator[None]:
    """Raises UnsupportedError, naming the present operation, where PyTorch cannot go on with fake tensors."""
    try:
        yield
    except UnsupportedError:
        raise
    except Exception as error:  # whatever an implementation raises without data
        said = f"{type(error).__name__}: {str(error).split('. ')[0]}"
        name, where = called(operation().target), location(operation().source)
        hint = "give an operation of your own a torch.library.register_fake, or compute this outside of the model"
        raise UnsupportedError(f"{name} cannot be planned without its data ({said})", where=where, hint=hint) from error


def check_backward(op: Operation, writes: bool) -> None:
    """Refuses an operation of the user's whose backward `writes` into what it has not made. PyTorch's own know who reads it."""
    if writes and op.target.namespace != "aten":
        what = f"the backward of {called(op.target)} writes into a tensor that it has not made"
        raise UnsupportedError(what, where=location(op.source), hint="have it write into a clone")
