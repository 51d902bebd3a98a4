"""Reads expressions: tensors by the operations that make them, everything else as far as a schedule depends on it."""

from __future__ import annotations

import ast
import operator
from collections.abc import Sequence
from typing import Any

from remat_codegen.readback.machine import Machine
from remat_codegen.readback.matching import ENDLESS, Operations
from remat_codegen.readback.values import Block, Other, Place, Shapes, Step, Stops, Tensor, tensors
from remat_codegen.trace import Origin

_BINARY = {
    ast.Add: ("+", operator.add),
    ast.Sub: ("-", operator.sub),
    ast.Mult: ("*", operator.mul),
    ast.Div: ("/", None),
    ast.FloorDiv: ("//", operator.floordiv),
    ast.Mod: ("%", operator.mod),
    ast.Pow: ("**", None),
    ast.MatMult: ("@", None),
    ast.BitAnd: ("&", None),
    ast.BitOr: ("|", None),
    ast.BitXor: ("^", None),
}
_UNARY = {ast.Invert: "~", ast.USub: "-", ast.Not: "~"}
_COMPARE = {ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">="}
COPIES = ("clone",)  # what is done to running statistics before an operation moves them a second time


class Expressions:
    """Evaluates expressions in the frame at hand. Every value that is returned is held once; whoever uses it up drops it."""

    def __init__(self, machine: Machine, operations: Operations) -> None:
        self.machine, self.operations = machine, operations
        self.model = machine.model
        self.env: dict[str, Any] = {}
        self.ran: set[int] = set()  # operations of this frame
        self.shapes: dict[tuple[int, str], Any] = {}  # those that blocks keep
        self.first: set[int] = set()  # operations that have run at all
        self.wish: tuple[str, ...] = ()  # the names that the present statement assigns

    def evaluate(self, node: ast.expr) -> Any:
        """The value of an expression."""
        method = getattr(self, f"_{type(node).__name__.lower()}", None)
        if method is None:
            raise self.machine.give_up(f"`{ast.unparse(node)}` is nothing that remat-codegen writes")
        outer, self.machine.line = self.machine.line, node.lineno
        value = method(node)
        self.machine.line = outer
        return value

    # ------------------------------------------------------------------ what has no tensors in it

    def _constant(self, node: ast.Constant) -> Any:
        return node.value

    def _name(self, node: ast.Name) -> Any:
        if node.id in self.env:
            return self.machine.hold(self.env[node.id])
        found = self.global_name(node.id)
        if found is None:
            raise self.machine.give_up(f"reads {node.id}, which has no value here")
        return found

    def global_name(self, name: str) -> Any:
        """What a name outside of the function stands for."""
        raise NotImplementedError

    def _tuple(self, node: ast.Tuple | ast.List) -> Any:
        return tuple(self.evaluate(part) for part in node.elts)

    _list = _tuple

    def _dict(self, node: ast.Dict) -> Any:
        return {i: self.evaluate(part) for i, part in enumerate(node.values)}

    def _starred(self, node: ast.Starred) -> Any:
        return self.evaluate(node.value)

    def _slice(self, node: ast.Slice) -> Any:
        if node.lower is node.upper is node.step is None:
            return ()
        start = 0 if node.lower is None else self.evaluate(node.lower)
        end = ENDLESS if node.upper is None else self.evaluate(node.upper)
        return (start, end) if node.step is None else (start, end, self.evaluate(node.step))

    def _ifexp(self, node: ast.IfExp) -> Any:
        """As in training: what is written after `if m.training` is for that."""
        self.machine.drop(self.evaluate(node.test))
        return self.evaluate(node.body)

    def _joinedstr(self, node: ast.JoinedStr) -> Any:
        return Other()

    def _attribute(self, node: ast.Attribute) -> Any:
        if dotted(node).startswith(("torch.", "F.", "nn.", "math.")):
            return Other()
        base = self.evaluate(node.value)
        if isinstance(base, Place):
            return self._in_model(base.child(node.attr))
        if isinstance(base, Block) and node.attr == "shapes":
            return Shapes(base.number)
        if isinstance(base, Block) and node.attr == "stops":
            return Stops(base.number)
        if isinstance(base, Tensor) and node.attr == "T":
            return self.apply(node.attr, (base,))
        self.machine.drop(base)
        if isinstance(base, Tensor) and node.attr == "shape":
            return self.model.trace.variables[base.variable].shape
        return Other()

    def _in_model(self, place: Place) -> Any:
        variable = self.operations.by_path.get(place.path)
        return place if variable is None else self.machine.hold(Tensor(self.operations.canonical(variable)))

    # ------------------------------------------------------------------ operators

    def _binop(self, node: ast.BinOp) -> Any:
        spelled, compute = _BINARY.get(type(node.op), ("", None))
        left, right = self.evaluate(node.left), self.evaluate(node.right)
        if not any(True for _ in tensors((left, right))):
            plain = compute is not None and isinstance(left, int) and isinstance(right, int)
            return compute(left, right) if plain and compute is not None else Other()
        return self.apply(spelled, (left, right))

    def _unaryop(self, node: ast.UnaryOp) -> Any:
        value = self.evaluate(node.operand)
        if any(True for _ in tensors(value)):
            return self.apply(_UNARY[type(node.op)], value)
        return -value if isinstance(node.op, ast.USub) and isinstance(value, (int, float)) else Other()

    def _compare(self, node: ast.Compare) -> Any:
        values = tuple(self.evaluate(part) for part in (node.left, *node.comparators))
        if any(True for _ in tensors(values)):
            return self.apply(_COMPARE.get(type(node.ops[0]), ""), values)
        return Other()

    def _boolop(self, node: ast.BoolOp) -> Any:
        for part in node.values:
            self.machine.drop(self.evaluate(part))
        return Other()

    def _subscript(self, node: ast.Subscript) -> Any:
        base, index = self.evaluate(node.value), self.evaluate(node.slice)
        if isinstance(base, Step):
            return Block(index) if isinstance(index, int) else Other()
        if isinstance(base, Place):
            return self._in_model(base.child(str(index)))
        if isinstance(base, Shapes):
            return self._kept_shape(base, str(index))
        if isinstance(base, Stops):
            return self.machine.at((base.number, str(index)))
        if isinstance(base, tuple) and isinstance(node.slice, ast.Slice) and isinstance(index, tuple):
            return base[slice(*index)]
        if isinstance(base, tuple):
            return self._part(base, index)
        if isinstance(base, Tensor):
            return self._indexed(node, base, index)
        self.machine.drop((base, index))
        return Other()

    def _kept_shape(self, shapes: Shapes, name: str) -> Any:
        if (shapes.number, name) not in self.shapes:
            raise self.machine.give_up(f"asks for the shape of {name}, which no first run kept")
        return self.shapes[shapes.number, name]

    def _part(self, base: tuple, index: Any) -> Any:
        found = base[index] if isinstance(index, int) and -len(base) <= index < len(base) else Other()
        self.machine.hold(found)
        self.machine.drop(base)
        return found

    def _indexed(self, node: ast.Subscript, base: Tensor, index: Any) -> Any:
        """x[:512, :512] may be one operation on x or one for each dimension."""
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        value = self.apply("[]", (base, index))
        for _ in [p for p in parts if ast.unparse(p) not in (":", "None")][1:]:
            more = self.operations.reading(list(tensors(value)))
            if not any(self.operations.is_view(op) and self.operations.is_called(op, "[]") for op in more):
                break
            value = self.apply("[]", (value,))
        return value

    # ------------------------------------------------------------------ operations

    def apply(self, name: str, given: Any) -> Any:
        """An operation on values, which it uses up."""
        variables = list(tensors(given))
        found = self.operations.reading(variables)
        named = [op for op in found if self.operations.is_called(op, name)]
        if name in COPIES and not named and len(variables) == 1:
            return given[0] if isinstance(given, tuple) else given
        if not found:
            raise self.machine.give_up(f"`{name}` of {self._described(variables)} is nothing that the model computes")
        op = self._which(self.operations.given(named or found, given))
        self.machine.operation(op)
        self.ran.add(op)
        self.first.add(op)
        value = self.machine.hold(self._results(op))
        self.machine.drop(given)
        return value

    def _which(self, found: Sequence[int]) -> int:
        """Among operations that read the same: the one whose turn it is."""
        machine, run = self.machine, self.machine.run
        keys = [k for k in (*machine.draws, machine.group) if k is not None]
        nodes = {n for k in keys for n in (machine.generators.get(k, ()) or machine.groups.get(k, ()))}
        kept = self.env.get("kept")
        names = {self.operations.named(kept.number, name) for name in self.wish} if isinstance(kept, Block) else ()
        wishes = (
            lambda op: self.operations.modes(op) == set(machine.modes),
            lambda op: machine.backward or op not in self.first,
            lambda op: not isinstance(kept, Block) or self.operations.block_of(op) == kept.number,
            lambda op: not machine.backward or self.operations.node_of[op] in nodes,
            lambda op: run is not None and self.operations.node_of[op] == run.node and op not in run.done,
            lambda op: op in names,
            lambda op: op not in self.ran,
        )
        for wish in wishes:
            found = [op for op in found if wish(op)] or found
        return found[0]

    def _results(self, op: int) -> Any:
        operation = self.model.trace.operations[op]
        results = tuple(Other() if v is None else Tensor(self.operations.canonical(v)) for v in operation.results)
        if operation.many:
            return results
        return results[0] if results else None

    def _described(self, variables: Sequence[int]) -> str:
        names = [self.model.trace.variables[v] for v in variables]
        return ", ".join(v.path if v.origin is not Origin.RESULT else v.name for v in names) or "nothing"


def dotted(node: ast.expr) -> str:
    """torch.ops.aten.add.Tensor; empty for what is not just names and dots."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        base = dotted(node.value)
        return f"{base}.{node.attr}" if base else ""
    return ""
