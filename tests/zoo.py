"""Small models that between them do what people's models do."""

from __future__ import annotations

import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class CausalSelfAttention(nn.Module):
    def __init__(self, width, heads, context, dropout):
        super().__init__()
        self.heads = heads
        self.c_attn = nn.Linear(width, 3 * width)
        self.c_proj = nn.Linear(width, width)
        self.attn_dropout = nn.Dropout(dropout)
        self.resid_dropout = nn.Dropout(dropout)
        self.register_buffer("mask", torch.tril(torch.ones(context, context, dtype=torch.bool)), persistent=False)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.c_attn(x).split(C, dim=2)
        q = q.view(B, T, self.heads, C // self.heads).transpose(1, 2)
        k = k.view(B, T, self.heads, C // self.heads).transpose(1, 2)
        v = v.view(B, T, self.heads, C // self.heads).transpose(1, 2)
        scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(C // self.heads))
        scores = scores.masked_fill(~self.mask[:T, :T], float("-inf"))
        probs = self.attn_dropout(F.softmax(scores, dim=-1))
        y = (probs @ v).transpose(1, 2).contiguous().view(B, T, C)
        return self.resid_dropout(self.c_proj(y))


class MLP(nn.Module):
    def __init__(self, width, dropout):
        super().__init__()
        self.c_fc = nn.Linear(width, 4 * width)
        self.c_proj = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        return self.dropout(self.c_proj(F.gelu(self.c_fc(x))))


class Block(nn.Module):
    def __init__(self, width, heads, context, dropout):
        super().__init__()
        self.ln_1 = nn.LayerNorm(width)
        self.attn = CausalSelfAttention(width, heads, context, dropout)
        self.ln_2 = nn.LayerNorm(width)
        self.mlp = MLP(width, dropout)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        x = x + self.mlp(self.ln_2(x))
        return x


class GPT2(nn.Module):
    """A plain GPT-2."""

    def __init__(self, layers=2, width=64, heads=4, vocabulary=500, context=128, dropout=0.1):
        super().__init__()
        self.wte = nn.Embedding(vocabulary, width)
        self.wpe = nn.Embedding(context, width)
        self.drop = nn.Dropout(dropout)
        self.h = nn.ModuleList([Block(width, heads, context, dropout) for _ in range(layers)])
        self.ln_f = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.wte.weight

    def forward(self, idx):
        positions = torch.arange(idx.shape[1], device=idx.device)
        x = self.drop(self.wte(idx) + self.wpe(positions))
        for block in self.h:
            x = block(x)
        return self.head(self.ln_f(x))


class VGG(nn.Module):
    """Convolutions in a chain: batch norm, in-place ReLU."""

    def __init__(self):
        super().__init__()
        layers, channels = [], 3
        for out in (8, 8, 16, 16):
            layers += [nn.Conv2d(channels, out, 3, padding=1), nn.BatchNorm2d(out), nn.ReLU(inplace=True)]
            channels = out
        self.features = nn.Sequential(*layers, nn.MaxPool2d(2))
        self.drop = nn.Dropout(0.5)
        self.fc = nn.Linear(16 * 8 * 8, 10)

    def forward(self, x):
        return self.fc(self.drop(self.features(x).flatten(1)))


class Basic(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += x
        return self.relu(out)


class ResNet(nn.Module):
    """Residual streams that are changed in place."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.layers = nn.Sequential(*[Basic(8) for _ in range(3)])
        self.fc = nn.Linear(8, 5)

    def forward(self, x):
        return self.fc(self.layers(self.stem(x)).mean((2, 3)))


class UNet(nn.Module):
    """Long skips, concatenations, a dictionary of outputs, one of them a single number."""

    def __init__(self):
        super().__init__()
        self.down1 = nn.Conv2d(3, 8, 3, padding=1)
        self.down2 = nn.Conv2d(8, 16, 3, padding=1)
        self.down3 = nn.Conv2d(16, 32, 3, padding=1)
        self.up2 = nn.ConvTranspose2d(32, 16, 2, 2)
        self.conv2 = nn.Conv2d(32, 16, 3, padding=1)
        self.up1 = nn.ConvTranspose2d(16, 8, 2, 2)
        self.conv1 = nn.Conv2d(16, 8, 3, padding=1)
        self.out = nn.Conv2d(8, 2, 1)
        self.norm = nn.GroupNorm(4, 8)

    def forward(self, x):
        a = F.silu(self.norm(self.down1(x)))
        b = F.gelu(self.down2(F.max_pool2d(a, 2)))
        c = torch.tanh(self.down3(F.max_pool2d(b, 2)))
        y = self.conv2(torch.cat([self.up2(c), b], 1)).relu_()
        y = self.conv1(torch.cat([self.up1(y), a], 1))
        y = F.dropout(y, 0.2, self.training)
        return {"y": self.out(y), "b": b.mean()}


class LSTM(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(50, 16)
        self.lstm = nn.LSTM(16, 32, 2, batch_first=True, dropout=0.2)
        self.classifier = nn.Linear(32, 4)

    def forward(self, tokens):
        states, _ = self.lstm(self.embedding(tokens))
        return self.classifier(states[:, -1])


class Encoder(nn.Module):
    """nn.TransformerEncoder with a padding mask, given by name."""

    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.out = nn.Linear(32, 7)

    def forward(self, x, mask):
        return self.out(self.layers(x, src_key_padding_mask=mask))


class Odd(nn.Module):
    """A buffer that counts, a frozen part, writes into slices, random numbers, an integer output, an input with gradient."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(16, 16)
        self.b = nn.Linear(16, 16)
        self.b.requires_grad_(False)
        self.scales = nn.Parameter(torch.ones(16))
        self.register_buffer("count", torch.zeros(()))
        self.unused = nn.Linear(3, 3)

    def forward(self, x, scale=2.0, *, extra=None):
        self.count.add_(1)
        y = torch.zeros_like(x)
        y[:, :8] = self.a(x)[:, :8]
        y[:, 8:] = self.b(x).sigmoid()[:, 8:] * self.scales[8:]
        y = self.a(y) * scale + torch.rand_like(x)
        z = torch.stack([part.softmax(-1) for part in y.split(4, 1)], 1)
        return z.sum(1), (y > 0), y, z.sum(1).argmax()


class Swish(torch.autograd.Function):
    """Keeps less than what autograd would keep."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return grad * (s + x * s * (1 - s))


class Rounded(torch.autograd.Function):
    """Straight through: a gradient that differentiation would not find."""

    @staticmethod
    def forward(ctx, x, bits: int, range_=(-2.0, 2.0)):
        return torch.round(x.clamp(*range_) * 2**bits) / 2**bits

    @staticmethod
    def backward(ctx, grad):
        return grad, None, None


class Reversed(torch.autograd.Function):
    """A view with another gradient; with a setup_context of its own."""

    @staticmethod
    def forward(x, factor=0.5):
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.factor = inputs[1]

    @staticmethod
    def backward(ctx, grad):
        return -ctx.factor * grad, None


class Noisy(torch.autograd.Function):
    """Draws, saves what it draws and what it returns, returns two tensors."""

    @staticmethod
    def forward(ctx, x, y):
        noise = torch.rand_like(x)
        out = torch.tanh(x * noise)
        ctx.save_for_backward(noise, out, y)
        return out, y.sin()

    @staticmethod
    def backward(ctx, grad, other):
        noise, out, y = ctx.saved_tensors
        return grad * noise * (1 - out * out), other * y.cos()


class Gated(torch.autograd.Function):
    """Has no gradient for its second tensor: autograd goes back through what made it with nothing in hand."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(y)
        return x * y

    @staticmethod
    def backward(ctx, grad):
        (y,) = ctx.saved_tensors
        return grad * y, None


swish = Swish.apply


class Functions(nn.Module):
    """Functions with a backward of their own, called by their class and by another name, of values and of weights."""

    def __init__(self, width=16):
        super().__init__()
        self.a = nn.ModuleList(nn.Linear(width, width) for _ in range(3))
        self.norm = nn.LayerNorm(width)

    def forward(self, x):
        for layer in self.a:
            h = swish(layer(self.norm(x)))
            h = F.linear(h, Rounded.apply(layer.weight, 4), layer.bias)
            p, q = Noisy.apply(h, x)
            x = x + Gated.apply(p, torch.softmax(q * h, -1))
        return x, F.gelu(Reversed.apply(x)), Reversed.apply(x, 2.0).square()


def _noise(*shape: int, requires_grad: bool = False) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)).requires_grad_(requires_grad)


def _tokens(high: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(0))


ZOO = {
    "gpt2": (GPT2, lambda: ((_tokens(500, 2, 64),), {})),
    "vgg": (VGG, lambda: ((_noise(4, 3, 16, 16),), {})),
    "resnet": (ResNet, lambda: ((_noise(4, 3, 16, 16),), {})),
    "unet": (UNet, lambda: ((_noise(2, 3, 32, 32),), {})),
    "lstm": (LSTM, lambda: ((_tokens(50, 3, 7),), {})),
    "encoder": (Encoder, lambda: ((_noise(2, 9, 32),), {"mask": torch.zeros(2, 9, dtype=torch.bool)})),
    "functions": (Functions, lambda: ((_noise(4, 16),), {})),
    "odd": (Odd, lambda: ((_noise(4, 16, requires_grad=True),), {"extra": None})),
}


def build(name: str, seed: int = 0):
    """A model of the zoo with its inputs: module, args, kwargs."""
    torch.manual_seed(seed)
    model, inputs = ZOO[name]
    args, kwargs = inputs()
    return model(), args, kwargs
