"""Names in a function: which are local, which an expression takes from around it, what parts and parameters may be called."""

from __future__ import annotations

import ast
import keyword
from collections.abc import Collection, Iterable, Iterator

from remat_codegen.marked.syntax import COMPREHENSIONS, FUNCTIONS, Syntax, in_order, is_dotted
from remat_codegen.trace.places import Span

DEFINED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def free_names(node: ast.AST, without: Collection[ast.AST] = ()) -> tuple[str, ...]:
    """The names that an expression reads and does not bind itself, in order; not those in the expressions `without`."""
    return tuple(dict.fromkeys(n.id for n in _free(node, named_in(node), without)))


def identifiers(nodes: Iterable[ast.AST]) -> frozenset[str]:
    """All that nodes name, attributes and arguments among it; not what stands in texts and comments."""
    values = (value for n in nodes if not isinstance(n, ast.Constant) for _, value in ast.iter_fields(n))
    return frozenset(v for value in values for v in (value if isinstance(value, list) else [value]) if isinstance(v, str))


def named_in(node: ast.AST) -> frozenset[str]:
    """The names that an expression binds by `:=`."""
    return frozenset(n.target.id for n in ast.walk(node) if isinstance(n, ast.NamedExpr))


def _free(node: ast.AST, bound: frozenset[str], without: Collection[ast.AST]) -> Iterator[ast.Name]:
    if node in without:
        return
    if isinstance(node, ast.Name):
        if node.id not in bound:
            yield node
    elif isinstance(node, COMPREHENSIONS):
        yield from _free(node.generators[0].iter, bound, without)
        bound |= {n.id for g in node.generators for n in ast.walk(g.target) if isinstance(n, ast.Name)}
        skipped = (node.generators[0].iter, *without)
        for child in in_order(node):
            yield from _free(child, bound, skipped)
    elif isinstance(node, ast.Lambda):
        for default in (*node.args.defaults, *(d for d in node.args.kw_defaults if d is not None)):
            yield from _free(default, bound, without)
        yield from _free(node.body, bound | {a.arg for a in ast.walk(node.args) if isinstance(a, ast.arg)}, without)
    else:
        for child in in_order(node):
            yield from _free(child, bound, without)


def local_names(syntax: Syntax, node: ast.AST) -> frozenset[str]:
    """The names of values that the functions around an expression bind; not those of functions and modules."""
    found: set[str] = set()
    for outer in syntax.ancestors(node):
        if isinstance(outer, COMPREHENSIONS):
            found |= {n.id for g in outer.generators for n in ast.walk(g.target) if isinstance(n, ast.Name)}
        elif isinstance(outer, FUNCTIONS):
            found |= {a.arg for a in ast.walk(outer.args) if isinstance(a, ast.arg)}
            found |= set(_bound(outer.body if isinstance(outer.body, list) else [outer.body]))
        elif isinstance(outer, ast.ClassDef):
            break
    return frozenset(found)


def _bound(body: Iterable[ast.AST]) -> Iterator[str]:
    """The names that statements bind to values, but for those inside of functions."""
    ahead = list(body)
    while ahead:
        node = ahead.pop()
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            yield node.id
        elif isinstance(node, (ast.MatchAs, ast.MatchStar)) and node.name:
            yield node.name
        elif isinstance(node, ast.MatchMapping) and node.rest:
            yield node.rest
        elif isinstance(node, COMPREHENSIONS):
            yield from named_in(node)
        if not isinstance(node, (*DEFINED, ast.Lambda, *COMPREHENSIONS)):
            ahead += ast.iter_child_nodes(node)


def declared(method: ast.AST) -> frozenset[str]:
    """The names that functions in a method declare as another one's."""
    found = (n.names for n in ast.walk(method) if isinstance(n, (ast.Nonlocal, ast.Global)))
    return frozenset(name for names in found for name in names)


def unused(wanted: Iterable[str], taken: Collection[str]) -> str:
    """The first of some names that is free; else the last with a number."""
    names = list(wanted)
    for name in names:
        if name not in taken:
            return name
    numbered = (f"{names[-1]}_{i}" for i in range(2, len(taken) + 3))
    return next(n for n in numbered if n not in taken)


