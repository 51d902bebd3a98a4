"""Where fake tensors are laid out otherwise than real ones, or know less than them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from remat_codegen.torch_seam import ABSENT, TorchDispatchMode, suggest_memory_format

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


def _normalised(out: Any, args: Any) -> Any:
    """Lies as its input suggests, be it normalised by batches or by groups."""
    return (_suggested(out[0], args[0]), *out[1:]) if args[0].device.type == "cpu" else out


def _in_place_of_all(out: Any, args: Any) -> Any:
    """A loss that is one number stands where the losses of all elements stood, which were as many as its arguments make."""
    return _within(out, math.prod(torch.broadcast_shapes(args[0].shape, args[1].shape)))


def _cross_entropy(out: Any, args: Any) -> Any:
    """The losses of all elements lie as the input does."""
    return _in_place_of_all(out, args) if out.dim() < args[0].dim() else torch.empty_like(args[0])


def _in_place_of_columns(out: Any, args: Any) -> Any:
    """What columns are added up to is written into memory for as many numbers as they are."""
    return _within(out, args[0].numel())


def _within(out: torch.Tensor, numbers: int) -> torch.Tensor:
    """A tensor like `out` at the beginning of memory for so many numbers."""
    return out if numbers <= out.numel() else out.new_empty(numbers).as_strided(out.shape, out.stride())


def _like_input(out: torch.Tensor, args: Any) -> torch.Tensor:
    return _suggested(out, args[0])


def _suggested(out: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """The first in the memory format that the strides of the second suggest, which is never another order than these."""
    return out.contiguous(memory_format=suggest_memory_format(tensor))


def _contiguous(out: Any, args: Any) -> Any:
    """Lies in order, whatever it is made from: a tensor, or the first of several."""
    first, *rest = out if isinstance(out, tuple) else (out,)
    first = first if first is None or first.is_contiguous() else torch.empty_like(first, memory_format=torch.contiguous_format)
    return (first, *rest) if isinstance(out, tuple) else first


def _contiguous_on_cpu(out: Any, args: Any) -> Any:
    return _contiguous(out, args) if args[0].device.type == "cpu" else out


def _like_both(place: int) -> Callable[[Any, Any], Any]:
    """The layout that the sum of the gradient, which comes first, and of the argument in that place would have."""
    return lambda out, args: torch.add(args[0], args[place])


def _like_argument(out: Any, args: Any) -> Any:
    """Lies as the argument that follows the gradient, whatever the gradient."""
    return torch.empty_like(args[1])


def _noisy_backward(out: Any, args: Any) -> Any:
    """Lies in order in training, as the noise does."""
    return _contiguous_on_cpu(out, args) if args[5] else out


def _normalised_backward(out: Any, args: Any) -> Any:
    """Lies as its input suggests, whatever the gradient."""
    return (_suggested(out[0], args[1]), *out[1:]) if args[0].device.type == "cpu" and out[0] is not None else out


def _rolled(out: torch.Tensor, args: Any) -> torch.Tensor:
    """Is put together from its two parts, dimension by dimension."""
    tensor, shifts, dims = args[0], args[1], args[2] if len(args) > 2 else ()
    if tensor.device.type != "cpu" or not dims:
        return out
    for shift, dim in zip(shifts, dims, strict=True):
        size = tensor.shape[dim]
        start = -shift % size if size else 0
        tensor = torch.cat([tensor.narrow(dim, start, size - start), tensor.narrow(dim, 0, start)], dim)
    return tensor


def _padded(out: torch.Tensor, args: Any) -> torch.Tensor:
    """Lies as its input suggests: before PyTorch 2.13, without data it lay in order."""
    return _suggested(out, args[0]) if args[0].device.type == "cpu" else out


def _padded_backward(out: torch.Tensor, args: Any) -> torch.Tensor:
    return _suggested(out, args[1]) if args[0].device.type == "cpu" else out


def convolution_layout(x: torch.Tensor, weight: torch.Tensor) -> torch.memory_format:
    """The layout that a convolution of cuDNN's has everything in: channels last where its input or its weights lie so, but in
    double precision (`cudnn_conv_suggest_memory_format`)."""
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(weight.dim())
    lie_so = x.dtype is not torch.float64 and last in (suggest_memory_format(x), suggest_memory_format(weight))
    return last if last is not None and lie_so else torch.contiguous_format


def _convolved(out: torch.Tensor, args: Any) -> torch.Tensor:
    """On a GPU that is not there: for a device that is no CUDA, PyTorch knows one layout."""
    return out.contiguous(memory_format=convolution_layout(args[0], args[1])) if _is_absent(args[0]) else out


def _convolved_backward(out: Any, args: Any) -> Any:
    if not _is_absent(args[1]):
        return out
    layout = convolution_layout(args[1], args[2])
    return (*(None if t is None else t.contiguous(memory_format=layout) for t in out[:2]), *out[2:])


def _is_absent(tensor: torch.Tensor) -> bool:
    return tensor.device.type == ABSENT


_CORRECTIONS = {
    aten.convolution.default: _convolved,
    aten.convolution_backward.default: _convolved_backward,
    aten.native_layer_norm_backward.default: _contiguous,
    aten.native_batch_norm_backward.default: _normalised_backward,
    aten.native_group_norm_backward.default: _normalised_backward,  # PyTorch 2.14 has it otherwise, without data
    aten._log_softmax_backward_data.default: _contiguous_on_cpu,
    aten.hardswish_backward.default: _like_both(1),
    aten.hardsigmoid_backward.default: _like_both(1),
    aten.hardtanh_backward.default: _like_both(1),
    aten.softplus_backward.default: _like_both(1),
    aten.elu_backward.default: _like_both(5),
    aten.log_sigmoid_forward.default: _contiguous_on_cpu,
    aten.glu_backward.default: _contiguous_on_cpu,
    aten.mse_loss_backward.default: _contiguous_on_cpu,
    aten.smooth_l1_loss_backward.default: _contiguous_on_cpu,
    aten.huber_loss_backward.default: _contiguous_on_cpu,
    aten.binary_cross_entropy_backward.default: _like_argument,
    aten.logit_backward.default: _like_both(1),
    aten.rrelu_with_noise.default: _contiguous_on_cpu,
    aten.rrelu_with_noise_functional.default: _contiguous_on_cpu,
    aten.rrelu_with_noise_backward.default: _noisy_backward,
    aten.roll.default: _rolled,
    aten.reflection_pad2d.default: _padded,
    aten.replication_pad2d.default: _padded,
    aten.reflection_pad2d_backward.default: _padded_backward,
    aten.replication_pad2d_backward.default: _padded_backward,
    aten.native_batch_norm.default: _normalised,
    aten._native_batch_norm_legit.default: _normalised,
    aten.native_group_norm.default: _normalised,
    aten.mse_loss.default: _in_place_of_all,
    aten.smooth_l1_loss.default: _in_place_of_all,
    aten.soft_margin_loss.default: _in_place_of_all,
    aten.binary_cross_entropy.default: _cross_entropy,
    aten.col2im.default: _in_place_of_columns,
    aten.max_unpool2d.default: _like_input,
    aten.channel_shuffle.default: _like_input,
}
