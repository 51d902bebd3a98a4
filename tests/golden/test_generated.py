"""The committed examples: reproduced byte for byte from their plans, and run against their originals."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from remat_codegen import pipeline
from remat_codegen import verify as comparing
from remat_codegen.report import Progress
from remat_codegen.request import Request
from remat_codegen.target import load_target

ROOT = Path(__file__).parents[2]
EXAMPLES = {"gpt2_remat.py": ("examples/gpt2.py:GPT2", "1GiB")}


@pytest.fixture(autouse=True)
def _in_the_root(monkeypatch):
    monkeypatch.chdir(ROOT)


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_plan_gives_the_committed_bytes(name, tmp_path, update_golden):
    target, budget = EXAMPLES[name]
    file, plan = ROOT / "generated" / name, ROOT / "generated" / f"{name}.plan.json"
    if update_golden:  # the plan too, which measures
        pipeline.generate(Request(target, budget, tmp_path / name, save_plan=tmp_path / plan.name), Progress(None))
        shutil.copy(tmp_path / plan.name, plan)
    pipeline.generate(Request(target, None, tmp_path / name, plan=plan), Progress(None))
    if update_golden:
        shutil.copy(tmp_path / name, file)
    assert (tmp_path / name).read_text() == file.read_text()


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_committed_file_is_exact_and_within_its_budget(name):
    target, _ = EXAMPLES[name]
    found = pipeline.verify(ROOT / "generated" / name, target, steps=1, progress=Progress(None))
    assert found.ok, found.failures()
    assert all("bit-identical" in row.detail for row in found.rows[:-1])
    assert found.measured_peak_bytes == pytest.approx(found.planned_peak_bytes, rel=0.02)


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_committed_file_keeps_the_constructor_and_the_state(name):
    target, _ = EXAMPLES[name]
    original = load_target(target).module
    generated = comparing.load_generated(ROOT / "generated" / name)
    same_start = load_target(f"{ROOT / 'generated' / name}:GPT2", inputs="idx=int64[2,512]<50257").module
    assert type(same_start).__name__ == type(original).__name__ and hasattr(generated, "rematerialize")
    assert list(same_start.state_dict()) == list(original.state_dict())
    for ours, theirs in zip(same_start.state_dict().values(), original.state_dict().values(), strict=True):
        assert ours.equal(theirs)
