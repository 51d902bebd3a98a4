"""The whole way from a request to a verified file: each stage takes what the one before it made, and nothing else."""

from __future__ import annotations

import hashlib
import inspect
import math
import sys
import textwrap
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from remat_codegen import __version__
from remat_codegen.advice import aswritten
from remat_codegen.advice.losses import loss_note
from remat_codegen.advice.obstacle import obstacle
from remat_codegen.ask.batch import at_batch, at_largest_batch, parse_batches
from remat_codegen.ask.budget import Budget, format_bytes, parse_budget, parse_budgets
from remat_codegen.ask.patched import is_patched
from remat_codegen.ask.request import NOT_RUN, Request
from remat_codegen.ask.target import Target, load_target
from remat_codegen.emit.render import Facts, Figures, Original, render
from remat_codegen.errors import BudgetError, PlanFileError, TargetError, UnsupportedError
from remat_codegen.files import check_writable, write_atomically
from remat_codegen.graph.allocator import unsplit_bytes
from remat_codegen.graph.ir import Graph
from remat_codegen.graph.record import record
from remat_codegen.graph.simplify import Model, simplify
from remat_codegen.graph.unplannable import check_indices, check_place
from remat_codegen.header import planfile, planline
from remat_codegen.header.planfile import SavedPlan
from remat_codegen.header.several import budget_bytes
from remat_codegen.planners.base.bound import bound
from remat_codegen.planners.base.limited import found_nothing_in_time, limited
from remat_codegen.planners.base.milp import solver
from remat_codegen.planners.base.registry import PLANNERS
from remat_codegen.planners.base.reserve import SLACK_BYTES, Reserve, plan_within
from remat_codegen.planners.base.result import Plan, Status
from remat_codegen.profile.cache import Cache
from remat_codegen.profile.costs import Profile
from remat_codegen.profile.devices import find, is_name
from remat_codegen.profile.estimated import estimated
from remat_codegen.profile.measure import measure
from remat_codegen.run.dynamic import growth, trace_sizes, with_least
from remat_codegen.runtime import hooks_of, structure
from remat_codegen.schedule import Schedule, simulate, validate, with_forgets, without_recomputation
from remat_codegen.schedule.order import order_of
from remat_codegen.show.report import OtherPlan, Progress, Report, Verification
from remat_codegen.torch_seam import pytree
from remat_codegen.trace import Autocast, Trace, know_dataclasses
from remat_codegen.trace.sizes import Asked, parse_dynamic, parse_limits
from remat_codegen.trace.training import deterministic_algorithms
from remat_codegen.verify.rows import STEPS, verification

ANSWER_COLUMNS = 112  # of a header's line
MOST_NAMES = 3  # of attributes in a note
NEEDS_MODEL = "in Python, with that model and its inputs: no command makes them, so remat-codegen update cannot."
LOSS_TEXTS = {  # of a header, where that is not one like cross entropy
    "model": ", from the loss that forward returns",
    "none": ", with nothing counted for a loss but the gradient of the outputs",
    "sum": ", with nothing counted for a loss",
}
LOOK_BYTES = 512  # of the numbers by which a part's values are known again: `_some` in parts.py takes no more
MEASURING = 0.4  # of a limited time, for that; for planning, of what is left then: the rest is the bound's and the table's
PLANNING = 0.6
STEADY = 0.01  # of the step's time; what an update may cost over the best plan so that it changes little


@dataclass(frozen=True, slots=True)
class Traced:
    """A target with its graph. `others` are the same model at smaller batch sizes, where one file has plans for several."""

    target: Target
    model: Model
    others: tuple[Traced, ...] = ()

    def at(self, number: int) -> Traced:
        """What a file's plan of that number is for."""
        return self.all()[min(number, len(self.others))]

    def all(self) -> tuple[Traced, ...]:
        """This one, and the others, the largest batch first."""
        return (self, *self.others)

    def are_of(self, plan: SavedPlan) -> bool:
        """Whether there is one for each plan, if there are several."""
        return not self.others or len(self.all()) == len(plan.all())

    @property
    def graph(self) -> Graph:
        """The target's graph."""
        return self.model.graph


