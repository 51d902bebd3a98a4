"""What parts cost the host: steps of a model whose tensors are so small that nothing else counts.

    OMP_NUM_THREADS=1 python benchmarks/bench_parts.py [--steps 200] [--output benchmarks/results/parts.md]

A row is a table, in steps whose times are compared with those of the model as it is. "Computed twice" is that model, with what
the table rebuilds computed once more in forward: what no helper can avoid. "Checkpoint" is torch.utils.checkpoint around it.
"Hooks that check nothing" rebuild it, too, and nothing else: what saved-tensor hooks written in Python cost at least.
Times are those of the process, in steps by turns, and of each kind the median.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from remat_codegen import parts as helpers
from remat_codegen.parts import adopt, parts

LAYERS = 12
Run = Callable[..., torch.Tensor]


class Block(nn.Module):
    """Others have another way to the activation."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.fc, self.proj, self.drop = nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 16), nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.proj(self.activation(lambda x: self.drop(F.gelu(x)), self.fc(self.norm(x))))

    def activation(self, run: Run, x: torch.Tensor) -> torch.Tensor:
        return run(x)


class Parted(Block):
    def activation(self, run: Run, x: torch.Tensor) -> torch.Tensor:
        found = parts(self).part("gelu", run, x)
        assert isinstance(found, torch.Tensor)
        return found


class Twice(Block):
    def activation(self, run: Run, x: torch.Tensor) -> torch.Tensor:
        run(x)
        return run(x)


class Checkpointed(Block):
    def activation(self, run: Run, x: torch.Tensor) -> torch.Tensor:
        found = checkpoint(run, x, use_reentrant=False)
        assert isinstance(found, torch.Tensor)
        return found


class Bare:
    """One run of an activation, which runs again when autograd misses what it saved."""

    def __init__(self, run: Run, x: torch.Tensor) -> None:
        self.run, self.x, self.count, self.found = run, x, 0, None
        self.state = torch.default_generator.get_state()

    def first(self) -> torch.Tensor:
        with saved_tensors_hooks(self.pack, self.unpack):
            return self.run(self.x)

    def pack(self, _: torch.Tensor) -> int:
        self.count += 1
        return self.count - 1

    def unpack(self, number: int) -> torch.Tensor:
        if self.found is None:
            self.found: list[torch.Tensor] | None = []
            state = torch.default_generator.get_state()
            torch.default_generator.set_state(self.state)
            with torch.enable_grad(), saved_tensors_hooks(self.found.append, lambda x: x):
                self.run(self.x.detach().requires_grad_())
            torch.default_generator.set_state(state)
        return self.found[number]


class Hooked(Block):
    def activation(self, run: Run, x: torch.Tensor) -> torch.Tensor:
        return Bare(run, x).first()


class Net(nn.Module):
    def __init__(self, kind: type[Block]) -> None:
        super().__init__()
        self.h, self.head = nn.ModuleList(kind() for _ in range(LAYERS)), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.h:
            x = block(x)
        found = self.head(x)
        assert isinstance(found, torch.Tensor)
        return found


def rows(entries: str, every: int = 1) -> dict[str, str]:
    """A table with these entries for some of the layers."""
    return {f"h.{i}": entries for i in range(0, LAYERS, every)}


TABLES: Mapping[str, dict[str, str]] = {
    "an empty table": {},
    f"{LAYERS // 4} activations": rows("gelu", 4),
    f"{LAYERS} activations": rows("gelu"),
    f"{LAYERS} activations and {LAYERS} norms": rows("norm gelu"),
}
OTHERS = {
    f"{LAYERS} activations computed twice": Twice,
    f"{LAYERS} activations by hooks that check nothing": Hooked,
    f"{LAYERS} activations by torch.utils.checkpoint": Checkpointed,
}


def models() -> dict[str, nn.Module]:
    """By what a row says."""
    found: dict[str, nn.Module] = {"the model": Net(Block).train()}
    for name, plan in TABLES.items():
        found[name] = adopt(Net(Parted).train(), plan)
    return found | {name: Net(kind).train() for name, kind in OTHERS.items()}


def step_us(model: nn.Module, x: torch.Tensor) -> float:
    """A step's time, without the optimizer's."""
    model.zero_grad()
    begin = time.process_time_ns()
    model(x).sum().backward()
    return (time.process_time_ns() - begin) / 1000


def measured(steps: int) -> dict[str, float]:
    """The median time of a step by row."""
    torch.set_num_threads(1)
    helpers.NUMPY = False  # as in a file whose model does not know it
    found, x = models(), torch.randn(4, 16)
    times: dict[str, list[float]] = {name: [] for name in found}
    for number in range(steps + 20):
        for name, model in found.items():
            taken = step_us(model, x)
            if number >= 20:
                times[name].append(taken)
    return {name: statistics.median(values) for name, values in times.items()}


def table(times: Mapping[str, float]) -> str:
    """As Markdown."""
    plain = times["the model"]
    lines = [f"| {name} | {us:,.0f} us | {us / plain:.2f} x |" for name, us in times.items()]
    return "\n".join(["| step of | time | ratio |", "|---|---:|---:|", *lines])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    told = (__doc__ or "").split("\n\n", 2)[2]
    text = f"# What parts cost the host\n\n{told}\n{table(measured(options.steps))}\n"
    if options.output:
        options.output.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
