"""Planning for a GPU that is not there: kernels by rule, memory as PyTorch takes it, costs by a roofline, and the file."""

from __future__ import annotations

import copy
import json
from dataclasses import replace

import absent_step
import pytest
import torch
import zoo
from click.testing import CliRunner
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import remat_codegen
from remat_codegen import api
from remat_codegen.ask.request import Request
from remat_codegen.cli.main import cli
from remat_codegen.errors import RematError, TargetError, UnsupportedError, VersionError
from remat_codegen.graph.record import record
from remat_codegen.graph.simplify import Model, simplify
from remat_codegen.header.command import command_in
from remat_codegen.header.plan_line import plan_in
from remat_codegen.header.seal import seal
from remat_codegen.profile import devices, followed_peak, kernel_workspace
from remat_codegen.profile.cache import Cache
from remat_codegen.profile.devices import DEVICES
from remat_codegen.profile.estimated import Estimated, Kernels
from remat_codegen.profile.kernel_workspace import room_bytes
from remat_codegen.profile.measure import Measured
from remat_codegen.run import check_update, pipeline
from remat_codegen.run.explain import explain
from remat_codegen.run.marked import generate
from remat_codegen.run.planning import unseen
from remat_codegen.run.traced import trace_loaded
from remat_codegen.show.results import Progress
from remat_codegen.torch_seam import attention_kernels
from remat_codegen.trace import absent, trace
from remat_codegen.trace.cuda_attention import Attention, kernel_for, shares_heads

H100 = DEVICES["h100"]
QUIET = Progress(None)


def on(gpu, module: nn.Module, *inputs, autocast=()) -> Model:
    """A model as it is on a GPU that is not there."""
    moved, args = absent.moved(copy.deepcopy(module), inputs, gpu)
    traced = trace(moved, args, {}, autocast)
    return simplify(traced, record(traced))


def row(model: Model, base: str) -> tuple[list[tuple[int, ...]], tuple[int, ...]]:
    """The shapes of what the first operation of a name saves, of the model's values, and the bytes of what it saves beside."""
    op = next(op for op in model.trace.operations if op.base == base)
    shapes = {model.record.variables[v.id].storage: v.shape for v in reversed(model.trace.variables)}
    found = model.record.operations[op.id]
    return [shapes[storage] for storage in found.saved], found.phantoms


# ---------------------------------------------------------------------------------------------- the table


def test_the_table_has_dense_figures_with_their_source():
    asked = "v100 t4 a10 a100-40gb a100-80gb l4 l40s rtx-4090 rtx-5090 h100 h200 b200".split()
    assert list(DEVICES) == asked
    for key, gpu in DEVICES.items():
        assert gpu.key == key and gpu.source and gpu.peaks["float16"] > gpu.peaks["float32"] >= gpu.peaks["float64"]
        assert gpu.peaks.get("tf32", gpu.peaks["float16"]) <= gpu.peaks["float16"]
        assert ("bfloat16" in gpu.peaks) == ("tf32" in gpu.peaks) == (gpu.compute_capability >= (8, 0))
    assert DEVICES["h100"].peak("bfloat16") < 1e15  # the sheet's figure with sparsity is twice that
    assert DEVICES["t4"].peak("bfloat16") == DEVICES["t4"].flops  # which has no units for it


