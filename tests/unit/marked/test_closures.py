"""Functions that are called by what a decorator of classes has put in the place of their forward, as transformers' mixtures of
experts are: `@dispatched class Experts`, whose forward asks a registry for the function that it runs."""

from __future__ import annotations

import copy
import pickle
import random
import sys

import pytest
import torch
from second_edition import found_in, imported_file, known_times, planned_peak, random_rows, text_of, traced_module, trained

from remat_codegen.ask.request import Request
from remat_codegen.marked.choose import parts_of
from remat_codegen.run import check_update, explain, marked
from remat_codegen.run.marked_text import read_back
from remat_codegen.run.pipeline import verify
from remat_codegen.schedule.order import order_of
from remat_codegen.show.results import Progress

QUIET = Progress(None)
LIBRARY = """
from functools import wraps

import torch
import torch.nn.functional as F


class Registry(dict):
    def named(self, name, default):
        return self.get(name, default)


def grouped(self, x):
    y = F.silu(x @ self.up) * x.sum(-1, keepdim=True).sigmoid()
    y = self.squash(y)
    return (y @ self.down).tanh() * self.scale


def squashed(self, y):
    return y * torch.sigmoid(y).abs()


KNOWN = Registry(grouped=grouped)


def dispatched(registry=KNOWN, scale=2.0):
    def wrapper(kind):
        original_init, original_forward = kind.__init__, kind.forward

        @wraps(original_init)
        def __init__(self, *args, **kwargs):
            original_init(self, *args, **kwargs)
            self.scale = scale

        @wraps(original_forward)
        def forward(self, *args, **kwargs):
            # whoever is registered
            run = registry.named(self.implementation, original_forward)
            return run(self, *args, **kwargs)

        kind.squash = squashed
        kind.__init__, kind.forward = __init__, forward
        return kind

    return wrapper
"""
HEAD = """
import torch
import torch.nn.functional as F
from torch import nn

from closure_library import dispatched
"""
EXPERTS = """

@dispatched(scale=3.0)
class Experts(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Parameter(torch.randn(width, 4 * width)), nn.Parameter(torch.randn(4 * width, width))
        self.implementation = "grouped"

    def forward(self, x):
        return (x @ self.up).relu() @ self.down
"""
NET = """

class Net(nn.Module):
    def __init__(self, layers=3, width=32):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))
        self.experts = nn.ModuleList(Experts(width) for _ in range(layers))

    def forward(self, x):
        for norm, experts in zip(self.norms, self.experts):
            x = x + experts(norm(x))
        return x.mean(1)


def example_inputs():
    return (torch.randn(4, 24, 32, generator=torch.Generator().manual_seed(0)),)
"""
FILES = {  # the model's file, and the one of its classes where that is another
    "carried": (HEAD + EXPERTS + NET, ""),
    "experts of a package": (HEAD + "from closure_experts import Experts\n" + NET, HEAD + EXPERTS),
    "all of a package": ("from closure_experts import Net, example_inputs\n", HEAD + EXPERTS + NET),
}


@pytest.fixture(scope="module", params=FILES)
def path(request, tmp_path_factory):
    """The model's file."""
    folder = tmp_path_factory.mktemp("closures")
    source, classes = FILES[request.param]
    wrapping = "        @wraps(original_forward)\n" if request.param == "carried" else ""
    (folder / "closure_library.py").write_text(LIBRARY.replace("        @wraps(original_forward)\n", wrapping))
    if classes:
        (folder / "closure_experts.py").write_text(classes)
    found = folder / "closure_model.py"
    found.write_text(source)
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(str(folder))
        yield found
    for name in ("closure_library", "closure_experts", "closure_model"):
        sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def output(path):
    """A file with marks in the function that is registered, whatever machine this is."""
    found = path.with_name("closures_remat.py")
    with pytest.MonkeyPatch.context() as patched:
        known_times(patched, mm=40_000)
        marked.generate(Request(f"{path}:Net", "50%", found, edition=2, seed=0), QUIET)
    return found


def example():
    return (torch.randn(4, 24, 32, generator=torch.Generator().manual_seed(0)),)


def gradients(model, x, steps=2):
    found = []
    for _ in range(steps):
        model.zero_grad()
        model(x).square().sum().backward()
        found += [p.grad.clone() for p in model.parameters()]
    return found


