"""Whether a file's classes and functions are still what their text says, or something else has put others in their places."""

from __future__ import annotations

import ast
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType, MethodType, ModuleType
from typing import Any

import torch

LIBRARIES = (str(Path(torch.__file__).parent), sysconfig.get_path("stdlib"))


def is_patched(module: ModuleType, path: Path, source: str) -> bool:
    """Whether what a file defines at its top runs code of another of the user's files, or of another package's."""
    defined = [n for n in ast.parse(source).body if isinstance(n, (ast.ClassDef, ast.FunctionDef)) and not n.decorator_list]
    found = (getattr(module, n.name, None) for n in defined)
    return any(_is_foreign(f, path) for value in found for f in _functions_of(value))


def _functions_of(value: Any) -> Iterator[FunctionType]:
    """A function, or the methods of a class."""
    values = vars(value).values() if isinstance(value, type) else [value]
    for found in values:
        bound = isinstance(found, (MethodType, classmethod, staticmethod))
        parts = [found.fget, found.fset] if isinstance(found, property) else [found.__func__ if bound else found]
        yield from (p for p in parts if isinstance(p, FunctionType))


def _is_foreign(function: FunctionType, path: Path) -> bool:
    file = function.__code__.co_filename
    if file.startswith("<") or Path(file).resolve() == path.resolve():
        return False
    return not file.startswith(LIBRARIES) or ("-packages" in file and not file.startswith(LIBRARIES[0]))
