"""What an optimizer keeps for a parameter, beside what torch.optim keeps after one step."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from remat_codegen.ask.optimizers import NO_OPTIMIZER, OPTIMIZERS, smaller_than, state_pieces

OF_TORCH: dict[str, Callable] = {
    "adamw": torch.optim.AdamW,
    "adam": torch.optim.Adam,
    "adam-amsgrad": lambda p: torch.optim.Adam(p, amsgrad=True),
    "sgd": torch.optim.SGD,
    "sgd-momentum": lambda p: torch.optim.SGD(p, momentum=0.9),
    "adafactor": torch.optim.Adafactor,
    "adagrad": torch.optim.Adagrad,
    "rmsprop": torch.optim.RMSprop,
    "rmsprop-centered-momentum": lambda p: torch.optim.RMSprop(p, centered=True, momentum=0.9),
    "adadelta": torch.optim.Adadelta,
    "adamax": torch.optim.Adamax,
    "nadam": torch.optim.NAdam,
    "radam": torch.optim.RAdam,
    "rprop": torch.optim.Rprop,
    "asgd": torch.optim.ASGD,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("name", OF_TORCH)
def test_the_state_after_one_step(name, dtype):
    for shape in ((), (5,), (3, 4), (2, 3, 4, 5)):
        parameter = torch.nn.Parameter(torch.ones(shape, dtype=dtype))
        parameter.grad = torch.ones_like(parameter)
        optimizer = OF_TORCH[name]([parameter])
        optimizer.step()
        state = [t.untyped_storage().nbytes() for t in optimizer.state[parameter].values() if isinstance(t, torch.Tensor)]
        assert sorted(state) == sorted(state_pieces(name, shape, parameter.element_size(), 4, on_cpu=True)), shape


@pytest.mark.parametrize("name", ["adamw", "adam", "sgd-momentum", "adagrad"])
def test_fused_ones_keep_as_much(name):
    parameter = torch.nn.Parameter(torch.ones(3, 4))
    parameter.grad = torch.ones_like(parameter)
    optimizer = OF_TORCH[name]([parameter])
    optimizer.param_groups[0]["fused"] = True
    optimizer.step()
    state = [t.nbytes for t in optimizer.state[parameter].values() if isinstance(t, torch.Tensor)]
    assert sorted(state) == sorted(state_pieces(name, (3, 4), 4, 4, on_cpu=True))


def test_every_optimizer_is_one_of_torch():
    assert set(OPTIMIZERS) == {*OF_TORCH, NO_OPTIMIZER}
    assert state_pieces(NO_OPTIMIZER, (3, 4), 4, 4, on_cpu=True) == []


def test_counters_stay_on_the_cpu():
    assert state_pieces("adamw", (3, 4), 4, 4, on_cpu=False) == [48, 48]
    assert state_pieces("asgd", (3, 4), 4, 4, on_cpu=False) == [48, 4, 4]


def test_which_keep_less():
    assert smaller_than("sgd") == [] and "sgd" in smaller_than("sgd-momentum")
    assert smaller_than("adamw")[0] == "sgd-momentum" and "adam" not in smaller_than("adamw")
