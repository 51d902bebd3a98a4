"""Buffers that forward changes in place: parts have copies of small ones, and what may read a large one is no part."""

from __future__ import annotations

import copy
import random

import pytest
import torch
from emitted import load
from second_edition import carry_nothing, found_in, imported_file, planned_peak, random_rows, text_of, traced_module, trained

from remat_codegen.ask.request import Request
from remat_codegen.marked import replays
from remat_codegen.marked.candidates import Row
from remat_codegen.marked.found import Found
from remat_codegen.marked.proof import imported
from remat_codegen.parts import SMALL
from remat_codegen.planners.base.reserve import SLACK_BYTES
from remat_codegen.run import marked
from remat_codegen.show.results import Progress

SOURCE = """
import torch
from torch import nn


class Gate(nn.Module):
    def __init__(self, width, size):
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.register_buffer("load", torch.zeros(size))
        self.register_buffer("scale", torch.full((2 * width,), 1.5))

    def forward(self, x):
        y = torch.tanh(self.up(x)) * self.scale
        y = torch.exp(-y * (1 + 0.01 * self.load[0])) * y
        with torch.no_grad():
            self.load[:2] += (y > 0).sum() / y.numel()
        z = torch.sigmoid(y) + torch.sin(y) / (2 + self.load[1])
        return self.down(z)


class Block(nn.Module):
    def __init__(self, width, size):
        super().__init__()
        self.norm, self.gate = nn.BatchNorm1d(width), Gate(width, size)

    def forward(self, x):
        return x + torch.tanh(self.gate(self.norm(x))) * torch.sigmoid(x)


class Net(nn.Module):
    def __init__(self, size=3):
        super().__init__()
        self.blocks, self.head = nn.ModuleList(Block(8, size) for _ in range(3)), nn.Linear(8, 4)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(torch.exp(torch.sin(x)))
"""


LARGE = SMALL // 4 + 1  # numbers of four bytes
COUNTED_BYTES = 3 * 3 * 4  # of all three blocks: a part has copies of some


def traced_net(folder, size):
    path = folder / f"counting_{size}.py"
    path.write_text(SOURCE)
    module = imported_file(path)
    torch.manual_seed(0)
    return traced_module(module.Net(size).train(), (torch.randn(6, 8),), {}, path)


