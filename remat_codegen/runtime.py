"""What a generated file needs while it runs. The emitter copies these definitions into the file, less the methods that it
does not use; tests run them from here.

The first forward pass builds PyTorch's own autograd graph, so gradients flow, accumulate and reach parameters exactly as in the
original. Only what autograd *saves* is looked after: a value that the plan forgets is saved as a reference to a
`Slot`, and each thing that an operation saves beside such values can be a `Slot` of its own; forgetting empties them,
running again fills them. The backward program is a generator that runs beside autograd: at each `yield` it waits until
autograd is about to go back through the value named there.

Lines are as long as black makes them in a generated file.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import math
import sys
import types
import warnings
import weakref
import zlib

import torch

AUTOCAST: dict = {}  # each generated file has its own


class Slot:
    """Where autograd finds something that it saved. `value` is None while it is forgotten."""

    def __init__(self, value):
        self.value = value


class Kept:
    """What one block of one training step keeps under names."""

    def __init__(self, step, number):
        self.step, self.number = weakref.proxy(step), number
        self.values, self.slots, self.groups = {}, {}, {}
        self.generators, self.stops = {}, {}

    def slot(self, name, value):
        """Makes what autograd saves of `value` forgettable. In a second run, puts it back."""
        if name in self.slots:
            _fill(self.slots[name](), value)
            return value
        slot = Slot(value.detach())
        self.slots[name] = weakref.ref(slot)
        self.step.live[_key(value)] = slot
        for part in _alive(self.step.group):  # the operation may have saved its result
            if torch.is_tensor(part.value) and _key(part.value) == _key(value):
                part.value = _reference(slot, part.value)
        return value

    @contextlib.contextmanager
    def saves(self, name, forget=False):
        """Makes what autograd saves in here forgettable. In a second run, puts it back."""
        if name in self.groups:
            self.step.refills = iter(self.groups[name])
        else:
            self.step.group = self.groups[name] = []
        try:
            yield
        finally:
            self.step.group = self.step.refills = ()
        if forget:
            self.forget_saved(name)

    @contextlib.contextmanager
    def draws(self, name, device):
        """A second run draws the same random numbers, and leaves the generator as it was."""
        generator, again = _generator(device), name in self.generators
        present = generator.get_state()
        generator.set_state(self.generators.setdefault(name, present))
        try:
            yield
        finally:
            if again:
                generator.set_state(present)

    def hand(self, name, value):
        """Gives a value to the function that `receive`s it, which can then free it."""
        self.values[name] = value

    def receive(self, name):
        """A value that was handed over."""
        return self.values.pop(name)

    def keep(self, name, value):
        """Holds a value for a second run of what reads it."""
        self.values[name] = value.detach(), value.requires_grad

    def get(self, name):
        """A kept value."""
        return _tracked(*self.values[name])

    def take(self, name):
        """A kept value, for the last time."""
        return _tracked(*self.values.pop(name))

    def forget(self, name):
        """Frees what autograd saved of a value."""
        slot = self.slots[name]()
        if slot is not None and slot.value is not None:
            self.step.live.pop(_key(slot.value), None)
            slot.value = None

    def forget_saved(self, name):
        """Frees what autograd saved in `saves(name)`."""
        for part in _alive(self.groups[name]):
            part.value = None if torch.is_tensor(part.value) else part.value

    def stop(self, name, value):
        """Marks a place that the backward program can wait for."""
        node = value.grad_fn  # None if an input came without the gradient planned for
        stop = self.stops[name] = types.SimpleNamespace(passed=node is None)
        if node is not None:
            node.register_prehook(functools.partial(self.step.reach, stop))

    def at(self, name):
        """To be yielded: waits until autograd is about to go back through the place."""
        return self.stops[name]

    def rebuilding(self):
        """See Step.rebuilding."""
        return self.step.rebuilding()

    def before(self, blocks):
        """What the block keeps that stands so many blocks earlier."""
        return self.step[self.number - blocks]


class Step:
    """One training step: what its blocks keep, and how far its backward program has come."""

    def __init__(self):
        self.live, self.blocks, self.given, self.theirs = {}, {}, [], set()
        self.group, self.refills = (), ()
        self.program, self.awaited, self.finished = (), None, False

    def __getitem__(self, block):
        return self.blocks.setdefault(block, Kept(self, block))

    @contextlib.contextmanager
    def forward(self, backward_program, model, *inputs):
        """The first forward pass; afterwards autograd drives `backward_program`."""
        given = [*model.parameters(), *(t for t in inputs if torch.is_tensor(t))]
        self.theirs = {_key(tensor) for tensor in (*given, *model.buffers())}
        with torch.autograd.graph.saved_tensors_hooks(self.pack, self.unpack):
            yield
        self.live.clear()
        self.given = [(tensor, tensor._version) for tensor in given]
        # A proxy: only autograd owns the step, which goes when the graph does.
        self.program = backward_program(weakref.proxy(self), model, *inputs)

    def pack(self, saved):
        """What autograd holds instead of a tensor that it saves."""
        slot = self.live.get(_key(saved))
        tensor = saved if saved.is_leaf else saved.detach()
        held = (tensor, saved._version) if slot is None else _reference(slot, saved)
        if not isinstance(self.group, list):
            return held
        forgettable = slot is None and _key(saved) not in self.theirs
        part = Slot(tensor if forgettable else held)
        self.group.append(weakref.ref(part))
        return part

    def unpack(self, held):
        """The tensor that autograd saved, once the backward program has put it back."""
        found = self.wait_for(held) if isinstance(held, Slot) else held
        if torch.is_tensor(found):
            return found
        source, *how = found
        if isinstance(source, Slot):
            return _view(self.wait_for(source), *how)
        if [source._version] != how:
            raise RuntimeError("a tensor that backward needs was changed in place")
        return source

    def wait_for(self, slot):
        """The value of a slot, once it is there."""
        while slot.value is None:
            self.go_on()
        return slot.value

    @contextlib.contextmanager
    def rebuilding(self):
        """Runs operations as the first time; what they save goes to where autograd looks."""
        hooks = torch.autograd.graph.saved_tensors_hooks(self.refill, lambda held: held)
        with torch.enable_grad(), hooks:
            yield

    def refill(self, saved):
        """Puts back the next thing of those that an operation saves, always in one order."""
        part = next(self.refills, lambda: None)() if self.refills else None
        if part is not None and (part.value is None or torch.is_tensor(part.value)):
            part.value = saved.detach()

    def reach(self, stop, grads):
        """Autograd is about to pass `stop`."""
        if torch.is_grad_enabled():
            raise RuntimeError("double backward (create_graph=True) is not supported")
        while not stop.passed and not self.finished:
            self.go_on()

    def go_on(self):
        """Runs the backward program up to its next `yield`."""
        if self.finished:
            raise RuntimeError("backward can run only once: what it used is gone")
        if self.awaited is not None:
            self.awaited.passed = True
        elif any(tensor._version != version for tensor, version in self.given):
            raise RuntimeError("a parameter or input was changed in place too early")
        with contextlib.ExitStack() as modes:
            modes.enter_context(torch.no_grad())
            for device, dtype in AUTOCAST.items():
                on = dtype is not None
                cast = torch.autocast(device, dtype, on, cache_enabled=False)
                modes.enter_context(cast)
            waiting = (stop for stop in self.program if not stop.passed)
            self.awaited = next(waiting, None)
        self.finished = self.awaited is None


class _Tracked(torch.autograd.Function):
    """Makes autograd record what happens to a value, as it did the first time."""

    @staticmethod
    def forward(ctx, anchor, value):
        return value.detach()

    @staticmethod
    def backward(ctx, grad):
        return None, None


def _tracked(value, requires_grad):
    anchor = torch.empty(0, requires_grad=True)
    return _Tracked.apply(anchor, value) if requires_grad else value


def _alive(parts):
    return [part for part in (ref() for ref in parts) if part is not None]


def _fill(slot, value):
    if slot is not None:  # else autograd has no use for it any more
        slot.value = value.detach()


def _key(tensor):
    return tensor.untyped_storage()._cdata


def _reference(slot, saved):
    place = saved.size(), saved.stride(), saved.storage_offset()
    return slot, saved.dtype, place, saved.is_conj(), saved.is_neg()


def _view(value, dtype, place, conjugate, negative):
    if value.dtype != dtype:
        value = value.new_empty(0, dtype=dtype).set_(value.untyped_storage())
    found = value.as_strided(*place)
    found = found.conj() if found.is_conj() != conjugate else found
    return torch._neg_view(found) if found.is_neg() != negative else found


def _generator(device):
    place = torch.device(device)
    if place.type == "cpu":
        return torch.default_generator
    index = torch.cuda.current_device() if place.index is None else place.index
    return torch.cuda.default_generators[index]


def check_call(model, frozen, expected, given, autocast):
    """Refuses what the plan was not made for: other inputs, trainable parameters or casts."""
    for device, dtype in autocast.items():
        enabled = torch.is_autocast_enabled(device)
        found = torch.get_autocast_dtype(device) if enabled else None
        _check(f"autocast on {device}", found, dtype)
    for name, wanted in expected.items():
        spare = isinstance(wanted, tuple) and wanted[2]  # a gradient may be left out
        _check(name, _described(given[name], spare), _described(wanted))
    for name, parameter in model.named_parameters():
        _check(f"{name}.requires_grad", parameter.requires_grad, name not in frozen)


def check_modes(model, modes):
    """Refuses modules in another mode than they were traced in, where what they compute does not follow their mode."""
    for path, training in modes.items():
        _check(f"{path}.training", model.get_submodule(path).training, training)


def _check(what, found, wanted):
    if found != wanted:
        said = f"{what} is {found}, but this file was planned for {wanted}"
        raise ValueError(f"{said}: generate it again")


def _described(value, with_gradient=False):
    if torch.is_tensor(value):
        gradient = value.requires_grad or with_gradient
        value = tuple(value.shape), value.dtype, gradient
    if not isinstance(value, tuple):
        return repr(value)
    shape, dtype, requires_grad = value
    name = f"{str(dtype).removeprefix('torch.')}{list(shape)}"
    return f"{name} with gradient" if requires_grad else name


def known_class(module, name):
    """A class of what the original returns. Whoever made the original has imported it."""
    found = sys.modules[module]
    for part in name.split("."):
        found = getattr(found, part)
    return found


@contextlib.contextmanager
def uncached_casts():
    """Autocast makes a copy of a parameter when it is used and holds it no longer; the plan counts it so."""
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(before)


def unpacked(shape, dtype, device, *text):
    """A constant tensor from its bytes."""
    raw = bytearray(zlib.decompress(base64.b64decode("".join(text))))
    return torch.frombuffer(raw, dtype=dtype).reshape(shape).to(device)


def is_one(names, expected, given):
    """Whether one of the sizes called `names` is 1 in this call."""
    return any(
        size in names and n == 1
        for name, wanted in expected.items()
        if isinstance(wanted, tuple) and torch.is_tensor(given[name])
        for size, n in zip(wanted[0], given[name].shape, strict=False)
    )


def with_sizes(expected, sizes, given, planned_peak):
    """`expected` for the sizes of this call. `sizes` are the least, the planned and the most (None: any) of each, and the
    power of it that the peak grows with."""
    found: dict[str, int] = {}
    for name, wanted in expected.items():
        shape = tuple(given[name].shape) if torch.is_tensor(given[name]) else ()
        if isinstance(wanted, tuple) and len(shape) == len(wanted[0]):
            pairs = zip(wanted[0], shape, strict=True)
            found = {size: n for size, n in pairs if isinstance(size, str)} | found
    for size, n in found.items():
        least, _, most, _ = sizes[size]
        if n < least or (most is not None and n > most):
            limits = f"the model takes {least} to {most or 'any'}"
            raise ValueError(f"the size {size} is {n}, but {limits}")
    ratios = [(n / sizes[size][1], sizes[size][3]) for size, n in found.items()]
    factor = math.prod(ratio**power for ratio, power in ratios)
    if factor > 1 and not getattr(with_sizes, "warned", False):
        with_sizes.warned = True  # type: ignore[attr-defined]
        peak = planned_peak * factor / 2**20
        warnings.warn(
            f"inputs are larger than planned: expect an activation peak of about {peak:,.1f} MiB",
            stacklevel=3,
        )

    def resized(wanted):
        shape, *rest = wanted
        return tuple(found.get(n, n) for n in shape), *rest

    return {n: resized(w) if isinstance(w, tuple) else w for n, w in expected.items()}
