"""Models whose operations depend on values: one run is recorded and planned for; the file trains on all others, exactly."""

from __future__ import annotations

import math
import random
import re
import warnings
from pathlib import Path

import by_values
import pytest
import torch
from emitted import load
from second_edition import found_in, planned_peak, random_rows, text_of, traced_module
from torch import nn

from remat_codegen.ask.request import Request
from remat_codegen.ask.target import load_target
from remat_codegen.errors import BudgetError, TraceError, UnsupportedError
from remat_codegen.marked.candidates import Row
from remat_codegen.profile.bench import Bench
from remat_codegen.profile.cache import Measurement
from remat_codegen.profile.clock import clock_for
from remat_codegen.profile.numbers import random_tensor
from remat_codegen.run import check_update, marked, tabling
from remat_codegen.run.planning import make_plan
from remat_codegen.run.priced import measured_costs
from remat_codegen.run.traced import Traced, target_of
from remat_codegen.show.results import Progress
from remat_codegen.trace import trace
from remat_codegen.verify.beside import compare, load_generated

STATE_BYTES = 5056


def recorded(name: str) -> tuple[Traced, list[tuple[torch.Tensor, ...]]]:
    module, (first, *others) = by_values.build(name)
    return traced_module(module, first, {}, Path(by_values.__file__)), others


@pytest.fixture(scope="module")
def traced():
    """The models, traced once."""
    known: dict[str, tuple[Traced, list[tuple[torch.Tensor, ...]]]] = {}
    return lambda name: known.setdefault(name, recorded(name))


FEW = ("graphs", "experts", "halting", "conditioned", "switching")


