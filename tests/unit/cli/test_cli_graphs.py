"""The verbs trace, plan and compare: what they print, what they write, and how every error ends."""

from __future__ import annotations

import importlib.util
import io
import json

import graphs
import pytest
from click.testing import CliRunner
from conftest import EXAMPLE, SMALL, SMALL_INPUTS
from rich.console import Console

from remat_codegen.ask.budget import parse_budget, parse_budgets
from remat_codegen.ask.request import Request
from remat_codegen.cli.main import cli
from remat_codegen.errors import BudgetError
from remat_codegen.graph.blocks import cut_into_blocks
from remat_codegen.graph.exchange import Exchange, dumps, load
from remat_codegen.planners.base.registry import PLANNERS
from remat_codegen.planners.base.result import Status
from remat_codegen.run import comparison, planning
from remat_codegen.run.priced import priced_file, priced_model
from remat_codegen.schedule.order import order_of
from remat_codegen.show import picture
from remat_codegen.show import plan_tables as report_graphs
from remat_codegen.show.results import Progress

QUIET = Progress(None)
MODEL = [f"{EXAMPLE}:GPT2", "--init", SMALL, "--inputs", SMALL_INPUTS]


def run(*args):
    return CliRunner().invoke(cli, [str(a) for a in args])


def assert_one_line_error(result, *parts):
    lines = [line for line in result.stderr.splitlines() if not line.endswith(" ...")]
    assert result.exit_code == 2, result.output
    assert len(lines) == 1 and lines[0].startswith("remat-codegen: error: "), result.stderr
    assert all(part in lines[0] for part in parts), lines[0]
    assert result.stdout == ""


@pytest.fixture
def graph_file(tmp_path):
    """A chain of ten blocks as a graph.json."""
    graph, profile = graphs.chain_graph([1, 2, 3, 1, 2] * 2)
    assert graph.blocks and cut_into_blocks(graph)
    path = tmp_path / "graph.json"
    path.write_text(dumps(Exchange(graph, profile.time_ns, profile.workspace_bytes)))
    return path


# --- plan ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("planner", [n for n in PLANNERS if n != "best"])
def test_plan_with_every_planner(graph_file, planner):
    result = run("plan", graph_file, "--budget", "70%", "--planner", planner, "--json", "-q", "--time-limit", "5")
    found = json.loads(result.stdout)
    fits = found["status"] != "infeasible"
    assert result.exit_code == (0 if fits else 1)
    assert fits == (found["peak_bytes"] is not None) == (found["time_ns"] is not None)
    if fits:
        assert found["peak_bytes"] <= found["budget_bytes"] == found["unmodified_peak_bytes"] * 7 // 10
        assert found["overhead"] == pytest.approx(found["time_ns"] / found["unmodified_time_ns"] - 1, abs=1e-4)
        assert 0 < found["bound"] <= found["overhead"]
    else:
        assert "finds no plan within" in result.stderr and result.stderr.count("\n") == 1


def test_plan_prints_a_table_and_saves_the_plan(graph_file, tmp_path):
    saved = tmp_path / "plan.json"
    result = run("plan", graph_file, "--budget", "70%", "--planner", "dtr", "--save-plan", saved)
    assert result.exit_code == 0
    for word in ("compute nodes", "peak", "overhead", "lower bound", "dtr, feasible"):
        assert word in result.stdout
    assert json.loads(saved.read_text())["graph"] == load(graph_file).graph.digest()


def test_plan_refuses_a_budget_that_nothing_fits(graph_file, tmp_path):
    saved = tmp_path / "plan.json"
    result = run("plan", graph_file, "--budget", "1", "--planner", "none", "--save-plan", saved)
    assert result.exit_code == 1 and not saved.exists()
    assert "lower bound" in result.stdout and "no plan fits" in result.stdout
    assert "none finds no plan within 1 bytes; the smallest budget that works is" in result.stderr


def test_plan_of_a_plain_graph(tmp_path):
    path = tmp_path / "dag.json"
    path.write_text(json.dumps([{"id": i, "time": 0.5, "size": 10, "deps": [i - 1] if i else []} for i in range(40)]))
    result = run("plan", path, "--budget", "50%", "--planner", "chen", "--add-backward")
    assert result.exit_code == 0
    assert "the backward pass was added" in " ".join(result.stdout.split()) and " instead of 60" in result.stdout
    tiny = tmp_path / "tiny.json"
    tiny.write_text('[{"id": 1, "time": 1, "size": 1}]')
    assert_one_line_error(run("plan", tiny, "--budget", "50%"), "1 bytes, is nothing; give a larger share, or an amount")