def generate(request: Request, progress: Progress) -> Report:
    """Writes the file that `request` asks for, of the first edition. Raises RematError for whatever the user can put right."""
    check_outputs(request)
    traced, plan, profile = prepared(request, progress)
    return written(request, traced, plan, progress, profile)


def check_outputs(request: Request) -> None:
    """Raises RematError where a file that was asked for cannot be written: before minutes of work."""
    for path in (request.output_path, request.save_plan):
        if path is not None:
            check_writable(path)


def prepared(request: Request, progress: Progress) -> tuple[Traced, SavedPlan, Profile | None]:
    """What a file is written from: the graph, the plan, and the costs, where it was not saved."""
    traced = trace_target(request, progress)
    if request.plan is not None:
        return traced, planfile.load(request.plan), None
    profile = measured_costs(request, traced, progress)
    return traced, make_plan(request, traced, progress, profile=profile), profile


def written(request: Request, traced: Traced, plan: SavedPlan, progress: Progress, profile: Profile | None = None) -> Report:
    """Writes a plan out as a file of the first edition. Raises PlanFileError where it is for another graph."""
    output = request.output_path
    schedule = planfile.schedule_of(plan, traced.graph, request.plan or output)
    with progress.stage("emit"):
        text = emit(traced, schedule, plan, request)
        write_atomically(output, text)
        if request.save_plan is not None:
            write_atomically(request.save_plan, plan.dumps())
    return finished(request, plan, traced, progress, profile)


def finished(request: Request, plan: SavedPlan, traced: Traced, progress: Progress, profile: Profile | None = None) -> Report:
    """The report of a file that was written, verified where that was asked for. `profile` are the costs, if they are known."""
    output, graph, own, verified = request.output_path, traced.graph, aswritten.of_plan(plan, traced.model), None
    first = None if profile is None else loss_note(traced.model, profile, plan.order)
    if request.verify:
        del traced  # the model is loaded anew, for what it cached while it was traced are tensors without data
        with progress.stage("verify"), deterministic_algorithms(request.deterministic):
            verified = verification(output, lambda: _target(request), request.device, request.seed, STEPS, progress)
    report = report_of(plan, graph, output, verified, progress)
    return replace(report, as_written=own, notes=report.notes if first is None else (first, *report.notes))


def verify(
    file: Path,
    target: str,
    *,
    init: str = "",
    inputs: str | None = None,
    device: str = "cpu",
    seed: int = 0,
    steps: int = STEPS,
    deterministic: bool = False,
    budget: str | None = None,
    batch: str = "",
    progress: Progress,
) -> Verification:
    """Runs a generated file against the model it came from, over several steps of an optimizer; if `deterministic`, with
    PyTorch's deterministic algorithms. `budget` is what its peak is judged by, if not what its header says; of several tables,
    the one is judged that the file takes for so much, or for `batch`; all of those for batch sizes, if that is the largest."""
    check_runs(device)
    planned = _batches_of(file)
    size = parse_batches(batch)[0].size if batch and planned else None

    def load() -> Target:
        return _target(Request(target, init=init, inputs=inputs, device=device, seed=seed, batch=batch or planned))

    with progress.stage("verify"), deterministic_algorithms(deterministic):
        return verification(file, load, device, seed, steps, progress, _budget_of(file, budget), size)


def check_runs(device: str) -> None:
    """Raises TargetError for a GPU by name: nothing is run on it, be it there or not."""
    if is_name(device):
        find(device)
        raise TargetError(NOT_RUN, where="--device", hint="write --device cuda where the GPU is")


def _batches_of(file: Path) -> str:
    """The batch sizes that a file has plans for, as its command says; empty where it does not have several."""
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    plan = planline.plan_in(text)
    return "" if plan is None or plan.batch is None else planline.option_in(text, "batch") or ""


def _budget_of(file: Path, budget: str | None) -> int | None:
    """The bytes of a budget that a file is judged by; None where its header tells them."""
    return None if budget is None else budget_bytes(planline.plan_in(file.read_text(encoding="utf-8")), budget)


# ---------------------------------------------------------------------------------------------- stages


def trace_target(request: Request, progress: Progress) -> Traced:
    """Loads the request's target and finds its graph. Raises RematError where it cannot."""
    with progress.stage("load"):
        target = _target(request)
    return trace_loaded(target, request, progress)


