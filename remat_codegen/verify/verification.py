"""What --verify finds: a generated file beside the model that it came from, as rows of a report."""

from __future__ import annotations

import contextlib
import functools
import math
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from remat_codegen.ask.batch import Batch, at_batch, parse_batches
from remat_codegen.ask.budget import format_bytes
from remat_codegen.ask.target import Target, TargetKind
from remat_codegen.errors import VerifyError
from remat_codegen.header.command import call_in, command_in, option_in
from remat_codegen.header.plan_line import plan_in
from remat_codegen.header.saved_plan import SavedPlan
from remat_codegen.header.seal import is_sealed
from remat_codegen.header.several import plan_taken
from remat_codegen.show.results import Progress, Row, Verification
from remat_codegen.torch_seam import has_forward_hooks
from remat_codegen.trace import Autocast
from remat_codegen.trace.training import Run
from remat_codegen.verify import beside as comparing
from remat_codegen.verify import fresh
from remat_codegen.verify.stepcosts import StepCosts, step_costs

STEPS = 2
BESIDE_PARAMETERS = 2  # as many bytes again for gradients and for momentum
MOST_REPEATED = 8  # comparisons of the original with itself
BY_CHANCE = 4  # times the original's noise: what one of two comparisons of the file may show, as noise is not always the same
CLOSE, CLOSE_BYTES = 0.02, 8192  # by how much a measured step may be larger than the planned one


@dataclass(frozen=True)
class _Trial:
    """A generated module, its target, and how that is loaded once more."""

    generated: Any
    target: Target
    load: Callable[[], Target]
    device: str
    seed: int
    casts: Autocast  # what the model is called under
    plan: SavedPlan | None = None  # what the header says of the table that is judged
    table: int | None = None  # of several budgets: that of the table that is named
    batch: int | None = None  # of several batch sizes: the one that is trained at, if it is named

    @property
    def loss(self) -> str:
        """What the steps go back from: what the plan was made for."""
        return "cross-entropy" if self.plan is None else self.plan.loss

    def made_anew(self) -> Callable[[], torch.nn.Module] | None:
        """Makes the model, where functions may know it that a copy would share with it."""
        hooked = self.target.kind is not TargetKind.INSTANCE and any(map(has_forward_hooks, self.target.module.modules()))
        return (lambda: self.load().module) if hooked else None

    def compare(self, rematerialize: Callable[[torch.nn.Module], torch.nn.Module], **options: Any) -> comparing.Comparison:
        """The target and what `rematerialize` makes of it, step by step."""
        given: dict[str, Any] = {"model": self.target.module, "args": self.target.args, "kwargs": self.target.kwargs}
        given |= {"autocast": self.casts, "make": self.made_anew(), "seed": self.seed, "device": self.device}
        given["loss"] = self.loss
        return comparing.compare(rematerialize=rematerialize, **(given | options))

    def costs(self) -> StepCosts:
        """What steps of the original and of the file cost, measured on models of their own."""
        make = self.made_anew() or (lambda: comparing.own_model(self.target.module, self.device))

        def run(model: torch.nn.Module) -> Run:
            return Run(model, self.target.args, self.target.kwargs, self.casts, self.loss)

        return step_costs(lambda: run(make()), lambda: run(self.generated.rematerialize(make())), self.device)


