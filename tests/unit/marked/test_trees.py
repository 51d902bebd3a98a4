"""Objects that link to others of their kind, with a tensor in each: what they hold is found however deep they are, and no part
is given one that would hold what the part makes."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from second_edition import Traced, found_in, imported_file, planned_peak, random_rows, text_of, traced_module, trained

from remat_codegen.trace.frames import _tensors_in

MODEL = """
import torch
from torch import nn


class Node:
    def __init__(self, index, children=()):
        self.index, self.children, self.state = index, list(children), None


def build(low, high):
    if high - low == 1:
        return Node(low)
    middle = (low + high) // 2
    return Node(None, [build(low, middle), build(middle, high)])


class Net(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.both = nn.Linear(width, 2 * width)

    def visit(self, node, x):
        for child in node.children:
            self.visit(child, x)
        h = sum(child.state for child in node.children) if node.children else x[node.index]
        one, other = self.both(h).chunk(2, -1)
        node.state = STATE
        return node.state

    def forward(self, x, y):
        found = []
        for given in (x, y):
            tree = build(0, 8)
            found.append(self.visit(tree, given))
        return (found[0] * found[1]).sum(-1)
"""
IN_A_LIST = """
import torch
from torch import nn


class Node:
    def __init__(self, children=()):
        self.children, self.state = children, None


class Net(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.both = nn.Linear(width, 2 * width)

    def visit(self, nodes, index, x):
        node = nodes[index]
        for child in node.children:
            self.visit(nodes, child, x)
        h = sum(nodes[child].state for child in node.children) if node.children else x[index]
        one, other = self.both(h).chunk(2, -1)
        nodes[index].state = STATE
        return nodes[index].state

    def forward(self, x, y):
        found = []
        for given in (x, y):
            nodes = [Node() for _ in range(4)] + [Node((0, 1)), Node((2, 3)), Node((4, 5))]
            found.append(self.visit(nodes, 6, given))
        return (found[0] * found[1]).sum(-1)
"""
# A part that is given its tree may hold the state of the root, which the loss needs, a moment longer.
SLACK_BYTES = 1024 + 8192


PRODUCT, SAVED = "torch.sigmoid(one) * torch.tanh(other)", "torch.tanh(one + other)"
TREES = {
    "linked": MODEL.replace("STATE", PRODUCT),
    "linked, saved": MODEL.replace("STATE", SAVED),
    "in a list": IN_A_LIST.replace("STATE", PRODUCT),
}


@pytest.fixture(params=TREES.values(), ids=TREES)
def traced(request: pytest.FixtureRequest, tmp_path: Path) -> Traced:
    path = tmp_path / "net.py"
    path.write_text(request.param)
    torch.manual_seed(0)
    inputs = torch.randn(8, 128, 16), torch.randn(8, 128, 16)
    return traced_module(imported_file(path).Net().train(), inputs, {}, path)


@pytest.mark.parametrize("seed", range(4))
def test_no_table_takes_more_than_planned(traced: Traced, seed: int, tmp_path: Path) -> None:
    found = found_in(traced)
    rows = random_rows(found, random.Random(seed), (0.2, 0.5, 0.8, 1.0)[seed])
    result = trained(traced, text_of(traced, found, rows), tmp_path)
    assert result.identical, result.differences
    assert result.measured_peak_bytes <= planned_peak(traced, found, rows) + SLACK_BYTES


def test_links_are_followed_and_circles_end() -> None:
    class Link:
        def __init__(self, value: object, after: object) -> None:
            self.value, self.after = value, after

    first = last = Link(torch.zeros(1), None)
    for number in range(1, 400):
        first = Link([torch.full((1,), float(number))], {"next": first})
    last.after = first
    assert sorted(t.item() for t in _tensors_in([first], objects=True)) == list(range(400))
