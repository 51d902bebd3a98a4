"""What of a user's file is carried over, and what is left out or makes the generated class wrap the original."""

from __future__ import annotations

import ast

import pytest

from remat_codegen.emit.usersource import carry, parameters_of, rename_names

MODEL = "class Model(nn.Module):\n    def forward(self, x):\n        return {}\n"
HEAD = "import torch\nfrom torch import nn\n"


def carried(top: str, use: str = "x", head: str = HEAD):
    return carry(head + top + MODEL.format(use), "Model", "def forward(self, x):\n    return 1\n")


def code(top: str, use: str = "x") -> str:
    found = carried(top, use)
    assert found is not None
    ast.parse(found.code)
    return found.code


def test_forward_is_renamed_and_the_new_one_stands_behind_it():
    found = code("")
    assert found.index("def plain_forward(self, x)") < found.index("def forward(self, x):\n        return 1")


def test_only_what_the_class_needs_is_carried():
    found = code("A = 1\nB = 2\ndef f(): return A\ndef g(): return B\n", "f()")
    assert "A = 1" in found and "def f" in found and "B" not in found and "def g" not in found


def test_imports_are_those_that_are_needed():
    found = carried("import os, math\nimport math as m\nfrom functools import (\n    cache,\n)\n", "m.pi + cache(x)")
    assert found is not None
    assert found.imports == ("from torch import nn", "import math as m", "from functools import cache")


@pytest.mark.parametrize(
    "statement",
    [
        "print(W)",
        "print(T, file=None)",
        "log(W)",
        "assert T",
        "'T'",
        "T",
        "logging.info(T)",
        "logger.warning('%s', T)",
        "sys.stdout.write(str(T))",
        "open('x', 'w').write(str(T))",
        "if W: print(W)",
        "for i in range(W): print(i)",
        "register(Model)",
        "if __name__ == '__main__': T.clear()",
    ],
)
def test_what_only_prints_is_left_out(statement):
    top = "W = 4\nT = [1]\nimport logging, sys\nlogger = logging.getLogger()\ndef log(x): print(x)\ndef register(x): print(x)\n"
    assert code(f"{top}{statement}\n", "W * T[0] * logger.level") == code(top, "W * T[0] * logger.level")


@pytest.mark.parametrize(
    "statement",
    [
        "T[0] = 2",
        "T.append(W)",
        "T += [1]",
        "del T[0]",
        "T.x = 1",
        "y = T.pop()",
        "change(T)",
        "heapq.heapify(T)",
        "torch.nn.init.ones_(T)",
        "for i in T: T[0] = i",
        "with torch.no_grad(): T.zero_()",
        "[append_one][0]()",
        "ALL['one']()",
        "(T[0], z) = 1, 2",
        "for T[0] in range(3): pass",
        "W += 1",
    ],
)
def test_what_changes_data_is_carried(statement):
    top = "import heapq\nW = 4\nT = [1]\ndef change(x): x.append(1)\ndef append_one(): T.append(1)\nALL = {'one': append_one}\n"
    found = code(f"{top}{statement}\n", "W * T[0]")
    assert ast.unparse(ast.parse(statement)) in ast.unparse(ast.parse(found))


REGISTRY = """
TABLE = {}

def put(name, value):
    TABLE[name] = value

def register(name):
    def decorate(thing):
        put(name, thing)
        return thing
    return decorate

class Meta(type):
    def __new__(cls, *given):
        made = super().__new__(cls, *given)
        TABLE[made.__name__] = made
        return made
"""


@pytest.mark.parametrize(
    "definition",
    [
        "@register('a')\ndef swish(x): return x",
        "@register('a')\nclass Swish(nn.Module): pass",
        "@TABLE.setdefault\ndef swish(x): return x",
        "class Swish(metaclass=Meta): pass",
        "register('relu')(torch.relu)",
        "for f in (torch.relu,): put(f.__name__, f)",
        "def fill():\n    global TABLE\n    TABLE = {'a': torch.relu}\nfill()",
    ],
)
def test_what_puts_itself_into_a_table_is_carried_with_it(definition):
    top = f"{REGISTRY}{definition}\n"
    assert ast.unparse(ast.parse(definition)) in ast.unparse(ast.parse(code(top, "TABLE['a'](x)")))
    assert "wish" not in code(top) and "relu" not in code(top)


def test_what_is_decorated_by_something_else_is_left_out():
    top = f"{REGISTRY}SEEN = []\ndef see(f):\n    SEEN.append(f)\n    return f\n@see\ndef swish(x): return x\n"
    assert "swish" not in code(top, "TABLE['a'](x)")