def trace_loaded(target: Target, request: Request, progress: Progress) -> Traced:
    """Finds the graph of a target that is there already, and that of each smaller batch asked for. Raises RematError where it
    cannot."""
    found = _trace_loaded(target, request, progress)
    smaller = parse_batches(request.batch)[1:] if request.batch else ()
    return replace(found, others=tuple(_trace_loaded(at_batch(target, batch), request, progress) for batch in smaller))


def _trace_loaded(target: Target, request: Request, progress: Progress) -> Traced:
    if target.without_cache:
        progress.note(
            "note: training steps run with use_cache=False, in the file, too; evaluation and generate() keep their cache"
        )
    with progress.stage("trace"):
        asked = parse_dynamic(request.dynamic, target.module.forward, target.args, target.kwargs)
        traced = trace_sizes(target.module, target.args, target.kwargs, _autocast(request), asked)
    if traced.run is not None:
        _check_recorded(traced, request, progress)
    with progress.stage("graph"):
        try:
            recorded = record(traced, request.loss)
            check_place(traced, request.device)
            check_indices(traced, pytree.tree_leaves((target.args, target.kwargs)))
            traced = with_least(target.module, target.args, target.kwargs, traced, recorded, asked) if asked else traced
            model = simplify(traced, recorded)
        except ValueError as error:
            raise TargetError(str(error), where=target.label, hint="nothing here can be trained") from error
    if recorded.loss == "model" and request.loss is None:
        progress.note(
            "note: forward returns its loss, so none outside of the model is counted; --loss cross-entropy counts one"
        )
    return Traced(target, model)


def _check_recorded(traced: Trace, request: Request, progress: Progress) -> None:
    """Says that a plan is for one run. Raises UnsupportedError where a file of functions is asked for: it could do no other."""
    found = recorded_lines(traced)
    if request.edition == 1:
        what = f"{found}, which no file of functions can follow"
        raise UnsupportedError(what, hint="leave out --edition 1: a file with marks trains on all inputs")
    progress.note(f"note: {found}: the plan and its budget are for what these inputs take; the file trains on others, too")


def recorded_lines(traced: Trace) -> str | None:
    """What depends on values, where a trace is of one run."""
    if traced.run is None:
        return None
    first, *more = traced.run.lines
    others = f" and {len(more)} more {'line' if len(more) == 1 else 'lines'}" if more else ""
    return f"{first}{others} {'depend' if more else 'depends'} on values"


def _target(request: Request) -> Target:
    device = request.device_named
    found = load_target(request.target, init=request.init, inputs=request.inputs, device=device, seed=request.seed)
    know_dataclasses((found.args, found.kwargs))
    return at_largest_batch(found, request.batch)


def _autocast(request: Request) -> Autocast:
    """What the model is called under. Raises TargetError where there is no such type."""
    if request.autocast is None:
        return ()
    dtype = {"bfloat16": torch.bfloat16, "float16": torch.float16}[request.autocast]
    return ((torch.device(request.device).type, dtype),)


def measured_costs(request: Request, traced: Traced, progress: Progress) -> Profile:
    """Time and workspace of the graph's nodes, measured on the request's device or remembered from an earlier run."""
    found = _measured_costs(request, traced, progress)
    return replace(found, others=tuple(_measured_costs(request, one, progress) for one in traced.others))


def _measured_costs(request: Request, traced: Traced, progress: Progress) -> Profile:
    if request.gpu is not None:
        with progress.stage("estimate"):
            return estimated(traced.model, request.gpu, lambda done, total, name: progress.update(done, total))
    left = request.seconds_left(MEASURING)
    hurry_at = math.inf if left is None else time.monotonic() + left
    with progress.stage("profile"):
        cache = Cache(request.device, enabled=request.cache)
        try:
            return measure(
                traced.model, request.device, cache, lambda done, total, name: progress.update(done, total), hurry_at
            )
        finally:  # interrupted, too: what was measured need not be measured again
            cache.save()
            _note_measuring(cache, request, progress)


