"""Plans that are looked at rather than written out: for a model, or for a graph from a file that has none."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from remat_codegen.advice.aswritten import as_written
from remat_codegen.ask.batch import parse_batch
from remat_codegen.ask.budget import Budget
from remat_codegen.ask.request import Request
from remat_codegen.errors import BudgetError
from remat_codegen.files import check_writable, write_atomically
from remat_codegen.graph import exchange
from remat_codegen.graph.exchange import Exchange
from remat_codegen.graph.ir import Graph
from remat_codegen.header import planfile
from remat_codegen.planners.base.bound import bound
from remat_codegen.planners.base.limited import limited
from remat_codegen.planners.base.reserve import Reserve, plan_within
from remat_codegen.planners.base.result import Plan
from remat_codegen.profile.costs import Profile
from remat_codegen.run.pipeline import Traced, measured_costs, note_solver, reserve_of, trace_target
from remat_codegen.schedule import simulate, validate, without_recomputation
from remat_codegen.schedule.order import order_of
from remat_codegen.show.report import AS_WRITTEN, AsWritten, Progress


@dataclass(frozen=True, slots=True)
class Priced:
    """A graph with its costs. `plain_*` are those of the step without recomputation, `reserve` is what a generated file
    needs beside the planned tensors (nothing for a graph that no model was traced for). `scale` is as in `Exchange`.
    `as_written` is what a model takes that checkpoints by itself."""

    label: str
    graph: Graph
    profile: Profile
    plain_ns: int
    plain_bytes: int
    reserve: Reserve = field(default_factory=Reserve)
    scale: int | None = None
    notes: tuple[str, ...] = ()
    traced: Traced | None = None
    as_written: AsWritten | None = None

    def limit(self, budget: Budget) -> int:
        """A budget in bytes."""
        return budget.resolve(self.plain_bytes + self.reserve.slack_bytes)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a planner made of a budget, checked: `plan` is valid and simulated. `bound_ns` as in `Plan`; None where a bound was
    not asked for, or no schedule fits. `seconds` is how long the planner took."""

    planner: str
    budget: str
    budget_bytes: int
    plan: Plan
    bound_ns: int | None
    seconds: float

    @property
    def fits(self) -> bool:
        """Whether there is a schedule."""
        return self.plan.schedule is not None

    def overhead(self, plain_ns: int) -> float | None:
        """The extra time of the plan over the plain step (0.12 for 12 %); None where nothing fits."""
        return over(self.plan.time_ns, plain_ns) if self.fits else None


def over(time_ns: int, plain_ns: int) -> float:
    """A time as an overhead over the plain step (0.12 for 12 %); in a step that takes no time, nothing does."""
    return time_ns / plain_ns - 1 if plain_ns else 0.0


def priced_file(path: Path, progress: Progress, *, add_backward: bool = False) -> Priced:
    """A graph from a file. Raises GraphFileError."""
    with progress.stage("read"):
        found = exchange.load(path, add_backward=add_backward)
    profile = Profile(found.time_ns, found.workspace_bytes, found.device)
    plain = simulate(found.graph, profile, without_recomputation(found.graph))
    return Priced(
        path.name,
        found.graph,
        profile,
        plain.time_ns,
        plain.peak_bytes,
        reserve=Reserve(found.reserve_bytes, frozenset(found.drawing)),
        scale=found.scale,
        notes=found.notes,
    )


def priced_model(request: Request, progress: Progress) -> Priced:
    """A traced and measured model. Raises RematError."""
    return priced(trace_target(request, progress), request, progress)


def priced(traced: Traced, request: Request, progress: Progress) -> Priced:
    """A traced model, measured. Raises RematError."""
    if traced.others:
        parse_batch(request.batch)  # which says that there can be one only
    profile = measured_costs(request, traced, progress)
    plain = simulate(traced.graph, profile, without_recomputation(traced.graph))
    reserve = reserve_of(traced)
    own = as_written(traced.model, profile, plain.time_ns)
    notes = () if own is None else (f"{AS_WRITTEN}, {own.sentence()}",)
    peak = plain.peak_bytes
    return Priced(traced.target.label, traced.graph, profile, plain.time_ns, peak, reserve, None, notes, traced, own)


def write_trace(request: Request, output: Path, progress: Progress) -> dict[str, Any]:
    """Writes a model's graph.json with measured costs; returns what it holds. Raises RematError."""
    check_writable(output)
    found = priced_model(request, progress)
    profile = found.profile
    costs = (profile.time_ns, profile.workspace_bytes, profile.device)
    reserve, drawing = found.reserve.least_bytes, tuple(sorted(found.reserve.drawing))
    text = exchange.dumps(Exchange(found.graph, *costs, reserve_bytes=reserve, drawing=drawing))
    write_atomically(output, text)
    return _size(found) | {
        "unmodified_peak_bytes": found.plain_bytes,
        "unmodified_time_ns": found.plain_ns,
        "output": str(output),
    }


