"""What generated files carry: parts of the forward pass that run again on the way back. Files hold a copy of these.

How it works. While a training step runs forward, autograd hands each tensor that it saves to `Step.pack`, and holds
what it gets for it: outside of parts, the tensor itself. What a *part* of the plan saves is not held: autograd gets an
empty `Place`. A part's result is *lent*: whatever saves it later, or a view of it, gets the place of that result. The
part holds what it takes to run again: its inputs (or their places, where another part lends them), the settings around
it, and the states of the random generators if it draws.

On the way back autograd brings what it holds to `Step.unpack`. If that is an empty place, its part runs again
(`Part.again`); before it those that lend it its inputs, and the part around it. A `Replay` fills the places in the
order in which they were made. What fills a place goes when autograd lets go of that place; what a part held goes when
it has run again. A part within a part runs plainly while that one runs again: it gets its inputs by it, and runs again
later. Hooks of modules inside of a part fire then, too (`running_again()` tells); those of a module that is one do not.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import functools
import itertools
import os
import random
import threading
import types
import weakref

import torch

CHECK = bool(os.environ.get("REMAT_CHECK"))  # compare all that is put back with what was there first
RUNNING = contextvars.ContextVar("the training step that runs", default=None)
TABLES: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()  # of the models that were used

SETTINGS = [  # of the process, which change what operations do: how they are read and set
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    (torch.backends.cuda.flash_sdp_enabled, torch.backends.cuda.enable_flash_sdp),
    (torch.backends.cuda.mem_efficient_sdp_enabled, torch.backends.cuda.enable_mem_efficient_sdp),
    (torch.backends.cuda.math_sdp_enabled, torch.backends.cuda.enable_math_sdp),
    (torch.backends.cuda.cudnn_sdp_enabled, torch.backends.cuda.enable_cudnn_sdp),
] + [
    (functools.partial(read, device), functools.partial(write, device))
    for read, write in (
        (torch.is_autocast_enabled, torch.set_autocast_enabled),
        (torch.get_autocast_dtype, torch.set_autocast_dtype),
    )
    for device in ("cpu", "cuda")
]


# ---------------------------------------------------------------------------- what files call


def parts(module):
    """The parts of this call of `module`: `kept.part(name, run, *inputs)` is run(*inputs), whatever the plan says."""
    step = RUNNING.get()
    return PLAIN if step is None else step.call(step.table.marks.get(id(module)))


def training_step(forward, plan):
    """`forward` of the whole model, run as the plan says wherever gradients are needed."""

    @functools.wraps(forward)
    def planned(self, *args, **kwargs):
        return _planned(self, plan, functools.partial(forward, self), args, kwargs)

    return planned


def adopt(model, plan, *kinds):
    """`model` itself, class and parameters as they are: its training steps run as the plan says.

    `kinds` are classes whose forward is marked: modules of a class of that name take it over.
    """
    marked = {kind.__qualname__: kind for kind in kinds}
    for module in model.modules():
        kind = marked.get(type(module).__qualname__) if type(module).__module__ == type(model).__module__ else None
        if kind is not None and "forward" not in vars(module):
            module.forward = InstanceForward(module, kind=kind)
    model.forward = InstanceForward(model, vars(model).get("forward"), plan)
    return model


def running_again():
    """For hooks, and for what counts calls: whether this is not the forward pass, but a part that runs again."""
    step = RUNNING.get()
    return step is not None and step.replay is not None


def _planned(model, plan, forward, args, kwargs):
    """A training step; or a plain call, where another step, save_on_cpu or a checkpoint around it goes first."""
    plain = not plan or not model.training or not torch.is_grad_enabled()
    if plain or _hooks() is not None or RUNNING.get() is not None:
        return forward(*args, **kwargs)
    step = Step(model, plan, (args, kwargs))
    try:
        with step.running():
            return forward(*args, **kwargs)
    finally:
        step.end()


def _hooks():
    """Who is asked first when autograd saves something."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True)


