"""What cuDNN's convolutions are taken to allocate where the GPU is not there: copies with channels last, Winograd's tiles."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

from remat_codegen.profile import kernel_workspace
from remat_codegen.profile.devices import DEVICES
from remat_codegen.profile.kernel_workspace import _convolved, room_bytes

CONVOLUTION = torch.ops.aten.convolution.default
BACKWARD = torch.ops.aten.convolution_backward.default


@pytest.fixture
def on(monkeypatch):
    """Sets the GPU that is planned for."""
    return lambda name: monkeypatch.setattr(kernel_workspace.absent, "present", lambda: DEVICES[name])


def of_call(x, weight, groups=1):
    how = [1] * (x.dim() - 2), [0] * (x.dim() - 2), [1] * (x.dim() - 2), False, [0] * (x.dim() - 2), groups
    return x, weight, None, *how


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize(("stride", "padding", "dilation", "groups"), [*itertools.product((1, 3), (0, 2), (1, 2), (1, 2))])
def test_the_shape_of_a_result_is_the_one_that_pytorch_finds(dims, back, stride, padding, dilation, groups):
    kind = getattr(nn, f"Conv{'Transpose' if back else ''}{dims}d")
    more = {"output_padding": stride - 1} if back else {}
    layer = kind(4, 6, 3, stride, padding, dilation=dilation, groups=groups, **more).to("meta")
    x = torch.zeros(2, 4, *range(9, 9 + dims), device="meta")
    how = layer.stride, layer.padding, layer.dilation, back, layer.output_padding, groups
    assert tuple(_convolved(x, layer.weight, *how)) == layer(x).shape


@pytest.mark.parametrize(
    ("gpu", "dtype", "layout", "groups", "copied"),
    [
        pytest.param("h100", torch.bfloat16, "first", 1, True, id="tensor cores take channels last"),
        pytest.param("h100", torch.float32, "first", 1, True, id="float32 as tf32"),
        pytest.param("v100", torch.float16, "first", 1, True, id="tensor cores of the first generation"),
        pytest.param("h100", torch.bfloat16, "last", 1, False, id="tensors that lie so need no copy"),
        pytest.param("h100", torch.bfloat16, "first", 32, False, id="each channel alone, by PyTorch's own kernels"),
        pytest.param("h100", torch.float16, "first", 32, True, id="each channel alone, in float16"),
        pytest.param("h100", torch.float64, "first", 1, False, id="double precision"),
    ],
)
def test_what_is_read_and_written_is_copied_for_tensor_cores(on, gpu, dtype, layout, groups, copied):
    on(gpu)
    x = torch.zeros(4, 32, 32, 32, dtype=dtype)
    weight = torch.zeros(32, 32 // groups, 3, 3, dtype=dtype)
    if layout == "last":
        x, weight = (t.to(memory_format=torch.channels_last) for t in (x, weight))
    numbers = x.numel() + weight.numel() + 4 * 32 * 30 * 30
    in_parts = parts(gpu, weight) if copied or layout == "last" else 0
    least = in_parts + (numbers * dtype.itemsize if copied else 0)
    assert least <= room_bytes(CONVOLUTION, of_call(x, weight, groups)) < least + (1024 if copied else 512 if in_parts else 1)


def test_each_channel_alone_is_cudnns_the_other_way_round(on):
    on("h100")
    x, weight = torch.zeros(2, 16, 8, 8, dtype=torch.bfloat16), torch.zeros(16, 1, 2, 2, dtype=torch.bfloat16)
    numbers = x.numel() + weight.numel() + 2 * 16 * 16 * 16
    pieces = x, weight, None, [2, 2], [0, 0], [1, 1], True, [0, 0], 16
    least = 2 * numbers + parts("h100", weight)
    assert least <= room_bytes(CONVOLUTION, pieces) < least + 1024


def test_pytorch_copies_what_does_not_lie_side_by_side_whatever_the_type(on):
    on("v100")
    x, weight = torch.zeros(4, 32, 16).transpose(1, 2), torch.zeros(16, 16, 3)
    assert room_bytes(CONVOLUTION, of_call(x, weight)) == 4 * x.numel()
    there = of_call(x.contiguous(), weight)
    expanded = torch.zeros(1).expand(4, 16, 30)
    back = expanded, x.contiguous(), weight, [16], *there[3:], [True, True, False]
    assert room_bytes(BACKWARD, back) == 4 * expanded.numel()


def test_settings_that_pytorch_does_not_tell_in_one_word_are_read_one_by_one(on, monkeypatch):
    class Mixed:
        conv = type("Conv", (), {"fp32_precision": "ieee"})

        @property
        def allow_tf32(self):
            raise RuntimeError("a mix of the legacy and new APIs")

    on("h100")
    monkeypatch.setattr(torch.backends, "cudnn", Mixed())
    assert room_bytes(CONVOLUTION, of_call(torch.zeros(4, 16, 32, 32), torch.zeros(16, 16, 1, 1))) == 0


def test_without_tf32_nothing_is_copied_for_single_precision(on, monkeypatch):
    on("h100")
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    assert room_bytes(CONVOLUTION, of_call(torch.zeros(4, 16, 32, 32), torch.zeros(16, 16, 1, 1))) == 0


def test_pytorch_copies_what_does_not_lie_as_the_weight(on):
    on("h100")
    x = torch.zeros(4, 32, 32, 32, dtype=torch.float16)
    weight = torch.zeros(32, 32, 3, 3, dtype=torch.float16).to(memory_format=torch.channels_last)
    assert room_bytes(CONVOLUTION, of_call(x, weight)) == 2 * x.numel() + parts("h100", weight)


def test_the_way_back_copies_as_much(on):
    on("h100")
    x, weight = torch.zeros(4, 16, 32, 32, dtype=torch.float16), torch.zeros(16, 16, 3, 3, dtype=torch.float16)
    there = of_call(x, weight)
    back = torch.zeros(4, 16, 30, 30, dtype=torch.float16), x, weight, [16], *there[3:], [True, True, True]
    assert room_bytes(BACKWARD, back) == room_bytes(CONVOLUTION, there) + parts("h100", weight)


MEASURED = {  # input, filters, steps, type, channels last, and the MiB that cuDNN 9.19 took on an H200, there and back
    "of a ResNet": ((64, 64, 56, 56), (64, 64, 3, 3), 1, torch.float32, False, 98.14, 100.11),
    "two steps at a time": ((64, 128, 56, 56), (128, 128, 3, 3), 2, torch.float32, False, 123.06, 130.94),
    "of few, large channels": ((64, 512, 7, 7), (512, 512, 3, 3), 1, torch.float32, False, 21.25, 29.50),
    "of three channels, in halves": ((64, 3, 224, 224), (64, 3, 7, 7), 2, torch.bfloat16, False, 147.05, 152.89),
    "channels last": ((64, 256, 56, 56), (128, 256, 1, 1), 1, torch.float32, True, 0.0, 8.25),
    "three channels, which are last": ((64, 3, 224, 224), (64, 3, 7, 7), 2, torch.bfloat16, True, 49.05, 54.89),
}


@pytest.mark.parametrize(("shape", "filters", "step", "dtype", "last", "there", "back"), MEASURED.values(), ids=MEASURED)
def test_the_rule_gives_what_cudnn_was_seen_to_take(on, shape, filters, step, dtype, last, there, back):
    on("h200")
    layout = torch.channels_last if last else torch.contiguous_format
    x, weight = (torch.empty(size, dtype=dtype, device="meta", memory_format=layout) for size in (shape, filters))
    how = [step] * 2, [filters[2] // 2] * 2, [1, 1], False, [0, 0], 1
    result = torch.empty(_convolved(x, weight, *how), dtype=dtype, device="meta", memory_format=layout)
    forward = room_bytes(CONVOLUTION, (x, weight, None, *how))
    backward = room_bytes(BACKWARD, (result, x, weight, None, *how, [True, True, False]))
    assert there <= forward / 2**20 + 0.01 and back * 0.98 <= backward / 2**20


def test_a_convolution_of_no_channels_takes_nothing_to_speak_of(on):
    on("h200")
    x, weight = torch.zeros(2, 0, 8, 8), torch.zeros(4, 0, 3, 3)
    assert room_bytes(CONVOLUTION, of_call(x, weight)) == 1536  # the result, in a block


def parts(gpu, weight):
    """What a convolution adds up in parts."""
    return DEVICES[gpu].multiprocessors * min(2**16, weight.numel() * weight.element_size())


@pytest.mark.parametrize(("width", "step", "tile"), [(3, 4, 6), (5, 5, 9)])
def test_in_single_precision_input_filters_and_result_are_tiles(on, width, step, tile):
    on("v100")
    x, weight = torch.zeros(4, 16, 40, 40), torch.zeros(32, 16, width, width)
    tiles = 4 * (40 // step) ** 2
    least = 4 * tile**2 * (tiles * 16 + tiles * 32 + 16 * 32)
    there = of_call(x, weight)
    assert least <= room_bytes(CONVOLUTION, there) < least + 512
    back = torch.zeros(4, 32, 41 - width, 41 - width), x, weight, [32], *there[3:], [True, True, True]
    assert room_bytes(BACKWARD, back) == room_bytes(CONVOLUTION, there)


@pytest.mark.parametrize(
    ("width", "groups", "step", "reach", "dtype", "layout"),
    [
        pytest.param(1, 1, 1, 1, torch.float32, "first", id="single numbers"),
        pytest.param(7, 1, 1, 1, torch.float32, "first", id="wide filters"),
        pytest.param(3, 2, 1, 1, torch.float32, "first", id="groups"),
        pytest.param(3, 1, 2, 1, torch.float32, "first", id="two steps at a time"),
        pytest.param(3, 1, 1, 2, torch.float32, "first", id="every other number"),
        pytest.param(3, 1, 1, 1, torch.float64, "first", id="double precision"),
        pytest.param(3, 1, 1, 1, torch.float32, "last", id="channels last"),
    ],
)
def test_what_is_not_winograds_multiplies_matrices(on, width, groups, step, reach, dtype, layout):
    on("v100")
    x, weight = torch.zeros(4, 16, 32, 32, dtype=dtype), torch.zeros(16, 16 // groups, width, width, dtype=dtype)
    if layout == "last":
        x, weight = (t.to(memory_format=torch.channels_last) for t in (x, weight))
    how = [step] * 2, [0] * 2, [reach] * 2, False, [0] * 2, groups
    assert room_bytes(CONVOLUTION, (x, weight, None, *how)) == 0