def test_nothing_takes_longer_where_nothing_takes_time(tmp_path):
    path = tmp_path / "fast.json"
    rows = [{"id": i, "time": 0, "size": 5, "deps": [i - 1] if i else [], "backward": i > 3} for i in range(8)]
    path.write_text(json.dumps(rows))
    found = json.loads(run("plan", path, "--budget", "100%", "--planner", "all", "--json", "-q").stdout)
    assert (found["time_ns"], found["overhead"], found["bound"]) == (0, 0.0, 0.0)


@pytest.mark.parametrize("planner", PLANNERS)
def test_a_graph_without_any_bytes_fits_every_budget(tmp_path, planner):
    path = tmp_path / "empty.json"
    rows = [{"id": i, "time": 2, "size": 0, "deps": [i - 1] if i else [], "backward": i > 3} for i in range(8)]
    path.write_text(json.dumps(rows))
    found = json.loads(run("plan", path, "--budget", "50%", "--planner", planner, "--json", "-q").stdout)
    assert (found["budget_bytes"], found["peak_bytes"]) == (0, 0) and found["overhead"] >= 0


def test_errors_name_file_and_node(tmp_path, graph_file):
    bad = tmp_path / "bad.json"
    bad.write_text('{"nodes": [{"id": "relu", "time": NaN, "size": 1}]}')
    assert_one_line_error(run("plan", bad, "--budget", "50%"), "bad.json: node 'relu': time is nan")
    assert_one_line_error(run("plan", tmp_path / "none.json", "--budget", "50%"), "none.json: cannot read the graph")
    assert_one_line_error(run("plan", graph_file, "--budget", "half"), "cannot read the budget")
    assert_one_line_error(run("plan", graph_file, "--budget", "50%", "--planner", "magic"), "magic")
    assert_one_line_error(run("compare", bad), "node 'relu'")
    assert_one_line_error(run("compare", graph_file, "--planners", "dtr,magic"), "'magic' is no planner")
    assert_one_line_error(run("compare", graph_file, "--measure"), "needs a model")
    assert_one_line_error(run("compare", graph_file, "-o", tmp_path / "p.pdf"), "nor a .png; name it like p.svg")
    assert_one_line_error(run("compare", graph_file, "-o", tmp_path / "no" / "p.svg"), "does not exist")
    assert_one_line_error(run("trace", "nothing.py:Net", "-o", tmp_path / "g.json"), "nothing.py")


def test_a_graph_that_is_too_large_for_the_integer_program(tmp_path):
    path = tmp_path / "large.json"
    rows = [{"id": i, "time": 1 + i % 3, "size": 10, "deps": [i - 1] if i else []} for i in range(300)]
    path.write_text(json.dumps(rows))
    result = run(
        "plan", path, "--budget", "40%", "--planner", "checkmate", "--add-backward", "--json", "-q", "--time-limit", "5"
    )
    found = json.loads(result.stdout)
    assert found["status"] == Status.TOO_LARGE and found["peak_bytes"] <= found["budget_bytes"]


# --- trace -----------------------------------------------------------------------------------------------------------------


