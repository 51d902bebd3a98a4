"""The Python interface: `plan`, `rematerialize` and `compare`, in the words of the command line.

    plan = remat_codegen.plan(model, inputs, budget="50%")
    plan.write("gpt2_remat.py")
    model = plan.module()

The model is planned on a copy that shares its parameters; it is left as it was, and so is PyTorch's random state.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from remat_codegen.ask.batch import at_largest_batch
from remat_codegen.ask.budget import Budget, check_units, format_bytes, parse_budget, parse_budgets
from remat_codegen.ask.live_model import device_of, given_target, spec_of, without_plan
from remat_codegen.ask.request import EDITIONS, LOSSES, PLANNERS, Request, default_output
from remat_codegen.ask.target import check_has_data, place_of
from remat_codegen.errors import RematError, VersionWarning
from remat_codegen.files import write_atomically
from remat_codegen.profile.devices import Device
from remat_codegen.readback.summary import BlockSummary
from remat_codegen.readback.tables import shown
from remat_codegen.run import comparison, in_memory
from remat_codegen.run.comparison import Compared
from remat_codegen.run.in_memory import Made, imported
from remat_codegen.run.planning import lower_bound, peak_of
from remat_codegen.run.priced import priced
from remat_codegen.run.traced import Traced, trace_loaded
from remat_codegen.show import picture
from remat_codegen.show.memory import picture as memory_picture
from remat_codegen.show.notebook import progress_for
from remat_codegen.show.plan_tables import compare_tables
from remat_codegen.show.results import OtherPlan, Progress, percent, report_table
from remat_codegen.show.tables import Picture, Shown, folded, html_of, source_html

AUTOCAST = ("bfloat16", "float16")
LARGEST_SEED = 2**63 - 1

__all__ = ["BlockSummary", "ComparedPlan", "Comparison", "OtherPlan", "RematPlan", "compare", "plan", "rematerialize"]


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class RematPlan:
    """A model's training step within a budget, and the file that takes it. Sizes are in bytes.

    `peak_bytes` is the planned peak of a step's own work, `unmodified_peak_bytes` that of the step without recomputation.
    `overhead` is the planned extra time over that step, 0.12 for 12 %; `bound` is an overhead that no plan within the budget
    can beat, None where none is known. `blocks` has a row for each block of the model: what it keeps, forgets and computes
    again. `source` is the file's text, `notes` are what there is to know of it.

    Of several budgets, all of this is of the least, and of several batch sizes of the largest; `others` has for each of the
    other plans its `budget_bytes`, `peak_bytes`, `overhead` and `bound`, and its `batch`, None where these are for budgets.
    """

    budget_bytes: int
    peak_bytes: int
    unmodified_peak_bytes: int
    overhead: float
    bound: float | None
    planner: str
    status: str
    blocks: tuple[BlockSummary, ...]
    source: str
    notes: tuple[str, ...]
    others: tuple[OtherPlan, ...]
    _model: torch.nn.Module = field(repr=False)
    _name: str = field(repr=False)
    _made: Made = field(repr=False)

    def write(self, path: str | os.PathLike[str]) -> Path:
        """Writes the file, all of it or nothing, and returns its path. Raises RematError where it cannot be written."""
        write_atomically(Path(path), self.source)
        return Path(path)

    def module(self) -> torch.nn.Module:
        """The model with training steps that keep to the budget: what `rematerialize(model)` of the written file returns.

        Where the file has a table, that is the model itself, whose training steps are then others; where it has functions, a
        module that shares the model's parameters, buffers and modules. It has the same `state_dict`, and is in the same mode.
        Another plan's table that the model has goes.
        To save it as a whole (pickle), write the file and import it.
        """
        with _as_it_was(str(device_of(self._model))):  # a file that is carried may seed, when it is imported
            generated = imported(self.source, self._name)
        found: torch.nn.Module = generated.rematerialize(without_plan(self._model))
        return found

    def explain(self) -> Shown:
        """What the plan does, block by block or row by row: the table that `remat-codegen explain` prints."""
        return Shown(tuple(shown(self._made.explanation)))

    def memory(self) -> Picture:
        """A picture of the memory over a step's time, with the plan and without, as the simulator sees it."""
        return Picture(memory_picture(*self._made.curves, self.budget_bytes))

    def __repr__(self) -> str:
        others = ", ".join(f"{other.label} ({percent(other.overhead)})" for other in self.others)
        return (
            f"<RematPlan of {type(self._model).__name__}: {format_bytes(self.peak_bytes)} of "
            f"{format_bytes(self.unmodified_peak_bytes)} within {format_bytes(self.budget_bytes)}, "
            f"overhead {percent(self.overhead)}, by {self.planner}{f'; also for {others}' if others else ''}>"
        )

    def __str__(self) -> str:
        """The table that the command line ends with."""
        return str(Shown((report_table(self._made.report),)))

    def _repr_html_(self) -> str:
        lines = self.source.count("\n")
        parts = [html_of(report_table(self._made.report)), self.memory().svg]
        parts.append(folded("what is rebuilt", self.explain()._repr_html_()))
        parts.append(folded(f"{self._name}.py, {lines:,} lines", source_html(self.source)))
        return "".join(parts)


