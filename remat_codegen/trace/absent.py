"""A GPU that is not there: tensors without data lie on a device that PyTorch lets Python register, and run there, forward and
backward, as on CUDA.

A fake tensor on `cuda` that takes a gradient ends the process where there is no CUDA; one on a registered device does not.
Where CUDA takes another kernel than the general one, that is said here: attention, RMS norm, the casts of autocast. What comes
of these tensors is named as if it were on CUDA again (`as_cuda`), so that a plan, and a file, are those of the GPU itself.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend

from remat_codegen.errors import UnsupportedError, ValuesError
from remat_codegen.profile.devices import Device
from remat_codegen.torch_seam import (
    ABSENT,
    FakeTensorMode,
    attention_kernels,
    autocast_casts,
    autocast_excluded,
    buffers_of,
    detect_fake_mode,
    is_fake,
    parameters_of,
    pytree,
    register_absent,
    tree_map,
)
from remat_codegen.trace import cudnn_rnn
from remat_codegen.trace.casts import ALIKE, LOWER, SINGLE, WITH_TYPE
from remat_codegen.trace.cuda_attention import Attention, kernel_for
from remat_codegen.trace.ir import Operation, Trace
from remat_codegen.trace.surroundings import Autocast

TYPE = ABSENT  # of the device, in torch.device
CUDA = "cuda"
aten = torch.ops.aten
OWN_KERNELS = "_fused_rms_norm mish_backward silu_backward"  # what CUDA does at once, and devices in general in several steps


class Absent(FakeTensorMode):
    """Tensors in here have no data, and those on the device TYPE are on `gpu`."""

    def __init__(self, gpu: Device) -> None:
        _register()
        super().__init__(allow_non_fake_inputs=True)
        self.gpu = gpu


_CHOSEN: list[Device] = []  # the GPUs whose kernels are taken, innermost last


@contextlib.contextmanager
def chosen(gpu: Device) -> Iterator[None]:
    """In here, the kernels of this GPU are taken where tensors are on one that is not there."""
    _CHOSEN.append(gpu)
    try:
        yield
    finally:
        _CHOSEN.pop()


def present() -> Device:
    """The GPU whose kernels are taken at this moment."""
    return _CHOSEN[-1]


@contextlib.contextmanager
def refusing_values() -> Iterator[None]:
    """Raises UnsupportedError where a model does something by values: there are none."""
    try:
        yield
    except ValuesError as error:
        what = "the model decides something by the value of a tensor, and on a GPU that is not there tensors have none"
        raise UnsupportedError(what, where=error.where, hint="plan it where the GPU is, with --device cuda") from error


@contextlib.contextmanager
def on(gpu: Device) -> Iterator[None]:
    """Whatever runs in here runs on a GPU that is not there, its backward pass in this thread: there is no other for it."""
    with chosen(gpu), Absent(gpu), torch.autograd.set_multithreading_enabled(False):
        yield


def beside(tensor: torch.Tensor) -> contextlib.AbstractContextManager[Any]:
    """What is made in here lies where this tensor does, if that is a GPU that is not there."""
    mode = detect_fake_mode([tensor]) if is_fake(tensor) else None
    return mode if isinstance(mode, Absent) else contextlib.nullcontext()


def kind_of(tensor: torch.Tensor) -> str:
    """The type of a tensor's device, cuda where that is not there."""
    return CUDA if tensor.device.type == TYPE else tensor.device.type


def gpu_of(*values: Any) -> Device | None:
    """The GPU that tensors are on, of modules and structures, if it is one that is not there."""
    for value in values:
        tensors = [*value.parameters(), *value.buffers()] if isinstance(value, torch.nn.Module) else pytree.tree_leaves(value)
        for tensor in tensors:
            mode = detect_fake_mode([tensor]) if isinstance(tensor, torch.Tensor) and is_fake(tensor) else None
            if isinstance(mode, Absent):
                return mode.gpu
    return None


def moved(module: torch.nn.Module, values: Any, gpu: Device) -> tuple[torch.nn.Module, Any]:
    """The module, and a structure of tensors, on a GPU that is not there: with tensors of the same layouts, without data."""
    mode, known = Absent(gpu), dict[int, Any]()

    def move(tensor: Any) -> Any:
        if not isinstance(tensor, torch.Tensor):
            return tensor
        if id(tensor) not in known:
            known[id(tensor)] = tensor, _like(tensor, mode)  # the tensor, so that no other gets its number
        return known[id(tensor)][1]

    for owner in module.modules():
        for held in (parameters_of(owner), buffers_of(owner)):
            held.update({name: move(tensor) for name, tensor in held.items()})
    return module, tree_map(move, values)


