"""The Python interface: what `remat_codegen.plan`, `rematerialize` and `compare` give, and what they leave as it was."""

from __future__ import annotations

import ast
import copy
import inspect
import subprocess
import sys
import typing
import xml.etree.ElementTree as ElementTree
from collections import UserDict
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
import zoo
from conftest import ROOT
from emitted import load
from torch import nn

import remat_codegen
from remat_codegen import RematError, api
from remat_codegen.ask.live_model import without_plan
from remat_codegen.run import check_update, in_memory
from remat_codegen.run.explain import explain
from remat_codegen.show.results import Progress

QUICK = {"planner": "dtr", "progress": False}


class Twice(nn.Module):
    """Layers without anything random, whose example inputs stand on the class."""

    def __init__(self, width=32):
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(width, 4 * width), nn.BatchNorm1d(4 * width), nn.Linear(4 * width, width)

    def forward(self, x, scale=1.0):
        return self.second(torch.tanh(self.norm(self.first(x)).exp() * scale).sin())

    @staticmethod
    def example_inputs():
        return (torch.ones(64, 32),)


CALL = "remat_codegen.plan(model, inputs, budget='75%', planner='dtr', dynamic='x.0')"


@pytest.fixture(scope="module")
def planned():
    """A plan of a small model whose file is written as functions, its model and its inputs."""
    torch.manual_seed(0)
    model, args = Twice(), (torch.randn(64, 32),)
    return remat_codegen.plan(model, args, budget="75%", edition=1, **QUICK), model, args


def gradients(model, args, kwargs=None):
    """Of one step, with the same random numbers each time."""
    model.zero_grad()
    torch.manual_seed(1)
    found = model(*args, **(kwargs or {}))
    torch.stack([t.float().square().mean() for t in (found if isinstance(found, tuple) else (found,))]).sum().backward()
    return [None if p.grad is None else p.grad.clone() for p in model.parameters()]


def same(ones, others):
    return all((a is None and b is None) or torch.equal(a, b) for a, b in zip(ones, others, strict=True))


# ---------------------------------------------------------------------------------------------- the package


