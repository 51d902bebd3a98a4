"""What the functions of different segments agree on: names, who keeps what for whom, and where the backward program waits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from remat_codegen.emit.proof import Proof
from remat_codegen.emit.scope import Scope
from remat_codegen.emit.segments import Program
from remat_codegen.errors import UnsupportedError
from remat_codegen.graph.simplify import Model, is_view
from remat_codegen.schedule import Copy
from remat_codegen.torch_seam import schema
from remat_codegen.trace import Operation, Ref

FunctionExpression = Callable[
    [type, str, str], str
]  # for a Function: of it, the path of a module that calls it, and its expression


@dataclass
class Linkage:
    """What functions of different segments agree on. `stops` are the backward nodes that the backward program waits for."""

    program: Program
    model: Model
    scopes: Sequence[Scope]
    owner_of: dict[int, int]
    maker: dict[int, Operation]
    data_of_storage: dict[int, int | None]
    proof: Proof
    class_expression: FunctionExpression
    stops: set[int] = field(default_factory=set)

    @staticmethod
    def of(program: Program, model: Model, wishes: dict[int, str], class_expression: FunctionExpression) -> Linkage:
        """The linkage of a program; nothing is waited for yet."""
        owners: dict[int, int] = {}
        for variable, data in enumerate(model.data_of):
            if data is not None:
                owners.setdefault(data, variable)
        scopes = [Scope.of(model, b.id, wishes) for b in program.graph.blocks]
        maker = {v: op for op in model.trace.operations for v in op.made}
        data_of = {row.storage: model.data_of[v] for v, row in enumerate(model.record.variables)}
        return Linkage(program, model, scopes, owners, maker, data_of, Proof(model.trace), class_expression)

    def waiting_point(self, position: int) -> int | None:
        """The backward node to wait for so that what stands at `position` happens in time; None at the very end."""
        node = self.program.next_back[position]
        if node is None:
            return None
        while self.stop_variable(node) is None:  # autograd does not show this node: an earlier one will do
            node -= 1
        if node <= self.program.graph.loss:
            hint = "use --edition 2, another --budget or another --planner"
            raise UnsupportedError("the backward pass of the model's last operation cannot be waited for", hint=hint)
        self.stops.add(node)
        return node

    def stop_variable(self, backward_node: int) -> int | None:
        """The value whose way back is the first thing autograd goes through of a backward node."""
        last = self.last_operation(backward_node)
        return None if last is None else self.model.record.operations[last].stop

    def last_operation(self, backward_node: int) -> int | None:
        """The operation that autograd goes back through first of a backward node."""
        forward = self.program.graph.nodes[backward_node].forward
        operations = () if forward is None else self.model.bodies[forward].operations
        return next((op for op in reversed(operations) if self.model.record.operations[op].backward), None)

    def stop_name(self, backward_node: int) -> tuple[int, str]:
        """The block that a backward node belongs to, and the name of its stop there."""
        variable = self.stop_variable(backward_node)
        forward = self.program.graph.nodes[backward_node].forward
        assert variable is not None and forward is not None
        block = self.program.block_of[forward]
        return block, self.scopes[block].name(variable)

    def keepers(self, variable: int, data: int, copy: Copy, block: int) -> list[int]:
        """The steps of other segments, all of `block`, that run again and ask for a piece of data under one of its names."""
        steps = self.program.keepers(data, copy, block)
        names = set(self.outside_of(data, block))
        if len(names) < 2 or variable not in names:
            return steps
        return [r for r in steps if variable in (self._asked(r, names) or names)]

    def _asked(self, position: int, names: set[int]) -> set[int]:
        """Those of some names that the functions of a node that runs again takes, for itself or for a view of it."""
        node = self.program.node_at(position)
        assert node is not None
        found: set[int] = set()
        seen: set[int] = set()
        pending = [v for op in self.model.bodies[node.id].operations for v in self._read_by(op)]
        while pending:
            variable = pending.pop()
            if variable in seen:
                continue
            seen.add(variable)
            if variable in names:
                found.add(variable)
            elif variable in self.maker and is_view(self.model.record, self.maker[variable]):
                pending += self.maker[variable].reads
        return found

    def _read_by(self, op: int) -> tuple[int, ...]:
        operation = self.model.trace.operations[op]
        return () if is_view(self.model.record, operation) else operation.reads

    def outside_of(self, data: int, block: int) -> list[int]:
        """The variables under which another block's function knows a piece of data."""
        return [v for v in self.scopes[block].outside() if self.model.data_of[v] == data]


def changed_argument(operation: Operation) -> int | None:
    """The variable that an in-place operation changes and returns."""
    for position, argument in enumerate(schema(operation.target).arguments):
        if argument.alias_info is not None and argument.alias_info.is_write and position < len(operation.args):
            value = operation.args[position]
            return value.variable if isinstance(value, Ref) else None
    return None
