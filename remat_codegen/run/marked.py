"""What the command does by default: a marked file (edition 2), which is the user's own source with marks and a table; or one of
functions (edition 1), where a table would cost too much, or there is nothing to mark."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TypeVar

from remat_codegen.ask.budget import format_bytes
from remat_codegen.ask.request import Request
from remat_codegen.errors import BudgetError, PlanFileError, RematError, UnsupportedError
from remat_codegen.files import write_atomically
from remat_codegen.header import saved_plan
from remat_codegen.header.saved_plan import SavedPlan
from remat_codegen.marked import replays
from remat_codegen.marked.changed import changed_buffers, moved_again
from remat_codegen.marked.circles import left_in_circles
from remat_codegen.marked.compiled import compiled_in
from remat_codegen.marked.evaluations import Vertex
from remat_codegen.marked.proof import difference, imported
from remat_codegen.marked.steady import ANEW, Before
from remat_codegen.profile.costs import Profile
from remat_codegen.run import functions, pipeline
from remat_codegen.run.forked import Work, begun
from remat_codegen.run.functions import Functions
from remat_codegen.run.marked_text import emit, named, read_back
from remat_codegen.run.pipeline import finished
from remat_codegen.run.planning import DIGITS, make_plan, unseen
from remat_codegen.run.priced import measured_costs
from remat_codegen.run.tabling import PART_NS, SAVED_NS, Beside, Brought, about, felt, steadily
from remat_codegen.run.traced import Traced, trace_target
from remat_codegen.schedule import simulate
from remat_codegen.schedule.order import order_of
from remat_codegen.show.results import Progress, Report, percent
from remat_codegen.trace.chance import going_on
from remat_codegen.trace.training import example_loss

MOST_LOST = 0.05  # of the step's time: what a table may take beyond the plan, if the first edition is there instead
NAMED = 3  # of what forward changes in place, in a note
MOST_AVOIDED = 6  # times that a table is looked for once more, without parts that cannot run again
LITTLE_LEFT = 0.01  # of a step's memory: what forward leaves to the garbage collector where that is said
LARGE = 300  # operations, from which on a copy of this process shows that marks change nothing, while this one goes on
LITTLE_FELT = 0.02  # of a step: what parts take of Python's time where that is said
T = TypeVar("T")
Tabled = tuple[SavedPlan, Brought]  # a plan as a table takes it, and that table


@going_on()
def generate(request: Request, progress: Progress) -> Report:
    """Writes the file that `request` asks for. Where that leaves the edition open, it is the second, if a table of parts takes
    at most `MOST_LOST` longer than the plan, and else the first, which says so. Raises RematError for whatever the user can put
    right.
    """
    pipeline.check_outputs(request)
    marked = replace(request, dynamic="")
    traced = trace_target(marked, progress)
    profile = measured_costs(marked, traced, progress)
    made = _planned(marked, traced, profile, progress) if request.plan is None else saved_plan.load(request.plan)
    _note_moved_again(traced, progress)
    try:
        plan, brought, text = proven(marked, traced, profile, made, progress)
    except RematError as error:
        first = functions.instead(Functions(request, traced, made, profile), error, progress)
        _note_overtaken(traced, progress)
        return functions.generate(first.request, progress) if request.dynamic else first.written(progress)
    note_losses(plan, made, brought, profile, progress)
    _note_reentrant(traced, progress)
    _note_circles(traced, plan, progress)
    _note_compiled(traced, progress)
    if request.dynamic:
        progress.note("note: --dynamic is not needed, for files of the second edition take all sizes that the model takes")
    write_atomically(request.output_path, text)
    if request.save_plan is not None:
        write_atomically(request.save_plan, made.dumps())
    return finished(replace(marked, edition=2), plan, traced, progress, profile)


def _planned(request: Request, traced: Traced, profile: Profile, progress: Progress) -> SavedPlan:
    try:
        return make_plan(request, traced, progress, profile=profile)
    except BudgetError:
        _note_overtaken(traced, progress)
        raise


def _note_overtaken(traced: Traced, progress: Progress) -> None:
    """Says what kept parts away from much of a model, if that is what forward changes in place."""
    changed = changed_buffers(traced.model.trace, traced.model.record)
    paths = list(dict.fromkeys(c.path for c in changed if not c.is_copied))
    if paths:
        named = ", ".join(paths[:NAMED]) + (f" and {len(paths) - NAMED} more" if len(paths) > NAMED else "")
        why = f"forward changes {named} in place, and what may read them before that cannot be rebuilt by marks"
        progress.note(f"note: {why}: give the module a new tensor instead, or change them after the step")


def _note_reentrant(traced: Traced, progress: Progress) -> None:
    """Says where forward checkpoints in a way that goes before a plan."""
    regions = (region for op in traced.model.trace.operations for region in op.regions if region.reentrant)
    if (region := next(regions, None)) is not None:
        where = "" if region.where is None else f"{region.where} "
        what = f"{where}checkpoints with use_reentrant=True, which goes before the plan: a step may take more than its budget"
        progress.note(f"note: {what}; with use_reentrant=False the plan takes its place")


def _note_moved_again(traced: Traced, progress: Progress) -> None:
    """Says what the model's own checkpoints move twice in a step, and a file does not: so numbers differ."""
    moved = moved_again(traced.model.trace, traced.model.record)
    if moved:
        path, where = next(iter(moved.items()))
        named = (path or "the model") + (f" and {len(moved) - 1} more" if len(moved) > 1 else "")
        what = f"{where or 'forward'} checkpoints what moves buffers of {named}"
        why = "the model does so twice in a step, the file once, so that numbers differ"
        progress.note(f"note: {what}: {why}; --verify agrees where the checkpoint is left out")


