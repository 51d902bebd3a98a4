"""The modes that operations run under: autocast, and whether gradients are recorded."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch

Autocast = tuple[tuple[str, torch.dtype], ...]  # the device types that torch.autocast is on for, and what it casts to


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The modes that operations run under."""

    grad_enabled: bool
    autocast: Autocast


def with_autocast(autocast: Autocast, device: str, dtype: torch.dtype | None) -> Autocast:
    others = tuple(entry for entry in autocast if entry[0] != device)
    return others if dtype is None else tuple(sorted((*others, (device, dtype)), key=lambda entry: entry[0]))


@contextlib.contextmanager
def autocasting(autocast: Autocast) -> Iterator[None]:
    """Runs what is inside under these casts and no others; copies of parameters are not held beyond their operation."""
    with contextlib.ExitStack() as stack:
        for device in {"cpu", "cuda"} - {device for device, _ in autocast}:
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        for device, dtype in autocast:
            stack.enter_context(torch.autocast(device, dtype=dtype, cache_enabled=False))
        yield
