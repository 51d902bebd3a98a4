"""`torch.vmap` inside of forward is planned as the operations on whole batches that run."""

from __future__ import annotations

import copy
import random

import pytest
import torch
from emitted import droppable, emit, load, model_of, reads_back, rebuilding
from second_edition import found_in, imported_file, random_rows, text_of, traced_module, trained
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


DECIDING = """
import torch
from second_edition import found_in, imported_file, random_rows, text_of, traced_module, trained
from torch import nn
from torch.func import functional_call, vmap


class Member(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x):
        return self.b(torch.tanh(self.a(x)).exp())


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.weights = nn.ParameterDict({n.replace(".", "_"): nn.Parameter(torch.randn(3, *p.shape)) for n, p in own()})
        self.last, self.__dict__["member"] = nn.Linear(8, 4), Member().to("meta")

    def forward(self, x):
        parameters = {name.replace("_", "."): weight for name, weight in self.weights.items()}
        y = vmap(lambda p, x: functional_call(self.member, p, (x,)), in_dims=(0, None))(parameters, x).sin().mean(0)
        y = vmap(vmap(lambda a, b: torch.dropout(a * b, 0.5, True).cos(), randomness="different"), randomness="same")(y, x)
        return self.last(y * 2 if y.sum().item() > 1e9 else y.tanh())


def own():
    return Member().named_parameters()
"""


def test_vmaps_in_a_run_that_was_recorded(tmp_path):
    """What a model does depends on values, so that torch.export cannot follow it."""
    (tmp_path / "net.py").write_text(DECIDING)
    traced = traced_module(imported_file(tmp_path / "net.py").Net(), (torch.randn(6, 8),), {}, tmp_path / "net.py")
    assert traced.model.trace.run is not None
    found = found_in(traced)
    rows = random_rows(found, random.Random(0), 1.0)
    assert rows and trained(traced, text_of(traced, found, rows), tmp_path).identical
    assert torch._C._functorch.maybe_current_level() is None
