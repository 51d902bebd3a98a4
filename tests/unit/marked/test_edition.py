"""Which edition a file is of, what shows that its marks change nothing, and how its table is written and read."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from rich.console import Console

from remat_codegen.ask.request import Request
from remat_codegen.errors import UnsupportedError
from remat_codegen.marked.demand import Keeps
from remat_codegen.marked.proof import _in_one_module, difference
from remat_codegen.marked.reading import read
from remat_codegen.marked.table import COLUMNS, Entry, table
from remat_codegen.run import check_update, forked, marked, marked_text, pipeline
from remat_codegen.run.traced import trace_target
from remat_codegen.show.results import Progress

NET = """
import torch
import torch.nn.functional as F


class Step(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.wide, self.narrow = torch.nn.Linear(16, 64), torch.nn.Linear(64, 16)
        self.drop = torch.nn.Dropout(0.1)

    def forward(self, x):
        y = F.gelu(self.wide(x)) * 0.5
        return x + self.drop(self.narrow(F.silu(y)))


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.steps = torch.nn.ModuleList([Step() for _ in range(4)])

    def forward(self, x):
        for step in self.steps:
            x = step(x)
        return x


def example_inputs():
    return (torch.randn(32, 16),)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "net.py").write_text(NET)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def made(folder, capsys, **options):
    """The file that is made for the model, and what is said beside."""
    report = marked.generate(
        Request("net.py:Net", "60%", folder / "net_remat.py", **options), Progress(Console(stderr=True, width=200))
    )
    assert report.verify is None or report.verify.ok, report.verify
    return (folder / "net_remat.py").read_text(), " ".join(capsys.readouterr().err.split())


def test_marks_and_a_table_where_that_takes_no_longer(folder, capsys):
    text, said = made(folder, capsys, verify=True)
    assert "PLAN = {" in text and "--edition 2" in text and "written as functions" not in said
    assert check_update.check(folder / "net_remat.py", Progress(None)).ok


@pytest.fixture
def quicker_plan(monkeypatch):
    """Has the planner say that its plan takes so much less time, as a share of the step, than any table."""

    def make_plan(by, request, *given, own=marked.make_plan, **options):
        plan = own(request, *given, **options)
        return replace(plan, overhead=plan.overhead - by)

    return lambda by: monkeypatch.setattr(marked, "make_plan", partial(make_plan, by))


@pytest.mark.parametrize("dynamic", ["", "x.0"])
def test_functions_where_a_table_takes_much_longer(folder, capsys, quicker_plan, dynamic):
    quicker_plan(0.08)
    text, said = made(folder, capsys, dynamic=dynamic)
    assert "run_forward" in text and "--edition" not in text.partition('"""')[0]
    assert re.search(r"written as functions.*: a table of parts takes \d+\.\d % more time, the plan -?\d+\.\d %", said)
    assert check_update.check(folder / "net_remat.py", Progress(None)).ok


@pytest.mark.parametrize("by", [0.0, 0.03])
def test_a_table_that_takes_a_little_longer_is_written_and_a_note_says_so(folder, capsys, quicker_plan, by):
    quicker_plan(by)
    text, said = made(folder, capsys)
    assert "PLAN = {" in text and "written as functions" not in said
    assert bool(re.search(r"note: a table of parts takes \d+\.\d % more time, the plan -?\d+\.\d %", said)) == (by > 0)


@pytest.mark.parametrize("apart", [False, True])
def test_functions_where_marks_would_change_the_model(folder, capsys, monkeypatch, apart):
    monkeypatch.setattr(marked, "LARGE", 0)
    monkeypatch.setattr(forked, "can_fork", lambda: apart)
    emit = marked_text.emit
    monkeypatch.setattr(marked, "emit", lambda *given: emit(*given).replace("F.gelu", "F.relu"))
    text, said = made(folder, capsys)
    assert "run_forward" in text and "marks would change what the model does: gelu is another call" in said
    with pytest.raises(UnsupportedError, match="gelu is another call"):
        made(folder, capsys, edition=2)


def test_an_edition_that_is_asked_for(folder, capsys, quicker_plan):
    quicker_plan(0.08)
    text, said = made(folder, capsys, edition=2)
    assert "PLAN = {" in text and "note: a table of parts takes" in said
    pipeline.generate(Request("net.py:Net", "60%", folder / "first.py", edition=1), Progress(None))
    assert "run_forward" in (folder / "first.py").read_text()


# ---------------------------------------------------------------------------------------------- the proof


EDITS = {
    "another operation": ("F.gelu", "F.relu", "gelu is another call"),
    "another number": ("* 0.5", "* 0.25", "mul is another call"),
    "another call": ("return x + ", "return 2 * x + ", "is another call"),
    "nothing there": ("PLAN = {", 'PLAN = {"steps.9": "wide", ', r"PLAN names steps\.9"),
    "no such name": ("F.silu", "F.gone", "gone"),
}


@pytest.mark.parametrize("edit", EDITS)
def test_the_proof_sees(folder, capsys, edit):
    old, new, what = EDITS[edit]
    text, _ = made(folder, capsys, edition=2)
    traced = trace_target(Request("net.py:Net", "60%"), Progress(None))
    module, args, kwargs = traced.target.module, traced.target.args, traced.target.kwargs
    before = [(m, dict(vars(m))) for m in module.modules()]
    assert difference(text, module, args, kwargs, traced.model.trace) is None
    assert old in text
    found = difference(text.replace(old, new, 1), module, args, kwargs, traced.model.trace)
    assert found is not None and re.search(what, found), found
    assert all(vars(m) == old for m, old in before)
    assert not any(isinstance(b, torch.Tensor) and b.grad is not None for b in module.parameters())


