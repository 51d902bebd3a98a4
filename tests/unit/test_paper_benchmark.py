"""benchmarks/paper.py on a small GPT-2: its graph in the paper's accounting, and what planners and the bound make of that."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
import torch

from remat_codegen.schedule import simulate, without_recomputation

ROOT = Path(__file__).parents[2]


@pytest.fixture
def paper(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    import paper

    return paper


def test_a_row_is_planned_within_its_bound(paper: ModuleType) -> None:
    from gpt2 import GPT2

    make = lambda: GPT2(layers=2, width=32, heads=2, vocabulary=64, context=16)  # noqa: E731
    graph, profile = paper.priced(make, torch.zeros(2, 16, dtype=torch.int64))
    found: dict = {}
    row = paper.Row("small", "GPT-2 of two layers", lambda: (graph, profile), 0.7)
    paper.run(row, ["rockmate", "auto"], found, lambda: None)

    assert found["plain_bytes"] == simulate(graph, profile, without_recomputation(graph)).peak_bytes
    overheads = [found["planners"][name]["overhead"] for name in ("rockmate", "auto")]
    assert 0 < found["bound"] <= overheads[1] <= overheads[0]
    assert max(profile.workspace_bytes) > 0
