"""Files of the second edition: exact, whatever the table says, and as large as the simulator says."""

from __future__ import annotations

import random
import re

import pytest
import torch
import zoo
from rich.console import Console
from second_edition import carry_nothing, found_in, known_times, planned_peak, random_rows, text_of, traced_zoo, trained

from remat_codegen.ask.request import Request
from remat_codegen.errors import RematError
from remat_codegen.header import saved_plan
from remat_codegen.header.plan_line import plan_in
from remat_codegen.marked.candidates import Row
from remat_codegen.run import marked, pipeline
from remat_codegen.show.results import Progress
from remat_codegen.verify.beside import load_generated

STATE_BYTES = 5056


@pytest.fixture(scope="module")
def traced():
    """Members of the zoo, traced once."""
    known = {}
    return lambda name: known.setdefault(name, traced_zoo(name))


@pytest.mark.parametrize("carries", [True, False])
@pytest.mark.parametrize("name", sorted(zoo.ZOO))
def test_any_table_is_exact(traced, name, carries, tmp_path, monkeypatch):
    """Where the file has the model's class, and where only methods of it are written, as those of a library's."""
    if not carries:
        carry_nothing(monkeypatch)
    found = found_in(traced(name))
    rows = random_rows(found, random.Random(carries), 0.3)
    compared = trained(traced(name), text_of(traced(name), found, rows), tmp_path)
    assert compared.identical, compared.differences


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", ["gpt2", "unet", "resnet"])
def test_parts_of_their_own_take_what_the_simulator_says(traced, name, seed, tmp_path):
    found = found_in(traced(name))
    smallest = (next(iter(found.candidates.around(n.id)), None) for n in traced(name).graph.forward_nodes)
    nodes = list(dict.fromkeys(c for c in smallest if c is not None))
    outermost = [c for c in nodes if not any(o.holds(c) for o in nodes)]
    rows = tuple(Row(c) for c in random.Random(seed).sample(outermost, (len(outermost) + 1) // 2))
    compared = trained(traced(name), text_of(traced(name), found, rows), tmp_path)
    planned = planned_peak(traced(name), found, rows)
    assert compared.identical
    assert compared.measured_peak_bytes <= planned + 4096 + STATE_BYTES * (len(rows) + 1)


NET = """
import torch
import torch.nn.functional as F


class Step(torch.nn.Module):  # a name that a helper has, too
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(32, 128), torch.nn.Linear(128, 32)

    def forward(self, x):
        return x + self.b(F.gelu(self.a(x)))  # the comment stays


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.steps = torch.nn.ModuleList([Step() for _ in range(6)])

    def forward(self, x):
        for step in self.steps:
            x = step(x)
        return x


def example_inputs():
    return (torch.randn(64, 32),)
"""


@pytest.fixture
def generated(write_file, tmp_path):
    """A file made by the command's own way."""

    def make(budget, source=NET, name="Net", file="model.py", **options):
        output = tmp_path / "net_remat.py"
        request = Request(f"{write_file(source, file)}:{name}", budget, output, verify=True, edition=2, **options)
        return output, marked.generate(request, Progress(Console(stderr=True, width=200)))

    return make


def test_a_file_within_its_budget_differs_in_what_is_marked(generated):
    output, report = generated("60%")
    assert report.verify is not None and report.verify.ok, report.verify
    text = output.read_text()
    assert "PLAN = {" in text and "# the comment stays" in text
    model = text.partition("\nPLAN = {")[0]
    parts = re.findall(r'kept\.part\(\s*"(\w+)"', model)
    assert len(parts) <= 3 and {*parts} <= {"gelu", "add", "x"}  # which costs decide


def test_of_a_file_that_cannot_be_carried_methods_are(generated, monkeypatch):
    known_times(monkeypatch, linear=200_000)
    output, report = generated("60%", NET + "\n\nglobals()\n", file="cannot_be_carried.py")
    assert report.verify is not None and report.verify.ok, report.verify
    before = output.read_text().partition("the helpers")[0]
    assert "#     cannot_be_carried.py, whose names these have" in before and ".part(" in before
    assert "def forward" in before and "__init__" not in before and "import torch.nn.functional" not in before


def test_the_same_model_and_plan_give_the_same_bytes(traced):
    found = found_in(traced("gpt2"))
    rows = random_rows(found, random.Random(5), 0.5)
    assert text_of(traced("gpt2"), found, rows) == text_of(traced("gpt2"), found, rows[::-1])


def test_a_row_that_names_nothing_is_refused(generated):
    output, _ = generated("60%")
    output.write_text(output.read_text().replace("PLAN = {\n", 'PLAN = {\n    "steps.9": "a",\n', 1))
    module = load_generated(output)
    with pytest.raises(ValueError, match=r"PLAN names steps\.9"):
        module.Net()(module.torch.randn(64, 32))


def test_a_saved_plan_makes_the_same_file_again(generated, tmp_path):
    output, _ = generated("60%", save_plan=tmp_path / "plan.json")
    request = Request(str(tmp_path / "model.py:Net"), edition=2, plan=tmp_path / "plan.json", output=tmp_path / "again.py")
    marked.generate(request, Progress(None))
    said = "-o net_remat.py"  # the command in the header, and with it the seal
    first, again = ((tmp_path / name).read_text().split("\n") for name in (output.name, "again.py"))
    different = [line for line, other in zip(first, again, strict=True) if line != other]
    assert len(different) <= 2 and any(said in line for line in different)


def test_a_plan_for_another_model_is_refused(generated, tmp_path):
    generated("60%", save_plan=tmp_path / "plan.json")
    (tmp_path / "model.py").write_text(NET.replace("64", "65"))
    request = Request(str(tmp_path / "model.py:Net"), edition=2, plan=tmp_path / "plan.json", output=tmp_path / "again.py")
    with pytest.raises(RematError, match="the plan was made for another model"):
        marked.generate(request, Progress(None))
    assert not (tmp_path / "again.py").exists()


def test_sizes_need_not_be_said_to_be_dynamic(generated, capsys):
    generated("60%", dynamic="x.0")
    assert "--dynamic is not needed" in capsys.readouterr().err


def test_other_sizes_are_exact(generated):
    import torch

    output, _ = generated("60%")
    module = load_generated(output)
    torch.manual_seed(0)
    model, x = module.Net(), torch.randn(7, 32)
    model(x).sum().backward()
    gradients = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    x.requires_grad_()
    type(model).forward.__wrapped__(model, x).sum().backward()
    assert all(map(torch.equal, gradients, [p.grad for p in model.parameters()]))


LEAVES_OUT = """
import torch


class Net(torch.nn.Linear):
    penalty = None

    def forward(self, x, mask):
        y = super().forward(x)
        if not torch.compiler.is_compiling() and mask.all():
            y = y.sin()
        self.penalty = y.detach().square().mean()
        return y.tanh().exp()


def example_inputs():
    return torch.randn(6, 8), torch.ones(6, 8)
"""


@pytest.mark.parametrize("budget", ["100%", "100%,200000"])
def test_notes_on_what_functions_leave_out_are_of_files_of_functions(write_file, tmp_path, budget):
    target, output, plan = f"{write_file(LEAVES_OUT)}:Net", tmp_path / "out.py", tmp_path / "plan.json"
    request = Request(target, budget, output, init="8, 8", save_plan=plan)
    report = marked.generate(request, Progress(None))
    saved, own = saved_plan.load(plan), plan_in(output.read_text())
    assert not [n for one in own.all() for n in (*report.notes, *one.notes) if "finds" in n or "forward changes" in n]
    model = load_generated(output).Net(8, 8)
    model(torch.randn(6, 8), torch.zeros(6, 8)).sum().backward()  # which the note would say raises an error
    assert model.penalty is not None
    if not own.others:
        functions = Request(target, None, tmp_path / "functions.py", init="8, 8", plan=plan)
        notes = pipeline.generate(functions, Progress(None)).notes
        assert notes == saved.notes and [n for n in notes if "finds True" in n] and [n for n in notes if "changes penalty" in n]
