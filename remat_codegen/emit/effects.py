"""What a piece of a user's file may change when it runs: other objects of that file, or PyTorch as a whole.

Names stand for objects. The roots of an expression are the names whose objects it may be, or be a part of: TABLE of
`TABLE["a"].x`, both of `a or b`. A root "f()" is what a call of f returns, "f.()" what a call of one of its methods does,
"x.given" what a call that is given x may return, "~x" the class of x, "self.x" what an instance holds, and PARAMETER what a
function is given.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass, field

PARAMETER, CLASS = "<parameter>", "<class>"

# Calls at the top of a file that change nothing a class needs: what they print or log is not carried over.
QUIET_FUNCTIONS = frozenset({"print", "pprint", "open", "input", "warnings", "logging", "sys", "os"})
QUIET_METHODS = frozenset("debug info warning warn error critical exception log write writelines flush close".split())
QUIET_OF_TORCH = frozenset("set_printoptions save empty_cache synchronize is_available device_count".split())
CALM = frozenset(
    "abs bool callable dict dir enumerate float format getattr hasattr hash id int isinstance issubclass len list max min "
    "range repr round set sorted str sum tuple type zip".split()
)
CALM_METHODS = frozenset("format get items join keys lower numel rstrip size split strip upper values".split())
FRESH = frozenset("bool callable float format hasattr hash id int isinstance issubclass len print repr str".split())
SETTERS = frozenset({"setattr", "delattr", "__setattr__", "__delattr__", "update_wrapper", "wraps"})
HIDDEN = frozenset({"exec", "eval", "globals", "__import__"})  # may bind or change any name


@dataclass(slots=True)
class Effects:
    """What some code does. `stores` are the roots whose attributes or items it sets, `methods` those of whom it calls a method
    (with its name), `handed` what it gives to which function, `patches` what it sets in which roots, and to what. `dotted`
    are the full expressions that it mentions, such as torch.nn.Linear."""

    binds: dict[str, set[str]] = field(default_factory=dict)
    stores: set[str] = field(default_factory=set)
    methods: set[tuple[str, str]] = field(default_factory=set)
    calls: set[str] = field(default_factory=set)
    handed: list[tuple[str, frozenset[str]]] = field(default_factory=list)
    patches: list[tuple[frozenset[str], ast.expr | None]] = field(default_factory=list)
    through: set[tuple[str, str]] = field(
        default_factory=set
    )  # changed roots, with the attributes on the way to what is changed
    commands: list[ast.Call] = field(default_factory=list)  # calls whose results nobody takes
    called: list[ast.Call] = field(default_factory=list)
    mentions: set[str] = field(default_factory=set)
    dotted: set[str] = field(default_factory=set)
    returned: set[str] = field(default_factory=set)
    outside: set[str] = field(default_factory=set)  # declared global
    bases: set[str] = field(default_factory=set)  # of classes that it makes
    texts: set[str] = field(default_factory=set)
    sets_any_name: bool = False
    hidden: bool = False


def dotted(node: ast.expr) -> str:
    """torch.nn.init for that expression; empty where it is something else."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


