"""Files with a table for each of several budgets: each is exact and within its budget, and the device's room decides."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from nets import NET

import remat_codegen
from remat_codegen.ask.budget import format_bytes
from remat_codegen.ask.request import Request
from remat_codegen.ask.target import load_target
from remat_codegen.cli.main import cli
from remat_codegen.errors import BudgetError, RematError, VerifyError
from remat_codegen.header import saved_plan
from remat_codegen.header.plan_line import plan_in
from remat_codegen.header.saved_plan import SavedPlan
from remat_codegen.header.several import plan_for
from remat_codegen.integrations import at_first_step
from remat_codegen.marked.reading import read
from remat_codegen.page.render import render
from remat_codegen.readback.tables import closing_lines
from remat_codegen.run import check_update, explain, marked, pipeline, reporting
from remat_codegen.show.results import Progress, percent
from remat_codegen.verify import beside as comparing

QUIET = Progress(None)
BUDGETS = "80%,55%,100%"
PLANNERS = {"55%": (), "80%": ("chen",), "100%": ()}  # of the page for each: one with a curve is enough


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A file for three budgets, its plan beside it, and the report."""
    folder = tmp_path_factory.mktemp("several")
    (folder / "net.py").write_text(NET)
    file = folder / "net_remat.py"
    asked = Request(f"{folder / 'net.py'}:Net", BUDGETS, file, save_plan=folder / "plan.json")
    return file, marked.generate(asked, QUIET)


@pytest.fixture
def file(written, tmp_path):
    """That file, to be changed, beside its model."""
    (tmp_path / "net.py").write_text(NET)
    (tmp_path / "net_remat.py").write_text(written[0].read_text())
    return tmp_path / "net_remat.py"


def test_each_is_exact_and_within_its_budget(file):
    found = pipeline.verify(file, f"{file.with_name('net.py')}:Net", steps=2, progress=QUIET)
    assert found.ok, found.failures()
    others = [row.detail for row in found.rows if row.what.startswith("with ")]
    plans = plan_in(file.read_text()).others
    told = [f"planned {format_bytes(p.planned_peak_bytes)}, budget {format_bytes(p.budget_bytes)}" for p in plans]
    assert [detail.partition(" KiB, ")[2] for detail in others] == told


def test_verify_judges_the_table_that_a_budget_takes(file):
    target, plans = f"{file.with_name('net.py')}:Net", plan_in(file.read_text()).all()
    given = [
        ("80%", 1, plans[1].budget_bytes),
        (str(plans[2].budget_bytes - 1), 1, plans[2].budget_bytes - 1),
        ("1GiB", 2, 2**30),
    ]
    for budget, table, judged_by in given:
        found = pipeline.verify(file, target, steps=1, budget=budget, progress=QUIET)
        assert found.ok, found.failures()
        assert (found.planned_peak_bytes, found.budget_bytes) == (plans[table].planned_peak_bytes, judged_by)
        assert abs(found.measured_peak_bytes - found.planned_peak_bytes) < 64
        told = {row.what: row.detail for row in found.rows}
        assert told["the table"] == f"the one for {format_bytes(plans[table].budget_bytes)}"
        assert told["in a process of its own"] == "1 step bit-identical" and not any(w.startswith("with ") for w in told)


def test_a_table_that_fails_is_judged_by_its_own_budget(file):
    """Where the named table is wrong and the least is right, only the first is found to be."""
    target, (least, other, most) = f"{file.with_name('net.py')}:Net", plan_in(file.read_text()).all()
    text = file.read_text()
    start, end = (text.index(f"    {plan.budget_bytes}: {{") for plan in (other, most))
    file.write_text(f"{text[:start]}    {other.budget_bytes}: {{\n    }},\n{text[end:]}")  # which rebuilds nothing
    found = pipeline.verify(file, target, steps=1, budget="80%", progress=QUIET)
    assert [row.what for row in found.rows if not row.ok] == ["as it was written", "peak within budget"]
    assert found.measured_peak_bytes > found.budget_bytes == other.budget_bytes
    found = pipeline.verify(file, target, steps=1, budget=str(least.budget_bytes), progress=QUIET)
    assert [row.what for row in found.rows if not row.ok] == ["as it was written"]


