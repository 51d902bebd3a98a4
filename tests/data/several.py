"""Small models of kinds that tables meet in different ways: dropout and views, batch norms and writes in place, modules within
modules that return several tensors, modules and methods that are called twice."""

import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, width, heads=4):
        super().__init__()
        self.qkv, self.out, self.drop, self.heads = nn.Linear(width, 3 * width), nn.Linear(width, width), nn.Dropout(0.1), heads

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = [y.view(batch, length, self.heads, -1).transpose(1, 2) for y in self.qkv(x).chunk(3, -1)]
        attention = self.drop((q @ k.mT * 0.3).softmax(-1))
        return self.out((attention @ v).transpose(1, 2).reshape(batch, length, width))


class Views(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.attentions = nn.ModuleList(Attention(width) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(4))
        layers = (nn.Linear(width, 2 * width), nn.GELU(), nn.Dropout(0.2), nn.Linear(2 * width, width))
        self.mlp = nn.Sequential(*layers)

    def forward(self, x):
        for i, attention in enumerate(self.attentions):
            x = x + attention(self.norms[2 * i](x))
            x = x + self.mlp(self.norms[2 * i + 1](x))
        return x


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first, self.second = (nn.Conv2d(width, width, 3, padding=1) for _ in range(2))
        self.norm, self.last, self.relu = nn.BatchNorm2d(width), nn.BatchNorm2d(width), nn.ReLU(inplace=True)

    def forward(self, x):
        y = self.relu(self.norm(self.first(x)))
        y = self.last(self.second(y))
        y += x
        return self.relu(y)


class Norms(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.stem, self.pool = nn.Conv2d(3, width, 3, padding=1), nn.MaxPool2d(2)
        self.blocks = nn.ModuleList(Block(width) for _ in range(3))

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.pool(x).flatten(1)


class Inner(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.a, self.b = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x):
        x = x + torch.tanh(self.a(x))
        return x * torch.sigmoid(self.b(x))


class Middle(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first, self.second, self.norm = Inner(width), Inner(width), nn.LayerNorm(width)

    def forward(self, x):
        x = x + self.first(x)
        y = self.second(self.norm(x))
        return x.exp().clamp(max=3) * y, y


class Nested(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.first, self.second, self.out = Middle(width), Middle(width), nn.Linear(width, width)

    def forward(self, x):
        a, b = self.first(x)
        c, d = self.second(a + b.sin())
        return self.out(c) + d, (a * b).tanh()


class Twice(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.inner, self.norm = Inner(width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 3 * width), nn.Linear(3 * width, width)

    def gated(self, x):
        h = self.up(x)
        return self.down(F.silu(h) * h.tanh())

    def forward(self, x):
        for _ in range(2):
            x = x + self.inner(self.norm(x))
            x = x + self.gated(x)
        return F.normalize(x, dim=-1) * 2


class Merging(nn.Module):
    """Gates from the halves of one result, and neighbours that become channels, as in Swin: gradients of views go early."""

    def __init__(self, width=32):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(2 * width, width)
        self.reduction, self.drop = nn.Linear(4 * width, 2 * width), nn.Dropout(0.0)

    def forward(self, x):
        batch, length, width = x.shape
        a, b = self.up(self.norm(x)).chunk(2, -1)
        x = x + self.drop(self.down(torch.sigmoid(a) * torch.tanh(b) * torch.exp(-a * a)))
        x = x.view(batch, length // 4, 2, 2, width)
        x = torch.cat([x[:, :, 0, 0], x[:, :, 1, 0], x[:, :, 0, 1], x[:, :, 1, 1]], -1)
        return self.reduction(F.layer_norm(x, x.shape[-1:]))


class Pyramid(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.stages = nn.Sequential(Merging(width), Merging(2 * width))

    def forward(self, x):
        return self.stages(x)


class Taught(nn.Module):
    """Of a teacher that is not trained, nobody keeps anything: what a norm is given goes before a convolution takes its result."""

    def __init__(self):
        super().__init__()
        self.student, self.teacher = self.tower(), self.tower().requires_grad_(False)

    @staticmethod
    def tower():
        first = (nn.Conv2d(3, 24, 3, padding=1), nn.BatchNorm2d(24), nn.ReLU())
        return nn.Sequential(*first, nn.Conv2d(24, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten())

    def forward(self, x):
        with torch.no_grad():
            target = self.teacher(x)
        return (self.student(x) - target).square().mean()


class States(nn.Module):
    """Gives back what its layers gave, as models of transformers do; each is saved by the next, and by none of its own."""

    def __init__(self, width=32):
        super().__init__()
        self.first, self.layers = nn.Linear(width, width), nn.ModuleList(Inner(width) for _ in range(3))

    def forward(self, x):
        states = [self.first(x)]
        for layer in self.layers:
            states.append(layer(states[-1]))
        return states[-1].sin(), tuple(states)


class Deep(nn.Module):
    """A part within another gives what that one saves, and what is an output."""

    def __init__(self, width=32):
        super().__init__()
        self.first, self.inner, self.outer, self.last = nn.Linear(width, width), Inner(width), Inner(width), nn.Linear(width, width)

    def both(self, x):
        y = self.inner(x.sin())
        return self.outer(y.cos()) * y, y

    def forward(self, x):
        z, y = self.both(self.first(x))
        return self.last(z), y, z[..., :4]


class Leaving(nn.Module):
    """An attribute holds what autograd has saved, and an output is a view."""

    def __init__(self, width=32):
        super().__init__()
        self.first, self.middle, self.last = (nn.Linear(width, width) for _ in range(3))

    def part(self, x):
        h = self.first(x).tanh()
        self.left = h
        return self.last(self.middle(h).sin().exp()) * h

    def forward(self, x):
        p, q = self.part(self.middle(x)).chunk(2, -1)
        return p, q.sin()


class Passing(nn.Module):
    """What a method is given goes when that returns, while the node goes on."""

    def __init__(self, width=32):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, width), nn.Linear(width, width)

    def feed(self, x):
        return self.down(self.up(x.mT).sigmoid())

    def forward(self, x):
        return (x + self.feed(self.norm(x))).mean(0)
