"""How much memory a step takes by a plan for a GPU that is not there, against what the allocator of the one that is here says.

    python benchmarks/absent_memory.py [MODEL ...] [--jobs 1]
    python tests/nullgpu/run.py benchmarks/absent_memory.py     # on a GPU that computes nothing (tests/nullgpu/README.md)

Models are those of bench_models.py whose libraries are there. On a GPU that computes nothing, those with convolutions, batch
norms or recurrent networks are left out, as there is no cuDNN: what its kernels take is a rule, mostly above. Writes
benchmarks/results/absent-memory.md, or of a real GPU absent-memory-<GPU>.md.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

import torch

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests" / "models"), str(ROOT / "benchmarks"), str(ROOT)]

import builders  # noqa: E402
import wide_models  # noqa: E402
from calibrate import in_table  # noqa: E402

from remat_codegen.ask.request import Request  # noqa: E402
from remat_codegen.errors import RematError  # noqa: E402
from remat_codegen.graph import allocator  # noqa: E402
from remat_codegen.profile.devices import DEVICES  # noqa: E402
from remat_codegen.run.priced import measured_costs, reserve_of  # noqa: E402
from remat_codegen.run.traced import trace_target  # noqa: E402
from remat_codegen.schedule import simulate, without_recomputation  # noqa: E402
from remat_codegen.show.results import Progress  # noqa: E402
from remat_codegen.verify.beside import compare  # noqa: E402

CUDNN = ("conv", "batch_norm", "lstm", "gru", "rnn_")
QUIET = Progress(None)
HEAD = [
    "| model | planned, MiB asked for | asked for | % | planned, MiB of blocks | blocks | % | with the reserve |",
    "|---|---:|---:|---:|---:|---:|---:|---:|",
]
RESULTS = Path(__file__).parent / "results"


def request(name: str, device: str) -> Request:
    """A model of the catalogue, as the command line is asked for it."""
    file = wide_models.__file__
    return Request(f"{file}:{name}", inputs=f"{file}:{name}_inputs", device=device)


def planned(name: str, gpu: str, cudnn: bool) -> tuple[int, int, int] | None:
    """The peak of a step by the simulator, on a GPU that is not there, in bytes that are asked of the allocator, and in blocks
    that it gives; and what is kept in reserve for blocks that it leaves unsplit. None for a model that is left out."""
    with mock.patch.object(allocator, "OWN_SEGMENT_BYTES", sys.maxsize):
        asked = _peak(name, gpu, cudnn)
    given = asked and _peak(name, gpu, cudnn)
    return (asked[0], *given) if asked and given else None


def _peak(name: str, gpu: str, cudnn: bool) -> tuple[int, int] | None:
    asked = request(name, gpu)
    traced = trace_target(asked, QUIET)
    if not cudnn and any(op.base.startswith(CUDNN) for op in traced.model.trace.operations):
        return None
    costs = measured_costs(asked, traced, QUIET)
    peak = simulate(traced.graph, costs, without_recomputation(traced.graph)).peak_bytes
    return peak, reserve_of(traced, costs).unsplit_bytes


def measured(name: str) -> tuple[int, int | None]:
    """The peak of a step here, as `verify` measures it, the last of two: in the blocks that the allocator gave, and in what
    was asked of it."""
    traced = trace_target(request(name, "cuda"), QUIET)
    target, loss = traced.target, traced.model.record.loss
    found = compare(target.module, lambda m: m, target.args, target.kwargs, device="cuda", loss=loss)
    return found.peak.allocated_bytes, found.peak.requested_bytes


def all_planned(gpu: str, cudnn: bool, names: list[str]) -> None:
    """Prints the planned peaks, or why there is none, one line each."""
    for name in names:
        try:
            found: Any = planned(name, gpu, cudnn)
        except RematError as error:
            found = error.line()
        print(json.dumps([name, found]), flush=True)


def beside(name: str, gpu: str, cudnn: bool) -> tuple[str, tuple[float, float] | None]:
    """A model's row, or why there is none; and how far off its plan is, in what is asked for and in blocks."""
    unseeing = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    ended = _alone("--planned", gpu, str(int(cudnn)), name, env=unseeing)
    found = _why(ended) if ended.returncode else json.loads(ended.stdout)[1]
    if not isinstance(found, list):
        return f"{name} {found or 'left out'}", None
    alone = _alone("--measured", name)
    if alone.returncode:  # a GPU that computes nothing may end a process
        return f"{name} {_why(alone)}", None
    (asked, given, reserve), (took, asked_for) = found, json.loads(alone.stdout.splitlines()[-1])
    off = asked / asked_for - 1, given / took - 1
    cells = *sizes(asked, asked_for), f"{100 * off[0]:+.2f}", *sizes(given, took), f"{100 * off[1]:+.2f}"
    return f"| {' | '.join([name, *cells, *sizes(given + reserve)])} |", off


