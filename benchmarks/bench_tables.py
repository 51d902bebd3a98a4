"""What it costs to say a plan as a table of parts: the planner's schedule beside the table that the search finds for it.

    python benchmarks/bench_tables.py [--of compare-unet unet ...] [--budgets 60%,40%,25%,20%] [--planner best]

Graphs of benchmarks/results/compare-*.graph.json know no source: there each node could be a part, and each block. Models of
examples/ are traced, measured, and marked as `generate --edition 2` does. The one simulator judges both. Prints a table and
writes it to benchmarks/results/tables.md; with --of, rows of all others stay as they were. Seconds are of the processor, in the
search, with the plans beside the first one that it starts from where it takes longer.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

from remat_codegen.ask.budget import parse_budgets
from remat_codegen.ask.request import Request
from remat_codegen.graph.ir import Graph
from remat_codegen.marked.candidates import Candidate, Candidates
from remat_codegen.marked.choose import Chooser, kinds
from remat_codegen.planners.base.registry import PLANNERS
from remat_codegen.run import planning, tabling
from remat_codegen.run.priced import over, priced_file, priced_model
from remat_codegen.show.results import Progress

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
BUDGETS = "60%,40%,25%,20%"
SMALLER = {"gpt2-6": ("gpt2", "layers=6, width=192, heads=6, vocabulary=512, context=128", "int64[4,128]<512")}
SECONDS = 30.0  # for a plan
HEAD = ("graph", "budget", "planner %", "table %", "points lost", "over (bytes)", "rows", "different", "priced", "CPU s")


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


def measured(name: str, budgets: str, planner: str) -> list[list[str]]:
    """The rows of one graph or example."""
    progress = Progress(None)
    if name.startswith("compare-"):
        found = priced_file(RESULTS / f"{name}.graph.json", progress)
        candidates, profile, held = candidates_of(found.graph), found.profile, None
    else:
        name_of, init, inputs = SMALLER.get(name, (name, "", None))
        found = priced_model(Request(target_of(name_of), init=init, inputs=inputs), progress)
        assert found.traced is not None
        parts = tabling.found_of(found.traced)
        candidates, profile, held = parts.candidates, parts.holders.costs(found.profile), parts.holders.held
    rows = []
    for budget in parse_budgets(budgets):
        outcome = planning.run_planner(found, planner, budget, progress, time_limit=SECONDS)
        head = [name, budget.text]
        if outcome.plan.schedule is None:
            rows.append([*head, "no plan", *([""] * (len(HEAD) - 3))])
            continue
        limit, reserve = outcome.budget_bytes, found.reserve
        chooser = Chooser(found.graph, profile, candidates, lambda o, n=limit, r=reserve: n - r.needed_bytes(o), held)
        started = time.process_time()
        best = chooser.search([outcome.plan.schedule])
        wanted = tabling.about(over(outcome.plan.time_ns, found.plain_ns))
        for number, more in enumerate(
            tabling.others(Request(name, planner=planner), found.graph, profile, found.reserve, limit)
        ):
            if not best.over_bytes and (number == tabling.TRIES or over(best.time_ns, found.plain_ns) <= wanted):
                break
            best = chooser.least([best, chooser.search(more)])
        seconds = time.process_time() - started
        planned, reached = (100 * over(t, found.plain_ns) for t in (outcome.plan.time_ns, best.time_ns))
        figures = [f"{planned:.2f}", f"{reached:.2f}", f"{reached - planned:.2f}", str(best.over_bytes)]
        rows.append([*head, *figures, str(len(best.rows)), str(kinds(best.rows)), str(chooser.tried), f"{seconds:.1f}"])
        print(" ".join(rows[-1]), flush=True)
    return rows


def written(rows: list[list[str]], planner: str) -> str:
    """The report."""
    lost = [float(r[4]) for r in rows if r[4] and r[5] == "0"]
    over = sum(bool(r[5]) and r[5] != "0" for r in rows)
    lines = [
        f"Tables of parts beside the schedules of {planner} that they were made from: overheads in percent of the plain step.",
        "",
    ]
    lines += [f"| {' | '.join(HEAD)} |", "|---" * len(HEAD) + "|", *(f"| {' | '.join(r)} |" for r in rows), ""]
    if lost:
        lines.append(f"Of {len(lost)} tables within their budgets, {sum(v > 0.5 for v in lost)} lose more than 0.5 points;")
        lines.append(f"median {statistics.median(lost):.2f}, most {max(lost):.2f}. {over} more are above their budgets.")
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