def name_for(syntax: Syntax, span: Span, taken: Collection[str] = (), children: Collection[str] = ()) -> str:
    """What to call the part at a span: after the user's variable, else what is called last, else the operator. `taken` are the
    names of other parts in this function, `children` those of the class's modules: a longer name is found where it is one."""
    node = syntax.find(span)
    if isinstance(node, ast.AugAssign):
        return unused([said(node.target) or "part"], {*taken, *children})
    if not isinstance(node, ast.expr):
        return unused(["part"], {*taken, *children})
    last = said(node) or "part"
    longer = [f"{last}_{what}" for what in _operands(node, local_names(syntax, node)) if what]
    return unused([assigned(syntax, node) or last, last, *longer, last], {*taken, *children})


def assigned(syntax: Syntax, node: ast.expr) -> str:
    """The variable that an expression is assigned to, if it is the whole right side."""
    parent = syntax.parents.get(node)
    targets = parent.targets if isinstance(parent, ast.Assign) else [parent.target] if isinstance(parent, ast.AnnAssign) else []
    if len(targets) != 1 or getattr(parent, "value", None) is not node:
        return ""
    target = targets[0]
    return target.id if isinstance(target, ast.Name) else target.attr if isinstance(target, ast.Attribute) else ""


def said(node: ast.AST) -> str:
    """A word for what an expression does at last: gelu, dropout, add, getitem; of a variable its name."""
    if isinstance(node, ast.Call):
        return said(node.func)
    if isinstance(node, (ast.Name, ast.Attribute)):
        return _word(node.id if isinstance(node, ast.Name) else node.attr)
    if isinstance(node, ast.Subscript):
        return said(node.value) if not isinstance(node.value, ast.Call) and _is_chosen(node) else "getitem"
    if isinstance(node, ast.IfExp):
        return said(node.body) or said(node.orelse)
    if isinstance(node, (ast.BinOp, ast.UnaryOp)):
        return _OPERATORS.get(type(node.op), "operation")
    if isinstance(node, ast.Compare):
        return _OPERATORS.get(type(node.ops[0]), "compare")
    if isinstance(node, ast.Starred):
        return said(node.value)
    return _KINDS.get(type(node), "")


_OPERATORS: dict[type, str] = {
    **{ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div", ast.MatMult: "matmul", ast.Pow: "pow", ast.Mod: "mod"},
    **{ast.FloorDiv: "floordiv", ast.USub: "neg", ast.UAdd: "pos", ast.Invert: "invert", ast.Not: "negation"},
    **{ast.BitAnd: "both", ast.BitOr: "either", ast.BitXor: "xor", ast.LShift: "lshift", ast.RShift: "rshift"},
    **{ast.Eq: "eq", ast.NotEq: "ne", ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt", ast.GtE: "ge"},
}
_KINDS: dict[type, str] = {
    **{ast.Tuple: "several", ast.List: "several", ast.Set: "several", ast.Dict: "several", ast.DictComp: "several"},
    **{ast.ListComp: "several", ast.SetComp: "several", ast.BoolOp: "choice"},
}


def _is_chosen(node: ast.Subscript) -> bool:
    """Whether a subscript takes one of several modules, `self.blocks[i]`, and not a piece of a tensor."""
    value = node.value
    return isinstance(value, ast.Attribute) and isinstance(value.value, ast.Name) and value.value.id == "self"


def _word(name: str) -> str:
    stripped = name.strip("_")
    return f"{stripped}_" if keyword.iskeyword(stripped) else stripped


def _operands(node: ast.expr, local: Collection[str]) -> list[str]:
    """Words for what an expression is applied to, those that say most first: calls, then variables."""
    if isinstance(node, ast.Call):
        value = node.func.value if isinstance(node.func, ast.Attribute) else None
        held = isinstance(value, ast.Name) and value.id in local and value.id != "self"
        method = [value] if value is not None and (held or not is_dotted(value)) else []
        found: list[ast.expr] = [*method, *node.args]
    elif isinstance(node, ast.BinOp):
        found = [node.right, node.left]
    elif isinstance(node, (ast.Subscript, ast.Attribute)):
        found = [node.value]
    else:
        found = [child for child in in_order(node) if isinstance(child, ast.expr)]
    return [said(f) for f in sorted(found, key=lambda f: not isinstance(f, ast.Call))]
