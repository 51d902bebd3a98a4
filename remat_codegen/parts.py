"""What generated files carry: parts of the forward pass that run again on the way back. Files hold a copy of these definitions.

How it works. While a training step runs forward, autograd hands each tensor that it saves to `Step.pack`, and holds what it
gets for it. Outside of parts that is the tensor itself. What a *part* of the plan saves is not held: autograd gets an empty
`Place`. A part's result is *lent*: whatever saves it later, or a view of it, gets the place of that result. The part
holds what it takes to run again: its inputs (the place instead, where an input is lent by another part), the settings around it,
and the states of the random generators, if it draws.

On the way back autograd brings what it holds to `Step.unpack`. If that is an empty place, its part runs again (`Part.again`), parts
that lend it its inputs first, the part around it before those. A `Replay` fills the places, in the order in which they were
made. What fills a place goes when autograd lets go of that place; what a part held goes when it has run again. Nothing else
is kept, and nothing refers to anything in a circle.

Parts within a part run plainly while that one runs again: they get their inputs by it, and run again later if somebody asks.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import functools
import os
import random
import threading
import types
import weakref

import torch

CHECK = bool(os.environ.get("REMAT_CHECK"))  # compare all that is put back with what was there first
RUNNING = contextvars.ContextVar("the training step that runs", default=None)
TABLES = weakref.WeakKeyDictionary()  # of models that were used
NOTHING = None, None


def parts(module):
    """The parts of this call of `module`: `kept.part(name, run, *inputs)` is run(*inputs), unless the plan has the name."""
    step = RUNNING.get()
    return PLAIN if step is None else step.call(step.table.marks.get(id(module)))


def training_step(forward, plan):
    """`forward` of the whole model, run as the plan says wherever gradients are needed."""

    @functools.wraps(forward)
    def planned(self, *args, **kwargs):
        return _planned(self, plan, functools.partial(forward, self), args, kwargs)

    return planned


def rematerialize(model, plan):
    """`model` itself, class and parameters as they are, whose training steps run as the plan says."""
    model.forward = InstanceForward(model, vars(model).get("forward"), plan)
    return model


def _planned(model, plan, forward, args, kwargs):
    hooked = torch._C._autograd._top_saved_tensors_default_hooks(
        True
    )  # such as save_on_cpu, or a checkpoint around: they go first
    if not plan or hooked or not model.training or not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    step = Step(model, plan, (args, kwargs))
    try:
        with step.running(), torch.autograd.graph.saved_tensors_hooks(step.pack, step.unpack):
            return forward(*args, **kwargs)
    finally:
        step.end()


class InstanceForward:
    """Stands in an instance as its `forward`, and is copied and pickled with it: the call is a part, or the step of a plan."""

    def __init__(self, module, before=None, plan=None):
        self.module, self.before, self.plan = weakref.ref(module), before, plan

    def __reduce__(self):
        return InstanceForward, (self.module(), self.before, self.plan)

    @property
    def __wrapped__(self):
        return self.before or types.MethodType(type(self.module()).forward, self.module())

    def __call__(self, *args, **kwargs):
        module, forward = self.module(), self.__wrapped__
        if self.plan is not None:
            return _planned(module, self.plan, forward, args, kwargs)
        step = RUNNING.get()
        call = PLAIN if step is None else step.call(step.table.calls.get(id(module)))
        return forward(*args, **kwargs) if call is PLAIN else call.part("", _call, forward, args, kwargs)


def _call(forward, args, kwargs):
    return forward(*args, **kwargs)


# ------------------------------------------------------------------------------------------------ the table of a model


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """What the plan says of one mark, or of a module's calls: places for what it saves, for its result, may it run twice."""

    name: str
    saved: bool
    result: bool
    twice: bool
    buffers: list  # (the dict that has it, its name) for all in the module