@pytest.mark.parametrize(
    "statement",
    [
        "Part.scale = 2",
        "setattr(Part, 'scale', 2)",
        "del Part.scale",
        "Part.table['a'] = 1",
        "torch.set_default_dtype(torch.float64)",
        "torch.backends.cuda.matmul.allow_tf32 = True",
        "nn.init.trunc_normal = nn.init.trunc_normal_",
        "if torch.cuda.is_available():\n    torch.backends.cudnn.benchmark = True",
        "torch.use_deterministic_algorithms(True)",
    ],
)
def test_what_changes_a_class_or_how_torch_computes_is_carried(statement):
    top = f"class Part(nn.Module):\n    scale = 1\n    table = {{}}\n{statement}\n"
    assert ast.unparse(ast.parse(statement)) in ast.unparse(ast.parse(code(top, "Part()(x)")))


PART = """class Part(nn.Module):
    scale = 1
    table = {}
    def act(self, x): return x
    @classmethod
    def make(cls): return cls()
"""


@pytest.mark.parametrize(
    "statements",
    [
        "alias = Part\nalias.scale = 2",
        "kinds = [Part]\nkinds[0].scale = 2",
        "for kind in (Part, Model):\n    kind.scale = 2",
        "def patch(kind):\n    kind.scale = 2\npatch(Part)",
        "def patch():\n    for kind in (Part,):\n        kind.scale = 2\npatch()",
        "def get():\n    return Part\nget().scale = 2",
        "import functools\nfunctools.update_wrapper(Part.act, Part.make)",
        "Part.act.__defaults__ = (2,)",
        "Part.made = classmethod(lambda kind: kind())",
        "object.__setattr__(Part, 'scale', 2)",
        "(lambda kind: setattr(kind, 'scale', 2))(Part)",
        "patch = lambda kind: setattr(kind, 'scale', 2)\npatch(Part)",
        "def patch(kind=Part):\n    kind.scale = 2\npatch()",
        "part = Part()\npart.table['a'] = 1",
        "Part().table.update(a=1)",
        "class Other:\n    Part.scale = 2",
        "import contextlib\n@contextlib.contextmanager\ndef two():\n    Part.scale = 2\n    yield\nwith two(): pass",
        "[setattr(kind, 'scale', 2) for kind in (Part,)]",
        "print(setattr(Part, 'scale', 2))",
        "assert setattr(Part, 'scale', 2) is None",
        "try:\n    Part.scale = 2\nexcept AttributeError:\n    pass",
        "torch.serialization.add_safe_globals([Part])",
        "def set_up():\n    torch.set_default_dtype(torch.float64)\nset_up()",
        "import torch.nn.functional as functional\nfunctional.gelu = torch.relu",
        "import os\nos.environ.setdefault('A', '1')",
        "import os\nos.environ['A'] = str(1)",
        "torch.manual_seed(0)",
    ],
)
def test_what_reaches_a_class_by_another_way_is_carried(statements):
    last = ast.parse(statements).body[-1]
    assert ast.unparse(last) in ast.unparse(ast.parse(code(f"{PART}{statements}\n", "Part()(x)")))


@pytest.mark.parametrize(
    "statements",
    [
        "part = Part()\npart.train()\nloss = part(torch.ones(4)).sum()\nloss.backward()",
        "def build():\n    return Part.make()\npart = build()\noptimizer = torch.optim.SGD(part.parameters(), 0.1)",
        "def main():\n    Part.scale = 2",
        "SEEN = []\nSEEN.append(Part)",
        "print(sum(p.numel() for p in Part().parameters()))",
        "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--part', type=Part)",
        "import numpy\nnumpy.random.seed(0)",
        "class Other(Part): pass",
        "if __name__ == '__main__':\n    Part.scale = 2",
    ],
)
def test_what_only_uses_a_class_is_left_out(statements):
    assert code(f"{PART}{statements}\n", "Part()(x)") == code(PART, "Part()(x)")