def _like(tensor: torch.Tensor, mode: Absent) -> torch.Tensor:
    if tensor.layout is not torch.strided:
        raise UnsupportedError("a sparse tensor cannot be planned for a device that is not there", hint="use a dense one")
    with mode:
        made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=TYPE)
        if isinstance(tensor, torch.nn.Parameter):
            made = torch.nn.Parameter(made, tensor.requires_grad)
        else:
            made.requires_grad_(tensor.requires_grad)
    vars(made).update({name: value for name, value in vars(tensor).items() if name not in vars(made)})
    return made


# ---------------------------------------------------------------------------------------------- names of devices


def as_cuda(trace: Trace, gpu: Device) -> Trace:
    """What was traced on a GPU that is not there, as if on CUDA."""
    return replace(_renamed(trace, TYPE, CUDA), gpu=gpu)


def as_absent(trace: Trace) -> Trace:
    """A trace of a GPU that is not there, to be run on tensors without data."""
    return _renamed(trace, CUDA, TYPE)


def casts_on(autocast: Autocast, old: str = CUDA, new: str = TYPE) -> Autocast:
    """The same casts on the other device."""
    return tuple(sorted(((new if device == old else device), dtype) for device, dtype in autocast))


def _renamed(trace: Trace, old: str, new: str) -> Trace:
    def named(value: Any) -> Any:
        if isinstance(value, torch.device):
            return torch.device(new, value.index) if value.type == old else value
        if isinstance(value, (list, tuple)):
            return type(value)(named(v) for v in value)
        if isinstance(value, dict):
            return {k: named(v) for k, v in value.items()}
        return value

    def renamed(op: Operation) -> Operation:
        return replace(op, args=named(op.args), kwargs=named(op.kwargs), autocast=casts_on(op.autocast, old, new))

    variables = (replace(v, device=v.device.replace(old, new)) for v in trace.variables)
    operations = map(renamed, trace.operations)
    casts = casts_on(trace.autocast, old, new)
    return replace(trace, variables=tuple(variables), operations=tuple(operations), autocast=casts)


# ---------------------------------------------------------------------------------------------- kernels


@functools.cache
def _register() -> None:
    """Makes the device known to PyTorch, and what is other on it than on any other."""
    register_absent()
    library = torch.library.Library("aten", "IMPL")
    library.impl("scaled_dot_product_attention", _attention, "AutogradPrivateUse1")
    library.impl("rms_norm", _rms_norm, "AutogradPrivateUse1")
    for name, kernel in cudnn_rnn.kernels(present).items():
        library.impl(name, kernel, "AutogradPrivateUse1")
    for name in OWN_KERNELS.split():
        library.impl(name, _never_run, "PrivateUse1")
    others = torch.library.Library("_", "IMPL")
    others.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    for names, cast in ((LOWER, _lowered), (SINGLE, _single), (ALIKE, _alike), (WITH_TYPE, _with_type)):
        for name in names.split():
            if (operation := _overload(name)) is not None and autocast_casts(f"aten::{name}"):
                library.impl(name, cast(operation), "AutocastPrivateUse1")
    _HELD.extend((library, others))


def _never_run(*_: Any, **__: Any) -> Any:
    """Stands for a kernel of the device's: tensors without data run none."""
    raise NotImplementedError


_HELD: list[Any] = []  # what is registered is there for as long as these are


