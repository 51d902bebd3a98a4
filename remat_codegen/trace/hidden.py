"""What forward does beside its operations, which a trace would not show or would hold fast."""

from __future__ import annotations

import contextlib
import copy
import inspect
import random
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from remat_codegen.errors import UnsupportedError
from remat_codegen.trace.ir import Trace
from remat_codegen.trace.refusals import is_library, refused

ABSENT = object()
AGAIN = 2  # times that a forward pass is traced once more to see whether it comes out the same


@dataclass
class Seen:
    """What forward changed while it was traced: in the dicts and lists that it was given, and among the `numbers` of modules,
    which are these afterwards."""

    written: list[str] = field(default_factory=list)
    numbers: dict[str, Any] = field(default_factory=dict)


def traced_alike(read: Callable[[Seen], Trace], module: torch.nn.Module) -> Trace:
    """What `read` traces. Raises UnsupportedError where that depends on random numbers of Python or NumPy, or on what forward
    itself sets (a counter of its calls): a trace holds them.

    Some models draw numbers that they do not use, or seed the generator themselves: those are traced again, and come out alike.
    """
    before, held, seen = _states(), _plain_attributes(module), Seen()
    found = read(seen)
    drawn = [name for name, state in _states().items() if state != before.get(name, state)]
    counted = {name: value for name, value in seen.numbers.items() if value != held.get(name)}
    if (drawn or counted) and not _alike_again(found, read, module, counted):
        hint = "draw with torch.rand or torch.randint, which a plan draws again, or pass the numbers in"
        if not drawn:
            hint = "hold it in a buffer, or pass it in as a tensor"
            raise UnsupportedError(
                f"forward changes {next(iter(counted))}, and computes with it: a trace would hold its value", hint=hint
            )
        raise UnsupportedError(f"forward draws from {drawn[0]}, whose numbers a trace would hold for good", hint=hint)
    _set_attributes(module, {name: held.get(name, ABSENT) for name in counted})
    public = [name for name in counted if not name.rpartition(".")[2].startswith("_")]
    return replace(found, assigned=tuple(dict.fromkeys((*found.assigned, *public, *seen.written))))


def _alike_again(found: Trace, read: Callable[[Seen], Trace], module: torch.nn.Module, counted: dict[str, Any]) -> bool:
    """Whether the next forward passes are traced alike. torch.export puts back what forward set; here they go on from it."""
    for _ in range(AGAIN):
        _set_attributes(module, counted)
        seen = Seen()
        if not _alike(found, read(seen)):
            return False
        counted = seen.numbers
    return True


def _set_attributes(module: torch.nn.Module, values: dict[str, Any]) -> None:
    for name, value in values.items():
        path, _, attribute = name.rpartition(".")
        own = vars(module.get_submodule(path))
        if isinstance(value, dict):  # others may hold it, too
            own[attribute].clear()
            own[attribute].update(value)
        elif isinstance(value, list):
            own[attribute][:] = value
        elif value is ABSENT:
            own.pop(attribute, None)
        else:
            own[attribute] = value


def _plain_attributes(module: torch.nn.Module) -> dict[str, Any]:
    """The numbers and texts that modules hold, and their dicts and lists of such."""
    modules = list(module.named_modules())
    held = [(f"{path}.{name}".lstrip("."), value) for path, m in modules for name, value in vars(m).items()]
    return {name: copy.copy(value) for name, value in held if _is_plain(value)}


def _is_plain(value: Any) -> bool:
    parts = value.values() if type(value) is dict else value if type(value) is list else (value,)
    return all(isinstance(part, (bool, int, float, str)) for part in parts)


def _alike(one: Trace, other: Trace) -> bool:
    same = [a.equal(b) for (_, a), (_, b) in zip(one.constants, other.constants, strict=False)]
    return repr(one.operations) == repr(other.operations) and all(same)


def _states() -> dict[str, Any]:
    states: dict[str, Any] = {"Python's random": random.getstate()}
    if "numpy" in sys.modules:
        kind, keys, *rest = sys.modules["numpy"].random.get_state()
        states["numpy.random"] = kind, keys.tobytes(), *rest
    return states


def assigned_attributes(said: Iterable[warnings.WarningMessage], module: torch.nn.Module) -> tuple[str, ...]:
    """The attributes that forward sets to tensors, by what torch.export says of them: it puts back what was there before.

    Not the lists of weights that recurrent networks keep: tracing swaps the parameters, and the lists follow them.
    """
    texts = [re.search(r"The tensor attributes? (.*) (?:was|were) assigned during export", str(w.message)) for w in said]
    names = [name.strip().removeprefix("self.") for found in texts if found for name in found[1].split(",")]
    recurrent = [path for path, part in module.named_modules() if isinstance(part, torch.nn.RNNBase)]
    lists = tuple(f"{path}._flat_weights[".lstrip(".") for path in recurrent)
    return tuple(name for name in dict.fromkeys(names) if not name.startswith(lists))