class InstanceForward:
    """`forward` of one module, copied and pickled with it: its call is a part, or, with a plan, a training step."""

    def __init__(self, module, before=None, plan=None, kind=None):
        self.module, self.before, self.plan, self.kind = weakref.ref(module), before, plan, kind

    def __reduce__(self):
        return InstanceForward, (self.module(), self.before, self.plan, self.kind)

    @property
    def __wrapped__(self):
        return self.before or types.MethodType((self.kind or type(self.module())).forward, self.module())

    def __call__(self, *args, **kwargs):
        step, forward = RUNNING.get(), self.__wrapped__
        if self.plan is not None:
            return _planned(self.module(), self.plan, forward, args, kwargs)
        entries = step and step.table.calls.get(id(self.module()))
        return step.call(entries).part("", _call, forward, args, kwargs) if entries else forward(*args, **kwargs)


def _call(forward, args, kwargs):
    return forward(*args, **kwargs)


# ---------------------------------------------------------------------------- the plan, for one model


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """What the plan says of a mark, or of a module's calls; and the buffers in reach: (the dict that has it, name)."""

    name: str
    options: frozenset
    buffers: tuple


class Table:
    """For each module, by its id: {(mark, or "" for its own calls; number of the call, or None for all): entry}."""

    def __init__(self, model, plan, modules):
        self.plan, self.modules, self.marks, self.calls = dict(plan), [*map(id, modules)], {}, {}
        named = dict(model.named_modules(remove_duplicate=False))
        for row, entries in plan.items():
            for text in entries.split() if row in named else [""]:
                self.add(named, f"{row}.{text}".strip("."))

    def add(self, named, text):
        path, *options = text.split("/")
        path, _, number = path.partition("#")
        owner, _, mark = (path, "", "") if path in named else path.rpartition(".")
        module, options = named.get(owner), frozenset(options)
        known = options < {"inside", "result", "twice"} and options != {"inside", "result"}
        if module is None or not path or not known or (mark and mark not in _strings(module)):
            raise ValueError(f"PLAN names {text}, which this model does not have: generate the file again")
        if not mark and not isinstance(vars(module).get("forward"), InstanceForward):
            module.forward = InstanceForward(module, vars(module).get("forward"))
        buffers = tuple((m._buffers, name) for m in module.modules() for name in m._buffers)
        found = (self.marks if mark else self.calls).setdefault(id(module), {})
        found[mark, int(number) if number else None] = Entry(path, options, buffers)


def _strings(module):
    """The strings in the code of a module's class: its marks are among them."""
    kinds = [vars(kind) for kind in type(module).__mro__ if kind is not torch.nn.Module]
    todo, found = [*(f for kind in kinds for f in kind.values()), vars(module).get("forward")], set()
    for thing in todo:  # which grows
        while hasattr(thing, "__wrapped__") or hasattr(thing, "__func__"):
            thing = getattr(thing, "__wrapped__", None) or thing.__func__
        code = getattr(thing, "__code__", thing)
        if isinstance(code, types.CodeType):
            todo += [c for c in code.co_consts if isinstance(c, types.CodeType)]
            found |= {c for c in code.co_consts if isinstance(c, str)}
    return found


# ---------------------------------------------------------------------------- parts and places


class Call:
    """One call of a module that the table has."""

    def __init__(self, step, entries, number):
        self.step, self.entries, self.number = step, entries, number

    def part(self, name, run, *inputs):
        """run(*inputs). Where the plan has the name, autograd keeps less of it."""
        entry = self.entries.get((name, None)) or self.entries.get((name, self.number))
        if entry is None or not self.step.listens():
            return run(*inputs)
        if self.step.replay is not None:
            return self.step.replay.inner(entry, run, inputs)
        return Part(self.step, entry).first(run, inputs)


PLAIN = Call(None, {}, 0)


