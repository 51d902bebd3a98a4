"""The pipeline as a whole: what it writes, and that it writes the same again."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from remat_codegen.ask.request import Request
from remat_codegen.errors import PlanFileError, RematError, VerifyError
from remat_codegen.header.seal import seal
from remat_codegen.run import pipeline
from remat_codegen.show.results import Progress
from remat_codegen.verify import beside as comparing

SIZES = {"init": "layers=2, width=32, heads=2, vocabulary=101, context=16", "inputs": "int64[2,16]<101"}
EXAMPLE = Path(__file__).parents[3] / "examples" / "gpt2.py"
SPEC = f"{EXAMPLE}:GPT2"


def generate(**options):
    return pipeline.generate(Request(SPEC, **SIZES | options), Progress(None))


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A folder with a file that rematerializes, and its plan."""
    folder = tmp_path_factory.mktemp("made")
    generate(budget="60%", output=folder / "small_remat.py", save_plan=folder / "plan.json")
    return folder


@pytest.mark.parametrize("seed", ["1", "2"])
def test_the_same_plan_gives_the_same_bytes_in_any_process(seed, made, tmp_path):
    """Also where sets have another order."""
    output = tmp_path / "small_remat.py"
    code = "import sys; from remat_codegen.cli.main import main; main()"
    options = ["--init", SIZES["init"], "--inputs", SIZES["inputs"], "--plan", str(made / "plan.json"), "-o", str(output), "-q"]
    command = [sys.executable, "-c", code, SPEC, *options, "--edition", "1"]
    subprocess.run(command, check=True, env={"PYTHONHASHSEED": seed, "PATH": ""}, cwd=tmp_path)
    assert output.read_bytes() == (made / "small_remat.py").read_bytes()


