"""What --verify finds: a generated file beside the model that it came from, as rows of a report."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from remat_codegen import verify as comparing
from remat_codegen.budget import format_bytes
from remat_codegen.errors import VerifyError
from remat_codegen.inputs import parse_init
from remat_codegen.report import Progress, Row, Verification
from remat_codegen.target import Target, TargetKind
from remat_codegen.torch_seam import has_forward_hooks
from remat_codegen.trace import Autocast

STEPS = 2


@dataclass(frozen=True)
class _Trial:
    """A generated module, its target, and how that is loaded once more."""

    generated: Any
    target: Target
    load: Callable[[], Target]
    device: str
    seed: int

    @property
    def casts(self) -> Autocast:
        """What the model is called under."""
        casts = getattr(self.generated, "AUTOCAST", {})  # which the first versions' files do not have
        return tuple((t, dtype) for t, dtype in casts.items() if dtype is not None)

    def made_anew(self) -> Callable[[], torch.nn.Module] | None:
        """Makes the model, where functions may know it that a copy would share with it."""
        hooked = self.target.kind is not TargetKind.INSTANCE and any(map(has_forward_hooks, self.target.module.modules()))
        return (lambda: self.load().module) if hooked else None

    def compare(self, rematerialize: Callable[[torch.nn.Module], torch.nn.Module], **options: Any) -> comparing.Comparison:
        """The target and what `rematerialize` makes of it, step by step."""
        given: dict[str, Any] = {"model": self.target.module, "args": self.target.args, "kwargs": self.target.kwargs}
        given |= {"autocast": self.casts, "make": self.made_anew(), "seed": self.seed, "device": self.device}
        return comparing.compare(rematerialize=rematerialize, **(given | options))


def verification(
    file: Path, load: Callable[[], Target], device: str, seed: int, steps: int, progress: Progress
) -> Verification:
    """Trains the file and the model that `load` gives side by side. Raises VerifyError where there is nothing to compare."""
    trial = _Trial(comparing.load_generated(file), load(), load, device, seed)
    generated = trial.generated
    try:
        result = again = trial.compare(generated.rematerialize, steps=steps, advance=progress.update)
    except ValueError as error:
        if not _is_refused(error, file):
            raise
        raise VerifyError(str(error), where=str(file)) from error
    exact: comparing.Comparison | None = result
    if not result.identical:
        again = trial.compare(generated.rematerialize, steps=steps)
        exact = _in_float64(trial, steps)
    kinds = [(what, found, again.of(what)) for what, found in result.differences.items()]
    rows = [_row(what, found, None if exact is None else exact.of(what), repeated) for what, found, repeated in kinds]
    rows += [_own_class(trial)] if _has_own_class(trial) else []
    rows += [_at_other_sizes(trial)] if hasattr(generated, "SIZES") else []
    measured, budget = result.measured_peak_bytes, generated.BUDGET_BYTES
    rows.append(Row("peak within budget", measured <= budget, f"{format_bytes(measured)} of {format_bytes(budget)}"))
    return Verification(tuple(rows), measured, generated.PLANNED_PEAK_BYTES, budget, all(r.ok for r in rows), _notes(result))


def _is_refused(error: ValueError, file: Path | str) -> bool:
    """Whether a file's own checks have raised an error: it is for other inputs."""
    return Path(traceback.extract_tb(error.__traceback__)[-1].filename).resolve() == Path(file).resolve()


def _in_float64(trial: _Trial, steps: int) -> comparing.Comparison | None:
    """The same in float64, where a difference by rounding disappears; None for models that do not run so."""
    if any(p.dtype in (torch.bfloat16, torch.float16) for p in trial.target.module.parameters()):
        return None  # a file casts to these where it was traced so
    module, args, kwargs = comparing.in_float64(trial.target.module, trial.target.args, trial.target.kwargs)
    anew = trial.made_anew()
    make = None if anew is None else lambda: comparing.doubled(anew())
    given = {"args": args, "kwargs": kwargs, "make": make, "seed": trial.seed, "device": trial.device, "steps": steps}
    try:
        with comparing.double_throughout(trial.generated):
            return comparing.compare(module, trial.generated.rematerialize, **given)
    except VerifyError:
        return None


