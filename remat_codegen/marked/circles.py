"""What forward leaves in objects that refer to one another: it stays until Python's garbage collector comes to it."""

from __future__ import annotations

import contextlib
import gc
import itertools
import sys
import types
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from remat_codegen.marked.replays import copied_with, forward_of
from remat_codegen.torch_seam import storage_key
from remat_codegen.trace import Autocast
from remat_codegen.trace.caches import caches_as_before
from remat_codegen.trace.chance import going_on
from remat_codegen.trace.refusals import is_library, short_path

LOOKED_AT = 200  # objects left behind, of which one is named


@dataclass(frozen=True)
class Circle:
    """The bytes of the tensors that one forward pass leaves behind, and what holds them."""

    size: int
    what: str


def left_in_circles(module: torch.nn.Module, args: Any, kwargs: Any, autocast: Autocast, data: bool) -> Circle | None:
    """What a forward pass of a copy leaves for the garbage collector; None where that is no tensor, or cannot be seen. Without
    `data`, nothing is computed."""
    with contextlib.suppress(Exception), warnings.catch_warnings(), torch.random.fork_rng(enabled=data), going_on():
        warnings.simplefilter("ignore")
        model, inputs = copied_with(data, module, args, kwargs)
        caches = contextlib.nullcontext() if data else caches_as_before(module)
        with caches, _garbage() as left, torch.no_grad():  # else a graph holds tensors, unseen
            forward_of(model, inputs, autocast)
        try:
            sizes = {storage_key(t): t.untyped_storage().nbytes() for t in left if isinstance(t, torch.Tensor)}
            return Circle(sum(sizes.values()), _holder_in(left)) if sizes else None
        finally:
            left.clear()
    return None


@contextlib.contextmanager
def _garbage() -> Iterator[list[Any]]:
    """Yields a list that has, afterwards, what was made in here and only refers to itself."""
    left, was_on, flags, frozen = list[Any](), gc.isenabled(), gc.get_debug(), gc.get_freeze_count()
    if frozen:
        gc.collect()  # else what is garbage by now would stay for good, see below
    gc.freeze()  # what was garbage before stays out of sight, too
    gc.disable()
    try:
        yield left
        before = len(gc.garbage)
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        left += gc.garbage[before:]
        del gc.garbage[before:]
    finally:
        gc.set_debug(flags)
        gc.unfreeze()
        if frozen:
            gc.freeze()  # as the user has done, with some more
        if was_on:
            gc.enable()


def _holder_in(left: list[Any]) -> str:
    """A function of a model's code that comes back to itself, else an object, else a frame."""
    there = {id(thing): thing for thing in left}
    named = ((thing, name) for name_of in (_function, _object, _frame) for thing in left if (name := name_of(thing)))
    for thing, name in itertools.islice(named, LOOKED_AT):
        if _comes_back(thing, there):
            return name
    return "what refers to itself"


def _comes_back(thing: Any, there: dict[int, Any]) -> bool:
    """Whether one of the objects `there`, by address, leads to itself by others."""
    known, ahead = set[int](), [thing]
    for found in ahead:  # which grows
        new = {id(held) for held in gc.get_referents(found)} & there.keys() - known
        known |= new
        ahead += [there[number] for number in new]
    return id(thing) in known


def _function(thing: Any) -> str:
    is_ours = isinstance(thing, types.FunctionType) and not is_library(thing.__code__.co_filename)
    return f"the function {thing.__name__} ({_place(thing.__code__)}), which captures itself," if is_ours else ""


def _object(thing: Any) -> str:
    kind = type(thing)
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    is_ours = file is not None and not is_library(file) and not issubclass(kind, torch.Tensor)
    return f"objects of the class {kind.__name__}, which refer to one another," if is_ours else ""


def _frame(thing: Any) -> str:
    is_ours = isinstance(thing, types.FrameType) and not is_library(thing.f_code.co_filename)
    return f"the exception in a variable of {thing.f_code.co_name} ({_place(thing.f_code)})" if is_ours else ""


def _place(code: types.CodeType) -> str:
    return f"{short_path(code.co_filename)}:{code.co_firstlineno}"
