"""The user's own autograd.Functions: each call is one operation of the trace, whose backward is the user's.

torch.export goes through `forward`, and differentiates what it finds there. Here `Function.apply` calls an operation of
PyTorch's dispatcher, made for it, which runs the Function as it is, wherever the operation runs.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import inspect
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

import torch

from remat_codegen.errors import UnsupportedError
from remat_codegen.torch_seam import (
    DATA_DEPENDENT,
    PLAIN_APPLY,
    BackwardHook,
    CheckpointFunction,
    FunctionCalls,
    TorchDispatchMode,
    no_torch_function,
    proxy_tensor,
    pytree,
    schema,
    storage_key,
    version,
)
from remat_codegen.trace.chance import python_and_numpy
from remat_codegen.trace.checkpoints import run_reentrant
from remat_codegen.trace.refusals import refused

NAMESPACE = "remat_functions"
CONSTANTS = (bool, int, float, complex, str, type(None), torch.dtype, torch.memory_format, torch.layout)
_LIBRARY = torch.library.Library(NAMESPACE, "FRAGMENT")


@dataclass(frozen=True, slots=True)
class Place:
    """Where in a Function's arguments one of the operation's own stands."""

    index: int


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """What an operation runs: a Function, on `arguments`, in which a Place stands for each tensor and each size. `trained` says
    which of these had a gradient in the model."""

    function: Any
    arguments: tuple[Any, ...]
    trained: tuple[bool, ...]

    def given(self, values: Any) -> list[Any]:
        """The arguments, with the operation's own in their places."""
        return [values[a.index] if isinstance(a, Place) else a for a in self.arguments]


_CALLS: dict[str, FunctionCall] = {}  # by the name of the operation


def function_call(target: Any) -> FunctionCall | None:
    """What an operation runs, where that is a Function of the user's."""
    namespace, _, name = schema(target).name.partition("::")
    return _CALLS[name] if namespace == NAMESPACE else None


def called(target: Any) -> str:
    """What to call an operation in messages: GeLU.apply, or aten.linear.default."""
    call = function_call(target)
    return str(target) if call is None else f"{call.function.__qualname__}.apply"


@contextlib.contextmanager
def functions_as_operations() -> Iterator[None]:
    """In here, a call of an autograd.Function is traced as one operation.

    Raises UnsupportedError, naming the user's line, for what no operation can be made of.
    """

    with _CALLED.replaced():
        yield


