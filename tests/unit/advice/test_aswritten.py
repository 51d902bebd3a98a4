"""Models that checkpoint by themselves: it is noticed, priced as PyTorch does it, and said."""

from __future__ import annotations

import functools
import json

import pytest
import torch
from click.testing import CliRunner
from emitted import model_of
from fixed import all_alike
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.utils.checkpoint import checkpoint, checkpoint_sequential, create_selective_checkpoint_contexts

from remat_codegen.advice import aswritten
from remat_codegen.ask.request import Request
from remat_codegen.cli.main import cli
from remat_codegen.graph.record import example_loss
from remat_codegen.profile.memory import peak_bytes
from remat_codegen.run import pipeline
from remat_codegen.schedule import simulate, without_recomputation
from remat_codegen.show.results import Progress

WIDTH, ROWS = 64, (4, 64, 64)
OFF = 0.04  # of the peak


class Block(nn.Module):
    def __init__(self, drop=0.1):
        super().__init__()
        self.norm, self.into, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
        self.drop = nn.Dropout(drop)

    def forward(self, x):
        q, k, v = self.into(self.norm(x)).chunk(3, -1)
        x = x + self.drop(self.out(torch.softmax(q @ k.transpose(-1, -2), -1) @ v))
        return x + self.drop(self.mlp(x))


def once(block, x):
    return checkpoint(block, x, use_reentrant=False)


def within(block, x):
    return checkpoint(lambda x: once(block, x).sin().cos(), x, use_reentrant=False)


def chosen(block, x):
    keeps = functools.partial(create_selective_checkpoint_contexts, [torch.ops.aten.mm.default])
    return checkpoint(block, x, use_reentrant=False, context_fn=keeps)


CALLS = {
    "plain": lambda block, x: block(x),
    "once": once,
    "stored": functools.partial(checkpoint, use_reentrant=False),
    "reentrant": lambda block, x: checkpoint(block, x, use_reentrant=True),
    "within": within,
    "chosen": chosen,
}


class Net(nn.Module):
    """Blocks that are called in one of the ways of `CALLS`, or as a sequence, while `checkpointing` and training."""

    def __init__(self, how="once", layers=3, drop=0.1):
        super().__init__()
        blocks = [Block(drop) for _ in range(layers)]
        self.blocks = nn.ModuleList(map(checkpoint_wrapper, blocks) if how == "wrapped" else blocks)
        self.norm, self.how, self.checkpointing = nn.LayerNorm(WIDTH), how, True

    def forward(self, x):
        if self.how == "sequence":
            return self.norm(checkpoint_sequential(self.blocks, 2, x, use_reentrant=False))
        call = CALLS["plain" if self.how == "wrapped" else self.how]
        for block in self.blocks:
            x = call(block, x) if self.checkpointing and self.training else block(x)
        return self.norm(x)


def own_peak(module, x):
    """What a step of the user's own holds at most."""
    for parameter in module.parameters():
        parameter.grad = torch.zeros_like(parameter)

    def step():
        example_loss(module(x)).backward()

    step()
    x.grad = None  # the record counts it
    return peak_bytes(step)


@pytest.mark.parametrize(
    ("how", "drop"),
    [("once", 0.0), ("once", 0.1), ("stored", 0.1), ("reentrant", 0.1), ("within", 0.1), ("sequence", 0.1), ("wrapped", 0.1)],
)
def test_the_price_is_the_peak_of_the_users_own_step(how, drop):
    x = torch.randn(ROWS, requires_grad=True)
    net = Net(how, drop=drop)
    model = model_of(net, (x,), {})
    profile = all_alike(model.graph)
    plain = simulate(model.graph, profile, without_recomputation(model.graph))
    found = aswritten.as_written(model, profile, plain.time_ns)
    assert found is not None and found.peak_bytes is not None and found.overhead is not None
    assert found.peak_bytes == pytest.approx(own_peak(net, x), rel=OFF)
    assert found.peak_bytes < 0.75 * plain.peak_bytes and 0.1 < found.overhead < 1
    assert found.where and all(line.startswith("test_aswritten.py") for line in found.where)


@pytest.mark.parametrize("how", ["once", "reentrant", "within", "chosen"])
def test_the_plan_is_of_the_step_without_it(how):
    x = torch.randn(2, 8, WIDTH, requires_grad=True)
    own, plain = (model_of(Net(h), (x,), {}) for h in (how, "plain"))
    trained = [op.grad_enabled for op in own.trace.operations]
    assert all(trained) and aswritten.lines(own) and aswritten.lines(plain) is None
    if how != "within":  # it computes sin and cos, too
        assert own.graph.digest() == plain.graph.digest()


