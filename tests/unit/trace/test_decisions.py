"""What libraries decide by an input's value, such as to leave out a mask that is all ones, but not in a trace."""

from __future__ import annotations

import re

import pytest
import torch
from emitted import droppable, emit, load, model_of, rebuilding
from torch import nn

from remat_codegen.ask.request import Request
from remat_codegen.errors import VerifyError
from remat_codegen.run import pipeline
from remat_codegen.show.results import Progress
from remat_codegen.trace import faithful
from remat_codegen.verify.beside import compare


class Masked(nn.Linear):
    """Rounds otherwise with a mask than without."""

    def forward(self, x, mask, result=None):
        if not torch.compiler.is_compiling() and mask.all():
            return super().forward(x).sin()
        return super().forward(x * mask / 3 * 3).sin()


class Harmless(nn.Linear):
    """A mask of ones makes no difference."""

    def forward(self, x, mask):
        h = super().forward(x)
        return h.sin() if not torch.compiler.is_compiling() and mask.all() else (h * mask).sin()


class InGradients(nn.Linear):
    """Differs on the way back only."""

    def forward(self, x, mask):
        h = super().forward(x)
        if not torch.compiler.is_compiling() and mask.all():
            return h.sin()
        return (h + (h / 3 - (h / 3).detach())).sin()


class Counted(nn.Linear):
    """Asks for a number, which other inputs have another of."""

    def forward(self, x, mask):
        if not torch.compiler.is_compiling() and int(mask.sum()) == mask.numel():
            return super().forward(x).sin()
        return super().forward(x * mask / 3 * 3).sin()


class Stateful(Masked):
    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.norm = nn.BatchNorm1d(8)
        self.calls = 0
        self.seen = None

    def forward(self, x, mask):
        self.seen = mask
        return nn.functional.dropout(self.norm(super().forward(x, mask)), 0.5)


class Deep(Masked):
    """What decides is far from the input, and reaches it by many ways."""

    def forward(self, x, mask):
        whole = mask
        for _ in range(24):
            whole = whole & whole.roll(1, 0)
        if not torch.compiler.is_compiling() and whole.all():
            mask = True
        return super().forward(x, mask if mask is not True else whole)


class Holding(Masked):
    """Holds what cannot be written to, an attribute with a dot in its name, and more than numbers."""

    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.register_buffer("table", torch.arange(8.0).expand(6, 8))
        setattr(self, "head.0", 3)
        self.seen = set()

    def forward(self, x, mask):
        self.seen.add(len(self.seen))
        return super().forward(x + self.table, mask)


class Counting(Masked):
    """Computes something else in each step."""

    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x, mask):
        self.count += 1
        return super().forward(x, mask) * self.count


class WithoutGradient(nn.Linear):
    """The same operation, but not for gradients."""

    def forward(self, x, mask):
        h = super().forward(x)
        with torch.set_grad_enabled(torch.compiler.is_compiling() or not bool(mask.all())):
            other = super().forward(2 * x)
        return h + other


class OfInputs(nn.Linear):
    """Differs in the gradients of inputs only."""

    def forward(self, x, mask):
        return super().forward(x if not torch.compiler.is_compiling() and mask.all() else x.detach())


class OtherNumbers(nn.Linear):
    def forward(self, x, mask):
        numbers = [3.0] * 8 if not torch.compiler.is_compiling() and mask.all() else [2.0] * 8
        return super().forward(x) * torch.tensor(numbers)


class InPlace(Masked):
    """Changes in place what was computed with the mask, before it asks again."""

    def forward(self, x, mask):
        x = x * mask
        x += 1
        return super().forward(x, mask)


class Overwriting(Masked):
    """Changes what it has decided by."""

    def forward(self, x, mask):
        whole = mask.all()
        h = super().forward(x, mask | whole) if not torch.compiler.is_compiling() and whole else x
        whole.logical_not_()
        return h + super().forward(x, mask) * whole.logical_not()


class Assigning(Masked):
    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, x, mask):
        self.mean = 0.9 * self.mean + x.mean(0)
        return super().forward(x, mask) + self.mean


X = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))
ONES = torch.ones(6, 8, dtype=torch.bool)
PADDED = ONES.clone()
PADDED[:, 5:] = False


def generated(module, args, tmp_path):
    model = model_of(module, args, {})
    schedule = rebuilding(model.graph, set(droppable(model.graph)))
    text = emit(module, args, {}, model, schedule, None)
    called = re.search(r"\n +check_decisions\(\s*decided(\[\d+:\])?,\s*\[\s*\(", text)
    assert called or not model.trace.decisions, "a list, as in files that are there"
    file = load(text, tmp_path, type(module).__name__.lower())
    assert compare(module, file.rematerialize, args, {}).identical
    return model.trace.decisions, file.rematerialize(module)


