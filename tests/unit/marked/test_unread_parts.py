"""What is saved for gradients that nobody asks for counts, and a part forgets it at no cost."""

from __future__ import annotations

import re

import pytest
from click.testing import CliRunner
from conftest import ROOT

from remat_codegen.cli.main import cli

MODEL = f"{ROOT}/tests/data/unread.py:Unread"
LEAVES = f"{ROOT}/tests/data/left.py:Left"


@pytest.mark.parametrize("budget", ["85%", "60%", "45%"])
def test_what_is_saved_for_nobody_is_planned_as_it_is(budget, tmp_path):
    file = tmp_path / "unread_remat.py"
    words = [MODEL, "--budget", budget, "--inputs", "float32[4,64,64]", "-o", str(file), "--verify", "--no-cache"]
    run = CliRunner().invoke(cli, words)
    assert run.exit_code == 0, run.output
    off = re.findall(r"peak .*planned .*\(([+-]\d+\.\d) %\)", run.output)
    assert len(off) == 2 and all(abs(float(share)) <= 3 for share in off), run.output


def test_what_is_saved_for_nobody_is_forgotten_at_no_cost(tmp_path):
    """Heads of which only the last one counts wait in a list, with all that their gradients would need."""
    file = tmp_path / "unread_remat.py"
    words = [MODEL, "--budget", "85%", "--inputs", "float32[4,64,64]", "-o", str(file), "--device", "t4"]
    run = CliRunner().invoke(cli, words)
    assert run.exit_code == 0 and re.search(r"planned overhead +0\.0 %", run.output), run.output
    table = file.read_text().partition("\nPLAN = {")[2].partition("\n}")[0]
    assert "heads.0 heads.1" in table and "heads.2" not in table, table


@pytest.mark.parametrize("budget", ["80%", "60%"])
def test_what_attributes_hold_is_there_to_the_end(budget, tmp_path):
    file = tmp_path / "left_remat.py"
    words = [LEAVES, "--budget", budget, "--inputs", "float32[4,64,32]", "-o", str(file), "--verify", "--no-cache"]
    run = CliRunner().invoke(cli, words)
    assert run.exit_code == 0, run.output