class Place:
    """Where autograd finds something that it saved; `value` is None while it is not there."""

    __slots__ = "__weakref__", "like", "look", "part", "truth", "value", "version"

    def __init__(self, part, tensor, look):
        self.part, self.look, self.like, self.value = part, look, look(tensor), None
        self.truth = tensor.detach().clone() if CHECK else None

    def get(self, reader=False):
        """The value, once its part ran again. One that may run twice does so for a reader alone at first."""
        part = self.part
        with part.step.lock:  # each device has a thread that goes back
            if self.value is None and reader and part.spares:
                return part.result_for(self)
            todo = [part] if self.value is None else []
            while todo:
                before = todo[-1].waits_for()
                todo.append(before) if before else todo.pop().again()
            if self.value is None:
                raise part.error("saved other things when it ran again")
            return part.unchanged(self.value, self.version)

    def put(self, tensor):
        if self.like != self.look(tensor):
            raise self.part.error("saved other things when it ran again")
        if self.truth is not None and not _same(self.truth, tensor):
            raise self.part.error("computed other values when it ran again")
        self.value, self.version = tensor.detach(), tensor._version


class Held:
    """An input of a part: a tensor; or the place of another part's result, and which view of it is meant."""

    __slots__ = "needs_grad", "source", "version", "view"

    def __init__(self, place, tensor):
        self.source = place or (tensor if _parameter(tensor) else tensor.detach())
        self.view, self.version, self.needs_grad = place and _how(tensor), tensor._version, tensor.requires_grad


