"""From operations to nodes, data and blocks."""

from __future__ import annotations

import pytest
import torch
import zoo
from emitted import model_of, zoo_model
from torch import nn

from remat_codegen.graph.ir import Kind, Phase, validate
from remat_codegen.graph.simplify import unread_views


def gpt2(layers: int):
    torch.manual_seed(0)
    return model_of(zoo.GPT2(layers=layers), (torch.zeros(2, 64, dtype=torch.int64),), {})


@pytest.mark.parametrize("layers", [2, 3, 5])
def test_gpt2_has_the_papers_blocks(layers):
    graph = gpt2(layers).graph
    assert len(graph.blocks) == 2 * layers + 2
    assert len({b.kind for b in graph.blocks}) == 5


def test_the_digest_is_that_of_the_structure():
    assert gpt2(2).graph.digest() == gpt2(2).graph.digest() != gpt2(3).graph.digest()


@pytest.mark.parametrize("name", zoo.ZOO)
def test_graphs_are_valid(name):
    model = zoo_model(name)[3]
    validate(model.graph)
    assert [b.first for b in model.graph.blocks][1:] == [b.last + 1 for b in model.graph.blocks][:-1]
    held = [op for body in model.bodies for op in body.operations]
    unread = unread_views(model.trace, model.record)
    assert sorted([*held, *unread]) == list(range(len(model.trace.operations)))


def test_softmax_owns_what_it_saves_and_dropout_a_phantom():
    graph = gpt2(2).graph
    softmax = next(n for n in graph.forward_nodes if n.name == "softmax")
    back = next(n for n in graph.backward_nodes if n.forward == softmax.id)
    assert [graph.data[d].kind for d in softmax.writes] == [Kind.VALUE]
    assert softmax.writes[0] in back.reads
    dropout = next(n for n in graph.forward_nodes if n.name == "dropout")
    assert Kind.PHANTOM in {graph.data[d].kind for d in dropout.writes}


def test_running_statistics_do_not_keep_batch_norm_from_running_again():
    graph = zoo_model("vgg")[3].graph
    once = {n.name for n in graph.forward_nodes if not n.recomputable}
    assert all(name.startswith("add_") for name in once) and len(once) == 4


class Padded(nn.Module):
    """Makes a mask that all layers read, and that is not much smaller than what they make."""

    def __init__(self, layers=14):
        super().__init__()
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True) for _ in range(layers))

    def forward(self, x, lengths):
        mask = torch.arange(x.shape[1]) >= lengths[:, None, None]
        mask = mask.expand(-1, x.shape[1], -1).repeat_interleave(2, 0)
        for layer in self.layers:
            x = layer(x, src_mask=mask)
        return x


def test_a_mask_for_all_layers_does_not_join_them():
    graph = model_of(Padded(), (torch.randn(4, 32, 16), torch.tensor([32, 32, 16, 8])), {}).graph
    assert len(graph.blocks) >= 28


class Folded(nn.Module):
    """Computes with running statistics before they move, as quantization-aware training does."""

    def __init__(self):
        super().__init__()
        self.inner, self.norm = nn.Linear(8, 8), nn.BatchNorm1d(8)

    def forward(self, x):
        factor = self.norm.weight / torch.sqrt(self.norm.running_var[:] + self.norm.eps)
        return self.norm(nn.functional.linear(x, self.inner.weight * factor) / factor).tanh()


def test_what_reads_running_statistics_does_not_run_again():
    once = {n.name for n in model_of(Folded(), (torch.randn(4, 8),), {}).graph.forward_nodes if not n.recomputable}
    assert once == {"add_", "sqrt"}


class InPlaceAcross(nn.Module):
    """Something changes a value in place long after others have read it."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(16)])

    def forward(self, x):
        first = self.layers[0](x)
        y = first + 1
        for layer in self.layers[1:]:
            y = layer(y).sin()
        first.add_(y)
        return first * y


def test_what_is_changed_far_away_is_not_rebuilt():
    model = model_of(InPlaceAcross(), (torch.zeros(2, 8),), {})
    producer = next(n for n in model.graph.forward_nodes if 0 in model.bodies[n.id].operations)
    assert not producer.recomputable


def test_backward_nodes_run_in_the_reverse_order():
    graph = gpt2(2).graph
    assert all(n.phase is Phase.BACKWARD for n in graph.backward_nodes)
    order = [n.forward for n in graph.backward_nodes]
    assert order == sorted(order, reverse=True)


def test_a_model_without_a_trainable_output_is_refused():
    with pytest.raises(ValueError, match="no output depends on a trainable"):
        model_of(nn.Linear(2, 2).requires_grad_(False), (torch.zeros(1, 2),), {})
