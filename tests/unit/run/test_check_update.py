"""check and update: what a generated file says of itself, and what is noticed when it no longer holds."""

from __future__ import annotations

import difflib
import json
import random
import shutil
import sys
from pathlib import Path

import pytest

from remat_codegen.ask.request import Request
from remat_codegen.cli import main as cli
from remat_codegen.errors import VerifyError
from remat_codegen.header import saved_plan
from remat_codegen.header.heading import read_header
from remat_codegen.header.plan_line import plan_in
from remat_codegen.header.seal import seal
from remat_codegen.run import check_update, functions, marked, pipeline
from remat_codegen.show.results import Progress

ROOT = Path(__file__).parents[3]
MODEL = """import torch
from torch import nn


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        hidden = self.up(x)
        return x + self.down(torch.tanh(hidden).exp().sin())


class Net(nn.Module):
    def __init__(self, layers=3, width=16):
        super().__init__()
        self.layers = nn.ModuleList([Layer(width) for _ in range(layers)])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def example_inputs():
    return torch.randn(4, 16)
"""
QUIET = Progress(None)


@pytest.fixture(scope="module")
def _made(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    (folder / "model.py").write_text(MODEL)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        pipeline.generate(Request("model.py:Net", "60%", Path("net_remat.py")), QUIET)
    sys.modules.pop("model", None)
    return folder


@pytest.fixture
def folder(_made, tmp_path, monkeypatch) -> Path:
    """A working folder with a model and the file that was made from it, which rematerializes."""
    for file in _made.glob("*.py"):
        shutil.copy(file, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # a change of the same size in the same second goes unseen
    return tmp_path


def change(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert text.count(old) >= 1
    file.write_text(text.replace(old, new, 1))


def rename(file: Path) -> None:
    file.write_text(file.read_text().replace("hidden", "wide"))


def check() -> check_update.Finding:
    return check_update.check(Path("net_remat.py"), QUIET)


def update() -> check_update.Updated:
    return check_update.update(Path("net_remat.py"), QUIET)


# ---------------------------------------------------------------------------------------------- check


def test_a_fresh_file_is_up_to_date(folder):
    before = (folder / "net_remat.py").read_bytes()
    assert check().ok and check().lines() == ["net_remat.py: up to date"]
    assert (folder / "net_remat.py").read_bytes() == before
    assert "model" not in sys.modules


def test_check_neither_measures_nor_solves(folder, monkeypatch):
    monkeypatch.setattr("remat_codegen.run.priced.costs_for", None)
    monkeypatch.setattr("remat_codegen.run.planning.limited", None)
    assert check().ok


def test_the_model_is_found_from_elsewhere(folder, tmp_path_factory, monkeypatch):
    deep = folder / "generated" / "for_cpu"
    deep.mkdir(parents=True)
    shutil.move(folder / "net_remat.py", deep)
    assert check_update.check(Path("generated/for_cpu/net_remat.py"), QUIET).ok
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    assert check_update.check(deep / "net_remat.py", QUIET).ok


@pytest.mark.parametrize("place", ["net_remat.py", "inner/net_remat.py"])
def test_a_package_is_found_from_elsewhere(folder, tmp_path_factory, monkeypatch, place):
    (folder / "inner").mkdir()
    (folder / "bag").mkdir()
    shutil.move(folder / "model.py", folder / "bag" / "model.py")
    pipeline.generate(Request("bag.model:Net", "60%", Path(place)), QUIET)
    for name in ("bag", "bag.model"):
        sys.modules.pop(name, None)
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    path = list(sys.path)
    found = check_update.check(folder / place, QUIET)
    assert found.ok, found.lines()
    assert sys.path == path and "bag.model" not in sys.modules


def test_a_checkout_with_crlf_is_the_same_file(folder):
    file = folder / "net_remat.py"
    file.write_bytes(file.read_bytes().replace(b"\n", b"\r\n"))
    assert check().ok


def test_a_changed_source_is_noticed_though_the_graph_is_the_same(folder):
    rename(folder / "model.py")
    found = check()
    assert found.reasons == ("model.py has changed",)
    assert any(line.startswith("+") and "wide = self.up(x)" in line for line in found.diff)


def test_a_changed_graph_is_noticed(folder):
    change(folder / "model.py", "layers=3", "layers=4")
    found = check()
    assert found.reasons == ("model.py has changed", "the model's graph has changed: it has to be planned again")
    assert [line[:6] for line in found.diff] == ["-graph", "+graph"]


def test_what_changed_of_a_marked_model_is_shown_with_the_table_that_there_is(folder):
    marked.generate(Request("model.py:Net", "60%,85%", Path("marked.py"), inputs="float32[512,16]"), QUIET)
    change(folder / "model.py", "hidden = self.up(x)", "hidden = self.up(x) * 2")
    found = check_update.check(Path("marked.py"), QUIET)
    assert any("planned again" in reason for reason in found.reasons)
    assert any("with its table" in line for line in found.diff) and any("self.up(x) * 2" in line for line in found.diff)
    change(folder / "marked.py", "PLANS = ", "PLANES = ")  # and no table is there
    assert [line[:6] for line in check_update.check(Path("marked.py"), QUIET).diff] == ["-graph", "+graph"]


def test_a_graph_that_changes_with_another_file_is_noticed(folder):
    change(folder / "model.py", "import torch\n", "import torch\nfrom sizes import LAYERS\n")
    change(folder / "model.py", "layers=3", "layers=LAYERS")
    (folder / "sizes.py").write_text("LAYERS = 3\n")
    update()
    assert check().ok
    (folder / "sizes.py").write_text("LAYERS = 22\n")
    assert check().reasons == ("the model's graph has changed: it has to be planned again",)


@pytest.mark.parametrize(
    ("old", "new"), [("kept.forget(", "kept.keep("), ("BUDGET_BYTES = ", "BUDGET_BYTES = 1"), ("step time ", "step  time")]
)
def test_an_edited_file_is_noticed(folder, old, new):
    change(folder / "net_remat.py", old, new)
    found = check()
    assert found.reasons == ("it was edited by hand",) and found.diff


def test_every_byte_of_the_plan_counts(folder):
    text = (folder / "net_remat.py").read_text()
    end = text.index('"""')
    start = text.index("#: ")
    places = random.Random(0).sample(range(start, end), 25)
    for place in places:
        other = "#" if text[place] == "\n" else "7" if text[place] != "7" else "8"
        (folder / "net_remat.py").write_text(text[:place] + other + text[place + 1 :])
        assert not check().ok, text[place - 5 : place + 5]


def test_a_plan_that_cannot_be_read_is_noticed_and_update_plans_again(folder):
    change(folder / "net_remat.py", '"order":"', '"order":"x')
    assert "it was edited by hand" in check().reasons and len(check().reasons) == 2
    assert update().planned and check().ok


def test_a_newer_generator_that_writes_the_same_changes_nothing(folder, monkeypatch):
    for module in (check_update, pipeline):
        monkeypatch.setattr(module, "__version__", "99.0")
    assert check().ok


def test_a_newer_generator_that_writes_otherwise_is_noticed(folder, monkeypatch):
    old = check_update.pipeline.render
    monkeypatch.setattr(pipeline, "render", lambda *given: old(*given).replace("The forward pass", "The new forward pass"))
    for module in (check_update, pipeline):
        monkeypatch.setattr(module, "__version__", "99.0")
    found = check()
    assert found.ok and len(found.notes) == 1 and "99.0 writes it differently than" in found.notes[0] and not found.diff
    found = check_update.check(Path("net_remat.py"), QUIET, strict=True)
    assert len(found.reasons) == 1 and "99.0 writes it differently than" in found.reasons[0]
    assert any("new forward" in line for line in found.diff) and len(found.diff) < 16
    change(folder / "model.py", "import torch\n", "import torch  # and nothing else\n")
    assert not check().ok and "model.py has changed" in check().reasons


@pytest.mark.parametrize(
    "text", ["", "x = 1\n", "# Generated by hand\n", "# Generated by remat-codegen 1 from x (sha256 0, graph 0).\n"]
)
def test_what_was_not_generated_is_an_error(folder, text):
    (folder / "net_remat.py").write_text(text)
    with pytest.raises(VerifyError, match="not written by remat-codegen"):
        check()
    (folder / "net_remat.py").write_bytes(b"\xff\xfe")
    with pytest.raises(VerifyError, match="not UTF-8"):
        check()


def test_a_command_that_lost_a_word_says_what_to_do(folder):
    file, remedy = folder / "net_remat.py", "; put it back as it was, or generate the file again"
    change(file, " --budget 60%", "")
    with pytest.raises(VerifyError, match=f"its header names no --budget{remedy}"):
        update()
    change(file, " -o net_remat.py", "")
    with pytest.raises(VerifyError, match=f"cannot read the command in its header: it names no -o{remedy}"):
        check()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("class Net(", "class Network("),
        ("hidden = ", "hidden = = "),
        ("import torch\n", "import nowhere\nimport torch\n"),
        ("sin()", "sin().item()"),
    ],
)
def test_a_model_that_no_longer_works_is_a_reason(folder, old, new):
    change(folder / "model.py", old, new)
    assert len(check().reasons) == 1 and "cannot be made again" in check().reasons[0]


def test_a_file_for_a_gpu_is_checked_as_far_as_that_goes_without_one(folder):
    file = folder / "net_remat.py"
    file.write_text(seal(file.read_text().replace(" -o net_remat.py", " --device cuda:99 -o net_remat.py")))
    assert check().ok and "cuda:99 is not here" in check().notes[0]
    rename(folder / "model.py")
    assert check().reasons == ("model.py has changed",)
    change(file, "BUDGET_BYTES = ", "BUDGET_BYTES = 1")
    assert check().reasons == ("it was edited by hand", "model.py has changed")


def test_the_plan_beside_a_file_serves_where_it_holds_none(folder):
    file = folder / "net_remat.py"
    plan = plan_in(file.read_text())
    text = "\n".join(line for line in file.read_text().split("\n") if not line.startswith("#:"))
    file.write_text(text)
    assert check().reasons == ("it holds no plan",)
    Path("net_remat.py.plan.json").write_text(plan.dumps())
    assert len(check().reasons) == 1 and check().diff
    assert not update().planned and check().ok


# ---------------------------------------------------------------------------------------------- update


def test_update_leaves_a_file_alone_that_is_up_to_date(folder):
    before = (folder / "net_remat.py").stat()
    assert update() == check_update.Updated(Path("net_remat.py"), changed=False, planned=False)
    assert (folder / "net_remat.py").stat().st_mtime_ns == before.st_mtime_ns


def test_update_keeps_the_plan_while_the_graph_is_the_same(folder, monkeypatch):
    before = plan_in((folder / "net_remat.py").read_text())
    rename(folder / "model.py")
    monkeypatch.setattr("remat_codegen.run.priced.costs_for", None)
    assert update() == check_update.Updated(Path("net_remat.py"), changed=True, planned=False)
    assert plan_in((folder / "net_remat.py").read_text()) == before and check().ok


def test_update_undoes_what_was_edited_by_hand(folder):
    before = (folder / "net_remat.py").read_bytes()
    change(folder / "net_remat.py", "kept.forget(", "kept.keep(")
    assert not update().planned
    assert (folder / "net_remat.py").read_bytes() == before


def test_update_plans_again_for_another_graph(folder):
    Path("net_remat.py.plan.json").write_text("{}")
    change(folder / "model.py", "layers=3", "layers=4")
    assert update().planned and check().ok
    assert saved_plan.load(Path("net_remat.py.plan.json")) == plan_in((folder / "net_remat.py").read_text())


def test_update_plans_again_for_another_budget_in_the_header(folder):
    change(folder / "net_remat.py", "--budget 60%", "--budget 100%")
    assert update().planned and check().ok
    assert plan_in((folder / "net_remat.py").read_text()).overhead == 0.0


def test_update_writes_all_or_nothing(folder, monkeypatch):
    before = (folder / "net_remat.py").read_bytes()
    rename(folder / "model.py")
    monkeypatch.setattr("os.replace", lambda *given: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        update()
    assert (folder / "net_remat.py").read_bytes() == before
    assert sorted(f.name for f in folder.iterdir() if f.is_file()) == ["model.py", "net_remat.py"]


@pytest.mark.parametrize("name", ["coding: x.py", 'a"""b.py', "new\nline.py", "back\\slash.py", "it's $HOME.py"])
def test_a_header_holds_any_name(folder, name):
    shutil.move(folder / "model.py", folder / name)
    init = "layers=2,\n# comment: \"'\nwidth=16"
    pipeline.generate(Request(f"{name}:Net", "100%", Path("net_remat.py"), init), QUIET)
    compile((folder / "net_remat.py").read_bytes(), "net_remat.py", "exec")
    assert check().ok and not update().changed
    assert read_header((folder / "net_remat.py").read_text(), Path("f")).request.init == init


@pytest.mark.parametrize(
    ("old", "new", "most"),
    [
        ("hidden", "wide", 8),
        ("layers=3", "layers=4", 24),
        ("4 * width", "5 * width", 22),
        ("class Net", "# a comment\nclass Net", 10),
        ("import torch\n", "import torch\n\nUNUSED = 1\n", 10),
    ],
)
@pytest.mark.parametrize("static", [False, True])
def test_a_small_change_in_the_model_gives_a_small_diff(folder, old, new, most, static):
    functions.generate(Request("model.py:Net", "100%", Path("net_remat.py"), edition=1, static=static), QUIET)
    before = (folder / "net_remat.py").read_text().splitlines()
    (folder / "model.py").write_text((folder / "model.py").read_text().replace(old, new))
    assert update().changed
    after = (folder / "net_remat.py").read_text().splitlines()
    diff = [line for line in difflib.unified_diff(before, after, n=0, lineterm="") if line[0] in "+-"][2:]
    assert 0 < len(diff) <= most, "\n".join(diff)


def test_a_file_from_before_auto_was_the_default_stays_rockmates(folder):
    file = folder / "net_remat.py"
    pipeline.generate(Request("model.py:Net", "90%", file, planner="rockmate", cache=False), QUIET)
    older = seal(file.read_text().replace(" --planner rockmate", ""))
    file.write_text(older)
    header = read_header(older, file)
    assert header.request.planner == header.plan.planner == "rockmate" and header.sealed
    assert not update().planned and " --planner rockmate" in file.read_text()
    file.write_text(file.read_text().replace(" --planner rockmate", " --planner auto"))
    assert update().planned and read_header(file.read_text(), file).plan.planner == "auto"


# ---------------------------------------------------------------------------------------------- the verbs


def run(capsys, *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as done:
        cli.cli.main(list(words))
    out, err = capsys.readouterr()
    return done.value.code or 0, out, err


def test_the_verbs_print_and_exit_as_they_say(folder, capsys):
    assert run(capsys, "check", "net_remat.py")[:2] == (0, "net_remat.py: up to date\n")
    rename(folder / "model.py")
    code, out, err = run(capsys, "check", "net_remat.py")
    assert code == 1 and out.startswith("net_remat.py: model.py has changed\n--- net_remat.py\n+++ ")
    assert err.endswith("remat-codegen: out of date: net_remat.py; run remat-codegen update\n")
    code, out, err = run(capsys, "check", "--json", "-q", "net_remat.py")
    assert code == 1 and json.loads(out)["files"][0]["reasons"] == ["model.py has changed"]
    assert run(capsys, "update", "net_remat.py")[:2] == (0, "net_remat.py: written, with the same plan\n")
    change(folder / "model.py", "import torch\n", "import nowhere\nimport torch\n")
    code, out, err = run(capsys, "check", "net_remat.py")
    assert code == 1 and "cannot be made again" in out and err.endswith("remat-codegen: not checked: net_remat.py\n")
    change(folder / "model.py", "import nowhere\n", "")
    assert run(capsys, "check", "net_remat.py")[0] == 0
    code, out, err = run(capsys, "check", "model.py", "-q")
    assert code == 2 and len(err.splitlines()) == 1 and "not written by remat-codegen" in err
    assert run(capsys, "check")[0] == 2


def test_a_class_that_only_shares_its_name_with_one_in_the_file_is_wrapped(folder):
    (folder / "model.py").write_text(
        f"{MODEL}\n\ndef build():\n    class Net(nn.Linear):\n        pass\n\n    return Net(16, 16)\n"
    )
    pipeline.generate(Request("model.py:build", "100%", Path("net_remat.py")), QUIET)
    assert "a class that wraps" in (folder / "net_remat.py").read_text()
    assert check().ok and pipeline.verify(Path("net_remat.py"), "model.py:build", progress=QUIET).ok