class Part:
    """A part of the forward pass that runs again on the way back."""

    def __init__(self, step, entry):
        self.step, self.entry, self.outer, self.inputs = step, entry, step.part, None
        self.places, self.inners, self.results, self.changed = [], [], [], ()
        self.spares = "twice" in entry.options and self.outer is None  # within an outer one it runs twice anyway
        if self.outer is not None:
            self.outer.inners.append((entry, weakref.ref(self)))

    def error(self, what):
        return RuntimeError(f"{self.entry.name} {what}")

    def unchanged(self, tensor, version):
        if tensor._version != version:
            raise self.error("cannot run again: what it needs, or gave, was changed in place")
        return tensor

    def hold(self, run, inputs):
        """Takes what it needs to run again."""
        step = self.step
        self.captured, self.settings, self.counts = [], _settings(), dict(step.counts)
        self.run = _frozen(run, self.captured, {})
        self.states, self.versions = step.states(), _versions(self.entry)
        held = {}  # one for each tensor: code asks whether `query is key`
        self.inputs = _mapped(
            lambda tensor: held.setdefault(id(tensor), Held(step.place_of(tensor), tensor)), inputs, torch.Tensor
        )

    def first(self, run, inputs):
        """Its run in the forward pass."""
        step = self.step
        self.hold(run, inputs)
        step.part = self
        try:
            result = run(*inputs)
            self.learn(inputs)
            self.lend(result, inputs)
        finally:
            step.part = self.outer
            step.rest()
        if self.outer is not None:  # by which it gets them when that runs again; places are held, which takes nothing
            self.lenders = [held.source for held in _all(self.inputs, Held) if held.view]
            self.inputs = self.run = self.captured = self.states = None
        return result

    def learn(self, inputs):
        """What shows when it runs: whether it draws, which buffers it moves, which inputs it changes."""
        self.draws = not all(map(torch.equal, self.states, self.step.states()))
        self.states, before, self.versions = self.states if self.draws else (), self.versions, _versions(self.entry)
        self.moved = [at for at, a, b in zip(self.entry.buffers, before, self.versions, strict=True) if a != b]
        found = [*zip(_all(inputs, torch.Tensor), _all(self.inputs, Held), strict=True)]
        self.changed = [i for i, (tensor, held) in enumerate(found) if tensor._version != held.version]
        if any(found[i][1].view is None for i in self.changed):
            raise self.error("changes an input in place that is no part's result: take it out of the plan")
        if any("running_mean" not in buffers for buffers, _ in self.moved):
            raise self.error(f"changes the buffer {self.moved[0][1]} in place: take it out of the plan")

    def lend(self, result, inputs):
        """From now on, what saves its result gets the result's place, if that was made in here."""
        step, inputs = self.step, enumerate(_all(inputs, torch.Tensor))
        passed = {tensor.untyped_storage()._cdata for i, tensor in inputs if i not in self.changed}
        for tensor in _all(result, torch.Tensor) if "inside" not in self.entry.options else ():
            mine = _plain(tensor) and tensor.untyped_storage()._cdata not in passed and not step.is_kept(tensor)
            lender = step.place_of(tensor) if mine else None
            mine = mine and (lender is None or (lender.part is not self and self in lender.part.around()))
            place = Place(self, tensor, _whole) if mine else None
            self.results.append(place and weakref.ref(place))
            if mine:
                step.lend(tensor, place)

    def around(self):
        """The part itself, the part around it, and so on."""
        return [self, *(self.outer.around() if self.outer is not None else ())]

    def inside(self, run, inputs, replay):
        """The part around it runs again, which it was waiting for. Others in there are lent its result."""
        self.outer = None
        self.hold(run, inputs)
        self.states = self.states if self.draws else ()
        if replay.was_last():
            raise Enough
        result = run(*inputs)
        for place, tensor in self.wanted(result):
            self.step.lend(tensor, place)
        return result

    def wanted(self, result):
        """The places of its results that anyone still refers to, and what belongs there."""
        tensors = _all(result, torch.Tensor) if self.results else []
        if len(tensors) != len(self.results):
            raise self.error("gave other results when it ran again")
        return [(place, t) for ref, t in zip(self.results, tensors, strict=True) if ref and (place := ref())]

    def again(self):
        """Fills the places that anyone still refers to, and lets go of what it held for that."""
        replay = Replay(self)
        result = self.repeat(replay)
        if not replay.stopped:
            replay.check_end()
            for place, tensor in self.wanted(result):
                place.put(tensor)
        self.inputs = self.run = self.captured = self.states = None

    def result_for(self, place):
        """Its result, for one reader: no place is filled, and it can run again."""
        result = self.repeat(Replay(self, silent=True))
        self.spares = False  # next time it is for all
        return next(tensor.detach() for found, tensor in self.wanted(result) if found is place)

    def waits_for(self):
        """A part that has to run again before this one: the one around it, or one that lends it an input."""
        if self.inputs is None:
            return self.outer
        places = (held.source for held in _all(self.inputs, Held) if held.view)
        return next((p.part for p in places if p and p.value is None and not p.part.spares), None)

    def repeat(self, replay):
        """Runs it under what was around its first run."""
        step = self.step
        if step.part is not None and self in step.part.around():
            raise self.error("still runs, but autograd goes back through it: take it out of the plan")
        if self.inputs is None:
            raise self.error("cannot run again: it did, and let go of what it needs")
        if any(tensor._version != version for tensor, version in self.captured):
            raise self.error("cannot run again: a tensor that it captures was changed in place")
        step.gather(self.entry.name)
        taken, numbers = {}, itertools.count()

        def take(held):
            number = next(numbers)
            if id(held) not in taken:
                taken[id(held)] = self.take(number, replay.silent, held)
            return taken[id(held)]

        inputs = _mapped(take, self.inputs, Held)
        taken.clear()
        hooks = torch.autograd.graph.saved_tensors_hooks(replay.refill, lambda held: held)
        with step.running(replay), self.restored(), torch.enable_grad(), hooks:
            try:
                return self.run(*inputs)
            except Enough:
                replay.stopped = True
                return None
            finally:
                replay.lent.clear()

    def take(self, number, once_more, held):
        """An input for another run. What that changes in place is nobody else's."""
        place, changes = held.source, number in self.changed
        if not held.view:
            value = self.unchanged(place, held.version)
            return value if _parameter(value) else value.detach().requires_grad_(held.needs_grad)
        value = _view(place.get(reader=True), held.view)
        if not changes:
            return value.detach().requires_grad_(held.needs_grad)
        held.source = place if once_more else None
        readers = weakref.ref(place)
        del place
        with torch.enable_grad():
            value = value.clone() if readers() else value.detach()
            return NoLeaf.apply(value, torch.empty(0, requires_grad=held.needs_grad))

    @contextlib.contextmanager
    def restored(self):
        """In here, settings, generators and buffers are those of the first run; nothing that moves is moved outside."""
        step, present, chance = self.step, _settings(), self.step.by_chance and random.getstate()
        states, counts, cache = step.states() if self.states else (), step.counts, torch.is_autocast_cache_enabled()
        for at, seen, found in zip(self.entry.buffers, self.versions, _versions(self.entry), strict=True):
            if seen != found and "running_mean" not in at[0]:
                raise self.error(f"cannot run again: the buffer {at[1]} was changed in place")
        buffers = [(held, dict(held)) for held, _ in self.moved]
        try:
            for held, known in buffers:
                held.update({name: buffer.clone() for name, buffer in known.items() if buffer is not None})
            _set(self.settings, present)
            torch.set_autocast_cache_enabled(False)  # it would outlive this run, and the weights
            step.set_states(self.states)
            step.counts = dict(self.counts)
            yield
        finally:
            for held, known in buffers:
                held.update(known)
            _set(present, self.settings)
            torch.set_autocast_cache_enabled(cache)
            step.set_states(states)
            step.counts = counts
        if chance and random.getstate() != chance:
            random.setstate(chance)
            raise self.error("draws from Python's random, which is not set back for it: take it out of the plan")


