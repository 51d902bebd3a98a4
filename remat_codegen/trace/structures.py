"""Dataclasses in what a model is given and returns: PyTorch looks into those that it has been told of."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import torch

from remat_codegen.torch_seam import pytree


def know_dataclasses(value: Any) -> Any:
    """Tells torch.utils._pytree of the dataclasses in nested containers, and returns the value."""
    kind = type(value)
    if is_dataclass(value) and kind not in pytree.SUPPORTED_NODES:
        pytree.register_dataclass(kind)
    if is_dataclass(value):
        parts = [getattr(value, f.name, None) for f in fields(value)]
    elif isinstance(value, dict):
        parts = list(value.values())
    else:
        parts = list(value) if isinstance(value, (list, tuple)) else []
    for part in parts:
        know_dataclasses(part)
    return value


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
