"""Plans: for a model, which are written out, or for a graph from a file that has none, which are looked at."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from remat_codegen.advice.obstacle import obstacle
from remat_codegen.ask.batch import parse_batches
from remat_codegen.ask.budget import Budget, format_bytes, parse_budget, parse_budgets
from remat_codegen.ask.request import Request
from remat_codegen.errors import BudgetError
from remat_codegen.files import check_writable, write_atomically
from remat_codegen.graph import exchange
from remat_codegen.graph.exchange import Exchange
from remat_codegen.graph.ir import Graph
from remat_codegen.header.saved_plan import USUAL_LOSS, SavedPlan
from remat_codegen.planners.base.apart import begun
from remat_codegen.planners.base.bound import Bound, bound
from remat_codegen.planners.base.milp import solver
from remat_codegen.planners.base.registry import PLANNERS
from remat_codegen.planners.base.reserve import plan_within
from remat_codegen.planners.base.result import Plan, Status
from remat_codegen.planners.limited import found_nothing_in_time, limited
from remat_codegen.profile.costs import Profile
from remat_codegen.run.priced import Priced, measured_costs, over, priced_file, priced_model, with_costs
from remat_codegen.run.traced import Traced
from remat_codegen.schedule import order_of, simulate, validate, with_forgets
from remat_codegen.show.results import Progress
from remat_codegen.trace import Trace

MOST_NAMES = 3  # of attributes in a note
PLANNING = 0.6  # of a limited time's rest: what is left of it is the bound's and the table's
STEADY = 0.01  # of the step's time; what an update may cost over the best plan so that it changes little
DIGITS = 4  # of overheads and bounds


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
        return round(over(self.plan.time_ns, plain_ns), DIGITS) if self.fits else None


def _size(found: Priced) -> dict[str, Any]:
    graph = found.graph
    kinds = len({b.kind for b in graph.blocks})
    return {"nodes": len(graph.nodes), "data": len(graph.data), "blocks": len(graph.blocks), "kinds": kinds}


def make_plan(
    request: Request, traced: Traced, progress: Progress, previous: Sequence[int] = (), profile: Profile | None = None
) -> SavedPlan:
    """A new plan, or one for each budget or batch size; the order of the plan before it, if there was one, where that still
    does about as well. `profile` are the costs, measured if not given. Raises BudgetError where nothing fits.
    """
    assert request.budget is not None
    profile = measured_costs(request, traced, progress) if profile is None else profile
    budgets = parse_budgets(request.budget)
    if (several := _several(budgets, traced)) and request.edition == 1:
        raise BudgetError(f"several {several} are for files with tables", hint="leave out --edition 1, or name one")
    if traced.others:
        return _plan_for_each_batch(request, traced, progress, profile)
    if len(budgets) == 1:
        return _planned(request, with_costs(traced, profile, request), budgets[0], progress, previous)
    found = with_costs(traced, profile, request)
    made = [_planned(request, found, budget, progress) for budget in budgets]
    first, *others = {plan.budget_bytes: plan for plan in sorted(made, key=lambda plan: plan.budget_bytes)}.values()
    return replace(first, budget=request.budget, others=tuple(others))


def _several(budgets: Sequence[Budget], traced: Traced) -> str:
    """What there are several of. Raises BudgetError where that is both."""
    if len(budgets) > 1 and traced.others:
        raise BudgetError("a file has several budgets or several batch sizes, not both", hint="name one budget, or one batch")
    return "budgets" if len(budgets) > 1 else "batch sizes" if traced.others else ""


def _plan_for_each_batch(request: Request, traced: Traced, progress: Progress, profile: Profile) -> SavedPlan:
    """Plans within one budget, the largest batch's first: per cent are of what that takes."""
    first = _planned(request, with_costs(traced, profile, request), parse_budget(request.budget or ""), progress)
    limit = parse_budget(str(first.budget_bytes))
    smaller = [with_costs(one, profile.at(number), request) for number, one in enumerate(traced.others, start=1)]
    plans = [first, *(_planned(request, found, limit, progress) for found in smaller)]
    sizes = [batch.size for batch in parse_batches(request.batch)]
    first, *others = [replace(plan, batch=size) for plan, size in zip(plans, sizes, strict=True)]
    return replace(first, others=tuple(others))