def test_importing_it_imports_nothing_else():
    script = (
        "import sys; before = set(sys.modules); import remat_codegen; found = set(sys.modules) - before\n"
        "assert {m.partition('.')[0] for m in found} <= {'remat_codegen', 'typing', 'collections', 'functools', 're'} "
        "| set(sys.stdlib_module_names), found\n"
        "assert not [m for m in found if m.startswith('remat_codegen.')], found\n"
        "assert issubclass(remat_codegen.RematError, Exception) and 'torch' not in sys.modules\n"
        "assert {'plan', 'compare', 'rematerialize'} <= set(dir(remat_codegen))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr


def test_the_names_are_functions_whatever_was_imported():
    import remat_codegen.planners.base.registry
    import remat_codegen.run.comparison
    import remat_codegen.run.planning

    for name in ("plan", "compare", "rematerialize"):
        assert inspect.isfunction(getattr(remat_codegen, name)) and getattr(remat_codegen, name) is getattr(api, name)
    with pytest.raises(AttributeError, match="no attribute 'plam'"):
        remat_codegen.plam  # noqa: B018


def test_it_is_typed_and_documented():
    assert (Path(remat_codegen.__file__).parent / "py.typed").exists()
    for function, result in ((api.plan, api.RematPlan), (api.compare, api.Comparison), (api.rematerialize, nn.Module)):
        assert typing.get_type_hints(function)["return"] is result and "Raises" in (function.__doc__ or "")
    own = set(inspect.signature(api.plan).parameters)
    assert own == set(inspect.signature(api.rematerialize).parameters)
    assert all(f"\n    {name}: " in (inspect.getdoc(api.plan) or "") for name in own)


# ---------------------------------------------------------------------------------------------- a plan


def test_a_plan_has_the_figures_of_the_command_line(planned):
    plan, model, _ = planned
    assert plan.peak_bytes <= plan.budget_bytes < plan.unmodified_peak_bytes and 0 < plan.overhead < 1
    assert plan.bound is None or plan.bound <= plan.overhead
    assert sum(len(b.recomputed) for b in plan.blocks) > 0 and max(b.peak_bytes for b in plan.blocks) <= plan.peak_bytes
    assert repr(plan).startswith("<RematPlan of Twice: ") and "\n" not in repr(plan)
    assert "planned peak" in str(plan) and "forgotten" in str(plan.explain()) and "overhead" in str(plan.explain())
    with pytest.raises(AttributeError):
        plan.overhead = 0.0


def test_a_plan_is_written_whole_or_not_at_all(planned, tmp_path):
    plan, _, _ = planned
    path = plan.write(tmp_path / "twice_remat.py")
    assert path.read_text() == plan.source and [p.name for p in tmp_path.iterdir()] == ["twice_remat.py"]
    with pytest.raises(RematError, match="does not exist"):
        plan.write(tmp_path / "no" / "twice.py")
    assert str(tmp_path) not in plan.source and str(ROOT) not in plan.source
    assert len(max(plan.source.split("\n"), key=len)) <= 128


@pytest.mark.parametrize("edition", [1, 2])
@pytest.mark.parametrize("name", ["gpt2", "resnet"])
def test_the_module_trains_as_the_model_does(name, edition):
    model, args, kwargs = zoo.build(name)
    given = copy.deepcopy(model)
    plan = remat_codegen.plan(given, args or kwargs, budget="85%", edition=edition, time_limit=1.0, **QUICK)
    made = plan.module()
    assert [id(p) for p in made.parameters()] == [id(p) for p in given.parameters()]
    assert made.state_dict().keys() == model.state_dict().keys()
    for _ in range(2):
        assert same(gradients(model, args, kwargs), gradients(made, args, kwargs))
        assert same(model.buffers(), made.buffers())
    assert same(model.eval().state_dict().values(), made.eval().state_dict().values())


@pytest.mark.parametrize("without", [torch.no_grad, torch.inference_mode])
def test_it_takes_gradients_where_they_are_switched_off(without):
    torch.manual_seed(0)
    model, x = Twice(), torch.randn(64, 32)
    with without():
        found = remat_codegen.plan(model, (x,), budget="75%", **QUICK)
        trained = found.module()
        assert not torch.is_grad_enabled()
    assert same(gradients(model, (x,)), gradients(trained, (x,)))


def test_a_model_without_data_is_refused():
    with torch.device("meta"):
        model = Twice()
    with pytest.raises(RematError, match=r"Twice: first\.weight is on the meta device, without data; build it outside of"):
        remat_codegen.plan(model, (torch.randn(64, 32),), budget="75%", **QUICK)


def test_rematerialize_is_the_plan_s_module_in_a_line():
    model, args = Twice(), (torch.randn(64, 32),)
    wanted = gradients(copy.deepcopy(model), args)
    assert same(gradients(remat_codegen.rematerialize(model, args, budget="75%", **QUICK), args), wanted)


def one_file(method):
    """Whether what a method of a table's model calls is of the same file, to the last."""
    return method is None or (type(method.before) in (type(method), type(None)) and one_file(method.before))


def test_a_model_that_has_a_table_is_planned_again_as_it_was():
    model, args = Twice(), (torch.randn(64, 32),)
    wanted = gradients(copy.deepcopy(model), args)
    for budget in ("100%", "75%", "70%"):
        made = remat_codegen.plan(model, args, budget=budget, edition=2, **QUICK).module()
        assert made is model and one_file(vars(made)["forward"])
        assert same(gradients(made, args), wanted)
    assert vars(model)["forward"].plan and "forward" not in vars(without_plan(model))
    assert same(gradients(model, args), wanted)


def test_a_model_of_a_generated_file_is_refused(planned):
    plan, _, args = planned
    with pytest.raises(RematError, match=r"of a generated file already, .*; plan the model that the file was made from"):
        remat_codegen.plan(plan.module(), args, budget="70%", **QUICK)


def test_the_same_text_is_one_module(planned):
    plan, _, args = planned
    made, again = plan.module(), plan.module()
    assert made is not again and type(made).forward is type(again).forward
    copied = copy.deepcopy(made)
    assert same(gradients(copied, args), gradients(made, args))


@pytest.mark.parametrize("training", [True, False])
def test_the_model_is_left_as_it_was(training):
    model = Twice().train(training)
    model.norm.eval()
    args, before = (torch.randn(64, 32),), {k: v.clone() for k, v in model.state_dict().items()}
    tensors, held = [id(t) for t in (*model.parameters(), *model.buffers())], [set(vars(m)) for m in model.modules()]
    state, modules = torch.get_rng_state(), dict(sys.modules)
    remat_codegen.plan(model, args, budget="75%", **QUICK)
    assert torch.equal(state, torch.get_rng_state())
    assert (model.training, model.first.training, model.norm.training) == (training, training, False)
    assert same(before.values(), model.state_dict().values()) and all(p.grad is None for p in model.parameters())
    assert tensors == [id(t) for t in (*model.parameters(), *model.buffers())]
    assert held == [set(vars(m)) for m in model.modules()] and args[0].grad is None
    assert not any("Twice" in name or "twice" in name for name in sys.modules.keys() - modules.keys())


def test_modules_that_stay_in_evaluation_are_planned_so():
    """Fine-tuning with frozen statistics: the modes are those of the model, if it is in training mode."""
    model, args = Twice(), (torch.randn(64, 32),)
    model.norm.eval()
    made, before = copy.deepcopy(model), model.norm.running_mean.clone()
    made = remat_codegen.rematerialize(made, args, budget="80%", **QUICK)
    assert same(gradients(made, args), gradients(model, args)) and torch.equal(made.norm.running_mean, before)


@pytest.mark.parametrize(
    "inputs",
    [
        torch.ones(64, 32),
        (torch.ones(64, 32), 1.0),
        {"x": torch.ones(64, 32)},
        UserDict(x=torch.ones(64, 32), scale=1.0),
        "float32[64,32]",
        "x=float32[64,32]; scale=1.0",
        None,
    ],
    ids=str,
)
def test_inputs_are_given_in_many_ways(inputs):
    plan = remat_codegen.plan(Twice(), inputs, budget="100%", **QUICK)
    assert "x: float32[64, 32]" in plan.source


NET = """
import torch


class Net(torch.nn.Linear):
    def forward(self, x):
        for _ in range(4):
            x = super().forward(x).exp().sin()
        return x
"""


def test_a_class_that_stands_in_no_file_is_wrapped():
    scope: dict = {"__name__": "__main__"}
    exec(NET, scope)
    model, args = scope["Net"](16, 16), (torch.randn(64, 16),)
    plan = remat_codegen.plan(copy.deepcopy(model), args, budget="80%", **QUICK)
    assert "class NetRemat(" in plan.source and same(gradients(model, args), gradients(plan.module(), args))


def test_a_class_of_a_file_is_carried(planned):
    plan, _, _ = planned
    scope = in_memory.imported(plan.source, "twice_remat")
    assert "class Twice(" in plan.source and hasattr(scope, "Twice") and hasattr(scope, "rematerialize")


def test_a_file_that_seeds_when_it_is_imported_seeds_nothing_here(tmp_path):
    text = "import torch\n\ntorch.manual_seed(7)\n\n\nclass Net(torch.nn.Linear):\n    pass\n"
    model = load(text, tmp_path, "seeding").Net(4, 4)
    torch.manual_seed(3)
    state = torch.get_rng_state()
    plan = remat_codegen.plan(model, torch.ones(2, 4), budget="100%", **QUICK)
    plan.module()
    assert "torch.manual_seed(7)" in plan.source and torch.equal(state, torch.get_rng_state())


def test_options_are_passed_on_and_stand_in_the_header():
    model = Twice()
    options = {"budget": "90%", "dynamic": ["x.0"], "autocast": torch.bfloat16, "seed": 3, **QUICK}
    plan = remat_codegen.plan(model, "float32[64,32]", **options)
    call = next(line[6:] for line in plan.source.split("\n") if line.startswith("#     remat_codegen."))
    assert ast.unparse(ast.parse(call)) == call
    assert "'float32[64,32]', budget='90%', planner='dtr', dynamic='x.0', autocast='bfloat16', seed=3)" in call
    with torch.autocast("cpu", torch.bfloat16):
        plan.module()(torch.randn(32, 32)).sum().backward()


BAD = [
    ({"budget": "1G"}, "half a unit"),
    ({"budget": 0.5}, "a budget is a text like '1GiB'"),
    ({"budget": True}, "a budget is a text"),
    ({"budget": 100}, "is less than any model needs"),
    ({"budget": 2000}, "no plan keeps the activations of"),
    ({"budget": "50%", "planner": "best?"}, "'best\\?' is no planner"),
    ({"budget": "50%", "device": "cuda:99"}, "is not there"),
    ({"budget": "50%", "device": "disk"}, "unknown device 'disk'"),
    ({"budget": "50%", "dynamic": "y.0"}, "no input is called 'y'"),
    ({"budget": "50%", "autocast": "int8"}, "autocast is bfloat16 or float16, not int8"),
    ({"budget": "50%", "seed": -1}, "is not a seed"),
    ({"budget": "50%", "time_limit": 0}, "a number of seconds above 0"),
    ({"budget": "50%", "edition": 9}, "there is no edition 9"),
    ({"budget": "50%", "inputs": [1]}, "inputs cannot be of type list"),
    ({"budget": "50%", "inputs": {1: 2}}, "keys are not all names"),
    ({"budget": "50%", "inputs": ()}, "the inputs do not fit forward"),
    ({"budget": "50%", "inputs": "float33[2]"}, "did you mean float32"),
    ({"budget": "50%", "model": nn.Linear(2, 2), "inputs": None}, "has no example_inputs"),
    ({"budget": "50%", "model": Twice}, "the model is a type, not a torch.nn.Module"),
    ({"budget": "50%", "model": nn.LazyLinear(2)}, "has no shape before the first call"),
    ({"budget": "50%", "model": Twice().requires_grad_(False)}, "no parameter requires grad"),
]


@pytest.mark.parametrize(("options", "message"), BAD, ids=[m for _, m in BAD])
def test_what_the_caller_can_put_right_is_one_line(options, message):
    given = {"model": Twice(), "inputs": (torch.ones(64, 32),), **QUICK, **options}
    with pytest.raises(RematError, match=message) as found:
        remat_codegen.plan(**given)
    assert "\n" not in str(found.value)


def test_a_model_that_cannot_be_copied_is_refused():
    model = Twice()
    model.handle = (i for i in range(3))
    with pytest.raises(RematError, match="Twice: cannot be copied, which planning needs"):
        remat_codegen.plan(model, budget="80%", **QUICK)


def test_an_interruption_leaves_nothing_behind(monkeypatch, tmp_path):
    def interrupted(*_, **__):
        torch.rand(3)
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("remat_codegen.run.in_memory.make_plan", interrupted)
    model = Twice()
    state = torch.get_rng_state()
    with pytest.raises(KeyboardInterrupt):
        remat_codegen.plan(model, budget="80%", planner="dtr", progress=True)
    assert torch.equal(state, torch.get_rng_state()) and not list(tmp_path.iterdir())


# ---------------------------------------------------------------------------------------------- the file in a repository


def test_check_and_update_say_what_to_do_instead(planned, tmp_path):
    plan, _, _ = planned
    file = plan.write(tmp_path / "twice_remat.py")
    again = f"run {CALL}.write('twice_remat.py')"
    found = check_update.check(file, Progress(None))
    assert not found.ok and found.unmakeable and again in found.lines()[0] and len(found.lines()) == 1
    with pytest.raises(RematError) as refused:
        check_update.update(file, Progress(None))
    assert again in str(refused.value) and file.read_text() == plan.source
    file.write_text(plan.source.replace("class Twice", "class  Twice"))
    assert check_update.check(file, Progress(None)).reasons[0] == "it was edited by hand"


def test_explain_needs_the_model_s_name(planned, tmp_path):
    plan, _, _ = planned
    file = plan.write(tmp_path / "twice_remat.py")
    with pytest.raises(RematError, match=r"explain twice_remat\.py TARGET"):
        explain(file, Progress(None))
    found = explain(file, Progress(None), target=f"{__file__}:Twice")
    assert found.as_planned and found.ok and found.peak_bytes == plan.peak_bytes


@pytest.mark.parametrize("call", ["remat_codegen.plan(model, inputs, budget=x)", "remat_codegen.plan(model, inputs, size=3)"])
def test_a_damaged_header_is_told(planned, tmp_path, call):
    plan, _, _ = planned
    file = tmp_path / "twice_remat.py"
    file.write_text(plan.source.replace(CALL, call))
    with pytest.raises(RematError, match=r"the call in its header: .*; put it back as it was, or generate the file again"):
        check_update.check(file, Progress(None))


# ---------------------------------------------------------------------------------------------- what is shown


class _Balanced(HTMLParser):
    """Follows a text's elements; `open` is what is left open, `seen` what there was."""

    def __init__(self, text):
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        self.seen.add(tag)

    def handle_startendtag(self, tag, attrs):
        self.seen.add(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_a_notebook_shows_a_table_a_picture_and_the_source(planned):
    plan, _, _ = planned
    found = _Balanced(plan._repr_html_())
    assert not found.open and {"table", "svg", "details", "summary", "pre"} <= found.seen
    assert "twice_remat.py, " in plan._repr_html_()
    picture = ElementTree.fromstring(str(plan.memory()))
    assert picture.tag.endswith("svg") and "budget" in str(plan.memory()) and plan.memory()._repr_svg_() == str(plan.memory())


def test_the_picture_reaches_the_peaks(planned):
    plan, _, _ = planned
    with_plan, without = plan._made.curves
    assert max(b for _, b in without.points) == plan.unmodified_peak_bytes
    assert max(b for _, b in with_plan.points) <= plan.peak_bytes
    assert with_plan.end_ns / without.end_ns == pytest.approx(1 + plan.overhead, abs=1e-3)


def test_a_comparison_is_a_table_and_rows(tmp_path):
    model, args = Twice(), (torch.randn(64, 32),)
    found = remat_codegen.compare(model, args, budgets=["80%", 2**30, "1KiB"], planners=["chen", "none"], progress=False)
    assert len(found) == 6 and [r.planner for r in found] == ["chen"] * 3 + ["none"] * 3
    assert [r.overhead for r in found if r.budget == "1KiB"] == [None, None]
    assert all(r.peak_bytes <= r.budget_bytes for r in found if r.peak_bytes is not None)
    assert [r.budget_bytes for r in found][1] == 2**30 and found.rows[4].overhead == 0
    assert "lower bound" in str(found) and "chen" in str(found) and repr(found).count("\n") == 0
    assert not _Balanced(found._repr_html_()).open
    assert "<svg" in found.plot(tmp_path / "found.svg")._repr_svg_() and (tmp_path / "found.svg").exists()
    assert found.plot()._repr_svg_() == (tmp_path / "found.svg").read_text()
    with pytest.raises(RematError, match=r"neither an \.svg nor a \.png"):
        found.plot("found.txt")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"budgets": []}, "no budgets to compare"),
        ({"budgets": "20%..90%"}, "needs a count"),
        ({"budgets": ["50%"], "planners": "chen,dtt"}, "'dtt' is no planner"),
    ],
)
def test_a_comparison_refuses_in_one_line(options, message):
    with pytest.raises(RematError, match=message):
        remat_codegen.compare(Twice(), progress=False, **options)


