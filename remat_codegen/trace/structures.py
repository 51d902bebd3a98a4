"""Dataclasses in what a model is given and returns: PyTorch looks into those that it has been told of."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from remat_codegen.trace.training import know_dataclasses as know_dataclasses


@contextlib.contextmanager
def known_outputs(module: torch.nn.Module) -> Iterator[None]:
    """In here, the dataclasses that a module returns are known."""

    def look(_: torch.nn.Module, given: Any, found: Any) -> None:
        know_dataclasses(found)

    hook = module.register_forward_hook(look)
    try:
        yield
    finally:
        hook.remove()
