"""What the command does by default: a marked file (edition 2), which is the user's own source with marks and a table; or one of
functions (edition 1), where a table would cost too much, or there is nothing to mark."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain

from remat_codegen.ask.budget import format_bytes
from remat_codegen.ask.inputs import CACHE
from remat_codegen.ask.request import Request
from remat_codegen.emit.render import calls_operations_of_others
from remat_codegen.emit.usersource import carry
from remat_codegen.errors import BudgetError, PlanFileError, RematError, UnsupportedError
from remat_codegen.files import write_atomically
from remat_codegen.graph.ir import Graph, total_bytes
from remat_codegen.header import saved_plan
from remat_codegen.header.saved_plan import SavedPlan
from remat_codegen.header.seal import seal
from remat_codegen.marked import file as writing
from remat_codegen.marked import replays
from remat_codegen.marked.candidates import Candidates, Row
from remat_codegen.marked.choose import A_LITTLE, A_LITTLE_MORE, Chooser, parts_of
from remat_codegen.marked.demand import Again, Keeps, forgotten, ready_to_run
from remat_codegen.marked.evaluations import Vertex, build
from remat_codegen.marked.features import Features, changes_in_place, draws, knows_numpy, moves_buffers
from remat_codegen.marked.found import Found
from remat_codegen.marked.library import Library
from remat_codegen.marked.marks import Marks, write_marks
from remat_codegen.marked.origins import origins
from remat_codegen.marked.proof import difference, imported
from remat_codegen.marked.reading import read
from remat_codegen.marked.rows import Rows as TableRows
from remat_codegen.marked.rows import rows_of, unused
from remat_codegen.marked.steady import ANEW, STEADY, Before, steadied
from remat_codegen.marked.summary import RowSummary, summarize
from remat_codegen.marked.table import Entry, united
from remat_codegen.parts import own_modules
from remat_codegen.planners.base.reserve import Reserve
from remat_codegen.planners.limited import limited
from remat_codegen.profile.costs import Profile
from remat_codegen.readback.values import Problem
from remat_codegen.run import functions, pipeline
from remat_codegen.run.functions import Functions
from remat_codegen.run.pipeline import facts_of, finished, own_source, portable
from remat_codegen.run.planning import DIGITS, make_plan, unseen
from remat_codegen.run.priced import measured_costs, reserve_of
from remat_codegen.run.traced import Traced, trace_target
from remat_codegen.schedule import Compute, Schedule, alive_before, simulate
from remat_codegen.schedule.order import order_of
from remat_codegen.show.results import Progress, Report, percent
from remat_codegen.trace.ir import Variable
from remat_codegen.trace.training import example_loss

MOST_LOST = 0.05  # of the step's time: what a table may take beyond the plan, if the first edition is there instead
LITTLE_FELT = 0.02  # of a step: what parts take of Python's time where that is said
PART_NS = 200_000  # for each part: 0.19 ms in a GPT of three layers, 0.3 ms in benchmarks/bench_parts.py
LITTLE_LOST = 0.005  # the same: what nothing is said of, nor other plans tried for, if fewer rows may not cost more
A_START = 0.3  # of a limited time: what each of those may take
TRIES = 2  # of those, if the search found a table that fits
SHARES = (1.0, 0.97, 0.93, 0.87, 0.8)  # of the limit: what further schedules that the search starts from are planned for


@dataclass(frozen=True, slots=True)
class Brought:
    """A plan brought to parts: what the table says, the schedule that it leads to, by how much that is over the limit, and how
    much longer it takes than the step without recomputation. `others` are for larger budgets, or smaller batch sizes, as a
    plan's. `also` are expressions that the text marks though no table has rows for them."""

    found: Found
    rows: tuple[Row[Vertex], ...]
    schedule: Schedule
    over_bytes: int
    overhead: float = 0.0
    others: tuple[Brought, ...] = ()
    also: tuple[Vertex, ...] = ()

    def all(self) -> tuple[Brought, ...]:
        """This one, and the others that are in the same file."""
        return (self, *self.others)