def _traced(cls: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if cls is CheckpointFunction:
        return run_reentrant(*args)
    with _CALLED.own():
        _check(cls, args, kwargs)
        return _operation(cls, args)


def _refuse_vmap(cls: Any) -> NoReturn:
    raise refused(f"the autograd.Function {cls.__name__} is called inside of torch.vmap", "call it on whole batches")


_CALLED = FunctionCalls(_traced, _refuse_vmap)


def _check(cls: Any, args: tuple[Any, ...], kwargs: Any) -> None:
    """Refuses what cannot be called from a generated file, or has effects beside its results."""
    if cls is BackwardHook:
        raise refused("register_full_backward_hook() on a part of the model changes or reads gradients, which no trace shows")
    what = f"the autograd.Function {cls.__name__}"
    if "<locals>" in cls.__qualname__:
        raise refused(f"{what} is defined inside of a function, where no file can reach it", "define it at the top of its file")
    if _named_like(cls) is not cls:
        raise refused(f"{what} is not what its name stands for in its file", "give it a name of its own there")
    if cls.__module__.startswith("torch."):
        raise refused(f"{what} has a backward of its own, which no trace shows")
    if inspect.getattr_static(cls, "apply") is not PLAIN_APPLY:
        raise refused(f"{what} has an `apply` of its own, which no trace shows")
    other = [a for a in (*args, *kwargs.values()) if not isinstance(a, (torch.Tensor, torch.SymInt)) and not _is_constant(a)]
    if other or kwargs:
        hint = "give it tensors and plain numbers only, and call its module or function outside"
        kind = type(other[0]).__name__ if other else "keyword"
        kind = "fraction of a size that may change" if kind == "SymFloat" else kind
        raise refused(f"{what} is given a {kind}, which no file can hold", hint)


def _named_like(cls: Any) -> Any:
    """What a class's name leads to in its file."""
    found: Any = sys.modules.get(cls.__module__)
    for part in cls.__qualname__.split("."):
        found = getattr(found, part, None)
    return found


def _is_constant(value: Any) -> bool:
    """Whether a value is what its text says: an enumeration's, say, only compares equal to it."""
    if type(value) in (list, tuple):
        return all(map(_is_constant, value))
    return type(value) in CONSTANTS


def _operation(cls: Any, args: tuple[Any, ...]) -> Any:
    """Calls the operation that runs a Function on such arguments, which is made when it is first asked for."""
    places = [i for i, a in enumerate(args) if isinstance(a, (torch.Tensor, torch.SymInt))]
    template = tuple(Place(places.index(i)) if i in places else a for i, a in enumerate(args))
    with proxy_tensor.disable_proxy_modes_tracing(), no_torch_function():
        schema, tags = _tried(cls, args, places)
    trained = tuple(isinstance(args[i], torch.Tensor) and args[i].requires_grad for i in places)
    text = f"{cls.__module__}.{cls.__qualname__} {_source(cls)} {template} {trained} {schema} {tags}"
    name = f"function_{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    if name not in _CALLS:
        _LIBRARY.define(f"{name}{schema}", tags=tags)
        _LIBRARY.impl(name, lambda *given: _run(name, given), "CompositeImplicitAutograd")
    _CALLS[name] = FunctionCall(cls, template, trained)  # of the file as it was loaded last
    return getattr(getattr(torch.ops, NAMESPACE), name)(*(args[i] for i in places))


def _run(name: str, given: tuple[Any, ...]) -> Any:
    call = _CALLS[name]
    with _CALLED.own(), no_torch_function():
        return call.function.apply(*call.given(given))


def _source(cls: type) -> str:
    """The text of a Function and of those that it inherits from, as far as there is one."""
    found = []
    for kind in cls.__mro__:
        with contextlib.suppress(OSError, TypeError):
            found += [] if kind.__module__.startswith("torch.") else [inspect.getsource(kind)]
    return "\n".join(found)


class _Effects(TorchDispatchMode):
    """Whether something draws random numbers, from a generator of its own, or writes into what it has not made."""

    draws = own_generator = writes = False

    def __init__(self) -> None:
        super().__init__()
        self.made: dict[int, Any] = {}  # by id; held, so that no other gets the same one

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        """Runs the operation."""
        kwargs = kwargs or {}
        self.draws |= torch.Tag.nondeterministic_seeded in func.tags
        self.own_generator |= any(isinstance(a, torch.Generator) for a in (*args, *kwargs.values()))
        for place, argument in enumerate(schema(func).arguments):
            value = args[place] if place < len(args) else kwargs.get(argument.name)
            written = argument.alias_info is not None and argument.alias_info.is_write
            self.writes |= written and any(
                id(t) not in self.made for t in pytree.tree_leaves(value) if isinstance(t, torch.Tensor)
            )
        out = func(*args, **kwargs)
        self.made |= {id(t): t for t in pytree.tree_leaves(out) if isinstance(t, torch.Tensor)}
        return out


def _holds_tensors(value: Any) -> bool:
    """Whether there is a tensor in a structure of containers, objects and what functions close over."""
    ahead, seen = [value], set[int]()
    while ahead:
        here = ahead.pop()
        if isinstance(here, torch.Tensor):
            return True
        if id(here) in seen or isinstance(here, (type, types.ModuleType, torch.nn.Module)):
            continue
        seen.add(id(here))
        closed = isinstance(here, types.FunctionType)
        ahead += [cell.cell_contents for cell in here.__closure__ or ()] if closed else gc.get_referents(here)
    return False


def _tried(cls: Any, args: tuple[Any, ...], places: list[int]) -> tuple[str, tuple[Any, ...]]:
    """The schema of the operation, and its tags, from what a Function does with its arguments."""
    given = [args[i] for i in places]
    tensors = [t for t in given if isinstance(t, torch.Tensor)]
    versions = [version(t) for t in tensors]
    drawn = python_and_numpy()
    with _Effects() as seen:
        result = _run_without_data(cls, args)
    drawn_elsewhere = seen.own_generator or any(state != drawn.get(name, state) for name, state in python_and_numpy().items())
    changed = versions != [version(t) for t in tensors]
    _check_effects(f"the autograd.Function {cls.__name__}", drawn_elsewhere, changed, seen.writes)
    _check_results(f"the autograd.Function {cls.__name__}", result, tensors)
    results = result if isinstance(result, tuple) else (result,)
    names = {storage_key(t): chr(ord("a") + i) for i, t in enumerate(tensors)}
    shared = {names[key] for r in results if (key := storage_key(r)) in names}

    def written(t: torch.Tensor) -> str:
        name = names.get(storage_key(t), "")
        return f"Tensor({name})" if name in shared else "Tensor"

    taken = ", ".join(f"{written(a) if isinstance(a, torch.Tensor) else 'SymInt'} a{i}" for i, a in enumerate(given))
    made = ", ".join(map(written, results))
    tags = (torch.Tag.nondeterministic_seeded,) if seen.draws else ()
    return f"({taken}) -> {f'({made})' if isinstance(result, tuple) else made}", tags


def _run_without_data(cls: Any, args: tuple[Any, ...]) -> Any:
    """What a Function returns for tensors of a trace."""
    try:
        return cls.apply(*args)
    except DATA_DEPENDENT:
        raise
    except UnsupportedError:
        raise
    except Exception as error:  # whatever it calls raises without data
        said = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
        hint = "if it needs their numbers (a kernel of its own, NumPy), make that part a torch.library.custom_op"
        raise refused(f"the autograd.Function {cls.__name__} fails on tensors without data ({said})", hint) from error


def _check_effects(what: str, drawn_elsewhere: bool, changed: bool, writes: bool) -> None:
    """Refuses what would not happen again as it did, or would happen twice."""
    if drawn_elsewhere:
        hint = "draw with torch.rand or the like, which a plan draws again, or give it the numbers"
        raise refused(f"{what} draws from another generator than PyTorch's, which cannot be set back", hint)
    if changed:
        raise refused(f"{what} changes what it is given in place", "have it return a new tensor")
    if writes:
        raise refused(f"{what} writes into a tensor that stays, and would do so again", "have it return a new tensor")


def _check_results(what: str, result: Any, tensors: list[torch.Tensor]) -> None:
    """Refuses results that are no tensors, or share memory so that they cannot be forgotten each by itself."""
    results = result if isinstance(result, tuple) else (result,)
    alone = isinstance(result, tuple) and len(results) == 1
    if not results or alone or not all(isinstance(r, torch.Tensor) for r in results):
        raise refused(f"{what} returns something else than tensors", "have it return one tensor, or a tuple of several")
    if any(r is t for r in results for t in tensors):
        raise refused(f"{what} changes what it is given in place", "have it return a new tensor")
    if _holds_tensors([getattr(r.grad_fn, "__dict__", {}) for r in results]):
        raise refused(f"{what} holds tensors as attributes of ctx, where none can be forgotten", "use ctx.save_for_backward")
    given = {storage_key(t) for t in tensors}
    made = [storage_key(r) for r in results]
    if len(set(made)) < len(made):
        raise refused(f"{what} returns tensors that share their memory", "have it return a clone of one of them")
    if 0 < len(given.intersection(made)) < len(made):
        raise refused(f"{what} returns something new beside what it is given", "have it return x.clone()")
