"""What Python holds while an operation runs, though no variable has it yet, or ever: results that wait in an expression.

`return self.one(x), self.other(x)` holds what `one` returns until the tuple is made, whoever reads it afterwards. Frames say
which expression each operation comes from; the rest is read from the source.
"""

from __future__ import annotations

import ast
import linecache
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache, lru_cache

from remat_codegen.trace.ir import Operation
from remat_codegen.trace.places import Call, Span

Around = Callable[[str, Span], tuple[Span, Span | None]]
_LOOPS = ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp


def with_waiting(operations: Sequence[Operation], outputs: Iterable[int]) -> tuple[Operation, ...]:
    """Operations, each with the results that wait while it runs among those that it says are held."""
    return _held_throughout(operations, _last_holders(operations, outputs))


def _last_holders(operations: Sequence[Operation], outputs: Iterable[int]) -> dict[int, int]:
    """For operations whose results somebody holds, the last operation that runs while they do."""
    last = {held: op.id for op in operations for held in op.held}
    read = {variable for op in operations for variable in op.reads} | set(outputs)
    around = cache(_around)  # anew each time, for files change
    for op in operations:
        if read.isdisjoint(op.made):
            beside = (_last_beside(call, op, operations, around) for call in op.calls)
            last[op.id] = max(last.get(op.id, -1), max(beside, default=-1))
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


def _last_beside(call: Call, op: Operation, operations: Sequence[Operation], around: Around) -> int:
    """The last operation that a frame makes beside what it evaluated for `op`, in the same expression."""
    last = op.id
    for later in operations[op.id + 1 :]:
        here = next((c for c in later.calls if c.frame == call.frame), None)
        if here is None:
            break
        if here.evaluation == call.evaluation:  # of the call that the result comes from
            continue
        if here.span != call.span and _is_within(call.span, here.span):  # takes it
            break
        whole, loop = around(call.function.file, call.span)
        goes_on = loop or _is_behind(here.span, call.span) and not here.changed  # else this is its next round
        if not goes_on or not _is_within(here.span, loop or whole):
            break
        last = later.id
    return last


def _is_behind(span: Span, other: Span) -> bool:
    """Whether an expression begins where another has ended: what holds the other has taken it."""
    return span[:2] >= other[2:]


def _is_within(span: Span, around: Span) -> bool:
    return around[:2] <= span[:2] and span[2:] <= around[2:]


def _around(file: str, span: Span) -> tuple[Span, Span | None]:
    """The largest expression of a file around one of it, and the largest comprehension; itself, where there is no text."""
    around = [node for node in _expressions("".join(linecache.getlines(file))) if _is_within(span, _span(node))]
    loops = [_span(node) for node in around if isinstance(node, _LOOPS)]
    return _span(around[0]) if around else span, loops[0] if loops else None


@lru_cache(maxsize=64)
def _expressions(text: str) -> tuple[ast.expr, ...]:
    """The expressions of a file, each before those that are parts of it."""
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return ()
    return tuple(node for node in _walked(tree) if isinstance(node, ast.expr))


def _walked(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    for child in ast.iter_child_nodes(node):
        yield from _walked(child)


def _span(node: ast.expr) -> Span:
    return node.lineno, node.col_offset, node.end_lineno or 0, node.end_col_offset or 0
