"""What things are called: the variables of one block, its modules and parameters, in that block's functions."""

from __future__ import annotations

import keyword
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from remat_codegen.emit.names import Namer
from remat_codegen.emit.shapes import BlockSizes, ShapeNames
from remat_codegen.emit.spell import TRAINING_ARGUMENT
from remat_codegen.graph.simplify import Model
from remat_codegen.trace import Operation, Origin, function_call
from remat_codegen.trace.refusals import short_path


def module_expression(base: str, path: str, containers: frozenset[str], root: str = "") -> str:
    """How to reach `path` from `base`, the module at `root`: m.h[3].attn, getattr(m, "odd name")."""
    text, here = base, root
    rest = path[len(root) + 1 :] if root else path
    for part in rest.split(".") if rest else ():
        indexed = part.endswith("]") and not part.startswith("[")
        part, bracket, keys = part.partition("[") if indexed else (part, "", "")
        if part.isdigit() and here in containers:
            text = f"{text}[{part}]"
        elif _is_attribute(part):
            text = f"{text}.{part}"
        else:
            text = f"getattr({text}, {part!r})"
        text += bracket + keys  # an element of a list or a dictionary
        here = f"{here}.{part}" if here else part
    return text


def _is_attribute(part: str) -> bool:
    """Whether `m.part` means the same inside a class and out of it."""
    mangled = part.startswith("__") and not part.endswith("__")
    return part.isidentifier() and part.isascii() and not mangled and not keyword.iskeyword(part)


def common_path(paths: Sequence[str]) -> str:
    """The longest module path that all `paths` start with."""
    split = [p.split(".") if p else [] for p in paths]
    shared: list[str] = []
    for parts in zip(*split, strict=False):
        if len(set(parts)) > 1:
            break
        shared.append(parts[0])
    return ".".join(shared)


def has_training_flag(operation: Operation) -> bool:
    """Whether an operation behaves differently in training, and its module's flag says which."""
    base = operation.base.rstrip("_")
    if base == "scaled_dot_product_attention":
        position = 4
        drops = position < len(operation.args) and operation.args[position] or dict(operation.kwargs).get("dropout_p")
        return bool(drops) and _mentions_training(operation)
    return base in TRAINING_ARGUMENT and _mentions_training(operation)


def _mentions_training(operation: Operation) -> bool:
    """torch's modules pass their own flag on; in a user's module the line has to say so."""
    own = operation.module_type.startswith("torch.nn.")
    return own or (operation.source is not None and "training" in operation.source.text)


