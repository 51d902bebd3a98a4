"""Random modules from a grammar: what people write, in combinations that nobody has tried.

A model is a list of steps over a growing list of values, all of shape [rows, width] (or views that come back to it). The same
seed gives the same model.
"""

from __future__ import annotations

import random

import torch
import torch.nn as nn
import torch.nn.functional as F
import zoo

ROWS, WIDTH = 6, 16
ACTIVATIONS = ("relu", "gelu", "tanh", "sigmoid", "silu", "softplus", "exp", "softmax", "log_softmax", "leaky_relu", "elu")
UNARY = (
    "linear linear linear activation activation dropout layer_norm batch_norm group_norm convolution "
    "reused tied frozen noise scale in_place_activation in_place_add slice_write split chunk unbind "
    "transpose expand attention counter feature_dropout detach index stack where normalize pad cumsum"
).split()
BINARY = ("residual", "residual", "product", "concatenate", "matmul", "in_place_residual", "gate", "maximum")


class RandomModel(nn.Module):
    """The model of a seed."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        draw = random.Random(seed)
        torch.manual_seed(seed)
        self.inputs = draw.choice([1, 1, 1, 2])
        self.parts = nn.ModuleList()
        self.shared = nn.Linear(WIDTH, WIDTH)
        self.norm = nn.BatchNorm1d(WIDTH)
        self.gain = nn.Parameter(torch.ones(WIDTH))
        self.register_buffer("count", torch.zeros((), dtype=torch.long))
        self.unused = nn.Linear(2, 2) if draw.random() < 0.2 else None
        self.steps = []
        values = self.inputs
        for _ in range(draw.randint(2, 14)):
            self.steps.append(self._step(draw, values))
            values += 1
        self.returns = draw.choice(["last", "last", "tuple", "dict", "twice", "number"])
        self.second = draw.randrange(values)

    def _step(self, draw: random.Random, values: int) -> tuple:
        recent = draw.randrange(max(0, values - 3), values)
        if values > 1 and draw.random() < 0.35:
            return draw.choice(BINARY), None, recent, draw.randrange(values)
        name = draw.choice(UNARY)
        return name, self._part(draw, name), recent, recent

    def _part(self, draw: random.Random, name: str):
        modules = {
            "linear": lambda: nn.Linear(WIDTH, WIDTH, bias=draw.random() < 0.7),
            "frozen": lambda: nn.Linear(WIDTH, WIDTH).requires_grad_(False),
            "dropout": lambda: nn.Dropout(draw.choice([0.0, 0.1, 0.5]), inplace=draw.random() < 0.2),
            "feature_dropout": lambda: nn.Dropout1d(0.3),
            "layer_norm": lambda: nn.LayerNorm(WIDTH, elementwise_affine=draw.random() < 0.7),
            "batch_norm": lambda: nn.BatchNorm1d(WIDTH, track_running_stats=draw.random() < 0.8),
            "group_norm": lambda: nn.GroupNorm(4, WIDTH),
            "convolution": lambda: nn.Conv1d(1, 2, 3, padding=1),
            "attention": lambda: nn.MultiheadAttention(WIDTH, 2, dropout=0.1, batch_first=True),
        }
        if name in ("activation", "in_place_activation"):
            choices = ACTIVATIONS if name == "activation" else ("relu_", "tanh_", "sigmoid_", "exp_")
            return draw.choice(choices)
        if name == "tied":
            tied = nn.Linear(WIDTH, WIDTH)
            tied.weight = self.shared.weight
            self.parts.append(tied)
            return len(self.parts) - 1
        if name in modules:
            self.parts.append(modules[name]())
            return len(self.parts) - 1
        return None

    def forward(self, *inputs: torch.Tensor):
        values = list(inputs)
        for name, part, first, second in self.steps:
            values.append(getattr(self, f"do_{name}", self.do_module)(part, values[first], values[second]))
        last, other = values[-1], values[self.second]
        if self.returns == "tuple":
            return last, other.detach(), (last > 0)
        if self.returns == "dict":
            return {"last": last, "mean": last.mean(), "other": other * 1.0}
        if self.returns == "twice":
            return [last, last]
        return last.square().mean() if self.returns == "number" else last

    def do_module(self, part, x, _):
        return self.parts[part](x)

    def do_activation(self, name, x, _):
        x = x.clamp(-5, 5) if name == "exp" else x
        if name in ("softmax", "log_softmax"):
            return getattr(F, name)(x, dim=-1)
        return torch.exp(x) if name == "exp" else getattr(F, name)(x)

    def do_in_place_activation(self, name, x, _):
        return getattr((x * 0.5).clamp(-3, 3).add(0.1), name)()

    def do_in_place_add(self, _part, x, _):
        y = x * self.gain
        y += 1
        y.mul_(0.5)
        return y

    def do_in_place_residual(self, _part, x, z):
        y = self.shared(x)
        y += z
        return y

    def do_slice_write(self, _part, x, _):
        y = torch.zeros_like(x)
        y[:, ::2] = x[:, 1::2].sigmoid()
        y[1:, 1] = x[:-1, 0]
        return y

    def do_convolution(self, part, x, _):
        return self.parts[part](x.unsqueeze(1)).mean(1)

    def do_attention(self, part, x, _):
        y = x.view(2, x.shape[0] // 2, WIDTH)
        return self.parts[part](y, y, y, need_weights=False)[0].reshape(x.shape[0], WIDTH)

    def do_reused(self, _part, x, _):
        return self.norm(self.shared(x))

    def do_noise(self, _part, x, _):
        return x + 0.1 * torch.rand_like(x) * torch.empty_like(x).bernoulli_(0.5)

    def do_scale(self, _part, x, _):
        return 1.5 * x - x.mean(dim=0, keepdim=True)

    def do_split(self, _part, x, _):
        a, b = x.split(WIDTH // 2, dim=1)
        return torch.cat([b.tanh(), a], dim=1)

    def do_chunk(self, _part, x, _):
        return torch.cat([c * (i + 1) for i, c in enumerate(x.chunk(4, dim=1))], dim=1)

    def do_unbind(self, _part, x, _):
        rows = x.unbind(0)
        return torch.stack([rows[-1], *rows[:-1]])

    def do_stack(self, _part, x, _):
        return torch.stack([x, x.roll(1, 0)], dim=0).amax(0)

    def do_transpose(self, _part, x, _):
        return x.t().contiguous().view(WIDTH, x.shape[0]).t() * 1.0

    def do_expand(self, _part, x, _):
        return x[:, :1].expand(x.shape[0], WIDTH) + x

    def do_counter(self, _part, x, _):
        self.count += 1
        return x * 0.9

    def do_detach(self, _part, x, _):
        return x * x.detach().abs().add(1).log()

    def do_index(self, _part, x, _):
        return x[torch.arange(x.shape[0] - 1, -1, -1)]

    def do_where(self, _part, x, _):
        return torch.where(x > 0, x, 0.1 * x.square())

    def do_normalize(self, _part, x, _):
        return F.normalize(x, dim=1)

    def do_pad(self, _part, x, _):
        return F.pad(x, (1, 0))[:, :-1]

    def do_cumsum(self, _part, x, _):
        return x.cumsum(0) / x.shape[0]

    def do_residual(self, _part, x, z):
        return x + z

    def do_product(self, _part, x, z):
        return x * z.tanh()

    def do_gate(self, _part, x, z):
        return x * torch.sigmoid(z)

    def do_maximum(self, _part, x, z):
        return torch.maximum(x, z)

    def do_concatenate(self, _part, x, z):
        return torch.cat([x, z], dim=1).view(x.shape[0], 2, WIDTH).mean(1)

    def do_matmul(self, _part, x, z):
        return (x @ z.t() / WIDTH) @ x


class Running(nn.Module):
    """Assigns buffers: before or after it reads them, one or two, and there is one that is None."""

    def __init__(self, draw: random.Random) -> None:
        super().__init__()
        self.reads_first, self.two, self.late = (draw.random() < 0.5 for _ in range(3))
        self.register_buffer("nothing", None)
        self.register_buffer("mean", torch.full((WIDTH,), 0.1))
        self.register_buffer("scale", torch.ones(WIDTH))

    def forward(self, x):
        y = x * self.mean if self.reads_first else x
        seen = (x if self.late else x.detach()).float().mean(0)
        self.mean = 0.9 * self.mean + 0.1 * seen.detach()
        if self.two:
            self.scale = torch.lerp(self.scale, seen, 0.1).detach().clamp(0.5, 2)
        return y - self.mean * self.scale


class Folding(nn.Module):
    """Computes with the running statistics of a batch norm: before or after they move, or both."""

    def __init__(self, draw: random.Random) -> None:
        super().__init__()
        self.early, self.late = draw.choice([(True, False), (False, True), (True, True)])
        self.norm = nn.BatchNorm1d(WIDTH)

    def forward(self, x):
        x = x * torch.rsqrt(self.norm.running_var + 1) if self.early else x
        y = self.norm(x).tanh()
        return y * (self.norm.running_mean + 1).sin() if self.late else y


class StatefulModel(RandomModel):
    """The model of a seed, with modules that assign buffers, or compute with those that move, here and there."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        draw = random.Random(seed + 4)
        for _ in range(draw.randint(1, 3)):
            place = draw.randint(0, len(self.steps))
            self.parts.append(draw.choice([Running, Folding])(draw))
            self.steps.insert(place, ("module", len(self.parts) - 1, draw.randrange(self.inputs + place), 0))


