"""What reading a file says of edits: the line, and what stands there, with its sign."""

from __future__ import annotations

import pytest

from remat_codegen.marked.reading import read

SOURCE = """\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        if x.dim() > 2:
            x = x.flatten(1)
        x = self.drop(x)
        return torch.softmax(x, -1)
"""
FILE = SOURCE + '\nPLAN = {\n    "": "drop",\n}\n'


@pytest.mark.parametrize(
    ("before", "after", "line", "said"),
    [
        pytest.param("(x, -1)", "(x, -2)", 14, "`-2` stands for `-1`", id="a number after a sign"),
        pytest.param("flatten(1)", "flatten(2)", 12, "`2` stands for `1`", id="a number"),
        pytest.param("x.flatten", "x.squeeze", 12, "`x.squeeze` stands for `x.flatten`", id="an attribute"),
        pytest.param("> 2", ">= 2", 11, "`x.dim() >= 2` stands for `x.dim() > 2`", id="an operator"),
        pytest.param("        x = self.drop(x)\n", "", 11, "2 statements` stands for `3 statements", id="a statement less"),
    ],
)
def test_the_line_of_an_edit(before, after, line, said):
    reading = read(FILE.replace(before, after, 1), {"net.py": SOURCE})
    assert any(p.line == line and said in p.text for p in reading.problems), reading.problems
