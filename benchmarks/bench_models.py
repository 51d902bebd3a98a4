"""What plans for many models come to: the table in docs/models.md.

    python benchmarks/bench_models.py [MODEL ...]

Needs torchvision, timm and transformers (`make libraries`); models whose library is missing are left out. Prints a table and,
if it holds all models, writes it to benchmarks/results/models.md. Models are those of tests/models/widths.py, with random
weights: many have fewer layers than what people train, and language models fewer words.
"""

from __future__ import annotations

import argparse
import importlib.util
import re
import sys
import tempfile
from pathlib import Path

import torch
import wide_models
from wide_models import builders

from remat_codegen.ask.budget import format_bytes
from remat_codegen.ask.request import DEFAULT_PLANNER, Request
from remat_codegen.errors import BudgetError
from remat_codegen.run import pipeline
from remat_codegen.show.results import Progress, Report

RESULT = Path(__file__).parent / "results" / "models.md"
HEAD = f"""\
Random weights, realistic widths, often fewer layers and words (`tests/models/widths.py`, with four times the batch), on the
CPU, planned by `{DEFAULT_PLANNER}`; threads: {torch.get_num_threads()}. Blocks are what the graph is cut into, kinds the
different ones among them. The overhead is the planned extra time at half the unmodified peak.

| model | from | blocks | kinds | unmodified peak | smallest budget | overhead at 50 % |
|---|---|---:|---:|---:|---:|---:|"""


def plan(name: str, budget: str, folder: Path) -> Report:
    file = wide_models.__file__
    request = Request(f"{file}:{name}", budget, folder / f"{name}.py", inputs=f"{file}:{name}_inputs")
    return pipeline.generate(request, Progress(None))


def smallest(name: str, folder: Path) -> int:
    try:
        plan(name, "1", folder)
    except BudgetError as error:
        found = re.search(r"\((\d+) bytes\)", error.line())
        assert found is not None, error.line()
        return int(found[1])
    raise AssertionError(f"{name} fits into one byte")


def row(name: str, folder: Path) -> str:
    loose, least = plan(name, "100%", folder), smallest(name, folder)
    peak = loose.unmodified_peak_bytes
    try:
        overhead = f"{100 * plan(name, '50%', folder).overhead:.1f} %"
    except BudgetError:
        overhead = "infeasible"
    share = f"{format_bytes(least)} ({100 * least / peak:.0f} %)"
    library = builders.LIBRARIES.get(name, "torch")
    return f"| {name} | {library} | {loose.blocks} | {loose.kinds} | {format_bytes(peak)} | {share} | {overhead} |"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("models", nargs="*", default=wide_models.NAMES)
    options = parser.parse_args()
    lines = [HEAD]
    print(HEAD, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for name in options.models:
            if importlib.util.find_spec(builders.LIBRARIES.get(name, "torch")) is None:
                print(f"{name} needs {builders.LIBRARIES[name]}, which is not installed", file=sys.stderr)
                continue
            lines.append(row(name, Path(folder)))
            print(lines[-1], flush=True)
    if len(lines) == 1 + len(wide_models.NAMES):
        RESULT.parent.mkdir(exist_ok=True)
        RESULT.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
