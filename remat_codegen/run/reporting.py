"""One page about a generated file (`remat-codegen report`): its schedule, read back from its source as `explain` does, what it
takes, and what other budgets would."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from remat_codegen.ask.request import NOT_RUN
from remat_codegen.errors import VerifyError
from remat_codegen.header.command import command_in
from remat_codegen.header.saved_plan import SavedPlan
from remat_codegen.marked.holders import Holders
from remat_codegen.marked.reading import read
from remat_codegen.page.build import Given, build
from remat_codegen.page.data import MeasuredStep, OtherPlan, Outside, Page, Point, Tradeoff
from remat_codegen.planners.base.bound import bound
from remat_codegen.profile.costs import Profile
from remat_codegen.profile.memory import Course, course, peak_bytes
from remat_codegen.run import tabling, tradeoff
from remat_codegen.run.explain import Beside, Explanation, Followed, follow
from remat_codegen.run.planning import lower_bound
from remat_codegen.run.priced import Priced, over, reserve_of
from remat_codegen.run.traced import Traced, autocast_of, target_of
from remat_codegen.schedule import simulate
from remat_codegen.show.results import Progress
from remat_codegen.torch_seam import pytree
from remat_codegen.trace.training import Run
from remat_codegen.verify import beside as comparing

THIS_FILE = "this file"  # where a planner's name stands for others
MOST_MEASURED = 4000  # points of a measured curve; of more, the highest of as many stretches


def report(
    file: Path,
    progress: Progress,
    target: str | None = None,
    *,
    planners: Sequence[str] = tradeoff.QUICK,
    measure: bool = False,
    cache: bool = True,
    budget: str | None = None,
    batch: int | None = None,
) -> Page:
    """The page of a generated file. `planners` plan for other budgets, none if empty; if `measure`, a step is run. Of several
    plans the one for `budget` or `batch` is shown; if not given, that for the least budget, or the largest batch.

    Raises VerifyError where the file's schedule cannot be followed, and what `explain` raises.
    """
    explanation, followed = follow(file, progress, target, cache=cache, budget=budget, batch=batch)
    if followed is None:
        raise VerifyError(_not_followed(explanation), where=str(file), hint="see remat-codegen explain")
    given = _given(file, explanation, followed, progress)
    prices = _prices(followed.traced, followed.profile)
    other = _tradeoff(given, prices, planners, progress, _points(followed, given.others)) if planners else None
    page = build(given, other)
    return replace(page, measured=_measured(file, followed, page, progress)) if measure else page


def _not_followed(explanation: Explanation) -> str:
    first = next(iter(explanation.problems), None)
    return "its schedule cannot be followed" + (f": line {first.line}: {first.text}" if first is not None else "")


# ---------------------------------------------------------------------------------------------- what is shown


def _given(file: Path, explanation: Explanation, followed: Followed, progress: Progress) -> Given:
    case, schedule = followed.case, followed.schedule
    traced, request = followed.traced, case.header.request
    budget = explanation.budget_bytes
    holders = Holders(traced.model)
    return Given(
        title=traced.target.class_name,
        file=file.name,
        text=case.text,
        command=command_in(case.text) or "",
        planner=request.planner if case.plan_told is None else case.plan_told.planner,
        device=request.device,
        edition=request.edition or 1,
        generator=case.header.version,
        model=traced.model,
        schedule=schedule,
        profile=holders.costs(followed.profile),
        unmodified=holders.plain,
        costs=followed.costs,
        budget_bytes=budget,
        outside=outside(traced.target.module, (traced.target.args, traced.target.kwargs)),
        lines=followed.lines,
        calls=followed.calls,
        rows=_rows(followed) if request.edition == 2 else (),
        bound=_bound(followed.traced, followed.profile, budget, progress),
        problems=tuple((p.line, p.text) for p in explanation.problems),
        notes=explanation.notes,
        others=tuple(_other_plan(other, progress) for other in followed.others),
        batch=explanation.batch,
    )


def _other_plan(other: Beside, progress: Progress) -> OtherPlan:
    """What another of the file's plans takes."""
    table = other.table
    least = _bound(other.traced, other.profile, table.budget_bytes, progress)
    return OtherPlan(table.budget_bytes, table.peak_bytes, table.overhead, least, table.batch)


def _bound(traced: Traced, profile: Profile, budget_bytes: int | None, progress: Progress) -> float | None:
    """The overhead that no plan within a budget can beat; None where no plan says what the budget is."""
    if budget_bytes is None:
        return None
    with progress.stage("bound"):
        return lower_bound(_prices(traced, profile), bound(traced.graph, profile, budget_bytes).time_ns)


def _rows(followed: Followed) -> tuple[tuple[str, int], ...]:
    """The modules of the entries of the table that is shown, each with its line."""
    traced = followed.traced
    reading = read(followed.case.text, tabling.carried_sources(traced), partial(tabling.file_of, traced))
    said = reading.tables[followed.case.table]
    modules = {name for name, _ in traced.target.module.named_modules()}
    return tuple(dict.fromkeys((e.name if e.name in modules else e.name.rpartition(".")[0], e.line) for e in said))