def test_a_budget_below_the_least_is_told_in_one_line(file, capsys):
    least = plan_in(file.read_text()).budget_bytes
    with pytest.raises(SystemExit) as caught:
        cli.main(["verify", str(file), f"{file.with_name('net.py')}:Net", "--budget", str(least - 1), "-q"])
    error = capsys.readouterr().err.strip()
    assert caught.value.code == 2 and error.count("\n") == 0
    assert f"is {least:,} bytes, more than {least - 1:,}; name that or more, --budget {least}" in error


def test_the_least_is_first_and_the_others_are_said(written):
    file, report = written
    plan = plan_in(file.read_text())
    assert plan.budget == BUDGETS and [p.budget for p in plan.others] == ["80%", "100%"]
    bytes_ = [p.budget_bytes for p in plan.all()]
    assert bytes_ == sorted(bytes_) and all(p.planned_peak_bytes <= p.budget_bytes for p in plan.all())
    assert [p.overhead for p in plan.all()] == sorted((p.overhead for p in plan.all()), reverse=True)
    assert report.budget_bytes == bytes_[0] and [o.budget_bytes for o in report.others] == bytes_[1:]
    assert max(map(len, file.read_text().splitlines())) <= 120


def test_a_model_takes_what_its_device_has_room_for(file, monkeypatch):
    generated = comparing.load_generated(file)
    budgets = list(generated.PLANS)
    for room, wanted in [(0, 0), (budgets[1] - 1, 0), (budgets[1], 1), (budgets[2] + 1, 2)]:
        monkeypatch.setattr(generated, "_room", lambda model, room=room: room)
        model = generated.Net()
        for _ in range(2):
            model(torch.randn(64, 32)).sum().backward()
            assert generated.CHOSEN[model] == generated.PLANS[budgets[wanted]]
            monkeypatch.setattr(generated, "_room", lambda model: budgets[-1])  # once it is chosen, it stays


def test_on_a_cpu_the_least_is_taken(file):
    generated = comparing.load_generated(file)
    model = generated.Net()
    model(torch.randn(64, 32)).sum().backward()
    assert generated.CHOSEN[model] == generated.PLANS[generated.BUDGET_BYTES] and min(generated.PLANS) == generated.BUDGET_BYTES


def test_a_training_loop_leaves_the_choice_to_the_device(file):
    model = load_target(f"{file.with_name('net.py')}:Net").module.train()
    at_first_step(model, "1%", file)(torch.randn(64, 32)).sum().backward()
    assert list(model.forward.plan) == [plan.budget_bytes for plan in plan_in(file.read_text()).all()]


def test_a_budget_that_is_named(file):
    generated = comparing.load_generated(file)
    rematerialize = generated.rematerialize.func  # which takes the least in tests, as `verify` does
    budgets = list(generated.PLANS)
    assert rematerialize(generated.Net(), budget=budgets[1] + 5).forward.plan == generated.PLANS[budgets[1]]
    with pytest.raises(ValueError, match=f"there is a plan for is {budgets[0]:,} bytes, more than .*: name that or more"):
        rematerialize(generated.Net(), budget=budgets[0] - 1)
    with pytest.raises(TypeError, match=f"a number of bytes, such as {budgets[0]}, not '1GiB'"):
        rematerialize(generated.Net(), budget="1GiB")


