"""Generated modules in the training loops of models that are not language models, everything rebuilt."""

from __future__ import annotations

import copy
import random
from collections import namedtuple
from dataclasses import dataclass

import catalogue
import pytest
import torch
import torch.utils._pytree as pytree
from emitted import droppable, emit, load, model_of, rebuilding
from torch import nn
from torch.distributions import Bernoulli, Categorical, Gamma, Independent, Normal, kl_divergence
from torch.nn.utils import prune

from remat_codegen.verify.beside import compare


def rematerialized(module, args, folder, kwargs=None, first=None):
    """A function that makes rematerialized models from instances of the original; only the `first` data are rebuilt, or all."""
    model = model_of(module, args, kwargs or {})
    schedule = rebuilding(model.graph, set(droppable(model.graph)[:first]))
    folder.mkdir(exist_ok=True)
    return load(emit(module, args, kwargs or {}, model, schedule, None), folder, type(module).__name__.lower()).rematerialize


def exact(module, args, folder, kwargs=None) -> bool:
    found = compare(module, rematerialized(module, args, folder, kwargs), args, kwargs or {})
    assert {what: d.where for what, d in found.differences.items() if d.worst is not None} == {}
    return True


def same_state(ours, theirs) -> bool:
    return all(a.equal(b) for a, b in zip(ours.state_dict().values(), theirs.state_dict().values(), strict=True))


class Folded(nn.Module):
    """Computes with running statistics before they move, as quantization-aware training does, and with a counter."""

    def __init__(self):
        super().__init__()
        self.inner = nn.ModuleList(nn.Conv2d(3, 3, 3, padding=1) for _ in range(3))
        self.norms = nn.ModuleList(nn.BatchNorm2d(3) for _ in range(3))

    def forward(self, x):
        for inner, norm in zip(self.inner, self.norms, strict=True):
            h = (x * (1 + norm.num_batches_tracked)).sin()
            factor = norm.weight / torch.sqrt(norm.running_var + norm.eps)
            h = nn.functional.conv2d(h, inner.weight * factor.reshape(-1, 1, 1, 1), padding=1) / factor.reshape(-1, 1, 1)
            x = x + norm(h).relu_() + norm.running_mean.reshape(-1, 1, 1)
        return x


def test_running_statistics_that_are_read_before_they_move(tmp_path):
    assert exact(Folded(), (torch.randn(4, 3, 6, 6),), tmp_path)


class Named(nn.BatchNorm1d):
    """Calls the operation with its arguments under their names."""

    def forward(self, x):
        shift = self.running_mean * 2
        moved = {"running_mean": self.running_mean, "running_var": self.running_var, "training": True, "momentum": 0.1}
        rest = {"weight": self.weight, "bias": self.bias, "eps": 1e-5, "cudnn_enabled": False}
        return torch.ops.aten.batch_norm.default(x, **moved, **rest).sin() * shift


def test_arguments_may_come_under_their_names(tmp_path):
    assert exact(Named(8), (torch.randn(4, 8),), tmp_path)


class Switched(nn.Linear):
    """Switches gradients on for what it has made, as the speech models of transformers do for the sake of checkpointing."""

    def forward(self, x):
        h = x[:, None]
        if self.training:
            h.requires_grad = True
        h = torch.tanh(super().forward(h)).sin()
        return h + h.detach().requires_grad_().exp()


def test_gradients_that_end_where_forward_has_switched_them_on(tmp_path):
    assert exact(Switched(8, 8), (torch.randn(4, 8),), tmp_path)


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Dropout(0.1), nn.LayerNorm(16), nn.Linear(16, 3))

    def forward(self, x):
        return self.layers(x).tanh()


@pytest.mark.filterwarnings("ignore:.*weight_norm.*is deprecated")
def test_weights_that_hooks_compute_before_each_forward_pass(tmp_path):
    """An old weight_norm leaves its result as an attribute, which copy.deepcopy refuses."""
    layers = nn.Sequential(nn.utils.weight_norm(nn.Linear(8, 8)), nn.Tanh(), nn.utils.spectral_norm(nn.Linear(8, 8)))
    pruned = prune.random_unstructured(nn.Linear(8, 8), "weight", 0.5)
    assert exact(nn.Sequential(layers, nn.Sigmoid(), pruned), (torch.randn(4, 8),), tmp_path)


# ---------------------------------------------------------------------------------------------- loops


