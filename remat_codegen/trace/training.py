"""Steps of training as `verify` takes them. Imports nothing but torch: processes without this package load it.

`Run` is one model with its optimizer; `digests` say what a step left behind so that two processes can compare it.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import random
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

LEARNING_RATE = 0.01
LOSSES = ("cross-entropy", "sum", "none", "model")  # what a step may compute of a model's outputs: see `example_loss`
PLAIN = (int, float, complex, bool, str, bytes, type(None), torch.dtype, torch.device)  # what is written down as it is


def seed_all(seed: int) -> None:
    """Has all generators begin at a seed: PyTorch's, Python's and NumPy's."""
    torch.manual_seed(seed)
    seed_python_and_numpy(seed)


def seed_python_and_numpy(seed: int) -> None:
    """Has the generators that are not PyTorch's begin at a seed."""
    random.seed(seed)
    if (numpy := sys.modules.get("numpy.random")) is not None:
        numpy.seed(seed)


def example_loss(outputs: Any, loss: str = "cross-entropy") -> torch.Tensor:
    """The loss that plans and checks are made with: summed over the outputs, any pytree, of which leaves that take no gradient
    are left out, as are all but single numbers where `loss` is "model": forward returns it. Of other outputs it is

    - "cross-entropy": logsumexp over the last dimension, averaged. Like cross entropy or a mean squared error it needs one more
      tensor of the output's size in its own backward pass.
    - "none": the mean, which needs the outputs' gradient and nothing else.
    - "sum": the sum, whose gradient is one number, spread out.

    Returns a scalar; raises ValueError if no such leaf takes a gradient.
    """
    leaves = taking_gradient(outputs)
    if not leaves:
        raise ValueError("no output depends on a trainable parameter or input")
    total: Any = 0
    leaves = [leaf for leaf in leaves if not leaf.dim()] if loss == "model" else leaves
    for leaf in leaves:
        real = torch.view_as_real(leaf) if leaf.is_complex() else leaf
        total = total + (_of_all(real, loss) if real.dim() else real)
    return total


def _of_all(output: torch.Tensor, loss: str) -> torch.Tensor:
    return output.sum() if loss == "sum" else output.mean() if loss == "none" else output.logsumexp(-1).mean()


def taking_gradient(outputs: Any) -> list[torch.Tensor]:
    """The tensors among a pytree's leaves that take a gradient."""
    return [t for t in pytree.tree_leaves(outputs) if isinstance(t, torch.Tensor) and t.requires_grad]


def usual_loss(outputs: Any) -> str:
    """What a step goes back from, where nobody said: "model" where everything that forward returns and takes a gradient is a
    number, or goes into one, as logits do that are returned with their loss; else "cross-entropy"."""
    all_numbers = not any(t.dim() for t in taking_gradient(outputs))
    return "model" if not all_numbers and goes_into_numbers(outputs) else "cross-entropy"


def goes_into_numbers(outputs: Any) -> bool:
    """Whether a pytree has numbers that take a gradient, and all else in it that takes one goes into these."""
    leaves = taking_gradient(outputs)
    before = _edges_before([t for t in leaves if not t.dim()])
    return all(not t.dim() or _edge(t) in before for t in leaves) and any(not t.dim() for t in leaves)


def _edge(tensor: torch.Tensor) -> tuple[Any, int]:
    found = torch.autograd.graph.get_gradient_edge(tensor)
    return found.node, found.output_nr


def _edges_before(tensors: Iterable[torch.Tensor]) -> set[tuple[Any, int]]:
    """Whatever autograd goes through from these on, as nodes and the number of their result."""
    waiting = [_edge(tensor)[0] for tensor in tensors]
    seen, found = set(waiting), set[tuple[Any, int]]()
    while waiting:
        for node, number in waiting.pop().next_functions:
            found.add((node, number))
            if node is not None and node not in seen:
                seen.add(node)
                waiting.append(node)
    return found


def know_dataclasses(value: Any) -> Any:
    """Tells torch.utils._pytree of the dataclasses in nested containers, and returns the value."""
    kind = type(value)
    if is_dataclass(value) and kind not in pytree.SUPPORTED_NODES:
        pytree.register_dataclass(kind)
    if is_dataclass(value):
        parts = [getattr(value, f.name, None) for f in fields(value)]
    elif isinstance(value, dict):
        parts = list(value.values())
    else:
        parts = list(value) if isinstance(value, (list, tuple)) else []
    for part in parts:
        know_dataclasses(part)
    return value


@contextlib.contextmanager
def deterministic_algorithms(asked: bool) -> Iterator[None]:
    """In here, PyTorch takes deterministic algorithms if `asked`, and raises RuntimeError where it has none.

    cuBLAS reads its part from the environment, when a process first multiplies matrices on a GPU.
    """
    if not asked:
        yield
        return
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])


def _leaves(thing: Any) -> list[tuple[str, Any]]:
    """What is in tuples, lists, dicts and the like, each with how it is found there."""
    try:
        return [(pytree.keystr(path), leaf) for path, leaf in pytree.tree_flatten_with_path(thing)[0]]
    except ValueError:  # a class was registered without the names of what it holds, as outputs of diffusers are
        return [(f"[{number}]", leaf) for number, leaf in enumerate(pytree.tree_leaves(thing))]


