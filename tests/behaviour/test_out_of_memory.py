"""What an OutOfMemoryError within a step says more: who has the GPU's memory. Numbers are made up; tests/cuda has real ones."""

from __future__ import annotations

import pytest
import torch
from parted import Net, X, planned
from torch import nn

from remat_codegen import parts as helpers

GIB = 2**30


@pytest.fixture
def gpu(monkeypatch):
    """A GPU of 24 GiB of which each test says what is held. The model stays where it is."""
    held = {"allocated": 0, "reserved": 0, "free": 0}
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: held["allocated"])
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: held["reserved"])
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (held["free"], 24 * GIB))
    monkeypatch.setattr(helpers.Step, "states", lambda self: [torch.default_generator.get_state()])
    monkeypatch.setattr(helpers, "PLANNED", [8 * GIB])
    before = helpers.Step.__init__

    def made(self, *given):
        before(self, *given)
        self.devices, self.beside = [0], 10 * GIB

    monkeypatch.setattr(helpers.Step, "__init__", made)
    return held


def failing(when):
    """A model whose part runs out of memory in its first, or in its second run."""

    def run(self, kept, x):
        def act(x):
            runs.append(None)
            if len(runs) == when:
                raise torch.OutOfMemoryError("CUDA out of memory.")
            return x.sin().cos()

        return kept.part("a", act, self.one(x)).exp().sum()

    runs: list[None] = []
    return planned(Net(run, one=nn.Linear(X.shape[-1], 8)).train(), "a")


CASES = {
    "more than planned": (19, 19.5, 3, "the step: its inputs need more", 7.2),
    "others": (15, 15.5, 1, "what is beside the step", 6.5),
    "pieces": (15, 20, 1, "pieces of memory too small to use", 7.2),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("when", [1, 2])
def test_who_has_the_memory(gpu, case, when):
    allocated, reserved, free, blame, budget = CASES[case]
    gpu.update(allocated=allocated * GIB, reserved=reserved * GIB, free=free * GIB)
    with pytest.raises(torch.OutOfMemoryError) as caught:
        failing(when)(X).backward()
    [told] = caught.value.__notes__
    assert ("in the forward pass" if when == 1 else "while a ran again") in told
    assert f"{allocated - 10:.2f} GiB the step's own values" in told and "planned to take 8.00 GiB" in told
    assert f"To blame is {blame}" in told
    assert f"--budget {int(budget * GIB)}." in told


def test_other_errors_say_nothing_more(gpu):
    def run(self, kept, x):
        return kept.part("a", lambda x: x.nothing, self.one(x))

    with pytest.raises(AttributeError) as caught:
        planned(Net(run, one=nn.Linear(X.shape[-1], 8)).train(), "a")(X)
    assert not hasattr(caught.value, "__notes__")
