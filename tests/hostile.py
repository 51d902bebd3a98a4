"""What the tests of hostile model files share: `holds` generates a file, and asserts that it parses, runs nothing that the
model did not run, and equals the original to the bit."""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import io
import itertools
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from emitted import droppable, emit, load, model_of, rebuilding

from remat_codegen.ask.target import read_source
from remat_codegen.verify.beside import compare

INIT = """    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.b = nn.Linear(4, 4)
"""
FORWARD = """    def forward(self, x):
        h = torch.tanh(self.a(x))
        return self.b(h.exp().sin())
"""
_numbers = itertools.count()


def source(top: str = "", bases: str = "nn.Module", init: str = INIT, forward: str = FORWARD, extra: str = "") -> str:
    """A model file with parts of it replaced."""
    return f"import torch\nfrom torch import nn\n{top}\nclass Model({bases}):\n{init}{forward}{extra}"


@dataclass
class Case:
    """A file, what in it is the model, and what the model is called with. `carried` is what is expected, None for either."""

    text: str | bytes
    carried: bool | None = True
    name: str = "Model"
    file: str = "hostile.py"
    args: tuple[Any, ...] = field(default_factory=lambda: (torch.randn(2, 4),))
    kwargs: dict[str, Any] = field(default_factory=dict)
    prints: bool = False


def imported(path: Path) -> ModuleType:
    """A user's file as a module, with what it prints swallowed."""
    name = f"hostile_{next(_numbers)}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    with contextlib.redirect_stdout(io.StringIO()):
        spec.loader.exec_module(module)
    return module


def holds(case: Case, folder: Path) -> str:
    """Generates a file for a case and asserts what must hold; returns the text."""
    path = folder / case.file
    path.write_bytes(case.text if isinstance(case.text, bytes) else case.text.encode("utf-8", "surrogatepass"))
    torch.manual_seed(0)
    module = getattr(imported(path), case.name)()
    model = model_of(module, case.args, case.kwargs)
    schedule = rebuilding(model.graph, set(droppable(model.graph)))
    text = emit(module, case.args, case.kwargs, model, schedule, read_source(path))
    ast.parse(text)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        generated = load(text, folder, f"generated_{next(_numbers)}")
    assert case.prints or printed.getvalue() == ""
    assert "forward" not in vars(generated.rematerialize(module))
    compared = compare(module, generated.rematerialize, case.args, case.kwargs)
    assert {what: d.where for what, d in compared.differences.items() if d.worst} == {}
    if case.carried is not None:
        assert case.carried == ("a class that wraps" not in text)
    return text
