"""Functions that torch.compile makes: marks stand around them, and a note says that no plan knows what they keep."""

from __future__ import annotations

import inspect
import io
from functools import reduce

import pytest
import torch
from rich.console import Console
from second_edition import imported_file, traced_module

from remat_codegen.ask.request import Request
from remat_codegen.marked.compiled import compiled_in, is_compiled_function
from remat_codegen.run import marked
from remat_codegen.show.results import Progress
from remat_codegen.trace.places import Function
from remat_codegen.verify.beside import load_generated

NET = """
import torch
import torch.nn.functional as F
from torch import nn


@torch.compile(backend="eager")
def fused(x, gate):
    return F.gelu(x) * torch.sigmoid(gate) + x.tanh()


@torch.compiler.disable
def plain(x):
    return x.sin()


def named(x):
    return x.cos()


quick = torch.compile(named, backend="eager")


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.gate, self.down = nn.Linear(width, 4 * width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(fused(self.up(x), self.gate(x)))

    @torch.compile(backend="eager")
    def compiled(self, x):
        return x


class Net(nn.Sequential):
    def __init__(self):
        super().__init__(*(Block(32) for _ in range(4)))
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("compiled") / "compiled_net.py"
    path.write_text(NET)
    return path


@pytest.mark.parametrize(
    ("name", "compiled"),
    [("fused", True), ("plain", False), ("named", True), ("Block.compiled", True), ("Block.forward", False)],
)
def test_what_is_compiled(path, name, compiled):
    module = imported_file(path)
    found = inspect.unwrap(reduce(getattr, name.split("."), module))
    assert is_compiled_function(Function(str(path), name, found.__code__.co_firstlineno)) is compiled


def test_what_modules_have_is_told(path):
    net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    net[0].function = torch.compile(torch.sin, backend="eager")
    net[1].compile(backend="eager")
    traced = traced_module(imported_file(path).Net().train(), (torch.ones(4, 32),), {}, path)
    assert list(compiled_in(traced.model.trace, net)) == ["fused (compiled_net.py:7)", "0.function", "1"]


def test_marks_stand_around_what_is_compiled(path):
    said = io.StringIO()
    output = path.with_name("out.py")
    request = Request(f"{path}:Net", "60%", output, inputs="float32[64,32]", edition=2)
    marked.generate(request, Progress(Console(file=said, width=400)))
    text, own = output.read_text(), NET[NET.index("@torch.compile") : NET.index("@torch.compiler.disable")]
    assert own.strip() in text and "note: fused (compiled_net.py:7): torch.compile decides" in " ".join(said.getvalue().split())
    module = imported_file(path)
    torch.manual_seed(0)
    model = module.Net().train()
    gradients = []
    for make in (lambda m: m, load_generated(output).rematerialize):
        made = make(module.Net().train())
        made.load_state_dict(model.state_dict())
        made(torch.ones(64, 32)).square().mean().backward()
        gradients.append([p.grad for p in made.parameters()])
    assert all(map(torch.equal, *gradients))
