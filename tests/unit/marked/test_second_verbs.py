"""check, update and explain on files of the second edition: what they read back, and that no edit goes unnoticed."""

from __future__ import annotations

import ast
import random
import re
import shutil
from functools import partial

import pytest
import zoo
from click.testing import CliRunner
from nets import NET
from second_edition import carry_nothing, found_in, random_rows, text_of, traced_zoo

from remat_codegen.ask.request import Request
from remat_codegen.cli.main import cli
from remat_codegen.marked.reading import read
from remat_codegen.marked.rows import rows_of
from remat_codegen.run import check_update, explain, marked, tabling
from remat_codegen.show.results import Progress


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A model's file, and the file that was made from it."""
    folder = tmp_path_factory.mktemp("made")
    model, output = folder / "net.py", folder / "net_remat.py"
    model.write_text(NET)
    marked.generate(Request(f"{model}:Net", "55%", output, edition=2), Progress(None))
    return model, output


@pytest.fixture
def files(made, tmp_path):
    """Copies of both."""
    return [shutil.copy(path, tmp_path / path.name) for path in made]


def test_a_new_file_is_up_to_date_and_does_what_was_planned(files):
    _, output = files
    assert check_update.check(output, Progress(None)).ok
    assert not check_update.update(output, Progress(None)).changed
    found = explain.explain(output, Progress(None))
    assert found.ok and found.as_planned and found.rows
    assert f"PLANNED_PEAK_BYTES = {found.peak_bytes}\n" in output.read_text()
    assert sum(row.overhead for row in found.rows) == pytest.approx(found.overhead, abs=1e-6)


@pytest.mark.parametrize("carries", [True, False])
@pytest.mark.parametrize("name", sorted(zoo.ZOO))
def test_any_table_is_read_back(name, carries, monkeypatch):
    if not carries:
        carry_nothing(monkeypatch)
    traced = traced_zoo(name)
    found = found_in(traced)
    rows = random_rows(found, random.Random(3), 0.4)
    text = text_of(traced, found, rows)
    reading = read(text, tabling.carried_sources(traced), partial(tabling.file_of, traced))
    again, problems = rows_of(reading, found)
    assert not reading.problems and not problems
    assert {(r.candidate, r.keeps, r.again, r.late) for r in rows} == {(r.candidate, r.keeps, r.again, r.late) for r in again}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("# as wide as four", "# as wide as it has to be"),
        ("scores", "logits"),
    ],
)
def test_a_word_in_the_model_is_that_word_in_the_file(files, old, new):
    model, output = files
    before = output.read_text().split("\n")
    model.write_text(NET.replace(old, new))
    assert not check_update.check(output, Progress(None)).ok
    updated = check_update.update(output, Progress(None))
    assert updated.changed and not updated.planned
    after = output.read_text().split("\n")
    changed = [(a, b) for a, b in zip(before, after, strict=True) if a != b]
    changed = [
        (a, b) for a, b in changed if not a.startswith("#") and not re.fullmatch(r"    (\S+:[0-9a-f]{8} ?)+", a)
    ]  # digests
    assert all(old in a and new in b for a, b in changed)
    assert check_update.check(output, Progress(None)).ok


def test_a_table_that_was_edited_is_planned_again(files):
    _, output = files
    output.write_text(output.read_text().replace("PLAN = {\n", 'PLAN = {\n    "steps.9": "probs",\n', 1))
    finding = check_update.check(output, Progress(None))
    assert "it was edited by hand" in finding.reasons
    assert check_update.update(output, Progress(None)).changed
    assert check_update.check(output, Progress(None)).ok


def edits(text):
    """Every way to edit one place of a file's classes and table that one can write down shortly, and some of its helpers."""
    model, plan, helpers = _sections(text)
    for section in (model, plan, random.Random(0).sample(helpers, 8)):
        for statement in section:
            lines = text.split("\n")
            del lines[statement.lineno - 1 : statement.end_lineno]
            yield f"without line {statement.lineno}", "\n".join(lines)
    for old, new in (
        ('.part("', '.part("x'),
        ("F.softmax", "F.log_softmax"),
        ("* 0.5", "* 0.25"),
        ("x + self.out", "x - self.out"),
        ("lambda scores: ", "lambda: "),
        (", scores)", ")"),
        ('/inside"', '"'),
        ("steps.0", "steps.1"),
        ("steps.1", "steps.7"),
        ("PLAN = {", "PLAN = {} and {"),
        ("training_step(Net.forward, PLAN)", "training_step(Net.forward, {})"),
    ):
        if old in text:
            yield f"{old} -> {new}", text.replace(old, new, 1)
    for name in ("probs", "gelu"):
        if f'"{name}"' in text:
            yield f"mistyped {name}", text.replace(f'"{name}"', f'"{name}s"', 1)


def _sections(text):
    body = ast.parse(text).body
    at = next(i for i, s in enumerate(body) if isinstance(s, ast.Assign) and ast.unparse(s.targets[0]) == "PLAN")
    methods = [m for s in body[:at] if isinstance(s, ast.ClassDef) for m in s.body if isinstance(m, ast.FunctionDef)]
    several = [s for m in methods for s in m.body if len(m.body) > 1]
    return several, [body[at]], [s for s in body[at + 1 :] if not isinstance(s, ast.Assign)]


@pytest.mark.parametrize("part", [pytest.param(n, marks=pytest.mark.slow) if n else n for n in range(4)])
def test_explain_notices_every_edit(files, part):
    _, output = files
    text = output.read_text()
    unnoticed = []
    for what, edited in [*edits(text)][part::4]:
        output.write_text(edited)
        found = explain.explain(output, Progress(None))
        if found.ok or not found.edited:
            unnoticed.append(what)
    assert not unnoticed


def test_what_is_no_plan_is_said_by_line(files):
    _, output = files
    text = output.read_text()
    output.write_text(text.replace("PLAN = {\n", 'PLAN = {\n    "steps.9": "a",\n    "steps.8": 7,\n', 1))
    said = [p.text for p in explain.explain(output, Progress(None)).problems]
    assert any("steps.9.a, which this model does not have" in text for text in said)
    assert any("a row of PLAN is not two texts" in text for text in said)


def test_verify_finds_the_model_in_the_header(made, monkeypatch):
    model, output = made
    monkeypatch.chdir(model.parent)
    unsaid = {"init": "", "inputs": None, "batch": "", "device": "cpu", "seed": 0}
    target, options = check_update.original(output, unsaid)
    assert target == f"{model}:Net" and options == unsaid
    assert check_update.original(output, unsaid | {"batch": "8"})[1]["batch"] == "8"
    assert CliRunner().invoke(cli, ["verify", str(output), "--quiet"]).exit_code == 0
