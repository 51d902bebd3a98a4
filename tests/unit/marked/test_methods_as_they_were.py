"""Methods of libraries that could mean something else in a generated file: they run there as they did, or are left out."""

from __future__ import annotations

import copy
import importlib
import itertools
import re
from pathlib import Path

import pytest
import torch
from emitted import load
from second_edition import trained
from test_methods_of_libraries import _marked, _problems, _step

HEAD = """
import functools
import math
import types

import torch
from torch import nn
from torch.nn import functional as F
"""
CLASS = """

class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

"""
# Classes that look at globals() are not carried over: methods are copied then.
MODEL = """

class Model(nn.Module):
    def __init__(self, *kinds):
        super().__init__()
        self.layers = nn.ModuleList(kind() for kind in kinds if globals())

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x
"""
TWO = "\n\ndef make():\n    return Model(Plain, Plain)\n"
OTHER = "\n\ndef make():\n    return Model(A, Plain)\n"
NUMBERS = itertools.count()


def forward(factor, given="x"):
    return f"    def forward(self, {given}):\n        return x + self.down(torch.tanh(self.up(x).sin()) * {factor})\n"


def beside(name, factor, before):
    """A module with a class that calls something by a name, and that."""
    return {"a": HEAD + before + CLASS.replace("Plain", "A") + forward(factor)}


@pytest.fixture
def marked(tmp_path, monkeypatch):
    """A file in which all is marked that can be, for what `layers.make()` of a package gives; and the package's name."""

    def make(methods, before="", make=TWO, model=MODEL, **files):
        name = f"remat_library_{next(NUMBERS)}"
        package = tmp_path / name
        package.mkdir()
        for module, text in {"__init__": "", "layers": HEAD + before + CLASS + methods + model + make, **files}.items():
            (package / f"{module}.py").write_text(text)
        monkeypatch.syspath_prepend(tmp_path)
        importlib.invalidate_caches()
        module = importlib.import_module(f"{name}.layers")
        torch.manual_seed(1)
        given = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
        text, traced, _ = _marked(module.make(), (given,), Path(module.__file__))
        return text, traced, module

    return make


def copied(text):
    """The methods in a file's classes that have marks."""
    classes = re.findall(r"^class (\w+):\n((?:    .*\n|\n)+)", text.partition("\nPLAN = ")[0], re.MULTILINE)
    return {f"{name}.{method}" for name, body in classes for method in re.findall(r"^    def (\w+)", body, re.MULTILINE)}


SUM = "\n\ndef sum(x):\n    return 2 * x\n"
SCALED = "\n\ndef scale(x):\n    return 2 * x\n"
WITH = "\n\ndef scale(x, scale=1.0):\n    return 3 * x * scale\n"
SPLIT = "scale(\n            self.up(x),\n            scale=0.25,\n        )"
DEFAULT = "\n\ndef changed(function):\n    function.__defaults__ = (4.0,)\n    return function\n"
BY = (
    "\n\ndef by(function):\n    function.by = 3.0\n    return function\n"
    "\n\ndef scaled(function):\n    @functools.wraps(function)\n    def wrapper(self, x):\n"
    "        return function(self, x) * getattr(function, 'by', 1.0)\n\n    return wrapper\n"
)
FROM_A = "from .a import A\n"


@pytest.mark.parametrize(
    ("methods", "before", "make", "files"),
    [
        (forward("sum([self.up(x), self.up(x)])"), FROM_A, OTHER, beside("sum", "sum(self.up(x))", SUM)),
        (forward(SPLIT), FROM_A + WITH, OTHER, beside("scale", "scale(self.up(x))", SCALED)),
        ("    @changed\n" + forward("power", "x, power=1.0"), DEFAULT, TWO, {}),
        ("    @scaled\n    @by\n" + forward("0.5"), BY, TWO, {}),
        (forward("power", "x, power=SCALE") + "\n\nSCALE = 9.0\n", "\nSCALE = 1.5\n", TWO, {}),
        (forward("0.5"), "\nA = 1\n\x0c\n", TWO, {}),
    ],
    ids=["builtin", "keyword", "defaults", "attributes", "rebound", "form-feed"],
)
def test_copies_do_what_the_methods_did(marked, tmp_path, methods, before, make, files):
    text, traced, _ = marked(methods, before, make, **files)
    assert "Plain.forward" in copied(text)
    assert trained(traced, text, tmp_path).identical
    assert not _problems(text, traced)


