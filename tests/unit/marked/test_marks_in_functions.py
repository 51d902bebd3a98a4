"""Marks in functions at the top of the user's file: `attention(q, k, v)` is in a module's row, too."""

from __future__ import annotations

import copy
import functools
import importlib.util
import math
import random
import sys

import pytest
import torch
from second_edition import found_in, planned_peak, random_rows, text_of, traced_module, trained

from remat_codegen.ask.request import Request
from remat_codegen.marked.choose import parts_of
from remat_codegen.run import check_update, explain, marked
from remat_codegen.run.marked_text import read_back
from remat_codegen.run.pipeline import verify
from remat_codegen.schedule.order import order_of
from remat_codegen.show.results import Progress

QUIET = Progress(None)
STATE_BYTES = 5056  # of a generator
FUNCTIONS = '''
import math
import torch
import torch.nn.functional as F
from torch import nn


def heads_of(x, heads):
    B, T, C = x.shape
    return x.view(B, T, heads, C // heads).transpose(1, 2)


def attention(q, k, v, p, training):
    """Looks around."""
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    return F.dropout(F.softmax(scores.tanh() * 3, dim=-1), p, training) @ v


def wide(x, layer):
    return layer.down(F.gelu(layer.up(x)).sin())


'''
ENDS = """

def example_inputs():
    return (torch.randint(64, (2, 32)),)
"""
FUNCTIONAL = """
class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)


def block(x, layer, p, training):
    q, k, v = (heads_of(t, 4) for t in layer.qkv(F.layer_norm(x, x.shape[-1:])).chunk(3, dim=-1))
    x = x + layer.proj(attention(q, k, v, p, training).transpose(1, 2).reshape(x.shape))
    return x + wide(F.layer_norm(x, x.shape[-1:]), layer)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(64, 32), nn.Linear(32, 64)
        self.layers = nn.ModuleList(Layer(32) for _ in range(3))

    def forward(self, idx):
        x = self.embed(idx)
        for layer in self.layers:
            x = block(x, layer, 0.1, self.training)
        return self.head(x)
"""
BLOCKS = """
class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = Wide(width)

    def attend(self, x):
        q, k, v = (heads_of(t, 4) for t in self.qkv(x).chunk(3, dim=-1))
        return attention(q, k, v, 0.1, self.training)

    def forward(self, x):
        x = x + self.proj(self.attend(self.norm(x)).transpose(1, 2).reshape(x.shape))
        return x + self.mlp(x)


class Wide(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return wide(x, self)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(64, 32), nn.Linear(32, 64)
        self.layers = nn.ModuleList(Block(32) for _ in range(3))

    def forward(self, idx):
        x = self.embed(idx)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)
"""
TANGLED = """
def scaled(x, by=0.5):
    return (x.sin() * by).cos()


def deep(x, times):
    return scaled(deep(scaled(x), times - 1)) if times else F.dropout(x.tanh(), 0.2, x.requires_grad)


class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(32, 32)

    def beside(self, x):
        return scaled(self.lin(x), 0.25)

    def forward(self, x):
        return scaled(self.lin(scaled(x))) + x


class Outer(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner, self.out = inner, nn.Linear(32, 32)

    def forward(self, x):
        x = scaled(x) + self.inner(scaled(x, 2.0))
        return scaled(self.out(deep(x, 2))) + self.inner(x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        shared = Inner()
        self.embed, self.head = nn.Embedding(64, 32), nn.Linear(32, 64)
        self.layers = nn.ModuleList(Outer(shared if i else Inner()) for i in range(3))

    def forward(self, idx):
        x = scaled(self.embed(idx))
        for layer in self.layers:
            x = layer(x)
        return self.head(scaled(x))
"""
MODELS = {"functional": FUNCTIONAL, "blocks": BLOCKS, "tangled": TANGLED}


