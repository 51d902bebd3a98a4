"""Sizes as the user's source spells them: `B, T, C = x.shape` and `q.view(B, T, ...)`, rather than the numbers of one trace.

Which tensor the user's `x` is, a trace does not say: it is taken to be the first one that the operations of the same call read
and that has such a shape. A wrong guess would do no harm, as every size that is spelled is the size that was traced.
A second run may not have that tensor any more: then the first run keeps its shape, `kept.shapes["x"] = x.shape`.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import zip_longest
from typing import Any

from remat_codegen.emit.arithmetic import Arithmetic, Number, operands
from remat_codegen.emit.lines import Line
from remat_codegen.emit.names import Namer, owner_of
from remat_codegen.emit.sources import tree_of
from remat_codegen.trace import Operation, Origin, Source, Trace, refs


class SpelledInt(int):
    """A number that an expression stands for."""

    text: str


class SpelledFloat(float):
    """A number that an expression stands for."""

    text: str


Spelled = SpelledInt | SpelledFloat


def spelled(value: Number, text: str) -> Spelled:
    """`value`, to be written as `text`."""
    found = SpelledInt(value) if isinstance(value, int) else SpelledFloat(value)
    found.text = text
    return found


@dataclass(frozen=True, slots=True)
class Shape:
    """What `x.shape`, `x.shape[:2]`, `x.shape[1]` or `x.size(1)` asks for: dimensions of `base`, a name in the source.

    `rank` is the number of dimensions if the source says so; `suffix` is how to ask any tensor for them.
    """

    base: str
    dimensions: tuple[int, ...]
    suffix: str
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Unpacking:
    """`B, T, C = x.shape` in a function of the source, which stands on the lines from `first` to `last`."""

    first: int
    last: int
    line: int
    names: tuple[str, ...]
    shape: Shape


@dataclass(frozen=True, slots=True)
class _Function:
    first: int
    last: int
    unpackings: tuple[Unpacking, ...]
    statements: tuple[ast.stmt, ...]
    assigned: dict[str, ast.Assign]  # names that are assigned once


Module = Callable[[str], str | None]  # the expression for a module in a block's functions, if it stands in the block's part


@dataclass(slots=True)
class BlockSizes:
    """What the functions of one block share: the names of sizes, and the variables whose shapes the first run keeps."""

    names: dict[Unpacking, tuple[str, ...]] = field(default_factory=dict)
    kept: dict[int, None] = field(default_factory=dict)


class ShapeNames:
    """The sizes that one generated function names, and the lines that ask tensors for them.

    In a second run, `again`, the shapes of tensors that are not at hand are those that the first run kept. The first run's
    function is to be written last.
    """

    def __init__(
        self, trace: Trace, operations: Sequence[int], namer: Namer, module: Module, block: BlockSizes, again: bool
    ) -> None:
        self.trace, self.namer, self.module, self.block, self.again = trace, namer, module, block, again
        self.operations = [trace.operations[op] for op in operations]
        self.asked: dict[Unpacking, int] = {}  # the variable that is asked
        self.recalled: set[Unpacking] = set()  # those that ask a shape which the first run kept

    def spelled(self, operation: Operation, available: Callable[[int], bool]) -> Operation:
        """The operation with what the source says in place of numbers, where the tensors that it takes sizes of are
        `available`."""
        function = _function_around(operation.source)
        if function is None or self.trace.sizes:
            return operation
        reading = Arithmetic(_Names(self, operation, function, available))
        if _base(operation) in ("slice", "select"):
            return _indexed(operation, function, reading)
        numbers = list(_numbers(operation.args))
        for arguments in _calls(function, operation):
            pairs = list(zip(arguments, numbers, strict=False))  # the source may give the last of them by keyword
            if all(_may_be(a, n) for a, n in pairs):
                texts = [self._asked_of_input(operation, a, n, available) or reading.spelled(a, n) for a, n in pairs]
                if any(texts):
                    return _with_texts(operation, numbers, texts)
        for side in _operands(function, operation) if len(numbers) == 1 else ():
            text = reading.spelled(side, numbers[0])
            if text is not None:
                return _with_texts(operation, numbers, [f"({text})" if isinstance(side, ast.BinOp) else text])
        return operation

    def ask(self, lines: list[Line], name: Callable[[int], str], available: Callable[[int], bool]) -> None:
        """Adds to the lines of a function those that ask for sizes, and in a first run those that keep shapes."""
        left = {} if self.again else dict(self.block.kept)
        for unpacking, variable in self.asked.items():
            whole = unpacking.shape.suffix == ".shape"
            shape, chained = f"{name(variable)}.shape", ""
            if unpacking in self.recalled:
                shape = f"kept.shapes[{name(variable)!r}]"
            elif whole and variable in left:
                del left[variable]
                chained = f"kept.shapes[{name(variable)!r}] = "
            names = self.block.names[unpacking]
            part = unpacking.shape.suffix.removeprefix(".shape")
            text = f"{', '.join(names)} = {chained}{shape}{part}"
            insert(lines, text, names, None if unpacking in self.recalled else name(variable))
        for variable in left:
            shape = f"{name(variable)}.shape" if available(variable) else str(self.trace.variables[variable].shape)
            insert(lines, f"kept.shapes[{name(variable)!r}] = {shape}", (), name(variable))

    def _asked_of_input(
        self, operation: Operation, argument: ast.expr, number: Number, available: Callable[[int], bool]
    ) -> str | None:
        """`idx.shape[1]`, where idx is an input of the model."""
        shape = _shape(argument)
        if shape is None or len(shape.dimensions) != 1 or owner_of(operation) != "":
            return None
        given = next((v for v in self.trace.inputs if v is not None and self.trace.variables[v].path == shape.base), None)
        asked = given is not None and available(given) and self._sizes(given, shape) == (number,)
        return f"{shape.base}{shape.suffix}" if asked else None

    def unpacked(
        self, operation: Operation, function: _Function, name: str, available: Callable[[int], bool]
    ) -> tuple[Unpacking, int, int] | None:
        """Where a name was unpacked before, from which variable, and the size that it stands for."""
        assert operation.source is not None
        for unpacking in function.unpackings:
            if name not in unpacking.names or unpacking.line >= operation.source.line:
                continue
            variable = self.asked.get(unpacking, self._found(operation, unpacking, available))
            sizes = None if variable is None else self._sizes(variable, unpacking.shape)
            if variable is None or sizes is None:
                return None
            return unpacking, variable, sizes[unpacking.names.index(name)]
        return None

    def name(self, unpacking: Unpacking, variable: int, name: str, available: Callable[[int], bool]) -> str:
        """The name of a size in the generated function, which asks for it from now on."""
        if unpacking not in self.asked and not available(variable):
            self.recalled.add(unpacking)
            self.block.kept[variable] = None
        self.asked[unpacking] = variable
        names = self.block.names
        if unpacking not in names:
            names[unpacking] = tuple("_" if n == "_" else self.namer.fresh(n) for n in unpacking.names)
        return names[unpacking][unpacking.names.index(name)]

    def _found(self, operation: Operation, unpacking: Unpacking, available: Callable[[int], bool]) -> int | None:
        """The tensor to ask. In a second run the one that the first run asks, or another one with its sizes."""
        candidates = list(self._candidates(operation, unpacking))
        at_hand = [v for v in candidates if available(v)]
        if not self.again or not candidates:
            return next(iter(at_hand), None)
        first = candidates[0]
        sizes = self._sizes(first, unpacking.shape)
        return next((v for v in at_hand if self._sizes(v, unpacking.shape) == sizes), first)

    def _candidates(self, operation: Operation, unpacking: Unpacking) -> Iterator[int]:
        """The tensors that the same call of the user's function reads after an unpacking, up to an operation."""
        assert operation.source is not None
        for other in self.operations:
            if self._same_call(other, operation, unpacking):
                for variable in refs((other.args, dict(other.kwargs))):
                    value = self.trace.variables[variable].origin in (Origin.RESULT, Origin.INPUT)
                    if value and self._sizes(variable, unpacking.shape) is not None:
                        yield variable
            if other is operation:
                return

    @staticmethod
    def _same_call(one: Operation, other: Operation, unpacking: Unpacking) -> bool:
        """Whether two operations stand in the function of an unpacking, behind it, and in one user's module."""
        if one.source is None or other.source is None or one.source.file != other.source.file:
            return False
        return unpacking.line <= one.source.line <= unpacking.last and owner_of(one) == owner_of(other)

    def _sizes(self, variable: int, shape: Shape) -> tuple[int, ...] | None:
        """What a shape is for a variable; None where it has other dimensions."""
        sizes = self.trace.variables[variable].shape
        if any(not -len(sizes) <= d < len(sizes) for d in shape.dimensions) or (
            shape.whole and len(sizes) != len(shape.dimensions)
        ):
            return None
        return tuple(sizes[d] for d in shape.dimensions)


