"""Files of functions, the first edition. Sizes are numbers in their text; the batch is left open where the model can be traced
with it, as `--dynamic` leaves open what it names, unless `--static` fixes it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from remat_codegen.ask.batch import leading, parse_batches
from remat_codegen.ask.request import Request
from remat_codegen.errors import PlanFileError, RematError
from remat_codegen.header.saved_plan import SavedPlan
from remat_codegen.profile.costs import Profile
from remat_codegen.run import pipeline
from remat_codegen.run.planning import make_plan
from remat_codegen.run.priced import measured_costs
from remat_codegen.run.smaller import with_smaller
from remat_codegen.run.traced import Traced, trace_loaded
from remat_codegen.show.results import Progress, Report

FIXED = "note: such a file takes no other batch size or length than the example's; --dynamic names those that change"
OPEN = "note: such a file takes other batch sizes, but no other length than the example's; --dynamic names what else changes"


@dataclass(frozen=True, slots=True)
class Functions:
    """What a file of functions is written from. `profile` is None where a saved plan needs none."""

    request: Request
    traced: Traced
    plan: SavedPlan
    profile: Profile | None = None

    def written(self, progress: Progress) -> Report:
        """Writes the file. Raises RematError."""
        return pipeline.written(self.request, self.traced, self.plan, progress, self.profile)


def generate(request: Request, progress: Progress) -> Report:
    """Writes the file that `request` asks for. Raises RematError for whatever the user can put right."""
    pipeline.check_outputs(request)
    traced, plan, profile = pipeline.prepared(request, progress)
    return with_open_batch(Functions(request, traced, plan, profile), progress).written(progress)


def instead(made: Functions, why: RematError, progress: Progress) -> Functions:
    """What to write where there is no file with marks; with `--dynamic` it has to be traced anew for that. Raises the error
    where functions are no way out: there are several plans, or one for a run, or the second edition is asked for."""
    request, plan = made.request, made.plan
    if request.edition is not None or isinstance(why, PlanFileError) or plan.others or plan.recorded:
        raise why
    progress.note(f"note: written as functions, not as marks in the model's own source: {why.what}")
    made = replace(made, request=replace(request, edition=1))
    return made if request.dynamic else with_open_batch(made, progress)


def with_open_batch(made: Functions, progress: Progress) -> Functions:
    """The same for all batch sizes, where the model is traced with that to the same operations; as it is else, which is said.

    A plan that was saved is written out as it is: solving anew is what its user did not want.
    """
    if made.request.static:
        return made
    opened = None if made.request.dynamic else _opened(made)
    made = made if opened is None else _planned(opened, made, progress)
    if made.request.plan is None:
        made = replace(made, plan=with_smaller(made.request, made.traced, made.plan, progress))
    _note_sizes(made, opened is not None, progress)
    return made


def _note_sizes(made: Functions, is_open: bool, progress: Progress) -> None:
    """Says which sizes the file takes, if no option does."""
    if is_open or not made.request.dynamic:
        progress.note(OPEN if is_open else FIXED)
    if made.plan.smaller is not None:
        sizes = made.plan.smaller.replace(";", " or ")
        progress.note(f"note: but up to {sizes} it trains by the model's own forward, which is within the budget then")


def _planned(opened: Functions, made: Functions, progress: Progress) -> Functions:
    """The model with its batch left open, with the plan that there is, or a new one where its graph is another."""
    if opened.traced.graph.digest() == made.plan.graph:
        return replace(opened, plan=made.plan, profile=made.profile)
    profile = measured_costs(opened.request, opened.traced, progress)
    return replace(opened, profile=profile, plan=make_plan(opened.request, opened.traced, progress, profile=profile))


def _opened(made: Functions) -> Functions | None:
    """The request with its batch as a size that may change, and the graph, still without a plan for it."""
    request, target = made.request, made.traced.target
    places = parse_batches(request.batch)[0].places if request.batch else ""
    named = places or leading(target.module.forward, target.args, target.kwargs)
    if not named:
        return None
    asked = replace(request, dynamic=named)
    try:
        traced = trace_loaded(target, asked, Progress(None))
    except RematError:
        return None
    same_plan = traced.graph.digest() == made.plan.graph
    if _kernels(traced) != _kernels(made.traced) or (request.plan is not None and not same_plan):
        return None
    return replace(made, request=asked, traced=traced)


def _kernels(traced: Traced) -> list[object]:
    """The operations of each node that compute something: traced with a size left open, some look at memory more often."""
    made = {s.operation for s in traced.model.record.storages}
    operations = traced.model.trace.operations
    return [[operations[i].target for i in body.operations if i in made] for body in traced.model.bodies]
