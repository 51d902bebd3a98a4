"""A model of four blocks, whose functions tests of emission write for any schedule."""

from __future__ import annotations

from functools import cache

import torch
from emitted import model_of
from torch import nn

from remat_codegen.emit.linkage import Linkage
from remat_codegen.emit.names import wishes
from remat_codegen.emit.segments import divide
from remat_codegen.graph.simplify import Model
from remat_codegen.schedule import Schedule, validate


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.wide, self.drop, self.narrow = nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 4)

    def forward(self, x):
        return x * torch.tanh(self.narrow(self.drop(torch.sin(self.wide(x)))))


class Layers(nn.Module):
    """Four blocks: the exponential, and three layers, the last one with the sum."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Layer() for _ in range(3)])

    def forward(self, x):
        x = torch.exp(x * 2)
        for layer in self.layers:
            x = layer(x)
        return x.sum()


@cache
def layered() -> Model:
    """The model. Its nodes: 0 the exponential, 1-5 and 6-10 two layers (linear, sin, dropout, tanh, product), 11-15 the third,
    16 the loss, 17-21, 22-26, 27-31 the ways back of the third, second and first layer."""
    found = model_of(Layers(), (torch.randn(2, 4),), {})
    assert [(b.first, b.last) for b in found.graph.blocks] == [(0, 0), (1, 5), (6, 10), (11, 15)]
    assert found.graph.loss == 16 and [n.forward for n in found.graph.nodes[17:]] == list(range(15, 0, -1))
    return found


def linkage_of(model: Model, schedule: Schedule) -> Linkage:
    """What the functions of a schedule agree on; nothing is waited for yet."""
    validate(model.graph, schedule)
    return Linkage.of(divide(model.graph, schedule), model, wishes(model.trace), lambda kind, path, text: kind.__name__)
