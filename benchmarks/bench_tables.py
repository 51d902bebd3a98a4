"""What it costs to say a plan as a table of parts: the planner's schedule beside the table that the search finds for it.

    python benchmarks/bench_tables.py [--of compare-unet unet ...] [--budgets 60%,40%,25%,20%] [--planner best]

Graphs of benchmarks/results/compare-*.graph.json know no source: there each node could be a part, and each block. Models of
examples/ are traced, measured, and brought to tables as `generate` does. The one simulator judges both. Prints a table and
writes it to benchmarks/results/tables.md; with --of, rows of all others stay as they were. Seconds are of the processor, in the
search, with the plans beside the first one that it starts from where it takes longer.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from remat_codegen.ask.budget import parse_budgets
from remat_codegen.ask.request import Request
from remat_codegen.errors import BudgetError
from remat_codegen.graph.ir import Graph
from remat_codegen.marked.candidates import Candidate, Candidates
from remat_codegen.marked.choose import Chooser, kinds
from remat_codegen.marked.steady import ANEW
from remat_codegen.planners.base.registry import PLANNERS
from remat_codegen.run import planning, tabling
from remat_codegen.run.priced import Priced, over, priced_file, priced_model
from remat_codegen.schedule import Schedule, simulate
from remat_codegen.show.results import Progress

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
BUDGETS = "60%,40%,25%,20%"
SMALLER = {"gpt2-6": ("gpt2", "layers=6, width=192, heads=6, vocabulary=512, context=128", "int64[4,128]<512")}
SECONDS = 30.0  # for a plan
HEAD = ("graph", "budget", "planner %", "table %", "points lost", "over (bytes)", "rows", "different", "CPU s")


def subjects() -> list[str]:
    """All graphs, and the examples that have a class, one of them smaller, too."""
    graphs = sorted(p.name.removesuffix(".graph.json") for p in RESULTS.glob("compare-*.graph.json"))
    return graphs + sorted([*SMALLER, *(p.stem for p in (ROOT / "examples").glob("*.py") if "\nclass " in p.read_text())])


def candidates_of(graph: Graph) -> Candidates[int]:
    """Each node that can run again, and each block of such nodes: all that a graph without a source knows."""

    def found() -> Iterator[Candidate[int]]:
        for node in graph.forward_nodes:
            if node.recomputable:
                yield Candidate(node.id, node.id, (node.id,), ("node", node.signature))
        for block in graph.blocks:
            last = min(block.last, graph.loss - 1)
            if block.first <= last and all(n.recomputable for n in graph.nodes[block.first : last + 1]):
                yield Candidate(block.first, last, (block.first,), ("block", block.kind))

    return Candidates(found())


def target_of(name: str) -> str:
    """The model of an example: the last class in its file."""
    path = ROOT / "examples" / f"{name}.py"
    classes = [line.split("(")[0].removeprefix("class ") for line in path.read_text().split("\n") if line.startswith("class ")]
    return f"{path}:{classes[-1]}"


@dataclass(frozen=True)
class Reached:
    """What a table takes: a step's time, bytes above the limit, rows, and different ones among them."""

    time_ns: int
    over_bytes: int
    rows: int
    different: int


def by_blocks(found: Priced, limit: int, own: Schedule, planner: str) -> Reached:
    """The table of a graph without a source, found as `tabling` finds those of models."""
    graph, costs = found.graph, found.profile
    chooser = Chooser(graph, costs, candidates_of(graph), lambda order: limit - found.reserve.needed_bytes(order))
    best = chooser.search([own])
    wanted = tabling.about(over(simulate(graph, costs, own).time_ns, found.plain_ns))
    limits = [int(share * limit) for share in tabling.SHARES]
    more = tabling.others(Request(found.label, planner=planner), graph, costs, own, limits)
    for number, schedules in enumerate(more):
        if not best.over_bytes and (number == tabling.TRIES or over(best.time_ns, found.plain_ns) <= wanted):
            break
        best = chooser.least([best, chooser.search(schedules)])
    return Reached(best.time_ns, best.over_bytes, len(best.rows), kinds(best.rows))