def scaled_steps(model, inputs) -> None:
    """Mixed precision's loop: scaled losses, unscaled gradients clipped, one step skipped for an infinite gradient."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    for factor in (1.0, float("inf"), 1.0, 1.0):
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(model(inputs).square().mean() * factor).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()


def test_grad_scaler(tmp_path):
    inputs = torch.randn(4, 8)
    original = Classifier()
    generated = rematerialized(original, (inputs,), tmp_path)(copy.deepcopy(original))
    for model in (original, generated):
        torch.manual_seed(1)
        scaled_steps(model, inputs)
    assert same_state(original, generated)


def adversarial_steps(generator, discriminator) -> None:
    """DCGAN's loop: the discriminator on real pictures, on made ones, and under the generator."""
    optimizers = [torch.optim.Adam(m.parameters(), lr=0.01, betas=(0.5, 0.999)) for m in (generator, discriminator)]
    loss = nn.BCELoss()
    for _ in range(3):
        real, noise = torch.rand(2, 3, 16, 16), torch.randn(2, 16, 1, 1)
        discriminator.zero_grad()
        loss(discriminator(real).flatten(), torch.ones(2)).backward()
        made = generator(noise)
        loss(discriminator(made.detach()).flatten(), torch.zeros(2)).backward()
        optimizers[1].step()
        generator.zero_grad()
        loss(discriminator(made).flatten(), torch.ones(2)).backward()
        optimizers[0].step()


def test_generator_and_discriminator_in_turn(tmp_path):
    """The discriminator's file is made with an input that requires a gradient; it takes one that does not as well."""
    pair = catalogue.generator(), catalogue.discriminator()
    inputs = catalogue.dcgan_generator_inputs(), catalogue.dcgan_discriminator_inputs()
    makes = [rematerialized(m, args, tmp_path / str(i)) for i, (m, args) in enumerate(zip(pair, inputs, strict=True))]
    generated = [make(copy.deepcopy(m)) for make, m in zip(makes, pair, strict=True)]
    for models in (pair, generated):
        torch.manual_seed(1)
        adversarial_steps(*models)
    assert same_state(pair[0], generated[0]) and same_state(pair[1], generated[1])


class FirstWithoutParameters(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        for _ in range(3):
            x = torch.dropout(x.sin().exp(), 0.3, True)
        return self.b((self.a(x).exp() * x).tanh())


@pytest.mark.parametrize("first", [2, 4, None])
def test_an_input_without_the_gradient_that_was_planned(first, tmp_path):
    """Where only the first data are rebuilt, the backward pass never comes to the places that their rebuilds wait for."""
    original, x = FirstWithoutParameters(), torch.randn(3, 4)
    make = rematerialized(original, (x.clone().requires_grad_(),), tmp_path, first=first)
    generated = make(copy.deepcopy(original))
    for model in (original, generated):
        torch.manual_seed(1)
        model(x).square().sum().backward()
        model(x.clone().requires_grad_()).square().sum().backward()
    for ours, theirs in zip(original.parameters(), generated.parameters(), strict=True):
        assert ours.grad.equal(theirs.grad)


# ---------------------------------------------------------------------------------------------- types of numbers


def test_softmax_in_another_type_than_its_input(tmp_path):
    """As language models with bfloat16 weights write it."""

    class Attention(nn.Linear):
        def forward(self, x):
            scores = super().forward(x)
            probabilities = nn.functional.softmax(scores, dim=-1, dtype=torch.float32).to(scores.dtype)
            return probabilities @ scores.mT, scores.log_softmax(0, torch.float64)

    assert exact(Attention(8, 8).bfloat16(), (torch.randn(8, 8).bfloat16(),), tmp_path)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.float16])
def test_weights_of_other_types(dtype, tmp_path):
    assert exact(Classifier().to(dtype), (torch.randn(4, 8, dtype=dtype, requires_grad=True),), tmp_path)


