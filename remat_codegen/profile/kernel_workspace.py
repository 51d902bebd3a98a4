"""What kernels of CUDA's allocate for themselves while they run, and give back: by PyTorch's source, where it is much.

The figures for attention are to the byte what PyTorch allocates, but for cuDNN's, whose library is not open: for it stands what
flash attention takes. For its recurrent networks and its convolutions stand rules.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from remat_codegen.graph.allocator import BLOCK_BYTES, allocated_bytes
from remat_codegen.graph.fake_strides import convolution_layout
from remat_codegen.profile.reductions import reduction_bytes
from remat_codegen.trace import absent, cudnn_rnn

aten = torch.ops.aten
Tensor = torch.Tensor
FEW_INDICES = 3072  # up to which an embedding's gradient needs no sorting
ROWS_AT_ONCE = 10  # of a gradient that one thread adds up there
WIDE = 128  # heads that are wider do not stay in registers
ALIGNED = 32  # channels that kernels of tensor cores take as they lie, if they are last
PADDED = 8  # halves: channels are filled up to a multiple of that
PARTIAL_BYTES = 2**16  # of sums that are added up in parts, by multiprocessor; twice for the two gradients
IN_PARTS = 10  # inputs' worth of sums of a filter's gradient, where each channel has its own and channels are last
WINOGRAD = {(3, 3): (4, 6), (5, 5): (5, 9)}  # how much of a result a tile makes, and its width, by filters
FULL, ENOUGH, MOST_SPLITS = 0.8, 0.85, 128  # of flash attention: of multiprocessors, of the best number of splits


def room_bytes(func: Any, args: Any) -> int:
    """Bytes that the kernel of an operation allocates beside its results."""
    room = _ROOM.get(func)
    return 0 if room is None else sum(allocated_bytes(piece, absent.CUDA) for piece in room(*args))


def _multiple(number: int, of: int) -> int:
    return -(-number // of) * of


def _nbytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _as_much(tensor: Tensor, *_: Any) -> list[int]:
    """As much as what is given."""
    return [_nbytes(tensor)]


def _product(grad: Tensor, output: Tensor, *_: Any) -> list[int]:
    """The gradient times the result."""
    return [_nbytes(output)]


def _sorted_rows(grad: Tensor, indices: Tensor, rows: int, *_: Any) -> list[int]:
    """Of an embedding's gradient: indices, sorted, and partial sums in single precision."""
    count = indices.numel()
    if count <= FEW_INDICES:
        return []
    sums = count // ROWS_AT_ONCE + min(count, rows)
    return [8 * 8 * count, sums * grad.shape[-1] * max(4, grad.element_size())]


def _groups(grad: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, weight: Any, rows: int, channels: int, *_: Any) -> list[int]:
    """Sums by channel, and by group, in single precision."""
    return 3 * [4 * rows * channels] + 2 * [4 * mean.numel()]


# ---------------------------------------------------------------------------------------------- attention