def _planned(request: Request, found: Priced, budget: Budget, progress: Progress, previous: Sequence[int] = ()) -> SavedPlan:
    """A model's plan for one budget. Raises BudgetError where nothing fits."""
    limit = found.limit(budget)
    with begun(found.graph, _lowest(found), limit, apart=request.time_limit is None) as general:
        with progress.stage("plan"):
            outcome = run_planner(found, request.planner, budget, progress, time_limit=request.seconds_left(PLANNING))
            if not outcome.fits:
                raise _none_fits(request, found, outcome)
            outcome = replace(outcome, plan=_as_before(outcome.plan, previous, found, limit))
        with progress.stage("bound"):
            least = _better(general(request.seconds_left(PLANNING)), outcome.plan, found)
    return saved_plan(found, replace(outcome, bound_ns=least))


def _none_fits(request: Request, found: Priced, outcome: Outcome) -> BudgetError:
    """Why there is no plan: too little time, or too little memory, and what stands in the way then."""
    plan, unmodified = outcome.plan, found.plain_bytes + found.reserve.slack_bytes
    least = min(plan.minimum_bytes or unmodified, unmodified)
    if request.time_limit is not None and found_nothing_in_time(plan):
        what = f"no plan under {format_bytes(outcome.budget_bytes)} was found in {request.time_limit:g} s"
        hint = "raise --time-limit, or allow more memory"
        return BudgetError(what, where=found.label, hint=hint, least_bytes=least, out_of_time=True)
    usual = request.planner == Request("").planner
    known = f"the smallest budget that works{'' if usual else f' with {request.planner}'} is"
    known = known if plan.minimum_bytes is not None else "without recomputation the step needs"
    others = "" if usual or plan.minimum_bytes is not None else f"; {Request('').planner} may need less"
    why = None
    if found.traced is not None and plan.smallest is not None:
        why = obstacle(found.traced.model, found.profile, plan.smallest)
    needed, asked = format_bytes(least, up=True), format_bytes(outcome.budget_bytes)
    asked = f"{asked} ({outcome.budget_bytes} bytes)" if asked == needed else asked
    share = -(-least * 100 // unmodified)  # rounded up, so that it will do
    share_too = f", or {share} %" if outcome.budget.endswith("%") and share <= 100 else ""
    hint = f"{known} {needed} ({least} bytes){share_too}{others}{f'; {why}' if why else ''}"
    return BudgetError(f"no plan keeps the activations of {found.label} under {asked}", hint=hint, least_bytes=least)


def _as_before(plan: Plan, previous: Sequence[int], found: Priced, limit: int) -> Plan:
    """The plan with the order of the one before it, where that fits and costs little more: so that a file changes little."""
    try:
        schedule = with_forgets(found.graph, previous)
        validate(found.graph, schedule)
    except (ValueError, IndexError):
        return plan
    timeline = simulate(found.graph, found.profile, schedule)
    needed = found.reserve.needed_bytes(order_of(schedule))
    if timeline.peak_bytes > limit - needed or timeline.time_ns > (1 + STEADY) * plan.time_ns:
        return plan
    return replace(plan, schedule=schedule, peak_bytes=timeline.peak_bytes, time_ns=timeline.time_ns, status=Status.FEASIBLE)


def note_solver(progress: Progress) -> None:
    """Says so where a solver is installed that does not work, so that another one plans."""
    if (text := solver().note) is not None:
        progress.note(f"note: {text}")


def run_planner(
    found: Priced, name: str, budget: Budget, progress: Progress, *, time_limit: float | None = None, bounded: bool = False
) -> Outcome:
    """One planner's plan within a budget, validated and simulated. `time_limit` in seconds: the best plan so far. Where the
    unmodified step fits, a planner whose own plans do not gets that one."""
    limit = found.limit(budget)
    planner = limited(name, time_limit, lambda what, done, total: progress.update(done, total, what))

    def run(graph: Graph, nbytes: int) -> Plan:
        return planner(graph, found.profile, nbytes)

    note_solver(progress)
    started = time.perf_counter()
    plan = plan_within(run, found.graph, found.profile, limit, found.plain_bytes, found.reserve, time_limit is not None)
    if plan.schedule is None and found.plain_bytes + found.reserve.slack_bytes <= limit:
        plan = replace(PLANNERS["none"](found.graph, found.profile, limit), planner=plan.planner, notes=plan.notes)
    seconds = time.perf_counter() - started
    plan = _checked(found, plan, limit)
    least = _better(bound(found.graph, _lowest(found), limit), plan, found) if bounded else None
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


def _lowest(found: Priced) -> Profile:
    """Costs that no file is below: that of marks, whose gradients autograd holds, may be below a planner's."""
    return found.profile.with_gradients_going_early()


def _better(general: Bound, plan: Plan, found: Priced) -> int | None:
    """The better of the planner's own lower bound, if it is for the lowest costs, and the general one."""
    is_lowest = _lowest(found).workspace_bytes == found.profile.workspace_bytes
    known = [b for b in (general.time_ns, plan.bound_ns if is_lowest else None) if b is not None]
    return max(known, default=None)


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


def peak_of(found: Priced, outcome: Outcome) -> int | None:
    """The peak of a plan with the generators' states that a file of functions holds; None where nothing fits."""
    schedule = outcome.plan.schedule
    if schedule is None:
        return None
    return simulate(found.graph, found.profile, found.reserve.with_states(schedule)).peak_bytes


def saved_plan(found: Priced, outcome: Outcome) -> SavedPlan:
    """The plan of an outcome that fits, as it is saved and as a generated file's header says it."""
    plan, model = outcome.plan, None if found.traced is None else found.traced.model
    peak_bytes = peak_of(found, outcome)
    assert plan.schedule is not None and peak_bytes is not None
    proved = outcome.bound_ns is not None and outcome.bound_ns > found.plain_ns
    return SavedPlan(
        graph=found.graph.digest(),
        planner=plan.planner,
        status=str(plan.status),
        budget=outcome.budget,
        budget_bytes=outcome.budget_bytes,
        planned_peak_bytes=peak_bytes,
        unmodified_peak_bytes=found.plain_bytes,
        overhead=outcome.overhead(found.plain_ns) or 0.0,
        bound=lower_bound(found, outcome.bound_ns) if proved else None,
        device=found.profile.device.partition(":")[0],
        order=order_of(plan.schedule),
        notes=plan.notes if found.traced is None else (*plan.notes, *unseen(found.traced)),
        as_written_peak_bytes=None if found.as_written is None else found.as_written.peak_bytes,
        as_written_overhead=None if found.as_written is None else found.as_written.overhead,
        capability=found.capability,
        estimated=found.estimated,
        loss=USUAL_LOSS if model is None else model.record.loss,
        recorded=True if model is not None and model.trace.run is not None else None,
    )


def unseen(traced: Traced) -> tuple[str, ...]:
    """Notes on what forward does and training steps of a file of functions do not."""
    trace = traced.model.trace
    decided = [
        f"this file is for inputs of which {line} finds {value}; others raise an error" for line, value in trace.decisions
    ]
    names = trace.assigned
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    listed = f"{', '.join(names[:MOST_NAMES])}{more}"
    changes = [f"forward changes {listed}; training steps of this file leave that as it is"] if names else []
    return (*dict.fromkeys(decided), *changes, *_not_counted(trace))


def _not_counted(trace: Trace) -> tuple[str, ...]:
    """What of a step's memory nobody knows where the GPU is not there."""
    convolves = trace.gpu is not None and any(op.base.startswith("conv") for op in trace.operations)
    unknown = (
        "what cuDNN's convolutions allocate for themselves is counted by a rule: copies and partial sums for tensor cores, "
        "Winograd's tiles in single precision; cuDNN decides where it runs"
    )
    return (unknown,) if convolves else ()


def lower_bound(found: Priced, bound_ns: int | None) -> float | None:
    """A bound as an overhead (0.12 for 12 %); None where none is known."""
    return None if bound_ns is None else round(over(bound_ns, found.plain_ns), DIGITS)


def outcome_json(found: Priced, outcome: Outcome) -> dict[str, Any]:
    """The object that `plan --json` prints."""
    plan = outcome.plan
    return _size(found) | {
        "planner": outcome.planner,
        "status": str(plan.status),
        "budget_bytes": outcome.budget_bytes,
        "peak_bytes": peak_of(found, outcome),
        "unmodified_peak_bytes": found.plain_bytes,
        "time_ns": plan.time_ns if outcome.fits else None,
        "unmodified_time_ns": found.plain_ns,
        "time_scale": found.scale,
        "overhead": outcome.overhead(found.plain_ns),
        "bound": lower_bound(found, outcome.bound_ns),
        "minimum_bytes": plan.minimum_bytes,
        "seconds": round(outcome.seconds, 3),
        "notes": [*found.notes, *plan.notes],
    }
