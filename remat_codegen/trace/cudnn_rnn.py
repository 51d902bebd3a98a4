"""Recurrent networks on a GPU, on tensors without data; on one that is not there, cuDNN's one operation for all of their steps.

Where its kernels take the input's type, PyTorch calls cuDNN, and elsewhere runs step by step; so it is here. What the library
keeps for the way back, the reserve, it tells only where it runs, so a rule stands for it: what a step of the chain rule reads.
In the two sizes of it that are published (pytorch/pytorch#2895: four layers, LSTM and GRU) cuDNN keeps per row, layer and
direction the gates, the cell's state of an LSTM, and of a GRU three values more, and per row what one layer hands to the next.
Later versions may keep something else, so a part more is counted (MARGIN).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from remat_codegen.errors import UnsupportedError
from remat_codegen.profile.devices import Device
from remat_codegen.torch_seam import ABSENT, autocast_excluded, is_fake, pytree, set_fake_result

aten = torch.ops.aten
Tensor = torch.Tensor
MODES = {"rnn_relu": 0, "rnn_tanh": 1, "lstm": 2, "gru": 3}  # cuDNN's numbers
GATES = (1, 1, 4, 3)  # by mode, of each unit
KEPT = (2, 2, 5, 6)  # by mode, the values that are kept of each unit and row
MARGIN = 1.25
TAKEN = (torch.float64, torch.float32, torch.float16)  # PyTorch gives cuDNN nothing else
DROPOUT_BYTES = 2048 * 24  # of the random numbers' state, by multiprocessor: a little more than two megabytes for 56 of them


@dataclass(frozen=True, slots=True)
class Recurrent:
    """A call of cuDNN's: its input, without copy with steps first, the weights by layer and direction, and what it computes."""

    steps: int
    batch: int
    mode: int
    hidden: int
    handed_on: int  # the width of what a layer gives, per direction
    layers: int
    directions: int
    drops: bool
    itemsize: int
    weights: tuple[tuple[Tensor, ...], ...]

    @property
    def rows(self) -> int:
        """Sequences times steps."""
        return self.steps * self.batch

    def reserve_bytes(self) -> int:
        """What is kept from the way there to the way back, by rule; with dropout, what it leaves between layers, and masks."""
        units = self.rows * self.directions
        states = self.layers * KEPT[self.mode] * self.hidden + (self.layers - 1) * self.handed_on
        dropped = (self.layers - 1) * self.handed_on * (1 + self.itemsize) if self.drops else 0
        return round(MARGIN * units * (states * self.itemsize + dropped))

    def workspace_bytes(self) -> int:
        """What a call needs while it runs, by rule: the weights twice and a part of them, and of each row and direction gates
        and states. Of two LSTMs, cuDNN 9.19 took 98 % of that on an H200 (`benchmarks/results/cudnn-room.md`)."""
        weights = sum(w.numel() for group in self.weights for w in group)
        states = self.rows * self.directions * (GATES[self.mode] + 3) * self.hidden
        return round(2.25 * weights + states) * self.itemsize

    def products(self) -> Iterator[tuple[int, int, int, int]]:
        """Rows, columns and sums of the matrix products, with how many follow each other: inputs at once, states step by
        step."""
        for inputs, states, *others in ([w for w in group if w.dim() == 2] for group in self.weights):
            yield self.rows, *inputs.shape, 1
            for weight in (states, *others):
                yield self.batch, *weight.shape, self.steps


@functools.cache
def drop_nothing_without_data() -> None:
    """Has recurrent networks of CUDA drop nothing between their layers where tensors have no data, in this process: cuDNN drops
    by a state that it makes from a number which it reads off the device (`get_dropout_state`). What is kept is the same, but
    for what a run for real tells. The way back has no rule of PyTorch's, which would run it for real, without what was kept."""
    set_fake_result(aten._cudnn_rnn_backward.default, _backward)
    library = torch.library.Library("aten", "IMPL")
    for name in MODES:
        for overload, place in (("input", 5), ("data", 6)):
            library.impl(f"{name}.{overload}", _dropping(getattr(getattr(aten, name), overload), place), "AutogradCUDA")
    _HELD.append(library)


_HELD: list[Any] = []  # what is registered is there for as long as these are


def _dropping(operation: Any, place: int) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        without_data = any(is_fake(t) for t in pytree.tree_leaves(args) if isinstance(t, Tensor))
        return operation.decompose(*((*args[:place], 0.0, *args[place + 1 :]) if without_data else args))

    return run


def of_call(name: str, args: Sequence[Any]) -> Recurrent:
    """What `aten._cudnn_rnn` or its backward (`name`) computes, by its arguments."""
    x, weights, stride = args[:3]
    first = 10 if "backward" in name else 6
    mode, hidden, projected, layers, batch_first, dropout, train, bidirectional = args[first : first + 8]
    steps, batch = (x.shape[1], x.shape[0]) if batch_first else x.shape[:2]
    groups = tuple(tuple(weights[i : i + stride]) for i in range(0, len(weights), stride))
    drops = bool(train and dropout and layers > 1)
    shape = steps, batch, mode, hidden, projected or hidden, layers, 1 + bidirectional
    return Recurrent(*shape, drops, x.element_size(), groups)


def kernels(gpu: Callable[[], Device]) -> dict[str, Callable[..., Any]]:
    """What the operations of recurrent networks call on a GPU that is not there, by overload; `gpu` tells which it is."""
    set_fake_result(aten._cudnn_rnn.default, _forward)
    set_fake_result(aten._cudnn_rnn_backward.default, _backward)
    set_fake_result(aten._thnn_fused_lstm_cell.default, _lstm_cell)
    set_fake_result(aten._thnn_fused_gru_cell.default, _gru_cell)
    set_fake_result(aten._thnn_fused_gru_cell_backward.default, _gru_cell_backward)
    return {f"{name}.input": _kernel(name, gpu) for name in MODES} | {f"{name}.data": _refused for name in MODES}


