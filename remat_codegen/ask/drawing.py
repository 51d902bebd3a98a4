"""A large model is made in seconds: what its constructor draws for large tensors is drawn once and repeated.

Plans depend on no numbers, and `verify` compares a file with the original on the same ones, whatever they are. Everybody who
makes the model from the same seed does it in here: less is drawn, so that what follows is other than without. This file runs
without the package, too.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch

DRAWN = 2**18 + 7  # numbers of a tensor that are drawn at most; a prime, so that it takes as many rows until two are equal
DRAWS = ("normal_", "uniform_")  # what torch.nn.init calls, too


@contextlib.contextmanager
def quick_draws() -> Iterator[None]:
    """In here, these methods of a large tensor on the CPU draw some of its numbers, and repeat them."""
    with contextlib.ExitStack() as stack:
        for name in DRAWS:
            stack.enter_context(mock.patch.object(torch.Tensor, name, _drawing_some(getattr(torch.Tensor, name))))
        yield


def _drawing_some(draw: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @functools.wraps(draw)
    def drawn(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if tensor.dim() < 2 or tensor.numel() <= DRAWN or not _is_plain(tensor):
            return draw(tensor, *args, **kwargs)
        numbers = tensor.view(-1)
        some = draw(numbers[:DRAWN], *args, **kwargs)
        whole, left = divmod(len(numbers), DRAWN)
        numbers[DRAWN : whole * DRAWN].view(-1, DRAWN).copy_(some)  # at once: threads wait for each other at the end of a copy
        numbers[len(numbers) - left :].copy_(some[:left])
        return tensor

    return drawn


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether its numbers are memory of its own that autograd does not look at."""
    followed = tensor.requires_grad and torch.is_grad_enabled()
    usual = type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.device.type == "cpu"
    return usual and not followed and tensor.is_contiguous()
