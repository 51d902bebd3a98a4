"""What of an expression is evaluated before its part runs and handed in: what may not happen twice, and what is no part of it.

Arguments are evaluated first then. That is the order as it was only if nothing that stays inside comes before and could see the
difference; a mark is refused where it might.
"""

from __future__ import annotations

import ast
from collections.abc import Collection
from dataclasses import dataclass

import torch

from remat_codegen.marked.names import free_names
from remat_codegen.marked.syntax import COMPREHENSIONS, Syntax, in_order, is_dotted, span_of, value_of
from remat_codegen.trace.places import Span

CHANGING = frozenset(
    "pop popleft popitem append appendleft extend insert remove clear update setdefault add sort reverse put get_nowait send "
    "write register_hook backward retain_grad".split()
)
CONSUMING = frozenset("next print input open setattr delattr iter".split())
PURE = frozenset(
    "len range min max int float bool str abs round sum isinstance issubclass hasattr getattr type tuple list dict set "
    "frozenset slice zip enumerate reversed sorted any all divmod pow id repr callable map filter".split()
)
ITERATING = frozenset(
    "sum max min any all list tuple dict set frozenset sorted zip enumerate reversed map filter reduce".split()
)
PURE_METHODS = frozenset("get keys values items index count join format startswith endswith lower upper strip".split())
LIBRARIES = frozenset("torch F nn math functional operator".split())
DRAWING = (
    *("drop", "rand", "bernoulli", "normal", "multinomial", "poisson", "exponential", "geometric", "gumbel"),
    *("rrelu", "scaled_dot_product", "multi_head_attention"),
)
LOOKS, SIZES = frozenset("shape dtype device ndim".split()), frozenset("size dim numel".split())
LIKE = frozenset(
    "to type_as view_as expand_as reshape_as zeros_like ones_like empty_like full_like rand_like randn_like".split()
)
COUNTING = (ast.Name, ast.Constant, ast.UnaryOp, ast.USub, ast.BinOp, ast.Add, ast.Sub)  # `i + 1` of a number
SOMETIMES = (ast.IfExp, ast.BoolOp, ast.Lambda, *COMPREHENSIONS)  # what is in there may run never, or often


@dataclass(frozen=True, slots=True)
class Outside:
    """The expressions that are handed in, in order; or why that cannot be. `read` are those of them that only take a tensor
    from where it is held."""

    nodes: tuple[ast.expr, ...] = ()
    refused: str = ""
    read: frozenset[ast.expr] = frozenset()


@dataclass(frozen=True, slots=True)
class _Reading:
    """What only takes something from where tensors are `held`: `state.hidden`, `skips[-1]`, or a size of one that is only
    `looked_at`: `x.shape[0]`."""

    held: frozenset[str]
    looked_at: frozenset[str]
    made: Collection[Span] | None

    def fits(self, node: ast.expr) -> bool:
        """Whether that is all that an expression does."""
        if (name := _looked_at(node)) is not None:
            return name in self.looked_at
        if isinstance(node, ast.Attribute):
            return is_dotted(node) and ast.unparse(node) in self.held
        if not isinstance(node, ast.Subscript) or self.made is None or span_of(node) in self.made:
            return False
        taken_from = node.value
        if not is_dotted(taken_from) or ast.unparse(taken_from) not in self.held:
            return False
        number = [n for n in ast.walk(node.slice) if not isinstance(n, ast.expr_context)]
        return all(isinstance(n, COUNTING) and not (isinstance(n, ast.BinOp) and span_of(n) in self.made) for n in number)


