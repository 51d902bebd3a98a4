"""How long GPT-2's file is, whatever the budget is and whatever noise there is in the measured costs.

    python benchmarks/bench_length.py [--runs 8] [--noise 0.1]

Each run plans with costs that are off by a factor, drawn for each cost (log-normal, `--noise` its deviation; the first run
takes them as they were measured). Prints a table and writes it to benchmarks/results/length.md.
"""

from __future__ import annotations

import argparse
import math
import random
import tempfile
from dataclasses import replace
from pathlib import Path

from remat_codegen.ask.request import Request
from remat_codegen.errors import BudgetError
from remat_codegen.profile.costs import Profile
from remat_codegen.run import pipeline
from remat_codegen.run.priced import measured_costs
from remat_codegen.run.traced import trace_target
from remat_codegen.show.results import Progress

ROOT = Path(__file__).parents[1]
RESULT = ROOT / "benchmarks" / "results" / "length.md"
BUDGETS = ("1GiB", *(f"{percent}%" for percent in (35, 36, 37, 38, 40, 45, 50, 55, 60, 65, 70, 80, 90)))
QUIET = Progress(None)


def noisy(profile: Profile, seed: int, noise: float) -> Profile:
    """Other costs; equal nodes keep equal ones."""
    drawn, factors = random.Random(seed), dict[int, float]()
    deviation = noise if seed else 0.0
    times = (round(t * factors.setdefault(t, math.exp(drawn.gauss(0, deviation)))) for t in profile.time_ns)
    return replace(profile, time_ns=tuple(times))


def length(request: Request, profile: Profile) -> tuple[int, float] | None:
    """Lines of the file that is planned with these costs, and the overhead; None without a plan."""
    pipeline.measured_costs = lambda *given: profile
    try:
        report = pipeline.generate(request, QUIET)
    except BudgetError:
        return None
    return len(request.output_path.read_text().splitlines()), report.overhead


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=8)
    parser.add_argument("--noise", type=float, default=0.1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        request = Request(f"{ROOT}/examples/gpt2.py:GPT2", output=Path(folder) / "gpt2_remat.py")
        traced = trace_target(request, QUIET)
        profile = measured_costs(request, traced, QUIET)
        pipeline.trace_target = lambda *given: traced
        what = f"{options.runs} runs, costs off by a factor of log-normal deviation {options.noise:g}"
        lines = [
            f"GPT-2 as in examples/gpt2.py, {what}.",
            "",
            "| budget | lines, fewest | most | overhead, least | most |",
            "|---|---:|---:|---:|---:|",
        ]
        for budget in BUDGETS:
            runs = [length(replace(request, budget=budget), noisy(profile, s, options.noise)) for s in range(options.runs)]
            found = [r for r in runs if r is not None]
            counts, overheads = [n for n, _ in found], [100 * o for _, o in found]
            times = f"{min(overheads):.1f} % | {max(overheads):.1f} %"
            lines.append(f"| {budget.replace('%', ' %')} | {min(counts)} | {max(counts)} | {times} |")
            print(lines[-1], flush=True)
    RESULT.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