def test_the_function_has_marks_and_is_met(output, path):
    text = output.read_text()
    assert "def dispatched(original_forward, registry):" in text and "return with_marks(run)(self, *args, **kwargs)" in text
    assert "def grouped(self, x):" in text or "def marked_grouped(self, x):" in text
    assert verify(output, f"{path}:Net", steps=2, progress=QUIET).ok
    assert not check_update.check(output, QUIET).reasons
    theirs, ours = imported_file(path), imported_file(output)
    model, ran, first = ours.rematerialize(theirs.Net().train()), [], ours.Part.first
    ours.Part.first = lambda part, run, inputs: ran.append(part.entry.name) or first(part, run, inputs)
    model(example()[0]).sum().backward()
    assert {name.rpartition(".")[0] for name in ran} & {f"experts.{i}" for i in range(3)}


@pytest.mark.parametrize("seed", range(4))
def test_any_parts_are_exact_and_take_what_the_simulator_says(path, seed, tmp_path):
    rng = random.Random(seed)
    torch.manual_seed(seed)
    traced = traced_module(imported_file(path).Net().train(), example(), {}, path)
    found = found_in(traced)
    rows = random_rows(found, rng, rng.choice([0.3, 0.6, 1.0]))
    text = text_of(traced, found, rows)
    compared = trained(traced, text, tmp_path)
    assert compared.identical, compared.differences
    assert compared.measured_peak_bytes <= planned_peak(traced, found, rows) + 4096
    read, problems = read_back(text, traced)
    assert not problems and order_of(read.schedule) == order_of(found.holders.schedule([part for _, part in parts_of(rows)]))


def test_edits_of_what_calls_it_are_told(output, path):
    target, text = f"{path}:Net", output.read_text()
    assert explain.explain(output, QUIET, target=target).ok
    edits = [
        ("with_marks(run)(self, *args, **kwargs)", "run(self, *args, **kwargs)"),
        ("run = registry.named(self.implementation, original_forward)", "run = original_forward"),
        ("def dispatched(original_forward, registry)", "def dispatched(original_forward, registry=None)"),
        ("    return forward\n", "    return None\n"),
        ('WRITTEN["closure_library", "dispatched.', 'WRITTEN["closure_library", "dispatching.'),
    ]
    for before, after in edits:
        assert before in text
        output.write_text(text.replace(before, after, 1))
        assert not explain.explain(output, QUIET, target=target).ok, after
    output.write_text(text)


def test_the_registry_decides_and_copies_are_as_it_was(output, path):
    theirs, ours = imported_file(path), imported_file(output)
    torch.manual_seed(3)
    model, x = theirs.Net().train(), torch.randn(4, 24, 32)
    adopted, library = ours.rematerialize(copy.deepcopy(model)), sys.modules["closure_library"]
    for name, function in (("grouped", None), ("eager", None), ("other", lambda self, x: (x @ self.up).sin() @ self.down)):
        if function is not None:
            library.KNOWN[name] = function
        for experts in (*model.experts, *adopted.experts):
            experts.implementation = name
        wanted = gradients(model, x)
        for other in (adopted, copy.deepcopy(adopted), *([pickle.loads(pickle.dumps(adopted))] if name == "eager" else [])):
            assert all(map(torch.equal, gradients(other, x), wanted)), name
    with torch.no_grad():
        model.eval(), adopted.eval()
        assert torch.equal(adopted(x), model(x))
    library.KNOWN.pop("other")


def test_another_function_in_its_place_is_refused_or_run(output, path, monkeypatch):
    theirs, ours = imported_file(path), imported_file(output)
    library, x = sys.modules["closure_library"], example()[0]
    monkeypatch.setattr(library.grouped, "__defaults__", (1.0,))
    with pytest.raises(ValueError, match="grouped of closure_library is another one than this file was made from"):
        ours.rematerialize(theirs.Net().train())(x)
    monkeypatch.undo()
    model = theirs.Net().train()
    middle = model.experts[1]
    middle.forward = lambda x: (x @ middle.up).cos() @ middle.down  # a module's own goes first
    wanted = gradients(model, x, steps=1)
    assert all(map(torch.equal, gradients(ours.rematerialize(model), x, steps=1), wanted))
