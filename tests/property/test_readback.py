"""What is read from the functions of a generated file is the schedule that they were written for."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import random_models
import torch
import zoo
from emitted import droppable, emit, model_of, reads_back, rebuilding, zoo_model

from remat_codegen.errors import TraceError, UnsupportedError


def choices(model, seed: int) -> list[set[int]]:
    """Nothing, everything, and two random choices of what is forgotten."""
    draw, all_of_it = random.Random(seed), droppable(model.graph)
    return [set(), set(all_of_it), *({d for d in all_of_it if draw.random() < 0.5} for _ in range(2))]


@pytest.mark.parametrize("name", zoo.ZOO)
def test_the_zoo(name):
    module, args, kwargs, model = zoo_model(name)
    for dropped in choices(model, 0):
        schedule = rebuilding(model.graph, dropped)
        reads_back(model, schedule, emit(module, args, kwargs, model, schedule, Path(zoo.__file__).read_text()))


class Turned(torch.nn.Module):
    """What is spelled as an attribute, beside another operation that reads the same."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 6)

    def forward(self, x):
        y = torch.tanh(self.linear(x))
        return torch.sigmoid(torch.exp(y.T) @ y) + torch.exp(y.T).sum()


def test_attributes():
    module, args = Turned(), (torch.ones(5, 4),)
    model = model_of(module, args, {})
    for dropped in choices(model, 0):
        schedule = rebuilding(model.graph, dropped)
        text = emit(module, args, {}, model, schedule, None)
        assert ".T" in text
        reads_back(model, schedule, text)


def tries_random_model(seed: int) -> None:
    module = random_models.RandomModel(seed)
    args = random_models.inputs(module, seed)
    try:
        model = model_of(module, args, {})
    except (TraceError, UnsupportedError, ValueError):  # nothing to train, or nothing that is supported
        return
    for dropped in choices(model, seed)[1:4]:
        schedule = rebuilding(model.graph, dropped)
        try:
            text = emit(module, args, {}, model, schedule, None)
        except UnsupportedError:  # the way back through its last operation cannot be waited for
            continue
        reads_back(model, schedule, text, earlier=True)


@pytest.mark.parametrize("seed", range(10))
def test_random_models(seed):
    tries_random_model(seed)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(10, 130, 10))
def test_more_random_models(first):
    for seed in range(first, first + 10):
        tries_random_model(seed)
