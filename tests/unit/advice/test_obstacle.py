"""A refused budget names what is in the way: the loss, an operation that is large by itself, or what is alive beside it."""

from __future__ import annotations

import pytest

import remat_codegen
from remat_codegen.errors import BudgetError

MODEL = """
import torch
import torch.nn as nn


class Net(nn.Module):
    def __init__(self, classes=8, widest=64):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)) for _ in range(4)])
        self.wide, self.narrow, self.head = nn.Linear(32, widest), nn.Linear(widest, 32), nn.Linear(32, classes)

    def forward(self, x):
        for block in self.blocks:
            x = x + block(x)
        x = self.narrow(torch.tanh(self.wide(x)))
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)
"""


def refusal(tmp_path, budget="5%", planner=None, **sizes):
    """What is said of a budget that is too small."""
    file = tmp_path / "net.py"
    file.write_text(MODEL)
    namespace: dict = {"__name__": "net", "__file__": str(file)}
    exec(compile(MODEL, str(file), "exec"), namespace)
    model = namespace["Net"](**sizes)
    with pytest.raises(BudgetError) as refused:
        remat_codegen.plan(model, "x=float32[512,32]", budget=budget, planner=planner, progress=False)
    return refused.value.line()


@pytest.mark.parametrize("planner", [None, "auto", "rotor", "checkmate-lp"])
def test_an_operation_that_is_large_by_itself_is_named(tmp_path, planner):
    said = refusal(tmp_path, planner=planner, widest=4000, budget="2%")
    assert "tanh at net.py:15" in said and "by itself: --batch with less" in said


def test_what_is_alive_beside_it_is_named(tmp_path):
    said = refusal(tmp_path, planner="rockmate")
    assert "in the way is " in said and " alive: a smaller --batch would help" in said
    assert " of blocks." in said and "others, " in said


def test_the_loss_is_named_with_its_remedy(tmp_path):
    said = refusal(tmp_path, classes=6000)
    assert "what the loss outside of the model needs" in said and "linear" in said
