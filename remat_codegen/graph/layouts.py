"""Where fake tensors are laid out otherwise than real ones, or know less than them."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten


class Layouts(TorchDispatchMode):
    """Gives results the strides and the memory that they have outside of a trace. Enter it after FakeTensorMode.

    The table below has the operations whose fake results differ: what reads them would seem to need no copy, or one too many,
    and who holds them would seem to hold less.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is aten.equal.default:  # only istft, cov and the like ask it, of themselves: whether something is amiss
            return False
        out = func(*args, **(kwargs or {}))
        correct = _CORRECTIONS.get(func)
        return out if correct is None else correct(out, args)


def _batch_norm(out: Any, args: Any) -> Any:
    """Is contiguous for an input that is neither contiguous nor channels-last; the fake one has the input's strides."""
    if args[0].device.type != "cpu" or _is_dense(args[0]):
        return out
    return (torch.empty_like(out[0], memory_format=torch.contiguous_format), *out[1:])


def _is_dense(tensor: torch.Tensor) -> bool:
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(tensor.dim())
    return tensor.is_contiguous() or (last is not None and tensor.is_contiguous(memory_format=last))


def _in_place_of_all(out: Any, args: Any) -> Any:
    """A loss that is one number stands where the losses of all elements stood, which were as many as its arguments make."""
    return _within(out, math.prod(torch.broadcast_shapes(args[0].shape, args[1].shape)))


def _in_place_of_columns(out: Any, args: Any) -> Any:
    """What columns are added up to is written into memory for as many numbers as they are."""
    return _within(out, args[0].numel())


def _within(out: torch.Tensor, numbers: int) -> torch.Tensor:
    """A tensor like `out` at the beginning of memory for so many numbers."""
    return out if numbers <= out.numel() else out.new_empty(numbers).as_strided(out.shape, out.stride())


def added_up(out: torch.Tensor, first: torch.Tensor) -> torch.Tensor:
    """The sum of two gradients is written into the memory of the first, however much that is; fake ones are added elsewhere."""
    return _within(out, first.untyped_storage().nbytes() // first.element_size())


def _unpooled(out: Any, args: Any) -> Any:
    """Is channels-last where its input is."""
    last = args[0].dim() == 4 and args[0].is_contiguous(memory_format=torch.channels_last) and not args[0].is_contiguous()
    return out.contiguous(memory_format=torch.channels_last) if last else out


_CORRECTIONS = {
    aten.native_batch_norm.default: _batch_norm,
    aten._native_batch_norm_legit.default: _batch_norm,
    aten.mse_loss.default: _in_place_of_all,
    aten.smooth_l1_loss.default: _in_place_of_all,
    aten.soft_margin_loss.default: _in_place_of_all,
    aten.binary_cross_entropy.default: _in_place_of_all,
    aten.col2im.default: _in_place_of_columns,
    aten.max_unpool2d.default: _unpooled,
}
