"""A file's command that names no planner means that of its plan: the default was another one once."""

from __future__ import annotations

from pathlib import Path

import pytest

from remat_codegen import lifecycle, pipeline, planline
from remat_codegen.request import DEFAULT_PLANNER

OLD = Path(__file__).parents[1] / "data" / "old" / "epoch_5.py"


def header(text):
    """The header of a file with that text."""
    return lifecycle.read_header(text, OLD)


def test_an_older_file_keeps_its_planner_and_its_command():
    text = OLD.read_text()
    found = header(text)
    assert found.request.planner == found.plan.planner == "rockmate" != DEFAULT_PLANNER
    assert pipeline.command(found.request, found.plan) == planline.command_in(text)


@pytest.mark.parametrize("planner", ["rockmate", "rotor"])
def test_a_command_that_names_one_is_obeyed(planner):
    text = OLD.read_text().replace("--budget 55%", f"--budget 55% --planner {planner}")
    found = header(text)
    assert found.request.planner == planner
    assert pipeline.command(found.request, found.plan).count("--planner rockmate") == 1
