"""What a generated file needs while it runs. The emitter copies these definitions into the file; tests run them from here.

The first forward pass builds PyTorch's own autograd graph, so gradients flow, accumulate and reach parameters exactly as in the
original. Only what autograd *saves* is looked after: a value that the plan forgets is saved as a reference to a
`Slot`, everything that one operation saves can be a `Group`; forgetting empties them, rebuilding fills them again.
The backward program is a generator that runs beside autograd: at each `yield` it waits until autograd is about to go back
through the value named there.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import math
import sys
import warnings
import weakref
import zlib

import torch


class Slot:
    """Where autograd finds a value that is forgotten and rebuilt between its forward and its backward."""

    def __init__(self, value):
        self.value = value

    def view(self, dtype, size, stride, offset, conjugate, negative):
        """A saved view of the value, from its geometry."""
        if self.value.dtype == dtype:
            found = self.value.as_strided(size, stride, offset)
        else:
            found = self.value.new_empty(0, dtype=dtype).set_(self.value.untyped_storage(), offset, size, stride)
        found = found.conj() if found.is_conj() != conjugate else found
        return torch._neg_view(found) if found.is_neg() != negative else found


class Group:
    """All that autograd saved for one operation, in order. Autograd owns it: each part goes when autograd lets go of it."""

    def __init__(self):
        self.parts = []
        self.next = 0

    def add(self, value):
        """One more part, for autograd to hold."""
        part = Part(self, value)
        self.parts.append(weakref.ref(part))
        return part

    def alive(self):
        """The parts that autograd still holds."""
        return [part for part in (ref() for ref in self.parts) if part is not None]

    def refill(self, saved):
        """Puts the next part back; an operation that runs again saves in the same order."""
        part = self.parts[self.next]()
        self.next += 1
        if part is not None and (part.value is None or torch.is_tensor(part.value)):
            part.value = saved.detach()


class Part:
    """One thing that autograd saved: a tensor, None while that is forgotten, or what is never forgotten here (a view of a slot,
    a parameter or buffer with its version)."""

    def __init__(self, group, value):
        self.group, self.value = group, value


class Stop:
    """A place on autograd's way back where the backward program has something to do."""

    passed = False


class Kept:
    """What one block of one training step keeps under names: slots, groups, generator states, values to rebuild from."""

    def __init__(self, step, number):
        self.number = number
        self.step: Step = weakref.proxy(step)  # type: ignore[assignment]
        self.values, self.slots, self.groups, self.generators, self.stops = {}, {}, {}, {}, {}

    def slot(self, name, value):
        """From here on, what autograd saves of `value` is looked up under `name`."""
        slot = Slot(value.detach())
        self.slots[name] = weakref.ref(slot)
        key = value.untyped_storage()._cdata
        self.step.live[key] = slot
        group = self.step.last_group
        if group is not None:  # the operation may have saved its own result
            for part in group.alive():
                part.value = _reference(part.value, slot) if _is_view_of(part.value, key) else part.value

    @contextlib.contextmanager
    def saves(self, name):
        """What autograd saves in here can be forgotten under `name`; run again, it is saved anew in its old places."""
        if name in self.groups:
            group = self.groups[name]()
        else:
            group = self.step.last_group = Group()
            self.groups[name] = weakref.ref(group)
        if group is not None:
            group.next = 0
        self.step.group = group
        try:
            yield
        finally:
            self.step.group = None

    @contextlib.contextmanager
    def draws(self, name, device):
        """Random numbers in here are the same each time, and the generator ends where the first time left it."""
        if name not in self.generators:
            self.generators[name] = _generator_state(device)
            yield
            return
        present = _generator_state(device)
        _set_generator_state(device, self.generators[name])
        try:
            yield
        finally:
            _set_generator_state(device, present)

    def hand(self, name, value):
        """Gives a value to the function that `receive`s it, which can then free it."""
        self.values[name] = value

    def receive(self, name):
        """A value that was handed over."""
        return self.values.pop(name)

    def keep(self, name, value):
        """Holds a value for a rebuild."""
        self.values[name] = value.detach(), value.requires_grad

    def get(self, name):
        """A kept value."""
        value, requires_grad = self.values[name]
        return _Alive.apply(_anchor(), value) if requires_grad else value

    def take(self, name):
        """A kept value that no later rebuild wants."""
        value, requires_grad = self.values.pop(name)
        return _Alive.apply(_anchor(), value) if requires_grad else value

    def forget(self, name):
        """Frees a value that autograd saved; it is rebuilt before autograd wants it."""
        slot = self.slots[name]()
        if slot is not None and slot.value is not None:
            self.step.live.pop(slot.value.untyped_storage()._cdata, None)
            slot.value = None

    def forget_saved(self, name):
        """Frees what autograd saved under `saves(name)`; it is rebuilt before autograd wants it."""
        group = self.groups[name]()
        for part in group.alive() if group is not None else ():
            part.value = None if torch.is_tensor(part.value) else part.value

    def rebuild(self, name, value):
        """Puts a value back that was forgotten."""
        slot = self.slots[name]()
        if slot is not None:
            slot.value = value.detach()

    def stop(self, name, value):
        """Lets the backward program run up to `at(name)` just before autograd goes back through `value`."""
        stop = self.stops[name] = Stop()
        if value.grad_fn is None:  # an input came without the gradient that was planned for: autograd ends earlier
            stop.passed = True
        else:
            value.grad_fn.register_prehook(functools.partial(_reach, self.step.itself(), stop))

    def rebuilding(self):
        """See Step.rebuilding."""
        return self.step.rebuilding()

    def before(self, blocks):
        """What the block that stands `blocks` earlier keeps."""
        return self.step[self.number - blocks]

    def at(self, name):
        """For the backward program: wait here until autograd reaches the stop."""
        return self.stops[name]


