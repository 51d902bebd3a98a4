"""What a forward pass consists of, in the words of its source: a tree of evaluations, whose leaves are the operations.

A vertex is one evaluation of an expression, or one call of a module. What it evaluates lies inside it: `F.silu(self.norm1(x))`
has the call of `norm1` inside, and the operation of `silu` beside that. CPython says of a frame only which call or operator it
is at: the expressions around it come from the file's syntax tree. A frame in a loop comes by the same statement again; that
this is another evaluation is seen where something comes that was already over, or where local names hold something else.
"""

from __future__ import annotations

import ast
import linecache
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from remat_codegen.marked.markable import markable
from remat_codegen.marked.syntax import COMPREHENSIONS, Syntax, bound_in, span_of, syntax_of
from remat_codegen.trace.ir import Trace
from remat_codegen.trace.places import Call, Function, Span, method_around

GATHERING = frozenset("sum max min sorted any all list tuple dict set reduce accumulate".split())
Read = Callable[[str], str]  # a file's text by its name


@dataclass(frozen=True, slots=True)
class Text:
    """An expression of the source, evaluated by `function` at `span`. In a module's method, `module` is the path of that module
    and `number` the call of it; in a function at the top of a file, those of the module that is being called. `tensors` are
    local names that held tensors meanwhile; `contents` are lists, dicts and plain objects, by name, with the operations whose
    results were in them, and tensors, whose names are `alone`; `objects` are names of plain objects, with
    numbers."""

    function: Function
    span: Span
    module: str | None
    number: int
    tensors: tuple[str, ...]
    contents: tuple[tuple[str, tuple[int, ...]], ...] = field(default=(), compare=False, repr=False)
    alone: tuple[str, ...] = field(default=(), compare=False, repr=False)
    objects: tuple[tuple[str, int], ...] = field(default=(), compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Vertex:
    """One evaluation. It makes the operations from `begin` on, to before `end`; those of its `children` are among them.

    `called` is the module's call that it is, (path, number), and nothing beside that; `text` the expression that it is. One
    that is both is an expression that calls a module. `refused` says why the expression cannot be marked; empty where it can.
    `outside` are expressions inside it that it is looked at without: they are evaluated before, and handed in.
    """

    id: int
    parent: int | None
    begin: int
    end: int
    called: tuple[str, int] | None = None
    text: Text | None = None
    refused: str = ""
    children: tuple[int, ...] = ()
    outside: tuple[Span, ...] = ()

    @property
    def markable(self) -> bool:
        return self.text is not None and not self.refused


@dataclass(frozen=True, slots=True)
class Tree:
    """All evaluations of a forward pass. The first vertex is the call of the whole model; each comes before those inside it."""

    vertices: tuple[Vertex, ...]

    @property
    def root(self) -> Vertex:
        return self.vertices[0]

    def children(self, vertex: Vertex) -> tuple[Vertex, ...]:
        return tuple(self.vertices[c] for c in vertex.children)

    def ancestors(self, vertex: Vertex) -> Iterator[Vertex]:
        """What a vertex lies in, innermost first."""
        while vertex.parent is not None:
            vertex = self.vertices[vertex.parent]
            yield vertex

    def outermost(self, vertex: Vertex, fits: Callable[[Vertex], bool]) -> Iterator[Vertex]:
        """The vertices inside one that fit, less those inside of such."""
        for child in self.children(vertex):
            if fits(child):
                yield child
            else:
                yield from self.outermost(child, fits)

    def own(self, vertex: Vertex) -> tuple[int, ...]:
        """The operations of a vertex that none of its children makes."""
        inside = {i for c in self.children(vertex) for i in range(c.begin, c.end)}
        return tuple(i for i in range(vertex.begin, vertex.end) if i not in inside)

    def spans(self, file: str) -> frozenset[Span]:
        """The expressions of a file that make operations."""
        return frozenset(v.text.span for v in self.vertices if v.text is not None and v.text.function.file == file)

    def innermost(self, operation: int) -> Vertex:
        """The innermost vertex that makes an operation."""
        found = self.root
        while True:
            inner = next((c for c in self.children(found) if c.begin <= operation < c.end), None)
            if inner is None:
                return found
            found = inner


def build(trace: Trace, read: Read | None = None) -> Tree:
    """The tree of a traced forward pass. `read` gives the text of a file that was loaded when it was traced."""
    builder = _Builder(read or _text)
    for operation in trace.operations:
        builder.add(operation.id, operation.calls)
    return Tree(builder.finished(len(trace.operations)))


def with_modules(calls: Sequence[Call]) -> tuple[Call, ...]:
    """The frames on the way to an operation, outermost first; for a function at the top of a file, the module whose call is
    going on is its module, and for one within a method that does not know its module, `map(lambda x: x.exp(), xs)`, that of
    the method's frame."""
    found, going = list[Call](), ("", 0)
    for call in calls:
        going = call.enters[-1] if call.enters else going
        if call.function.is_at_top:
            call = replace(call, module=going[0], number=going[1])
        elif call.module is None and (method := method_around(call, found)) is not None:
            call = replace(call, module=method.module, number=method.number)
        found.append(call)
    return tuple(found)


def _text(file: str) -> str:
    return "".join(linecache.getlines(file))


@dataclass(slots=True)
class _Open:
    """A vertex that is being built."""

    begin: int
    called: tuple[str, int] | None = None
    call: Call | None = None
    node: ast.AST | None = None
    end: int = -1
    direct: bool = False  # whether it makes operations itself
    tensors: dict[str, None] = field(default_factory=dict)
    contents: dict[str, dict[int, None]] = field(default_factory=dict)
    alone: dict[str, None] = field(default_factory=dict)
    children: list[_Open] = field(default_factory=list)

    def is_call_of(self, inner: _Open) -> bool:
        """Whether this expression is a module's call and nothing else."""
        only = len(self.children) == 1 and not self.direct and inner.call is None
        return only and isinstance(self.node, ast.Call) and (inner.begin, inner.end) == (self.begin, self.end)


@dataclass(slots=True)
class _Level:
    """What one frame adds to the way from the model to an operation."""

    call: Call
    nodes: tuple[ast.AST | None, ...]  # the expressions, outermost first; None for one that the file does not have
    entered: list[_Open] = field(default_factory=list)
    opened: list[_Open] = field(default_factory=list)


class _Builder:
    def __init__(self, read: Read) -> None:
        self.read = read
        self.root = _Open(0, called=("", 0))
        self.way: list[_Level] = []  # to the operation before
        self.syntax: dict[str, Syntax | None] = {}
        self.sources: dict[str, str] = {}

    def add(self, operation: int, calls: tuple[Call, ...]) -> None:
        """The next operation. One that no frame made (PyTorch did, between two) belongs to what made the one before."""
        if calls:
            self._go(operation, with_modules(calls))
        innermost = [v for level in self.way for v in (*level.entered, *level.opened)]
        for vertex in innermost:
            vertex.end = operation + 1
        (innermost[-1] if innermost else self.root).direct = True

    def _go(self, operation: int, calls: tuple[Call, ...]) -> None:
        same = 0
        while same < min(len(calls), len(self.way)) and calls[same].evaluation == self.way[same].call.evaluation:
            same += 1
        before, self.way = self.way[same:], self.way[:same]
        for call in calls[same:]:
            level = _Level(call, self._nodes(call))
            self._share(level, before[0] if before else None)
            before = []
            self._open(level, operation)
            self.way.append(level)

    def _share(self, level: _Level, before: _Level | None) -> None:
        """Goes on with what is not over: calls of modules, and expressions that the frame is still at."""
        if before is None:
            return
        for vertex, entered in zip(before.entered, self._enters(level.call), strict=False):
            if vertex.called != entered:
                return
            level.entered.append(vertex)
        if before.call.frame == level.call.frame:
            level.opened += before.opened[: _shared(self._syntax(level.call.function.file), before, level)]

    def _open(self, level: _Level, operation: int) -> None:
        above = [self.root, *(v for known in self.way for v in (*known.entered, *known.opened))][-1]
        for called in self._enters(level.call)[len(level.entered) :]:
            level.entered.append(self._inside([above, *level.entered][-1], _Open(operation, called=called)))
        for node in level.nodes[len(level.opened) :]:
            outer = [above, *level.entered, *level.opened][-1]
            level.opened.append(self._inside(outer, _Open(operation, call=level.call, node=node)))
        for vertex in level.opened:
            vertex.tensors.update(dict.fromkeys(level.call.tensors))
            vertex.alone.update(dict.fromkeys(level.call.alone))
            for name, operations in level.call.contents:
                vertex.contents.setdefault(name, {}).update(dict.fromkeys(operations))

    def _inside(self, outer: _Open, inner: _Open) -> _Open:
        outer.children.append(inner)
        return inner

    def _enters(self, call: Call) -> list[tuple[str, int]]:
        return [called for called in call.enters if called != self.root.called]

    def _syntax(self, file: str) -> Syntax | None:
        if file not in self.syntax:
            self.sources[file] = self.read(file)
            self.syntax[file] = syntax_of(self.sources[file])
        return self.syntax[file]

    def _nodes(self, call: Call) -> tuple[ast.AST | None, ...]:
        syntax = self._syntax(call.function.file)
        node = None if syntax is None else syntax.find(call.span)
        return (None,) if syntax is None or node is None else syntax.around(node)

    def finished(self, count: int) -> tuple[Vertex, ...]:
        self.root.end = count
        found: list[Vertex] = []
        self._finish(self.root, None, found)
        return tuple(found)

    def _finish(self, vertex: _Open, parent: int | None, found: list[Vertex]) -> int:
        number, inside = len(found), vertex.children
        called = vertex.called
        if len(inside) == 1 and vertex.is_call_of(inside[0]):
            called, inside = inside[0].called, inside[0].children
        text = None if vertex.call is None else self._text_of(vertex, vertex.call)
        refused = "" if text is None else markable(self.sources[text.function.file], text.span)
        found.append(Vertex(number, parent, vertex.begin, vertex.end, called, text, refused))
        children = tuple(self._finish(child, number, found) for child in inside)
        found[number] = Vertex(number, parent, vertex.begin, vertex.end, called, text, refused, children)
        return number

    def _text_of(self, vertex: _Open, call: Call) -> Text:
        span = call.span if vertex.node is None else span_of(vertex.node)
        contents = tuple((name, tuple(operations)) for name, operations in vertex.contents.items())
        return Text(
            call.function, span, call.module, call.number, tuple(vertex.tensors), contents, tuple(vertex.alone), call.objects
        )


def _shared(syntax: Syntax | None, before: _Level, level: _Level) -> int:
    """How many of the expressions that a frame was at, outermost first, it is still at: it has not begun them anew."""
    one, other = before.nodes, level.nodes
    if syntax is None or one[0] is not other[0] or one[0] is None or one[-1] is None or other[-1] is None:
        return 0
    common = [a for a, b in zip(one, other, strict=False) if a is b and a is not None]
    again = syntax.order[other[-1]] <= syntax.order[one[-1]]
    changed = frozenset(level.call.changed)
    if changed - bound_in(one[0]):
        return 0
    return _inside_loop(common, again) if again or changed else len(common)


def _inside_loop(common: Sequence[ast.AST], again: bool) -> int:
    """The same where an expression begins anew, or a name of its own has changed: not what a comprehension does by element,
    nor `sum(...)`, which adds often."""
    loops = [i for i, node in enumerate(common) if isinstance(node, COMPREHENSIONS) or _gathers(node)]
    return loops[-1] + 1 if loops else 0 if again else len(common)


def _gathers(node: ast.AST) -> bool:
    """Whether an expression calls a function of Python's that makes several operations, or has a generator make them."""
    name = node.func if isinstance(node, ast.Call) else None
    return (name.id if isinstance(name, ast.Name) else getattr(name, "attr", "")) in GATHERING