@pytest.mark.parametrize(
    "statements",
    [
        "setattr(Part, 'forward', Part.act)",
        "for name in ('a', 'b'):\n    setattr(Part, name, 1)",
        "def patch(kind):\n    kind.forward = kind.act\npatch(Part)",
        "Part.forward.__defaults__ = (2,)",
        "exec('Part.scale = 2')",
        "globals()['Part'] = nn.Linear",
        "vars()['Part'] = nn.Linear",
        "import sys\nsys.modules[__name__].Part = nn.Linear",
        "__import__('patches')",
        "import patches",
        "import patches\npatches.apply()",
        "import patches\ndef set_up():\n    patches.apply()\nset_up()",
        "if __name__ != '__main__':\n    Part.scale = 2",
        "if __name__ == '__main__':\n    pass\nelse:\n    Part.scale = 2",
        "nn.Linear.reset_parameters = lambda self: None",
        "for kind in (nn.Linear, nn.Conv2d):\n    kind.reset_parameters = lambda self: None",
        "import torch.nn.functional as f\nold = f.gelu\nf.gelu = old",
        "nn.modules.module.register_module_forward_hook(print)",
        "torch.ops.load_library('operations.so')",
        "torch.library.define('a::b', '() -> ()')",
        "from torch import library as lib\nx = lib.Library('a', 'DEF')",
        "from torch import tanh as Part",
    ],
)
def test_what_a_copy_would_do_otherwise_is_not_carried(statements):
    assert carried(f"{PART}{statements}\n", "Part()(x)") is None


@pytest.mark.parametrize(
    "statement",
    [
        "W = torch.randn(4)",
        "import random\nW = random.random()",
        "def draw():\n    return torch.rand(3)\nW = draw()",
        "W = nn.Linear(4, 4)",
        "T = {'a': lambda: nn.Linear(4, 4)}\nW = T['a']()",
        "T = {'a': lambda: nn.Linear(4, 4)}\nW = [f() for f in T.values()]",
        "W = (lambda: torch.rand(3))()",
        "W = {'a': (lambda: torch.rand(3))()}",
        "W = list(map(lambda n: torch.rand(n), (1, 2)))",
        "W = {**{'a': lambda: torch.rand(3)}}",
        "import time\nW = time.time()",
        "W = __name__",
        "W = __doc__",
        "W = torch.zeros(3)\ntorch.nn.init.normal_(W)",
        "import inspect\ndef W(): return inspect.getsource(W)",
        "import sys\ndef W(): return sys.modules",
        "def W(x): return torch.ops.mine.scale(x)",
    ],
)
def test_what_is_another_in_a_copy_is_not_carried(statement):
    assert carried(f"{statement}\n", "W") is None


@pytest.mark.parametrize(
    "statement",
    [
        "alias = T\nalias['a'] = 1",
        "def table():\n    return T\ntable()['a'] = 1",
        "def fill():\n    found = T\n    found['a'] = 1\nfill()",
        "class C:\n    def __init__(self, x):\n        self.x = x\n    def f(self):\n        self.x['a'] = 1\nc = C(T)\nc.f()",
        "import functools\nput = functools.partial(T.__setitem__, 'a')\nput(1)",
        "y = {} or T\ny['a'] = 1",
        "print(T.pop('a'))",
        "match T:\n    case {**rest}:\n        T['b'] = 1",
    ],
)
def test_what_reaches_data_by_another_way_is_carried(statement):
    assert ast.unparse(ast.parse(statement.splitlines()[-1].strip())) in code(f"T = {{'a': 1}}\n{statement}\n", "T['a']")


@pytest.mark.parametrize("table", ["{'a': lambda c: nn.Linear(c, c)}", "[(1, lambda c: nn.Linear(c, c)), nn.ReLU]"])
def test_functions_that_nothing_calls_as_the_file_is_loaded_draw_nothing(table):
    assert "lambda c" in code(f"T = {table}\ndef made(kind, c):\n    return T[kind](c)\n", "made('a', 3)(x)")


def test_a_statement_that_decides_by_failing_stays():
    found = code("try:\n    assert torch.cuda.is_available()\n    K = 1\nexcept AssertionError:\n    K = 2\n", "K")
    assert "assert torch.cuda.is_available()" in found


def test_another_overload_of_a_function_is_carried():
    top = (
        "import functools\n@functools.singledispatch\ndef act(x): return x\n@act.register\ndef _(x: torch.Tensor): return -x\n"
    )
    assert "-x" in code(top, "act(x)")


def test_a_logger_may_be_named_after_its_file():
    assert "__name__" in code("import logging\nlog = logging.getLogger(__name__)\n", "log.debug(x)")


def test_what_cannot_change_is_handed_to_anything():
    top = "device = 'cuda' if torch.cuda.is_available() else 'cpu'\n"
    training = "def train(where): print(where)\nmodel = nn.Linear(1, 1).to(device)\ntrain(device)\n"
    assert "train" not in code(top + training, "x.to(device)")


