"""What a marked file's imports give to the methods of libraries that stand in it."""

from __future__ import annotations

import ast
import importlib.util
import sys

import pytest

from remat_codegen.marked.imported import Imported

LIBRARY = """
import math
from collections import OrderedDict as Ordered

import torch.nn.functional as F


class Layer:
    def forward(self, x):
        return F.relu(x) * math.pi

    def made(self):
        return Ordered()
"""
NEEDS_ALL = "Layer.forward Layer.made".split()


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """The name of a module, and its file."""
    path = tmp_path_factory.mktemp("imported") / "library_of_layers.py"
    path.write_text(LIBRARY)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield path.stem, str(path)
    del sys.modules[path.stem]


def methods(names=NEEDS_ALL, text=LIBRARY):
    (kind,) = [n for n in ast.parse(text).body if isinstance(n, ast.ClassDef)]
    return {f"Layer.{f.name}": f for f in kind.body if f"Layer.{f.name}" in names}


@pytest.mark.parametrize(
    ("text", "alike"),
    [
        pytest.param("import math", {"math": {"math"}}, id="a module under its name"),
        pytest.param("import math as m", {"m": {"math"}}, id="a module under another name"),
        pytest.param("import torch.nn.functional as F", {"F": {"F"}}, id="a module in a package"),
        pytest.param("import torch.nn.functional", {"torch": set()}, id="the package is something else"),
        pytest.param("from torch.nn import functional as f", {"f": {"F"}}, id="the same by another way"),
        pytest.param("from collections import OrderedDict", {"OrderedDict": {"Ordered"}}, id="what is in a module"),
        pytest.param("import os", {"os": set()}, id="what no method needs"),
        pytest.param("math = 3", {}, id="what is no import is nothing"),
        pytest.param("def math(): pass", {}, id="nor is a function"),
        pytest.param("import math\nmath = 3", {}, id="the last statement that binds a name counts"),
        pytest.param("math = 3\nimport math", {"math": {"math"}}, id="also where that is the import"),
        pytest.param("import module_that_is_not_there", {}, id="what is not there gives nothing"),
        pytest.param("from math import what_is_not_there", {}, id="nor does what is not in it"),
    ],
)
def test_names_that_mean_the_same_here_and_there(library, text, alike):
    module, file = library
    assert Imported(ast.parse(text)).alike(module, file, methods()) == alike


def test_of_a_module_that_is_not_loaded_nothing_is_known(library):
    _, file = library
    assert Imported(ast.parse("import math")).alike("not_loaded", file, methods()) == {"math": frozenset()}


def wrong(library, text, alike, body=None, names=("Layer.forward",)):
    _, file = library
    given = methods(names) if body is None else {"Layer.forward": ast.parse(f"def forward(self, x):\n    {body}").body[0]}
    return [said for _, said in Imported(ast.parse(text)).wrong(alike, file, given)]


ALIKE = {"F": frozenset({"F"}), "math": frozenset({"math"})}


@pytest.mark.parametrize(
    ("text", "alike", "body", "said"),
    [
        pytest.param("import math\nimport torch.nn.functional as F", ALIKE, None, [], id="nothing, where all mean the same"),
        pytest.param(
            "import math", ALIKE, None, ["nothing imported is not the F that Layer.forward needs"], id="a name is missing"
        ),
        pytest.param(
            "import math\nimport os as F",
            {"math": frozenset({"math"})},
            None,
            ["import os as F is not the F that Layer.forward needs"],
            id="a name is another's",
        ),
        pytest.param(
            "import math as m\nimport torch.nn.functional as G",
            {"m": frozenset({"math"}), "G": frozenset({"F"})},
            "return G.relu(x) * m.pi",
            [],
            id="nothing, where the method is written with other names of the same",
        ),
    ],
)
def test_names_that_mean_another_thing_here(library, text, alike, body, said):
    assert wrong(library, text, alike, body) == said
