"""Files with methods of classes that stay where they are, with marks. What a copy would do otherwise stays there."""

from __future__ import annotations

import ast
import copy
import importlib
import pickle
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import fixed
import pytest
import torch
from emitted import load
from second_edition import found_in, text_of, traced_module, trained

from remat_codegen.ask.request import Request
from remat_codegen.ask.target import load_target
from remat_codegen.marked import library as methods_elsewhere
from remat_codegen.marked.candidates import Row
from remat_codegen.marked.reading import read
from remat_codegen.marked.rows import rows_of
from remat_codegen.run import check_update, explain, marked, tabling
from remat_codegen.show.results import Progress

QUIET = Progress(None)
LAYERS = """
import functools
import math

import torch
from torch import nn
from torch.nn import functional as F

from .scales import scale

SCALE = 1.5
COUNT = 0


def noted(function):
    return lambda self, x: function(self, x)


def twice(times):
    # with an argument, and saying what it wraps

    def decorator(function):
        @functools.wraps(function)
        def wrapper(self, x, *, shift=0.5):
            assert wrapper is not function
            return sum(function(self, x) for _ in range(times)) + shift

        return wrapper

    return decorator


def count():
    global COUNT
    COUNT += 1


class Plain(nn.Module):
    \"\"\"Methods of its own, one of which calls the other.\"\"\"

    def __init__(self, width=32):
        super().__init__()
        self.up, self.down, self.drop = nn.Linear(width, 4 * width), nn.Linear(4 * width, width), nn.Dropout(0.1)

    def widened(self, x: torch.Tensor, power: float = SCALE) -> torch.Tensor:
        \"\"\"What is told
        where it stands.\"\"\"

        # a comment
        return torch.tanh(self.up(x).sin() * math.sqrt(power))

    def forward(self, x):
        y = scale(self.widened(x)) * F.softplus(self.up(x))
        return x + self.drop(self.down(y))


class Inherits(Plain):
    \"\"\"Has its methods from another class.\"\"\"


class Overrides(Plain):
    \"\"\"Has one of its own, which calls the other one's by super().\"\"\"

    def widened(self, x, power=2.0):
        return super().widened(x, power).exp()


class Decorated(Plain):
    @noted
    def forward(self, x):
        return x + self.down(torch.tanh(self.up(x).sin()))


class Wrapped(Plain):
    @twice(2)
    @twice(1)
    def forward(self, x):
        return x + self.down(torch.tanh(self.up(x).sin()))


class Private(Plain):
    def __scaled(self, x):
        return torch.tanh(x.sin())

    def forward(self, x):
        return x + self.down(self.__scaled(self.up(x)).exp())


class Counts(Plain):
    def forward(self, x):
        return x + self.down(torch.tanh(self.up(x).sin() + COUNT))


class Model(nn.Module):
    def __init__(self, *kinds):
        super().__init__()
        self.layers = nn.ModuleList(globals()[kind]() for kind in kinds)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def example_inputs():
    return (torch.randn(256, 32, generator=torch.Generator().manual_seed(0)),)


def plain():
    return Model("Plain", "Plain", "Plain")


def mixed():
    return Model("Plain", "Inherits", "Overrides", "Decorated", "Private", "Counts", "Wrapped")
"""
SCALES = "def scale(x):\n    return 2 * x\n"
OTHERS = """
from torch import nn

from . import layers
from .layers import example_inputs

SCALE = 3.0


def scale(x):
    return 3 * x


class Plain(layers.Plain):
    \"\"\"The same names with other meanings.\"\"\"

    def forward(self, x):
        y = scale(self.widened(x)).sin().tanh() * SCALE
        return x + self.down(y)


class Both(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(layers.Plain(), Plain(), layers.Plain(), Plain())

    def forward(self, x):
        return self.layers(x)
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """A package that is installed."""
    folder = tmp_path_factory.mktemp("site")
    package = folder / "remat_tested_library"
    package.mkdir()
    for name, text in {"__init__": "", "layers": LAYERS, "others": OTHERS, "scales": SCALES}.items():
        (package / f"{name}.py").write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        importlib.invalidate_caches()
        yield package.name


@pytest.fixture
def all_marked(library):
    """A file in which all is marked that can be, for a model of the library's, and the model itself."""

    def make(target: str):
        module, _, name = target.partition(":")
        module = importlib.import_module(f"{library}.{module}")
        torch.manual_seed(1)
        model = getattr(module, name)()
        return _marked(model, module.example_inputs(), Path(module.__file__))

    return make


