"""A plan that is made at the first training step: exact from that step on, in whatever surrounds the model."""

from __future__ import annotations

import copy
import inspect
import random

import pytest
import torch
from conftest import EXAMPLE
from parted import same

from remat_codegen.ask.target import load_target
from remat_codegen.errors import RematError
from remat_codegen.integrations import at_first_step

INIT = "layers=2, width=32, heads=2, vocabulary=101, context=16"
TOKENS = torch.randint(101, (4, 16), generator=torch.Generator().manual_seed(0))
QUICK = {"planner": "dtr"}


@pytest.fixture
def net():
    return load_target(f"{EXAMPLE}:GPT2", init=INIT, inputs="int64[4,16]<101").module.train()


def trained(model, around=lambda model: model, **casts):
    """Losses and gradients of three steps, the last with a smaller batch, after an evaluation."""
    optimizer, found = torch.optim.AdamW(model.parameters(), 1e-3), []
    torch.manual_seed(1)
    random.seed(1)
    called = around(model)
    with torch.no_grad():
        found.append(called.eval()(TOKENS))
    called.train()
    for rows in (4, 4, 3):
        with torch.autocast("cpu", torch.bfloat16, enabled=bool(casts)):
            loss = called(TOKENS[:rows]).float().square().mean()
        loss.backward()
        found += [loss.detach(), *(p.grad.clone() for p in model.parameters())]
        optimizer.step()
        optimizer.zero_grad()
    assert random.random() == random.Random(1).random()
    return [*found, torch.get_rng_state()]


@pytest.mark.parametrize("casts", [{}, pytest.param({"to": "bfloat16"}, marks=pytest.mark.slow)], ids=["float32", "bfloat16"])
def test_the_first_step_is_within_the_plan_and_all_are_exact(net, casts, tmp_path):
    file, other = tmp_path / "net_remat.py", copy.deepcopy(net)
    model = at_first_step(net, "60%", file, **QUICK)
    assert model is net and inspect.signature(model.forward) == inspect.signature(other.forward) and not file.exists()
    same(trained(model, **casts), trained(other, **casts))
    text = file.read_text()
    assert "PLAN = {\n" in text and ("bfloat16" in text.partition("fmt: off")[0]) == bool(casts)
    again = at_first_step(copy.deepcopy(other), "1%", file, **QUICK)  # which is not planned any more
    same(trained(again, **casts), trained(copy.deepcopy(other), **casts))
    assert file.read_text() == text


@pytest.mark.slow
def test_what_is_put_around_the_model(net):
    def doubled(model):
        forward = model.forward
        model.forward = lambda *args, **kwargs: forward(*args, **kwargs) * 2  # as accelerate's prepare does
        return model

    other = copy.deepcopy(net)
    wanted = trained(other, doubled)
    same(trained(at_first_step(copy.deepcopy(net), "60%", **QUICK), doubled), wanted)


@pytest.mark.slow
def test_copies_that_were_made_before_the_first_step_make_their_own(net):
    model = at_first_step(net, "60%", **QUICK)
    average = copy.deepcopy(model)
    same(trained(model), trained(copy.deepcopy(average)))
    assert average.forward.model is average and not average.forward.done


def test_a_budget_that_is_too_small_is_told_in_the_first_step(net):
    model = at_first_step(net, "1%", **QUICK)
    with pytest.raises(RematError, match="no plan keeps the activations"):
        model(TOKENS)
    assert model(TOKENS).shape == (4, 16, 101)  # it trains on, as it was