GLOBALS = (
    "\nSCALE = 1.5\n\n\ndef other(f):\n    return types.FunctionType(f.__code__, {**globals(), 'SCALE': 5.0}, f.__name__)\n"
)
NESTED = "class Outer:\n" + "".join(f"    {line}\n" for line in (CLASS + forward("0.5")).strip().split("\n"))
HIDDEN = {
    "__init__": "from . import layers\nfrom .scale import scale\n",
    "scale": "def scale(x):\n    return x\n\n\nother = scale\n",
}


@pytest.mark.parametrize(
    ("methods", "before", "files"),
    [
        ("    @other\n" + forward("SCALE"), GLOBALS, {}),
        (forward("len(__name__)"), "", {}),
        (forward("len(locals())"), "", {}),
        (forward("len(super().__repr__())"), "", {}),
        (forward("0.5") + "\n    if True:\n" + "    ".join(("    " + forward("2")).splitlines(True)), "", {}),
        (forward("0.5") + f"\n\n{NESTED}\n\nPlain = Outer.Plain\n", "", {}),
        (forward("scale.other(self.up(x))"), "from . import scale\n", HIDDEN),
    ],
    ids=["globals", "name", "locals", "super", "defined-twice", "nested", "hidden-module"],
)
def test_what_would_do_something_else_stays_where_it_is(marked, tmp_path, methods, before, files):
    text, traced, _ = marked(methods, before, **files)
    assert not copied(text)
    assert trained(traced, text, tmp_path).identical


def test_special_methods_are_looked_for_in_classes(marked, tmp_path):
    matmul = "    def __matmul__(self, x):\n        return torch.tanh(self.up(x).sin()).exp().sin()\n\n"
    text, traced, _ = marked(matmul + "    def forward(self, x):\n        return x + self.down(self @ x)\n")
    assert copied(text) == {"Plain.forward"}
    assert trained(traced, text, tmp_path).identical


def test_a_method_that_was_patched_meanwhile_is_the_models(marked, tmp_path):
    text, traced, module = marked(forward("0.5"))
    module.Plain.forward = lambda self, x: x + self.down(self.up(x))
    original, [x] = traced.target.module, traced.target.args
    with pytest.raises(ValueError, match=r"PLAN names layers\.0\.\w+, which this model"):
        _step(load(text, tmp_path).rematerialize(copy.deepcopy(original)), x)


def test_a_global_that_changed_meanwhile_is_refused(marked, tmp_path):
    text, traced, module = marked(forward("SCALE"), "\nSCALE = 1.5\n")
    made = load(text, tmp_path).rematerialize(copy.deepcopy(traced.target.module))
    module.SCALE = 4.0
    with pytest.raises(ValueError, match=r"\.SCALE was replaced after this file took it: import this file later"):
        _step(made, *traced.target.args)


# ---------------------------------------------------------------------------- methods that no mark is met in

WIDENED = "    def widened(self, x):\n        return torch.tanh(self.up(x).sin()).exp().sin()\n\n"
NAMED = "    partial = functools.partialmethod(widened)\n    alias = widened\n\n"
APPLY = "\n\ndef apply(function, *given):\n    return function(*given)\n"


def calling(call, before=""):
    return f"{WIDENED}{NAMED}    def forward(self, x):\n{before}        return x + self.down({call})\n"


@pytest.mark.parametrize(
    ("methods", "met"),
    [
        (calling("self.widened(x)"), True),
        (calling("apply(self.widened, x)"), True),
        (calling("wide(x)", "        wide = self.widened\n"), True),
        (calling("type(self).widened(self, x)"), False),
        (calling("self.__class__.widened(self, x)"), False),
        (calling("Plain.widened(self, x)"), False),
        (calling("kind.widened(self, x)", "        kind = type(self)\n"), False),
        (calling("self.partial(x)"), False),
        (calling("self.alias(x)"), False),
        (
            calling("self.kept(x)").replace(
                "def forward", "@property\n    def kept(self):\n        return self.alias\n\n    def forward"
            ),
            False,
        ),
    ],
)
def test_marks_stand_only_where_they_are_met(marked, tmp_path, methods, met):
    text, traced, _ = marked(methods, APPLY)
    assert any(name.endswith(".widened") for name in copied(text)) == met
    assert trained(traced, text, tmp_path).identical


def test_methods_of_a_parent_by_super(marked, tmp_path):
    sub = "\n\nclass Sub(Plain):\n    def forward(self, x):\n        return x + self.down(super().widened(x))\n"
    text, traced, _ = marked(calling("self.widened(x)") + sub, make=TWO.replace("Plain, Plain", "Sub, Plain"))
    assert copied(text) == {"Plain.widened", "Plain.forward"}
    assert not re.search(r'"layers\.0": ".*(tanh|exp|sin)', text)
    assert trained(traced, text, tmp_path).identical