def _note_measuring(cache: Cache, request: Request, progress: Progress) -> None:
    """Says what is not as it should be of the times that a plan is made by."""
    if cache.hurried:
        limit = f"within {request.time_limit:g} s"
        progress.note(f"note: {_kinds(cache.hurried)} could not be measured as often as usual, {limit}")
    if cache.slowed:
        progress.note(
            f"note: {_kinds(len(cache.slowed))} measured on a machine that did less than it can, as when others use it: "
            "when it is quieter they are measured again, and plan better"
        )
    if cache.again:
        progress.note(
            f"note: {_kinds(len(cache.again))} measured again, for the machine was busy when they were measured before"
        )


def _kinds(number: int) -> str:
    return f"{number} {'kind' if number == 1 else 'kinds'} of operations"


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
        return _make_plan(replace(request, budget=budgets[0].text), traced, progress, previous, profile)
    made = [_make_plan(replace(request, budget=b.text), traced, progress, (), profile) for b in budgets]
    first, *others = {plan.budget_bytes: plan for plan in sorted(made, key=lambda plan: plan.budget_bytes)}.values()
    return replace(first, budget=request.budget, others=tuple(others))


def _several(budgets: Sequence[Budget], traced: Traced) -> str:
    """What there are several of. Raises BudgetError where that is both."""
    if len(budgets) > 1 and traced.others:
        raise BudgetError("a file has several budgets or several batch sizes, not both", hint="name one budget, or one batch")
    return "budgets" if len(budgets) > 1 else "batch sizes" if traced.others else ""


def _plan_for_each_batch(request: Request, traced: Traced, progress: Progress, profile: Profile) -> SavedPlan:
    """Plans within one budget, the largest batch's first: per cent are of what that takes."""
    first = _make_plan(request, traced, progress, (), profile)
    asked = replace(request, budget=str(first.budget_bytes))
    numbered = enumerate(traced.others, start=1)
    plans = [first, *(_make_plan(asked, one, progress, (), profile.at(number)) for number, one in numbered)]
    sizes = [batch.size for batch in parse_batches(request.batch)]
    first, *others = [replace(plan, batch=size) for plan, size in zip(plans, sizes, strict=True)]
    return replace(first, others=tuple(others))


def _make_plan(request: Request, traced: Traced, progress: Progress, previous: Sequence[int], profile: Profile) -> SavedPlan:
    """A plan for one budget."""
    budget = parse_budget(text := request.budget or "")
    plain = simulate(traced.graph, profile, without_recomputation(traced.graph))
    limit = budget.resolve(plain.peak_bytes + reserve_of(traced).slack_bytes)
    note_solver(progress)
    with progress.stage("plan"):
        plan = _plan_within(request, traced, profile, limit, progress)
        plan = _as_before(plan, previous, traced, profile, limit)
    with progress.stage("bound"):
        plan = _with_bound(plan, traced, profile, limit, request.seconds_left(PLANNING))
    assert plan.schedule is not None
    again = generator_states(traced, plan.schedule)
    own = aswritten.as_written(traced.model, profile, plain.time_ns)
    return SavedPlan(
        graph=traced.graph.digest(),
        planner=plan.planner,
        status=str(plan.status),
        budget=text,
        budget_bytes=limit,
        planned_peak_bytes=plan.peak_bytes + again,
        unmodified_peak_bytes=plain.peak_bytes,
        overhead=round(plan.time_ns / max(1, plain.time_ns) - 1, 4),
        bound=_bound(plan, plain.time_ns),
        device=torch.device(request.device).type,
        order=order_of(plan.schedule),
        notes=(*plan.notes, *unseen(traced)),
        as_written_peak_bytes=None if own is None else own.peak_bytes,
        as_written_overhead=None if own is None else own.overhead,
        capability=capability_of(request),
        estimated=None if request.gpu is None else request.gpu.key,
        loss=traced.model.record.loss,
        recorded=True if traced.model.trace.run is not None else None,
    )


def capability(device: str) -> str | None:
    """The compute capability of a GPU, by which PyTorch chooses kernels: 9.0. None for a CPU."""
    if torch.device(device).type != "cuda":
        return None
    major, minor = torch.cuda.get_device_capability(device)
    return f"{major}.{minor}"


def capability_of(request: Request) -> str | None:
    """The same of the device that a request is for, which need not be there."""
    return capability(request.device) if request.gpu is None else request.gpu.capability


