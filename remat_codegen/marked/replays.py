"""Shows that parts compute the same when they run again: a written file trains two steps without data, then goes back.

A part may read more than it is given: what forward has set on a module since, an entry of a list, a global. Between a step's
forward pass and its way back that can become another thing, and no later check knows the first: so every operation of a run on
the way back has to be called with what it was called with first. The second step stands for all that may lie between.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import types
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from typing import Any
from unittest import mock

import torch

from remat_codegen.marked.changed import MOVING
from remat_codegen.torch_seam import (
    TorchDispatchMode,
    buffers_of,
    is_fake,
    parameters_of,
    pytree,
    storage_key,
    tree_map,
    version,
)
from remat_codegen.trace import Autocast, know_dataclasses
from remat_codegen.trace.attributes import computed_attributes
from remat_codegen.trace.caches import caches_as_before
from remat_codegen.trace.chance import beginning_anew
from remat_codegen.trace.reachable import may_change, reachable, tensors_in
from remat_codegen.trace.refusals import MARKED

OWN = "lose", "read", "keep", "copied"  # methods of places and parts that look at values, and run nothing of the model's
CONSTANT = {torch.ops.aten.lift_fresh.default, torch.ops.aten.lift_fresh_copy.default}  # of torch.tensor([0.1, 0.2])
ASIDE = {torch.ops.aten.detach.default, torch.ops.aten.equal.default}  # of the helpers themselves


CAPTURES = "is given a function that captures {}, which may be bound anew before the part runs again"
HIDES = "gives a function or an object that has a tensor in it where no part looks for one: it would stay in memory"


class Differs(RuntimeError):
    """A part computes something else when it runs again: `part`, as the table names it; empty where that is not known. With
    `refused`, it refuses to run, and says so itself."""

    def __init__(self, what: str, part: str = "", refused: bool = False) -> None:
        super().__init__(f"{part} {what}" if refused else f"{what} in {part}" if part else what)
        self.part, self.refused = part, refused


class Calls(TorchDispatchMode):
    """The operations that a run of a part calls, each with its arguments: tensors by where they come from.

    `given` are the part's inputs and the buffers that move, which are other tensors in each run; `expected` are the calls of
    the first run, which this one has to make, or the first of them. Raises Differs for another one.
    """

    def __init__(self, given: Iterable[Any] = (), expected: list[Any] | None = None) -> None:
        super().__init__()
        self.calls: list[Any] = []
        self.expected, self.held = expected, list[torch.Tensor]()
        self.known: dict[int, Any] = {}
        self.give(given)

    def give(self, given: Iterable[Any]) -> None:
        """Names what the part is given."""
        for number, tensor in enumerate(given):
            if isinstance(tensor, torch.Tensor):
                self._name(tensor, ("given", number))

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if func in ASIDE or _aside.get():
            return out
        said = self._value if func in CONSTANT else self._said
        self._note((func, *pytree.tree_map(said, (args, kwargs))))
        for number, leaf in enumerate(pytree.tree_leaves(out)):
            if isinstance(leaf, torch.Tensor):
                self._name(leaf, ("made", len(self.calls), number))
        return out

    def unseen(self, there: Iterable[torch.Tensor], seen: Iterable[torch.Tensor]) -> list[torch.Tensor]:
        """The tensors there that were made in this run, and are none of those `seen`."""
        known = set(map(storage_key, seen))
        made = (t for t in there if self.known.get(storage_key(t), ("",))[0] == "made")
        return [t for t in made if storage_key(t) not in known]

    def _note(self, call: Any) -> None:
        if self.expected is not None and self.expected[len(self.calls) : len(self.calls) + 1] != [call]:
            raise Differs(str(call[0].overloadpacket.__name__))
        self.calls.append(call)

    def _name(self, tensor: torch.Tensor, name: Any) -> None:
        self.held.append(tensor)  # so that no other gets its number
        self.known.setdefault(storage_key(tensor), name)

    def _said(self, leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return repr(leaf)
        place = storage_key(leaf)
        self.held.append(leaf)  # so that no other gets its number
        return self.known.get(place, place), leaf.shape, leaf.stride(), leaf.storage_offset(), leaf.dtype

    def _value(self, leaf: Any) -> Any:
        """A constant that Python makes anew each time, by its numbers."""
        new = isinstance(leaf, torch.Tensor) and not leaf.is_meta and storage_key(leaf) not in self.known
        return (leaf.tolist(), leaf.dtype) if new else self._said(leaf)


_aside: ContextVar[bool] = ContextVar("aside", default=False)  # whether the helpers' own operations run


def _aside_of_calls(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of the helpers', whose operations are none of a part's."""

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        token = _aside.set(True)
        try:
            return function(*args, **kwargs)
        finally:
            _aside.reset(token)

    return called