def test_the_devices_are_listed(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    found = json.loads(CliRunner().invoke(cli, ["devices", "--json"]).stdout)
    assert found["file"] is None and [d["key"] for d in found["devices"]] == list(DEVICES)
    assert next(d for d in found["devices"] if d["key"] == "h100")["peaks"]["bfloat16"] == 989.5e12
    assert "a100-80gb" in CliRunner().invoke(cli, ["devices"]).stdout


WHOLE = """[mine]
compute_capability = "8.9"
multiprocessors = 20
bytes_per_s = 2e11
memory_bytes = 8_000_000_000
cache_bytes = 33554432
peaks = {float32 = 1e13, bfloat16 = 4e13}
"""


OTHERS = """[slow]
like = "h100"
bytes_per_s = 1e12
[h100]
reached_flops = 0.5
operations_ns = {"mine::scan" = 20_000.4}
"""


def test_users_add_devices_and_change_figures(monkeypatch, tmp_path):
    (tmp_path / devices.FILE).write_text(WHOLE + OTHERS)
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    found = devices.known()
    assert found["mine"].capability == "8.9" and found["mine"].peak("bfloat16") == 4e13 and found["mine"].key == "mine"
    assert (found["slow"].bytes_per_s, found["slow"].multiprocessors, found["slow"].key) == (1e12, 132, "slow")
    assert found["h100"].reached_flops == 0.5 and found["h100"].bytes_per_s == H100.bytes_per_s
    assert found["h100"].operations_ns == {"mine::scan": 20_000}
    assert Request("model.py:Net", device="slow").gpu == found["slow"]
    (tmp_path / "other.toml").write_text("")
    monkeypatch.setenv(devices.VARIABLE, str(tmp_path / "other.toml"))
    assert list(devices.known()) == list(DEVICES)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[mine", "are no TOML"),
        ("mine = 3", "'mine' is no table of figures"),
        ("[cuda]", "'cuda' is a device of PyTorch's"),
        ("[mine]\nmultiprocessors = 3", "'mine' lacks compute_capability"),
        (WHOLE.replace("float32 = 1e13, ", ""), "'mine' lacks peaks.float32"),
        (WHOLE.replace('"8.9"', "8.9"), "'mine' has no good 'compute_capability'"),
        (WHOLE + "colour = 1", "'mine' has no good 'colour'"),
        (WHOLE.replace("2e11", "-1"), "'mine' has no good 'bytes_per_s'"),
        (WHOLE + "operations_ns = {scan = 3}", "'mine' has no good 'operations_ns'"),
    ],
)
def test_a_file_of_devices_that_is_wrong_is_refused_in_a_line(text, said, tmp_path):
    file = tmp_path / devices.FILE
    file.write_text(text)
    with pytest.raises(TargetError) as refused:
        devices.read_devices(file)
    assert said in refused.value.line() and "\n" not in refused.value.line() and str(file) in refused.value.line()


@pytest.mark.parametrize(
    ("name", "hint"), [("h101", "did you mean h100?"), ("H100", "did you mean h100?"), ("x", "by name: v100")]
)
def test_an_unknown_device_is_refused_with_those_that_are_known(name, hint):
    with pytest.raises(TargetError, match=f"unknown device '{name}'") as refused:
        Request("model.py:Net", device=name)
    assert hint in refused.value.line()


# ---------------------------------------------------------------------------------------------- kernels


FLASH, EFFICIENT = SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION
CUDNN, MATH = SDPBackend.CUDNN_ATTENTION, SDPBackend.MATH
BF, HALF, SINGLE = torch.bfloat16, torch.float16, torch.float32


@pytest.mark.parametrize(
    ("gpu", "dtype", "more", "kernel"),
    [
        ("h100", BF, {}, CUDNN),
        ("h100", BF, {"width": 192}, FLASH),
        ("h100", BF, {"dropout": 0.1}, FLASH),  # which is no number of sixteenths
        ("h100", BF, {"mask": True}, CUDNN),
        ("h100", SINGLE, {}, EFFICIENT),
        ("rtx-5090", BF, {}, FLASH),
        ("a100-80gb", BF, {}, FLASH),
        ("a100-80gb", BF, {"mask": True}, EFFICIENT),
        ("a100-80gb", BF, {"mask": True, "width": 60}, MATH),
        ("a100-80gb", BF, {"width": 60}, FLASH),  # filled up
        ("a100-80gb", BF, {"width": 264}, EFFICIENT),
        ("a100-80gb", SINGLE, {"width": 30}, MATH),
        ("a100-80gb", torch.float64, {}, MATH),
        ("a100-80gb", BF, {"keys": 32, "causal": True}, EFFICIENT),
        ("l4", BF, {"width": 224}, EFFICIENT),
        ("l4", BF, {"width": 256}, FLASH),
        ("l4", BF, {"width": 256, "dropout": 0.1}, EFFICIENT),
        ("t4", HALF, {}, EFFICIENT),
        ("t4", BF, {}, MATH),
        ("v100", SINGLE, {"width": 30}, EFFICIENT),
    ],
)
def test_attention_takes_the_kernel_that_the_gpu_would(gpu, dtype, more, kernel):
    width, keys = more.get("width", 64), more.get("keys", 128)
    query, key, value = (torch.empty(2, 4, n, width, dtype=dtype, requires_grad=True) for n in (128, keys, keys))
    mask = torch.ones(128, keys, dtype=torch.bool) if "mask" in more else None
    call = Attention(query, key, value, mask, more.get("dropout", 0.0), more.get("causal", False))
    assert kernel_for(call, DEVICES[gpu], attention_kernels()) is kernel


