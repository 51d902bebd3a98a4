"""Files are laid out as black lays them out as a whole."""

from __future__ import annotations

from pathlib import Path

import black
import pytest

from remat_codegen.emit import formatting
from remat_codegen.emit.formatting import MODE, formatted

ROOT = Path(__file__).parents[3]

ODD = {
    "nothing": "",
    "a comment alone": "# one\n",
    "statements alone": "x = 1\n\n\n\n\ny = [1,\n2,]\n",
    "close together": "def f(a,b): return a+b\ndef g(): pass\nx=1\nclass A: y=1\nclass B(A):\n  def f(self): pass\n",
    "comments between": "# of f\ndef f():\n    pass\n# of g\n\n# too\n@one\n# two\n@two(1,\n2)\ndef g():\n    pass\n# last",
    "comments behind": "def f():\n    pass\n    # of f\n  # too\n\n# of g\ndef g():\n    if x:\n        y\n        # in\n",
    "a docstring first": '"""Text."""\nclass A:\n    """Text."""\n    x = 1\n    def f(self): pass\n',
    "imports first": "import a\nfrom b import (c,)\ndef f(): pass\nimport d\nclass A: pass\n",
    "bodies of dots": "@overload\ndef f(x: int): ...\n@overload\ndef f(x: str): ...\ndef f(x): return x\nclass E(A): ...\n",
    "dots on their own line": "def f(\n    x,\n):\n    ...\ndef g(): pass\n",
    "switched off": "# fmt: off\ndef f(a,b): pass\n# fmt: on\ndef g(a,b): pass\n",
    "one line left alone": "def f(a,b): pass  # fmt: skip\ndef g(a,b): pass\n",
    "other ends of lines": "def f(a,b): pass\r\ndef g(a,b): pass\r\n",
    "functions in conditions": "if x:\n    def f(a,b): pass\n    class A: pass\nelse:\n    def f(a): pass\n",
    "texts of several lines": 'def f():\n    return """\n# no comment\n    """\n  # of f\n',
    "empty ones within": "class A:\n    def f(self): ...\ndef g(): pass\nclass B:\n    if x:\n        def f(self): ...\nz=1\n",
    "a decorator after the docstring": '"""Text."""\n@one\ndef f(a,b): pass\ndef g(a,b): pass\n',
    "switched off beside another comment": "def f(a,b): pass  # type: ignore; fmt:skip\ndef g(a,b): pass\n",
    "a line that goes on": "def f(a,b): pass; \\\n\ndef g(a,b): pass\n",
    "async": "async def f(a,b): await a\nasync def g(): pass\n",
    "names like those that stand in": f"def {formatting.STAND_IN}0(): pass\ndef f(a,b): pass\n",
}


@pytest.mark.parametrize("name", ODD)
def test_odd_files(name):
    assert formatted(ODD[name]) == black.format_str(ODD[name], mode=MODE)


FIRST = (ROOT / "generated" / "first").glob("*.py")
FILES = [*sorted(FIRST), ROOT / "remat_codegen" / "runtime.py", ROOT / "examples" / "gpt2.py"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_files(path):
    text = path.read_text(encoding="utf-8").replace("# fmt: off\n", "").replace("\n\n\n", "\n")
    assert formatted(text) == black.format_str(text, mode=MODE)


def test_what_was_laid_out_is_not_laid_out_again(monkeypatch):
    formatted("def f(a,b): pass\nx=1\n")
    laid_out: list[str] = []
    monkeypatch.setattr(formatting.black, "format_str", lambda text, mode: laid_out.append(text) or text)
    formatted("y=2\ndef f(a,b): pass\n")
    assert [("f(a,b)" in text, "y=2" in text) for text in laid_out] == [(False, True)]
