"""Where in the source each operation was made: the frames on the stack while torch.export traces the model.

CPython says of each frame which expression it is evaluating, line and column. With the modules' calls, counted as they begin,
and the names of what a frame holds, that is what marks in the user's own text are made of.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import linecache
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any
from unittest import mock

import torch

from remat_codegen.torch_seam import CALLS_MODULE, HANDS_OVER, counted_calls, made_by, trace_in_progress
from remat_codegen.trace.places import Call, Function, Span
from remat_codegen.trace.reachable import CALLABLE, held_by_function
from remat_codegen.trace.refusals import is_library

META = "remat_codegen_calls"  # of nodes of the traced graph: the frames that made them, outermost first
BY_ATTRIBUTES = "remat_codegen_by_attributes"  # of those: the numbers of what no variable holds, only an attribute
STAYS = "remat_codegen_stays"  # of nodes whose results are in plain objects when forward has ended: which
LEFT = "remat_codegen_left"  # of nodes whose results modules hold in attributes when forward has ended
HELD = "remat_codegen_held"  # its own number, and those of the nodes whose results variables hold while it runs
SET = "remat_codegen_set"  # attributes that forward has set to what nodes have made: paths, and the numbers of these nodes

_TORCH = os.path.dirname(torch.__file__) + os.sep
_WORDS = tuple(os.path.join(_TORCH, part, "") for part in ("nn", "distributions"))  # of PyTorch: what is written as models are
_TRACES = (  # what is on the stack only while a model is traced
    *(os.path.join(_TORCH, part, "") for part in ("fx", "_export", "_library")),
    os.path.join(_TORCH, "utils", "_stats.py"),
    os.path.join(os.path.dirname(os.path.dirname(__file__)), ""),
)
_TRACERS = ("torch.fx.", "torch._export.", f"{__package__.partition('.')[0]}.")  # modules of such classes
_CALLS = (  # who hands over what a tracer is asked, and is on the stack beside models, too
    *(os.path.join(_TORCH, part) for part in ("_ops.py", "_compile.py", "overrides.py")),
    os.path.join(_TORCH, "_dynamo", "eval_frame.py"),
)
_MODULE = os.path.join(_TORCH, "nn", "modules", "module.py")
_BESIDE_CALLS = frozenset(  # in its frames: what has no more than these have themselves
    {"inner", "full_backward_hooks", "non_full_backward_hooks", "backward_pre_hooks"}
)
_COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")
_NO_HOLDERS = (  # of what a forward pass makes
    *(torch.nn.Module, torch.Tensor, torch.fx.Node, torch.fx.Graph, type, ModuleType),
    *(FunctionType, MethodType, BuiltinFunctionType, functools.partial),
)
_GOES_ON = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_OF_TORCH = frozenset(vars(torch.nn.Module()))  # attributes that every module has
_DEPTH, _WIDTH, _LINKED = 3, 64, 500  # how far containers are searched for tensors, and objects that are linked
_EMPTY = frozenset({int, float, bool, complex, str, bytes, type(None), type, FrameType, CodeType, ModuleType})


def calls_of(node: torch.fx.Node) -> tuple[Call, ...]:
    """The frames that made a traced node, outermost first."""
    found: tuple[Call, ...] = node.meta.get(META, ())
    return found


def held_by(node: torch.fx.Node) -> tuple[int, tuple[tuple[int, ...], ...]]:
    """A traced node's number, and the numbers of those whose results variables of the model's code hold while it runs: of what
    was detached, those of what it was before, too, in case that torch.export leaves it out."""
    found: tuple[int, tuple[tuple[int, ...], ...]] = node.meta.get(HELD, (-1, ()))
    return found


def held_by_attributes(node: torch.fx.Node) -> tuple[tuple[int, ...], ...]:
    """Of `held_by`, the numbers of what attributes of modules hold, and no variable does."""
    found: tuple[tuple[int, ...], ...] = node.meta.get(BY_ATTRIBUTES, ())
    return found


def stays_in_objects(node: torch.fx.Node) -> frozenset[int]:
    """Which plain objects, and lists of such, that variables have had hold what a traced node gives when forward has ended: a
    part that was given one of them would, even if nobody else has that by then."""
    return frozenset(node.meta.get(STAYS, ()))


def set_by(node: torch.fx.Node) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """The attributes of modules that hold, while a traced node runs, tensors that forward has made: paths, and the numbers of
    what made each."""
    found: tuple[tuple[str, tuple[int, ...]], ...] = node.meta.get(SET, ())
    return found


def left_by(node: torch.fx.Node) -> bool | None:
    """Whether forward leaves what a traced node gives in an attribute of a module with its autograd node; None where it does
    not leave it at all."""
    found: bool | None = node.meta.get(LEFT)
    return found


_only_lines: ContextVar[bool] = ContextVar("only_lines", default=False)


@contextlib.contextmanager
def only_lines() -> Iterator[None]:
    """Of what is traced in here, no more than lines is noted: the rest takes almost half of a trace's time."""
    token = _only_lines.set(True)
    try:
        yield
    finally:
        _only_lines.reset(token)


