"""What variables hold is seen in frames that wait as in those that run."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from remat_codegen.trace import frames, trace


class Generating(nn.Module):
    """A generator's frame goes on while the loop that reads it stays at the same instruction."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])

    def forward(self, x):
        for y in (torch.tanh(layer(x)) for layer in self.layers):
            last = y
        return last


class Enclosing(nn.Module):
    """A function sets a variable of one that waits for another."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        y = None

        def inner():
            nonlocal y
            y = self.layer(x).tanh()

        def outer():
            inner()
            return x.sin().cos().sum()

        return outer() + y.sum()


class Appending(nn.Module):
    """A list of a frame that waits gets longer."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])

    def into(self, found, x):
        for layer in self.layers:
            found.append(layer(x).tanh())
        return x.sin()

    def forward(self, x):
        found = []
        return self.into(found, x) + sum(found)


class Interpreting(nn.Module):
    """A variable has an interpreter of torch.fx, which keeps all that it has made."""

    def __init__(self):
        super().__init__()
        self.graph = torch.fx.symbolic_trace(nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Sigmoid(), nn.Tanh()))
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        run = torch.fx.Interpreter(self.graph, garbage_collect_values=False)
        return self.layer(run.run(x)).tanh()


def held_in(module, patch) -> list:
    """For each node, its number, and those of what variables hold."""
    seen, own = [], frames._Observer.held

    def noting(observer, chain, attributes):
        seen.append(own(observer, chain, attributes))
        return seen[-1]

    with patch.context() as patched:
        patched.setattr(frames._Observer, "held", noting)
        trace(module, (torch.ones(2, 4),), {})
    return seen


@pytest.mark.parametrize("kind", [Generating, Enclosing, Appending])
def test_frames_that_wait_are_seen_as_if_looked_at_anew(kind, monkeypatch):
    module = kind()
    once = held_in(module, monkeypatch)
    monkeypatch.setattr(frames, "_waits", lambda frame, inner: False)
    assert once == held_in(module, monkeypatch) and any(numbers for _, numbers in once)


def test_what_an_interpreter_of_the_users_keeps_is_seen(monkeypatch):
    last, held = held_in(Interpreting(), monkeypatch)[-1]
    assert len(held) >= 4 and all(max(numbers) < last for numbers in held)
