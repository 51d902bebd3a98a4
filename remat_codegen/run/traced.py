"""From a target to its graph: a module that is traced, recorded and simplified, with all that its files are written from."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, replace

import torch

from remat_codegen.ask.batch import at_batch, at_largest_batch, parse_batches
from remat_codegen.ask.request import Request
from remat_codegen.ask.target import Target, load_target
from remat_codegen.errors import TargetError, UnsupportedError
from remat_codegen.graph.ir import Graph
from remat_codegen.graph.record import record
from remat_codegen.graph.simplify import Model, simplify
from remat_codegen.graph.unplannable import check_indices, check_place
from remat_codegen.header.saved_plan import SavedPlan
from remat_codegen.run.dynamic import trace_sizes, with_least
from remat_codegen.runtime import told
from remat_codegen.show.results import Progress
from remat_codegen.torch_seam import pytree
from remat_codegen.trace import Autocast, Trace, know_dataclasses
from remat_codegen.trace.sizes import parse_dynamic


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


def trace_target(request: Request, progress: Progress) -> Traced:
    """Loads the request's target and finds its graph. Raises RematError where it cannot."""
    with progress.stage("load"):
        target = target_of(request)
    return trace_loaded(target, request, progress)


def trace_loaded(target: Target, request: Request, progress: Progress) -> Traced:
    """Finds the graph of a target that is there already, and that of each smaller batch asked for. Raises RematError where it
    cannot."""
    target = target if target.defaults else replace(target, defaults=_defaults_of(target.module))
    found = _trace_loaded(target, request, progress)
    smaller = parse_batches(request.batch)[1:] if request.batch else ()
    return replace(found, others=tuple(_trace_loaded(at_batch(target, batch), request, progress) for batch in smaller))


def _check_checkpoints(model: Model) -> None:
    """Refuses a model where something that a reentrant checkpoint made without gradients is used: its trace has some there."""
    trained = (where for v, where in model.trace.escaped if model.record.variables[v].requires_grad)
    if (where := next(trained, None)) is not None:
        what = (
            "something that checkpoint(use_reentrant=True) makes, but does not return, is used outside of it: without gradients"
        )
        raise UnsupportedError(what, where=where, hint="call it with use_reentrant=False, by which it has some")


def _defaults_of(module: torch.nn.Module) -> dict[str, str]:
    """What forward's defaults are."""
    try:
        parameters = inspect.signature(module.forward).parameters.values()
    except (TypeError, ValueError):  # what is no Python function may tell nothing
        return {}
    return {p.name: told(p.default) for p in parameters if p.default is not p.empty}


def _trace_loaded(target: Target, request: Request, progress: Progress) -> Traced:
    if target.without_cache:
        progress.note(
            "note: training steps run with use_cache=False, in the file, too; evaluation and generate() keep their cache"
        )
    with progress.stage("trace"):
        asked = parse_dynamic(request.dynamic, target.module.forward, target.args, target.kwargs)
        traced = trace_sizes(target.module, target.args, target.kwargs, autocast_of(request), asked)
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
    _check_checkpoints(model)
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


def target_of(request: Request) -> Target:
    """The target of a request, constructed, at the largest batch asked for. Raises TargetError."""
    device = request.device_named
    found = load_target(request.target, init=request.init, inputs=request.inputs, device=device, seed=request.seed)
    know_dataclasses((found.args, found.kwargs))
    return at_largest_batch(found, request.batch)


def autocast_of(request: Request) -> Autocast:
    """What the model is called under. Raises TargetError where there is no such type."""
    if request.autocast is None:
        return ()
    dtype = {"bfloat16": torch.bfloat16, "float16": torch.float16}[request.autocast]
    return ((torch.device(request.device).type, dtype),)