def imported(path, name):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def gradients(model, idx, steps=2):
    found = []
    for step in range(steps):
        torch.manual_seed(step)
        model.zero_grad()
        model(idx).square().sum().backward()
        found += [p.grad.clone() for p in model.parameters()]
    return found


def written(source, folder, budget="45%", **options):
    """The path of a file with marks for this source."""
    (folder / "net.py").write_text(source)
    output = folder / "net_remat.py"
    marked.generate(Request(f"{folder / 'net.py'}:Net", budget, output, edition=2, seed=0, **options), QUIET)
    return output


@pytest.fixture(scope="module", params=MODELS)
def output(request, tmp_path_factory):
    return written(FUNCTIONS + MODELS[request.param] + ENDS, tmp_path_factory.mktemp(request.param))


def test_functions_have_marks_and_their_rows_are_those_of_the_module_that_is_called(output):
    text = output.read_text()
    assert "parts()" in text.partition("class Net")[0]
    assert verify(output, f"{output.parent / 'net.py'}:Net", steps=2, progress=QUIET).ok


@pytest.mark.filterwarnings("error")  # as of more modules than were planned for: a shared one is one
def test_models_of_either_file_and_copies_of_them_have_the_same_gradients(output):
    theirs, ours = imported(output.parent / "net.py", "functions_net"), imported(output, "functions_net_remat")
    torch.manual_seed(3)
    model, idx = theirs.Net(), torch.randint(64, (2, 32))
    own = ours.Net()
    own.load_state_dict(model.state_dict())
    wanted = gradients(model, idx)
    adopted = ours.rematerialize(copy.deepcopy(model))
    for other in (adopted, own, copy.deepcopy(adopted)):
        assert all(map(torch.equal, gradients(other, idx), wanted))
        with torch.no_grad():
            assert torch.equal(other.eval()(idx), model.eval()(idx))
        other.train(), model.train()


def test_compiled_models_have_the_same_gradients_and_their_parts_run_again(output):
    theirs, ours = imported(output.parent / "net.py", "functions_net"), imported(output, "functions_net_remat")
    torch.manual_seed(3)
    model, idx = theirs.Net(), torch.randint(64, (2, 32))
    wanted = gradients(model, idx)
    adopted, ran, first = ours.rematerialize(model), [], ours.Part.first
    ours.Part.first = lambda part, run, inputs: ran.append(part.entry.name) or first(part, run, inputs)
    try:
        assert all(map(torch.equal, gradients(torch.compile(adopted, backend="eager"), idx), wanted))
    finally:
        ours.Part.first = first
    assert {*ran} == named_in(ours.PLAN)


def named_in(plan):
    entries = (f"{row}.{entry}" for row in plan for entry in plan[row].split())
    return {entry.strip(".").partition("/")[0].partition("#")[0] for entry in entries}


def test_the_parts_of_functions_run_again_in_adopted_models_and_in_the_file_s_own(output):
    theirs, ours = imported(output.parent / "net.py", "functions_net"), imported(output, "functions_net_remat")
    for model in (ours.rematerialize(theirs.Net()), ours.Net()):
        ran = []
        first = ours.Part.first

        def noted(part, run, inputs, first=first, ran=ran):
            ran.append(part.entry.name)
            return first(part, run, inputs)

        ours.Part.first = noted
        try:
            model(torch.randint(64, (2, 32))).sum().backward()
        finally:
            ours.Part.first = first
        assert {*ran} == named_in(ours.PLAN)


def test_explain_reads_the_marks_back_and_tells_edits(output):
    target = f"{output.parent / 'net.py'}:Net"
    assert not check_update.check(output, QUIET).reasons
    text = output.read_text()
    assert "torch.tanh" not in text
    edits = [("scores.tanh()", "scores.sin()"), ("parts()", "parts(None)"), ("layer.down(", "layer.up(")]
    for before, after in [(b, a) for b, a in edits if b in text]:
        output.write_text(text.replace(before, after, 1))
        try:
            assert not explain.explain(output, QUIET, target=target).ok, before
        finally:
            output.write_text(text)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", MODELS)