@dataclass(frozen=True, slots=True)
class _Names:
    """What names stand for where an operation runs."""

    shapes: ShapeNames
    operation: Operation
    function: _Function
    available: Callable[[int], bool]

    def size(self, name: str) -> int | None:
        found = self.shapes.unpacked(self.operation, self.function, name, self.available)
        return None if found is None else found[2]

    def size_spelled(self, name: str) -> str:
        found = self.shapes.unpacked(self.operation, self.function, name, self.available)
        assert found is not None
        return self.shapes.name(found[0], found[1], name, self.available)

    def attribute(self, name: str) -> tuple[Number, str] | None:
        owner = owner_of(self.operation)
        number, module = self.shapes.trace.numbers.get(f"{owner}.{name}"), self.shapes.module(owner)
        return None if number is None or module is None else (number, f"{module}.{name}")

    def assigned(self, name: str) -> ast.expr | None:
        assert self.operation.source is not None
        found = self.function.assigned.get(name)
        return found.value if found is not None and found.lineno < self.operation.source.line else None

    def has_math(self) -> bool:
        assert self.operation.source is not None
        return _imports_math(tree_of(self.operation.source.file))


def insert(lines: list[Line], text: str, sizes: tuple[str, ...], name: str | None) -> None:
    """Puts a line about the shape of a value behind the one that defines it; behind the `with` around that if this is early
    enough. Without such a line: where the function begins, or behind the last wait before the sizes are read."""
    first = next((i for i, line in enumerate(lines) if any(line.reads(size) for size in sizes)), len(lines))
    waits = [i + 1 for i, line in enumerate(lines[:first]) if line.text.startswith("yield")]
    start = waits[-1] if name is None and waits else 0
    place = next((i + 1 for i, line in enumerate(lines) if name in line.defines), start)
    behind = f"kept.stop({name!r}, {name})", f"kept.slot({name!r}, {name})"
    while (
        place < first
        and place < len(lines)
        and (lines[place].depth > 0 or lines[place].text in behind or "kept.forget_saved(" in lines[place].text)
    ):
        place += 1
    depth = lines[place].depth if place == first < len(lines) else 0
    lines.insert(place, Line(depth, text, sizes, light=True))


