"""What names of a user's file may stand for, and what each of its statements may change."""

from __future__ import annotations

import libcst as cst
import pytest

from remat_codegen.emit.needed import needed_for
from remat_codegen.emit.outside import may_be_carried, sets_something
from remat_codegen.emit.statements import Statement
from remat_codegen.emit.userfile import File, alike, bare

HEAD = "import torch\nimport os\nimport functools\nfrom torch import nn\n"


def file_of(text):
    return File([Statement(node) for node in cst.parse_module(HEAD + text).body])


def last(text):
    """A file, and the last of its statements."""
    file = file_of(text)
    return file, file.statements[-1]


KIND = "class Kind:\n    def __init__(self): self.items = []\n    def add(self, x): self.items.append(x)\n"


@pytest.mark.parametrize(
    ("text", "root", "found"),
    [
        pytest.param("a = 1\n", "a", {"a"}, id="a name stands for its object"),
        pytest.param("a = T\nb = a\n", "b", {"a", "b", "T"}, id="and for that of a name that it was assigned"),
        pytest.param("a = b\nb = a\n", "a", {"a", "b"}, id="round and round ends"),
        pytest.param(KIND, "Kind()", {"Kind()"}, id="a call of a class is an instance"),
        pytest.param(KIND, "~Kind()", {"Kind"}, id="the class of an instance is the class"),
        pytest.param(KIND + "k = Kind()\n", "k", {"k", "Kind()"}, id="a name for an instance"),
        pytest.param(KIND + "k = Kind()\n", "~k", {"k", "Kind"}, id="the class of a name for an instance"),
        pytest.param(KIND + "k = Kind()\n", "k.()", {"k", "Kind()"}, id="what a method returns may be its object"),
        pytest.param("T = {}\ndef f(): return T\n", "f()", {"T"}, id="a call of a function is what it returns"),
        pytest.param("T = {}\ndef f():\n    a = T\n    return a\n", "f()", {"T"}, id="also by way of a local name"),
        pytest.param("def f(a): return a\n", "f()", set(), id="what it was given is seen where it is called"),
        pytest.param("", "torch.()", set(), id="what an import's functions return is nothing of the file"),
    ],
)
def test_objects_that_a_root_may_be(text, root, found):
    assert file_of(text).objects([root]) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        pytest.param("T = {}\nT['a'] = 1\n", {"T"}, id="an element that is set"),
        pytest.param("T = {}\nT.update(a=1)\n", {"T"}, id="a method that is called"),
        pytest.param("T = {}\nU = T\nU.update(a=1)\n", {"T", "U"}, id="under another name"),
        pytest.param(KIND + "k = Kind()\nk.add(1)\n", {"k"}, id="a method of a class of the file changes its own object"),
        pytest.param(KIND + "Kind.x = 1\n", {"Kind"}, id="an attribute of a class"),
        pytest.param("class A:\n    T = {}\na = A()\na.T['x'] = 1\n", {"a", "A"}, id="what a class shares with its instances"),
        pytest.param("class A:\n    n = 1\na = A()\na.m.x = 1\n", {"a"}, id="not the class, where nothing is shared"),
        pytest.param("n = 1\nn += 1\n", set(), id="a constant is nothing that changes"),
        pytest.param("torch.x = 1\n", set(), id="nor is an import of this file"),
        pytest.param("def f(): pass\nf()\n", set(), id="a function of the file is read instead"),
        pytest.param("a = get()\na()\n", {"a", "get"}, id="what is called and not known may change itself"),
    ],
)
def test_objects_that_a_statement_changes_itself(text, found):
    file, statement = last(text)
    assert file.changes(statement) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        pytest.param("T = {}\ndef f(): T['a'] = 1\nf()\n", {"T"}, id="what a function changes that is called"),
        pytest.param("T = {}\ndef f(): T['a'] = 1\ng = f\ng()\n", {"T"}, id="also under another name"),
        pytest.param("T = {}\ndef g(): T.clear()\ndef f(): g()\nf()\n", {"T"}, id="and what it calls"),
        pytest.param("T = {}\ndef f(): T.clear()\ndef g(): return f\nx = g()\n", {"T"}, id="and what it mentions"),
        pytest.param("T = {}\ndef f():\n    global T\n    T = 1\nf()\n", {"T"}, id="a name that is declared global"),
        pytest.param("T = {}\nf = lambda: T.clear()\nf()\n", {"T"}, id="a function without a name"),
        pytest.param("T = {}\nclass A:\n    def __init__(self): T[1] = 1\nA()\n", {"T"}, id="what a class does as it is made"),
        pytest.param("T = {}\nclass A:\n    def f(self): T[1] = 1\na = A()\na.f()\n", {"T"}, id="what a method does"),
        pytest.param(
            "T = {}\nclass M(type):\n    def __new__(m, *a): T[1] = 1\nclass A(metaclass=M): pass\nclass B(A): pass\n",
            {"T"},
            id="what a metaclass does, of a class's class, too",
        ),
        pytest.param(
            "class B: pass\nclass A(B): pass\nclass B(A): pass\n", set(), id="classes that are made of each other end"
        ),
        pytest.param("def f(a): a.x = 1\nf(torch)\n", {"<parameter>"}, id="that it sets something in what it is given"),
        pytest.param("T = {}\ndef f(): T['a'] = 1\n", set(), id="nothing, where it is only defined"),
        pytest.param("def f():\n    a = {}\n    a['x'] = 1\nf()\n", set(), id="nothing of local names"),
    ],
)
def test_what_functions_change_that_a_statement_calls(text, found):
    file, statement = last(text)
    assert file.reaches[statement].writes == found


