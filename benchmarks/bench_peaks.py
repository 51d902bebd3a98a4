"""How well unmodified models' peaks are known beforehand: the simulator's, and the one measured. Writes results/peaks.md.

    python benchmarks/bench_peaks.py [MODEL ...]

All models of tests/models on the CPU (torchvision, timm, transformers: `make libraries`; those of missing ones are left out).
They are small, so that what is beside their tensors (64 bytes here, a kernel's scratch there) counts for more than in yours.
Models that are named are only printed.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "models"))

import builders  # noqa: E402
import catalogue  # noqa: E402
import further  # noqa: E402
import more  # noqa: E402

from remat_codegen.ask.request import Request  # noqa: E402
from remat_codegen.profile import clock, measure  # noqa: E402
from remat_codegen.profile.cache import Cache  # noqa: E402
from remat_codegen.profile.memory import peak  # noqa: E402
from remat_codegen.run.traced import trace_target  # noqa: E402
from remat_codegen.schedule import simulate, without_recomputation  # noqa: E402
from remat_codegen.show.results import Progress  # noqa: E402
from remat_codegen.trace.training import Run  # noqa: E402
from remat_codegen.verify.beside import collect  # noqa: E402

RESULT = Path(__file__).parent / "results" / "peaks.md"
CATALOGUES = (catalogue, more, further)
CLOSE = 2.0  # per cent
HEAD = "| model | simulated, bytes | measured, bytes | difference, % |\n|---|---:|---:|---:|"


@dataclass(frozen=True)
class Row:
    """One model's peak."""

    name: str
    simulated: int
    measured: int

    @property
    def percent(self) -> float:
        """By how much what is simulated is above what is measured."""
        return 100 * (self.simulated / self.measured - 1)

    def line(self) -> str:
        """As a row of the table."""
        return f"| {self.name} | {self.simulated:,} | {self.measured:,} | {self.percent:+.2f} |"


def measured(name: str) -> Row:
    """A model's peak, simulated and measured in its second step."""
    file = next(c.__file__ for c in CATALOGUES if name in c.NAMES)
    request = Request(f"{file}:{name}", "100%", Path("unwritten.py"), inputs=f"{file}:{name}_inputs")
    traced = trace_target(request, Progress(None))
    profile = measure.Measured("cpu", Cache("cpu", enabled=False)).of(traced.model)
    plain = simulate(traced.graph, profile, without_recomputation(traced.graph))
    run = Run(traced.target.module, traced.target.args, traced.target.kwargs, (), traced.model.record.loss)
    torch.manual_seed(0)
    run.step()
    run.update()
    run.outputs = None
    collect("cpu")
    return Row(name, plain.peak_bytes, peak(run.step).allocated_bytes)


def known() -> list[str]:
    """The models whose libraries are there, but those that are refused."""
    names = [n for c in CATALOGUES for n in c.NAMES if n not in getattr(c, "REFUSED", {})]
    return [n for n in names if n not in builders.LIBRARIES or importlib.util.find_spec(builders.LIBRARIES[n])]


def page(rows: list[Row]) -> str:
    """The page: what is off, and all."""
    off = [r for r in rows if abs(r.percent) > CLOSE]
    said = (
        f"{len(rows) - len(off)} of {len(rows)} are within {CLOSE:g} %, {statistics.median(abs(r.percent) for r in rows):.3f} %"
    )
    first = (
        f"Unmodified peaks, simulated and measured, by `python benchmarks/bench_peaks.py` (PyTorch {torch.__version__}). {said}"
    )
    return (
        "\n".join([f"{first} in the median. {WHY}", "", HEAD, *(r.line() for r in sorted(rows, key=lambda r: -abs(r.percent)))])
        + "\n"
    )


WHY = """\
Where the simulated one is above: the trace has attention's mask, which transformers leaves out where nothing is masked, as in
these inputs. Where it is below: forward's own variables hold results that nothing reads any longer, which is counted in files
with marks, and not here."""


def main() -> None:
    """Writes the page, or prints rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*")
    asked = parser.parse_args().models
    clock.MEASURED_SECONDS = 0.0  # times do not matter here
    rows = []
    for name in asked or known():
        rows.append(measured(name))
        print(rows[-1].line(), flush=True)
    if not asked:
        RESULT.write_text(page(rows))


if __name__ == "__main__":
    main()
