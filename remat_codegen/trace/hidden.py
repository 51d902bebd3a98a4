"""What forward does beside its operations, which a trace would not show or would hold fast: random draws, attributes that it
sets, hooks, prints."""

from __future__ import annotations

import contextlib
import itertools
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn
from unittest import mock

import torch

from remat_codegen.errors import RematError, TraceError, UnsupportedError
from remat_codegen.torch_seam import (
    is_fake,
    is_hooked,
    made_by,
    plain_data,
    plain_requires_grad,
    plain_requires_grad_,
    pytree,
    trace_in_progress,
)
from remat_codegen.trace.chance import HIGHEST, LOWEST, force, own_generators, python_and_numpy
from remat_codegen.trace.ir import Origin, Trace, refs
from remat_codegen.trace.refusals import is_library, refused
from remat_codegen.trace.state import (
    ABSENT,
    HOOKS,
    PARAMETERS,
    Attributes,
    Seen,
    attributes_of,
    has_tensors,
    have_changed,
    hooks_of,
    note_leaf,
    put_back,
    put_hooks_back,
    set_attributes,
    without_data,
)

AGAIN = 2  # times that a forward pass is traced once more to see whether it comes out the same


def traced_alike(read: Callable[[Seen], Trace], module: torch.nn.Module) -> Trace:
    """What `read` traces. Raises UnsupportedError where that depends on what forward itself sets (a counter of its calls, the
    last hidden state), and TraceError where it depends on random numbers of Python or NumPy: a trace holds them. In a
    recorded run, they begin anew each time.

    Some models draw numbers that they do not use, or seed the generator themselves: those are traced again, and come out alike.
    """
    read = partial(_keeping_lists, read, module)
    before, held, seen, own = python_and_numpy(), attributes_of(module), Seen(), own_generators(module)
    hooks = hooks_of(module)
    try:
        found = read(seen)
    except RematError:  # which leaves what forward has set by then, tensors without data among it
        put_back(module, held)
        put_hooks_back(hooks)
        raise
    drawn = [name for name, state in python_and_numpy().items() if state != before.get(name, state)]
    hooked, has_hooks = have_changed(hooks), any(map(is_hooked, module.modules()))
    drawn += seen.drawn
    drawn_from = next((key[0] for key, state in own_generators(module).items() if state != own.get(key, state)), None)
    alike = not (drawn or hooked or seen.left()) or _alike_again(found, read, module, seen.left())
    alike = alike and (not drawn or found.run is not None or _alike_by_any_chance(found, read))
    set_attributes(module, {name: held.get(name, ABSENT) for name in (*seen.attributes, *seen.assigned)})
    put_hooks_back(hooks)
    if drawn_from is not None:
        hint = "draw with torch.rand, or from random or numpy.random themselves"
        raise UnsupportedError(f"forward draws from {drawn_from}, which no plan sets back", hint=hint)
    switched = [name.rpartition(".")[0] for name in seen.attributes if name.rpartition(".")[2] == "training"]
    if switched:
        hint = "do it in the model's own train()"
        raise UnsupportedError(f"forward switches {switched[0] or 'the model'} to another mode", hint=hint)
    if (taken := next((name for name in seen.taken if name in seen.attributes), None)) is not None:
        hint = "do that where the model is made, or call the model once there"
        raise UnsupportedError(f"forward takes the parameter {taken} away, and sets something else by its name", hint=hint)
    if not alike and drawn:
        hint = (
            "draw with torch.rand or torch.randint, which a plan draws again, or pass the numbers in; or plan the model with "
            "that switched off (transformers: config.apply_spec_augment = False): the file trains it with that on, too"
        )
        raise TraceError(f"forward draws from {drawn[0]}, whose numbers a trace would hold for good", hint=hint)
    if not alike:
        set_by_forward = [name for name in seen.left() if name not in seen.assigned]
        name, *_ = [*set_by_forward, *seen.assigned, "the set of hooks"]
        hint = "hold it in a buffer, or pass it in as a tensor" if seen.left() else "register them where the model is made"
        what = f"forward changes {name}, and computes with it: a trace would hold its value"
        if seen.left() and not has_tensors(seen.attributes.get(name)):
            hint += "; if only the first call does so, call the model once where it is made"
        if name in seen.assigned:
            hint = f"write into it instead: self.{name.rpartition('.')[2]}.copy_(...)"
            what = f"forward assigns to the buffer {name}, which the model holds under another name, too"
        raise UnsupportedError(what, hint=hint)
    if found.run is not None and drawn:
        found = replace(found, run=replace(found.run, lines=(*found.run.lines, f"forward, by {drawn[0]},")))
    assigned = tuple(dict.fromkeys(seen.names()))
    return replace(found, assigned=assigned, hooked=has_hooks, leaf_bytes=seen.leaf_bytes)


