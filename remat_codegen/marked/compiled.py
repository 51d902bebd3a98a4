"""What of a model's code torch.compile makes: AOTAutograd decides what that keeps, and a mark in it would break its graph."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType
from typing import Any

import torch

from remat_codegen.marked.library import module_of
from remat_codegen.torch_seam import is_compiled
from remat_codegen.trace import Trace
from remat_codegen.trace.places import Function


def is_compiled_function(function: Function) -> bool:
    """Whether a file has a function compiled, under its name or another one, at its top or in a class there."""
    module = module_of(function.file)
    held = [] if module is None else [*vars(module).values()]
    classes = (kind for kind in held if isinstance(kind, type))
    return any(_is_made_of(thing, function) for thing in (*held, *(t for kind in classes for t in vars(kind).values())))


def _is_made_of(thing: Any, function: Function) -> bool:
    if not _is_compiled_one(thing):
        return False
    code = inspect.unwrap(thing).__code__
    return (code.co_filename, code.co_firstlineno) == (function.file, function.line)


def compiled_in(trace: Trace, module: torch.nn.Module) -> Iterator[str]:
    """What is compiled of what runs in a forward pass: functions, with their lines, and what modules have."""
    functions = dict.fromkeys(call.function for op in trace.operations for call in op.calls)
    yield from (f"{f.name} ({Path(f.file).name}:{f.line})" for f in functions if is_compiled_function(f))
    for path, inner in module.named_modules():
        yield from [path or type(inner).__name__] if is_compiled(inner) else ()
        names = (name for name, value in vars(inner).items() if name[0] != "_" and _is_compiled_one(value))
        yield from (f"{path}.{name}".lstrip(".") for name in names)


def _is_compiled_one(thing: Any) -> bool:
    return isinstance(thing, FunctionType) and is_compiled(thing)