@dataclass(frozen=True, slots=True)
class ComparedPlan:
    """One planner at one budget. `overhead`, `peak_bytes` are None where it finds no plan; `bound` is None where none is known;
    `minimum_bytes` is the smallest budget known to work where this one does not. `seconds` is how long planning took."""

    planner: str
    budget: str
    budget_bytes: int
    status: str
    overhead: float | None
    bound: float | None
    peak_bytes: int | None
    minimum_bytes: int | None
    seconds: float


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Comparison:
    """Planners side by side, over budgets. `rows` are by planner, then by budget; iterating gives them."""

    unmodified_peak_bytes: int
    rows: tuple[ComparedPlan, ...]
    _compared: Compared = field(repr=False)

    def __iter__(self) -> Iterator[ComparedPlan]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def plot(self, path: str | os.PathLike[str] | None = None) -> Picture:
        """Overhead over memory, a line for each planner, with the lower bound. Written to `path` (.svg or .png) if given.

        Raises RematError where matplotlib is missing, or the file cannot be written.
        """
        file = Path("plot.svg") if path is None else Path(path)
        picture.check_picture(file)
        if path is not None:
            write_atomically(file, picture.draw(self._compared, file))
        return Picture(picture.draw(self._compared, Path("plot.svg")).decode())

    def __repr__(self) -> str:
        planners = len(self._compared.outcomes)
        return f"<Comparison of {planners} planners at {len(self._compared.budgets)} budgets for {self._compared.found.label}>"

    def __str__(self) -> str:
        """The tables that `remat-codegen compare` prints."""
        return str(Shown(tuple(compare_tables(self._compared))))

    def _repr_html_(self) -> str:
        return "".join(html_of(part) for part in compare_tables(self._compared))


def plan(
    model: torch.nn.Module,
    inputs: Any = None,
    *,
    budget: str | int | Sequence[str | int],
    planner: str | None = None,
    device: str | torch.device | None = None,
    batch: int | str | Sequence[int] | None = None,
    dynamic: str | Sequence[str] = (),
    static: bool = False,
    autocast: str | torch.dtype | None = None,
    loss: str | None = None,
    seed: int = 0,
    time_limit: float | None = None,
    edition: int | None = None,
    cache: bool = True,
    progress: bool | None = None,
) -> RematPlan:
    """Plans a model's training step within a memory budget.

    Args:
        model: the model, built; in training mode, its modules are planned in the modes they are in.
        inputs: what `forward` is called with, of the shapes that training has: a tuple of arguments, a dict of keyword
            arguments, one tensor, or a text like "idx=int64[4,512]<50257". If not given, what `example_inputs()` returns, a
            method of the model or a function beside its class.
        budget: "1GiB", "800MiB", a number of bytes, or "40%" of the unmodified step's peak. Parameters, their gradients,
            buffers and the inputs do not count. Several give one file with a plan for each, which takes the largest that its
            GPU has room for (on a CPU, the least); the figures are those of the least, and `others` those of the others.
        planner: who decides what is recomputed, as `--planner`.
        device: where the model trains; where it lies if not given. Or the name of a GPU that need not be there, like "h100":
            costs are then estimated (docs/devices.md).
        batch: another batch size than that of `inputs`, as `--batch`. Several, like [32, 16, 8], give one file with a plan for
            each, of which a step takes that of the least batch that its inputs fit into; the figures are those of the largest,
            and `others` those of the others.
        dynamic: sizes that may differ from call to call, like "idx.0". A file with marks takes all sizes, and one of functions
            other batch sizes where the model can be traced with that, and smaller sizes for which the model's own forward is
            within the budget.
        static: whether training steps of other sizes than those of `inputs` are refused.
        autocast: what `torch.autocast` casts to where the model is called: "bfloat16", "float16", or that dtype.
        loss: what is computed of the outputs, as `--loss`: "cross-entropy", "none" (the gradient of the outputs comes from
            elsewhere, and is all that is counted), "sum", or "model": forward returns its loss. If not given, "model" where all
            that forward returns and takes a gradient goes into a number that it returns, else "cross-entropy".
        seed: seeds inputs that a text describes.
        time_limit: how long measuring and planning may take, in seconds: the best plan so far. Where it is short, operations
            are timed less often than usual; what memory they need is measured all the same.
        edition: of the generated file, as `--edition`.
        cache: whether measured costs are remembered, and those of earlier runs used.
        progress: shown or not; if not given, in notebooks and on terminals.

    Raises:
        RematError: what the caller can put right, in one line: a budget that is too small (with the smallest one that works), a
            model that cannot be traced, inputs that do not fit.
    """
    request = _request(
        model,
        inputs,
        device,
        seed,
        cache,
        budget=_budgets(budget),
        planner=planner,
        batch=_batch(batch),
        dynamic=dynamic if isinstance(dynamic, str) else ",".join(dynamic),
        static=static,
        autocast=_autocast(autocast),
        loss=_loss(loss),
        time_limit=_seconds(time_limit),
        edition=edition,
    )
    shown = progress_for(progress)
    with _as_it_was(request.device):
        made = in_memory.make(request, _traced(model, inputs, request, shown), shown)
    report = made.report
    return RematPlan(
        budget_bytes=report.budget_bytes,
        peak_bytes=report.planned_peak_bytes,
        unmodified_peak_bytes=report.unmodified_peak_bytes,
        overhead=report.overhead,
        bound=report.bound,
        planner=report.planner,
        status=report.status,
        blocks=made.blocks,
        source=made.text,
        notes=report.notes,
        others=report.others,
        _model=model,
        _name=request.output_path.stem,
        _made=made,
    )