def _flash(query: Tensor, key: Tensor, value: Tensor, dropout: float = 0.0, *_: Any) -> list[int]:
    """Where there are too few rows for all multiprocessors, keys are split, and each part has a result in single precision."""
    batch, heads, rows, width = query.shape
    parts = 1 if dropout else _splits(batch * heads * -(-rows // 64), key.shape[2], width)
    whole = 4 * parts * batch * heads * rows
    return [whole, whole * _flash_width(width)] if parts > 1 else []


def _flash_width(width: int) -> int:
    return _multiple(width, 32 if width <= WIDE else 64)


def _splits(blocks: int, keys: int, width: int) -> int:
    """Into how many parts flash attention splits keys (`num_splits_heuristic` of its source)."""
    slots = 2 * absent.present().multiprocessors
    columns = -(-keys // (256 if width <= 64 else 128 if width <= WIDE else 64))
    if blocks >= FULL * slots:
        return 1
    able = [n for n in range(1, min(MOST_SPLITS, slots, columns) + 1) if n == 1 or -(-columns // n) != -(-columns // (n - 1))]
    filled = {n: blocks * n / (slots * -(-blocks * n // slots)) for n in able}
    return next(n for n in able if filled[n] >= ENOUGH * max(filled.values()))


def _flash_backward(grad: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, *_: Any) -> list[int]:
    """Gradients of queries and of rows, in single precision; those of keys and values for each head, where heads share."""
    batch, heads, rows, width = query.shape
    sums = 4 * batch * heads * _multiple(rows, 128)
    shared = key.element_size() * batch * heads * key.shape[2] * width if key.shape[1] < heads else 0
    return [sums, sums * _flash_width(width), shared, shared, _copied(grad), _copied(out)]


def _efficient(query: Tensor, key: Tensor, value: Tensor, *_: Any) -> list[int]:
    """The result in single precision, where heads are wide."""
    wide = value.shape[-1] > WIDE and query.element_size() < 4
    return [4 * query.shape[:3].numel() * value.shape[-1]] if wide else []


def _efficient_backward(grad: Tensor, query: Tensor, key: Tensor, *_: Any) -> list[int]:
    """Gradients of queries and of rows, in single precision; of keys and values, too, where heads are wide; and those for each
    head, where heads share."""
    batch, heads, rows, width = query.shape
    wide = query.element_size() < 4 and width > WIDE
    keys = 2 * _multiple(key.shape[2], 128) * _multiple(width, 128) if wide else 0
    sums = 4 * batch * heads * (_multiple(rows, 64) * _multiple(width, 64) + keys)
    shared = key.element_size() * batch * heads * key.shape[2] * width if key.shape[1] < heads else 0
    return [sums, 4 * batch * heads * rows, BLOCK_BYTES, shared, shared, _copied(grad)]


def _copied(tensor: Tensor) -> int:
    """What attention copies: heads have to lie side by side."""
    return 0 if tensor.transpose(1, 2).is_contiguous() else _nbytes(tensor)


# ---------------------------------------------------------------------------------------------- reductions


def _sum(x: Tensor, dims: Any = None, *_: Any, bytes_each: int = 0) -> list[int]:
    """What blocks of threads leave for each other, in single precision at least."""
    places = [dims] if isinstance(dims, int) else [*(dims or ())]
    return reduction_bytes(x, places, bytes_each or max(4, x.element_size()), absent.present()) if x.dim() else []


def _extreme(x: Tensor, dims: Any = None, *_: Any) -> list[int]:
    """The same in the type of what is given."""
    return _sum(x, dims, bytes_each=x.element_size())


def _spread(x: Tensor, dims: Any = None, *_: Any) -> list[int]:
    """Mean, squares and counts of each block, in one piece."""
    return _sum(x, dims, bytes_each=16 if x.element_size() <= 4 else 32)


def _norm(x: Tensor, order: Any = 2, dims: Any = None, *_: Any) -> list[int]:
    return _sum(x, dims)


# ---------------------------------------------------------------------------------------------- convolutions


def _convolution(x: Tensor, weight: Tensor, bias: Any, *how: Any) -> list[int]:
    """Copies of what it reads and writes."""
    return [
        *_copies((x, weight), x, weight),
        *_in_cudnn(x, weight, _convolved(x, weight, *how), *how),
    ]


def _convolution_backward(grad: Tensor, x: Tensor, weight: Tensor, bias_sizes: Any, *how: Any) -> list[int]:
    """The same for each of the two gradients, one after the other; and what the sum for a bias takes."""
    rest, wanted = how[:-1], how[-1]
    copies = [*_copies((grad, x, weight), x, weight), *_in_cudnn(x, weight, grad.shape, *rest, gradient=True)]
    sums = _sum(grad, [d for d in range(grad.dim()) if d != 1]) if wanted[2] else []
    return max(copies, sums, key=sum)


def _copies(read: Sequence[Tensor], x: Tensor, weight: Tensor) -> list[int]:
    """What PyTorch copies for cuDNN, which wants all in one layout: with channels last, if the input or the weights lie so."""
    layout = convolution_layout(x, weight)
    return [_nbytes(tensor) for tensor in read if not tensor.is_contiguous(memory_format=layout)]


def _in_cudnn(x: Tensor, weight: Tensor, result: Sequence[int], *how: Any, gradient: bool = False) -> list[int]:
    """What cuDNN is taken to allocate, for kernels of its that may be the fastest and take much. Which it takes it decides
    where it runs: all but 19 of 1,317 calls on an H200 with tensor cores took at most this (`benchmarks/cudnn_room.py`)."""
    last = convolution_layout(x, weight) is not torch.contiguous_format
    if last and _is_depthwise(x, weight, *how):
        return [IN_PARTS * _nbytes(x)] if gradient else []
    if _is_pytorchs(x, weight, *how):
        return []
    if not _in_tensor_cores(x.dtype):
        return _transformed(x, weight, result) if not last and _takes_winograd(x, weight, *how) else []
    aligned = not x.shape[1] % ALIGNED and not result[1] % ALIGNED
    copies = [] if last and aligned else _with_channels_last(x, weight, result, again=gradient and bool(how[3]))
    return [*copies, absent.present().multiprocessors * min(PARTIAL_BYTES, _nbytes(weight)) * (1 + gradient)]


def _with_channels_last(x: Tensor, weight: Tensor, result: Sequence[int], again: bool) -> list[int]:
    """Kernels of tensor cores want channels last: all that is read and written is taken to be copied, the result of a
    transposed one `again` for its gradients (developer.nvidia.com/blog/tensor-core-ai-performance-milestones)."""

    def copy(numel: int, channels: int) -> int:
        filled = channels if x.element_size() > 2 else _multiple(channels, PADDED)
        return numel // max(1, channels) * filled * x.element_size()

    made = copy(math.prod(result), result[1])
    return [copy(x.numel(), x.shape[1]), _nbytes(weight), made, made * again]


def _takes_winograd(x: Tensor, weight: Tensor, *how: Any) -> bool:
    """Whether cuDNN may convolve in single precision by Winograd's transforms: with filters of 3 x 3 or 5 x 5, one step at a
    time (cuDNN's reference, `cudnnConvolutionForward`, algorithm WINOGRAD_NONFUSED)."""
    stride, _, dilation, *_, groups = how
    alike = x.dtype is torch.float32 and groups == 1 and {*stride, *dilation} == {1}
    return alike and (*weight.shape[2:],) in WINOGRAD


def _transformed(x: Tensor, weight: Tensor, result: Sequence[int]) -> list[int]:
    """Input, filters and result as Winograd's tiles (Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks",
    2015, algorithm 1), in the sizes that cuDNN's kernels are named for (`winogradForwardData4x4`, `9x9_5x5`)."""
    step, size = WINOGRAD[weight.shape[2], weight.shape[3]]
    tiles = math.prod(-(-max(there, back) // step) for there, back in zip(x.shape[2:], result[2:], strict=True))
    channels = x.shape[1] + result[1]
    return [4 * size**2 * (x.shape[0] * tiles * channels + x.shape[1] * result[1])]


def _convolved(
    x: Tensor, weight: Tensor, stride: Any, padding: Any, dilation: Any, back: bool, more: Any, groups: int
) -> list[int]:
    """The shape of a convolution's result; `back` is that of a transposed one."""
    shape = [x.shape[0], weight.shape[1] * groups if back else weight.shape[0]]
    for i, (size, width) in enumerate(zip(x.shape[2:], weight.shape[2:], strict=True)):
        step, around, reach = (given[i % len(given)] for given in (stride, padding, dilation))
        within = reach * (width - 1) - 2 * around
        shape.append((size - 1) * step + within + more[i % len(more)] + 1 if back else (size - within - 1) // step + 1)
    return shape


def _in_tensor_cores(dtype: torch.dtype) -> bool:
    """Whether the GPU multiplies numbers of a type there; those of single precision where they may be rounded to tf32."""
    name = "tf32" if dtype is torch.float32 and rounds_to_tf32("conv") else str(dtype).removeprefix("torch.")
    return name not in ("float32", "float64") and name in absent.present().peaks


def rounds_to_tf32(part: str) -> bool:
    """Whether cuDNN may round single precision in a part of it, `conv` or `rnn`."""
    try:
        return bool(torch.backends.cudnn.allow_tf32)
    except RuntimeError:  # as it does where the settings that came after it were used
        return bool(getattr(torch.backends.cudnn, part).fp32_precision == "tf32")


def _is_depthwise(x: Tensor, weight: Tensor, *how: Any) -> bool:
    """Whether each channel is convolved alone."""
    *_, transposed, _, groups = how
    return bool(groups > 1 and groups == x.shape[1] and weight.shape[1] == 1 and not transposed)


def _is_pytorchs(x: Tensor, weight: Tensor, *how: Any) -> bool:
    """Whether PyTorch's own kernels convolve: each channel alone, if channels are not last; float16 may be cuDNN's."""
    return _is_depthwise(x, weight, *how) and x.dtype is not torch.float16


# ---------------------------------------------------------------------------------------------- recurrent networks


def _recurrent(x: Tensor, *args: Any) -> list[int]:
    """cuDNN's workspace, and the input where its steps are not first in memory."""
    return [cudnn_rnn.of_call("", (x, *args)).workspace_bytes(), _in_steps(x, batch_first=args[9])]


def _recurrent_backward(x: Tensor, *args: Any) -> list[int]:
    """As there, and the gradient of the result; zeros for that where only the last states were used."""
    output, grad, first = args[5], args[6], args[13]
    grads = [_in_steps(grad, batch_first=first)] if grad is not None else [_nbytes(output)] * (1 + first)
    return [cudnn_rnn.of_call("backward", (x, *args)).workspace_bytes(), _in_steps(x, batch_first=first), *grads]


def _in_steps(x: Tensor, batch_first: bool) -> int:
    return 0 if (x.transpose(0, 1) if batch_first else x).is_contiguous() else _nbytes(x)


_ROOM: dict[Any, Callable[..., list[int]]] = {
    aten.embedding_dense_backward.default: _sorted_rows,
    aten.sum.default: _sum,
    aten.sum.dim_IntList: _sum,
    aten.mean.default: _sum,
    aten.mean.dim: _sum,
    aten.prod.dim_int: _sum,
    aten.amax.default: _extreme,
    aten.amin.default: _extreme,
    aten.any.dim: _extreme,
    aten.all.dim: _extreme,
    aten.var.correction: _spread,
    aten.std.correction: _spread,
    aten.var_mean.correction: _spread,
    aten.linalg_vector_norm.default: _norm,
    aten.convolution.default: _convolution,
    aten.convolution_backward.default: _convolution_backward,
    aten._cudnn_rnn.default: _recurrent,
    aten._cudnn_rnn_backward.default: _recurrent_backward,
    aten.logsumexp.default: _as_much,
    aten._softmax_backward_data.default: _product,
    aten.native_group_norm_backward.default: _groups,
    aten._scaled_dot_product_flash_attention.default: _flash,
    aten._scaled_dot_product_flash_attention_backward.default: _flash_backward,
    aten._scaled_dot_product_cudnn_attention_backward.default: _flash_backward,
    aten._scaled_dot_product_efficient_attention.default: _efficient,
    aten._scaled_dot_product_efficient_attention_backward.default: _efficient_backward,
}
