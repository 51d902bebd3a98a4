"""`explain` reads the schedule from a file's functions, and says what a person changed in them, and on which line."""

from __future__ import annotations

import contextlib
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from conftest import EXAMPLE, SMALL, SMALL_INPUTS
from emitted import droppable, rebuilding
from fixed import all_alike, fix

from remat_codegen.ask.request import Request
from remat_codegen.cli.main import cli
from remat_codegen.header.plan_line import PREFIX, _wrapped, header_of, joined
from remat_codegen.header.saved_plan import SavedPlan
from remat_codegen.header.seal import seal
from remat_codegen.profile.cache import Cache
from remat_codegen.readback.values import WIDEST, cut, told_apart
from remat_codegen.run import check_update, pipeline
from remat_codegen.run.explain import explain
from remat_codegen.run.priced import reserve_of
from remat_codegen.run.traced import trace_target
from remat_codegen.schedule import simulate, with_forgets
from remat_codegen.schedule.order import order_of
from remat_codegen.show.results import Progress

QUIET = Progress(None)
REQUEST = Request("gpt2.py:GPT2", None, Path("gpt2_remat.py"), init=SMALL, inputs=SMALL_INPUTS)


def priced_at_nothing(monkeypatch):
    """Costs do not matter here, and measuring takes time."""
    fix(monkeypatch, all_alike)
    monkeypatch.setattr(Cache, "save", lambda self: None)


EMIT, EMITTED = pipeline.emit, dict[object, str]()


def emit_once(traced, schedule, plan, request):
    """What the tests compare with is the same in most of them."""
    key = schedule, plan, request
    if key not in EMITTED:
        EMITTED[key] = EMIT(traced, schedule, plan, request)
    return EMITTED[key]


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    """A folder with a model and its generated file, the traced model, and the plan: every second value is rebuilt."""
    folder = tmp_path_factory.mktemp("explained")
    shutil.copy(EXAMPLE, folder / "gpt2.py")
    request = replace(REQUEST, target=f"{folder / 'gpt2.py'}:GPT2", output=folder / "gpt2_remat.py")
    traced = trace_target(request, QUIET)
    graph = traced.graph
    schedule = rebuilding(graph, set(droppable(graph)[::2]))
    plan = SavedPlan(graph.digest(), "chen", "feasible", "1GiB", 2**30, 2**20, 2**21, 0.5, None, "cpu", order_of(schedule))
    (folder / "plan.json").write_text(plan.dumps())
    pipeline.generate(replace(request, plan=folder / "plan.json"), QUIET)
    return folder / "gpt2_remat.py", trace_target(request, QUIET), plan  # the module that was imported last


@pytest.fixture
def edited(case, tmp_path, monkeypatch):
    """Explains the file with a piece of its text replaced: edited(old, new) or edited(old, new, sealed=True)."""
    priced_at_nothing(monkeypatch)
    file, traced, _ = case
    monkeypatch.setattr("remat_codegen.run.explain.trace_target", lambda request, progress: traced)
    monkeypatch.setattr(check_update, "_as_if_alone", lambda target, file: contextlib.nullcontext())
    monkeypatch.setattr(pipeline, "emit", emit_once)
    shutil.copy(file.parent / "gpt2.py", tmp_path)

    def edit(old: str = "", new: str = "", sealed: bool = False):
        text = file.read_text()
        assert old in text
        text = text.replace(old, new, 1)
        path = tmp_path / "gpt2_remat.py"
        path.write_text(seal(text) if sealed else text)
        return explain(path, QUIET), path

    return edit


def test_the_schedule_in_the_functions_is_the_one_that_was_written(case, edited):
    _, traced, plan = case
    found, _ = edited()
    assert found.ok and found.as_planned and found.notes == ()
    profile = all_alike(traced.graph)
    planned = reserve_of(traced).with_states(with_forgets(traced.graph, plan.order))
    assert planned.beside_bytes and found.peak_bytes == simulate(traced.graph, profile, planned).peak_bytes
    again = sum(len(b.recomputed) for b in found.blocks)
    assert again == len(plan.order) - len(traced.graph.nodes) > 0
    assert found.overhead == pytest.approx(again / len(traced.graph.nodes))
    assert sum(b.forgotten_bytes for b in found.blocks) > 0 < sum(b.kept_bytes for b in found.blocks)


def test_the_header_is_not_what_is_read(edited):
    """Without its plan, the file still tells its schedule; what it is compared with is made from that."""
    whole, path = edited()
    text = path.read_text()
    lines = [line for line in text.splitlines() if not line.startswith(PREFIX)]
    path.write_text("\n".join(lines) + "\n")
    found = explain(path, QUIET)
    assert found.ok and found.as_planned is None and found.notes
    assert (found.peak_bytes, found.blocks) == (whole.peak_bytes, whole.blocks)


