"""Models whose file cannot be carried: methods and functions of it have marks, and run with the names of that file."""

from __future__ import annotations

import copy
import importlib.util
import pickle
import random
import sys
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from emitted import load
from second_edition import found_in, known_times, parts_apart, planned_peak, random_rows, text_of, traced_module, trained

from remat_codegen.ask.request import Request
from remat_codegen.cli.main import cli
from remat_codegen.run import check_update, explain, marked
from remat_codegen.show.results import Progress

SOURCE = """
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

globals()  # what looks up names at run time is not carried
SCALE = 1.5
Floats = Tensor


def scores(q, k):
    return torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1]), -1)


def attend(q, k, v, p: float = 0.1, *, training=True):
    return F.dropout(scores(q, k), p, training) @ v


def act(x):
    return x * torch.sigmoid(SCALE * x)


def named(x):
    return torch.tanh(x).exp()


class Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Floats) -> Floats:
        q, k, v = self.qkv(x).chunk(3, -1)
        return self.out(attend(q, k, v, training=self.training))


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(width), Attention(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.named = 1.0

    def forward(self, x, scale=1.0):
        from torch import tanh as squash

        x = x + self.attention(self.norm(x)) * scale
        return x + self.down(squash(act(self.up(x)) * self.named)) + 0.1 * named(x)


class Net(nn.Module):
    def __init__(self, layers=3, width=32):
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        y = torch.cos(x) * SCALE
        return y.sum(-1)


class Other(Net):
    pass


def example_inputs():
    return (torch.randn(4, 24, 32, generator=torch.Generator().manual_seed(0)),)
"""


def loaded(path):
    """The user's file as a module, as a script beside it has it."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module", autouse=True)
def apart():
    with pytest.MonkeyPatch.context() as patched:
        parts_apart(patched)
        yield


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    path = tmp_path_factory.mktemp("home") / "model_at_home.py"
    path.write_text(SOURCE)
    return path


SLOW = {"tanh": 40_000, "linear": 20_000}  # ns


@pytest.fixture(scope="module")
def output(home):
    """A file with marks in methods and functions, whatever machine this is."""
    found = home.with_name("net_remat.py")
    with pytest.MonkeyPatch.context() as patched:
        known_times(patched, **SLOW)
        marked.generate(Request(f"{home}:Net", "38%", found, edition=2), Progress(None))
    return found


@pytest.fixture
def both(home, output):
    """The user's module, and a model that a generated file has taken."""
    module = loaded(home)
    torch.manual_seed(0)
    net = module.Net().train()
    return module, net, load(output.read_text(), output.parent).rematerialize(copy.deepcopy(net))


def gradients(model, x):
    torch.manual_seed(1)
    model.zero_grad()
    model(x).square().sum().backward()
    return [p.grad.clone() for p in model.parameters()]


def same(model, other, x=None):
    x = torch.randn(4, 24, 32) if x is None else x
    return all(map(torch.equal, gradients(model, x), gradients(other, x)))


def test_methods_and_functions_have_marks(output):
    before = output.read_text().partition("the plan: what")[0]
    assert "#     model_at_home.py, whose names these have" in before
    assert "def act(x):\n    kept = parts()" in before and "class Net" not in before.partition("class Block")[0]
    assert "import math" not in before and "ruff: noqa: F821" in before
    assert "def named" not in before  # there is an attribute of that name


@pytest.mark.parametrize("seed", range(4))
def test_any_table_is_exact_and_within_what_the_simulator_says(home, tmp_path, seed):
    module = loaded(home)
    torch.manual_seed(0)
    traced = traced_module(module.Net().train(), module.example_inputs(), {}, home)
    found = found_in(traced)
    rows = random_rows(found, random.Random(seed), 0.3)
    compared = trained(traced, text_of(traced, found, rows), tmp_path)
    assert compared.identical, compared.differences
    assert compared.measured_peak_bytes <= planned_peak(traced, found, rows) + 4096 + 5056 * (len(rows) + 1)


