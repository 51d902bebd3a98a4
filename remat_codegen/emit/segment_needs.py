"""What the function of a segment has to do, as the program and the model say; nothing is written here."""

from __future__ import annotations

from remat_codegen.emit.linkage import Linkage
from remat_codegen.emit.segments import Role, Segment
from remat_codegen.graph.ir import Kind, Node
from remat_codegen.graph.simplify import Body, is_view
from remat_codegen.schedule import Copy
from remat_codegen.trace import Origin, refs


class Needs:
    """Questions about one segment and its nodes."""

    def __init__(self, linkage: Linkage, segment: Segment) -> None:
        self.linkage, self.segment = linkage, segment
        self.program, self.model = linkage.program, linkage.model
        self.trace, self.record = self.model.trace, self.model.record
        self.scope = linkage.scopes[segment.block]
        self.last_compute = max((p for p in segment.positions if self.program.node_at(p)), default=-1)

    def freed_inside(self, variable: int) -> bool:
        """Whether the schedule frees an argument before this function ends; whoever called would hold it."""
        data = self.model.data_of[variable]
        if data is None:
            return False
        first = self.program.copies[data][0]
        return first.end < self.last_compute and self.program.segment_of[first.end] is self.segment

    def returned(self) -> list[int]:
        """What later blocks read of what this segment computes."""
        if self.segment.role is Role.BACKWARD:
            return []
        later = self.linkage.scopes[self.segment.block + 1 :]
        if self.segment.role is Role.FORWARD:
            wanted = [*(v for scope in later for v in scope.outside()), *refs(self.trace.outputs)]
            return list(dict.fromkeys(v for v in wanted if self.scope.own(v)))
        found: dict[int, None] = {}
        for data, created in self._made():
            found |= {self.linkage.owner_of[data]: None} if (data, created) in self.program.unread else {}
            for scope in later:
                if self._read_again(data, created, scope.block):
                    found.update(dict.fromkeys(self.linkage.outside_of(data, scope.block)))
        return list(found)

    def only_looks(self, op: int) -> bool:
        """Whether an operation is a view."""
        return is_view(self.record, self.trace.operations[op])

    def looks_at_state(self, op: int) -> bool:
        """Whether an operation is a view of a buffer, or of a view of one."""
        operation = self.trace.operations[op]
        read = operation.reads
        if not self.only_looks(op) or len(read) != 1 or any(self.trace.variables[v].requires_grad for v in operation.made):
            return False
        looked_at = self.trace.variables[read[0]]
        if looked_at.origin is Origin.RESULT:
            return self.looks_at_state(self.linkage.maker[read[0]].id)
        return looked_at.origin is Origin.BUFFER

    def allocated_in(self, variable: int, body: Body) -> bool:
        """Whether a node allocates the memory of a variable."""
        return self.record.maker_of(variable) in body.operations

    def is_grouped(self, node: Node) -> bool:
        """Whether what autograd saves for a node has to be found again: phantoms that are rebuilt, results it saves itself."""
        if node.id in self.program.groups:
            return True
        body = self.model.bodies[node.id]
        slots = set(body.values) & self.program.slots
        data_of = self.linkage.data_of_storage
        return any(data_of.get(s) in slots for op in body.operations for s in self.record.operations[op].saved)

    def puts_back(self, data: int, position: int) -> bool:
        """Whether a second run puts a value back: for autograd, or as other rebuilds do."""
        copy = self.program.copy_made(data, position)
        return (data, position) in self.program.unread or self.program.wanted_by_autograd(copy)

    def refills(self, position: int, node: Node) -> bool:
        """Whether a run of a node puts back what autograd saves for it beside its results."""
        phantom = self.model.bodies[node.id].phantom
        return phantom is not None and self.program.wanted_by_autograd(self.program.copy_made(phantom, position))

    def runs_again(self, node: Node) -> bool:
        """Whether a node runs more than once."""
        return any(self.program.node_at(p) is node for p in self.program.again)

    def stops_of(self, node: Node) -> list[int]:
        """The backward nodes before which the backward program stops at this node, ascending."""
        return [n for n in sorted(self.linkage.stops) if self.program.graph.nodes[n].forward == node.id]

    def must_empty(self, data: int, copy: Copy) -> bool:
        """Whether forgetting a copy has to empty what autograd holds of it: something puts it back later."""
        first = copy is self.program.copies[data][0]
        return (first or self.program.wanted_by_autograd(copy)) and self.program.comes_back(data, copy)

    def _made(self) -> list[tuple[int, int]]:
        made = []
        for position in self.segment.positions:
            node = self.program.node_at(position)
            made += [] if node is None else [(d, position) for d in node.writes if self._is_value(d)]
        return made

    def _read_again(self, data: int, created: int, block: int) -> bool:
        return bool(self.program.keepers(data, self.program.copy_made(data, created), block))

    def _is_value(self, data: int) -> bool:
        return self.program.graph.data[data].kind is Kind.VALUE
