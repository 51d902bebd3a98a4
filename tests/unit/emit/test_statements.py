"""What a statement at the top of a user's file defines, mentions and imports."""

from __future__ import annotations

import ast
import sys

import libcst as cst
import pytest

from remat_codegen.emit.statements import Statement, import_lines_of, imports_in

needs_312 = pytest.mark.skipif(sys.version_info < (3, 12), reason="Python has such statements since 3.12")


def statement(text):
    (node,) = cst.parse_module(text).body
    return Statement(node)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        pytest.param("a = b = 1", {"a": "", "b": ""}, id="every target of an assignment"),
        pytest.param("a, [b, (c, d)] = x", {"a": "", "b": "", "c": "", "d": ""}, id="what is unpacked"),
        pytest.param("a: int = 1", {"a": ""}, id="an annotated name"),
        pytest.param("a += 1", {"a": ""}, id="a name that is changed"),
        pytest.param("del a", {"a": ""}, id="a name that is deleted"),
        pytest.param("for a in x: b = 1", {"a": "", "b": ""}, id="a loop and what is in it"),
        pytest.param("with x as a: pass", {"a": ""}, id="what with gives"),
        pytest.param("print(a := 1)", {"a": ""}, id="what is assigned on the way"),
        pytest.param("try: pass\nexcept E as a: pass", {"a": ""}, id="an exception"),
        pytest.param(
            "match x:\n    case [a, *b]: pass\n    case {'k': 1, **c}: pass", {"a": "", "b": "", "c": ""}, id="a pattern"
        ),
        pytest.param("def f(x):\n    y = 1", {"f": ""}, id="a function, and nothing in it"),
        pytest.param("class A:\n    y = 1", {"A": ""}, id="a class, and nothing in it"),
        pytest.param("type a = int", {"a": ""}, id="a type", marks=needs_312),
        pytest.param("with x as (a, b.c, d[0]): pass", {"a": ""}, id="what with unpacks"),
        pytest.param("a = [b for b in c if (d := b)]", {"a": "", "d": ""}, id="not: what a comprehension goes through"),
        pytest.param("f = lambda a: (b := a)", {"f": ""}, id="not: what is bound in a lambda"),
        pytest.param("[a for a in b]; {c: d for c, d in e}; {f for f in g}; list(h for h in i)", {}, id="of no kind"),
        pytest.param("def f(a=y): (y := 2)", {"f": ""}, id="not: what a function binds, even if it is read beside it"),
        pytest.param("def f():\n    global a\n    a = 1", {"f": ""}, id="not: what a function may bind"),
        pytest.param("a.b = 1", {}, id="not: an attribute"),
        pytest.param("a[0] = 1", {}, id="not: an element"),
        pytest.param("import math", {"math": "math"}, id="a module"),
        pytest.param("import os.path", {"os": "os"}, id="the package of a module in it"),
        pytest.param("import os.path as p", {"p": "os.path"}, id="a module under another name"),
        pytest.param("from math import pi, tau as t", {"pi": "math.pi", "t": "math.tau"}, id="what is in a module"),
        pytest.param("try: import a\nexcept E: a = None", {"a": ""}, id="not: what may be none"),
        pytest.param("try: from a import b\nexcept E:\n    def b(): pass", {"b": ""}, id="not: what may be a function"),
        pytest.param("try: from a import b\nexcept E:\n    async def b(): pass", {"b": ""}, id="of any kind"),
        pytest.param("if c:\n    import a\n    def f(): a = 1", {"a": "a", "f": ""}, id="whatever functions call so"),
    ],
)
def test_names_that_a_statement_binds(text, names):
    assert statement(text).bindings == names


def test_a_star_binds_all_that_a_module_exports():
    found = statement("from math import *")
    assert found.bindings["pi"] == "math.pi" and found.star and found.stars() == ["math"]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        pytest.param("a = b.c(d=e)", {"a", "b", "e"}, id="names, but neither attributes nor keywords"),
        pytest.param("def f(x: T = d) -> U: return y", {"f", "x", "T", "d", "U", "y"}, id="all of a function"),
        pytest.param("print(a)", set(), id="not: what is only printed"),
        pytest.param("assert a", set(), id="not: what is only asserted"),
        pytest.param("try:\n    a\nexcept E: pass", {"a", "E"}, id="but where failing decides"),
        pytest.param("with f:\n    assert a", {"f", "a"}, id="also by what with catches"),
        pytest.param("def f(): print(a)", {"f", "print", "a"}, id="and prints of functions"),
        pytest.param("log = logging.getLogger(__name__)", {"log", "logging"}, id="not: what a logger is called after"),
    ],
)
def test_names_that_a_statement_mentions(text, names):
    assert statement(text).mentions == names