class Another:
    """Stands where forward has set an attribute. What it will be when a part runs again, nobody knows: reading it raises, and
    writing into it."""

    def __init__(self, name: str) -> None:
        vars(self)["name"] = name

    def read(self, *_: Any, **__: Any) -> Any:
        raise Differs(vars(self)["name"])

    __getattr__ = __bool__ = __float__ = __int__ = __index__ = __len__ = __iter__ = __getitem__ = __call__ = __eq__ = read
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __pow__ = __rpow__ = read
    __matmul__ = __rmatmul__ = __lt__ = __le__ = __gt__ = __ge__ = __ne__ = __neg__ = __contains__ = __torch_function__ = read
    __setitem__ = __delitem__ = __setattr__ = __delattr__ = read  # type: ignore[assignment]
    __hash__ = None  # type: ignore[assignment]


@contextlib.contextmanager
def _attributes_noted() -> Iterator[list[tuple[torch.nn.Module, str]]]:
    """Notes the attributes of modules that are set in here, but for modules, parameters and buffers."""
    found: list[tuple[torch.nn.Module, str]] = []
    usual = torch.nn.Module.__setattr__

    def noting(module: torch.nn.Module, name: str, value: Any) -> None:
        usual(module, name, value)
        if name in vars(module) and name != "training":
            found.append((module, name))

    with mock.patch.object(torch.nn.Module, "__setattr__", noting):
        yield found


def _versions(model: torch.nn.Module) -> dict[int, int]:
    """The version of each parameter, by its id."""
    return {id(p): version(p) for p in model.parameters()}


@contextlib.contextmanager
def _others_for(model: torch.nn.Module, before: dict[int, int]) -> Iterator[None]:
    """In here, parameters that have changed since, as those of a teacher that follows a student, or a temperature that is
    clamped, are others: parts refuse to run again where a second forward has changed what they may read. In training it comes
    after the first way back."""
    held = [parameters_of(m) for m in model.modules()]
    moved = [(d, n, p) for d in held for n, p in d.items() if p is not None and before.get(id(p), version(p)) != version(p)]
    others = {id(p): _copied(p) for _, _, p in moved}
    try:
        for parameters, name, parameter in moved:
            parameters[name] = others[id(parameter)]
        yield
    finally:
        for parameters, name, parameter in moved:
            parameters[name] = parameter


class Unseen(RuntimeError):
    """The steps cannot be run without data, or for no copy of the model."""


class Fails(RuntimeError):
    """The steps fail, with data."""


def difference(
    file: Any,
    module: torch.nn.Module,
    args: Any,
    kwargs: Any,
    autocast: Autocast,
    back: Callable[[Any], Any],
    table: tuple[str, int] | None = None,
    data: bool = False,
) -> Differs | None:
    """What of an imported file computes something else when it runs again, as "mul in blocks.0.exp"; None where nothing does.
    `back` gives the loss of outputs, and `table` names the table that is meant. With `data`, the steps are real ones, of
    copies. Raises Unseen where it cannot be seen, and Fails where real steps fail."""
    try:
        model, inputs = copied_with(data, module, args, kwargs)
    except Exception as error:
        raise Unseen(str(error)) from error
    try:
        alike = torch.jit.optimized_execution(False)  # a scripted function calls other operations once it was looked at
        left = contextlib.nullcontext() if data else caches_as_before(module)
        chance = contextlib.ExitStack()  # what is drawn in here is nobody's
        chance.enter_context(torch.random.fork_rng(enabled=data))
        chance.enter_context(beginning_anew())
        with warnings.catch_warnings(), alike, left, _watching(file) as hidden, chance:
            warnings.simplefilter("ignore")
            marked = file.rematerialize(model, **dict([table] if table else []))
            before = _versions(marked)
            first = forward_of(marked, inputs, autocast)
            _check_hidden(hidden, first)
            with _attributes_noted() as noted, _others_for(marked, before):
                forward_of(marked, inputs, autocast)
            for owner, name in noted:
                vars(owner)[name] = Another(name)
            back(first).backward()
    except Differs as found:
        return found
    except Exception as error:  # without data, operations may do less than with it
        raise (Fails if data else Unseen)(str(error) or type(error).__name__) from error
    return None


