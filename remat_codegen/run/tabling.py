"""From a plan to the table of a marked file: which calls and expressions run again, within the same budget."""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain

from remat_codegen.advice.obstacle import obstacle
from remat_codegen.ask.budget import format_bytes
from remat_codegen.ask.request import Request
from remat_codegen.emit.render import calls_operations_of_others
from remat_codegen.emit.usersource import carry
from remat_codegen.errors import BudgetError
from remat_codegen.graph.ir import Graph
from remat_codegen.header import saved_plan
from remat_codegen.header.saved_plan import SavedPlan
from remat_codegen.marked.annealing import annealed
from remat_codegen.marked.candidates import Candidate, Candidates, Row
from remat_codegen.marked.choose import A_LITTLE, A_LITTLE_MORE, Chooser, Priced, parts_of
from remat_codegen.marked.evaluations import Vertex, build
from remat_codegen.marked.found import Found
from remat_codegen.marked.library import Library, Owner, lines_of
from remat_codegen.marked.rows import Rows as TableRows
from remat_codegen.marked.steady import STEADY, Before, steadied
from remat_codegen.planners import auto
from remat_codegen.planners.base.deadline import Effort, TimeUp
from remat_codegen.planners.base.reserve import Reserve, repeats
from remat_codegen.planners.limited import limited
from remat_codegen.profile.costs import Profile
from remat_codegen.run.pipeline import own_source
from remat_codegen.run.priced import reserve_of
from remat_codegen.run.traced import Traced
from remat_codegen.schedule import Schedule, is_same_but_for_turns, order_of
from remat_codegen.show.results import Progress

LITTLE_LOST = 0.005  # of the step's time: what nothing is said of, nor other plans tried for, if fewer rows may not cost more
A_START = 0.3  # of a limited time: what each other plan may take
A_LITTLE_WORK = 100  # of the search for each other plan by `auto`, for a node: tables are searched from there
TRIES = 2  # of other plans, if the search found a table that fits
ANNEALED = 2  # starts of searches from which annealing goes on where these end far above the plan
LONG = 80  # lines of a function that is copied from another file: more are there only where they pay
PART_NS = 300_000  # of Python's time for each run of a part once more: benchmarks/bench_parts.py
# The same for each of the tensors that autograd saves, in a part or not: there, 132 of them are saved, and three activations
# take that much longer than an empty table and three parts.
SAVED_NS = 3_000
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

    def lead_to(self, plan: SavedPlan, graph: Graph) -> bool:
        """Whether all these tables lead to the steps of a plan."""
        ours, theirs = [order_of(one.schedule) for one in self.all()], [one.order for one in plan.all()]
        return len(ours) == len(theirs) and all(is_same_but_for_turns(graph, a, b) for a, b in zip(ours, theirs, strict=True))


def found_of(traced: Traced) -> Found:
    """What can be a part of a model: in the user's file where that is carried, and in those of libraries."""
    sources = carried_sources(traced)
    carried = {file: carry(source, traced.target.class_name, None) for file, source in sources.items()}
    names = {file: found.names for file, found in carried.items() if found is not None}
    return Found(traced.model, build(traced.model.trace), sources, Library(traced.target.module, names, traced.target.path))


def carried_sources(traced: Traced) -> dict[str, str]:
    """The user's file and its text, if the generated file carries the class; else there is no text to mark."""
    target = traced.target
    source = None if calls_operations_of_others(traced.model) else own_source(target)
    if source is None or carry(source, target.class_name, None) is None:
        return {}
    return {str(target.path.resolve()): source}


def file_of(traced: Traced, module: str) -> str:
    """The file of a module that a model uses, by its name, or of the model's own class; empty where there is none of that
    name."""
    return getattr(sys.modules.get(module), "__file__", None) or "" if module else str(traced.target.path.resolve())


def steadily(
    request: Request, traced: Traced, profile: Profile, plan: SavedPlan, progress: Progress, before: Before[Vertex]
) -> Brought:
    """The plan brought to parts, by marks that go with those of other tables; where a file is made again, with the marks that
    it has if that is about as good. Raises BudgetError where no table fits."""
    found, rows = found_of(traced), before.rows(0)
    ways = [c for c in found.ways if before.agrees(c)]
    anew = partial(_within_budget, request, traced, found, profile, plan, progress, ways)
    if not (before.marks or rows):
        return anew()
    own = saved_plan.schedule_of(plan, traced.graph, request.plan or request.output_path)
    search = Search(traced, found, profile, plan.budget_bytes, progress.update, before.possible(ways))
    steady = search.brought([own], request.seconds_left(A_START), rows)
    if steady.over_bytes:
        return anew(rows)
    if steady.overhead <= plan.overhead + STEADY:
        return steady
    best = anew(rows, steady)
    return steady if steady.overhead <= best.overhead + STEADY else best