def by_parts(request: Request, found: Priced, outcome: planning.Outcome) -> Reached | None:
    """The table that a model's file would have; None where none is found."""
    assert found.traced is not None
    try:
        plan = planning.saved_plan(found, outcome)
        best = tabling.steadily(request, found.traced, found.profile, plan, Progress(None), ANEW)
    except BudgetError:
        return None
    time_ns = round((1 + best.overhead) * found.plain_ns)
    return Reached(time_ns, best.over_bytes, len(best.rows), kinds(best.rows))


def measured(name: str, budgets: str, planner: str) -> list[list[str]]:
    """The rows of one graph or example."""
    progress = Progress(None)
    name_of, init, inputs = SMALLER.get(name, (name, "", None))
    is_graph = name.startswith("compare-")
    request = Request(name if is_graph else target_of(name_of), init=init, inputs=inputs, planner=planner)
    found = priced_file(RESULTS / f"{name}.graph.json", progress) if is_graph else priced_model(request, progress)
    rows = []
    for budget in parse_budgets(budgets):
        asked = replace(request, budget=budget.text)
        outcome = planning.run_planner(found, planner, budget, progress, time_limit=SECONDS)
        schedule = outcome.plan.schedule
        row = [name, budget.text]
        if schedule is None:
            rows.append([*row, "no plan", *([""] * (len(HEAD) - 3))])
            continue
        started = time.process_time()
        if is_graph:
            best = by_blocks(found, outcome.budget_bytes, schedule, planner)
        else:
            best = by_parts(asked, found, outcome)
        seconds = time.process_time() - started
        planned = 100 * over(outcome.plan.time_ns, found.plain_ns)
        if best is None:
            rows.append([*row, f"{planned:.2f}", "no table", *([""] * (len(HEAD) - 5)), f"{seconds:.1f}"])
        else:
            reached = 100 * over(best.time_ns, found.plain_ns)
            figures = [f"{planned:.2f}", f"{reached:.2f}", f"{reached - planned:.2f}", str(best.over_bytes)]
            rows.append([*row, *figures, str(best.rows), str(best.different), f"{seconds:.1f}"])
        print(" ".join(rows[-1]), flush=True)
    return rows


def written(rows: list[list[str]], planner: str) -> str:
    """The report."""
    lost = [float(r[4]) for r in rows if r[4] and r[5] == "0"]
    missed = sum(r[3] == "no table" or r[5] not in ("", "0") for r in rows)
    lines = [
        f"Tables of parts beside the schedules of {planner} that they were made from: overheads in percent of the plain step.",
        "",
    ]
    lines += [f"| {' | '.join(HEAD)} |", "|---" * len(HEAD) + "|", *(f"| {' | '.join(r)} |" for r in rows), ""]
    if lost:
        lines.append(f"Of {len(lost)} tables within their budgets, {sum(v > 0.5 for v in lost)} lose more than 0.5 points;")
        lines.append(f"median {statistics.median(lost):.2f}, most {max(lost):.2f}.")
        lines.append(f"For {missed} more plans no table within the budget was found.")
    return "\n".join(lines) + "\n"


def remembered(path: Path) -> dict[str, list[list[str]]]:
    """The rows of an earlier run, by graph."""
    found: dict[str, list[list[str]]] = {}
    for line in path.read_text().split("\n")[4:] if path.exists() else ():
        if line.startswith("| "):
            row = [cell.strip() for cell in line[1:-1].split("|")]
            found.setdefault(row[0], []).append(row)
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--of", nargs="+", default=subjects(), choices=subjects())
    parser.add_argument("--budgets", default=BUDGETS)
    parser.add_argument("--planner", default="best", choices=list(PLANNERS))
    options = parser.parse_args()
    path = RESULTS / "tables.md"
    known = remembered(path)
    for name in options.of:
        known[name] = measured(name, options.budgets, options.planner)
        path.write_text(written([row for subject in subjects() for row in known.get(subject, [])], options.planner))


if __name__ == "__main__":
    main()
