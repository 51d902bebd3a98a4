"""What a generated file needs while it runs. The emitter copies these definitions into the file, less the methods that it
does not use; tests run them from here.

The first forward pass builds PyTorch's own autograd graph, so gradients flow, accumulate and reach parameters exactly as in the
original. Only what autograd *saves* is looked after: a value that the plan forgets is saved as a reference to a
`Slot`, and each thing that an operation saves beside such values can be a `Slot` of its own; forgetting empties them,
running again fills them. The backward program is a generator that runs beside autograd: at each `yield` it waits until
autograd is about to go back through the value named there.

Lines are at most as long as black makes them in a generated file: 120 columns.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import inspect
import math
import re
import sys
import types
import warnings
import weakref
import zlib

import torch

AUTOCAST: dict = {}  # each generated file has its own


class Slot(types.SimpleNamespace):
    """Where autograd finds something that it saved. `value` is None while it is forgotten."""


class Kept:
    """What one block of one training step keeps under names."""

    def __init__(self, step, number):
        self.step, self.number = weakref.proxy(step), number
        self.values, self.shapes, self.slots, self.groups, self.generators, self.stops = {}, {}, {}, {}, {}, {}

    def slot(self, name, value, stop=False):
        """Makes what autograd saves of `value` forgettable. In a second run, puts it back."""
        if name in self.slots:
            (self.slots[name]() or Slot()).value = value.detach()  # autograd may need it no more
            return value
        slot = self.step.live[_key(value)] = Slot(value=value.detach())
        self.slots[name] = weakref.ref(slot)
        for part in filter(None, (ref() for ref in self.step.group)):  # the operation may have saved its result
            if torch.is_tensor(part.value[0]) and _key(part.value[0]) == _key(value):
                part.value = _reference(slot, part.value[0])
        return self.stop(name, value) if stop else value

    @contextlib.contextmanager
    def saves(self, name, forget=False):
        """Makes what autograd saves in here forgettable. In a second run, puts it back."""
        if name in self.groups:
            self.step.refills = iter(self.groups[name])
        else:
            self.step.group = self.groups[name] = []
        yield
        self.step.group = self.step.refills = ()
        if forget:
            self.forget_saved(name)

    @contextlib.contextmanager
    def draws(self, name, generator):
        """A second run draws the same random numbers, and leaves the generator as it was."""
        again, present = name in self.generators, generator.get_state()
        generator.set_state(self.generators.setdefault(name, present))
        try:
            yield
        finally:
            generator.set_state(present if again else generator.get_state())

    def hand(self, name, value):
        """Gives a value to the function that `receive`s it, which can then free it."""
        self.values[name] = value

    def receive(self, name):
        """A value that was handed over."""
        return self.values.pop(name)

    def keep(self, name, value):
        """Holds a value for a second run of what reads it."""
        self.values[name] = value.detach(), value._version, torch.empty(0, requires_grad=value.requires_grad)
        return value

    def read(self, name):
        """A kept value."""
        return _Tracked.apply(*self.values[name])

    def take(self, name):
        """A kept value, for the last time."""
        return _Tracked.apply(*self.values.pop(name))

    def forget(self, name):
        """Frees what autograd saved of a value."""
        slot = self.slots[name]()
        if slot is not None and slot.value is not None:
            self.step.live.pop(_key(slot.value), None)
            slot.value = None

    def forget_saved(self, name):
        """Frees what autograd saved in `saves(name)`."""
        for part in filter(None, (ref() for ref in self.groups[name])):
            part.value = part.value if part.value and isinstance(part.value[0], Slot) else None

    def stop(self, name, value):
        """Marks a place that the backward program can wait for: autograd is about to go back through `value`."""
        stop = self.stops[name] = types.SimpleNamespace(passed=value.grad_fn is None)
        if value.grad_fn is not None:  # else an input came without the gradient planned for
            value.grad_fn.register_prehook(functools.partial(self.step.reach, stop))
        return value

    def before(self, blocks):
        """What the block keeps that stands so many blocks earlier."""
        return self.step[self.number - blocks]


class Again(Kept):
    """The same for a second run of a block's first function, which forgets nothing then. Nobody waits in it."""

    def __init__(self, kept):
        self.__dict__ = {**kept.__dict__, "stops": {}}

    forget = forget_saved = lambda self, name: None


