"""Files of models that use other packages: carried with their imports, and marked."""

from __future__ import annotations

import pytest

from remat_codegen.ask.request import Request
from remat_codegen.run import check_update, marked
from remat_codegen.run.pipeline import verify
from remat_codegen.show.results import Progress

QUIET = Progress(None)
MODEL = """
import networkx as nx
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

SCALE = np.float32(1 / np.sqrt(2))


class Step(nn.Module):
    def __init__(self, width):
        super().__init__()
        order = nx.path_graph(2).number_of_nodes()
        self.up, self.down = nn.Linear(width, order * width), nn.Linear(order * width, width)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(x) * float(SCALE)).sin() * np.pi)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.steps = nn.ModuleList(Step(32) for _ in range(3))

    def forward(self, x):
        for step in self.steps:
            x = step(x)
        return x


def example_inputs():
    return (torch.randn(64, 32),)
"""


@pytest.fixture
def written(tmp_path):
    def write(source, budget="50%"):
        (tmp_path / "net.py").write_text(source)
        output = tmp_path / "net_remat.py"
        marked.generate(Request(f"{tmp_path / 'net.py'}:Net", budget, output, edition=2, seed=0), QUIET)
        return output

    return write


def test_a_file_that_uses_other_packages_is_carried_and_marked(written):
    output = written(MODEL)
    text = output.read_text()
    assert "\nimport networkx as nx\nimport numpy as np\nimport torch\n" in text and ".part(" in text
    assert "class Step(nn.Module)" in text and "return adopt(model, PLAN, Step)" in text
    assert verify(output, f"{output.parent / 'net.py'}:Net", steps=2, progress=QUIET).ok
    assert not check_update.check(output, QUIET).reasons


def test_what_another_package_may_register_is_not_made_twice(written):
    """A function, or a class, that is decorated by it stays where it is; and what needs that."""
    decorated = "@nx.utils.not_implemented_for('directed')\ndef read(x):\n    return x\n\n\nclass Step"
    text = written(MODEL.replace("class Step", decorated).replace("self.up(x)", "self.up(x if read else x)"), "95%").read_text()
    assert "class Net" not in text and "import networkx" not in text


STATES = """
from dataclasses import dataclass, replace
from os.path import join

import torch
from torch import nn


@dataclass
class State:
    node: torch.Tensor
    edge: torch.Tensor


@torch.autocast("cpu", enabled=False)
def scaled(state):
    return state.edge * 2 if isinstance(state, State) else state


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.e = nn.Sequential(nn.Linear(2 * width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        self.v = nn.Sequential(nn.Linear(2 * width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, state):
        edge = self.e(torch.cat([state.node, scaled(state)], -1)) * len(join("a", "b"))
        return replace(state, node=state.node + self.v(torch.cat([state.node, edge], -1)), edge=torch.tanh(edge))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Layer(32) for _ in range(4))

    def forward(self, x):
        state = State(x, x * 0.5)
        for layer in self.layers:
            state = layer(state)
        return state.node, state.edge


def example_inputs():
    return (torch.randn(64, 32),)
"""


def test_functions_of_python_are_imported_and_stay_what_they_are(written):
    """A copy of `replace` would be another one with the next Python; and what it reads is not in this file. What `scaled` reads
    is, though what decorates it is not."""
    output = written(STATES, "60%")
    text = output.read_text()
    assert ".part(" in text and "from dataclasses import dataclass, replace\n" in text and "def replace(" not in text
    assert verify(output, f"{output.parent / 'net.py'}:Net", steps=2, progress=QUIET).ok
