"""Files with a table for each of several batch sizes: each is exact and within the budget, and a step's inputs decide."""

from __future__ import annotations

import copy
import re
import warnings
from dataclasses import replace

import pytest
import torch
from click.testing import CliRunner
from nets import NET

import remat_codegen
from remat_codegen.ask.batch import parse_batches
from remat_codegen.ask.budget import format_bytes
from remat_codegen.ask.request import Request
from remat_codegen.ask.target import load_target
from remat_codegen.cli.main import cli
from remat_codegen.errors import BudgetError, PlanFileError, RematError, TargetError, UnsupportedError
from remat_codegen.header import saved_plan
from remat_codegen.header.plan_line import plan_in
from remat_codegen.header.several import plan_for
from remat_codegen.integrations import at_first_step
from remat_codegen.marked.reading import read
from remat_codegen.page.render import render
from remat_codegen.readback.tables import closing_lines
from remat_codegen.run import check_update, explain, marked, pipeline, reporting
from remat_codegen.show.page_table import page_table
from remat_codegen.show.results import Progress
from remat_codegen.show.tables import Shown
from remat_codegen.verify import beside as comparing

QUIET = Progress(None)
BATCHES = "16,64,32"
NEAR_BYTES = 4096 + 5056  # what a step may hold beside its tensors, with a generator's state

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
    return file, marked.generate(asked, QUIET)


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
    others = {row.what: row.detail for row in found.rows if row.what.startswith("with ")}
    assert [*others] == ["with a batch of 32", "with a batch of 16"] and "the table" not in [row.what for row in found.rows]
    for told, saved in zip(others.values(), plan.others, strict=True):
        assert f"planned {format_bytes(saved.planned_peak_bytes)}, budget {format_bytes(plan.budget_bytes)}" in told


def test_a_budget_judges_every_batch(file):
    target, plans = f"{file.with_name('net.py')}:Net", plan_in(file.read_text()).all()
    between = (plans[1].planned_peak_bytes + plans[2].planned_peak_bytes) // 2
    for budget, failing in [("1GiB", []), (str(between), ["peak within budget", "with a batch of 32"])]:
        found = pipeline.verify(file, target, steps=1, budget=budget, progress=QUIET)
        assert [row.what for row in found.rows if not row.ok] == failing
        assert found.planned_peak_bytes == plans[0].planned_peak_bytes
        assert sum(f"budget {format_bytes(found.budget_bytes)}" in row.detail for row in found.rows) == 2


@pytest.mark.parametrize(("rows", "table"), [(64, 64), (48, 64), (32, 32), (20, 32), (16, 16)])
def test_a_batch_that_is_named_is_judged_by_its_own_plan(file, rows, table):
    plans = {plan.batch: plan for plan in plan_in(file.read_text()).all()}
    found = pipeline.verify(file, f"{file.with_name('net.py')}:Net", steps=1, batch=str(rows), progress=QUIET)
    told = {row.what: row.detail for row in found.rows}
    assert found.ok and told["the table"] == f"the one for a batch of {table}", found.failures()
    assert found.planned_peak_bytes == plans[table].planned_peak_bytes >= found.measured_peak_bytes - NEAR_BYTES
    assert found.assumed_peak_bytes == plans[table].unmodified_peak_bytes and found.budget_bytes == plans[64].budget_bytes
    assert rows != table or abs(found.original_peak_bytes - found.assumed_peak_bytes) <= 64
    assert any(what.startswith("with ") for what in told) is (rows == 64)


def test_the_largest_is_first_and_the_others_are_said(written):
    file, report = written
    text = file.read_text()
    plan = plan_in(text)
    assert [p.batch for p in plan.all()] == [64, 32, 16] and len({p.budget_bytes for p in plan.all()}) == 1
    assert all(p.planned_peak_bytes <= p.budget_bytes for p in plan.all())
    peaks = [p.unmodified_peak_bytes for p in plan.all()]
    assert peaks == sorted(peaks, reverse=True) and plan.overhead > 0 == plan.others[-1].overhead
    assert [other.label for other in report.others] == ["a batch of 32", "a batch of 16"]
    assert report.to_json()["batch"] == 64 and [other["batch"] for other in report.to_json()["others"]] == [32, 16]
    assert f"--batch {BATCHES}" in text and max(map(len, text.splitlines())) <= 120


