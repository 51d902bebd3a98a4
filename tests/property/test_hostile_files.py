"""Model files as hostile input: encodings, line ends, and whatever stands in a file around the model."""

# ruff: noqa: E501 - a model file, or a part of one, is easier to read as one string

from __future__ import annotations

import pytest
from hostile import FORWARD, INIT, Case, holds, source

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
