"""What generated files carry, on its own."""

from __future__ import annotations

import weakref

import torch

from remat_codegen.emit.helpers import Uses, needed_helpers
from remat_codegen.runtime import Step


def saved(step, kept, *tensors):
    """What autograd would hold of some tensors that an operation saves."""
    with kept.saves("op"):
        return [step.pack(t) for t in tensors]


def test_what_autograd_lets_go_of_is_free_though_its_operation_saved_more():
    step = Step()
    tensors = [torch.ones(3), torch.ones(5)]
    seen = [weakref.ref(t.untyped_storage()) for t in tensors]
    held = saved(step, step[0], *tensors)
    tensors.clear()
    held.pop(0)
    assert seen[0]() is None and seen[1]() is not None


def test_what_is_saved_anew_goes_to_the_parts_that_are_still_wanted():
    step = Step()
    held = saved(step, step[0], *(torch.ones(n) for n in (1, 2, 3)))
    step[0].forget_saved("op")
    held.pop(1)
    with step[0].saves("op"):
        for n in (1, 2, 3):
            step.refill(torch.full((n,), 7.0))
    assert [step.unpack(h).tolist() for h in held] == [[7.0], [7.0] * 3]


def test_a_place_that_nobody_waits_for_does_not_hurry_the_program():
    step, ran, seen = Step(), [], []

    def program(step, model, x):
        yield step[0].stops["first"]
        ran.append("first")

    x = torch.ones(3, requires_grad=True)
    with step.forward(program, torch.nn.Identity(), x):
        first = step[0].stop("first", x * 2)
        middle = first * 3
        last = step[0].stop("last", middle * 4)
    middle.register_hook(lambda gradient: seen.extend(ran))
    last.sum().backward()
    assert (seen, ran) == ([], ["first"])


def test_a_file_carries_what_it_uses_and_no_more():
    code = "\n".join(needed_helpers(Uses(frozenset({"Step"}), frozenset({"forward", "slot", "forget"}))))
    assert "def forget(" in code and "def pack(" in code and "class Slot" in code
    assert "def forget_saved(" not in code and "def draws(" not in code and "_generator" not in code
    assert "def check_call" not in code
    compile(code, "helpers", "exec")
