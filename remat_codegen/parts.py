"""What marked files (edition 2) carry, as far as they need it: parts of the forward pass that run again on the way back.
`marked/features.py` says what a file needs, and `marked/file.py` copies it.

How it works. While a training step runs forward, autograd hands each tensor that it saves to `Step.pack`, and holds
what it gets for it: outside of parts, the tensor itself. What a *part* of the plan saves is not held: autograd gets
an empty `Place`. A part's result is *lent*: whatever saves it later, or a view of it, gets the place of that result.
The part holds what it takes to run again: its inputs (or their places, where another part lends them), and what was
around.

On the way back autograd brings what it holds to `Step.unpack`. If that is an empty place, its part runs again
(`Part.again`); before it those that lend it its inputs, and the part around it. A `Replay` fills the places in the
order in which they were made. What fills a place goes when autograd lets go of that place; what a part held goes when
it has run again. A part within a part runs plainly while that one runs again: it gets its inputs by it, and runs
again later. Hooks of modules fire once, and those inside of parts again (`running_again()` tells) if one of them
changes anything that is computed there.
"""

from __future__ import annotations

import ast
import contextvars
import copy
import dis
import functools
import importlib
import inspect
import io
import os
import random
import sys
import threading
import tokenize
import types
import warnings
import weakref
import zlib

import torch

# What a model and its table can meet. `marked/features.py` settles these for a file: the rest is not in it.
RANDOM = True  # the model draws random numbers from torch's generators
NUMPY = True  # its code knows NumPy, which has a generator, too
BUFFERS = True  # it moves buffers in its forward, as batch norm does
COUNTERS = True  # it changes small ones in place, as experts that count who was chosen, or clamps a temperature
ATTRIBUTES = True  # it sets tensors as attributes of modules, as the hooks of weight_norm do
IN_PLACE = True  # it changes in place what an operation gave, as nn.ReLU(inplace=True) does
MARKS = True  # its text has marks
FUNCTIONS = True  # some are in functions that methods call
SHARES = True  # methods with marks ask for classes of the file, or for things in it that are no functions or numbers
DEFAULTED = True  # it is trained with arguments that need not be given, such as use_cache=False
LIBRARY = True  # some are in methods of classes that are in other files
NESTED = True  # the table has parts within parts
TWICE = True  # it has entries with /twice
NUMBERED = True  # it has entries for one call of several, such as relu#1
SEVERAL = True  # the file has a table for each of several budgets
BATCHES = True  # the file has a table for each of several batch sizes
RECORDED = False  # what its model does depends on values, of which one run was planned for
CHECKPOINTS = True  # its forward checkpoints, or where it is told to, as those of transformers do
ON_GPU = True  # it is for GPUs, whose memory may run out
STATIC = True  # it takes no sizes but those that were planned for
OBJECTS = True  # its variables hold objects of classes of its own with tensors in them
DECORATED = True  # some of the functions in other files are decorated there
CLOSURES = True  # some are called by functions that decorators of classes have defined
COMPLEX = True  # it computes with complex numbers, of which conjugates may be views
GIVEN = True  # some are called by what methods are given, or by the name of a module: with_marks(F.normalize)(x)
LAZY = True  # its code names layers that get their weights when they are first called
HOME = True  # methods with marks are of classes that stay in the file of the model's own, which no import finds

CHECK = os.environ.get("REMAT_CHECK", "0") != "0"  # compare all that is put back with what was there first
RUNNING = contextvars.ContextVar("the training step that runs", default=None)
TABLES: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()  # of the models that were used, by plan
WRITTEN: dict = {}  # by module and name of a class of another file: the one here that has methods of it, with marks
WITH_MARKS: dict = {}  # by function of another file, once it was compared: the one here
TEXTS: dict = {}  # by module: digests of what stands in its file, each with its first line
MADE_FROM: dict = {}  # by module ("": the model's): what methods with marks need of it, and digests of that text
DEFAULTS: dict = {}  # arguments of training steps, for those that are not given
CHOSEN: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()  # the table of each model, where there are several
PLANNED: list = []  # bytes that a step is planned to take at most
LARGEST: list = []  # numbers in the largest input, the peak, its dtype, and the model's own modules, as planned
HELD: list = []  # bytes between forward and backward, as planned, where values decide what that is
SHAPES: list = []  # of the inputs, where others are refused
NUMBERS: dict = {}  # by batch size: numbers in the largest input, and the peak
SHARED: list = []  # those classes and things: methods of an original ask for its own
NAMES: dict = {}  # by the dict of an original's file: that, and what methods of its modules see
COUNTED: list = []  # small ones that forward changes in place, `BatchNorm._buffers.seen`: parts have copies
SET_BY_FORWARD: list = []  # attributes that forward sets, by class and name: parts have them as they were
SMALL = 4096  # bytes of those
TOLD: weakref.WeakSet = weakref.WeakSet()  # the models that were given more
OTHER = "which this file is not made for: generate it again"
SAME = "let no counter, cache, flag or generator of its own decide what it does"

