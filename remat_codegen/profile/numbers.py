"""Tensors that nodes are measured on: of a variable's layout, with numbers that the node's operations can take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from remat_codegen.trace import Variable

DRAWN = 2**18 + 7  # numbers of a matrix that are drawn at most; a prime, so that it takes as many rows until two are equal


def random_tensor(
    variable: Variable, device: str, high: int = 1, floats: Callable[..., torch.Tensor] = torch.randn
) -> torch.Tensor:
    """A tensor of a variable's layout: normal numbers, integers from 0 to below `high`, either where it is boolean."""
    size = span(variable)
    if variable.dtype.is_floating_point or variable.dtype.is_complex:
        drawn = floats(size if len(variable.shape) < 2 else min(size, DRAWN), dtype=variable.dtype, device=device)
        base = drawn if size == len(drawn) else _repeated(drawn, size)
    else:
        high = 2 if variable.dtype is torch.bool else min(high, torch.iinfo(variable.dtype).max)
        base = torch.randint(0, high, (size,), device=device).to(variable.dtype)
    return base.as_strided(variable.shape, variable.stride)


def _repeated(drawn: torch.Tensor, size: int) -> torch.Tensor:
    """So many numbers, over and over the same ones, for drawing takes longer than many an operation on them."""
    base = drawn.new_empty(size)
    whole = size // len(drawn) * len(drawn)
    base[:whole].view(-1, len(drawn)).copy_(drawn)
    base[whole:].copy_(drawn[: size - whole])
    return base


def span(variable: Variable) -> int:
    """How many numbers its layout spans, those between its rows included."""
    if 0 in variable.shape:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(variable.shape, variable.stride, strict=True))


def recorded_tensor(variable: Variable, value: torch.Tensor, device: str) -> torch.Tensor:
    """The tensor that a variable was in a recorded run, in its layout. What lies in one place several times is written once."""
    tensor = torch.zeros(span(variable), dtype=variable.dtype, device=device).as_strided(variable.shape, variable.stride)
    once = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in variable.stride)
    tensor[once].copy_(value[once])
    return tensor


def ones(variable: Variable, device: str, high: int = 1) -> torch.Tensor:
    """Another one, for operations that find places from how much there is of a mask: `mask.sum(1).long() - 1`."""
    return random_tensor(variable, device, high).fill_(1)


def near_identity(variable: Variable, device: str, high: int = 1) -> torch.Tensor:
    """Another tensor of its layout, for operations that take probabilities or positive definite matrices only."""
    tensor = random_tensor(variable, device, high, _small)
    numbers = variable.dtype.is_floating_point or variable.dtype.is_complex
    if numbers and tensor.dim() > 1 and 0 not in tensor.stride():  # a repeated row has no diagonal of its own
        tensor.diagonal(dim1=-2, dim2=-1).fill_(0.9)
    return tensor


def counting(variable: Variable, device: str, high: int = 1) -> torch.Tensor:
    """Another tensor of its layout, with whole numbers that are not 0, for operations that count those and look at the last."""
    tensor = random_tensor(variable, device, high)
    numbers = variable.dtype.is_floating_point or variable.dtype.is_complex or variable.dtype is torch.bool
    return tensor if numbers else tensor.fill_(2)


def _small(count: int, **options: Any) -> torch.Tensor:
    return torch.rand(count, **options).mul_(1e-3)