def test_verbs_read_all_tables(file):
    assert not check_update.check(file, QUIET).reasons
    found = explain.explain(file, QUIET)
    assert found.ok and found.as_planned and len(found.others) == 2
    assert not check_update.update(file, QUIET).changed
    text = file.read_text()
    file.write_text(text.replace("80%", "70%", 1))
    assert check_update.update(file, QUIET).planned
    assert [p.budget for p in plan_in(file.read_text()).all()[1:]] == ["70%", "100%"]


@pytest.fixture(scope="module")
def pages(written):
    """The page of each of the file's plans, by its budget as the command has it."""
    file, words = written[0], {"measure": True}
    return {budget: reporting.report(file, QUIET, budget=budget, planners=PLANNERS[budget], **words) for budget in PLANNERS}


def test_explain_tells_the_table_that_is_named(written):
    plans = plan_in(written[0].read_text()).all()
    found = [explain.explain(written[0], QUIET, budget=str(plan.budget_bytes)) for plan in plans]
    for one, plan in zip(found, plans, strict=True):
        assert one.ok and one.as_planned and (one.budget_bytes, one.peak_bytes) == (plan.budget_bytes, plan.planned_peak_bytes)
        others = [other for other in plans if other is not plan]
        assert [(o.budget_bytes, o.peak_bytes) for o in one.others] == [(o.budget_bytes, o.planned_peak_bytes) for o in others]
        assert [row["budget_bytes"] for row in one.to_json()["others"]] == [other.budget_bytes for other in others]
        lines = [line for line in closing_lines(one) if line.startswith("another table for ")]
        assert len(lines) == 2 and format_bytes(others[0].planned_peak_bytes) in lines[0]
    assert found[0].rows and len(found[0].rows) >= len(found[1].rows) and not found[2].rows
    assert explain.explain(written[0], QUIET, budget="80%") == found[1] and explain.explain(written[0], QUIET) == found[0]


def test_a_page_shows_the_plan_that_is_named_and_lists_the_others(written, pages):
    plans = {"55%": 0, "80%": 1, "100%": 2}
    budgets = [plan.budget_bytes for plan in plan_in(written[0].read_text()).all()]
    for budget, page in pages.items():
        own = budgets[plans[budget]]
        assert page.figures.budget_bytes == own and [o.budget_bytes for o in page.others] == [b for b in budgets if b != own]
        assert abs(page.measured.peak_bytes - page.figures.planned_peak_bytes) < 64
        again = [run for run in page.runs if run.again]
        assert bool(again) is (budget != "100%") and all(run.line for run in again)
        for other, told in ((o, p.figures) for o in page.others for p in pages.values()):
            same = other.budget_bytes == told.budget_bytes
            assert not same or (other.planned_peak_bytes, other.bound) == (told.planned_peak_bytes, told.bound)
            assert not same or other.overhead == pytest.approx(told.overhead, abs=1e-4)
    lines = [{run.line for run in pages[budget].runs if run.again} for budget in ("55%", "80%")]
    assert max(lines[0]) < min(lines[1]), "each plan's rows are those of its own table"


def test_the_plans_of_a_page_are_points_of_its_curve(pages):
    trade, page = pages["80%"].tradeoff, pages["80%"]
    assert [p.budget_bytes for p in trade.others] == [o.budget_bytes for o in page.others]
    least = trade.others[0]
    at = {p.budget_bytes: p for p in trade.points}
    assert min(at) < least.budget_bytes and at[least.budget_bytes].overhead <= least.overhead
    assert at[trade.own.budget_bytes].overhead <= trade.own.overhead and pages["55%"].tradeoff is None
    text = render(page)
    assert text.count('<tr class="own">') == 3 and 'id="plans"' in text
    assert all(f">{format_bytes(o.planned_peak_bytes)}<" in text for o in page.others)
    assert 'id="plans"' not in render(replace(page, others=()))