def note_solver(progress: Progress) -> None:
    """Says so where a solver is installed that does not work, so that another one plans."""
    if (text := solver().note) is not None:
        progress.note(f"note: {text}")


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
    unknown = "what cuDNN's convolutions allocate for themselves is not known without the GPU, and is not counted"
    return (unknown,) if convolves else ()


def _as_before(plan: Plan, previous: Sequence[int], traced: Traced, profile: Profile, limit: int) -> Plan:
    """The plan with the order of the one before it, where that fits and costs little more: so that a file changes little."""
    try:
        schedule = with_forgets(traced.graph, previous)
        validate(traced.graph, schedule)
    except (ValueError, IndexError):
        return plan
    timeline = simulate(traced.graph, profile, schedule)
    needed = reserve_of(traced).needed_bytes(order_of(schedule))
    if timeline.peak_bytes > limit - needed or timeline.time_ns > (1 + STEADY) * plan.time_ns:
        return plan
    return replace(plan, schedule=schedule, peak_bytes=timeline.peak_bytes, time_ns=timeline.time_ns, status=Status.FEASIBLE)


def _with_bound(plan: Plan, traced: Traced, profile: Profile, limit: int, seconds: float | None) -> Plan:
    """The plan with the better of its own lower bound and the general one."""
    found = bound(traced.graph, profile, limit, seconds=seconds).time_ns
    return replace(plan, bound_ns=max(found or 0, plan.bound_ns or 0) or None)


def _bound(plan: Plan, plain_ns: int) -> float | None:
    """The overhead that no plan can beat; None where all that is known is that it cannot be negative."""
    if plan.bound_ns is None or plan.bound_ns <= plain_ns:
        return None
    return round(plan.bound_ns / plain_ns - 1, 4)


def _plan_within(request: Request, traced: Traced, profile: Profile, limit: int, progress: Progress) -> Plan:
    """A plan that leaves room for what the file itself needs at run time. Raises BudgetError where there is none.

    Where the unmodified step fits, a planner whose own plans do not gets that one.
    """
    planner = limited(request.planner, request.seconds_left(PLANNING))

    def run(graph: Graph, nbytes: int) -> Plan:
        return planner(graph, profile, nbytes, progress=lambda what, done, total: progress.update(done, total, what))

    plain = simulate(traced.graph, profile, without_recomputation(traced.graph))
    reserve = reserve_of(traced)
    unmodified = plain.peak_bytes + reserve.slack_bytes
    plan = plan_within(run, traced.graph, profile, limit, plain.peak_bytes, reserve, request.time_limit is not None)
    if plan.schedule is None and unmodified <= limit:
        return replace(PLANNERS["none"](traced.graph, profile, limit), planner=plan.planner)
    if request.time_limit is not None and found_nothing_in_time(plan):
        what = f"no plan under {format_bytes(limit)} was found in {request.time_limit:g} s"
        hint, known = "raise --time-limit, or allow more memory", min(plan.minimum_bytes or unmodified, unmodified)
        raise BudgetError(what, where=traced.target.label, hint=hint, least_bytes=known, out_of_time=True)
    if plan.schedule is None:
        raise _too_small(traced, profile, request.planner, limit, plan, unmodified)
    return plan


def _too_small(traced: Traced, profile: Profile, planner: str, limit: int, plan: Plan, unmodified: int) -> BudgetError:
    least = plan.minimum_bytes
    found = min(least or unmodified, unmodified)
    usual = planner == Request("").planner
    what = f"the smallest budget that works{'' if usual else f' with {planner}'} is"
    what = what if least is not None else "without recomputation the step needs"
    others = "" if usual or least is not None else f"; {Request('').planner} may need less"
    why = None if plan.smallest is None else obstacle(traced.model, profile, plan.smallest)
    hint = f"{what} {format_bytes(found, up=True)} ({found} bytes){others}{f'; {why}' if why else ''}"
    return BudgetError(
        f"no plan keeps the activations of {traced.target.label} under {format_bytes(limit)}", hint=hint, least_bytes=found
    )


def generator_states(traced: Traced, schedule: Schedule) -> int:
    """Bytes of generator states that a schedule's file holds at most."""
    return reserve_of(traced).states_bytes(order_of(schedule))