def test_a_plan_beside_the_file_is_compared_with(case, edited, tmp_path):
    file, traced, plan = case
    _, path = edited()
    assert explain(path, QUIET, plan=file.parent / "plan.json").as_planned is True
    other = replace(plan, order=tuple(range(len(traced.graph.nodes))))
    (tmp_path / "other.json").write_text(other.dumps())
    found = explain(path, QUIET, plan=tmp_path / "other.json")
    assert found.as_planned is False and "is not the plan's" in found.problems[0].text and found.blocks


AGAIN = 'kept.slot("softmax", F.softmax(scores.masked_fill(bitwise_not, float("-inf")), -1))\n    del'  # in a rebuild

# Pieces of the file, what becomes of them, what is said, and what stands on the line that is named. These are found by what the
# functions do, whatever they look like.
WRONG = {
    "a forget removed": ('    ln_1 = kept.forget("ln_1")\n', "", "which was not forgotten", 'kept.slot("ln_1"'),
    "a rebuild missing": (AGAIN, AGAIN.replace('kept.slot("softmax", ', "(", 1), "is not put back", "softmax = (F.softmax"),
    "a rebuild of something else": (AGAIN, AGAIN.replace('"softmax"', '"ln_1"'), "another value", 'kept.slot("ln_1"'),
    "a value not computed again": (
        "    c_attn = F.linear(ln_1, m.attn.c_attn.weight, m.attn.c_attn.bias)\n    probs",
        "    _ = F.linear(ln_1, m.attn.c_attn.weight, m.attn.c_attn.bias)\n    probs",
        "c_attn, which has no value",
        "c_attn",
    ),
    "a take before its keep": ('kept.keep("', 'kept.keep("no_', "which nothing has kept", "kept.take("),
    "a slot of another name": ('kept.slot("', 'kept.slot("no_', "which has no slot", "kept.forget("),
    "a shape not kept": ('kept.shapes["', 'kept.shapes["no_', "which no first run kept", '= kept.shapes["ln_1"]'),
    "a wait for nothing": ('kept.stops["', 'kept.stops["no_', "which no kept.stop(...) has set", "kept.stops["),
    "other random numbers": (
        'with kept.saves("probs"), kept.draws("probs", torch.default_generator):',
        'with kept.saves("probs"):',
        "draws",
        None,
    ),
    "a rebuild in the forward pass": (
        "    x = drop_forward(m, step[0], idx)\n",
        "    x = drop_forward(m, step[0], idx)\n    drop_again(m, step[0])\n",
        "again in the forward pass",
        None,
    ),
    "a deleted name": ("    kept.forget", "    del x\n    kept.forget", "x, which has no value", None),
    "another operation's place": ("F.gelu(c_fc, ", "F.gelu(x, ", "nothing that the model computes", "F.gelu(x, "),
    "a block left out": ("    yield from mlp_backward", "    # yield from mlp_backward", "before the way back", None),
    "a block of the forward pass left out": ("    x = mlp_forward(", "    # x = mlp_forward(", "", None),
    "blocks in another order": ("step[2], x)", "step[1], x)", "", None),
    "a call with too much": (
        "return head_forward(m, ",
        "return head_forward(m, m, ",
        "is not called like that",
        "head_forward(m, m, ",
    ),
    "a return too early": ("    return head_forward(m, ", "    return None; head_forward(m, ", "was not computed", None),
    "no run_forward": ("def run_forward(", "def run_forwards(", "has no run_forward", None),
    "no Python": ("def run_forward(", "def run forward(", "is no Python", "def run forward("),
    "a statement of another kind": (
        "    gelu = kept.stop(",
        "    import os\n    gelu = kept.stop(",
        "nothing that remat-codegen",
        "import os",
    ),
    "an endless call": ("    gelu = kept.stop(", "    return run_forward(m, kept, x)\n    gelu = kept.stop(", "", None),
}

# These compute something else, or are nothing to do with the schedule: they are found by what is written instead of them.
UNLIKE = {
    "another number": ('float("-inf")', "-1e9", "is expected", "-1e9"),
    "another operation": ('F.gelu(c_fc, approximate="tanh")', "F.silu(c_fc)", "is expected", "F.silu"),
    "a helper": ("class Kept:", "class Kept(object):", "is expected", "class Kept(object)"),
    "what is expected": ("(2, 16)", "(3, 16)", "is expected", "EXPECTED"),
    "the new forward": (
        "        step = Step()\n",
        "        step = Step()\n        step.x = 1\n",
        "does not belong",
        "step.x = 1",
    ),
    "a stop left out": ('kept.stop("c_proj", ', "(", "", None),
}


@pytest.mark.parametrize("name", WRONG | UNLIKE)
def test_an_edit_is_found(name, edited):
    found, path = edited(*(WRONG | UNLIKE)[name][:2])
    _expect(found, path, *(WRONG | UNLIKE)[name][2:])


@pytest.mark.parametrize("name", WRONG)
def test_an_edit_is_found_by_what_it_does(name, edited):
    """The file is sealed again, so that it looks like one that another generator wrote."""
    found, path = edited(*WRONG[name][:2], sealed=True)
    _expect(found, path, *WRONG[name][2:])