def _alone(*words: str, **around: Any) -> subprocess.CompletedProcess[str]:
    """This file in a process of its own."""
    return subprocess.run([sys.executable, __file__, *words], capture_output=True, text=True, check=False, **around)


def _why(ended: subprocess.CompletedProcess[str]) -> str:
    return f"ended with {ended.returncode}: {ended.stderr.strip()[-300:]}"


def main(names: list[str], jobs: int) -> None:
    there = [n for n in wide_models.NAMES if importlib.util.find_spec(builders.LIBRARIES.get(n, "torch")) is not None]
    here, known, real = torch.cuda.get_device_capability(), in_table("cuda"), computes()
    gpu = next(key for key, one in DEVICES.items() if one is known or known is None and one.compute_capability == here)
    lines, offs = [], []
    with ThreadPoolExecutor(jobs) as pool:
        for line, off in pool.map(lambda name: beside(name, gpu, real), names or there):
            print(line, flush=True)
            if off is not None:
                lines.append(line)
                offs.append(off)
    if offs and not names:
        file = RESULTS / (f"absent-memory-{gpu}.md" if real else "absent-memory.md")
        file.write_text("\n".join([_about(gpu, offs), "", *HEAD, *lines, ""]))


def computes() -> bool:
    """Whether the GPU that is here is a real one."""
    return torch.full((1,), 0.7261, device="cuda").item() == torch.full((1,), 0.7261).item()


def sizes(*numbers: int) -> list[str]:
    """Bytes in MiB, as text."""
    return [f"{nbytes / 2**20:,.2f}" for nbytes in numbers]


def _about(gpu: str, off: list[tuple[float, float]]) -> str:
    """What the table is of, and how far plans are off: from what is asked for, and from the blocks that are given."""
    asked, given = ([100 * abs(found[kind]) for found in off] for kind in range(2))
    who = f"{torch.cuda.get_device_name()} (PyTorch {torch.__version__}, `python benchmarks/absent_memory.py`)"
    about = f"The most of a step without recomputation, planned for `{gpu}` without it, and by the allocator of a {who}."
    about += f" In bytes that are asked of the allocator, plans are {statistics.median(asked):.3f} % off in the median, "
    about += f"{max(asked):.3f} % at most; in blocks that it gives, {statistics.median(given):.2f} and {max(given):.2f} %: "
    return about + "up to 1 MiB of a block may stay unsplit, for which budgets have a reserve."


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    if sys.argv[1:2] == ["--planned"]:
        all_planned(sys.argv[2], sys.argv[3] == "1", sys.argv[4:])
    elif sys.argv[1:2] == ["--measured"]:
        print(json.dumps(measured(sys.argv[2])))
    else:
        parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
        parser.add_argument("names", nargs="*", metavar="MODEL")
        parser.add_argument("--jobs", type=int, default=1, help="models at a time")
        given = parser.parse_args()
        main(given.names, given.jobs)