def _marked(model, args, path):
    traced = traced_module(model, args, {}, path)
    found = found_in(traced)
    smallest = (next(iter(found.candidates.around(n.id)), None) for n in traced.graph.forward_nodes)
    nodes = list(dict.fromkeys(c for c in smallest if c is not None and any(map(found.is_marked, c.vertices))))
    rows = tuple(Row(c) for c in nodes if not any(o.holds(c) for o in nodes))
    return text_of(traced, found, rows), traced, rows


def _problems(text, traced):
    found = found_in(traced)
    reading = read(text, tabling.carried_sources(traced), partial(tabling.file_of, traced))
    return [*reading.problems, *rows_of(reading, found)[1]]


def test_a_model_of_a_library_from_the_command_on(library, tmp_path):
    output = tmp_path / "made_remat.py"
    report = marked.generate(Request(f"{library}.layers:mixed", "60%", output, edition=2, verify=True), Progress(None))
    assert report.verify is not None and report.verify.ok, report.verify.failures()
    assert report.verify.measured_peak_bytes <= report.budget_bytes
    found = explain.explain(output, Progress(None))
    assert found.ok and found.as_planned, found.problems
    assert check_update.check(output, Progress(None)).ok


def test_what_has_marks_is_written_and_nothing_else(all_marked, library, tmp_path):
    text, traced, rows = all_marked("layers:plain")
    assert "class Plain:\n    def widened(self, x: torch.Tensor, power: float = SCALE) -> torch.Tensor:\n" in text
    assert "        # a comment\n" in text and "    def forward(self, x):\n" in text and "What is told" not in text
    assert "__init__" not in text.partition("the helpers\n")[0] and "class Model" not in text
    assert f"from {library}.layers import SCALE, scale\n" in text and "import math\n" in text
    assert f'WRITTEN["{library}.layers", "Plain"] = Plain\n' in text
    assert trained(traced, text, tmp_path).identical
    assert not _problems(text, traced)


def test_what_a_copy_would_do_otherwise_stays_where_it_is(all_marked, tmp_path):
    """Methods of which nothing says what wraps them, names that Python reads in their class only, values that change; what a
    subclass has of its own."""
    text, traced, rows = all_marked("layers:mixed")
    assert "class Plain:" in text and "def widened" in text and "def forward" in text
    assert "class Wrapped:\n    def forward" in text and "@twice" not in text
    assert not any(f"class {name}" in text for name in ("Decorated", "Counts", "Overrides", "Inherits"))
    assert "class Private:" in text and "self.__scaled, " in text  # which a class of this name finds
    named = {v.text.module for row in rows for v in row.candidate.vertices if v.text is not None and v.text.module}
    assert named >= {"layers.0", "layers.1", "layers.2"}  # of which the last has a method of its own
    assert trained(traced, text, tmp_path).identical
    assert not _problems(text, traced)


def test_names_with_two_meanings(all_marked, library, tmp_path):
    text, traced, _ = all_marked("others:Both")
    assert "class Plain:" in text and "class Plain_2:" in text and re.search(r"import scale as scale_\d", text)
    assert trained(traced, text, tmp_path).identical
    assert not _problems(text, traced)


def test_copies_and_pickles_have_them(all_marked, library, tmp_path):
    text, traced, _ = all_marked("layers:plain")
    original = traced.target.module
    module = load(text, tmp_path)
    model = module.rematerialize(copy.deepcopy(original))
    [x] = traced.target.args
    results = [_step(m, x) for m in (original, model, copy.deepcopy(model), pickle.loads(pickle.dumps(model)))]
    assert all(all(map(torch.equal, results[0], other)) for other in results[1:])
    assert type(model) is type(original) and model.state_dict().keys() == original.state_dict().keys()


def _step(model, x):
    torch.manual_seed(2)
    model.zero_grad()
    out = model(x)
    out.square().sum().backward()
    return [out.detach(), *(p.grad for p in model.parameters())]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("self.up(x)", "self.up(x + 0)"),
        ("math.sqrt(power)", "power"),
        ("        # a comment\n", "        x = x.relu()\n"),
        ('", "Plain"] = Plain', '", "Inherits"] = Plain'),
        ("class Plain:\n    def widened", "class Plain:\n    def narrowed"),
        ("class Plain:\n", "class Plain:\n    pass\n\n\nclass Plain:\n"),
    ],
)
def test_no_edit_of_them_goes_unnoticed(all_marked, old, new):
    text, traced, _ = all_marked("layers:plain")
    assert old in text and not _problems(text, traced)
    assert _problems(text.replace(old, new, 1), traced)