class NoLeaf(torch.autograd.Function):
    """A tensor that may be changed in place, though autograd looks after it."""

    @staticmethod
    def forward(ctx, value, anchor):
        return value.detach()


class Enough(BaseException):
    """The part that runs again has given all that anyone waits for."""


class Replay:
    """What happens while a part runs again: what it saves goes to its places, in the order of its first run."""

    def __init__(self, part, silent=False):
        self.part, self.silent, self.stopped, self.lent = part, silent, False, {}
        self.places, self.inners = iter(part.places), iter(part.inners)
        empty = sum(bool(ref and (place := ref()) and place.value is None) for ref in part.places + part.results)
        self.left = empty + sum(bool((inner := ref()) and inner.outer) for _, ref in part.inners)

    def was_last(self):
        self.left -= 1
        return self.left == 0

    def refill(self, saved):
        """What autograd saves now. It holds nothing itself: nobody goes back through this run."""
        if self.silent or "result" in self.part.entry.options:
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
        """A part within this one runs plainly, and gets its inputs if anyone may ask for it later."""
        if self.silent:
            return run(*inputs)
        known, ref = next(self.inners, (None, None))
        if known is not entry:
            raise self.part.error(f"did not come to {entry.name} in its first run")
        self.silent, part = True, ref()
        try:
            return part.inside(run, inputs, self) if part and part.outer else run(*inputs)
        finally:
            self.silent = False


# ---------------------------------------------------------------------------- the step