# ---------------------------------------------------------------------------------------------- an operation's numbers


def _numbers(value: Any) -> Iterator[Number]:
    """The numbers among arguments, in order."""
    if isinstance(value, (list, tuple)):
        for part in value:
            yield from _numbers(part)
    elif _is_number(value):
        yield value


def _indexed(operation: Operation, function: _Function, reading: Arithmetic) -> Operation:
    """`x[:T]`: the operation with the numbers of an index in the source that come to the same."""
    first, *given = operation.args
    for position, number in enumerate(given):
        wanted = [e for e in _bounds(function, operation) if _is_number(number) and number >= 0 and position > 0]
        text = next((t for e in wanted if (t := reading.spelled(e, number)) is not None), None)
        given[position] = number if text is None else spelled(number, text)
    return replace(operation, args=(first, *given))


def _bounds(function: _Function, operation: Operation) -> Iterator[ast.expr]:
    """What stands between brackets in the statement that an operation comes from."""
    statement = _around(function, operation)
    for node in ast.walk(statement) if statement is not None else ():
        index = node.slice if isinstance(node, ast.Subscript) else None
        for part in index.elts if isinstance(index, ast.Tuple) else [index]:
            bounds = [part.lower, part.upper, part.step] if isinstance(part, ast.Slice) else [part]
            yield from (b for b in bounds if b is not None and not isinstance(b, ast.Constant))


def _with_texts(operation: Operation, numbers: Sequence[Number], texts: Sequence[str | None]) -> Operation:
    """The operation with some of its numbers as expressions."""
    left = iter([n if t is None else spelled(n, t) for n, t in zip_longest(numbers, texts)])
    return replace(operation, args=_with_numbers(operation.args, left))


def _with_numbers(value: Any, numbers: Iterator[Number]) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value)(_with_numbers(part, numbers) for part in value)
    return next(numbers) if _is_number(value) else value


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


# ---------------------------------------------------------------------------------------------- the user's source


def _may_be(argument: ast.expr, number: Number) -> bool:
    """Whether an argument in the source can be the number that was traced."""
    return not isinstance(argument, ast.Constant) or argument.value == number


def _around(function: _Function, operation: Operation) -> ast.stmt | None:
    """The innermost statement that an operation comes from."""
    assert operation.source is not None
    line = operation.source.line
    found = [s for s in function.statements if s.lineno <= line <= (s.end_lineno or s.lineno)]
    return min(found, key=lambda s: (s.end_lineno or s.lineno) - s.lineno, default=None)


