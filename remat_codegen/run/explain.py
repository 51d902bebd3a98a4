"""What a generated file does, read from its functions, or from its marks and its table: its schedule block by block, or row by
row, and what is wrong with it.

The plan in the file's header is not what is shown here. It is what the schedule found in the functions is compared with.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from remat_codegen.ask.budget import plan_label
from remat_codegen.ask.request import Request
from remat_codegen.errors import RematError, VerifyError
from remat_codegen.header import saved_plan
from remat_codegen.header.saved_plan import SavedPlan
from remat_codegen.header.several import plan_for
from remat_codegen.marked.holders import Holders
from remat_codegen.marked.summary import RowSummary
from remat_codegen.profile.costs import Profile
from remat_codegen.readback.compare import differences
from remat_codegen.readback.interpreter import Call, Reading, read_back
from remat_codegen.readback.summary import BlockSummary, summarize
from remat_codegen.readback.values import Problem
from remat_codegen.run import check_update, marked, marked_text, pipeline, tabling
from remat_codegen.run.check_update import Header
from remat_codegen.run.priced import measured_costs, reserve_of
from remat_codegen.run.traced import Traced, trace_target
from remat_codegen.schedule import Schedule, simulate, validate, with_forgets
from remat_codegen.schedule.order import order_of
from remat_codegen.show.results import Progress

MOST_PROBLEMS = 20


@dataclass(frozen=True, slots=True)
class Table:
    """What one of a file's tables takes. `budget_bytes` is None where no plan says what it is for; `batch` is there where
    tables are for batch sizes."""

    budget_bytes: int | None
    peak_bytes: int
    overhead: float
    batch: int | None = None

    @property
    def label(self) -> str:
        """What tells it from the others; empty where no plan says."""
        return "" if self.budget_bytes is None else plan_label(self.budget_bytes, self.batch)

    def to_json(self) -> dict[str, Any]:
        """The object that `--json` prints; `batch` is there only where that is what tables differ in."""
        rows = {"budget_bytes": self.budget_bytes, "peak_bytes": self.peak_bytes, "overhead": round(self.overhead, 6)}
        return rows if self.batch is None else rows | {"batch": self.batch}


@dataclass(frozen=True, slots=True)
class Explanation:
    """What `explain` found. `overhead` is extra time over the step without recomputation; `as_planned` says whether the
    schedule in the source is the plan's, None where there is no plan to compare with. `others` are the file's tables for other
    budgets or batch sizes than the one that is told row by row; `batch` is its own, where it has several.

    Without `blocks` the schedule could not be followed to its end; `problems` say why. `edited` says whether it was changed by
    hand; if not, problems come from another model, or from another version of the generator.
    """

    file: Path
    problems: tuple[Problem, ...]
    notes: tuple[str, ...]
    as_planned: bool | None
    blocks: tuple[BlockSummary, ...] = ()
    rows: tuple[RowSummary, ...] = ()
    peak_bytes: int = 0
    peak_line: int = 0
    peak_block: int | None = None
    unmodified_peak_bytes: int = 0
    budget_bytes: int | None = None
    overhead: float = 0.0
    edited: bool = False
    others: tuple[Table, ...] = ()
    batch: int | None = None

    @property
    def ok(self) -> bool:
        """Whether the file does what it was generated to do."""
        return not self.problems

    @property
    def out_of_date(self) -> bool:
        """Whether making the file again puts it right."""
        return not self.ok and not self.edited

    def to_json(self) -> dict[str, Any]:
        """The object that `--json` prints."""
        rows: dict[str, Any] = {"file": str(self.file), "ok": self.ok, "as_planned": self.as_planned}
        rows |= {"problems": [p.to_json() for p in self.problems], "notes": list(self.notes)}
        if not self.blocks and self.unmodified_peak_bytes == 0:
            return rows | {"blocks": None}
        sizes = {
            n: getattr(self, n) for n in ("peak_bytes", "peak_line", "peak_block", "unmodified_peak_bytes", "budget_bytes")
        }
        sizes |= {} if self.batch is None else {"batch": self.batch}
        parts = {"blocks": [b.to_json() for b in self.blocks]} if self.blocks else {"rows": [r.to_json() for r in self.rows]}
        parts |= {"others": [o.to_json() for o in self.others]} if self.others else {}
        return rows | sizes | {"overhead": round(self.overhead, 6)} | parts


@dataclass(frozen=True, slots=True)
class Case:
    """A file with the model that it is explained by. `table` is which of its tables is told, in the order of its plans."""

    file: Path
    text: str
    header: Header
    traced: Traced
    plan: SavedPlan | None
    table: int = 0

    @property
    def plan_told(self) -> SavedPlan | None:
        """The plan of the table that is told."""
        return None if self.plan is None else self.plan.all()[self.table]

    @property
    def traced_told(self) -> Traced:
        """The model as that table is for it: at its batch size, where there are several."""
        return self.traced.at(self.table)

    def emitted(self, plan: SavedPlan, order: Sequence[int]) -> str:
        """What the generator writes for an order of nodes."""
        schedule = with_forgets(self.traced.graph, order)
        return pipeline.emit(self.traced, schedule, replace(plan, order=tuple(order)), self.header.request)


@dataclass(frozen=True, slots=True)
class Beside:
    """A table that is not told, with the model and the costs that it is for: others, at another batch size."""

    table: Table
    traced: Traced
    profile: Profile


@dataclass(frozen=True, slots=True)
class Followed:
    """The schedule that a file was found to run, with the `costs` that it was simulated by; `profile` are those of the step
    without recomputation. `lines` are those of the file that cause each of its steps, `calls` the functions that it calls; a
    file of the second edition has neither. `others` are the file's other tables."""

    case: Case
    request: Request
    schedule: Schedule
    profile: Profile
    costs: Profile
    lines: tuple[int, ...] = ()
    calls: tuple[Call, ...] = ()
    others: tuple[Beside, ...] = ()

    @property
    def traced(self) -> Traced:
        """The model that the schedule is for."""
        return self.case.traced_told