def reserve_of(traced: Traced) -> Reserve:
    """What a generated file may need beside the planned tensors."""
    random = (n.id for n in traced.graph.forward_nodes if n.recomputable and _is_random(traced, n.id))
    fixed = SLACK_BYTES + traced.model.record.shared_cast_bytes + _looks_bytes(traced.model)
    if not traced.model.trace.accelerator:
        return Reserve(fixed, frozenset(random))
    return Reserve(fixed, unsplit_bytes=unsplit_bytes(d.nbytes for d in traced.graph.data))


def _looks_bytes(model: Model) -> int:
    """What a file whose operations depend on values holds to compare: a few numbers of each thing that parts put back."""
    if model.trace.run is None:
        return 0
    each = LOOK_BYTES if model.trace.accelerator else LOOK_BYTES // 2  # GPUs give nothing less; 64 numbers of four bytes
    return each * sum(map(len, (*model.record.saved, *model.record.phantoms)))


def _is_random(traced: Traced, node: int) -> bool:
    return any(traced.model.record.random[op] for op in traced.model.bodies[node].operations)


# ---------------------------------------------------------------------------------------------- emission


def emit(traced: Traced, schedule: Schedule, plan: SavedPlan, request: Request) -> str:
    """The generated file's text: a pure function of the traced model, the plan and the request's words."""
    target = traced.target
    plan = replace(plan, smaller=None) if request.static else plan
    if (found := recorded_lines(traced.model.trace)) is not None:
        what = f"{found}, which no file of functions can follow"
        raise UnsupportedError(what, where=target.label, hint="only files with marks can be made")
    source = own_source(target)
    original = Original(
        target=portable(request.target),
        class_name=target.class_name,
        forward=target.module.forward,
        args=target.args,
        kwargs=target.kwargs,
        structure=structure(target.module, traced.model.trace.settings),
        objects=traced.model.trace.objects,
        source=source,
        hooked={path: len(hooks) for path, m in target.module.named_modules() if path and (hooks := hooks_of(m))},
    )
    facts = facts_of(traced, plan, request, growth(traced.model, schedule) if traced.model.trace.sizes else {})
    return planline.seal(render(original, traced.model, schedule, facts))


def facts_of(traced: Traced, plan: SavedPlan, request: Request, grows: Mapping[int, float]) -> Facts:
    """What a file's header says."""
    target = traced.target
    return Facts(
        version=__version__,
        command=command(request, plan),
        source_digest=hashlib.sha256(target.source.encode()).hexdigest(),
        planner=plan.planner,
        device=_device_of(plan),
        budget_bytes=plan.budget_bytes,
        planned_peak_bytes=plan.planned_peak_bytes,
        unmodified_peak_bytes=plan.unmodified_peak_bytes,
        overhead=plan.overhead,
        bound=plan.bound,
        plan_lines=planline.plan_lines(plan),
        growth=grows,
        answer=_answer_lines(plan),
        recorded=_lines_of_run(traced.model.trace),
        as_written="" if (own := aswritten.of_plan(plan, traced.model)) is None else own.sentence(),
        needs=NEEDS_MODEL if request.given else "",
        batch=plan.batch,
        loss=LOSS_TEXTS.get(plan.loss, ""),
        smaller=limits_of(plan, target),
        others=tuple(
            Figures(p.budget_bytes, p.planned_peak_bytes, p.unmodified_peak_bytes, p.overhead, p.bound, p.batch)
            for p in plan.others
        ),
    )


def limits_of(plan: SavedPlan, target: Target) -> tuple[tuple[Asked, int], ...]:
    """The sizes up to which a file of functions runs the original forward. Raises PlanFileError where there are no such
    inputs."""
    try:
        return parse_limits(plan.smaller or "", target.module.forward, target.args, target.kwargs)
    except TargetError as error:
        raise PlanFileError("the plan names sizes of other inputs", where=target.label, hint=planfile.AGAIN) from error


def _device_of(plan: SavedPlan) -> str:
    """What the header says that a plan is for."""
    device = plan.device if plan.estimated is None else f"{plan.device}, estimated for {plan.estimated}"
    return device if plan.capability is None else f"{device} (compute capability {plan.capability})"


