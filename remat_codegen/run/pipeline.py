"""What both kinds of files share on their way: from a request to a plan, checks, facts of the header, verification, report; and
files of functions where nothing is decided (`marked.py` and `functions.py` decide)."""

from __future__ import annotations

import hashlib
import inspect
import sys
import textwrap
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from remat_codegen import __version__
from remat_codegen.advice import aswritten
from remat_codegen.advice.losses import loss_note
from remat_codegen.ask.batch import parse_batches
from remat_codegen.ask.patched import is_patched
from remat_codegen.ask.request import NOT_RUN, Request
from remat_codegen.ask.target import Target
from remat_codegen.emit.render import Original, render
from remat_codegen.errors import PlanFileError, TargetError, UnsupportedError
from remat_codegen.files import check_writable, write_atomically
from remat_codegen.graph.ir import Graph
from remat_codegen.header import saved_plan
from remat_codegen.header.command import command_of, option_in, portable
from remat_codegen.header.heading import ANSWER_COLUMNS, Facts
from remat_codegen.header.plan_line import plan_in
from remat_codegen.header.saved_plan import SavedPlan
from remat_codegen.header.seal import seal
from remat_codegen.header.several import budget_bytes
from remat_codegen.profile.costs import Profile
from remat_codegen.profile.devices import find, is_name
from remat_codegen.run.dynamic import growth
from remat_codegen.run.planning import make_plan
from remat_codegen.run.priced import measured_costs
from remat_codegen.run.traced import Traced, recorded_lines, target_of, trace_target
from remat_codegen.runtime import hooks_of, structure
from remat_codegen.schedule import Schedule
from remat_codegen.show.results import OtherPlan, Progress, Report, Verification
from remat_codegen.torch_seam import storage_key
from remat_codegen.trace import Trace
from remat_codegen.trace.faithful import LARGEST_STEP_BYTES, computes_alike_again
from remat_codegen.trace.sizes import Asked, parse_limits
from remat_codegen.trace.training import deterministic_algorithms
from remat_codegen.verify.verification import STEPS, verification

NEEDS_MODEL = "in Python, with that model and its inputs: no command makes them, so remat-codegen update cannot."


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
        return traced, saved_plan.load(request.plan), None
    profile = measured_costs(request, traced, progress)
    return traced, make_plan(request, traced, progress, profile=profile), profile


def written(request: Request, traced: Traced, plan: SavedPlan, progress: Progress, profile: Profile | None = None) -> Report:
    """Writes a plan out as a file of the first edition. Raises PlanFileError where it is for another graph."""
    output = request.output_path
    schedule = saved_plan.schedule_of(plan, traced.graph, request.plan or output)
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
            verified = verification(output, lambda: target_of(request), request.device, request.seed, STEPS, progress)
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
        return target_of(Request(target, init=init, inputs=inputs, device=device, seed=seed, batch=batch or planned))

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
    plan = plan_in(text)
    return "" if plan is None or plan.batch is None else option_in(text, "batch") or ""


def _budget_of(file: Path, budget: str | None) -> int | None:
    """The bytes of a budget that a file is judged by; None where its header tells them."""
    return None if budget is None else budget_bytes(plan_in(file.read_text(encoding="utf-8")), budget)


# ---------------------------------------------------------------------------------------------- emission


def emit(traced: Traced, schedule: Schedule, plan: SavedPlan, request: Request) -> str:
    """The generated file's text: a pure function of the traced model, the plan and the request's words."""
    target = traced.target
    plan = replace(plan, smaller=None) if request.static else plan
    if (found := recorded_lines(traced.model.trace)) is not None:
        what = f"{found}, which no file of functions can follow"
        raise UnsupportedError(what, where=target.label, hint="only files with marks can be made")
    _check_parameters(traced)
    _check_objects(traced, plan)
    source = own_source(target)
    original = Original(
        target=portable(request.target),
        class_name=target.class_name,
        forward=target.module.forward,
        args=target.args,
        kwargs=target.kwargs,
        structure=structure(target.module, traced.model.trace.modules.settings),
        objects=traced.model.trace.modules.objects,
        source=source,
        hooked={path: len(hooks) for path, m in target.module.named_modules() if path and (hooks := hooks_of(m))},
        defaults=target.defaults,
    )
    facts = facts_of(traced, plan, request, growth(traced.model, schedule) if traced.model.trace.sizes else {})
    return seal(render(original, traced.model, schedule, facts))


def _check_parameters(traced: Traced) -> None:
    """Raises UnsupportedError where functions would not have parameters as forward has them: where it sets other ones, or reads
    them by a list or dict, of which torch.export does not tell whether that is with gradients."""
    named, trace = dict(traced.target.module.named_parameters(remove_duplicate=False)), traced.model.trace
    if (path := next((name for name in trace.assigned if name in named), None)) is not None:
        what = f"forward sets another parameter {path}, which no file of functions does"
        hint = "change it in place, self.weight.copy_(...) under torch.no_grad()"
        raise UnsupportedError(what, where=traced.target.label, hint=hint)
    own = {storage_key(p): path for path, p in named.items()}
    held = [*trace.elsewhere, *(own[key] for _, t in trace.constants if (key := storage_key(t)) in own)]
    if held:
        path = held[0]
        what = f"forward reads {path} by a list, a dict or a variable of its own, in which a file of functions does not find it"
        raise UnsupportedError(what, where=traced.target.label, hint=f"read it as self.{path}")


def _check_objects(traced: Traced, plan: SavedPlan) -> None:
    """Raises UnsupportedError where steps go by what forward has left in plain objects, which functions leave as they are. A
    table that the first step makes is none of that: functions make it in each."""
    target, trace = traced.target, traced.model.trace
    if not trace.modules.moved:
        return
    small = plan.unmodified_peak_bytes <= LARGEST_STEP_BYTES
    if not (small and computes_alike_again(target.module, target.args, target.kwargs, trace.autocast)):
        what = f"forward changes {trace.modules.moved[0]}, by which the next step may go, and no file of functions does"
        raise UnsupportedError(what, where=target.label, hint="hold it in a buffer of a module, which forward writes into")


def facts_of(traced: Traced, plan: SavedPlan, request: Request, grows: Mapping[int, float]) -> Facts:
    """What a file's header says."""
    target = traced.target
    return Facts(
        version=__version__,
        command=command_of(request, plan),
        source_digest=hashlib.sha256(target.source.encode()).hexdigest(),
        plan=plan,
        growth=grows,
        recorded=_lines_of_run(traced.model.trace),
        as_written="" if (own := aswritten.of_plan(plan, traced.model)) is None else own.sentence(),
        needs=NEEDS_MODEL if request.given else "",
        smaller=limits_of(plan, target),
    )


def limits_of(plan: SavedPlan, target: Target) -> tuple[tuple[Asked, int], ...]:
    """The sizes up to which a file of functions runs the original forward. Raises PlanFileError where there are no such
    inputs."""
    try:
        return parse_limits(plan.smaller or "", target.module.forward, target.args, target.kwargs)
    except TargetError as error:
        raise PlanFileError("the plan names sizes of other inputs", where=target.label, hint=saved_plan.AGAIN) from error


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