@pytest.mark.parametrize("verb", ["report", "explain"])
def test_a_budget_that_the_file_has_no_plan_for_is_told_in_one_line(written, capsys, verb):
    for budget, said in [("1GiB", "has no plan for a budget of 1GiB; it has those for "), ("x", "cannot read the budget")]:
        with pytest.raises(SystemExit) as caught:
            cli.main([verb, str(written[0]), "--budget", budget, "-q"])
        error = capsys.readouterr().err.strip()
        assert caught.value.code == 2 and said in error and error.count("\n") == 0
        assert budget == "x" or all(str(p.budget_bytes) in error for p in plan_in(written[0].read_text()).all())
    assert not written[0].with_suffix(".html").exists()


def test_shares_are_those_of_the_command(written):
    plan = plan_in(written[0].read_text())
    for text, budget in [
        ("55%", plan),
        ("55.0 %", plan),
        ("80%", plan.others[0]),
        (str(plan.others[1].budget_bytes), plan.others[1]),
    ]:
        assert plan_for(plan, text, Path("net_remat.py")) is budget
    ranged = replace(
        plan,
        budget="20%..100%/3",
        others=tuple(replace(p, budget=b) for p, b in zip(plan.others, ("60%", "100%"), strict=True)),
    )
    assert plan_for(ranged, "20%", Path("f")) is ranged and plan_for(ranged, "60%", Path("f")) is ranged.others[0]
    with pytest.raises(BudgetError, match="has no plan for a budget of 55%; its header has no plan"):
        plan_for(None, "55%", Path("f"))


def test_a_table_that_is_gone_is_told(file):
    text, last = file.read_text(), plan_in(file.read_text()).others[-1].budget_bytes
    file.write_text(text[: text.rindex(f"    {last}: {{")] + text[text.index("}\nBUDGET_BYTES") :])
    with pytest.raises(VerifyError, match="the file has no such table"):
        explain.explain(file, QUIET, budget=str(last))
    found = explain.explain(file, QUIET)
    assert not found.ok and [other.budget_bytes for other in found.others] == [None]


def test_every_table_is_guarded(file):
    text = file.read_text()
    keys = [plan.budget_bytes for plan in plan_in(text).all()]
    rows = [line for line in text.split("\n") if line.startswith("        ") and '": "' in line and "# " in line]
    last = text.rindex(f"    {keys[-1]}: {{")
    edits = [text.replace(f"    {keys[1]}: {{", f"    {keys[1] + 1}: {{"), text[:last] + text[text.index("}\nBUDGET_BYTES") :]]
    edits += [text[: (at := text.rindex(row))] + text[at + len(row) + 1 :] for row in {rows[0], rows[-1]}]
    for edited in edits:
        assert edited != text
        file.write_text(edited)
        assert check_update.check(file, QUIET).reasons
        found = explain.explain(file, QUIET)
        assert not found.ok and found.edited


def test_a_saved_plan_has_all_of_them(written, tmp_path):
    file, _ = written
    plan = saved_plan.load(file.with_name("plan.json"))
    assert len(plan.others) == 2
    again = tmp_path / "net_remat.py"
    marked.generate(Request(f"{file.with_name('net.py')}:Net", None, again, plan=file.with_name("plan.json")), QUIET)
    assert [len(t) for t in read(again.read_text(), {}).tables] == [len(t) for t in read(file.read_text(), {}).tables]


def test_what_has_no_tables_is_refused(written, tmp_path):
    file, _ = written
    target = f"{file.with_name('net.py')}:Net"
    with pytest.raises(BudgetError, match="several budgets are for files with tables"):
        pipeline.generate(Request(target, BUDGETS, tmp_path / "out.py", edition=1), QUIET)
    result = CliRunner().invoke(cli, [target, "--budget", "80%,60%", "--largest-batch", "0"])
    assert result.exit_code == 2 and "--largest-batch goes with one budget" in result.output
    result = CliRunner().invoke(cli, [target, "--budget", "80%,0%", "-o", str(tmp_path / "out.py")])
    assert result.exit_code == 2 and "leaves no memory" in result.output and not (tmp_path / "out.py").exists()