def outside_of(
    syntax: Syntax,
    node: ast.expr,
    asked: Collection[Span],
    made: Collection[Span] | None,
    held: Collection[str] = (),
) -> Outside:
    """What of an expression is evaluated outside. `asked` are spans that are no part of it; `made` those that make operations,
    None where that is not known: then only what is known to change something is. `held` are names that hold tensors, and
    attributes of plain objects that do, `state.hidden`: of those, and of lists, what is read in any case is handed in alone."""
    found: list[ast.expr] = []
    looked_at = _names_looked_at(node, frozenset(held), frozenset(asked))
    reading = _Reading(frozenset(held), looked_at, made)
    refused = _collect(node, node, frozenset(asked), made, reading, False, found)
    wanted = frozenset(asked) - {span_of(n) for o in found for n in (o, value_of(o))}
    if wanted and not refused:
        refused = "what should be outside is not in it"
    if any(n is not node and n not in syntax.parents for n in found):
        refused = refused or "something in a formatted string may not happen twice"
    if any(_is_used_up(syntax, n) for n in found if span_of(n) not in asked):
        refused = refused or "what is handed in may be a generator, which runs once"
    refused = refused or _order(syntax, node, found, frozenset(asked), reading) or _naming(syntax, node, found)
    if not refused and not _names_like(node, found).isdisjoint(held):
        refused = "it is given a tensor for its size or type alone"
    return Outside(tuple(found), refused, frozenset(filter(reading.fits, found)))


def _looked_at(node: ast.AST) -> str | None:
    """The name of a thing of which an expression is a size, a type or a device: `x.shape[0]`, `x.size(0)`, `x.dtype`."""
    if isinstance(node, ast.Subscript) and isinstance(node.slice, (ast.Constant, ast.UnaryOp)):
        inner = _looked_at(node.value)
        return inner if isinstance(node.value, ast.Attribute) else None
    attributes, looked = LOOKS, node
    if isinstance(node, ast.Call) and all(isinstance(a, (ast.Constant, ast.UnaryOp)) for a in node.args) and not node.keywords:
        attributes, looked = SIZES, node.func
    if not isinstance(looked, ast.Attribute) or looked.attr not in attributes or not isinstance(looked.value, ast.Name):
        return None
    return looked.value.id


def _names_looked_at(node: ast.expr, held: frozenset[str], asked: frozenset[Span]) -> frozenset[str]:
    """The names of what an expression only looks at, but for what is handed in."""
    found, read = set[str](), set[str]()

    def walk(inner: ast.AST) -> None:
        if inner is not node and isinstance(inner, ast.expr) and span_of(inner) in asked:
            return
        if (name := _looked_at(inner)) is not None:
            found.add(name)
        elif isinstance(inner, ast.Name):
            read.add(inner.id)
        else:
            for child in in_order(inner):
                walk(child)

    walk(node)
    return frozenset(found - read) & held


def _names_like(node: ast.expr, found: Collection[ast.expr]) -> set[str]:
    """The names of tensors of which all that stays inside takes the size or the type, as `y.type_as(x)` does of x: they would
    be held."""
    like, others = set[str](), set[str]()

    def walk(inner: ast.AST, above: ast.AST | None) -> None:
        if inner in found:
            return
        if isinstance(inner, ast.Name):
            is_like = isinstance(above, ast.Call) and _said(above) in LIKE and inner in above.args[:1]
            (like if is_like else others).add(inner.id)
        for child in in_order(inner):
            walk(child, inner)

    walk(node, None)
    return like - others