def test_attention_takes_only_kernels_that_are_allowed():
    call = Attention(*(torch.empty(2, 4, 128, 64, dtype=BF) for _ in range(3)))
    with sdpa_kernel([EFFICIENT, MATH]):
        assert kernel_for(call, H100, attention_kernels()) is EFFICIENT
    with sdpa_kernel([MATH]):
        assert kernel_for(call, H100, attention_kernels()) is MATH


class Attending(nn.Module):
    """Attention between two products, with or without a mask."""

    def __init__(self, masked: bool = False) -> None:
        super().__init__()
        self.qkv, self.out, self.masked = nn.Linear(64, 192), nn.Linear(64, 64), masked

    def forward(self, x):
        rows = x.shape[1]
        q, k, v = (t.view(*t.shape[:2], 4, 16).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        mask = torch.ones(rows, rows, dtype=torch.bool, device=x.device).tril() if self.masked else None
        y = nn.functional.scaled_dot_product_attention(q, k, v, mask, is_causal=mask is None)
        return self.out(y.transpose(1, 2).flatten(2))


@pytest.mark.parametrize("dtype", [SINGLE, BF])
@pytest.mark.parametrize(("masked", "groups"), [(False, 2), (True, 2), (False, 1)])
def test_heads_that_share_keys_are_planned_by_a_kernel_of_this_pytorch(dtype, masked, groups):
    """Memory-efficient attention takes them since PyTorch 2.14; before, it was the general path, as it is there."""
    x = torch.zeros(2, 40, 64, dtype=dtype)
    model = on(H100, absent_step.Attending(64, groups, masked).to(dtype), x, x)
    _, beside = row(model, "scaled_dot_product_attention")
    assert any(size >= 2 * 4 * 40 * 40 * dtype.itemsize for size in beside) is (kernel_of(dtype, groups) is MATH)


def kernel_of(dtype, groups):
    if dtype is BF and (groups == 2 or shares_heads()):
        return CUDNN
    return EFFICIENT if shares_heads() else MATH


def test_attention_saves_what_its_kernel_saves():
    x = torch.zeros(2, 40, 64)
    sums = 2 * 4 * 40 * 4  # a number in single precision for each row of each head
    saved, beside = row(on(H100, Attending().bfloat16(), x.bfloat16()), "scaled_dot_product_attention")
    assert saved == [(2, 40, 192), (2, 4, 40, 16)] and max(beside) == sums  # cuDNN's
    _, beside = row(on(H100, Attending(), x), "scaled_dot_product_attention")
    assert max(beside) == 2 * 4 * 64 * 4  # memory-efficient: rows come in multiples of 32
    _, beside = row(on(DEVICES["a100-80gb"], Attending(masked=True).bfloat16(), x.bfloat16()), "scaled_dot_product_attention")
    assert 40 * 40 * 2 in beside  # the mask as numbers
    _, beside = row(on(DEVICES["t4"], Attending().bfloat16(), x.bfloat16()), "scaled_dot_product_attention")
    assert beside.count(2 * 4 * 40 * 40 * 4) >= 1  # scores


def test_a_trace_is_as_if_on_cuda_and_the_same_for_each_gpu_of_a_generation():
    x = torch.zeros(2, 40, 64)
    h100, h200, t4 = (on(DEVICES[name], Attending(masked=True), x) for name in ("h100", "h200", "t4"))
    assert h100.trace.accelerator == "cuda:0" and h100.trace.gpu is H100
    assert {v.device for v in h100.trace.variables} == {"cuda:0"}
    ones = next(op for op in h100.trace.operations if op.base == "ones")
    assert dict(ones.kwargs)["device"] == torch.device("cuda:0")
    assert h100.graph.digest() == h200.graph.digest()
    assert h100.graph.digest() != on(H100, Attending(masked=True).bfloat16(), x.bfloat16()).graph.digest()
    assert {n.base for n in t4.trace.operations} == {n.base for n in h100.trace.operations}


class Normed(nn.Module):
    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(32, 64), norm, nn.Linear(64, 32)

    def forward(self, x):
        return self.down(self.norm(self.up(x)))


def test_rms_norm_is_one_kernel():
    x = torch.zeros(8, 32, dtype=BF)
    saved, beside = row(on(H100, Normed(nn.RMSNorm(64)).bfloat16(), x), "rms_norm")
    assert saved == [(8, 64), (64,)] and beside == (8 * 4,)
    _, beside = row(on(H100, Normed(nn.RMSNorm(64, dtype=SINGLE)), x.float()), "rms_norm")
    assert beside == (8 * 4,)
    mixed = Normed(nn.RMSNorm(64)).bfloat16()
    mixed.norm.float()  # two types: not in one kernel
    _, beside = row(on(H100, mixed, x), "rms_norm")
    assert len(beside) > 1


def test_autocast_casts_what_cuda_casts():
    x = torch.zeros(8, 32)
    model = on(H100, Normed(nn.LayerNorm(64)), x, autocast=(("cuda", BF),))
    dtypes = {op.base: model.trace.variables[op.results[0]].dtype for op in model.trace.operations}
    assert dtypes == {"linear": BF, "layer_norm": SINGLE}
    assert model.trace.autocast == (("cuda", BF),) and {op.autocast for op in model.trace.operations} == {(("cuda", BF),)}
    _, beside = row(model, "linear")
    assert sorted(beside) == [8 * 32 * 2]  # the input in bfloat16; the weight's copy is not needed for a leaf's gradient


def test_gradients_go_back_elsewhere_before_and_after():
    weight = torch.ones(3, requires_grad=True)
    weight.sum().backward()
    on(H100, Attending(), torch.zeros(1, 8, 64))
    (2 * weight).sum().backward()
    assert weight.grad.tolist() == [3, 3, 3] and not torch.accelerator.is_available()


# ---------------------------------------------------------------------------------------------- costs


def test_followed_memory_is_what_the_cpu_takes(monkeypatch):
    """But for CUDA's blocks, and its product in the gradient of a softmax, which are left out here, and for seeds and sums."""
    monkeypatch.setattr(followed_peak, "allocated_bytes", lambda nbytes, device: nbytes)
    monkeypatch.delitem(kernel_workspace._ROOM, torch.ops.aten._softmax_backward_data.default)
    module, inputs = zoo.GPT2(layers=1, dropout=0.1), torch.zeros(4, 64, dtype=torch.int64)
    traced = trace(module, (inputs,), {})
    here = simplify(traced, record(traced))
    there = on(H100, module, inputs)
    assert [n.name for n in here.graph.nodes] == [n.name for n in there.graph.nodes]
    measured, found = Measured("cpu", Cache("cpu", enabled=False), hurry_at=0).of(here), Estimated(H100).of(there)
    apart = {
        node.name: (one, other)
        for node, one, other in zip(here.graph.nodes, measured.workspace_bytes, found.workspace_bytes, strict=True)
        if abs(one - other) > 4096 + 0.01 * one
    }
    assert not apart
    assert found.device == "cuda" and min(found.time_ns) > 0


def times(gpu, run) -> int:
    with absent.on(gpu), Kernels(gpu) as kernels:
        run()
    return kernels.time_ns


def made(*shape, dtype=SINGLE):
    return torch.empty(*shape, dtype=dtype, device=absent.TYPE)


def test_times_follow_bytes_operations_and_starts():
    big = 2**26
    added = times(H100, lambda: made(big).add(1))
    assert added == pytest.approx(2 * 4 * big / (0.8 * 3350e9) * 1e9, rel=0.01)
    assert times(H100, lambda: made(4).add(1)) == H100.launch_ns
    assert times(H100, lambda: made(4, 4).view(16)[2:]) == 0
    product = times(H100, lambda: made(8192, 8192, dtype=BF) @ made(8192, 8192, dtype=BF))
    assert product == pytest.approx(2 * 8192**3 / (0.7 * 989.5e12) * 1e9, rel=0.1)
    single = times(H100, lambda: made(8192, 8192) @ made(8192, 8192))
    assert single == pytest.approx(product * 989.5 / 67, rel=0.1)
    looked_up = times(H100, lambda: torch.embedding(made(1_000_000, 64), made(8, dtype=torch.int64)))
    assert looked_up == H100.launch_ns


@pytest.mark.parametrize(
    ("rows", "keys", "dtype", "taken"),
    [
        ((4, 4, 40, 16), 40, BF, (0, 270336, 0, 265216)),
        ((2, 4, 200, 64), 300, BF, (832000, 532480, 0, 531456)),  # keys in two parts, for there are few rows
        ((2, 4, 200, 256), 200, BF, (6579200, 2105344, 1638400, 6298624)),  # wide heads, in single precision
    ],
)
def test_kernels_of_attention_take_room_for_themselves(rows, keys, dtype, taken):
    """The first and the last but one figure of a row, and the first row, are what PyTorch 2.14.1 allocates."""
    batch, heads, length, width = rows
    with absent.on(H100):
        q, k = (made(batch, n, heads, width, dtype=dtype).transpose(1, 2) for n in (length, keys))
        aten = torch.ops.aten
        flash = room_bytes(aten._scaled_dot_product_flash_attention.default, (q, k, k, 0.0))
        flash_back = room_bytes(aten._scaled_dot_product_flash_attention_backward.default, (q, q, k, k, q))
        efficient = room_bytes(aten._scaled_dot_product_efficient_attention.default, (q, k, k))
        efficient_back = room_bytes(aten._scaled_dot_product_efficient_attention_backward.default, (q, q, k))
    assert (flash, flash_back, efficient, efficient_back) == taken


def test_the_gradient_of_a_bias_counts_in_the_peak():
    x, rooms = torch.zeros(1024, 256), []
    for bias in (False, True):
        rooms.append(max(Estimated(H100).of(on(H100, nn.Linear(256, 4096, bias=bias), x)).workspace_bytes))
    assert rooms[1] - rooms[0] > 2**22  # its sum takes 32 MiB


def test_products_in_tf32_are_those_that_pytorch_rounds():
    run = lambda: made(4096, 4096) @ made(4096, 4096)  # noqa: E731
    before = times(H100, run)
    torch.set_float32_matmul_precision("high")
    try:
        assert times(H100, run) < before / 5
    finally:
        torch.set_float32_matmul_precision("highest")


# ---------------------------------------------------------------------------------------------- files


NET = """import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, layers=3, width=64):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x)).exp().sin()
        return x
"""
INPUTS = "float32[4096,64]"


@pytest.fixture
def planned(tmp_path, monkeypatch):
    """A file for a GPU that is not there, and its report."""
    (tmp_path / "net.py").write_text(NET)
    monkeypatch.chdir(tmp_path)
    request = Request("net.py:Net", "60%", tmp_path / "net_remat.py", inputs=INPUTS, device="h100")
    return tmp_path / "net_remat.py", generate(request, QUIET)


def test_a_file_says_for_which_gpu_it_was_estimated(planned):
    file, report = planned
    text = file.read_text()
    assert "--device h100" in command_in(text)
    assert "on cuda, estimated for h100 (compute capability 9.0), in training mode" in text
    saved = plan_in(text)
    assert (saved.device, saved.capability, saved.estimated) == ("cuda", "9.0", "h100")
    assert saved.planned_peak_bytes <= saved.budget_bytes < saved.unmodified_peak_bytes and report.overhead > 0
    assert "absent" not in text


def test_check_update_and_explain_need_no_gpu(planned):
    file, report = planned
    assert check_update.check(file, QUIET).lines() == [f"{file}: up to date"]
    updated = check_update.update(file, QUIET)
    assert not updated.changed and not updated.planned
    assert explain(file, QUIET).peak_bytes == report.planned_peak_bytes
    source = file.parent / "net.py"
    source.write_text(NET.replace(".sin()", ".cos()"))
    assert check_update.check(file, QUIET).reasons[0] == "net.py has changed"


def test_another_gpu_is_another_plan(planned):
    file, _ = planned
    file.write_text(seal(file.read_text().replace("--device h100", "--device v100", 1)))
    assert check_update.update(file, QUIET).planned
    saved = plan_in(file.read_text())
    assert (saved.capability, saved.estimated) == ("7.0", "v100")


@pytest.mark.skipif(torch.cuda.is_available(), reason="tests/cuda has what happens where there is a GPU")
def test_measured_costs_need_the_gpu(planned):
    file, _ = planned
    before = file.read_text()
    with pytest.raises(TargetError, match="'cuda' is not there"):
        check_update.update(file, QUIET, measured=True)
    assert file.read_text() == before


def test_nothing_is_run_on_a_gpu_by_name(planned):
    file, _ = planned
    with pytest.raises(TargetError, match="--verify: costs for a GPU by name are estimated, and nothing is run on it"):
        Request("net.py:Net", "60%", device="h100", verify=True)
    with pytest.raises(TargetError, match="--device: costs for a GPU by name are estimated"):
        pipeline.verify(file, "net.py:Net", inputs=INPUTS, device="h100", progress=QUIET)
    if not torch.cuda.is_available():
        refused = CliRunner().invoke(cli, ["verify", str(file)])
        assert refused.exit_code == 2 and "'cuda' is not there" in refused.stderr
    refused = CliRunner().invoke(cli, ["compare", "net.py:Net", "--measure", "--device", "h100"])
    assert refused.exit_code == 2 and "nothing is run on it" in refused.stderr


def test_in_python_the_model_stays_as_it_is():
    module = zoo.MLP(64, 0.0)
    before = [id(p) for p in module.parameters()]
    plan = remat_codegen.plan(module, (torch.zeros(256, 64),), budget="90%", device="a100-40gb", progress=False)
    assert "estimated for a100-40gb (compute capability 8.0)" in plan.source and "device='a100-40gb'" in plan.source
    assert [id(p) for p in module.parameters()] == before and next(module.parameters()).device.type == "cpu"


def test_a_process_with_a_gpu_is_left_alone(monkeypatch):
    monkeypatch.setattr(api.torch.cuda, "is_available", lambda: True)
    with pytest.raises(RematError, match="this process has a GPU"):
        remat_codegen.plan(zoo.MLP(8, 0.0), (torch.zeros(2, 8),), budget="90%", device="h100", progress=False)


def test_a_model_larger_than_the_memory_is_never_filled(tmp_path, monkeypatch):
    """Two layers of 640 GB, for which --fit says what is missing."""
    (tmp_path / "net.py").write_text(NET)
    monkeypatch.chdir(tmp_path)
    options = {"--init": "layers=2, width=400_000", "--inputs": "float32[8,400000]", "--device": "b200", "--optimizer": "none"}
    shown = CliRunner().invoke(cli, ["net.py:Net", "--fit", *(word for pair in options.items() for word in pair)])
    assert "does not fit into 166.71 GiB: parameters 1192.10 GiB" in " ".join(shown.stderr.split())


class Deciding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        y = self.linear(x)
        return 2 * y if int(x.argmax()) > 3 else y


def test_what_cannot_be_known_is_refused_in_a_line():
    said = "the model decides something by the value of a tensor, and on a GPU that is not there tensors have none"
    with pytest.raises(UnsupportedError) as refused:
        on(H100, Deciding(), torch.zeros(4, 2, 8))
    assert said in refused.value.line() and "--device cuda" in refused.value.line()


@torch.library.custom_op("remat_tests::shifted", mutates_args=())
def shifted(x: torch.Tensor) -> torch.Tensor:
    return x + 1


shifted.register_fake(torch.empty_like)
shifted.register_autograd(lambda ctx, grad: grad)


class Customized(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        return shifted(self.linear(x))


def test_the_time_of_an_operation_of_others_is_not_made_up():
    model = on(H100, Customized(), torch.zeros(4, 8))
    with pytest.raises(UnsupportedError, match="how long remat_tests::shifted takes on h100 is not known") as refused:
        Estimated(H100).of(model)
    assert devices.FILE in refused.value.line()
    told = Estimated(replace(H100, operations_ns={"remat_tests::shifted": 123_000})).of(model)
    assert max(told.time_ns) == 123_000 + H100.launch_ns  # in one node with the kernel before it


def test_what_is_not_known_of_cudnns_convolutions_is_said():
    target = api.given_target(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()), (torch.zeros(1, 3, 8, 8),), "h100", 0)
    traced = trace_loaded(target, Request("m:M", device="h100"), QUIET)
    assert any("cuDNN's convolutions" in note for note in unseen(traced))


def test_a_device_of_another_library_is_not_overwritten(monkeypatch):
    from remat_codegen import torch_seam

    monkeypatch.setattr(torch_seam, "_others_name", lambda: "npu")
    with pytest.raises(VersionError, match="this process has a device of another library, npu"):
        torch_seam.register_absent()


def test_the_device_is_in_nobodys_way_afterwards():
    with absent.on(DEVICES["h100"]):
        pass
    with torch.random.fork_rng():
        torch.rand(1)


class Pictures(nn.Module):
    """Two convolutions and what flattens their result: a copy where channels are last."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.ConvTranspose2d(8, 8, 2, stride=2)
        self.last = nn.Linear(8 * 16 * 16, 2)

    def forward(self, x):
        return self.last(self.second(self.first(x).relu()).flatten(1))


@pytest.mark.parametrize("last", [True, False])
def test_convolutions_hand_on_the_layout_of_their_weights(last):
    layout = torch.channels_last if last else torch.contiguous_format
    model = on(H100, Pictures().to(memory_format=layout), torch.zeros(2, 3, 8, 8))
    made = {op.base: model.record.variables[op.made[0]] for op in model.trace.operations}
    strides = {name: made[name].strides for name in ("conv2d", "relu", "conv_transpose2d")}
    assert all((s[1] == 1) == last for s in strides.values()), strides