class Conjugates(nn.Module):
    """Autograd saves conjugated views, and views that are negative without having been negated."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(0.2 * torch.randn(4, 4, dtype=torch.cfloat))

    def forward(self, x):
        y = (x @ self.weight).sin()
        z = y.conj() * x + y
        w = (z.mH @ z.conj().T.exp()).sin()
        return w.conj().imag * z.real, (y.conj() * z.conj()).abs(), w


def test_conjugated_and_negative_views(tmp_path):
    assert exact(Conjugates(), (torch.randn(4, 4, dtype=torch.cfloat, requires_grad=True),), tmp_path)


# ---------------------------------------------------------------------------------------------- structures

Pair = namedtuple("Pair", "first second")


@dataclass
class Output:
    loss: torch.Tensor
    rest: dict
    nothing: None = None


pytree.register_dataclass(Output)


class Nested(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 4)

    def forward(self, batch, pair, *more, options=None):
        x = self.a(batch["x"][0]).tanh() + batch["x"][1].exp() * pair.first + more[0]["y"][0]
        y = (x * pair.second[1]).sin()
        rest = {"pairs": [Pair(x, None), Pair(y, (y.exp(), 3))], "none": None, 7: (), "deep": {"z": [[y.cos()]]}}
        return Output((x * y).sum(), rest)


def test_nested_inputs_and_outputs(tmp_path):
    batch = {"x": [torch.randn(2, 4), torch.randn(2, 4)], "unused": None}
    pair = Pair(torch.randn(2, 4, requires_grad=True), (None, torch.randn(4)))
    args = (batch, pair, {"y": (torch.randn(4), None)})
    module = Nested()
    assert exact(module, args, tmp_path, {"options": {"deep": [1, None]}})
    out = rematerialized(module, args, tmp_path, {"options": {"deep": [1, None]}})(module)(*args, options={"deep": [1, None]})
    assert type(out) is Output and type(out.rest["pairs"][1]) is Pair and out.rest["deep"]["z"][0][0].shape == (2, 4)


class NotANumber(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 4)

    def forward(self, x):
        y = self.a(x).sin()
        return y.exp(), y / torch.zeros_like(y).mul(0.0) * 0.0


def test_equal_nans_are_equal(tmp_path):
    """0 / 0 in an output, and nan in every gradient."""
    assert exact(NotANumber(), (torch.randn(2, 4),), tmp_path)


# ---------------------------------------------------------------------------------------------- constants

TABLE = torch.arange(200.0).reshape(2, 100).sin()


class Constants(nn.Module):
    """Tensors that are neither parameters nor buffers: the model's own, a file's, and some made in forward."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(100, 100)
        self.anchors = torch.randn(100)
        self.scales = [torch.rand(100), (torch.rand(1),)]
        self.by_name = {"first": torch.rand(100, dtype=torch.float64), 2: torch.rand(3) > 0.5}
        self.a.offsets = torch.rand(100, requires_grad=True)

    def forward(self, x):
        y = self.a(x).tanh() * self.anchors + self.scales[0] * self.scales[1][0] + self.a.offsets
        y = (y * self.by_name["first"].float()).sin() * self.by_name[2].any() + TABLE
        weights = torch.tensor([0.5 * i for i in range(100)])
        return y.exp() * weights * torch.tensor([[1 + 2j] * 100]).real


def test_constants_of_any_size(tmp_path):
    assert exact(Constants(), (torch.randn(2, 100),), tmp_path)


def test_constants_of_an_instance_are_reached_there(tmp_path):
    make = rematerialized(Constants(), (torch.randn(2, 100),), tmp_path)
    other = Constants()
    generated, inputs = make(copy.deepcopy(other)), torch.randn(2, 100)
    for model in (other, generated):
        model(inputs).square().mean().backward()
    assert other(inputs).equal(generated(inputs))
    assert other.a.offsets.grad.equal(generated.a.offsets.grad)


# ---------------------------------------------------------------------------------------------- distributions


class Variational(nn.Module):
    """A variational autoencoder as torch.distributions writes it, and a policy beside it."""

    def __init__(self):
        super().__init__()
        self.encode, self.decode = nn.Linear(16, 16), nn.Linear(8, 16)

    def forward(self, x):
        mean, scale = self.encode(x).chunk(2, -1)
        posterior, policy = Normal(mean, scale.exp()), Categorical(logits=mean)
        draw, action = posterior.rsample() + Gamma(scale.exp(), 1.0).rsample(), policy.sample()
        seen = Independent(Bernoulli(logits=self.decode(draw)), 1).log_prob((x > 0).float())
        return seen, kl_divergence(posterior, Normal(0.0, 1.0)), policy.log_prob(action), action


def test_distributions_are_traced_without_their_checks_and_checked_as_before_afterwards(tmp_path, monkeypatch):
    """The checks decide something by a tensor's value, which no trace can. torch.compile, which other tests use, ends them."""
    monkeypatch.setattr(torch.distributions.Distribution, "_validate_args", True)
    assert exact(Variational(), (torch.randn(4, 16),), tmp_path)
    with pytest.raises(ValueError, match="to satisfy the constraint"):
        Normal(0.0, -1.0)


class Filtered(nn.Module):
    """A spectrogram that is filtered, and the signal of what is left: istft checks its window's values."""

    def __init__(self):
        super().__init__()
        self.gain = nn.Conv1d(17, 17, 1)
        self.register_buffer("window", torch.hann_window(32))

    def forward(self, x):
        spectrum = torch.stft(x, 32, 8, window=self.window, return_complex=True)
        kept = torch.polar(spectrum.abs() * self.gain(spectrum.abs()).sigmoid(), spectrum.angle())
        return torch.istft(kept, 32, 8, window=self.window, length=x.shape[-1])


