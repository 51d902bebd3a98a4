"""What generated files carry, on its own."""

from __future__ import annotations

import weakref

import torch

from remat_codegen.runtime import Group


def test_what_autograd_lets_go_of_is_free_though_its_operation_saved_more():
    group = Group()
    saved = [torch.ones(3), torch.ones(5)]
    seen = [weakref.ref(t.untyped_storage()) for t in saved]
    parts = [group.add(t.detach()) for t in saved]
    saved.clear()
    parts.pop(0)
    assert seen[0]() is None and seen[1]() is not None
    assert len(group.alive()) == 1


def test_what_is_saved_anew_goes_to_the_parts_that_are_still_wanted():
    group = Group()
    parts = [group.add(torch.ones(n)) for n in (1, 2, 3)]
    for part in group.alive():
        part.value = None
    parts.pop(1)
    for n in (1, 2, 3):
        group.refill(torch.full((n,), 7.0))
    assert [p.value.tolist() for p in parts] == [[7.0], [7.0] * 3]