@pytest.mark.parametrize(
    ("text", "handed", "marked"),
    [
        pytest.param("T = {}\nf(T)\n", {"T"}, set(), id="a function may change what it is handed"),
        pytest.param("T = {}\nx = str(T)\n", set(), set(), id="str does not"),
        pytest.param(
            "def m(a): a.x = 1\nclass A: pass\nm(A)\n", {"A"}, {"A"}, id="one of the file that sets attributes marks it"
        ),
        pytest.param("def m(a): return a\nclass A: pass\nm(A)\n", {"A"}, set(), id="one that sets none does not"),
        pytest.param("class A: pass\ntorch.f(A)\n", {"A"}, {"A"}, id="one of PyTorch's marks, if nobody takes its result"),
        pytest.param("class A: pass\nx = torch.f(A)\n", {"A"}, set(), id="not, if somebody does"),
        pytest.param("import atexit\nclass A: pass\natexit.f(A)\n", {"A"}, set(), id="not, if it is for later"),
        pytest.param("T = {}\n@f\ndef g(): pass\n", {"g"}, set(), id="a decorator is handed what it decorates"),
    ],
)
def test_what_a_statement_hands_to_others(text, handed, marked):
    file, statement = last(text)
    assert file.hands(statement) == (handed, marked)


@pytest.mark.parametrize(
    ("root", "name"),
    [("x", "x"), ("x()", "x"), ("x.()", "x"), ("x.given", "x"), ("~x", "x"), ("~x()", "x"), ("self.x", "self.x")],
)
def test_the_name_in_a_root(root, name):
    assert bare(root) == name


@pytest.mark.parametrize(
    ("root", "other", "found"),
    [
        pytest.param("x.()", "y", "y.()", id="what is made of a name is made of the other"),
        pytest.param("x.given", "y", "y.given", id="what it is given to, too"),
        pytest.param("~x()", "y", "y()", id="an instance's, too"),
        pytest.param("x.()", "f()", "f()", id="of what a call returns it is that"),
        pytest.param("x", "y", "y", id="a name alone is a name alone"),
    ],
)
def test_a_root_of_another_name(root, other, found):
    assert alike(root, other) == found


MODEL = "class Model(nn.Module):\n    def forward(self, x): return {}\n"


@pytest.mark.parametrize(
    ("text", "use", "kept"),
    [
        pytest.param("a = 1\nb = 2\n", "a", ["a = 1"], id="what defines a name that the class mentions"),
        pytest.param("a = 1\nb = a\n", "b", ["a = 1", "b = a"], id="and what that mentions"),
        pytest.param("T = {}\nT['a'] = 1\n", "T", ["T = {}", "T['a'] = 1"], id="what changes it"),
        pytest.param(
            "T = {}\ndef f(): T.clear()\nf()\n", "T", ["T = {}", "def f(): T.clear()", "f()"], id="by a function, too"
        ),
        pytest.param("T = {}\nfill(T)\n", "T", ["T = {}", "fill(T)"], id="what it is handed to"),
        pytest.param("n = 1\nfill(n)\n", "n", ["n = 1"], id="not, where it is a constant"),
        pytest.param("fill(Model)\n", "x", [], id="not what a class is handed to"),
        pytest.param("def m(a): a.x = 1\nm(Model)\n", "x", ["def m(a): a.x = 1", "m(Model)"], id="but where that marks it"),
        pytest.param("torch.manual_seed(1)\n", "x", ["torch.manual_seed(1)"], id="what sets how PyTorch computes, always"),
        pytest.param("if __name__ == '__main__': T.clear()\nT = {}\n", "T", ["T = {}"], id="nothing of what does not run"),
        pytest.param("print(T)\nT = {}\n", "T", ["T = {}"], id="nothing that only prints"),
    ],
)
def test_statements_that_a_class_needs(text, use, kept):
    definition = MODEL.format(use)
    file = file_of(definition + text)
    found = [cst.Module([s.node]).code.strip() for s in needed_for(file, "Model") if not s.is_import]
    assert found == [definition.strip(), *kept]