def generate(request: Request, progress: Progress) -> Report:
    """Writes the file that `request` asks for. Where that leaves the edition open, it is the second, if a table of parts takes
    at most `MOST_LOST` longer than the plan, and else the first, which says so. Raises RematError for whatever the user can put
    right.
    """
    pipeline.check_outputs(request)
    marked = replace(request, dynamic="")
    traced = trace_target(marked, progress)
    profile = measured_costs(marked, traced, progress)
    made = make_plan(marked, traced, progress, profile=profile) if request.plan is None else saved_plan.load(request.plan)
    try:
        plan, brought = tabled(marked, traced, profile, made, progress)
        text = proved(marked, traced, plan, brought, progress)
    except RematError as error:
        first = functions.instead(Functions(request, traced, made, profile), error, progress)
        return functions.generate(first.request, progress) if request.dynamic else first.written(progress)
    note_losses(plan, made, brought, profile, progress)
    if request.dynamic:
        progress.note("note: --dynamic is not needed, for files of the second edition take all sizes that the model takes")
    write_atomically(request.output_path, text)
    if request.save_plan is not None:
        write_atomically(request.save_plan, made.dumps())
    return finished(replace(marked, edition=2), plan, traced, progress, profile)


def tabled(
    request: Request,
    traced: Traced,
    profile: Profile,
    made: SavedPlan,
    progress: Progress,
    before: Before[Vertex] = ANEW,
) -> tuple[SavedPlan, Brought]:
    """A planner's plan as a table takes it, and that table. Of what there was `before`, as much stays as can.

    Raises BudgetError where no table is found that fits, or, if the request leaves the edition open, where it takes more than
    `MOST_LOST` longer than the plan; PlanFileError where a saved plan is for another graph.
    """
    if not traced.are_of(made):
        raise PlanFileError("the plan was made for other batch sizes", hint=saved_plan.AGAIN)
    several = bool(made.others)
    rows = [replace(before, tables=(before.rows(n),)) for n in range(len(made.all()))]
    numbered = enumerate(zip(made.all(), rows, strict=True))
    found = [_tabled(request, traced.at(n), profile.at(n), one, progress, several, was) for n, (one, was) in numbered]
    if not several:
        return found[0]
    first, *others = found if traced.others else [_quickest(plan, found) for plan, _ in found]
    plans, tables = zip(*others, strict=True)
    return _in_one_file(request, traced, profile, replace(first[0], others=plans), replace(first[1], others=tables))


def _quickest(plan: SavedPlan, found: Sequence[tuple[SavedPlan, Brought]]) -> tuple[SavedPlan, Brought]:
    """The plan with the quickest of some tables that fits into its budget, which may have been found for a smaller one."""
    fitting = [(p, b) for p, b in found if p is plan or max(p.budget_bytes, p.planned_peak_bytes) <= plan.budget_bytes]
    by, table = min(fitting, key=lambda pair: (pair[0].overhead, pair[0] is not plan))
    same = replace(plan, planned_peak_bytes=by.planned_peak_bytes, overhead=by.overhead, order=by.order)
    return same, table


def _in_one_file(
    request: Request, traced: Traced, profile: Profile, plan: SavedPlan, brought: Brought
) -> tuple[SavedPlan, Brought]:
    """Plans with their tables, as they are where these share the marks of one text. Raises BudgetError where one is then over
    its budget."""
    read, problems = read_back(emit(traced, plan, replace(request, edition=2), brought), traced)
    numbered = enumerate(zip(plan.all(), read.all(), strict=True))
    first, *others = [as_planned(one, traced.at(n), profile.at(n), table) for n, (one, table) in numbered]
    over = [p for p in (first, *others) if p.planned_peak_bytes > p.budget_bytes]
    if over or problems:
        what = f"the table for {(over or [plan])[0].label} cannot have the same marks as the others"
        raise BudgetError(what, hint="name others, or make a file for each")
    return replace(first, others=tuple(others)), read