@contextlib.contextmanager
def places_noted(module: torch.nn.Module) -> Iterator[None]:
    """In here, what is traced says in its node's meta where it was made."""
    observer, noting = _Observer(module), not _only_lines.get()
    own = torch.fx.Graph.create_node

    def create_node(graph: torch.fx.Graph, op: str, *args: Any, **kwargs: Any) -> torch.fx.Node:
        node = own(graph, op, *args, **kwargs)
        if op == "placeholder":
            node.stack_trace = " "  # of no line, else PyTorch looks for one
        if op == "call_function" and observer.running:
            chain = _frames_within(observer.root)
            node.stack_trace = _lines_of(chain)  # else PyTorch looks up the line of every frame, a seventh of a trace's time
            if noting:
                node.meta[META] = observer.calls(chain)
                node.meta[SET] = attributes = observer.attributes_set()
                node.meta[HELD] = observer.held(chain, [numbers for _, numbers in attributes])
                node.meta[BY_ATTRIBUTES] = observer.by_attributes
        return node

    assign = torch.nn.Module.__setattr__

    def set_attribute(owner: torch.nn.Module, name: str, value: Any) -> None:
        assign(owner, name, value)
        observer.sets(owner, name, value)

    with (
        counted_calls(observer.begins, observer.ends),
        mock.patch.object(torch.fx.Graph, "create_node", create_node),
        mock.patch.object(torch.nn.Module, "__setattr__", set_attribute),
    ):
        yield


@dataclass(slots=True)
class _Seen:
    """A frame as it was seen last. It is held, so that no other gets its address; `inner` is what it had called."""

    frame: FrameType
    inner: FrameType | None
    instruction: int
    held: dict[str, Any]
    call: Call


@dataclass(slots=True)
class _Holder:
    """A frame as it was seen last, with what it may hold tensors in."""

    frame: FrameType
    inner: FrameType | None
    instruction: int
    values: list[Any]


