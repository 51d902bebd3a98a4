"""Files with a table for each of several batch sizes: each is exact and within the budget, and a step's inputs decide."""

from __future__ import annotations

import warnings

import pytest
import torch
from click.testing import CliRunner
from test_second_verbs import NET

import remat_codegen
from remat_codegen import explain, lifecycle, pipeline, planfile, second
from remat_codegen import verify as comparing
from remat_codegen.batch import parse_batches
from remat_codegen.cli import cli
from remat_codegen.errors import BudgetError, PlanFileError, RematError, TargetError, UnsupportedError
from remat_codegen.marked.reading import read
from remat_codegen.planline import plan_in
from remat_codegen.report import Progress
from remat_codegen.request import Request
from remat_codegen.target import load_target

QUIET = Progress(None)
BATCHES = "16,64,32"

WITH_A_TABLE = """
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = torch.nn.Linear(8, 64), torch.nn.Linear(64, 8)

    def forward(self, table, x):
        return self.two(torch.tanh(self.one(x))).sum() * table.mean()


def example_inputs():
    return torch.randn(16, 4096), torch.randn(16, 8)
"""


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A file for three batch sizes, its plan beside it, and the report."""
    folder = tmp_path_factory.mktemp("batches")
    (folder / "net.py").write_text(NET)
    file = folder / "net_remat.py"
    asked = Request(f"{folder / 'net.py'}:Net", "50%", file, batch=BATCHES, save_plan=folder / "plan.json")
    return file, second.generate(asked, QUIET)


@pytest.fixture
def file(written, tmp_path):
    """That file, to be changed, beside its model."""
    (tmp_path / "net.py").write_text(NET)
    (tmp_path / "net_remat.py").write_text(written[0].read_text())
    return tmp_path / "net_remat.py"


def test_each_is_exact_and_within_the_budget(file):
    found = pipeline.verify(file, f"{file.with_name('net.py')}:Net", steps=2, progress=QUIET)
    assert found.ok, found.failures()
    plan = plan_in(file.read_text())
    assert found.measured_peak_bytes > plan.others[1].planned_peak_bytes  # the largest batch's, though nobody named it
    assert [row.what for row in found.rows if row.what.startswith("with ")] == ["with a batch of 32", "with a batch of 16"]


def test_the_largest_is_first_and_the_others_are_said(written):
    file, report = written
    text = file.read_text()
    plan = plan_in(text)
    assert [p.batch for p in plan.all()] == [64, 32, 16] and len({p.budget_bytes for p in plan.all()}) == 1
    assert all(p.planned_peak_bytes <= p.budget_bytes for p in plan.all())
    peaks = [p.unmodified_peak_bytes for p in plan.all()]
    assert peaks == sorted(peaks, reverse=True) and plan.overhead > 0 == plan.others[-1].overhead
    assert [note[:24] for note in report.notes if note.startswith("also for")] == [
        "also for a batch of 32: ",
        "also for a batch of 16: ",
    ]
    assert f"--batch {BATCHES}" in text and max(map(len, text.splitlines())) <= 120


@pytest.mark.parametrize(("rows", "batch"), [(64, 64), (33, 64), (32, 32), (17, 32), (16, 16), (3, 16)])
def test_a_step_takes_the_table_of_the_least_batch_that_it_fits_into(file, rows, batch):
    generated = comparing.load_generated(file)
    model = generated.Net()
    model(torch.randn(rows, 32)).sum().backward()
    assert generated.TABLES[model].plan == generated.PLANS[batch]


def test_larger_batches_take_the_largest_and_are_said_once(file):
    generated = comparing.load_generated(file)
    model = generated.Net()
    for rows, said in [(128, 1), (128, 0), (16, 0), (96, 0)]:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            model(torch.randn(rows, 32)).sum().backward()
        assert len(told) == said
        assert generated.TABLES[model].plan == generated.PLANS[16 if rows == 16 else 64]


def test_steps_of_several_sizes_at_once(file):
    generated = comparing.load_generated(file)
    torch.manual_seed(0)
    model, inputs = generated.Net(), [torch.randn(rows, 32) for rows in (64, 16, 48)]
    original = load_target(f"{file.with_name('net.py')}:Net").module
    original.load_state_dict(model.state_dict())
    for module in (model, original):
        for loss in [module(x).square().sum() for x in inputs]:  # all forward passes come first
            loss.backward()
    for ours, theirs in zip(model.parameters(), original.parameters(), strict=True):
        assert torch.equal(ours.grad, theirs.grad)


def test_a_batch_that_is_named(file):
    generated = comparing.load_generated(file)
    model = generated.rematerialize(generated.Net(), batch=64)
    model(torch.randn(16, 32)).sum().backward()
    assert generated.TABLES[model].plan == generated.PLANS[64]
    with pytest.raises(ValueError, match="there are plans for a batch of 64, 32, 16, not 8: name one of them"):
        generated.rematerialize(generated.Net(), batch=8)


def test_verbs_read_all_tables(file):
    assert not lifecycle.check(file, QUIET).reasons
    found = explain.explain(file, QUIET)
    assert found.ok and found.as_planned and sum(note.startswith("the table for a batch of ") for note in found.notes) == 2
    assert not lifecycle.update(file, QUIET).changed
    text = file.read_text()
    file.write_text(text.replace(f"--batch {BATCHES}", "--batch 16,64", 1))
    assert lifecycle.check(file, QUIET).reasons and not explain.explain(file, QUIET).ok
    assert lifecycle.update(file, QUIET).planned
    assert [p.batch for p in plan_in(file.read_text()).all()] == [64, 16]
    file.write_text(file.read_text().replace("--batch 16,64", "--batch 16,48,64", 1))
    assert lifecycle.check(file, QUIET).reasons and not explain.explain(file, QUIET).ok
    assert lifecycle.update(file, QUIET).planned and not lifecycle.check(file, QUIET).reasons


def test_every_table_is_guarded(file):
    text = file.read_text()
    rows = [line for line in text.split("\n") if line.startswith("        ") and '": "' in line and "# " in line]
    edits = [text.replace("    32: {", "    33: {"), text.replace("NUMBERS.update({64: 2048", "NUMBERS.update({64: 1024")]
    edits += [text[: (at := text.rindex(row))] + text[at + len(row) + 1 :] for row in {rows[0], rows[-1]}]
    for edited in edits:
        assert edited != text
        file.write_text(edited)
        assert lifecycle.check(file, QUIET).reasons
        found = explain.explain(file, QUIET)
        assert not found.ok and found.edited


def test_a_saved_plan_has_all_of_them(written, tmp_path):
    file, _ = written
    saved, target = file.with_name("plan.json"), f"{file.with_name('net.py')}:Net"
    assert [p.batch for p in planfile.load(saved).all()] == [64, 32, 16]
    again = tmp_path / "net_remat.py"
    second.generate(Request(target, None, again, plan=saved, batch=BATCHES), QUIET)
    assert [len(t) for t in read(again.read_text(), {}).tables] == [len(t) for t in read(file.read_text(), {}).tables]
    with pytest.raises(PlanFileError, match="made for other batch sizes"):
        second.generate(Request(target, None, again, plan=saved, batch="64,32"), QUIET)


def test_what_cannot_have_several_is_refused(written, tmp_path):
    file, _ = written
    target = f"{file.with_name('net.py')}:Net"
    with pytest.raises(BudgetError, match="several batch sizes are for files with tables"):
        pipeline.generate(Request(target, "50%", tmp_path / "out.py", edition=1, batch=BATCHES), QUIET)
    with pytest.raises(BudgetError, match="several budgets or several batch sizes, not both"):
        second.generate(Request(target, "50%,60%", tmp_path / "out.py", batch=BATCHES), QUIET)
    for words in (["compare", target], ["trace", target, "-o", "g.json"], [target, "--budget", "1MiB", "--largest-batch", ""]):
        result = CliRunner().invoke(cli, [*words, "--batch", BATCHES])
        assert result.exit_code == 2 and "'16,64,32' names several sizes" in result.output
    assert not (tmp_path / "out.py").exists()


def test_inputs_that_do_not_grow_are_refused(tmp_path):
    (tmp_path / "net.py").write_text(WITH_A_TABLE)
    asked = Request(f"{tmp_path / 'net.py'}:Net", "100%", tmp_path / "out.py", batch="x.0=8,16")
    with pytest.raises(UnsupportedError, match="the largest input, table, has the same size at every batch"):
        second.generate(asked, QUIET)


def test_from_python(written, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    model = load_target(f"{written[0].with_name('net.py')}:Net").module
    plan = remat_codegen.plan(model, (torch.randn(8, 32),), budget="60%", batch=[32, 8], progress=False)
    assert "NUMBERS.update({32: 1024, 8: 256})" in plan.source and "batch='32,8'" in plan.source
    with pytest.raises(RematError, match=r"a batch is a number of rows, like 16, or several, like \[32, 16, 8\], not \[\]"):
        remat_codegen.plan(model, (torch.randn(64, 32),), budget="60%", batch=[], progress=False)


def test_sizes_are_read():
    assert [(b.size, b.places) for b in parse_batches("idx.0, mask.0 = 8, 32,8")] == [
        (32, "idx.0,mask.0"),
        (8, "idx.0,mask.0"),
    ]
    for text in ("8,", "8,0", ",8", "a=", "8;16"):
        with pytest.raises(TargetError, match="cannot read"):
            parse_batches(text)
