"""What `update` takes over from a file when it has to plan anew, whatever that file says."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from test_check_update import MODEL

from remat_codegen.ask.request import Request
from remat_codegen.errors import UnsupportedError
from remat_codegen.run import check_update, explain, marked, marked_text, tabling
from remat_codegen.run.traced import trace_target
from remat_codegen.show.results import Progress

CHANGES = {
    "        hidden = self.up(x)\n": "        hidden = self.up(x).sigmoid()\n        wide = torch.tanh(hidden).exp().sin()\n",
    "self.down(torch.tanh(hidden).exp().sin())": "self.down(wide.cos())",
    "layers=3, width=16": "layers=4, width=32",
    "example_inputs()": "example_inputs(batch_size=512)",
    "torch.randn(4, 16)": "torch.randn(batch_size, 32)",
}
QUIET = Progress(None)
FILE = Path("net_remat.py")


@pytest.fixture
def made(tmp_path, monkeypatch):
    """Makes the file for a budget, on a GPU that is not there: its costs are the same each time."""
    monkeypatch.chdir(tmp_path)
    text = MODEL
    for old, new in CHANGES.items():
        assert old in text
        text = text.replace(old, new)
    Path("net.py").write_text(text)

    def make(budget: str, batch: str = "") -> str:
        marked.generate(Request("net.py:Net", budget, FILE, device="h100", edition=2, batch=batch), QUIET)
        return FILE.read_text()

    return make


def updated(old: str, new: str) -> str:
    """The text once its command is another one."""
    text = FILE.read_text()
    assert old in text
    FILE.write_text(text.replace(old, new, 1))
    assert check_update.update(FILE, QUIET).planned
    assert check_update.check(FILE, QUIET) == check_update.Finding(FILE)
    assert explain.explain(FILE, QUIET).ok
    return FILE.read_text()


def classes(text: str) -> str:
    return text[text.index("class ") : re.search(r"^PLANS? = ", text, re.MULTILINE).start()]


def before() -> object:
    request = check_update.located(check_update.read_header(FILE.read_text(), FILE).request, FILE)
    return marked_text.before_of(FILE.read_text(), trace_target(request, QUIET))


def test_the_classes_are_the_same_with_another_budget(made):
    text = made("55%")
    assert classes(updated("--budget 55%", "--budget 60%")) == classes(text)


def test_what_the_model_has_no_longer_is_no_row(made):
    made("55%")
    assert before().tables[0] and before().marks
    text = FILE.read_text()
    place = text.index("PLAN = ")
    FILE.write_text(text[:place] + re.sub(r"layers\.(\d|\{i\})", "nowhere", text[place:]))
    assert before().tables == ((),)
    updated("--budget 55%", "--budget 60%")


def test_what_is_no_python_says_nothing(made):
    text = made("55%")
    FILE.write_text(text.replace("\nclass Layer", "\nclass (", 1))
    assert before().tables == ((),) and not before().marks
    assert "class Layer" in updated("--budget 55%", "--budget 60%")


@pytest.mark.parametrize(("old", "new"), [("55%", "55%,70%"), ("55%,70%", "60%"), ("50%,60%", "55%,65%")])
def test_one_table_becomes_several_and_several_one(made, old, new):
    made(old)
    text = updated(f"--budget {old}", f"--budget {new}")
    assert ("PLANS = " in text) == ("," in new)


def test_tables_agree_on_how_an_expression_is_marked(made):
    """Each by itself, `wide` would be marked with and without what `sin` is given."""
    assert "PLANS = " in made("55%,70%")
    assert check_update.check(FILE, QUIET) == check_update.Finding(FILE) and explain.explain(FILE, QUIET).ok


def test_marks_stay_in_files_for_several_batches(made):
    text = made("50%", "256,512")
    larger = updated("--budget 50%", "--budget 62%")
    assert classes(larger) == classes(text)


def test_marks_without_rows_go_where_the_text_cannot_have_them(made, monkeypatch):
    made("50%")
    own = marked.proved

    def proved(request, traced, plan, brought, progress):
        if brought.also:
            raise UnsupportedError("marks would change what the model does")
        return own(request, traced, plan, brought, progress)

    monkeypatch.setattr(marked, "proved", proved)
    updated("--budget 50%", "--budget 62%")


def test_a_table_with_the_old_marks_is_taken_where_nothing_else_is_found(made, monkeypatch):
    """Though it takes longer than the plan."""
    made("55%")
    found = []

    def brought(self, schedules, seconds=None, rows=(), own=tabling.Search.brought):
        table = own(self, schedules, seconds, rows)
        found.append(table)
        over = 0 if len(found) == 1 else 1
        return replace(table, over_bytes=over, overhead=table.overhead + 1)

    monkeypatch.setattr(tabling.Search, "brought", brought)
    updated("--budget 55%", "--budget 60%")
    assert len(found) > 1