@pytest.mark.parametrize(
    ("text", "may"),
    [
        pytest.param("import torch.nn as nn", True, id="PyTorch may be imported"),
        pytest.param("from collections import deque", True, id="the standard library may"),
        pytest.param("import numpy", True, id="an installed package may"),
        pytest.param("import not_installed_here", False, id="another package may not"),
        pytest.param("import math, not_installed_here", False, id="nor beside others"),
        pytest.param("from not_installed_here.random import rand", False, id="nor a part of it"),
        pytest.param("from . import a", False, id="nor what is near the file"),
        pytest.param("from .a import b", False, id="nor what is in there"),
        pytest.param("def f():\n    import numpy", False, id="nor in a function"),
        pytest.param(
            "try:\n    import numpy\nexcept ImportError:\n    numpy = None", True, id="what may fail to be imported may"
        ),
        pytest.param("if TYPE_CHECKING:\n    import numpy", True, id="what is for type checkers may"),
        pytest.param("if typing.TYPE_CHECKING:\n    import numpy", True, id="by its full name, too"),
        pytest.param("if x:\n    import numpy", False, id="not what any other condition decides"),
        pytest.param(
            "try:\n    from . import a\nexcept ImportError: pass", False, id="nothing near the file, whatever may fail"
        ),
        pytest.param("if x:\n    from math import *", False, id="no star but at the top"),
        pytest.param("from math import *", True, id="a star at the top may"),
    ],
)
def test_what_a_generated_file_may_import(text, may):
    assert statement(text).importable is may


@pytest.mark.parametrize(
    ("text", "is_import", "is_future"),
    [
        pytest.param("import math; import os", True, False, id="a line of imports"),
        pytest.param("from __future__ import annotations", True, True, id="one of the future"),
        pytest.param("import math; a = 1", False, False, id="a line with something else"),
        pytest.param("if x:\n    import math", False, False, id="imports in a branch"),
    ],
)
def test_what_is_an_import(text, is_import, is_future):
    assert (statement(text).is_import, statement(text).is_future) == (is_import, is_future)


@pytest.mark.parametrize(
    ("text", "guard"),
    [
        pytest.param("if __name__ == '__main__': pass", True, id="as everybody writes it"),
        pytest.param("if '__main__' == __name__: pass", True, id="turned around"),
        pytest.param("if __name__ == '__main__' and x: pass", True, id="with more conditions"),
        pytest.param("if __name__ == '__main__' or x: pass", False, id="not: with another way in"),
        pytest.param("if __name__ != '__main__': pass", False, id="not: the opposite"),
        pytest.param("if __name__ == '__main__': pass\nelse: a = 1", False, id="not: with something else to do"),
        pytest.param("if __name__ == 'a': pass", False, id="not: another name"),
        pytest.param("a = __name__ == '__main__'", False, id="not: the comparison alone"),
    ],
)
def test_what_does_not_run_when_the_file_is_imported(text, guard):
    assert statement(text).is_main_guard is guard


@pytest.mark.parametrize(
    ("text", "sets"),
    [
        pytest.param("A.forward = f", True, id="a class's forward"),
        pytest.param("def g():\n    A.forward = f", True, id="in a function, too"),
        pytest.param("forward = f", False, id="not: a name"),
        pytest.param("A.other = f", False, id="not: another attribute"),
    ],
)
def test_what_sets_a_forward(text, sets):
    assert statement(text).sets_forward is sets


@pytest.mark.parametrize(
    ("text", "mentioned", "lines"),
    [
        pytest.param("import math, os as o  # why", (), ("import math", "import os as o"), id="one module a line, no comments"),
        pytest.param("import math; import os", (), ("import math", "import os"), id="one statement a line"),
        pytest.param("from os import (\n    sep,\n    path\n)", (), ("from os import sep, path",), id="one line for many"),
        pytest.param(
            "from math import *", ("tau", "pi", "x"), ("from math import pi, tau",), id="of everything, what is mentioned"
        ),
        pytest.param("from math import *", ("x",), (), id="of everything nothing, where nothing is"),
    ],
)
def test_lines_of_imports(text, mentioned, lines):
    assert statement(text).import_lines(frozenset(mentioned)) == lines


def test_only_a_line_of_its_own_has_imports_in_it():
    nodes = cst.parse_module("import math\nif x:\n    import os\n").body
    assert [len(imports_in(n)) for n in nodes] == [1, 0] and import_lines_of(nodes) == ("import math",)


@pytest.mark.parametrize(
    ("text", "left"),
    [
        pytest.param("if x:\n    print(x)\n    a = 1\n", "if x:\n    pass\n    a = 1\n", id="nothing stands for it"),
        pytest.param("if x:\n    print(x)\n", "if x:\n    pass\n", id="what is left of a branch stays one"),
        pytest.param("if x: print(x); a = 1\n", "if x: a = 1\n", id="on one line, too"),
        pytest.param("for i in x:\n    log.info(i); f(i)\n", "for i in x:\n    f(i)\n", id="what does something stays"),
        pytest.param("def f():\n    print(1)\n", "def f():\n    print(1)\n", id="a function stays as it is"),
        pytest.param("if x:\n    def f(): print(1)\n", "if x:\n    def f(): print(1)\n", id="also in a branch"),
        pytest.param(
            "try:\n    assert x\nexcept E: pass\n", "try:\n    assert x\nexcept E: pass\n", id="and where failing decides"
        ),
        pytest.param("with f:\n    assert x\n", "with f:\n    assert x\n", id="also by what with catches"),
    ],
)
def test_what_only_prints_is_taken_out(text, left):
    assert cst.Module([statement(text).bare()]).code == left


def test_the_parts_are_the_same_in_python_s_own_tree():
    assert ast.unparse(statement("a  =  (1)\n").parts[0]) == "a = 1"