def forward_of(model: torch.nn.Module, inputs: Any, autocast: Autocast) -> Any:
    """What a model gives for copied inputs."""
    with contextlib.ExitStack() as casts:  # each cast anew, in both runs alike
        for device, dtype in autocast:
            casts.enter_context(torch.autocast(device, dtype=dtype, cache_enabled=False))
        args, kwargs = tree_map(lambda leaf: leaf, inputs)
        return know_dataclasses(model(*args, **kwargs))


def copied_with(data: bool, module: torch.nn.Module, args: Any, kwargs: Any) -> tuple[torch.nn.Module, Any]:
    """A copy of a module and of its inputs, with other tensors: without data, if not with `data`."""
    given = _copied if data else _empty
    tensors = [*module.parameters(), *module.buffers()]
    model = copy.deepcopy(module, computed_attributes(module) | {id(t): given(t) for t in tensors})
    return model, tree_map(given, (args, kwargs))


def _copied(leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return leaf
    found = leaf.detach().clone()
    return (
        torch.nn.Parameter(found, leaf.requires_grad)
        if isinstance(leaf, torch.nn.Parameter)
        else found.requires_grad_(leaf.requires_grad)
    )


def _empty(leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return leaf
    if is_fake(leaf):  # of a device that is not there: parts would not know results of each other again
        found = torch.empty_strided(leaf.size(), leaf.stride(), dtype=leaf.dtype, device="meta")
    else:
        found = torch.empty_like(leaf, device="meta")
    found.requires_grad_(leaf.requires_grad)
    return torch.nn.Parameter(found, leaf.requires_grad) if isinstance(leaf, torch.nn.Parameter) else found


@contextlib.contextmanager
def _watching(file: Any) -> Iterator[list[tuple[str, list[torch.Tensor]]]]:
    """In here, parts of a file note what they call, and compare it with their first run. Yields what each, by name, gives of
    what it has made where the helpers do not look for it."""
    noted: dict[int, tuple[Any, list[Any]]] = {}
    part_class, place_class = (getattr(file, helper(file, name)) for name in ("Part", "Place"))
    call_class = getattr(file, helper(file, "Call"), type(None)) if hasattr(file, "Step") else type(None)
    lent, hidden = dict[int, list[torch.Tensor]](), list[tuple[str, list[torch.Tensor]]]()
    first, again, gives, hold = part_class.first, part_class.as_before, part_class.gives, part_class.hold
    all_in, first_calls = getattr(file, helper(file, "_all")), dict[int, Calls]()
    is_counted = getattr(file, helper(file, "_is_counted"), lambda *_: False)

    @functools.cache
    def moved(model: torch.nn.Module | None) -> list[tuple[dict[str, Any], str]]:
        modules = model.modules() if model is not None else ()
        dicts = [(m, held) for m in modules for held in (buffers_of(m), parameters_of(m))]
        return [(held, name) for m, held in dicts for name in held if MOVING in held or is_counted(m, held, name)]

    def moving(part: Any) -> list[Any]:
        return [held.get(name) for held, name in moved(part.step.model())]

    def given_to(part: Any, inputs: Any, attributes: Iterable[tuple[Any, str, torch.Tensor]]) -> list[Any]:
        """The tensors that it has anew for each run, in objects too, but for those that are not copied for it."""
        return [*all_in(inputs, torch.Tensor, dict(part.as_are)), *(t for *_, t in attributes), *moving(part)]

    def holding(part: Any, run: Any, inputs: Any) -> Any:
        found, attributes = hold(part, run, inputs), part.step.set_so_far(part.entry.reads) if hasattr(part, "set") else ()
        if (calls := first_calls.pop(id(part), None)) is not None:
            calls.give(given_to(part, inputs, attributes))
        return found

    def noting(part: Any, run: Any, inputs: Any) -> Any:
        first_calls[id(part)] = calls = Calls()
        with calls:
            result = first(part, run, inputs)
        noted[id(part)] = part, calls.calls
        if (name := next(filter(None, map(may_change, _handed_on(run, inputs, call_class))), None)) is not None:
            raise Differs(CAPTURES.format(name), part.entry.name, refused=True)
        if not part.entry.inside:  # which keeps what it gives
            hidden.append((part.entry.name, calls.unseen(tensors_in((result, inputs)), lent.pop(id(part), []))))
        return result

    def lending(part: Any, result: Any, inputs: Any) -> Any:
        lent[id(part)] = given = gives(part, result, inputs)
        return given

    def comparing(part: Any, replay: Any, inputs: Any) -> Any:
        run, expected = part.run, noted[id(part)][1] if id(part) in noted else None
        attributes = [*getattr(part, "others", ())]

        def compared(*given: Any) -> Any:
            try:
                with Calls(given_to(part, given, attributes), expected):
                    return run(*given)
            except Differs as found:
                raise Differs(str(found), part.entry.name) from None

        part.run = compared
        try:
            return again(part, replay, inputs)
        finally:
            if part.run is compared:
                part.run = run

    with contextlib.ExitStack() as patched:
        patched.enter_context(mock.patch.object(part_class, "hold", holding))
        patched.enter_context(mock.patch.object(part_class, "first", noting))
        patched.enter_context(mock.patch.object(part_class, "as_before", comparing))
        patched.enter_context(mock.patch.object(part_class, "gives", lending))
        refused = lambda part, what: Differs(what, part.entry.name, refused=True)  # noqa: E731
        patched.enter_context(mock.patch.object(part_class, "error", refused))
        for owner, name, other in _without_own_operations(file, place_class, part_class):
            patched.enter_context(mock.patch.object(owner, name, other, create=True))
        yield hidden


def _without_own_operations(file: Any, place_class: Any, part_class: Any) -> list[tuple[Any, str, Any]]:
    """What helpers compare values with are operations, too: what to put in their place, by owner and name."""
    none = torch.zeros(0)
    looking = [(owner, name) for owner in (place_class, part_class) for name in OWN if hasattr(owner, name)]
    return [
        (place_class, "check", lambda *_: None),
        (file, helper(file, "_some"), lambda _: none),
        (file, helper(file, "CHECK"), False),
        *((owner, name, _aside_of_calls(getattr(owner, name))) for owner, name in looking),
    ]


def _check_hidden(hidden: list[tuple[str, list[torch.Tensor]]], outputs: Any) -> None:
    """Raises Differs for a part that gives tensors where the helpers do not look for any, but for what the model returns."""
    returned = set(map(storage_key, tensors_in(outputs)))
    for part, tensors in hidden:
        if any(storage_key(tensor) not in returned for tensor in tensors):
            raise Differs(HIDES, part, refused=True)
    hidden.clear()


def _handed_on(run: Any, inputs: Any, call: type) -> list[types.FunctionType]:
    """The functions that a part comes to but does not have as they were when it first ran: those that its code captures itself,
    or by such ones. The `call` of a module, which it has for parts within it, leads to all others."""
    frozen = [run]
    for function in frozen:  # which grows
        captured = [c.cell_contents for c in getattr(function, "__closure__", None) or () if c != types.CellType()]
        frozen += [f for f in captured if isinstance(f, types.FunctionType) and f not in frozen]
    there = reachable((getattr(run, "__closure__", None), inputs), call)
    return [f for f in there if isinstance(f, types.FunctionType) and f not in frozen]


def helper(file: Any, name: str) -> str:
    """What a helper is called in a file: where the user's own text, which stands before it, has the name, it has another."""
    names = [n for n in vars(file) if n.rstrip("_") == name]
    return max(names, key=lambda n: (_line(vars(file)[n]), len(n)), default=name)


def _line(thing: Any) -> int:
    """The last line of a file in which a function, or one of a class, begins; 0 for what is of elsewhere, or is neither."""
    functions = vars(thing).values() if isinstance(thing, type) else [thing]
    codes = [code for f in functions if isinstance(code := getattr(f, "__code__", None), types.CodeType)]
    return max([code.co_firstlineno for code in codes if code.co_filename == f"<{MARKED}>"], default=0)


def keyword_of(file: Any) -> str | None:
    """What names one of a file's tables, where it has several: budget or batch."""
    return next((name for name in ("budget", "batch") if name in inspect.signature(file.rematerialize).parameters), None)