class _Observer:
    """Follows one run of a model after the other."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.root, self.modules = id(vars(module)), [*module.modules()]
        # By the attributes: torch.export may put proxies in the place of modules, which share them.
        self.paths = {id(vars(m)): path for path, m in reversed(list(module.named_modules()))}
        self.names: dict[int, list[str]] = {}  # all paths of a module
        for path, m in module.named_modules(remove_duplicate=False):
            self.names.setdefault(id(vars(m)), []).append(path)
        self.begin()

    def begin(self) -> None:
        self.count: dict[int, int] = {}
        self.running: dict[int, list[int]] = {}  # by module: the calls of it that have begun and not ended
        self.seen: dict[int, _Seen] = {}  # by frame: those of the last operation
        self.holders: dict[int, _Holder] = {}
        self.attributes: dict[tuple[int, str], dict[str, Any]] = {}  # that forward has set to tensors, by module and name
        self.newly: dict[tuple[int, str], torch.Tensor] = (
            {}
        )  # to what, since the last operation: who is called may have taken it
        self.numbers = itertools.count()
        self.by_attributes: tuple[tuple[int, ...], ...] = ()  # of what the last node found held, what attributes alone do
        self.objects: dict[int, Any] = {}  # plain objects that variables had, and what contains such
        self.tracer = trace_in_progress()

    def begins(self, module: torch.nn.Module) -> None:
        key = id(vars(module))
        if key == self.root and not self.running.get(key):
            self.begin()
        if key in self.paths and (self.running or key == self.root):
            number = self.count[key] = self.count.get(key, -1) + 1
            self.running.setdefault(key, []).append(number)

    def ends(self, module: torch.nn.Module) -> None:
        key = id(vars(module))
        if self.running.get(key):
            self.running[key].pop()
        if key == self.root and not self.running.get(key):
            self._note_left()
            self.running, self.seen, self.holders, self.objects = {}, {}, {}, {}

    def sets(self, module: torch.nn.Module, name: str, value: Any) -> None:
        """An attribute of a module is set."""
        key = id(vars(module))
        if self.running and key in self.paths and isinstance(value, torch.Tensor) and name in vars(module):
            self.attributes[key, name] = vars(module)
            self.newly[key, name] = value

    def attributes_set(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """The attributes that forward has set to tensors: paths, and the numbers of the nodes that made what is there now."""
        now = {place: of.get(place[1]) for place, of in self.attributes.items()}
        held = {place: value if isinstance(value, torch.Tensor) else self.newly.get(place) for place, value in now.items()}
        self.newly = {}
        found = [(*place, next(self._numbers_of(_tensors_in(value, 0, objects=True)), ())) for place, value in held.items()]
        there = [(path, name, numbers) for key, name, numbers in found if numbers for path in self.names[key]]
        return tuple((f"{path}.{name}".lstrip("."), numbers) for path, name, numbers in there)

    def _note_left(self) -> None:
        """Marks the nodes whose results modules hold in attributes, and those whose results are in objects."""
        for key, thing in self.objects.items():
            for tensor in _tensors_in(thing, _DEPTH + 2, objects=True):
                for node in _looked_at(made_by(tensor, self.tracer)):
                    node.meta.setdefault(STAYS, set()).add(key)
        for module in self.modules:
            held = [value for name, value in vars(module).items() if name not in _OF_TORCH and _may_hold(value)]
            for tensor in _tensors_in(held, _DEPTH + 2, objects=True):
                for number, node in enumerate(_looked_at(made_by(tensor, self.tracer))):
                    node.meta[LEFT] = node.meta.get(LEFT, False) or number == 0

    def calls(self, chain: Sequence[FrameType]) -> tuple[Call, ...]:
        """What the frames between the root's call and here evaluate, of those that words are taken from."""
        seen, found = dict[int, _Seen](), list[Call]()
        entered, nested, known = list[tuple[str, int]](), dict[int, int](), False
        for frame, inner in itertools.pairwise([*chain, None]):
            assert frame is not None
            if frame.f_code is CALLS_MODULE:
                entered += self._entered(frame, nested)
            elif _is_words(frame.f_code.co_filename) and (inner is None or inner.f_code is not HANDS_OVER):
                call = self._call(frame, inner, tuple(entered), nested, seen)
                entered.clear()
                if found and _is_within(frame.f_code, found[-1].function):
                    call = _merged(found.pop(), call, known)
                known = self._is_known(frame, seen)
                found.append(call)
        self.seen = seen
        return tuple(found)

    def held(
        self, chain: Sequence[FrameType], attributes: Iterable[tuple[int, ...]]
    ) -> tuple[int, tuple[tuple[int, ...], ...]]:
        """A number for the node that is being made, and those of the nodes whose results the frames hold in variables, or
        attributes do: what nobody reads any longer is not free as long as a variable has it."""
        attributes, tensors, holders = [*attributes], dict[int, torch.Tensor](), dict[int, _Holder]()
        for frame, inner in itertools.pairwise([*_outside_of_tracing(chain), None]):
            assert frame is not None
            if _is_tracing(frame.f_code.co_filename):
                continue
            holders[id(frame)] = holder = self._holder(frame, inner)
            tensors.update((id(tensor), tensor) for tensor in _tensors_in(holder.values, _DEPTH + 2, objects=True))
            self.objects.update((id(value), value) for value in holder.values if _has_objects(value))
        found = dict.fromkeys(self._numbers_of(tensors.values()))  # many frames have the same ones
        self.holders, self.by_attributes = holders, tuple(a for a in attributes if a not in found)
        return next(self.numbers), tuple(dict.fromkeys((*attributes, *found)))

    def _numbers_of(self, tensors: Iterable[torch.Tensor]) -> Iterator[tuple[int, ...]]:
        """Of each tensor that a node has made: its number, and those of what it was detached from."""
        for tensor in tensors:
            looked_at = _looked_at(made_by(tensor, self.tracer))
            if numbers := tuple(node.meta[HELD][0] for node in looked_at if HELD in node.meta):
                yield numbers

    def _contents(self, held: dict[str, Any]) -> Iterator[tuple[str, tuple[tuple[int, ...], ...]]]:
        """By name, and by attribute of a plain object: the nodes whose results are in a list, a dict or an object; and by the
        name of a tensor, which has made it."""
        named = {name: value for name, value in held.items() if name.isidentifier() and _may_hold(value)}
        for name, value in [*named.items()]:
            if _is_plain(value):
                named.update({f"{name}.{n}": v for n, v in _attributes(value).items() if _may_hold(v)})
        for name, value in named.items():
            attribute = isinstance(value, torch.Tensor) and name not in held
            if not attribute and (numbers := tuple(self._numbers_of(_tensors_in(value, _DEPTH + 1, objects=True)))):
                yield name, numbers

    def _holder(self, frame: FrameType, inner: FrameType | None) -> _Holder:
        """What a frame may hold tensors in; of one that still waits for the same call, what it was before."""
        last = self.holders.get(id(frame))
        if last is not None and last.inner is inner and last.instruction == frame.f_lasti and _waits(frame, inner):
            return last
        named = itertools.islice(frame.f_locals.items(), _WIDTH)
        held = [(name, value) for name, value in named if _may_hold(value)]
        if _is_of_calls(file := frame.f_code.co_filename):  # for each operation there are a dozen of these
            held = [
                (n, v) for n, v in held if not (_is_tracers(v) or _is_of_module(v) or (file == _MODULE and n in _BESIDE_CALLS))
            ]
        values = [value for _, value in held]
        return _Holder(frame, inner, frame.f_lasti, values)

    def _is_known(self, frame: FrameType, seen: dict[int, _Seen]) -> bool:
        """Whether a frame is still at what it was at in the operation before."""
        return id(frame) in self.seen and self.seen[id(frame)] is seen[id(frame)]

    def _entered(self, frame: FrameType, nested: dict[int, int]) -> list[tuple[str, int]]:
        """The call of a module that a frame of PyTorch's begins."""
        key = id(vars(frame.f_locals["self"]))
        index = nested[key] = nested.get(key, -1) + 1
        numbers = self.running.get(key, [])
        return [(self.paths[key], numbers[index])] if index < len(numbers) else []

    def _call(
        self,
        frame: FrameType,
        inner: FrameType | None,
        entered: tuple[tuple[str, int], ...],
        nested: dict[int, int],
        seen: dict[int, _Seen],
    ) -> Call:
        last = self.seen.get(id(frame))
        if last is not None and inner is not None and last.inner is inner and last.instruction == frame.f_lasti:
            seen[id(frame)] = last
            return last.call
        code, held = frame.f_code, dict(frame.f_locals)
        module, number = self._module(code, held, entered, nested)
        call = Call(
            _function(code),
            _span(code, frame.f_lasti),
            next(self.numbers) if last is None else last.call.frame,
            next(self.numbers),
            module,
            number,
            entered if last is None else last.call.enters,
            tuple(place for name, value in held.items() if name.isidentifier() for place in _places(name, value)),
            () if last is None else _changed(last.held, held),
            tuple(self._contents(held)),
            tuple(name for name, value in held.items() if isinstance(value, torch.Tensor)),
            tuple((name, id(value)) for name, value in held.items() if _has_objects(value)),
        )
        seen[id(frame)] = _Seen(frame, inner, frame.f_lasti, held, call)
        return call

    def _module(
        self, code: CodeType, held: dict[str, Any], entered: tuple[tuple[str, int], ...], nested: dict[int, int]
    ) -> tuple[str | None, int]:
        """The module whose method a frame runs, or a function inside of it, and which call of it."""
        owner = held.get("self", held.get(code.co_varnames[0]) if code.co_argcount and _is_method(code) else None)
        key = id(vars(owner)) if isinstance(owner, torch.nn.Module) else 0
        if key not in self.paths:
            return None, 0
        running = self.running.get(key, [])
        index = nested.get(key, -1)
        known = running[index] if 0 <= index < len(running) else self.count.get(key, 0)
        return self.paths[key], known


