"""What tables of parts lose against the plans that they are made from, over all models of tests/models. Writes
results/catalogue.md.

    python benchmarks/bench_catalogue.py [--budget 40%] [--decoders] [MODEL ...]

With `--decoders`, over the wider language models of decoders.py; that is results/decoders.md.
Models of torchvision, timm and transformers: `make libraries`; those of missing libraries are left out, as are those that no
plan fits into the budget. Plans are auto's; both overheads are in per cent of the step, by the same costs, which are measured
once each: these are small models, whose operations take microseconds. Models that are named are only printed.
"""

from __future__ import annotations

import argparse
import statistics
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import decoders
import torch
from bench_peaks import CATALOGUES, known

from remat_codegen.ask.request import Request
from remat_codegen.errors import BudgetError
from remat_codegen.profile import clock
from remat_codegen.run import marked, planning, priced, traced
from remat_codegen.show.results import Progress

RESULTS = Path(__file__).parent / "results"
QUIET = Progress(None)
HEAD = "| model | plan, % | table, % | lost, points | functions with marks |\n|---|---:|---:|---:|---|"
FELT = 0.5  # points


@dataclass(frozen=True)
class Row:
    """A model's overheads in per cent; None where no table fits. `functions` have marks."""

    name: str
    plan: float
    table: float | None
    functions: tuple[str, ...] = ()

    @property
    def lost(self) -> float:
        """Points that the table takes longer; without one, more than any."""
        return float("inf") if self.table is None else self.table - self.plan

    def line(self) -> str:
        """As a row of the table."""
        found = ["none fits", ""] if self.table is None else [f"{self.table:.2f}", f"{self.lost:+.2f}"]
        return f"| {self.name} | {self.plan:.2f} | {' | '.join(found)} | {', '.join(self.functions)} |"


def measured(name: str, budget: str, module: str) -> Row | None:
    """The row of a model of a file; None where no plan fits."""
    request = Request(f"{module}:{name}", budget, Path("file.py"), inputs=f"{module}:{name}_inputs", edition=2)
    found = traced.trace_target(request, QUIET)
    profile = priced.measured_costs(request, found, QUIET)
    try:
        plan = planning.make_plan(request, found, QUIET, profile=profile)
    except BudgetError:
        return None
    try:
        tabled, brought = marked.tabled(request, found, profile, plan, QUIET)
    except BudgetError:
        return Row(name, 100 * plan.overhead, None)
    marks = (function for row in brought.rows for (function, _), _ in row.candidate.marks)
    functions = tuple(sorted({function.name for function in marks if function.is_at_top}))
    return Row(name, 100 * plan.overhead, 100 * tabled.overhead, functions)


def page(rows: list[Row], left: Sequence[str], options: str, budget: str) -> str:
    """The page: what is lost most, first."""
    lost = [row.lost for row in rows]
    close, fit = sum(points <= FELT for points in lost), [points for points in lost if points < float("inf")]
    about = f"by `python benchmarks/bench_catalogue.py {options}` (PyTorch {torch.__version__}, CPU)"
    said = f"{close} of {len(rows)} lose at most {FELT:g} points, the median {statistics.median(lost):+.2f}, the most"
    none = f"; for {len(rows) - len(fit)} no table fits" if len(fit) < len(rows) else ""
    said = f"What tables lose against their plans, {about}: {said} {max(fit):.2f}{none}."
    outside = f"No plan fits {budget} of the peak of {', '.join(left)}." if left else ""
    lines = [row.line() for row in sorted(rows, key=lambda row: (-row.lost, row.name))]
    return "\n".join([*textwrap.wrap(f"{said} {outside}".strip(), 120), "", HEAD, *lines]) + "\n"


def main() -> None:
    """Writes the page, or prints rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*")
    parser.add_argument("--budget", default="40%")
    parser.add_argument("--decoders", action="store_true")
    asked = parser.parse_args()
    clock.MEASURED_SECONDS = 0.0  # a run for each kind of operation
    rows, left = [], []
    catalogues = (decoders,) if asked.decoders else CATALOGUES
    for name in asked.models or (decoders.NAMES if asked.decoders else known()):
        module = next(c.__file__ for c in catalogues if name in c.NAMES)
        if (row := measured(name, asked.budget, module)) is None:
            left.append(name)
            continue
        rows.append(row)
        print(row.line(), flush=True)
    if not asked.models:
        options = f"--budget {asked.budget}" + (" --decoders" if asked.decoders else "")
        result = RESULTS / ("decoders.md" if asked.decoders else "catalogue.md")
        result.write_text(page(rows, left, options, asked.budget))


if __name__ == "__main__":
    main()
