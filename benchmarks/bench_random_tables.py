"""How well random tables are planned: of every model of tests/models, planned and measured peaks. Writes
results/random-tables.md.

    python benchmarks/bench_random_tables.py [--tables N] [--seed SEED] [MODEL ...]

Tables are drawn from all that could be rebuilt, with every option, as those of tests/property/test_table_peaks.py: no search
would come to most of them. All models on the CPU (torchvision, timm, transformers: `make libraries`; those of missing ones are
left out). Models that are named are only printed.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests" / folder) for folder in ("models", "property", "")]

from bench_peaks import CATALOGUES, known  # noqa: E402
from test_table_peaks import drawn  # noqa: E402

from remat_codegen.ask.request import Request  # noqa: E402
from remat_codegen.errors import RematError  # noqa: E402
from remat_codegen.header.saved_plan import SavedPlan  # noqa: E402
from remat_codegen.marked.candidates import Row  # noqa: E402
from remat_codegen.marked.choose import parts_of  # noqa: E402
from remat_codegen.marked.evaluations import Vertex  # noqa: E402
from remat_codegen.planners.base.reserve import SLACK_BYTES  # noqa: E402
from remat_codegen.profile import clock  # noqa: E402
from remat_codegen.profile.memory import peak_bytes  # noqa: E402
from remat_codegen.run import marked, marked_text, tabling  # noqa: E402
from remat_codegen.run.priced import measured_costs  # noqa: E402
from remat_codegen.run.traced import trace_target  # noqa: E402
from remat_codegen.show.results import Progress  # noqa: E402
from remat_codegen.trace.training import Run  # noqa: E402
from remat_codegen.verify.beside import load_generated, own_model  # noqa: E402

RESULT = Path(__file__).parent / "results" / "random-tables.md"
QUIET = Progress(None)
HEAD = """\
| model | tables | not written | least: planned over measured, bytes | least, % | median, % | most, % |
|---|---:|---:|---:|---:|---:|---:|"""


class Tables:
    """Tables of one model."""

    def __init__(self, name: str) -> None:
        module = next(c.__file__ for c in CATALOGUES if name in c.NAMES)
        self.request = Request(f"{module}:{name}", "90%", inputs=f"{module}:{name}_inputs", edition=2)
        self.traced = trace_target(self.request, QUIET)
        self.found = tabling.found_of(self.traced)
        self.profile = measured_costs(self.request, self.traced, QUIET)

    def peaks(self, rows: Sequence[Row[Vertex]]) -> tuple[int, int]:
        """A table's peak, planned and measured, in bytes. Raises RematError where no text has the marks that it needs."""
        traced, pairs = self.traced, parts_of(tuple(rows))
        brought = tabling.Brought(self.found, tuple(rows), self.found.holders.schedule([part for _, part in pairs]), 0)
        plan = SavedPlan(traced.graph.digest(), "none", "feasible", "90%", 10**9, 0, 0, 0.0, None, "cpu", ())
        plan = marked.as_planned(plan, traced, self.profile, brought)
        text = marked_text.emit(traced, plan, self.request, brought)
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "file_remat.py"
            file.write_text(text)
            model = load_generated(file).rematerialize(own_model(traced.target.module, "cpu"))
            torch.manual_seed(0)
            run = Run(model, traced.target.args, traced.target.kwargs, (), traced.model.record.loss)
            run.step()
            run.update()
            run.outputs = None
            return plan.planned_peak_bytes, peak_bytes(run.step)

    def of_seeds(self, seeds: range) -> Iterator[tuple[list[Row[Vertex]], tuple[int, int] | Exception]]:
        """Tables drawn by seeds, with their peaks, or with what kept one from being written or run."""
        for seed in seeds:
            rows = drawn(self.found, self.traced.graph, seed) if self.found.candidates.all else []
            try:
                yield rows, self.peaks(rows)
            except (RematError, ValueError, RuntimeError) as error:
                yield rows, error


def line(name: str, found: list[tuple[int, int] | Exception]) -> str:
    """A model as a row of the page."""
    peaks = [pair for pair in found if not isinstance(pair, Exception)]
    by = sorted(100 * (planned / measured - 1) for planned, measured in peaks)
    if not peaks:
        return f"| {name} | 0 | {len(found)} | | | | |"
    least = min(planned - measured for planned, measured in peaks)
    shares = " | ".join(f"{p:+.2f}" for p in (by[0], statistics.median(by), by[-1]))
    return f"| {name} | {len(peaks)} | {len(found) - len(peaks)} | {least:+,} | {shares} |"


def said(rows: Sequence[Row[Vertex]]) -> str:
    """A table, for whoever looks into it: first and last node, what is kept, how often it runs again, whether it is late."""
    return str([(r.candidate.first, r.candidate.last, str(r.keeps), str(r.again), r.late) for r in rows])


def main() -> None:
    """Writes the page, or prints rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("models", nargs="*")
    asked = parser.parse_args()
    clock.MEASURED_SECONDS = 0.0  # times do not matter here
    lines, all_of = [], list[float]()
    for name in asked.models or known():
        found = []
        for rows, peaks in Tables(name).of_seeds(range(asked.seed, asked.seed + asked.tables)):
            found.append(peaks)
            if isinstance(peaks, Exception):
                print(f"{name}: {type(peaks).__name__} {str(peaks)[:160]}", flush=True)
            elif peaks[1] > peaks[0] + SLACK_BYTES:
                print(f"{name}: {peaks[1] - peaks[0]:,} bytes above {peaks[0]:,}: {said(rows)}", flush=True)
        all_of += [100 * (p[0] / p[1] - 1) for p in found if not isinstance(p, Exception)]
        lines.append(line(name, found))
        print(lines[-1], flush=True)
    if not asked.models:
        by = f"by `python benchmarks/bench_random_tables.py --tables {asked.tables}` (PyTorch {torch.__version__}, CPU)"
        share = sum(p >= -0.05 for p in all_of), len(all_of)
        first = f"Peaks of random tables, {by}. {share[0]} of {share[1]} take at most what is planned (or 0.05 % more)."
        RESULT.write_text("\n".join([*textwrap.wrap(first, 120), "", HEAD, *lines]) + "\n")


if __name__ == "__main__":
    main()