def _looked_at(node: torch.fx.Node | None) -> Iterator[torch.fx.Node]:
    """A node and, of a tensor that was detached, those before it: torch.export leaves out what nobody reads of that."""
    while node is not None:
        yield node
        given = node.args[0] if node.target is torch.ops.aten.detach.default else None
        node = given if isinstance(given, torch.fx.Node) else None


def _frames_within(root: int) -> list[FrameType]:
    """The frames between the call of a module, named by its attributes, and here; outermost first."""
    found: list[FrameType] = []
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        found.append(frame)
        if frame.f_code is CALLS_MODULE and id(vars(frame.f_locals["self"])) == root:
            return found[::-1]
        frame = frame.f_back
    return []


def _outside_of_tracing(chain: Sequence[FrameType]) -> Sequence[FrameType]:
    """The frames without the last ones, which trace what those before them call."""
    end = len(chain)
    while end and (_is_tracing(file := chain[end - 1].f_code.co_filename) or file in _CALLS):
        end -= 1
    return chain[:end]


def _lines_of(chain: Sequence[FrameType]) -> str | None:
    """The innermost line of a forward that is no library's, as tracebacks show it, and that of a method or a function of the
    same file, or of one beside it, that it calls to run the operation. None where all are libraries'."""
    inwards = [(i, f) for i, f in enumerate(chain) if f.f_code.co_name == "forward" and not _is_library(f.f_code.co_filename)]
    if not inwards:
        return None
    index, forward = inwards[-1]
    folder = _folder(forward.f_code.co_filename)
    called = [
        f for f in chain[index + 1 :] if _folder(f.f_code.co_filename) == folder and not _is_library(f.f_code.co_filename)
    ]
    return "\n".join(map(_line_of, [forward, *called[-1:]]))