def _tabled(
    request: Request,
    traced: Traced,
    profile: Profile,
    made: SavedPlan,
    progress: Progress,
    several: bool,
    before: Before[Vertex],
) -> tuple[SavedPlan, Brought]:
    """`several` says that there are others, which one file has only by tables, whatever these take; so has one for a run."""
    with progress.stage("table"):
        brought = _steadily(request, traced, profile, made, progress, before)
        plan = as_planned(made, traced, profile, brought)
    needed = several or traced.model.trace.run is not None
    if request.edition is None and not needed and plan.overhead > made.overhead + MOST_LOST:
        raise BudgetError(_what_is_lost(plan, made))
    return plan, brought


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
        beside = f"parts take some {PART_NS / 1e6:g} ms each of Python's time beside their operations, which no plan counts"
        progress.note(f"note: {beside}: {len(brought.rows)} of them, some {percent(share)} of this step")


def about(overhead: float) -> float:
    """What a table may take beside a plan's overhead without a word."""
    return overhead + max(LITTLE_LOST, A_LITTLE + A_LITTLE_MORE * overhead)


def felt(profile: Profile, brought: Brought) -> float:
    """By how much Python's own time for parts makes a step longer, as a share of it."""
    return len(brought.rows) * PART_NS / max(1, sum(profile.time_ns)) if profile.device == "cpu" else 0.0


def proved(request: Request, traced: Traced, plan: SavedPlan, brought: Brought, progress: Progress) -> str:
    """The text of a file, shown to do what the model does. Raises UnsupportedError where it would do something else."""
    with progress.stage("emit"):
        text = emit(traced, plan, replace(request, edition=2), brought)
        sizes = [(one.target, one.model.trace) for one in traced.all()]
        found = (difference(text, target.module, target.args, target.kwargs, trace) for target, trace in sizes)
        changed = next((what for what in found if what is not None), None)
        if changed is not None:
            what = f"marks would change what the model does: {changed}"
            hint = "use --edition 1" if traced.model.trace.run is None else None
            raise UnsupportedError(what, where=traced.target.label, hint=hint)
        _check_replays(text, traced, plan)
    return text