class Step:
    """One training step: what its blocks keep, and how far its backward program has come."""

    def __init__(self):
        self.live, self.blocks, self.given, self.group, self.last_group = {}, {}, [], None, None
        self.theirs: set[int] = set()  # the storages of what was there before the step
        self.program, self.awaited, self.finished = None, None, False
        self.autocasts = [(d, torch.get_autocast_dtype(d), torch.is_autocast_enabled(d)) for d in ("cpu", "cuda")]

    def __getitem__(self, block):
        return self.blocks.setdefault(block, Kept(self, block))

    def itself(self):
        """The step, for those that hold only a weak reference to it."""
        return self

    @contextlib.contextmanager
    def forward(self, backward_program, model, *inputs):
        """The first forward pass; afterwards autograd drives `backward_program`."""
        given = [*model.parameters(), *(t for t in inputs if torch.is_tensor(t))]
        self.theirs = {tensor.untyped_storage()._cdata for tensor in (*given, *model.buffers())}
        with torch.autograd.graph.saved_tensors_hooks(self.pack, self.unpack):
            yield self
        self.live.clear()
        self.last_group = None
        self.given = [(tensor, tensor._version) for tensor in given]
        self.program = backward_program(weakref.proxy(self), model, *inputs)  # autograd owns the step, and nothing else does

    def pack(self, saved):
        """What autograd holds instead of a tensor it wants to save."""
        slot = self.live.get(saved.untyped_storage()._cdata)
        held = (saved if saved.is_leaf else saved.detach(), saved._version) if slot is None else _reference(saved, slot)
        if self.group is None:
            return held
        forgettable = slot is None and saved.untyped_storage()._cdata not in self.theirs
        return self.group.add(held[0] if forgettable else held)

    def unpack(self, held):
        """The tensor that autograd saved; brings the backward program this far if it was not."""
        if isinstance(held, Part):
            while held.value is None:
                self.go_on()
            held = held.value
            if torch.is_tensor(held):
                return held
        if isinstance(held[0], Slot):
            while held[0].value is None:
                self.go_on()
            return held[0].view(*held[1:])
        tensor, version = held
        if tensor._version != version:
            raise RuntimeError("a tensor needed for the backward pass was changed in place after the forward pass")
        return tensor

    @contextlib.contextmanager
    def rebuilding(self):
        """Operations in here run as in the first forward pass, but autograd holds nothing of them: what they save
        goes to groups."""
        with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(self._refill, lambda held: held):
            yield

    def _refill(self, saved):
        if self.group is not None:
            self.group.refill(saved)

    def go_on(self):
        """Runs the backward program up to its next `yield`."""
        if self.finished:
            raise RuntimeError("a rematerialized step frees its activations as it goes: backward can run only once")
        if self.awaited is not None:
            self.awaited.passed = True
        elif any(tensor._version != version for tensor, version in self.given):
            raise RuntimeError("a parameter or an input was changed in place between the forward and the backward pass")
        with contextlib.ExitStack() as as_in_forward:
            as_in_forward.enter_context(torch.no_grad())
            for device, dtype, enabled in self.autocasts:
                as_in_forward.enter_context(torch.autocast(device, dtype=dtype, enabled=enabled, cache_enabled=False))
            self.awaited = next((stop for stop in self.program or () if not stop.passed), None)
        self.finished = self.awaited is None


