"""Runs a generated file against its original: the same start, the same random numbers, several steps of an optimizer.

Compared after every step: outputs, the gradient of every parameter and input, buffers, parameters, and the generators' states.
In float32 on the CPU everything is expected to be bit-identical; where it is not, the same steps in float64 tell
rounding from a mistake.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode

from remat_codegen.errors import VerifyError
from remat_codegen.profile.memory import Peak, peak
from remat_codegen.profile.memory import free_bytes as free_bytes
from remat_codegen.torch_seam import pytree, tree_map
from remat_codegen.trace import Autocast
from remat_codegen.trace.attributes import computed_attributes
from remat_codegen.trace.training import Run, digests, seed_all

Left = list[tuple[str, str, Any]]  # kind, name and value of what a step leaves behind
OUT_OF_MEMORY = "OutOfMemoryError", "MemoryError", "can't allocate memory", "ALLOC_FAILED"  # the last: cuBLAS's and cuDNN's own
ROUNDING = 1e-9  # the largest relative difference in float64 that is put down to rounding


@dataclass(slots=True)
class Difference:
    """The largest difference found in one kind of thing, relative to its largest element; None while bit-identical."""

    compared: int = 0
    worst: float | None = None
    where: str = ""
    without_numbers: int = 0  # how many of those compared were nothing but NaN

    def add(self, name: str, ours: Any, theirs: Any) -> None:
        """Compares two leaves: tensors bit by bit, anything else by ==."""
        self.compared += 1
        self.without_numbers += _all_nan(theirs)
        if not (isinstance(ours, torch.Tensor) and isinstance(theirs, torch.Tensor)):
            same = ours is theirs or (type(ours) is type(theirs) and ours == theirs)
            self._note(name, None if same else float("inf"))
        elif ours.shape != theirs.shape or ours.dtype != theirs.dtype:
            self._note(name, float("inf"))
        elif not _equal(ours, theirs):
            self._note(name, _relative(ours, theirs))

    @property
    def all_nan(self) -> bool:
        """Whether there was no number to compare."""
        return 0 < self.compared == self.without_numbers

    def _note(self, name: str, size: float | None) -> None:
        if size is not None and (self.worst is None or size > self.worst):
            self.worst, self.where = size, name


def _all_nan(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.numel() > 0 and bool(value.isnan().all())


def _equal(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    """Whether two tensors are equal; where both are not a number, they are."""
    return torch.equal(ours, theirs) or bool(((ours == theirs) | (ours.isnan() & theirs.isnan())).all())


def _relative(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    wide = torch.complex128 if ours.is_complex() else torch.float64
    a, b = ours.to(wide), theirs.to(wide)
    unequal = ~((a == b) | (a.isnan() & b.isnan()))
    if not unequal.any():
        return 0.0
    difference = (a - b)[unequal].abs().max().item()
    return difference / max(a[a.isfinite()].abs().max().item() if a.isfinite().any() else 0.0, 1e-30)


@dataclass(slots=True)
class Comparison:
    """What several steps of two models differ in, and the most that the generated one held (bytes).

    `traces` are digests of what each step left behind and evaluation gave, of the original and of the
    generated model, where they were asked for. `alone` says why nothing was compared, where nothing was.
    """

    differences: dict[str, Difference] = field(default_factory=dict)
    peak: Peak = field(default_factory=lambda: Peak(0))
    traces: list[tuple[dict[str, str], dict[str, str]]] = field(default_factory=list)
    alone: str = ""

    def add_all(self, theirs: Left, ours: Iterable[tuple[str, str, Any]]) -> None:
        """Compares what steps of both left behind."""
        for what, name, left, right in _pairs(iter(theirs), iter(_on_host(ours))):
            self.of(what).add(name, left, right)

    def widen(self, other: Comparison) -> None:
        """Takes over what another comparison found to differ by more."""
        for what, found in other.differences.items():
            if found.worst is not None and found.worst > (self.of(what).worst or 0.0):
                self.differences[what] = found

    @property
    def measured_peak_bytes(self) -> int:
        """The peak in the bytes that budgets are promised in."""
        return self.peak.allocated_bytes

    def of(self, what: str) -> Difference:
        """The differences found in one kind of thing."""
        return self.differences.setdefault(what, Difference())

    @property
    def identical(self) -> bool:
        """Whether everything was equal to the bit."""
        return all(d.worst is None for d in self.differences.values())

    @property
    def without_numbers(self) -> tuple[str, ...]:
        """The kinds of things that were NaN throughout: that NaN stays NaN says nothing about a gradient."""
        return tuple(what for what, d in self.differences.items() if d.all_nan)

    @property
    def rounding(self) -> bool:
        """Whether no difference is larger than rounding in float64."""
        return all(d.worst is None or d.worst < ROUNDING for d in self.differences.values())


class FileFailure(Exception):
    """A generated file raised an error, its cause, where the original raised none."""

    def __init__(self, doing: str, error: Exception) -> None:
        super().__init__(f"{doing} fails: {said(error)}")
        self.__cause__ = self.error = error


def said(error: BaseException) -> str:
    """An error's type and the first line of what it says."""
    first = next((line for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {first}"[:300]


def is_out_of_memory(text: str) -> bool:
    """Whether what `said` gives of an error tells of too little memory: not each of them has a type of its own."""
    return any(words in text for words in OUT_OF_MEMORY)


@contextlib.contextmanager
def file_does(what: str) -> Iterator[None]:
    """In here, what a generated file raises is a FileFailure; out of memory is not its own."""
    try:
        yield
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        if is_out_of_memory(said(error)):
            raise MemoryError(said(error)) from error
        raise FileFailure(what, error) from error


def check_there(path: Path) -> ModuleSpec:
    """How a file is imported. Raises VerifyError where there is none, or it is of another kind."""
    spec = importlib.util.spec_from_file_location(f"_generated_{path.stem}", path)
    if spec is None or spec.loader is None or not path.exists():
        what = "is no .py file" if path.exists() else "no such file"
        raise VerifyError(what, where=str(path), hint="name a generated file")
    return spec


def load_generated(path: Path, budget_bytes: int | None = None) -> ModuleType:
    """Imports a generated file; of several budgets, its `rematerialize` takes the plan for `budget_bytes`, the least if not
    given. Raises VerifyError where it cannot be imported, was not generated by this package, or has no plan for so little."""
    spec = check_there(path)
    name = spec.name
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)  # type: ignore[union-attr]  # which was looked at
    except Exception as error:
        raise VerifyError(f"the file cannot be imported: {type(error).__name__}: {error}", where=str(path)) from error
    if not hasattr(module, "rematerialize"):
        raise VerifyError("not a file that remat-codegen wrote: it has no rematerialize()", where=str(path))
    if "budget" in inspect.signature(module.rematerialize).parameters:  # otherwise it would take one by what is free now
        table = _table_for(path, module.PLANS, budget_bytes)
        vars(module)["rematerialize"] = functools.partial(module.rematerialize, budget=table)
    return module


def _table_for(path: Path, budgets: Iterable[int], budget_bytes: int | None) -> int:
    """Which of its tables a file takes where so much is named: the one for the most that is not more."""
    least = min(budgets)
    if budget_bytes is not None and budget_bytes < least:
        what = f"the least budget that there is a plan for is {least:,} bytes, more than {budget_bytes:,}"
        raise VerifyError(what, where=str(path), hint=f"name that or more, --budget {least}")
    return least if budget_bytes is None else max(one for one in budgets if one <= budget_bytes)


def table_taken(generated: ModuleType) -> int | None:
    """The budget of the table that `load_generated` has a file take; None where it has just one, or takes one by itself."""
    named: int | None = getattr(generated.rematerialize, "keywords", {}).get("budget")
    return named


def compare(
    model: torch.nn.Module,
    rematerialize: Callable[[torch.nn.Module], torch.nn.Module],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    steps: int = 2,
    seed: int = 0,
    device: str = "cpu",
    autocast: Autocast = (),
    advance: Callable[[int, int], None] | None = None,
    make: Callable[[], torch.nn.Module] | None = None,
    traced: bool = False,
    alone: str = "",
    loss: str = "cross-entropy",
) -> Comparison:
    """Trains a copy of `model`, then a rematerialized copy, for some steps; the last one's peak is measured.

    One after the other, so that never more than one of them lies on the device; what the original leaves is held on the host.
    Both are called under `autocast`, and go back from `loss`. `make` makes the model anew where copies would not do. `traced`
    keeps digests of steps.
    `alone` says why there is nothing to compare with; so does the result where the original turns out not to fit.
    Raises VerifyError where the original fails, and FileFailure where only the generated file does.
    """
    own = make or (lambda: own_model(model, device))
    result, theirs = Comparison(alone=alone), _Trained()

    def told(done: int) -> None:
        if advance is not None:
            advance(done, 2 * steps)

    if not alone:
        try:
            theirs = _train_original(Run(own(), args, kwargs, autocast, loss), steps, seed, told, traced)
        except (MemoryError, torch.OutOfMemoryError) as error:
            result.alone, theirs = f"the original does not fit ({said(error)})", _Trained()
    collect(device)
    copied = own()
    with file_does("rematerialize()"):
        generated = Run(rematerialize(copied), args, kwargs, autocast, loss)
    del copied
    if not result.alone and theirs.keys != list(generated.model.state_dict()):
        hint = "name the model that the file is of, with its --init, or run `remat-codegen update`"
        raise VerifyError("the generated model's state_dict has other keys than the original's", hint=hint)
    for index in range(steps):
        told(steps + index)
        seed_all(seed + index)
        with file_does(f"step {index + 1}"):
            if index == steps - 1:
                generated.outputs = None  # of the step before: not a part of what this one holds
                collect(device)  # nor may what nobody holds any longer go away in the middle of it
                result.peak = peak(generated.step, device, generated.renew_frozen)
            else:
                generated.step()
        generated.note_generators()
        if not result.alone:
            result.add_all(theirs.steps[index], generated.state())
        if traced:
            result.traces.append((theirs.traces[index] if theirs.traces else {}, digests(generated.state())))
        generated.update()
    if theirs.evaluation is not None:
        _compare_evaluation(theirs, generated, result, seed)
    return result


@dataclass(slots=True)
class _Trained:
    """What the original's steps left behind, on the host. No `evaluation` where it cannot be evaluated with these inputs."""

    keys: list[str] = field(default_factory=list)
    steps: list[Left] = field(default_factory=list)
    traces: list[dict[str, str]] = field(default_factory=list)
    evaluation: Left | None = None


def _train_original(run: Run, steps: int, seed: int, told: Callable[[int], None], traced: bool) -> _Trained:
    found = _Trained(list(run.model.state_dict()))
    for index in range(steps):
        told(index)
        seed_all(seed + index)
        _step_of_original(run, index)
        run.note_generators()
        found.steps.append(_on_host(run.state()))
        found.traces += [digests(run.state())] if traced else []
        run.update()
    seed_all(seed)
    with contextlib.suppress(Exception):  # a model that is only ever trained, or that takes other inputs to be evaluated
        run.evaluate()
        found.evaluation = _on_host(run.results())
        found.traces += [digests(run.results())] if traced else []
    return found


def _on_host(left: Iterable[tuple[str, str, Any]]) -> Left:
    """The same with copies of tensors: later steps change what these were."""

    def held(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return value.detach().clone() if value.device.type == "cpu" else value.detach().cpu()

    return [(what, name, held(value)) for what, name, value in left]


def collect(device: str) -> None:
    """Frees what nobody holds any longer, on a device where little room may be."""
    if torch.device(device).type == "cuda":
        gc.collect()
        torch.cuda.empty_cache()


def _compare_evaluation(theirs: _Trained, generated: Run, result: Comparison, seed: int) -> None:
    """What both give in evaluation mode."""
    assert theirs.evaluation is not None
    seed_all(seed)
    try:
        generated.evaluate()
    except Exception as error:  # whatever the user's code raises, which it did not before
        result.of("evaluation").add(f"the generated model ({type(error).__name__})", None, error)
        return
    pairs = _pairs(iter(theirs.evaluation), iter(_on_host(generated.results())))
    for _, name, left, right in pairs:
        result.of("evaluation").add(name, left, right)
    if result.traces:
        result.traces.append((theirs.traces[-1], digests(generated.results())))


class OriginalFails(VerifyError):
    """The model itself fails, so that there is nothing to compare with. `said` is what it said."""

    def __init__(self, index: int, said: str) -> None:
        hint = "verify with a model and inputs that it can be trained with"
        super().__init__(f"the original itself fails in step {index + 1}: {said}", hint=hint)
        self.said = said


def _step_of_original(run: Run, index: int) -> None:
    """A step of the model itself. Raises OriginalFails where it does."""
    try:
        run.step()
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # whatever the user's code raises
        if is_out_of_memory(said(error)):
            raise MemoryError(said(error)) from error
        raise OriginalFails(index, said(error)) from error


def own_model(model: torch.nn.Module, device: str = "cpu") -> torch.nn.Module:
    """A copy of a model on a device, tensors of its hooks included. Raises VerifyError where it lets nobody copy it."""
    try:
        copied = copy.deepcopy(model, computed_attributes(model))
        return copied if device == "cpu" else copied.to(device)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # whatever the user's objects raise
        hint = "verify trains copies: have copy.deepcopy() work"
        raise VerifyError(f"the model cannot be copied: {said(error)}", hint=hint) from error


def halved(
    args: Any, kwargs: Any, expected: dict[str, Any], sizes: dict[str, Any], apart: bool = False, wrapped: bool = False
) -> tuple[Any, Any]:
    """Inputs with each size that may change halved, as far as the model takes it: the first half, or all over if `apart`.
    `expected` and `sizes` are a file's. If `wrapped`, integers stay below the least of these sizes: they may be the numbers of
    what there is half as many of now, as those of a graph's nodes are."""
    leaves, spec = pytree.tree_flatten((args, kwargs))
    shapes = iter([wanted[0] for wanted in expected.values() if isinstance(wanted, tuple)])
    halves = {name: max(least, planned // 2) for name, (least, planned, *_) in sizes.items()}

    def cut(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        for dimension, size in enumerate(next(shapes)):
            if isinstance(size, str):
                step = leaf.shape[dimension] // halves[size] if apart else 1
                places = torch.arange(halves[size], device=leaf.device) * step
                leaf = leaf.detach().index_select(dimension, places).requires_grad_(leaf.requires_grad)
        whole = not (leaf.is_floating_point() or leaf.is_complex() or leaf.dtype is torch.bool)
        return leaf.remainder(min(halves.values())) if wrapped and whole else leaf

    args, kwargs = pytree.tree_unflatten([cut(leaf) for leaf in leaves], spec)
    return args, kwargs


def _pairs(ours: Iterator, theirs: Iterator) -> Iterator[tuple[str, str, Any, Any]]:
    """What both steps left behind; None for what one of them did not: a gradient of an input, an entry of a given dict."""
    first, second = ({(what, name): value for what, name, value in found} for found in (ours, theirs))
    for what, name in dict.fromkeys((*first, *second)):
        yield what, name, first.get((what, name)), second.get((what, name))


def in_float64(model: torch.nn.Module, args: Any, kwargs: Any) -> tuple[torch.nn.Module, Any, Any]:
    """The same model and inputs in double precision."""

    def widen(leaf: Any) -> Any:
        floating = isinstance(leaf, torch.Tensor) and leaf.is_floating_point()
        return leaf.detach().double().requires_grad_(leaf.requires_grad) if floating else leaf

    args, kwargs = tree_map(widen, (args, kwargs))
    return doubled(own_model(model)), args, kwargs


def doubled(model: torch.nn.Module) -> torch.nn.Module:
    """The model itself, its tensors in double precision; a U-Net may call something of its own `double`."""
    return torch.nn.Module.double(model)


@contextlib.contextmanager
def double_throughout(generated: Any) -> Iterator[None]:
    """In here, what is cast to float32 becomes float64: normalisations cast, and a generated file names the type.

    `generated`, a module, refuses no other types in here than it was planned for.
    """
    usual = torch.get_default_dtype()
    with contextlib.ExitStack() as changes:
        for check in ("check_call", "check_dtypes"):
            changes.enter_context(mock.patch.object(generated, check, lambda *given: None, create=True))
        for kind, name in (("Step", "go_on"), ("Part", "repeat")):  # of either edition; autograd calls it outside of modes
            if (method := getattr(getattr(generated, kind, None), name, None)) is not None:
                changes.enter_context(mock.patch.object(getattr(generated, kind), name, _widened(method)))
        changes.callback(torch.set_default_dtype, usual)
        torch.set_default_dtype(torch.float64)
        with _Widening():
            yield


def _widened(method: Callable[..., Any]) -> Callable[..., Any]:
    def in_float64(self: Any, *given: Any) -> Any:
        with _Widening():
            return method(self, *given)

    return in_float64


class _Widening(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = pytree.tree_map(lambda value: torch.float64 if value is torch.float32 else value, (args, kwargs or {}))
        return (torch.Tensor.double if func is torch.Tensor.float else func)(*args, **kwargs)
