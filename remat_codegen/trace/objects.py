"""What forward reads of the plain objects that its modules hold: configurations, as dataclasses, namespaces, dicts and lists.

While a trace runs, the classes of these objects note which attributes are read. Built-in types cannot: of a dict, a list or a
SimpleNamespace all that it holds counts.
"""

from __future__ import annotations

import contextlib
import copy
import enum
import functools
import inspect
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from remat_codegen.runtime import held, said
from remat_codegen.trace.caches import is_empty

KINDS = (bool, int, float, complex, str, type(None), torch.dtype, enum.Enum)
NAMED = (types.FunctionType, types.BuiltinFunctionType, type)
NO_OBJECTS = (*KINDS, *NAMED, nn.Module, torch.Tensor, types.ModuleType, types.MethodType)
CONTAINERS = (dict, list, tuple, types.SimpleNamespace)
COMPUTED = (property, functools.cached_property, types.FunctionType, types.MethodDescriptorType, classmethod, staticmethod)
LIBRARIES = sys.stdlib_module_names | {"torch", "numpy"}
MANY = 256  # entries of what is data, and no configuration
MISSING = object()


def is_setting(value: Any) -> bool:
    """Whether a text says what it is, the same one in every process."""
    if isinstance(value, (tuple, list)):  # an empty list is to be filled
        return value != [] and len(value) <= MANY and all(map(is_setting, value))
    return isinstance(value, KINDS) or (isinstance(value, NAMED) and value.__name__ != "<lambda>")


class Objects:
    """The plain objects that forward came across, and the names that it read of each, with what these were then."""

    def __init__(self) -> None:
        self._read: dict[int, tuple[Any, dict[str, str | None]]] = {}
        self._before: dict[int, tuple[Any, dict[str, Any]]] = {}  # what has attributes, with these as they were
        self._first: dict[tuple[int, str], Any] = {}  # torch.export leaves copies of dicts and lists
        self._undo: dict[type, Callable[[], None]] = {}

    def meet_in(self, module: nn.Module, name: str, value: Any) -> None:
        """The same of what a module holds."""
        self.meet(value)
        if id(value) in self._read:
            self._first.setdefault((id(module), name), value)

    def meet(self, value: Any) -> None:
        """Notes from here on what is read of `value`, if that is a plain object."""
        if isinstance(value, NO_OBJECTS) or id(value) in self._read or not _is_plain(type(value)) or is_setting(value):
            return
        self._read[id(value)] = (value, {})
        if type(value).__dictoffset__ != 0:
            self._before[id(value)] = (value, _contained(value))
        if isinstance(value, CONTAINERS):
            for name in _keys(value):
                self._note(value, name, held(value, name, MISSING))
        if _is_written_in_python(type(value)):
            self._watch(type(value))

    def forget_classes(self) -> None:
        """Leaves the classes as they were."""
        for undo in reversed(self._undo.values()):
            undo()
        self._undo.clear()

    def _watch(self, kind: type) -> None:
        if kind in self._undo:
            return
        own: Any = kind.__getattribute__

        def get(thing: Any, name: str) -> Any:
            value: Any = MISSING
            try:
                value = own(thing, name)
                return value
            finally:
                if id(thing) in self._read and not name.startswith("__") and not _is_computed(kind, name):
                    self._note(thing, name, value)

        inherited = "__getattribute__" not in vars(kind)
        try:
            kind.__getattribute__ = get  # type: ignore[method-assign, assignment]
        except (TypeError, AttributeError):  # a class that does not let itself be changed
            return
        self._undo[kind] = (
            functools.partial(type.__delattr__, kind, "__getattribute__")
            if inherited
            else functools.partial(type.__setattr__, kind, "__getattribute__", own)
        )

    def _note(self, thing: Any, name: str, value: Any) -> None:
        names = self._read[id(thing)][1]
        if name not in names:
            unknown = value is MISSING and hasattr(type(thing), "__getattr__")
            names[name] = None if unknown or not (value is MISSING or is_setting(value)) else _text(value)
        self.meet(value)

    def put_back(self) -> None:
        """Gives objects again what they had, as if forward had not run, where that are settings, or they hold tensors without
        data in its place, as a table that the first call makes."""
        for thing, before, now, changed in self._changed():
            if not all(is_empty(now.get(n)) or all(is_setting(of[n]) for of in (before, now) if n in of) for n in changed):
                continue
            for name in changed:
                with contextlib.suppress(Exception):  # it does not let itself be set
                    setattr(thing, name, before[name]) if name in before else delattr(thing, name)

    def moved(self) -> tuple[str, ...]:
        """The attributes that forward has set or changed, with the classes that these are of: `State.h`."""
        named = (f"{type(thing).__name__}.{name}" for thing, _, _, changed in self._changed() for name in changed)
        return tuple(dict.fromkeys(named))

    def _changed(self) -> Iterator[tuple[Any, dict[str, Any], dict[str, Any], list[str]]]:
        """Each object with what it had before and has now, and the names of what is another."""
        for thing, before in self._before.values():
            now = _contained(thing)
            yield thing, before, now, [
                n for n in {**before, **now} if not _is_same(before.get(n, MISSING), now.get(n, MISSING))
            ]

    def rows(self, module: nn.Module, names: Mapping[str, Any], left_out: set[str]) -> dict[str, dict[str, str]]:
        """By path: what was read of the objects that modules hold as `names`, and is as it was then."""
        rows: dict[str, dict[str, str]] = {}
        for path, part in module.named_modules():
            for name in names:
                if name not in left_out and name in vars(part):
                    value = self._first.get((id(part), name), vars(part)[name])
                    rows.update(self._rows_of(f"{path}.{name}".lstrip("."), value, ()))
        return {path: settings for path, settings in rows.items() if len(path.split()) == 1}  # a file parts paths by spaces

    def _rows_of(self, path: str, thing: Any, within: tuple[int, ...]) -> Iterator[tuple[str, dict[str, str]]]:
        if id(thing) not in self._read or id(thing) in within:
            return
        found = self._read[id(thing)][1]
        now = {name: held(thing, name, MISSING) for name in found}
        settings = {n: _text(now[n]) for n, text in found.items() if _is_kept(now[n], text)}
        if settings:
            yield path, settings
        for name, value in now.items():
            yield from self._rows_of(f"{path}.{name}", value, (*within, id(thing)))


