"""Where a module holds tensors that are neither parameters nor buffers: as plain attributes, or in lists and dictionaries.

Such a tensor belongs to an instance, so a generated file reaches it there (`m.anchors`, `m.scales[2]`) instead of holding its
values.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import torch

DEEPEST = 4  # lists in lists
_KEY = re.compile(r"\w+")
_OF_MODULES = frozenset(vars(torch.nn.Module()))


def attribute_paths(module: torch.nn.Module) -> dict[int, str]:
    """By a tensor's id: its path from `module`, such as head.anchors, head.scales[2] or head.masks['causal']."""
    found: dict[int, str] = {}
    for name, part in module.named_modules():
        for attribute in sorted(vars(part).keys() - _OF_MODULES):
            value = vars(part)[attribute]
            for path, tensor in _tensors(attribute, value):
                found.setdefault(id(tensor), f"{name}.{path}" if name else path)
    return found


def computed_attributes(module: torch.nn.Module) -> dict[int, torch.Tensor]:
    """By a tensor's id: the values of what hooks compute before each forward pass, such as an old weight_norm's weight.

    As copy.deepcopy's second argument these make a copy where it refuses tensors that came out of an operation.
    """
    held = [value for part in module.modules() for value in vars(part).values() if isinstance(value, torch.Tensor)]
    return {id(tensor): tensor.detach().clone() for tensor in held if tensor.grad_fn is not None}


def _tensors(path: str, value: Any, depth: int = 0) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield path, value
    elif depth == DEEPEST:
        return
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from _tensors(f"{path}[{index}]", item, depth + 1)
    elif isinstance(value, dict):
        for key, item in value.items():
            if isinstance(key, int) or (isinstance(key, str) and _KEY.fullmatch(key)):
                yield from _tensors(f"{path}[{key!r}]", item, depth + 1)
