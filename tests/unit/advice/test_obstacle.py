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


PRODUCT = """
import torch
import torch.nn as nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(32, 32), nn.Linear(32, 8)
        self.weight = nn.Parameter(torch.randn(32, 32, 40))

    def forward(self, x):
        x = self.first(x)
        x = torch.relu(x + (
            self.weight[None] * x[:, None, :, None]
        ).sum(dim=(2, 3)))
        return self.last(x)
"""
PICKED = """
import torch
import torch.nn as nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.last = nn.Linear(32, 32), nn.Linear(32, 4000)

    def forward(self, x):
        words = self.last(torch.tanh(self.embed(x))).log_softmax(-1)
        return READ
"""


def refusal(tmp_path, budget="5%", planner=None, text=MODEL, **sizes):
    """What is said of a budget that is too small."""
    file = tmp_path / "net.py"
    file.write_text(text)
    namespace: dict = {"__name__": "net", "__file__": str(file)}
    exec(compile(text, str(file), "exec"), namespace)
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


def test_of_a_product_and_its_sum_the_product_is_named(tmp_path):
    said = refusal(tmp_path, text=PRODUCT, budget="2%")
    assert "mul at net.py:15" in said and "by itself: --batch with less" in said


@pytest.mark.parametrize(
    ("read", "is_loss"),
    [
        ("-words.gather(-1, torch.zeros(len(x), 1, dtype=torch.long)).mean()", True),
        ("words[..., 0] + words[..., 1:].mean(-1)", False),
    ],
)
def test_a_log_softmax_is_a_cross_entropy_where_one_of_each_row_is_read(tmp_path, read, is_loss):
    said = refusal(tmp_path, text=PICKED.replace("READ", read), budget="2%")
    assert ("the cross entropy at net.py:12" in said) == is_loss
    assert is_loss or "log_softmax at net.py:12" in said
