"""What CUDA's reductions allocate beside their result: to the byte what PyTorch 2.14.1 took on a GPU of 132 multiprocessors."""

from __future__ import annotations

import pytest
import torch

from remat_codegen.profile.devices import DEVICES
from remat_codegen.profile.kernel_workspace import room_bytes
from remat_codegen.trace import absent

aten = torch.ops.aten
HALF = torch.bfloat16


def room(shape, dims, dtype=torch.float32, turned=False, operation=aten.sum.dim_IntList, gpu="h100"):
    with absent.on(DEVICES[gpu]):
        x = torch.empty(shape, dtype=dtype, device=absent.TYPE)
        return room_bytes(operation, (x.transpose(0, -1) if turned else x, dims))


@pytest.mark.parametrize(
    ("shape", "dims", "taken"),
    [
        ((1024, 5000), [0], 41943552),
        ((1024, 4096), [0], 33554944),
        ((1024, 5001), [0], 0),  # outputs one by one
        ((1024, 768), [0], 6291968),
        ((4096, 768), [0], 25166336),
        ((8192, 3072), [0], 138412544),
        ((512, 1000), [0], 0),  # little to do for a thread
        ((1024, 5000), [1], 0),
        ((8, 128, 768), [0, 1], 6291968),
        ((32, 1024, 768), [0, 1], 138412544),
        ((100000, 64), [0], 12812800),
        ((1000000, 8), [0], 250880),
        ((1024, 5000), [], 3072),
        ((8192, 50257), [0], 0),  # enough outputs for all
        ((1, 1), [0], 0),
    ],
)
def test_sums_take_what_blocks_leave_for_each_other(shape, dims, taken):
    assert room(shape, dims) == taken
    assert room(shape, dims, HALF) == taken  # sums of halves are in single precision


def test_it_depends_on_layout_type_and_gpu():
    assert room((1024, 5000), [1], turned=True) == room((1024, 5000), [0])  # the same, turned
    assert room((1024, 768), [0], torch.float64) > 1.9 * room((1024, 768), [0])
    assert room((1024, 768), [0], operation=aten.amax.default) == room((1024, 768), [0])
    assert room((1024, 768), [0], operation=aten.var.correction) > 3.9 * room((1024, 768), [0])
    assert room((8192, 3072), [0], gpu="t4") < room((8192, 3072), [0])  # fewer threads wait for work