class Step:
    """One training step: what its blocks keep, and how far its backward program has come."""

    def __init__(self):
        self.live, self.blocks, self.theirs, self.group, self.refills = {}, {}, set(), (), ()
        self.program, self.awaited, self.finished = (), None, False

    def __getitem__(self, block):
        return self.blocks.setdefault(block, Kept(self, block))

    @contextlib.contextmanager
    def forward(self, backward_program, model, *inputs):
        """The first forward pass; afterwards autograd drives `backward_program`."""
        tensors = [t for t in inputs if torch.is_tensor(t)]
        self.theirs = {_key(t) for t in (*model.parameters(), *model.buffers(), *tensors)}
        with torch.autograd.graph.saved_tensors_hooks(self.pack, self.unpack):
            yield
        self.live.clear()
        self.marks = lambda: [(id(t), t._version, t.data_ptr()) for t in (*model.parameters(), *tensors)]
        self.modes = lambda: [m.training for m in model.modules()]
        self.marked = self.marks(), self.modes(), list(model.parameters())  # held, so that no others get their ids
        self.program = backward_program(weakref.proxy(self), model, *inputs)  # a proxy: only autograd owns the step

    def pack(self, saved):
        """What autograd holds instead of a tensor that it saves."""
        slot = self.live.get(_key(saved))
        tensor = saved if saved.is_leaf else saved.detach()
        held = (tensor, saved._version) if slot is None else _reference(slot, saved)
        if not isinstance(self.group, list):
            return held
        part = Slot(value=held)
        forgettable = slot is None and _key(saved) not in self.theirs
        self.group.append(weakref.ref(part) if forgettable else lambda: None)  # `refill` goes by places
        return part

    def unpack(self, held):
        """The tensor that autograd saved, once the backward program has put it back."""
        source, *how = self.wait_for(held) if isinstance(held, Slot) else held
        return _view(self.wait_for(source), *how) if isinstance(source, Slot) else _unchanged(source, *how)

    def wait_for(self, slot):
        """The value of a slot, once it is there."""
        while slot.value is None:
            self.go_on()
        return slot.value

    def refill(self, saved):
        """Puts back the next thing of those that an operation saves, always in one order."""
        part = next(self.refills, lambda: None)() if self.refills else None
        if part is not None and (part.value is None or torch.is_tensor(part.value[0])):
            part.value = saved.detach(), saved._version

    def reach(self, stop, grads):
        """Autograd is about to pass `stop`."""
        if torch.is_grad_enabled():
            raise RuntimeError(
                "double backward (create_graph=True) is not supported: use the model itself, or a file with marks"
            )
        stop.passed = True
        if not self.finished and (self.awaited is None or self.awaited is stop):  # else nobody waits for it yet
            self.go_on()

    def go_on(self):
        """Runs the backward program up to its next `yield`; what operations save goes to where autograd looks."""
        if self.finished:
            raise RuntimeError("backward can run only once: what it used is gone; add the losses, or call the model again")
        if self.awaited is not None:
            self.awaited.passed = True
        elif (self.marks(), self.modes()) != self.marked[:2]:
            what = "a parameter, input or mode was changed in place or replaced before the backward pass"
            raise RuntimeError(f"{what}: do it after backward()")
        hooks = torch.autograd.graph.saved_tensors_hooks(self.refill, lambda held: held)
        with torch.enable_grad(), hooks, contextlib.ExitStack() as casts:
            for device, dtype in AUTOCAST.items():
                casts.enter_context(torch.autocast(device, dtype, dtype is not None, cache_enabled=False))
            self.awaited = next((stop for stop in self.program if not stop.passed), None)
        self.finished = self.awaited is None


class UncachedStep(Step):
    """A step under autocast. Each copy of a parameter that it makes is gone once it is used; the plan counts it so."""

    @contextlib.contextmanager
    def forward(self, backward_program, model, *inputs):
        """The first forward pass, without autocast's cache."""
        cached, device = torch.is_autocast_cache_enabled(), next(d for d, dtype in AUTOCAST.items() if dtype)
        kept = _kept_by_autocast(device)
        (copy, _), *_ = torch.mm(kept, kept.new_zeros(1, 0)).grad_fn.next_functions
        self.autocast = copy  # its node: another one in each autocast
        self.copied = [p for p in model.parameters() if p.requires_grad and p.dtype is torch.float32]
        torch.set_autocast_cache_enabled(False)
        try:
            with super().forward(backward_program, model, *inputs):
                yield
        finally:
            torch.set_autocast_cache_enabled(cached)

    def unpack(self, held):
        """The same, where no other step of this autocast goes into one gradient: the original adds these in another type."""
        task, shared = torch._C._current_graph_task_id(), self.autocast.metadata
        if shared.get("task") != task:
            shared.update(task=task, steps=weakref.WeakSet(), copied=set())
        if task != -1 and self not in shared["steps"]:
            own = {*map(id, self.copied)}
            if shared["copied"] & own:
                what = "two forward passes in one autocast go into one loss, and both use its copies of parameters"
                what += ": call the model in an autocast of its own each time, or take a file with marks"
                raise RuntimeError(what)
            shared["steps"].add(self)
            shared["copied"] |= own
        return super().unpack(held)