def _note_circles(traced: Traced, plan: SavedPlan, progress: Progress) -> None:
    """Says what forward leaves to Python's garbage collector, if that is noticeably much."""
    target, trace = traced.target, traced.model.trace
    circle = left_in_circles(target.module, target.args, target.kwargs, trace.autocast, data=trace.run is not None)
    if circle is not None and circle.size > LITTLE_LEFT * plan.planned_peak_bytes:
        kept = f"keeps {format_bytes(circle.size)} of each forward pass until Python's garbage collector runs"
        progress.note(f"note: {circle.what} {kept}, which no plan counts: break that circle, and a step takes what is planned")


def _note_compiled(traced: Traced, progress: Progress) -> None:
    """Says what of a model's code may keep other things than were planned."""
    found = list(compiled_in(traced.model.trace, traced.target.module))
    if found:
        named = ", ".join(found[:NAMED]) + (f" and {len(found) - NAMED} more" if len(found) > NAMED else "")
        what = f"{named}: torch.compile decides what is kept there, which no plan knows"
        progress.note(f"note: {what}; budgets are promised for a model that is not compiled")


class Unrepeatable(UnsupportedError):
    """A part would compute something else when it runs again. `keys` are those of the candidates that hold it: none can be a
    part. Empty where it is not known which."""

    def __init__(self, what: str, *, where: str, hint: str | None, keys: frozenset[Hashable]) -> None:
        super().__init__(what, where=where, hint=hint)
        self.keys = keys


def avoiding(attempt: Callable[[Before[Vertex]], T], before: Before[Vertex] = ANEW) -> T:
    """What `attempt` makes of what there was before: once more without parts that turn out not to be able to run again, some
    times. Raises Unrepeatable, of the first of them, where nothing fits without them."""
    why: Unrepeatable | None = None
    for _ in range(1 + MOST_AVOIDED):
        try:
            return attempt(before)
        except Unrepeatable as error:
            why = why or error
            if error.keys <= before.never:
                break
            before = replace(before, never=before.never | error.keys)
        except BudgetError:
            if why is None:
                raise
            break
    assert why is not None
    raise why


def proven(
    request: Request,
    traced: Traced,
    profile: Profile,
    made: SavedPlan,
    progress: Progress,
    known: Tabled | None = None,
) -> tuple[SavedPlan, Brought, str]:
    """A planner's plan as a table takes it, that table, and the text with it, shown to do what the model does. The table may be
    `known` already, if it will do. Raises what `tabled` and `proved` raise."""

    def attempt(before: Before[Vertex]) -> tuple[SavedPlan, Brought, str]:
        first = known if not before.never else None
        plan, brought = first or tabled(request, traced, profile, made, progress, before)
        return plan, brought, proved(request, traced, plan, brought, progress)

    return avoiding(attempt)


def tabled(
    request: Request,
    traced: Traced,
    profile: Profile,
    made: SavedPlan,
    progress: Progress,
    before: Before[Vertex] = ANEW,
) -> Tabled:
    """A planner's plan as a table takes it, and that table. Of what there was `before`, as much stays as can.

    Raises BudgetError where no table is found that fits, or, if the request leaves the edition open, where it takes more than
    `MOST_LOST` longer than the plan; PlanFileError where a saved plan is for another graph.
    """
    if not traced.are_of(made):
        raise PlanFileError("the plan was made for other batch sizes", hint=saved_plan.AGAIN)
    tables = [partial(_tabled, request, traced, profile, made, progress, number) for number in range(len(made.all()))]
    if len(tables) == 1:
        return tables[0](before)
    found = [table(before) for table in tables]
    try:
        return _in_one_file(request, traced, profile, found)
    except BudgetError:  # each by itself, they mark an expression in two ways
        with suppress(BudgetError):
            return _in_one_file(request, traced, profile, _one_after_the_other(tables, before.never))
        raise


