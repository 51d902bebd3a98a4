"""Which operation of the model a call in a generated file is: by the tensors it is given, then by its name, then by its turn.

How numbers and shapes are spelled does not matter here: whether a file spells them right is seen where it is compared with
what the generator writes (compare.py).
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

from remat_codegen.emit.names import wishes
from remat_codegen.emit.scope import Scope
from remat_codegen.emit.surroundings import modes
from remat_codegen.graph.simplify import Model, is_view
from remat_codegen.torch_seam import schema
from remat_codegen.trace import Operation, Origin, Ref, function_call, substitute
from remat_codegen.trace.sizes import Size

ENDLESS = 2**62  # torch.export's way to say: up to the end

# What Python's operators, and methods with another name than the operation's, are in ATen.
_SPELLED = {
    "+": ("add",),
    "-": ("sub", "rsub", "neg"),
    "*": ("mul",),
    "/": ("div", "reciprocal"),
    "//": ("floor_divide",),
    "%": ("remainder",),
    "**": ("pow",),
    "@": ("matmul", "mm", "bmm"),
    "~": ("bitwise_not", "logical_not"),
    "&": ("bitwise_and", "__and__"),
    "|": ("bitwise_or", "__or__"),
    "^": ("bitwise_xor", "__xor__"),
    "[]": ("slice", "select", "index", "alias"),
    "T": ("numpy_T",),
    "==": ("eq",),
    "!=": ("ne",),
    "<": ("lt", "gt"),
    "<=": ("le", "ge"),
    ">": ("gt", "lt"),
    ">=": ("ge", "le"),
}


class Operations:
    """The operations of a model, found by what they read. `core` are those that a node does not run without."""

    def __init__(self, model: Model) -> None:
        self.model = model
        trace = model.trace
        self.node_of = {op: node for node, body in enumerate(model.bodies) for op in body.operations}
        self.core = [self._core(body.operations) for body in model.bodies]
        self.same_as = self._same_tensors()
        self.by_path = {
            path: v.id
            for v in trace.variables
            if v.origin in (Origin.PARAMETER, Origin.BUFFER)
            for path in (*v.aliases, v.path)
        }
        self._names: dict[int, dict[str, int]] = {}  # by block, made when they are asked for
        self._wishes = wishes(trace)
        self._by_reads: dict[tuple[int, ...], list[int]] = {}
        for operation in trace.operations:
            if operation.id in self.node_of:
                self._by_reads.setdefault(self._key(operation.reads), []).append(operation.id)

    def _core(self, operations: Sequence[int]) -> frozenset[int]:
        """Without views, which are taken whenever somebody asks for them; a node of nothing else is its views."""
        found = frozenset(op for op in operations if not self.is_view(op))
        return found or frozenset(operations)

    def is_view(self, op: int) -> bool:
        """Whether an operation only looks at memory that exists."""
        return is_view(self.model.record, self.model.trace.operations[op])

    def only_views(self, node: int) -> bool:
        """Whether a node computes nothing: what it looks at may be looked at any time."""
        return all(self.is_view(op) for op in self.model.bodies[node].operations)

    def modes(self, op: int) -> set[str]:
        """What stands around an operation: `torch.no_grad()`."""
        operation = self.model.trace.operations[op]
        return {ast.unparse(ast.parse(m)) for m in modes(self.model.trace, self.model.record, operation)}

    def block_of(self, op: int) -> int:
        """The block that an operation stands in."""
        node = self.node_of[op]
        return next(b.id for b in self.model.graph.blocks if b.first <= node <= b.last)

    def named(self, block: int, name: str) -> int | None:
        """The operation whose result the generator calls by a name in the functions of a block."""
        if block not in self._names:
            maker = {v: op.id for op in self.model.trace.operations for v in op.made}
            names = Scope.of(self.model, block, self._wishes).names
            self._names[block] = {n: maker[v] for v, n in names.items() if v in maker}
        return self._names[block].get(name)

    def _same_tensors(self) -> dict[int, int]:
        """What an in-place operation returns is the very tensor that it changed; equal views of a tensor are one view."""
        found: dict[int, int] = {}
        views: dict[Any, tuple[int | None, ...]] = {}
        for operation in self.model.trace.operations:
            if operation.id in self.node_of and self.is_view(operation.id):
                table = {v: f"%{found.get(v, v)}" for v in operation.reads}
                key = operation.name, repr(substitute((operation.args, dict(operation.kwargs)), table))
                pairs = zip(operation.results, views.setdefault(key, operation.results), strict=True)
            else:
                pairs = zip(operation.results[:1], (self._changed_by(operation),), strict=False)
            found |= {v: found.get(same, same) for v, same in pairs if v is not None and same is not None and same != v}
        return found

    def _changed_by(self, operation: Operation) -> int | None:
        """The variable that an in-place operation changes and returns."""
        changed = _changed(operation) if self.model.record.operations[operation.id].mutated else None
        result = operation.results[0] if operation.results else None
        if changed is None or result is None:
            return None
        return changed if len(self.model.record.storages_of((changed, result))) == 1 else None

    def canonical(self, variable: int) -> int:
        """The variable that stands for all names of the same tensor."""
        return self.same_as.get(variable, variable)

    def _key(self, variables: Sequence[int]) -> tuple[int, ...]:
        return tuple(sorted(map(self.canonical, variables)))

    def reading(self, variables: Sequence[int]) -> list[int]:
        """The operations that read just these variables."""
        return self._by_reads.get(self._key(variables), [])

    def given(self, found: Sequence[int], values: Any) -> list[int]:
        """Among operations, those whose numbers are the ones in `values`, as far as they are spelled out."""
        wanted = _numbers(values)
        for fits in (_same, _ends_with, _contains):
            best = [op for op in found if fits(self._numbers_of(op), wanted)]
            if best:
                return best
        return list(found)

    def _numbers_of(self, op: int) -> list[Any]:
        operation = self.model.trace.operations[op]
        return _numbers((*operation.args, *(v for _, v in operation.kwargs)))

    def is_called(self, op: int, name: str) -> bool:
        """Whether an operation may be spelled with such a name or operator."""
        operation = self.model.trace.operations[op]
        called = function_call(operation.target)
        if called is not None:
            return called.function.__qualname__ == name
        base = operation.base.split("::")[-1]
        longer = (f"{prefix}_{name}" for prefix in ("fft", "linalg", "special")), (f"{name}_nd", f"{name}_loss", f"{name}_")
        return base in (*_SPELLED.get(name, (name,)), *longer[0], *longer[1]) or base.rstrip("_") == name


def _numbers(value: Any) -> list[Any]:
    """The plain numbers in a structure, in order; of a size that may change, the one it was traced with."""
    if isinstance(value, Size):
        return _numbers(value.hint)
    if isinstance(value, (tuple, list)):
        return [n for part in value for n in _numbers(part)]
    if isinstance(value, int) and not isinstance(value, bool):
        return [min(value, ENDLESS)]
    return [value] if isinstance(value, float) else []


def _same(have: list[Any], wanted: list[Any]) -> bool:
    return have == wanted


def _ends_with(have: list[Any], wanted: list[Any]) -> bool:
    return have[len(have) - len(wanted) :] == wanted if wanted else not have


def _contains(have: list[Any], wanted: list[Any]) -> bool:
    rest = iter(have)
    return all(number in rest for number in wanted)


def _changed(operation: Operation) -> int | None:
    """The variable that an in-place operation changes."""
    for position, argument in enumerate(schema(operation.target).arguments):
        if argument.alias_info is not None and argument.alias_info.is_write and position < len(operation.args):
            value = operation.args[position]
            return value.variable if isinstance(value, Ref) else None
    return None