@functools.cache
def _kept_by_autocast(device):
    """A parameter without numbers. Autocast keeps its copy, too, and makes another one when it is entered again."""
    return torch.nn.Parameter(torch.zeros(0, 1, dtype=torch.float32, device=device))


class _Tracked(torch.autograd.Function):
    """Makes autograd record what happens to a value, as it did the first time."""

    @staticmethod
    def forward(ctx, value, version, anchor):
        return _unchanged(value, version).detach()


def _unchanged(tensor, version):
    if tensor._version != version:
        raise RuntimeError("a tensor that backward needs was changed in place: write into a clone")
    return tensor


def _key(tensor):
    return tensor.untyped_storage()._cdata


def _reference(slot, saved):
    return slot, saved.dtype, (saved.storage_offset(), saved.size(), saved.stride()), saved.is_conj(), saved.is_neg()


def _view(value, dtype, place, conjugate, negative):
    found = value.new_empty(0, dtype=dtype).set_(value.untyped_storage(), *place)
    found = found.conj() if conjugate else found
    return torch._neg_view(found) if negative else found


def said(value):
    return repr(getattr(value, "__name__", value)).replace(", ", ",").replace("; ", ";")


def structure(model, names):
    """What a plan is for, by path: modules, how many parts they have, their parameters, and what they hold as `names`."""
    found = {}
    for path, part in model.named_modules():
        words = [f"{type(part).__name__ if path else 'model'}[{len(part._modules)}]".removesuffix("[0]")]
        words += [f"{n}{said([*p.shape])}" for n, p in part._parameters.items() if p is not None]
        path, *words = (re.sub(r"[\s;:*\0]", "_", word) for word in (path or ".", *words))  # which part names here
        kind, plain = type(part), (int, float, str)
        own = [n for n in sorted(names) if n in vars(part) or isinstance(getattr(kind, n, None), plain)]
        found[path] = ", ".join(words + [f"{n}={said(getattr(part, n))}" for n in own])
    return found


def hooks_of(part):
    """The hooks that fire when a module is called, and on the way back through it."""
    kinds = part._forward_pre_hooks, part._forward_hooks, part._backward_pre_hooks, part._backward_hooks
    return [hook for held in kinds for hook in held.values()]


def tell_hooks(model, traced):
    """Says once of a hook that it does not fire: training steps do not call modules. `traced` has how many hooks a module
    had when it was traced: what those compute is part of the file."""
    for path, part in [] if hasattr(tell_hooks, "told") else model.named_modules():
        hooks = hooks_of(part)
        if path and len(hooks) > traced.get(path, 0):
            tell_hooks.told = True  # type: ignore[attr-defined]
            name = getattr(hooks[-1], "__qualname__", type(hooks[-1]).__name__)
            what = f"the hook {name} of {path} does not fire in training steps"
            warnings.warn(f"{what}, for this file is of functions: generate it with --edition 2", stacklevel=5)
            break


def check_objects(model, planned):
    """Refuses other settings in what modules hold: configurations, dicts and lists."""
    for paths, settings in planned.items():
        for where, thing in (pair for path in paths.split(" ") for pair in held_at(model, path)):
            for name, wanted in settings.items():
                found = held(thing, name, check_objects)
                found = "missing" if found is check_objects else said(found)
                if found != wanted:
                    what = f"{where}.{name}".replace(".[", "[")
                    raise ValueError(f"{what} is {found}, but this file was planned for {wanted}: generate it again")


def held_at(thing, path):
    """What is at a path, and where. `h.*` are all parts of h."""
    at = [("", thing)]
    for name in path.split("."):
        at = [(f"{p}.{n}".strip("."), held(t, n)) for p, t in at for n in (dict(t.named_children()) if name == "*" else [name])]
    return at


def held(thing, name, default=None):
    if isinstance(thing, (list, tuple)) and name[0] == "[":
        return thing[int(name[1:-1])] if int(name[1:-1]) < len(thing) else default
    return thing[name] if isinstance(thing, dict) and name in thing else getattr(thing, name, default)