def _check_replays(text: str, traced: Traced, plan: SavedPlan) -> None:
    """Raises UnsupportedError where a part would compute something else when it runs again, or where the model leaves something
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
                found = _replayed(partial(replays.difference, *given), trace.run is not None, bool(left))
            except replays.Unseen:
                found = left[0] if left else None
            if found is not None:
                what = f"a part would compute something else when it runs again, since forward sets what it reads: {found}"
                hint = "hand that over by arguments" + (", or use --edition 1" if trace.run is None else "")
                raise UnsupportedError(what, where=where, hint=hint)


def _replayed(see: Callable[..., str | None], recorded: bool, leaves: bool) -> str | None:
    """What runs otherwise again: seen without data, or with it, where values decide, or where forward leaves something and
    nothing can be seen without. Raises Unseen."""
    try:
        return see(data=recorded)
    except replays.Unseen:
        if recorded or not leaves:
            raise
        return see(data=True)


def summary(traced: Traced, profile: Profile, brought: Brought) -> tuple[RowSummary, ...]:
    """What each row of a table frees and costs."""
    pairs = parts_of(brought.rows)
    entries = entries_of(traced.graph, brought, _marks(traced, brought))
    parts = [(brought.found.owner(row.candidate.vertices[-1]), part) for row, part in pairs]
    return summarize(traced.graph, profile, brought.schedule, parts, entries)


def read_back(text: str, traced: Traced) -> tuple[Brought, list[Problem]]:
    """What the table of a file says of a model, and what is wrong with its table and its marks."""
    reading, tables = read(text, carried_sources(traced), library_file), list[Brought]()
    problems, known = list(reading.problems), [found_of(one) for one in traced.all()]
    for number, said in enumerate(reading.tables):
        found = known[min(number, len(known) - 1)]
        rows, wrong = rows_of(replace(reading, said=said), found)
        schedule = found.holders.schedule([part for _, part in parts_of(rows)])
        tables.append(Brought(found, rows, schedule, 0))
        problems += [problem for problem in wrong if problem not in problems]
    first, *others = tables
    return replace(first, others=tuple(others), also=unused(reading, first.found, (one.rows for one in tables))), problems


def before_of(text: str, traced: Traced) -> Before[Vertex]:
    """What a file says that is to be made again, as far as the model still has it."""
    read, _ = read_back(text, traced)
    tables = tuple(one.rows for one in read.all())
    marks = {mark for rows in tables for row in rows for mark in row.candidate.marks}
    marks |= {((v.text.function, v.text.span), v.outside) for v in read.also if v.text is not None}
    return Before(tables, frozenset(marks))


def with_marks_of(before: Before[Vertex], traced: Traced, plan: SavedPlan, request: Request, brought: Brought) -> Brought:
    """The same in a text that has the marks of tables before it, too, if that can be written: so only rows change."""
    used = {place for one in brought.all() for row in one.rows for place, _ in row.candidate.marks}
    vertices = (v for rows in before.tables for row in rows for v in row.candidate.vertices if brought.found.is_marked(v))
    also = {(v.text.function, v.text.span): v for v in vertices if v.text is not None}
    wider = replace(brought, also=tuple(v for place, v in also.items() if place not in used))
    if not wider.also:
        return brought
    try:
        read, problems = read_back(emit(traced, plan, replace(request, edition=2), wider), traced)
    except UnsupportedError:  # one mark is in the way of another
        return brought
    same = [order_of(one.schedule) for one in read.all()] == [order_of(one.schedule) for one in brought.all()]
    return wider if same and not problems else brought


def found_of(traced: Traced) -> Found:
    """What can be a part of a model: in the user's file where that is carried, and in those of libraries."""
    sources = carried_sources(traced)
    carried = {file: carry(source, traced.target.class_name, None) for file, source in sources.items()}
    names = {file: found.names for file, found in carried.items() if found is not None}
    return Found(traced.model, build(traced.model.trace), sources, Library(traced.target.module, names, traced.target.path))


def library_file(module: str) -> str:
    """The file of a module that a model uses; empty where it uses none of that name."""
    return getattr(sys.modules.get(module), "__file__", None) or ""


def _steadily(
    request: Request, traced: Traced, profile: Profile, plan: SavedPlan, progress: Progress, before: Before[Vertex]
) -> Brought:
    """The plan brought to parts; where a file is made again, with the marks that it has if that is about as good. Raises
    BudgetError where no table fits."""
    found, rows, least = found_of(traced), before.rows(0), math.inf
    if before.marks or rows:
        own = saved_plan.schedule_of(plan, traced.graph, request.plan or request.output_path)
        possible = before.possible(found.candidates)
        search = Search(traced, found, profile, plan.budget_bytes, progress.update, possible)
        steady = search.brought([own], request.seconds_left(), rows)
        least = math.inf if steady.over_bytes else steady.overhead - STEADY
        if least <= plan.overhead:
            return steady
    best = _within_budget(request, traced, found, profile, plan, progress, rows)
    return steady if least <= best.overhead else best


def _within_budget(
    request: Request,
    traced: Traced,
    found: Found,
    profile: Profile,
    plan: SavedPlan,
    progress: Progress,
    before: TableRows,
) -> Brought:
    """The plan brought to parts. Where that leads to more than the budget, or to more time, other plans are tried, too.
    Raises BudgetError where no table fits."""
    own = saved_plan.schedule_of(plan, traced.graph, request.plan or request.output_path)
    search, best = Search(traced, found, profile, plan.budget_bytes, progress.update), None
    more = others(request, traced.graph, found.holders.costs(profile), reserve_of(traced, profile), plan.budget_bytes)
    for number, schedules in enumerate(chain([[own]], more)):
        brought = search.brought(schedules, request.seconds_left(), before)
        if not brought.over_bytes and (best is None or brought.overhead < best.overhead):
            best = brought
        enough = best is not None and (best.overhead <= about(plan.overhead) or number == TRIES)
        if enough or request.time_is_up:
            break
    if best is None:
        budget = format_bytes(plan.budget_bytes)
        what = f"no table was found that keeps the activations of {traced.target.label} under {budget}"
        raise BudgetError(what, hint="allow more memory" + (", or use --edition 1" if traced.model.trace.run is None else ""))
    return best


