"""Functions of libraries that do something else for a while, under whatever names others hold them."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Iterator
from typing import Any


def own_copy(function: Any) -> Callable[..., Any]:
    """A function as it is now, whatever becomes of it."""
    copy = types.FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


@contextlib.contextmanager
def swapped(function: Any, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Iterator[None]:
    """In here, `function` is `make(a copy of it)`. It gets another code: `from torch.autograd import grad` and
    `swish = Swish.apply` have bound the function itself."""
    code = function.__code__
    name = f"_{function.__name__}_"
    function.__globals__[name] = make(own_copy(function))
    function.__code__ = _calling(name, code.co_freevars)
    try:
        yield
    finally:
        function.__code__ = code
        del function.__globals__[name]


def _calling(name: str, free: tuple[str, ...]) -> types.CodeType:
    """The code that calls a global. It has to close over as many variables as the code whose place it takes."""
    lines = [f"def outer({', '.join(free)}):", "    def inner(*args, **kwargs):"]
    lines += [f"        {', '.join(free)}"] if free else []
    lines += [f"        return {name}(*args, **kwargs)", "    return inner"]
    made: dict[str, Any] = {}
    exec(compile("\n".join(lines), __file__, "exec"), made)
    inner: types.FunctionType = made["outer"](*free)
    return inner.__code__
