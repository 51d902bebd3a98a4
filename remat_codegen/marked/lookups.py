"""Which methods are looked up on the modules that have them, and which functions by their names: only those are run with marks.

A copy with marks is an attribute of one module. `self.widened(x)` finds it; `type(self).widened(self, x)`, `super()...`, a
bound method that was taken before, and other names of the same function find what the class has, without marks.
"""

from __future__ import annotations

import ast
import inspect
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import torch

from remat_codegen.marked.library import at_top
from remat_codegen.marked.syntax import COMPREHENSIONS, FUNCTIONS, Syntax, is_dotted, span_of, syntax_of
from remat_codegen.trace.ir import Trace
from remat_codegen.trace.places import Call, Function, Span, method_around

Method = tuple[str, str, str]  # the file, the name in it, and the path of the module


@dataclass(frozen=True, slots=True)
class Caller:
    """What calls a function at the top of a file: a method of the module at `path`, or another such function. `given` is where
    it says what it calls, if that is no name of a function in its own file: `F.normalize`, or a variable."""

    function: Function
    path: str | None = None
    given: Span | None = None


class Way(Enum):
    """How a method was found."""

    MODULE = "on the module"
    OTHER = "elsewhere"
    UNKNOWN = "nobody knows"
    HANDED = "by whoever called that function, which was given it"


class _Bound(Enum):
    """What binds a name, where that is no expression."""

    LOOP = "a loop, to what it goes through"
    GIVEN = "the function, to what it is given"
    OTHERWISE = "something else"