def _expect(found, path, says, where):
    assert not found.ok
    problem = next((p for p in found.problems if says in p.text), None)
    assert problem is not None, found.problems
    assert where is None or where in path.read_text().splitlines()[problem.line - 1]


def test_comments_and_layout_do_not_count(edited):
    found, _ = edited("    gelu = kept.stop(", "\n    # a comment\n    gelu  =  kept.stop(")
    assert found.ok and found.as_planned


def test_a_file_of_another_generator_is_read_by_what_it_does(edited):
    found, _ = edited("class Kept:", "class Kept(object):", sealed=True)
    assert found.ok and "writes it differently in 1 place" in found.notes[0]


def test_another_schedule_is_explained_and_said_to_be_another(case, edited):
    """A file that was generated from one plan, with the header of another."""
    file, traced, plan = case
    graph = traced.graph
    other = replace(plan, order=order_of(rebuilding(graph, set(droppable(graph)[1::2]))))
    _, path = edited()
    text = pipeline.emit(traced, with_forgets(graph, other.order), other, replace(REQUEST, output=path))
    header, theirs = (joined(header_of(t)) for t in (file.read_text(), text))
    lines = [line for line in text.split("\n") if not line.startswith(PREFIX)]
    at = next(n for n, line in enumerate(lines) if line.startswith("# The plan, for")) + 1
    lines[at:at] = _wrapped(header)
    path.write_text("\n".join(lines))
    assert header != theirs
    found = explain(path, QUIET)
    assert not found.ok and found.as_planned is False and found.blocks
    assert [p.text.partition(":")[0] for p in found.problems] == ["its schedule is not the plan's"]


def test_a_changed_model_is_named(case, edited, monkeypatch):
    file, _, _ = case
    _, path = edited()
    monkeypatch.undo()
    priced_at_nothing(monkeypatch)
    model = path.parent / "gpt2.py"
    model.write_text(model.read_text().replace('F.gelu(self.c_fc(x), approximate="tanh")', "F.silu(self.c_fc(x))"))
    found = explain(path, QUIET)
    assert not found.ok and "was made from another graph" in found.problems[0].text
    assert any("gpt2.py has changed" in note for note in found.notes)


def test_the_verb(case, edited):
    file, _, _ = case
    _, path = edited()
    whole = CliRunner().invoke(cli, ["explain", str(path)])
    assert whole.exit_code == 0
    assert "attn_forward" in whole.stdout and "the schedule is the plan's" in whole.stdout
    as_json = CliRunner().invoke(cli, ["explain", str(path), f"{path.parent / 'gpt2.py'}:GPT2", "--json"])
    rows = json.loads(as_json.stdout)
    assert rows["ok"] and rows["as_planned"] and len(rows["blocks"]) == 6 and rows["peak_bytes"] > 0
    assert {"path", "functions", "kept", "forgotten", "recomputed", "peak_bytes", "overhead"} <= set(rows["blocks"][0])
    path.write_text(path.read_text().replace('    ln_1 = kept.forget("ln_1")\n', "", 1))
    wrong = CliRunner().invoke(cli, ["explain", str(path)])
    assert wrong.exit_code == 1 and f"{path}:" in wrong.stderr and "ln_1" in wrong.stderr
    neither = CliRunner().invoke(cli, ["explain", str(path.parent / "gpt2.py")])
    assert neither.exit_code == 2 and "was not written by remat-codegen" in neither.stderr


def test_a_plan_on_disk_is_checked_and_written(case, edited, tmp_path):
    """check and update take a saved plan instead of the file's own, too."""
    file, traced, plan = case
    _, path = edited()
    before = path.read_text()
    other = tmp_path / "other.json"
    other.write_text(replace(plan, order=tuple(range(len(traced.graph.nodes)))).dumps())
    beside = file.parent / "plan.json"
    assert CliRunner().invoke(cli, ["check", str(path), "--plan", str(beside)]).exit_code == 0
    assert CliRunner().invoke(cli, ["check", str(path), "--plan", str(other)]).exit_code == 1
    assert CliRunner().invoke(cli, ["check", str(path), str(path), "--plan", str(other)]).exit_code == 2
    assert CliRunner().invoke(cli, ["update", str(path), "--plan", str(other)]).exit_code == 0
    assert "run_backward" not in path.read_text() and check_update.check(path, QUIET).ok
    assert CliRunner().invoke(cli, ["update", str(path), "--plan", str(beside)]).exit_code == 0
    assert path.read_text() == before


def test_long_texts_are_cut_where_they_differ():
    same = "x = [" + ", ".join(map(str, range(100)))
    one, other = told_apart(f"{same}, 7]", f"{same}, 8]")
    assert one != other and one.startswith("...") and one.endswith("7]") and other.endswith("8]") and len(one) <= WIDEST
    assert told_apart("a  = 1", "a = 2") == ("a = 1", "a = 2")
    assert told_apart(same, same[:-2])[0].endswith("99") and len(cut(same)) == WIDEST
