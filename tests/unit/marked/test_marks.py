"""What marks are called in the files of a model, and which of its expressions get one."""

from __future__ import annotations

import ast
import importlib.util
import sys

import pytest
import torch
from second_edition import found_in, traced_module

from remat_codegen.marked.marks import write_marks

SOURCE = """
import torch
from torch import nn
import torch.nn.functional as F

parts = 1


class Base(nn.Module):
    def helped(self, x):
        act = torch.sin(x)
        return act + 1


class Layer(Base):
    def __init__(self):
        super().__init__()
        self.gelu, self.wide = nn.GELU(), nn.Linear(4, 4)

    def forward(self, x):
        first = torch.sin(self.wide(x))
        act = torch.cos(first)
        gelu = torch.tanh(act)
        return self.helped(gelu)


class Alone(nn.Module):
    def forward(self, x):
        act = torch.exp(x)
        act = torch.cosh(act)
        return act * 2


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers, self.alone = nn.ModuleList([Layer(), Layer()]), Alone()

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return torch.relu(self.alone(x))
"""


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The marks of all that can be marked in a model, and its file."""
    path = tmp_path_factory.mktemp("marks") / "model_with_marks.py"
    path.write_text(SOURCE)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    model = module.Model()
    found = found_in(traced_module(model, (torch.randn(2, 4),), {}, path))
    children = {name: frozenset(m._modules) for name, m in model.named_modules()}
    everything = found.tree.vertices
    yield write_marks(found, everything, children), str(path), found
    del sys.modules[path.stem]


def called(marks, text):
    """What the expression `text` is called, at each place."""
    lines = SOURCE.split("\n")
    return [n for (_, s), n in marks.names.items() if lines[s[0] - 1][s[1] : s[3]] == text and s[0] == s[2]]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        pytest.param("torch.sin(self.wide(x))", "first", id="after the variable that it is assigned to"),
        pytest.param("torch.sin(x)", "act", id="also in a method that is inherited"),
        pytest.param("torch.tanh(act)", "tanh", id="after what it does, where a module has the variable's name"),
        pytest.param("torch.cos(first)", "cos", id="after what it does, where another method of these modules has that name"),
        pytest.param("torch.exp(x)", "act", id="of another module's it may be the same"),
        pytest.param("torch.cosh(act)", "cosh", id="of two with one variable the second is called after what it does"),
        pytest.param("act * 2", "mul", id="an operator is called after that"),
        pytest.param("torch.relu(self.alone(x))", "relu", id="what is returned is called after what it does"),
    ],
)
def test_what_a_mark_is_called(written, text, name):
    assert called(written[0], text) == [name]


def test_one_place_has_one_mark_however_often_it_is_evaluated(written):
    marks, _, found = written
    both = [v for v in found.tree.vertices if v.text is not None and v.text.module in ("layers.0", "layers.1")]
    assert len({v.text.module for v in both}) == 2
    assert len(called(marks, "torch.cos(first)")) == 1 and marks.texts[written[1]].count('"cos"') == 1


def test_a_module_s_call_needs_no_mark(written):
    marks, _, _ = written
    assert called(marks, "layer(x)") == called(marks, "self.alone(x)") == called(marks, "self.wide(x)") == []


def test_parts_has_a_name_that_is_free(written):
    marks, file, _ = written
    assert marks.parts != "parts" and f"{marks.parts}(self)" in marks.texts[file]


def test_a_file_with_marks_is_python(written):
    marks, file, _ = written
    assert set(marks.texts) == {file}
    ast.parse(marks.texts[file])


def test_methods_with_marks_are_told_once_with_their_classes(written):
    marks, file, _ = written
    names = [t.function.name for t in marks.methods[file]]
    assert names == ["Base.helped", "Layer.forward", "Alone.forward", "Model.forward"]
    assert marks.classes(file) == ("Base", "Layer", "Alone", "Model") and marks.classes("another.py") == ()


def test_without_anything_to_mark_there_is_no_text(written):
    _, _, found = written
    marks = write_marks(found, (), {})
    assert (marks.names, marks.texts, marks.parts, marks.methods) == ({}, {}, "parts", {})
