"""benchmarks/smallest_gpu.py asks GPUs in order until one fits: tried with a small model; and its own models are counted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from remat_codegen.profile.devices import DEVICES

ROOT = Path(__file__).parents[2]
MIB = 2**20
TINY = """
import torch
from torch import nn


class Tiny(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(256, 256) for _ in range(8))

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(torch.nn.functional.gelu(layer(x)))
        return x


def tiny():
    return Tiny()
"""
PARAMETERS = {
    "resnet50": 25_557_032,
    "vit_b": 86_567_656,
    "vit_l": 304_326_632,
    "gpt2_medium": 354_823_168,
    "gpt2_large": 774_030_080,
    "gpt2_xl": 1_557_611_200,
    "bert_large": 334_094_338,
    "stable_diffusion": 859_520_964,
    "llama_1b": 1_235_814_400,
    "llama_8b": 8_030_261_248,
}


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import smallest_gpu

    return smallest_gpu


def test_models_are_as_large_as_known(bench: ModuleType) -> None:
    import known_models

    with torch.device("meta"):
        made = {row.key: getattr(known_models, row.key)() for row in bench.ROWS}
    assert {key: sum(p.numel() for p in model.parameters()) for key, model in made.items()} == PARAMETERS


def test_the_first_that_fits_is_the_smallest(bench: ModuleType) -> None:
    does_not, has_plan = (
        {"left_bytes": 5, "plain_bytes": 20, "least_bytes": 7},
        {
            "left_bytes": 10,
            "plain_bytes": 20,
            "overhead": 0.1,
        },
    )
    fits, skipped = {"left_bytes": 30, "plain_bytes": 21}, {"left_bytes": -3, "skipped": "nothing is left"}
    assert bench.smallest({"h100": fits, "a10": has_plan, "l4": does_not, "t4": skipped}) == ("h100", "a10")
    assert bench.smallest({"t4": fits}) == ("t4", "t4")
    assert bench.smallest({"t4": skipped, "l4": does_not}) == (None, None)
    assert bench.smallest({"l4": has_plan}) == (None, "l4")
    assert bench.overhead({"h100": fits, "a10": has_plan}) == 0.1
    assert bench.overhead({"t4": fits}) == 0.0


def test_a_gpu_with_far_too_little_is_not_asked(bench: ModuleType) -> None:
    failed = {"t4": {"left_bytes": 500, "plain_bytes": 2000, "least_bytes": 1000}}
    assert bench.not_worth(0, {}, planning=True) == "nothing is left"
    assert bench.not_worth(1, {}, planning=True) is None
    assert bench.not_worth(899, failed, planning=True) == "far too little is left"
    assert bench.not_worth(901, failed, planning=True) is None
    assert bench.not_worth(901, failed, planning=False) == "far too little is left"
    assert bench.not_worth(1801, failed, planning=False) is None


def test_gpus_are_asked_until_one_fits(bench: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    target = tmp_path / "tiny_model.py"
    target.write_text(TINY)
    row = bench.Row("tiny", "tiny", "65,536 rows", "float32[65536,256]", "nowhere")
    memory = {"t4": 60, "l4": 400, "v100": 700, "h100": 2000, "b200": 4000}
    made = [replace(DEVICES[key], memory_bytes=mib * MIB) for key, mib in memory.items()]
    monkeypatch.setattr(bench, "gpus", lambda: made)
    monkeypatch.setattr(bench.choosing, "CUDAS_BYTES", 0)
    found: dict[str, Any] = {}
    saved: list[int] = []
    bench.run(row, found, lambda: saved.append(len(found["gpus"])), target)
    asked = found["gpus"]
    assert asked["t4"]["skipped"] == "nothing is left"
    assert bench.smallest(asked) == ("h100", "l4") and "b200" not in asked
    assert saved == [1, 2, 3, 4]
    plan = asked["l4"]
    assert plan["peak_bytes"] <= plan["left_bytes"] < plan["plain_bytes"] <= asked["h100"]["left_bytes"]
    assert plan["bound"] <= plan["overhead"]
    assert sum(found["standing"].values()) == memory["l4"] * MIB - plan["left_bytes"]

    del asked["h100"]
    monkeypatch.setattr(bench, "ask", lambda *args, **more: {"left_bytes": 1, "plain_bytes": 1})
    bench.run(row, found, lambda: None, target)
    assert asked["l4"] is plan and bench.smallest(asked) == ("h100", "l4")