def rematerialize(
    model: torch.nn.Module,
    inputs: Any = None,
    *,
    budget: str | int,
    planner: str | None = None,
    device: str | torch.device | None = None,
    batch: int | str | Sequence[int] | None = None,
    dynamic: str | Sequence[str] = (),
    static: bool = False,
    autocast: str | torch.dtype | None = None,
    loss: str | None = None,
    seed: int = 0,
    time_limit: float | None = None,
    edition: int | None = None,
    cache: bool = True,
    progress: bool | None = None,
) -> torch.nn.Module:
    """A model like the given one whose training steps keep to a memory budget: `plan(...).module()`, which says what all of
    this means. It shares the parameters and buffers; outputs, gradients and random numbers are the same to the bit.

    Raises RematError, as `plan` does.
    """
    found = plan(
        model,
        inputs,
        budget=budget,
        planner=planner,
        device=device,
        batch=batch,
        dynamic=dynamic,
        static=static,
        autocast=autocast,
        loss=loss,
        seed=seed,
        time_limit=time_limit,
        edition=edition,
        cache=cache,
        progress=progress,
    )
    return found.module()


def compare(
    model: torch.nn.Module,
    inputs: Any = None,
    *,
    budgets: str | Iterable[str | int] = "10%..90%/9",
    planners: str | Iterable[str] | None = None,
    device: str | torch.device | None = None,
    loss: str | None = None,
    seed: int = 0,
    time_limit: float | None = None,
    cache: bool = True,
    progress: bool | None = None,
) -> Comparison:
    """Plans a model with each planner for each budget: extra times, lower bounds, planning times.

    Args:
        budgets: a list like ["40%", "1GiB"], or a text, "20%..90%/8": a range and a count.
        planners: names, all of them if not given.
        time_limit: for one plan, in seconds.

    The others are those of `plan`. Raises RematError, as `plan` does; a budget that is too small is a row without a plan.
    """
    wanted = parse_budgets(budgets) if isinstance(budgets, str) else tuple(dict.fromkeys(_budget(b) for b in budgets))
    if not wanted:
        raise RematError("there are no budgets to compare", hint='give some, like ["40%", "1GiB"] or "20%..90%/8"')
    given = PLANNERS if planners is None else planners.split(",") if isinstance(planners, str) else planners
    names = tuple(dict.fromkeys(_planner(name.strip()) for name in given))
    request, limit = _request(model, inputs, device, seed, cache, loss=_loss(loss)), _seconds(time_limit)
    shown = progress_for(progress)
    with _as_it_was(request.device):
        found = priced(_traced(model, inputs, request, shown), request, shown)
        compared = comparison.compare(found, wanted, names, shown, time_limit=limit)
    return Comparison(found.plain_bytes, tuple(_rows(compared)), compared)


# ---------------------------------------------------------------------------------------------- what the caller says


