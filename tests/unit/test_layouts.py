"""channels_last: a file is for the memory format that was traced, and says so where it gets another."""

from __future__ import annotations

import importlib.util

import pytest
import torch

from remat_codegen import pipeline
from remat_codegen.report import Progress
from remat_codegen.request import Request

MODEL = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, c=8):
        super().__init__()
        self.f = nn.Sequential(nn.Conv2d(3, c, 3, padding=1), nn.ReLU(), nn.Conv2d(c, c, 3, padding=1), nn.MaxPool2d(2))
        self.head = nn.Linear(c * 16, 10)

    def forward(self, x):
        h = self.f(x).contiguous()
        return self.head(h.view(h.size(0), -1))


def last():
    return Net().to(memory_format=torch.channels_last)


def example_inputs():
    return torch.randn(4, 3, 8, 8)


def last_inputs():
    return example_inputs().to(memory_format=torch.channels_last)
"""


def made(write_file, tmp_path, name, inputs):
    file = write_file(MODEL)
    request = Request(f"{file}:{name}", "100%", tmp_path / "out.py", inputs=f"{file}:{inputs}", verify=True)
    assert pipeline.generate(request, Progress(None)).verify.ok
    spec = importlib.util.spec_from_file_location("out", tmp_path / "out.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Net()


def test_a_file_for_contiguous_tensors_says_so(write_file, tmp_path):
    net, x = made(write_file, tmp_path, "Net", "example_inputs"), torch.randn(4, 3, 8, 8)
    net(x), net(x.permute(2, 3, 0, 1).contiguous().permute(2, 3, 0, 1))  # strides of its own are no memory format
    with pytest.raises(ValueError, match="x in another memory format: this file was planned without channels_last"):
        net(x.to(memory_format=torch.channels_last))
    with pytest.raises(ValueError, match="parameters in another memory format"):
        net.to(memory_format=torch.channels_last)(x)


def test_a_file_for_channels_last_says_so(write_file, tmp_path):
    net = made(write_file, tmp_path, "last", "last_inputs").to(memory_format=torch.channels_last)
    x = torch.randn(4, 3, 8, 8).to(memory_format=torch.channels_last)
    net(x).sum().backward()
    with pytest.raises(ValueError, match="x in another memory format: this file was planned for channels_last"):
        net(x.contiguous())
