"""Models that call an autograd.Function of their own file are marked like others: the file has a copy of it."""

from __future__ import annotations

from second_edition import parts_apart

from remat_codegen.ask.request import Request
from remat_codegen.run import check_update, marked, pipeline
from remat_codegen.show.results import Progress

QUIET = Progress(None)
NET = """import torch
from torch import nn
from torch.autograd.function import once_differentiable


class Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        gate = torch.sigmoid(x)
        ctx.save_for_backward(x, gate)
        return x * gate

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        x, gate = ctx.saved_tensors
        return grad * gate * (1 + x * (1 - gate))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(32, 128), nn.Linear(128, 32)

    def forward(self, x):
        return x + self.down(Swish.apply(self.up(x)))


class Net(nn.Sequential):
    def __init__(self):
        super().__init__(Block(), Block(), Block())
"""


def test_they_are_marked_exact_and_up_to_date(tmp_path, monkeypatch):
    (tmp_path / "net.py").write_text(NET)
    monkeypatch.chdir(tmp_path)
    parts_apart(monkeypatch)
    request = Request("net.py:Net", "60%", tmp_path / "file.py", inputs="float32[256,32]", edition=2)
    marked.generate(request, QUIET)
    assert "Swish.apply, self.up(x)" in request.output_path.read_text()
    assert pipeline.verify(request.output_path, "net.py:Net", inputs="float32[256,32]", steps=1, progress=QUIET).ok
    assert check_update.check(request.output_path, QUIET).lines() == [f"{request.output_path}: up to date"]
    (tmp_path / "net.py").write_text(NET.replace("x * gate\n", "gate * x\n", 1))
    assert check_update.check(request.output_path, QUIET).reasons
