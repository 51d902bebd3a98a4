"""Where autograd adds a gradient into the memory of another one, and where the sum of both is a third.

Two operations that use a value each make a gradient of it, and the engine adds them (torch/csrc/autograd/input_buffer.cpp,
`accumulate`): in place of the first, where that lies dense and nobody else holds it. Under a dispatch mode it never does so,
since a mode may do anything; `Sums` does it there instead. Who holds a tensor is asked by its reference counts, compared with
those of one that the engine alone holds, as they depend on how many hands an operation goes through.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from remat_codegen.torch_seam import TorchDispatchMode, current_node, reference_counts

ADD = torch.ops.aten.add.Tensor


class Sums:
    """Knows the sums that the engine makes in place, on a device."""

    def __init__(self, device: str) -> None:
        alone, shared = _counts(_held_once, device), _counts(_held_twice, device)
        self.alone = alone if alone != shared else None  # None where counts tell nothing: then no sum is

    def are_in_place(self, func: Any, args: Any) -> bool:
        """Whether an operation is such a sum."""
        node = current_node()
        if func is not ADD or node is None or isinstance(node, torch.autograd.function.BackwardCFunction):
            return False
        first, second = args
        if not isinstance(first, torch.Tensor) or not isinstance(second, torch.Tensor):
            return False
        alike = first.shape == second.shape and first.dtype == second.dtype
        return alike and _is_dense(first) and self.alone is not None and reference_counts(first) == self.alone


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether a tensor's numbers lie side by side, in whatever order."""
    numbers = 1
    for stride, size in sorted((stride, size) for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size != 1):
        if stride != numbers:
            return False
        numbers *= size
    return True


class _Counting(TorchDispatchMode):
    """Notes the reference counts of what the engine adds to."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[int, int] | None] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is ADD and current_node() is not None:
            self.seen.append(reference_counts(args[0]))
        return func(*args, **(kwargs or {}))


def _counts(example: Any, device: str) -> tuple[int, int] | None:
    """The reference counts of the one gradient that is added to in an example."""
    with _leaf(device) as leaf, _Counting() as counting:
        example(leaf).sum().backward()
    return counting.seen[0] if len(counting.seen) == 1 else None


@contextlib.contextmanager
def _leaf(device: str) -> Iterator[torch.Tensor]:
    with torch.enable_grad():
        yield torch.empty(2, 2, device=device, requires_grad=True)


def _held_once(leaf: torch.Tensor) -> torch.Tensor:
    value = leaf * 1.0
    return value.sin() * value.cos()


def _held_twice(leaf: torch.Tensor) -> torch.Tensor:
    """The gradient of a sum is that of both terms, of which one waits longer."""
    waiting = leaf.detach().requires_grad_() * 1.0
    value = leaf * 1.0
    other = value.sin()
    return (waiting + value) * other