def called_name(call: ast.Call) -> str:
    """The last name of what is called: update of TABLE.update(...)."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else call.func.id if isinstance(call.func, ast.Name) else ""


def first_name(node: ast.expr) -> str:
    """The name that an expression begins with: TABLE of TABLE["a"].update, print of print."""
    while isinstance(node, (ast.Attribute, ast.Subscript, ast.Call)):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def is_quiet(node: ast.stmt) -> bool:
    """Whether a statement only prints, logs, asserts, or is a string."""
    if isinstance(node, ast.Assert):
        return _is_calm(node.test) and (node.msg is None or _is_calm(node.msg))
    if not isinstance(node, ast.Expr):
        return False
    if not isinstance(node.value, ast.Call):
        return isinstance(node.value, (ast.Constant, ast.JoinedStr, ast.Name, ast.Attribute)) and _is_calm(node.value)
    return _is_quiet_call(node.value) and all(map(_is_calm, ast.iter_child_nodes(node.value)))


def _is_quiet_call(call: ast.Call) -> bool:
    root, name = first_name(call.func), called_name(call)
    if "environ" in dotted(call.func).split(".") or name in SETTERS:
        return False
    return name in QUIET_METHODS or root in QUIET_FUNCTIONS or (root == "torch" and name in QUIET_OF_TORCH)


def _is_calm(node: ast.AST) -> bool:
    """Whether an expression changes nothing: what it calls are well-known functions."""
    for part in ast.walk(node):
        if isinstance(part, (ast.NamedExpr, ast.Await, ast.Yield, ast.YieldFrom)):
            return False
        if isinstance(part, ast.Call) and not (_is_quiet_call(part) or _calms(part)):
            return False
    return True


def _calms(call: ast.Call) -> bool:
    if isinstance(call.func, ast.Name):
        return call.func.id in CALM
    return called_name(call) in CALM_METHODS or first_name(call.func) == "torch" and called_name(call) in QUIET_OF_TORCH


def roots(node: ast.AST | None) -> set[str]:
    """The names whose objects an expression may be, or be a part of."""
    if isinstance(node, ast.Name):
        return {node.id}
    if isinstance(node, ast.Attribute):
        if isinstance(node.value, ast.Name) and node.value.id == "self" and node.attr != "__class__":
            return {f"self.{node.attr}"}
        return {f"~{r}" for r in roots(node.value)} if node.attr == "__class__" else roots(node.value)
    if isinstance(node, ast.Call):
        return _roots_of_call(node)
    if isinstance(node, (ast.Subscript, ast.Starred, ast.Await, ast.NamedExpr)):
        return roots(node.value)
    if isinstance(node, (ast.Constant, ast.JoinedStr, ast.Compare, ast.Lambda)) or node is None:
        return set()
    return {r for child in ast.iter_child_nodes(node) for r in roots(child)}


def _roots_of_call(call: ast.Call) -> set[str]:
    given = {r for a in (*call.args, *(k.value for k in call.keywords)) for r in roots(a)}
    passed = {r if r.endswith((")", ".given")) else f"{r}.given" for r in given}
    if isinstance(call.func, ast.Name):
        if call.func.id == "type" and len(call.args) == 1:
            return {f"~{r}" for r in given}
        return set() if call.func.id in FRESH else passed | {f"{call.func.id}()"}
    if isinstance(call.func, ast.Attribute):
        if isinstance(call.func.value, ast.Name) and call.func.value.id in ("self", "cls"):
            return passed
        return passed | {r if r.endswith(")") else f"{r}.()" for r in roots(call.func.value)}
    return passed | roots(call.func)


class Walk(ast.NodeVisitor):
    """Collects the effects of some code: of what runs when it is loaded, or, where `inside`, of its functions, too."""

    def __init__(self, inside: bool = False) -> None:
        self.found = Effects()
        self.inside = inside
        self.in_class = False
        self.caught = 0  # what only looks at something decides there whether it fails

    # ------------------------------------------------------------------ definitions

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._decorated(node)
        for default in (*node.args.defaults, *node.args.kw_defaults, node.returns):
            self._visit_all([default] if default is not None else [])
        for argument in _parameters(node.args):
            self._visit_all([argument.annotation] if argument.annotation is not None else [])
        if self.inside:
            self._enter(node.args, self.in_class and not _is_static(node))
            before, self.in_class = self.in_class, False
            self._visit_all(node.body)
            self.in_class = before

    visit_AsyncFunctionDef = visit_FunctionDef  # type: ignore[assignment]

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._enter(node.args, False)
        self.visit(node.body)

    def _enter(self, arguments: ast.arguments, method: bool) -> None:
        names = [a.arg for a in _parameters(arguments)]
        if method and names and names[0] in ("self", "cls", "mcs", "mcls"):
            self.found.binds.setdefault(names[0], set()).update({CLASS} if names[0] == "cls" else set())
            names = names[1:]
        for name in names:
            self.found.binds.setdefault(name, set()).add(PARAMETER)
        positional = [*arguments.posonlyargs, *arguments.args]
        named = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
        for argument, default in (*zip(positional[::-1], arguments.defaults[::-1], strict=False), *named):
            self.found.binds.setdefault(argument.arg, set()).update(roots(default))

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._decorated(node)
        for base in node.bases:
            self.visit(base)
            self.found.bases.add(first_name(base))
        for keyword in node.keywords:  # a metaclass may do anything
            self.visit(keyword.value)
            self.found.calls.add(first_name(keyword.value))
        before, self.in_class = self.in_class, True
        own, self.found.binds = self.found.binds, {}  # what its body binds is no name of the file
        self._visit_all(node.body)
        shared = {f"self.{n}": {CLASS} for n, what in class_values(node) if what}
        self.found.binds = own | {k: v | shared.get(k, set()) for k, v in self.found.binds.items() if self.inside}
        if self.inside:
            self.found.binds |= {k: v | self.found.binds.get(k, set()) for k, v in shared.items()}
        self.in_class = before

    def _decorated(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
        """A decorator is called with what it decorates."""
        for decorator in node.decorator_list:
            self.visit(decorator)
            if isinstance(decorator, ast.Call):
                self._call(decorator.func, {node.name})
            else:
                self._call(decorator, {node.name})

    # ------------------------------------------------------------------ calls

    def visit_Expr(self, node: ast.Expr) -> None:
        if self.inside or self.caught or not is_quiet(node):
            self.found.commands += [node.value] if isinstance(node.value, ast.Call) else []
            self.generic_visit(node)

    def visit_Assert(self, node: ast.Assert) -> None:
        if self.inside or self.caught or not is_quiet(node):
            self.generic_visit(node)

    def visit_Try(self, node: ast.Try | ast.With) -> None:
        self.caught += 1
        self.generic_visit(node)
        self.caught -= 1

    visit_TryStar = visit_Try  # type: ignore[assignment]
    visit_With = visit_Try  # type: ignore[assignment]

    def visit_Call(self, node: ast.Call) -> None:
        given = {r for a in (*node.args, *(k.value for k in node.keywords)) for r in roots(a)}
        self.found.called.append(node)
        self._call(node.func, given)
        if called_name(node) in SETTERS and node.args:
            first, *others = node.args
            self.found.stores |= roots(first)
            self.found.patches.append((frozenset(roots(first)), others[-1] if len(others) > 1 else None))
            literal = bool(others) and isinstance(others[0], ast.Constant)
            own = isinstance(first, ast.Name) and first.id == "self"
            self.found.sets_any_name |= called_name(node) == "setattr" and not literal and not own
        self.found.hidden |= isinstance(node.func, ast.Name) and (
            node.func.id in HIDDEN or (node.func.id in ("vars", "locals") and not node.args)
        )
        self.generic_visit(node)

    def _call(self, function: ast.expr, given: Iterable[str]) -> None:
        """A method may change its object, a function what it is given."""
        if isinstance(function, ast.Attribute):
            self.found.methods |= {(r, function.attr) for r in roots(function.value)}
            self._reached_through(function.value)
        elif isinstance(function, ast.Name):
            self.found.calls.add(function.id)
        else:  # what a container holds, or a call has returned
            self.found.calls |= roots(function)
        if isinstance(function, ast.Name) and function.id in CALM:
            return
        self.found.calls |= set(given) if isinstance(function, ast.Name) and function.id in ("map", "filter") else set()
        self.found.handed.append((dotted(function) or first_name(function), frozenset(given)))

    # ------------------------------------------------------------------ what is set

    def visit_Assign(self, node: ast.Assign) -> None:
        self.visit(node.value)
        for target in node.targets:
            self._assign(target, node.value)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self.visit(node.annotation)
        if node.value is not None:
            self.visit(node.value)
            self._assign(node.target, node.value)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self.visit(node.value)
        self._assign(node.target, node.value)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self.visit(node.value)
        if isinstance(node.target, ast.Name):
            self.found.mentions.add(node.target.id)
            self.found.methods.add((node.target.id, "__iadd__"))
        else:
            self._assign(node.target, node.value)

    def visit_Delete(self, node: ast.Delete) -> None:
        for target in node.targets:
            if isinstance(target, ast.Name):
                self.found.stores |= set() if self.inside else {target.id}
                self.found.mentions.add(target.id)
            else:
                self._assign(target, None)

    def visit_For(self, node: ast.For | ast.AsyncFor | ast.comprehension) -> None:
        self.visit(node.iter)
        self._assign(node.target, node.iter)
        self._visit_all(node.ifs if isinstance(node, ast.comprehension) else [*node.body, *node.orelse])

    visit_AsyncFor = visit_For  # type: ignore[assignment]
    visit_comprehension = visit_For  # type: ignore[assignment]

    def visit_withitem(self, node: ast.withitem) -> None:
        self.visit(node.context_expr)
        if node.optional_vars is not None:
            self._assign(node.optional_vars, node.context_expr)

    def visit_Global(self, node: ast.Global) -> None:
        self.found.outside |= set(node.names)

    def visit_Return(self, node: ast.Return | ast.Yield) -> None:
        self.found.returned |= roots(node.value)
        self.generic_visit(node)

    visit_Yield = visit_Return  # type: ignore[assignment]

    def _assign(self, target: ast.expr, value: ast.expr | None) -> None:
        if isinstance(target, ast.Name):
            self.found.binds.setdefault(target.id, set()).update(roots(value))
        elif isinstance(target, (ast.Tuple, ast.List)):
            for element in target.elts:
                self._assign(element, value)
        elif isinstance(target, ast.Starred):
            self._assign(target.value, value)
        else:
            assert isinstance(target, (ast.Attribute, ast.Subscript))
            if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self":
                self.found.binds.setdefault(f"self.{target.attr}", set()).update(roots(value))
            self._reached_through(target.value)
            self.found.stores |= roots(target.value)
            self.found.patches.append((frozenset(roots(target.value)), value))
            self.found.mentions |= {first_name(target)}
            self.visit(target)

    def _reached_through(self, node: ast.expr) -> None:
        """Something is changed, which may be reached through attributes: part.table of `part.table["a"] = 1`."""
        names = [n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)]
        self.found.through |= {(r, name) for name in names for r in roots(node)}

    # ------------------------------------------------------------------ what is mentioned

    def visit_Name(self, node: ast.Name) -> None:
        self.found.mentions.add(node.id)
        self.found.dotted.add(node.id)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self.found.dotted |= {dotted(node)} - {""}
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        self.found.texts |= {node.value} if isinstance(node.value, str) else set()

    def _visit_all(self, nodes: Iterable[ast.AST]) -> None:
        for node in nodes:
            self.visit(node)


def _parameters(arguments: ast.arguments) -> list[ast.arg]:
    others = [a for a in (arguments.vararg, arguments.kwarg) if a is not None]
    return [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, *others]


def _is_static(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(dotted(d) == "staticmethod" for d in node.decorator_list)


def class_values(node: ast.ClassDef) -> list[tuple[str, bool]]:
    """The names that a class's body assigns, each with whether all instances share something that can change."""
    found = []
    for statement in node.body:
        if isinstance(statement, (ast.Assign, ast.AnnAssign)) and statement.value is not None:
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            shared = isinstance(statement.value, (ast.Dict, ast.List, ast.Set, ast.Call, ast.ListComp, ast.DictComp, ast.Name))
            found += [(t.id, shared) for t in targets if isinstance(t, ast.Name)]
    return found


def effects_of(nodes: Iterable[ast.AST], inside: bool = False) -> Effects:
    """What running some code does, or, where `inside`, what its functions do as well."""
    walk = Walk(inside)
    for node in nodes:
        walk.visit(node)
    return walk.found