def test_imports_are_needed_where_they_are_mentioned():
    file = file_of(MODEL.format("os.sep"))
    assert [sorted(s.defines) for s in needed_for(file, "Model") if s.is_import] == [["os"], ["nn"]]


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("torch.set_default_dtype(torch.float64)\n", id="a setting of PyTorch"),
        pytest.param("torch.use_deterministic_algorithms(True)\n", id="how it computes"),
        pytest.param("torch.backends.cuda.enable_flash_sdp(False)\n", id="which kernels it takes"),
        pytest.param("torch.manual_seed(1)\n", id="a seed"),
        pytest.param("os.environ.setdefault('A', '1')\n", id="the environment, by a method"),
        pytest.param("os.environ['A'] = '1'\n", id="the environment, by an element"),
        pytest.param("torch.backends.cudnn.benchmark = True\n", id="an attribute of PyTorch"),
        pytest.param("setattr(torch.backends.cudnn, 'benchmark', True)\n", id="the same by setattr"),
        pytest.param("def f(): torch.manual_seed(1)\nf()\n", id="a function that does so"),
    ],
)
def test_statements_that_set_something_of_the_process(text):
    assert sets_something(*last(text))


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("x = torch.zeros(2)\n", id="a tensor that is made"),
        pytest.param("torch.set_printoptions(2)\n", id="how tensors are printed"),
        pytest.param("os.environ.get('A')\n", id="the environment that is read"),
        pytest.param("T = {}\nT['a'] = 1\n", id="something of the file"),
        pytest.param("def f(): torch.manual_seed(1)\n", id="a function that is only defined"),
    ],
)
def test_statements_that_set_nothing_of_it(text):
    assert not sets_something(*last(text))


def carried(text, use="x"):
    file = file_of(text + MODEL.format(use))
    return may_be_carried(file, needed_for(file, "Model"))


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("torch.manual_seed(1)\n", id="a setting, which may be set twice"),
        pytest.param("torch.backends.cudnn.benchmark = True\n", id="a value of PyTorch's"),
        pytest.param("torch.f = torch.g\n", id="a function of PyTorch's that is replaced by another"),
        pytest.param("os.environ['A'] = str(1)\n", id="the environment, which holds texts"),
        pytest.param("torch.zero_(T)\nT = 1\n", id="what is done to something of the file"),
        pytest.param(
            "class K: pass\ntorch.x.register_thing(K)\n", id="a class of the file that is registered, another in a copy"
        ),
        pytest.param("m = nn.Module()\nx = nn.Module.register_buffer(m, 'a', None)\n", id="what one module registers"),
        pytest.param("import numpy\nnumpy.seterr(1)\n", id="a package that leaves PyTorch alone"),
        pytest.param("import numpy\n", id="such a package, though nothing mentions it"),
        pytest.param("W = torch.rand(2)\n", id="random numbers that the class does not need"),
    ],
)
def test_files_that_may_be_carried_over(text):
    assert carried(text)


@pytest.mark.parametrize(
    ("text", "use"),
    [
        pytest.param("exec('a = 1')\n", "x", id="what may bind any name"),
        pytest.param("torch.library.define('a::b', '() -> ()')\n", "x", id="operations that are made"),
        pytest.param("import sys\ns = sys.modules\n", "x", id="modules that are found by text"),
        pytest.param("torch.x.register_thing(1)\n", "x", id="what is registered with PyTorch"),
        pytest.param(
            "class K: pass\ntorch.x.register_thing(K, serialized_type_name='K')\n", "x", id="a class under a fixed name"
        ),
        pytest.param("torch.f = functools.partial(torch.f)\n", "x", id="a function that is replaced by what may call it"),
        pytest.param("def g(): pass\ntorch.f = g\n", "x", id="a function that is replaced by one of the file"),
        pytest.param("del torch.f\n", "x", id="something of PyTorch's that is deleted"),
        pytest.param("torch.unknown()\n", "x", id="a call of PyTorch's that may set anything"),
        pytest.param("import other\nother.f()\n", "x", id="a call of another package's that may set anything"),
        pytest.param("import other\n", "x", id="a package that is imported only for what it does"),
        pytest.param("W = torch.rand(2)\n", "W", id="random numbers that the class needs"),
        pytest.param("W = torch.empty(2).normal_()\n", "W", id="also by a method"),
        pytest.param("W = nn.Linear(2, 2)\n", "W", id="also as weights"),
        pytest.param("import time\nW = time.time()\n", "W", id="the time"),
        pytest.param("import inspect\ndef f(): return inspect.getsource(f)\n", "f()", id="what looks at its own text"),
        pytest.param("def f(x): return torch.ops.mine.f(x)\n", "f(x)", id="operations that are not PyTorch's own"),
    ],
)
def test_files_that_may_not(text, use):
    assert not carried(text, use)


def test_pytorch_s_own_operations_depend_on_no_place():
    assert carried("def f(x): return torch.ops.aten.sin(x)\n", "f(x)")