def with_slow(names):
    """A few of the models always, all of them in the slow tests."""
    return [name if name in FEW else pytest.param(name, marks=pytest.mark.slow) for name in names]


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", with_slow(by_values.MODELS))
def test_any_table_is_exact_on_values_that_lead_other_ways(traced, name, seed, tmp_path):
    one, others = traced(name)
    found = found_in(one)
    rows = random_rows(found, random.Random(seed), 0.4)
    assert one.model.trace.run is not None and rows
    generated = load(text_of(one, found, rows), tmp_path)
    for inputs in (one.target.args, *others):
        compared = compare(one.target.module, generated.rematerialize, inputs, {}, steps=3)
        assert compared.identical, compared.differences


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", with_slow(by_values.MODELS))
def test_the_recorded_step_takes_what_the_simulator_says(traced, name, seed, tmp_path):
    one, _ = traced(name)
    found = found_in(one)
    smallest = (next(iter(found.candidates.around(n.id)), None) for n in one.graph.forward_nodes)
    nodes = list(dict.fromkeys(c for c in smallest if c is not None))
    outermost = [c for c in nodes if not any(o.holds(c) for o in nodes)]
    rows = tuple(Row(c) for c in random.Random(seed).sample(outermost, (len(outermost) + 1) // 2))
    planned, generated = planned_peak(one, found, rows), load(text_of(one, found, rows), tmp_path)
    compared = compare(one.target.module, generated.rematerialize, one.target.args, {}, steps=1)
    assert compared.identical
    assert compared.measured_peak_bytes <= planned + 4096 + STATE_BYTES * (len(rows) + 1)


@pytest.mark.slow
@pytest.mark.parametrize("name", by_values.MODELS)
def test_a_file_for_a_budget_keeps_to_it_and_trains_on_other_values(traced, name, tmp_path):
    one, others = traced(name)
    budget = {"experts": "90%", "masked": "100%"}.get(name, "70%")  # of so little that what is compared takes a tenth
    request = Request(one.target.spec, budget, tmp_path / "out.py")
    profile = measured_costs(request, one, Progress(None))
    made = make_plan(request, one, Progress(None), profile=profile)
    plan, brought = marked.tabled(request, one, profile, made, Progress(None))
    generated = load(marked.proved(request, one, plan, brought, Progress(None)), tmp_path)
    compared = compare(one.target.module, generated.rematerialize, one.target.args, {}, steps=1)
    assert compared.identical and compared.measured_peak_bytes <= plan.budget_bytes
    assert all(compare(one.target.module, generated.rematerialize, inputs, {}, steps=3).identical for inputs in others)


@pytest.mark.parametrize("name", ["conditioned", pytest.param("not conditioned", marks=pytest.mark.slow)])
def test_what_runs_under_no_grad_counts_as_no_evaluation(traced, name, tmp_path):
    one, others = traced(name)
    request = Request(one.target.spec, "50%", tmp_path / "out.py")
    profile = measured_costs(request, one, Progress(None))
    made = make_plan(request, one, Progress(None), profile=profile)
    plan, brought = marked.tabled(request, one, profile, made, Progress(None))
    text = marked.proved(request, one, plan, brought, Progress(None))
    table = text[text.index("PLAN = {") : text.index("BUDGET_BYTES")]
    assert "blocks" in table and not re.search(r"#\d", re.sub(r"  # .*", "", table))
    generated = load(text, tmp_path)
    for inputs in (one.target.args, *others):  # whether the first pass is there or not
        compared = compare(one.target.module, generated.rematerialize, inputs, {}, steps=1)
        assert compared.identical and compared.measured_peak_bytes <= plan.budget_bytes


# ---------------------------------------------------------------------------------------------- what is noted


def test_lines_that_depend_on_values_are_named(traced):
    lines = {name: [line.partition(" ")[2] for line in traced(name)[0].model.trace.run.lines] for name in FEW[:3]}
    assert lines["graphs"] == ["(`nodes = int(edges.max()) + 1`)"]
    assert lines["experts"] == ["(`rows, place = torch.where(chosen == number)`)"]
    assert lines["halting"] == ["(`while total < 3 and steps < 12`)"]


def test_nodes_are_measured_on_the_integers_that_were_recorded(traced):
    model = traced("graphs")[0].model
    run, clock = model.trace.run, clock_for("cpu", math.inf)
    benches = [Bench(model, node, clock, Measurement(node.signature), random_tensor, {}) for node in model.graph.forward_nodes]
    found = [(bench.given[v], run.values[v]) for bench in benches for v in bench.given if v in run.values]
    assert found and all(torch.equal(given, there) for given, there in found)


class Rewriting(nn.Linear):
    """Moves a buffer, and writes into a parameter and an input."""

    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x):
        self.steps += 1
        with torch.no_grad():
            self.weight.clamp_(-0.1, 0.1)
            x.mul_(2)
        self.last = super().forward(x) if self.steps > 0 else x
        return self.last


def test_a_recorded_run_leaves_everything_as_it_was():
    module, x = Rewriting(4, 4), torch.randn(2, 4)
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    given, state, methods = x.clone(), torch.get_rng_state(), {*vars(torch.Tensor)}
    assert trace(module, (x,), {}).run is not None
    assert all(torch.equal(before[name], tensor) for name, tensor in module.state_dict().items())
    assert torch.equal(x, given) and torch.equal(torch.get_rng_state(), state)
    assert not hasattr(module, "last") and methods == {*vars(torch.Tensor)}


COUNTS = iter(range(1, 1000))


@torch.library.custom_op("remat_codegen_tests::some_rows", mutates_args=())
def some_rows(x: torch.Tensor) -> torch.Tensor:
    return x[: next(COUNTS)].clone()


@some_rows.register_fake
def _(x):
    return x.new_empty(torch.library.get_ctx().new_dynamic_size(), x.shape[1])


class Unsteady(nn.Linear):
    def forward(self, x):
        return super().forward(some_rows(x))


class Cast(nn.Linear):
    """Has casts and regions without gradients, beside what it does by a value."""

    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            h = super().forward(x)
            with torch.autocast("cpu", enabled=False):
                h = super().forward(h.float() if h.sum() > -1e9 else x)
        with torch.no_grad():
            scale = h.abs().max()
        return (h / scale).tanh()


def test_modes_inside_of_forward_are_recorded():
    found = trace(Cast(4, 4), (torch.randn(2, 4),), {}).operations
    casts = [op.autocast for op in found if op.base == "linear"]
    assert casts == [(("cpu", torch.bfloat16),), ()]
    assert [op.base for op in found if not op.grad_enabled] == ["abs", "max"]


def test_a_part_whose_way_a_moved_buffer_decides_does_not_run_again():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("steps", torch.zeros(()))
            self.lin = nn.Linear(4, 4)

        def forward(self, x):
            h = self.lin(x) if int(self.steps) < 1 else self.lin(x).sigmoid()
            self.steps += 1
            return torch.sin(h.exp())

    one = traced_module(Counting(), (torch.randn(2, 4),), {}, Path(__file__))
    assert [n.recomputable for n in one.graph.forward_nodes if n.name in ("linear", "sin")] == [False, True]


# ---------------------------------------------------------------------------------------------- the command's way

NET = """
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.steps = torch.nn.ModuleList([Step() for _ in range(4)])

    def forward(self, x):
        for step in self.steps:
            x = step(x)
        return x


class Step(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(16, 64), torch.nn.Linear(64, 16)

    def forward(self, x):
        h = self.a(x)
        if h.sum() > 0:
            h = torch.nn.functional.gelu(h)
        return x + self.b(h.tanh())
"""


@pytest.fixture
def made(write_file, tmp_path):
    """A file made by the command's own way, its report, and what is noted."""

    def make(inputs="x=float32[32,16]", **options):
        request = Request(f"{write_file(NET, 'model.py')}:Net", "70%", tmp_path / "out.py", inputs=inputs, **options)
        progress = Progress(None)
        return request.output_path, marked.generate(request, progress), progress.noted

    return make


def test_a_file_says_that_its_plan_is_for_one_run(made):
    file, report, noted = made(verify=True)
    line = "model.py:23 (`if h.sum() > 0`) depends on values"
    assert any(note.startswith(f"note: {line}: the plan and its budget are for what these inputs take") for note in noted)
    assert f"# {line}: the plan is for what these inputs take." in file.read_text()
    assert report.verify is not None and report.verify.ok
    assert check_update.check(file, Progress(None)).lines() == [f"{file}: up to date"]
    assert not check_update.update(file, Progress(None)).changed


LONGER = NET.replace(
    "        return x\n\n\nclass Step",
    """        if x.mean() > 0.5:
            for _ in range(40):
                x = torch.tanh(x).exp()
        return x


class Step""",
)


def test_a_step_that_holds_more_than_planned_says_so_once(write_file, tmp_path):
    file = write_file(LONGER, "longer.py")
    marked.generate(Request(f"{file}:Net", "70%", tmp_path / "out.py", inputs="x=float32[512,16]"), Progress(None))
    generated, other = load_generated(tmp_path / "out.py"), torch.randn(512, 16) + 3
    model = generated.Net().train()
    original = load_target(f"{file}:Net", inputs="x=float32[512,16]").module
    original.load_state_dict(model.state_dict())
    with warnings.catch_warnings(action="error"):
        model(torch.randn(512, 16)).sum().backward()
    model.zero_grad()
    with pytest.warns(UserWarning, match=r"this step holds .* MiB were planned for: values lead another way") as said:
        model(other).sum().backward()
    original(other).sum().backward()
    assert [warning.filename for warning in said] == [__file__]
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(model.parameters(), original.parameters(), strict=True))
    with warnings.catch_warnings(action="error"):
        model(other).sum().backward()


