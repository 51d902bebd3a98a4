"""Models as text, which several modules of tests write into files of their own."""

NET = """
import torch
import torch.nn.functional as F


class Step(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.query, self.out = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x):
        scores = self.query(x)  # as wide as four
        probs = F.softmax(scores, -1) * 0.5
        return x + self.out(F.gelu(probs))


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.steps = torch.nn.ModuleList([Step(32) for _ in range(4)])

    def forward(self, x):
        for step in self.steps:
            x = step(x)
        return x


def example_inputs():
    return (torch.randn(64, 32),)
"""
