"""What an object leads to, in whatever way it holds it: by its attributes, as an item of any container, in what a function
captures or a generator goes on with."""

from __future__ import annotations

import dis
import functools
import gc
import sys
from collections.abc import Iterator
from types import CellType, CodeType, FrameType, FunctionType, MethodType, ModuleType
from typing import Any

import torch

MOST = 2000  # objects that are looked into
CALLABLE = (FunctionType, MethodType, functools.partial)
_ELSEWHERE = (torch.nn.Module, type, ModuleType, CodeType, str, bytes, int, float, complex, type(None))


def reachable(thing: Any, *but: type) -> Iterator[Any]:
    """Tensors, functions and other objects, each once; not what modules hold, nor what autograd holds for tensors, nor what
    objects of some types do."""
    ahead, known = [thing], dict[int, Any]()  # which holds them, so that no other gets their numbers
    while ahead and len(known) < MOST:
        found = ahead.pop()
        if issubclass(type(found), (*_ELSEWHERE, *but)) or id(found) in known:  # a proxy may say that it is of another class
            continue
        known[id(found)] = found
        yield found
        if isinstance(found, CALLABLE):
            ahead += held_by_function(found)
        elif not isinstance(found, torch.Tensor):
            ahead += gc.get_referents(found)


def tensors_in(thing: Any) -> list[torch.Tensor]:
    """The tensors among these."""
    return [found for found in reachable(thing) if isinstance(found, torch.Tensor)]


def held_by_function(function: Any) -> list[Any]:
    """What a function has beside its arguments: defaults, what it captures, and what it is a method of."""
    if isinstance(function, functools.partial):
        return [*function.args, *function.keywords.values(), function.func]
    if isinstance(function, MethodType):
        return [function.__self__, function.__func__]
    cells = [cell for cell in function.__closure__ or () if cell != CellType()]  # some are not bound yet
    return [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values(), *(c.cell_contents for c in cells)]


def may_change(function: FunctionType) -> str | None:
    """A variable that a function captures and that may be bound anew after it was made, by the function that has the variable
    and still runs, or by one within that; None if there is none."""
    return next((name for name in function.__code__.co_freevars if _may_be_bound_anew(function.__code__, name)), None)


def _may_be_bound_anew(inner: CodeType, name: str) -> bool:
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        if name in frame.f_code.co_cellvars and inner in _within(frame.f_code):
            return _is_bound_anew(frame.f_code, inner, name)
        frame = frame.f_back
    return bool(_stores(inner, name))


@functools.lru_cache(maxsize=256)
def _within(code: CodeType) -> frozenset[CodeType]:
    """The code of the functions in one."""
    inner = [c for c in code.co_consts if isinstance(c, CodeType)]
    return frozenset(inner).union(*map(_within, inner))


@functools.lru_cache(maxsize=256)
def _is_bound_anew(outer: CodeType, inner: CodeType, name: str) -> bool:
    """Whether a variable of a function gets a value once a function within it is made: behind that, in a loop around that, or
    by what is within, too."""
    if any(name in code.co_freevars and _stores(code, name) for code in _within(outer)):
        return True
    instructions = list(dis.get_instructions(outer))
    codes = [(i.offset, i.argval) for i in instructions if isinstance(i.argval, CodeType)]
    made = min(offset for offset, code in codes if code == inner or inner in _within(code))
    back = [(i.argval, i.offset) for i in instructions if i.opcode in dis.hasjrel + dis.hasjabs and i.argval < i.offset]
    return any(
        made < offset or any(first <= offset <= last and made < last for first, last in back) for offset in _stores(outer, name)
    )


def _stores(code: CodeType, name: str) -> list[int]:
    """Where a function binds a variable that others see, too."""
    return [i.offset for i in dis.get_instructions(code) if i.opname in ("STORE_DEREF", "DELETE_DEREF") and i.argval == name]