def others(request: Request, graph: Graph, costs: Profile, reserve: Reserve, budget_bytes: int) -> Iterator[Iterator[Schedule]]:
    """What else the search for a table starts from: plans by the costs of the text, whose variables hold more than the planner
    knew of; each for ever less, until that leads to a table that fits. Those of `auto`, where that was asked for, go on once
    more from there; those of rockmate treat equal blocks alike, as rows do."""
    limits = [int(share * budget_bytes) - reserve.most_bytes for share in SHARES]
    ours = iter(limits)
    for planner in ("auto", "auto") if request.planner in ("auto", "best") else ():
        yield _for_ever_less(request, planner, graph, costs, ours)
    yield _for_ever_less(request, "rockmate", graph, costs, limits)


def _for_ever_less(request: Request, planner: str, graph: Graph, costs: Profile, limits: Iterable[int]) -> Iterator[Schedule]:
    for limit in limits:
        schedule = limited(planner, request.seconds_left(A_START))(graph, costs, limit).schedule
        if schedule is None or request.time_is_up:
            break
        yield schedule


class Search:
    """The search for tables of parts: what it has priced for one plan helps it with the next."""

    def __init__(
        self,
        traced: Traced,
        found: Found,
        profile: Profile,
        limit: int,
        told: Callable[[int, int], object] = lambda tried, most: None,
        possible: Candidates[Vertex] | None = None,
    ) -> None:
        """`told` hears how far the search has come. `possible` are the parts that a table may have, if those are not all."""
        self.graph, self.found, self.plain_ns = traced.graph, found, sum(profile.time_ns)
        reserve, costs = reserve_of(traced, profile), found.holders.costs(profile)
        left = partial(_left, reserve, limit)
        candidates = found.candidates if possible is None else possible
        self.chooser = Chooser(traced.graph, costs, candidates, left, found.holders.held, told)

    def brought(self, schedules: Iterable[Schedule], seconds: float | None = None, before: TableRows = ()) -> Brought:
        """The best table that is found from some schedules, in so many seconds if they are given; or one about as good that is
        more like the rows `before`. It may be above the limit."""
        best = self.chooser.search(schedules, math.inf if seconds is None else time.monotonic() + seconds, before)
        best = steadied(best, before, self.chooser.price) if before else best
        parts = [part for _, part in parts_of(best.rows)]
        overhead = best.time_ns / max(1, self.plain_ns) - 1
        return Brought(self.found, best.rows, self.found.holders.schedule(parts), best.over_bytes, overhead)


def _left(reserve: Reserve, limit: int, order: Sequence[int]) -> int:
    """The bytes for activations within a limit, beside what has to be held in reserve."""
    return limit - reserve.needed_bytes(order)


def carried_sources(traced: Traced) -> dict[str, str]:
    """The user's file and its text, if the generated file carries the class; else there is no text to mark."""
    target = traced.target
    source = None if calls_operations_of_others(traced.model) else own_source(target)
    if source is None or carry(source, target.class_name, None) is None:
        return {}
    return {str(target.path.resolve()): source}


def as_planned(plan: SavedPlan, traced: Traced, profile: Profile, brought: Brought) -> SavedPlan:
    """A plan with the figures that its table has, and without notes on what files of functions leave out: such a file runs
    the user's own forward."""
    of_functions = frozenset(unseen(traced))
    timeline = simulate(traced.graph, brought.found.holders.costs(profile), brought.schedule)
    order = order_of(brought.schedule)
    plain = sum(profile.time_ns)
    return replace(
        plan,
        planned_peak_bytes=timeline.peak_bytes + states_bytes(traced, brought),
        overhead=round(timeline.time_ns / max(1, plain) - 1, DIGITS),
        order=order,
        notes=tuple(note for note in plan.notes if note not in of_functions),
    )