def test_methods_of_pytorchs_own_layers(write_file, tmp_path):
    """Beside classes that the file carries; modules without others inside are words themselves."""
    layers = "nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 2, 128, batch_first=True), 3)"
    model = write_file(
        f"import torch\nfrom torch import nn\n\n\nclass Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        f"        self.encoder = {layers}\n\n    def forward(self, x):\n        return self.encoder(x).sin()\n\n\n"
        "def example_inputs():\n    return (torch.randn(4, 32, 32),)\n",
    )
    target = load_target(f"{model}:Net")
    text, traced, _ = _marked(target.module, target.args, target.path)
    assert "class Net(nn.Module):" in text and "class TransformerEncoderLayer:" in text and "class Linear" not in text
    assert "Net.forward = training_step(Net.forward, PLAN)" in text
    assert trained(traced, text, tmp_path).identical
    assert not _problems(text, traced)
    made = load(text, tmp_path).Net()  # of the file's own class
    made.load_state_dict(target.module.state_dict())
    assert all(map(torch.equal, _step(target.module, *target.args), _step(made, *target.args)))


@pytest.mark.parametrize(
    ("text", "without"),
    [
        ('def f(x):\n    """Told."""\n\n    return x', "def f(x):\n    return x"),
        ('def f(x):\n    r"""Told\n    at length."""\n    # said\n\n    return x', "def f(x):\n    # said\n\n    return x"),
        ('def f(\n    x,\n):\n    "Told."\n    return x', "def f(\n    x,\n):\n    return x"),
        ('def f(x):\n    """Told."""\n    """Not told."""\n    return x', None),  # it would be
        ('def f(x):\n    """Told."""; return x', None),
        ('def f(\n    x): "Told."; \\\n    return x', None),
        ('def f(x):\n    """Told."""', None),
        ("def f(x):\n    return x", None),
    ],
)
def test_docstrings_have_lines_of_their_own_or_stay(text, without):
    method = ast.parse(text).body[0]
    assert methods_elsewhere._lines_of(text, method) == (text if without is None else without)
    assert methods_elsewhere._lines_of(text.replace("\n", "\r\n"), method) == (text if without is None else without)


BESIDE = """
import torch
import torch.nn.functional as F
from torch import nn

SCALE = 0.5


def gate(x):
    return torch.sigmoid(x) * x


class Layer(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(F.gelu(gate(self.up(x)) * SCALE).tanh())
"""
MODEL_BESIDE = """
import torch
from torch import nn

from layers_beside import Layer


class Net(nn.Module):
    def __init__(self, layers=4):
        super().__init__()
        self.layers = nn.Sequential(*(Layer() for _ in range(layers)))

    def forward(self, x):
        return self.layers(x)


def example_inputs():
    return torch.randn(512, 64)
"""
TRAINING = """
import torch
from model_beside import Net
from net_remat import rematerialize

models, x = [Net(), rematerialize(Net())], torch.randn(512, 64)
models[1].load_state_dict(models[0].state_dict())
for model in models:
    model(x).sum().backward()
assert all(torch.equal(p.grad, q.grad) for p, q in zip(*(model.parameters() for model in models)))
"""


@pytest.fixture
def beside(tmp_path, monkeypatch):
    """A folder with a model whose layers stand in another file there, and its generated file."""
    folder = tmp_path / "beside"
    folder.mkdir()
    for name, text in {"layers_beside": BESIDE, "model_beside": MODEL_BESIDE, "training": TRAINING}.items():
        (folder / f"{name}.py").write_text(text)
    fixed.fix(monkeypatch)
    before = set(sys.modules)
    report = marked.generate(Request(f"{folder}/model_beside.py:Net", "50%", folder / "net_remat.py", verify=True), QUIET)
    assert report.verify.ok, report.verify.failures()
    yield folder
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_layers_in_a_file_beside_the_model_are_marked(beside):
    """Whoever can import the model can import these; the command was not run in their folder."""
    text = (beside / "net_remat.py").read_text()
    assert "class Layer:" in text and "kept.part(" in text and "from layers_beside import" in text
    assert check_update.check(beside / "net_remat.py", QUIET).ok


def test_long_copies_are_there_only_where_they_pay(beside, monkeypatch):
    def made() -> str:
        marked.generate(Request(f"{beside}/model_beside.py:Net", "75%", beside / "made.py"), QUIET)
        return (beside / "made.py").read_text()

    monkeypatch.setattr(tabling, "LONG", 1)
    assert "class Layer:" in made()
    monkeypatch.setattr(tabling, "about", lambda overhead: 1.0)  # whatever it takes
    text = made()
    assert "class Layer:" not in text and '"layers.0' in text
    assert check_update.check(beside / "made.py", QUIET).ok


def test_a_script_trains_with_them(beside):
    done = subprocess.run([sys.executable, "training.py"], cwd=beside, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
