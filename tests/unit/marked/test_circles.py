"""Forward passes that leave tensors in objects that refer to one another, which Python's garbage collector frees, some time."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from second_edition import imported_file

from remat_codegen.ask.request import Request
from remat_codegen.marked import circles
from remat_codegen.marked.circles import left_in_circles
from remat_codegen.marked.replays import forward_of
from remat_codegen.run import marked
from remat_codegen.show.results import Progress

SOURCE = """
import torch
from torch import nn


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(64, 64) for _ in range(6)])

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(torch.sin(x)))
        return x.sum()


class Recursive(Plain):
    def forward(self, x):
        def visit(h, n):
            y = torch.tanh(self.layers[n](h)) * twice
            return visit(y, n - 1) if n else y

        twice = x * 2
        return visit(x, 5).sum()


class Node:
    def __init__(self, value, parent=None):
        self.value, self.parent, self.children = value, parent, []


class Tree(Plain):
    def forward(self, x):
        node = Node(x * 2)
        for layer in self.layers:
            new = Node(torch.tanh(layer(node.value)), node)
            node.children.append(new)
            node = new
        return node.value.sum()


class Caught(Plain):
    def forward(self, x):
        y = torch.tanh(x)
        try:
            raise ValueError("no")
        except ValueError as e:
            error = e
        for layer in self.layers:
            x = torch.sin(torch.cos(layer(x))) + y
        return x.sum()


class Cached(Plain):
    def forward(self, x):
        if x.shape not in KNOWN:
            KNOWN[x.shape] = torch.arange(x.shape[1], device=x.device)
        return super().forward(x + KNOWN[x.shape])


KNOWN = {}


class Closed(Plain):
    def forward(self, x):
        def visit(h, n):
            return visit(torch.tanh(self.layers[n](h)), n - 1) if n else h

        return visit(x, 5).sum()
"""
SIZE = 32 * 64 * 4  # bytes of what each layer gives
HELD = {  # bytes, and what is named
    "Recursive": (SIZE, "the function visit (model.py:19), which captures itself,"),
    "Tree": (7 * SIZE, "objects of the class Node, which refer to one another,"),
    "Caught": (2 * SIZE, "the exception in a variable of forward (model.py:43)"),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    file = tmp_path_factory.mktemp("circles") / "model.py"
    file.write_text(SOURCE)
    return file, imported_file(file)


@pytest.mark.parametrize("name", HELD)
@pytest.mark.parametrize("data", [False, True])
def test_what_stays_in_a_circle_is_seen_and_named(models, name, data):
    left = left_in_circles(getattr(models[1], name)(), (torch.rand(32, 64),), {}, (), data)
    assert left is not None and left.what == HELD[name][1]
    assert HELD[name][0] <= left.size <= HELD[name][0] + SIZE  # an input counts where a circle holds a tensor of its own


@pytest.mark.parametrize("name", ["Plain", "Closed"])
@pytest.mark.parametrize("data", [False, True])
def test_nothing_is_said_of_what_goes_by_itself(models, monkeypatch, name, data):
    was_on, flags, ran = gc.isenabled(), gc.get_debug(), []
    monkeypatch.setattr(circles, "forward_of", lambda *given: ran.append(forward_of(*given).shape))
    left = left_in_circles(getattr(models[1], name)(), (torch.rand(32, 64),), {}, (), data)
    assert left is None and ran == [torch.Size([])]
    assert (gc.isenabled(), gc.get_debug(), gc.garbage) == (was_on, flags, [])


def test_nothing_without_data_is_left_in_caches(models):
    assert left_in_circles(models[1].Cached(), (torch.rand(32, 64),), {}, (), data=False) is None
    assert models[1].KNOWN == {}


@pytest.mark.parametrize("name, said", [("Caught", True), ("Plain", False)])
def test_generation_says_what_a_circle_keeps(models, tmp_path, name, said):
    request = Request(f"{models[0]}:{name}", "70%", tmp_path / "out.py", inputs="float32[512,64]", edition=2)
    progress = Progress()
    marked.generate(request, progress)
    note = f"note: {HELD['Caught'][1]} keeps 256.0 KiB of each forward pass until Python's garbage collector runs"
    assert any(n.startswith(note) for n in progress.noted) == said


def test_garbage_of_before_goes_where_others_have_frozen_what_there_is():
    class Thing:
        """Refers to itself."""

    gc.collect()
    gc.freeze()
    try:
        thing = Thing()
        thing.own = thing
        gone = weakref.ref(thing)
        del thing
        with circles._garbage():
            pass
        gc.collect()
        assert gone() is None
    finally:
        gc.unfreeze()
