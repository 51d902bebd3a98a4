"""What tests of this folder take for granted of a device, null or real: its allocator, generators, streams and limits."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

MIB = 1 << 20


def states() -> list[torch.Tensor]:
    return [torch.cuda.get_rng_state(index) for index in range(torch.cuda.device_count())]


def said(program: str, **environment: str) -> str:
    """The last line that a program prints in a process of its own. Raises AssertionError where it does not end in peace."""
    command = [sys.executable, "-c", f"import torch\n{program}"]
    ended = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.splitlines()[-1]


def on_null_gpu() -> bool:
    return "Null GPU" in torch.cuda.get_device_name(0)


def test_allocator_counts(device: str) -> None:
    before, requested = torch.cuda.memory_allocated(device), torch.cuda.memory_stats(device)["requested_bytes.all.current"]
    held = torch.empty(1000, device=device)
    assert torch.cuda.memory_stats(device)["requested_bytes.all.current"] - requested == 4000
    assert torch.cuda.memory_allocated(device) - before == 4096  # rounded to 512 bytes
    torch.cuda.reset_peak_memory_stats(device)
    torch.empty(4 * MIB, dtype=torch.uint8, device=device)
    del held
    assert torch.cuda.memory_allocated(device) == before
    assert torch.cuda.max_memory_allocated(device) - before == 4096 + 4 * MIB


def test_a_devices_dropout_moves_its_own_generator(device: str, second_device: str) -> None:
    for index, name in enumerate((device, second_device)):
        before = states()
        F.dropout(torch.ones(100, device=name))
        moved = [not torch.equal(a, b) for a, b in zip(before, states(), strict=True)]
        assert moved == [i == index for i in range(len(moved))]


def test_copies_keep_values(device: str) -> None:
    numbers = torch.arange(1000.0)
    assert torch.equal(numbers.to(device).cpu(), numbers)


def test_copies_between_devices_keep_values(device: str, second_device: str) -> None:
    copied = torch.arange(1000.0).to(device).to(second_device)
    assert copied.device == torch.device(second_device)
    assert torch.equal(copied.cpu(), torch.arange(1000.0))


def test_backward_runs_in_a_thread_of_the_device(device: str) -> None:
    import threading

    threads = []
    x = torch.ones(4, device=device, requires_grad=True)
    x.register_hook(lambda _: threads.append(threading.get_ident()))
    (2 * x).sum().backward()
    assert threads and threads[0] != threading.get_ident()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_layers_train(device: str, dtype: torch.dtype) -> None:
    """Kernels of convolutions, normalisations, matrix products, recurrences and attention can all be launched."""
    image = torch.randn(2, 3, 8, 8, device=device, dtype=dtype)
    convolution = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU())
    features = convolution.to(device, dtype)(image).flatten(2)
    found, _ = torch.nn.LSTM(36, 32, 2, dropout=0.1).to(device, dtype)(features)
    heads = torch.nn.LayerNorm(32).to(device, dtype)(found).unsqueeze(1)
    F.scaled_dot_product_attention(heads, heads, heads, is_causal=True, dropout_p=0.1).sum().backward()
    assert all(p.grad is not None for p in convolution.parameters())


@pytest.mark.real_gpu
def test_kernels_compute(device: str) -> None:
    x = torch.randn(64, 64, dtype=torch.float64)
    torch.testing.assert_close((x.to(device) @ x.to(device)).cpu(), x @ x)


def test_memory_ends() -> None:
    """NULLGPU_BYTES says how much a null device has; of a real one, torch's own limit takes the place."""
    limit = "import os; torch.cuda.set_per_process_memory_fraction(1e-3)" if not on_null_gpu() else ""
    free = "torch.cuda.mem_get_info()" if on_null_gpu() else f"(0, {64 * MIB})"
    program = f"""{limit}
held = torch.empty(40 * 2**20, dtype=torch.uint8, device="cuda")
try:
    torch.empty(10**12 if {not on_null_gpu()} else 40 * 2**20, dtype=torch.uint8, device="cuda")
except torch.OutOfMemoryError:
    print("out of memory", {free}[1])
"""
    assert said(program, NULLGPU_BYTES=str(64 * MIB)) == f"out of memory {64 * MIB}"


@pytest.mark.skipif(
    "not torch.cuda.is_available() or 'Null' not in torch.cuda.get_device_name(0)", reason="sets the null GPU's"
)
def test_capability_is_what_the_environment_says() -> None:
    assert said("print(torch.cuda.get_device_capability())", NULLGPU_CAPABILITY="80") == "(8, 0)"


def test_process_ends_in_peace() -> None:
    """Even where Python ends while autograd's thread still drops the graph of a backward pass."""
    program = """
x = torch.randn(8, 8, device="cuda", requires_grad=True)
torch.nn.functional.dropout(x @ x).sum().backward()
print("done")"""
    assert [said(program) for _ in range(3)] == ["done"] * 3
