"""What estimated times are fitted by, and what is written of a GPU."""

from __future__ import annotations

import math
import random
import tomllib
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from remat_codegen.profile.devices import DEVICES, read_devices
from remat_codegen.profile.estimated import Kernel

ROOT = Path(__file__).parents[2]


@pytest.fixture
def calibrate(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """benchmarks/calibrate.py."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import calibrate

    return calibrate


def pairs(calibrate: ModuleType, fit: object, noise: float) -> list:
    """Work of one kernel each, which takes what a fit says, but for noise."""
    draw = random.Random(0)
    names = draw.choices(("mm", "bernoulli_"), (3, 1), k=200)
    kernels = [Kernel(n, 10 ** draw.uniform(-1, 5), 10 ** draw.uniform(-1, 5) if n == "mm" else 0.0) for n in names]
    return [calibrate.Pair(max(1, round(fit.time_ns(k) * math.exp(draw.gauss(0, noise)))), (k,)) for k in kernels]


@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_a_fit_finds_the_figures_that_times_come_from(calibrate, noise):
    fit = calibrate.Fit(3e10, 5e9, 4000.0, 1e9)
    found = calibrate.fitted(pairs(calibrate, fit, noise), calibrate.Fit(1e11, 1e10, 3000.0, 1e10))
    for name in ("flops", "bytes_per_s", "launch_ns", "drawn_per_s"):
        assert getattr(found, name) == pytest.approx(getattr(fit, name), rel=0.05 + noise)


@pytest.fixture
def here(calibrate, monkeypatch):
    """Has a GPU of a name be here."""

    def name(name: str) -> None:
        there = SimpleNamespace(name=name, major=9, minor=0, multi_processor_count=132, total_memory=80 << 30)
        there.L2_cache_size = 50 << 20
        monkeypatch.setattr(calibrate.torch.cuda, "get_device_properties", lambda device: there)
        monkeypatch.setattr(calibrate.torch.cuda, "get_device_name", lambda device: name)

    return name


def test_the_entry_of_a_gpu_is_one_that_is_read(calibrate, here, tmp_path):
    here("A GPU (80GB)")
    text = calibrate.entry("cuda", calibrate.Fit(4.5e13, 2.25e12, 3456.7, 2.25e12))
    (tmp_path / "remat_devices.toml").write_text(text)
    [(key, device)] = read_devices(tmp_path / "remat_devices.toml").items()
    assert key == "a-gpu-80gb" and tomllib.loads(text)[key]["name"] == "A GPU (80GB)"
    assert (device.flops, device.bytes_per_s, device.launch_ns) == (4.5e13, 2.25e12, 3457)
    assert (device.capability, device.multiprocessors, device.memory_bytes) == ("9.0", 132, 80 << 30)


def test_a_listed_gpu_keeps_its_peaks_and_is_fitted_by_parts_of_them(calibrate, here, tmp_path):
    here("NVIDIA H100 80GB HBM3")
    listed = DEVICES["h100"]
    assert calibrate.in_table("cuda") is listed and calibrate.in_table("cpu") is None
    here("NVIDIA H100 PCIe")
    assert calibrate.in_table("cuda") is None
    here("NVIDIA L40S")
    assert calibrate.in_table("cuda") is None  # which has other multiprocessors than the one that is here
    here("NVIDIA H100 80GB HBM3")
    text = calibrate.entry("cuda", calibrate.Fit(0.5 * calibrate.UNIT, 0.75 * calibrate.UNIT, 4000.0))
    (tmp_path / "remat_devices.toml").write_text(text)
    [device] = read_devices(tmp_path / "remat_devices.toml").values()
    assert dict(device.peaks) == pytest.approx(dict(listed.peaks), rel=0.01) and device.bytes_per_s == pytest.approx(
        listed.bytes_per_s, rel=0.01
    )
    assert (device.reached_flops, device.reached_bytes, device.launch_ns) == (0.5, 0.75, 4000)