def _one_after_the_other(tables: Iterable[Callable[[Before[Vertex]], Tabled]], never: frozenset[Hashable]) -> list[Tabled]:
    """Tables that mark nothing otherwise than those before them, whatever there was before."""
    found: list[Tabled] = []
    for table in tables:
        marks = (mark for _, brought in found for row in brought.rows for mark in row.candidate.marks)
        found.append(table(Before(beside=frozenset(marks), never=never)))
    return found


def _quickest(plan: SavedPlan, found: Sequence[Tabled]) -> Tabled:
    """The plan with the quickest of some tables that fits into its budget, which may have been found for a smaller one."""
    fitting = [(p, b) for p, b in found if p is plan or max(p.budget_bytes, p.planned_peak_bytes) <= plan.budget_bytes]
    by, table = min(fitting, key=lambda pair: (pair[0].overhead, pair[0] is not plan))
    same = replace(plan, planned_peak_bytes=by.planned_peak_bytes, overhead=by.overhead, order=by.order)
    return same, table


def _in_one_file(request: Request, traced: Traced, profile: Profile, found: Sequence[Tabled]) -> Tabled:
    """Plans with their tables, as they are where these share the marks of one text. Raises BudgetError where one is then over
    its budget."""
    chosen = found if traced.others else [_quickest(plan, found) for plan, _ in found]
    (plan, brought), *others = chosen
    plan = replace(plan, others=tuple(p for p, _ in others))
    brought = replace(brought, others=tuple(b for _, b in others))
    read, problems = read_back(emit(traced, plan, replace(request, edition=2), brought), traced)
    numbered = enumerate(zip(plan.all(), read.all(), strict=True))
    first, *rest = [as_planned(one, traced.at(n), profile.at(n), table) for n, (one, table) in numbered]
    over = [p for p in (first, *rest) if p.planned_peak_bytes > p.budget_bytes]
    if over or problems:
        what = f"the table for {(over or [plan])[0].label} cannot have the same marks as the others"
        raise BudgetError(what, hint="name others, or make a file for each")
    return replace(first, others=tuple(rest)), read


def _tabled(
    request: Request,
    traced: Traced,
    profile: Profile,
    made: SavedPlan,
    progress: Progress,
    number: int,
    before: Before[Vertex],
) -> Tabled:
    """One of the plans. Where there are several, one file has them only by tables, whatever these take; so it has that of a
    run."""
    one, of, costs = made.all()[number], traced.at(number), profile.at(number)
    with progress.stage("table"):
        brought = steadily(request, of, costs, one, progress, replace(before, tables=(before.rows(number),)))
        plan = as_planned(one, of, costs, brought)
    needed = bool(made.others) or of.model.trace.run is not None
    if request.edition is None and not needed and plan.overhead > one.overhead + MOST_LOST:
        raise BudgetError(_what_is_lost(plan, one))
    return plan, brought


def as_planned(plan: SavedPlan, traced: Traced, profile: Profile, brought: Brought) -> SavedPlan:
    """A plan with the figures that its table has, and without notes on what files of functions leave out: such a file runs
    the user's own forward."""
    of_functions = frozenset(unseen(traced))
    timeline = simulate(traced.graph, brought.found.holders.costs(profile), brought.schedule)
    order = order_of(brought.schedule)
    plain = sum(profile.time_ns)
    return replace(
        plan,
        planned_peak_bytes=timeline.peak_bytes,
        overhead=round(timeline.time_ns / max(1, plain) - 1, DIGITS),
        order=order,
        notes=tuple(note for note in plan.notes if note not in of_functions),
    )


def _what_is_lost(plan: SavedPlan, made: SavedPlan) -> str:
    return f"a table of parts takes {percent(plan.overhead)} more time, the plan {percent(made.overhead)}"


def note_losses(plan: SavedPlan, made: SavedPlan, brought: Brought, profile: Profile, progress: Progress) -> None:
    """Says where the tables of a file take noticeably longer (`about`) than the plans that were `made`; and where the host's
    own time for parts, which goes on beside a GPU's work but not beside a CPU's, is more than `LITTLE_FELT` of a step."""
    for one, before in zip(plan.all(), made.all(), strict=True):
        if one.overhead > about(before.overhead):
            at = f"at {one.label}, " if made.others else ""
            progress.note(f"note: {at}{_what_is_lost(one, before)}")
    if (share := felt(profile, brought)) > LITTLE_FELT:
        own = f"{PART_NS / 1e6:g} ms of Python's time each time that a part runs again"
        own += f", {SAVED_NS / 1e3:g} us for each tensor saved"
        beside = Beside.of(brought)
        counted = f"{beside.runs:,} runs and {beside.saved:,} tensors, some {percent(share)} of this step"
        progress.note(f"note: a step takes {own}, which no plan counts: {counted}")