@pytest.fixture(scope="module", params=["carried", "at home"])
def counting(request, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "at home":
            carry_nothing(patch)
        yield traced_net(tmp_path_factory.mktemp("counting"), 3)


@pytest.mark.parametrize("seed", range(12))
def test_parts_find_what_was_counted_when_they_first_ran(counting, tmp_path, seed):
    found = found_in(counting)
    rows = random_rows(found, random.Random(seed), 0.4 + 0.1 * (seed % 6))
    text = text_of(counting, found, rows)
    result = trained(counting, text, tmp_path)
    assert result.identical, result.differences
    assert result.measured_peak_bytes <= planned_peak(counting, found, rows) + SLACK_BYTES + COUNTED_BYTES * len(rows)


def test_what_changes_is_found_but_for_batch_norms(counting):
    found = found_in(counting)
    assert [buffer.path for buffer in found.changed] == [f"blocks.{n}.gate.load" for n in range(3)]
    before = [c for c in found.candidates.all if 1 < c.last < counting_node(counting)]
    assert before  # in the same method


def counting_node(traced):
    """The first node that changes a buffer which is no batch norm's."""
    node_of = {op: node for node, body in enumerate(traced.model.bodies) for op in body.operations}
    return node_of[min(buffer.last for buffer in found_in(traced).changed)]


def test_steps_go_on_as_they_do(counting, tmp_path):
    found = found_in(counting)
    rows = random_rows(found, random.Random(3), 0.9)
    ours = load(text_of(counting, found, rows), tmp_path).rematerialize(copy.deepcopy(counting.target.module))
    theirs = copy.deepcopy(counting.target.module)
    x = counting.target.args[0]
    for step in range(4):
        for model in (ours, theirs):
            model.train(step != 2)
            model.zero_grad()
            model(x[: 6 - step]).square().mean().backward()
            torch.optim.SGD(model.parameters(), 0.1).step()
        for (name, one), other in zip(ours.state_dict().items(), theirs.state_dict().values(), strict=True):
            assert torch.equal(one, other), name


def test_what_may_read_a_large_one_is_no_part_until_it_is_last_changed(tmp_path):
    traced = traced_net(tmp_path, LARGE)
    found = found_in(traced)
    changed = {b.path: b.last for b in found.changed}
    assert len(changed) == 3
    for candidate in found.candidates.all:
        for vertex in candidate.vertices:
            module = vertex.called[0] if found.is_module(vertex) else found.owner(vertex)
            assert not any(path.startswith(f"{module}.") and vertex.begin <= last for path, last in changed.items()), vertex
    rows = random_rows(found, random.Random(0), 1.0)
    assert rows
    assert trained(traced, text_of(traced, found, rows), tmp_path).identical


def test_a_part_that_refuses_to_run_again_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(Found, "_is_overtaken", lambda *_: False)
    traced = traced_net(tmp_path, LARGE)
    found = found_in(traced)
    gated = [c for c in found.candidates.all if "gate" in str(c.vertices[0].called or c.vertices[0].text.module)]
    before = [c for c in gated if len(c) == 1 and c.first < counting_node(traced)]
    text = text_of(traced, found, (Row(before[0]),))
    target, trace = traced.target, traced.model.trace
    with imported(text) as file:
        differs = replays.difference(file, target.module, target.args, {}, trace.autocast, lambda out: out.sum(), data=True)
    assert differs is not None
    assert differs.refused
    assert differs.part.startswith("blocks.0.gate")
    assert "cannot run again: load was changed in place" in str(differs)


FOLLOWED = """
import copy

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, late=False):
        super().__init__()
        self.online = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 8), nn.Sigmoid(), nn.Linear(8, 8))
        self.target, self.late = copy.deepcopy(self.online).requires_grad_(False), late
        self.fixed = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 8), nn.Tanh()).requires_grad_(False)

    def follow(self):
        with torch.no_grad():
            for p, q in zip(self.online.parameters(), self.target.parameters(), strict=True):
                q.lerp_(p, 0.1)

    def forward(self, x):
        if not self.late:
            self.follow()
        with torch.no_grad():
            goal = self.target(x)
        y = torch.exp(torch.sin(self.fixed(self.online(x)) * 2)) + goal * torch.cos(x)
        if self.late:
            self.follow()
        return (torch.sigmoid(y) * torch.exp(-y)).square().mean()
"""


def followed(folder, late):
    path = folder / f"followed_{late}.py"
    path.write_text(FOLLOWED)
    module = imported_file(path)
    torch.manual_seed(0)
    return traced_module(module.Net(late).train(), (torch.randn(6, 8, requires_grad=True),), {}, path)


@pytest.mark.parametrize("late", [False, True])
def test_frozen_parameters_may_follow_others_in_forward(tmp_path, late):
    traced = followed(tmp_path, late)
    found = found_in(traced)
    assert {b.path for b in found.changed if b.is_frozen} == {
        f"target.{n}.{name}" for n in (0, 2, 4) for name in ("weight", "bias")
    }
    for seed in range(4):
        rows = random_rows(found, random.Random(seed), 0.7)
        assert rows
        text = text_of(traced, found, rows)
        result = trained(traced, text, tmp_path)
        assert result.identical, result.differences


def test_no_frozen_parameter_is_changed_before_backward(tmp_path):
    traced = followed(tmp_path, False)
    found = found_in(traced)
    whole = next(c for c in found.candidates.all if c.vertices[0].called == ("fixed", 0))
    model = load(text_of(traced, found, (Row(whole),)), tmp_path).rematerialize(traced.target.module)
    loss = model(*traced.target.args)
    with torch.no_grad():
        model.fixed[0].weight.mul_(2)
    with pytest.raises(RuntimeError, match=r"fixed\.0\.weight was changed in place between forward and backward"):
        loss.backward()


def test_a_parameter_frozen_later_is_looked_at_all_the_same(tmp_path):
    traced = followed(tmp_path, False)
    found = found_in(traced)
    text = text_of(traced, found, random_rows(found, random.Random(1), 0.7))
    model = load(text, tmp_path).rematerialize(traced.target.module)
    model(*traced.target.args).backward()
    model.online[0].weight.requires_grad_(False)
    loss = model(*traced.target.args)
    with torch.no_grad():
        model.online[0].weight.mul_(2)
    with pytest.raises(RuntimeError, match=r"online\.0\.weight was changed in place between forward and backward"):
        loss.backward()


CLAMPED = """
import torch
from torch import nn


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two, self.temperature = nn.Linear(8, 16), nn.Linear(16, 8), nn.Parameter(torch.tensor(2.5))

    def clamp(self):
        with torch.no_grad():
            self.temperature.clamp_(0.001, 0.5)
            self.temperature.sub_(0.01)

    def forward(self, x):
        y = torch.tanh(self.one(x)) * self.temperature.exp()
        return self.two(torch.sigmoid(y) * torch.exp(-y) / (1 + self.temperature))


class Net(nn.Module):
    def __init__(self, late):
        super().__init__()
        self.late, self.heads = late, nn.ModuleList(Head() for _ in range(3))

    def forward(self, x):
        for head in self.heads:
            if not self.late:
                head.clamp()
            x = x + head(x)
            if self.late:
                head.clamp()
        return torch.exp(torch.sin(x)).mean()
"""


@pytest.mark.parametrize("late", [False, True])
def test_small_parameters_may_be_clamped_in_forward(tmp_path, late):
    """As temperatures are. Nothing saves the parameter itself, so that PyTorch allows for it."""
    path = tmp_path / f"clamped_{late}.py"
    path.write_text(CLAMPED)
    net = imported_file(path).Net
    torch.manual_seed(0)
    traced = traced_module(net(late).train(), (torch.randn(6, 8, requires_grad=True),), {}, path)
    found = found_in(traced)
    assert all(b.is_copied for b in found.changed) and len(found.changed) == 3
    for seed in range(4):
        rows = random_rows(found, random.Random(seed), 0.7)
        assert rows
        text = text_of(traced, found, rows)
        assert (result := trained(traced, text, tmp_path)).identical, result.differences
    ends = []
    for model in (copy.deepcopy(traced.target.module), load(text, tmp_path).rematerialize(traced.target.module)):
        x = torch.ones(6, 8)
        (model(x) + model(2 * x)).backward()  # two forward passes, the second of which changes it once more
        ends.append([p.grad for p in model.parameters()])
    assert all(map(torch.equal, *ends))


SAVED = """
import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*[nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)) for _ in range(3)])
        self.temperature = nn.Parameter(0.07 * torch.ones([]))

    def forward(self, x):
        with torch.no_grad():
            self.temperature.clamp_(0.001, 0.5)
        y = F.normalize(self.layers(x), dim=-1)
        return F.cross_entropy(y @ y.t() / self.temperature, torch.arange(x.shape[0]))


def example_inputs():
    return (torch.randn(64, 32),)
"""


def test_a_temperature_that_is_saved_is_clamped_once_a_step(tmp_path):
    """A second forward pass before the way back is an error then, with PyTorch itself, too: files are not tried with one."""
    path, output = tmp_path / "saved.py", tmp_path / "saved_remat.py"
    path.write_text(SAVED)
    report = marked.generate(Request(f"{path}:Net", "60%", output, verify=True), Progress(None))
    assert report.verify is not None and report.verify.ok, report.verify.failures()
    assert "PLAN" in output.read_text()


ELSEWHERE = """
import torch
from torch import nn


class One(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(8, 8), nn.BatchNorm1d(8)

    def forward(self, x, other):
        return torch.sin(self.norm(self.linear(x)) + other.bias) * torch.cos(x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleList(One() for _ in range(2))
        self.other = nn.Linear(8, 8).requires_grad_(False)

    def forward(self, x):
        for part in self.parts:
            x = part(x, self.other)
        return x.square().mean()
"""


def test_a_frozen_parameter_of_another_module_is_not_changed_before_backward(tmp_path):
    path = tmp_path / "elsewhere.py"
    path.write_text(ELSEWHERE)
    module = imported_file(path)
    traced = traced_module(module.Net().train(), (torch.randn(6, 8),), {}, path)
    found = found_in(traced)
    whole = next(c for c in found.candidates.all if c.vertices[0].called == ("parts.0", 0))
    model = load(text_of(traced, found, (Row(whole),)), tmp_path).rematerialize(traced.target.module)
    loss = model(*traced.target.args)
    with torch.no_grad():
        model.other.bias.fill_(3)
    with pytest.raises(RuntimeError, match=r"other\.bias was changed in place between forward and backward"):
        loss.backward()


@pytest.mark.parametrize("late", [False, True])
def test_a_second_forward_does_not_keep_what_follows_from_having_marks(tmp_path, late):
    traced = followed(tmp_path, late)
    found = found_in(traced)
    rows = random_rows(found, random.Random(0), 0.7)
    target, trace = traced.target, traced.model.trace
    versions = [p._version for p in target.module.parameters()]
    with imported(text_of(traced, found, rows)) as file:
        assert replays.difference(file, target.module, target.args, target.kwargs, trace.autocast, lambda loss: loss) is None
    assert [p._version for p in target.module.parameters()] == versions


ACTNORM = """
import torch
from torch import nn


class ActNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(width))
        self.register_buffer("known", torch.tensor(0))

    def forward(self, x):
        if self.training and self.known == 0:
            with torch.no_grad():
                self.bias.copy_(-x.mean((0, 1)))
                self.known.fill_(1)
        return torch.tanh(x + self.bias).sin()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.norms, self.linears = (nn.ModuleList(kind(8) for _ in range(3)) for kind in (ActNorm, lambda n: nn.Linear(n, n)))

    def forward(self, x):
        for norm, linear in zip(self.norms, self.linears):
            x = x + linear(norm(x)).exp().sigmoid()
        return x
"""


@pytest.fixture(scope="module")
def actnorm(tmp_path_factory):
    path = tmp_path_factory.mktemp("actnorm") / "actnorm.py"
    path.write_text(ACTNORM)
    torch.manual_seed(0)
    return traced_module(imported_file(path).Net().train(), (torch.randn(4, 6, 8),), {}, path)


@pytest.mark.parametrize("seed", range(6))
def test_parameters_that_the_first_step_sets_beside_others_of_their_name(actnorm, tmp_path, seed):
    found = found_in(actnorm)
    rows = random_rows(found, random.Random(seed), 0.3 + 0.1 * seed)
    text = text_of(actnorm, found, rows)
    assert text.count("ActNorm._parameters.bias") and "Linear._parameters" not in text
    result = trained(actnorm, text, tmp_path)
    assert result.identical, result.differences
    with imported(text) as file:
        target = actnorm.target
        assert replays.difference(file, target.module, target.args, target.kwargs, (), lambda out: out.sum(), data=True) is None


def test_a_step_of_others_between_forward_and_backward_is_refused(actnorm, tmp_path):
    found = found_in(actnorm)
    ours = load(text_of(actnorm, found, random_rows(found, random.Random(1), 0.9)), tmp_path)
    model = ours.rematerialize(copy.deepcopy(actnorm.target.module))
    loss = model(actnorm.target.args[0]).sum()
    with torch.no_grad():
        model.linears[1].bias.add_(1)
    with pytest.raises(RuntimeError, match=r"linears\.1\.bias was changed in place between forward and backward"):
        loss.backward()


NORMALISED = """
from torch import nn
from torch.nn.utils import spectral_norm, weight_norm


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        norms = weight_norm, weight_norm, spectral_norm, weight_norm
        self.layers = nn.ModuleList(norm(nn.Linear(24, 24)) for norm in norms)

    def forward(self, x):
        for layer in self.layers:
            x = (layer(x) * 2).sin().exp().tanh()
        return x
"""


def test_parameters_that_are_called_as_a_counted_buffer_are_not_copied(tmp_path):
    path = tmp_path / "normalised.py"
    path.write_text(NORMALISED)
    torch.manual_seed(0)
    traced = traced_module(imported_file(path).Net().train(), (torch.randn(6, 24),), {}, path)
    assert [b.path for b in found_in(traced).changed if b.is_copied] == ["layers.2.weight_u", "layers.2.weight_v"]
    found = found_in(traced)
    rows = random_rows(found, random.Random(0), 0.7)
    assert len(rows) > 4
    text = text_of(traced, found, rows)
    assert "['Linear._buffers.weight_u', 'Linear._buffers.weight_v']" in text
    result = trained(traced, text, tmp_path)
    assert result.identical, result.differences
    copies = 2 * 24 * 4 * len(rows)
    assert result.measured_peak_bytes <= planned_peak(traced, found, rows) + SLACK_BYTES + copies
