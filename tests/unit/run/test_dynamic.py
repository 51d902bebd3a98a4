"""Files whose inputs may have other sizes than the traced ones."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path

import pytest
import torch

from remat_codegen.ask.request import Request
from remat_codegen.errors import RematError
from remat_codegen.profile.memory import peak_bytes
from remat_codegen.run import check_update, pipeline
from remat_codegen.run.explain import explain
from remat_codegen.show.results import Progress
from remat_codegen.verify.beside import compare, load_generated

MODEL = """
import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)
        self.norm = nn.LayerNorm(32)
        self.up, self.down = nn.Linear(32, 128), nn.Linear(128, 32)
        self.register_buffer("mask", torch.tril(torch.ones(64, 64, dtype=torch.bool)))

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (t.view(B, T, 4, C // 4).transpose(1, 2) for t in self.qkv(self.norm(x)).split(C, 2))
        scores = (q @ k.transpose(-2, -1)) / T**0.5
        scores = scores.masked_fill(~self.mask[:T, :T], float("-inf"))
        probs = F.dropout(scores.softmax(-1), 0.1, self.training)
        x = x + self.out((probs @ v).transpose(1, 2).reshape(B, T, C))
        return x + self.down(F.gelu(self.up(x))) * (T / (B + 1))


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(100, 32), nn.Embedding(64, 32)
        self.blocks = nn.ModuleList([Block() for _ in range(4)])

    def forward(self, idx, targets):
        x = self.tokens(idx) + self.places(torch.arange(idx.shape[1], device=idx.device))
        for block in self.blocks:
            x = block(x)
        B, T, C = x.shape
        return {"loss": F.cross_entropy(x.view(B * T, C), targets.view(-1)), "logits": x, "length": T}


class Graph(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(4))

    def forward(self, nodes, edges):
        for layer in self.layers:
            sent = torch.tanh(layer(nodes))[edges[0]] * torch.sigmoid(nodes)[edges[1]]
            nodes = nodes + torch.zeros_like(nodes).index_put((edges[1],), sent, accumulate=True)
        return nodes


def example_inputs():
    return torch.randint(0, 100, (4, 32)), torch.randint(0, 32, (4, 32))


class Fixed(nn.Linear):
    def forward(self, x):
        return super().forward(x) * math.sqrt(x.shape[0])


class Convolution(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU())

    def forward(self, image):
        return self.net(image).mean((2, 3))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("dynamic")
    (path / "model.py").write_text(MODEL)
    return path


def generate(folder: Path, name: str, dynamic: str, budget: str = "60%", **more):
    request = Request(f"{folder / 'model.py'}:{name}", budget, folder / f"{name}.py", dynamic=dynamic, verify=True, **more)
    return pipeline.generate(request, Progress(None))


def test_half_of_a_graph_has_half_of_its_nodes(folder):
    """The numbers of nodes that are not there are taken for those of others."""
    edges = "float32[64,32]; int64[2,96]<64"
    report = generate(folder, "Graph", "nodes.0,edges.1", inputs=edges)
    [row] = [row for row in report.verify.rows if row.what == "half the size"]
    assert report.verify.ok, report.verify.failures()
    assert "not compared" not in row.detail


@pytest.fixture(scope="module")
def made(folder):
    report = generate(folder, "LM", "idx.0,idx.1,targets.0,targets.1")
    assert report.verify.ok, report.verify.failures()
    assert any(row.what == "half the size" for row in report.verify.rows)
    return load_generated(folder / "LM.py")


def inputs(batch, length):
    torch.manual_seed(batch * 100 + length)
    return torch.randint(0, 100, (batch, length)), torch.randint(0, 32, (batch, length))


def zeros(*shape):
    return torch.zeros(shape, dtype=torch.long)


def original(made):
    """The model that the file holds, with its own forward."""
    kind = type("Original", (made.LM,), {"forward": made.LM.plain_forward})
    torch.manual_seed(0)
    return kind().train()


def as_generated(made):
    def convert(model):
        twin = copy.copy(model)
        twin.__class__ = made.LM
        return twin

    return convert


@pytest.mark.parametrize(
    "sizes", [(4, 32), (3, 32), (2, 7), (4, 2), (2, 2), (1, 32), (4, 1), (1, 1), (7, 32), (4, 64), (9, 50)]
)
def test_exact_at_every_size(sizes, made):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = compare(original(made), as_generated(made), inputs(*sizes), {})
    assert found.identical, {k: d.where for k, d in found.differences.items() if d.worst is not None}
    if sizes[0] <= 4 and sizes[1] <= 32:
        assert found.measured_peak_bytes <= made.BUDGET_BYTES


def test_larger_inputs_warn_once_with_the_expected_peak(made):
    model = made.LM().train()
    made.with_sizes.warned = False
    with pytest.warns(UserWarning, match=r"expect an activation peak of about \d+\.\d MiB") as caught:
        for batch, length in ((8, 48), (12, 64)):
            model(*inputs(batch, length))
    assert len(caught) == 1
    expected = float(str(caught[0].message).split("about ")[1].split()[0]) * 2**20
    given = inputs(8, 48)

    def step():
        out = model(*given)
        (out["loss"] + out["logits"].logsumexp(-1).mean()).backward()

    step()
    assert expected == pytest.approx(peak_bytes(step, "cpu"), rel=0.15)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (
            (torch.zeros(2, 65, dtype=torch.long), torch.zeros(2, 65, dtype=torch.long)),
            "idx_1 is 65, but this file takes 1 to 64: pad or cut the input",
        ),
        ((torch.zeros(2, 8, dtype=torch.long), torch.zeros(3, 8, dtype=torch.long)), "targets is int64.3, 8."),
        ((torch.zeros(2, 8), torch.zeros(2, 8, dtype=torch.long)), "idx is float32.2, 8."),
    ],
)
def test_what_does_not_fit_is_refused(args, said, made):
    with pytest.raises(ValueError, match=said):
        made.LM().train()(*args)