def _answer_lines(plan: SavedPlan) -> tuple[str, ...]:
    """What the header says of a budget that was found."""
    said = [] if plan.answer is None else textwrap.wrap(f"Budget: {plan.budget_bytes} bytes, {plan.answer}.", ANSWER_COLUMNS)
    return tuple(said)


def _lines_of_run(trace: Trace) -> tuple[str, ...]:
    """What the header says of a plan for one run."""
    if trace.run is None:
        return ()
    text = (
        f"{recorded_lines(trace)}: the plan is for what these inputs take. The file trains on others, too, which may take more."
    )
    return tuple(textwrap.wrap(text, ANSWER_COLUMNS))


def own_source(target: Target) -> str | None:
    """The text of the file that was named, if the model's class comes from it and is what stands there."""
    try:
        file = inspect.getsourcefile(type(target.module))
    except (TypeError, OSError):  # a class that was made in an interactive session
        return None
    module = sys.modules.get(type(target.module).__module__)
    if module is None or getattr(module, target.class_name, None) is not type(target.module):
        return None
    stands_there = file is not None and Path(file).resolve() == target.path.resolve()
    return target.source if stands_there and not is_patched(module, target.path, target.source) else None


def portable(target: str) -> str:
    """A target without what belongs to one machine: an absolute path becomes the file's name."""
    place, _, name = target.rpartition(":")
    return f"{Path(place).name}:{name}" if Path(place).is_absolute() else target


def command(request: Request, plan: SavedPlan) -> str:
    """The command that regenerates a file, with what differs from the defaults; for a model that no command makes, the call."""
    if request.given:
        return _call(request, plan)
    words = ["remat-codegen", portable(request.target), "--budget", plan.budget]
    words += ["--init", request.init] if request.init else []
    words += ["--inputs", request.inputs] if request.inputs is not None else []
    words += ["--device", plan.estimated or plan.device] if plan.device != "cpu" else []
    words += ["--batch", request.batch] if request.batch else []
    words += ["--dynamic", request.dynamic] if request.dynamic else []
    words += ["--static"] if request.static else []
    words += ["--autocast", request.autocast] if request.autocast is not None else []
    words += ["--loss", request.loss] if request.loss is not None else []
    words += ["--planner", plan.planner] if plan.planner != Request("").planner else []
    words += ["--seed", str(request.seed)] if request.seed else []
    words += ["--edition", str(request.edition)] if request.edition == 2 else []
    words += ["-o", request.output_path.name]
    return planline.join_words(words)


def _call(request: Request, plan: SavedPlan) -> str:
    """The line of Python that regenerates a file, with what differs from the defaults."""
    default = Request("")
    asked: dict[str, Any] = {"budget": plan.budget, "device": plan.estimated or plan.device, "planner": plan.planner}
    asked |= {name: getattr(request, name) for name in ("batch", "dynamic", "static", "autocast", "loss", "seed")}
    asked |= {"edition": 2 if request.edition == 2 else None}
    words = [f"{name}={value!r}" for name, value in asked.items() if value != getattr(default, name)]
    inputs = "inputs" if request.inputs is None else repr(request.inputs)
    return f"remat_codegen.plan({', '.join(['model', inputs, *words])})"


def report_of(plan: SavedPlan, graph: Graph, output: Path | None, verified: Verification | None, progress: Progress) -> Report:
    """A plan's figures, and those of the run that made it."""
    return Report(
        planner=plan.planner,
        status=plan.status,
        budget_bytes=plan.budget_bytes,
        planned_peak_bytes=plan.planned_peak_bytes,
        unmodified_peak_bytes=plan.unmodified_peak_bytes,
        overhead=plan.overhead,
        bound=plan.bound,
        blocks=len(graph.blocks),
        kinds=len({b.kind for b in graph.blocks}),
        seconds=dict(progress.seconds),
        output=None if output is None else str(output),
        notes=plan.notes,
        verify=verified,
        answer=plan.answer,
        others=tuple(OtherPlan(p.budget_bytes, p.planned_peak_bytes, p.overhead, p.bound, p.batch) for p in plan.others),
        batch=plan.batch,
    )