def test_check_says_what_it_compared_where_inputs_lead_another_way(made, monkeypatch):
    file, _, _ = made()
    own = target_of

    def other(request):
        found = own(request)
        found.args[0].sub_(10) if found.args else found.kwargs["x"].sub_(10)
        with torch.no_grad():
            for p in found.module.parameters():
                p.abs_()
        return found

    monkeypatch.setattr("remat_codegen.run.traced.target_of", other)
    found = check_update.check(file, Progress(None))
    assert found.ok and found.notes == (check_update.ANOTHER_WAY,)
    (file.parent / "model.py").write_text(NET + "\n# changed\n")
    assert not check_update.check(file, Progress(None)).ok


def test_functions_and_dynamic_sizes_are_refused(made):
    with pytest.raises(UnsupportedError, match=r"model.py:23 .* depends on values, which no file of functions can follow"):
        made(edition=1)
    with pytest.raises(TraceError, match="decides something by the value of a tensor"):
        trace(by_values.Branch(), (x := by_values.rows(4),), {}, dynamic=((x, 0),))


def test_no_file_of_functions_is_written_where_no_table_is_found(made, monkeypatch):
    def none(*_, **__):
        raise BudgetError("no table was found")

    monkeypatch.setattr(tabling, "_within_budget", none)
    with pytest.raises(BudgetError, match="no table was found"):
        made()


def test_what_comes_out_otherwise_each_time_is_refused():
    with pytest.raises(UnsupportedError, match=r"some_rows\.default gives something else each time"):
        trace(Unsteady(4, 4), (torch.randn(8, 4),), {})


class LeavesMaps(nn.Module):
    """Sets attributes before what depends on values, which ends an attempt without data."""

    last = None

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.maps = nn.Linear(8, 8), []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.linear(x))
        self.last, self.maps = x.detach().mean(), [x.detach()]
        return x[x.sum(1) > 0].sum()


def test_what_an_attempt_leaves_before_it_fails_is_put_back():
    module = LeavesMaps().train()
    maps = module.maps
    found = trace(module, (torch.randn(6, 8),), {})
    assert found.run is not None
    assert module.maps is maps or module.maps == []
    assert "last" not in vars(module)
