"""What a step costs beside its kernels: files of a 4-layer GPT-2, trained where kernels cost next to nothing.

    OMP_NUM_THREADS=1 python benchmarks/bench_host.py [--output benchmarks/results/host.md]
    python tests/nullgpu/run.py benchmarks/bench_host.py --device cuda     # on a GPU that computes nothing

Files are planned for 512 sequences of 16 tokens and train on one, so that what counts is the time of the host: the
original's operations, those that run again, and what the file does about them. "Operations" are those of a step, forward and
backward, compared with the original's: what the file does beside them is what the time's ratio has more. Steps run by turns;
each row has its median.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import remat_codegen
from remat_codegen.ask.target import load_target

ROOT = Path(__file__).parents[1]
INIT = "layers=4, width=64, heads=4, vocabulary=256, context=16"
INPUTS = "idx=int64[512,16]<256"
BUDGETS = ["80%", "60%", "40%", "30%"]


class Count(TorchDispatchMode):
    """Counts operations."""

    def __init__(self) -> None:
        super().__init__()
        self.found = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.found += 1
        return func(*args, **kwargs or {})


def checkpointed(model: nn.Module) -> nn.Module:
    """With torch.utils.checkpoint around each block."""
    for block in model.h:
        block.forward = lambda x, forward=block.forward: checkpoint(forward, x, use_reentrant=False)
    return model


def fresh() -> nn.Module:
    """The model, with weights of its own."""
    return load_target(f"{ROOT}/examples/gpt2.py:GPT2", init=INIT, inputs=INPUTS).module.train()


def models(device: str) -> dict[str, nn.Module]:
    """By what a row says."""
    found = {"the model": fresh()}
    for budget in BUDGETS:
        found[f"a file at {budget}"] = remat_codegen.rematerialize(fresh(), INPUTS, budget=budget, progress=False)
    found["torch.utils.checkpoint around each block"] = checkpointed(fresh())
    return {name: model.to(device) for name, model in found.items()}


def step(model: nn.Module, tokens: torch.Tensor) -> None:
    """Without the optimizer's."""
    model.zero_grad()
    model(tokens).sum().backward()


def operations(model: nn.Module, tokens: torch.Tensor) -> int:
    with Count() as count:
        step(model, tokens)
    return count.found


def measured(found: Mapping[str, nn.Module], tokens: torch.Tensor, steps: int) -> dict[str, float]:
    """The median time of a step by row, in microseconds."""
    times: dict[str, list[float]] = {name: [] for name in found}
    for number in range(steps + 10):
        for name, model in found.items():
            begin = time.perf_counter_ns()
            step(model, tokens)
            if number >= 10:
                times[name].append((time.perf_counter_ns() - begin) / 1000)
    return {name: statistics.median(values) for name, values in times.items()}


def table(found: Mapping[str, nn.Module], tokens: torch.Tensor, steps: int) -> str:
    """As Markdown."""
    times = measured(found, tokens, steps)
    counts = {name: operations(model, tokens) for name, model in found.items()}
    time_, count = times["the model"], counts["the model"]
    lines = ["| step of | time | ratio | operations |", "|---|---:|---:|---:|"]
    for name in found:
        lines.append(f"| {name} | {times[name]:,.0f} us | {times[name] / time_:.2f} x | {counts[name] / count:.2f} x |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    tokens = torch.randint(256, (1, 16), device=options.device)
    text = table(models(options.device), tokens, options.steps)
    if options.output:
        told = (__doc__ or "").split("\n\n", 2)[2]
        options.output.write_text(f"# What a step costs beside its kernels\n\n{told}\n{text}\n")
    print(text)


if __name__ == "__main__":
    main()