class Applying(nn.Module):
    """Applies an autograd.Function."""

    def __init__(self, draw: random.Random) -> None:
        super().__init__()
        self.which = draw.choice(["swish", "rounded", "weight", "reversed", "noisy", "gated", "gate"])
        self.weight = nn.Parameter(torch.eye(WIDTH))

    def forward(self, x):
        if self.which in ("swish", "rounded"):
            return zoo.swish(x) if self.which == "swish" else zoo.Rounded.apply(x, 3)
        if self.which == "reversed":
            return zoo.Reversed.apply(x.sin())  # an input itself is refused
        if self.which == "weight":
            return x @ zoo.Rounded.apply(self.weight, 4, (-1.0, 1.0))
        if self.which == "noisy":
            p, q = zoo.Noisy.apply(x, x @ self.weight)
            return p + q
        other = (x @ self.weight).softmax(-1)
        return zoo.Gated.apply(x, other) if self.which == "gated" else zoo.Gated.apply(other, x.float()) + x


class FunctionModel(RandomModel):
    """The model of a seed, with functions that have a backward of their own here and there."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        draw = random.Random(seed + 5)
        for _ in range(draw.randint(1, 4)):
            place = draw.randint(0, len(self.steps))
            self.parts.append(Applying(draw))
            self.steps.insert(place, ("module", len(self.parts) - 1, draw.randrange(self.inputs + place), 0))


def inputs(model: RandomModel, seed: int, rows: int = ROWS) -> tuple[torch.Tensor, ...]:
    """What the model of a seed is called with."""
    generator = torch.Generator().manual_seed(seed)
    wants = random.Random(seed + 1)
    return tuple(
        torch.randn(rows, WIDTH, generator=generator).requires_grad_(wants.random() < 0.3) for _ in range(model.inputs)
    )
