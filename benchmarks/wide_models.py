"""The models of tests/models/widths.py, called with batches that activations outweigh single weights in: targets by name."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "models"))

import builders
import widths

TIMES = 4  # the batches of the tests, which are kept small because each is trained several times

_catalogue = builders.Catalogue(globals())
NAMES = _catalogue.names


def _repeated(tensor: torch.Tensor) -> torch.Tensor:
    rows = tensor.detach().repeat(TIMES, *[1] * (tensor.dim() - 1))
    return rows.requires_grad_(tensor.requires_grad)


def _larger(inputs: Callable[[], Any]) -> Callable[[], Any]:
    return lambda: pytree.tree_map_only(torch.Tensor, _repeated, inputs())


for _name in widths.NAMES:
    _catalogue.add(_name, getattr(widths, _name), _larger(getattr(widths, f"{_name}_inputs")), builders.LIBRARIES.get(_name))