def verification(
    file: Path,
    load: Callable[[], Target],
    device: str,
    seed: int,
    steps: int,
    progress: Progress,
    budget_bytes: int | None = None,
    batch: int | None = None,
) -> Verification:
    """Trains the model that `load` gives, then the file. Raises VerifyError where there is nothing to compare.

    `budget_bytes` is what the peak is judged by; if not given, what the file's header says. Of tables for several budgets, the
    one is judged that the file takes for so much; all of them if not given. Of those for several batch sizes, all are judged;
    where `load` gives inputs of another `batch` than the largest, the one that the file takes for these. What the file's own
    code says of its budget and of autocast is not asked where the header tells.
    """
    comparing.check_there(file)
    target = load()  # first: what the file imports may lie beside its model
    generated = comparing.load_generated(file, budget_bytes)
    text = file.read_text(encoding="utf-8")
    table = None if budget_bytes is None else comparing.table_taken(generated)
    plan, casts = plan_taken(plan_in(text), table, batch), _casts(text, generated, device)
    trial = _Trial(generated, _on_host(target, device), load, device, seed, casts, plan, table, batch)
    planned, budget = _planned_peak_bytes(trial), budget_bytes or _budget(text, generated)
    try:
        alone = _what_is_missing(trial)
        options: dict[str, Any] = {"steps": steps, "advance": progress.update, "traced": True, "alone": alone}
        result = again = trial.compare(trial.generated.rematerialize, **options)
    except comparing.FileFailure as failure:
        _raise_if_refused(failure, file)
        return Verification((Row("training", False, str(failure)),), 0, planned, budget, False)
    exact: comparing.Comparison | None = result
    noise = comparing.Comparison()
    if not result.identical:
        repeated = trial.compare(trial.generated.rematerialize, steps=steps)
        again = result if repeated.alone else repeated
        exact = _in_float64(trial, steps)
        noise = _noise(trial, steps, result, again)
    kinds = [(what, found, again.of(what)) for what, found in result.differences.items()]
    rows = [Row("the original", True, f"not compared: {result.alone}")] if result.alone else []
    rows += [_row(w, found, None if exact is None else exact.of(w), repeated, noise.of(w)) for w, found, repeated in kinds]
    rows.append(_in_a_process_of_its_own(trial, steps, result, noise))
    rows += [_at_other_sizes(trial, noise)] if hasattr(trial.generated, "SIZES") and not result.alone else []
    rows += _values_put_back(trial) if not result.alone else []
    rows += [Row("as it was written", False, "it was edited by hand")] if is_sealed(text) is False else []
    rows += _table_named(trial)
    result = _as_recorded(trial, result, alone)
    measured = result.measured_peak_bytes
    rows.append(Row("peak within budget", measured <= budget, _of(measured, budget)))
    rows += _with_other_plans(trial, text, budget_bytes) if not result.alone else []
    found = Verification(tuple(rows), measured, planned, budget, all(r.ok for r in rows))
    found = replace(found, requested_peak_bytes=result.peak.requested_bytes, reserved_peak_bytes=result.peak.reserved_bytes)
    costs = trial.costs() if not result.alone else StepCosts(None, None)
    assumed = _assumed_peak_bytes(trial)
    return replace(
        found,
        original_peak_bytes=costs.original_peak_bytes,
        assumed_peak_bytes=assumed,
        time_ratio=costs.time_ratio,
        notes=(*_notes(result), *_other_than_planned(costs.original_peak_bytes, assumed), *_untimed(result, costs)),
    )


def _casts(text: str, generated: Any, device: str) -> Autocast:
    """What the model is called under: as the header's command says, or the file, where an older one has no command."""
    name = option_in(text, "autocast")
    if name is not None:
        dtype = {"bfloat16": torch.bfloat16, "float16": torch.float16}[name]
        return ((torch.device(device).type, dtype),)
    casts = {} if command_in(text) or call_in(text) else getattr(generated, "AUTOCAST", {})
    return tuple((t, dtype) for t, dtype in casts.items() if dtype is not None)


def _budget(text: str, generated: Any) -> int:
    """The budget that the header's plan has, or the file, where there is no such plan."""
    plan = plan_in(text)
    return int(generated.BUDGET_BYTES) if plan is None else plan.budget_bytes


def _planned_peak_bytes(trial: _Trial) -> int | None:
    """What the table that is judged was planned to take; None where the header does not say."""
    if trial.plan is None:
        return int(trial.generated.PLANNED_PEAK_BYTES) if trial.table is None else None
    return trial.plan.planned_peak_bytes


def _as_recorded(trial: _Trial, result: comparing.Comparison, alone: str) -> comparing.Comparison:
    """A comparison whose peak is that of what was planned. Of a run that was recorded it is that of the first step: the weights
    that a step changes may lead to another way."""
    if trial.plan is None or not trial.plan.recorded:
        return result
    first = trial.compare(trial.generated.rematerialize, steps=1, alone=alone)
    return replace(result, peak=first.peak)


