"""What of a model's code torch.compile makes: AOTAutograd decides what that keeps, and a mark in it would break its graph."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from pathlib import Path

import torch

from remat_codegen.marked.library import module_of
from remat_codegen.torch_seam import is_compiled
from remat_codegen.trace import Trace
from remat_codegen.trace.places import Function


def is_compiled_function(function: Function) -> bool:
    """Whether what a file has by the name of a function is compiled, by a decorator for instance."""
    found = reduce(lambda held, name: getattr(held, name, None), function.name.split("."), module_of(function.file))
    return is_compiled(found)


def compiled_in(trace: Trace, module: torch.nn.Module) -> Iterator[str]:
    """What is compiled of what runs in a forward pass: functions, with their lines, and modules."""
    functions = dict.fromkeys(call.function for op in trace.operations for call in op.calls)
    yield from (f"{f.name} ({Path(f.file).name}:{f.line})" for f in functions if is_compiled_function(f))
    yield from (path or type(m).__name__ for path, m in module.named_modules() if is_compiled(m))