class Run:
    """One of several models that take the same steps, with its optimizer and what its last step gave."""

    def __init__(
        self, model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], autocast: Any, loss: str = LOSSES[0]
    ) -> None:
        self.model, self.autocast, self.loss = model, autocast, loss
        self.args, self.kwargs = pytree.tree_map(_own_copy, (args, kwargs))
        trainable = [p for p in model.parameters() if p.requires_grad]
        for parameter in trainable:
            parameter.grad = torch.zeros_like(parameter)
        self.optimizer = torch.optim.SGD(trainable, lr=LEARNING_RATE, momentum=0.9) if trainable else None
        self.outputs: Any = None
        self.generators: list[torch.Tensor] = []

    def step(self) -> None:
        """Forward and backward."""
        self.outputs = None
        with contextlib.ExitStack() as casts:  # as users write it: with autocast's copies of parameters cached
            for device, dtype in self.autocast:
                casts.enter_context(torch.autocast(device, dtype=dtype))
            outputs = self._call()
        example_loss(outputs, self.loss).backward()
        self.outputs = pytree.tree_map(lambda t: t.detach() if isinstance(t, torch.Tensor) else t, outputs)

    def _call(self) -> Any:
        args, kwargs = pytree.tree_map(lambda leaf: leaf, (self.args, self.kwargs))  # forward may change dicts and lists
        return know_dataclasses(self.model(*args, **kwargs))

    def evaluate(self) -> None:
        """Forward in evaluation mode."""
        self.model.eval()
        try:
            with torch.no_grad(), contextlib.ExitStack() as casts:
                for device, dtype in self.autocast:
                    casts.enter_context(torch.autocast(device, dtype=dtype))
                self.outputs = self._call()
        finally:
            self.model.train()

    def results(self) -> Iterator[tuple[str, str, Any]]:
        """What the last forward pass returned: kind, name, value."""
        yield from (("outputs", f"output{path}", leaf) for path, leaf in _leaves(self.outputs))

    def note_generators(self) -> None:
        """Where the generators stand; not a part of the step, which is measured."""
        self.generators = [torch.get_rng_state()]
        if torch.cuda.is_available():
            self.generators += torch.cuda.get_rng_state_all()

    def state(self) -> Iterator[tuple[str, str, Any]]:
        """Everything that a step leaves behind: kind, name, value."""
        yield from self.results()
        yield from (("gradients of parameters", n, p.grad) for n, p in self.model.named_parameters())
        inputs = _leaves((self.args, self.kwargs))
        wanted = [(p, t) for p, t in inputs if isinstance(t, torch.Tensor) and t.requires_grad]
        yield from (("gradients of inputs", f"input{p}", t.grad) for p, t in wanted)
        yield from (("buffers", n, b) for n, b in self.model.named_buffers())
        yield from (("generator states", f"generator {i}", g) for i, g in enumerate(self.generators))

    def update(self) -> None:
        """The optimizer's step; gradients of inputs start anew."""
        if self.optimizer is not None:
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=False)
        self.renew_inputs()

    def renew_frozen(self) -> None:
        """Has frozen parameters lie in new memory, so that who looks on sees it go where forward gives them other memory, as
        that of a teacher which follows its student does."""
        given = [t for t in (*self.model.parameters(), *self.model.buffers()) if t.layout is torch.strided]
        users = Counter(t.untyped_storage().data_ptr() for t in given)
        for tensor in given:
            storage = tensor.untyped_storage()
            alone = users[storage.data_ptr()] == 1 and storage.nbytes() == tensor.nbytes
            if type(tensor) is torch.nn.Parameter and not tensor.requires_grad and alone:
                tensor.data = tensor.data.clone()

    def renew_inputs(self) -> None:
        """Has inputs no gradient yet, as those of another step."""
        for leaf in pytree.tree_leaves((self.args, self.kwargs)):
            if isinstance(leaf, torch.Tensor):
                leaf.grad = None


def digests(left: Iterable[tuple[str, str, Any]]) -> dict[str, str]:
    """By name, digests of what a step left behind; without what is neither a tensor nor plain, which has no bits."""
    found = {f"{what}: {name}": digest(value) for what, name, value in left}
    return {name: text for name, text in found.items() if text}


def digest(value: Any) -> str:
    """The same for values that are equal to the bit, in any process; empty for objects that only their class could compare."""
    if isinstance(value, PLAIN):
        return f"{type(value).__name__} {value!r}"
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return ""
    plain = value.detach().resolve_conj().resolve_neg().cpu().contiguous()
    if type(plain) not in (torch.Tensor, torch.nn.Parameter) or plain.is_quantized:
        return ""
    content = hashlib.sha256((ctypes.c_char * plain.nbytes).from_address(plain.data_ptr()) if plain.numel() else b"")
    return f"{plain.dtype} {tuple(plain.shape)} {content.hexdigest()}"


def _own_copy(leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return leaf
    return leaf.detach().clone().requires_grad_(leaf.requires_grad)
