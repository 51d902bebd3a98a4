"""Shows that marks change nothing: a written file is traced with an empty table, and has to do what its model does."""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Iterator
from typing import Any

import torch

from remat_codegen.errors import RematError
from remat_codegen.trace import Trace, trace

NAME = "_marked_by_remat_codegen"  # of the module that the text is for as long as it is traced


def difference(text: str, module: torch.nn.Module, args: Any, kwargs: Any, original: Trace) -> str | None:
    """What the text of a file does otherwise than the model that it was written for; None where that is nothing.

    Both are traced on the same inputs, without data: each call of an operation has to be the same, with the same arguments.
    The table has to name what is there. `module` is left as it was.
    """
    try:
        with _left_as_it_was(module), _imported(text) as file:
            tables = [*file.PLANS.values()] if hasattr(file, "PLANS") else [file.PLAN]
            plans = [dict(table) for table in tables]
            for table in tables:
                table.clear()
            marked = file.rematerialize(module)
            for plan in plans:
                file.Table(marked, plan, [*module.modules()])
            _call_plainly(module, file.InstanceMethod)
            ours = trace(module, args, kwargs, original.autocast, recorded=original.run is not None)
    except (RematError, ValueError, TypeError, AttributeError, NameError) as error:
        return str(error).partition("\n")[0]
    return _first_difference(ours, original)


def _first_difference(ours: Trace, original: Trace) -> str | None:
    for mine, theirs in zip(ours.operations, original.operations, strict=False):
        if _call(mine) != _call(theirs) or not _in_one_module(mine.module_path, theirs.module_path):
            line = f" ({theirs.source.file}:{theirs.source.line})" if theirs.source is not None else ""
            return f"{theirs.base} is another call{line}"
    if len(ours.operations) != len(original.operations):
        return f"it makes {len(ours.operations)} calls instead of {len(original.operations)}"
    return None if ours.outputs == original.outputs else "it gives something else"


def _in_one_module(ours: str, theirs: str) -> bool:
    """Whether two paths are those of one module. Where a method is bound to its module, as ours are here, torch.export may know
    no more than the end of the path to a module without parameters that the method calls."""
    return ours == theirs or theirs.endswith(f".{ours}")


def _call(operation: Any) -> tuple[Any, ...]:
    settings = operation.grad_enabled, operation.autocast
    return operation.target, operation.args, operation.kwargs, operation.results, *settings


def _call_plainly(module: torch.nn.Module, kind: Any) -> None:
    """Sets the methods that a file runs where it has put objects that call them, for which a trace cannot look."""
    for owner in module.modules():
        for name, method in [(n, v) for n, v in vars(owner).items() if isinstance(v, kind)]:
            while isinstance(method, kind):
                method = method.__wrapped__
            vars(owner)[name] = method


@contextlib.contextmanager
def _imported(text: str) -> Iterator[Any]:
    """A file's text as a module."""
    found = types.ModuleType(NAME)
    sys.modules[NAME] = found
    try:
        exec(compile(text, f"<{NAME}>", "exec"), vars(found))
        yield found
    finally:
        del sys.modules[NAME]


@contextlib.contextmanager
def _left_as_it_was(module: torch.nn.Module) -> Iterator[None]:
    """Takes back what a file sets on the modules that it takes over."""
    before = [(m, dict(vars(m))) for m in module.modules()]
    try:
        yield
    finally:
        for owner, attributes in before:
            vars(owner).clear()
            vars(owner).update(attributes)