def _size(found: Priced) -> dict[str, Any]:
    graph = found.graph
    kinds = len({b.kind for b in graph.blocks})
    return {"nodes": len(graph.nodes), "data": len(graph.data), "blocks": len(graph.blocks), "kinds": kinds}


def run_planner(
    found: Priced, name: str, budget: Budget, progress: Progress, *, time_limit: float | None = None, bounded: bool = False
) -> Outcome:
    """One planner's plan within a budget, validated and simulated. `time_limit` in seconds: the best plan so far."""
    limit = found.limit(budget)
    planner = limited(name, time_limit)

    def run(graph: Graph, nbytes: int) -> Plan:
        return planner(graph, found.profile, nbytes, progress=lambda what, done, total: progress.update(done, total, what))

    note_solver(progress)
    started = time.perf_counter()
    plan = plan_within(run, found.graph, found.profile, limit, found.plain_bytes, found.reserve, time_limit is not None)
    seconds = time.perf_counter() - started
    plan = _checked(found, plan, limit)
    least = _bound(found, plan, limit) if bounded else None
    return Outcome(name, budget.text, limit, plan, least, seconds)


def _checked(found: Priced, plan: Plan, limit: int) -> Plan:
    """The plan with the simulator's figures: a planner's own idea of them is never reported."""
    if plan.schedule is None:
        return plan
    validate(found.graph, plan.schedule)
    timeline = simulate(found.graph, found.profile, plan.schedule)
    reserve = found.reserve.needed_bytes(order_of(plan.schedule))
    if timeline.peak_bytes + reserve > limit:
        raise ValueError(f"{plan.planner} planned {timeline.peak_bytes} bytes, and {reserve} more for {limit}")
    return replace(plan, time_ns=timeline.time_ns, peak_bytes=timeline.peak_bytes)


def _bound(found: Priced, plan: Plan, limit: int) -> int | None:
    """The better of the planner's own lower bound and the general one."""
    general = bound(found.graph, found.profile, limit).time_ns
    known = [b for b in (general, plan.bound_ns) if b is not None]
    return max(known, default=None)


def plan_file(
    path: Path,
    budget: Budget,
    planner: str,
    progress: Progress,
    *,
    add_backward: bool = False,
    time_limit: float | None = None,
    save_plan: Path | None = None,
) -> tuple[Priced, Outcome]:
    """Plans a graph from a file, and saves the plan if there is one and `save_plan` says where. Raises RematError."""
    if save_plan is not None:
        check_writable(save_plan)
    found = priced_file(path, progress, add_backward=add_backward)
    if found.limit(budget) <= 0 < found.plain_bytes:
        what = f"{budget.text} of the unmodified peak, {found.plain_bytes} bytes, is nothing"
        raise BudgetError(what, hint="give a larger share, or an amount")
    with progress.stage("plan"):
        outcome = run_planner(found, planner, budget, progress, time_limit=time_limit, bounded=True)
    if save_plan is not None and outcome.plan.schedule is not None:
        write_atomically(save_plan, saved_plan(found, outcome).dumps())
    return found, outcome


def saved_plan(found: Priced, outcome: Outcome) -> planfile.SavedPlan:
    """The plan of an outcome that fits, as it is saved and as a generated file's header says it."""
    plan = outcome.plan
    assert plan.schedule is not None
    return planfile.SavedPlan(
        graph=found.graph.digest(),
        planner=plan.planner,
        status=str(plan.status),
        budget=outcome.budget,
        budget_bytes=outcome.budget_bytes,
        planned_peak_bytes=plan.peak_bytes,
        unmodified_peak_bytes=found.plain_bytes,
        overhead=round(outcome.overhead(found.plain_ns) or 0.0, 4),
        bound=lower_bound(found, outcome.bound_ns),
        device=found.profile.device.partition(":")[0],
        order=order_of(plan.schedule),
        notes=plan.notes,
        loss=planfile.USUAL_LOSS if found.traced is None else found.traced.model.record.loss,
    )


def lower_bound(found: Priced, bound_ns: int | None) -> float | None:
    """A bound as an overhead (0.12 for 12 %); None where none is known."""
    return None if bound_ns is None else round(over(bound_ns, found.plain_ns), 6)


def outcome_json(found: Priced, outcome: Outcome) -> dict[str, Any]:
    """The object that `plan --json` prints."""
    plan, overhead = outcome.plan, outcome.overhead(found.plain_ns)
    return _size(found) | {
        "planner": outcome.planner,
        "status": str(plan.status),
        "budget_bytes": outcome.budget_bytes,
        "peak_bytes": plan.peak_bytes if outcome.fits else None,
        "unmodified_peak_bytes": found.plain_bytes,
        "time_ns": plan.time_ns if outcome.fits else None,
        "unmodified_time_ns": found.plain_ns,
        "time_scale": found.scale,
        "overhead": None if overhead is None else round(overhead, 6),
        "bound": lower_bound(found, outcome.bound_ns),
        "minimum_bytes": plan.minimum_bytes,
        "seconds": round(outcome.seconds, 3),
        "notes": [*found.notes, *plan.notes],
    }