def check_call(model, planned, frozen, expected, given, autocast):
    """Refuses what the plan was not made for: other modules, inputs, trainable parameters or casts."""
    casts = {d: torch.get_autocast_dtype(d) if torch.is_autocast_enabled(d) else None for d in autocast}
    rows = [(f"autocast on {d}", casts[d], dtype) for d, dtype in autocast.items()]
    places = ((n, p.device.type) for n, p in model.named_parameters())
    rows += [(f"the device of {n}", place, " and ".join(autocast)) for n, place in places if place not in autocast]
    rows += [(n, _described(given[n], wanted), _described(wanted)) for n, wanted in expected.items()]
    parts = {path: t for paths, t in (row.split(": ", 1) for row in planned.split("; ")) for path in paths.split()}
    for path, found in structure(model, {*re.findall(r", (\w+)=", planned)}).items():
        layers = ".".join("*" if name.isdigit() else name for name in path.split("."))
        rows.append((path if path != "." else "the model", found, parts.get(path) or parts.get(layers, "nothing")))
    rows += [(f"{n}.requires_grad", p.requires_grad, n not in frozen) for n, p in model.named_parameters()]
    for what, found, wanted in rows:
        if found != wanted:
            raise ValueError(f"{what} is {found}, but this file was planned for {wanted}: generate it again")


def check_arguments(model, given, planned, defaulted=(), theirs=None):
    """Refuses other arguments of forward: what is not a tensor, and how many there are in lists and dicts. Those `defaulted`
    were planned for as forward's own defaults, or those of `theirs`, if it passes arguments on: another thing that looks
    alike will do only where that tells all of it."""
    own: dict = {}
    if defaulted:
        own = inspect.signature(theirs).parameters if theirs else parameters_of(type(model), sys._getframe(1).f_code)
    for name, thing in given.items():
        found, another = told(thing), name in defaulted and thing is not own[name].default
        if found != planned[name] or (another and "<" in found):
            other = f"{found}, but" if found != planned[name] else f"another {found}, and"
            raise ValueError(f"{name} is {other} this file was planned for {planned[name]}: generate it again")


@functools.lru_cache(maxsize=64)
def parameters_of(kind, code):
    """The parameters of the forward that has this code, in a class or those that it is made from."""
    found = (inspect.unwrap(vars(base)["forward"]) for base in kind.__mro__ if "forward" in vars(base))
    return inspect.signature(next(f for f in found if getattr(f, "__code__", None) is code)).parameters


def told(thing, deep=4):
    """What something is, with what is in it, down to some depth; in <> where that does not tell one from another."""
    kind, own = type(thing).__name__, getattr(thing, "__dict__", None)
    if torch.is_tensor(thing):
        return "<tensor>"
    if isinstance(thing, (tuple, list)) and deep:
        return f"[{', '.join(told(t, deep - 1) for t in thing)}]"
    if isinstance(thing, (set, frozenset)) and deep:
        return f"{{{', '.join(sorted(told(t, deep - 1) for t in thing))}}}"
    if isinstance(thing, dict) and deep:
        return f"{{{', '.join(sorted(f'{told(k, deep - 1)}: {told(t, deep - 1)}' for k, t in thing.items()))}}}"
    if hasattr(type(thing), "__members__") and not isinstance(thing, type):  # of an Enum; a flag of several has no name
        return f"{kind}.{thing.name or thing.value}"
    if isinstance(own, dict) and deep and not isinstance(thing, (torch.nn.Module, types.ModuleType, types.FunctionType)):
        name = kind if hasattr(type(thing), "__dataclass_fields__") else f"<{kind}>"
        return f"{name}({', '.join(f'{n}={told(t, deep - 1)}' for n, t in own.items())})"
    known = (bool, int, float, complex, str, bytes, range, slice, type(None), torch.dtype, torch.device, torch.memory_format)
    return repr(thing) if type(thing) in known else f"<{getattr(thing, '__name__', kind)}>"


@functools.cache
def defaulted_as(theirs, ours):
    """`ours`, with the defaults of the method it stands for: they may be of the original's file, as members of an Enum."""
    if not isinstance(ours, types.FunctionType) or hasattr(ours, "__wrapped__"):
        return ours
    named, own = inspect.signature(theirs).parameters, inspect.signature(ours).parameters.values()
    defaults = {p.name: named[p.name].default if p.name in named else p.default for p in own}
    defaults |= {p.name: p.default for p in own if defaults[p.name] is p.empty}
    made = types.FunctionType(ours.__code__, ours.__globals__, ours.__name__, None, ours.__closure__)
    made.__doc__, made.__qualname__, made.__annotations__ = ours.__doc__, ours.__qualname__, ours.__annotations__
    positional = [p.name for p in own if p.kind is not p.KEYWORD_ONLY and p.default is not p.empty]
    made.__defaults__ = tuple(defaults[name] for name in positional)
    made.__kwdefaults__ = {p.name: defaults[p.name] for p in own if p.kind is p.KEYWORD_ONLY and p.default is not p.empty}
    return made