def proved(request: Request, traced: Traced, plan: SavedPlan, brought: Brought, progress: Progress) -> str:
    """The text of a file, shown to do what the model does, by the steps that were planned. Raises UnsupportedError where it
    would do something else."""
    with progress.stage("emit"):
        text = emit(traced, plan, replace(request, edition=2), brought)
        large = len(traced.model.trace.operations) >= LARGE
        with begun(partial(_changed, text, traced), apart=large) as changed:
            if not changed.apart:  # what does something else may fail in any way
                _refuse(changed, text, traced)
            try:
                _check_steps(text, traced, plan, brought)
                _check_replays(text, traced, plan, brought)
            except RematError:
                _refuse(changed, text, traced)
                raise
            _refuse(changed, text, traced)
    return text


def _changed(text: str, traced: Traced) -> str | None:
    """What a file does otherwise than the model, for one of its inputs."""
    sizes = [(one.target, one.model.trace) for one in traced.all()]
    found = (difference(text, target.module, target.args, target.kwargs, trace) for target, trace in sizes)
    return next((what for what in found if what is not None), None)


def _refuse(changed: Work[str | None], text: str, traced: Traced) -> None:
    """Raises UnsupportedError where a file does something else. A copy may fail by itself, so that this process looks again."""
    if changed.result() is not None and (what := _changed(text, traced)) is not None:
        what = f"marks would change what the model does: {what}"
        hint = "use --edition 1" if traced.model.trace.run is None else None
        raise UnsupportedError(what, where=traced.target.label, hint=hint)


def _check_steps(text: str, traced: Traced, plan: SavedPlan, brought: Brought) -> None:
    """Raises UnsupportedError where the text with its table has other steps than the plan, and might break the budget."""
    read, problems = read_back(text, traced, [one.found for one in brought.all()])
    if not read.lead_to(plan, traced.graph):
        what = "marks would run something else again than was planned"
        what += f": {problems[0].text}" if problems else ""
        hint = "use --edition 1" if traced.model.trace.run is None else None
        raise UnsupportedError(what, where=traced.target.label, hint=hint)


def _check_replays(text: str, traced: Traced, plan: SavedPlan, brought: Brought) -> None:
    """Raises Unrepeatable where a part would compute something else when it runs again, or where the model leaves something
    behind in forward and that cannot be seen."""
    where, trace = traced.target.label, traced.model.trace
    left = [*trace.assigned, *(path for path, _ in trace.state)]
    back = partial(example_loss, loss=traced.model.record.loss)
    with imported(text) as file:
        name = replays.keyword_of(file)
        for number, one in enumerate(plan.all()):
            target = traced.at(number).target
            table = None if name is None else (name, one.budget_bytes if one.batch is None else one.batch)
            given = file, target.module, target.args, target.kwargs, trace.autocast, back, table
            try:
                found = _replayed(partial(replays.difference, *given), trace.run is not None, trace.gpu is None)
            except replays.Unseen:
                found = replays.Differs(left[0]) if left else None
            except replays.Fails as error:
                what = f"training steps of the marked file fail: {' '.join(str(error).split())}"
                hint = None if trace.run else "use --edition 1"
                raise UnsupportedError(what, where=where, hint=hint) from error
            if found is not None:
                what = f"a part would compute something else when it runs again, since forward sets what it reads: {found}"
                said = re.sub(r"(: |, or )take it out of the plan", "", str(found))  # which is for who has a file
                what = f"no table fits without a part that cannot run again: {said}" if found.refused else what
                hint = "hand that over by arguments" + (", or use --edition 1" if trace.run is None else "")
                raise Unrepeatable(what, where=where, hint=hint, keys=_holding(found.part, traced, brought))


def _holding(part: str, traced: Traced, brought: Brought) -> frozenset[Hashable]:
    """The keys of what a table's part lies in, of any layer. `part` is how a file names it: with a number where it is one of
    several evaluations."""
    inner = named(traced, brought, part.partition("#")[0]) if part else []
    return frozenset(c.key for c in brought.found.ways for i in inner if c.first <= i.first and i.last <= c.last)


def _replayed(see: Callable[..., replays.Differs | None], recorded: bool, is_here: bool) -> replays.Differs | None:
    """What runs otherwise again: seen without data, or with it, where values decide, and where steps cannot be run without, or
    parts refuse to; but for a device that is not there. Raises Unseen."""
    try:
        found = see(data=recorded)
    except replays.Unseen:
        if recorded or not is_here:
            raise
        return see(data=True)
    return see(data=True) if found is not None and found.refused and is_here and not recorded else found