def test_any_parts_are_exact_and_take_what_the_simulator_says(name, seed, tmp_path):
    path, rng = tmp_path / "net.py", random.Random(seed)
    path.write_text(FUNCTIONS + MODELS[name] + ENDS)
    torch.manual_seed(seed)
    given = torch.randint(64, (2, 32))
    traced = traced_module(imported(path, f"functions_{name}_{seed}").Net().train(), (given,), {}, path)
    found = found_in(traced)
    rows = random_rows(found, rng, rng.choice([0.2, 0.5, 1.0]))
    text = text_of(traced, found, rows)
    compared = trained(traced, text, tmp_path)
    assert compared.identical, compared.differences
    assert compared.measured_peak_bytes <= planned_peak(traced, found, rows) + 4096 + STATE_BYTES * (len(rows) + 1)
    read, problems = read_back(text, traced)
    assert not problems and order_of(read.schedule) == order_of(found.holders.schedule([part for _, part in parts_of(rows)]))


def test_a_method_that_another_module_calls_has_no_marks_in_its_functions(tmp_path):
    """It runs while that module's call goes on, whose row the marks would be looked up in."""
    path = tmp_path / "net.py"
    path.write_text(FUNCTIONS + TANGLED.replace("+ self.inner(x)", "+ self.inner.beside(x)") + ENDS)
    traced = traced_module(imported(path, "functions_beside_net").Net().train(), (torch.randint(64, (2, 32)),), {}, path)
    found = found_in(traced)
    marks = {c.marks[0][0][0].name for c in found.ways if c.marks}
    assert "scaled" not in marks and "attention" not in marks


MID = """
if hasattr(F, "silu"):
    def mid(x, layer):
        return wide(x, layer).tanh().sin()


"""
WAYS = {  # in which a function is not called by its name, where its file's copy would not be met
    "a table": ("wide(x, self)", "WAYS['wide'](x, self)", "WAYS = {'wide': wide}\n"),
    "another name": ("wide(x, self)", "other(x, self)", "other = wide\n"),
    "a variable": ("wide(x, self)", "(lambda f: f(x, self))(wide)", ""),
    "under a condition": ("return wide(x, self)", "return mid(x, self)", MID),
    "a special method": (
        "return wide(x, self)",
        "return self[x]\n\n    def __getitem__(self, x):\n        return wide(x, self)",
        "",
    ),
    "a module of PyTorch": ("return wide(x, self)", "return nn.Sequential(self.act)(x)", ""),
}


@pytest.mark.parametrize("way", WAYS)
def test_functions_that_are_not_called_by_their_names_have_no_marks(way, tmp_path):
    before, after, beside = WAYS[way]
    source = FUNCTIONS + beside + BLOCKS.replace(before, after) + ENDS
    if way == "a module of PyTorch":
        own = "class Act(nn.Module):\n    def forward(self, x):\n        return x * 2\n\n\nclass Wide(nn.Module):"
        source = source.replace("class Wide(nn.Module):", own).replace(
            "4 * width, width)\n\n    def forward(self, x):\n        return nn",
            "4 * width, width)\n        self.act = Act()\n\n    def forward(self, x):\n        return nn",
        )
    output = written(source, tmp_path, "60%")
    text = output.read_text()
    assert "parts()" not in text.partition("def wide")[2].partition("class ")[0]
    assert verify(output, f"{tmp_path / 'net.py'}:Net", steps=1, progress=QUIET).ok


def test_another_text_of_a_function_is_refused(output):
    theirs = output.parent / "net.py"
    text = theirs.read_text()
    ours = imported(output, "functions_net_remat")
    name, before, after = ("scaled", ".cos()", ".exp()") if "def scaled" in text else ("attention", "tanh() * 3", "tanh() * 4")
    assert text.count(before) == 1
    theirs.write_text(text.replace(before, after))
    try:
        model = imported(theirs, "functions_net_edited").Net()
        with pytest.raises(ValueError, match=rf"{name} of net\.py is not what this file was made from"):
            ours.rematerialize(model)
    finally:
        theirs.write_text(text)