class Table:
    """The plan for one model: for each module, by its id, {(mark or "", number of the call or None): entry}."""

    def __init__(self, model, plan, modules):
        self.plan, self.seen, self.marks, self.calls = dict(plan), [*map(id, modules)], {}, {}
        named = dict(model.named_modules(remove_duplicate=False))
        for row, entries in plan.items():
            for text in entries.split():
                self.add(named, f"{row}.{text}".strip("."))

    @classmethod
    def of(cls, model, plan, modules):
        table = TABLES.get(model)
        if table is None or table.plan != plan or table.seen != [*map(id, modules)]:
            table = TABLES[model] = cls(model, plan, modules)
        return table

    def add(self, named, text):
        where, *options = text.split("/")
        path, _, number = where.partition("#")
        owner, _, mark = ("", "", "") if path in named else path.rpartition(".")
        module = named.get(owner if mark else path)
        if module is None or (mark and mark not in _strings(module)) or {*options} - {"inside", "result", "twice"}:
            raise ValueError(f"PLAN names {text}, but the model has no such module or mark: generate this file again")
        if not mark and not isinstance(vars(module).get("forward"), InstanceForward):
            module.forward = InstanceForward(module, vars(module).get("forward"))
        held = [(m._buffers, name) for m in module.modules() for name, buffer in m._buffers.items() if buffer is not None]
        entry = Entry(path, "result" not in options, "inside" not in options, "twice" in options, held)
        found = (self.marks if mark else self.calls).setdefault(id(module), {})
        found[mark, int(number) if number else None] = entry


def _strings(module):
    """All that the code of a module's class has as strings: its marks are among them."""
    kinds = [kind for kind in type(module).__mro__ if kind not in (torch.nn.Module, object)]
    todo, found = [f for kind in kinds for f in vars(kind).values()] + [vars(module).get("forward")], set()
    for thing in todo:  # grows
        thing = getattr(thing, "__func__", getattr(thing, "fget", thing))
        while hasattr(thing, "__wrapped__"):
            thing = thing.__wrapped__
        code = getattr(getattr(thing, "__func__", thing), "__code__", thing)
        if isinstance(code, types.CodeType):
            todo += [c for c in code.co_consts if isinstance(c, types.CodeType)]
            found |= {c for c in code.co_consts if isinstance(c, str)}
    return found


# ------------------------------------------------------------------------------------------------ parts and places


class Call:
    """One call of a module of the table."""

    __slots__ = "entries", "number", "step"

    def __init__(self, step, entries, number):
        self.step, self.entries, self.number = step, entries, number

    def part(self, name, run, *inputs):
        """run(*inputs). Where the plan has the name, autograd does not keep what it saves, or its result, or both."""
        step, entries = self.step, self.entries
        entry = entries and (entries.get((name, None)) or entries.get((name, self.number)))
        if not entry or not step.listens():
            return run(*inputs)
        if step.replay is not None:
            return step.replay.inner(entry, run, inputs)
        return Part(step, entry).first(run, inputs)


PLAIN = Call(None, None, 0)


class Place:
    """Where autograd finds something that it saved; `value` is None while it is not there."""

    __slots__ = "__weakref__", "like", "part", "truth", "value", "version"

    def __init__(self, part, tensor):
        self.part, self.like, self.value, self.version = part, _like(tensor), None, None
        self.truth = tensor.detach().clone() if CHECK else None

    def get(self):
        """The value, once its part ran again."""
        with self.part.step.lock:  # devices have a thread each
            if self.value is None:
                self.part.again()
            if self.value is None:
                raise self.part.error("did not save the same again")
            return _unchanged(self.value, self.version, self.part)

    def read(self):
        """The same for a part whose input it is: from a part that may run twice, it gets a result of its own."""
        with self.part.step.lock:
            return self.part.result_for(self) if self.value is None and self.part.entry.twice else self.get()

    def put(self, tensor):
        if self.like != _like(tensor):
            raise self.part.error("saved other things when it ran again")
        if self.truth is not None and not _same(self.truth, tensor):
            raise self.part.error("computed other values when it ran again")
        self.value, self.version = tensor.detach(), tensor._version


