"""What a file's helpers have to know. `parts.py` has a constant for each, which is settled here, and what is then out of reach
goes: a file carries what its model can meet, and refuses the rest by name."""

from __future__ import annotations

import ast
import dis
import inspect
import sys
import textwrap
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, fields
from types import CodeType, FunctionType, ModuleType

import libcst as cst
import torch

from remat_codegen.graph.record import Record
from remat_codegen.torch_seam import buffers_of
from remat_codegen.trace.ir import Trace


@dataclass(frozen=True, slots=True)
class Features:
    """One for each of the constants that `parts.py` begins with, of the same name."""

    random: bool = True
    numpy: bool = True
    buffers: bool = True
    in_place: bool = True
    marks: bool = True
    functions: bool = True
    nested: bool = True
    twice: bool = True
    numbered: bool = True
    library: bool = True
    defaulted: bool = True
    several: bool = False
    batches: bool = False
    checkpoints: bool = False
    recorded: bool = False
    on_gpu: bool = False
    static: bool = False
    home: bool = False
    counters: bool = True
    shares: bool = True
    objects: bool = True
    decorated: bool = False
    given: bool = False
    lazy: bool = False
    attributes: bool = False
    closures: bool = False
    complex: bool = False

    def constants(self) -> dict[str, bool]:
        """As `parts.py` calls them."""
        return {f.name.upper(): getattr(self, f.name) for f in fields(self)}


def draws(trace: Trace) -> bool:
    """Whether a forward pass draws random numbers."""
    targets = (op.target for op in trace.operations)
    return any(torch.Tag.nondeterministic_seeded in getattr(target, "tags", ()) for target in targets)


def knows_numpy(module: torch.nn.Module) -> bool:
    """Whether a file that a model's classes stand in has imported NumPy, or something of it."""
    homes = {kind.__module__ for m in module.modules() for kind in type(m).__mro__ if not kind.__module__.startswith("torch.")}
    known = (thing for home in homes if home in sys.modules for thing in vars(sys.modules[home]).values())
    names = (thing.__name__ if isinstance(thing, ModuleType) else getattr(thing, "__module__", None) for thing in known)
    return any(isinstance(name, str) and name.partition(".")[0] == "numpy" for name in names)


def moves_buffers(module: torch.nn.Module, record: Record) -> bool:
    """Whether a forward pass can change what it is given. Batch norms do without a new version of what they change."""
    norms = any("running_mean" in buffers_of(m) for m in module.modules())
    return norms or any(record.storages[s].operation is None for row in record.operations for s in row.mutated)


def holds_in_objects(trace: Trace) -> bool:
    """Whether variables of a forward pass hold plain objects with tensors in attributes."""
    return any("." in name for op in trace.operations for call in op.calls for name in call.tensors)


def set_by_forward(module: torch.nn.Module, trace: Trace) -> list[str]:
    """The attributes of modules in which a forward pass leaves tensors, or things that are no numbers or words, and that
    methods of their classes read: by class and name."""
    modules, found = dict(module.named_modules(remove_duplicate=False)), set[str]()
    tensors = {path for op in trace.operations for path, _ in op.attributes}  # also of those that are put back in the end
    for path in tensors.union(trace.assigned):
        owner, _, name = path.rpartition(".")
        if owner not in modules or not name.isidentifier():
            continue
        held = modules[owner]
        if path in tensors or not isinstance(vars(held).get(name), (bool, int, float, complex, str)):
            found.add(f"{type(held).__qualname__}.{name}")
    read = _read_by_methods(module) if found else ()
    return sorted(place for place in found if place.rpartition(".")[2] in read)


def _read_by_methods(module: torch.nn.Module) -> set[str]:
    """The names of attributes that methods of a model's classes read, of whatever."""
    kinds = {kind for m in module.modules() for kind in type(m).__mro__} - {torch.nn.Module, object}
    things = (getattr(thing, "fget", thing) for kind in kinds for thing in vars(kind).values())
    codes = [inspect.unwrap(f).__code__ for f in things if isinstance(f, FunctionType)]
    for code in codes:  # which grows
        codes += [c for c in code.co_consts if isinstance(c, CodeType)]
    steps = (step for code in codes for step in dis.get_instructions(code))
    return {step.argval for step in steps if step.opname in ("LOAD_ATTR", "LOAD_METHOD")}


def changes_in_place(record: Record) -> bool:
    """Whether a forward pass changes in place what an operation gave."""
    return any(record.storages[s].operation is not None for row in record.operations for s in row.mutated)


# ---------------------------------------------------------------------------- helpers without what a file does not need


def settled(code: cst.Module, features: Features) -> cst.Module:
    """Helpers in which the constants are replaced by what they are, without what is then out of reach."""
    kept = [s for s in code.body if not _assigns(s, features.constants())]
    settled = code.with_changes(body=kept).visit(_Settled(features.constants()))
    assert isinstance(settled, cst.Module)
    called = {"as_there"} if features.decorated else set[str]()
    return _reachable(settled, ROOTS | called | ({"with_marks"} if features.given else set()))


def _assigns(statement: cst.CSTNode, names: Iterable[str]) -> bool:
    """Whether a statement gives one of these names its value."""
    if not isinstance(statement, cst.SimpleStatementLine) or not isinstance(statement.body[0], cst.Assign):
        return False
    target = statement.body[0].targets[0].target
    return isinstance(target, cst.Name) and target.value in names