@contextlib.contextmanager
def watched(module: torch.nn.Module, seen: Seen) -> Iterator[None]:
    """Fills `seen` with what forward changes: in the dicts and lists that it is given, `batch["h"]`, and of its own numbers."""
    held = list[tuple[str, Any, Any]]()

    def before(module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        named = inspect.signature(module.forward).bind(*args, **kwargs).arguments
        held.extend((name, c, copy.copy(c)) for name, value in named.items() for name, c in _containers(name, value))

    def after(module: torch.nn.Module, args: Any, result: Any) -> None:
        seen.written.extend(part for name, container, copied in held for part in _changed(name, container, copied))
        seen.numbers.update(_plain_attributes(module))

    hooks = module.register_forward_pre_hook(before, with_kwargs=True), module.register_forward_hook(after)
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _containers(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """The dicts and lists in an argument, and how they are reached."""
    if isinstance(value, (dict, list)):
        yield name, value
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, (list, tuple)) else ()
    for key, part in parts:
        yield from _containers(f"{name}[{key!r}]", part)


def _changed(name: str, now: Any, before: Any) -> Iterator[str]:
    if isinstance(now, list):
        if [*map(id, now)] != [*map(id, before)]:
            yield name
        return
    keys = [k for k in {**before, **now} if now.get(k, held := object()) is not before.get(k, held)]
    yield from (f"{name}[{key!r}]" for key in keys)


@contextlib.contextmanager
def no_seeding() -> Iterator[None]:
    """Refuses what sets PyTorch's generators inside of forward, which a trace does not show."""
    names = ("manual_seed", "set_rng_state")
    places = [*((torch, n) for n in names), *((torch.random, n) for n in (*names, "fork_rng"))]
    before = [(owner, name, getattr(owner, name)) for owner, name in places]

    def refusing(name: str, own: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if is_library(sys._getframe(1).f_code.co_filename):
                return own(*args, **kwargs)
            raise refused(f"torch.{name}() inside of forward sets a generator, which no trace shows")

        return call

    for owner, name, own in before:
        setattr(owner, name, refusing(name, own))
    try:
        yield
    finally:
        for owner, name, own in before:
            setattr(owner, name, own)


@contextlib.contextmanager
def no_switching() -> Iterator[None]:
    """Refuses what switches a tensor's gradient on or off inside of forward, which a trace does not show."""
    own: Any = torch._C.TensorBase.requires_grad  # type: ignore[attr-defined]

    def check(tensor: Any, value: bool) -> None:
        if own.__get__(tensor) != value and not _asked_by_library(3):
            raise refused(f"requires_grad is set to {value} inside of forward, which no trace shows")

    def put(tensor: Any, value: bool) -> None:
        check(tensor, value)
        own.__set__(tensor, value)

    def switch(tensor: Any, requires_grad: bool = True) -> Any:
        check(tensor, requires_grad)
        return torch._C.TensorBase.requires_grad_(tensor, requires_grad)

    torch.Tensor.requires_grad = property(own.__get__, put)  # type: ignore[assignment]
    torch.Tensor.requires_grad_ = switch  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        del torch.Tensor.requires_grad, torch.Tensor.requires_grad_


@contextlib.contextmanager
def unchecked_distributions() -> Iterator[None]:
    """Lets torch.distributions take its arguments as they are: to check them is to decide something by a tensor's value, and
    changes nothing but whether an error is raised."""
    distribution = torch.distributions.Distribution
    before = distribution._validate_args
    distribution.set_default_validate_args(False)
    try:
        yield
    finally:
        distribution.set_default_validate_args(before)


@contextlib.contextmanager
def traced_data() -> Iterator[None]:
    """Has `x.data`, which goes past the trace, traced: as `x.detach()` where it is read, as a copy into x where it is set.

    What differs: autograd notices changes made through `detach`, and raises an error where it needs what was there before.
    PyTorch's own code finds `data` as it is.
    """
    own: Any = torch._C.TensorBase.data  # type: ignore[attr-defined]

    def get(tensor: Any) -> Any:
        return own.__get__(tensor) if _asked_by_library() else tensor.detach()

    def put(tensor: Any, value: Any) -> None:
        alike = isinstance(value, torch.Tensor) and value.shape == tensor.shape and value.dtype == tensor.dtype
        if _asked_by_library() or not alike:
            own.__set__(tensor, value)
            return
        with torch.no_grad():
            tensor.detach().copy_(value)

    torch.Tensor.data = property(get, put)  # type: ignore[assignment]
    try:
        yield
    finally:
        del torch.Tensor.data


def _asked_by_library(calls: int = 2) -> bool:
    """Whether the code that asks for something of a tensor is PyTorch's: so many calls up."""
    return is_library(sys._getframe(calls).f_code.co_filename)