def test_a_row_that_names_no_mark_of_a_function_is_refused(output):
    ours = imported(output, "functions_net_remat")
    row = next(iter(ours.PLAN))
    ours.PLAN[row] += " no_such_mark"
    with pytest.raises(ValueError, match="no_such_mark"):
        ours.Net()(torch.randint(64, (2, 32)))


def test_functions_that_a_part_around_them_runs_again_find_their_module(output):
    theirs, ours = imported(output.parent / "net.py", "functions_net"), imported(output, "functions_net_remat")
    torch.manual_seed(3)
    model, idx = theirs.Net(), torch.randint(64, (2, 32))
    wanted = gradients(model, idx)
    around = {"": " ".join(f"layers.{i}" for i in range(3))} if "class Block" in output.read_text() else {}
    ours.PLAN.update({row: f"{ours.PLAN.get(row, '')} {entries}".strip() for row, entries in around.items()})
    assert all(map(torch.equal, gradients(ours.rematerialize(model), idx), wanted))


@pytest.fixture
def packaged(tmp_path, monkeypatch):
    """A file with the methods and functions of another one, whose model is in a package."""
    package = tmp_path / "functions_package"
    package.mkdir()
    (package / "__init__.py").write_text("from .layers import Net\n")
    own = "\n\ndef registered(function):\n    return function\n\n\n@registered\ndef attention"
    (package / "layers.py").write_text(FUNCTIONS.replace("\n\ndef attention", own) + BLOCKS)
    make = "import torch\nfrom functions_package import Net\n\n\ndef make():\n    return Net()\n"
    (tmp_path / "make.py").write_text(make + ENDS)
    monkeypatch.syspath_prepend(str(tmp_path))
    output = tmp_path / "make_remat.py"
    marked.generate(Request(f"{tmp_path / 'make.py'}:make", "45%", output, edition=2, seed=0), QUIET)
    yield output
    for name in ("functions_package", "functions_package.layers"):
        sys.modules.pop(name, None)


def test_functions_of_other_files_have_marks(packaged):
    text = packaged.read_text()
    assert "\ndef attention(q, k, v, p, training):" in text
    assert "from functions_package.layers import attention" not in text and "registered" not in text
    assert 'WRITTEN["functions_package.layers", "attention"] = attention' in text
    assert "    def attend(self, x):" in text  # without a mark of its own, so that it calls the function that has some
    target = f"{packaged.parent / 'make.py'}:make"
    assert verify(packaged, target, steps=2, progress=QUIET).ok
    assert not check_update.check(packaged, QUIET).reasons
    for before, after in (("scores.tanh()", "scores.sin()"), ("parts()", "parts(None)"), (", p, training)", ", p, True)")):
        assert before in text
        packaged.write_text(text.replace(before, after, 1))
        assert not explain.explain(packaged, QUIET, target=target).ok, before
    packaged.write_text(text)


REPLACED = {
    "attention": lambda layers: lambda q, k, v, p, training: v,
    "heads_of": lambda layers: layers.wide,  # another function of the same file
    "F": lambda layers: math,  # what only the function reads
}


@pytest.mark.parametrize("name", REPLACED)
def test_other_things_there_are_refused(packaged, monkeypatch, name):
    ours = imported(packaged, "functions_packaged")
    layers = sys.modules["functions_package.layers"]
    ours.rematerialize(layers.Net())(torch.randint(64, (2, 32))).sum().backward()
    monkeypatch.setattr(layers, name, REPLACED[name](layers))
    with pytest.raises(ValueError, match=rf"functions_package\.layers\.{name} was replaced after this file took it"):
        ours.rematerialize(layers.Net())(torch.randint(64, (2, 32)))


