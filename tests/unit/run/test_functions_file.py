"""Which sizes a file takes: one of functions other batch sizes where the model can be traced so, any none but its own with
`--static`."""

from __future__ import annotations

import copy
import re
from functools import partial

import pytest
import torch
from parted import peak, same, step

import remat_codegen
from remat_codegen import runtime
from remat_codegen.ask.request import Request
from remat_codegen.errors import BudgetError, TargetError
from remat_codegen.header.plan_line import plan_in
from remat_codegen.run import check_update, functions, marked, pipeline
from remat_codegen.run.functions import FIXED, OPEN
from remat_codegen.show.results import Progress
from remat_codegen.verify.beside import load_generated

NETS = """
import torch
import torch.nn.functional as F


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.wide = torch.nn.ModuleList([torch.nn.Linear(16, 64) for _ in range(3)])
        self.narrow = torch.nn.ModuleList([torch.nn.Linear(64, 16) for _ in range(3)])
        self.drop = torch.nn.Dropout(0.1)

    def forward(self, x, scale):
        for wide, narrow in zip(self.wide, self.narrow):
            x = x + self.drop(narrow(F.silu(F.gelu(wide(x)) * 0.5))) * scale
        return x


class OfOneSize(Net):  # whose batch is a number in its text
    def forward(self, x, scale):
        return super().forward(x.view(8, 4, 16), scale)


class OfTwoSizes(Net):  # torch.export refuses a batch that may be any
    def forward(self, x, scale):
        return super().forward(x if x.shape[0] == 8 else x.contiguous(), scale)


class OfAFew(Net):  # which it takes from six on
    def forward(self, x, scale):
        return super().forward(x if x.shape[0] > 5 else x.contiguous(), scale)


def example_inputs():
    return torch.randn(8, 4, 16), torch.randn(8, 4, 1)
"""
QUICK = {"planner": "dtr", "edition": 1}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "net.py").write_text(NETS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def made(name="Net", **options):
    """The text of a file, and what is noted."""
    progress = Progress(None)
    request = Request(f"net.py:{name}", "75%", **QUICK | options)
    (functions if request.edition == 1 else marked).generate(request, progress)
    return request.output_path, progress.noted


def trains(file, *sizes):
    """Whether steps at some batch sizes are those of the original."""
    torch.manual_seed(0)
    model = load_original(file)
    for size in sizes:
        inputs = torch.randn(size, 4, 16), torch.randn(size, 4, 1)
        ours = load_generated(file).rematerialize(copy.deepcopy(model))
        same(step(ours, inputs), step(model, inputs))


def load_original(file):
    from remat_codegen.ask.target import load_target

    header = check_update.read_header(file.read_text(), file)
    return load_target(header.request.target).module


@pytest.mark.filterwarnings("ignore:inputs are larger than planned")
def test_a_file_of_functions_takes_other_batch_sizes(folder):
    file, notes = made()
    assert "--dynamic x.0,scale.0" in file.read_text() and OPEN in notes
    trains(file, 8, 5, 2, 1, 9)
    assert check_update.check(file, Progress(None)).ok
    assert not check_update.update(file, Progress(None)).changed


def test_a_file_of_functions_whose_batch_is_fixed_by_its_model_says_so_when_it_is_made(folder):
    file, notes = made("OfOneSize")
    assert "--dynamic" not in file.read_text().partition('"""')[0] and FIXED in notes
    trains(file, 8)
    assert check_update.check(file, Progress(None)).ok


LENGTH = "x.1,scale.1=2"
EITHER = f"x.0,scale.0=4;{LENGTH}"
BY_LENGTH, BY_BATCH = [(8, 2), (5, 1)], [(4, 4), (1, 3), (3, 2)]


@pytest.mark.parametrize(
    "name, smaller, sizes",
    [("OfTwoSizes", EITHER, BY_BATCH + BY_LENGTH), ("OfAFew", EITHER, BY_BATCH + BY_LENGTH), ("Net", LENGTH, BY_LENGTH)],
)
def test_what_is_smaller_trains_by_the_original_forward_where_that_is_within_the_budget(
    folder, monkeypatch, name, smaller, sizes
):
    file, notes = made(name)
    plan = plan_in(file.read_text())
    assert plan.smaller == smaller and any(note.startswith("note: but up to x.") for note in notes)
    ours, model = load_generated(file).rematerialize(load_original(file)), load_original(file)
    monkeypatch.delitem(type(ours).forward.__globals__, "run_forward")  # which nothing is left to, then
    for size in sizes:
        inputs = torch.randn(*size, 16), torch.randn(*size, 1)
        same(step(ours, inputs), step(model, inputs))
        assert peak(partial(step, ours, inputs)) <= plan.budget_bytes
    assert check_update.check(file, Progress(None)).ok
    assert not check_update.update(file, Progress(None)).changed


def test_what_is_smaller_but_too_large_for_the_original_forward_is_refused(folder):
    file, _ = made("OfTwoSizes")
    ours = load_generated(file).rematerialize(load_original(file))
    for size in [(5, 4), (8, 3), (4, 5), (16, 2)]:
        with pytest.raises(ValueError, match="planned for"):
            step(ours, (torch.randn(*size, 16), torch.randn(*size, 1)))
    with pytest.raises(ValueError, match="planned for"):
        step(ours, (torch.randn(2, 4, 16, dtype=torch.float64), torch.randn(2, 4, 1)))


def test_what_is_smaller_is_checked_as_all_else_is(folder):
    file, _ = made("OfTwoSizes", autocast="bfloat16")
    small = torch.randn(2, 4, 16), torch.randn(2, 4, 1)

    def fresh():
        return load_generated(file).rematerialize(load_original(file))

    with torch.autocast("cpu", torch.bfloat16):
        same(step(fresh(), small), step(load_original(file), small))
    with pytest.raises(ValueError, match="autocast on cpu is None"):
        step(fresh(), small)
    frozen = fresh()
    frozen.wide[0].weight.requires_grad_(False)
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(ValueError, match="requires_grad"):
        step(frozen, small)


def test_which_inputs_are_smaller():
    row = (["n", 4, 16], torch.float32, False)
    expected = {"x": row, "batch['y']": ((8, 4), torch.int64, False), "flag": True, "mask": None}
    sizes, limits = {"n": (1, 8, None, 1.0)}, [{"x": {0: 4}, "batch['y']": {0: 4}}, {"x": {1: 2}, "batch['y']": {1: 2}}]

    def fitting(rows, length, *, columns=16, dtype=torch.float32, flag=True, mask=None, other=None):
        y = torch.zeros(rows if other is None else other, length, dtype=torch.int64)
        given = {"x": torch.zeros(rows, length, columns, dtype=dtype), "batch['y']": y, "flag": flag, "mask": mask}
        return runtime.smaller_call(limits, expected, sizes, given)

    assert fitting(4, 4)["x"] == ([4, 4, 16], torch.float32, False) and fitting(1, 1) and fitting(3, 3)
    assert fitting(8, 2) and fitting(0, 4)
    for refused in ((5, 4), (8, 3), (4, 5), (9, 2), (8, 4)):
        assert fitting(*refused) is None
    assert fitting(4, 4, columns=8) and fitting(4, 4, columns=17) is None
    assert fitting(2, 4, dtype=torch.float64) is None and fitting(2, 4, flag=False) is None
    assert fitting(2, 4, mask=torch.ones(2)) is None and fitting(2, 4, other=8) is None


def test_a_file_of_one_size_says_nothing_of_smaller_ones(folder):
    made("OfTwoSizes", save_plan=folder / "plan.json")
    file, _ = made("OfTwoSizes", plan=folder / "plan.json", static=True)
    assert "SMALLER" not in file.read_text() and check_update.check(file, Progress(None)).ok
    file, _ = made("OfTwoSizes")
    file.write_text(file.read_text().replace(" --planner dtr", " --static --planner dtr"))
    check_update.update(file, Progress(None))
    assert "SMALLER" not in file.read_text() and check_update.check(file, Progress(None)).ok


def test_an_input_may_get_another_name(folder):
    file, _ = made("OfTwoSizes")
    before, name, after = (folder / "net.py").read_text().partition("class OfTwoSizes(Net):")
    own, end, rest = after.partition("class OfAFew")
    (folder / "net.py").write_text(before + name + re.sub(r"\bx\b", "h", own) + end + rest)
    found = check_update.check(file, Progress(None))
    assert not found.ok and "the plan names sizes of other inputs" in found.reasons[-1]
    assert check_update.update(file, Progress(None)).changed
    assert plan_in(file.read_text()).smaller == "h.0,scale.0=4;h.1,scale.1=2"
    assert check_update.check(file, Progress(None)).ok


def test_sizes_that_are_named_are_told_as_the_file_has_them(folder, monkeypatch):
    def no_table(*_):
        raise BudgetError("no table")

    monkeypatch.setattr(marked, "tabled", no_table)
    file, notes = made("OfAFew", edition=None, dynamic="x.0,scale.0")
    smaller = plan_in(file.read_text()).smaller
    told = [note for note in notes if note.startswith("note: but up to")]
    assert len(told) == 1 and smaller.replace(";", " or ") in told[0]


def test_an_update_that_plans_again_finds_what_may_be_smaller_again(folder):
    file, _ = made("OfTwoSizes")
    file.write_text(file.read_text().replace("--budget 75%", "--budget 90%"))
    assert check_update.update(file, Progress(None)).changed
    assert plan_in(file.read_text()).smaller == "x.0,scale.0=5;x.1,scale.1=2"
    assert check_update.check(file, Progress(None)).ok


def test_sizes_that_are_named_are_those_that_change(folder):
    file, notes = made(dynamic="x.0,x.1,scale.0,scale.1")
    assert "--dynamic x.0,x.1,scale.0,scale.1" in file.read_text() and not {FIXED, OPEN}.intersection(notes)


def test_a_saved_plan_is_written_out_as_it_is(folder):
    made(save_plan=folder / "plan.json")
    file, _ = made(plan=folder / "plan.json", output=folder / "again.py")
    trains(file, 8, 3)
    assert check_update.check(file, Progress(None)).ok


@pytest.mark.parametrize("edition", [1, 2])
def test_other_sizes_are_refused_where_that_is_asked_for(folder, edition):
    file, notes = made(static=True, edition=edition)
    assert " --static " in file.read_text() and not {FIXED, OPEN}.intersection(notes)
    trains(file, 8)
    with pytest.raises(ValueError, match="planned for"):
        trains(file, 4)
    ours = load_generated(file).rematerialize(load_original(file)).eval()
    assert ours(torch.randn(3, 4, 16), torch.randn(3, 4, 1)).shape == (3, 4, 16)  # it trains by none, and evaluates by any
    assert check_update.check(file, Progress(None)).ok
    assert not check_update.update(file, Progress(None)).changed


@pytest.mark.parametrize("options", [{"dynamic": "x.0"}, {"batch": "8,4"}, {"batch": "x.0,scale.0=8,4"}])
def test_sizes_are_fixed_or_change(options):
    with pytest.raises(TargetError, match="takes the example's sizes alone, and --"):
        Request("net.py:Net", "75%", static=True, **options)
    assert Request("net.py:Net", "75%", static=True, batch="x.0,scale.0=4").static


def test_in_python(folder):
    model = load_original(made()[0])
    given = torch.randn(8, 4, 16), torch.randn(8, 4, 1)
    plan = remat_codegen.plan(model, given, budget="75%", static=True, planner="dtr")
    assert "static=True" in plan.source
    with pytest.raises(ValueError, match="planned for"):
        plan.module()(*(t[:3] for t in given))
    open_plan = remat_codegen.plan(model, given, budget="75%", **QUICK)
    assert "dynamic='x.0,scale.0'" in open_plan.source
    few = [t[:3] for t in given]
    same(step(open_plan.module(), few), step(model, few))


def test_as_it_is_asked_for_no_size_is_left_open(folder):
    pipeline.generate(Request("net.py:Net", "75%", **QUICK), Progress(None))
    assert "--dynamic" not in (folder / "net_remat.py").read_text().partition('"""')[0]