def test_the_file_imports_only_torch_and_the_standard_library(made):
    tree = ast.parse((made / "small_remat.py").read_text())
    modules = {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    modules |= {n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    assert {m.split(".")[0] for m in modules} <= {"torch", *sys.stdlib_module_names}


def test_the_file_runs_where_remat_codegen_is_not_installed(made, tmp_path):
    code = (
        "import sys; sys.modules['remat_codegen'] = None\n"
        "import torch, small_remat\n"
        "model = small_remat.GPT2(layers=2, width=32, heads=2, vocabulary=101, context=16)\n"
        "model(torch.zeros(2, 16, dtype=torch.int64)).sum().backward()\n"
        "assert all(p.grad is not None for p in model.parameters())\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=made)


def test_the_file_passes_black_and_ruff_as_they_come(made):
    file = str(made / "small_remat.py")
    subprocess.run([sys.executable, "-m", "black", "--check", "--quiet", "--config", "/dev/null", file], check=True)
    subprocess.run([sys.executable, "-m", "ruff", "check", "--isolated", "--quiet", file], check=True)


def test_no_path_of_this_machine_is_in_the_file(made):
    assert str(EXAMPLE.parent) not in (made / "small_remat.py").read_text()


def test_depth_adds_loops_not_functions(tmp_path):
    lengths = []
    for layers in (4, 12):
        output = tmp_path / f"deep{layers}.py"
        init = SIZES["init"].replace("layers=2", f"layers={layers}")
        generate(budget="100%", output=output, init=init)
        lengths.append(len(output.read_text().splitlines()))
    assert lengths[0] == lengths[1]


def test_a_plan_for_another_model_is_refused(made, tmp_path):
    with pytest.raises(PlanFileError, match="another model"):
        generate(plan=made / "plan.json", output=tmp_path / "x.py", init=SIZES["init"].replace("layers=2", "layers=3"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: rows.update(version=99), "version 99 .*TARGET --budget BUDGET --save-plan FILE"),
        (lambda rows: rows.update(format="?"), "not a plan written by --save-plan; name a file that --save-plan wrote"),
        (lambda rows: rows.pop("order"), "no good 'order'.* --save-plan"),
        (lambda rows: rows.update(notes=None), "no good 'notes'"),
        (lambda rows: rows.update(budget_bytes="1"), "no good 'budget_bytes'"),
        (lambda rows: rows["order"].pop(), "cannot be run"),
        (lambda rows: rows["order"].append(10_000), "cannot be run"),
        (lambda rows: rows.update(order="all"), "list of node numbers"),
    ],
)
def test_broken_plans_are_refused_in_one_line(made, tmp_path, change, message):
    rows = json.loads((made / "plan.json").read_text())
    change(rows)
    broken = tmp_path / "broken.json"
    broken.write_text(json.dumps(rows))
    with pytest.raises(PlanFileError, match=message):
        generate(plan=broken, output=tmp_path / "x.py")


def verify(file: Path, **options):
    return pipeline.verify(file, SPEC, progress=Progress(None), **SIZES, **options)


def test_verify_finds_a_wrong_gradient(made, tmp_path):
    text = (made / "small_remat.py").read_text()
    wrong = tmp_path / "wrong.py"
    classes, blocks = text.split("2. the blocks")
    wrong.write_text(f"{classes}2. the blocks{blocks.replace('F.layer_norm(', '1.01 * F.layer_norm(', 1)}")
    found = verify(wrong)
    assert not found.ok and "gradients of parameters" in found.failures()


def test_verify_finds_a_broken_budget(made):
    found = verify(made / "small_remat.py", budget="1%")
    assert not found.ok and "peak within budget" in found.failures()


def test_a_file_does_not_say_what_its_own_budget_is(made, tmp_path):
    text = (made / "small_remat.py").read_text()
    wrong = tmp_path / "wrong.py"
    line = next(line for line in text.splitlines() if line.startswith("BUDGET_BYTES"))
    wrong.write_text(text.replace(line, "BUDGET_BYTES = 1000000000000"))
    found = verify(wrong)
    assert not found.ok and "it was edited by hand" in found.failures()
    assert found.budget_bytes == int(line.partition(" = ")[2])


CASTING = """
import torch
from torch import nn

class Norm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(width))

    def forward(self, x):
        wide = x.to(torch.float32)
        wide = wide * torch.rsqrt(wide.float().pow(2).mean(-1, keepdim=True) + 1e-6)
        return (self.weight * wide * torch.ones(x.shape[-1])).to(x.dtype)

class Casting(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*(nn.Sequential(Norm(16), nn.Linear(16, 16), nn.Tanh()) for _ in range(4)))

    def double(self, x):  # as torch's modules call what widens their tensors
        return 2 * x

    def forward(self, x):
        return self.double(self.layers(x))
"""
ROUNDED = """

def rounded(*given):
    return FACTOR * F.linear(*given) / 3 * 3
"""


@pytest.mark.parametrize(("factor", "ok"), [("1.0", True), ("1.0001", False)])
def test_verify_tells_rounding_from_a_mistake_where_the_model_casts(write_file, tmp_path, factor, ok):
    target, output = f"{write_file(CASTING)}:Casting", tmp_path / "casting_remat.py"
    request = Request(target, "70%", output, inputs="float32[64,16]")
    pipeline.generate(request, Progress(None))
    classes, blocks = output.read_text().split("2. the blocks")
    edited = blocks.replace("F.linear(", "rounded(")
    assert edited != blocks
    output.write_text(seal(f"{classes}2. the blocks{edited}{ROUNDED.replace('FACTOR', factor)}"))
    found = pipeline.verify(output, target, inputs="float32[64,16]", progress=Progress(None))
    rows = {r.what: r for r in found.rows}
    assert rows["outputs"].ok == rows["gradients of parameters"].ok == ok
    assert ("up to rounding" in rows["outputs"].detail) == ok
    assert torch.get_default_dtype() is torch.float32


def test_verify_says_where_a_difference_does_not_come_again(made, monkeypatch):
    """A difference that only one of two comparisons finds is of the machine, or of a model that does not repeat itself."""
    real, calls = comparing.compare, []

    def once_wrong(*given, **options):
        found = real(*given, **options)
        calls.append(found)
        if len(calls) in (1, 3):  # the first one, and the one in double precision
            found.of("outputs")._note("output", 0.5)
        return found

    monkeypatch.setattr(comparing, "compare", once_wrong)
    found = verify(made / "small_remat.py")
    assert not found.ok and "outputs: output differs by 5.0e-01" in found.failures()
    assert "not at all in a second comparison" in found.failures()


NOWHERE_A_NUMBER = """
import torch

class Roots(torch.nn.Module):
    def __init__(self, sign):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.sign = sign

    def forward(self, x):
        return (self.sign * self.linear(x).abs()).sqrt()
"""


@pytest.mark.parametrize(("sign", "notes"), [(-1, 1), (1, 0)])
def test_verify_says_where_it_compared_nothing_but_nan(write_file, tmp_path, sign, notes):
    target = f"{write_file(NOWHERE_A_NUMBER)}:Roots"
    request = Request(target, "100%", tmp_path / "roots.py", init=f"sign={sign}", inputs="float32[2,4]", verify=True)
    found = pipeline.generate(request, Progress(None)).verify
    assert found.ok and len(found.notes) == notes
    assert all("outputs, gradients of parameters and evaluation: all NaN" in note for note in found.notes)


def test_attributes_that_training_steps_do_not_set_are_named(write_file, tmp_path):
    """Whoever adds `model.part.penalty` to the loss has to know."""
    body = "h = super().forward(x)\n        self.penalty = h.square().mean()\n        return h.relu()"
    part = f"class Part(torch.nn.Linear):\n    penalty = 0.0\n\n    def forward(self, x):\n        {body}\n"
    net = "class Net(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.part = Part(4, 4)\n"
    file = write_file(f"import torch\n\n\n{part}\n\n{net}\n    def forward(self, x):\n        return self.part(x)\n")
    request = Request(f"{file}:Net", "100%", tmp_path / "net.py", inputs="float32[2,4]")
    notes = pipeline.generate(request, Progress(None)).notes
    assert "forward changes part.penalty; training steps of this file leave that as it is" in notes


WRITES = """
import torch


class Writes(torch.nn.Linear):
    def forward(self, batch):
        batch["hidden"] = super().forward(batch.pop("x"))
        batch["seen"][0] = batch["hidden"]
        batch["mask"] = batch["mask"]
        return batch["hidden"].relu() * batch["mask"]


def example_inputs():
    return ({"x": torch.randn(2, 4), "seen": [torch.ones(1)], "mask": torch.ones(4)},)
"""


def test_containers_that_training_steps_do_not_change_are_named(write_file, tmp_path):
    request = Request(f"{write_file(WRITES)}:Writes", "100%", tmp_path / "writes.py", init="4, 4", verify=True)
    report = pipeline.generate(request, Progress(None))
    changed = "batch['x'], batch['hidden'], batch['seen']"
    assert f"forward changes {changed}; training steps of this file leave that as it is" in report.notes
    assert report.verify.ok


DATACLASSES = """
from dataclasses import dataclass, field

import torch


@dataclass
class Batch:
    x: torch.Tensor
    y: torch.Tensor


@dataclass(frozen=True)
class Out:
    logits: torch.Tensor
    loss: torch.Tensor | None = None
    parts: list = field(default_factory=list)


class Net(torch.nn.Linear):
    def forward(self, batch):
        z = super().forward(batch.x).tanh().exp()
        return Out(z, (z - batch.y).square().mean(), [Out(z.mean())])


def example_inputs():
    return (Batch(torch.randn(64, 8), torch.randn(64, 8)),)
"""


@pytest.mark.parametrize("wrapped", [False, True])
def test_dataclasses_come_and_go_as_they_are(wrapped, write_file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_file(DATACLASSES, "carried.py")
    text = "from carried import Net, example_inputs\n\n\ndef make():\n    return Net(8, 8)\n"
    spec = f"{write_file(text, 'brings.py')}:make" if wrapped else f"{tmp_path / 'carried.py'}:Net"
    request = Request(spec, "95%", tmp_path / "x.py", init="" if wrapped else "8, 8", verify=True)
    assert pipeline.generate(request, Progress(None)).verify.ok
    assert ("class NetRemat(" in (tmp_path / "x.py").read_text()) == wrapped


CACHES = """
import functools

import torch

KNOWN = {}


def positions(length):
    if length not in KNOWN:
        KNOWN[length] = torch.linspace(0, 1, length)
    return KNOWN[length]


class Net(torch.nn.Linear):
    @functools.cached_property
    def scale(self):
        return torch.arange(self.in_features) / 4

    def forward(self, x):
        return torch.relu(super().forward(x) + positions(x.shape[1])) * self.scale
"""
HOOKS = """
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.scale, self.seen = torch.nn.Linear(4, 4), torch.nn.Parameter(torch.ones(1)), {}
        self.layer.register_forward_hook(self.note)

    def note(self, layer, given, found):
        self.seen["layer"] = found
        return found * self.scale

    def forward(self, x):
        return self.layer(x).tanh()
"""


@pytest.mark.parametrize("source, init", [(CACHES, "4, 4"), (HOOKS, "")], ids=["caches", "hooks"])
def test_verify_loads_a_model_of_its_own(source, init, write_file, tmp_path):
    """What is cached while a model is traced has no data, and hooks know the model that they were registered in."""
    request = Request(f"{write_file(source)}:Net", "100%", tmp_path / "x.py", init=init, inputs="float32[2,4]", verify=True)
    found = pipeline.generate(request, Progress(None)).verify
    assert found.ok and all("bit-identical" in row.detail for row in found.rows[:-1])


LATER = """
import torch


class Net(torch.nn.Linear):
    scale = 1.0

    def forward(self, x):
        return self.scale * super().forward(x)


held = {}
held.update(Net=Net)
held["Net"].scale = 2.0
"""


def test_verify_constructs_the_class_that_the_file_carries(write_file, tmp_path):
    """As somebody does who has no original. What is done to the class by way of a table is not carried."""
    request = Request(f"{write_file(LATER)}:Net", "100%", tmp_path / "x.py", init="4, 4", inputs="float32[2,4]", verify=True)
    found = pipeline.generate(request, Progress(None)).verify
    assert not found.ok and "in a process of its own: step 1: ValueError: the model is model" in found.failures()
    assert "scale=1.0, but this file was planned for" in found.failures()
    write_file(LATER.replace("= 1.0", "= [1.0]").replace("= 2.0", "= [2.0]").replace("self.scale ", "self.scale[0] "))
    found = pipeline.generate(request, Progress(None)).verify
    assert not found.ok and "in a process of its own: outputs: output differs" in found.failures()
    write_file(LATER.replace('held["Net"]', "Net"))
    assert pipeline.generate(request, Progress(None)).verify.ok


def test_the_weights_of_recurrent_networks_are_not_named(tmp_path):
    request = Request("torch.nn:GRU", "100%", tmp_path / "gru.py", init="4, 4, 2", inputs="float32[3,2,4]")
    assert not any("forward changes" in note for note in pipeline.generate(request, Progress(None)).notes)


def test_verify_says_where_the_original_itself_fails(write_file, tmp_path, monkeypatch):
    """Here torch.distributions checks what it is given, which torch.compile, used by other tests, ends for good."""
    monkeypatch.setattr(torch.distributions.Distribution, "_validate_args", True)
    made = "torch.distributions.Normal(0.0, -super().forward(x).exp()).log_prob(x)"
    file = write_file(f"import torch\n\n\nclass Net(torch.nn.Linear):\n    def forward(self, x):\n        return {made}\n")
    request = Request(f"{file}:Net", "100%", tmp_path / "net.py", init="4, 4", inputs="float32[2,4]", verify=True)
    with pytest.raises(VerifyError, match="the original itself fails in step 1: ValueError: Expected parameter scale"):
        pipeline.generate(request, Progress(None))


def test_a_model_whose_own_backward_fails_is_told_so(write_file, tmp_path):
    text = "import torch\n\n\nclass Net(torch.nn.Linear):\n    def forward(self, x):\n"
    file = write_file(text + "        y = super().forward(x)\n        return y.sigmoid().mul_(y)\n")
    request = Request(f"{file}:Net", "50%", tmp_path / "net.py", init="4, 4", inputs="float32[2,4]")
    with pytest.raises(RematError, match="cannot be trained as it is: backward needs what mul_ changes") as error:
        pipeline.generate(request, Progress(None))
    assert ":7" in str(error.value)


def test_inputs_of_another_type_are_what_is_wrong(write_file, tmp_path):
    file = write_file("import torch\n\n\nclass Net(torch.nn.Linear):\n    pass\n")
    request = Request(f"{file}:Net", "50%", tmp_path / "net.py", init="4, 4", inputs="int64[2,4]")
    with pytest.raises(RematError, match="does not take numbers of these types: "):
        pipeline.generate(request, Progress(None))


def test_verify_refuses_what_it_did_not_write(tmp_path):
    for text in ("x = 1\n", "raise ValueError('no')\n"):
        (tmp_path / "other.py").write_text(text)
        with pytest.raises(VerifyError):
            verify(tmp_path / "other.py")


def test_every_planner_stays_within_the_unmodified_peak(tmp_path):
    """mincut recomputes whatever the budget is, and random numbers that are drawn again need their generators' states."""
    for planner in ("mincut", "rotor", "dtr"):
        report = generate(budget="100%", output=tmp_path / "x.py", planner=planner, verify=True)
        assert report.verify.ok, report.verify.failures()


PARTS = """
from torch import nn

from . import settings


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.drop = nn.Linear(settings.WIDTH, settings.WIDTH), nn.Dropout(0.2)

    def forward(self, x):
        return x + self.drop(self.a(x).sin()).exp()
"""
MODEL = """
from torch import nn

from .parts.blocks import Block
from .parts.settings import WIDTH


def head(x):
    return x.square().cos()


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(Block(), Block(), Block())

    def forward(self, x):
        return head(self.blocks(x))
"""


def test_a_model_with_relative_imports_is_wrapped(write_file, tmp_path, monkeypatch):
    write_file("", "relative_package/__init__.py")
    write_file("", "relative_package/parts/__init__.py")
    write_file("WIDTH = 64\n", "relative_package/parts/settings.py")
    write_file(PARTS, "relative_package/parts/blocks.py")
    write_file(MODEL, "relative_package/model.py")
    monkeypatch.chdir(tmp_path)
    request = Request("relative_package.model:Model", "75%", Path("out.py"), inputs="float32[512,64]", verify=True)
    report = pipeline.generate(request, Progress(None))
    assert report.verify.ok and report.overhead > 0
    assert "a class that wraps" in Path("out.py").read_text()