# ---------------------------------------------------------------------------------------------- progress


def test_progress_is_shown_where_it_is_asked_for(capsys):
    for shown, stages in ((False, []), (None, []), (True, ["load ...", "trace ...", "plan ..."])):
        remat_codegen.plan(Twice(), budget="80%", planner="dtr", progress=shown)
        captured = capsys.readouterr()
        assert captured.out == "" and all(stage in captured.err for stage in stages) and bool(captured.err) == bool(stages)


def test_a_notebook_s_progress_is_one_line_that_goes():
    from remat_codegen.show.notebook import NotebookProgress

    lines: list[str] = []

    class Handle:
        def update(self, shown):
            lines.append(shown._repr_html_())

    def display(shown, display_id=False):
        lines.append(shown._repr_html_())
        return Handle()

    progress = NotebookProgress(display=display)
    with progress.stage("plan"):
        progress._last = 0.0
        progress.update(1, 4)
        progress.note("note: <this>")
        progress.note("note: <this>")
    assert lines == [
        "<div>plan …</div>",
        '<div>plan <progress value="1" max="4"></progress> 1 of 4</div>',
        "<div>note: &lt;this&gt;</div>",
        "",
    ]
    assert progress.noted == ["note: <this>"] and progress.seconds["plan"] >= 0


NOTEBOOK = [
    f"{NET}\nimport remat_codegen\nmodel = Net(16, 16)",
    "plan = remat_codegen.plan(model, torch.randn(64, 16), budget='80%', planner='dtr')\nplan",
    "plan.module()(torch.randn(64, 16)).sum().backward()\nprint(model.weight.grad.shape, 'cell:' in plan.source)",
    "remat_codegen.compare(model, torch.randn(64, 16), budgets=['80%'], planners=['chen']).plot()",
]


@pytest.mark.slow
def test_a_notebook_runs(monkeypatch):
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in NOTEBOOK])
    nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    _, planned, trained, plotted = (cell.outputs for cell in notebook.cells)
    shown = [o.data["text/html"] for o in planned if o.output_type == "display_data"]
    assert shown[0] == "" and all("note: " in text for text in shown[1:])  # its progress has gone
    shown = planned[-1].data
    assert "<svg" in shown["text/html"] and shown["text/plain"].startswith("'<RematPlan of Net".strip("'"))
    assert trained[0].text == "torch.Size([16, 16]) True\n"
    assert "<svg" in plotted[-1].data["image/svg+xml"]