def states_bytes(traced: Traced, brought: Brought) -> int:
    """Bytes of generator states that a table's parts hold at most."""
    waiting = ready_to_run(part for _, part in parts_of(brought.rows))
    return reserve_of(traced).states_bytes((*order_of(brought.schedule), *waiting))


def emit(traced: Traced, plan: SavedPlan, request: Request, brought: Brought) -> str:
    """The file's text."""
    marks = _marks(traced, brought)
    tables = [entries_of(one.found.model.graph, one, marks) for one in brought.all()]
    own, source = next(iter(carried_sources(traced).items()), ("", None))
    given = writing.Given(
        target=portable(request.target),
        class_name=traced.target.class_name,
        graph=traced.graph.digest(),
        described=_described(traced),
        largest=_largest(traced),
        numbers=tuple(zip(_numbers(traced), _peaks(plan), strict=True)) if traced.others else (),
        source=source,
        shapes=tuple(sorted(tuple(v.shape) for v in _inputs(traced))) if request.static else (),
        held_bytes=0 if brought.others or traced.model.trace.run is None else _held_bytes(traced.graph, brought),
        marked=marks.texts.get(own),
        parts=marks.parts if marks.names else "",
        kinds=marks.classes(own),
        defaults={CACHE: "False"} if without_cache(traced) else {},
        methods=_methods(brought.found, marks, own),
        features=replace(
            features_of(traced, marks, bool(brought.others) and not traced.others, bool(traced.others)),
            static=request.static,
        ),
        made_from=_made_from(brought.found, marks, own, source),
    )
    return seal(writing.write(given, tables, facts_of(traced, plan, request, {})))


def features_of(traced: Traced, marks: Marks, several: bool, batches: bool = False) -> Features:
    """What the helpers have to know for this model. What depends on the table alone they always know, so that another budget
    changes rows and not the helpers."""
    record, other_ways = traced.model.record, traced.model.trace.run is not None  # in which there may be all of these
    return Features(
        random=other_ways or draws(traced.model.trace),
        numpy=knows_numpy(traced.target.module),
        buffers=other_ways or moves_buffers(traced.target.module, record),
        in_place=other_ways or changes_in_place(record),
        marks=bool(marks.names),
        defaulted=without_cache(traced),
        library=any(file not in carried_sources(traced) for file in marks.texts),
        several=several,
        batches=batches,
        checkpoints=any(hasattr(type(m), "gradient_checkpointing_enable") for m in traced.target.module.modules()),
        recorded=traced.model.trace.run is not None,
        on_gpu=traced.model.trace.accelerator.startswith("cuda"),
    )


def without_cache(traced: Traced) -> bool:
    """Whether a model is planned for training steps that make no cache for generation."""
    return traced.target.kwargs.get(CACHE) is False


def _marks(traced: Traced, brought: Brought) -> Marks:
    """The model's source with marks."""
    modules = traced.target.module.named_modules(remove_duplicate=False)
    children = {path: frozenset(module._modules) for path, module in modules}
    vertices = [v for one in brought.all() for row in one.rows for v in row.candidate.vertices]
    return write_marks(brought.found, [*brought.also, *vertices], children)


def _methods(found: Found, marks: Marks, own: str) -> writing.Methods:
    """What has marks in other files than the user's own."""
    texts = [t for file, methods in marks.methods.items() if file != own for t in methods]
    owners = [owner for t in texts if (owner := found.owner_of(t)) is not None]
    return writing.Methods(tuple(owners), {o.module: marks.texts[library_file(o.module)] for o in owners})


