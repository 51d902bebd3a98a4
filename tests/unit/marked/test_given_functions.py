"""Functions of other files, not called by their names there: `F.normalize(x)`, one from another file, one in a variable."""

from __future__ import annotations

import copy
import functools
import random
import sys

import pytest
import torch
from second_edition import found_in, imported_file, known_times, planned_peak, random_rows, text_of, traced_module, trained

from remat_codegen.ask.request import Request
from remat_codegen.marked.choose import parts_of
from remat_codegen.run import check_update, explain, marked
from remat_codegen.run.marked_text import read_back
from remat_codegen.run.pipeline import verify
from remat_codegen.schedule.order import order_of
from remat_codegen.show.results import Progress

QUIET = Progress(None)
OPS = """
import torch
import torch.nn.functional as F


def cosine(q, k, scale=10.0):
    q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
    return squared(q @ k.transpose(-2, -1) * scale).softmax(-1)


def squared(x):
    return x * x.abs()


def gated(x, g):
    y = torch.tanh(x) * torch.sigmoid(g)
    return y * y.abs().mean(-1, keepdim=True)


def plain(x, g):
    return x.sin() * g


def known():
    return {"cosine": cosine}
"""
HEAD = """
import torch
import torch.nn.functional as F
from torch import nn
"""
MODEL = """

def l2norm(x):
    return F.normalize(x, dim=-1)


class Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fn = cosine

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        return self.out(self.fn(q, k) @ v)


class Mlp(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        function = gated if self.training else plain
        return l2norm(self.down(function(*self.up(x).chunk(2, -1)))) * 3


class Net(nn.Module):
    def __init__(self, layers=3, width=32):
        super().__init__()
        self.layers = nn.ModuleList(nn.ModuleList([Attention(width), Mlp(width)]) for _ in range(layers))

    def forward(self, x):
        for attention, mlp in self.layers:
            x = x + attention(x)
            x = F.normalize(x + mlp(x), dim=1) * 5
        return x.mean(1)


def example_inputs():
    return (torch.randn(4, 24, 32, generator=torch.Generator().manual_seed(0)),)
"""
CARRIED = MODEL.replace("self.fn = cosine", "self.fn = None").replace("self.fn(q, k)", "F.normalize(q @ k.mT, 1.0, -1)")
CARRIED = CARRIED.replace("function = gated if self.training else plain", "function = lambda x, g: x.tanh() * g.exp()")
FILES = {  # by how a model stands to what it calls: its file, and the one of its classes where that is another
    "its own file stays": (HEAD + "from given_ops import cosine, gated, plain\n" + MODEL, ""),
    "its own file is carried": (HEAD + CARRIED, ""),
    "its classes are a package's": (
        "from given_net import Net, example_inputs\n",
        HEAD + "from given_ops import cosine, gated, plain\n" + MODEL,
    ),
}


@pytest.fixture(scope="module", params=FILES)
def path(request, tmp_path_factory):
    """The model's file."""
    folder = tmp_path_factory.mktemp("given")
    source, classes = FILES[request.param]
    (folder / "given_ops.py").write_text(OPS)
    if classes:
        (folder / "given_net.py").write_text(classes)
    found = folder / "given_model.py"
    found.write_text(source)
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(str(folder))
        yield found
    for name in ("given_ops", "given_net", "given_model"):
        sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def output(path):
    """A file with marks in functions, those of PyTorch among them, whatever machine this is."""
    found = path.with_name("given_remat.py")
    with pytest.MonkeyPatch.context() as patched:
        known_times(patched, linear=40_000)
        marked.generate(Request(f"{path}:Net", "27%", found, edition=2, seed=0), QUIET)
    return found


def example():
    return (torch.randn(4, 24, 32, generator=torch.Generator().manual_seed(0)),)


def gradients(model, x, steps=2):
    found = []
    for _ in range(steps):
        model.zero_grad()
        model(x).square().sum().backward()
        found += [p.grad.clone() for p in model.parameters()]
    return found


