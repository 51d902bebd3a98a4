"""How tensors lie in memory: a file is for the memory format that was traced, and a record knows how real tensors would lie."""

from __future__ import annotations

import importlib.util
import itertools

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses import FakeTensorMode

from remat_codegen.ask.request import Request
from remat_codegen.graph.fake_strides import Layouts
from remat_codegen.run import pipeline
from remat_codegen.show.results import Progress

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


# ------------------------------------------------------------------------------------------- what a record takes to be laid out

ORDERS = [(0, 1, 2, 3), (0, 2, 3, 1), (0, 1, 3, 2), (0, 2, 1, 3), (1, 0, 2, 3)]
LAID_OUT = {
    "layer_norm": lambda x: F.layer_norm(x, x.shape[-1:], torch.ones(6, requires_grad=True)),
    "layer_norm of two": lambda x: F.layer_norm(x, x.shape[-2:]),
    "group_norm": lambda x: F.group_norm(x, 2),
    "rms_norm": lambda x: F.rms_norm(x, x.shape[-1:]),
    "batch_norm": lambda x: F.batch_norm(x, torch.zeros(8), torch.ones(8), training=True),
    "batch_norm of a part": lambda x: F.batch_norm(x[:, :4], torch.zeros(4), torch.ones(4), training=True),
    "batch_norm in evaluation": lambda x: F.batch_norm(x[:, :4], torch.zeros(4), torch.ones(4)),
    "instance_norm": F.instance_norm,
    "softmax": lambda x: F.softmax(x, 1),
    "log_softmax": lambda x: F.log_softmax(x, -1),
    "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid,
    "relu6": F.relu6,
    "softplus": F.softplus,
    "elu": F.elu,
    "gelu": F.gelu,
    "silu": F.silu,
    "logsigmoid": F.logsigmoid,
    "glu": lambda x: F.glu(x, 1),
    "roll": lambda x: x.roll((1, -2), (1, 2)),
    "reflect": lambda x: F.pad(x, (1, 1, 1, 1), "reflect"),
    "replicate": lambda x: F.pad(x, (1, 1, 1, 1), "replicate"),
    "mse_loss": lambda x: F.mse_loss(x, torch.zeros(x.shape), reduction="none"),
    "smooth_l1_loss": lambda x: F.smooth_l1_loss(x, torch.zeros(x.shape), reduction="none"),
    "huber_loss": lambda x: F.huber_loss(x, torch.zeros(x.shape), reduction="none"),
    "binary_cross_entropy": lambda x: F.binary_cross_entropy(x.sigmoid(), torch.zeros(x.shape), reduction="none"),
    "logit": lambda x: x.sigmoid().logit(),
    "rrelu": F.rrelu,
    "rrelu in training": lambda x: F.rrelu(x, training=True),
    "channel_shuffle": lambda x: F.channel_shuffle(x, 2),
}


def in_order(shape, order):
    """Random numbers that lie in memory as if the dimensions came in that order."""
    return torch.randn([shape[d] for d in order]).permute([order.index(d) for d in range(len(order))])


def strides(function, order, gradient_order):
    x = in_order((2, 8, 4, 6), order).requires_grad_()
    found, h = [], x.view_as(x)
    h.register_hook(lambda gradient: found.append(gradient.stride()))
    out = function(h)
    out.backward(in_order(out.shape, gradient_order))
    return out.stride(), *found


@pytest.mark.parametrize("name", LAID_OUT)
def test_results_and_gradients_lie_as_real_ones_do(name):
    """A gradient in another order is copied by the next operation back: room that a plan has to know of."""
    for order, gradient_order in itertools.product(ORDERS, ORDERS):
        real = strides(LAID_OUT[name], order, gradient_order)
        with FakeTensorMode(allow_non_fake_inputs=True), Layouts():
            assert strides(LAID_OUT[name], order, gradient_order) == real, (order, gradient_order)