def _made_from(found: Found, marks: Marks, own: str, source: str | None) -> dict[str, tuple[str, ...]]:
    """By module, "" for the model's own: what the methods with marks were made from."""
    theirs: dict[str, list[str]] = {}
    for owner in _methods(found, marks, own).owners:
        theirs.setdefault(owner.module, []).append(f"{owner.kind}.{owner.method}")
    names = [t.function.name.partition(".<locals>")[0] for t in marks.methods.get(own, ())]
    made = {"": origins(source, names, with_names=True)} if source is not None and names else {}
    return made | {m: origins(found.sources[library_file(m)], n, with_names=False) for m, n in sorted(theirs.items())}


def entries_of(graph: Graph, brought: Brought, marks: Marks) -> list[Entry]:
    """The table's entries, each with the bytes that it frees."""
    pairs = parts_of(brought.rows)
    gone = forgotten(graph, [part for _, part in pairs], brought.found.holders.held)
    found, counted = [], set[int]()
    for row, part in reversed(pairs):  # what stands within another part counts there
        own = {d for n in range(part.first, part.last + 1) for d in graph.nodes[n].writes} & gone - counted
        counted |= own
        freed = sum(graph.data[d].nbytes for d in own)
        *before, last = row.candidate.vertices
        handed = Keeps.NOTHING if row.keeps is Keeps.RESULT else row.keeps  # what is only handed on to the last is not kept
        once_more = Again.TWICE if row.again is Again.SHARED else row.again  # only the last one gives to others
        inner = replace(row, keeps=handed, again=once_more, late=False)
        found += [_entry(brought.found, inner, vertex, marks, 0) for vertex in before]
        found.append(_entry(brought.found, row, last, marks, freed))
    return united(found)


def _entry(found: Found, row: Row[Vertex], vertex: Vertex, marks: Marks, freed: int) -> Entry:
    number, times = found.numbers[vertex.id], found.times[found.code(vertex)]
    if found.is_module(vertex):
        assert vertex.called is not None
        return Entry(vertex.called[0], "", number, times, row.keeps, row.again, row.late, freed, vertex.begin)
    assert vertex.text is not None and vertex.text.module is not None
    name = marks.names[vertex.text.function, vertex.text.span]
    return Entry(vertex.text.module, name, number, times, row.keeps, row.again, row.late, freed, vertex.begin)


def _described(traced: Traced) -> str:
    inputs = _inputs(traced)
    return ", ".join(f"{v.path}: {str(v.dtype).removeprefix('torch.')}{list(v.shape)}" for v in inputs) or "no inputs"


def _largest(traced: Traced) -> tuple[int, str, int] | None:
    """The numbers that the largest input has, and their type; how many modules of its own the model has. None where there is no
    such input."""
    numbers, dtype = max(((math.prod(t.shape), str(t.dtype)) for t in _inputs(traced)), default=(0, ""))
    module = traced.target.module
    return (numbers, dtype, own_modules(module, [*module.modules()])) if numbers else None


def _held_bytes(graph: Graph, brought: Brought) -> int:
    """What a step holds when its backward pass begins."""
    steps = enumerate(brought.schedule.steps)
    turn = next(position for position, step in steps if isinstance(step, Compute) and step.node >= graph.loss)
    return total_bytes(graph, alive_before(graph, brought.schedule, turn))


def _peaks(plan: SavedPlan) -> list[int]:
    return [one.planned_peak_bytes for one in plan.all()]


def _numbers(traced: Traced) -> tuple[int, ...]:
    """By batch size, the numbers in the largest input, by which a file tells sizes apart. Raises UnsupportedError where that
    does not."""
    whole = max(_inputs(traced), key=lambda v: math.prod(v.shape))
    kinds = ([v for v in _inputs(one) if v.dtype.is_floating_point == whole.dtype.is_floating_point] for one in traced.all())
    found = tuple(max(math.prod(v.shape) for v in like) for like in kinds)
    if len({*found}) < len(found):
        what = f"the largest input, {whole.path}, has the same size at every batch, which therefore cannot be told apart"
        raise UnsupportedError(what, where=traced.target.label, hint="make a file for each batch size")
    return found


def _inputs(traced: Traced) -> list[Variable]:
    trace = traced.model.trace
    return [trace.variables[v] for v in trace.inputs if v is not None]
