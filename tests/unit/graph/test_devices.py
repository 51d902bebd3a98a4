"""What is said of devices where there is none but the CPU: the rest stands in tests/cuda."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import zoo
from emitted import droppable, emit, load, rebuilding, zoo_model
from torch import nn

from remat_codegen.ask.target import load_target
from remat_codegen.errors import TargetError, UnsupportedError
from remat_codegen.graph.allocator import UNSPLIT_BYTES, allocated_bytes, unsplit_bytes
from remat_codegen.graph.determinism import not_repeated
from remat_codegen.graph.nature import in_one_piece, is_opaque, weights_of
from remat_codegen.graph.record import record
from remat_codegen.graph.unplannable import check_devices, check_place
from remat_codegen.header import saved_plan
from remat_codegen.header.plan_line import plan_in, plan_lines
from remat_codegen.run import check_update
from remat_codegen.trace import Trace, trace

MIB = 2**20


@pytest.mark.parametrize(
    ("asked", "taken"),
    [
        (0, 0),
        (1, 512),
        (513, 1024),
        (3 * MIB + 8, 3 * MIB + 512),
        (11 * MIB, 12 * MIB),  # a segment of its own, of which too little is left to be split off
        (10 * MIB + 4, 10 * MIB + 512),
        (150 * MIB, 150 * MIB),
    ],
)
def test_a_gpu_takes_whole_blocks_and_segments(asked, taken):
    assert allocated_bytes(asked, "cuda:0") == taken < asked + UNSPLIT_BYTES + 512
    assert allocated_bytes(asked, "") == asked


@pytest.mark.parametrize(
    ("pieces", "kept"),
    [
        ([], 0),
        ([400, 800], 200),
        ([3 * MIB, 6 * MIB], 3 * MIB // 2),
        ([3 * MIB, 60 * MIB], 2 * MIB),
        (10 * [MIB + MIB // 8, 2 * MIB], 7 * MIB // 8),  # one gets the next size
        ([3 * MIB, 6 * MIB, 6 * MIB + 4096] + 20 * [6 * MIB], 3 * MIB // 2 + 1024 + 4096),  # the same size fits
        ([2 * MIB + n * MIB // 2 for n in range(20)] * 10, 23 * MIB // 2),
        ([2 * MIB + n * MIB // 2 for n in range(20)], 135 * MIB // 50),  # 2 % of all
    ],
)
def test_room_for_blocks_that_are_not_split_grows_with_sizes_that_differ_by_little(pieces, kept):
    assert unsplit_bytes(pieces) == kept


def test_half_more_is_kept_than_was_found():
    assert unsplit_bytes(10 * [40 * MIB], 14 * MIB) == 2 * MIB + 21 * MIB
    assert unsplit_bytes(10 * [40 * MIB], 0) == 2 * MIB


class Choosing(nn.Module):
    """Adds in any order where it is told to, chooses by it, and by what is always the same."""

    def __init__(self, adds: bool) -> None:
        super().__init__()
        self.adds, self.gate = adds, nn.Linear(8, 8)

    def forward(self, x):
        sums = torch.zeros_like(x).index_add(0, torch.arange(len(x)) // 2, x) if self.adds else x + 1
        gates = self.gate(sums).softmax(-1)
        best = gates.topk(2, dim=-1).indices
        positive = x > 0
        steps = gates.detach().bernoulli() + (x + 1).round()
        return (gates.gather(1, best) * positive[:, :2] * steps[:, :2]).tanh()


def on_gpu(found: Trace) -> Trace:
    """The same, as if traced on a GPU."""
    return replace(found, variables=tuple(replace(v, device="cuda:0") for v in found.variables))


@pytest.mark.parametrize(
    ("adds", "device", "kept"), [(True, "cuda", ["topk", "bernoulli"]), (False, "cuda", []), (True, "cpu", [])]
)
def test_what_decides_runs_once_where_a_kernel_before_it_is_not_deterministic(adds, device, kept):
    found = trace(Choosing(adds), (torch.randn(6, 8),), {})
    recorded = record(found)
    operations = not_repeated(on_gpu(found) if device == "cuda" else found, recorded)
    assert [found.operations[op].base for op in sorted(operations)] == kept


def test_gradients_stay_on_one_device():
    found = trace(zoo.MLP(8, 0.0), (torch.randn(2, 8),), {})
    check_devices(found, [True] * len(found.variables))
    last = found.operations[-1].results[0]
    moved = replace(found, variables=tuple(v if v.id == last else replace(v, device="cuda:0") for v in found.variables))
    check_devices(moved, [False] * len(found.variables))
    with pytest.raises(UnsupportedError, match="makes a value on cpu, and others are on cuda:0"):
        check_devices(moved, [True] * len(found.variables))


@pytest.mark.parametrize("asked", ["cpu", "cuda:1"])
def test_a_model_that_goes_elsewhere_by_itself_is_refused(asked):
    found = on_gpu(trace(zoo.MLP(8, 0.0), (torch.randn(2, 8),), {}))
    check_place(found, "cuda")
    with pytest.raises(UnsupportedError, match=f"computes on cuda:0, and --device is {asked}"):
        check_place(found, asked)


def test_a_tensor_on_another_accelerator_is_refused_in_a_line():
    found = trace(zoo.MLP(8, 0.0), (torch.randn(2, 8),), {})
    moved = replace(found, variables=tuple(replace(v, device="meta") for v in found.variables))
    with pytest.raises(UnsupportedError, match="a tensor of the model is on meta") as refused:
        check_devices(moved, [True] * len(found.variables))
    assert "devices of type 'meta' are not supported" in refused.value.line() and "\n" not in refused.value.line()


def test_a_file_for_the_cpu_refuses_a_model_elsewhere(tmp_path):
    """It would put back another generator than the one that draws there."""
    module, args, kwargs, model = zoo_model("gpt2")
    schedule = rebuilding(model.graph, set(droppable(model.graph)))
    made = load(emit(module, args, kwargs, model, schedule, Path(zoo.__file__).read_text()), tmp_path, "generated_elsewhere")
    moved = made.rematerialize(copy.deepcopy(module)).to("meta")
    with pytest.raises(ValueError, match=r"the device of wte\.weight is meta, but this file was planned for cpu"):
        moved(*(a.to("meta") for a in args))


@pytest.mark.parametrize("device", ["mps", "xpu"])
def test_other_accelerators_are_refused_in_a_line(device, small_gpt2):
    with pytest.raises(TargetError, match=f"devices of type '{device}' are not supported"):
        load_target(small_gpt2.spec, init=small_gpt2.init, inputs=small_gpt2.inputs, device=device)


def test_rocm_is_refused_in_a_line(small_gpt2, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.version, "hip", "7.1")
    with pytest.raises(TargetError, match="devices of type 'ROCm' are not supported"):
        load_target(small_gpt2.spec, init=small_gpt2.init, inputs=small_gpt2.inputs, device="cuda")


def plan(**options) -> saved_plan.SavedPlan:
    given = {"graph": "0" * 64, "planner": "none", "status": "feasible", "budget": "1GiB", "budget_bytes": 1, "order": (0, 1)}
    given |= {"planned_peak_bytes": 1, "unmodified_peak_bytes": 1, "overhead": 0.0, "bound": None, "device": "cuda"}
    return saved_plan.SavedPlan(**given | options)


def test_a_plan_says_which_generation_it_is_for():
    for capability in ("9.0", None):
        saved = plan(capability=capability)
        assert plan_in("\n".join(plan_lines(saved))) == saved


def test_another_generation_is_named_and_another_graph_is_not_blamed_on_it():
    said = check_update._other_graph(plan(capability="9.0"), "8.0")
    assert said.startswith("it was planned for a GPU of compute capability 9.0, and this one has 8.0")
    for capability, here in (("9.0", "9.0"), (None, "8.0"), (None, None)):
        assert "the model's graph has changed" in check_update._other_graph(plan(capability=capability), here)


RECURRENT = [
    lambda: nn.LSTM(6, 8, num_layers=2, bidirectional=True),
    lambda: nn.LSTM(6, 8, proj_size=5, bias=False),
    lambda: nn.GRU(6, 8, batch_first=True, bidirectional=True),
    lambda: nn.RNN(6, 8, nonlinearity="relu", num_layers=3),
    lambda: nn.RNN(6, 8, bias=False),
]


@pytest.mark.parametrize("make", RECURRENT)
def test_weights_of_recurrent_networks_lie_as_their_module_lays_them(make, monkeypatch):
    """On CUDA in one piece; here it is seen that it is such a module that lays them."""
    module, made = make(), []
    usual = nn.RNNBase.__init__
    monkeypatch.setattr(
        nn.RNNBase, "__init__", lambda self, *args, **kwargs: (made.append(self), usual(self, *args, **kwargs))[1]
    )
    operation = next(op for op in trace(module, (torch.randn(3, 2, 6),), {}).operations if is_opaque(op))
    weights = [torch.zeros_like(p) for p in module.parameters()]
    made.clear()
    in_one_piece(operation, weights)
    assert len(weights_of(operation)) == len(weights)
    assert type(made[0]) is type(module) and repr(made[0]).replace(", batch_first=True", "") == repr(module).replace(
        ", batch_first=True", ""
    )
    assert [w.data_ptr() for w in weights] == [p.data_ptr() for p in made[0].parameters()]
