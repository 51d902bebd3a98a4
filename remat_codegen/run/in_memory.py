"""A file that is not on disk, for Python (`api.plan`): its text, its plan, and what the schedule does where."""

from __future__ import annotations

import hashlib
import linecache
import sys
from dataclasses import dataclass, replace
from itertools import takewhile
from types import ModuleType

from remat_codegen.advice import aswritten
from remat_codegen.ask.request import Request
from remat_codegen.errors import RematError
from remat_codegen.graph.simplify import Model
from remat_codegen.header import saved_plan
from remat_codegen.header.saved_plan import SavedPlan
from remat_codegen.marked.holders import Holders
from remat_codegen.marked.summary import RowSummary
from remat_codegen.profile.costs import Profile
from remat_codegen.readback.interpreter import Reading, read_back
from remat_codegen.readback.summary import BlockSummary, summarize
from remat_codegen.run import functions, marked, marked_text, pipeline
from remat_codegen.run.explain import Explanation, Table
from remat_codegen.run.functions import Functions
from remat_codegen.run.planning import make_plan
from remat_codegen.run.priced import measured_costs
from remat_codegen.run.traced import Traced
from remat_codegen.schedule import Schedule, simulate, without_recomputation
from remat_codegen.show.memory import Curve, curve
from remat_codegen.show.results import Progress, Report


@dataclass(frozen=True, slots=True)
class Made:
    """A file that is not written yet. `blocks` say what the schedule does where, `explanation` the same by the file's
    functions, or by its table; `curves` are memory over time with the plan, and without."""

    text: str
    report: Report
    blocks: tuple[BlockSummary, ...]
    explanation: Explanation
    curves: tuple[Curve, Curve]


def make(request: Request, traced: Traced, progress: Progress) -> Made:
    """Measures, plans and emits what `request` asks for. Raises RematError for whatever the user can put right."""
    request = replace(request, edition=1) if request.dynamic and request.edition is None else request
    profile = measured_costs(request, traced, progress)
    plan = make_plan(request, traced, progress, profile=profile)
    made = Functions(request, traced, plan, profile)
    if request.edition != 1:
        try:
            return _with_a_table(request, traced, profile, plan, progress)
        except RematError as error:
            made = functions.instead(made, error, progress)
    else:
        made = functions.with_open_batch(made, progress)
    return _of_functions(made, progress)


def _of_functions(made: Functions, progress: Progress) -> Made:
    request, traced, plan = made.request, made.traced, made.plan
    assert made.profile is not None
    schedule = saved_plan.schedule_of(plan, traced.graph, request.output_path)
    with progress.stage("emit"):
        text = pipeline.emit(traced, schedule, plan, request)
    return _made(text, plan, traced, made.profile, schedule, None, request, progress)


def _with_a_table(request: Request, traced: Traced, profile: Profile, made: SavedPlan, progress: Progress) -> Made:
    plan, brought, text = marked.proven(request, traced, profile, made, progress)
    marked.note_losses(plan, made, brought, profile, progress)
    rows, costs = marked_text.summary(traced, profile, brought), brought.found.holders.costs(profile)
    return _made(text, plan, traced, costs, brought.schedule, rows, request, progress)


def _made(
    text: str,
    plan: SavedPlan,
    traced: Traced,
    profile: Profile,
    schedule: Schedule,
    rows: tuple[RowSummary, ...] | None,
    request: Request,
    progress: Progress,
) -> Made:
    """The file with its figures. `rows` are the table's; None where the file has functions, which are read."""
    graph, timeline = traced.graph, simulate(traced.graph, profile, schedule)
    plain_ns = simulate(graph, profile, without_recomputation(graph)).time_ns
    reading = _nothing_read(schedule) if rows is not None else read_back(text, traced.model)
    line = reading.lines[timeline.peak_step] if reading.complete and reading.schedule == schedule else 0
    blocks = summarize(traced.model, profile, replace(reading, schedule=schedule), timeline, plain_ns)
    blocks = tuple(b if b.functions else replace(b, path=_path(traced.model, b.block)) for b in blocks)
    found = Explanation(
        request.output_path,
        (),
        (),
        None,
        rows=rows or (),
        blocks=() if rows is not None else blocks,
        peak_bytes=plan.planned_peak_bytes,
        peak_line=line,
        peak_block=next((b.block for b in blocks if b.peak_bytes == timeline.peak_bytes), None),
        unmodified_peak_bytes=plan.unmodified_peak_bytes,
        budget_bytes=plan.budget_bytes,
        overhead=plan.overhead,
        others=tuple(Table(p.budget_bytes, p.planned_peak_bytes, p.overhead, p.batch) for p in plan.others),
        batch=plan.batch,
    )
    holders = Holders(traced.model)
    costs = holders.costs(profile) if rows is None else profile  # which has them where there is a table
    curves = curve(graph, profile, schedule), curve(graph, costs, holders.plain)
    return Made(text, _report(plan, traced, progress), blocks, found, curves)


def _path(model: Model, block: int) -> str:
    """The innermost module that all operations of a block are in."""
    found = model.graph.blocks[block]
    own = [op for n in range(found.first, found.last + 1) if n < model.graph.loss for op in model.bodies[n].operations]
    paths = [model.trace.operations[op].module_path.split(".") for op in own]
    return ".".join(names[0] for names in takewhile(lambda names: len(set(names)) == 1, zip(*paths, strict=False)))


def _nothing_read(schedule: Schedule) -> Reading:
    return Reading(schedule, (), (), (), False)


def _report(plan: SavedPlan, traced: Traced, progress: Progress) -> Report:
    report = pipeline.report_of(plan, traced.graph, None, None, progress)
    said = [note.removeprefix("note: ") for note in progress.noted]  # whoever shows notes says that they are
    return replace(report, as_written=aswritten.of_plan(plan, traced.model), notes=(*said, *plan.notes))


def imported(text: str, stem: str) -> ModuleType:
    """A generated file's text as a module, without a file. Its lines are there for tracebacks and debuggers; the same text is
    one module, under which what is made from it can be copied and pickled in this process."""
    name = f"_{stem}_{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    file = f"<{name[1:]}.py>"
    code = compile(text, file, "exec")
    linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file
    sys.modules[name] = module = ModuleType(name)
    try:
        exec(code, module.__dict__)
    except BaseException:
        del sys.modules[name]
        raise
    return module
