"""Large tensors of a model get numbers that are drawn once."""

from __future__ import annotations

import torch
from click.testing import CliRunner
from torch import nn

from remat_codegen.ask.drawing import DRAWN, quick_draws
from remat_codegen.cli.main import cli


def test_what_a_constructor_draws_for_large_tensors_repeats_and_has_its_distribution():
    plain = torch.Tensor.normal_, torch.Tensor.uniform_
    torch.manual_seed(0)
    with quick_draws():
        layer, table = nn.Linear(1024, 1500), nn.Embedding(2048, 1024)
    assert plain == (torch.Tensor.normal_, torch.Tensor.uniform_)
    for weight in (layer.weight, table.weight):
        flat = weight.detach().flatten()
        assert weight.requires_grad and weight.is_leaf and torch.equal(flat[DRAWN : DRAWN + 99], flat[:99])
    assert abs(table.weight.std() - 1) < 0.01 and layer.weight.abs().max() <= 1024**-0.5
    assert len(set(map(tuple, layer.weight[:, :4].tolist()))) == 1500


def test_small_tensors_and_others_are_drawn_as_ever():
    torch.manual_seed(0)
    expected = [nn.Linear(8, 8).weight, torch.empty(2000, 1000).t().normal_()]
    torch.manual_seed(0)
    with quick_draws():
        found = [nn.Linear(8, 8).weight, torch.empty(2000, 1000).t().normal_()]
    assert all(map(torch.equal, expected, found))


def test_what_autograd_follows_and_other_kinds_of_tensors_are_left_alone():
    class Named(torch.Tensor):
        pass

    with quick_draws():
        followed = (torch.ones(1000, 1000, requires_grad=True) * 1).normal_()
        others = [torch.ones(1000, 1000).as_subclass(Named).normal_(), torch.ones(2 * DRAWN).normal_()]
    assert followed.grad_fn is not None
    for tensor in (followed, *others):
        flat = tensor.detach().flatten()
        assert not torch.equal(flat[DRAWN : DRAWN + 99], flat[:99])


NET = """import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(600, 600), nn.Linear(600, 8)
        self.register_buffer("drawn_after", torch.randn(8), persistent=False)

    def forward(self, x):
        return self.second(self.first(x).tanh().sin()).sin() * self.drawn_after
"""


def test_a_fresh_process_draws_the_same_after_it(tmp_path, monkeypatch):
    (tmp_path / "net.py").write_text(NET)
    monkeypatch.chdir(tmp_path)
    options = ["--inputs", "float32[64,600]", "--budget", "100%", "--planner", "chen", "-o", "file.py", "--verify"]
    done = CliRunner().invoke(cli, ["net.py:Net", *options])
    assert done.exit_code == 0, done.output
