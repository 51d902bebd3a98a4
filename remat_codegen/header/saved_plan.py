"""A plan as JSON: saved with --save-plan, emitted again with --plan, without measuring or solving.

    {"format": "remat-codegen plan", "version": 1, "graph": digest, "order": [node, ...], "planner": ..., ...}

`order` is the order in which the graph's compute nodes run; everything is forgotten as soon as the order allows. The other
entries are what the generated file's header says, so that the same plan gives the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

from remat_codegen.ask.budget import plan_label
from remat_codegen.errors import PlanFileError
from remat_codegen.graph.ir import Graph
from remat_codegen.schedule import Schedule, validate, with_forgets
from remat_codegen.trace.sizes import LIMITS

# Fields that most plans leave out.
OPTIONAL = (
    *("as_written_peak_bytes", "as_written_overhead", "capability", "estimated", "answer", "recorded", "batch", "loss"),
    *("smaller", "others"),
)
USUAL_LOSS = "cross-entropy"
FORMAT, VERSION = "remat-codegen plan", 1
SAVED = "name a file that --save-plan wrote"
AGAIN = "plan again with `remat-codegen TARGET --budget BUDGET --save-plan FILE`"


@dataclass(frozen=True, slots=True)
class SavedPlan:
    """A plan on disk. Sizes in bytes; `overhead` and `bound` are ratios over the step without recomputation (0.12 for 12 %).

    `as_written_*` are what the step takes with the checkpoints that the model itself asks for, where it does.
    `device` is a kind of device, cpu or cuda, and `capability` the compute capability of the GPU that was planned for (9.0).
    `estimated` names the GPU whose costs were estimated, as it was not there to be measured on.
    `answer` says what the budget is the answer to, where it was found rather than given. `recorded` is true where the plan is
    for one run, as what the model does depends on values.
    `others` are plans for larger budgets, in the order of these, where one file has several; `budget` then names all of them.
    Or they are for smaller batch sizes, from the largest on, which `batch` says of each.
    `loss` is what the step goes back from (training.example_loss).
    `smaller` are sizes up to which a file of functions runs the original forward ("x.0,scale.0=4;x.1=2").
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
    capability: str | None = None
    estimated: str | None = None
    answer: str | None = None
    recorded: bool | None = None
    batch: int | None = None
    loss: str = USUAL_LOSS
    smaller: str | None = None
    others: tuple[SavedPlan, ...] = ()

    def all(self) -> tuple[SavedPlan, ...]:
        """This plan, and those for larger budgets, or smaller batch sizes, that are in the same file."""
        return (self, *self.others)

    def at(self, number: int) -> SavedPlan | None:
        """The plan of that number, None where there are fewer."""
        return self.all()[number] if number < len(self.all()) else None

    @property
    def label(self) -> str:
        """What tells it from others in one file."""
        return plan_label(self.budget_bytes, self.batch)

    def rows(self) -> dict[str, Any]:
        """The fields by name, without those that say nothing."""
        found = {f.name: getattr(self, f.name) for f in fields(self)} | {"others": [other.rows() for other in self.others]}
        return {name: value for name, value in found.items() if name not in OPTIONAL or value not in (None, [], USUAL_LOSS)}

    def dumps(self) -> str:
        """The file's text."""
        rows = {"format": FORMAT, "version": VERSION, **self.rows()}
        lines = [f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in rows.items()]
        return "{\n" + ",\n".join(lines) + "\n}\n"


def load(path: Path) -> SavedPlan:
    """Reads a plan. Raises PlanFileError where the file is missing or is not a plan."""
    try:
        rows: Any = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise PlanFileError(f"cannot read the plan: {error.strerror}", where=str(path)) from error
    except ValueError as error:
        raise PlanFileError(f"not a plan: {error}", where=str(path), hint=SAVED) from error
    if not isinstance(rows, dict) or rows.get("format") != FORMAT:
        raise PlanFileError("not a plan written by --save-plan", where=str(path), hint=SAVED)
    if rows.get("version") != VERSION:
        raise PlanFileError(f"plan version {rows.get('version')} is not supported", where=str(path), hint=AGAIN)
    try:
        return plan_of(rows, _order)
    except PlanFileError as error:
        raise PlanFileError(f"the plan has {error.what}", where=str(path), hint=AGAIN) from error


def _order(given: Any) -> tuple[int, ...]:
    if not isinstance(given, list) or not all(isinstance(n, int) for n in given):
        raise PlanFileError("an order that is not a list of node numbers")
    return tuple(given)


def plan_of(rows: dict[str, Any], order_of: Callable[[Any], tuple[int, ...]]) -> SavedPlan:
    """A plan from what `rows()` gave; `order_of` reads an order. Raises PlanFileError for the first entry that is wrong."""
    given = _entries(rows)
    others = tuple(plan_of(other, order_of) for other in given.get("others", ()))
    return SavedPlan(**given | {"order": order_of(given["order"]), "others": others})


def _entries(rows: dict[str, Any]) -> dict[str, Any]:
    """What a SavedPlan is made from, but for its order, which is not looked at. Entries with a default may be missing: an older
    version did not know them. Raises PlanFileError for the first that is wrong."""
    found = {}
    for field in fields(SavedPlan):
        if field.name not in rows and field.default is not MISSING:
            continue
        if field.name not in rows or not _fits(rows[field.name], field.name):
            raise PlanFileError(f"no good {field.name!r}")
        found[field.name] = tuple(rows[field.name]) if field.name == "notes" else rows[field.name]
    return found


def _fits(value: Any, name: str) -> bool:
    if name == "order":
        return True
    if name == "smaller":
        return isinstance(value, str) and LIMITS.fullmatch(value) is not None
    if name == "recorded":
        return value is True
    if name.endswith("_bytes") or name == "batch":
        return type(value) is int
    if name in ("overhead", "bound", "as_written_overhead"):
        return type(value) in (int, float) or (name == "bound" and value is None)
    if name == "others":
        return isinstance(value, list) and all(isinstance(v, dict) for v in value)
    if name == "notes":
        return isinstance(value, list) and all(isinstance(v, str) for v in value)
    return isinstance(value, str)


def beside(file: Path) -> Path:
    """Where a file's plan lies if it was saved beside it: FILE.plan.json."""
    return file.with_name(f"{file.name}.plan.json")


def schedule_of(plan: SavedPlan, graph: Graph, path: Path) -> Schedule:
    """The plan's schedule on `graph`. Raises PlanFileError where it was made for another graph."""
    if plan.graph != graph.digest():
        raise PlanFileError("the plan was made for another model, or for other inputs", where=str(path), hint=AGAIN)
    try:
        schedule = with_forgets(graph, plan.order)
        validate(graph, schedule)
    except (ValueError, IndexError) as error:
        raise PlanFileError(f"the plan's order cannot be run: {error}", where=str(path), hint=AGAIN) from error
    return schedule