def test_a_decision_that_changes_bits_is_traced_and_looked_at_in_every_step(tmp_path):
    decisions, ours = generated(Masked(8, 8), (X, ONES), tmp_path)
    assert [value for _, value in decisions] == [True]
    with pytest.raises(ValueError, match=r"test_decisions.py:\d+ \(`if .* and mask.all\(\)`\) finds False, but .* for True"):
        ours(X, PADDED)
    ours(X, ONES).sum().backward()
    assert torch.equal(ours.eval()(X, PADDED), ours.original(X, PADDED))


def test_what_is_alike_is_traced_for_all_inputs(tmp_path):
    decisions, ours = generated(Harmless(8, 8), (X, ONES), tmp_path)
    assert decisions == ()
    assert torch.equal(ours(X, PADDED), ours.original(X, PADDED))


def test_padded_inputs_are_traced_for_all_inputs(tmp_path, monkeypatch):
    """Their operations are the same with the decision: nothing has to be run to see that."""
    monkeypatch.setattr(faithful, "LARGEST_STEP_BYTES", 0)
    decisions, ours = generated(Masked(8, 8), (X, PADDED), tmp_path)
    assert decisions == ()
    ours(X, ONES)


@pytest.mark.parametrize("kind", [Deep, Holding, Counting, WithoutGradient, OtherNumbers, InPlace])
def test_decisions_are_traced_whatever_else_the_model_does(kind, tmp_path):
    decisions, _ = generated(kind(8, 8), (X, ONES), tmp_path)
    assert decisions


def test_buffers_are_assigned_only_where_the_decision_is_the_same(tmp_path):
    module = Assigning(8, 8)
    _, ours = generated(module, (X, ONES), tmp_path)
    with pytest.raises(ValueError, match="finds False"):
        ours(X, PADDED)
    assert not ours.mean.any()
    ours(X, ONES)
    assert torch.allclose(ours.mean, X.mean(0))


def test_gradients_of_inputs_are_compared_too(tmp_path):
    decisions, _ = generated(OfInputs(8, 8), (X.clone().requires_grad_(), ONES), tmp_path)
    assert decisions


def test_what_is_changed_after_it_was_decided_by_is_not_looked_at():
    assert len(model_of(Overwriting(8, 8), (X, ONES), {}).trace.decisions) == 0


def test_gradients_are_compared_too(tmp_path):
    decisions, _ = generated(InGradients(8, 8), (X, ONES), tmp_path)
    assert len(decisions) == 1


def test_numbers_are_not_decided_by():
    assert model_of(Counted(8, 8), (X, ONES), {}).trace.decisions == ()


def test_without_memory_to_compare_the_decision_is_traced(tmp_path, monkeypatch):
    monkeypatch.setattr(faithful, "LARGEST_STEP_BYTES", 0)
    decisions, _ = generated(Harmless(8, 8), (X, ONES), tmp_path)
    assert len(decisions) == 1


def test_comparing_leaves_the_model_and_the_generators_as_they_were():
    module, random = Stateful(8, 8), torch.get_rng_state()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    assert len(model_of(module, (X, ONES), {}).trace.decisions) == 1
    assert torch.equal(random, torch.get_rng_state())
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())
    assert module.seen is None
    assert module.weight.grad is None


MODEL = """
import torch


class Net(torch.nn.Linear):
    def forward(self, x, mask):
        if not torch.compiler.is_compiling() and mask.all():
            return super().forward(x).sin()
        return super().forward(x * mask / 3 * 3).sin()


def ones():
    return torch.randn(6, 8), torch.ones(6, 8)


def padded():
    return torch.randn(6, 8), torch.arange(8).lt(5).expand(6, 8).float()
"""


def test_a_report_says_what_a_file_is_for_and_verify_what_it_is_not_for(tmp_path):
    model, output = tmp_path / "model.py", tmp_path / "out.py"
    model.write_text(MODEL)
    report = pipeline.generate(
        Request(f"{model}:Net", "100%", output, init="8, 8", inputs=f"{model}:ones", verify=True), Progress(None)
    )
    assert report.verify.ok
    assert any("`if not torch.compiler.is_compiling() and mask.all()`) finds True" in note for note in report.notes)
    with pytest.raises(VerifyError, match=r"out.py: model.py:7 .* finds False, but this file was planned for True"):
        pipeline.verify(output, f"{model}:Net", init="8, 8", inputs=f"{model}:padded", progress=Progress(None))
