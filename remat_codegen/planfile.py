"""A plan as JSON: saved with --save-plan, emitted again with --plan, without measuring or solving.

    {"format": "remat-codegen plan", "version": 1, "graph": digest, "order": [node, ...], "planner": ..., ...}

`order` is the order in which the graph's compute nodes run; everything is forgotten as soon as the order allows. The other
entries are what the generated file's header says, so that the same plan gives the same bytes.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from remat_codegen.errors import PlanFileError
from remat_codegen.graph.ir import Graph
from remat_codegen.schedule import Compute, Schedule, validate, with_forgets

OPTIONAL = ("as_written_peak_bytes", "as_written_overhead")  # fields that most plans leave out
FORMAT, VERSION = "remat-codegen plan", 1


@dataclass(frozen=True, slots=True)
class SavedPlan:
    """A plan on disk. Sizes in bytes; `overhead` and `bound` are ratios over the step without recomputation (0.12 for 12 %).

    `as_written_*` are what the step takes with the checkpoints that the model itself asks for, where it does.
    """

    graph: str
    planner: str
    status: str
    budget: str
    budget_bytes: int
    planned_peak_bytes: int
    unmodified_peak_bytes: int
    overhead: float
    bound: float | None
    device: str
    order: tuple[int, ...]
    notes: tuple[str, ...] = ()
    as_written_peak_bytes: int | None = None
    as_written_overhead: float | None = None

    def rows(self) -> dict[str, Any]:
        """The fields by name, without those that say nothing."""
        return {name: value for name, value in asdict(self).items() if name not in OPTIONAL or value is not None}

    def dumps(self) -> str:
        """The file's text."""
        rows = {"format": FORMAT, "version": VERSION, **self.rows()}
        lines = [f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in rows.items()]
        return "{\n" + ",\n".join(lines) + "\n}\n"


def order_of(schedule: Schedule) -> tuple[int, ...]:
    """The nodes that a schedule runs, in order."""
    return tuple(s.node for s in schedule.steps if isinstance(s, Compute))


def load(path: Path) -> SavedPlan:
    """Reads a plan. Raises PlanFileError where the file is missing or is not a plan."""
    try:
        rows: Any = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise PlanFileError(f"cannot read the plan: {error.strerror}", where=str(path)) from error
    except ValueError as error:
        raise PlanFileError(f"not a plan: {error}", where=str(path)) from error
    if not isinstance(rows, dict) or rows.get("format") != FORMAT:
        raise PlanFileError("not a plan written by --save-plan", where=str(path))
    if rows.get("version") != VERSION:
        raise PlanFileError(f"plan version {rows.get('version')} is not supported", where=str(path), hint="plan again")
    missing = [f.name for f in fields(SavedPlan) if f.name not in (*rows, *OPTIONAL)]
    if missing:
        raise PlanFileError(f"the plan has no {missing[0]!r}", where=str(path))
    order = rows["order"]
    if not isinstance(order, list) or not all(isinstance(n, int) for n in order):
        raise PlanFileError("the plan's order is not a list of node numbers", where=str(path))
    return SavedPlan(
        **{f.name: rows[f.name] for f in fields(SavedPlan) if f.name in rows}
        | {"order": tuple(order), "notes": tuple(rows["notes"])}
    )


def schedule_of(plan: SavedPlan, graph: Graph, path: Path) -> Schedule:
    """The plan's schedule on `graph`. Raises PlanFileError where it was made for another graph."""
    if plan.graph != graph.digest():
        raise PlanFileError("the plan was made for another model, or for other inputs", where=str(path), hint="plan again")
    try:
        schedule = with_forgets(graph, plan.order)
        validate(graph, schedule)
    except (ValueError, IndexError) as error:
        raise PlanFileError(f"the plan's order cannot be run: {error}", where=str(path), hint="plan again") from error
    return schedule
