"""How much memory a step takes by a plan for a GPU that is not there, against what the allocator of the one that is here says.

    python benchmarks/absent_memory.py [MODEL ...]
    python tests/nullgpu/run.py benchmarks/absent_memory.py     # on a GPU that computes nothing (tests/nullgpu/README.md)

Models are those of bench_models.py whose libraries are there, but for those with convolutions, batch norms or recurrent
networks: of these, cuDNN's kernels take what nobody sees. Writes benchmarks/results/absent-memory.md.
"""

from __future__ import annotations

import importlib.util
import json
import os
import statistics
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests" / "models"), str(ROOT / "benchmarks"), str(ROOT)]

import builders  # noqa: E402
import wide_models  # noqa: E402

from remat_codegen.ask.request import Request  # noqa: E402
from remat_codegen.errors import RematError  # noqa: E402
from remat_codegen.profile.devices import DEVICES  # noqa: E402
from remat_codegen.run.priced import measured_costs  # noqa: E402
from remat_codegen.run.traced import trace_target  # noqa: E402
from remat_codegen.schedule import simulate, without_recomputation  # noqa: E402
from remat_codegen.show.results import Progress  # noqa: E402
from remat_codegen.verify.beside import compare  # noqa: E402

CUDNN = ("conv", "batch_norm", "lstm", "gru", "rnn_")
QUIET = Progress(None)
RESULT = Path(__file__).parent / "results" / "absent-memory.md"


def request(name: str, device: str) -> Request:
    """A model of the catalogue, as the command line is asked for it."""
    file = wide_models.__file__
    return Request(f"{file}:{name}", inputs=f"{file}:{name}_inputs", device=device)


def planned(name: str, gpu: str) -> int | None:
    """The peak of a step by the simulator, on a GPU that is not there; None for a model that is left out."""
    asked = request(name, gpu)
    traced = trace_target(asked, QUIET)
    if any(op.base.startswith(CUDNN) for op in traced.model.trace.operations):
        return None
    costs = measured_costs(asked, traced, QUIET)
    return simulate(traced.graph, costs, without_recomputation(traced.graph)).peak_bytes


def measured(name: str) -> tuple[int, int | None]:
    """The peak of a step here, as `verify` measures it, the last of two: in what was asked of the allocator, and in the blocks
    that it gave."""
    traced = trace_target(request(name, "cuda"), QUIET)
    target, loss = traced.target, traced.model.record.loss
    found = compare(target.module, lambda m: m, target.args, target.kwargs, device="cuda", loss=loss)
    return found.measured_peak_bytes, found.requested_peak_bytes


def all_planned(names: list[str], gpu: str) -> None:
    """Prints the planned peaks, or why there is none, one line each."""
    for name in names:
        try:
            found: Any = planned(name, gpu)
        except RematError as error:
            found = error.line()
        print(json.dumps([name, found]), flush=True)


def main(names: list[str]) -> None:
    warnings.simplefilter("ignore")
    there = [n for n in wide_models.NAMES if importlib.util.find_spec(builders.LIBRARIES.get(n, "torch")) is not None]
    here = torch.cuda.get_device_capability()
    gpu = next(key for key, one in DEVICES.items() if one.compute_capability == here)
    command = [sys.executable, __file__, "--planned", gpu, *(names or there)]
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT)}
    told = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    lines, off = [], []
    for name, found in map(json.loads, told.splitlines()):
        if not isinstance(found, int):
            print(name, found or "left out", flush=True)
            continue
        alone = subprocess.run([sys.executable, __file__, "--measured", name], capture_output=True, text=True, check=False)
        if alone.returncode:  # a GPU that computes nothing may end a process
            print(name, f"ended with {alone.returncode}: {alone.stderr.strip()[-150:]}", flush=True)
            continue
        took = int(alone.stdout.split()[-1])
        off.append(abs(found / took - 1))
        lines.append(f"| {name} | {found / 2**20:,.2f} | {took / 2**20:,.2f} | {100 * (found / took - 1):+.2f} |")
        print(lines[-1], flush=True)
    if off and not names:
        about = f"A step without recomputation, planned for `{gpu}` without it, and what the allocator of a "
        about += f"{torch.cuda.get_device_name()} says it takes at most (PyTorch {torch.__version__}): off by "
        about += f"{100 * statistics.median(off):.2f} % in the median, {100 * max(off):.2f} % at most "
        about += "(`python benchmarks/absent_memory.py`)."
        head = [about, "", "| model | planned, MiB | allocated, MiB | % |", "|---|---:|---:|---:|"]
        RESULT.write_text("\n".join([*head, *lines, ""]))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--planned"]:
        all_planned(sys.argv[3:], sys.argv[2])
    elif sys.argv[1:2] == ["--measured"]:
        print(measured(sys.argv[2]))
    else:
        main(sys.argv[1:])
