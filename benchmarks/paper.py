"""The Rockmate paper's table (appendix E) planned anew, and what else planners are judged by, with one command and no GPU:

    python benchmarks/paper.py [--rows large-2x512-0.85 resnet50-46 ...] [--planners rockmate auto ...] [--again] [--redraw]

Writes benchmarks/results/paper.json, planner by planner, and paper.md and paper.svg from it. What is there stays, unless it is
asked for --again: a run that was stopped goes on, and planners that take long can have a run of their own.

Costs are those of a roofline for a V100 (`remat_codegen/profile/devices.py` states its numbers), so the table is the same
everywhere. The paper's accounting: activations, their gradients and the model's output count, as do masks of dropout (a byte
a value, as on CUDA); gradients of parameters and that of the output, which a loss such as a sum does not lay down, do not.
Rows of the H100 have its roofline and count what files count, gradients of parameters as they arrive, too. Seconds are of one
core, CPU time.
"""

from __future__ import annotations

import argparse
import io
import json
import random
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

ROOT = Path(__file__).parents[1]
sys.path += [str(ROOT / "examples"), str(ROOT / "tests")]
RESULTS = Path(__file__).parent / "results"

from roofline import estimate  # noqa: E402

from remat_codegen.ask.request import Request  # noqa: E402
from remat_codegen.graph.ir import Graph, Kind  # noqa: E402
from remat_codegen.graph.record import record  # noqa: E402
from remat_codegen.graph.simplify import simplify  # noqa: E402
from remat_codegen.planners import auto, checkmate, rockmate  # noqa: E402
from remat_codegen.planners.base.bound import bound  # noqa: E402
from remat_codegen.planners.base.registry import PLANNERS  # noqa: E402
from remat_codegen.profile.clock import Clock  # noqa: E402
from remat_codegen.profile.costs import Profile  # noqa: E402
from remat_codegen.profile.devices import DEVICES  # noqa: E402
from remat_codegen.profile.pace import Pace  # noqa: E402
from remat_codegen.run.priced import priced_model  # noqa: E402
from remat_codegen.schedule import simulate, without_recomputation  # noqa: E402
from remat_codegen.show.results import Progress  # noqa: E402
from remat_codegen.trace import trace  # noqa: E402

GIB = 1 << 30
COMPARED = ("rockmate", "auto", "best", "dtr", "chen", "checkmate")
PAPER = {  # the paper's step without recomputation, its Rockmate's, in milliseconds; what it planned with (GiB)
    ("large", 2, 512, 0.85): (457.173, 564.041),
    ("large", 2, 512, 2.8): (457.173, 481.650),
    ("large", 4, 256, 0.85): (432.646, 531.255),
    ("large", 4, 256, 1.8): (432.646, 486.976),
    ("medium", 2, 1024, 1.0): (480.330, 619.055),
    ("medium", 2, 1024, 4.0): (480.330, 516.758),
    ("medium", 4, 512, 1.0): (430.596, 547.343),
    ("medium", 4, 512, 2.0): (430.596, 497.298),
}
SHOWN = 50  # per cent, in the picture
BEHIND = """
Where `auto` is both more than 5 % of the overhead and more than 0.3 points above the bound:

- GPT2-medium (2, 1024) at 1.0 GiB, a tenth of the peak: `best` gets 1.1 points closer, by moves on the order that each count
  its memory anew (`planners/search/improve.py`). In `auto` they would take more than the 10 seconds that chains may take.
- H100, GPT2-medium at 30 %: in 90 s, `best` finds 0.1 points less with either.
- Layered graphs of 500 nodes, and of 1,000 at 50 %: nodes run several times within one stage. `best` finds 0.4 points less
  with 500 nodes at 50 %, else none. The bound, a linear program, is loose there: it may keep parts of values.
"""
SIZES = {"large": {"layers": 36, "width": 1280, "heads": 20}, "medium": {"layers": 24, "width": 1024, "heads": 16}}