def _contained(thing: Any) -> dict[str, Any]:
    """The attributes of an object, lists and dicts among them as copies."""
    return {
        n: copy.copy(v) if type(v) in (list, dict, set) else v for n, v in object.__getattribute__(thing, "__dict__").items()
    }


def _is_same(one: Any, other: Any) -> bool:
    """Whether an attribute is the same thing, or a list or dict with the same things in it."""
    if type(one) is not type(other) or type(one) not in (list, dict, set):
        return one is other or (is_setting(one) and is_setting(other) and _text(one) == _text(other))
    if isinstance(one, set):
        return one == other
    ones, others = ([*v.items()] if isinstance(v, dict) else [*enumerate(v)] for v in (one, other))
    return len(ones) == len(others) and all(a == b and x is y for (a, x), (b, y) in zip(ones, others, strict=True))


def _is_kept(value: Any, before: str | None) -> bool:
    """Whether a value is a setting, and no other than when it was first read."""
    if value is not MISSING and not is_setting(value):
        return False
    return before is None or before == _text(value)


def _text(value: Any) -> str:
    return "missing" if value is MISSING else said(value)


def _keys(thing: Any) -> list[str]:
    """The names of what a container holds, as far as a path can name them."""
    if isinstance(thing, types.SimpleNamespace):
        return list(vars(thing))
    if len(thing) > MANY:
        return []
    if isinstance(thing, dict):
        return [key for key in thing if isinstance(key, str) and key.isidentifier()]
    return [f"[{i}]" for i in range(len(thing))]


def _is_plain(kind: type) -> bool:
    return issubclass(kind, CONTAINERS) or kind.__module__ == "argparse" or kind.__module__.split(".")[0] not in LIBRARIES


def _is_written_in_python(kind: type) -> bool:
    return bool(kind.__flags__ & (1 << 9)) and not kind.__module__.startswith("collections")  # Py_TPFLAGS_HEAPTYPE


def _is_computed(kind: type, name: str) -> bool:
    """Whether a class computes an attribute, from others that are noted, too, or it is a method."""
    return isinstance(inspect.getattr_static(kind, name, None), COMPUTED)