class Lookups:
    """How the methods of modules were found in a traced forward pass. `by_name` knows whether the name of a function may mean
    another one in its file."""

    def __init__(
        self,
        trace: Trace,
        modules: Mapping[str, torch.nn.Module],
        read: Callable[[str], str],
        by_name: Callable[[Function], bool] = lambda function: True,
    ) -> None:
        self.modules, self.read, self.by_name = modules, read, by_name
        self.found: dict[Method, set[Way]] = {}
        self.callers: dict[Function, set[Caller | None]] = {}
        frames: set[int] = set()
        for operation in trace.operations:
            for i, call in enumerate(operation.calls):
                if call.frame in frames:
                    continue
                frames.add(call.frame)
                if call.function.is_at_top:
                    self.callers.setdefault(call.function, set()).add(self._caller(operation.calls[: i + 1]))
                elif call.module is not None:
                    key = call.function.file, call.function.name, call.module
                    self.found.setdefault(key, set()).add(self._way(operation.calls[: i + 1]))

    def is_met(self, function: Function, module: str, sure: bool) -> bool:
        """Whether marks in a method of a module are met whenever it runs; `sure` where that has to be known."""
        names = function.name, function.name.partition(".<locals>")[0]
        ways = next((ways for name in names if (ways := self.found.get((function.file, name, module)))), set())
        return Way.OTHER not in ways and not (sure and Way.UNKNOWN in ways)

    def all_callers(self, function: Function, sure: bool) -> frozenset[Caller] | None:
        """The functions at the top of files by which modules' methods call this one, itself among them, and these methods; None
        where it is no expression that calls one, `attention(q, k, v)`, or not the module whose call is going on; `sure` as for
        `is_met`."""
        found = [Caller(function)]
        for inner in found:  # which grows
            for caller in self.callers.get(inner.function, ()) if inner.path is None else ():
                if caller is None or (caller.path is not None and not self.is_met(caller.function, caller.path, sure)):
                    return None
                found += [caller] if caller not in found else []
        return frozenset(found)

    def _caller(self, calls: tuple[Call, ...]) -> Caller | None:
        """Who called the function that the last of these frames runs; None where no expression says so."""
        *outer, call = calls
        entered, around = bool(call.enters), _decorators(at_top(call.function))
        while outer and outer[-1].function in around:
            entered |= bool(outer.pop().enters)
        if entered or not outer:
            return None
        caller = outer[-1]
        going = next((c.enters[-1][0] for c in reversed(outer) if c.enters), "")
        syntax = syntax_of(self.read(caller.function.file))
        node = None if syntax is None else syntax.find(caller.span)
        if syntax is None or not isinstance(node, ast.Call) or not is_dotted(node.func):
            return None
        if "<locals>" in caller.function.name and (method := method_around(caller, outer)) is not None:
            caller = replace(caller, function=method.function, module=method.module)
        if not caller.function.is_at_top and (self._is_within(caller) or caller.module != going):
            return None
        named = isinstance(node.func, ast.Name) and node.func.id == call.function.name and self.by_name(call.function)
        named = named and caller.function.file == call.function.file and not any(_bound(syntax, node, call.function.name))
        return Caller(caller.function, None if caller.function.is_at_top else going, None if named else span_of(node.func))

    def runs_what_it_stands_for(self, function: Function, path: str) -> bool:
        """Whether what a decorator has put in the place of a method runs that, or another one that it has from around it: marks
        in there would not be met."""
        found = getattr(type(self.modules.get(path)), function.name.rpartition(".")[2], None)
        held = [c.cell_contents for c in getattr(found, "__closure__", None) or () if c != types.CellType()]
        codes = [f.__code__ for f in map(inspect.unwrap, filter(callable, held)) if isinstance(f, types.FunctionType)]
        return any((code.co_filename, code.co_qualname, path) in self.found for code in codes)

    def _is_within(self, caller: Call) -> bool:
        """Whether a frame runs what is defined in a function, unless that stands in its module's class in place of a method."""
        found = getattr(type(self.modules.get(caller.module or "")), caller.function.name.rpartition(".")[2], None)
        code = getattr(found, "__code__", None)
        return "<" in caller.function.name and getattr(code, "co_qualname", None) != caller.function.name

    def _way(self, calls: tuple[Call, ...]) -> Way:
        """How the method was found that the last of these frames runs."""
        method, name, path = calls[-1], calls[-1].function.name.rpartition(".")[2], calls[-1].module or ""
        if name.startswith("__") and name.endswith("__"):
            return Way.OTHER  # as `module(x)` finds __call__: Python asks the class
        around = _decorators(getattr(type(self.modules.get(method.module or "")), name, None))
        while len(calls) > 1 and calls[-2].function in around and not calls[-1].enters:
            calls = calls[:-1]
        if calls[-1].enters and calls[-1].enters[-1][0] == path:
            return Way.MODULE if name == "forward" else Way.OTHER
        while len(calls) > 1 and not calls[-1].enters:  # up to whoever named it, as in checkpoint(self.widened, x)
            calls = calls[:-1]
            if (way := self._called(calls[-1], name, path)) is not Way.HANDED:
                return way
        return Way.UNKNOWN

    def _called(self, caller: Call, name: str, path: str) -> Way:
        """What the expression says that a frame is at."""
        syntax = syntax_of(self.read(caller.function.file))
        node = None if syntax is None else syntax.find(caller.span)
        if syntax is not None and isinstance(node, (ast.Tuple, ast.List)):  # map calls it as its items are asked for
            function, given = None, [_listed(syntax, node)]
        elif syntax is None or not isinstance(node, ast.Call):  # an attribute is a property, which classes have
            return Way.OTHER if isinstance(node, ast.Attribute) else Way.UNKNOWN
        else:
            function, given = node.func, [*node.args, *(k.value for k in node.keywords)]
        if isinstance(function, ast.Attribute) and function.attr == name:
            return self._owner(syntax, function.value, caller, path)
        bound = list(_bound(syntax, node, function.id)) if isinstance(function, ast.Name) else []
        values = [b for b in bound if isinstance(b, ast.expr)]
        named = list(_attributes(values if values else given, name))
        if not named and bound == [_Bound.GIVEN]:
            return Way.HANDED
        ways = {self._owner(syntax, n.value, caller, path) for n in named}
        if len(ways) == 1 and (not values or len(named) == len(bound)):
            return ways.pop()
        return Way.OTHER if Way.OTHER in ways or isinstance(function, ast.Attribute) else Way.UNKNOWN

    def _owner(self, syntax: Syntax, node: ast.expr, caller: Call, path: str) -> Way:
        """What an expression is of which the method is an attribute: the module itself, or its class or a part of that."""
        attributes, root = _way_to(node)
        if isinstance(root, ast.Call) and isinstance(root.func, ast.Name) and root.func.id in ("super", "type"):
            return Way.OTHER
        if "__class__" in attributes or not isinstance(root, ast.Name):
            return Way.OTHER if "__class__" in attributes else Way.UNKNOWN
        if root.id != "self":
            bound = list(_bound(syntax, root, root.id))
            kept = all(b is _Bound.LOOP or (isinstance(b, ast.expr) and _is_of_self(b)) for b in bound)
            return (
                Way.OTHER if not bound else Way.MODULE if kept else Way.UNKNOWN
            )  # not bound: a name of the file, as a class is
        if caller.module is None or None in attributes:
            return Way.UNKNOWN if caller.module is None else Way.MODULE  # something in a list that it has
        there = self.modules.get(".".join(filter(None, [caller.module, *attributes])))
        return Way.UNKNOWN if there is None else Way.MODULE if there is self.modules.get(path) else Way.OTHER