def _table_named(trial: _Trial) -> list[Row]:
    """Which of several tables is judged, where a budget or a batch was named."""
    if trial.table is None and trial.batch is None:
        return []
    label = format_bytes(trial.table or 0) if trial.plan is None else trial.plan.label
    return [Row("the table", True, f"the one for {label}")]


def _with_other_plans(trial: _Trial, text: str, budget_bytes: int | None) -> list[Row]:
    """The file's other plans, each beside the original, and within its budget, or the one that is given. None where just one is
    judged: its budget is named, or inputs are of another batch size than the largest."""
    plan = plan_in(text)
    if plan is None or trial.table is not None or trial.batch not in (None, plan.batch):
        return []
    return [_with_other_plan(trial, text, other, budget_bytes or other.budget_bytes) for other in plan.others]


def _with_other_plan(trial: _Trial, text: str, other: SavedPlan, budget_bytes: int) -> Row:
    """A plan for another budget is named; that for another batch has to be taken for such inputs."""
    key = other.budget_bytes if other.batch is None else other.batch
    what = f"with {other.label}"
    if key not in trial.generated.PLANS:
        return Row(what, False, "the file has no such table")
    make = trial.generated.rematerialize
    if other.batch is None:
        make = functools.partial(make, budget=key)
    else:
        places = parse_batches(option_in(text, "batch") or str(key))[0].places
        trial = replace(trial, target=at_batch(trial.target, Batch(key, places)))
    try:
        result = trial.compare(make, steps=1)
    except comparing.FileFailure as failure:
        return Row(what, False, str(failure))
    if (wrong := _wrongly_put_back(trial, make)) is not None:
        return Row(what, False, wrong)
    peak = f"peak {format_bytes(result.measured_peak_bytes)}, planned {format_bytes(other.planned_peak_bytes)}"
    same = "everything bit-identical" if result.identical else "not bit-identical"
    within = result.measured_peak_bytes <= budget_bytes
    return Row(what, result.identical and within, f"{same}, {peak}, budget {format_bytes(budget_bytes)}")


def _values_put_back(trial: _Trial) -> list[Row]:
    """Whether each value that a part puts back is the one that was there first, in files that can tell."""
    if not hasattr(trial.generated, "CHECK"):
        return []
    wrong = _wrongly_put_back(trial, trial.generated.rematerialize)
    return [Row("values put back", wrong is None, wrong or "each is the one first computed")]


def _wrongly_put_back(trial: _Trial, rematerialize: Callable[[torch.nn.Module], torch.nn.Module]) -> str | None:
    """What a file says in its check mode; None where nothing is wrong."""
    before, trial.generated.CHECK = trial.generated.CHECK, True
    try:
        trial.compare(rematerialize, steps=1)
    except comparing.FileFailure as failure:
        return str(failure)
    finally:
        trial.generated.CHECK = before
    return None


def _on_host(target: Target, device: str) -> Target:
    """The target with its model on the host, of which copies are trained: the device has room for one, perhaps."""
    if device != "cpu":
        target.module.to("cpu")
        comparing.collect(device)  # what comparisons have left, too: another process may need the room
    return target


def _what_is_missing(trial: _Trial) -> str:
    """Why the original cannot be trained here, where that can be known before: on the CPU, whose system ends processes that
    take too much. Empty where nothing is missing, or nothing is known."""
    assumed, free = _assumed_peak_bytes(trial), comparing.free_bytes()
    if trial.device != "cpu" or assumed is None or free is None:
        return ""
    held = sum(p.nbytes for p in trial.target.module.parameters())
    needed = assumed + (1 + BESIDE_PARAMETERS) * held
    said = f"the original does not fit: its step needs {format_bytes(needed)}, and {format_bytes(free)} are free"
    return said if needed > free else ""


def _noise(trial: _Trial, steps: int, found: comparing.Comparison, again: comparing.Comparison) -> comparing.Comparison:
    """What the original differs in from itself, where kernels are not deterministic: some comparisons, as one says little."""
    noise = comparing.Comparison()
    for _ in range(MOST_REPEATED):
        more = trial.compare(lambda model: model, steps=steps)
        noise.widen(more)
        if more.identical or all(_within(d, again.of(what), noise.of(what)) for what, d in found.differences.items()):
            break
    return noise