def test_other_defaults_there_are_refused(packaged, monkeypatch):
    ours = imported(packaged, "functions_packaged")
    layers = sys.modules["functions_package.layers"]
    monkeypatch.setattr(layers.attention, "__defaults__", (0.5, True))
    with pytest.raises(ValueError, match=r"attention was replaced after this file took it"):
        ours.rematerialize(layers.Net())(torch.randint(64, (2, 32)))


def test_another_text_there_is_refused(packaged):
    ours = imported(packaged, "functions_packaged")
    layers = sys.modules["functions_package.layers"]
    path = packaged.parent / "functions_package" / "layers.py"
    path.write_text(path.read_text().replace("scores.tanh() * 3", "scores.tanh() * 4"))
    with pytest.raises(ValueError, match=r"attention of layers\.py is not what this file was made from"):
        ours.rematerialize(layers.Net())


@pytest.mark.parametrize("default", ["torch.ones(())", "SCALE", "[3.0]"])
def test_functions_of_other_files_whose_defaults_are_made_stay_there(tmp_path, monkeypatch, default):
    text = FUNCTIONS.replace("attention(q, k, v, p, training)", f"attention(q, k, v, p, training, by={default})")
    (tmp_path / "functions_made.py").write_text("SCALE = 3.0\n" + text + BLOCKS)
    (tmp_path / "net.py").write_text("import torch\nfrom functions_made import Net\n\n\ndef make():\n    return Net()\n" + ENDS)
    monkeypatch.syspath_prepend(str(tmp_path))
    output = tmp_path / "net_remat.py"
    marked.generate(Request(f"{tmp_path / 'net.py'}:make", "60%", output, edition=2, seed=0), QUIET)
    assert "def attention" not in output.read_text()
    sys.modules.pop("functions_made", None)


def test_a_function_of_another_file_gets_another_name_where_the_file_has_that(tmp_path, monkeypatch):
    (tmp_path / "functions_beside.py").write_text(FUNCTIONS + BLOCKS.partition("class Net")[0])
    own = (
        "from functions_beside import Block\n\n\ndef attention(x):\n    return x * 2\n\n\nclass Net"
        + BLOCKS.partition("class Net")[2]
    )
    head = "import torch\nfrom torch import nn\n"
    (tmp_path / "net.py").write_text(head + own.replace("return self.head(x)", "return self.head(attention(x))") + ENDS)
    monkeypatch.syspath_prepend(str(tmp_path))
    output = tmp_path / "net_remat.py"
    marked.generate(Request(f"{tmp_path / 'net.py'}:Net", "45%", output, edition=2, seed=0), QUIET)
    assert "scores" in output.read_text()
    assert verify(output, f"{tmp_path / 'net.py'}:Net", steps=1, progress=QUIET).ok
    assert not check_update.check(output, QUIET).reasons
    sys.modules.pop("functions_beside", None)


DECORATORS = """
import functools
from importlib import import_module


def chosen(package):
    def decorator(function):
        faster = None
        try:
            faster = import_module(package).attention
        except ImportError:
            faster = function
        is_new, names = faster is not function, ("q", "k", "v", "p", "training")

        @functools.wraps(function)
        def called(*args, **kwargs):
            if is_new:
                return function(*args, **kwargs)
            CALLS.append(package)
            return faster(*args, **{name: value for name, value in kwargs.items() if name in names})

        return called

    return decorator


def scaling(function):
    scale = 0.5

    @functools.wraps(function)
    def scaled(*args):
        return function(*args) * scale

    def set_scale(value):
        nonlocal scale
        scale = value

    SCALES.append(set_scale)
    return scaled


CALLS, SCALES = [], []
"""