def test_another_forward_for_a_class_is_not_carried():
    top = "class Part(nn.Module):\n    pass\ndef double(self, x): return 2 * x\nPart.forward = double\n"
    assert carried(top, "Part()(x)") is None


def test_prints_are_taken_out_of_what_changes_data():
    found = code(
        "T = [1]\nfor i in T:\n    print(i)\n    T[0] = i\nif T: print(T)\nelse: T.append(1)\nT.pop(); print(T)\n", "T[0]"
    )
    assert "print" not in found and "T[0] = i" in found and "T.append(1)" in found and "T.pop()" in found


def test_prints_in_functions_stay():
    assert "print(x)" in code("def f(x):\n    print(x)\n    assert x\n    return x\n", "f(x)")


TOUCHING = (  # other packages, as a file is loaded: it would be done twice, or not by the copy
    "nx.Graph.wide = lambda self: 2",
    "np.float = float",
    "if not hasattr(np, 'bool8'): np.bool8 = np.bool_",
    "setattr(nx, 'foo', 3)",
    "y = nx\ny.f = lambda: 3",
    "del nx.f",
    "_ = nx.set_backend('x')",
    "np.random.seed(0)",
    "P = np.random.permutation(32)",
    "R = np.random.default_rng()",
    "def deco(c):\n    nx.REG[c.__name__] = c\n    return c\n@deco\nclass Part: pass",
    "def deco(c):\n    r = nx.register\n    r(c)\n    return c\n@deco\nclass Part: pass",
    "def deco(c):\n    class A(nx.Graph): pass\n    return c\n@deco\nclass Part: pass",
    "def patch():\n    old = nx.Graph.order\n    nx.Graph.order = lambda s: old(s) + 1\nN = patch()",
    "def other():\n    return nx.Graph()\ndef patch():\n    return other()\nN = [patch]",
    "P = (lambda: nx.register(3))()",
    "P = list(map(lambda i: nx.register(i), range(3)))",
    "class Part:\n    import sympy as sp\n    X = sp.register(1)",
    "def make():\n    import sympy as sp\n    return sp\nN = make()",
    "class K:\n    def __class_getitem__(cls, i): return nx.register(i)\nN = K[3]",
    "class K:\n    def __init_subclass__(cls): nx.register(cls)\nclass L(K): pass",
    "class M(type):\n    def __init__(cls, *a): nx.register(cls)\nclass L(metaclass=M): pass",
    "import os\nos.environ['KERAS_BACKEND'] = 'torch'",
    "from os import environ\nenviron.setdefault('A', 'b')",
)


@pytest.mark.parametrize(
    ("top", "use"),
    [
        ("import not_installed_here as other\n", "other.pi"),
        ("from .other import y\n", "y"),
        ("from other import *\n", "x"),
        ("if True:\n    import not_installed_here as other\n", "other.pi"),
        ("import networkx as nx\nclass Part(nx.Graph): pass\n", "Part()"),
        ("import networkx as nx\n@nx.not_implemented_for('directed')\ndef f(x): return x\n", "f(x)"),
        ("import networkx as nx\nGRAPH = nx.Graph()\n", "GRAPH"),
        ("import networkx as nx\ndef f(x, g=nx.Graph()): return x\n", "f(x)"),
        ("import networkx as nx\ndef make(): return nx.Graph()\nGRAPH = make()\n", "GRAPH"),
        ("try:\n    from .x import y\nexcept ImportError:\n    y = 1\n", "y"),
        ("def f():\n    import not_installed_here\n", "f()"),
        ("def f():\n    import numpy\n", "f()"),
        ("if True:\n    import numpy\n", "numpy.pi"),
        *((f"import networkx as nx\nimport numpy as np\n{line}\n", "nx.Graph() and np.pi") for line in TOUCHING),
        ("import numpy as np\nimport matplotlib.pyplot\n", "np.pi"),
        ("from numpy import *\n", "sqrt(2)"),
        ("HERE = __file__\n", "HERE"),
        ("K = 1\n", "globals()['K']"),
        ("K = 1\n", "eval('K')"),
        ("F = 3\n", "F"),
        ("import torch.nn as F\n", "F"),
        ("def range(x): return x\n", "range(x)"),
        ("class FROZEN: pass\n", "FROZEN"),
        ("with open('x') as math: pass\n", "math"),
        ("match 1:\n    case sys: pass\n", "sys"),
        ("", "self.plain_forward(x)"),
    ],
)
def test_what_cannot_be_carried(top, use):
    assert carried(top, use) is None


