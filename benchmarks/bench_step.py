"""How long a generated file's step takes beside the original's: in one process, interleaved, medians.

    python benchmarks/bench_step.py [--budgets 100% 1GiB] [--runs 7] [--init "layers=12"] [--inputs "idx=int64[2,512]<50257"]

Prints a table and writes it to benchmarks/results/step.md.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import torch

from remat_codegen.ask.request import Request
from remat_codegen.ask.target import load_target
from remat_codegen.graph.record import example_loss
from remat_codegen.run import pipeline
from remat_codegen.show.results import Progress
from remat_codegen.verify.beside import load_generated

ROOT = Path(__file__).parents[1]
RESULT = ROOT / "benchmarks" / "results" / "step.md"


def seconds(model, args) -> float:
    begin = time.perf_counter()
    example_loss(model(*args)).backward()
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--budgets", nargs="+", default=["100%", "1GiB"])
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--init", default="")
    parser.add_argument("--inputs")
    options = parser.parse_args()
    target = load_target(f"{ROOT}/examples/gpt2.py:GPT2", init=options.init, inputs=options.inputs)
    models, reports = {"original": target.module}, {}
    with tempfile.TemporaryDirectory() as folder:
        for index, budget in enumerate(options.budgets):
            output = Path(folder) / f"gpt2_{index}.py"
            request = Request(target.spec, budget, output, init=options.init, inputs=options.inputs)
            reports[budget] = pipeline.generate(request, Progress(None))
            models[budget] = load_generated(output).rematerialize(target.module)
    times = {name: [] for name in models}
    for _ in range(options.runs + 1):  # the first round warms up
        for name, model in models.items():
            times[name].append(seconds(model, target.args))
    medians = {name: statistics.median(found[1:]) for name, found in times.items()}
    unmodified = reports[options.budgets[0]].unmodified_peak_bytes / 2**20
    lines = [
        f"GPT-2 (`--init {options.init!r}`), {torch.get_num_threads()} threads, median of {options.runs} interleaved steps.",
        "",
        "| budget | planned peak | planned step | measured step |",
        "|---|---|---|---|",
        f"| PyTorch | {unmodified:.1f} MiB | 1.00 x | {medians['original']:.2f} s |",
    ]
    for budget, report in reports.items():
        ratio = medians[budget] / medians["original"]
        peak = report.planned_peak_bytes / 2**20
        lines.append(f"| {budget} | {peak:.1f} MiB | {1 + report.overhead:.2f} x | {ratio:.3f} x |")
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