def _has_own_class(trial: _Trial) -> bool:
    return trial.target.kind is TargetKind.CLASS and hasattr(trial.generated, trial.target.class_name)


def _own_class(trial: _Trial) -> Row:
    """The file's own class, constructed as users do who have no original: it must make the same model."""
    what, name = "constructed by itself", trial.target.class_name
    args, kwargs = parse_init(trial.target.init_text)

    def construct(kind: Any) -> Callable[[torch.nn.Module], torch.nn.Module]:
        def made(model: torch.nn.Module) -> torch.nn.Module:
            torch.manual_seed(trial.seed)
            own = kind(*args, **kwargs).train().to(trial.device)
            own.load_state_dict(model.state_dict())
            return own

        return made

    def differences(kind: Any) -> str:
        """From the rematerialized original: that may differ from the original itself by rounding."""
        rematerialize, anew = trial.generated.rematerialize, trial.made_anew()
        make = None if anew is None else lambda: rematerialize(anew())
        try:
            found = trial.compare(construct(kind), steps=1, model=rematerialize(trial.target.module), make=make)
        except Exception as error:  # whatever the user's code raises
            return f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
        return next((f"{d.where} differs by {d.worst:.1e}" for d in found.differences.values() if d.worst is not None), "")

    said = differences(getattr(trial.generated, name))
    if said and differences(type(trial.target.module)):  # nor does the original make the same model twice
        return Row(what, True, f"not compared: {name}() is another model every time")
    return Row(what, not said, f"{name}(): {said}" if said else f"{name}() bit-identical")


def _notes(found: comparing.Comparison) -> tuple[str, ...]:
    if not found.without_numbers:
        return ()
    *others, last = found.without_numbers
    what = f"{', '.join(others)} and {last}" if others else last
    return (f"{what}: all NaN, in the original as well; this proves little, verify with a model and inputs that give numbers",)


def _at_other_sizes(trial: _Trial) -> Row:
    """The file with inputs of half the size, where that may change."""
    generated, target = trial.generated, trial.target

    def compared(apart: bool) -> comparing.Comparison:
        args, kwargs = comparing.halved(target.args, target.kwargs, generated.EXPECTED, generated.SIZES, apart)
        return trial.compare(generated.rematerialize, args=args, kwargs=kwargs, steps=1)

    try:
        found = compared(apart=False)
        if not found.identical:  # the half of a mask without padding, which the model leaves out: it rounds otherwise then
            with contextlib.suppress(VerifyError):
                found = compared(apart=True)
    except ValueError as error:
        if not _is_refused(error, generated.__file__):
            raise
        return Row("half the size", True, f"not compared: {error}")
    worst = [f"{d.where} differs by {d.worst:.1e}" for d in found.differences.values() if d.worst is not None]
    return Row("half the size", found.identical, worst[0] if worst else "everything bit-identical")


def _row(what: str, found: comparing.Difference, in_double: comparing.Difference | None, again: comparing.Difference) -> Row:
    if found.worst is None:
        return Row(what, True, f"{found.compared} bit-identical")
    exactly = None if in_double is None else in_double.worst or 0.0
    if exactly is not None and exactly < comparing.ROUNDING:
        return Row(what, True, f"{found.compared} equal up to rounding ({found.worst:.1e}; in float64 {exactly:.1e})")
    repeated = ", and not at all in a second comparison" if again.worst is None else ""
    closer = "it does not run in float64" if exactly is None else f"in float64 by {exactly:.1e}"
    return Row(what, False, f"{found.where} differs by {found.worst:.1e} ({closer}{repeated})")