class Held:
    """An input of a part: a tensor, or the place of another part's result and which view of it is meant."""

    __slots__ = "changed", "how", "needs_grad", "source", "version"

    def __init__(self, place, tensor):
        self.source = place or (tensor if isinstance(tensor, torch.nn.Parameter) else tensor.detach())
        self.how, self.version, self.needs_grad = place and _how(tensor), tensor._version, tensor.requires_grad
        self.changed = False  # by the part itself, in place


class Part:
    """A part of the forward pass that runs again on the way back."""

    __slots__ = (
        *("__weakref__", "around", "buffers", "changed", "entry", "inners", "inputs", "outer", "places", "results"),
        *("run", "step"),
    )

    def __init__(self, step, entry):
        self.step, self.entry, self.outer, self.run, self.inputs = step, entry, step.part, None, None
        self.places, self.inners, self.results, self.changed = [], [], [], ()
        if self.outer is not None:
            self.outer.inners.append((entry, weakref.ref(self)))

    def error(self, what):
        return RuntimeError(f"{self.entry.name} {what}")

    def first(self, run, inputs):
        """The run of the forward pass."""
        step, held, around = self.step, self.hold(inputs), Around(self.step)
        if self.outer is None:  # else it gets them when the outer one runs again
            self.run, self.inputs, self.around = _frozen(run, self), held, around
        self.buffers = Buffers(self.entry)
        step.part = self
        try:
            result = run(*inputs)
        finally:
            step.part = self.outer
        around.drop_unused_states(step)
        self.buffers.note_moved()
        self.note_changed(inputs, held)
        self.lend(result, inputs)
        return result

    def note_changed(self, inputs, held):
        """Inputs that it changes in place have to be results of other parts: those can be had anew."""
        for i, (tensor, seen) in enumerate(zip(_all(inputs, torch.Tensor), _all(held, Held), strict=True)):
            if tensor._version != seen.version:
                seen.changed, self.changed = True, (*self.changed, i)
                if seen.how is None:
                    raise self.error("changes an input in place that is no part's result: take it out of the plan")

    def lend(self, result, inputs):
        """From now on, what saves its result gets the result's place, if that was made in here."""
        step, found = self.step, [*_all(inputs, torch.Tensor)]
        passed = {t.untyped_storage()._cdata for i, t in enumerate(found) if i not in self.changed}
        for tensor in _all(result, torch.Tensor) if self.entry.result else ():
            mine = _plain(tensor) and tensor.untyped_storage()._cdata not in passed and not step.is_kept(tensor)
            lender = step.place_of(tensor) if mine else None
            if lender is not None:
                mine = lender.part is not self and self in lender.part.chain()
            place = Place(self, tensor) if mine else None
            self.results.append(place and weakref.ref(place))
            if mine:
                step.lent[tensor.untyped_storage()] = place, tensor._version

    def chain(self):
        """It, the part around it, and so on."""
        return [self, *self.outer.chain()] if self.outer is not None else [self]

    def again_later(self, run, inputs, replay):
        """The part around it runs again: from now on this one has its inputs, and its result is lent to others in there."""
        self.run, self.inputs, self.around, self.outer = _frozen(run, self), self.hold(inputs), Around(self.step), None
        for i, held in enumerate(_all(self.inputs, Held)):
            held.changed = i in self.changed
        if replay.was_last():
            raise Enough
        result = run(*inputs)
        self.around.drop_unused_states(self.step)
        for place, tensor in self.living_results(result):
            replay.lent[tensor.untyped_storage()] = place, tensor._version
        return result

    def living_results(self, result):
        """The places of its results that anyone refers to, and what belongs there."""
        found = zip(self.results, _all(result, torch.Tensor), strict=True) if self.results else ()
        return [(place, tensor) for ref, tensor in found if ref is not None and (place := ref()) is not None]

    def again(self):
        """Fills the places that anyone still refers to, and lets go of what it held for that."""
        self.wait_for_outer()
        replay = Replay(self)
        result = self.repeat(replay)
        if not replay.stopped:
            replay.check_end()
            for place, tensor in self.living_results(result):
                place.put(tensor)
        self.run = self.inputs = self.around = None

    def result_for(self, place):
        """Its result, for one reader only; nothing is filled, it can run once more."""
        self.wait_for_outer()
        result = self.repeat(Replay(self, fills=False))
        return next(tensor.detach() for found, tensor in self.living_results(result) if found is place)

    def wait_for_outer(self):
        if self.inputs is None and self.outer is not None:
            self.outer.again()
        if self.inputs is None:
            raise self.error("cannot run again: it already did, and what it needs for it is gone")

    def repeat(self, replay):
        """Runs it under what was around its first run."""
        step = self.step
        if step.part is not None and self in step.part.chain():
            raise self.error("still runs, but autograd goes back through it: take it out of the plan")
        inputs = _mapped(self.take, self.inputs, Held)
        hooks = torch.autograd.graph.saved_tensors_hooks(replay.refill, lambda held: held)
        with step.running(replay), self.around.restored(self), self.buffers.restored(), torch.enable_grad(), hooks:
            try:
                return self.run(*inputs)
            except Enough:
                replay.stopped = True
                return None

    def hold(self, inputs):
        return _mapped(lambda tensor: Held(self.step.place_of(tensor), tensor), inputs, torch.Tensor)

    def take(self, held):
        """An input for another run. What the run will change in place is nobody else's."""
        if held.how is None:
            value = _unchanged(held.source, held.version, self)
            return value if isinstance(value, torch.nn.Parameter) else value.detach().requires_grad_(held.needs_grad)
        place = held.source
        value = _view(place.read(), held.how)
        if not held.changed:
            return value.detach().requires_grad_(held.needs_grad)
        if not self.entry.twice:
            held.source = None
        readers = weakref.ref(place)
        del place
        value = value.clone() if readers() else value.detach()
        with torch.enable_grad():
            return Inner.apply(value, torch.empty(0, requires_grad=held.needs_grad))