# ---------------------------------------------------------------------------- edits

TWIN = "\n\nclass Twin(Plain):\n" + forward("7.0")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("layers import SCALE", "other import SCALE", "is not the SCALE that Plain.forward needs"),
        ("\nPLAN = {", "\nSCALE = 7.0\nPLAN = {", "is not the SCALE that Plain.forward needs"),
        ("from LIBRARY.layers import SCALE\n", "", "nothing imported is not the SCALE"),
        (
            'WRITTEN["LIBRARY.layers", "Twin"] = Twin',
            'WRITTEN["LIBRARY.layers", "Twin"] = Plain',
            "does not say for the first time",
        ),
        ('WRITTEN["LIBRARY.layers", "Twin"] = Twin\n', 'WRITTEN.update({("LIBRARY.layers", "Twin"): Plain})\n', "first time"),
        ('WRITTEN["LIBRARY.layers", "Plain"] = Plain\n', "", "PLAN names layers.0"),
    ],
)
def test_edits_of_what_they_need_are_told(marked, old, new, said):
    files = {"other": "SCALE = 8.0\n"}
    text, traced, module = marked(forward("SCALE") + TWIN, "\nSCALE = 1.5\n", TWO.replace("n, Plain", "n, Twin"), **files)
    old, new = (part.replace("LIBRARY", module.__package__) for part in (old, new))
    importlib.import_module(f"{module.__package__}.other")
    assert old in text and not _problems(text, traced)
    lines = [problem.line for problem in _problems(text.replace(old, new, 1), traced) if said in problem.text]
    assert lines and min(lines) > 1


def test_one_name_of_two_modules(marked, tmp_path):
    """`F` is the one in a file and another one in the other."""
    first = HEAD.replace("functional as F", "init as G") + "import torch as F\n" + CLASS.replace("Plain", "A")
    text, traced, _ = marked(forward("F.softplus(self.up(x))"), FROM_A, OTHER, a=first + forward("F.sigmoid(self.up(x))"))
    assert copied(text) == {"A.forward", "Plain.forward"}
    assert trained(traced, text, tmp_path).identical
    assert not _problems(text, traced)


def test_a_class_that_the_models_does_not_name(marked, tmp_path):
    """A factory gives the model what its class alone, which the file carries, does not need."""
    text, traced, _ = marked(forward("0.5"), model=MODEL.replace(" if globals()", ""))
    assert "class Model(nn.Module):" in text and "Plain" not in text
    assert trained(traced, text, tmp_path).identical
    assert not _problems(text, traced)


SEVERAL = """
    @torch.no_grad()
    def gate(self, x):
        return torch.sigmoid(self.up(x)).sin()

    @torch.autocast("cpu", dtype=torch.bfloat16)
    def cast(self, x):
        return torch.tanh(self.up(x).sin()).exp()

    @staticmethod
    def fixed(x):
        return torch.tanh(x).sin().cos()

    @property
    def weight(self):
        return torch.tanh(self.up.weight.sin()).exp()

    def only(self, x, *, scale=0.5):
        add = lambda y: torch.tanh(y * scale).sin()
        return add(self.up(x)) * self.fixed(self.up(x))

    def pieces(self, x):
        for i in range(2):
            yield torch.tanh(self.up(x).sin() * i)

    def forward(self, x):
        y = self.only(x, scale=0.25) + sum(self.pieces(x)) * self.gate(x)
        return x + self.down(y * F.linear(x, self.weight).cos() + self.cast(x))


class Sub(Plain):
    def forward(self, x):
        return torch.tanh(super().forward(x).sin()) + torch.tanh(x.sin()).exp()
"""


@pytest.mark.parametrize("carried", [False, True])
def test_methods_of_all_kinds(marked, tmp_path, carried):
    """Those of properties are called by classes, and those with super() take modules of their own class only."""
    kinds = MODEL.replace("*kinds", "").replace("for kind in kinds", "for kind in (Plain, Sub)")
    model, make = kinds.replace(" if globals()", "" if carried else " if globals()"), "\n\ndef make():\n    return Model()\n"
    text, traced, _ = marked(SEVERAL, make=make, model=model)
    assert ("class Sub(Plain):" in text) == carried and '"sum"' not in text
    assert trained(traced, text, tmp_path).identical
    assert not _problems(text, traced)