class Step:
    """One training step: what runs, and what is lent. It belongs to autograd, and goes with forward's graph."""

    def __init__(self, model, plan, given):
        modules, table = _walk(model), TABLES.get(model)
        if table is None or table.plan != plan or table.modules != [*map(id, modules)]:
            table = TABLES[model] = Table(model, plan, modules)
        self.model, self.table, self.lock = weakref.ref(model), table, threading.RLock()
        self.part = self.replay = self.backward = self.kept = None
        self.lent, self.counts, self.by_chance = {}, {}, False
        self.given, self.chance = [*_all(given, torch.Tensor)], random.getstate()
        self.sharded = any(hasattr(type(m), "unshard") for m in modules)  # FSDP2 exchanges parameters by itself
        holders = [held for m in modules for held in (m._parameters, m._buffers) if held]
        seen = [(held, name, t, t._version) for held in holders for name, t in held.items() if t is not None]
        self.devices = sorted({t.device.index for t in [*self.given, *(t for *_, t, _ in seen)] if t.is_cuda})
        self.seen = [s for s in seen if not isinstance(s[2], torch.nn.Parameter)] if self.sharded else seen
        self.modes, self.exchanged = [m.training for m in modules], []

    def end(self):
        """Forward is over: what nobody saved is not lent any more."""
        self.lent.clear()
        self.part, self.given, self.by_chance = None, (), random.getstate() != self.chance
        self.rest()

    @contextlib.contextmanager
    def running(self, replay=None):
        """In here, `parts` finds this step; when a part runs again, with the parameters that forward had."""
        token, before = RUNNING.set(self), self.replay
        present = [(held, name, held.get(name)) for held, name, _ in self.exchanged]
        self.replay = replay
        try:
            for held, name, tensor in self.exchanged:
                held[name] = tensor
            yield
        finally:
            for held, name, tensor in present:
                held[name] = tensor
            self.replay = before
            RUNNING.reset(token)

    def call(self, entries):
        """The next call of a module with these entries."""
        if not entries:
            return PLAIN
        self.counts[id(entries)] = number = self.counts.get(id(entries), -1) + 1
        return Call(self, entries, number)

    def listens(self):
        """Whether what autograd saves comes here: not under no_grad, in a checkpoint, or in other hooks."""
        if not torch.is_grad_enabled():
            return False
        hooks = _hooks()
        if hooks is None and self.replay is None:
            torch._C._autograd._push_saved_tensors_default_hooks(self.pack, self.unpack)
            return True
        return hooks is not None and getattr(hooks[0], "__self__", None) is (self.replay or self)

    def rest(self):
        """Outside of parts, and while nothing is lent, autograd saves as it always does: that costs no time."""
        if self.part is None and not self.lent and getattr((_hooks() or [None])[0], "__self__", None) is self:
            torch._C._autograd._pop_saved_tensors_default_hooks()

    def lend(self, tensor, place):
        """From now on, who saves this tensor or a view of it gets the place, until the tensor's memory is gone."""
        storage, lent, this = tensor.untyped_storage(), (self.replay or self).lent, weakref.ref(self)
        key = storage._cdata

        def forget(_):  # before another storage can have that number
            lent.pop(key, None)
            if not lent and (step := this()) is not None:
                step.rest()

        lent[key] = place, tensor._version, weakref.ref(storage, forget)

    def gather(self, path):
        """Has the parameters there, if FSDP2 has them elsewhere because it is another module's turn."""
        found = [self.model()] if self.sharded else []
        for name in path.split(".") if found else ():
            found += [child for child in [found[-1]._modules.get(name)] if child is not None]
        for module in [m for m in found if hasattr(type(m), "unshard")][-1:]:
            module.unshard()

    def states(self):
        states = [torch.get_rng_state(), *map(torch.cuda.get_rng_state, self.devices)]
        return [state.view(torch.int64) for state in states]  # in which they are compared faster

    def set_states(self, states):
        for device, state in zip([None, *self.devices], states, strict=False):
            state = state.view(torch.uint8)
            torch.set_rng_state(state) if device is None else torch.cuda.set_rng_state(state, device)

    def place_of(self, tensor):
        """The place of a part's result, if this is one, or a view of it, and was not changed in place since."""
        lent = (self.replay or self).lent
        if not lent or not _plain(tensor):
            return None
        place, version, _ = lent.get(tensor.untyped_storage()._cdata, (None, None, None))
        return place if tensor._version == version else None

    def is_kept(self, tensor):
        """Whether others keep it anyway: parameters, buffers, and what the model was given."""
        if self.kept is None:
            held = [*self.given, *(t for *_, t, _ in self.seen if not isinstance(t, torch.nn.Parameter))]
            self.kept = {t.untyped_storage()._cdata for t in held if _plain(t)}
        base = tensor if tensor._base is None else tensor._base
        return _parameter(base) or tensor.untyped_storage()._cdata in self.kept

    def pack(self, saved):
        """What autograd holds instead of something that it saves."""
        leaf = saved.is_leaf and saved.requires_grad  # such as a parameter: known at once, which saves time
        part, place = self.part, None if leaf else self.place_of(saved)
        if part is not None and "result" not in part.entry.options:
            mine = not leaf and place is None and _plain(saved) and not self.is_kept(saved)
            own = Place(part, saved, _shape) if mine else None
            part.places.append(own and weakref.ref(own))
            if own:
                return own, None
        return (place, _how(saved)) if place else (saved if saved.is_leaf else saved.detach(), saved._version)

    def unpack(self, held):
        """What autograd saved."""
        task = torch._C._current_graph_task_id()
        if task != self.backward:  # the first of this way back: from here to its end, optimizers may step
            self.compare()
            self.backward = task
        source, how = held
        if isinstance(source, Place):
            return source.get() if how is None else _view(source.get(), how)
        if source._version != how:
            raise RuntimeError("a tensor that backward needs was changed in place")
        return source

    def compare(self):
        """Refuses what was changed in place since forward. What was exchanged comes back while parts run again."""
        model = self.model()
        modules = [] if model is None else _walk(model)
        if modules and self.table.modules != [*map(id, modules)]:
            raise RuntimeError("modules were added or taken away between forward and backward")
        for held, name, tensor, version in self.seen:
            if tensor._version != version and isinstance(tensor, torch.nn.Parameter):
                paths = [path for path, m in model.named_modules() if m._parameters is held] if modules else []
                path = ".".join(filter(None, [*paths[:1], name]))
                raise RuntimeError(f"{path} was changed in place between forward and backward")
        modes = zip(modules, self.modes, strict=False)
        self.exchanged = [(vars(m), "training", mode) for m, mode in modes if m.training != mode]
        self.exchanged += [(held, name, t) for held, name, t, _ in self.seen if held.get(name) is not t]


