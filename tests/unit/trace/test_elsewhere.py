"""Parameters that forward reads by a list, or sets anew: traces have them as the model does, and files of functions do not."""

from __future__ import annotations

import pytest
import torch

from remat_codegen.ask.request import Request
from remat_codegen.errors import UnsupportedError
from remat_codegen.run import marked, pipeline
from remat_codegen.show.results import Progress
from remat_codegen.trace import Origin, trace

SOURCE = """
import torch
import torch.nn.functional as F
from torch import nn


class Listed(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(6))
        self.scale = nn.Parameter(torch.full((64,), 2.0))
        self.held = [self.scale]

    def forward(self, x):
        for layer in self.layers:
            x = torch.sigmoid(F.gelu(layer(x)) * self.held[0])
        return x.sum()


class Renewed(Listed):
    def forward(self, x):
        with torch.no_grad():
            self.layers[0].bias = nn.Parameter(self.layers[0].bias * 0.9)
        for layer in self.layers:
            x = torch.sigmoid(F.gelu(layer(x)))
        return x.sum()


class Detached(Listed):
    def __init__(self):
        super().__init__()
        self.own, self.others = self.scale.detach(), [self.layers[0].bias.detach()]

    def forward(self, x):
        for layer in self.layers:
            x = torch.sigmoid(F.gelu(layer(x)) * self.own + self.others[0])
        return (x * self.scale).sum()


class Viewed(Listed):
    def __init__(self):
        super().__init__()
        half = self.scale.detach()[:32]
        self.half = lambda: half

    def forward(self, x):
        for layer in self.layers:
            x = torch.sigmoid(F.gelu(layer(x)) * self.half().sum())
        return (x * self.scale).sum()
"""


def request(folder, name, edition):
    path = folder / "model.py"
    path.write_text(SOURCE)
    return Request(f"{path}:{name}", "75%", folder / "out.py", inputs="float32[256,64]", edition=edition)


def test_a_parameter_in_a_list_gets_gradients_and_takes_what_these_need(tmp_path):
    marked.generate(asked := request(tmp_path, "Listed", 2), Progress(None))
    assert pipeline.verify(tmp_path / "out.py", asked.target, steps=2, inputs=asked.inputs, progress=Progress(None)).ok


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Viewed", "forward reads scale by a list, a dict or a variable"),
        ("Listed", "forward reads scale by a list, a dict or a variable"),
        ("Renewed", "forward sets another parameter layers.0.bias"),
    ],
)
def test_files_of_functions_are_refused(name, said, tmp_path):
    with pytest.raises(UnsupportedError, match=said):
        pipeline.generate(request(tmp_path, name, 1), Progress(None))
    assert not (tmp_path / "out.py").exists()


def test_what_is_held_without_gradients_is_reached_where_it_is_held(tmp_path):
    pipeline.generate(asked := request(tmp_path, "Detached", 1), Progress(None))
    assert "m.own" in (text := (tmp_path / "out.py").read_text()) and "m.others[0]" in text
    assert pipeline.verify(tmp_path / "out.py", asked.target, steps=3, inputs=asked.inputs, progress=Progress(None)).ok


class Held(torch.nn.Linear):
    def __init__(self) -> None:
        super().__init__(4, 4)
        self.held = {"weight": self.weight}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.held["weight"]


def test_a_trace_reads_it_as_the_parameter():
    found = trace(Held(), (torch.randn(3, 4),), {})
    assert found.elsewhere == ("weight",) and not found.constants
    read = {v for op in found.operations for v in op.reads}
    assert {found.variables[v].path for v in read if found.variables[v].origin is Origin.PARAMETER} == {"weight"}
