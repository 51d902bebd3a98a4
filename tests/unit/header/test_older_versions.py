"""What older versions wrote is read, or refused in one sentence that names the command to make it again.

tests/data/old/ has files for one small model, from the first version (its plan lies beside it) up to when this was written, and
plans that were saved with them. They are never written anew.
"""

import json
import shutil

import pytest
from click.testing import CliRunner
from conftest import ROOT
from pinned import others

from remat_codegen.cli.main import cli
from remat_codegen.header.saved_plan import SavedPlan, load

OLD = ROOT / "tests" / "data" / "old"
FILES = sorted(path.name for path in OLD.glob("epoch_*.py"))
PLANS = sorted(path.name for path in OLD.glob("*.plan.json"))
FILES_OF_FUNCTIONS = FILES[:5]  # those with marks are read by their table
COUNTED_OTHERWISE = ("epoch_1.", "epoch_2.", "epoch_3.", "epoch_4.", "epoch_5.", "epoch_6.")  # the memory of gradients
INIT = "layers=3"


@pytest.fixture(autouse=True)
def _in_a_folder_of_theirs(tmp_path, monkeypatch):
    shutil.copytree(OLD, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)


def run(*args):
    """A command's result; whatever went wrong was put in words."""
    result = CliRunner().invoke(cli, list(args))
    assert "internal error" not in result.stderr and "Traceback" not in result.output
    return result


@pytest.mark.parametrize("name", FILES)
def test_check_reads_them(name):
    result = run("check", "--json", name)
    found = json.loads(result.stdout)["files"][0]
    assert found["ok"] or "run remat-codegen update" in result.stderr
    assert not any("edited by hand" in reason for reason in found["reasons"])


@pytest.mark.parametrize("name", FILES)
def test_update_keeps_their_plans_if_memory_is_counted_as_it_was(name):
    done = json.loads(run("update", "--json", name).stdout)["files"][0]
    assert done["planned"] == name.startswith(COUNTED_OTHERWISE) or others("torch")  # which may trace another graph
    assert run("check", name).exit_code == 0
    assert run("explain", name).exit_code == 0


def test_update_plans_again_where_the_plan_is_lost(tmp_path):
    (tmp_path / f"{FILES[0]}.plan.json").unlink()
    assert json.loads(run("update", "--json", FILES[0]).stdout)["files"][0]["planned"]
    assert run("check", FILES[0]).exit_code == 0


@pytest.mark.parametrize("name", FILES)
def test_explain_reads_them_or_says_how_to_make_them_again(name):
    result = run("explain", name)
    assert (result.exit_code == 0) == (name not in FILES_OF_FUNCTIONS) or others("torch")
    assert (f"out of date: {name}; run remat-codegen update" in result.stderr) == (result.exit_code == 1)


@pytest.mark.parametrize("name", FILES)
def test_they_still_train_exactly(name):
    assert run("verify", name, "tiny.py:Net", "--init", INIT).exit_code == 0


@pytest.mark.parametrize("name", PLANS)
def test_their_plans_are_written_out(name):
    result = run("tiny.py:Net", "--init", INIT, "--plan", name, "-o", "again.py", "--verify")
    refused = name.startswith(COUNTED_OTHERWISE) or others("torch")
    assert result.exit_code == 0 or (refused and "plan again with `remat-codegen" in result.stderr), result.stderr


def test_a_plan_of_before_an_entry_was_thought_of_is_read(tmp_path):
    """Entries that have a default may be missing."""
    rows = json.loads((OLD / PLANS[0]).read_text())
    del rows["notes"]
    (tmp_path / "older.json").write_text(json.dumps(rows))
    assert isinstance(load(tmp_path / "older.json"), SavedPlan)


def test_a_file_whose_plan_has_another_version_is_planned_again(tmp_path):
    """As a newer version may write it."""
    path = tmp_path / FILES[-1]
    path.write_text(path.read_text().replace('#: {"version":1,', '#: {"version":2,'))
    result = run("check", path.name)
    assert "the plan in the header has another version" in result.stdout and "run remat-codegen update" in result.stderr
    assert json.loads(run("update", "--json", path.name).stdout)["files"][0]["planned"]
    assert run("check", path.name).exit_code == 0