def explain(
    file: Path,
    progress: Progress,
    target: str | None = None,
    plan: Path | None = None,
    cache: bool = True,
    budget: str | None = None,
    batch: int | None = None,
) -> Explanation:
    """Reads the schedule of a generated file back from its functions, and simulates it on the model.

    The model is the one that the header names, or `target`; `plan` is compared with instead of the header's plan. Of several
    plans the one for `budget` or `batch` is told; if not given, that for the least budget, or the largest batch.
    Raises VerifyError where remat-codegen did not write the file, BudgetError where it has no such plan, and what tracing
    raises.
    """
    return follow(file, progress, target, plan, cache, budget, batch)[0]


def follow(
    file: Path,
    progress: Progress,
    target: str | None = None,
    plan: Path | None = None,
    cache: bool = True,
    budget: str | None = None,
    batch: int | None = None,
) -> tuple[Explanation, Followed | None]:
    """As `explain`, and the schedule itself, None where it could not be followed to its end."""
    text = check_update._read(file)
    header = check_update.read_header(text, file)
    saved = header.plan if plan is None else saved_plan.load(plan)
    asked = plan_for(saved, budget, file, batch)
    table = 0 if saved is None or asked is None else saved.all().index(asked)
    if header.request.given and target is None:
        raise VerifyError("was made from a model in memory", where=str(file), hint=f"name one: explain {file.name} TARGET")
    request = check_update.located(header.request, file)
    request = replace(request, target=request.target if target is None else target, cache=cache)
    request = request if saved is None else replace(request, loss=saved.loss)
    if request.gpu is None and check_update._has_no_device(request.device):
        what = f"{request.device} is not here, so its operations cannot be measured"
        raise VerifyError(what, where=str(file), hint="run this on a machine that has one")
    with check_update._as_if_alone(request.target, file):
        traced = trace_target(request, progress)
        if request.edition == 2:
            return _explained_by_table(Case(file, text, header, traced, _fitting(saved, traced), table), request, progress)
        with progress.stage("read"):
            reading = read_back(text, traced.model)
            case = Case(file, text, header, traced, _fitting(saved, traced))
            reading, problems, notes, as_planned = _judged(case, reading)
        edited = header.sealed is False
        found = Explanation(file, tuple(problems[:MOST_PROBLEMS]), tuple(notes), as_planned, edited=edited)
        if not _is_valid(traced, reading):
            return found, None
        return _priced(found, case, reading, request, progress)


def _fitting(plan: SavedPlan | None, traced: Traced) -> SavedPlan | None:
    plans = () if plan is None else plan.all()
    alike = all(one.graph == traced.at(number).graph.digest() for number, one in enumerate(plans))
    return plan if plan is not None and alike and traced.are_of(plan) else None


def _is_valid(traced: Traced, reading: Reading) -> bool:
    try:
        validate(traced.graph, reading.schedule)
    except ValueError:
        return False
    return reading.complete


# ---------------------------------------------------------------------------------------------- what is wrong


