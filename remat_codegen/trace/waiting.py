"""What Python holds while an operation runs, though no variable has it yet, or ever: results that wait in an expression.

`return self.one(x), self.other(x)` holds what `one` returns until the tuple is made, whoever reads it afterwards. Frames say
which expression each operation comes from; the rest is read from the source.
"""

from __future__ import annotations

import ast
import itertools
import linecache
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache, lru_cache

from remat_codegen.trace.ir import Operation
from remat_codegen.trace.places import Call, Span, is_around

Within = tuple[Span, Span | None]  # an expression, and the comprehension that it is or stands in
Waits = Callable[[str, Span, bool], tuple[Within, bool]]
_CONTAINERS = ast.Tuple, ast.List, ast.Dict, ast.Set, ast.Starred, ast.IfExp, ast.NamedExpr, ast.Call
_LOOPS = ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp


def with_waiting(operations: Sequence[Operation], outputs: Iterable[int]) -> tuple[Operation, ...]:
    """Operations, each with the results that wait while it runs among those that it says are held."""
    return _held_throughout(operations, _last_holders(operations, outputs))


def _last_holders(operations: Sequence[Operation], outputs: Iterable[int]) -> dict[int, int]:
    """For operations whose results somebody holds, the last operation that runs while they do."""
    last = {held: op.id for op in operations for held in op.held}
    read = {variable for op in operations for variable in op.reads} | set(outputs)
    waits = cache(_waits_in)  # anew each time, for files change
    for op in operations:
        if read.isdisjoint(op.made):
            last[op.id] = max(last.get(op.id, -1), _waits_until(op, operations, waits))
    return last


def _held_throughout(operations: Sequence[Operation], last: dict[int, int]) -> tuple[Operation, ...]:
    """Operations, with what is held later held from when it was made."""
    ending, found, alive = defaultdict[int, list[int]](list), [], dict[int, None]()
    for op in operations:
        found.append(replace(op, held=tuple(dict.fromkeys((*op.held, *alive)))) if alive else op)
        for held in ending.pop(op.id, ()):
            del alive[held]
        if last.get(op.id, -1) > op.id:
            alive[op.id] = None
            ending[last[op.id]].append(op.id)
    return tuple(found)


def _waits_until(op: Operation, operations: Sequence[Operation], waits: Waits) -> int:
    """The last operation that runs while a result that nobody reads waits in a frame, from the innermost one out to where it is
    dropped."""
    last = op.id
    for call in reversed(op.calls):
        within, goes_on = waits(call.function.file, call.span, op.many and call is op.calls[-1])
        last = max(last, _last_beside(call, within, op, operations))
        if not goes_on:
            break
    return last


def _last_beside(call: Call, within: Within, op: Operation, operations: Sequence[Operation]) -> int:
    """The last operation that a frame makes beside what it evaluated for `op`, in the expression that this waits in."""
    whole, loop = within
    last = op.id
    for later in operations[op.id + 1 :]:
        here = next((c for c in later.calls if c.frame == call.frame), None)
        if here is None:
            break
        if here.evaluation == call.evaluation:  # of the call that the result comes from
            continue
        if here.span != call.span and is_around(here.span, call.span):  # takes it
            break
        next_one = loop is not None or _is_behind(here.span, call.span) and not here.changed  # else it is the next round
        if not next_one or not is_around(loop or whole, here.span):
            break
        last = later.id
    return last


def _is_behind(span: Span, other: Span) -> bool:
    """Whether an expression begins where another has ended: what holds the other has taken it."""
    return span[:2] >= other[2:]


def _waits_in(file: str, span: Span, several: bool) -> tuple[Within, bool]:
    """The expression of a file in which what another one gives waits, the comprehension if there is one, and whether it may be
    handed on from there, by a return or a variable. A container has it until that is complete, a call until all arguments
    are there, and may give it back; what takes an item or an attribute of it, compares it or computes with it lets go of it.
    (But for an item of `several` results of one operation, and for `.detach()`: nobody reads that, and it is no operation.)"""
    around = [node for node in _nodes("".join(linecache.getlines(file))) if is_around(_span(node), span)]
    chain: list[ast.expr] = [node for node in reversed(around) if isinstance(node, ast.expr)]
    whole, loop = span, None
    for inner, node in itertools.pairwise(chain):
        if isinstance(node, ast.Lambda):
            break
        detached = isinstance(node, ast.Attribute) and node.attr == "detach"
        item = several and inner is chain[0] and isinstance(node, ast.Subscript)
        called = isinstance(node, ast.Call) and inner is node.func and not isinstance(inner, ast.Attribute)
        if called or not (detached or item or isinstance(node, (*_CONTAINERS, *_LOOPS))):
            return (whole, loop), False
        whole, loop = _span(node), _span(node) if isinstance(node, _LOOPS) else loop
    statement = next((node for node in reversed(around) if isinstance(node, ast.stmt)), None)
    return (whole, loop), not isinstance(statement, ast.Expr)


@lru_cache(maxsize=64)
def _nodes(text: str) -> tuple[ast.expr | ast.stmt, ...]:
    """The statements and expressions of a file, each before those that are parts of it."""
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return ()
    return tuple(node for node in _walked(tree) if isinstance(node, ast.expr | ast.stmt))


def _walked(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    for child in ast.iter_child_nodes(node):
        yield from _walked(child)


def _span(node: ast.expr | ast.stmt) -> Span:
    return node.lineno, node.col_offset, node.end_lineno or 0, node.end_col_offset or 0