def test_from_python(written, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    model = load_target(f"{written[0].with_name('net.py')}:Net").module
    plan = remat_codegen.plan(model, (torch.randn(64, 32),), budget=["55%", "80%"], progress=False)
    assert "PLANS = {" in plan.source and plan.budget_bytes < plan.unmodified_peak_bytes
    (other,), least = plan.others, plan_in(plan.source)
    saved = least.others[0]
    assert other == remat_codegen.OtherPlan(saved.budget_bytes, saved.planned_peak_bytes, saved.overhead, saved.bound)
    figures = format_bytes(other.budget_bytes), percent(other.overhead)
    assert all(
        figure in text for figure in figures for text in (repr(plan), str(plan), plan._repr_html_(), str(plan.explain()))
    )
    assert "another budget" in str(plan) and "another table for " in str(plan.explain()) and "\n" not in repr(plan)
    with pytest.raises(RematError, match="there is no budget"):
        remat_codegen.plan(model, (torch.randn(64, 32),), budget=[], progress=False)


def test_plans_come_back_from_their_text(written):
    plan = plan_in(written[0].read_text())
    path = Path(written[0]).with_name("again.json")
    path.write_text(plan.dumps())
    assert saved_plan.load(path) == plan and replace(plan, others=()).dumps().count('"order"') == 1


def test_an_empty_table_is_a_plan_too(file):
    """Where the model has a plan already, a named budget counts: here one that rebuilds nothing."""
    generated = comparing.load_generated(file)
    rematerialize, budgets = generated.rematerialize.func, list(generated.PLANS)
    runs = []
    before = generated.Part.again
    generated.Part.again = lambda self: (runs.append(None), before(self))[1]
    model = rematerialize(generated.Net(), budget=budgets[0])
    for budget, expected in ((budgets[0], True), (budgets[-1], False)):
        model = rematerialize(model, budget=budget)
        runs.clear()
        model(torch.randn(64, 32)).sum().backward()
        assert bool(runs) is expected


def test_the_same_budget_twice_is_one(written, tmp_path):
    file, _ = written
    report = marked.generate(Request(f"{file.with_name('net.py')}:Net", "55%,55%", tmp_path / "out.py"), QUIET)
    assert "PLAN = {" in (tmp_path / "out.py").read_text() and report.others == () and "others" not in report.to_json()


def test_names_of_helpers_are_renamed():
    from remat_codegen.marked.file import _helper_names

    assert {"C", "CUDA", "DEVICES", "PARTIAL", "TABLES", "PLANNED", "LARGEST", "CHOSEN", "Part"} <= _helper_names()


def test_verify_misses_a_table_whose_key_was_edited(file):
    text = file.read_text()
    key = plan_in(text).others[0].budget_bytes
    file.write_text(text.replace(f"    {key}: {{", f"    {key + 1}: {{"))
    found = pipeline.verify(file, f"{file.with_name('net.py')}:Net", steps=1, progress=QUIET)
    assert not found.ok and any(row.detail == "the file has no such table" for row in found.rows)


def test_a_larger_budget_takes_the_table_of_a_smaller_one_that_is_quicker():
    made = SavedPlan("", "none", "feasible", "", 100, 90, 200, 0.3, None, "cpu", (1, 2))
    larger, quick = (
        replace(made, budget_bytes=150, overhead=0.4, order=(3,)),
        replace(made, budget_bytes=80, planned_peak_bytes=70),
    )
    found = [(p, p.overhead) for p in (larger, quick, made)]
    taken, table = marked._quickest(larger, found)
    assert (taken.budget_bytes, taken.overhead, taken.order, taken.planned_peak_bytes, table) == (150, 0.3, (1, 2), 70, 0.3)
    assert marked._quickest(made, found)[0] == made and marked._quickest(quick, found)[0] == quick