def _said(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _is_used_up(syntax: Syntax, node: ast.expr) -> bool:
    """Whether what a call gives is gone through where it stands: it may be a generator."""
    above = syntax.parents.get(node)
    through = isinstance(above, ast.Call) and isinstance(above.func, ast.Name) and above.func.id in ITERATING
    return isinstance(node, ast.Call) and (through or isinstance(above, (ast.Starred, ast.comprehension)))


def _collect(
    node: ast.AST,
    whole: ast.expr,
    asked: frozenset[Span],
    made: Collection[Span] | None,
    reading: _Reading,
    sometimes: bool,
    found: list[ast.expr],
) -> str:
    """Adds what is outside to `found`."""
    if node is not whole and not sometimes and isinstance(node, ast.expr) and reading.fits(node):
        found.append(node)
        return ""
    if node is not whole and isinstance(node, ast.expr):
        is_asked = not isinstance(node, (ast.Starred, ast.Slice)) and bool({span_of(node), span_of(value_of(node))} & asked)
        if is_asked or (isinstance(node, ast.Call) and _matters(node, made)):
            if sometimes:
                return "something in it may not happen twice, and does not always happen"
            if not is_asked and made is not None and any(span_of(n) in made for n in _calls(node)):
                return "a call in it changes something"
            found.append(node)
            return ""
        if isinstance(node, SOMETIMES) and made is not None and not _is_made(node, made) and _effects(node, made):
            found.append(node)
            return "something in it does not always happen" if sometimes else ""
    elif node is whole and isinstance(node, ast.Call) and _is_changing(node):
        return "it changes something"
    for i, child in enumerate(in_order(node)):
        inner = sometimes or _is_sometimes(node, child, i)
        refused = _collect(child, whole, asked, made, reading, inner, found)
        if refused:
            return refused
    return ""


def _is_sometimes(node: ast.AST, child: ast.AST, index: int) -> bool:
    """Whether a child of a node may run never, or more than once."""
    if isinstance(node, COMPREHENSIONS):
        return child is not node.generators[0]
    if isinstance(node, ast.comprehension):
        return True  # its first iterable runs once; for all that is known here
    if isinstance(node, ast.Compare):
        return index > 1 + len(node.ops)  # behind what is first, the operators, and what that is compared with
    return isinstance(node, ast.Lambda) or (isinstance(node, (ast.IfExp, ast.BoolOp)) and index > 0)


def _calls(node: ast.AST) -> list[ast.Call]:
    return [n for n in ast.walk(node) if isinstance(n, ast.Call)]


def _is_made(node: ast.AST, made: Collection[Span]) -> bool:
    return any(span_of(n) in made for n in ast.walk(node) if isinstance(n, ast.expr))


def _effects(node: ast.AST, made: Collection[Span] | None) -> bool:
    return any(_matters(call, made) for call in _calls(node))


def _matters(call: ast.Call, made: Collection[Span] | None) -> bool:
    """Whether a call is not to happen twice: it makes no operation, and is not known to be without effects."""
    if _is_changing(call):
        return made is None or span_of(call) not in made or _is_consuming(call)
    return made is not None and span_of(call) not in made and not _is_pure(call)


def _is_consuming(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Name) or call.func.attr not in ("add", "sort", "put")  # type: ignore[attr-defined]


def _is_changing(call: ast.Call) -> bool:
    if isinstance(call.func, ast.Name):
        return call.func.id in CONSUMING
    return isinstance(call.func, ast.Attribute) and call.func.attr in CHANGING and root_of(call.func) not in LIBRARIES


def _is_pure(call: ast.Call) -> bool:
    if isinstance(call.func, ast.Name):
        return call.func.id in PURE
    if not isinstance(call.func, ast.Attribute):
        return False
    name = call.func.attr
    if root_of(call.func) in LIBRARIES:
        return not name.endswith("_") and "random" not in ast.unparse(call.func)
    tensors = hasattr(torch.Tensor, name) and not name.endswith("_")
    return (tensors and not _is_self(call.func.value)) or name in PURE_METHODS


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


def root_of(node: ast.expr) -> str:
    """The name that a call, an item or an attribute begins with; empty where it is none."""
    while isinstance(node, (ast.Attribute, ast.Subscript, ast.Call)):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def _order(syntax: Syntax, node: ast.expr, found: list[ast.expr], asked: frozenset[Span], reading: _Reading) -> str:
    """Why what is handed in cannot be evaluated before the rest; empty where nobody sees a difference. Attributes that are read
    before are handed in, too. What only takes a tensor from where it is held is the same after others were."""
    inside, read = _before(node, found), list[ast.expr]()
    for outer in found:
        names = frozenset(free_names(outer)) - LIBRARIES - PURE
        but = found if reading.fits(outer) else ()
        seen = [n for n in inside[outer] if names & frozenset(free_names(n, but)) and not _is_callee(syntax, n)]
        read += [n for n in seen if is_dotted(n)]
        drawn = span_of(outer) in asked and any(isinstance(n, ast.Call) and _may_draw(n) for n in inside[outer])
        if drawn or not all(map(is_dotted, seen)):
            return "what is evaluated before a part would change its order with something in it"
    longest = [n for n in dict.fromkeys(read) if syntax.parents.get(n) not in read]
    found[:] = sorted([*found, *longest], key=syntax.order.__getitem__)
    return ""


def _naming(syntax: Syntax, node: ast.expr, found: Collection[ast.expr]) -> str:
    """Why what `:=` names would be something else; empty where it is read later only, and has a name by then, and where it gets
    that: in the part, or, where that is handed in as it stands, in both."""
    for walrus in (n for n in ast.walk(node) if isinstance(n, ast.NamedExpr)):
        around = next((outer for outer in found if walrus in ast.walk(outer)), None)
        own = set(ast.walk(around or walrus))
        mentions = [n for n in ast.walk(node) if isinstance(n, ast.Name) and n.id == walrus.target.id and n not in own]
        if any(n not in syntax.order for n in (walrus, *mentions)):
            return "a name that it assigns (:=) is in a formatted string"
        if any(syntax.order[n] < syntax.order[walrus] for n in mentions) or not set(mentions) <= _always(syntax, node, walrus):
            return "it may read a name before it assigns it (:=)"
        handed = {n for outer in found for n in ast.walk(outer)}
        if (around is None and handed.intersection(mentions)) or (around not in (None, walrus) and mentions):
            return "a name that it assigns (:=) is read both in the part and outside"
    return ""


def _always(syntax: Syntax, node: ast.expr, walrus: ast.AST) -> set[ast.AST]:
    """What of an expression is evaluated only where something in it is: all of it, unless that may be left out."""
    inner: ast.AST = walrus
    for outer in syntax.ancestors(walrus):
        if _is_sometimes(outer, inner, [*in_order(outer)].index(inner)):
            return set(ast.walk(inner))
        if outer is node:
            break
        inner = outer
    return set(ast.walk(node))


def _is_callee(syntax: Syntax, node: ast.AST) -> bool:
    """Whether what is read is only what is called, `self.drop` in `self.drop(x)`."""
    while isinstance(node, ast.Attribute):
        above = syntax.parents[node]
        if isinstance(above, ast.Call) and above.func is node:
            return is_dotted(node)
        node = above
    return False


def _may_draw(call: ast.Call) -> bool:
    """Whether a call may draw random numbers, or change something: what draws before another has to stay before it."""
    keywords = {k.arg for k in call.keywords}
    switched = any(isinstance(a, ast.Constant) and a.value is True for a in call.args)  # as in F.relu(x, True)
    changes = switched or keywords & {"out", "inplace", None}
    return not _is_pure(call) or bool(changes) or any(word in ast.unparse(call.func) for word in DRAWING)


def _before(node: ast.expr, found: list[ast.expr]) -> dict[ast.expr, list[ast.expr]]:
    """By what is outside: what stays inside and is done before it, but for names and constants."""
    result: dict[ast.expr, list[ast.expr]] = {}
    done: list[ast.expr] = []

    def walk(inner: ast.AST) -> None:
        if inner in found:
            result[inner] = list(done)  # type: ignore[index]
            return
        for child in in_order(inner):
            walk(child)
        if isinstance(inner, ast.expr) and not isinstance(inner, (ast.Name, ast.Constant, ast.Tuple, ast.List, ast.Starred)):
            done.append(inner)

    walk(node)
    return result