@pytest.mark.parametrize(
    ("top", "use"),
    [
        ("import numpy as np\n", "np.pi"),
        ("import numpy as np\nWIDE = np.sqrt(2)\n", "x * WIDE"),
        ("import math, torch.nn.functional as F, numpy as np\n", "F.relu(x) * np.pi"),
        ("import networkx as nx\ndef f(x): return nx.Graph()\n", "f(x)"),
        ("import networkx as nx\ndef f(x): return nx.Graph()\nclass Part(nn.Module): pass\nPART = Part\n", "f(x)"),
        ("import numpy as np\nfrom math import (  # both\n    sqrt,  # this\n    pi,\n)\n", "sqrt(pi) * np.pi"),
        ("F = 3\n", "x"),
        ("import torch.nn.functional as F\n", "F.relu(x)"),
        ("from torch.nn import functional as F\n", "F.relu(x)"),
        ("try:\n    import flash\nexcept ImportError:\n    flash = None\n", "flash"),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import numpy\n    Y = numpy\n", "Y"),
    ],
)
def test_what_can_be_carried(top, use):
    assert carried(top, use) is not None


def test_a_class_that_is_not_in_the_file_is_not_carried():
    assert carry(HEAD, "Model", "pass") is None
    assert carry("Model = 1\n" + HEAD, "Model", "pass") is None
    assert carry(HEAD + "if True:\n    " + MODEL.format("x").replace("\n", "\n    ") + "\n", "Model", "pass") is None
    assert carry(HEAD + MODEL.format("x") + "Model = deco(Model)\n", "Model", "pass") is None


def test_of_two_classes_the_last_counts():
    found = carry(HEAD + MODEL.format("1") + MODEL.format("2"), "Model", "pass")
    assert found is not None and found.code.count("plain_forward") == 1


def test_a_star_import_names_what_is_used():
    found = carried("from math import *\n", "sin(pi)")
    assert found is not None and "from math import pi, sin" in found.imports
    assert "cos" not in found.names and "sin" in found.names


@pytest.mark.parametrize(
    ("parameters", "kept"),
    [
        ("self, x, /, y=1, *a, z: int = 2, **k", True),
        ("self", True),
        ("this, x", False),
        ("*args", False),
        ("self, torch", False),
        ("self, *, Step", False),
        ("self, **super", False),
    ],
)
def test_a_parameter_list_is_taken_over_where_it_can_be(parameters, kept):
    source = f"{HEAD}class Model(nn.Module):\n    def forward({parameters}): pass\n"
    assert parameters_of(source, "Model") == (parameters if kept else None)


def test_a_decorated_or_inherited_forward_has_no_parameter_list():
    assert parameters_of(HEAD + MODEL.format("x").replace("    def", "    @torch.no_grad()\n    def"), "Model") is None
    assert parameters_of(HEAD + "class Model(nn.Linear): pass\n", "Model") is None


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("Step()", "Step_()"),
        ("m.Step(Step, m.h[0].Step)", "m.Step(Step_, m.h[0].Step)"),
        ("'Step' + f(Step=Step)", "'Step' + f(Step=Step_)"),
        ("class Step:\n    x: Step = Step\n", "class Step_:\n    x: Step_ = Step_\n"),
        ("Stepping + MyStep", "Stepping + MyStep"),
        ("One, Step = 1, Step\n", "One, Step_ = 1, Step_\n"),
        ("f(one, [Step], Step=Step)[Step]", "f(one, [Step_], Step=Step_)[Step_]"),
        ("f'Step {Step} {{Step}} {x.Step!r}'", "f'Step {Step_} {{Step}} {x.Step!r}'"),
        ("rf'{{{Step!r}}}' 'Step {Step}'", "rf'{{{Step_!r}}}' 'Step {Step}'"),
        ("f'{f(Step != 1, {1: Step}):>{Step}.3f}' + Step", "f'{f(Step_ != 1, {1: Step_}):>{Step_}.3f}' + Step_"),
        ('f"""\n{Step["Step"]}\n{Step}\n""", Step', 'f"""\n{Step_["Step"]}\n{Step_}\n""", Step_'),
    ],
)
def test_names_are_renamed_and_nothing_else(before, after):
    assert rename_names(before, {"Step": "Step_"}) == after


def test_code_is_left_alone_where_nothing_is_renamed():
    assert rename_names("x = (", {}) == "x = ("