def _line_of(frame: FrameType) -> str:
    file, line = frame.f_code.co_filename, frame.f_lineno
    return f'File "{file}", line {line}, in {frame.f_code.co_name}\n    {linecache.getline(file, line).strip()}'


_is_library = cache(is_library)
_folder = cache(os.path.dirname)


@cache
def _is_words(path: str) -> bool:
    """Whether a file is a user's or a library's; of PyTorch, whether it is written as models are."""
    if path.startswith(_TORCH):
        return path.startswith(_WORDS) and path != _MODULE
    return not _is_library(path)


@cache
def _is_tracing(path: str) -> bool:
    """Whether a file's frames are there only while a model is traced: what they hold, nobody does in a step."""
    return path.startswith(_TRACES)


@cache
def _is_of_calls(path: str) -> bool:
    """Whether a file is PyTorch's, and no model's: its frames stand between those of models."""
    return path.startswith(_TORCH) and not _is_words(path)


def _is_of_module(value: Any) -> bool:
    """Whether a value is a method of a module that holds nothing itself, as forward mostly is."""
    module = isinstance(value, MethodType) and isinstance(value.__self__, torch.nn.Module)
    return module and isinstance(value.__func__, FunctionType) and not held_by_function(value.__func__)


def _is_tracers(value: Any) -> bool:
    """Whether a value is a function, or an object, that is there only while a model is traced, as a hook of it."""
    function = value.__func__ if isinstance(value, MethodType) else value
    if isinstance(function, FunctionType):
        return _is_tracing(function.__code__.co_filename)
    return type(value).__module__.startswith(_TRACERS)