def _within(found: comparing.Difference, again: comparing.Difference, noise: comparing.Difference) -> bool:
    """Whether a file differs from the original no more than that does from itself. Other experts, once in a while, are more."""
    if found.worst is None:
        return True
    if noise.worst is None or noise.worst == math.inf:
        return False
    least, most = sorted((found.worst, again.worst or 0.0))
    return least <= noise.worst and most <= BY_CHANCE * noise.worst


def _of(measured: int, budget: int) -> str:
    """A peak beside a budget; in bytes, where they look alike and are not within."""
    said, of = format_bytes(measured), format_bytes(budget)
    return f"{measured:,} of {budget:,} bytes" if said == of and measured > budget else f"{said} of {of}"


def _assumed_peak_bytes(trial: _Trial) -> int | None:
    """What the file's plan takes the original's step to need, as the model is written; None where its header does not say."""
    plan = trial.plan
    return None if plan is None else plan.as_written_peak_bytes or plan.unmodified_peak_bytes


def _other_than_planned(measured: int | None, assumed: int | None) -> tuple[str, ...]:
    """A note where the original holds more than its plan assumes: then it is not what the file was planned against."""
    if measured is None or assumed is None or measured <= (1 + CLOSE) * assumed + CLOSE_BYTES:
        return ()
    peaks = f"{format_bytes(measured)}, not at {format_bytes(assumed)} as its plan assumes"
    return (f"the original's step peaks at {peaks}: something holds values that no gradient needs",)


def _untimed(result: comparing.Comparison, costs: StepCosts) -> tuple[str, ...]:
    """A note where there was room for each of the two models, but not for what their costs are measured with."""
    if result.alone or costs.time_ratio is not None:
        return ()
    return ("no measured time: steps are timed by turns, and there is no room for the original and the file at once",)


def _raise_if_refused(failure: comparing.FileFailure, file: Path) -> None:
    """Raises VerifyError where a file's own checks have raised the error: it is for other inputs."""
    if _is_refused(failure.error, file):
        raise VerifyError(str(failure.error), where=str(file)) from failure


def _is_refused(error: Exception, file: Path | str) -> bool:
    """Whether a file's own checks have raised an error: it is for other inputs."""
    return (
        isinstance(error, ValueError)
        and Path(traceback.extract_tb(error.__traceback__)[-1].filename).resolve() == Path(file).resolve()
    )


def _in_float64(trial: _Trial, steps: int) -> comparing.Comparison | None:
    """The same in float64, where a difference by rounding disappears; None for models that do not run so, or do not fit."""
    if any(p.dtype in (torch.bfloat16, torch.float16) for p in trial.target.module.parameters()):
        return None  # a file casts to these where it was traced so
    module, args, kwargs = comparing.in_float64(trial.target.module, trial.target.args, trial.target.kwargs)
    anew = trial.made_anew()
    make = None if anew is None else lambda: comparing.doubled(anew())
    given = {"args": args, "kwargs": kwargs, "make": make, "seed": trial.seed, "device": trial.device, "steps": steps}
    try:
        with comparing.double_throughout(trial.generated):
            found = comparing.compare(module, trial.generated.rematerialize, **given)
    except (VerifyError, comparing.FileFailure, MemoryError, torch.OutOfMemoryError):
        return None
    return None if found.alone else found


