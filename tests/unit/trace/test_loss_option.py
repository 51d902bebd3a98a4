"""What a step goes back from: what `--loss` says, and what is taken where it says nothing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import nn

import remat_codegen
from remat_codegen.ask import request
from remat_codegen.ask.request import Request
from remat_codegen.errors import RematError
from remat_codegen.profile import clock
from remat_codegen.profile.cache import Cache
from remat_codegen.profile.measure import Measured
from remat_codegen.run import check_update, marked, pipeline
from remat_codegen.run.traced import trace_target
from remat_codegen.schedule import simulate, without_recomputation
from remat_codegen.show.results import Progress
from remat_codegen.trace import training
from remat_codegen.verify.beside import load_generated

MODEL = """
import torch.nn as nn
import torch.nn.functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 32)) for _ in range(4)])
        self.head = nn.Linear(32, 400)

    def forward(self, x, labels):
        for block in self.blocks:
            x = x + block(x)
        logits = self.head(x)
        return {"logits": logits, "loss": F.cross_entropy(logits, labels)}


class Beside(Net):
    # The number that is returned is not the loss: logits do not go into it.
    def forward(self, x, labels):
        for block in self.blocks:
            x = x + block(x)
        return self.head(x), x.square().mean()
"""
FAST = (None, 2), ("sum", 2), (None, 1)
CASES = [
    pytest.param(loss, edition, marks=() if (loss, edition) in FAST else pytest.mark.slow)
    for edition in (1, 2)
    for loss in (None, *training.LOSSES)
]
INPUTS = "x=float32[256,32]; labels=int64[256]<400"


@pytest.fixture
def target(tmp_path):
    (tmp_path / "model.py").write_text(MODEL)
    return str(tmp_path / "model.py")


def asked(target: str, tmp_path: Path, **options) -> Request:
    return Request(f"{target}:Net", budget="80%", inputs=INPUTS, output=tmp_path / "net.py", **options)


def test_the_names_are_those_of_the_steps():
    assert request.LOSSES == training.LOSSES


class TestUsual:
    def test_logits_that_go_into_the_loss_need_none_of_their_own(self):
        x = torch.ones(3, requires_grad=True)
        logits = x * 2
        assert training.usual_loss({"logits": logits, "loss": logits.view(3, 1).sum()}) == "model"

    @pytest.mark.parametrize("outputs", [lambda x: x * 2, lambda x: (x * 2).sum(), lambda x: (x * 2, x.square().mean())])
    def test_other_outputs_do(self, outputs):
        assert training.usual_loss(outputs(torch.ones(3, requires_grad=True))) == "cross-entropy"

    def test_results_of_one_operation_are_told_apart(self):
        first, second_ = (torch.ones(2, 3, requires_grad=True) * 2).unbind()
        assert training.usual_loss((first, first.sum())) == "model"
        assert training.usual_loss((second_, first.sum())) == "cross-entropy"

    def test_an_input_that_is_returned_may_go_into_it_too(self):
        x = torch.ones(3, requires_grad=True)
        assert training.usual_loss((x, x.sum())) == "model"


class TestPlanned:
    @pytest.mark.parametrize("loss, edition", CASES)
    def test_files_are_exact_and_within_budget_by_the_loss_that_was_planned(self, target, tmp_path, loss, edition):
        generate = pipeline.generate if edition == 1 else marked.generate
        report = generate(asked(target, tmp_path, loss=loss, edition=edition, verify=True), Progress())
        assert report.verify.ok, report.verify.rows
        assert abs(report.verify.measured_peak_bytes - report.planned_peak_bytes) <= 64
        assert check_update.check(tmp_path / "net.py", Progress()).ok
        assert not check_update.update(tmp_path / "net.py", Progress()).changed

    def test_a_loss_outside_takes_what_one_in_the_model_does_not(self, target, tmp_path, monkeypatch):
        monkeypatch.setattr(clock, "MEASURED_SECONDS", 0.0)  # times do not matter here

        def peak(loss: str) -> int:
            model = trace_target(asked(target, tmp_path, loss=loss), Progress()).model
            profile = Measured("cpu", Cache("cpu", enabled=False)).of(model)
            return simulate(model.graph, profile, without_recomputation(model.graph)).peak_bytes

        size = {loss: peak(loss) for loss in training.LOSSES}
        assert size["cross-entropy"] >= size["none"] >= size["sum"] >= size["model"] < size["cross-entropy"]

    def test_the_header_says_so(self, target, tmp_path):
        marked.generate(asked(target, tmp_path), progress := Progress())
        text = (tmp_path / "net.py").read_text()
        assert "in training mode, from the loss that forward returns." in text.replace("\n#", "")
        assert any("--loss cross-entropy counts one" in note for note in progress.noted)
        marked.generate(asked(target, tmp_path, loss="sum"), Progress())
        assert re.search(r"#     remat-codegen .* --loss sum ", (tmp_path / "net.py").read_text())

    @pytest.mark.parametrize("edition", [1, 2])
    def test_a_step_from_the_logits_is_exact_too(self, target, tmp_path, edition):
        """Planned from the loss that forward returns, and used otherwise: only the budget is not promised then."""
        (marked.generate if edition == 2 else pipeline.generate)(asked(target, tmp_path, edition=edition), Progress())
        generated = load_generated(tmp_path / "net.py")
        torch.manual_seed(0)
        original = generated.Net()
        x, labels = torch.randn(256, 32), torch.randint(400, (256,))

        def gradients(model):
            model.zero_grad()
            out = model(x, labels)
            (out["loss"] + out["logits"].square().mean()).backward()
            return [p.grad.clone() for p in model.parameters()]

        own = _original(target)
        own.load_state_dict(original.state_dict())
        assert all(torch.equal(a, b) for a, b in zip(gradients(original), gradients(own), strict=True))

    def test_a_model_without_a_loss_is_refused_by_name(self, target, tmp_path):
        with pytest.raises(RematError, match="--loss model is for a forward that returns its loss"):
            trace_target(
                Request(f"{target}:Beside", budget="80%", inputs=INPUTS, loss="model", output=tmp_path / "b.py"), Progress()
            )

    def test_a_number_beside_the_logits_is_no_loss(self, target, tmp_path):
        traced = trace_target(Request(f"{target}:Beside", budget="80%", inputs=INPUTS), Progress())
        assert traced.model.record.loss == "cross-entropy"


class TestPython:
    def test_it_is_an_argument(self, target):
        model = _original(target)
        inputs = torch.randn(256, 32), torch.randint(400, (256,))
        inside = remat_codegen.plan(model, inputs, budget="80%")
        outside = remat_codegen.plan(model, inputs, budget="80%", loss="cross-entropy")
        assert inside.unmodified_peak_bytes < outside.unmodified_peak_bytes
        assert "loss='cross-entropy'" in outside.source and "loss=" not in inside.source.split('"""')[0]

    def test_other_words_are_refused(self):
        with pytest.raises(RematError, match="in one word, not by a function; cross-entropy, sum, none, model"):
            remat_codegen.plan(nn.Linear(2, 2), torch.ones(1, 2), budget="80%", loss=torch.nn.functional.cross_entropy)
        with pytest.raises(RematError, match="'mse' is no loss; they are cross-entropy"):
            remat_codegen.plan(nn.Linear(2, 2), torch.ones(1, 2), budget="80%", loss="mse")


def _original(target: str) -> nn.Module:
    space: dict = {"__name__": "original"}
    exec(compile(Path(target).read_text(), target, "exec"), space)
    torch.manual_seed(0)
    return space["Net"]()
