"""Sizes as the user's source spells them: `B, T, C = x.shape` and `q.view(B, T, ...)`, rather than the numbers of one trace.

Which tensor the user's `x` is, a trace does not say: it is taken to be the first one that the operations of the same call read
and that has such a shape. A wrong guess would do no harm, as every size that is spelled is the size that was traced, and shapes
do not change: in models that change the shape of a tensor in place, all sizes stay numbers.
A second run may not have that tensor any more: then the first run keeps its shape, `kept.shapes["x"] = x.shape`.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any

from remat_codegen.emit.arithmetic import Arithmetic, Number
from remat_codegen.emit.lines import Line, uses
from remat_codegen.emit.names import Namer, owner_of
from remat_codegen.emit.reading import (
    Function,
    Shape,
    Unpacking,
    base_name,
    bounds_in,
    calls_in,
    function_around,
    imports_math,
    may_be,
    operands_in,
    shape_of,
)
from remat_codegen.emit.sources import tree_of
from remat_codegen.torch_seam import schema
from remat_codegen.trace import Operation, Origin, Trace


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


RESHAPING = frozenset(
    f"aten::{n}_" for n in "t transpose swapaxes swapdims unsqueeze squeeze resize resize_as set as_strided".split()
)
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
        self,
        trace: Trace,
        operations: Sequence[int],
        namer: Namer,
        name: Callable[[int], str],
        module: Module,
        block: BlockSizes,
        again: bool,
    ) -> None:
        self.trace, self.namer, self.name, self.module, self.block, self.again = trace, namer, name, module, block, again
        self.fixed = not trace.sizes and not any(schema(op.target).name in RESHAPING for op in trace.operations)
        self.operations = [trace.operations[op] for op in operations]
        self.asked: dict[Unpacking, int] = {}  # the variable that is asked
        self.recalled: set[Unpacking] = set()  # those that ask a shape which the first run kept

    def spelled(self, operation: Operation, available: Callable[[int], bool]) -> Operation:
        """The operation with what the source says in place of numbers, where the tensors that it takes sizes of are
        `available`."""
        function = function_around(operation.source)
        if function is None or not self.fixed:
            return operation
        reading = Arithmetic(_Names(self, operation, function, available))
        if base_name(operation) in ("slice", "select"):
            return _indexed(operation, function, reading)
        numbers = list(_numbers(operation.args))
        for arguments in calls_in(function, operation):
            pairs = list(zip(arguments, numbers, strict=False))  # the source may give the last of them by keyword
            if all(may_be(a, n) for a, n in pairs):
                texts = [self._asked_of_input(operation, a, n, available) or reading.spelled(a, n) for a, n in pairs]
                if any(texts):
                    return _with_texts(operation, numbers, texts)
        for side in operands_in(function, operation) if len(numbers) == 1 else ():
            text = reading.spelled(side, numbers[0], operand=True)
            if text is not None:
                return _with_texts(operation, numbers, [text])
        return operation

    def ask(self, lines: list[Line], available: Callable[[int], bool]) -> None:
        """Adds to the lines of a function those that ask for sizes, and in a first run those that keep shapes."""
        name = self.name
        left = {} if self.again else dict(self.block.kept)
        written = "\n".join(line.text for line in lines)
        for unpacking, variable in self.asked.items():
            whole = unpacking.shape.suffix == ".shape"
            shape, chained = f"{name(variable)}.shape", ""
            if unpacking in self.recalled:
                shape = f"kept.shapes[{name(variable)!r}]"
            elif whole and variable in left:
                del left[variable]
                chained = f"kept.shapes[{name(variable)!r}] = "
            names = tuple(n if uses(n, written) else "_" for n in self.block.names[unpacking])
            part = unpacking.shape.suffix.removeprefix(".shape")
            comma = "," if len(names) == 1 and (":" in part or not part) else ""
            text = f"{', '.join(names)}{comma} = {chained}{shape}{part}"
            insert(lines, text, names, None if unpacking in self.recalled else name(variable))
        for variable in left:
            shape = f"{name(variable)}.shape" if available(variable) else str(self.trace.variables[variable].shape)
            insert(lines, f"kept.shapes[{name(variable)!r}] = {shape}", (), name(variable))

    def _asked_of_input(
        self, operation: Operation, argument: ast.expr, number: Number, available: Callable[[int], bool]
    ) -> str | None:
        """`idx.shape[1]`, where idx is an input of the model."""
        shape = shape_of(argument)
        if shape is None or len(shape.dimensions) != 1 or owner_of(operation) != "":
            return None
        given = next((v for v in self.trace.inputs if v is not None and self.trace.variables[v].path == shape.base), None)
        asked = given is not None and available(given) and self._sizes(given, shape) == (number,)
        return f"{self.name(given)}{shape.suffix}" if asked and given is not None else None

    def unpacked(
        self, operation: Operation, function: Function, name: str, available: Callable[[int], bool]
    ) -> tuple[Unpacking, int, int] | None:
        """Where a name was unpacked before, from which variable, and the size that it stands for."""
        assert operation.source is not None
        for unpacking in function.unpackings:
            if name == "_" or name not in unpacking.names or unpacking.line >= operation.source.line:
                continue
            variable = self.asked.get(unpacking, self._found(operation, unpacking, available))
            sizes = None if variable is None else self._sizes(variable, unpacking.shape)
            if variable is None or sizes is None:
                return None
            return unpacking, variable, sizes[unpacking.names.index(name)]
        return None

    def size(self, unpacking: Unpacking, variable: int, name: str, available: Callable[[int], bool]) -> str:
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
                for variable in other.reads:
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
    function: Function
    available: Callable[[int], bool]

    def size(self, name: str) -> int | None:
        found = self.shapes.unpacked(self.operation, self.function, name, self.available)
        return None if found is None else found[2]

    def size_spelled(self, name: str) -> str:
        found = self.shapes.unpacked(self.operation, self.function, name, self.available)
        assert found is not None
        return self.shapes.size(found[0], found[1], name, self.available)

    def attribute(self, name: str) -> tuple[Number, str] | None:
        """Only of what shapes depend on: whatever else is changed while training, before the way back, say."""
        if name not in self.function.shaping:
            return None
        owner = owner_of(self.operation)
        number, module = self.shapes.trace.modules.numbers.get(f"{owner}.{name}"), self.shapes.module(owner)
        return None if number is None or module is None else (number, f"{module}.{name}")

    def assigned(self, name: str) -> ast.expr | None:
        assert self.operation.source is not None
        found = self.function.assigned.get(name)
        return found.value if found is not None and found.lineno < self.operation.source.line else None

    def has_math(self) -> bool:
        assert self.operation.source is not None
        return imports_math(tree_of(self.operation.source.file))


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


def _numbers(value: Any) -> Iterator[Number]:
    """The numbers among arguments, in order."""
    if isinstance(value, (list, tuple)):
        for part in value:
            yield from _numbers(part)
    elif _is_number(value):
        yield value


def _indexed(operation: Operation, function: Function, reading: Arithmetic) -> Operation:
    """`x[:T]`: the operation with the numbers of an index in the source that come to the same."""
    first, *given = operation.args
    for position, number in enumerate(given):
        wanted = [e for e in bounds_in(function, operation) if _is_number(number) and number >= 0 and position > 0]
        text = next((t for e in wanted if (t := reading.spelled(e, number)) is not None), None)
        given[position] = number if text is None else spelled(number, text)
    return replace(operation, args=(first, *given))


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
