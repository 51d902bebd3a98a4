"""What forward's own variables hold is there whatever a table has run again."""

from __future__ import annotations

import pytest

from remat_codegen.ask.request import Request
from remat_codegen.errors import BudgetError
from remat_codegen.marked.choose import Chooser
from remat_codegen.run import marked, pipeline
from remat_codegen.show.results import Progress

MODEL = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(64, 64), nn.Linear(64, 8)

    def forward(self, x):
        a = self.inner(x)
        b = a.sin()
        c = b.cos()
        d = c.sin()
        e = d.cos()
        return self.outer(e.sin())


def example_inputs():
    return torch.randn(512, 64)
"""


def asked(folder, edition: int | None) -> Request:
    (folder / "net.py").write_text(MODEL)
    return Request(f"{folder}/net.py:Net", "70%", output=folder / "net_remat.py", edition=edition)


def test_no_table_is_looked_for_below_what_variables_hold(tmp_path, monkeypatch):
    tried: list[int] = []
    own = Chooser._count
    monkeypatch.setattr(Chooser, "_count", lambda self: (tried.append(1), own(self))[1])
    with pytest.raises(BudgetError, match=r"forward takes .* by what its variables hold") as refused:
        marked.generate(asked(tmp_path, 2), Progress(None))
    assert refused.value.hint is not None and "which one takes" in refused.value.hint
    assert len(tried) < 30


def test_functions_which_let_go_of_them_come_instead(tmp_path):
    request = asked(tmp_path, None)
    marked.generate(request, Progress(None))
    assert "PLAN = {" not in request.output_path.read_text()
    assert pipeline.verify(request.output_path, request.target, steps=2, progress=Progress(None)).ok