def outside(module: torch.nn.Module, inputs: Any) -> Outside:
    """What a model holds in any case, and what optimizers keep for it."""
    parameters = list(module.parameters())
    trained = [p for p in parameters if p.requires_grad]
    state = sum(p.nbytes for p in trained)
    steps = 4 * len(trained)  # Adam counts them in a number for each parameter
    given = [t for t in pytree.tree_leaves(inputs) if isinstance(t, torch.Tensor)]
    return Outside(
        parameters_bytes=sum(p.nbytes for p in parameters),
        gradients_bytes=state,
        buffers_bytes=sum(b.nbytes for b in module.buffers()),
        inputs_bytes=sum(t.nbytes for t in given),
        optimizer_bytes={"none": 0, "SGD with momentum": state, "Adam, AdamW": 2 * state + steps},
    )


# ---------------------------------------------------------------------------------------------- other budgets


def _prices(traced: Traced, profile: Profile) -> Priced:
    plain = Holders(traced.model).plain_step(profile)
    reserve = reserve_of(traced, profile)
    return Priced(traced.target.label, traced.graph, profile, plain.time_ns, plain.peak_bytes, reserve)


def _points(followed: Followed, plans: Sequence[OtherPlan]) -> list[Point]:
    """The file's other plans in the curve: those of the same graph, since others are for another step."""
    alike = [plan for other, plan in zip(followed.others, plans, strict=True) if other.traced is followed.traced]
    return [Point(max(p.planned_peak_bytes, p.budget_bytes or 0), round(p.overhead, 6), THIS_FILE, p.bound) for p in alike]


def _tradeoff(given: Given, prices: Priced, planners: Sequence[str], progress: Progress, others: Sequence[Point]) -> Tradeoff:
    timeline = simulate(prices.graph, given.costs, given.schedule)
    overhead = round(over(timeline.time_ns, prices.plain_ns), 6)
    own = Point(max(timeline.peak_bytes, given.budget_bytes or 0), overhead, THIS_FILE, given.bound)
    return tradeoff.tradeoff(prices, own, planners, progress, others)


# ---------------------------------------------------------------------------------------------- measured


class _Marked(Run):
    """A step that says when its forward pass is done."""

    mark: Callable[[], None] = staticmethod(lambda: None)

    def _call(self) -> Any:
        out = super()._call()
        self.mark()
        return out


def _measured(file: Path, followed: Followed, page: Page, progress: Progress) -> MeasuredStep:
    """A step of the file as `verify` measures it, on a copy of the model; the second one, since the first warms up.

    On a GPU only the peak is known. Raises VerifyError where the file does not run.
    """
    traced, device = followed.traced, followed.request.device
    if followed.request.gpu is not None:
        raise VerifyError(NOT_RUN, where=str(file), hint="leave out --measure")
    with progress.stage("measure"):
        generated = comparing.load_generated(file)
        try:
            own = comparing.own_model(target_of(followed.request).module, device)
            model = generated.rematerialize(own, **_named(generated, followed.case.plan_told))
            run = _Marked(
                model, traced.target.args, traced.target.kwargs, autocast_of(followed.request), traced.model.record.loss
            )
            run.step()
            if torch.device(device).type != "cpu":
                return _compared(peak_bytes(run.step, device), page)
            found = course(lambda mark: _step(run, mark))
        except (MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            raise VerifyError(f"its step cannot be run: {comparing.said(error)}", where=str(file)) from error
    at, held = _aligned(found, page)
    return replace(_compared(max(0, 0, *found.held_bytes), page), at_ns=at, held_bytes=held)


def _named(generated: Any, plan: SavedPlan | None) -> dict[str, int]:
    """What has a file take the table that is shown, where it has several; for a batch size, it does by itself."""
    several = plan is not None and plan.batch is None and plan.budget_bytes in getattr(generated, "PLANS", ())
    return {"budget": plan.budget_bytes} if several and plan is not None else {}


def _step(run: _Marked, mark: Callable[[], None]) -> None:
    run.mark = mark  # type: ignore[method-assign]
    run.step()


def _compared(peak: int, page: Page) -> MeasuredStep:
    return MeasuredStep(peak, round(peak / max(1, page.figures.planned_peak_bytes) - 1, 6))


def _aligned(found: Course, page: Page) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """A measured course on the plan's clock: its forward pass ends where that of the plan does, and so does its step."""
    loss = next(i for i, node in enumerate(page.planned.nodes) if page.nodes[node].phase == "loss")
    turn, end = page.planned.start_ns[loss], page.planned.end_ns
    marked = (*found.marks_ns, found.end_ns)[0]
    before, after = max(1, marked), max(1, found.end_ns - marked)

    def planned(when: int) -> int:
        if when <= marked:
            return turn * when // before
        return turn + (end - turn) * (when - marked) // after

    stretch = -(-len(found.at_ns) // MOST_MEASURED) or 1
    parts = [range(i, min(i + stretch, len(found.at_ns))) for i in range(0, len(found.at_ns), stretch)]
    return tuple(planned(found.at_ns[p[0]]) for p in parts), tuple(max(found.held_bytes[i] for i in p) for p in parts)