def _overload(name: str) -> Any:
    base, _, overload = name.partition(".")
    return getattr(getattr(aten, base, None), overload or "default", None)


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Attention, by the kernel that the GPU takes."""
    call = Attention(query, key, value, attn_mask, dropout_p, is_causal, enable_gqa)
    kernel = kernel_for(call, present(), attention_kernels())
    if kernel is SDPBackend.FLASH_ATTENTION:
        return _flash(call, scale)
    if kernel is SDPBackend.MATH:
        operation = aten.scaled_dot_product_attention.default
        found: torch.Tensor = operation.decompose(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
        return found
    mask = _as_numbers(attn_mask, query)
    if kernel is SDPBackend.CUDNN_ATTENTION:
        fused = aten._scaled_dot_product_cudnn_attention
        return fused(query, key, value, mask, call.trains, dropout_p, is_causal, scale=scale)[0]
    bias = None if mask is None else _aligned(mask).expand(*query.shape[:3], key.shape[2])
    fused = aten._scaled_dot_product_efficient_attention
    return fused(query, key, value, bias, call.trains, dropout_p, is_causal, scale=scale)[0]


def _flash(call: Attention, scale: float | None) -> torch.Tensor:
    """Flash attention, whose heads are filled up to a multiple of eight."""
    width = call.query.shape[-1]
    scale = width**-0.5 if scale is None else scale
    more = -width % 8
    query, key, value = (F.pad(t, (0, more)) if more else t for t in call.operands)
    found = aten._scaled_dot_product_flash_attention(query, key, value, call.dropout, call.causal, False, scale=scale)[0]
    return found[..., :width] if more else found


def _as_numbers(mask: torch.Tensor | None, query: torch.Tensor) -> torch.Tensor | None:
    """A mask of truth values as what is added to the scores."""
    if mask is None or mask.dtype is not torch.bool:
        return mask
    return torch.where(mask, 0.0, torch.full((), float("-inf"), dtype=query.dtype, device=query.device))


def _aligned(mask: torch.Tensor) -> torch.Tensor:
    """A mask whose rows begin at multiples of eight numbers."""
    if mask.stride(-1) == 1 and all(stride % 8 == 0 for stride in mask.stride()[:-1]):
        return mask
    columns = mask.shape[-1]
    return F.pad(mask, (0, 8 - columns % 8))[..., :columns]


def _rms_norm(
    x: torch.Tensor, normalized_shape: list[int], weight: torch.Tensor | None = None, eps: float | None = None
) -> torch.Tensor:
    """RMS norm: in one kernel, if input and weight are of one type."""
    fused = not x.is_complex() and (weight is None or weight.dtype is x.dtype)
    in_order = x.dim() < 4 or x.is_contiguous() or not x.is_contiguous(memory_format=torch.channels_last)
    if fused and in_order:
        return aten._fused_rms_norm(x, normalized_shape, weight, eps)[0]
    found: torch.Tensor = aten.rms_norm.default.decompose(x, normalized_shape, weight, eps)
    return found


# ---------------------------------------------------------------------------------------------- autocast


def _eligible(value: Any) -> bool:
    numbers = isinstance(value, torch.Tensor) and value.is_floating_point() and value.dtype is not torch.float64
    return numbers and value.device.type == TYPE


def _called(operation: Any, args: Any, kwargs: Any, dtype: torch.dtype) -> Any:
    """Calls an operation on arguments in a type. They are cast from the last to the first, as PyTorch's compiled code does it,
    since gradients go back through them in the other order."""

    def cast(given: Any) -> Any:
        return tree_map(lambda leaf: leaf.to(dtype) if _eligible(leaf) else leaf, given)

    with autocast_excluded():
        named = {name: cast(value) for name, value in reversed(kwargs.items())}
        return operation(*[cast(value) for value in reversed(args)][::-1], **named)


def _lowered(operation: Any) -> Callable[..., Any]:
    """In the type that autocast casts to."""

    def run(*args: Any, **kwargs: Any) -> Any:
        return _called(operation, args, kwargs, torch.get_autocast_dtype(TYPE))

    return run


def _single(operation: Any) -> Callable[..., Any]:
    """In single precision."""

    def run(*args: Any, **kwargs: Any) -> Any:
        return _called(operation, args, kwargs, torch.float32)

    return run


def _alike(operation: Any) -> Callable[..., Any]:
    """In the widest type of what is given, if that is single precision."""

    def run(*args: Any, **kwargs: Any) -> Any:
        leaves = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if _eligible(leaf)]
        wide = any(leaf.dtype is torch.float32 for leaf in leaves)
        dtype = torch.float32 if wide else torch.get_autocast_dtype(TYPE)
        return _called(operation, args, kwargs, dtype)

    return run


def _with_type(operation: Any) -> Callable[..., Any]:
    """Sums of halves in single precision, unless another type is asked for."""

    def run(*args: Any, **kwargs: Any) -> Any:
        if any(_eligible(a) for a in args) and kwargs.get("dtype") is None:
            kwargs = {**kwargs, "dtype": torch.float32}
        with autocast_excluded():
            return operation(*args, **kwargs)

    return run
