"""Every planner on six models, over budgets: overheads, planning times, and whether what is claimed of the planners holds.

    python benchmarks/bench_compare.py [--models gpt2 resnet101 ...] [--budgets 20%,40%,60%,80%,90%]
        [--planners best rockmate ...] [--redraw]

Writes benchmarks/results/compare-MODEL.svg, .json and .graph.json for each model, and benchmarks/results/compare.md from all of
them. With --planners the rows of all others stay as they were. Costs are measured once and kept in the .graph.json, so that a
second run compares the same graphs, and anybody can:

    remat-codegen compare benchmarks/results/compare-gpt2.graph.json --budgets 20%,40%,60%,80%,90%
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from functools import partial
from pathlib import Path

from remat_codegen.ask.budget import parse_budgets
from remat_codegen.ask.request import Request
from remat_codegen.planners import dtr
from remat_codegen.planners.base.registry import PLANNERS
from remat_codegen.planners.base.result import Plan, Status
from remat_codegen.run import comparison, planning
from remat_codegen.run.priced import Priced, priced_file
from remat_codegen.schedule import Schedule
from remat_codegen.show import picture
from remat_codegen.show.results import Progress

HERE = Path(__file__).parent
RESULTS = HERE / "results"
MODELS = {
    "gpt2": "GPT-2, 6 layers, width 256, 2 sequences of 256 tokens",
    "resnet101": "ResNet-101, 2 images of 224 x 224",
    "regnet": "RegNetY-400MF, 2 images of 224 x 224",
    "mixer": "MLP-Mixer S/32, 8 images of 224 x 224",
    "transformer": "nn.Transformer, 4 + 4 layers, width 128, 2 sequences of 128",
    "unet": "U-Net, 4 levels, width 16, 2 images of 128 x 128",
}
LIMITS = {"best": 90.0, "checkmate": 20.0, "checkmate-lp": 15.0}  # seconds for a plan; the others take what they take
HEURISTICS = dtr.HEURISTICS
WITHIN = {"auto": 0.01, "rockmate": 0.02}  # of the step time of `best`
FREE = "dtr, also before the loss: "


def graph_file(name: str) -> Path:
    return RESULTS / f"compare-{name}.graph.json"


def run(name: str, budgets: str, planners: list[str]) -> dict:
    """One model: the comparison as an object, its picture drawn. The rows of planners that are not named are kept."""
    progress = Progress(None)
    if not graph_file(name).exists():
        target = f"{HERE}/models.py:{name}"
        request = Request(target, inputs=f"{HERE}/models.py:{name}_inputs")
        planning.write_trace(request, graph_file(name), progress)
    found = replace(priced_file(graph_file(name), progress), label=MODELS[name])
    wanted = parse_budgets(budgets)
    before = {} if set(planners) == set(PLANNERS) else json.loads((RESULTS / f"compare-{name}.json").read_text())
    if before and before["budgets"] != [b.text for b in wanted]:
        raise SystemExit(f"the rows of {name} are for the budgets {','.join(before['budgets'])}")
    compared = comparison.compare(found, wanted, tuple(planners), progress, limits=LIMITS)
    known = [n for n in PLANNERS if n in compared.outcomes or n in before.get("planners", {})]  # a new one was not run before
    outcomes = {n: compared.outcomes.get(n) or remembered(found, before, n) for n in known}
    compared = replace(compared, outcomes=outcomes)
    path = RESULTS / f"compare-{name}.svg"
    path.write_bytes(picture.draw(compared, path))
    limits = before.get("limits", {}) | {n: seconds for n, seconds in LIMITS.items() if n in planners}
    result = compared.to_json() | {"free": before.get("free") or free_dtr(found, wanted), "limits": limits}
    (RESULTS / f"compare-{name}.json").write_text(json.dumps(result, indent=1) + "\n")
    return result


def remembered(found: Priced, before: dict, planner: str) -> tuple[planning.Outcome, ...]:
    """A planner's row of an earlier run; of its schedules only the figures were kept."""
    outcomes = []
    columns = (before["budgets"], before["budget_bytes"], before["bound"], before["planners"][planner])
    for budget, limit, proved, row in zip(*columns, strict=True):
        plan = Plan(planner, Status(row["status"]), None, minimum_bytes=row["minimum_bytes"])
        if row["overhead"] is not None:
            time_ns, least = (round(found.plain_ns * (1 + part)) for part in (row["overhead"], proved or 0))
            plan = replace(plan, schedule=Schedule(()), time_ns=time_ns, peak_bytes=row["peak_bytes"], bound_ns=least)
        outcomes.append(planning.Outcome(planner, budget, limit, plan, None, row["seconds"]))
    return tuple(outcomes)


def free_dtr(found: Priced, budgets) -> dict[str, list[float | None]]:
    """DTR as its paper runs it: evicting, and recomputing, before the loss, too."""
    rows = {}
    for heuristic in HEURISTICS:
        planner = partial(dtr.plan, heuristic=heuristic, recompute_in_forward=True)
        plans = [planner(found.graph, found.profile, found.limit(b)) for b in budgets]
        rows[heuristic] = [None if p.schedule is None else p.time_ns / found.plain_ns - 1 for p in plans]
    return rows