class Inner(torch.autograd.Function):
    """A tensor that is no leaf of autograd's graph: it can be changed in place."""

    @staticmethod
    def forward(ctx, value, anchor):
        return value.detach()

    @staticmethod
    def backward(ctx, grad):
        return None, None


class Enough(BaseException):
    """A part that runs again has given all that anyone waits for."""


class Replay:
    """What happens while a part runs again: what it saves goes to its places, in the order of the first run."""

    def __init__(self, part, fills=True):
        self.part, self.silent, self.stopped, self.lent = part, not fills, False, weakref.WeakKeyDictionary()
        self.places, self.inners = iter(part.places), iter(part.inners)
        empty = [ref for ref in (*part.places, *part.results) if ref and (place := ref()) and place.value is None]
        waiting = [ref for _, ref in part.inners if (inner := ref()) and inner.outer is not None]
        self.left = len(empty) + len(waiting)

    def was_last(self):
        self.left -= 1
        return self.left == 0

    def refill(self, saved):
        """What autograd saves now."""
        if self.silent or not self.part.entry.saved:
            return
        ref = next(self.places, self)
        if ref is self:
            raise self.part.error("saved more when it ran again")
        place = ref and ref()
        if place and place.value is None:
            place.put(saved)
            if self.was_last():
                raise Enough

    def check_end(self):
        if next(self.places, self) is not self or next(self.inners, self) is not self:
            raise self.part.error("saved less when it ran again")

    def inner(self, entry, run, inputs):
        """A part within runs plainly, and gets its inputs if anyone may ask for it later."""
        if self.silent:
            return run(*inputs)
        known, ref = next(self.inners, (None, None))
        if known is not entry:
            raise self.part.error(f"ran {entry.name} where it ran {known and known.name} the first time")
        self.silent, part = True, ref()
        try:
            return part.again_later(run, inputs, self) if part is not None and part.outer else run(*inputs)
        finally:
            self.silent = False