def test_a_traced_graph_has_the_plans_of_its_model(tmp_path):
    path = tmp_path / "gpt2.json"
    result = run("trace", *MODEL, "-o", path, "--json", "-q")
    assert result.exit_code == 0 and json.loads(result.stdout)["output"] == str(path)
    model = priced_model(Request(MODEL[0], init=SMALL, inputs=SMALL_INPUTS), QUIET)
    file = priced_file(path, QUIET)
    assert file.graph == model.graph and file.graph.digest() == model.graph.digest()
    for planner in ("dtr", "rotor", "knapsack"):
        here = PLANNERS[planner](file.graph, model.profile, file.plain_bytes * 7 // 10)
        assert here == PLANNERS[planner](model.graph, model.profile, file.plain_bytes * 7 // 10)


def test_plans_of_a_traced_graph_leave_room_for_generator_states(tmp_path):
    path = tmp_path / "gpt2.json"
    assert run("trace", *MODEL, "-o", path, "-q").exit_code == 0
    model = priced_model(Request(MODEL[0], init=SMALL, inputs=SMALL_INPUTS), QUIET)
    file = priced_file(path, QUIET)
    assert file.reserve == model.reserve and file.reserve.most_bytes > file.reserve.slack_bytes > 0
    assert all(file.limit(parse_budget(b)) == model.limit(parse_budget(b)) for b in ("100%", "60%", "1MiB"))
    just_enough = parse_budget(str(file.plain_bytes + file.reserve.slack_bytes))
    for planner, budget in (("dtr", parse_budget("80%")), ("all", just_enough), ("none", just_enough)):
        found = planning.run_planner(file, planner, budget, QUIET)
        assert found.fits
        order = order_of(found.plan.schedule)
        reserve = file.reserve.needed_bytes(order)
        assert found.plan.peak_bytes <= found.budget_bytes - reserve


# --- compare ---------------------------------------------------------------------------------------------------------------


def test_budgets():
    assert [b.text for b in parse_budgets("10%..90%/9")] == [f"{i}0%" for i in range(1, 10)]
    assert [b.nbytes for b in parse_budgets("1KiB..3KiB/3")] == [1024, 2048, 3072]
    assert [b.text for b in parse_budgets("40%,1GiB,40%")] == ["40%", "1GiB"]
    for text in ("", "10%..90%", "10%..90%/1", "10%..90%/x", "10%..1GiB/3", "10%..90%/1000", "..", "0%..50%/3"):
        with pytest.raises(BudgetError):
            parse_budgets(text)


def compared(graph_file, planners=("none", "chen", "rotor", "dtr", "dtr-lru")):
    found = priced_file(graph_file, QUIET)
    return comparison.compare(found, parse_budgets("40%..100%/4"), planners, QUIET)


TABLE = """\
               40 %    60 %    80 %  100 %
lower bound  29.1 %  12.8 %   2.1 %  0.0 %
none              -       -       -  0.0 %
chen         39.0 %  24.1 %  21.3 %  0.0 %
rotor        39.0 %  27.0 %  17.7 %  0.0 %
dtr          33.3 %  13.5 %   2.1 %  0.0 %
dtr-lru      55.3 %  24.1 %  14.2 %  0.0 %
"""


def test_the_tables(graph_file):
    title, overheads, marks, heading, times = report_graphs.compare_tables(compared(graph_file))
    console = Console(width=120, file=io.StringIO())
    console.print(overheads)
    assert [line.rstrip() for line in console.file.getvalue().splitlines()] == TABLE.splitlines()
    assert "planning time" in str(heading) and len(times.columns) == 5


def test_compare_as_json(graph_file):
    result = run("compare", graph_file, "--budgets", "40%..100%/4", "--planners", "none,dtr", "--json", "-q")
    found = json.loads(result.stdout)
    assert result.exit_code == 0 and found["budgets"] == ["40%", "60%", "80%", "100%"]
    assert list(found["planners"]) == ["none", "dtr"] and found["planners"]["none"][0]["status"] == "infeasible"
    for i, bound in enumerate(found["bound"]):
        assert all(row[i]["overhead"] is None or row[i]["overhead"] >= bound for row in found["planners"].values())


plots = pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="matplotlib is not installed")


@plots
@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_the_picture(graph_file, tmp_path, suffix):
    path = tmp_path / f"picture.{suffix}"
    result = run("compare", graph_file, "--budgets", "40%..100%/4", "--planners", "none,dtr", "-o", path, "-q")
    assert result.exit_code == 0, result.output
    content = path.read_bytes()
    assert content.startswith(b"\x89PNG") if suffix == "png" else b"lower bound" in content
    found = compared(graph_file)
    assert picture.draw(found, path) == picture.draw(found, path)


def test_no_matplotlib(graph_file, tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert_one_line_error(run("compare", graph_file, "-o", tmp_path / "p.svg"), "pip install 'remat-codegen[plot]'")


@pytest.mark.slow
def test_measured(tmp_path):
    """Every plan runs and has exact gradients; so do checkpoint and selective checkpoint."""
    options = ["--budgets", "50%..90%/2", "--planners", "chen,dtr", "--measure", "--runs", "1", "--json", "-q"]
    result = run("compare", *MODEL, *options)
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)["measured"]
    names = [row["name"] for row in rows]
    assert names[:4] == ["PyTorch", "checkpoint per block", "selective checkpoint", "torch.compile"] and "dtr" in names
    for row in rows:
        if row["name"] != "torch.compile":
            assert row["difference"] == 0 and row["ratio"] > 0 and row["peak_bytes"] > 0
    assert rows[1]["peak_bytes"] < rows[2]["peak_bytes"] < rows[0]["peak_bytes"]


def test_percent_of_the_unmodified_peak(graph_file):
    found = priced_file(graph_file, QUIET)
    assert found.limit(parse_budget("100%")) == found.plain_bytes
