"""How planning time grows with depth: GPT-2 with 12 and with 48 layers, each planned for half its peak, from nothing.

    python benchmarks/bench_planning.py [--width 256] [--runs 3]

Prints a table and writes it to benchmarks/results/planning.md. Planning is the integer programs, the dynamic program and the
choice among its plans; tracing and measuring come before it. Every run is a fresh process, so that nothing is remembered.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULT = ROOT / "benchmarks" / "results" / "planning.md"
DEPTHS = (12, 48)


def run(layers: int, width: int, folder: str) -> dict:
    command = [sys.executable, "-c", "from remat_codegen.cli.main import main; main()", f"{ROOT}/examples/gpt2.py:GPT2"]
    command += ["--init", f"layers={layers}, width={width}, heads=4, vocabulary=5000"]
    command += ["--inputs", "idx=int64[2,256]<5000", "--budget", "50%", "--json", "-q", "-o", f"{folder}/out.py"]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    reports: dict[int, list[dict]] = {layers: [] for layers in DEPTHS}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(options.runs):
            for layers in DEPTHS:
                reports[layers].append(run(layers, options.width, folder))
    stages = ("trace", "graph", "profile", "plan", "emit")
    medians = {n: {s: statistics.median(r["seconds"][s] for r in found) for s in stages} for n, found in reports.items()}
    lines = [
        f"GPT-2, width {options.width}, budget 50 %, median of {options.runs} fresh processes (measured costs from the cache).",
        "",
        "| layers | blocks | kinds | " + " | ".join(f"{s} (s)" for s in stages) + " |",
        "|---" * (3 + len(stages)) + "|",
    ]
    for layers, found in reports.items():
        cells = " | ".join(f"{medians[layers][s]:.2f}" for s in stages)
        lines.append(f"| {layers} | {found[0]['blocks']} | {found[0]['kinds']} | {cells} |")
    few, many = DEPTHS
    lines += ["", f"Planning {many} layers takes {medians[many]['plan'] / medians[few]['plan']:.2f} times as long as {few}."]
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
