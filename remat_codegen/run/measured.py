"""Plans written out and run, beside eager PyTorch and what comes with it: one process, interleaved steps, medians.

Beside the plans: eager PyTorch; `torch.utils.checkpoint` around each child of a ModuleList or Sequential; the same with
selective checkpointing that saves matrix products, convolutions and attention; `torch.compile` with its activation memory
budget. What cannot be had is listed with the reason. Every step starts from the same random state, so that gradients can be
compared.
"""

from __future__ import annotations

import copy
import gc
import shutil
import statistics
import tempfile
import time
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils import checkpoint as checkpointing

from remat_codegen.ask.request import LOSSES, Request
from remat_codegen.ask.target import Target
from remat_codegen.errors import RematError
from remat_codegen.graph.record import example_loss
from remat_codegen.profile.memory import peak_bytes
from remat_codegen.run.comparison import Compared, budget_text
from remat_codegen.run.pipeline import emit
from remat_codegen.run.planning import Outcome, saved_plan
from remat_codegen.run.priced import Priced
from remat_codegen.schedule.order import order_of
from remat_codegen.show.results import AS_WRITTEN, Progress
from remat_codegen.torch_seam import compiling_with
from remat_codegen.trace.attributes import computed_attributes
from remat_codegen.verify.beside import load_generated

COMPILED_BUDGETS = (0.8, 0.5, 0.2)
SAVED = ("mm", "addmm", "bmm", "baddbmm", "convolution", "_scaled_dot_product", "scaled_dot_product")
MANY = 256  # compiled copies of one model's code


@dataclass(slots=True)
class Runner:
    """Something that runs steps. `planned_*` are the simulator's, where there is a plan."""

    name: str
    model: Callable[..., Any]
    module: torch.nn.Module
    budget: str | None = None
    planned_ratio: float | None = None
    planned_peak_bytes: int | None = None
    loss: str = LOSSES[0]


def measure(compared: Compared, request: Request, runs: int, progress: Progress) -> list[dict[str, Any]]:
    """One row for each: `ratio` of the step to eager PyTorch's (median of `runs` interleaved steps), `peak_bytes`, `difference`
    of the gradients (relative to the largest element, 0 where bit-identical), or the `reason` why it could not be run."""
    assert compared.found.traced is not None
    traced = compared.found.traced
    beside = Beside(traced.target, request.device, traced.model.record.loss)
    with tempfile.TemporaryDirectory() as folder, progress.stage("measure"):
        makers = [*library(beside.target, beside.loss), *_plans(compared, request, Path(folder))]
        for done, maker in enumerate(makers):
            progress.update(done, len(makers))
            beside.add(*maker)
        beside.time(runs)
    return beside.rows


@dataclass(slots=True)
class Beside:
    """Ways to run one model, side by side, the first of which is eager PyTorch. `rows` are as `measure` gives them, `loss` is
    what steps go back from."""

    target: Target
    device: str
    loss: str = LOSSES[0]
    rows: list[dict[str, Any]] = field(default_factory=list)
    _ready: list[tuple[Runner, dict[str, Any]]] = field(default_factory=list)
    _expected: list[torch.Tensor | None] = field(default_factory=list)

    def add(self, name: str, budget: str | None, make: Callable[[], Runner]) -> dict[str, Any]:
        """Makes one, and measures its peak. Returns its row."""
        row: dict[str, Any] = {"name": name, "budget": budget}
        self.rows.append(row)
        try:
            runner = replace(make(), loss=self.loss)
            gradients = _gradients(runner, self.target)
            self._expected = self._expected or gradients
            row |= {"difference": _difference(gradients, self._expected), **_memory(runner, self.target, self.device)}
            self._ready.append((runner, row))
        except Exception as error:  # whatever a library does with this model
            row["reason"] = _reason(error)
        return row

    def time(self, runs: int) -> None:
        """Interleaved steps of all."""
        _time(self._ready, self.target, self.device, runs)


def _reason(error: Exception) -> str:
    line = next((text for text in str(error).splitlines() if text.strip()), "")
    return f"{type(error).__name__}: {line}"[:120] if not isinstance(error, NotAvailable) else line


class NotAvailable(RematError):
    """A way to run the model that does not exist for it, or on this machine."""


Maker = tuple[str, str | None, Callable[[], Runner]]


def _step(runner: Runner, target: Target) -> None:
    """A step whose caller has what the model returned until it ends, as plans assume and `verify` measures."""
    torch.manual_seed(0)
    returned = runner.model(*target.args, **target.kwargs)
    example_loss(returned, runner.loss).backward()


def _gradients(runner: Runner, target: Target) -> list[torch.Tensor | None]:
    """The gradients of one step, the first, which also warms up."""
    runner.module.zero_grad(set_to_none=True)
    _step(runner, target)
    found = [None if p.grad is None else p.grad.detach().clone() for p in runner.module.parameters()]
    for parameter in runner.module.parameters():  # gradients are there before a step that is measured
        parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
    return found


def _difference(ours: list[torch.Tensor | None], theirs: list[torch.Tensor | None]) -> float:
    worst = 0.0
    for a, b in zip(ours, theirs, strict=True):
        if (a is None) != (b is None):
            return float("inf")
        if a is not None and b is not None and not torch.equal(a, b):
            size = b.abs().max().item()
            worst = max(worst, (a - b).abs().max().item() / max(size, 1e-30))
    return worst