def _keeping_lists(read: Callable[[Seen], Trace], module: torch.nn.Module, seen: Seen) -> Trace:
    """Traces a model whose lists and dicts stay the objects that they are: torch.export puts copies in their places, and
    modules that share one would no longer."""
    own = {*HOOKS, *PARAMETERS}  # which export puts back itself
    attributes = ((vars(m), n, v) for m in module.modules() for n, v in vars(m).items() if n not in own)
    before = [(held, n, v) for held, n, v in attributes if type(v) in (list, dict)]
    try:
        return read(seen)
    finally:
        for held, name, value in before:
            now: Any = held.get(name)
            if now is not value and type(now) is type(value):
                contents = list(now) if isinstance(now, list) else dict(now)
                value.clear()
                value.extend(contents) if isinstance(value, list) else value.update(contents)
                held[name] = value


def _alike_again(found: Trace, read: Callable[[Seen], Trace], module: torch.nn.Module, left: Attributes) -> bool:
    """Whether the next forward passes are traced alike. torch.export puts back what forward set; here they go on from it."""
    for _ in range(AGAIN):
        set_attributes(module, without_data(left))
        seen = Seen()
        try:
            again = read(seen)
        except (TraceError, UnsupportedError) as error:
            return "fake" in str(error.__cause__).lower()  # a function has cached a tensor of the trace before
        if not _alike(found, again):
            return False
        left = seen.left()
    return True


def _alike_by_any_chance(found: Trace, read: Callable[[Seen], Trace]) -> bool:
    """Whether forward is traced alike where what it draws is small, and where it is large: it may decide by that once in a
    hundred times."""
    for word in (LOWEST, HIGHEST):
        force(word)
        try:
            again = read(Seen())
        except (TraceError, UnsupportedError):
            return False
        if not _alike(found, again):
            return False
    return True


def _alike(one: Trace, other: Trace) -> bool:
    """Whether two traces say the same, whatever their variables are called: a list that forward writes anew has tensors in the
    next call that nobody reads."""
    names = _names(one), _names(other)
    texts = [
        _VARIABLES.sub(partial(_renumbered, found), repr(t.operations)) for t, found in zip((one, other), names, strict=True)
    ]
    shapes = [[trace.variables[v].shape for v in found] for trace, found in zip((one, other), names, strict=True)]
    held = [[tensor for v, tensor in trace.constants if v in found] for trace, found in zip((one, other), names, strict=True)]
    same = len(held[0]) == len(held[1]) and all(a.equal(b) for a, b in zip(*held, strict=True))
    given = [[found[v] for v in refs(trace.outputs)] for trace, found in zip((one, other), names, strict=True)]
    return texts[0] == texts[1] and repr(shapes[0]) == repr(shapes[1]) and same and given[0] == given[1]


_VARIABLES = re.compile(r"(?<=variable=)\d+|(?<=results=\()[\d, ]+")


def _names(trace: Trace) -> dict[int, str]:
    """Names for what operations read or make, and for inputs, by variable: those of parameters and the like, else numbers."""
    used = {v for op in trace.operations for v in (*op.reads, *op.made)}.union(trace.inputs, refs(trace.outputs))
    numbers = itertools.count()
    told = ((v, v.path if v.origin not in (Origin.CONSTANT, Origin.RESULT) else "") for v in trace.variables if v.id in used)
    return {v.id: path or str(next(numbers)) for v, path in told}


def _renumbered(names: dict[int, str], found: re.Match[str]) -> str:
    return re.sub(r"\d+", lambda number: names.get(int(number[0]), number[0]), found[0])


