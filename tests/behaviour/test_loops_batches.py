"""Batches of other sizes than planned: exact, and the peak that a larger one leads to is told once."""

from __future__ import annotations

import warnings

import pytest
import torch
from parted import Net, X, linear, planned, same, step
from tied import PLAN, TOKENS, Tied

from remat_codegen import parts as helpers

MIB = 2**20


@pytest.fixture
def models(monkeypatch):
    monkeypatch.setattr(helpers, "LARGEST", [TOKENS.numel(), 100 * MIB, TOKENS.dtype, 0])
    net = Tied().train()
    return planned(net, PLAN), net


@pytest.mark.parametrize("tokens", [TOKENS[:1], TOKENS[:3], TOKENS[:, :2], TOKENS[:1, :1]], ids=lambda t: str([*t.shape]))
def test_smaller_batches_and_shorter_ones_say_nothing(models, tokens):
    with warnings.catch_warnings(action="error"):
        same(step(models[0], [tokens]), step(models[1], [tokens]))
    assert helpers.LARGEST


def test_a_larger_batch_says_once_what_peak_to_expect(models):
    larger = torch.cat([TOKENS, TOKENS[:2]])
    with pytest.warns(UserWarning, match=r"an input is 1\.50 times as large as planned: expect some 150\.0 MiB of activations"):
        same(step(models[0], [larger]), step(models[1], [larger]))
    with warnings.catch_warnings(action="error"):
        same(step(models[0], [torch.cat([larger, larger])]), step(models[1], [torch.cat([larger, larger])]))


def test_the_line_that_calls_the_model_is_the_one_that_is_warned(models):
    with pytest.warns(UserWarning, match="as large as planned") as found:
        models[0](torch.cat([TOKENS, TOKENS]))
    assert [warning.filename for warning in found] == [__file__]


def test_a_model_of_more_modules_than_planned_says_so_once(models, monkeypatch):
    own = helpers.own_modules(models[1], [*models[1].modules()])
    assert 0 < own < len([*models[1].modules()])  # those of torch are of all models
    monkeypatch.setattr(helpers, "LARGEST", [TOKENS.numel(), 100 * MIB, TOKENS.dtype, own - 1])
    with pytest.warns(UserWarning, match=f"the model has {own} modules of its own, {own - 1} were planned for"):
        same(step(models[0], [TOKENS]), step(models[1], [TOKENS]))
    monkeypatch.setattr(helpers, "LARGEST", [TOKENS.numel(), 100 * MIB, TOKENS.dtype, own])
    with warnings.catch_warnings(action="error"):
        same(step(models[0], [TOKENS]), step(models[1], [TOKENS]))
        same(step(planned(models[1], PLAN), [TOKENS]), step(models[1], [TOKENS]))


def test_what_stands_beside_the_planned_inputs_may_be_larger(monkeypatch):
    monkeypatch.setattr(helpers, "LARGEST", [X.numel(), 100 * MIB, X.dtype, 0])
    model = planned(Net(lambda self, kept, x, places: kept.part("a", torch.tanh, self.one(x))[places], one=linear()), "a")
    with warnings.catch_warnings(action="error"):
        model(X, torch.zeros(100, 8, dtype=torch.int64)).sum().backward()


def test_evaluation_may_be_as_large_as_it_likes(models):
    with warnings.catch_warnings(action="error"), torch.no_grad():
        models[0].eval()(torch.cat([TOKENS] * 9))