# ---------------------------------------------------------------------------- small things


def _walk(model):
    """All modules, in less time than `modules()` takes."""
    found = [model]
    for module in found:  # which grows
        if module._modules:
            found += [child for child in module._modules.values() if child is not None]
    return found


def _versions(entry):
    return [buffers[name]._version if buffers.get(name) is not None else None for buffers, name in entry.buffers]


def _settings():
    return [read() for read, _ in SETTINGS]


def _set(values, present):
    for (_, write), value, old in zip(SETTINGS, values, present, strict=True):
        if value != old:
            write(value)


def _parameter(tensor):
    return tensor.is_leaf and isinstance(tensor, torch.nn.Parameter)  # the first is fast


def _plain(tensor):
    return type(tensor) is torch.Tensor and tensor.layout is torch.strided


def _how(tensor):
    """Which view of its storage a tensor is."""
    where = tensor.storage_offset(), tensor.size(), tensor.stride()
    return tensor.dtype, where, tensor.is_conj(), tensor.is_neg()


def _shape(tensor):
    return tensor.dtype, tensor.size(), tensor.stride()


def _whole(tensor):
    return _how(tensor), tensor.untyped_storage().nbytes()


def _view(value, how):
    dtype, where, conj, neg = how
    if how == _how(value):
        return value
    view = value.new_empty(0, dtype=dtype).set_(value.untyped_storage(), *where)
    view = view.conj() if conj else view
    return torch._neg_view(view) if neg else view


def _same(a, b):
    return torch.equal(a, b) or bool(((a == b) | ((a != a) & (b != b))).all())


def _all(thing, kind):
    """The things of a kind, in tuples, lists and dicts too."""
    if isinstance(thing, kind):
        return [thing]
    things = thing.values() if isinstance(thing, dict) else thing if isinstance(thing, (tuple, list)) else ()
    return [found for t in things for found in _all(t, kind)]


def _mapped(function, thing, kind):
    """The same thing with function(x) for each x of a kind."""
    if isinstance(thing, kind):
        return function(thing)
    if type(thing) is dict:
        return {key: _mapped(function, value, kind) for key, value in thing.items()}
    if not isinstance(thing, (tuple, list)):
        return thing
    found = [_mapped(function, value, kind) for value in thing]
    return type(thing)(*found) if hasattr(thing, "_fields") else type(thing)(found)


def _frozen(thing, tensors, known):
    """A function as it is now: variables that it captures may be bound anew before it runs again. Tensors are noted."""
    if isinstance(thing, torch.Tensor):
        tensors.append((thing, thing._version))
    if not isinstance(thing, types.FunctionType) or not thing.__closure__:
        return thing
    if id(thing) not in known:
        cells = tuple(types.CellType() for _ in thing.__closure__)
        new = types.FunctionType(thing.__code__, thing.__globals__, thing.__name__, thing.__defaults__, cells)
        new.__kwdefaults__, known[id(thing)] = thing.__kwdefaults__, new
        for old, cell in zip(thing.__closure__, cells, strict=True):
            with contextlib.suppress(ValueError):  # not bound yet
                cell.cell_contents = _frozen(old.cell_contents, tensors, known)
    return known[id(thing)]