def _decorators(function: Any) -> set[Function]:
    """The functions that decorators have put around one."""
    found = set[Function]()
    while function is not None and (inner := getattr(function, "__wrapped__", None)) is not None:
        if (code := getattr(function, "__code__", None)) is not None:
            found.add(Function(code.co_filename, code.co_qualname, code.co_firstlineno))
        function = inner
    return found


def _attributes(nodes: Sequence[ast.AST], name: str) -> Iterator[ast.Attribute]:
    return (n for node in nodes for n in ast.walk(node) if isinstance(n, ast.Attribute) and n.attr == name)


def _listed(syntax: Syntax, node: ast.Tuple | ast.List) -> ast.expr:
    """Whose items a list takes, `[*map(self.widened, xs)]`, or that are assigned to several names, `k, v = map(...)`."""
    statement = syntax.parents[node]
    return statement.value if isinstance(statement, ast.Assign) and node in statement.targets else node


def _way_to(node: ast.expr) -> tuple[list[str | None], ast.expr]:
    """The attributes by which something is reached, None for an item of a list, and from what."""
    names: list[str | None] = []
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        names, node = [getattr(node, "attr", None), *names], node.value
    return names, node


def _is_of_self(node: ast.expr) -> bool:
    """Whether a variable's value is something that a module has."""
    attributes, root = _way_to(node)
    return isinstance(root, ast.Name) and root.id == "self" and "__class__" not in attributes


def _bound(syntax: Syntax, node: ast.AST, name: str) -> Iterator[ast.expr | _Bound]:
    """What the functions around an expression bind a name to."""
    for outer in syntax.ancestors(node):
        if isinstance(outer, ast.ClassDef):
            return
        if isinstance(outer, (*FUNCTIONS, *COMPREHENSIONS)) and (found := list(_bound_in(outer, name))):
            yield from found
            return


def _bound_in(outer: ast.AST, name: str) -> Iterator[ast.expr | _Bound]:
    if isinstance(outer, FUNCTIONS) and any(a.arg == name for a in ast.walk(outer.args) if isinstance(a, ast.arg)):
        yield _Bound.GIVEN
    known = set[ast.AST]()
    for node in ast.walk(outer):
        what, names = _binds(node, name)
        yield from (what for n in names if n not in known)
        known |= set(names)


def _binds(node: ast.AST, name: str) -> tuple[ast.expr | _Bound, list[ast.AST]]:
    """What a node binds a name to, and where that name stands."""
    if isinstance(node, (ast.For, ast.comprehension)):
        return _Bound.LOOP, _stored(node.target, name)
    if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
        return node.value, _stored(node.targets[0], name)
    return _Bound.OTHERWISE, [n for n in ast.iter_child_nodes(node) if _is_store(n, name)]


def _stored(target: ast.AST, name: str) -> list[ast.AST]:
    return [n for n in ast.walk(target) if _is_store(n, name)]


def _is_store(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store)