# ------------------------------------------------------------------------------------------------ what is around


_cuda = torch.backends.cuda
SETTINGS = [  # of the process, that change what operations do: (what it is, how it is set)
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    (_cuda.flash_sdp_enabled, _cuda.enable_flash_sdp),
    (_cuda.mem_efficient_sdp_enabled, _cuda.enable_mem_efficient_sdp),
    (_cuda.math_sdp_enabled, _cuda.enable_math_sdp),
    (_cuda.cudnn_sdp_enabled, _cuda.enable_cudnn_sdp),
    *(
        (functools.partial(get, device), functools.partial(put, device))
        for device in ("cpu", "cuda")
        for get, put in (
            (torch.is_autocast_enabled, torch.set_autocast_enabled),
            (torch.get_autocast_dtype, torch.set_autocast_dtype),
        )
    ),
]
_CACHE = torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled  # holds casts of weights until forward ends


class Around:
    """Settings, states of generators and numbers of calls, as a part finds them."""

    __slots__ = "counts", "settings", "states"

    def __init__(self, step):
        self.settings, self.states = [(put, get()) for get, put in SETTINGS], _states(step.devices)
        self.counts = dict(step.counts)

    def drop_unused_states(self, step):
        if all(map(torch.equal, self.states, _states(step.devices))):
            self.states = []

    @contextlib.contextmanager
    def restored(self, part):
        step, present = part.step, Around(part.step)
        chance = random.getstate() if step.by_chance else None
        cache = torch.is_autocast_cache_enabled()
        _put(self, step.devices)
        torch.set_autocast_cache_enabled(False)
        step.counts = dict(self.counts)
        try:
            yield
        finally:
            present.states = present.states if self.states else []
            _put(present, step.devices)
            torch.set_autocast_cache_enabled(cache)
            step.counts = present.counts
        if chance != (random.getstate() if step.by_chance else None):
            random.setstate(chance)
            raise part.error("draws from Python's random, which nobody can repeat: take it out of the plan")


def _put(around, devices):
    for (get, _), (put, value) in zip(SETTINGS, around.settings, strict=True):
        if get() != value:
            put(value)
    for put, state in zip((torch.set_rng_state, *(_setter(d) for d in devices)), around.states, strict=False):
        put(state)


def _setter(device):
    return functools.partial(torch.cuda.set_rng_state, device=device)


def _states(devices):
    return [torch.get_rng_state(), *map(torch.cuda.get_rng_state, devices)]


class Buffers:
    """The buffers that a part may reach. A second run moves copies of running statistics; all others have to stand still."""

    __slots__ = "entry", "moved", "versions"

    def __init__(self, entry):
        self.entry, self.moved, self.versions = entry, (), _versions(entry.buffers)

    def note_moved(self):
        if not self.versions or (found := _versions(self.entry.buffers)) == self.versions:
            return
        pairs = zip(self.entry.buffers, self.versions, found, strict=True)
        self.moved, self.versions = [at for at, before, after in pairs if before != after], found
        for held, name in self.moved:
            if "running_mean" not in held:
                raise RuntimeError(f"{self.entry.name} changes the buffer {name} in place: take it out of the plan")

    @contextlib.contextmanager
    def restored(self):
        still = [held for held, _ in self.moved]
        pairs = zip(self.entry.buffers, self.versions, _versions(self.entry.buffers), strict=True)
        for (held, name), before, now in pairs:
            if before != now and "running_mean" not in held:
                raise RuntimeError(f"the buffer {name} was changed before {self.entry.name} ran again")
        present = [(held, dict(held)) for held in still]
        for held in still:
            held.update({name: b if b is None else b.clone() for name, b in held.items()})
        try:
            yield
        finally:
            for held, buffers in present:
                held.update(buffers)