def test_operations_that_check_their_own_values(tmp_path):
    assert exact(Filtered(), (torch.randn(2, 128),), tmp_path)


# ---------------------------------------------------------------------------------------------- past autograd


class Momentum(nn.Module):
    """What is changed by way of `.data`: a weight that has a least value, an averaged copy of a layer, a queue of results."""

    def __init__(self):
        super().__init__()
        self.query, self.key = nn.Linear(8, 8), nn.Linear(8, 8).requires_grad_(False)
        self.register_buffer("queue", torch.randn(8, 12))
        self.register_buffer("place", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        self.query.weight.data.clamp_(min=-0.2)
        for ours, theirs in zip(self.key.parameters(), self.query.parameters(), strict=True):
            ours.data = ours.data * 0.9 + theirs.data * 0.1
        scores = (self.query(x) * self.key(x)).sum(1, keepdim=True)
        scores = torch.cat([scores, self.query(x) @ self.queue.clone().detach()], 1).exp()
        self.queue[:, (self.place + torch.arange(4)) % 12] = self.key(x).detach().T
        self.place.data.add_(4)
        return scores.log1p()


def test_what_is_changed_past_autograd(tmp_path):
    """The trace sees it, and tensors have their own `data` again afterwards."""
    assert exact(Momentum(), (torch.randn(4, 8),), tmp_path)
    assert "data" not in vars(torch.Tensor)


# ---------------------------------------------------------------------------------------------- modes of modules


class Attention(nn.Module):
    """As in libraries: whether it drops is decided in another line than the one that drops."""

    def forward(self, x):
        probability = 0.5 if self.training else 0.0
        return nn.functional.scaled_dot_product_attention(x, x, x, None, probability)


class FrozenNorm(nn.Module):
    """Its batch norm stays in evaluation mode, until somebody says otherwise."""

    def __init__(self):
        super().__init__()
        self.a, self.norm, self.attention = nn.Linear(8, 8), nn.BatchNorm1d(4), Attention()
        self.drop = nn.Dropout(0.5)

    def train(self, mode=True):
        super().train(mode)
        self.norm.eval()
        return self

    def forward(self, x):
        x = self.norm(self.a(x).exp()).sin()
        return self.drop(self.attention(x)).tanh()


def test_modules_that_were_traced_in_the_other_mode_are_refused(tmp_path):
    original, inputs = FrozenNorm(), torch.randn(2, 4, 8)
    original.norm.running_mean.normal_()
    assert exact(original, (inputs,), tmp_path)
    generated = rematerialized(original, (inputs,), tmp_path)(copy.deepcopy(original))
    generated.norm.train()
    with pytest.raises(ValueError, match=r"norm\.training is True, but this file was planned for False"):
        generated(inputs)
    generated.train()
    generated.attention.eval()
    with pytest.raises(ValueError, match=r"attention\.training is False, but this file was planned for True"):
        generated(inputs)
    generated.train()
    generated.drop.eval()  # followed: torch's own dropout says so itself
    original.drop.eval()
    for model in (original, generated):
        torch.manual_seed(0)
        model(inputs).sum().backward()
    assert original.a.weight.grad.equal(generated.a.weight.grad)


class Noisy(nn.Module):
    """Asks for its mode, and does something that follows from it without another operation's saying so."""

    def forward(self, x):
        if self.training:
            x = x * 1.5
        return x.sin()


def test_modules_that_ask_for_their_mode_are_refused_in_the_other(tmp_path):
    original, inputs = nn.Sequential(nn.Linear(8, 8), Noisy(), nn.Linear(8, 8)), torch.randn(2, 8)
    generated = rematerialized(original, (inputs,), tmp_path)(copy.deepcopy(original))
    generated(inputs).sum().backward()
    generated.get_submodule("1").eval()
    with pytest.raises(ValueError, match=r"1\.training is False, but this file was planned for True"):
        generated(inputs)


class Drawing(nn.Linear):
    """Draws a number that it does not use, and others from a generator that it has seeded."""

    def forward(self, x):
        random.random()
        order = random.Random(0).sample(range(8), 8)
        return super().forward(x[:, order]).sin()


def test_numbers_that_are_drawn_and_not_used_do_no_harm(tmp_path):
    assert exact(Drawing(8, 8), (torch.randn(4, 8),), tmp_path)