class _Alive(torch.autograd.Function):
    """Makes autograd record what happens to a value, as it did the first time, without holding the value."""

    @staticmethod
    def forward(ctx, anchor, value):
        return value.detach()

    @staticmethod
    def backward(ctx, grad):
        return None, None


def _anchor():
    with torch.enable_grad():
        return torch.empty(0, requires_grad=True)


def _reach(step, stop, grads):
    """Autograd is about to pass `stop`."""
    if torch.is_grad_enabled():
        raise RuntimeError("double backward (create_graph=True) through a rematerialized step is not supported")
    while not stop.passed and not step.finished:
        step.go_on()


def _reference(saved, slot):
    return slot, saved.dtype, saved.size(), saved.stride(), saved.storage_offset(), saved.is_conj(), saved.is_neg()


def _is_view_of(saved, key):
    return torch.is_tensor(saved) and saved.untyped_storage()._cdata == key


def _generator_state(device):
    return torch.cuda.get_rng_state(device) if torch.device(device).type == "cuda" else torch.get_rng_state()


def _set_generator_state(device, state):
    torch.cuda.set_rng_state(state, device) if torch.device(device).type == "cuda" else torch.set_rng_state(state)


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


def check_call(model, frozen, expected, given, autocast):
    """A plan is made for one set of inputs, of trainable parameters and of casts; anything else gets a clear error."""
    for device, dtype in autocast.items():
        present = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
        if present != dtype:
            raise ValueError(
                f"called under autocast to {present} on {device}, but this file was planned for {dtype}: generate it again"
            )
    for name, wanted in expected.items():
        found = given[name]
        if torch.is_tensor(found):  # a gradient that was planned for need not be asked for
            planned = isinstance(wanted, tuple) and wanted[2]
            found = tuple(found.shape), found.dtype, found.requires_grad or planned
        if found != wanted:
            raise ValueError(
                f"{name} is {_describe(found)}, but this file was planned for {_describe(wanted)}: generate it again"
            )
    changed = [n for n, p in model.named_parameters() if p.requires_grad == (n in frozen)]
    if changed:
        raise ValueError(f"this file was planned with other trainable parameters ({changed[0]} differs): generate it again")


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
            found = {size: n for size, n in zip(wanted[0], shape, strict=True) if isinstance(size, str)} | found
    for size, n in found.items():
        least, _, most, _ = sizes[size]
        if n < least or (most is not None and n > most):
            raise ValueError(f"the size {size} is {n}, but the model takes {least} to {most or 'any'}")
    factor = math.prod((n / sizes[size][1]) ** sizes[size][3] for size, n in found.items())
    if factor > 1 and not getattr(with_sizes, "warned", False):
        with_sizes.warned = True  # type: ignore[attr-defined]
        peak = planned_peak * factor / 2**20
        warnings.warn(f"inputs are larger than planned: expect an activation peak of about {peak:,.1f} MiB", stacklevel=3)
    return {name: (tuple(found.get(n, n) for n in w[0]), *w[1:]) if isinstance(w, tuple) else w for name, w in expected.items()}


def _describe(found):
    if not (isinstance(found, tuple) and len(found) == 3):
        return repr(found)
    shape, dtype, requires_grad = found
    return f"{str(dtype).removeprefix('torch.')}{list(shape)}" + (" with gradient" if requires_grad else "")
