"""Files that could be written: a model traced and measured once, and what would be written for one budget or another."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import ModuleType

from remat_codegen.ask.request import Request
from remat_codegen.errors import BudgetError, UnsupportedError
from remat_codegen.files import write_atomically
from remat_codegen.header.saved_plan import SavedPlan
from remat_codegen.marked.holders import Holders
from remat_codegen.planners.base.reserve import plan_within
from remat_codegen.planners.base.result import Plan
from remat_codegen.planners.best import NO_TIME_FOR
from remat_codegen.planners.limited import STOPPED, quickest
from remat_codegen.profile.costs import Profile
from remat_codegen.run import functions, marked, pipeline, tabling
from remat_codegen.run.functions import Functions
from remat_codegen.run.planning import make_plan
from remat_codegen.run.priced import measured_costs, reserve_of
from remat_codegen.run.traced import Traced, trace_target
from remat_codegen.schedule import simulate, without_recomputation
from remat_codegen.show.results import Progress, Report


@dataclass(frozen=True, slots=True)
class Costed:
    """A traced model with its costs. `home` is the module that its class is in: another one each time a file is loaded."""

    request: Request
    traced: Traced
    profile: Profile
    home: ModuleType | None = None

    @property
    def plain_bytes(self) -> int:
        """What the step takes as it is, with what is held in reserve beside it: nothing has to be computed again for that."""
        plain = Holders(self.traced.model).plain_step(self.profile).peak_bytes
        return plain + reserve_of(self.traced, self.profile).slack_bytes


@dataclass(frozen=True, slots=True)
class Draft:
    """A file that could be written: a planner's plan, and the plan as the file takes it, which in the second edition is that of
    its table, `brought`. Where there is none though it was looked for, `why` says why."""

    measured: Costed
    made: SavedPlan
    plan: SavedPlan
    brought: tabling.Brought | None = None
    why: BudgetError | None = None

    @property
    def cut_short(self) -> bool:
        """Whether a time limit ended the planner's work."""
        return any(note.startswith((STOPPED, NO_TIME_FOR)) for note in self.made.notes)

    @property
    def overhead(self) -> float:
        """How much longer a step takes, Python's time included where it is felt."""
        profile = self.measured.profile
        return self.plan.overhead + (0.0 if self.brought is None else tabling.felt(profile, self.brought))

    def saying(self, answer: str) -> Draft:
        """The same, with what its budget is the answer to."""
        return replace(self, made=replace(self.made, answer=answer), plan=replace(self.plan, answer=answer))


def measured(request: Request, progress: Progress) -> Costed:
    """The request's model, traced and measured. Raises RematError."""
    traced = trace_target(request, progress)
    home = sys.modules.get(type(traced.target.module).__module__)
    return Costed(request, traced, measured_costs(request, traced, progress), home)


Measure = Callable[[Request, Progress], Costed]


def draft_of(found: Costed, budget_bytes: int, progress: Progress) -> Draft:
    """What would be written for a budget. Raises BudgetError where nothing fits."""
    request = replace(found.request, budget=str(budget_bytes))
    made = make_plan(request, found.traced, progress, profile=found.profile)
    if request.edition != 1:
        try:
            plan, brought = marked.tabled(request, found.traced, found.profile, made, progress)
            return Draft(replace(found, request=request), made, plan, brought)
        except BudgetError as error:
            if request.edition is not None:
                raise
            return Draft(replace(found, request=request), made, made, why=error)
    return Draft(replace(found, request=request), made, made)


def write(draft: Draft, progress: Progress) -> Report:
    """Writes a draft's file, and its plan where that was asked for."""
    found = draft.measured
    request, traced = found.request, found.traced
    if found.home is not None:  # the model may have been loaded once more since, at another batch size
        sys.modules[type(traced.target.module).__module__] = found.home
    made = Functions(request, traced, draft.made, found.profile)
    if draft.brought is not None:
        try:
            known = draft.plan, draft.brought
            plan, brought, text = marked.proven(request, traced, found.profile, draft.made, progress, known)
        except (BudgetError, UnsupportedError) as error:
            return functions.instead(made, error, progress).written(progress)
        marked.note_losses(plan, draft.made, brought, found.profile, progress)
        write_atomically(request.output_path, text)
        if request.save_plan is not None:
            write_atomically(request.save_plan, draft.made.dumps())
        return pipeline.finished(replace(request, edition=2), plan, traced, progress, found.profile)
    if draft.why is not None:
        return functions.instead(made, draft.why, progress).written(progress)
    return functions.with_open_batch(made, progress).written(progress)


@dataclass(frozen=True, slots=True)
class Least:
    """The smallest budget that there is a plan for, as far as is known: where it is not `sure`, time was too short to tell."""

    nbytes: int
    sure: bool = True


def least_bytes(found: Costed, progress: Progress) -> Least:
    """The smallest budget that the planner says it has a plan for."""
    with progress.stage("smallest"):
        try:
            make_plan(replace(found.request, budget="1"), found.traced, progress, profile=found.profile)
        except BudgetError as error:
            return Least(found.plain_bytes if error.least_bytes is None else error.least_bytes, not error.out_of_time)
    return Least(1)


def quick_excess(found: Costed, budget_bytes: int, seconds: float) -> float:
    """By how many bytes the smallest plan that quick planners find is above a budget: 0 at most where one of theirs fits. They
    have about so many seconds."""
    graph, profile, reserve = found.traced.graph, found.profile, reserve_of(found.traced, found.profile)
    plain = simulate(graph, profile, without_recomputation(graph)).peak_bytes

    def within(limit: int) -> Plan:
        return plan_within(
            lambda variant, nbytes: quickest(variant, profile, nbytes, seconds), graph, profile, limit, plain, reserve, True
        )

    least = within(1).minimum_bytes
    excess = float(min(found.plain_bytes, found.plain_bytes if least is None else least) - budget_bytes)
    return 0.0 if excess > 0 and within(budget_bytes).schedule is not None else excess
