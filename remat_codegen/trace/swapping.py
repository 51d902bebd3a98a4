"""Functions of libraries that do something else for a while, under whatever names modules hold them."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Container, Iterator, Mapping
from types import ModuleType
from typing import Any

NOT_SEARCHED = frozenset({"torch", *sys.stdlib_module_names})


@contextlib.contextmanager
def swapped(others: Mapping[Callable[..., Any], Callable[..., Any]]) -> Iterator[None]:
    """In here, modules hold `others[function]` where they held a function, as `from torch import manual_seed` has them do.

    PyTorch's own modules keep what they have, but those that users find it in. What holds a function otherwise (an attribute of
    an object, a default of a parameter) keeps it, too.
    """
    found = {id(function): (function, other) for function, other in others.items()}
    homes = {"torch", *(function.__module__ for function in others)}
    modules = [m for name, m in sys.modules.items() if isinstance(m, ModuleType) and _is_searched(name, homes)]
    holders = [m for m in modules if not found.keys().isdisjoint(map(id, vars(m).values()))]
    held = [(vars(m), name, *found[id(value)]) for m in holders for name, value in vars(m).items() if id(value) in found]
    for names, name, _, other in held:
        names[name] = other
    try:
        yield
    finally:
        for names, name, function, other in held:
            if names.get(name) is other:
                names[name] = function


def _is_searched(name: str, homes: Container[str]) -> bool:
    return name in homes or name.partition(".")[0] not in NOT_SEARCHED