@pytest.mark.parametrize(("rows", "batch"), [(64, 64), (33, 64), (32, 32), (17, 32), (16, 16), (3, 16)])
def test_a_step_takes_the_table_of_the_least_batch_that_it_fits_into(file, rows, batch):
    generated = comparing.load_generated(file)
    model = generated.Net()
    model(torch.randn(rows, 32)).sum().backward()
    assert generated.TABLES[model][-1].plan == generated.PLANS[batch]


def test_larger_batches_take_the_largest_and_are_said_once(file):
    generated = comparing.load_generated(file)
    model = generated.Net()
    for rows, said in [(128, 1), (128, 0), (16, 0), (96, 0)]:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            model(torch.randn(rows, 32)).sum().backward()
        assert len(told) == said
        assert generated.PLANS[16 if rows == 16 else 64] in [table.plan for table in generated.TABLES[model]]


def test_more_than_the_batch_that_was_named_is_said_by_each_model(file):
    generated = comparing.load_generated(file)
    _, peak = generated.NUMBERS[16]
    for _ in range(2):
        model = generated.rematerialize(load_target(f"{file.with_name('net.py')}:Net").module.train(), batch=16)
        with pytest.warns(UserWarning, match=rf"4\.00 times as large as planned: expect some {4 * peak / 2**20:,.1f} MiB"):
            model(torch.randn(64, 32)).sum().backward()
        assert copy.deepcopy(model).forward.plan.planned == (512, peak)


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
    assert generated.TABLES[model][-1].plan == generated.PLANS[64]
    with pytest.raises(ValueError, match="there are plans for a batch of 64, 32, 16, not 8: name one of them"):
        generated.rematerialize(generated.Net(), batch=8)


def test_verbs_read_all_tables(file):
    assert not check_update.check(file, QUIET).reasons
    found = explain.explain(file, QUIET)
    assert found.ok and found.as_planned and [other.batch for other in found.others] == [32, 16]
    assert not check_update.update(file, QUIET).changed
    text = file.read_text()
    file.write_text(text.replace(f"--batch {BATCHES}", "--batch 16,64", 1))
    assert check_update.check(file, QUIET).reasons and not explain.explain(file, QUIET).ok
    assert check_update.update(file, QUIET).planned
    assert [p.batch for p in plan_in(file.read_text()).all()] == [64, 16]
    file.write_text(file.read_text().replace("--batch 16,64", "--batch 16,48,64", 1))
    assert check_update.check(file, QUIET).reasons and not explain.explain(file, QUIET).ok
    assert check_update.update(file, QUIET).planned and not check_update.check(file, QUIET).reasons


def test_explain_tells_the_table_that_is_named_by_the_graph_of_its_batch(written):
    file, _ = written
    plans = plan_in(file.read_text()).all()
    found = [explain.explain(file, QUIET, batch=plan.batch) for plan in plans]
    for one, plan in zip(found, plans, strict=True):
        assert one.ok and one.as_planned and (one.batch, one.budget_bytes) == (plan.batch, plan.budget_bytes)
        assert (one.peak_bytes, one.unmodified_peak_bytes) == (plan.planned_peak_bytes, plan.unmodified_peak_bytes)
        assert one.overhead == pytest.approx(plan.overhead, abs=1e-4)
        beside = [other for other in plans if other is not plan]
        assert [(o.batch, o.peak_bytes) for o in one.others] == [(o.batch, o.planned_peak_bytes) for o in beside]
        assert [o.overhead for o in one.others] == pytest.approx([o.overhead for o in beside], abs=1e-4)
        said = one.to_json()
        assert said["batch"] == plan.batch and [row["batch"] for row in said["others"]] == [o.batch for o in beside]
        lines = [*closing_lines(one)]
        assert any(line.endswith(f", batch {plan.batch}") for line in lines)
        assert sum(line.startswith("another table for a batch of ") for line in lines) == 2
    entries = [{(row.key, entry) for row in one.rows for entry in row.entries} for one in found]
    assert entries[0] != entries[1] and entries[0] and entries[1] and not entries[2]
    assert found[0].overhead > found[1].overhead > found[2].overhead == 0
    assert explain.explain(file, QUIET) == found[0] and explain.explain(file, QUIET, budget="50%", batch=32) == found[1]


