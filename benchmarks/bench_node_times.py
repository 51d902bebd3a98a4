"""Whether the times of nodes add up to a step's: planned without recomputation beside measured, on one device.

    python benchmarks/bench_node_times.py [--device cuda] [--init "layers=12"] [--inputs "idx=int64[2,512]<50257"] [--runs 7]

Prints a table. The device's own time of a step is its kernels' (the host is ahead); the other is what passes from begin to end.
The first two rows say what an empty node, and a kernel that does next to nothing, cost.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from remat_codegen.ask.request import Request
from remat_codegen.ask.target import load_target
from remat_codegen.graph.record import example_loss
from remat_codegen.profile.clock import clock_for
from remat_codegen.run.priced import measured_costs
from remat_codegen.run.traced import trace_target
from remat_codegen.show.results import Progress

ROOT = Path(__file__).parents[1]


def passing_ns(work: Callable[[], Any], device: str, runs: int) -> int:
    """From begin to end, the device's work included; the median of several runs, after one to warm up."""
    found = []
    for _ in range(runs + 1):
        begin = time.perf_counter_ns()
        work()
        if torch.device(device).type == "cuda":
            torch.cuda.synchronize(device)
        found.append(time.perf_counter_ns() - begin)
    return int(statistics.median(found[1:]))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--target", default=f"{ROOT}/examples/gpt2.py:GPT2")
    parser.add_argument("--init", default="")
    parser.add_argument("--inputs")
    parser.add_argument("--runs", type=int, default=7)
    options = parser.parse_args()
    request = Request(options.target, None, None, init=options.init, inputs=options.inputs, device=options.device, cache=False)
    traced = trace_target(request, Progress(None))
    profile = measured_costs(request, traced, Progress(None))
    model = traced.model
    del traced
    target = load_target(options.target, init=options.init, inputs=options.inputs, device=options.device)

    def step() -> None:
        example_loss(target.module(*target.args, **target.kwargs)).backward()

    clock, one = clock_for(options.device), torch.zeros(1, device=options.device)
    phases = dict.fromkeys((n.phase for n in model.graph.nodes), 0)
    for node, cost in zip(model.graph.nodes, profile.time_ns, strict=True):
        phases[node.phase] += cost
    rows = {
        "an empty node": clock.least_ns(lambda: None),
        "a kernel that adds one number": clock.least_ns(lambda: one.add_(1)),
        **{f"{len([n for n in model.graph.nodes if n.phase is p])} nodes, {p}": cost for p, cost in phases.items()},
        "all nodes": sum(profile.time_ns),
        "the step, as the clock of nodes measures it": clock.least_ns(step),
        "the step, from begin to end": passing_ns(step, options.device, options.runs),
    }
    print(f"| {options.device} | ms |\n|---|---|")
    for name, cost in rows.items():
        print(f"| {name} | {cost / 1e6:.4f} |")


if __name__ == "__main__":
    main()