@dataclass(frozen=True)
class Row:
    """A graph and a budget: bytes, or a part of the unmodified peak."""

    key: str
    label: str
    make: Callable[[], tuple[Graph, Profile]]
    budget: float
    paper: float | None = None


def rows() -> list[Row]:
    found = []
    for (size, batch, length, budget), (plain_ms, paper_ms) in PAPER.items():
        label = f"GPT2-{size} ({batch}, {length}) {budget} GiB"
        make = lambda s=size, b=batch, n=length: gpt2(s, b, n)  # noqa: E731
        found.append(Row(f"{size}-{batch}x{length}-{budget}", label, make, budget * GIB, paper_ms / plain_ms - 1))
    for size, batch, length in dict.fromkeys(row[:3] for row in PAPER):
        for percent in (60, 45, 30):
            make = lambda s=size, b=batch, n=length: flash(s, b, n)  # noqa: E731
            label = f"H100, bf16, flash: GPT2-{size} ({batch}, {length}) {percent} %"
            found.append(Row(f"h100-{size}-{batch}x{length}-{percent}", label, make, percent / 100))
    for percent in (46, 33):
        found.append(Row(f"resnet50-{percent}", f"ResNet-50 (32, 224) {percent} %", resnet50, percent / 100))
    for count, percent in ((500, 80), (500, 50), (1000, 80), (1000, 50), (3000, 80), (5000, 80)):
        make = lambda n=count: layered(n, seed=7)  # noqa: E731
        found.append(Row(f"layered-{count}-{percent}", f"layered, {count:,} nodes, {percent} %", make, percent / 100))
    return found


def gpt2(size: str, batch: int, length: int) -> tuple[Graph, Profile]:
    """The paper's GPT2 on a device without data, in the paper's accounting."""
    from gpt2 import GPT2

    return priced(lambda: GPT2(**SIZES[size], context=1024), torch.zeros(batch, length, dtype=torch.int64))


def flash(size: str, batch: int, length: int) -> tuple[Graph, Profile]:
    """The same with attention in one kernel, and with autocast to bfloat16, as `--device h100` plans it."""
    inputs = f"int64[{batch},{length}]<50257"
    asked = Request(f"{Path(__file__).parent}/flash.py:{size}", inputs=inputs, device="h100", autocast="bfloat16", loss="sum")
    found = priced_model(asked, Progress(None))
    return found.graph, found.profile


def resnet50() -> tuple[Graph, Profile]:
    from resnet import ResNet50

    return priced(ResNet50, torch.zeros(32, 3, 224, 224))


def priced(make: Callable[[], torch.nn.Module], *inputs: torch.Tensor) -> tuple[Graph, Profile]:
    """A model's graph and costs in the paper's accounting. Its parameters are never filled, nor looked at."""
    with torch.device("meta"):
        model = make()
    traced = trace(model.to_empty(device="cpu"), inputs, {})
    made = simplify(traced, record(traced))
    profile, graph = estimate(made, DEVICES["v100"]), made.graph
    from_loss = set(graph.nodes[graph.loss].writes)
    masks = {d for n in graph.forward_nodes for d in n.writes if drops(made, n.id)}
    parameters = {v.shape for v in traced.variables if v.origin.value == "parameter"}
    data = []
    for item in graph.data:
        nbytes = item.nbytes
        if item.id in from_loss or (item.kind is Kind.GRADIENT and of_parameter(made, item, parameters)):
            nbytes = 0
        elif item.kind is Kind.PHANTOM and item.id in masks:
            nbytes //= 4
        data.append(replace(item, nbytes=nbytes))
    return replace(graph, data=tuple(data)), profile


def drops(model, node: int) -> bool:
    """Whether a node consists of dropout, and additions perhaps: all that it saves is a mask."""
    bases = {model.trace.operations[i].base for i in model.bodies[node].operations}
    return "dropout" in bases and bases <= {"dropout", "add", "view", "reshape", "transpose"}