CUDA, DEVICES, PARTIAL, C = torch.backends.cuda, ("cpu", "cuda"), functools.partial, torch._C
NO_HOLDERS = torch.nn.Module, torch.Tensor, type, types.ModuleType, types.FunctionType, types.MethodType, PARTIAL
SETTINGS = [  # of the process, which change what operations do: how they are read, at once, and set
    (torch.get_default_dtype, torch.set_default_dtype),
    (C._get_float32_matmul_precision, torch.set_float32_matmul_precision),
    (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    (C._get_flash_sdp_enabled, CUDA.enable_flash_sdp),
    (C._get_mem_efficient_sdp_enabled, CUDA.enable_mem_efficient_sdp),
    (C._get_math_sdp_enabled, CUDA.enable_math_sdp),
    (C._get_cudnn_sdp_enabled, CUDA.enable_cudnn_sdp),
    *((PARTIAL(torch.is_autocast_enabled, d), PARTIAL(torch.set_autocast_enabled, d)) for d in DEVICES),
    *((PARTIAL(torch.get_autocast_dtype, d), PARTIAL(torch.set_autocast_dtype, d)) for d in DEVICES),
]
READS = [read for read, _ in SETTINGS]
HOOKS = ["_forward_pre_hooks", "_forward_hooks", "_forward_pre_hooks_with_kwargs", "_forward_hooks_with_kwargs"]
INTERNAL = {*vars(torch.nn.Module())} - {"training"}
SCALARS = bool, int, float, complex, str, type(None), torch.dtype, type(...)  # the last for what is not there
MANY, DEEP = 256, 3  # values, beyond which it is no configuration; objects in objects that are looked into
LOOKS = 2  # first steps that are looked at for what they hold, where values decide
OFTEN = 16  # steps of which one is, after these
MOVED = object()  # stands for a value that forward changes itself
alone = torch.compiler.disable  # torch.compile leaves out, as a whole, what drives autograd


# ---------------------------------------------------------------------------- what files call


def parts(module=None):
    """The parts of this call of `module`; functions, which have no self, ask for those of the module that is called.
    `kept.part(name, run, *inputs)` is run(*inputs), whatever the plan says."""
    return _parts(module) if torch.is_grad_enabled() or not torch.compiler.is_compiling() else PLAIN


@alone
def _parts(module):
    step = RUNNING.get()
    if FUNCTIONS and step is not None and module is None:
        return step.call(step.table.marks.get(step.called))
    return PLAIN if step is None else step.call(step.table.marks.get(id(module)))


def with_marks(function):
    """The function of this file that is this one of a library, with marks; else the one itself."""
    key = getattr(function, "__module__", ""), getattr(function, "__qualname__", "")
    if isinstance(function, types.MethodType) and not torch.compiler.is_compiling():
        return types.MethodType(with_marks(function.__func__), function.__self__)
    ours, wraps = WRITTEN.get(key), hasattr(function, "__wrapped__")
    if torch.compiler.is_compiling() or wraps or not isinstance(ours, types.FunctionType):
        return function
    if function not in WITH_MARKS:
        there = vars(sys.modules[key[0]])
        _check(_is_made_from(function, key[1], there, ours) and _stands(function, key[0]), *key)
        _check_names(function, ours)
        WITH_MARKS[function] = ours
    return WITH_MARKS[function]


def training_step(forward, plan):
    """`forward` of the whole model, run as the plan says in training mode, wherever gradients are needed."""
    if CHECKPOINTS:
        _plan_goes_first()

    @functools.wraps(forward)
    def planned(self, *args, **kwargs):
        return _planned(self, plan, functools.partial(forward, self), args, kwargs)

    return planned


def adopt(model, plan, *kinds):
    """`model` itself, class and parameters as they are: its training steps run as the plan says.

    `kinds` are classes whose methods have marks: modules of a class of that name take those over.
    """
    if GIVEN:
        WITH_MARKS.clear()  # there may be others by now
    if MARKS:
        _check_text(model)
        written = {(type(model).__module__, kind.__qualname__): kind for kind in kinds}
        if LIBRARY:
            written |= WRITTEN
        if HOME:
            written |= {(type(model).__module__, name): kind for (module, name), kind in WRITTEN.items() if not module}
        for module in model.modules():
            _take_over(module, written)
    if CHECKPOINTS:
        without_checkpoints(model)
    model.forward = InstanceMethod(model, "forward", vars(model).get("forward"), plan)
    return model


def without_checkpoints(model):
    """Has modules that checkpoint where they are told to go without, and steps with a plan: those would go before it."""
    _plan_goes_first()
    modules = [*model.modules()]
    for module in modules:
        if hasattr(type(module), "gradient_checkpointing_enable"):
            vars(module)["gradient_checkpointing_enable"] = left_out
    told = [vars(module) for module in modules if vars(module).get("gradient_checkpointing")]
    for held in told:
        held["gradient_checkpointing"] = False
    if told:
        left_out()


def _plan_goes_first():
    """Has calls of checkpoint do nothing in a step with a plan, but for reentrant ones, and those in contexts of a user's."""
    calls = vars(torch.utils.checkpoint)
    known = [name for name in calls if name.startswith("_checkpoint_without_reentrant_generator")]
    for name in sorted(known)[-1:]:  # from PyTorch 2.14 on one has another in it
        found = calls[name]
        while found is not None and found.__globals__ is not globals():
            found = getattr(found, "__wrapped__", None)
        if found is None:
            setattr(torch.utils.checkpoint, name, _unless_planned(calls[name]))


def _unless_planned(own):
    @functools.wraps(own)
    def checkpointed(*args, **kwargs):
        if RUNNING.get() is not None:
            context_fn = kwargs["context_fn"] if "context_fn" in kwargs else args[2]
            plain = context_fn is torch.utils.checkpoint.noop_context_fn
            if plain or type(context_fn()[0]).__module__ == "torch.utils.checkpoint":  # which only chooses what is kept
                return (None for _ in range(1))
        return own(*args, **kwargs)

    return checkpointed


def left_out(*_, **__):
    """What a model with a plan answers where it is told to checkpoint."""
    warnings.warn("gradient checkpointing is left out, for the plan takes its place", stacklevel=2)


def _check_text(model):
    """Refuses a model whose code has another text than the methods here were made from: they would do as it was."""
    for module, made_from in MADE_FROM.items():
        home = sys.modules.get(module or type(model).__module__)
        try:
            text = inspect.getsource(home)
            there = {*_digests(_code_lines(text), ast.parse(text).body)}
        except (OSError, TypeError, SyntaxError):  # there is no file, or not any more
            continue
        words, digests = [w.split(":") for w in made_from.split()], {digest for _, digest in there}
        gone = [name for name, digest in words if digest not in digests]
        if gone and vars(home) is not globals():
            file = os.path.basename(inspect.getfile(home))
            raise ValueError(f"{gone[0]} of {file} is not what this file was made from: generate it again")
        if LIBRARY:
            TEXTS[home.__name__] = there


def _code_lines(text):
    """The lines of a file without comments."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    ends = {t.start[0]: t.start[1] for t in tokens if t.type == tokenize.COMMENT}
    return [line[: ends.get(number, len(line))].rstrip() for number, line in enumerate(text.split("\n"), 1)]


def _digests(lines, statements):
    """The digests of statements, and of those within classes, each with its first line."""
    for statement in statements:
        first = min([statement.lineno, *(d.lineno for d in getattr(statement, "decorator_list", ()))])
        own = [line[statement.col_offset :] for line in lines[first - 1 : statement.end_lineno] if line]
        yield first, f"{zlib.crc32(chr(10).join(own).encode()):08x}"
        if isinstance(statement, (ast.ClassDef, ast.FunctionDef) if CLOSURES else ast.ClassDef):
            yield from _digests(lines, statement.body)


def _take_over(module, written):
    """Methods with marks that are here, instead of those that a module has of a class. `written` has the one here, by
    module and name of such a class."""
    for base in type(module).__mro__:
        kind = written.get((base.__module__, base.__qualname__), base)
        ours = vars(kind) if kind is not base else {}
        marked = [n for n, f in ours.items() if any("part" in code.co_names for code in _codes([f]))]
        if FUNCTIONS:  # and what may call them
            made_from = _made_from(next((module for (module, _), known in WRITTEN.items() if known is kind), ""))
            marked += [n for n in ours if f"{base.__qualname__}.{n}" in made_from and n not in marked]
        for name in marked:
            theirs = vars(base).get(name)
            known = getattr(type(module), name, None) is theirs  # not one of a class between, nor patched
            if known and LIBRARY and kind in WRITTEN.values():
                inner = inspect.unwrap(theirs)
                known = (inner.__module__, inner.__qualname__) == (base.__module__, f"{base.__qualname__}.{name}")
            if known:
                before = vars(module).setdefault(name, InstanceMethod(module, name))
                if isinstance(before, InstanceMethod) and before.before is None:
                    before.kind = kind
        if CLOSURES:
            for name, theirs in vars(base).items():
                ours = _around_copy(theirs) if getattr(type(module), name, None) is theirs else None
                if ours is not None:
                    before = vars(module).setdefault(name, InstanceMethod(module, name))
                    if isinstance(before, InstanceMethod) and before.before is None:
                        before.kind = ours


def _made_from(module):
    """The methods of a file that have marks, or may call functions that do, and what else of it they need."""
    return {word.partition(":")[0] for word in MADE_FROM.get(module, "").split()}


def running_again():
    """For hooks, and for what counts calls: whether this is not the forward pass, but a part that runs again."""
    step = RUNNING.get()
    return step is not None and step.replay is not None


def _planned(model, plan, forward, args, kwargs):
    """A training step where gradients are needed."""
    plain = not plan or not model.training or not torch.is_grad_enabled()
    if SEVERAL or BATCHES:  # an empty table, too, is of a step: other plans and arguments of a model do not count in it
        plain = not model.training or not torch.is_grad_enabled()
    if LAZY:
        plain = plain or any(map(torch.nn.parameter.is_lazy, model.parameters()))  # it makes them, in __init__ for instance
    return forward(*args, **kwargs) if plain else _step(model, plan, forward, args, kwargs)


def fitting(plans, room):
    """Of tables by budget, the one for the most bytes of activations that there is room for."""
    if isinstance(room, str):
        raise TypeError(f"a generated file takes a budget as a number of bytes, such as {min(plans)}, not {room!r}")
    fits = [budget for budget in plans if budget <= room]
    if not fits:
        least = f"the least budget that there is a plan for is {min(plans):,} bytes, more than {room:,}"
        raise ValueError(f"{least}: name that or more, or generate the file with a smaller budget, too")
    return Planned(plans[max(fits)], LARGEST[0] if LARGEST else 0, max(fits))


class Planned(dict):
    """One of several tables, with what it is planned for: numbers in the largest input, and the peak."""

    def __init__(self, rows, *planned):
        super().__init__(rows)
        self.planned = planned

    def __reduce__(self):
        return Planned, (dict(self), *self.planned)


def _chosen(model, plans):
    """The table of a model. In its first step that is chosen by what its device has free, if nobody named a budget."""
    if not isinstance(next(iter(plans), None), int):  # somebody named the budget
        return plans
    if model not in CHOSEN:
        CHOSEN[model] = fitting(plans, max(_room(model), min(plans)))
    return CHOSEN[model]


def _room(model):
    """Bytes that are free on a model's GPU, less what comes later: gradients, and two values for each, as AdamW has."""
    parameters = [p for p in model.parameters() if p.is_cuda]
    if not parameters:
        return 0  # what a process may take of a CPU's memory, nobody can tell for sure
    device = parameters[0].device
    reserved = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    later = 3 * sum(p.nbytes for p in parameters if p.requires_grad and p.grad is None)
    return torch.cuda.mem_get_info(device)[0] + reserved - later


def _numbers(tensors):
    """The numbers in the largest tensor of the kind of the largest input: others, such as a state, may be larger."""
    return max([t.numel() for t in tensors if t.is_floating_point() == LARGEST[2].is_floating_point], default=0)


def of_batch(plans, batch):
    """Of tables by batch size, the one that is named."""
    if batch not in plans:
        known = ", ".join(map(str, plans))
        raise ValueError(f"there are plans for a batch of {known}, not {batch!r}: name one of them")
    return Planned(plans[batch], *NUMBERS[batch])


def _large_enough(plans, given):
    """Of tables by batch size, that of the least one that a step's inputs fit into; the largest where none is."""
    if not isinstance(next(iter(plans), None), int):  # somebody named the batch
        return plans
    numbers = _numbers(_all(given, torch.Tensor))
    return of_batch(plans, min((size for size in plans if NUMBERS[size][0] >= numbers), default=max(plans)))


def _calls():
    """How many calls up the code stands that calls the model."""
    names = [f.frame.f_globals.get("__name__", "") for f in inspect.stack(0)]
    return next((i for i, n in enumerate(names) if n != __name__ and not n.startswith("torch.")), 1)


@alone
def _step(model, plan, forward, args, kwargs):
    """A training step; or a plain call, where another step, save_on_cpu or a checkpoint around it goes first."""
    if _hooks() is not None or RUNNING.get() is not None:
        return forward(*args, **kwargs)
    if SEVERAL:
        plan = _chosen(model, plan)
    if BATCHES:
        plan = _large_enough(plan, (args, kwargs))
    if DEFAULTED:
        kwargs = DEFAULTS | kwargs
    step, planned = Step(model, plan, (args, kwargs)), LARGEST[:2]
    if STATIC and SHAPES and (found := sorted(tuple(t.shape) for t in step.given)) != SHAPES:
        raise ValueError(f"inputs are of {found}, {OTHER}, or without --static; it was planned for {SHAPES}")
    if SEVERAL or BATCHES:
        planned = getattr(plan, "planned", planned)
    if LARGEST and model not in TOLD and (factor := _numbers(step.given) / planned[0]) > 1:
        peak = f"some {factor * planned[1] / 2**20:,.1f} MiB of activations"
        larger = f"an input is {factor:.2f} times as large as planned"
        warnings.warn(f"{larger}: expect {peak}, or more", stacklevel=_calls())
        TOLD.add(model)
    if ON_GPU:
        step.planned = planned[1:2] or PLANNED
        return _told(step, "in the forward pass", step.first, forward, args, kwargs)
    return step.first(forward, args, kwargs)


def _told(step, where, run, *given):
    """run(*given). Where memory runs out, the error tells who has it."""
    try:
        return run(*given)
    except torch.OutOfMemoryError as error:
        if not hasattr(error, "__notes__") and step.devices:
            error.add_note(step.who_has_memory(where))
        raise


def _hooks():
    """Who is asked first when autograd saves something."""
    return C._autograd._top_saved_tensors_default_hooks(True)


class InstanceMethod:
    """A method of one module, copied and pickled with it; its `forward` is a part, or, with a plan, a training step."""

    def __init__(self, module, name="forward", before=None, plan=None, kind=None):
        self.module, self.name, self.before = weakref.ref(module), name, before
        self.plan, self.kind, self.method = plan, kind, None

    def __reduce__(self):
        return InstanceMethod, (self.module(), self.name, self.before, self.plan, self.kind)

    @property
    def __wrapped__(self):
        module = self.module()
        if self.method is None and self.kind is not None:
            if CLOSURES and isinstance(self.kind, types.FunctionType):
                method = _closed(getattr(type(module), self.name), self.kind)  # which may raise, each time
            else:
                method = vars(self.kind)[self.name]
                if LIBRARY and self.kind in WRITTEN.values():
                    method = _alike(getattr(type(module), self.name), method)  # which may raise, each time
                if SHARES and (not LIBRARY or self.kind not in WRITTEN.values()):
                    method = _among_theirs(method, getattr(type(module), self.name))
            self.method = method
        if SHARES:
            for theirs, names in NAMES.values():  # there may be others by now
                names.update((name, theirs[name]) for name in SHARED if name in theirs)
        return self.before or types.MethodType(self.method or getattr(type(module), self.name), module)

    def __getattr__(self, name):
        if name.startswith("__") or "module" not in vars(self):
            raise AttributeError(name)
        return getattr(self.__wrapped__, name)

    @functools.partial(alone, recursive=False)  # the module's own forward is compiled in evaluation
    def __call__(self, *args, **kwargs):
        step, method = RUNNING.get(), self.__wrapped__
        if self.plan is not None:
            return _planned(self.module(), self.plan, method, args, kwargs)
        if FUNCTIONS and step and self.name == "forward":
            return step.within(self.module(), method, args, kwargs)
        entries = step and self.name == "forward" and step.table.calls.get(id(self.module()))
        return step.call(entries).part("", _call, method, args, kwargs) if entries else method(*args, **kwargs)


def _alike(theirs, ours):
    """A function with marks, with all that the one has which it was written from, and within what decorates that."""
    inner, code, names = inspect.unwrap(theirs), ours.__code__, ours.__globals__
    if HOME and any(ours in vars(kind).values() for (module, _), kind in WRITTEN.items() if not module):
        _check(_stands(inner, ""), inner.__module__, inner.__qualname__)
        code, names = _at_home(code, inner.__globals__), inner.__globals__
    else:
        _check(_stands(inner, inner.__module__), inner.__module__, inner.__qualname__)
        _check_names(inner, ours)
    made = types.FunctionType(code, names, ours.__name__, inner.__defaults__)
    made.__kwdefaults__ = inner.__kwdefaults__
    made.__dict__.update(inner.__dict__)
    return _wrapped_alike(theirs, inner, made)


def _around_copy(theirs):
    """What a file has the copy in of a function that is defined in another one, there; None for other functions."""
    if not isinstance(theirs, types.FunctionType):
        return None
    around, _, name = theirs.__code__.co_qualname.rpartition(".")
    ours = WRITTEN.get((theirs.__globals__.get("__name__"), around))
    return ours if isinstance(ours, types.FunctionType) and _code_in(ours, name) else None


def _code_in(function, name):
    codes = (c for c in function.__code__.co_consts if isinstance(c, types.CodeType))
    return next((code for code in codes if code.co_name == name), None)


def _closed(theirs, ours):
    """The function that is defined here in another one, with the variables that the one there has."""
    code, cells = theirs.__code__, dict(zip(theirs.__code__.co_freevars, theirs.__closure__ or (), strict=True))
    module, copied = theirs.__globals__["__name__"], _code_in(ours, code.co_name)
    _check({*cells} == {*copied.co_freevars} and _stands(theirs, module), code.co_qualname, module)
    closure = tuple(cells[name] for name in copied.co_freevars)
    made = types.FunctionType(copied, ours.__globals__, theirs.__name__, theirs.__defaults__, closure)
    made.__kwdefaults__ = theirs.__kwdefaults__
    made.__dict__.update(theirs.__dict__)
    _check_names(theirs, made)
    return made


def _among_theirs(method, theirs):
    """A method of this file among what an original's method sees, within what decorates that."""
    inner, ours = inspect.unwrap(theirs), inspect.unwrap(method)  # the model's forward is a training step here
    if inner is not theirs and not (_holds(theirs, inner) and ours.__code__.co_freevars == inner.__code__.co_freevars):
        return method  # whatever decorates it has it in another way
    return _wrapped_alike(theirs, inner, _among(ours, inner))


def _holds(function, inner):
    """Whether decorators have functions around this one, each in its closure."""
    held = [cell.cell_contents for cell in getattr(function, "__closure__", None) or () if cell != types.CellType()]
    around = [f for f in held if isinstance(f, types.FunctionType) and inspect.unwrap(f) is inner]
    return any(f is inner or _holds(f, inner) for f in around)


def _among(function, theirs):
    """A function of this file among the classes and things that an original's function sees: those here are others."""
    home = theirs.__globals__
    if id(home) not in NAMES:
        names = {**globals(), **{name: home[name] for name in SHARED if name in home}}
        NAMES[id(home)] = home, names
        for name in {word.partition(":")[0] for word in MADE_FROM.get("", "").split()} & {*names} & {*home}:
            both = isinstance(names[name], types.FunctionType) and isinstance(home[name], types.FunctionType)
            if both and names[name] is not home[name]:  # else it is imported, and sees what it sees
                names[name] = _with_names(names[name], names, home[name])
    return _with_names(function, NAMES[id(home)][1], theirs)


def _with_names(function, names, theirs):
    calls_super = function.__code__.co_freevars == theirs.__code__.co_freevars == ("__class__",)  # the original's
    if (function.__closure__ or theirs.__closure__) and not calls_super:  # it was decorated, and sees what it sees
        return function if any("part" in code.co_names for code in _codes([function])) else theirs
    made = types.FunctionType(function.__code__, names, function.__name__, theirs.__defaults__, theirs.__closure__)
    made.__kwdefaults__ = theirs.__kwdefaults__
    made.__dict__.update(function.__dict__)
    return made


def _at_home(code, names):
    """Code of a method here that runs with the names of its class's file, to which it adds the parts."""
    ours = {}
    if FUNCTIONS:
        ours = {name: f for (module, name), f in WRITTEN.items() if not module and isinstance(f, types.FunctionType)}
    helpers = {f.__name__: f for f in ((parts, with_marks) if GIVEN else (parts,))}
    called = {name: f"_{name} {id(parts):x}" for name in (*helpers, *ours)}  # which no code can mean
    for name, copied in ours.items():
        there = names.get(name)
        _check(_is_made_from(there, name, names, copied) and _stands(there, ""), names["__name__"], name)
        made = types.FunctionType(_renamed(copied.__code__, called), names, name, copied.__defaults__)
        made.__kwdefaults__ = copied.__kwdefaults__
        names[called[name]] = made
    names.update({called[name]: helper for name, helper in helpers.items()})
    return _renamed(code, called)


def _renamed(code, called):
    """Code that calls by other names what it reads of its file."""
    inner = tuple(_renamed(c, called) if isinstance(c, types.CodeType) else c for c in code.co_consts)
    return code.replace(co_names=tuple(called.get(name, name) for name in code.co_names), co_consts=inner)


def _check_names(inner, ours, known=()):
    """Refuses a function of which there is a copy here, where a name that it reads is by now something else than here."""
    here = [ours.__globals__[name] for name in _reads(ours)]
    for name in _reads(inner):
        there = inner.__globals__[name]
        same = any(there is thing for thing in here)
        if FUNCTIONS and isinstance(copied := WRITTEN.get(key := (inner.__module__, name)), types.FunctionType):
            if DECORATED and there is vars(copied).get("theirs"):
                there = inspect.unwrap(there)
            same = _is_made_from(there, name, inner.__globals__, copied) and _stands(there, inner.__module__)
            if same and key not in known:
                _check_names(there, copied, (*known, key))
        if not same:
            raise ValueError(f"{inner.__module__}.{name} was replaced after this file took it: import this file later")


def as_there(module, name, ours):
    """Takes a function with marks for one of a library: whoever calls it here does so within what decorates that."""
    WRITTEN[module, name], theirs = ours, getattr(importlib.import_module(module), name, None)
    inner = inspect.unwrap(theirs)
    if _holds(theirs, inner):  # else rematerialize() says that it was replaced
        ours.theirs, globals()[ours.__name__] = theirs, _wrapped_alike(theirs, inner, ours)


def _is_made_from(there, name, names, copied):
    """Whether what a file has by a name is, as far as it tells, the function that there is a copy of here."""
    if not isinstance(there, types.FunctionType) or there.__globals__ is not names or there.__name__ != name:
        return False
    return repr((there.__defaults__, there.__kwdefaults__)) == repr((copied.__defaults__, copied.__kwdefaults__))


def _stands(function, module):
    """Whether a function is where the text is that this file has it from: there may be others of its name."""
    there, made_from = TEXTS.get(function.__globals__["__name__"]), dict(
        w.split(":") for w in MADE_FROM.get(module, "").split()
    )
    return not there or (function.__code__.co_firstlineno, made_from.get(function.__code__.co_qualname)) in there


def _check(same, module, name):
    if not same:
        raise ValueError(f"{name} of {module} is another one than this file was made from: generate it again")


def _reads(function):
    """The names that a function reads of its file."""
    steps = (step for code in _codes([function]) for step in dis.get_instructions(code) if step.opname == "LOAD_GLOBAL")
    return {step.argval for step in steps} & {*function.__globals__}


def _wrapped_alike(theirs, inner, ours):
    if inner is theirs:
        return ours
    held = [cell.cell_contents for cell in theirs.__closure__]
    wraps = [callable(f) and f is not theirs and inspect.unwrap(f) is inner for f in held]
    alike = [_wrapped_alike(f, inner, ours) if wrapping else f for f, wrapping in zip(held, wraps, strict=True)]
    cells = zip(theirs.__closure__, held, alike, strict=True)
    closure = tuple(cell if same is f else types.CellType(same) for cell, f, same in cells)  # it may bind the others anew
    made = types.FunctionType(theirs.__code__, theirs.__globals__, theirs.__name__, theirs.__defaults__, closure)
    made.__kwdefaults__ = theirs.__kwdefaults__
    made.__dict__.update(theirs.__dict__, __wrapped__=ours)
    return made


def _call(forward, args, kwargs):
    return forward(*args, **kwargs)


# ---------------------------------------------------------------------------- the plan, for one model


class Entry:
    """What the plan says of a mark, or of a module's calls."""

    def __init__(self, name, options, module):
        self.name, self.inside, self.result = name, "inside" in options, "result" in options
        self.late = "late" in options
        if TWICE:
            self.shared = "shared" in options
            self.spares = sum({"twice": 1, "shared": 1, "thrice": 2, "fourfold": 3}.get(word, 0) for word in options)
        if ATTRIBUTES:
            self.reads = {id(vars(m)) for m in module.modules()}  # whose attributes it may read
        if RANDOM:
            self.draws = False  # as far as is known
        if BUFFERS:
            dicts = [m._buffers for m in module.modules()]
            self.moving = [(held, name) for held in dicts if "running_mean" in held for name in held]
            self.buffers = [(held, name) for held in dicts if "running_mean" not in held for name in held]
            frozen = [(m._parameters, n) for m in module.modules() for n, p in m._parameters.items() if _is_frozen(p)]
            self.buffers += frozen  # which forward may change, too: what follows a model that is trained
            if COUNTERS:
                held = [(m, d) for m in module.modules() for d in (m._buffers, m._parameters)]
                self.counters = [(d, n) for m, d in held for n in d if _is_counted(m, d, n)]
                counted = {(id(d), n) for d, n in self.counters}
                self.buffers = [(d, n) for d, n in self.buffers if (id(d), n) not in counted]


class Table:
    """For each module, by its id: {(mark, or "" for its own calls; which time in a step, or None for all): entry}."""

    def __init__(self, model, plan, modules):
        self.plan, self.modules, self.marks, self.calls = dict(plan), [*map(id, modules)], {}, {}
        self.places, self.size = (), -1
        if RECORDED:
            self.steps = 0
        if LARGEST and 0 < LARGEST[3] < (own := own_modules(model, modules)):
            larger = f"the model has {own} modules of its own, {LARGEST[3]} were planned for: expect more than"
            warnings.warn(f"{larger} the planned peak, or generate this file for it", stacklevel=_calls())
        named = dict(model.named_modules(remove_duplicate=False))
        if FUNCTIONS:  # they ask which of the modules is being called whose methods may call them
            kinds = {name.rpartition(".")[0] for made in MADE_FROM for name in _made_from(made)} - {""}
            for module in modules:
                own = vars(module).get("forward")
                followed = module is model or isinstance(own, InstanceMethod)
                if not followed and kinds & {kind.__qualname__ for kind in type(module).__mro__}:
                    module.forward = InstanceMethod(module, "forward", own)
        for row, entries in plan.items():
            for text in entries.split() if row in named else [""]:
                self.add(named, f"{row}.{text}".strip("."))

    def add(self, named, text):
        (path, _, options), numbers = text.partition("/"), [None]
        if NUMBERED and "#" in path:
            path, _, digits = path.partition("#")
            first, _, last = digits.partition("..")
            numbers = range(int(first), int(last or first) + 1)
        owner, _, mark = (path, "", "") if path in named else path.rpartition(".")
        module = named.get(owner) if path and options in OPTIONS else None
        if LIBRARY and mark:
            _take_over(module, WRITTEN)
        if module is None or not numbers or (mark and not (MARKS and mark in _strings(module))):
            raise ValueError(f"PLAN names {text}, which this model or its helpers do not know: generate the file again")
        if not mark and not isinstance(vars(module).get("forward"), InstanceMethod):
            module.forward = InstanceMethod(module, "forward", vars(module).get("forward"))
        found = (self.marks if MARKS and mark else self.calls).setdefault(id(module), {})
        found.update(dict.fromkeys([(mark, number) for number in numbers], Entry(path, options.split("/"), module)))

    def values(self, modules):
        """Where modules have modes, numbers and words, and what they are."""
        found, size = _values(modules, self.places)
        several = [v for v in found if type(v) is tuple]
        if size != self.size or {*map(type, found)} - self.types or not all(map(_is_scalar, several)):
            self.places = _places(modules)
            found, self.size = _values(modules, self.places)
            self.types = {*map(type, found)}
        return self.places, found


OPTIONS = ["", "inside", "result", "late"]
if TWICE:
    OPTIONS += ["twice", "inside/twice", "result/twice", "thrice", "fourfold", "shared", "twice/late", "thrice/late"]


def _strings(module):
    """The strings in the code of a module's class: its marks are among them."""
    found = [f for f in vars(module).values() if isinstance(f, InstanceMethod)]
    found += [f for kind in type(module).__mro__ if kind is not torch.nn.Module for f in vars(kind).values()]
    if FUNCTIONS:
        functions = [f for f in globals().values() if isinstance(f, types.FunctionType)]
        found += [f for f in functions if any("part" in code.co_names for code in _codes([f]))]
    return {c for code in _codes(found) for c in code.co_consts if isinstance(c, str)}


def _codes(functions):
    """The code of functions, and of those within them."""
    codes = [getattr(inspect.unwrap(getattr(f, "__func__", f)), "__code__", None) for f in functions]
    for code in codes:  # which grows
        codes += [c for c in getattr(code, "co_consts", ()) if isinstance(c, types.CodeType)]
    return [code for code in codes if isinstance(code, types.CodeType)]


# ---------------------------------------------------------------------------- parts and places


class Call:
    """One call of a module that the table has."""

    def __init__(self, step, entries):
        self.step, self.entries = step, entries

    @alone
    def part(self, name, run, *inputs):
        """run(*inputs). Where the plan has the name, autograd keeps less of it."""
        entry = self.entries.get((name, None))
        if NUMBERED and entry is None and torch.is_grad_enabled():
            entry = self.entries.get((name, self.step.count(self.entries, name)))
        if entry is None or not self.step.listens():
            return run(*inputs)
        if self.step.replay is not None:
            return self.step.replay.inner(entry, run, inputs)
        return Part(self.step, entry).first(run, inputs)


class Unplanned:
    """The call of a module that the table does not have."""

    def part(self, name, run, *inputs):
        return run(*inputs)


PLAIN = Unplanned()


class Place:
    """Where autograd finds something that it saved; `value` is None while it is not there."""

    __slots__ = "__weakref__", "gone", "late", "like", "look", "part", "shared", "truth", "value", "version", "watched"

    def __init__(self, part, tensor, look):
        self.part, self.look, self.like, self.value, self.gone = part, look, look(tensor), None, None
        self.late = TWICE and part.late  # it has its first value until autograd has read that
        self.shared = []  # while it has a value for parts alone: those that did not run again yet
        self.truth = None
        if (CHECK or RECORDED or part.step.hooks) and tensor.dtype is not torch.uint8:  # of a library's own, not all is written
            self.truth = tensor.detach().clone() if CHECK else _some(tensor)

    def get(self, reader=False):
        """The value, once its part ran again: where it may do so twice, for its first reader alone, or for parts."""
        part = self.part
        with part.step.lock:  # each device has a thread that goes back
            if TWICE and self.value is None:
                if (again := self.read()) is not None:
                    return again
                spared = part.spares and (reader or not part.entry.shared)
                if spared and (result := part.result_for(self)) is not None:
                    if part.entry.shared:
                        self.put(result)
                        self.shared = part.given_to
                    elif not reader:
                        self.lose(result)
                    return result
            todo = [part] if self.value is None else []
            while todo:
                before = todo[-1].waits_for()
                todo.append(before) if before else todo.pop().again()
            if self.value is None:
                raise part.error(f"saved less when it ran again: {SAME}")
            value = self.value
            for tensor in self.watched:
                part.unchanged(tensor, self.version, "what it gave was")
            if self.late and not reader:
                self.drop(read=True)
            return value

    def lose(self, value):
        """Leaves a value to a node of autograd, which may look at it, and at other views, until it has computed."""
        counter = value.detach()
        if COMPLEX:
            counter = _turned(value)
        counter.data = value.new_empty(0)  # without its memory, it has the value's version
        self.gone = weakref.ref(value.untyped_storage()), _computing(), counter, counter._version, *_how(value)

    def read(self):
        """What was left to the node of autograd that computes. For others it is gone: it may have been changed."""
        memory = self.gone[0]() if self.gone and self.gone[1] and self.gone[1] == _computing() else None
        if memory is None or self.gone[2]._version != self.gone[3]:
            return None
        again = self.gone[2].detach()
        if COMPLEX:
            again.data = torch.empty(0, dtype=self.gone[4], device=memory.device).set_(memory, *self.gone[5:8])
            return _turned(again, *self.gone[8:])
        again.data = torch.empty(0, dtype=self.gone[4], device=memory.device).set_(memory, *self.gone[5:])
        return again

    def keep(self, tensor, how=None):
        """Takes the value of the first run, by a tensor that is it, or a view of it, and which nobody may change."""
        seen = tensor.detach()
        if self.value is None:
            self.watched, self.version = [], tensor._version
            how = how or (None if self.look is _shape else self.like[:-1] if COMPLEX else self.like[:4])
            self.value = _view(seen, how) if how else seen
        self.watched.append(seen)

    def drop(self, read=False):
        """Lets its first value go, and what else its part kept of that memory; to autograd if that has `read` it."""
        storage = self.value.untyped_storage()._cdata
        for ref in self.part.places + self.part.results:
            place = ref and ref()
            if place and place.late and place.value is not None and place.value.untyped_storage()._cdata == storage:
                if read:
                    place.lose(place.value)
                place.late, place.value, place.watched = False, None, ()

    def pass_on(self):
        """Lets a value for parts alone go after the last of them."""
        if self.shared and all(part is None or part.ran for part in (ref() for ref in self.shared)):
            self.shared, self.value, self.watched = [], None, ()

    def check(self, tensor):
        """Refuses other values than the first: some are compared where forward could read what hooks leave."""
        if self.truth is None:
            return
        first, again = self.truth, tensor
        if not CHECK:
            first, again = first.to(torch.complex128), _some(tensor).to(torch.complex128)
        most = 0.0 if CHECK or not first.numel() else 0.01 * float(first.abs().nan_to_num(0, 0, 0).max())
        if not (torch.equal(first, again) or torch.allclose(first, again, 0, most, True)):
            hint = "hooks that forward reads from must return what they are given" if self.part.step.hooks else SAME
            raise self.part.error(f"computed other values when it ran again: of {self.like}; {hint}")

    def put(self, tensor):
        if self.like != self.look(tensor):
            raise self.part.error(f"saved other things when it ran again: {self.look(tensor)}, not {self.like}; {SAME}")
        self.check(tensor)
        self.value, self.version = tensor.detach(), tensor._version
        self.watched = [self.value]


def _computing():
    """The node that autograd goes back through; None where somebody else looks."""
    node = C._current_autograd_node()
    return node and (C._current_graph_task_id(), node._sequence_nr())


class Held:
    """An input of a part: a tensor; or the place of another part's result, and which view of it is meant."""

    __slots__ = "needs_grad", "source", "version", "view"

    def __init__(self, place, tensor):
        self.source = place or (tensor if _parameter(tensor) else tensor.detach())
        self.view, self.version, self.needs_grad = place and _how(tensor), tensor._version, tensor.requires_grad


class Part:
    """A part of the forward pass that runs again on the way back."""

    def __init__(self, step, entry):
        self.step, self.entry, self.inputs, self.places, self.results = step, entry, None, [], []
        self.keeps, self.saved = entry.inside and step.part is None, []  # (place, storage, which view of it, version)
        if NESTED:
            self.outer, self.inners = step.part, []
            if self.outer is not None:
                self.outer.inners.append((entry, weakref.ref(self)))
        elif step.part is not None:
            raise self.error(f"runs within {step.part.entry.name}, {OTHER}")
        if TWICE:
            self.spares = entry.spares if step.part is None else 0  # within an outer one it runs twice anyway
            self.late = entry.late and step.part is None
            self.ran, self.given_to, self.lent_by = False, [], []
        if IN_PLACE:
            self.changed = ()

    def error(self, what):
        return RuntimeError(f"{self.entry.name} {what}")

    def unchanged(self, tensor, version, what):
        if tensor._version == version:
            return tensor
        raise self.error(f"cannot run again: {what} changed in place: write into a clone, or take it out of the plan")

    def hold(self, run, inputs):
        """Takes what it needs to run again. Returns the tensors that are given."""
        step, self.captured, self.settings = self.step, [], _settings()
        self.run, self.assigned = _frozen(run, self.captured, {}), step.assigned()
        if ATTRIBUTES:
            self.set = step.set_so_far(self.entry.reads)
        if BUFFERS and COUNTERS:
            self.copies = self.copied()
        if RANDOM:
            self.states = step.states()
        if NUMBERED:
            self.counts = dict(step.counts)
        if FUNCTIONS:
            self.called = step.called
        given = {id(tensor): tensor for tensor in _all(inputs, torch.Tensor)}  # code asks whether `query is key`
        held = {key: Held(step.place_of(tensor), tensor) for key, tensor in given.items()}
        if ATTRIBUTES:  # of which it may not read all, and others may change them
            for *_, tensor in self.set:
                if id(tensor) not in held:
                    held[id(tensor)] = also = Held(step.place_of(tensor), tensor)
                    also.version = None
            self.set = [(of, name, held[id(tensor)]) for of, name, tensor in self.set]
        self.inputs = _mapped(lambda tensor: held[id(tensor)], inputs, torch.Tensor, copies := {})
        self.held, self.as_are = [*held.values()], {i: thing for i, thing in copies.items() if id(thing) == i}
        # What it holds itself, so that autograd may, too.
        self.given = {h.source.untyped_storage()._cdata for h in self.held if not h.view and _plain(h.source)}
        if NESTED and step.part is not None:  # which holds them for both
            self.given = step.part.given
        if TWICE:
            for lender in map(weakref.ref, self.sources()):
                self.lent_by.append(lender)  # within another part, it gets its inputs by that one later
                lender().part.given_to.append(weakref.ref(self, lambda _, lender=lender: _passed_on([lender])))
        return [*given.values()]

    def sources(self):
        """The places of other parts' results that it is given."""
        return [held.source for held in self.held if held.view and held.source]

    def let_go(self, but=()):
        self.inputs = self.run = self.captured = self.assigned = self.states = self.copies = self.as_are = None
        self.held = but
        if ATTRIBUTES:
            self.set = []

    def first(self, run, inputs):
        """Its run in the forward pass."""
        step, outer, given = self.step, self.step.part, self.hold(run, inputs)
        if BUFFERS:
            self.versions = _versions(self.entry)
        step.part = self
        try:
            result = run(*inputs)
            self.learn(given)
            if not self.entry.inside:
                self.lend(self.gives(result, inputs), given)
            elif self.keeps:
                self.keep(self.gives(result, inputs))
        finally:
            step.part = outer
            step.rest()
        if NESTED and outer is not None:  # it gets them when that runs again; places are held, for nothing
            self.let_go([held for held in self.held if held.view])
        return result

    def gives(self, result, inputs):
        """The tensors of its result, and those of lists and objects that it is given, in which it may set some."""
        return _all((result, [t for t in inputs if not isinstance(t, torch.Tensor)]), torch.Tensor, dict(self.as_are))

    def keep(self, results):
        """What it gives is kept, and need not be rebuilt where autograd has saved that in it, too."""
        given = {tensor.untyped_storage()._cdata: tensor for tensor in results if _plain(tensor)}
        for ref, storage, how, version in self.saved:
            place, memory = ref(), storage()  # which is false where it is empty
            found = None if memory is None else given.get(memory._cdata)
            if place and found is not None and found._version == version:
                place.keep(found, how)
        self.saved = ()
        empty = any(ref and (place := ref()) and place.value is None for ref in self.places)
        if not (empty or (NESTED and any(ref() for _, ref in self.inners))):
            self.let_go()
            if TWICE:
                self.ran = True

    def learn(self, given):
        """What shows when it has run: what it draws, moves or changes in place."""
        if RANDOM:
            self.draws = self.entry.draws or not all(map(torch.equal, self.states, self.step.states()))
            self.entry.draws, self.states = self.draws, self.states if self.draws else ()
        if BUFFERS:  # those of batch norms move, by which not all get another version; others may not
            if name := self.moved(self.versions):
                raise self.error(f"changes {name} in place: take it out of the plan")
            self.versions = _versions(self.entry)
        changed = [i for i, tensor in enumerate(given) if tensor._version != self.held[i].version]
        if changed and not (IN_PLACE and all(self.held[i].view for i in changed)):
            raise self.error(f"changes an input in place, its tensor {changed[0]}: take it out of the plan")
        if IN_PLACE:
            self.changed = changed
            for place in [self.held[i].source for i in changed]:
                if place.late and place.value is not None:  # it is another one now
                    place.drop()

    def lend(self, results, given):
        """From now on, what saves its result gets the result's place, if that was made in here."""
        if IN_PLACE:
            given = [tensor for i, tensor in enumerate(given) if i not in self.changed]
        passed = {tensor.untyped_storage()._cdata for tensor in given if tensor.layout is torch.strided}
        if self.entry.result:
            passed |= self.given
        for tensor in results:
            place = Place(self, tensor, _whole) if self.made(tensor, passed) else None
            self.results.append(place and weakref.ref(place))
            if place:
                self.step.lend(tensor, place)

    def made(self, tensor, passed):
        """Whether a result was made in here, by it or by a part within it."""
        if not _plain(tensor) or tensor.untyped_storage()._cdata in passed or self.step.is_kept(tensor):
            return False
        place = self.step.place_of(tensor)
        return place is None or (NESTED and place.part is not self and self in place.part.around())

    def around(self):
        """The part itself, the part around it, and so on."""
        return [self, *(self.outer.around() if self.outer is not None else ())]

    def again_within(self, run, inputs, replay):
        """The part around it runs again, which it was waiting for. Others in there are lent its result."""
        self.outer = None
        self.hold(run, inputs)
        if RANDOM and not self.draws:
            self.states = ()
        if replay.was_last():
            raise Enough
        result = run(*inputs)
        for place, tensor in self.wanted(self.gives(result, inputs)):
            self.step.lend(tensor, place)
        return result

    def wanted(self, tensors):
        """The places of its results that anyone still refers to, and what belongs there."""
        if self.results and len(tensors) != len(self.results):
            raise self.error(f"gave {len(tensors)} tensors when it ran again, not {len(self.results)}: {SAME}")
        return [(place, t) for ref, t in zip(self.results, tensors, strict=False) if ref and (place := ref())]

    def again(self):
        """Fills the places that anyone still refers to, and lets go of what it held for that."""
        replay = Replay(self)
        tensors = self.repeat(replay)
        if TWICE:  # what it still has from a run before stays now, for it does not run again
            for ref in self.places + self.results if self.entry.late or self.entry.shared else ():
                if ref and (place := ref()):
                    place.late, place.shared = False, []
        if not replay.stopped:
            replay.check_end()
            for place, tensor in self.wanted(tensors):
                place.put(tensor)
        if TWICE:
            self.ran = True
            _passed_on(self.lent_by)
        self.let_go()

    def result_for(self, place):
        """Its result, for one reader: no place is filled, and it can run again. None for what is not its result."""
        if not any(ref and ref() is place for ref in self.results):
            return None
        tensors = self.repeat(Replay(self, silent=True))
        self.spares -= 1
        [tensor] = [tensor for found, tensor in self.wanted(tensors) if found is place]
        if place.look(tensor) != place.like:  # a copy of a view
            return None
        place.check(tensor)
        return tensor.detach()

    def waits_for(self):
        """A part that has to run again before this one: the one around it, or one that lends it an input."""
        if NESTED and self.inputs is None:
            return self.outer
        empty = (p for p in self.sources() if p.value is None and not (TWICE and (p.part.spares or p.read() is not None)))
        return next((place.part for place in empty), None)

    def repeat(self, replay):
        """Runs it as in the first run. Returns what it gives."""
        step = self.step
        if step.part is self or (NESTED and step.part is not None and self in step.part.around()):
            raise self.error("still runs, but autograd goes back through it: take it out of the plan")
        if self.inputs is None:
            raise self.error("cannot run again: it did, and let go of what it needs")
        for tensor, version in self.captured:
            self.unchanged(tensor, version, "a tensor that it captures was")
        step.gather(self.entry.name)
        taken = {id(place): place.get(reader=True) for place in dict.fromkeys(self.sources())}  # once for all views
        taken |= {id(h): self.take(n, h, replay, taken.get(id(h.source))) for n, h in enumerate(self.held)}
        inputs = _mapped(lambda held: taken[id(held)], self.inputs, Held, {})
        if ATTRIBUTES:
            self.others = [(of, name, taken[id(held)]) for of, name, held in self.set]
        taken.clear()
        if RANDOM:
            chance = step.by_chance and _chance()
        result = self.as_before(replay, inputs)
        if RANDOM and chance and _chance() != chance:
            which = "Python's or NumPy's" if NUMPY else "Python's"
            raise self.error(f"draws from {which} random, which is not set back: take it out of the plan")
        return [] if replay.stopped else self.gives(result, inputs)

    def take(self, number, held, replay, value):
        """An input for another run; `value` is what its place has. What that changes in place is nobody else's."""
        place = held.source
        if not held.view:
            if ATTRIBUTES and held.version is None:
                return place if _parameter(place) else place.detach().requires_grad_(held.needs_grad)
            value = self.unchanged(place, held.version, f"its input, tensor {number}, was")
            return value if _parameter(value) else value.detach().requires_grad_(held.needs_grad)
        value = _view(value, held.view)
        if IN_PLACE and number in self.changed:
            held.source, readers = place if replay.silent else None, weakref.ref(place)
            del place
            with torch.enable_grad():
                value = value.clone() if readers() else value.detach()
                return NoLeaf.apply(value, torch.empty(0, requires_grad=held.needs_grad))
        value = value.detach().requires_grad_(held.needs_grad)
        if NESTED and self.inners and not replay.silent:  # parts within get the place, not what is there for one
            self.step.lend(value, place, replay)
        return value

    def as_before(self, replay, inputs):
        """Runs it while all that it depends on is as in its first run. Nothing that moves is moved outside."""
        step, settings, cache, before = self.step, _settings(), torch.is_autocast_cache_enabled(), self.step.replay
        others, grad = step.exchanged + self.assigned, torch.is_grad_enabled()
        if ATTRIBUTES:
            others, before_that, self.others = others + self.others, step.attributes, []
        if BUFFERS:
            others = others + self.clones({(id(held), name): value for held, name, value in others})
        if RANDOM:
            states = self.states and step.states()
        if NUMBERED:
            counts, step.counts = step.counts, dict(self.counts)
        if FUNCTIONS:
            called, step.called = step.called, self.called
        token, others, step.replay = RUNNING.set(step), _exchange(others), replay
        if ATTRIBUTES:
            step.attributes = step.references_to([place[:2] for place in before_that])
        try:
            _set(self.settings, settings)
            torch.set_autocast_cache_enabled(False)  # it would outlive this run, and the weights
            if RANDOM:
                step.set_states(self.states)
            C._set_grad_enabled(True)
            C._autograd._push_saved_tensors_default_hooks(replay.refill, replay.nothing)
            try:
                if ON_GPU:
                    return _told(step, f"while {self.entry.name} ran again", self.run, *inputs)
                return self.run(*inputs)
            finally:
                C._autograd._pop_saved_tensors_default_hooks()
        except Enough:
            replay.stopped = True
        finally:
            C._set_grad_enabled(grad)
            RUNNING.reset(token)
            _exchange(others)
            if ATTRIBUTES:
                step.attributes = before_that
            _set(settings, self.settings)
            torch.set_autocast_cache_enabled(cache)
            step.replay = before
            if RANDOM:
                step.set_states(states)
            if NUMBERED:
                step.counts = counts
            if FUNCTIONS:
                step.called = called
            if NESTED:
                replay.lent.clear()

    def moved(self, before):
        """The name of the first buffer or frozen parameter that is the one before and has another version, if any."""
        found = zip(self.entry.buffers, before, _versions(self.entry), strict=True)
        return next((name for (_, name), seen, now in found if seen[0] is now[0] and seen[1] != now[1]), None)

    def copied(self):
        """What small buffers were when it first ran: (the dict that has it, name, copy)."""
        found = [(d, n, d[n]) for d, n in self.entry.counters if d.get(n) is not None]
        return [(d, n, t.detach().clone().requires_grad_(t.requires_grad)) for d, n, t in found]

    def clones(self, others):
        """Buffers for its next run to move: (the dict that has it, name, buffer). `others` are not those there now."""
        if name := self.moved(self.versions):
            raise self.error(f"cannot run again: {name} was changed in place: do it after backward()")
        moving = [(held, name, others.get((id(held), name), held[name])) for held, name in self.entry.moving]
        if COUNTERS:
            moving += self.copies
        moving = [(held, name, buffer, buffer.requires_grad) for held, name, buffer in moving if buffer is not None]
        return [(held, name, buffer.detach().clone().requires_grad_(trained)) for held, name, buffer, trained in moving]


def _passed_on(lenders):
    """A part that was given results, by these references to their places, does not need them any more."""
    for place in filter(None, (ref() for ref in lenders)):
        place.pass_on()


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
        self.part, self.silent, self.stopped, self.places = part, silent, False, iter(part.places)
        self.left = sum(bool(ref and (place := ref()) and place.value is None) for ref in part.places + part.results)
        if NESTED:
            self.lent, self.inners = {}, iter(part.inners)
            self.left += sum(bool((inner := ref()) and inner.outer) for _, ref in part.inners)

    def was_last(self):
        self.left -= 1
        return self.left == 0

    def refill(self, saved):
        """What autograd saves now. It holds nothing itself: nobody goes back through this run."""
        if self.silent or self.part.entry.result:
            return
        if (ref := next(self.places, self)) is self:
            raise self.part.error(f"saved more when it ran again: {_shape(saved)}; {SAME}")
        place = ref and ref()
        if place and place.value is None:
            place.put(saved)
            if self.was_last():
                raise Enough

    def nothing(self, held):
        raise self.part.error("holds nothing for gradients within it while it runs again: take it out of the plan")

    def check_end(self):
        if next(self.places, self) is not self or (NESTED and next(self.inners, self) is not self):
            raise self.part.error(f"saved less when it ran again: {SAME}")

    def inner(self, entry, run, inputs):
        """A part within this one runs plainly, and gets its inputs if anyone may ask for it later."""
        if not NESTED:
            raise self.part.error(f"did not come to {entry.name} in its first run: {SAME}")
        if self.silent:
            return run(*inputs)
        known, ref = next(self.inners, (None, None))
        if known is not entry:
            raise self.part.error(f"did not come to {entry.name} in its first run: {SAME}")
        self.silent, part = True, ref()
        try:
            return part.again_within(run, inputs, self) if part and part.outer else run(*inputs)
        finally:
            self.silent = False


# ---------------------------------------------------------------------------- the step


class Watched:
    """A hook of a module in the forward pass. Parts run again without it, unless one in a part changes anything."""

    def __init__(self, step, hook):
        self.step, self.hook = step, hook

    def __call__(self, module, *given):
        before, states = self.seen(module, given), self.step.states()
        result = self.hook(module, *given)
        same = result is None and before[1:] == self.seen(module, given)[1:]
        if self.step.part is not None and not (same and all(map(torch.equal, states, self.step.states()))):
            self.step.active = True
        return result

    def seen(self, module, given):
        """What others compute with and a hook may change, held, so that ids stay their own; how much autograd saved."""
        held = [vars(module), module._parameters, module._buffers, module._modules]
        objects = [*_all(given, torch.Tensor), *(thing for things in held for thing in things.values())]
        return [objects, [*map(id, objects)], [t._version for t in objects if torch.is_tensor(t)], self.step.saved]


class Step:
    """One training step: what runs, and what is lent. It belongs to autograd, and goes with forward's graph."""

    def __init__(self, model, plan, given):
        modules = _walk(model)
        ids = [*map(id, modules)]
        tables = [table for table in TABLES.get(model, ()) if table.modules == ids]
        table = next((table for table in tables if table.plan == plan), None)
        if table is None:
            table = Table(model, plan, modules)
            TABLES[model] = [*tables, table]
        self.model, self.table, self.lock = weakref.ref(model), table, threading.RLock()
        self.part = self.replay = self.backward = self.kept = None
        self.lent, self.exchanged, self.given = {}, [], _all(given, torch.Tensor)
        self.sharded = any(hasattr(kind, "unshard") for kind in {*map(type, modules)})  # FSDP2 exchanges them
        holders = [held for m in modules for held in (m._parameters, m._buffers) if held]
        seen = [(held, name, t, t._version) for held in holders for name, t in held.items() if t is not None]
        tensors = [*self.given, *(t for *_, t, _ in seen)] if torch.cuda.is_initialized() else []
        self.devices = sorted({t.device.index for t in tensors if t.is_cuda})
        self.seen = [s for s in seen if not isinstance(s[2], torch.nn.Parameter)] if self.sharded else seen
        self.buffers = [s[:3] for s in seen if not isinstance(s[2], torch.nn.Parameter)]
        if ATTRIBUTES:
            named = [(m, *name.rpartition(".")[::2]) for m in modules for name in SET_BY_FORWARD]
            own = [(vars(m), name) for m, kind, name in named if any(k.__qualname__ == kind for k in type(m).__mro__)]
            self.attributes = self.references_to(own)
        (self.places, self.values), self.chance = table.values(modules), _chance()
        hooked = [m for m in modules if m._forward_pre_hooks or m._forward_hooks]
        self.hooks, self.active = {id(m): [vars(m)[name].copy() for name in HOOKS] for m in hooked}, False
        self.watched, self.saved = [vars(m)[name] for m in hooked for name in HOOKS[:2]], 0
        if ON_GPU:
            self.beside = torch.cuda.memory_allocated(self.devices[0]) if self.devices else 0
            self.graded = next((t.grad is not None for *_, t, _ in seen if t.requires_grad), False)
        if RANDOM:
            self.by_chance = False
        else:
            self.before = self.generators()
        if NUMBERED:
            self.counts = {}
        if FUNCTIONS:
            self.called = id(model)  # of the module that is being called

    def first(self, forward, args, kwargs):
        """The forward pass."""
        token, watched = RUNNING.set(self), self.watched
        for held in watched:
            held.update({key: Watched(self, hook) for key, hook in held.items()})
        if RECORDED:
            self.table.steps += 1
        if RECORDED and (self.table.steps <= LOOKS or self.table.steps % OFTEN == 0):  # that takes time for each saved tensor
            self.holds = {}  # bytes that autograd holds outside of parts, by memory
            C._autograd._push_saved_tensors_default_hooks(self.pack, self.unpack)
        try:
            result = forward(*args, **kwargs)
        finally:
            RUNNING.reset(token)
            for held in watched:
                held.update({key: hook.hook for key, hook in held.items() if isinstance(hook, Watched)})
            self.lent.clear()  # what nobody saved is not lent any more
            self.part, self.given = None, ()
            if RECORDED:
                holds = vars(self).pop("holds", {})
            self.rest()
        drawn = _chance() != self.chance
        if RANDOM:
            self.by_chance = drawn
        elif drawn or vars(self).pop("before") != self.generators():
            raise RuntimeError(f"random numbers were drawn in forward, by the model or another thread, {OTHER}")
        if not BUFFERS:
            self.compare_versions(f"by the model, {OTHER}")
        if BUFFERS:  # in forward, frozen parameters may follow others
            self.seen = [(d, n, t, t._version if _is_frozen(t) else v) for d, n, t, v in self.seen]
        if RECORDED:
            self.compare_held(sum(holds.values()))
        modules = _walk(self.model())
        now = _values(modules, self.places)[0] if len(modules) == len(self.table.modules) else ()  # refused later
        pairs = zip(self.values, now, strict=False)
        self.values = [v if v is w or (_is_scalar(w) and v == w) else MOVED for v, w in pairs]
        return result

    def compare_held(self, nbytes):
        """Says once where a step went another way than the one that was planned for, and holds more."""
        if HELD and nbytes > 1.1 * HELD[0] + 2**16 and self.model() not in TOLD:
            TOLD.add(self.model())
            said = f"{nbytes / 2**20:,.1f} MiB between forward and backward, {HELD[0] / 2**20:,.1f} MiB were planned for"
            more = "values lead another way, on which it may take more than the planned peak"
            warnings.warn(f"this step holds {said}: {more}", stacklevel=_calls())

    def who_has_memory(self, where):
        """What a step holds of a device's memory, and what else there is."""
        device, tensors = self.devices[0], [t for *_, t, _ in self.seen if t.is_cuda]
        (free, total), held = torch.cuda.mem_get_info(device), torch.cuda.memory_reserved(device)
        values, grads = sum(t.nbytes for t in tensors), sum(t.grad.nbytes for t in tensors if t.grad is not None)
        now, old = torch.cuda.memory_allocated(device), grads if self.graded else 0
        (peak, *_), own, cache = self.planned, now - self.beside - (grads - old), held - now
        sizes = {
            "the step's own values": own,
            "parameters, buffers and gradients": values + grads,
            "what else was there before, as the optimizer's state": self.beside - old - values,
            "PyTorch's cache, in pieces": cache,
            "other processes and CUDA itself": total - free - held,
        }
        listed = "; ".join(f"{size / 2**30:,.2f} GiB {what}" for what, size in sizes.items())
        blame = "the step: its inputs need more than was planned for" if own > peak else "what is beside the step"
        if cache > max(own - peak, peak // 8):
            blame = "pieces of memory too small to use: set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
        room = max(0, min(own + free + cache, peak * 9 // 10))
        return (
            f"Memory ran out {where}, in a step planned to take {peak / 2**30:,.2f} GiB at most."
            f" Of {total / 2**30:,.2f} GiB there are: {listed}. To blame is {blame}."
            f" To plan for less, run the command at the top of this file with --budget {room}."
        )

    def assigned(self):
        """The buffers that forward has assigned so far: (the dict that has it, name, buffer)."""
        return [(held, name, held[name]) for held, name, t in self.buffers if held.get(name, t) is not t]

    def references_to(self, places):
        """Attributes, as (the dict that has it, name), each with a reference to the tensor that is there."""
        found = [(held, name, held.get(name)) for held, name in places]
        return [(held, name, weakref.ref(t if torch.is_tensor(t) else self)) for held, name, t in found]

    def set_so_far(self, reads):
        """The tensors that it has set as attributes of what `reads`, in the forward pass or in the part that runs again."""
        now = [(held, name, held.get(name), before()) for held, name, before in self.attributes]
        found = [(held, name, held.get(name)) for held, name, _ in (self.replay.part.set if self.replay else [])]
        found = found + [(held, name, t) for held, name, t, before in now if t is not before]
        found = [row for row in found if torch.is_tensor(row[2]) and id(row[0]) in reads]
        return [*{(id(held), name): (held, name, t) for held, name, t in found}.values()]

    def call(self, entries):
        """A call of a module with these entries."""
        return Call(self, entries) if entries else PLAIN

    @functools.partial(alone, recursive=False)
    def within(self, module, method, args, kwargs):
        """A call of a module. Functions that are called meanwhile have their parts in its row."""
        entries, outer, self.called = self.table.calls.get(id(module)), self.called, id(module)
        try:
            return self.call(entries).part("", _call, method, args, kwargs)
        finally:
            self.called = outer

    def count(self, entries, name):
        """How often this part of a module was come to before in this step."""
        self.counts[id(entries), name] = number = self.counts.get((id(entries), name), -1) + 1
        return number

    def listens(self):
        """Whether what autograd saves comes here: not under no_grad, in a checkpoint, or in other hooks."""
        if not torch.is_grad_enabled():
            return False
        hooks = _hooks()
        if hooks is None and self.replay is None:
            C._autograd._push_saved_tensors_default_hooks(self.pack, self.unpack)
            return True
        return hooks is not None and getattr(hooks[0], "__self__", None) is (self.replay or self)

    def rest(self):
        """Outside of parts, and while nothing is lent, autograd saves as it always does: that costs no time."""
        if RECORDED and "holds" in vars(self):
            return
        if self.part is None and not self.lent and getattr((_hooks() or [None])[0], "__self__", None) is self:
            C._autograd._pop_saved_tensors_default_hooks()

    def lend(self, tensor, place, replay=None):
        """From now on, who saves this tensor or a view of it gets the place, until the tensor's memory is gone."""
        lent = (replay or self.replay or self).lent if NESTED else self.lent
        storage, this = tensor.untyped_storage(), weakref.ref(self)
        key = storage._cdata

        @alone
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
        return [torch.default_generator.get_state(), *map(torch.cuda.get_rng_state, self.devices)]

    def generators(self):
        """The states as Python's numbers, which a step holds throughout: tensors would count as memory."""
        return [state.view(torch.int64).tolist() for state in self.states()]

    def set_states(self, states):
        for device, state in zip([None, *self.devices], states, strict=False):
            torch.default_generator.set_state(state) if device is None else torch.cuda.set_rng_state(state, device)

    def place_of(self, tensor):
        """The place of a part's result, if this is one, or a view of it, and was not changed in place since."""
        lent = (self.replay or self).lent if NESTED else self.lent
        if not lent or not _plain(tensor):
            return None
        place, version, _ = lent.get(tensor.untyped_storage()._cdata, (None, None, None))
        if tensor._version != version:
            return None
        if place.late and self.replay is None:
            place.keep(tensor)
        return place

    def is_kept(self, tensor):
        """Whether others keep it anyway: parameters, buffers, and what the model was given."""
        if self.kept is None:
            held = [*self.given, *(t for *_, t, _ in self.seen if not isinstance(t, torch.nn.Parameter))]
            self.kept = {t.untyped_storage()._cdata for t in held if _plain(t)}
        base = tensor if tensor._base is None else tensor._base
        return _parameter(base) or tensor.untyped_storage()._cdata in self.kept

    @alone
    def pack(self, saved):
        """What autograd holds instead of something that it saves."""
        self.saved += 1
        leaf = saved.is_leaf and saved.requires_grad  # such as a parameter: known at once, which saves time
        part, place = self.part, None if leaf else self.place_of(saved)
        if part is not None and not part.entry.result:
            mine = not leaf and place is None and _plain(saved) and not self.is_kept(saved)
            mine = mine and saved.untyped_storage()._cdata not in part.given
            own = Place(part, saved, _shape) if mine else None
            part.places.append(own and weakref.ref(own))
            if own and own.late:
                own.keep(saved)
            elif own and part.keeps:
                part.saved.append((part.places[-1], weakref.ref(saved.untyped_storage()), _how(saved), saved._version))
            if own:
                return own, None
        elif part is not None and not (leaf or place):  # what it keeps need not be lent
            part.given.add(saved.untyped_storage()._cdata)
        if RECORDED and "holds" in vars(self) and not (place or leaf) and _plain(saved) and not self.is_kept(saved):
            self.holds[saved.untyped_storage()._cdata] = saved.untyped_storage().nbytes()
        return (place, _how(saved)) if place else (saved if saved.is_leaf else saved.detach(), saved._version)

    @alone
    def unpack(self, held):
        """What autograd saved."""
        task = C._current_graph_task_id()
        with self.lock:
            if task != self.backward:  # the first of this way back: from here to its end, optimizers may step
                self.compare()
                self.backward = task
        source, how = held
        if isinstance(source, Place):
            return source.get() if how is None else _view(source.get(), how)
        if source._version != how:
            raise RuntimeError("a tensor that backward needs was changed in place: write into a clone")
        return source

    def compare(self):
        """Refuses what was changed in place since forward. What was exchanged comes back while parts run again."""
        model = self.model()
        modules = [] if model is None else _walk(model)
        if modules and self.table.modules != [*map(id, modules)]:
            raise RuntimeError("modules were added or taken away between forward and backward: do it after backward()")
        self.compare_versions("between forward and backward: step optimizers, load or move weights after backward()")
        held = [(_held(modules[i], at), name) for i, at, names in self.places if modules for name in names]
        pairs = zip(held, self.values, strict=False)
        self.exchanged = [(d, n, v) for (d, n), v in pairs if v is not MOVED and d.get(n, ...) is not v]
        self.exchanged += [(held, name, t) for held, name, t, _ in self.seen if held.get(name) is not t]
        for m in modules:
            if (had := self.hooks.get(id(m))) or m._forward_pre_hooks or m._forward_hooks:
                had = had if self.active else None
                self.exchanged += [(vars(m), name, had[i] if had else {}) for i, name in enumerate(HOOKS)]

    def counts_in(self, held, name):
        """Whether parts have copies of it."""
        owners = [m for m in _walk(self.model()) if held is m._parameters or held is m._buffers] if self.model() else ()
        return any(_is_counted(m, held, name) for m in owners)

    def compare_versions(self, when):
        """Refuses a parameter, or a buffer where none may move, that was changed in place."""
        for held, name, tensor, version in self.seen:
            moves = BUFFERS and not isinstance(tensor, torch.nn.Parameter)
            if tensor._version != version and not (moves or (COUNTERS and self.counts_in(held, name))):
                named = self.model().named_modules() if self.model() else ()
                paths = [path for path, m in named if held is m._parameters or held is m._buffers]
                raise RuntimeError(f"{'.'.join(filter(None, [*paths[:1], name]))} was changed in place {when}")


# ---------------------------------------------------------------------------- small things


def _walk(model):
    """All modules, in less time than `modules()` takes."""
    found = [model]
    for module in found:  # which grows
        if module._modules:
            found += [child for child in module._modules.values() if child is not None]
    return found


def _places(modules):
    """Where modes, numbers and words are: (number of a module, what leads to an object or dict of it, their names)."""
    found, known = [], set()
    ahead = [(i, ()) for i, m in enumerate(modules) if not type(m).__module__.startswith("torch.distributed")]
    for i, at in ahead:  # which grows
        held = _held(modules[i], at)
        if id(held) in known or (at and len(held) > MANY):
            continue
        known.add(id(held))
        kinds = () if at else [kind for kind in type(modules[i]).__mro__ if not kind.__module__.startswith("torch.")]
        there = {**{n: v for kind in kinds for n, v in vars(kind).items() if not n.startswith("__")}, **held}
        few = not at and type(modules[i]).__module__.startswith("torch.")  # where others are what sizes follow
        fits = (lambda v: isinstance(v, (bool, float))) if few else _is_scalar
        found.append((i, at, [n for n, v in there.items() if n not in INTERNAL and fits(v)]))
        inner = [n for n in [*held] if len(at) < DEEP and n not in INTERNAL and not str(n).startswith("_")]
        ahead += [(i, (*at, n)) for n in inner if _within(held, n)]
    return found


def _values(modules, places):
    """What is there, and how much else there is: more where something was added."""
    found, size = [], 0
    for i, at, names in places:
        held = _held(modules[i], at) if at else modules[i].__dict__
        found += [held.get(name, ...) for name in names]
        size += len(held)
    return found, size


def _held(module, at):
    """The attributes of a module, or of what leads from there to an object or dict."""
    return functools.reduce(_within, at, vars(module))


def _within(held, name):
    """The attributes of an object that another one has, or the items of a dict; empty where there are none."""
    thing = held.get(name)
    try:
        values = thing if isinstance(thing, dict) else thing.__dict__
    except (AttributeError, ReferenceError, RuntimeError):  # it has none, or stands for what is gone
        return {}
    return values if isinstance(values, dict) else {}


def _is_scalar(thing):
    if type(thing) is tuple:
        return len(thing) <= MANY and all(map(_is_scalar, thing))
    return isinstance(thing, SCALARS)


def own_modules(model, modules):
    """How many modules are of classes that stand beside the model's own: adapters, and what shards, are not."""
    home = next((kind.__module__ for kind in type(model).__mro__ if not kind.__module__.startswith("torch.")), None)
    return len({id(m) for m in modules if any(kind.__module__ == home for kind in type(m).__mro__[:-2])})


def _exchange(things):
    """Gives dicts other values, (dict, name, value). Returns the ones before."""
    before = [(held, name, held.get(name, ...)) for held, name, _ in things]
    for held, name, value in things:
        held.pop(name, None) if value is ... else held.update({name: value})  # ...: it was not there
    return before


def _is_frozen(parameter):
    return parameter is not None and not parameter.requires_grad


def _is_counted(module, held, name):
    """Whether parts have copies of what a module has by a name in one of its dicts."""
    at, tensor = "_buffers" if held is module._buffers else "_parameters", held[name]
    known = any(f"{kind.__qualname__}.{at}.{name}" in COUNTED for kind in type(module).__mro__)
    return known and tensor is not None and tensor.nbytes <= SMALL


def _versions(entry):
    found = [buffers.get(name) for buffers, name in entry.buffers]
    return [(buffer, None if buffer is None else buffer._version) for buffer in found]


def _chance():
    """The states of generators that are not PyTorch's."""
    state = random.getstate()
    if NUMPY:  # where no other thread may draw from it
        threads = [t for t in threading.enumerate() if not t.name.startswith("Dummy-")]  # those are autograd's
        numpy = sys.modules.get("numpy.random") if len(threads) == 1 else None
        kind, keys, *rest = numpy.get_state() if hasattr(numpy, "get_state") else ("", b"")
        state = state, kind, bytes(keys), rest
    return state


def _settings():
    return [read() for read in READS]


def _set(values, present):
    for (_, write), value, old in zip(SETTINGS, values, present, strict=True):
        if value != old:
            write(value)


def _parameter(tensor):
    return tensor.is_leaf and isinstance(tensor, torch.nn.Parameter)  # the first is fast


def _plain(tensor):
    """Whether its memory can be found again."""
    if COMPLEX:
        return type(tensor) is torch.Tensor and tensor.layout is torch.strided
    return type(tensor) is torch.Tensor and tensor.layout is torch.strided and not (tensor.is_conj() or tensor.is_neg())


def _shape(tensor):
    return tensor.dtype, tensor.size(), tensor.stride()


def _some(tensor):
    """Some of its values: at most 64, in less memory than a GPU gives to anything."""
    most = 4 if tensor.dim() < 4 else 2
    return tensor.detach()[tuple(slice(None, None, size // most + 1) for size in tensor.shape)].clone()


def _how(tensor):
    """Which view of its storage a tensor is."""
    if COMPLEX:
        return tensor.dtype, tensor.storage_offset(), tensor.size(), tensor.stride(), tensor.is_conj(), tensor.is_neg()
    return tensor.dtype, tensor.storage_offset(), tensor.size(), tensor.stride()


def _turned(tensor, conjugate=False, negative=False):
    """The view of a tensor's memory that stands for the numbers there, or for their conjugates, or negatives."""
    tensor = tensor.detach()
    tensor = tensor if tensor.is_conj() == conjugate else tensor.conj()
    return tensor if tensor.is_neg() == negative else torch._neg_view(tensor)


def _whole(tensor):
    return (*_how(tensor), tensor.untyped_storage().nbytes())


def _view(value, how):
    if how == _how(value):
        return value
    if COMPLEX and len(how) > 4:
        return _turned(_view(_turned(value), how[:4]), *how[4:])
    view = value.detach()  # which has its version
    view.data = value.new_empty(0, dtype=how[0]).set_(value.untyped_storage(), *how[1:])
    return view


def _all(thing, kind, known=None):
    """The things of a kind, in tuples, lists and dicts too."""
    if isinstance(thing, kind):
        return [thing]
    things = thing.values() if isinstance(thing, dict) else thing if isinstance(thing, (tuple, list)) else ()
    if OBJECTS:
        known = {} if known is None else known
        if id(thing) in known:
            return []
        if _has_attributes(thing, known):
            things = _attributes(thing).values()
        if things:
            known[id(thing)] = thing
    return [found for t in things for found in _all(t, kind, known)]


def _mapped(function, thing, kind, copies):
    """The same thing with function(x) for each x of a kind. `copies` are those of objects, by id."""
    if OBJECTS:
        return _copied(function, thing, kind, copies)
    if isinstance(thing, kind):
        return function(thing)
    if type(thing) is dict:
        return {key: _mapped(function, value, kind, copies) for key, value in thing.items()}
    if not isinstance(thing, (tuple, list)):
        return thing
    return _with_items(thing, [_mapped(function, value, kind, copies) for value in thing])


def _with_items(thing, found):
    return tuple.__new__(type(thing), found) if hasattr(thing, "_fields") else type(thing)(found)


def _copied(function, thing, kind, done):
    """The same, also in attributes of objects. `done` are the copies by id: what is twice there is one thing here."""
    if isinstance(thing, kind):
        return function(thing)
    if id(thing) in done:
        return done[id(thing)]
    if type(thing) is dict:
        found = done[id(thing)] = {}
        found.update({key: _copied(function, value, kind, done) for key, value in thing.items()})
        return found
    if type(thing) is list:
        found = done[id(thing)] = []
        found += [_copied(function, value, kind, done) for value in thing]
        return found
    if isinstance(thing, (tuple, list)):
        return _with_items(thing, [_copied(function, value, kind, done) for value in thing])
    return _object_copied(lambda value: _copied(function, value, kind, done), thing, kind, done)


def _object_copied(copied, thing, kind, done):
    """A copy of an object, or of a dict of another type, that has any of a kind, or may come to: what a part does to it
    when it runs again is done to that one. Others, and what cannot be copied, as they are."""
    if not isinstance(thing, dict) and not _has_attributes(thing, done):
        return thing
    items = dict(thing) if isinstance(thing, dict) else _attributes(thing)
    may_hold = (torch.Tensor, kind, tuple, list, dict, type(None))
    if items and not any(isinstance(value, may_hold) or _has_attributes(value, done) for value in items.values()):
        return done.setdefault(id(thing), thing)
    try:
        changed = copy.copy(thing)
        own, copied_own = (thing, changed) if isinstance(thing, dict) else (_dict_of(thing), _dict_of(changed))
        if changed is thing or (own is copied_own and own is not None):
            return done.setdefault(id(thing), thing)
        done[id(thing)] = changed
        for name, value in items.items():
            value = copied(value)
            if isinstance(thing, dict):
                changed[name] = value
            elif own and name in own:
                copied_own[name] = value
            else:
                _slots(thing)[name].__set__(changed, value)
    except (TypeError, ValueError, AttributeError, RuntimeError, LookupError, copy.Error):  # its own methods may say so
        done[id(thing)] = changed = thing
    return changed


def _has_attributes(thing, known):
    """Whether a thing is an object that may have tensors in attributes; no longer asked where very many are known."""
    has = (_dict_of(thing) is not None or hasattr(type(thing), "__slots__")) and len(known) < 1000
    return has and not isinstance(thing, (*NO_HOLDERS, tuple, list, dict))


def _dict_of(thing):
    found = object.__getattribute__(thing, "__dict__") if type(thing).__dictoffset__ else None
    return found if isinstance(found, dict) else None  # that of a class is none


def _attributes(thing):
    """The attributes of an object, those in slots, too."""
    found = dict(_dict_of(thing) or {})
    for name, slot in _slots(thing).items():
        try:
            found[name] = slot.__get__(thing)
        except AttributeError:  # it is not set
            continue
    return found


def _slots(thing):
    """By name: what has the values of an object's slots, whatever its class makes of these names."""
    kinds = [vars(kind) for kind in reversed(type(thing).__mro__) if "__slots__" in vars(kind)]
    return {n: slot for kind in kinds for n, slot in kind.items() if isinstance(slot, types.MemberDescriptorType)}


def _frozen(thing, tensors, known):
    """A function as it is now: variables that it captures may be bound anew before it runs again. Tensors are noted."""
    if isinstance(thing, torch.Tensor):
        tensors.append((thing, thing._version))
    if not isinstance(thing, types.FunctionType) or not thing.__closure__:
        return thing
    if id(thing) not in known:
        cells = tuple(types.CellType() for _ in thing.__closure__)
        new = types.FunctionType(thing.__code__, thing.__globals__, thing.__name__, thing.__defaults__, cells)
        new.__kwdefaults__, new.__dict__, known[id(thing)] = thing.__kwdefaults__, {**vars(thing)}, new
        for old, cell in zip(thing.__closure__, cells, strict=True):
            if old != types.CellType():  # which would not be bound yet
                cell.cell_contents = _frozen(old.cell_contents, tensors, known)
    return known[id(thing)]
