"""What steps of a model and of a file generated for it take on a GPU: memory, time, and whether gradients are the same.

    python benchmarks/gpu_step.py MODEL.py:NAME FILE --inputs "int64[2,512]<50257" [--init "layers=12"] [--runs 10]

Prints one JSON object. Imports nothing but torch, so that it measures what a user of the file would. What does not fit into the
GPU is null there.
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import json
import re
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

DEVICE = "cuda:0"
WARMING = 3  # steps before what is measured
KINDS = {"requested": "requested_bytes.all", "allocated": "allocated_bytes.all", "reserved": "reserved_bytes.all"}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("file", type=Path)
    parser.add_argument("--init", default="")
    parser.add_argument("--inputs", required=True)
    parser.add_argument("--runs", type=int, default=10)
    options = parser.parse_args()
    torch.manual_seed(0)
    path, _, name = options.model.rpartition(":")
    model = getattr(imported(Path(path)), name)(**eval(f"dict({options.init})")).to(DEVICE)
    file, inputs = imported(options.file), inputs_of(options.inputs)
    models = {"original": model, "file": file.rematerialize(copy.deepcopy(model))}  # a file makes a model of its own of it
    for parameter in (p for made in models.values() for p in made.parameters()):
        parameter.grad = torch.zeros_like(parameter)
    steps = {which: stepper(made, inputs) for which, made in models.items()}
    found: dict[str, Any] = {f"{which}_peak_bytes": or_none(lambda s=step: peaks(s)) for which, step in steps.items()}
    fits = {which: step for which, step in steps.items() if found[f"{which}_peak_bytes"] is not None}
    found["seconds"] = or_none(lambda: seconds(fits, options.runs))
    found["gradients"] = or_none(lambda: compared(models, steps)) if len(fits) == len(steps) else None
    print(json.dumps(found))


def imported(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None, path
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def inputs_of(text: str) -> tuple[torch.Tensor, ...]:
    """`int64[2,512]<50257; float32[2,3]`: the part of `--inputs` that is needed here."""
    found = []
    for part in text.split(";"):
        written = re.fullmatch(r"\s*(\w+)\[([\d,]+)\](?:<(\d+))?\s*", part)
        assert written is not None, part
        shape = [int(size) for size in written[2].split(",")]
        dtype = getattr(torch, written[1])
        made = torch.randn(shape) if dtype.is_floating_point else torch.randint(int(written[3] or 2), shape)
        found.append(made.to(DEVICE, dtype))
    return tuple(found)


def stepper(model: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> Callable[[], None]:
    """Forward and backward, with a loss that needs as much memory as cross entropy does."""
    return lambda: model(*inputs).logsumexp(-1).mean().backward()


def or_none(work: Callable[[], Any]) -> Any:
    """What `work` gives, or None where it does not fit."""
    try:
        return work()
    except torch.OutOfMemoryError:
        torch.cuda.empty_cache()
        return None


def peaks(step: Callable[[], None]) -> dict[str, int]:
    """The most bytes a step holds over what is held between steps, as requested, allocated and reserved."""
    for _ in range(2):
        step()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_stats(DEVICE)
    torch.cuda.reset_peak_memory_stats(DEVICE)
    step()
    torch.cuda.synchronize()
    after = torch.cuda.memory_stats(DEVICE)
    held = {kind: before[f"{key}.current"] for kind, key in KINDS.items()}
    held["reserved"] = held["allocated"]  # what is cached for the step counts as its own
    return {kind: after[f"{key}.peak"] - held[kind] for kind, key in KINDS.items()}


def seconds(steps: dict[str, Callable[[], None]], runs: int) -> dict[str, float]:
    """Medians, by turns so that all see the same machine."""
    taken: dict[str, list[float]] = {which: [] for which in steps}
    for index in range(WARMING + runs):
        for which, step in steps.items():
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            step()
            end.record()
            end.synchronize()
            if index >= WARMING:
                taken[which].append(begin.elapsed_time(end) / 1000)
    return {which: statistics.median(found) for which, found in taken.items()}


def compared(models: dict[str, torch.nn.Module], steps: dict[str, Callable[[], None]]) -> dict[str, float]:
    """The largest difference of a gradient, over its largest element: the original's from its own, then the file's from that.

    Zero is to the bit. The original's own, with the same random numbers, is the noise of kernels that are not deterministic.
    """
    first, *others = (gradients(models[which], steps[which]) for which in ("original", "original", "file"))
    return {which: difference(first, other) for which, other in zip(("noise", "file"), others, strict=True)}


def gradients(model: torch.nn.Module, step: Callable[[], None]) -> list[torch.Tensor]:
    model.zero_grad(set_to_none=False)
    torch.manual_seed(1)
    step()
    return [p.grad.to("cpu", copy=True) for p in model.parameters() if p.grad is not None]


def difference(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> float:
    worst = 0.0
    for a, b in zip(ours, theirs, strict=True):
        if not torch.equal(a, b):
            apart = (a.double() - b.double()).abs().max() / a.double().abs().max().clamp_min(1e-30)
            worst = max(worst, float(apart.nan_to_num(float("inf"))))
    return worst


if __name__ == "__main__":
    main()