def _versions(buffers):
    return [None if held.get(name) is None else held[name]._version for held, name in buffers]


# ------------------------------------------------------------------------------------------------ the step


class Step:
    """One training step: what runs, and what is lent. It belongs to autograd: it goes when the graph of its forward goes."""

    def __init__(self, model, plan, given):
        modules = _walk(model)
        self.model, self.table, self.lock = weakref.ref(model), Table.of(model, plan, modules), threading.RLock()
        self.part = self.replay = self.backward = None
        self.lent, self.counts, self.chance, self.by_chance = weakref.WeakKeyDictionary(), {}, random.getstate(), False
        sharded = any(hasattr(type(m), "_get_fsdp_state") for m in modules)  # these exchange their parameters themselves
        holders = [held for m in modules for held in (m._parameters, m._buffers) if held]
        self.seen = [(h, n, t, t._version) for h in holders for n, t in h.items() if t is not None]
        self.modes, self.exchanged, self.given = [m.training for m in modules], [], [*_all(given, torch.Tensor)]
        self.kept, self.sharded = None, sharded
        self.devices = sorted(
            {t.device.index for *_, t, _ in self.seen if t.is_cuda} | {t.device.index for t in self.given if t.is_cuda}
        )

    def end(self):
        """Forward is over: what nobody saved is not lent any more."""
        self.lent.clear()
        self.part, self.given, self.by_chance = None, (), random.getstate() != self.chance

    @contextlib.contextmanager
    def running(self, replay=None):
        token, before, present = RUNNING.set(self), self.replay, [(h, n, h.get(n)) for h, n, _ in self.exchanged]
        self.replay = replay
        for held, name, tensor in self.exchanged:
            held[name] = tensor
        try:
            yield
        finally:
            for held, name, tensor in present:
                held[name] = tensor
            self.replay = before
            RUNNING.reset(token)

    def call(self, entries):
        """A call of a module that has these entries in the table."""
        if entries is None:
            return PLAIN
        number = self.counts[id(entries)] = self.counts.get(id(entries), -1) + 1
        return Call(self, entries, number)

    def listens(self):
        """Whether what autograd saves now comes here: not under no_grad, nor inside of save_on_cpu or of a checkpoint."""
        hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
        return torch.is_grad_enabled() and hooks is not None and getattr(hooks[0], "__self__", None) is (self.replay or self)

    def place_of(self, tensor):
        """The place of the part's result that a tensor is, or is a view of, if it was not changed in place since."""
        lent = self.lent if self.replay is None else self.replay.lent
        if not lent or not _plain(tensor):
            return None
        place, version = lent.get(tensor.untyped_storage(), (None, None))
        return place if tensor._version == version else None

    def is_kept(self, tensor):
        """Whether it is kept anyway, by others: parameters, buffers, and what the model was given."""
        if self.kept is None:
            held = [t for h, n, t, _ in self.seen if not isinstance(t, torch.nn.Parameter)]
            self.kept = {t.untyped_storage()._cdata for t in [*held, *self.given] if _plain(t)}
        base = tensor if tensor._base is None else tensor._base
        return (base.is_leaf and isinstance(base, torch.nn.Parameter)) or tensor.untyped_storage()._cdata in self.kept

    def pack(self, saved):
        """What autograd holds instead of a tensor that it saves."""
        part, place = self.part, self.place_of(saved)
        if part is not None and part.entry.saved:
            own = Place(part, saved) if place is None and _plain(saved) and not self.is_kept(saved) else None
            part.places.append(own and weakref.ref(own))
            if own is not None:
                return own, None
        return (place, _how(saved)) if place else (saved if saved.is_leaf else saved.detach(), saved._version)

    def unpack(self, held):
        """What autograd saved."""
        task = torch._C._current_graph_task_id()
        if task != self.backward:  # the first of this backward: from here to its end, optimizers may step
            self.compare()
            self.backward = task
        source, how = held
        if not isinstance(source, Place):
            return _unchanged(source, how)
        return source.get() if how is None else _view(source.get(), how)

    def compare(self):
        """Refuses a model that was changed since forward. What `functional_call` put there comes back for second runs."""
        model = self.model()
        if model is None or self.sharded:
            return
        self.exchanged = [(h, n, t) for h, n, t, _ in self.seen if h.get(n) is not t]
        if self.modes != [m.training for m in _walk(model)]:
            raise RuntimeError("the modes of modules changed between forward and backward")
        for held, name, tensor, version in self.seen:
            if tensor._version != version and isinstance(tensor, torch.nn.Parameter):
                raise RuntimeError(f"{_path(model, held, name)} was changed in place between forward and backward")