def _in_a_process_of_its_own(trial: _Trial, steps: int, here: comparing.Comparison, noise: comparing.Comparison) -> Row:
    """The file as its users run it, who have not imported the original before."""
    what = "in a process of its own"
    target = _on_host(trial.load(), trial.device)  # anew: comparisons may have left something in the other
    given = trial.generated, target, trial.casts, trial.device, trial.seed, steps, len(here.traces) > steps
    found = fresh.trained_alone(*given, table=trial.table, loss=trial.loss)
    if found.incomparable:
        return Row(what, True, f"not compared: {found.said}")
    if found.stage == "make" and fresh.trained_alone(*given, without_file=True, loss=trial.loss).said == found.said:
        return Row(what, True, f"not compared: there, the original cannot be made either: {found.said}")
    if found.out_of_memory:  # it was there when the file trained here, which this process takes a part of
        return Row(what, True, f"not compared: there is no room for it beside this one: {found.said}")
    wrong = f"{found.stage}: {found.said}" if found.stage else fresh.differing(found, here.traces, steps)
    if wrong and not found.stage and not noise.identical:
        return Row(what, True, "not compared: the original itself differs from run to run")
    if here.alone:
        return Row(what, not wrong, wrong or f"{steps} {'step' if steps == 1 else 'steps'} as here")
    if wrong and not found.stage and found.steps == fresh.trained_alone(*given, without_file=True, loss=trial.loss).steps:
        return Row(what, True, "bit-identical to the original in such a process; here, it rounds otherwise")
    if wrong and found.stage in ("", "make") and _is_another_every_time(trial):
        return Row(what, True, f"not compared: {target.name} is another model every time")
    return Row(what, not wrong, wrong or f"{steps} {'step' if steps == 1 else 'steps'} bit-identical")


def _is_another_every_time(trial: _Trial) -> bool:
    """Whether not even the original makes the same model twice, given the same state."""

    def second(model: torch.nn.Module) -> torch.nn.Module:
        made = trial.load().module
        made.load_state_dict(model.state_dict())
        return made

    try:
        return not trial.compare(second, steps=1).identical
    except (comparing.FileFailure, VerifyError):
        return True


def _notes(found: comparing.Comparison) -> tuple[str, ...]:
    if not found.without_numbers:
        return ()
    *others, last = found.without_numbers
    what = f"{', '.join(others)} and {last}" if others else last
    return (f"{what}: all NaN, in the original as well; this proves little, verify with a model and inputs that give numbers",)


def _at_other_sizes(trial: _Trial, noise: comparing.Comparison) -> Row:
    """The file with inputs of half the size, where that may change."""
    generated, target = trial.generated, trial.target

    def compared(**how: bool) -> comparing.Comparison:
        args, kwargs = comparing.halved(target.args, target.kwargs, generated.EXPECTED, generated.SIZES, **how)
        return trial.compare(generated.rematerialize, args=args, kwargs=kwargs, steps=1)

    try:
        try:
            found = compared()
        except comparing.OriginalFails:
            found = compared(wrapped=True)
        if not found.identical:  # the half of a mask without padding, which the model leaves out: it rounds otherwise then
            with contextlib.suppress(VerifyError):
                found = compared(apart=True)
    except comparing.OriginalFails as failure:
        return Row("half the size", True, f"not compared: the original does not take that: {failure.said}")
    except comparing.FileFailure as failure:
        refused = _is_refused(failure.error, generated.__file__)
        return Row("half the size", refused, f"not compared: {failure.error}" if refused else str(failure))
    worst = [f"{d.where} differs by {d.worst:.1e}" for d in found.differences.values() if d.worst is not None]
    same = found.identical or all(_within(d, d, noise.of(what)) for what, d in found.differences.items())
    return Row("half the size", same, worst[0] if worst else "everything bit-identical")


def _row(
    what: str,
    found: comparing.Difference,
    in_double: comparing.Difference | None,
    again: comparing.Difference,
    noise: comparing.Difference,
) -> Row:
    if found.worst is None:
        return Row(what, True, f"{found.compared} bit-identical")
    exactly = None if in_double is None else in_double.worst or 0.0
    if exactly is not None and exactly < comparing.ROUNDING:
        return Row(what, True, f"{found.compared} equal up to rounding ({found.worst:.1e}; in float64 {exactly:.1e})")
    if _within(found, again, noise):
        sizes = f"{noise.worst:.1e}; the file {max(found.worst, again.worst or 0.0):.1e}"
        return Row(what, True, f"{found.compared} equal up to the original's own noise ({sizes})")
    repeated = ", and not at all in a second comparison" if again.worst is None else ""
    closer = "it does not run in float64" if exactly is None else f"in float64 by {exactly:.1e}"
    return Row(what, False, f"{found.where} differs by {found.worst:.1e} ({closer}{repeated})")
