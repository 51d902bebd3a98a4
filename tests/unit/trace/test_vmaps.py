"""`torch.vmap` inside of forward is planned as the operations on whole batches that run."""

from __future__ import annotations

import copy

import pytest
import torch
from emitted import droppable, emit, load, model_of, reads_back, rebuilding
from torch import nn
from torch.func import functional_call, stack_module_state, vmap

from remat_codegen.verify.beside import compare


class Member(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.norm, self.b = nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 4)

    def forward(self, x):
        return self.b(nn.functional.gelu(self.norm(self.a(x))))


class Ensemble(nn.Module):
    """Three members as one, as the documentation of torch.func writes it."""

    def __init__(self):
        super().__init__()
        members = [Member() for _ in range(3)]
        stacked, _ = stack_module_state(members)
        self.names = list(stacked)
        self.stacked = nn.ParameterList([p.detach() for p in stacked.values()])
        self.base = [copy.deepcopy(members[0]).to("meta")]

    def forward(self, x):
        parameters = dict(zip(self.names, self.stacked, strict=True))
        out = vmap(lambda p, x: functional_call(self.base[0], p, (x,)), in_dims=(0, None))(parameters, x)
        return out.mean(0), out.var(0).mean()


class Batched(nn.Linear):
    """Random numbers, one vmap inside of another, a captured weight, two results, attention, a frozen part."""

    def forward(self, x):
        h = vmap(lambda row: torch.dropout(row @ self.weight, 0.5, True) + torch.rand(8), randomness="different")(x)
        h, g = vmap(vmap(lambda a, b: (a.sin() * b, b.exp())))(h, x)
        h = h + vmap(super().forward)(g.detach()).tanh()
        y = vmap(lambda v: nn.functional.scaled_dot_product_attention(v[None], v[None], v[None]))(h.view(5, 2, 4))
        places = torch.arange(5)
        mask = vmap(vmap(lambda i, j: i >= j, (None, 0)), (0, None))(places, places)
        return y.exp().sum() + (mask * vmap(torch.dot, (None, 0))(g[0], h)).sum()


@pytest.mark.parametrize("module", [Ensemble(), Batched(8, 8)], ids=["ensemble", "batched"])
def test_vmap_is_what_runs(module, tmp_path):
    args = (torch.randn(5, 8, requires_grad=True),)
    model = model_of(module, args, {})
    schedule = rebuilding(model.graph, set(droppable(model.graph)))
    text = emit(module, args, {}, model, schedule, None)
    reads_back(model, schedule, text)
    found = compare(module, load(text, tmp_path).rematerialize, args, {})
    assert {what: d.where for what, d in found.differences.items() if d.worst is not None} == {}
    assert torch._C._functorch.maybe_current_level() is None