class _Settled(cst.CSTTransformer):
    """Replaces constants, in conditions only: `if`, conditional expressions, `and`, `or` and `not`."""

    def __init__(self, constants: dict[str, bool]) -> None:
        super().__init__()
        self.constants = constants

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.Name:
        known = self.constants.get(updated_node.value)
        return updated_node if known is None else cst.Name(str(known))

    def leave_UnaryOperation(self, original_node: cst.UnaryOperation, updated_node: cst.UnaryOperation) -> cst.BaseExpression:
        known = _known(updated_node.expression)
        return updated_node if known is None or not isinstance(updated_node.operator, cst.Not) else cst.Name(str(not known))

    def leave_BooleanOperation(
        self, original_node: cst.BooleanOperation, updated_node: cst.BooleanOperation
    ) -> cst.BaseExpression:
        decides = isinstance(updated_node.operator, cst.Or)
        for side, other in ((updated_node.left, updated_node.right), (updated_node.right, updated_node.left)):
            known = _known(side)
            if known is not None:
                return side if known is decides else other
        return updated_node

    def leave_IfExp(self, original_node: cst.IfExp, updated_node: cst.IfExp) -> cst.BaseExpression:
        known = _known(updated_node.test)
        return updated_node if known is None else updated_node.body if known else updated_node.orelse

    def leave_If(
        self, original_node: cst.If, updated_node: cst.If
    ) -> cst.BaseStatement | cst.FlattenSentinel | cst.RemovalSentinel:
        known = _known(updated_node.test)
        if known is None:
            return updated_node
        if known:
            return cst.FlattenSentinel(_statements(updated_node))
        return _otherwise(updated_node)

    def leave_IndentedBlock(self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock) -> cst.IndentedBlock:
        """Without what follows where a block always returns or raises."""
        ends = [n for n, s in enumerate(updated_node.body) if _leaves(s)]
        return updated_node if not ends else updated_node.with_changes(body=updated_node.body[: ends[0] + 1])


def _known(expression: cst.BaseExpression) -> bool | None:
    return {"True": True, "False": False}.get(expression.value) if isinstance(expression, cst.Name) else None


def _statements(node: cst.If | cst.Else) -> Sequence[cst.BaseStatement]:
    block = node.body
    assert isinstance(block, cst.IndentedBlock)
    first, *rest = block.body
    return [first.with_changes(leading_lines=[*node.leading_lines, *_lines(first)]), *rest]


def _lines(statement: cst.BaseStatement) -> Sequence[cst.EmptyLine]:
    return getattr(statement, "leading_lines", ())


def _otherwise(node: cst.If) -> cst.BaseStatement | cst.FlattenSentinel | cst.RemovalSentinel:
    if node.orelse is None:
        return cst.RemoveFromParent()
    if isinstance(node.orelse, cst.If):  # an elif
        return node.orelse
    return cst.FlattenSentinel(_statements(node.orelse))


def _leaves(statement: cst.BaseStatement) -> bool:
    return isinstance(statement, cst.SimpleStatementLine) and isinstance(statement.body[-1], (cst.Return, cst.Raise))


# ---------------------------------------------------------------------------- what is in reach

_PASS = cst.SimpleStatementLine([cst.Pass()])
ROOTS = frozenset({"parts", "training_step", "adopt", "running_again"})


def _reachable(module: cst.Module, roots: Collection[str]) -> cst.Module:
    """Without functions, classes, constants and methods that nothing else mentions, but for `roots`."""
    known: dict[cst.CSTNode, Counter[str]] = {}  # as long as a statement is in here, its own are not counted anew
    while True:
        reads = [_mentions(s, known) for s in module.body]
        mentions = Counter[str]()
        for read in reads:
            mentions.update(read)
        stay = [s for s, read in zip(module.body, reads, strict=True) if _name(s) in roots or _stays(s, mentions, read)]
        body = [_pruned(s, mentions, known) for s in stay]
        if len(body) == len(module.body) and all(a is b for a, b in zip(body, module.body, strict=True)):
            return module
        module = module.with_changes(body=body)


def _stays(statement: cst.CSTNode, mentions: Counter[str], own: Counter[str]) -> bool:
    name = _name(statement)
    return name is None or mentions[name] > own[name]


def _name(statement: cst.CSTNode) -> str | None:
    """What a statement defines, if it is one that can go."""
    if isinstance(statement, (cst.FunctionDef, cst.ClassDef)):
        return statement.name.value
    assigned = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) else None
    if isinstance(assigned, (cst.Assign, cst.AnnAssign)):
        target = assigned.target if isinstance(assigned, cst.AnnAssign) else assigned.targets[0].target
        return target.value if isinstance(target, cst.Name) else None
    return None


def _mentions(node: cst.CSTNode, known: dict[cst.CSTNode, Counter[str]]) -> Counter[str]:
    """How often names and attributes are read. Of a class, that is found member by member, for some of these may go."""
    if node not in known:
        members = node.body.body if isinstance(node, cst.ClassDef) else ()
        alone = node.with_changes(body=cst.IndentedBlock([_PASS])) if isinstance(node, cst.ClassDef) else node
        known[node] = sum((_mentions(m, known) for m in members), _mentioned(alone))
    return known[node]


def _mentioned(node: cst.CSTNode) -> Counter[str]:
    tree = ast.parse(textwrap.dedent(cst.Module(body=()).code_for_node(node)))
    names = [n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)]
    return Counter(names + [n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Load)])


def _pruned(statement: cst.CSTNode, mentions: Counter[str], known: dict[cst.CSTNode, Counter[str]]) -> cst.CSTNode:
    if not isinstance(statement, cst.ClassDef) or statement.bases:  # what PyTorch calls stays
        return statement
    body = []
    for member in statement.body.body:
        name = member.name.value if isinstance(member, cst.FunctionDef) else "__doc__"
        if name.startswith("__") or mentions[name] > _mentions(member, known)[name]:
            body.append(member)
    if len(body) == len(statement.body.body):
        return statement
    return statement.with_changes(body=statement.body.with_changes(body=body))
