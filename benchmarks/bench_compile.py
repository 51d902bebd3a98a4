"""What torch.compile brings to a file with marks: around it, between its parts, and within them.

    python benchmarks/bench_compile.py [--budget 60%] [--runs 5] [--backend inductor] [--output benchmarks/results/compile.md]

A GPT-2 of six layers trains as it is and from its file, eager and compiled. "Between its parts" is `block.compile()` for each
block: parts run as they are, what is between them is compiled. "Within them" compiles what each part runs, too, which nothing
in the package does: parts are given compiled functions here, to see what that brings. Peaks are what a step allocates above
what was there before it, gradients included, as everywhere; times are medians of steps by turns, compilation aside. The
gradients' difference is the largest of any number, in units of the largest of that gradient: compiled kernels round otherwise.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType

import torch
import torch._dynamo
from torch import nn

import remat_codegen
from remat_codegen.ask.target import load_target
from remat_codegen.profile.memory import peak_bytes

ROOT = Path(__file__).parents[1]
INIT = "layers=6, width=256, heads=8, vocabulary=512, context=256, dropout=0.0"
INPUTS = "idx=int64[4,256]<512"


def fresh() -> nn.Module:
    torch.manual_seed(0)
    return load_target(f"{ROOT}/examples/gpt2.py:GPT2", init=INIT, inputs=INPUTS).module.train()


def blocks_compiled(model: nn.Module, backend: str) -> nn.Module:
    for block in model.h:
        block.compile(backend=backend)
    return model


def parts_compiled(model: nn.Module, module: ModuleType, backend: str) -> None:
    """Each part of this model runs compiled. `module` has the helpers of its file."""
    first, known = module.Part.first, {}

    @functools.wraps(first)
    def compiled(part, run, inputs):
        if part.step.model() is not model:  # one of another row, from the same file
            return first(part, run, inputs)
        if part.entry not in known:
            known[part.entry] = torch.compile(run, backend=backend, dynamic=False)
        return first(part, known[part.entry], inputs)

    module.Part.first = compiled


def helpers_of(model: nn.Module) -> ModuleType:
    """The generated module whose helpers a model trains by."""
    return sys.modules[type(vars(model)["forward"]).__module__]


def rows(budget: str, backend: str) -> dict[str, Callable[[], nn.Module]]:
    def planned():
        return remat_codegen.rematerialize(fresh(), INPUTS, budget=budget, progress=False)

    def within():
        model = planned()
        parts_compiled(model, helpers_of(model), backend)
        return blocks_compiled(model, backend)

    return {
        "the model": fresh,
        "the model, compiled": lambda: torch.compile(fresh(), backend=backend),
        f"a file at {budget}": planned,
        f"a file at {budget}, compiled around": lambda: torch.compile(planned(), backend=backend),
        f"a file at {budget}, compiled between its parts": lambda: blocks_compiled(planned(), backend),
        f"a file at {budget}, compiled between and within": within,
    }


def step(model: nn.Module, tokens: torch.Tensor) -> None:
    for parameter in model.parameters():
        parameter.grad = None
    model(tokens).logsumexp(-1).mean().backward()


def difference(model: nn.Module, other: nn.Module, tokens: torch.Tensor) -> float:
    step(model, tokens), step(other, tokens)
    pairs = [(p.grad, q.grad) for p, q in zip(model.parameters(), other.parameters(), strict=True)]
    return max(float((a - b).abs().max() / b.abs().max()) for a, b in pairs)


def measured(models: Mapping[str, nn.Module], tokens: torch.Tensor, runs: int) -> dict[str, float]:
    times: dict[str, list[float]] = {name: [] for name in models}
    for _ in range(runs):
        for name, model in models.items():
            begin = time.perf_counter()
            step(model, tokens)
            times[name].append(time.perf_counter() - begin)
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--budget", default="60%")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--backend", default="inductor")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    torch._dynamo.config.cache_size_limit = 64
    torch.manual_seed(1)
    tokens, models, first = torch.randint(512, (4, 256)), {}, {}
    for name, make in rows(options.budget, options.backend).items():
        models[name] = make()
        begin = time.perf_counter()
        step(models[name], tokens), step(models[name], tokens)
        first[name] = time.perf_counter() - begin
    times, plain = measured(models, tokens, options.runs), models["the model"]
    lines = ["| step of | time | peak | gradients' difference | first two steps |", "|---|---:|---:|---:|---:|"]
    for name, model in models.items():
        peak = peak_bytes(lambda model=model: step(model, tokens)) / 2**20
        apart, ratio = difference(model, plain, tokens), times[name] / times["the model"]
        lines.append(f"| {name} | {ratio:.2f} x | {peak:.1f} MiB | {apart:.1e} | {first[name]:.0f} s |")
    text = "\n".join(lines)
    if options.output:
        told = (__doc__ or "").split("\n\n", 2)[2]
        options.output.write_text(f"# What torch.compile brings to a file\n\n{told}\n{text}\n")
    print(text)


if __name__ == "__main__":
    main()