@pytest.mark.parametrize(
    ("name", "dynamic", "said"),
    [
        ("LM", "idx", "cannot read 'idx'"),
        ("LM", "x.0", "no input is called 'x'; there are idx, targets"),
        ("LM", "idx.2", "idx has 2 dimensions, so there is no idx.2; there are idx.0, idx.1"),
        ("Fixed", "x.0", "the model fixes the size x.0, so it cannot be dynamic"),
        ("Fixed", "x.1", "the model fixes the size x.1, so it cannot be dynamic"),
    ],
)
def test_what_cannot_change_is_refused(name, dynamic, said, folder):
    more = {"init": "4, 4", "inputs": "x=float32[8,4]"} if name == "Fixed" else {}
    with pytest.raises(RematError, match=said):
        generate(folder, name, dynamic, **more)


def test_a_convolution_takes_other_batches_and_sizes(folder):
    report = generate(folder, "Convolution", "image.0,image.2,image.3", "95%", inputs="image=float32[4,3,16,12]")
    assert report.verify.ok, report.verify.failures()
    made = load_generated(folder / "Convolution.py")
    assert made.EXPECTED["image"][0] == ("image_0", 3, "image_2", "image_3")
    assert made.SIZES["image_2"][0] == 5  # two kernels of 3
    for shape in ((1, 3, 16, 12), (3, 3, 5, 5), (5, 3, 40, 9)):
        kind = type("Original", (made.Convolution,), {"forward": made.Convolution.plain_forward})
        found = compare(kind().train(), lambda m: _become(m, made.Convolution), (torch.randn(shape),), {})
        assert found.identical


def _become(model, kind):
    model.__class__ = kind
    return model


def test_the_header_makes_the_same_file_again(made, folder, monkeypatch):
    monkeypatch.chdir(folder)
    assert "--dynamic idx.0,idx.1,targets.0,targets.1" in (folder / "LM.py").read_text()
    assert check_update.check(Path("LM.py"), Progress(None)).ok


def test_its_schedule_is_read_back(made, folder, monkeypatch):
    monkeypatch.chdir(folder)
    found = explain(folder / "LM.py", Progress(None))
    assert found.ok and found.as_planned and found.notes == () and found.blocks


COUNTED = """
import torch
from torch import nn


class Drawing(nn.Module):
    # the number of rows, a product of two sizes, is taken as Python's own number, which a trace has as it is

    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(8, 8), nn.Linear(8, 8)
        self.register_buffer("rows", torch.randn(16, 8))

    @torch.no_grad()
    def draw(self, flat):
        self.rows.copy_(flat[torch.randint(len(flat), (16,))])

    def forward(self, x):
        hidden = self.inner(x).tanh()
        self.draw(hidden.view(-1, 8))
        return self.outer(hidden.sin()) + self.rows.sum()
"""


def test_a_size_whose_product_becomes_a_plain_number_may_not_change(tmp_path):
    source = tmp_path / "drawing.py"
    source.write_text(COUNTED)
    request = Request(f"{source}:Drawing", "100%", tmp_path / "out.py", inputs="float32[8,32,8]", dynamic="x.0", edition=1)
    with pytest.raises(RematError, match=r"do not fit another x_0"):
        pipeline.generate(request, Progress(None))
    assert not (tmp_path / "out.py").exists()
