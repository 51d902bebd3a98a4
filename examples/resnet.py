"""ResNet-18 (He et al., 2016) for small pictures, in plain PyTorch.

remat-codegen examples/resnet.py:ResNet --budget 50%
"""

import torch
import torch.nn as nn


class BasicBlock(nn.Module):
    def __init__(self, before: int, after: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(after)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(after)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut = nn.Identity()
        if stride != 1 or before != after:
            self.shortcut = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += self.shortcut(x)
        return self.relu(out)


class ResNet(nn.Module):
    def __init__(self, depths: tuple[int, ...] = (2, 2, 2, 2), width: int = 64, classes: int = 100):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True))
        stages, channels = [], width
        for stage, depth in enumerate(depths):
            for index in range(depth):
                after, stride = width * 2**stage, 2 if stage and not index else 1
                stages.append(BasicBlock(channels, after, stride))
                channels = after
        self.blocks = nn.Sequential(*stages)
        self.fc = nn.Linear(channels, classes)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = self.blocks(self.stem(image))
        return self.fc(x.mean((2, 3)))


def example_inputs() -> tuple[torch.Tensor]:
    return (torch.randn(16, 3, 32, 32),)