def _within_budget(
    request: Request,
    traced: Traced,
    found: Found,
    profile: Profile,
    plan: SavedPlan,
    progress: Progress,
    ways: Sequence[Candidate[Vertex]],
    before: TableRows = (),
    best: Brought | None = None,
) -> Brought:
    """The plan brought to some of these parts, or `best` if nothing is better. Where that leads to more than the budget, or to
    more time, other plans are tried, too. Raises BudgetError where no table fits."""
    own = saved_plan.schedule_of(plan, traced.graph, request.plan or request.output_path)
    bound = plan.bound if request.plan is None else None  # which is of its costs, if it is known from before
    searching = partial(Search, traced, found, profile, plan.budget_bytes, progress.update, bound=bound)
    search, reserve = searching(Candidates(ways)), reserve_of(traced, profile)
    limits = [int(share * plan.budget_bytes) - reserve.most_bytes for share in SHARES]
    more = others(request, traced.graph, found.holders.costs(profile), own, limits)
    if _least_bytes(found, traced, profile) > plan.budget_bytes:
        raise _none_fits(request, traced, profile, plan, search.brought([own], 0.0))
    nearest: Brought | None = None
    for number, schedules in enumerate(chain([[own]], more)):
        brought = search.brought(schedules, request.seconds_left(), before)
        nearest = brought if nearest is None or brought.over_bytes < nearest.over_bytes else nearest
        if not brought.over_bytes and (best is None or brought.overhead < best.overhead):
            best = brought
        is_enough = best is not None and (best.overhead <= about(plan.overhead) or number == TRIES)
        if is_enough or request.time_is_up:
            break
    if (best is None or best.overhead > about(plan.overhead)) and not request.time_is_up:
        assert nearest is not None
        nearest = best = search.annealed(best or nearest, request.seconds_left(), before)
        best = None if nearest.over_bytes else best
    if best is None:
        assert nearest is not None
        raise _none_fits(request, traced, profile, plan, nearest)
    enough = max(best.overhead, about(plan.overhead))
    starts = [own, best.schedule]

    def fits_without(possible: Sequence[Candidate[Vertex]]) -> Brought | None:
        other = searching(Candidates(possible)).brought(starts, request.seconds_left(A_START), before)
        return None if other.over_bytes or other.overhead > enough else other

    return _with_less_text(traced, best, ways, fits_without)


def _none_fits(request: Request, traced: Traced, profile: Profile, plan: SavedPlan, nearest: Brought) -> BudgetError:
    """Why there is no table: what stands in the way of one that comes near."""
    holders, label, budget = nearest.found.holders, traced.target.label, format_bytes(plan.budget_bytes)
    least = _least_bytes(nearest.found, traced, profile)
    if least > plan.budget_bytes:
        held = f"forward takes {format_bytes(least, up=True)} by what its variables hold"
        what, which = f"no table keeps the activations of {label} under {budget}: {held}", "one takes"
    else:
        what, which = f"no table was found that keeps the activations of {label} under {budget}", "the best one takes"
    hint = f"allow {format_bytes(plan.budget_bytes + nearest.over_bytes, up=True)}, which {which}"
    hint += ", or use --edition 1" if traced.model.trace.run is None else ""
    why = obstacle(traced.model, holders.costs(profile), nearest.schedule)
    return BudgetError(what, hint=hint if why is None else f"{hint}; {why}")


def _least_bytes(found: Found, traced: Traced, profile: Profile) -> int:
    """What any table takes: what forward's variables hold, and what planning leaves free."""
    return found.holders.least_bytes(profile) + reserve_of(traced, profile).slack_bytes


def _with_less_text(
    traced: Traced,
    best: Brought,
    ways: Sequence[Candidate[Vertex]],
    search: Callable[[Sequence[Candidate[Vertex]]], Brought | None],
) -> Brought:
    """A table that needs no copies of long functions of other files, which everyone would have to read who reads the file: each
    of them, the longest first, is left out if `search` finds a table without that is about as quick."""
    found = best
    for owner in _long_copies(traced, best):
        without = [c for c in ways if owner not in best.found.copied_for(c)]
        other = search(without) if owner in _copied(found) else None
        if other is not None and owner not in _copied(other):  # as rows that were there before may need it
            found, ways = other, without
    return found


def _long_copies(traced: Traced, brought: Brought) -> list[Owner]:
    """What of a table's copies is long, the longest first."""
    lines = {owner: lines_of(owner, file_of(traced, owner.module)) for owner in _copied(brought)}
    return sorted((o for o in lines if lines[o] > LONG), key=lambda o: (-lines[o], o.module, o.kind, o.method))


def _copied(brought: Brought) -> frozenset[Owner]:
    return frozenset().union(*(brought.found.copied_for(row.candidate) for row in brought.rows))