def test_a_page_shows_the_plan_of_the_batch_that_is_named(written):
    file, _ = written
    plans = {plan.batch: plan for plan in plan_in(file.read_text()).all()}
    planners: dict[int, tuple[str, ...]] = {64: (), 32: ("chen",), 16: ()}  # one with a curve is enough
    pages = {batch: reporting.report(file, QUIET, batch=batch, planners=planners[batch], measure=True) for batch in plans}
    for batch, page in pages.items():
        figures, beside = page.figures, [plan for plan in plans.values() if plan.batch != batch]
        assert (figures.batch, figures.budget_bytes) == (batch, plans[batch].budget_bytes)
        assert figures.planned_peak_bytes == plans[batch].planned_peak_bytes
        assert figures.unmodified_peak_bytes == plans[batch].unmodified_peak_bytes
        assert abs(page.measured.peak_bytes - figures.planned_peak_bytes) < NEAR_BYTES
        assert page.outside.inputs_bytes == 4 * 32 * batch and (figures.recomputed or not plans[batch].overhead)
        assert [(o.batch, o.planned_peak_bytes) for o in page.others] == [(o.batch, o.planned_peak_bytes) for o in beside]
        for other in page.others:
            own = pages[other.batch].figures
            assert other.bound == own.bound and other.overhead == pytest.approx(own.overhead, abs=1e-4)
        text = render(page)
        assert f"the one for a batch of {batch}; <code>--batch</code>" in text and text.count('<tr class="own">') <= 1
        assert [row["batch"] for row in page.to_json()["others"]] == [o.batch for o in beside]
    assert pages[32].tradeoff.others == () and pages[32].tradeoff.own.budget_bytes == plans[32].budget_bytes
    shown = str(Shown((page_table(pages[32], None),)))
    assert "for a batch of 16: peak " in shown and "for a batch of 64: peak " in shown


@pytest.mark.parametrize("verb", ["report", "explain"])
def test_a_batch_that_the_file_has_no_plan_for_is_told_in_one_line(written, capsys, tmp_path, verb):
    listed = "at each batch of 64, 32, 16"
    for words, said in [(["--batch", "8"], "has no plan for a batch of 8"), (["--budget", "1GiB"], "for a budget of 1GiB")]:
        with pytest.raises(SystemExit) as caught:
            cli.main([verb, str(written[0]), *words, "-q"])
        error = capsys.readouterr().err.strip()
        assert caught.value.code == 2 and said in error and listed in error and "\n" not in error
    one = replace(plan_in(written[0].read_text()), batch=None, others=())
    with pytest.raises(BudgetError, match="has no plan for a batch of 8; it has one for "):
        plan_for(one, None, tmp_path / "f", 8)


def test_training_loops_take_such_files(file, tmp_path):
    net = load_target(f"{file.with_name('net.py')}:Net").module.train()
    made = tmp_path / "made.py"
    at_first_step(net, "60%", made, batch=[32, 8])(torch.randn(8, 32)).sum().backward()
    assert [plan.batch for plan in plan_in(made.read_text()).all()] == [32, 8]
    text = file.read_text()
    original = load_target(f"{file.with_name('net.py')}:Net").module.train()
    model = at_first_step(copy.deepcopy(original), "1%", file)
    inputs = [torch.randn(rows, 32) for rows in (16, 64, 40)]
    for module in (model, original):
        for x in inputs:
            module(x).square().sum().backward()
    assert list(model.forward.plan) == [64, 32, 16] and file.read_text() == text
    for ours, theirs in zip(model.parameters(), original.parameters(), strict=True):
        assert torch.equal(ours.grad, theirs.grad)