def _operands(function: _Function, operation: Operation) -> Iterator[ast.expr]:
    """What stands beside the operators in the source that may have led to an operation."""
    statement = _around(function, operation)
    return iter(()) if statement is None else operands(statement, _base(operation))


def _base(operation: Operation) -> str:
    return operation.target._schema.name.removeprefix("aten::").rstrip("_")


def _calls(function: _Function, operation: Operation) -> Iterator[list[ast.expr]]:
    """The arguments, but for tensors in front, of the calls in the source that may have led to an operation."""
    statement = _around(function, operation)
    for call in ast.walk(statement) if statement is not None else ():
        called = call.func if isinstance(call, ast.Call) else None
        if isinstance(call, ast.Call) and (getattr(called, "attr", None) or getattr(called, "id", None)) == _base(operation):
            yield [part for a in call.args for part in (a.elts if isinstance(a, (ast.Tuple, ast.List)) else [a])]


def _function_around(source: Source | None) -> _Function | None:
    functions = () if source is None else _functions(tree_of(source.file))
    around = [f for f in functions if source is not None and f.first <= source.line <= f.last]
    return min(around, key=lambda f: f.last - f.first, default=None)


@lru_cache(maxsize=64)
def _functions(tree: ast.Module) -> tuple[_Function, ...]:
    return tuple(_read(node) for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def _read(function: ast.FunctionDef) -> _Function:
    statements = tuple(n for n in ast.walk(function) if isinstance(n, ast.stmt) and n is not function)
    last = function.end_lineno or function.lineno
    bound = [n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
    found = []
    for statement in statements:
        target = statement.targets[0] if isinstance(statement, ast.Assign) and len(statement.targets) == 1 else None
        parts = target.elts if isinstance(target, ast.Tuple) else [target]
        names = tuple(p.id for p in parts if isinstance(p, ast.Name))
        shape = _shape(statement.value) if isinstance(statement, ast.Assign) else None
        once = all(n == "_" or bound.count(n) == 1 for n in names)  # else its value depends on where it is read
        alone = shape is None or isinstance(target, ast.Tuple) or shape.suffix.endswith("]") and ":" not in shape.suffix
        if shape is None or not names or len(names) != len(parts) or not once or not alone:
            continue
        if shape.whole:
            shape = replace(shape, dimensions=tuple(range(len(names))))
        if len(names) == len(shape.dimensions):
            found.append(Unpacking(function.lineno, last, statement.lineno, names, shape))
    single = [s for s in statements if isinstance(s, ast.Assign) and len(s.targets) == 1]
    assigned = {t.id: s for s in single for t in s.targets if isinstance(t, ast.Name) and bound.count(t.id) == 1}
    return _Function(function.lineno, last, tuple(found), statements, assigned)


@lru_cache(maxsize=64)
def _imports_math(tree: ast.Module) -> bool:
    imports = [a for s in tree.body if isinstance(s, ast.Import) for a in s.names]
    return any(a.name == "math" and a.asname is None for a in imports)


def _shape(value: ast.expr) -> Shape | None:
    """The shape that an expression asks for; None for other expressions."""
    if isinstance(value, ast.Subscript):
        whole, index = _shape(value.value), value.slice
        if whole is None or not whole.whole:
            return None
        if (
            isinstance(index, ast.Slice)
            and index.lower is None
            and index.step is None
            and isinstance(index.upper, ast.Constant)
        ):
            count = index.upper.value
            return Shape(whole.base, tuple(range(count)), f".shape[:{count}]") if isinstance(count, int) and count > 0 else None
        return _one(whole.base, index)
    if isinstance(value, ast.Attribute) and value.attr == "shape" and isinstance(value.value, ast.Name):
        return Shape(value.value.id, (), ".shape", True)
    called = value.func if isinstance(value, ast.Call) and not value.keywords else None
    if isinstance(value, ast.Call) and isinstance(called, ast.Attribute) and called.attr == "size":
        if isinstance(called.value, ast.Name) and not value.args:
            return Shape(called.value.id, (), ".shape", True)
        return _one(called.value.id, value.args[0]) if isinstance(called.value, ast.Name) and len(value.args) == 1 else None
    return None


def _one(base: str, index: ast.expr) -> Shape | None:
    try:
        dimension = ast.literal_eval(index)
    except ValueError:
        return None
    return Shape(base, (dimension,), f".shape[{dimension}]") if type(dimension) is int else None