def _function(code: CodeType) -> Function:  # not cached: code of two files is equal where their text is
    return Function(code.co_filename, code.co_qualname, code.co_firstlineno)


def _span(code: CodeType, instruction: int) -> Span:
    """What an instruction computes."""
    line, end_line, column, end_column = next(itertools.islice(code.co_positions(), instruction // 2, None))
    return line or 0, column or 0, end_line or 0, end_column or 0


def _is_method(code: CodeType) -> bool:
    before = code.co_qualname.rpartition(".")[0]
    return bool(before) and not before.endswith("<locals>")


def _is_within(code: CodeType, function: Function) -> bool:
    """Whether a frame is that of a comprehension in the function that called it. From Python 3.12 on most have none."""
    inside = f"{function.name}.<locals>.{code.co_name}"
    return code.co_name in _COMPREHENSIONS and code.co_qualname == inside and code.co_filename == function.file


def _merged(outer: Call, inner: Call, known: bool) -> Call:
    """A comprehension's frame as part of its function's: names of both. What had changed before it is told once."""
    changed = (() if known else outer.changed, inner.changed)
    names = [tuple(dict.fromkeys((*a, *b))) for a, b in ((outer.tensors, inner.tensors), changed)]
    module = (inner.module, inner.number) if outer.module is None else (outer.module, outer.number)
    contents = tuple({**dict(outer.contents), **dict(inner.contents)}.items())
    alone, objects = (tuple(dict.fromkeys((*a, *b))) for a, b in ((outer.alone, inner.alone), (outer.objects, inner.objects)))
    place = outer.function, inner.span, outer.frame, inner.evaluation
    return Call(*place, *module, outer.enters, names[0], names[1], contents, alone, objects)


def _changed(before: dict[str, Any], held: dict[str, Any]) -> tuple[str, ...]:
    return tuple(n for n, v in held.items() if n.isidentifier() and (n not in before or before[n] is not v))


def _places(name: str, value: Any) -> Iterator[str]:
    """Where something with a name holds tensors: there, or, if it is a plain object, in attributes, `state.hidden`: all of its
    attributes are named. If it is a list of such objects, `states`, `states.*` says so; `act()` is a function that holds some
    itself, by its defaults, its closure, or as an object's method, or contains one."""
    if not isinstance(value, torch.Tensor) and _holds_by_functions(value, _DEPTH + 1):
        yield f"{name}()"
    if any(True for _ in _tensors_in(value)):
        yield name
    elif isinstance(value, CALLABLE):
        return
    elif any(True for _ in _tensors_in(value, _DEPTH + 1, objects=True)):
        if _is_plain(value):
            yield from (f"{name}.{attribute}" for attribute in _attributes(value) if attribute.isidentifier())
        else:
            yield from (name, f"{name}.*")


def _holds_by_functions(value: Any, depth: int) -> bool:
    """Whether a value is, or contains, a function that holds tensors."""
    if isinstance(value, CALLABLE):
        return any(True for _ in _tensors_in(value, depth, objects=True))
    contents = itertools.islice(_contents(value, True), _WIDTH) if depth > 0 else ()
    return any(
        type(v) not in _EMPTY and not isinstance(v, torch.Tensor) and _holds_by_functions(v, depth - 1) for v in contents
    )


def _tensors_in(value: Any, depth: int = _DEPTH, objects: bool = False) -> Iterator[torch.Tensor]:
    """The tensors in a value, and in what it contains, if those are not too many; if `objects`, also in plain objects, and in
    all that these link to of their own kind, as the nodes of a tree do, up to `_LINKED` of them."""
    kinds, met = dict[type, int](), dict[int, int]()  # at what depth the first of a kind was, and each
    pending = [(value, depth)]
    while pending:
        value, depth = pending.pop()
        if isinstance(value, torch.Tensor):
            yield value
            continue
        if objects and _is_plain(value):
            depth = max(depth, kinds.setdefault(type(value), depth))
            if met.get(id(value), 0) >= depth or len(met) > _LINKED:
                continue
            met[id(value)] = depth
        if depth > 0:  # most items are none, and asking them one by one takes a quarter of a trace's time
            items = [i for i in itertools.islice(_contents(value, objects), _WIDTH) if type(i) not in _EMPTY]
            pending += [(item, depth - 1) for item in reversed(items)]


def _has_objects(value: Any, depth: int = _DEPTH) -> bool:
    """Whether a value is a plain object, or a list or dict that contains one."""
    if depth == 0 or not isinstance(value, (list, tuple, dict)):
        return _is_plain(value)
    items = itertools.islice(_contents(value, False), _WIDTH)
    return any(_has_objects(item, depth - 1) for item in items if type(item) not in _EMPTY)


def _waits(frame: FrameType, inner: FrameType | None) -> bool:
    """Whether a frame's variables stay what they are while `inner` runs: others may set those of a closure, and a generator
    that goes on is the same frame again."""
    closed = bool(frame.f_code.co_cellvars or frame.f_code.co_freevars)
    return inner is not None and not closed and not inner.f_code.co_flags & _GOES_ON


def _may_hold(value: Any) -> bool:
    """Whether there may ever be a tensor in a value, which others may put there while a frame waits."""
    if isinstance(value, (torch.Tensor, list, tuple, dict, *CALLABLE)):
        return True
    return _is_plain(value)


def _is_plain(value: Any) -> bool:
    """Whether a value is an object of the model's code that may have tensors in attributes. Some of these can be called."""
    has = type(value).__dictoffset__ != 0 or hasattr(type(value), "__slots__")  # its __getattr__ may raise whatever it likes
    return has and not isinstance(value, (*_NO_HOLDERS, list, tuple, dict))


def _attributes(thing: Any) -> dict[str, Any]:
    """The attributes of an object by name, those in slots, too: its class does not note that these are looked at."""
    found = dict(object.__getattribute__(thing, "__dict__") if type(thing).__dictoffset__ else {})
    for kind in type(thing).__mro__ if hasattr(type(thing), "__slots__") else ():
        for name, member in vars(kind).items() if "__slots__" in vars(kind) else ():
            if isinstance(member, MemberDescriptorType):
                with contextlib.suppress(AttributeError):  # it is not set
                    found[name] = member.__get__(thing)
    return found


def _contents(value: Any, objects: bool) -> Iterable[Any]:
    if isinstance(value, (list, tuple)):
        return value
    if isinstance(value, dict):
        return value.values()
    if not objects:
        return ()
    if isinstance(value, CALLABLE):
        return held_by_function(value)
    return list(_attributes(value).values()) if _is_plain(value) else ()