def of_parameter(model, gradient, shapes: set[tuple[int, ...]]) -> bool:
    """Whether a gradient is of a parameter that several operations use: it waits for the last of them."""
    graph = model.graph
    first, last = graph.producers[gradient.id][0], graph.readers[gradient.id]
    sizes = {torch.Size(s).numel() * 4 for s in shapes if len(s) > 1}
    readers = [graph.nodes[r].forward for r in last]
    uses_table = any(
        model.trace.operations[i].base == "embedding" for r in readers if r is not None for i in model.bodies[r].operations
    )
    return gradient.nbytes in sizes and uses_table and first < graph.nodes[last[-1]].id - 1


def layered(count: int, seed: int) -> tuple[Graph, Profile]:
    """`count` nodes, backward ones included, in layers of 25; each reads two or three of the layer before and one from anywhere
    before that, so that nothing separates the graph."""
    from graphs import Op, training_graph

    rng = random.Random(seed)
    ops: list[Op] = []
    forward, width = (count - 1) // 2, 25
    unread: set[int] = set()
    for i in range(forward):
        before = range(max(0, (i // width - 1) * width), i // width * width)
        reads = set(rng.sample(list(before), min(len(before), rng.choice((2, 2, 3)))))
        if i > 2 * width:
            reads.add(rng.randrange(i - width))
        reads |= unread if i == forward - 1 else set()
        unread = (unread - reads) | {i}
        dear = rng.random() < 0.8
        cost = rng.randint(20, 60) if dear else rng.randint(1, 8)
        saves = tuple(sorted(reads)) if dear else (i,)
        ops.append(Op(tuple(sorted(reads)), rng.choice((1, 2, 4)) << 20, 0, saves, cost * 1000, cost * 2000, 0))
    return training_graph(ops)


def missing(row: Row, planners: list[str], old: dict, again: bool) -> list[str]:
    """The planners that have no cell in a row."""
    return [name for name in planners if again or name not in old.get("planners", {})]


def run(row: Row, planners: list[str], found: dict, save: Callable[[], None]) -> None:
    """Fills the cells of some planners into a row, saved one by one."""
    graph, profile = row.make()
    plain = simulate(graph, profile, without_recomputation(graph))
    budget = int(row.budget if row.budget > 1 else row.budget * plain.peak_bytes)
    found |= {"label": row.label, "paper": row.paper, "nodes": len(graph.nodes), "plain_ns": plain.time_ns}
    found |= {"plain_bytes": plain.peak_bytes, "budget_bytes": budget}
    found["pace_ms"] = round(Pace(Clock("cpu")).now_ns() / 1e6, 1)
    least = bound(graph, profile, budget)
    found["bound"] = None if least.time_ns is None else least.time_ns / plain.time_ns - 1
    cells = found.setdefault("planners", {})
    for name in planners:
        cells[name] = cell(name, graph, profile, budget, plain.time_ns)
        if name == "auto":
            found["least_bytes"] = auto.frontier(graph, profile, auto.WORK_PER_NODE, None).least.limit_bytes
        print(row.key, name, cells[name], flush=True)
        save()


def cell(name: str, graph: Graph, profile: Profile, budget: int, plain_ns: int) -> dict:
    """What a planner makes of a budget, from nothing: no plan that another one left behind helps it."""
    if name == "checkmate" and not checkmate.writable(graph):
        return {"overhead": None, "why": "too large"}
    auto.frontier.cache_clear()
    rockmate.forget()
    started, cpu = time.perf_counter(), time.process_time()
    plan = PLANNERS[name](graph, profile, budget)
    return {
        "overhead": None if plan.schedule is None else plan.time_ns / plain_ns - 1,
        "seconds": round(time.process_time() - cpu, 1),
        "wall": round(time.perf_counter() - started, 1),
    }


def table(results: dict[str, dict]) -> str:
    def percent(value: float | None) -> str:
        return "-" if value is None else f"{100 * value:.2f}"

    device = DEVICES["v100"]
    paces = [row["pace_ms"] for row in results.values() if "pace_ms" in row]
    lines = [
        "Overheads in %, with costs by a roofline of "
        f"{device.name}: {device.flops / 1e12} TFLOP/s and {device.bytes_per_s / 1e9:.0f} GB/s, of which kernels reach "
        f"{device.reached_flops:.0%} and {device.reached_bytes:.0%}, and at least {device.launch_ns / 1000:.0f} us. "
        "Rows of the H100 are as `--device h100` plans them, in this project's own accounting. "
        "`python benchmarks/paper.py` makes this table. A dash is where a planner finds no plan; an empty cell was not run. "
        "Seconds are the machine's: the fixed piece of work of `remat_codegen/profile/pace.py`, which takes 2.1 ms on quiet "
        f"cores, took {statistics.median(paces)} ms before the {len(paces)} rows that were planned last; "
        "others beside more work.",
        "",
        "| | nodes | paper | " + " | ".join(COMPARED) + " | bound | auto, CPU s | peak, GiB | smallest budget, MB |",
        "|---" * (len(COMPARED) + 7) + "|",
    ]
    for row in rows():
        if (found := results.get(row.key)) is None:
            continue
        ran = found["planners"]
        cells = [percent(ran[name]["overhead"]) if name in ran else "" for name in COMPARED]
        seconds = found["planners"].get("auto", {}).get("seconds", "-")
        least = f"{found['least_bytes'] / 1e6:.0f}" if "least_bytes" in found else "-"
        peak = f"{found['plain_bytes'] / GIB:.2f}"
        line = [row.label, str(found["nodes"]), percent(row.paper), *cells, percent(found["bound"]), str(seconds), peak, least]
        lines.append(f"| {' | '.join(line)} |")
    return "\n".join(lines) + "\n" + BEHIND


def picture(results: dict[str, dict]) -> bytes:
    """The rows as a picture: what each planner takes, and what no plan is below."""
    import matplotlib
    from matplotlib.figure import Figure

    settings = {"svg.hashsalt": "remat-codegen", "svg.fonttype": "none", "font.size": 9, "backend": "agg"}
    shown = [row for row in rows() if row.key in results]
    with matplotlib.rc_context(settings):
        figure = Figure(figsize=(9, 0.42 * len(shown) + 1.2), layout="constrained")
        axes = figure.subplots()
        heights = range(len(shown), 0, -1)
        for name, marker in zip(("paper", *COMPARED), "x^osdDP", strict=True):
            cells = [row.paper if name == "paper" else overhead_of(results[row.key], name) for row in shown]
            known = [(100 * over, height) for over, height in zip(cells, heights, strict=True) if over is not None]
            label = "the paper's Rockmate" if name == "paper" else name
            axes.plot(*zip(*known, strict=True), marker, label=label, markersize=5, fillstyle="none") if known else None
        bounds = [100 * (results[row.key]["bound"] or 0) for row in shown]
        axes.barh(list(heights), bounds, height=0.7, color="0.88", label="no plan is below")
        axes.set_yticks(list(heights), [row.label for row in shown])
        axes.set_xlim(0, SHOWN)
        axes.set_xlabel("more time than the step without recomputation, in %")
        axes.legend(fontsize=8, loc="lower right")
        buffer = io.BytesIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()


def overhead_of(found: dict, planner: str) -> float | None:
    """What a planner takes in a row; None where it was not run, or found no plan."""
    return found["planners"].get(planner, {}).get("overhead")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", nargs="*")
    parser.add_argument("--planners", nargs="*", default=list(COMPARED))
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--redraw", action="store_true")
    options = parser.parse_args()
    path = RESULTS / "paper.json"
    results = json.loads(path.read_text()) if path.exists() else {}
    save = lambda: path.write_text(json.dumps(results, indent=1) + "\n")  # noqa: E731
    for row in [] if options.redraw else rows():
        if options.rows is not None and row.key not in options.rows:
            continue
        if planners := missing(row, options.planners, results.get(row.key, {}), options.again):
            run(row, planners, results.setdefault(row.key, {}), save)
    (RESULTS / "paper.md").write_text(table(results))
    (RESULTS / "paper.svg").write_bytes(picture(results))
    print(table(results))


if __name__ == "__main__":
    main()