def test_every_table_is_guarded(file):
    text = file.read_text()
    rows = [line for line in text.split("\n") if line.startswith("        ") and '": "' in line and "# " in line]
    edits = [text.replace("    32: {", "    33: {"), text.replace("NUMBERS.update({64: (2048", "NUMBERS.update({64: (1024")]
    edits += [text[: (at := text.rindex(row))] + text[at + len(row) + 1 :] for row in {rows[0], rows[-1]}]
    for edited in edits:
        assert edited != text
        file.write_text(edited)
        assert check_update.check(file, QUIET).reasons
        found = explain.explain(file, QUIET)
        assert not found.ok and found.edited


def test_a_saved_plan_has_all_of_them(written, tmp_path):
    file, _ = written
    saved, target = file.with_name("plan.json"), f"{file.with_name('net.py')}:Net"
    assert [p.batch for p in saved_plan.load(saved).all()] == [64, 32, 16]
    again = tmp_path / "net_remat.py"
    marked.generate(Request(target, None, again, plan=saved, batch=BATCHES), QUIET)
    assert [len(t) for t in read(again.read_text(), {}).tables] == [len(t) for t in read(file.read_text(), {}).tables]
    with pytest.raises(PlanFileError, match="made for other batch sizes"):
        marked.generate(Request(target, None, again, plan=saved, batch="64,32"), QUIET)


def test_what_cannot_have_several_is_refused(written, tmp_path):
    file, _ = written
    target = f"{file.with_name('net.py')}:Net"
    with pytest.raises(BudgetError, match="several batch sizes are for files with tables"):
        pipeline.generate(Request(target, "50%", tmp_path / "out.py", edition=1, batch=BATCHES), QUIET)
    with pytest.raises(BudgetError, match="several budgets or several batch sizes, not both"):
        marked.generate(Request(target, "50%,60%", tmp_path / "out.py", batch=BATCHES), QUIET)
    for words in (["compare", target], ["trace", target, "-o", "g.json"], [target, "--budget", "1MiB", "--largest-batch", ""]):
        result = CliRunner().invoke(cli, [*words, "--batch", BATCHES])
        assert result.exit_code == 2 and "'16,64,32' names several sizes" in result.output
    assert not (tmp_path / "out.py").exists()


def test_inputs_that_do_not_grow_are_refused(tmp_path):
    (tmp_path / "net.py").write_text(WITH_A_TABLE)
    asked = Request(f"{tmp_path / 'net.py'}:Net", "100%", tmp_path / "out.py", batch="x.0=8,16")
    with pytest.raises(UnsupportedError, match="the largest input, table, has the same size at every batch"):
        marked.generate(asked, QUIET)


def test_from_python(written, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    model = load_target(f"{written[0].with_name('net.py')}:Net").module
    plan = remat_codegen.plan(model, (torch.randn(8, 32),), budget="60%", batch=[32, 8], progress=False)
    assert (
        re.search(r"NUMBERS\.update\(\{32: \(1024, \d+\), 8: \(256, \d+\)\}\)", plan.source) and "batch='32,8'" in plan.source
    )
    (other,), (largest, saved) = plan.others, plan_in(plan.source).all()
    assert (plan.peak_bytes, plan.unmodified_peak_bytes) == (largest.planned_peak_bytes, largest.unmodified_peak_bytes)
    figures = saved.budget_bytes, saved.planned_peak_bytes, saved.overhead, saved.bound
    assert other == remat_codegen.OtherPlan(*figures, batch=8) and other.budget_bytes == plan.budget_bytes
    shown = repr(plan), str(plan), plan._repr_html_(), str(plan.explain())
    assert all("a batch of 8" in text for text in shown) and "another batch" in str(plan) and "\n" not in repr(plan)
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