def others(
    request: Request, graph: Graph, costs: Profile, own: Schedule, limits: Sequence[int]
) -> Iterator[Iterator[Schedule]]:
    """What else the search for a table starts from: plans by the costs of the text, whose variables hold more than the planner
    knew of; each for ever less, until that leads to a table that fits. Where `auto` was asked for, its own plan is brought
    within these, and they go on once more from there; those of rockmate treat equal blocks alike, as rows do."""
    ours = iter(limits)
    for _ in range(2) if request.planner in ("auto", "best") else ():
        yield _for_ever_less(request, partial(_adapted, tuple(order_of(own))), graph, costs, ours)
    yield _for_ever_less(request, _anew, graph, costs, limits)


def _for_ever_less(
    request: Request, planner: Callable[..., Schedule | None], graph: Graph, costs: Profile, limits: Iterable[int]
) -> Iterator[Schedule]:
    for limit in limits:
        schedule = planner(graph, costs, limit, request.seconds_left(A_START))
        if schedule is None or request.time_is_up:
            break
        yield schedule


def _adapted(order: tuple[int, ...], graph: Graph, costs: Profile, limit: int, seconds: float | None) -> Schedule | None:
    with contextlib.suppress(TimeUp):
        effort = Effort.lasting(seconds)
        return auto.adapted(graph, costs, limit, order=order, work_per_node=A_LITTLE_WORK, effort=effort).schedule
    return None


def _anew(graph: Graph, costs: Profile, limit: int, seconds: float | None) -> Schedule | None:
    return limited("rockmate", seconds)(graph, costs, limit).schedule


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
        bound: float | None = None,
    ) -> None:
        """`told` hears how far the search has come. `possible` are the parts that a table may have, if those are not all, and
        `bound` is the overhead that no plan is below, if it is known."""
        self.graph, self.found, self.plain_ns = traced.graph, found, sum(profile.time_ns)
        self.bound_ns = 0.0 if bound is None else (1 + bound) * self.plain_ns
        reserve, costs = reserve_of(traced, profile), found.holders.costs(profile)
        left = partial(_left, reserve, limit)
        candidates = found.candidates if possible is None else possible
        self.chooser = Chooser(traced.graph, costs, candidates, left, found.holders.held, told)

    def brought(self, schedules: Iterable[Schedule], seconds: float | None = None, before: TableRows = ()) -> Brought:
        """The best table that is found from some schedules, in so many seconds if they are given; or one about as good that is
        more like the rows `before`. It may be above the limit."""
        return self._brought(self.chooser.search(schedules, _until(seconds), before, self.bound_ns), before)

    def annealed(self, found: Brought, seconds: float | None = None, before: TableRows = ()) -> Brought:
        """What was found, or something better that annealing finds from where the first searches began."""
        best, until = self.chooser.price(found.rows), _until(seconds)
        for seed, start in enumerate(self.chooser.begun[:ANNEALED]):
            other = annealed(self.chooser, start, seed, until)
            best = other if best is None else self.chooser.least([best, other])
        return found if best is None or best.rows == found.rows else self._brought(best, before)

    def _brought(self, best: Priced[Vertex], before: TableRows) -> Brought:
        best = steadied(best, before, self.chooser.price) if before else best
        parts = [part for _, part in parts_of(best.rows)]
        overhead = best.time_ns / max(1, self.plain_ns) - 1
        return Brought(self.found, best.rows, self.found.holders.schedule(parts), best.over_bytes, overhead)


def _until(seconds: float | None) -> float:
    """The moment of time.monotonic() in so many seconds."""
    return math.inf if seconds is None else time.monotonic() + seconds


def _left(reserve: Reserve, limit: int, order: Sequence[int]) -> int:
    """The bytes for activations, and for what parts hold beside them, within a limit."""
    return limit - (reserve.least_bytes if repeats(order) else reserve.slack_bytes)


def about(overhead: float) -> float:
    """What a table may take beside a plan's overhead without a word."""
    return overhead + max(LITTLE_LOST, A_LITTLE + A_LITTLE_MORE * overhead)


@dataclass(frozen=True, slots=True)
class Beside:
    """What takes Python's time in a step beside its operations: runs of parts once more, and tensors that autograd saves."""

    runs: int
    saved: int

    @staticmethod
    def of(brought: Brought) -> Beside:
        """What there is of it with a table."""
        operations = brought.found.record.operations
        saved = sum(len(op.saved) + len(op.phantoms) for op in operations)
        return Beside(sum(1 + row.again.spares for row in brought.rows), saved if brought.rows else 0)

    @property
    def time_ns(self) -> int:
        """In nanoseconds."""
        return self.runs * PART_NS + self.saved * SAVED_NS


def felt(profile: Profile, brought: Brought) -> float:
    """By how much Python's own time for parts makes a step longer, as a share of it."""
    return Beside.of(brought).time_ns / max(1, sum(profile.time_ns)) if profile.device == "cpu" else 0.0
