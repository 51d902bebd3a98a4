"""How a generated module behaves in training loops as people write them."""

from __future__ import annotations

import copy
import gc
from pathlib import Path

import pytest
import torch
import zoo
from emitted import droppable, emit, load, rebuilding, zoo_model

from remat_codegen.profile.memory import cpu_events, running_total


@pytest.fixture(scope="module")
def generated(tmp_path_factory):
    """The zoo's GPT-2 with everything rebuilt: the original and a function that makes rematerialized copies."""
    module, args, kwargs, model = zoo_model("gpt2")
    schedule = rebuilding(model.graph, set(droppable(model.graph)))
    text = emit(module, args, kwargs, model, schedule, Path(zoo.__file__).read_text())
    made = load(text, tmp_path_factory.mktemp("generated"), "generated_gpt2")
    return module, (lambda: made.rematerialize(copy.deepcopy(module))), args[0]


def grads(model):
    return {n: None if p.grad is None else p.grad.clone() for n, p in model.named_parameters()}


def same(a, b):
    return a.keys() == b.keys() and all((x is None) == (b[n] is None) and (x is None or x.equal(b[n])) for n, x in a.items())


def both(generated, loop):
    """What a training loop does to the original's gradients and to the rematerialized model's."""
    original, make, idx = generated
    found = []
    for model in (copy.deepcopy(original), make()):
        torch.manual_seed(3)
        loop(model, idx)
        found.append((grads(model), torch.get_rng_state()))
    (a, state), (b, other) = found
    return same(a, b) and state.equal(other)


def accumulate(model, idx):
    for _ in range(3):
        model(idx).logsumexp(-1).mean().backward()


def two_forwards_then_two_backwards(model, idx):
    first, second = model(idx), model(idx.flip(0))
    second.sin().sum().backward()
    first.sum().backward()


def two_forwards_then_backwards_in_order(model, idx):
    first, second = model(idx), model(idx.flip(0))
    (first.sum() + second.cos().sum()).backward()


def forward_without_backward(model, idx):
    model(idx)
    model(idx).sum().backward()


def expanded_gradient(model, idx):
    model(idx).sum().backward()


def autograd_grad(model, idx):
    parameters = list(model.parameters())
    for p, g in zip(parameters, torch.autograd.grad(model(idx).square().mean(), parameters), strict=True):
        p.grad = g


def evaluation_in_the_middle(model, idx):
    out = model(idx)
    model.eval()
    with torch.no_grad():
        model(idx)
    model.train()
    out.square().mean().backward()


def evaluation_with_gradients(model, idx):
    model.eval()
    model(idx).square().mean().backward()
    model.train()


def frozen_submodule_in_eval(model, idx):
    model.h[0].eval()
    model(idx).square().mean().backward()


def an_exception_in_between(model, idx):
    with pytest.raises(ZeroDivisionError):
        loss = model(idx).sum()
        loss.backward(torch.tensor(1 / 0))
    model(idx).sum().backward()


def hooks_on_parameters(model, idx):
    seen = []
    for name, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda p, name=name: seen.append(name))
    model(idx).sum().backward()
    assert sorted(seen) == sorted(name for name, _ in model.named_parameters())


def retained_graph(model, idx):
    loss = model(idx).square().mean()
    loss.backward(retain_graph=True)


def checked_under_anomaly_detection(model, idx):
    with torch.autograd.detect_anomaly(check_nan=False):
        model(idx).square().mean().backward()


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
@pytest.mark.parametrize(
    "loop",
    [
        accumulate,
        two_forwards_then_two_backwards,
        two_forwards_then_backwards_in_order,
        forward_without_backward,
        expanded_gradient,
        autograd_grad,
        evaluation_in_the_middle,
        evaluation_with_gradients,
        frozen_submodule_in_eval,
        an_exception_in_between,
        hooks_on_parameters,
        retained_graph,
        checked_under_anomaly_detection,
    ],
    ids=lambda f: f.__name__,
)
def test_loops(generated, loop):
    assert both(generated, loop)