def test_models_may_call_things_as_helpers_do(tmp_path, monkeypatch):
    listed = "parts = []\n        parts.append(x)\n        return parts[0] + self.down("
    source = SOURCE.replace("return x + self.down(", listed)
    path = tmp_path / "home_of_parts.py"
    path.write_text(source)
    known_times(monkeypatch, **SLOW)
    marked.generate(Request(f"{path}:Net", "38%", tmp_path / "out.py", edition=2), Progress(None))
    text = (tmp_path / "out.py").read_text()
    assert "def forward(self, x, scale=1.0):\n        kept = remat_parts(self)" in text
    net = loaded(path).Net().train()
    assert same(net, load(text, tmp_path).rematerialize(copy.deepcopy(net)))


def test_a_file_is_verified_read_and_up_to_date(home, output, monkeypatch):
    monkeypatch.chdir(home.parent)
    result = CliRunner().invoke(cli, ["verify", str(output), f"{home}:Net"])
    assert result.exit_code == 0, result.output
    assert check_update.check(output, Progress(None)).ok
    found = explain.explain(output, Progress(None))
    assert found.ok and found.as_planned and found.rows


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("lambda x, sigmoid: x * sigmoid", "lambda x, sigmoid: x * sigmoid * 2"),
        ("SCALE * x", "SCALE + x"),
        ('WRITTEN["", "Block"]', 'WRITTEN["", "Attention"]'),
        ('WRITTEN["", "act"] = act', 'WRITTEN["", "act"] = attend'),
    ],
)
def test_edits_are_noticed(home, output, monkeypatch, before, after):
    monkeypatch.chdir(home.parent)
    text = output.read_text()
    edited = text.replace(before, after, 1)
    assert edited != text
    path = home.with_name("edited_remat.py")
    path.write_text(edited)
    assert not explain.explain(path, Progress(None)).ok


def test_names_are_those_of_the_home_as_they_are_now(both, monkeypatch):
    module, net, planned = both
    assert same(net, planned)
    monkeypatch.setattr(module, "SCALE", 0.3)
    assert same(net, planned)
    monkeypatch.setattr(module, "math", torch)  # sqrt of an int fails there, in both
    with pytest.raises(TypeError):
        planned(torch.randn(4, 24, 32))


def test_a_function_that_was_replaced_is_refused(home, output):
    module = loaded(home)
    net = load(output.read_text(), output.parent).rematerialize(module.Net().train())
    own = module.act
    for replaced in (lambda x: x * torch.sigmoid(x), module.scores):
        module.act = replaced
        with pytest.raises(ValueError, match="act of model_at_home is another one than this file was made from"):
            net(torch.randn(4, 24, 32))
    module.act = own  # then it works, in the same process
    x, plain = torch.randn(4, 24, 32), module.Net().train()
    plain.load_state_dict(net.state_dict())
    assert same(net, plain, x)
    module.act = lambda x: torch.relu(x)
    again = load(output.read_text(), output.parent)
    with pytest.raises(ValueError, match="act of model_at_home is another one"):
        again.rematerialize(module.Net().train())(x)


FUNCTION = """

if os.environ.get("OTHERWISE"):

    def act(x):
        return F.relu(x)
"""
METHOD = """

    if os.environ.get("OTHERWISE"):

        def forward(self, x, scale=1.0):
            return x + self.down(act(self.up(x)))
"""