# ---------------------------------------------------------------------------------------------- the report


def cell(overhead: float | None) -> str:
    return "-" if overhead is None else f"{100 * overhead:.1f}"


def table(headings: list[str], rows: list[tuple[str, list[str]]]) -> list[str]:
    lines = ["| | " + " | ".join(headings) + " |", "|---" + "|---:" * len(headings) + "|"]
    return lines + [f"| {name} | " + " | ".join(cells) + " |" for name, cells in rows]


def section(name: str, found: dict) -> list[str]:
    headings = [b.replace("%", " %") for b in found["budgets"]]
    rows = [("lower bound", [cell(b) for b in found["bound"]])]
    rows += [(p, [cell(r["overhead"]) for r in row]) for p, row in found["planners"].items()]
    rows += [(FREE + h, [cell(o) for o in row]) for h, row in found["free"].items()]
    times = [(p, [f"{r['seconds']:.1f}" for r in row]) for p, row in found["planners"].items()]
    size = f"{found['nodes']} compute nodes, {found['unmodified_peak_bytes'] / 2**20:.1f} MiB"
    lines = [
        f"## {MODELS[name]}",
        "",
        f"{size} and {found['unmodified_time_ns'] / 1e6:.0f} ms without recomputation. Extra time, %:",
    ]
    lines += ["", *table(headings, rows), "", f"![{name}](compare-{name}.svg)", "", "Planning time, seconds:", ""]
    limits = ", ".join(f"`{planner}` {seconds:g} s" for planner, seconds in found["limits"].items())
    return [*lines, *table(headings, times), "", f"Time limits: {limits}.", ""]


def claims(results: dict[str, dict]) -> list[str]:
    """What must hold, and where it does not."""
    lines = [f"- `best` is never worse than any other planner: {ahead(results, 'best', list(PLANNERS), 0)}"]
    for planner, part in WITHIN.items():
        lines.append(
            f"- `{planner}` is within {100 * part:.0f} % of the step time of `best`: {ahead(results, planner, ['best'], part)}"
        )
    return [*lines, *ranking(results)]


def ahead(results: dict[str, dict], planner: str, others: list[str], part: float) -> str:
    """Where a planner's step takes more than this part longer than one of the others'."""
    missed = []
    for name, found in results.items():
        for i, budget in enumerate(found["budgets"]):
            ours = found["planners"][planner][i]["overhead"]
            for other in others:
                theirs = found["planners"][other][i]["overhead"]
                if theirs is not None and (ours is None or 1 + ours > (1 + theirs) * (1 + part)):
                    missed.append(f"{name} at {budget}: {planner} {cell(ours)} %, {other} {cell(theirs)} %")
    return "; ".join(missed) + "." if missed else "holds."


def ranking(results: dict[str, dict]) -> list[str]:
    """DTR's heuristics: the mean step time over the budgets that all of them reach, and how often each is out of memory."""
    rows = []
    for heuristic in HEURISTICS:
        ratios, missed, count = [], 0, 0
        for found in results.values():
            for i in range(len(found["budgets"])):
                overheads = [found["free"][h][i] for h in HEURISTICS]
                if all(o is not None for o in overheads) and any(o > 0 for o in overheads):
                    ratios.append(1 + found["free"][heuristic][i])
                if any(o is not None for o in overheads):
                    count += 1
                    missed += found["free"][heuristic][i] is None
        rows.append((heuristic, sum(ratios) / max(len(ratios), 1), missed, count))
    rows.sort(key=lambda r: (r[2], r[1]))
    told = ", ".join(f"{h} {mean:.3f} x and {missed} of {count} out of memory" for h, mean, missed, count in rows)
    return [f"- DTR's heuristics, recomputing before the loss, too, best first (mean step, budgets that all reach): {told}."]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--budgets", default="20%,40%,60%,80%,90%")
    parser.add_argument("--planners", nargs="+", default=list(PLANNERS), choices=list(PLANNERS))
    parser.add_argument("--redraw", action="store_true", help="only write compare.md again")
    options = parser.parse_args()
    RESULTS.mkdir(exist_ok=True)
    for name in () if options.redraw else options.models:
        print(f"{name} ...", flush=True)
        run(name, options.budgets, options.planners)
    results = {n: json.loads(p.read_text()) for n in MODELS if (p := RESULTS / f"compare-{n}.json").exists()}
    lines = ["# Planners compared", "", f"    python benchmarks/bench_compare.py --budgets {options.budgets}", ""]
    lines += ["Costs measured on the CPU, one thread. -: no plan within the budget.", ""]
    lines += [*claims(results), ""]
    for name, found in results.items():
        lines += section(name, found)
    (RESULTS / "compare.md").write_text("\n".join(lines))
    print("\n".join(claims(results)))


if __name__ == "__main__":
    main()
