"""A U-Net (Ronneberger et al. 2015) in plain PyTorch, with a time embedding, as diffusion models use it."""

import math

import torch
import torch.nn.functional as F
from torch import nn


class ResidualBlock(nn.Module):
    def __init__(self, inputs, outputs, time):
        super().__init__()
        self.norm1 = nn.GroupNorm(8, inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.time = nn.Linear(time, outputs)
        self.norm2 = nn.GroupNorm(8, outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.skip = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x, t):
        h = self.conv1(F.silu(self.norm1(x)))
        h = h + self.time(t)[:, :, None, None]
        h = self.conv2(F.silu(self.norm2(h)))
        return h + self.skip(x)


class UNet(nn.Module):
    def __init__(self, channels=3, width=32, levels=3, time=128):
        super().__init__()
        widths = [width * 2**level for level in range(levels)]
        self.frequencies = time // 2
        self.time = nn.Sequential(nn.Linear(time, time), nn.SiLU(), nn.Linear(time, time))
        self.stem = nn.Conv2d(channels, width, 3, padding=1)
        self.down = nn.ModuleList([ResidualBlock(a, b, time) for a, b in zip([width, *widths[:-1]], widths, strict=True)])
        self.shrink = nn.ModuleList([nn.Conv2d(w, w, 3, stride=2, padding=1) for w in widths[:-1]])
        self.middle = ResidualBlock(widths[-1], widths[-1], time)
        self.grow = nn.ModuleList([nn.ConvTranspose2d(2 * w, w, 2, stride=2) for w in reversed(widths[:-1])])
        self.up = nn.ModuleList([ResidualBlock(2 * w, w, time) for w in reversed(widths)])
        self.norm = nn.GroupNorm(8, width)
        self.out = nn.Conv2d(width, channels, 3, padding=1)

    def embed(self, t):
        scale = torch.exp(-math.log(10000) * torch.arange(self.frequencies, device=t.device) / self.frequencies)
        angles = t[:, None] * scale
        return self.time(torch.cat([angles.sin(), angles.cos()], dim=1))

    def forward(self, image, t):
        t = self.embed(t)
        x, skips = self.stem(image), []
        for level, block in enumerate(self.down):
            x = self.shrink[level - 1](x) if level else x
            x = block(x, t)
            skips.append(x)
        x = self.middle(x, t)
        for level, block in enumerate(self.up):
            x = self.grow[level - 1](x) if level else x
            x = block(torch.cat([x, skips.pop()], dim=1), t)
        return self.out(F.silu(self.norm(x)))


def example_inputs():
    return torch.randn(4, 3, 64, 64), torch.randint(1000, (4,)).float()