@pytest.mark.parametrize("carries", [False, True])
@pytest.mark.parametrize("what", ["act", "Block.forward"])
def test_what_was_defined_otherwise_is_refused(tmp_path, monkeypatch, what, carries):
    """By functions and methods under an `if`, of the same name: in the file itself, and in one that it imports."""
    source = SOURCE.replace("import math", "import math\nimport os")
    source = source.replace("        from torch import tanh as squash\n\n", "").replace("squash(", "torch.tanh(")
    anchor = "SCALE * x)\n" if what == "act" else "0.1 * named(x)\n"
    source = source.replace(anchor, anchor + (FUNCTION if what == "act" else METHOD), 1)
    path = tmp_path / f"home_{what[:3]}_{carries}.py"
    path.write_text(source)
    if carries:
        path = tmp_path / f"beside_{what[:3]}.py"
        path.write_text(f"from home_{what[:3]}_{carries} import Net, example_inputs\n")
        monkeypatch.syspath_prepend(str(tmp_path))
    known_times(monkeypatch, **SLOW)
    marked.generate(Request(f"{path}:Net", "38%", tmp_path / "out.py", edition=2), Progress(None))
    text = (tmp_path / "out.py").read_text()
    assert f"def {what.rpartition('.')[2]}(" in text
    for name in (path.stem, f"home_{what[:3]}_{carries}"):
        sys.modules.pop(name, None)
    monkeypatch.setenv("OTHERWISE", "1")
    net = loaded(path).Net().train()
    with pytest.raises(ValueError, match=r"is another one than this file was made from|was replaced after|PLAN names"):
        load(text, tmp_path).rematerialize(net)(torch.randn(4, 24, 32))


@pytest.mark.parametrize(
    ("before", "after", "beside"),
    [
        ("self.named)", "(1.0 if self.training else KNOWN.get(act, 3.0)))", "KNOWN = {act: 0.5}"),
        ("SCALE * x", "act.scale * x", "act.scale = 1.5"),
    ],
)
def test_functions_that_are_more_than_called_have_no_marks(tmp_path, before, after, beside):
    source = SOURCE.replace(before, after).replace("def named", f"{beside}\n\n\ndef named")
    path = tmp_path / "more_than_called.py"
    path.write_text(source)
    marked.generate(Request(f"{path}:Net", "45%", tmp_path / "out.py", edition=2), Progress(None))
    text = (tmp_path / "out.py").read_text()
    assert "def act(" not in text
    module = loaded(path)
    torch.manual_seed(0)
    net = module.Net().train()
    planned = load(text, tmp_path).rematerialize(copy.deepcopy(net))
    assert same(net, planned)
    x = torch.randn(4, 24, 32)
    assert torch.equal(net.eval()(x), planned.eval()(x))


def test_another_text_of_a_method_is_refused(output, tmp_path):
    path = tmp_path / "model_at_home.py"
    path.write_text(SOURCE.replace("x + self.down", "x - self.down"))
    with pytest.raises(ValueError, match=r"Block\.forward of model_at_home\.py is not what this file was made from"):
        load(output.read_text(), output.parent).rematerialize(loaded(path).Net())


def test_two_files_for_classes_of_one_home(home, both, tmp_path):
    module, net, planned = both
    marked.generate(Request(f"{home}:Other", "60%", tmp_path / "other.py", edition=2), Progress(None))
    torch.manual_seed(3)
    other = module.Other().train()
    second = load((tmp_path / "other.py").read_text(), tmp_path).rematerialize(copy.deepcopy(other))
    for _ in range(2):
        assert same(net, planned) and same(other, second)


def test_copies_and_pickles_keep_their_plan(both):
    _, net, planned = both
    assert same(net, copy.deepcopy(planned))
    planned(torch.randn(4, 24, 32)).sum().backward()
    assert same(net, pickle.loads(pickle.dumps(planned)))


def test_evaluation_compiles(both):
    _, net, planned = both
    x = torch.randn(4, 24, 32)
    compiled = torch.compile(planned.eval(), backend="eager")
    with torch.no_grad():
        assert torch.equal(compiled(x), net.eval()(x))


def test_a_subclass_that_stands_elsewhere_is_refused(both, output):
    module, _, _ = both

    class Tuned(module.Net):
        pass

    with pytest.raises(ValueError, match="is not what this file was made from"):
        load(output.read_text(), output.parent).rematerialize(Tuned().train())(torch.randn(4, 24, 32))


def test_a_script_is_the_home_of_its_own_classes(home, output):
    import subprocess

    run = f"{SOURCE}\nfrom {output.stem} import rematerialize\nnet = rematerialize(Net().train())\n"
    run += "net(*example_inputs()).sum().backward()\nprint('trained', net.forward.plan is not None)\n"
    script = Path(home).with_name("as_a_script.py")
    script.write_text(run)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert done.stdout.startswith("trained True"), done.stderr
