"""torch.compile around files of the second edition, within them, and around a whole step: exact, and left out once."""

from __future__ import annotations

import copy

import pytest
import torch
import torch._dynamo as dynamo
from parted import planned, same
from tied import PLAN, TOKENS, Tied

AOT = {"backend": "aot_eager"}


@pytest.fixture(autouse=True)
def _anew():
    dynamo.reset()
    dynamo.utils.counters.clear()
    yield
    dynamo.reset()


@pytest.fixture
def models():
    torch.manual_seed(0)
    net = Tied().train()
    return planned(net, PLAN), net


def trained(model, tokens=TOKENS, step=None):
    """Loss and gradients of a training step."""
    model.zero_grad()
    loss = step(model, tokens) if step else model(tokens).square().mean()
    loss.backward() if step is None else None
    return [loss.detach(), *(p.grad.clone() for p in model.parameters())]


def graphs():
    return dynamo.utils.counters["stats"].get("unique_graphs", 0)


def breaks():
    return sum(dynamo.utils.counters["graph_break"].values())


@pytest.mark.parametrize("compiled", [lambda m: torch.compile(m, **AOT), lambda m: m.compile(**AOT) or m], ids=["around", "of"])
def test_a_training_step_is_left_out_once(models, compiled):
    model, net = models
    model = compiled(model)
    for rows in (4, 4, 3, 2):  # of other sizes, too
        same(trained(model, TOKENS[:rows]), trained(net, TOKENS[:rows]))
    assert graphs() == 0 and breaks() <= 2  # the second for sizes that change


def test_evaluation_is_compiled(models):
    model, net = models
    compiled = torch.compile(model, **AOT)
    same(trained(compiled), trained(net))
    with torch.no_grad():
        assert torch.equal(compiled.eval()(TOKENS), net.eval()(TOKENS)) and graphs() > 0
        once = graphs()
        assert torch.equal(compiled(TOKENS), net(TOKENS)) and graphs() == once
    same(trained(compiled.train()), trained(net.train()))


def test_a_step_that_is_compiled_as_a_whole(models):
    @torch.compile(**AOT)
    def step(model, tokens):
        loss = model(tokens).square().mean()
        loss.backward()
        return loss

    model, net = models
    for _ in range(3):
        same(trained(model, step=step), trained(net))
    assert graphs() == 1  # of the loss


def test_blocks_that_are_compiled_within(models):
    """Parts run as they are; what is between them is compiled."""
    model, net = models
    for block in model.h:
        block.compile(**AOT)
    counted = []
    for _ in range(4):
        same(trained(model), trained(net))
        counted.append(graphs())
    assert counted[0] > 0 and counted[2] == counted[3]


def test_compiled_models_are_copied(models):
    model, net = models
    model.compile(**AOT)
    same(trained(copy.deepcopy(model)), trained(net))