def _judged(case: Case, reading: Reading) -> tuple[Reading, list[Problem], list[str], bool | None]:
    """The reading, the problems in it, notes, and whether it is the plan's schedule."""
    problems, notes = list(reading.problems), _notes(case)
    graph = case.traced.graph.digest()
    if case.header.graph != graph[:12]:
        problems.insert(0, Problem(1, f"was made from another graph ({case.header.graph}) than the model's ({graph[:12]})"))
    if case.plan is None:
        text = _expected_by_itself(case, reading)
        return reading, _with_differences(case, problems, notes, text), notes, None
    planned = case.emitted(case.plan, case.plan.order)
    wanted = read_back(planned, case.traced.model)
    alike = reading.problems and _is_python(case.text) and not differences(case.text, planned)
    if alike:  # what is a problem here is that only the plan can tell equal operations apart
        schedule = saved_plan.schedule_of(case.plan, case.traced.graph, case.file)
        known = replace(reading, schedule=schedule, lines=(0,) * len(schedule.steps), problems=(), complete=True)
        return known, [], [*notes, "equal operations could not be told apart: the schedule is the plan's"], True
    as_planned = order_of(reading.schedule) == order_of(wanted.schedule) if reading.complete else False
    if reading.complete and not as_planned:
        problems.append(Problem(1, f"its schedule is not the plan's: {_how(case, reading.schedule, wanted.schedule)}"))
    own = None if as_planned or not reading.complete else _expected_by_itself(case, reading)
    return reading, _with_differences(case, problems, notes, planned if own is None else own), notes, as_planned


def _notes(case: Case) -> list[str]:
    digest = check_update._source_digest(case.traced)
    changed = digest[:12] != case.header.source
    notes = [f"{case.traced.target.path.name} has changed since the file was made"] if changed else []
    if case.plan is None:
        notes.append(case.header.damage or "its plan is for another graph; the schedule is compared with none")
    return notes


def _expected_by_itself(case: Case, reading: Reading) -> str | None:
    """What the generator writes for the schedule that was read; None where that cannot be run."""
    order = order_of(reading.schedule)
    try:
        validate(case.traced.graph, with_forgets(case.traced.graph, order))
        plan = case.plan or case.header.plan or _no_plan(case.header, case.traced)
        return case.emitted(plan, order) if reading.complete else None
    except (ValueError, IndexError, RematError):
        return None


def _no_plan(header: Header, traced: Traced) -> SavedPlan:
    asked = header.request
    return replace(_no_plan_of(traced), planner=asked.planner, budget=asked.budget or "", device=asked.device)


def _no_plan_of(traced: Traced) -> SavedPlan:
    return SavedPlan(traced.graph.digest(), "", "", "", 0, 0, 0, 0.0, None, "cpu", ())


def _with_differences(case: Case, problems: list[Problem], notes: list[str], expected: str | None) -> list[Problem]:
    """The problems, and where the text is not what it should be, by line.

    A file that is as it was written, and whose functions do what they should, may still come from another generator.
    """
    found = [] if expected is None or not _is_python(case.text) else differences(case.text, expected)
    if case.header.sealed is not True:
        return [*problems, *sorted(found, key=lambda p: p.line)]
    if found:
        count = f"{len(found)} {'place' if len(found) == 1 else 'places'}, the first in line {min(p.line for p in found)}"
        notes.append(f"this remat-codegen writes it differently in {count}; see remat-codegen check")
    return problems


def _is_python(text: str) -> bool:
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True


def _how(case: Case, found: Schedule, planned: Schedule) -> str:
    """In what two schedules differ, in a few words."""
    graph, have, want = case.traced.graph, order_of(found), order_of(planned)
    rows = []
    for node in graph.forward_nodes:
        runs, times = have.count(node.id), want.count(node.id)
        if runs != times:
            rows.append(f"{node.name} runs {runs} times instead of {times}")
    more = f", and {len(rows) - 3} more" if len(rows) > 3 else ""
    return "; ".join(rows[:3]) + more if rows else "the same operations run again, at other places"


# ---------------------------------------------------------------------------------------------- the second edition


def _explained_by_table(case: Case, request: Request, progress: Progress) -> tuple[Explanation, Followed | None]:
    """A file of the second edition: the schedule that its table and its marks lead to."""
    notes = _notes(case)
    with progress.stage("read"):
        brought, problems = marked_text.read_back(case.text, case.traced)
        lost = bool(problems) and not _told(case, brought).rows
        problems, as_planned = _judged_by_table(case, brought, problems, notes)
    problems = sorted(problems, key=lambda p: p.line)[:MOST_PROBLEMS]
    found = Explanation(case.file, tuple(problems), tuple(notes), as_planned, edited=case.header.sealed is False)
    priced, followed = _priced_by_table(found, case, brought, request, progress)
    return priced, None if lost else followed


