"""What comes with PyTorch, and a file planned for no more memory than each of these takes, side by side.

    python benchmarks/bench_peers.py [--models gpt2 resnet vit] [--planner NAME] [--runs 7]

For each model: eager PyTorch, `torch.utils.checkpoint` around each block, the same with selective checkpointing, and
`torch.compile` with its activation memory budget, each with its measured peak; then, for each of these peaks, the file that
`remat-codegen` writes for that budget. Steps are interleaved, in one process and one thread; ratios are of medians. Writes
benchmarks/results/peers.md and peers.json; models that are not named keep their rows.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from remat_codegen.ask.request import Request
from remat_codegen.run import marked
from remat_codegen.run.measured import Beside, Runner, library, own_copy
from remat_codegen.run.traced import trace_target
from remat_codegen.show.results import Progress
from remat_codegen.verify.beside import load_generated

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
MODELS = {
    "gpt2": (
        "GPT-2, 6 layers, width 256, 4 sequences of 256 tokens",
        "GPT2",
        "layers=6, width=256, heads=4, vocabulary=2000",
    ),
    "resnet": ("ResNet-18, 16 images of 32 x 32", "ResNet", ""),
    "vit": ("ViT, 6 blocks, width 192, 8 images of 96 x 96", "ViT", ""),
}
INPUTS = {"gpt2": "idx=int64[4,256]<2000"}
ABOUT = f"""\
PyTorch {torch.__version__}, CPU, one thread: medians of interleaved steps, as ratios to eager PyTorch. Peaks are measured, of
steps that hold what the model returned until they end, as a caller may; each file was planned for the peak of the row that it
stands in. Gradients are beside those of eager PyTorch. `torch.compile` has inductor where there is a C++ compiler, which fuses
kernels: its times have that in them, so that recomputing may take next to nothing, which no file can match."""
HEAD = ("", "peak, MiB", "time", "gradients", "a file for that peak: peak, MiB", "planned", "time", "gradients")


def run(name: str, planner: str, runs: int) -> dict:
    """One model: its name in words, and a row for each way to run it, with that of the file for its peak."""
    about, kind, init = MODELS[name]
    progress = Progress(None)
    asked = Request(f"{ROOT}/examples/{name}.py:{kind}", init=init, inputs=INPUTS.get(name), planner=planner)
    target = trace_target(asked, progress).target
    beside, files = Beside(target, "cpu"), {}
    peers = [beside.add(*maker) for maker in library(target)]
    with tempfile.TemporaryDirectory() as folder:
        for number, row in enumerate(peers[1:]):
            if "peak_bytes" not in row:
                continue
            file = Path(folder) / f"{name}_{number}.py"
            made = partial(written, replace(asked, output=file), row["peak_bytes"])
            files[number + 1] = beside.add("this", str(row["peak_bytes"]), made)
        beside.time(runs)
    return {"about": about, "planner": planner, "rows": [row | {"file": files.get(n)} for n, row in enumerate(peers)]}


def written(asked: Request, budget_bytes: int) -> Runner:
    """The file for a budget, as its user runs it."""
    report = marked.generate(replace(asked, budget=str(budget_bytes)), Progress(None))
    module = load_generated(asked.output_path).rematerialize(own_copy(trace_target(asked, Progress(None)).target.module))
    return Runner("this", module, module, planned_ratio=1 + report.overhead, planned_peak_bytes=report.planned_peak_bytes)


def line(row: dict) -> str:
    """A row of the table."""
    name = row["name"] + (f", {row['budget']}" if row["budget"] else "")
    if "reason" in row:
        return f"| {name} | {row['reason']} | | | | | | |"
    mine = [f"{row['peak_bytes'] / 2**20:.1f}", f"{row['ratio']:.2f} x", same(row)]
    file = row["file"]
    if file is None:
        theirs = [""] * 4
    elif "reason" in file:
        theirs = [file["reason"], "", "", ""]
    else:
        theirs = [f"{file['peak_bytes'] / 2**20:.1f}", f"{file['planned_ratio']:.2f} x", f"{file['ratio']:.2f} x", same(file)]
    return f"| {' | '.join([name, *mine, *theirs])} |"


def same(row: dict) -> str:
    return "same bits" if row["difference"] == 0 else f"off by {row['difference']:.1e}"


def page(found: dict[str, dict]) -> str:
    lines = ["# Beside what comes with PyTorch", "", "    python benchmarks/bench_peers.py", "", *ABOUT.split("\n"), ""]
    for one in found.values():
        lines += [f"## {one['about']}", "", f"Planned by {one['planner']}.", ""]
        lines += [f"| {' | '.join(HEAD)} |", "|---|---:|---:|---|---:|---:|---:|---|", *map(line, one["rows"]), ""]
    return "\n".join(lines)


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    options.add_argument("--planner", default=Request("").planner)
    options.add_argument("--runs", type=int, default=7)
    given = options.parse_args()
    torch.set_num_threads(1)
    file = RESULTS / "peers.json"
    found = json.loads(file.read_text()) if file.exists() else {}
    for name in given.models:
        found[name] = run(name, given.planner, given.runs)
        file.write_text(json.dumps(found, indent=1) + "\n")
        (RESULTS / "peers.md").write_text(page({name: found[name] for name in MODELS if name in found}))
        print("\n".join(line(row) for row in found[name]["rows"]), flush=True)


if __name__ == "__main__":
    main()