def refused_calls() -> dict[Callable[..., Any], Callable[..., Any]]:
    """What takes the place of functions that do what no trace shows: of those that set PyTorch's generators, and of one that
    changes gradients."""

    def refusing(own: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if _asked_by_library():
                return own(*args, **kwargs)
            name = getattr(own, "__name__", "manual_seed")
            raise refused(f"torch.{name}() inside of forward sets a generator, which no trace shows")

        return call

    setting: list[Any] = [torch.manual_seed, torch.random.set_rng_state, torch.random.fork_rng]
    several = torch.autograd.graph.register_multi_grad_hook
    refused_here = {several: lambda *args, **kwargs: _refuse_gradients("register_multi_grad_hook()")}
    return {function: refusing(function) for function in setting} | refused_here


@contextlib.contextmanager
def no_switching(module: torch.nn.Module) -> Iterator[None]:
    """Refuses what switches a tensor's gradient on or off inside of forward, which a trace does not show.

    Switched on for what forward has made itself, it ends there, and nobody sees it where the outputs need gradients without it,
    too. The speech models of transformers do so, since reentrant checkpointing needs an input with gradient.
    """
    given: list[Any] = []
    switched: list[tuple[Any, UnsupportedError]] = []

    def enter(module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        attributes = [value for m in module.modules() for value in vars(m).values()]
        given[:] = [*pytree.tree_leaves((args, kwargs)), *module.parameters(), *module.buffers(), *attributes]

    def leave(_: torch.nn.Module, __: Any, outputs: Any) -> None:
        for output in pytree.tree_leaves(outputs):
            needs = switched and isinstance(output, torch.Tensor) and output.requires_grad
            if needs and not _trains(output, [tensor for tensor, _ in switched]):
                raise switched[0][1]

    def check(tensor: Any, value: bool) -> None:
        if plain_requires_grad.__get__(tensor) == value or _asked_by_library(3):
            return
        error = refused(f"requires_grad is set to {value} inside of forward, which no trace shows")
        made = is_fake(tensor) or made_by(tensor, trace_in_progress()) is not None
        if not value or not made or any(tensor is other for other in given):
            raise error
        switched.append((tensor, error))

    def put(tensor: Any, value: bool) -> None:
        check(tensor, value)
        plain_requires_grad.__set__(tensor, value)

    def switch(tensor: Any, requires_grad: bool = True) -> Any:
        check(tensor, requires_grad)
        found = plain_requires_grad_(tensor, requires_grad)
        note_leaf(found)
        return found

    torch.Tensor.requires_grad = property(plain_requires_grad.__get__, put)  # type: ignore[assignment]
    torch.Tensor.requires_grad_ = switch  # type: ignore[assignment, method-assign]
    hooks = module.register_forward_pre_hook(enter, with_kwargs=True), module.register_forward_hook(leave)
    try:
        yield
    finally:
        del torch.Tensor.requires_grad, torch.Tensor.requires_grad_
        for hook in hooks:
            hook.remove()


def _trains(output: torch.Tensor, switched: list[torch.Tensor]) -> bool:
    """Whether autograd goes from an output to anything but what forward has switched on."""
    if output.grad_fn is None:
        return not any(output is tensor for tensor in switched)
    seen, ahead = {output.grad_fn}, [output.grad_fn]
    while ahead:
        node = ahead.pop()
        variable = getattr(node, "variable", None)
        if variable is not None and not any(variable is tensor for tensor in switched):
            return True
        following = {n for n, _ in node.next_functions if n is not None} - seen
        seen |= following
        ahead += following
    return False


CHANGING_GRADIENTS: dict[Any, str] = {
    torch.Tensor.register_hook: "register_hook()",
    torch.Tensor.register_post_accumulate_grad_hook: "register_post_accumulate_grad_hook()",
    torch.Tensor.backward: "backward()",
    torch.autograd.grad: "torch.autograd.grad()",
    torch.autograd.backward: "torch.autograd.backward()",
}


def check_gradients_stay(function: Any) -> None:
    """Raises UnsupportedError for a function that changes or reads gradients."""
    if function in CHANGING_GRADIENTS:
        _refuse_gradients(CHANGING_GRADIENTS[function])


def _refuse_gradients(name: str) -> NoReturn:
    raise refused(f"{name} inside of forward changes or reads gradients, which no trace shows")


@contextlib.contextmanager
def only_plain_gradients() -> Iterator[None]:
    """Refuses what changes gradients without being an operation: a trace of the forward pass does not show it."""
    saving = torch.autograd.graph.saved_tensors_hooks
    usual = saving.__enter__

    def enter(hooks: Any) -> Any:
        if not str(getattr(hooks.pack_hook, "__module__", "")).startswith("torch."):
            raise refused("saved_tensors_hooks inside of forward change what autograd saves, which no trace shows")
        return usual(hooks)

    with mock.patch.object(saving, "__enter__", enter):
        yield


@contextlib.contextmanager
def traced_data() -> Iterator[None]:
    """Has `x.data`, which goes past the trace, traced: as `x.detach()` where it is read, as a copy into x where it is set.

    What differs: autograd notices changes made through `detach`, and raises an error where it needs what was there before.
    PyTorch's own code finds `data` as it is.
    """

    def get(tensor: Any) -> Any:
        return plain_data.__get__(tensor) if _asked_by_library() else tensor.detach()

    def put(tensor: Any, value: Any) -> None:
        alike = isinstance(value, torch.Tensor) and value.shape == tensor.shape and value.dtype == tensor.dtype
        if _asked_by_library() or not alike:
            plain_data.__set__(tensor, value)
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
