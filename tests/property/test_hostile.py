"""Model files as hostile input: whatever stands in them, the generated file parses, runs nothing that the model did not run,
and equals the original to the bit."""

# ruff: noqa: E501 - a model file, or a part of one, is easier to read as one string

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

import pytest
import torch
from emitted import droppable, emit, load, model_of, rebuilding
from hypothesis import given, settings
from hypothesis import strategies as st

from remat_codegen.target import read_source
from remat_codegen.verify import compare

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
    """Generates a file for a case and asserts what this file's docstring says; returns the text."""
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


# ---------------------------------------------------------------------------------------------- files

LATIN = "# -*- coding: latin-1 -*-\n" + source('NAME = "caf\xe9"\n', init=INIT + "        self.name = NAME  # \xe9\n")
BASE = source().replace("class Model", "class Base")
MANY = "\n".join(f"def f{i}(x):\n    return x + {i}\n" for i in range(3300))
SHOUTS = """
W = 4
T = {"k": 1.0}
def log(x): print("LOGGED", x)
print("P", W, T)
log(W)
T["z"] = 2.0
T.update(y=3.0); print("PP", T)
for i in range(2):
    T[str(i)] = i
    print("PPP", i)
if W: print("PPPP", W)
assert W == 4, print("no")
import logging, sys
logger = logging.getLogger(__name__)
logger.warning("WARN %s", W)
sys.stdout.write(str(W))
print(Model if 0 else W)
"""
FILES = {
    "plain": Case(source()),
    "latin-1": Case(LATIN.encode("latin-1")),
    "byte order mark": Case(b"\xef\xbb\xbf" + source().encode()),
    "tabs": Case(source().replace("    ", "\t")),
    "crlf": Case(source(init='    """doc\n    more\n    """\n' + INIT).replace("\n", "\r\n").encode()),
    "cr": Case(source().replace("\n", "\r").encode()),
    "form feed": Case(source("\x0c")),
    "no newline at the end": Case(source().rstrip()),
    "a comment at the end": Case(source() + "# bye"),
    "10,000 lines": Case(source(MANY, forward=FORWARD.replace("return", "h = f7(h)\n        return"))),
    "comments before the class": Case(source('# a comment\n# another """ \\\n')),
    "docstring before __future__": Case(
        '"""doc"""\nfrom __future__ import annotations\n' + source(forward=FORWARD.replace("(self, x)", "(self, x: No) -> No"))
    ),
    "side effects": Case(
        source(
            SHOUTS,
            forward=FORWARD.replace("return", "logger.debug('')\n        h = h * W * T['z'] * T['y'] * T['1']\n        return"),
        )
    ),
    "decorated class": Case(source("def deco(c):\n    c.mark = 1\n    return c\n\n@deco")),
    "constants": Case(source("S = 3.0\nT = {'k': S * 2}\nT['z'] = 1.5\n", init="    TWO: float = T['k']\n" + INIT)),
    "mixin": Case(
        source(
            "class Mixin:\n    k = 2\n    def act(self, x):\n        return x.tanh() * self.k\n",
            "Mixin, nn.Module",
            forward=FORWARD.replace("torch.tanh", "self.act"),
        )
    ),
    "metaclass": Case(source("class Meta(type):\n    pass\n", "nn.Module, metaclass=Meta")),
    "generic": Case(source("from typing import Generic, TypeVar\nT = TypeVar('T')\n", "nn.Module, Generic[T]")),
    "one line": Case(BASE + "class Model(Base): pass\n"),
    "one line of two": Case(BASE + "class Model(Base): x = 1; y = 2\n"),
    "a nested class with a forward": Case(
        source(
            init="    class Inner(nn.Linear):\n        def forward(self, x):\n            return super().forward(x).tanh()\n"
            + INIT
            + "        self.i = self.Inner(4, 4)\n",
            forward=FORWARD.replace("h.exp()", "self.i(h).exp()"),
        )
    ),
    "a slow __new__": Case(
        source(extra="    def __new__(cls, *a):\n        print('new')\n        return super().__new__(cls)\n")
    ),
    "a mixin that calls super().forward": Case(
        BASE
        + "class Mixin:\n    def forward(self, x):\n        return super().forward(x * 2).sin()\nclass Model(Mixin, Base):\n    pass\n"
    ),
    "super() in a nested class and a class method": Case(
        source(
            init=INIT
            + "        self.k = self.Made.of().k\n    class Root:\n        @classmethod\n        def of(cls):\n            return cls()\n"
            + "    class Made(Root):\n        k = 3\n        @classmethod\n        def of(cls):\n            return super().of()\n",
            forward=FORWARD.replace("h.exp()", "(h * self.k)"),
        )
    ),
    "constants of the class, from each other": Case(
        source(
            init="    A, B = 2, 3\n    C: float = A * B\n    D = {k: v for k, v in zip('ab', (A, B))}\n    E = [n := 1, n + 1]\n"
            + INIT,
            forward=FORWARD.replace("h.exp()", "(h * self.C * self.D['a'] * self.E[1])"),
        )
    ),
    "matching classes and mappings": Case(
        source(
            "from dataclasses import dataclass\n@dataclass\nclass Kind:\n    scale: float = 2.0\n",
            forward=(
                "    def forward(self, x):\n        match Kind(), {'a': [1, 2]}:\n            case Kind(scale=s), {'a': [_, *rest]} if rest:\n"
                "                x = x * s * len(rest)\n        return self.b(self.a(x).exp())\n"
            ),
        )
    ),
    "a byte order mark, tabs and crlf": Case(b"\xef\xbb\xbf" + source().replace("    ", "\t").replace("\n", "\r\n").encode()),
    "a cookie on the second line": Case(("#!/usr/bin/env python\n" + LATIN).encode("latin-1")),
    "a method of 2,000 lines": Case(
        source(extra="    def long(self, x):\n" + "".join(f"        x = x + {i}\n" for i in range(2000)) + "        return x\n")
    ),
    # imports
    "torch by other names": Case(
        "import torch as t\nimport torch.nn as n\n"
        + source().partition("import nn\n")[2].replace("nn.", "n.").replace("torch.", "t.")
    ),
    "star imports": Case(
        "from torch import *\nfrom torch.nn import *\n" + source(forward=FORWARD.replace("torch.tanh", "tanh"))
    ),
    "a star import that hides a builtin": Case(
        "from torch import *\n" + source(forward=FORWARD.replace("h.exp()", "h.exp() * sum(h)")), carried=False
    ),
    "an import that may fail": Case(
        "try:\n    import no_such_package as np\nexcept ImportError:\n    np = None\n"
        + source(forward=FORWARD.replace("return", "h = h if np is None else h + 1\n        return"))
    ),
    "a conditional import": Case(
        "import sys\nif sys.version_info > (3,):\n    import math as M\nelse:\n    M = None\n"
        + source(forward=FORWARD.replace("h.exp()", "(h * M.pi)"))
    ),
    "TYPE_CHECKING": Case(
        "from __future__ import annotations\nfrom typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import numpy as np\n"
        + source(forward=FORWARD.replace("(self, x)", "(self, x: np.ndarray)"))
    ),
    "a conditional import of another package": Case(
        source("if True:\n    import numpy as np\n", forward=FORWARD.replace("h.exp()", "(h * np.pi)")), carried=False
    ),
    "a relative import in a method": Case(
        source(extra="    def other(self):\n        from .x import y\n        return y\n"), carried=False
    ),
    "another package in a method": Case(
        source(extra="    def other(self):\n        import numpy\n        return numpy\n"), carried=False
    ),
    "the file's own place": Case(
        source("import os\nHERE = len(os.path.basename(__file__))\n", forward=FORWARD.replace("h.exp()", "(h * HERE)")),
        carried=False,
    ),
    "globals()": Case(source("K = 3\n", forward=FORWARD.replace("h.exp()", "(h * globals()['K'])")), carried=False),
    "an instance's own forward": Case(
        source(init=INIT + "        self.forward = self.own\n", forward=FORWARD.replace("forward", "own")), carried=False
    ),
    "a very long expression": Case(source(forward=FORWARD.replace("h.exp()", "(h" + " + 1" * 400 + ")"))),
    "a deep expression": Case(
        source("DEEP = " + "(" * 80 + "1" + ")" * 80 + "\n", forward=FORWARD.replace("h.exp()", "(h * DEEP)"))
    ),
    # names that generated code uses
    "math means something else": Case(
        source("import cmath as math\n", forward=FORWARD.replace("h.exp()", "(h * math.pi)")), carried=False
    ),
    "F means something else": Case(source("F = 3.0\n", forward=FORWARD.replace("h.exp()", "(h * F)")), carried=False),
    "builtins mean something else": Case(
        source(
            "def any(x):\n    return x\ndef range(x):\n    return x * 2\n", forward=FORWARD.replace("h.exp()", "range(any(h))")
        ),
        carried=False,
    ),
    "helpers mean something else": Case(
        source(
            "class Step(nn.Linear):\n    pass\nclass Kept(Step):\n    pass\ndef check_call(x):\n    return x\ndef run_forward(x):\n    return x * 2\nStep_ = 1\n",
            init=INIT + "        self.Step = Step(4, 4)\n        self.Group = Kept(4, Step_ * 4)\n",
            forward=FORWARD.replace("h.exp()", "self.Group(self.Step(run_forward(check_call(h))))"),
        )
    ),
    "our constants mean something else": Case(
        source("FROZEN = 2.0\n", forward=FORWARD.replace("h.exp()", "(h * FROZEN)")), carried=False
    ),
    "plain_forward": Case(
        source(
            forward=FORWARD.replace("self.a(x)", "self.plain_forward(x)"),
            extra="    def plain_forward(self, x):\n        return self.a(x)\n",
        ),
        carried=False,
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_files(name, tmp_path):
    holds(FILES[name], tmp_path)


def test_side_effects_are_left_out_and_data_is_not(tmp_path):
    text = holds(FILES["side effects"], tmp_path)
    assert 'T["z"] = 2.0' in text and "T.update(y=3.0)" in text
    for word in ("print(", "LOGGED", "WARN", "assert W", "stdout"):
        assert word not in text


@pytest.mark.parametrize(
    "name", "Step Kept Slot Group check_call run_forward run_backward rematerialize F EXPECTED original m".split()
)
def test_a_class_named_like_something_generated(name, tmp_path):
    holds(Case(source().replace("class Model", f"class {name}"), None, name), tmp_path)


@pytest.mark.parametrize("name", ['Mo"""\nimport nothing', "class", "3\u00b2", "", "é"])
def test_a_class_renamed_to_anything(name, tmp_path):
    text = source() + f"Other = type('x', (Model,), {{}})\nOther.__name__ = {name!a}\n"
    holds(Case(text, False, "Other"), tmp_path)


@pytest.mark.parametrize(
    "file",
    [
        'a"""b.py',
        "it's.py",
        "back\\N.py",
        "new\nline.py",
        "é.py",
        "{{x}}.py",
        "end\\.py",
        'q"\\.py',
        "coding: x.py",
        "coding=utf-7 .py",
    ],
)
def test_a_file_with_any_name(file, tmp_path):
    holds(Case(source(), file=file), tmp_path)


# ---------------------------------------------------------------------------------------------- forward

FORWARDS = {
    "*args and **kwargs": "    def forward(self, *args, **kwargs):\n        return self.b(self.a(args[0]).tanh()) * kwargs.get('k', 1)\n",
    "all kinds of parameters": (
        "    def forward(self, x: torch.Tensor, /, y: 'torch.Tensor | None' = None, *, scale: float = 2.0, act=torch.tanh, s=float('nan')):\n"
        "        return self.b(act(self.a(x)).exp()) * scale\n"
    ),
    "defaults from the class": "    D = 3\n    def forward(self, x, d=D, f=lambda t: t * 2):\n        return self.b(self.a(x).tanh() * d)\n",
    "self by another name": "    def forward(this, x):\n        return this.b(this.a(x).tanh().exp())\n",
    "walrus": "    def forward(self, x):\n        if (n := x.shape[0]) > 1:\n            x = x * n\n        return self.b((h := self.a(x)).tanh() * h)\n",
    "match": (
        "    def forward(self, x):\n        match x.shape:\n            case (2, _):\n                x = x * 3\n            case _:\n                pass\n"
        "        return self.b(self.a(x).exp())\n"
    ),
    "lambdas": "    act = lambda self, t: torch.tanh(t)\n    def forward(self, x):\n        return self.b(self.act(self.a(x)))\n",
    "f-strings": "    def forward(self, x):\n        n = f\"{'a'}{x.ndim=}{{}}\"\n        return self.b(getattr(self, n[0])(x).tanh())\n",
    "no_grad": "    def forward(self, x):\n        with torch.no_grad():\n            s = x.sum()\n        return self.b(self.a(x).tanh()) * s\n",
    "on one line": "    def forward(self, x): h = self.a(x); return self.b(h.tanh())\n",
    "twice": FORWARD + FORWARD.replace("sin", "cos"),
    "a local import": "    def forward(self, x):\n        import math as mm\n        return self.b(self.a(x).tanh() * mm.pi)\n",
    "a private name": "    def forward(self, x):\n        return self.__in(x)\n    def __in(self, x):\n        return self.b(self.a(x).tanh())\n",
    "non-finite numbers": (
        "    def forward(self, x):\n        h = self.a(x).tanh()\n        h = h.masked_fill(h > 0.5, float('-inf')).clamp(-5, float('inf'))\n"
        "        return self.b(h + torch.full((4,), float('nan')).nan_to_num(0.5) - 1e-320 * h)\n"
    ),
    "complex numbers": "    def forward(self, x):\n        h = self.a(x).tanh()\n        return self.b((h * complex(-0.0, 1.5) + (1 - 2j)).abs())\n",
    "dtypes, devices and formats": (
        "    def forward(self, x):\n        h = self.a(x).tanh().to(torch.float64).to(device='cpu', memory_format=torch.contiguous_format).float()\n"
        "        h = h.view(1, 1, 2, 4).contiguous(memory_format=torch.channels_last).view(2, 4)\n"
        "        return self.b(h + torch.zeros(4, dtype=torch.bfloat16, device=torch.device('cpu'), layout=torch.strided))\n"
    ),
    "odd results": "    def forward(self, x):\n        return {'a\\n\"': self.b(self.a(x).tanh()), 3: x, ('t', 1): 'lit\\n', None: float('inf')}\n",
}


@pytest.mark.parametrize("name", FORWARDS)
def test_forwards(name, tmp_path):
    holds(Case(source(forward=FORWARDS[name])), tmp_path)


@pytest.mark.parametrize(
    ("forward", "carried"),
    [
        ("    @deco\n" + FORWARD, True),
        (FORWARD.replace("def forward", "def other") + "    forward = other\n", False),
        (FORWARD + "    forward = deco(forward)\n", False),
        ("    if True:\n" + "".join(f"    {line}\n" for line in FORWARD.splitlines()), False),
    ],
)
def test_a_forward_that_is_made_by_something_else(forward, carried, tmp_path):
    deco = "def deco(f):\n    def g(*a, **k):\n        return f(*a, **k) * 2\n    return g\n"
    holds(Case(source(deco, forward=forward), carried), tmp_path)


@pytest.mark.parametrize(
    "name", "torch check_call run_forward Step step m kept FROZEN call given args kwargs remat_step F super".split()
)
def test_a_parameter_of_forward_named_like_something_generated(name, tmp_path):
    holds(
        Case(source(forward=FORWARD.replace("torch.tanh(self.a(x))", "self.a(x).tanh()").replace("x)", f"{name})"))), tmp_path
    )


@pytest.mark.parametrize(
    "body",
    [
        "    K = 1\n",
        "    def forward(self, x):\n        return super().forward(x * 2).sin()\n",
        "    def forward(self, x):\n        return super(Model, self).forward(x * 2).sin()\n",
        "    def forward(self, x):\n        return super(__class__, self).forward(x * 2).sin()\n",
        "    def forward(self, x):\n        return Base.forward(self, x * 2).sin()\n",
        "    def __init__(self):\n        super(Model, self).__init__()\n",
        "    def __init__(self):\n        Base.__init__(self)\n",
    ],
)
def test_a_class_that_inherits_from_another_in_the_file(body, tmp_path):
    holds(Case(BASE + f"class Model(Base):\n{body}"), tmp_path)


def test_a_class_that_inherits_from_torchs_containers(tmp_path):
    text = "    def __init__(self):\n        super().__init__(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))\n"
    holds(Case(source(bases="nn.Sequential", init=text, forward="")), tmp_path)


@pytest.mark.parametrize(
    ("forward", "args", "kwargs"),
    [
        (
            "(self, x, **kw):\n        return self.b(self.a(x).tanh()) * next(iter(kw.values()))\n",
            1,
            {'a\n"b\\': torch.ones(4)},
        ),
        ("(self, d):\n        return self.b(self.a(d['k\\n\"']).tanh())\n", ({'k\n"': torch.ones(2, 4)},), {}),
        ("(self, d):\n        return self.b(self.a(d[3]).tanh())\n", ({3: torch.ones(2, 4)},), {}),
        ("(self, x, mode):\n        return self.b(self.a(x).tanh())\n", (torch.ones(2, 4), 'a"\n\\'), {}),
        ("(self, x, s):\n        return self.b(self.a(x).tanh())\n", (torch.ones(2, 4), float("nan")), {}),
        ("(self, x, s):\n        return self.b(self.a(x).tanh() * s)\n", (torch.ones(2, 4), float("inf")), {}),
    ],
)
def test_odd_arguments(forward, args, kwargs, tmp_path):
    given = (torch.ones(2, 4),) if args == 1 else args
    holds(Case(source(forward=f"    def forward{forward}"), args=given, kwargs=kwargs), tmp_path)


@pytest.mark.parametrize(
    ("value", "use"),
    [
        ("torch.tensor([1.0, float('inf'), -0.0, 1e-45])", "torch.where(h > 0, h, 1 / self.c)"),
        ("torch.tensor([float('nan'), 1, 2, 3])", "(h + self.c).nan_to_num(2.0)"),
        ("torch.tensor([1.1, 2, 3, 4], dtype=torch.bfloat16)", "h * self.c"),
        ("torch.tensor([1 + 2j, 1, 2, complex(-0.0, 1)])", "(h * self.c).abs()"),
        ("torch.zeros(0, 4)", "torch.cat([h, self.c])"),
        ("torch.tensor([True, False, True, True])", "h.masked_fill(self.c, 0.5)"),
    ],
)
def test_constant_tensors(value, use, tmp_path):
    forward = FORWARD.replace("return", f"h = {use}\n        return")
    holds(Case(source(init=f"{INIT}        self.c = {value}\n", forward=forward)), tmp_path)


# ---------------------------------------------------------------------------------------------- names

ODD = [
    "it's",
    'a"b',
    '"""',
    "a\nb",
    "a\\b",
    "\\N",
    "é",
    "ﬁ",
    "class",
    "None",
    "match",
    "__x",
    "__weird__",
    "a b",
    "00",
    "٣",
    "{{x}}",
    "#",
]
ODD += [
    "m",
    "kept",
    "step",
    "self",
    "torch",
    "\u2028",
    "\x00",
    "𝐱",
    "x" * 300,
    "%s",
    "\ud800",
    "__debug__",
    "F",
    "Step",
    "print",
]


def with_names(names: list[str]) -> str:
    """A model whose submodules, parameters and buffers have such names."""
    init = "    def __init__(self):\n        super().__init__()\n        self.q = nn.Module()\n"
    forward = "    def forward(self, x):\n"
    for name in names:
        init += f"        self.add_module({name!a}, nn.Linear(4, 4))\n"
        init += f"        self.q.add_module({name!a}, nn.Linear(4, 4))\n"
        init += f"        self.register_parameter({name + 'p'!a}, nn.Parameter(torch.ones(4)))\n"
        init += f"        self.q.register_buffer({name + 'b'!a}, torch.ones(4))\n"
        forward += f"        x = self._modules[{name!a}](x).tanh() * self._parameters[{name + 'p'!a}]\n"
        forward += f"        x = self.q._modules[{name!a}](x.exp()).sin() * self.q._buffers[{name + 'b'!a}]\n"
    return source(init=init, forward=forward + "        return x\n")


@pytest.mark.parametrize("names", [ODD[i : i + 4] for i in range(0, len(ODD), 4)], ids=lambda names: ascii(names)[:40])
def test_odd_names_of_modules_and_parameters(names, tmp_path):
    holds(Case(with_names(names)), tmp_path)


NAMES = st.text(st.characters(exclude_characters="."), min_size=1, max_size=8).filter(
    lambda n: not hasattr(torch.nn.Module(), n)
)


@settings(max_examples=10)
@given(st.lists(NAMES | st.sampled_from(ODD), min_size=1, max_size=3, unique=True))
def test_any_names_of_modules_and_parameters(tmp_path_factory, names):
    holds(Case(with_names([n for n in names if n not in ("q", "a", "b")] or ["z"])), tmp_path_factory.mktemp("names"))


# ---------------------------------------------------------------------------------------------- anything at once

TOPS = [
    "",
    "print('side effect')\n",
    "W = 4\nprint(W); W += 0\n",
    "# coding: none of that\n",
    "def deco(f):\n    return f\n",
    "class Step: pass\nclass Group(Step): pass\n",
    "T = [1, 2]\nT.append(3)\nfor t in T: print(t)\n",
    "try:\n    import einops_nope\nexcept ImportError:\n    einops_nope = None\n",
    "if __name__ == '__main__':\n    raise SystemExit\n",
    "x = lambda: (yield)\n",
    "class Meta(type): pass\n",
    "import math, os.path as p; from functools import partial as F_\n",
    "@property\ndef nothing(self): ...\n",
    'S = """multi\nline \\\n \'\'\' """\n',
]
BODIES = [
    '    """doc \\""" """\n',
    "    r'''raw \\d \"\"\"'''\n",
    "    K = 1; L = 2\n",
    "    # comment\n",
    "    class In: z = f'{1!r:>{2}}'\n",
    "    x: int\n",
    "",
]
EXTRAS = [
    "",
    "    def extra(self): return [T for T in ()]\n",
    "    @property\n    def prop(self): return W\n",
    "    @staticmethod\n    def s(*, k=1, **kw): ...\n",
    "    async def co(self): await self\n",
    "    def g(self): yield Step\n",
    "    def h(self):\n        global G\n        G = deco\n",
]
FIRSTS = [
    "",
    '"""doc"""\n',
    "from __future__ import annotations\n",
    "#!/usr/bin/env python\n",
    "'''a\\\nb'''\nfrom __future__ import annotations, division\n",
]
ENDINGS = ["\n", "\r\n", "\r"]


@settings(max_examples=25)
@given(
    first=st.sampled_from(FIRSTS),
    tops=st.lists(st.sampled_from(TOPS), max_size=4),
    bodies=st.lists(st.sampled_from(BODIES), max_size=3),
    extras=st.lists(st.sampled_from(EXTRAS), max_size=3),
    forward=st.sampled_from([FORWARD, *FORWARDS.values()]),
    ending=st.sampled_from(ENDINGS),
    tabs=st.booleans(),
    last=st.booleans(),
)
def test_anything_at_once(tmp_path_factory, first, tops, bodies, extras, forward, ending, tabs, last):
    text = first + source("".join(tops), init="".join(bodies) + INIT, forward=forward, extra="".join(extras))
    text = text.replace("    ", "\t") if tabs else text
    text = text if last else text.rstrip()
    holds(Case(text.replace("\n", ending).encode(), None), tmp_path_factory.mktemp("anything"))
