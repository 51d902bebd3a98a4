"""The models that planners are compared on: `models.py:NAME` is a target, `models.py:NAME_inputs` its inputs.

torchvision's models are built beside a PyTorch for which there may be no torchvision build: tests/models/torchvision_cpu.py.
"""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F

ROOT = Path(__file__).parents[1]
sys.path += [str(ROOT / "examples"), str(ROOT / "tests" / "models")]


def gpt2(layers=6):
    from gpt2 import GPT2

    return GPT2(layers=layers, width=256, heads=4, vocabulary=5000, context=256)


def gpt2_inputs():
    return (torch.randint(5000, (2, 256)),)


def resnet101():
    import torchvision_cpu  # noqa: F401, I001 - first
    import torchvision

    return torchvision.models.resnet101(weights=None)


def regnet():
    import torchvision_cpu  # noqa: F401, I001 - first
    import torchvision

    return torchvision.models.regnet_y_400mf(weights=None)


def mixer():
    import torchvision_cpu  # noqa: F401, I001 - first
    import timm

    return timm.create_model("mixer_s32_224")


def transformer():
    return nn.Transformer(128, 4, 4, 4, 256, batch_first=True)


def images():
    return (torch.randn(2, 3, 224, 224),)


def mixer_inputs():
    return (torch.randn(8, 3, 224, 224),)


resnet101_inputs = regnet_inputs = images


def transformer_inputs():
    return torch.randn(2, 128, 128), torch.randn(2, 128, 128)


class Convolutions(nn.Module):
    """Two convolutions with batch normalisation, as in every level of a U-Net."""

    def __init__(self, channels, out):
        super().__init__()
        self.first = nn.Conv2d(channels, out, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(out)
        self.second = nn.Conv2d(out, out, 3, padding=1, bias=False)
        self.norm_2 = nn.BatchNorm2d(out)

    def forward(self, x):
        x = F.relu(self.norm(self.first(x)))
        return F.relu(self.norm_2(self.second(x)))


class UNet(nn.Module):
    """Ronneberger et al. 2015, narrower."""

    def __init__(self, width=16, levels=4):
        super().__init__()
        widths = [width << level for level in range(levels + 1)]
        self.down = nn.ModuleList(Convolutions(a, b) for a, b in zip([3, *widths[:-2]], widths[:-1], strict=True))
        self.bottom = Convolutions(widths[-2], widths[-1])
        self.up = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, 2) for a, b in pairwise(widths))
        self.join = nn.ModuleList(Convolutions(2 * a, a) for a in widths[:-1])
        self.head = nn.Conv2d(width, 2, 1)

    def forward(self, x):
        skips = []
        for block in self.down:
            x = block(x)
            skips.append(x)
            x = F.max_pool2d(x, 2)
        x = self.bottom(x)
        for up, join, skip in zip(reversed(self.up), reversed(self.join), reversed(skips), strict=True):
            x = join(torch.cat((skip, up(x)), 1))
        return self.head(x)


def unet():
    return UNet()


def unet_inputs():
    return (torch.randn(2, 3, 128, 128),)