def _request(
    model: torch.nn.Module, inputs: Any, device: str | torch.device | None, seed: int, cache: bool, **options: Any
) -> Request:
    """What is asked for, in the command line's words; what is None is as it is there. Raises RematError for bad values."""
    if not isinstance(model, torch.nn.Module):
        raise RematError(f"the model is a {type(model).__name__}, not a torch.nn.Module")
    if not isinstance(seed, int) or not 0 <= seed <= LARGEST_SEED:
        raise RematError(f"{seed!r} is not a seed; it goes from 0 to 2**63 - 1")
    if options.get("planner") is not None:
        _planner(options["planner"])
    if options.get("edition") not in (None, *EDITIONS):
        raise RematError(f"there is no edition {options['edition']!r}; there are {' and '.join(map(str, EDITIONS))}")
    spec = spec_of(model)
    check_has_data(model, spec)
    where = place_of(str(device_of(model) if device is None else device))
    if isinstance(where, Device) and torch.cuda.is_available():
        what = "this process has a GPU, whose autograd would be disturbed by planning for one that is not there"
        raise RematError(what, hint=f"run remat-codegen --device {where.key}, or this where there is no GPU")
    words = {name: value for name, value in options.items() if value is not None}
    return Request(
        spec,
        output=default_output(spec),
        inputs=inputs if isinstance(inputs, str) else None,
        device=where.key if isinstance(where, Device) else str(where).removesuffix(":0"),
        seed=seed,
        cache=cache,
        given=True,
        **words,
    )


def _budgets(value: str | int | Sequence[str | int]) -> str:
    """One budget, or several, as the command line takes them."""
    if isinstance(value, str):
        check_units(value)
        return ",".join(budget.text for budget in parse_budgets(value))
    each: Sequence[Any] = value if isinstance(value, (list, tuple)) else [value]
    if not each:
        raise RematError("there is no budget", hint='give one, like "1GiB", or several, like ["8GiB", "16GiB"]')
    text = ",".join(_budget(one).text for one in each)
    check_units(text)
    return text


def _budget(value: str | int) -> Budget:
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise RematError(f"a budget is a text like '1GiB' or '40%', or a number of bytes, not {value!r}")
    return parse_budget(str(value))


def _batch(value: int | str | Sequence[int] | None) -> str | None:
    """One batch size, or several, as the command line takes them."""
    if value is None or isinstance(value, str):
        return value
    each: Sequence[Any] = value if isinstance(value, (list, tuple)) else [value]
    if not each or not all(type(size) is int and size > 0 for size in each):
        raise RematError(f"a batch is a number of rows, like 16, or several, like [32, 16, 8], not {value!r}")
    return ",".join(map(str, each))


def _planner(name: str) -> str:
    if name not in PLANNERS:
        raise RematError(f"{name!r} is no planner; they are {', '.join(PLANNERS)}")
    return name


def _autocast(value: str | torch.dtype | None) -> str | None:
    name = None if value is None else str(value).removeprefix("torch.")
    if name is not None and name not in AUTOCAST:
        raise RematError(f"autocast is {' or '.join(AUTOCAST)}, not {name}")
    return name


def _loss(name: str | None) -> str | None:
    if callable(name):
        raise RematError("loss says what is computed of the outputs in one word, not by a function", hint=", ".join(LOSSES))
    if name is not None and name not in LOSSES:
        raise RematError(f"{name!r} is no loss; they are {', '.join(LOSSES)}")
    return name


def _seconds(value: float | None) -> float | None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0):
        raise RematError(f"a time limit is a number of seconds above 0, not {value!r}")
    return value


# ---------------------------------------------------------------------------------------------- the work


def _traced(model: torch.nn.Module, inputs: Any, request: Request, progress: Progress) -> Traced:
    with progress.stage("load"):
        target = given_target(model, inputs, request.device_named, request.seed)
        target = at_largest_batch(target, request.batch)
    return trace_loaded(target, request, progress)


@contextlib.contextmanager
def _as_it_was(device: str) -> Iterator[None]:
    """PyTorch's random state is the same afterwards; libraries' warnings, which are of our own calls, are not shown. Under
    no_grad and inference_mode, too, gradients are taken in here."""
    where = torch.device(device)
    cuda = [where.index or 0] if where.type == "cuda" and torch.cuda.is_available() else []
    with torch.random.fork_rng(devices=cuda), warnings.catch_warnings(), torch.inference_mode(False), torch.enable_grad():
        warnings.simplefilter("ignore")
        warnings.simplefilter("default", VersionWarning)
        yield


def _rows(compared: Compared) -> Iterator[ComparedPlan]:
    found = compared.found
    bounds = [lower_bound(found, compared.least(i)) for i in range(len(compared.budgets))]
    for name, outcomes in compared.outcomes.items():
        for outcome, bound in zip(outcomes, bounds, strict=True):
            plan = outcome.plan
            peak = peak_of(found, outcome)
            figures = outcome.overhead(found.plain_ns), bound, peak, plan.minimum_bytes, round(outcome.seconds, 3)
            yield ComparedPlan(name, outcome.budget, outcome.budget_bytes, str(plan.status), *figures)
