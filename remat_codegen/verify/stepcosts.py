"""What training steps of the original and of a generated file cost, side by side: memory that is held, and time."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from remat_codegen.profile.memory import peak_bytes
from remat_codegen.trace.training import Run, seed_all

PAIRS, ENOUGH_S = 5, 2.0  # steps of both that are timed: so many, or those within so many seconds


@dataclass(frozen=True, slots=True)
class StepCosts:
    """The most that a step of the original holds, and the file's time over the original's. None where it does not fit."""

    original_peak_bytes: int | None
    time_ratio: float | None


def step_costs(made: Callable[[], Run], rematerialized: Callable[[], Run], device: str) -> StepCosts:
    """Measures steps of new models: of the original alone, then of both by turns where there is room for both."""

    def twice() -> None:  # in the second step Python may still hold what it kept of the first
        original.step()
        original.renew_inputs()
        original.step()

    try:
        original = made()
        peak = peak_bytes(twice, device, original.renew_frozen)
    except (MemoryError, torch.OutOfMemoryError):
        return StepCosts(None, None)
    try:
        return StepCosts(peak, _ratio(original, rematerialized(), device))
    except (MemoryError, torch.OutOfMemoryError):  # one of them fits, both do not
        return StepCosts(peak, None)


def _ratio(original: Run, generated: Run, device: str) -> float:
    """The file's time over the original's: of steps by turns, so that both see the same machine, the shortest of each, which
    nobody else has made longer. The first one of the file warms it up."""
    generated.step()
    begin, pairs = time.perf_counter(), list[tuple[float, float]]()
    while len(pairs) < PAIRS and (not pairs or time.perf_counter() - begin <= ENOUGH_S):
        pairs.append((_seconds(original.step, device, len(pairs)), _seconds(generated.step, device, len(pairs))))
    usual, own = map(min, zip(*pairs, strict=True))
    return own / usual


def _seconds(work: Callable[[], Any], device: str, seed: int) -> float:
    seed_all(seed)  # what a model leaves out by chance is the same for both
    _finish(device)
    begin = time.perf_counter()
    work()
    _finish(device)
    return time.perf_counter() - begin


def _finish(device: str) -> None:
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
