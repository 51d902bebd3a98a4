"""Whether a name in a method of a library means in the marked file that has a copy of it what it means where that comes
from."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from remat_codegen.marked.library import needs

_NOTHING = object()
Alike = Mapping[str, frozenset[str]]


class Imported:
    """The names at the top of a file: the statement that binds each last, and what it gives. `written` are those that stand for
    something of a module, by its name and theirs there."""

    def __init__(self, tree: ast.Module, written: Mapping[str, tuple[str, str]] | None = None) -> None:
        self.statements: dict[str, ast.stmt] = {}
        self.values: dict[str, Any] = {}
        for statement in tree.body:
            for name, value in _bound(statement):
                self.statements[name], self.values[name] = statement, value
        for name, (module, kind) in (written or {}).items():
            if isinstance(self.statements.get(name), ast.FunctionDef):
                self.values[name] = getattr(sys.modules.get(module), kind, _NOTHING)

    def alike(self, module: str, file: str, methods: Mapping[str, Any]) -> Alike:
        """By name here: the names that its value has in a module, of those that these methods of it need."""
        there = vars(sys.modules[module]) if module in sys.modules else {}
        wanted = {n for method in methods for n in _needed(file, method)}
        return {
            name: frozenset(n for n in wanted if there.get(n, _NOTHING) is value)
            for name, value in self.values.items()
            if value is not _NOTHING
        }

    def wrong(self, alike: Alike, file: str, methods: Mapping[str, Any]) -> Iterator[tuple[ast.AST, str]]:
        """Where a name means another thing here than in the file that a method is from, and how to say so."""
        for method, function in methods.items():
            used = {n.id for n in ast.walk(function) if isinstance(n, ast.Name)} & set(self.statements)
            for name in _needed(file, method):
                if any(name in alike.get(n, ()) for n in used):
                    continue
                said = ast.unparse(self.statements[name]) if name in used else "nothing imported"
                yield self.statements.get(name, function), f"{said} is not the {name} that {method} needs"


def _needed(file: str, method: str) -> tuple[str, ...]:
    kind, _, name = method.rpartition(".")
    return needs(file, kind, name) or ()


def _bound(statement: ast.stmt) -> Iterator[tuple[str, Any]]:
    """The names that a statement binds, each with its value where that is imported."""
    if isinstance(statement, ast.ImportFrom):
        module = sys.modules.get(statement.module or "")
        yield from ((a.asname or a.name, getattr(module, a.name, _NOTHING)) for a in statement.names)
    elif isinstance(statement, ast.Import):
        whole = (
            (a.asname or a.name.partition(".")[0], a.name if a.asname else a.name.partition(".")[0]) for a in statement.names
        )
        yield from ((name, sys.modules.get(module, _NOTHING)) for name, module in whole)
    elif isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
        yield statement.name, _NOTHING
    else:
        stored = (n for n in ast.walk(statement) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
        yield from ((n.id, _NOTHING) for n in stored)
