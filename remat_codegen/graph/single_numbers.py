"""What a step on the CPU holds in single numbers: they are no data nodes, and of a small model's peak some hundredths of a per
cent."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch


def single_number_bytes(loss: torch.Tensor, is_known: Callable[[torch.Tensor], bool]) -> int:
    """Bytes of the numbers that autograd saves for the products and quotients that a loss comes from (`x * 0.5`), which no hook
    for saved tensors is shown; and of the loss itself, and of the gradient that the way back begins with. `is_known` says of a
    tensor whether it is followed anyhow."""
    saved = [t for node in _nodes(loss.grad_fn) if (t := _divisor_or_factor(node)) is not None]
    return sum(t.element_size() for t in saved if not t.dim() and not is_known(t)) + 2 * loss.element_size()


def _divisor_or_factor(node: Any) -> torch.Tensor | None:
    with contextlib.suppress(RuntimeError):  # it has been changed in place: the step itself says so when it goes back
        found = getattr(node, "_saved_other", None)
        return found if isinstance(found, torch.Tensor) else None
    return None


def _nodes(last: Any) -> Iterator[Any]:
    """Autograd's nodes that one can be gone back from to."""
    seen, waiting = set(), [last]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        waiting += [before for before, _ in node.next_functions]
        yield node
