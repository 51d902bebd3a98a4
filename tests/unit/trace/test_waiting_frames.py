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


@pytest.mark.parametrize("kind", [Generating, Enclosing, Appending])
def test_frames_that_wait_are_seen_as_if_looked_at_anew(kind, monkeypatch):
    def held() -> list:
        seen, own = [], frames._Observer.held

        def noting(observer, chain, attributes):
            seen.append(own(observer, chain, attributes))
            return seen[-1]

        with monkeypatch.context() as patched:
            patched.setattr(frames._Observer, "held", noting)
            trace(module, (torch.ones(2, 4),), {})
        return seen

    module = kind()
    once = held()
    monkeypatch.setattr(frames, "_waits", lambda frame, inner: False)
    assert once == held() and any(numbers for _, numbers in once)
