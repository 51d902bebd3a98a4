"""How well peaks are known beforehand: planned and measured, of models as they are and of their files. Writes results/peaks.md.

    python benchmarks/bench_peaks.py [MODEL ...]

All models of tests/models on the CPU (torchvision, timm, transformers: `make libraries`; those of missing ones are left out).
They are small, so that what is beside their tensors (64 bytes here, a kernel's scratch there) counts for more than in yours.
Files are for 60 % of the unmodified peak, or where no plan is, for 80 or 100 %. Models that are named are only printed.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import sys
import tempfile
import textwrap
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
from remat_codegen.errors import BudgetError  # noqa: E402
from remat_codegen.profile import clock  # noqa: E402
from remat_codegen.run import marked  # noqa: E402
from remat_codegen.show.results import Progress  # noqa: E402

RESULT = Path(__file__).parent / "results" / "peaks.md"
CATALOGUES = (catalogue, more, further)
CLOSE = 2.0  # per cent
BUDGETS = ("60%", "80%", "100%")
PADDED = """\
BERT and its relatives have padding in their inputs: without, libraries leave out the mask that the plan counts."""
HEAD = """\
| model | as it is: planned, bytes | measured | difference, % | file: planned, bytes | measured | difference, % |
|---|---:|---:|---:|---:|---:|---:|"""


@dataclass(frozen=True)
class Peak:
    """One peak in bytes."""

    planned: int
    measured: int

    @property
    def percent(self) -> float:
        """By how much what is planned is above what is measured."""
        return 100 * (self.planned / self.measured - 1)

    def cells(self) -> str:
        """As cells of the table."""
        return f"{self.planned:,} | {self.measured:,} | {self.percent:+.2f}"


@dataclass(frozen=True)
class Row:
    """One model's peaks: as it is, and of its file."""

    name: str
    plain: Peak
    file: Peak

    @property
    def percent(self) -> float:
        """The larger difference."""
        return max(self.plain.percent, self.file.percent, key=abs)

    def line(self) -> str:
        """As a row of the table."""
        return f"| {self.name} | {self.plain.cells()} | {self.file.cells()} |"


def measured(name: str, folder: Path) -> Row:
    """A model's peaks. Raises AssertionError where its file is not exact."""
    module = next(c.__file__ for c in CATALOGUES if name in c.NAMES)
    for budget in BUDGETS:
        request = Request(f"{module}:{name}", budget, folder / "file.py", inputs=f"{module}:{name}_inputs", verify=True)
        try:
            found = marked.generate(request, Progress(None)).verify
        except BudgetError:
            continue
        assert found is not None and found.ok, found and found.failures()
        assert found.assumed_peak_bytes and found.original_peak_bytes and found.planned_peak_bytes
        return Row(
            name,
            Peak(found.assumed_peak_bytes, found.original_peak_bytes),
            Peak(found.planned_peak_bytes, found.measured_peak_bytes),
        )
    raise AssertionError(f"{name} has no plan")


def known() -> list[str]:
    """The models whose libraries are there, but those that are refused."""
    names = [n for c in CATALOGUES for n in c.NAMES if n not in getattr(c, "REFUSED", {})]
    return [n for n in names if n not in builders.LIBRARIES or importlib.util.find_spec(builders.LIBRARIES[n])]


def page(rows: list[Row]) -> str:
    """The page: what is off most, first."""
    plain, files = [r.plain.percent for r in rows], [r.file.percent for r in rows]
    said = "; ".join(f"{name}: {summary(found)}" for name, found in (("models as they are", plain), ("files", files)))
    by = f"by `python benchmarks/bench_peaks.py` (PyTorch {torch.__version__}, CPU)"
    first = f"Peaks, planned and measured, {by}. Within {CLOSE:g} %, of {len(rows)}: {said}. {_above(rows)} {PADDED}"
    lines = [r.line() for r in sorted(rows, key=lambda r: -abs(r.percent))]
    return "\n".join([*textwrap.wrap(first, 120), "", HEAD, *lines]) + "\n"


def summary(found: list[float]) -> str:
    """How many are close, the median, and the ends."""
    close = sum(abs(p) <= CLOSE for p in found)
    return f"{close}, {statistics.median(map(abs, found)):.3f} % in the median, from {min(found):+.2f} to {max(found):+.2f} %"


def _above(rows: list[Row]) -> str:
    """Which take more than planned."""
    names = [r.name for r in rows if any(p.measured > p.planned for p in (r.plain, r.file))]
    if not names:
        return "None takes more than planned."
    return f"{', '.join(names)} take more than planned, within the reserve of each budget, which is for what is beside tensors."


def main() -> None:
    """Writes the page, or prints rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*")
    asked = parser.parse_args().models
    clock.MEASURED_SECONDS = 0.0  # times do not matter here
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name in asked or known():
            rows.append(measured(name, Path(folder)))
            print(rows[-1].line(), flush=True)
    if not asked:
        RESULT.write_text(page(rows))


if __name__ == "__main__":
    main()