@dataclass
class Scope:
    """One block: which operations it holds, where its modules stand, and the name of each variable in its functions."""

    model: Model
    block: int
    operations: tuple[int, ...]
    wishes: dict[int, str]
    results: frozenset[int] = frozenset()
    names: dict[int, str] = field(default_factory=dict)
    namer: Namer = field(default_factory=Namer)
    read: list[int] = field(default_factory=list)
    sizes: BlockSizes = field(default_factory=BlockSizes)
    root: str = ""

    @staticmethod
    def of(model: Model, block: int, wishes: dict[int, str]) -> Scope:
        """The scope of a block of `model.graph`; `wishes` are the names that a reader would expect."""
        piece = model.graph.blocks[block]
        operations = tuple(op for node in range(piece.first, piece.last + 1) for op in model.bodies[node].operations)
        results = [v for op in operations for v in model.trace.operations[op].made]
        scope = Scope(model, block, operations, wishes, frozenset(results))
        scope.root = common_path(scope._paths())
        called = [function_call(model.trace.operations[op].target) for op in operations]
        scope.namer.taken |= {call.function.__qualname__.partition(".")[0] for call in called if call is not None}
        scope.read = scope._outside()
        for variable in [*(v for v in scope.read if scope._enters(v)), *scope.read, *results]:
            scope.name(variable)
        return scope

    def name(self, variable: int) -> str:
        """The name of an input or a result in this block's functions."""
        if variable not in self.names:
            wish = self.wishes.get(variable) or self.model.trace.variables[variable].path or "x"
            if variable in self.read and self._enters(variable):
                wish = "x"  # whatever made it: equal blocks have equal functions
            self.names[variable] = self.namer.fresh(wish)
        return self.names[variable]

    def _enters(self, variable: int) -> bool:
        """Whether a variable is the block's one input."""
        entering = self.model.graph.blocks[self.block].input
        return entering is not None and self.model.data_of[variable] == entering

    def _paths(self) -> list[str]:
        found = []
        for op in self.operations:
            operation = self.model.trace.operations[op]
            for variable in operation.mentions:
                found += self._holders(variable)
            if has_training_flag(operation) or function_call(operation.target) is not None:
                found.append(operation.module_path)
        return found or [""]

    def _holders(self, variable: int) -> list[str]:
        """The modules of a parameter or buffer, or of those that a view from another block looks at: it is taken anew."""
        given = self.model.trace.variables[variable]
        if given.origin in (Origin.PARAMETER, Origin.BUFFER):
            return [given.path.rpartition(".")[0]]
        if given.origin is not Origin.RESULT or variable in self.results or self.model.data_of[variable] is not None:
            return []
        maker = next(op for op in self.model.trace.operations if variable in op.results)
        return [path for v in maker.mentions for path in self._holders(v)]

    def outside(self) -> list[int]:
        """The model's inputs and other blocks' results that this block reads, in order."""
        return self.read

    def _outside(self) -> list[int]:
        found: dict[int, None] = {}
        for op in self.operations:
            for variable in self.model.trace.operations[op].mentions:
                origin = self.model.trace.variables[variable].origin
                if origin in (Origin.INPUT, Origin.CONSTANT, Origin.SIZE) or (
                    origin is Origin.RESULT and variable not in self.results
                ):
                    found[variable] = None
        return list(found)

    def own(self, variable: int) -> bool:
        """Whether an operation of this block makes a variable."""
        return variable in self.results

    def module(self, path: str) -> str:
        """The expression for a module, parameter or buffer."""
        return module_expression("m", path, self.model.trace.containers, self.root)

    def _module_inside(self, path: str) -> str | None:
        inside = not self.root or path == self.root or path.startswith(f"{self.root}.")
        return self.module(path) if inside else None

    def expression(self, variable: int) -> str:
        """The expression for a variable in this block's functions."""
        v = self.model.trace.variables[variable]
        if v.origin in (Origin.PARAMETER, Origin.BUFFER):
            return self.module(v.path)
        return self.name(variable)

    def shape_names(self, again: bool) -> ShapeNames:
        """The names of sizes for one function of this block, that of a first or of a second run."""
        return ShapeNames(self.model.trace, self.operations, self.namer, self.name, self._module_inside, self.sizes, again)

    def title(self) -> str:
        """What to call the block: the submodule that does most of its work, else the module it stands in."""
        children: Counter[str] = Counter()
        for op in self.operations:
            path = self.model.trace.operations[op].module_path
            rest = path[len(self.root) + 1 :] if self.root and path.startswith(f"{self.root}.") else "" if self.root else path
            children[next((p for p in rest.split(".") if p and not p.isdigit()), "")] += 1
        most = max((count for name, count in children.items() if name), default=0)
        best = [name for name, count in children.items() if name and count == most]
        if best:
            return best[-1]
        return next((p for p in reversed(self.root.split(".")) if p and not p.isdigit()), "whole")

    def lines(self) -> str:
        """The user's source lines that the block comes from: gpt2.py:19-30, 53."""
        found: dict[str, set[int]] = {}
        for op in self.operations:
            source = self.model.trace.operations[op].source
            if source is not None:
                found.setdefault(short_path(source.file), set()).add(source.line)
        return "; ".join(f"{file}:{_ranges(sorted(numbers))}" for file, numbers in found.items())


def _ranges(numbers: Sequence[int]) -> str:
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number <= parts[-1][1] + 2:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in parts)
