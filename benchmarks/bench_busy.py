"""What operations seem to cost while others use the machine: by the least of several runs, as costs are measured, and by the
median of the same runs.

    python benchmarks/bench_busy.py [--programs 2] [--runs 3]

Prints a table and writes it to benchmarks/results/busy.md. The model is a scan over time, whose operations are small: those of
several threads wait for a thread that has lost its core. Nothing is remembered between measurements.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

from remat_codegen.ask.request import Request
from remat_codegen.profile import clock
from remat_codegen.run import priced, traced
from remat_codegen.show.results import Progress

RESULT = Path(__file__).parent / "results" / "busy.md"
LEAST = clock.rounded_ns


class Scan(nn.Module):
    """A state that goes through 64 moments, element by element."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(96, 1536), nn.Linear(1536, 96)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """From (batch, moments, 96) to the same."""
        inner = self.enter(x)
        state, found = torch.zeros_like(inner[:, 0]), []
        for moment in inner.unbind(1):
            state = torch.sigmoid(moment) * state + moment
            found.append(torch.tanh(state))
        return self.leave(torch.stack(found, 1))


def example_inputs() -> tuple[torch.Tensor]:
    """A batch of eight."""
    return (torch.randn(8, 64, 96),)


def costs_ms(runs: int) -> dict[str, float]:
    """The sum over all kinds of operations, the median of some measurements, by each way."""
    request = Request(f"{__file__}:Scan", "50%", Path("scan.py"), cache=False)
    found = traced.trace_target(request, Progress(None))
    taken: list[dict[str, float]] = []

    def noting(times: Sequence[int]) -> int:
        taken[-1]["least"] += LEAST(times) / 1e6
        taken[-1]["median"] += statistics.median(times) / 1e6
        return LEAST(times)

    clock.rounded_ns = noting
    for _ in range(runs):
        taken.append({"least": 0.0, "median": 0.0})
        priced.measured_costs(request, found, Progress(None))
    return {name: statistics.median(one[name] for one in taken) for name in taken[0]}


def main() -> None:
    """Measures alone, then beside programs that do nothing but count."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--programs", type=int, default=2)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    alone = costs_ms(options.runs)
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(options.programs)]
    try:
        beside = costs_ms(options.runs)
    finally:
        for other in others:
            other.kill()
    rows = [f"| {name} | {alone[name]:.0f} | {beside[name]:.0f} | {beside[name] / alone[name]:.2f} |" for name in alone]
    head = f"| of several runs, the | alone, ms | beside {options.programs} programs, ms | ratio |\n|---|---:|---:|---:|"
    command = f"python benchmarks/bench_busy.py --runs {options.runs}"
    about = f"All kinds of operations of a step, each once; {torch.get_num_threads()} threads, by `{command}`."
    text = "\n".join([about, "", head, *rows])
    print(text)
    RESULT.write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