@pytest.fixture
def decorated(tmp_path, monkeypatch):
    """A file with a function of another one, where decorators have put others around that; within, it imports something."""
    own = "\n\n@chosen('no_such_package')\n@scaling\ndef attention"
    text = FUNCTIONS.replace("\n\ndef attention", own).replace('"""Looks around."""', "from math import sqrt")
    text = text.replace("math.sqrt(q.shape[-1])", "sqrt(q.shape[-1])")
    (tmp_path / "functions_decorated.py").write_text(DECORATORS + text + BLOCKS)
    make = "import torch\nfrom functions_decorated import Net\n\n\ndef make():\n    return Net()\n"
    (tmp_path / "make.py").write_text(make + ENDS)
    monkeypatch.syspath_prepend(str(tmp_path))
    output = tmp_path / "make_remat.py"
    marked.generate(Request(f"{tmp_path / 'make.py'}:make", "45%", output, edition=2, seed=0), QUIET)
    yield output
    sys.modules.pop("functions_decorated", None)


def test_functions_of_other_files_stay_within_their_decorators(decorated):
    text = decorated.read_text()
    assert 'as_there("functions_decorated", "attention", attention)' in text
    assert "parts()" in text.partition("def attention(q, k, v, p, training):")[2].partition("\nclass ")[0]
    assert "def chosen" not in text and "scaling" not in text
    assert verify(decorated, f"{decorated.parent / 'make.py'}:make", steps=2, progress=QUIET).ok
    assert not check_update.check(decorated, QUIET).reasons
    layers, ours = sys.modules["functions_decorated"], imported(decorated, "functions_decorated_remat")
    model, idx = layers.Net(), torch.randint(64, (2, 32))
    wanted = gradients(model, idx)
    layers.CALLS.clear()
    planned = ours.rematerialize(copy.deepcopy(model))
    assert all(map(torch.equal, gradients(planned, idx), wanted))
    assert len(layers.CALLS) >= 6  # three layers, two steps
    layers.SCALES[-1](2.0)  # what a decorator binds anew counts here, too
    scaled = gradients(model, idx)
    assert not all(map(torch.equal, scaled, wanted))
    assert all(map(torch.equal, gradients(planned, idx), scaled))


def test_explain_tells_edits_of_what_says_that_a_function_is_decorated(decorated):
    text, line = decorated.read_text(), 'as_there("functions_decorated", "attention", attention)'
    for edited in ('WRITTEN["functions_decorated", "attention"] = attention', "", line.replace("attention)", "wide)")):
        decorated.write_text(text.replace(line, edited))
        assert not explain.explain(decorated, QUIET, target=f"{decorated.parent / 'make.py'}:make").ok, edited


def test_another_decorated_function_there_is_refused(decorated, monkeypatch):
    ours = imported(decorated, "functions_decorated_remat")
    layers = sys.modules["functions_decorated"]
    ours.rematerialize(layers.Net())(torch.randint(64, (2, 32))).sum().backward()
    monkeypatch.setattr(layers, "attention", layers.scaling(layers.attention))
    with pytest.raises(ValueError, match=r"attention was replaced after this file took it"):
        ours.rematerialize(layers.Net())(torch.randint(64, (2, 32)))


def patched_by_name(function):
    @functools.wraps(function)
    def timed(*args):
        return PATCHED[0](*args)

    return timed


PATCHED = []
BEFORE = {
    "a wrapper without a closure": lambda attention: patched_by_name(attention),
    "no function": functools.lru_cache,
    "nothing": lambda attention: None,
}


@pytest.mark.parametrize("what", BEFORE)
def test_what_was_put_there_before_the_file_is_imported_is_refused(decorated, monkeypatch, what):
    layers = sys.modules["functions_decorated"]
    PATCHED[:] = [layers.attention]
    monkeypatch.setattr(layers, "attention", BEFORE[what](layers.attention))
    ours = imported(decorated, "functions_decorated_remat")
    with pytest.raises(ValueError, match=r"attention was replaced after this file took it"):
        ours.rematerialize(layers.Net())(torch.randint(64, (2, 32)))
