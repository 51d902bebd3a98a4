"""A file notices that the code is another by now that its methods with marks were made from: never does it do as it was."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import sys

import pytest
import torch

from remat_codegen import parts as helpers
from remat_codegen.ask.request import Request
from remat_codegen.errors import VerifyError
from remat_codegen.marked.library import method_in
from remat_codegen.marked.origins import origins
from remat_codegen.run import marked
from remat_codegen.run.pipeline import verify
from remat_codegen.show.results import Progress

QUIET = Progress(None)
MODEL = """
import torch
from torch import nn
from torch.nn.functional import gelu as act

SCALE = 0.5
RATE = 0.001


def scaled(x):
    return x * SCALE


class Step(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.query, self.out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        scores = self.query(x)  # as wide as four
        return x + self.out(act(scaled(torch.softmax(scores, -1))))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.steps = nn.ModuleList([Step(32) for _ in range(4)])

    def forward(self, x):
        for step in self.steps:
            x = step(x)
        return x


def example_inputs():
    return (torch.randn(64, 32),)
"""
WITHIN = [  # what the marked method does, or what that needs: each another model
    ("Step.forward", "torch.softmax(scores, -1)", "torch.softmax(scores, -1).sin()"),
    ("Step.forward", "return x + self.out", "return x - self.out"),
    ("scaled", "return x * SCALE", "return x / SCALE"),
    ("SCALE", "SCALE = 0.5", "SCALE = 0.25"),
    ("act", "import gelu as act", "import silu as act"),
]
BESIDE = [  # and what is not, or does nothing
    ("RATE = 0.001", "RATE = 0.01"),
    ("  # as wide as four", "  # as wide as it has to be"),
    ("def scaled(x):\n", "def scaled(x):\n    # a comment\n\n"),
    ("self.steps = nn.ModuleList([Step(32) for _ in range(4)])", "self.steps = nn.ModuleList(Step(32) for _ in range(4))"),
    ("return (torch.randn(64, 32),)", "return (torch.randn(128, 32),)"),
]


def imported(path, name):
    """A file as a module, newly loaded."""
    importlib.invalidate_caches()
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def carried(tmp_path_factory):
    """The text of a file that carries the model's class."""
    folder = tmp_path_factory.mktemp("carried")
    (folder / "net.py").write_text(MODEL)
    marked.generate(Request(f"{folder / 'net.py'}:Net", "60%", folder / "net_remat.py", edition=2), QUIET)
    text = (folder / "net_remat.py").read_text()
    assert "MADE_FROM" in text and "class Step" in text
    return text


@pytest.fixture
def edited(carried, tmp_path, monkeypatch):
    """The file, and its model's file as it is after a change."""

    def edit(before, after):
        assert MODEL.count(before) == 1
        (tmp_path / "net.py").write_text(MODEL.replace(before, after))
        (tmp_path / "net_remat.py").write_text(carried)
        for name in ("origins_net", "origins_net_remat"):
            monkeypatch.setitem(sys.modules, name, None)
        return imported(tmp_path / "net.py", "origins_net"), imported(tmp_path / "net_remat.py", "origins_net_remat")

    return edit


@pytest.mark.parametrize(("name", "before", "after"), WITHIN, ids=[row[2] for row in WITHIN])
def test_another_text_of_what_the_marked_methods_do_is_refused_by_name(edited, name, before, after):
    model, file = edited(before, after)
    with pytest.raises(ValueError, match=rf"^{name} of net\.py is not what this file was made from: generate it again"):
        file.rematerialize(model.Net())


@pytest.mark.parametrize(("before", "after"), BESIDE, ids=[row[1] for row in BESIDE])
def test_what_they_do_not_need_may_change(edited, before, after):
    model, file = edited(before, after)
    torch.manual_seed(0)
    net, x = model.Net(), torch.randn(64, 32)
    net(x).sum().backward()
    wanted = [p.grad.clone() for p in net.parameters()]
    net.zero_grad()
    file.rematerialize(net)(x).sum().backward()
    assert all(torch.equal(p.grad, g) for p, g in zip(net.parameters(), wanted, strict=True))


def test_the_file_s_own_class_is_not_compared(edited):
    _, file = edited("torch.softmax(scores, -1)", "torch.softmax(scores, -1).sin()")
    file.rematerialize(file.Net())(torch.randn(64, 32)).sum().backward()


def test_a_model_whose_file_is_gone_is_taken_as_it_is(edited, tmp_path):
    model, file = edited("RATE = 0.001", "RATE = 0.01")
    (tmp_path / "net.py").unlink()
    file.rematerialize(model.Net())(torch.randn(64, 32)).sum().backward()


def test_verify_says_so(edited, tmp_path):
    edited("return x * SCALE", "return x / SCALE")
    with pytest.raises(VerifyError, match=r"scaled of net\.py is not what this file was made from: generate it again"):
        verify(tmp_path / "net_remat.py", f"{tmp_path / 'net.py'}:Net", steps=1, progress=QUIET)


def test_verify_tells_other_numbers_without_an_internal_error(edited, tmp_path):
    edited("RATE = 0.001", "RATE = 0.01")
    path = tmp_path / "net_remat.py"
    text = path.read_text()
    path.write_text(text.replace("x * SCALE", "x * SCALE * 1.25"))
    assert path.read_text() != text
    found = verify(path, f"{tmp_path / 'net.py'}:Net", steps=1, progress=QUIET)
    assert not found.ok and any("gradients" in row.what and not row.ok for row in found.rows)


def test_methods_of_a_package_are_compared_too(tmp_path, monkeypatch):
    package = tmp_path / "origins_package"
    package.mkdir()
    (package / "__init__.py").write_text("from .layers import Net\n")
    (package / "layers.py").write_text(MODEL)
    (tmp_path / "make.py").write_text(
        "import torch\nfrom origins_package import Net\n\n\ndef make():\n    return Net()\n\n\n"
        "def example_inputs():\n    return (torch.randn(64, 32),)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    output = tmp_path / "packaged_remat.py"
    marked.generate(Request(f"{tmp_path / 'make.py'}:make", "60%", output, edition=2), QUIET)
    assert 'MADE_FROM["origins_package.layers"] = """\n    Step.forward:' in output.read_text()
    file, layers = imported(output, "origins_packaged"), sys.modules["origins_package.layers"]
    file.rematerialize(layers.Net())(torch.randn(64, 32)).sum().backward()
    (package / "layers.py").write_text(MODEL.replace("return x + self.out", "return x - self.out"))
    with pytest.raises(ValueError, match=r"^Step\.forward of layers\.py is not what this file was made from"):
        file.rematerialize(layers.Net())
    for name in ("origins_package", "origins_package.layers", "origins_packaged"):
        sys.modules.pop(name, None)


TEXTS = [
    "class A:\n    @wraps(\n        f)\n    def g(self):\n        return 1\n",
    "class A:\n    class B:\n        def g(self): return 1\n",
    "x = 1; y = 2\nclass A:\n  def g(self):\n    return x + y\n",
    "class A:\n    def g(self):\n        '''text\n\n# no comment\n        '''\n        return 1\n    # the end\n",
    "class A:\n\tdef g(self):\n\t\tif 1:\n\t\t\treturn 2\n",
]


@pytest.mark.parametrize("text", TEXTS)
def test_a_method_has_one_digest_wherever_it_is_found(text):
    kind = "A.B" if "class B" in text else "A"
    name, _, digest = origins(text, [f"{kind}.g"], with_names=False)[0].partition(":")
    found = {digest for _, digest in helpers._digests(helpers._code_lines(text), ast.parse(text).body)}
    assert name == f"{kind}.g" and digest in found
    assert method_in(text, kind, "g") is not None


def test_indentation_counts():
    one, other = (f"def f(x):\n    if x:\n        x = 1\n{line}    return x\n" for line in ("        y = 2\n", "    y = 2\n"))
    assert set(helpers._digests(helpers._code_lines(one), ast.parse(one).body)) != set(
        helpers._digests(helpers._code_lines(other), ast.parse(other).body)
    )