# ---------------------------------------------------------------------------------------------- equal rows


def entry(path, mark, order=0, freed=1000, keeps=Keeps.NOTHING):
    return Entry(path, mark, None, 1, keeps, False, False, freed, order)


def plan_of(entries):
    lines = table(entries)
    assert max(map(len, lines)) + 4 <= COLUMNS
    text = "\n".join(["PLAN = {", *(f"    {line}" for line in lines), "}"])
    names: dict[str, Any] = {}
    exec(text, names)
    return text, names["PLAN"]


def test_equal_rows_of_layers_are_written_once():
    entries = [entry("h.0", "first"), *(entry(f"h.{i}", "a") for i in range(1, 5)), *(entry(f"h.{i}", "b") for i in (5, 6))]
    text, plan = plan_of(entries)
    assert plan == {"h.0": "first"} | {f"h.{i}": "a" for i in range(1, 5)} | {"h.5": "b", "h.6": "b"}
    assert '**{f"h.{i}": "a" for i in range(1, 5)},  # 1000 bytes each' in text and '"h.6": "b"' in text
    found = read(text, {})
    assert not found.problems and [s.name for s in found.said] == [f"{key}.{word}" for key, word in plan.items()]


def test_evaluations_that_follow_each_other_are_written_at_once():
    numbers = [(0, "h"), (1, "h"), (1, "m"), (2, "h"), (3, "h"), (2, "m"), (7, "h"), (8, "h")]
    entries = [replace(entry("scan", mark, order), number=n, times=9) for order, (n, mark) in enumerate(numbers)]
    entries.append(replace(entry("scan", "h", 9, keeps=Keeps.RESULT), number=4, times=9))
    [line] = table(entries)
    words = line.split('"')[3].split()
    assert words == ["scan.h#0..3", "scan.m#1", "scan.m#2", "scan.h#7", "scan.h#8", "scan.h#4/inside"]


def test_long_rows_are_folded():
    words = [f"attention.expression_{i}" for i in range(12)]
    few = [f"attention.expression_{i}" for i in range(4)]
    for some in (words, few):
        text, plan = plan_of([entry(f"h.{i}", word) for i in range(40) for word in some])
        assert plan == {f"h.{i}": " ".join(some) for i in range(40)}
        assert text.count("expression_1 ") == 1 and "for i in range(40)" in text
        assert [s.name for s in read(text, {}).said] == [f"h.{i}.{word}" for i in range(40) for word in some]


@pytest.mark.parametrize("freed", [1000, 2000])
def test_rows_that_free_other_bytes_are_rows_of_their_own(freed):
    entries = [entry(f"h.{i}", "a", freed=freed if i == 2 else 1000) for i in range(5)]
    text, plan = plan_of(entries)
    assert plan == {f"h.{i}": "a" for i in range(5)} and ("range(5)" in text) == (freed == 1000)


@pytest.mark.parametrize(
    "row",
    [
        '**{f"h.{i}": "a" for i in range(1, n)}',
        '**{f"h.{i}": "a" for i in range(3) if i}',
        '**{f"h.{i}": f"a{i}" for i in range(3)}',
        '**{f"h.{j}": "a" for i in range(3)}',
        "**OTHER",
        '"h": "a#3..1"',
        '"h": "a#1.."',
        '"h": "a#0..1000000"',
    ],
)
def test_other_rows_are_not_read(row):
    assert read(f"PLAN = {{\n    {row},\n}}", {}).problems


MAPS = """
from dataclasses import dataclass, field

import torch
from torch import nn


@dataclass
class Maps:
    found: list = field(default_factory=list)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = q @ k.transpose(-1, -2) * 0.1
        probs = torch.softmax(scores, -1)
        return x + self.out(torch.tanh(probs @ v)), Maps([scores, probs])


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block(32) for _ in range(4))

    def forward(self, x):
        maps = Maps()
        for block in self.blocks:
            x, found = block(x)
            maps.found.append(found)
        return x


def example_inputs():
    return (torch.randn(2, 128, 32),)
"""


def test_what_objects_of_the_model_hold_counts(tmp_path):
    """Maps that are collected in dataclasses stay until forward is over, whatever a table says."""
    (tmp_path / "maps.py").write_text(MAPS)
    asked = Request(f"{tmp_path / 'maps.py'}:Net", "90%", tmp_path / "maps_remat.py", edition=2, verify=True)
    verified = marked.generate(asked, Progress(None)).verify
    assert verified.ok, verified.failures()
    assert verified.measured_peak_bytes <= verified.planned_peak_bytes * 1.01


def test_the_path_of_a_module_may_be_known_by_its_end_only():
    assert _in_one_module("layers.0.ln", "layers.0.ln", {}) and _in_one_module("ln", "layers.0.ln", {})
    assert not _in_one_module("ln", "layers.0.linear", {}) and not _in_one_module("n", "layers.0.ln", {})


def test_one_module_may_have_several_paths():
    one, other = torch.nn.SiLU(), torch.nn.SiLU()
    net = torch.nn.ModuleDict({"a": torch.nn.Sequential(one, other), "b": torch.nn.Sequential(other, one)})
    modules = {path: id(m) for path, m in net.named_modules(remove_duplicate=False)}
    assert _in_one_module("a.0", "b.1", modules) and not _in_one_module("a.0", "b.0", modules)