def test_functions_that_are_given_have_marks(output, path):
    text = output.read_text()
    assert "def marked_normalize(" in text and "with_marks(F.normalize)(x, dim=-1)" in text
    if "given_ops" in path.read_text():
        assert "with_marks(self.fn)(q, k)" in text and "with_marks(function)(*self.up(x)" in text
        assert "def marked_cosine(" in text and "def gated(" in text  # the first is in a dictionary, too
    target = f"{path}:Net"
    assert verify(output, target, steps=2, progress=QUIET).ok
    assert not check_update.check(output, QUIET).reasons


@pytest.mark.parametrize("seed", range(4))
def test_any_parts_are_exact_and_take_what_the_simulator_says(path, seed, tmp_path):
    rng = random.Random(seed)
    torch.manual_seed(seed)
    traced = traced_module(imported_file(path).Net().train(), example(), {}, path)
    found = found_in(traced)
    rows = random_rows(found, rng, rng.choice([0.3, 0.6, 1.0]))
    text = text_of(traced, found, rows)
    compared = trained(traced, text, tmp_path)
    assert compared.identical, compared.differences
    assert compared.measured_peak_bytes <= planned_peak(traced, found, rows) + 4096 + 5056 * (len(rows) + 1)
    read, problems = read_back(text, traced)
    assert not problems and order_of(read.schedule) == order_of(found.holders.schedule([part for _, part in parts_of(rows)]))


def test_edits_of_what_is_given_are_told(output, path):
    target, text = f"{path}:Net", output.read_text()
    assert explain.explain(output, QUIET, target=target).ok
    edits = [
        ("with_marks(F.normalize)(x, dim=-1)", "F.normalize(x, dim=-1)"),
        ("with_marks(F.normalize)(x, dim=-1)", "with_marks(F.softmax)(x, dim=-1)"),
        ("self.qkv(x)", "with_marks(self.qkv)(x)"),
    ]
    for before, after in edits:
        assert before in text
        output.write_text(text.replace(before, after, 1))
        assert not explain.explain(output, QUIET, target=target).ok, after
    output.write_text(text)


def test_models_copies_and_other_functions_are_as_they_were(output, path):
    theirs, ours = imported_file(path), imported_file(output)
    torch.manual_seed(3)
    model, x = theirs.Net().train(), torch.randn(4, 24, 32)
    adopted = ours.rematerialize(copy.deepcopy(model))
    known = getattr(sys.modules.get("given_ops"), "cosine", len)
    for function in (None, lambda q, k: q @ k.mT, functools.wraps(known)(lambda q, k: q.sin() @ k.mT)):
        for layer in (*model.layers, *adopted.layers) if function is not None and "given_ops" in path.read_text() else ():
            layer[0].fn = function
        wanted = gradients(model, x)
        for other in (adopted, copy.deepcopy(adopted)):
            assert all(map(torch.equal, gradients(other, x), wanted))
    with torch.no_grad():
        model.eval(), adopted.eval()
        assert torch.equal(adopted(x), model(x))
        assert torch.equal(torch.compile(adopted, backend="eager")(x), model(x))


def test_the_parts_in_given_functions_run_again(output, path):
    theirs, ours = imported_file(path), imported_file(output)
    model, ran, first = ours.rematerialize(theirs.Net().train()), [], ours.Part.first
    ours.Part.first = lambda part, run, inputs: ran.append(part.entry.name) or first(part, run, inputs)
    model(example()[0]).sum().backward()
    named = {f"{row}.{e}".strip(".").partition("/")[0].partition("#")[0] for row in ours.PLAN for e in ours.PLAN[row].split()}
    assert {*ran} == named


@pytest.mark.parametrize("path", ["its own file stays", "its classes are a package's"], indirect=True)
def test_another_function_of_that_name_is_refused(output, path, monkeypatch):
    theirs, ours = imported_file(path), imported_file(output)
    ops = sys.modules["given_ops"]
    model, x = theirs.Net().train(), example()[0]
    monkeypatch.setattr(ops.cosine, "__defaults__", (1.0,))
    with pytest.raises(ValueError, match="cosine of given_ops is another one than this file was made from"):
        ours.rematerialize(model)(x)
    monkeypatch.undo()
    ours.rematerialize(model)(x).sum().backward()
    monkeypatch.setattr(ops, "squared", lambda x: x)
    with pytest.raises(ValueError, match="squared was replaced after this file took it"):
        ours.rematerialize(theirs.Net().train())(x)