def test_regions_inside_of_another_run_three_times():
    model = model_of(Net("within", layers=1), (torch.randn(2, 8, WIDTH, requires_grad=True),), {})
    schedule = aswritten.schedule_of(model)
    assert schedule is not None
    runs = [sum(getattr(step, "node", None) == node for step in schedule.steps) for node in range(model.graph.loss)]
    assert set(runs) == {1, 2, 3}


def test_what_is_switched_off_is_not_there():
    x = torch.randn(2, 8, WIDTH)
    net = Net("once")
    net.checkpointing = False
    assert aswritten.lines(model_of(net, (x,), {})) is None
    frozen = Net("once").requires_grad_(False)
    frozen.norm.requires_grad_(True)
    assert aswritten.lines(model_of(frozen, (x,), {})) is None  # nothing goes back through it


def test_a_region_that_chooses_is_said_and_not_priced():
    model = model_of(Net("chosen"), (torch.randn(2, 8, WIDTH),), {})
    found = aswritten.as_written(model, all_alike(model.graph), 1)
    assert found is not None and found.peak_bytes is None
    assert "not priced: the model checkpoints by itself" in found.sentence()


FILE = """import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Net(nn.Module):
    def __init__(self, layers=4, checkpoints=True, reentrant=False):
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)) for _ in range(layers)
        )
        self.checkpoints, self.reentrant = checkpoints, reentrant

    def forward(self, x):
        for layer in self.layers:
            if self.training and self.checkpoints:
                x = x + checkpoint(layer, x, use_reentrant=self.reentrant)
            else:
                x = x + layer(x)
        return x
"""
SAID = "the model checkpoints by itself (model.py:17); unmodified is without that"


@pytest.mark.parametrize("reentrant", [False, True])
def test_the_file_and_the_report_say_it(tmp_path, reentrant):
    (tmp_path / "model.py").write_text(FILE)
    inputs = "float32[64,64] requires_grad"
    init = f"reentrant={reentrant}"
    saved = tmp_path / "plan.json"
    request = Request(
        f"{tmp_path / 'model.py'}:Net", "50%", tmp_path / "out.py", init, inputs, verify=True, save_plan=saved, cache=False
    )
    report = pipeline.generate(request, Progress(None))
    assert report.verify is not None and report.verify.ok, report.verify
    assert report.as_written is not None and report.verify.assumed_peak_bytes == report.as_written.peak_bytes
    assert report.as_written is not None and SAID in report.as_written.sentence()
    assert report.to_json()["as_written"]["where"] == ["model.py:17"]
    text = (tmp_path / "out.py").read_text()
    assert f"#     as written, {report.as_written.sentence()}\n" in text
    again = Request(f"{tmp_path / 'model.py'}:Net", None, tmp_path / "out.py", init, inputs, plan=saved)
    assert pipeline.generate(again, Progress(None)).as_written == report.as_written
    assert (tmp_path / "out.py").read_text() == text


def test_nothing_is_said_of_other_models(tmp_path):
    (tmp_path / "model.py").write_text(FILE)
    request = Request(f"{tmp_path / 'model.py'}:Net", "50%", tmp_path / "out.py", "checkpoints=False", "float32[64,64]")
    report = pipeline.generate(request, Progress(None))
    assert report.as_written is None and "as_written" not in report.to_json()
    assert "as written" not in (text := (tmp_path / "out.py").read_text()) and "as_written" not in text


def test_compare_shows_what_the_same_memory_costs(tmp_path):
    (tmp_path / "model.py").write_text(FILE)
    target = [f"{tmp_path / 'model.py'}:Net", "--inputs", "float32[64,64]"]
    result = CliRunner().invoke(cli, ["compare", *target, "--budgets", "20%,90%", "--planners", "rockmate", "--json", "-q"])
    found = json.loads(result.stdout)
    assert len(found["budgets"]) == 3 and list(found["planners"]) == ["as written", "rockmate"]
    own = found["planners"]["as written"]
    assert [row["status"] for row in own] == ["infeasible", "feasible", "feasible"]
    assert own[2]["peak_bytes"] <= found["budget_bytes"][2] == own[0]["minimum_bytes"]
    assert found["planners"]["rockmate"][2]["overhead"] <= own[2]["overhead"]
    assert any(SAID in note for note in found["notes"])