def _memory(runner: Runner, target: Target, device: str) -> dict[str, Any]:
    gc.collect()
    return {
        "peak_bytes": peak_bytes(lambda: _step(runner, target), device),
        "planned_ratio": runner.planned_ratio,
        "planned_peak_bytes": runner.planned_peak_bytes,
    }


def _time(ready: list[tuple[Runner, dict[str, Any]]], target: Target, device: str, runs: int) -> None:
    """Interleaved steps; ratios to the first runner, which is eager PyTorch."""
    seconds: list[list[float]] = [[] for _ in ready]
    for _ in range(runs + 1):  # the first round warms up
        for place, (runner, _row) in enumerate(ready):
            _synchronize(device)
            begin = time.perf_counter()
            _step(runner, target)
            _synchronize(device)
            seconds[place].append(time.perf_counter() - begin)
    medians = [statistics.median(found[1:]) for found in seconds]
    for (_, row), median in zip(ready, medians, strict=True):
        row |= {"ratio": round(median / medians[0], 4), "seconds": round(median, 6)}


def _synchronize(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)


# ---------------------------------------------------------------------------------------------- plans


def _plans(compared: Compared, request: Request, folder: Path) -> Iterator[Maker]:
    """Every different schedule of the comparison, under the first name that it has."""
    seen: set[tuple[int, ...]] = set()
    for name, outcomes in compared.outcomes.items():
        for number, outcome in enumerate(outcomes):
            if outcome.plan.schedule is None or name == AS_WRITTEN:  # that is the model itself
                continue
            order = order_of(outcome.plan.schedule)
            if order not in seen:
                seen.add(order)
                budget = budget_text(compared.found, compared.budgets[number])
                file = folder / f"{name.replace('-', '_')}_{number}.py"
                yield name, budget, partial(_planned, compared.found, outcome, request, file, name, budget)


def _planned(found: Priced, outcome: Outcome, request: Request, file: Path, name: str, budget: str) -> Runner:
    traced = found.traced
    assert traced is not None and outcome.plan.schedule is not None
    file.write_text(emit(traced, outcome.plan.schedule, saved_plan(found, outcome), request), encoding="utf-8")
    module = load_generated(file).rematerialize(own_copy(traced.target.module))
    ratio = 1 + (outcome.overhead(found.plain_ns) or 0.0)
    return Runner(name, module, module, budget, round(ratio, 4), outcome.plan.peak_bytes)


# ---------------------------------------------------------------------------------------------- PyTorch's own


def library(target: Target, loss: str = LOSSES[0]) -> list[Maker]:
    """Eager PyTorch, and what comes with it."""
    makers: list[Maker] = [
        ("PyTorch", None, lambda: _eager(target)),
        ("checkpoint per block", None, lambda: _checkpointed(target, None)),
        ("selective checkpoint", None, lambda: _checkpointed(target, _saves_products)),
    ]
    for share in COMPILED_BUDGETS:
        makers.append(("torch.compile", f"{share:g}", partial(_compiled, target, share, loss)))
    return makers


def own_copy(module: torch.nn.Module) -> torch.nn.Module:
    """A copy with buffers of its own that shares the parameters."""
    return copy.deepcopy(module, computed_attributes(module) | {id(p): p for p in module.parameters()})


def _eager(target: Target) -> Runner:
    module = own_copy(target.module)
    return Runner("PyTorch", module, module)


def _checkpointed(target: Target, policy: Callable[..., Any] | None) -> Runner:
    module = own_copy(target.module)
    blocks = list(_blocks(module))
    if not blocks:
        raise NotAvailable("the model has no ModuleList or Sequential of blocks")
    options: dict[str, Any] = {"use_reentrant": False}
    if policy is not None:
        options["context_fn"] = partial(checkpointing.create_selective_checkpoint_contexts, policy)
    for block in blocks:
        setattr(block, "forward", partial(checkpointing.checkpoint, block.forward, **options))  # noqa: B010 - one instance's
    return Runner("checkpoint", module, module)


def _blocks(module: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """The children of the outermost lists of modules, where these hold more than one operation."""
    for child in module.children() if not isinstance(module, _LISTS) else ():
        yield from _blocks(child)
    if isinstance(module, _LISTS):
        large = [c for c in module.children() if any(True for _ in c.children())]
        yield from large if len(large) > 1 else (b for c in large for b in _blocks(c))


_LISTS = (torch.nn.ModuleList, torch.nn.Sequential)


def _saves_products(context: Any, operation: Any, *args: Any, **kwargs: Any) -> Any:
    saved = str(operation).split(".")[1].startswith(SAVED) if "." in str(operation) else False
    policy = checkpointing.CheckpointPolicy
    return policy.MUST_SAVE if saved else policy.PREFER_RECOMPUTE


def _fresh_call(module: torch.nn.Module) -> Callable[..., Any]:
    """The module's call with a code object of its own: by that torch.compile finds what it compiled before, for any budget."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return module(*args, **kwargs)

    return types.FunctionType(call.__code__.replace(), call.__globals__, "call", None, call.__closure__)


def _compiled(target: Target, share: float, loss: str) -> Runner:
    """Compiled with a memory budget; by inductor where there is a C++ compiler, else by aot_eager, which only partitions."""
    backend = "inductor" if shutil.which("g++") or shutil.which("clang++") else "aot_eager"
    module = own_copy(target.module)
    with compiling_with(recompile_limit=MANY, activation_memory_budget=share):
        model = torch.compile(_fresh_call(module), backend=backend)
        example_loss(model(*target.args, **target.kwargs), loss).backward()  # compiles
    return Runner("torch.compile", model, module)
