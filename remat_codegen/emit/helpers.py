"""Copies from remat_codegen/runtime.py what a generated file needs of it, so that it exists once, typed and tested."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import libcst as cst

from remat_codegen import runtime


@cache
def _definitions() -> dict[str, tuple[str, frozenset[str]]]:
    """The code of each definition of runtime.py, and the names it mentions."""
    module = cst.parse_module(Path(runtime.__file__).read_text(encoding="utf-8"))
    found = {}
    for statement in module.body:
        if isinstance(statement, (cst.FunctionDef, cst.ClassDef)):
            code = module.with_changes(header=(), footer=(), body=(statement,)).code
            found[statement.name.value] = code, names_in(code)
    return found


def names_in(code: str) -> frozenset[str]:
    """The names that some code reads or sets."""
    return frozenset(n.id for n in ast.walk(ast.parse(code)) if isinstance(n, ast.Name))


def helper_names() -> frozenset[str]:
    """What runtime.py defines."""
    return frozenset(_definitions())


def needed_helpers(used: frozenset[str]) -> list[str]:
    """The code of the definitions that `used` names, and of those that they need, in runtime.py's order."""
    wanted = set(used) & helper_names()
    while True:
        more = {n for w in wanted for n in _definitions()[w][1] if n in helper_names()} - wanted
        if not more:
            return [code for name, (code, _) in _definitions().items() if name in wanted]
        wanted |= more