def _judged_by_table(
    case: Case, brought: tabling.Brought, problems: list[Problem], notes: list[str]
) -> tuple[list[Problem], bool | None]:
    """All that is wrong, and whether its tables are the plan's."""
    as_planned = None if case.plan is None else brought.lead_to(case.plan, case.traced.graph)
    if as_planned is False and not problems:
        problems.append(Problem(1, "its table is not the plan in its header"))
    plan = case.plan or case.header.plan or _no_plan(case.header, case.traced)
    orders = [one.order for one in plan.all()] if as_planned else [order_of(one.schedule) for one in brought.all()]
    if len(orders) != len(plan.all()) or not case.traced.are_of(plan):
        several = f"{len(plan.all())} budgets or batches"
        problems.append(Problem(1, f"has {len(orders)} tables, and the plan in its header is for {several}"))
        return _with_differences(case, problems, notes, None), as_planned
    first, *others = [replace(one, order=order) for one, order in zip(plan.all(), orders, strict=True)]
    expected = marked_text.emit(case.traced, replace(first, others=tuple(others)), case.header.request, brought)
    return _with_differences(case, problems, notes, expected), as_planned


def _told(case: Case, brought: tabling.Brought) -> tabling.Brought:
    """The table that is told, with the others beside it, since all of them share the marks. Raises VerifyError where the file
    has fewer tables than plans."""
    tables = brought.all()
    if case.table >= len(tables):
        hint = "see remat-codegen explain without --budget or --batch"
        raise VerifyError("the file has no such table", where=str(case.file), hint=hint)
    others = tuple(replace(one, others=()) for i, one in enumerate(tables) if i != case.table)
    return replace(tables[case.table], others=others, also=brought.also)


# ---------------------------------------------------------------------------------------------- what it costs


def _priced(
    found: Explanation, case: Case, reading: Reading, request: Request, progress: Progress
) -> tuple[Explanation, Followed]:
    profile = measured_costs(request, case.traced, progress)
    graph = case.traced.graph
    schedule = reserve_of(case.traced).with_states(reading.schedule)
    timeline = simulate(graph, profile, schedule)
    plain = Holders(case.traced.model).plain_step(profile)
    blocks = summarize(case.traced.model, profile, reading, timeline, plain.time_ns)
    priced = replace(
        found,
        blocks=blocks,
        peak_bytes=timeline.peak_bytes,
        peak_line=reading.lines[timeline.peak_step],
        peak_block=next((b.block for b in blocks if b.peak_bytes == timeline.peak_bytes), None),
        unmodified_peak_bytes=plain.peak_bytes,
        budget_bytes=None if case.plan is None else case.plan.budget_bytes,
        overhead=timeline.time_ns / max(1, plain.time_ns) - 1,
    )
    return priced, Followed(case, request, schedule, profile, profile, reading.lines, reading.calls)


def _priced_by_table(
    found: Explanation, case: Case, brought: tabling.Brought, request: Request, progress: Progress
) -> tuple[Explanation, Followed]:
    profiles = measured_costs(request, case.traced, progress)
    traced, profile, told = case.traced_told, profiles.at(case.table), _told(case, brought)
    costs = told.found.holders.costs(profile)
    timeline = simulate(traced.graph, costs, told.schedule)
    plain = told.found.holders.plain_step(profile)
    beside = _beside(case, brought, profiles)
    priced = replace(
        found,
        rows=marked_text.summary(traced, profile, told),
        peak_bytes=timeline.peak_bytes,
        unmodified_peak_bytes=plain.peak_bytes,
        budget_bytes=None if case.plan_told is None else case.plan_told.budget_bytes,
        overhead=timeline.time_ns / max(1, plain.time_ns) - 1,
        others=tuple(other.table for other in beside),
        batch=None if case.plan_told is None else case.plan_told.batch,
    )
    return priced, Followed(case, request, told.schedule, profile, costs, others=beside)


def _beside(case: Case, brought: tabling.Brought, profiles: Profile) -> tuple[Beside, ...]:
    """What the tables take that are not told, each by the graph and the costs of what it is for."""
    tables = brought.all()
    plans = case.plan.all() if case.plan is not None and len(case.plan.all()) == len(tables) else (None,) * len(tables)
    found = []
    for number, (one, plan) in enumerate(zip(tables, plans, strict=True)):
        traced, profile = case.traced.at(number), profiles.at(number)
        took = marked.as_planned(_no_plan_of(traced), traced, profile, one)
        budget, batch = (None, None) if plan is None else (plan.budget_bytes, plan.batch)
        found.append(Beside(Table(budget, took.planned_peak_bytes, took.overhead, batch), traced, profile))
    return tuple(found[: case.table] + found[case.table + 1 :])
