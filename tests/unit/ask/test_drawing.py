"""Large tensors of a model get numbers that are drawn once."""

from __future__ import annotations

import torch
from torch import nn

from remat_codegen.ask.drawing import DRAWN, quick_draws


def test_what_a_constructor_draws_for_large_tensors_repeats_and_has_its_distribution():
    plain = torch.Tensor.normal_, torch.Tensor.uniform_
    torch.manual_seed(0)
    with quick_draws():
        layer, table = nn.Linear(1024, 1500), nn.Embedding(2048, 1024)
    assert plain == (torch.Tensor.normal_, torch.Tensor.uniform_)
    for weight in (layer.weight, table.weight):
        flat = weight.detach().flatten()
        assert weight.requires_grad and weight.is_leaf and torch.equal(flat[DRAWN : DRAWN + 99], flat[:99])
    assert abs(table.weight.std() - 1) < 0.01 and layer.weight.abs().max() <= 1024**-0.5
    assert len(set(map(tuple, layer.weight[:, :4].tolist()))) == 1500


def test_small_tensors_and_others_are_drawn_as_ever():
    torch.manual_seed(0)
    expected = [nn.Linear(8, 8).weight, torch.empty(2000, 1000).t().normal_()]
    torch.manual_seed(0)
    with quick_draws():
        found = [nn.Linear(8, 8).weight, torch.empty(2000, 1000).t().normal_()]
    assert all(map(torch.equal, expected, found))