def check_modes(model, modes):
    """Refuses modules in another mode: what they compute here does not follow it."""
    for path, planned in modes.items():
        if model.get_submodule(path).training != planned:
            raise ValueError(f"{path}.training is {not planned}, but this file was planned for {planned}: generate it again")


def _described(value, wanted=None):
    if torch.is_tensor(value):  # whose gradient may be left out
        value = tuple(value.shape), value.dtype, value.requires_grad or (isinstance(wanted, tuple) and wanted[2])
    if not isinstance(value, tuple):
        return repr(value)
    shape, dtype, requires_grad = value
    return f"{str(dtype).removeprefix('torch.')}{list(shape)}{' with gradient' if requires_grad else ''}"


def check_layouts(model, given, channels_last):
    """Refuses inputs or parameters in channels_last where the plan is for others, and others where it is for those."""
    for name, tensors in {**{n: [t] for n, t in given.items()}, "parameters": model.parameters()}.items():
        found = any(not t.is_contiguous() and is_channels_last(t) for t in tensors if torch.is_tensor(t))
        if found != (name in channels_last):
            planned = "for channels_last" if name in channels_last else "without channels_last"
            raise ValueError(f"{name} in another memory format: this file was planned {planned}; generate it again")


def check_dtypes(model, planned):
    """Refuses parameters of other types: forward mentions types, and computes here in those that it was traced with."""
    found = {p.dtype for p in model.parameters()}
    if found != planned:
        raise ValueError(f"parameters are of {found}, but this file was planned for {planned}: generate it again")


def check_decisions(found, planned):
    """Refuses inputs by whose values the model would do something else: such as a mask that is not all ones any more."""
    for value, (line, wanted) in zip(found, planned, strict=True):
        if bool(value) != wanted:
            raise ValueError(f"{line} finds {not wanted}, but this file was planned for {wanted}: generate it for such inputs")


def is_channels_last(tensor):
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return tensor.dim() in formats and tensor.is_contiguous(memory_format=formats[tensor.dim()])


def known_class(module, name):
    """A class that the original's code uses. Whoever made the original has imported it."""
    found = sys.modules[module]
    for part in name.split("."):
        found = getattr(found, part)
    return found


def function_of(owner, name):
    """The autograd.Function that a module's code calls by this name: it is known where the module's class stands."""
    for kind in type(owner).__mro__:
        found = sys.modules.get(kind.__module__)
        for part in name.split("."):
            found = getattr(found, part, None)
        if isinstance(found, type) and issubclass(found, torch.autograd.Function):
            return found
    where = f"not where {type(owner).__name__} stands"
    raise AttributeError(f"the autograd.Function {name} is {where}: import it there, or generate the file again")


def unpacked(shape, dtype, device, *text):
    """A constant tensor from its bytes."""
    raw = bytearray(zlib.decompress(base64.b64decode("".join(text))))
    return torch.frombuffer(raw, dtype=dtype).reshape(shape).to(device)


@functools.cache
def there(constant, device):
    """A constant on the device that the step runs on."""
    return constant.to(device)


def is_one(names, expected, given):
    """Whether one of the sizes called `names` is 1 in this call."""
    return any(
        size in names and n == 1
        for name, wanted in expected.items()
        if isinstance(wanted, tuple) and torch.is_tensor(given[name])
        for size, n in zip(wanted[0], given[name].shape, strict=False)
    )


def smaller_call(limits, expected, sizes, given):
    """`expected` for inputs that are no larger than one of `limits`: by name, the most in some dimensions, and what was planned
    in the others; None for other inputs. `sizes` have the planned of each size that may change."""

    def no_larger(limit, name, wanted):
        if not (isinstance(wanted, tuple) and torch.is_tensor(given[name]) and given[name].dim() == len(wanted[0])):
            return wanted
        planned = dict(enumerate(sizes[n][1] if isinstance(n, str) else n for n in wanted[0]))
        most = {**planned, **limit.get(name, {})}
        return [min(n, most[d]) for d, n in enumerate(given[name].shape)], *wanted[1:]

    rows = [{name: no_larger(limit, name, wanted) for name, wanted in expected.items()} for limit in limits]
    fitting = (row for row in rows if all(_described(given[n], wanted) == _described(wanted) for n, wanted in row.items()))
    return next(fitting, None)


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
            limits = f"this file takes {least} to {most or 'any'}: pad or cut the input"
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
