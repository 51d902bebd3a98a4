"""Copies from remat_codegen/runtime.py what a generated file needs of it, so that it exists once, typed and tested.

What is copied: the functions and classes whose names are used, and of the classes those methods that are called; and so on for
what those use.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import libcst as cst
import torch
from torch.nn.modules.lazy import LazyModuleMixin

from remat_codegen import runtime


@dataclass(frozen=True, slots=True)
class Uses:
    """What some code mentions: names, and the attributes it asks values for."""

    names: frozenset[str]
    attributes: frozenset[str]

    @staticmethod
    def of(code: str) -> Uses:
        """What `code` mentions. Raises SyntaxError if it is not Python."""
        nodes = list(ast.walk(ast.parse(code)))
        names = frozenset(n.id for n in nodes if isinstance(n, ast.Name))
        return Uses(names, frozenset(n.attr for n in nodes if isinstance(n, ast.Attribute)))


@dataclass(frozen=True, slots=True)
class _Piece:
    """A function, a class without its methods (`method` is ""), or a method."""

    name: str
    method: str
    code: str
    uses: Uses


@cache
def _statements() -> dict[str, cst.FunctionDef | cst.ClassDef]:
    module = cst.parse_module(Path(runtime.__file__).read_text(encoding="utf-8"))
    return {s.name.value: s for s in module.body if isinstance(s, (cst.FunctionDef, cst.ClassDef))}


def _code(*statements: cst.FunctionDef | cst.ClassDef) -> str:
    return cst.Module(body=statements).code


def _without(definition: cst.ClassDef, methods: frozenset[str]) -> cst.ClassDef:
    kept = [s for s in definition.body.body if not (isinstance(s, cst.FunctionDef) and s.name.value in methods)]
    return definition.with_changes(body=definition.body.with_changes(body=kept))


def _methods(definition: cst.FunctionDef | cst.ClassDef) -> dict[str, cst.FunctionDef]:
    """A class's methods that can be left out; those of a class that PyTorch calls cannot."""
    if not isinstance(definition, cst.ClassDef) or definition.bases:
        return {}
    found = [s for s in definition.body.body if isinstance(s, cst.FunctionDef)]
    return {s.name.value: s for s in found if not s.name.value.startswith("__")}


@cache
def _pieces() -> tuple[_Piece, ...]:
    found = []
    for name, statement in _statements().items():
        methods = _methods(statement)
        whole = _without(statement, frozenset(methods)) if isinstance(statement, cst.ClassDef) else statement
        code = _code(whole)
        found.append(_Piece(name, "", code, Uses.of(code)))
        found += [_Piece(name, m, "", Uses.of(_code(s.with_changes(leading_lines=())))) for m, s in methods.items()]
    return tuple(found)


def names_in(code: str) -> frozenset[str]:
    """The names that some code reads or sets."""
    return Uses.of(code).names


def names_lazy_layers(code: str) -> bool:
    """Whether code names layers of PyTorch's that get their weights when they are first called. What is no file, as a method
    alone, names none."""
    try:
        used = Uses.of(code)
    except SyntaxError:
        return False
    named = (getattr(torch.nn, name, None) for name in used.names | used.attributes)
    return any(isinstance(kind, type) and issubclass(kind, LazyModuleMixin) for kind in named)


def helper_names() -> frozenset[str]:
    """What runtime.py defines."""
    return frozenset(_statements())


def needed_helpers(used: Uses) -> list[str]:
    """The code of the definitions that `used` mentions, and of those that they need, in runtime.py's order."""
    wanted: set[_Piece] = set()
    names, attributes = set(used.names), set(used.attributes)
    while True:
        more = {p for p in _pieces() if p not in wanted and p.name in names and (not p.method or p.method in attributes)}
        if not more:
            break
        wanted |= more
        for piece in more:
            names |= piece.uses.names
            attributes |= piece.uses.attributes
    return [
        _written(name, frozenset(p.method for p in wanted if p.name == name)) for name in _statements() if _has(wanted, name)
    ]


def _has(wanted: set[_Piece], name: str) -> bool:
    return any(p.name == name and not p.method for p in wanted)


def _written(name: str, methods: frozenset[str]) -> str:
    statement = _statements()[name]
    if not isinstance(statement, cst.ClassDef):
        return _code(statement.with_changes(leading_lines=()))
    return _code(_without(statement, frozenset(_methods(statement)) - methods).with_changes(leading_lines=()))