def _walk(model):
    """All modules, fast."""
    found = {model: None}
    todo = [model]
    for module in todo:  # grows
        for child in module._modules.values():
            if child is not None and child not in found:
                found[child] = None
                todo.append(child)
    return todo


def _path(model, held, name):
    return next((f"{path}.{name}".strip(".") for path, m in model.named_modules() if m._parameters is held), name)


# ------------------------------------------------------------------------------------------------ tensors


def _plain(tensor):
    return type(tensor) is torch.Tensor and tensor.layout is torch.strided


def _how(tensor):
    """Which view of its storage it is."""
    where = tensor.storage_offset(), tensor.size(), tensor.stride()
    return tensor.dtype, where, tensor.is_conj(), tensor.is_neg()


def _like(tensor):
    return _how(tensor), tensor.untyped_storage().nbytes()


def _view(value, how):
    dtype, where, conj, neg = how
    if _how(value) == how:
        return value
    view = value.new_empty(0, dtype=dtype).set_(value.untyped_storage(), *where)
    view = view.conj() if conj else view
    return torch._neg_view(view) if neg else view


def _unchanged(tensor, version, part=None):
    if tensor._version != version:
        raise RuntimeError(
            f"{f'what {part.entry.name} needs to run again' if part else 'a tensor that backward needs'} was changed in place"
        )
    return tensor


def _same(a, b):
    return torch.equal(a, b) or bool(((a == b) | ((a != a) & (b != b))).all())


def _all(thing, kind):
    """The things of a kind in tuples, lists and dicts."""
    if isinstance(thing, kind):
        yield thing
    elif isinstance(thing, (tuple, list, dict)):
        for part in thing.values() if isinstance(thing, dict) else thing:
            yield from _all(part, kind)


def _mapped(function, thing, kind):
    """The same thing, with function(x) for each x of a kind in it."""
    if isinstance(thing, kind):
        return function(thing)
    if type(thing) is dict:
        return {key: _mapped(function, value, kind) for key, value in thing.items()}
    if isinstance(thing, (tuple, list)):
        found = [_mapped(function, value, kind) for value in thing]
        return type(thing)(*found) if hasattr(thing, "_fields") else type(thing)(found)
    return thing


def _frozen(run, part):
    """run as it is now: variables that it captures may be bound anew before it runs again."""
    if not isinstance(run, types.FunctionType) or not run.__closure__:
        return run
    tensors = []

    def cell(old):
        try:
            found = old.cell_contents
        except ValueError:  # not bound yet
            return old
        if isinstance(found, torch.Tensor):
            tensors.append((found, found._version))
        return types.CellType(found)

    cells = tuple(map(cell, run.__closure__))
    again = types.FunctionType(run.__code__, run.__globals__, run.__name__, run.__defaults__, cells)
    again.__kwdefaults__ = run.__kwdefaults__
    return functools.partial(_checked, again, part.entry, tensors) if tensors else again


def _checked(run, entry, tensors, *inputs):
    for tensor, version in tensors:
        if tensor._version != version:
            raise RuntimeError(f"a tensor that {entry.name} captures was changed in place")
    return run(*inputs)