def _refused(*_: Any) -> Any:
    """Sequences of several lengths in one tensor, whose steps only the values of another one tell."""
    what = "a packed sequence's steps are not known without a GPU"
    raise UnsupportedError(what, hint="plan it where the GPU is, with --device cuda")


def _kernel(name: str, gpu: Callable[[], Device]) -> Callable[..., Any]:
    operation = getattr(aten, name).input

    def run(x: Tensor, hx: Any, weights: Sequence[Tensor], biases: bool, layers: int, dropout: float, *how: bool) -> Any:
        train, bidirectional, batch_first = how
        if not torch.backends.cudnn.enabled or x.dtype not in TAKEN or not x.numel():
            return operation.decompose(x, hx, weights, biases, layers, dropout, *how)
        state, cell = hx if name == "lstm" else (hx, None)
        if not train and torch.is_grad_enabled() and any(t.requires_grad for t in (x, state, *weights)):
            what = "cuDNN's recurrent networks go back in training mode only"
            raise UnsupportedError(what, hint="call .train() on it, or leave it out of training with requires_grad_(False)")
        hidden = state.shape[2] if cell is None else cell.shape[2]
        projected = state.shape[2] if state.shape[2] != hidden else 0
        random = x.new_empty(gpu().multiprocessors * DROPOUT_BYTES, dtype=torch.uint8) if train and dropout else None
        stride = len(weights) // (layers * (1 + bidirectional))
        form: tuple[Any, ...] = MODES[name], hidden, projected, layers, batch_first, dropout, train, bidirectional, [], random
        x, state, cell, *weights = _cast((x, state, cell, *weights))
        with autocast_excluded():
            out, *states = aten._cudnn_rnn(x, weights, stride, None, state, cell, *form)[:3]
        return (out, *states) if name == "lstm" else (out, states[0])

    return run


def _cast(tensors: Sequence[Tensor | None]) -> list[Any]:
    """Tensors as autocast hands them to cuDNN: in half precision, whatever type it casts to."""
    if not torch.is_autocast_enabled(ABSENT):
        return list(tensors)
    return [t if t is None or t.dtype is torch.float64 else t.to(torch.float16) for t in tensors]


def _forward(mode: Any, func: Any, *args: Any, **_: Any) -> Any:
    """The results of `aten._cudnn_rnn` on this device: output, states, reserve, and the weights in one piece, which the
    module's are already."""
    x, weight_buf, state, cell = args[0], *args[3:6]
    if x.device.type != ABSENT:
        return NotImplemented
    net, batch_first, train = of_call("", args), args[10], args[12]
    width = net.handed_on * net.directions
    size, stride = (net.steps, net.batch, width), (net.batch * width, width, 1)
    if batch_first:  # it is made with steps first
        size, stride = (size[1], size[0], width), (stride[1], stride[0], 1)
    out = x.new_empty_strided(size, stride)
    reserve = x.new_empty(net.reserve_bytes() if train else 0, dtype=torch.uint8)
    flat = x.new_empty(0) if weight_buf is None else weight_buf
    return out, _like(state), x.new_empty(0) if cell is None else _like(cell), reserve, flat


def _backward(mode: Any, func: Any, *args: Any, **_: Any) -> Any:
    """The gradients of `aten._cudnn_rnn`'s input, states and weights; those of weights are parts of one piece."""
    x, weights, _stride, _weight_buf, state, cell = args[:6]
    if x.device.type not in (ABSENT, "cuda"):
        return NotImplemented
    sizes = [w.numel() if args[21][3] else 0 for w in weights]
    parts = x.new_zeros(sum(sizes)).split(sizes)
    grads = [part.view(w.shape) if len(part) else part for part, w in zip(parts, weights, strict=True)]
    no_cell = x.new_empty(0) if cell is None else _like(cell)
    return _steps_first(x, args[14]), _like(state), no_cell, grads


def _lstm_cell(mode: Any, func: Any, *args: Any, **_: Any) -> Any:
    """The results of one step of an LSTM in PyTorch's own kernel: both states, and what is kept of each unit. PyTorch's own
    rule asks for biases."""
    gates, cell = args[0], args[2]
    return (_like(cell), _like(cell), _like(gates)) if cell.device.type == ABSENT else NotImplemented


def _gru_cell(mode: Any, func: Any, *args: Any, **_: Any) -> Any:
    """The results of one step of a GRU in PyTorch's own kernel, the state and what is kept of each unit."""
    state = args[2]
    if state.device.type != ABSENT:
        return NotImplemented
    return _like(state), state.new_empty(state.shape[0], 5 * state.shape[1])


def _gru_cell_backward(mode: Any, func: Any, *args: Any, **_: Any) -> Any:
    """The gradients of its gates, state and biases."""
    grad, workspace, biased = args
    if grad.device.type != ABSENT:
        return NotImplemented
    rows, hidden = workspace.shape[0], workspace.shape[1] // 5
    biases = [workspace.new_empty(3 * hidden if biased else 0) for _ in range(2)]
    return *(workspace.new_empty(rows, 3 * hidden) for _ in range(2)), workspace.new_empty(rows, hidden), *biases


def _like(tensor: Tensor) -> Tensor:
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


def _steps_first(x: Tensor, batch_first: bool) -> Tensor:
    """The gradient of an input, which lies with steps first."""
    return _like(x.transpose(0, 1)).transpose(0, 1) if batch_first else _like(x)
