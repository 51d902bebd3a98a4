"""A small change of the model, of the budget or of the costs is a small change of a file of the second edition: what `update`
changes, as committed differences. The classes change as the model does, and rows of the table. Marks change where the budget does
by much, or where a plan with those that there are takes noticeably longer.

With other versions than those of constraints.txt the differences are others.
"""

from __future__ import annotations

import difflib
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import EXAMPLE
from fixed import by_bytes, fix
from pinned import only_with
from test_diffs import SMALLER, UNRELATED

from remat_codegen.run import check_update, explain, marked
from remat_codegen.show.results import Progress
from remat_codegen.ask.request import Request

DIFFS = Path(__file__).parent / "diffs" / "second"
QUIET = Progress(None)

# What is changed in the model's file, and the number of lines that may change in the generated one, added and removed: with
# another plan, some 18 are the header's.
CHANGES = {
    "rename_a_variable": ("scores", "logits", 26),
    "add_a_function_above": ("class CausalSelfAttention", f"{UNRELATED}class CausalSelfAttention", 4),
    "add_a_comment": ("        y = (probs @ v)", "        # heads side by side\n        y = (probs @ v)", 6),
    "change_an_activation": ('F.gelu(self.c_fc(x), approximate="tanh")', "F.relu(self.c_fc(x))", 46),
    "add_a_layer": ("layers=6", "layers=7", 30),
}
SLOW = {"add_a_function_above", "add_a_comment", "change_an_activation"}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with a generated file, beside the model's."""
    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        fix(patch)
        _generate()
    return folder


@pytest.fixture
def file(made, tmp_path, monkeypatch):
    """That file, to be changed."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    fix(monkeypatch)
    return Path("gpt2_remat.py")


def _generate():
    source = EXAMPLE.read_text()
    for piece, smaller in SMALLER.items():
        source = source.replace(piece, smaller)
    Path("gpt2.py").write_text(source)
    marked.generate(Request("gpt2.py:GPT2", "65%", Path("gpt2_remat.py"), planner="rotor", cache=False, edition=2), QUIET)


def changed(before: str, after: str, golden: Path, update_golden: bool) -> list[str]:
    """The lines that are others, which are those committed."""
    rows = list(difflib.unified_diff(before.splitlines(), after.splitlines(), "before", "after", lineterm="", n=0))
    text = re.sub(r'"seal":"\w+"', '"seal":"..."', "\n".join(rows)) + "\n"
    if update_golden:
        golden.write_text(text)
    assert text == golden.read_text()
    return [row for row in rows if row[0] in "+-" and row[:3] not in ("+++", "---")]


@only_with("torch", "black")
@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in CHANGES])
def test_a_small_change_of_the_model(file, name, update_golden):
    old, new, most = CHANGES[name]
    before, model = file.read_text(), Path("gpt2.py")
    assert old in model.read_text()
    model.write_text(model.read_text().replace(old, new))
    assert check_update.update(file, QUIET, cache=False).changed
    assert len(changed(before, file.read_text(), DIFFS / f"{name}.diff", update_golden)) <= most


@only_with("torch", "black")
def test_another_budget_changes_rows(file, update_golden):
    before = file.read_text()
    file.write_text(before.replace("--budget 65%", "--budget 60%"))
    assert check_update.update(file, QUIET, cache=False).planned
    assert len(changed(before, file.read_text(), DIFFS / "another_budget.diff", update_golden)) <= 30
    assert classes(file.read_text()) == classes(before)
    assert check_update.check(file, QUIET) == check_update.Finding(file)


def test_marks_stay_that_a_larger_budget_has_no_rows_for(file):
    """But not for good: what neither this plan nor the one before it uses goes."""
    before = file.read_text()
    file.write_text(before.replace("--budget 65%", "--budget 85%"))
    assert check_update.update(file, QUIET, cache=False).planned
    larger = file.read_text()
    assert classes(larger) == classes(before) and unused(before) == set() and len(unused(larger)) >= 2
    assert check_update.check(file, QUIET) == check_update.Finding(file)
    assert explain.explain(file, QUIET).ok
    file.write_text(larger.replace("--budget 85%", "--budget 86%"))
    assert check_update.update(file, QUIET, cache=False).planned
    assert not unused(larger) & marks(file.read_text()) and check_update.check(file, QUIET) == check_update.Finding(file)
    again = file.read_text()
    file.write_text(again.replace("--budget 86%", "--budget 60%"))
    assert check_update.update(file, QUIET, cache=False).planned and not unused(file.read_text())  # too far away


@only_with("torch", "black")
def test_other_costs_change_rows_at_most(file, monkeypatch, update_golden):
    """By up to 1 %, up or down in turn."""

    def noisy(graph, device):
        exact = by_bytes(graph, device)
        return replace(exact, time_ns=tuple(t * (99 + i % 3) // 100 for i, t in enumerate(exact.time_ns)))

    before = file.read_text()
    fix(monkeypatch, noisy)
    file.unlink()
    marked.generate(Request("gpt2.py:GPT2", "65%", file, planner="rotor", cache=False, edition=2), QUIET)
    assert len(changed(before, file.read_text(), DIFFS / "other_costs.diff", update_golden)) <= 12
    assert classes(file.read_text()) == classes(before)


def classes(text: str) -> str:
    return text[text.index("class ") : text.index("PLAN = {")]


def marks(text: str) -> set[str]:
    return set(re.findall(r'\.part\("(\w+)"', classes(text)))


def unused(text: str) -> set[str]:
    """Marks that no row names."""
    plan = text[text.index("PLAN = {") : text.index("BUDGET_BYTES")]
    return marks(text) - set(re.findall(r"\w+", plan))