@pytest.mark.parametrize("everything", [False, True])
def test_normalisation_follows_its_own_modules_mode(everything, tmp_path):
    module, args, kwargs, model = zoo_model("vgg")
    dropped = set(droppable(model.graph)) if everything else set()
    text = emit(module, args, kwargs, model, rebuilding(model.graph, dropped), Path(zoo.__file__).read_text())
    made = load(text, tmp_path, "generated_vgg")
    original, generated = copy.deepcopy(module), made.rematerialize(copy.deepcopy(module))
    for part in (original, generated):
        part.features[1].eval()
        part.drop.eval()
        torch.manual_seed(1)
        part(*args).square().mean().backward()
    assert same(grads(original), grads(generated))
    for (name, ours), theirs in zip(original.named_buffers(), generated.buffers(), strict=True):
        assert ours.equal(theirs), name


def test_state_dicts_fit_in_both_directions(generated):
    original, make, _ = generated
    model = make()
    assert list(model.state_dict()) == list(original.state_dict())
    model.load_state_dict(original.state_dict())
    copy.deepcopy(original).load_state_dict(model.state_dict())


def test_a_deep_copy_trains_on_its_own(generated):
    _, make, idx = generated
    model = make()
    twin = copy.deepcopy(model)
    twin(idx).sum().backward()
    assert all(p.grad is None for p in model.parameters()) and all(p.grad is not None for p in twin.parameters())


def test_a_second_backward_is_exact_or_refused(generated):
    _, make, idx = generated
    model = make()
    loss = model(idx).square().mean()
    loss.backward(retain_graph=True)
    first = grads(model)
    model.zero_grad()
    try:
        loss.backward()
    except RuntimeError as error:
        assert "backward can run only once: what it used is gone; add the losses, or call the model again" in str(error)
    else:
        assert same(first, grads(model))


def test_double_backward_is_refused_in_one_sentence(generated):
    _, make, idx = generated
    model = make()
    with pytest.raises(RuntimeError, match=r"double backward .* is not supported: use the model itself, or a file with marks"):
        torch.autograd.grad(model(idx).square().mean(), list(model.parameters()), create_graph=True)


def test_other_shapes_and_other_parameters_are_refused(generated):
    _, make, idx = generated
    model = make()
    with pytest.raises(ValueError, match=r"idx is int64\[2, 32\], but this file was planned for int64\[2, 64\]"):
        model(idx[:, :32])
    with pytest.raises(ValueError, match="idx is int32"):
        model(idx.int())
    model.ln_f.weight.requires_grad_(False)
    with pytest.raises(ValueError, match=r"ln_f.weight.requires_grad is False, but .* planned for True"):
        model(idx)
    with torch.no_grad():
        assert model(idx[:, :32]).shape == (2, 32, 500)


def test_parameters_changed_before_the_backward_pass_are_noticed(generated):
    _, make, idx = generated
    model = make()
    loss = model(idx).square().mean()
    with torch.no_grad():
        model.h[0].mlp.c_fc.bias.add_(1)
    with pytest.raises(RuntimeError, match="changed in place"):
        loss.backward()


@pytest.mark.parametrize("change", ["mode", "parameters"])
def test_what_a_second_run_goes_by_must_be_there_in_the_backward_pass(generated, change):
    _, make, idx = generated
    model = make()
    if change == "mode":
        loss = model(idx).square().mean()
        model.eval()
    else:  # which are there during the call only
        others = {name: 2 * p for name, p in model.named_parameters()}
        loss = torch.func.functional_call(model, others, (idx,)).square().mean()
    with pytest.raises(RuntimeError, match=r"changed in place or replaced before the backward pass: do it after backward\(\)"):
        loss.backward()


def test_another_structure_is_refused(generated):
    _, make, idx = generated
    changes = {
        "append": r"^h is ModuleList\[3\], but this file was planned for ModuleList\[2\]",
        "replace": r"^drop is Identity, but this file was planned for Dropout, p=0.1",
        "reparametrize": r"^head is ParametrizedLinear\[1\], but this file was planned for Linear, weight\[\d+,\d+\]",
    }
    for change, said in changes.items():
        model = make()
        if change == "append":
            model.h.append(copy.deepcopy(model.h[0]))
        elif change == "replace":
            model.drop = torch.nn.Identity()
        else:
            torch.nn.utils.parametrizations.weight_norm(model.head)
        with pytest.raises(ValueError, match=said):
            model(idx)


def test_nothing_stays_behind(generated):
    """After a step, and after a forward pass whose result is dropped, no memory is held, without the garbage collector."""
    _, make, idx = generated
    model = make()
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    gc.collect()
    gc.disable()
    try:
        for work in (lambda: model(idx), lambda: model(idx).sum().backward()):
            assert running_total(cpu_events(work))[-1] <= 64
    finally:
        gc.enable()
