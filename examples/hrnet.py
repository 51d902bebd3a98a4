"""A small HRNet (Wang et al., 2019) in plain PyTorch: branches of several resolutions, which exchange what they know.

remat-codegen examples/hrnet.py:HRNet --budget 60%
"""

import torch
import torch.nn.functional as F
from torch import nn


def conv(before: int, after: int, stride: int = 1, size: int = 3) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(before, after, size, stride, size // 2, bias=False), nn.BatchNorm2d(after))


class BasicBlock(nn.Module):
    def __init__(self, channels: int):
        super().__init__()
        self.conv1, self.conv2 = conv(channels, channels), conv(channels, channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.conv1(x))
        return F.relu(self.conv2(y) + x)


class Exchange(nn.Module):
    """Gives each branch the sum of all, brought to its resolution."""

    def __init__(self, channels: list[int]):
        super().__init__()
        count = range(len(channels))
        self.ways = nn.ModuleList(nn.ModuleList(self._way(channels, i, to) for i in count) for to in count)

    @staticmethod
    def _way(channels: list[int], before: int, after: int) -> nn.Module:
        if before == after:
            return nn.Identity()
        if before > after:
            return nn.Sequential(
                conv(channels[before], channels[after], size=1), nn.Upsample(scale_factor=2 ** (before - after))
            )
        steps = [conv(channels[before], channels[before], 2) for _ in range(after - before - 1)]
        return nn.Sequential(*steps, conv(channels[before], channels[after], 2))

    def forward(self, branches: list[torch.Tensor]) -> list[torch.Tensor]:
        found = []
        for ways in self.ways:
            total = ways[0](branches[0])
            for way, branch in zip(ways[1:], branches[1:], strict=True):
                total = total + way(branch)
            found.append(F.relu(total))
        return found


class Stage(nn.Module):
    def __init__(self, channels: list[int], blocks: int):
        super().__init__()
        self.branches = nn.ModuleList(nn.Sequential(*(BasicBlock(c) for _ in range(blocks))) for c in channels)
        self.exchange = Exchange(channels)

    def forward(self, branches: list[torch.Tensor]) -> list[torch.Tensor]:
        return self.exchange([branch(x) for branch, x in zip(self.branches, branches, strict=True)])


class HRNet(nn.Module):
    def __init__(self, width: int = 16, blocks: int = 2, stages: int = 3, classes: int = 10):
        super().__init__()
        widths = [width * 2**i for i in range(stages)]
        self.stem = conv(3, width, 2)
        self.stages = nn.ModuleList(Stage(widths[: i + 1], blocks) for i in range(stages))
        self.down = nn.ModuleList(conv(widths[i], widths[i + 1], 2) for i in range(stages - 1))
        self.head = nn.Conv2d(sum(widths), classes, 1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        branches = [F.relu(self.stem(image))]
        for index, stage in enumerate(self.stages):
            branches = stage(branches)
            if index < len(self.down):
                branches = [*branches, F.relu(self.down[index](branches[-1]))]
        size = branches[0].shape[-2:]
        return self.head(torch.cat([F.interpolate(b, size) for b in branches], 1))


def example_inputs() -> tuple[torch.Tensor]:
    return (torch.randn(4, 3, 64, 64),)
