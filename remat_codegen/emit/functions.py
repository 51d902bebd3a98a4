"""Writes one segment of a program as the lines of a function.

    forward   def NAME_forward(m, kept, x):   the block as traced; names what will be forgotten or rebuilt
    again     def NAME_again(m, kept):        forward nodes run once more
    backward  def NAME_backward(m, kept):     a generator that waits for autograd, rebuilds, forgets

The walk over a segment's steps is the same for all three.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from remat_codegen.emit.about import note
from remat_codegen.emit.lines import Line, drop, tidy, uses
from remat_codegen.emit.linkage import Linkage, changed_argument
from remat_codegen.emit.scope import has_training_flag
from remat_codegen.emit.segment_needs import Needs
from remat_codegen.emit.segments import Role, Segment
from remat_codegen.emit.spell import DEVICE, spell
from remat_codegen.emit.surroundings import generators, modes
from remat_codegen.graph.ir import Kind, Node, Phase
from remat_codegen.graph.simplify import Body, early_ends, is_view
from remat_codegen.schedule import Compute
from remat_codegen.trace import Operation, Origin


@dataclass(frozen=True, slots=True)
class Function:
    """A function's text, but for its name. `arguments` are the variables it takes and `returns` those it gives back.

    Whoever calls it keeps the variables `keeps` for a rebuild, hands over those of `handed`, and forgets `forgets`
    afterwards: values of other blocks, each by its block and its name there. A rebuild `takes` what the block keeps, each by
    how: `take`, or `read` if it is not the last time.
    """

    role: Role
    lines: tuple[str, ...]
    arguments: tuple[int, ...]
    returns: tuple[int, ...]
    handed: tuple[int, ...]
    keeps: tuple[int, ...]
    forgets: tuple[tuple[int, str], ...]
    uses_kept: bool
    argument_names: tuple[str, ...]
    takes: tuple[tuple[int, str], ...] = ()
    uses_device: bool = False

    @property
    def text(self) -> tuple[object, ...]:
        """What is equal for functions that need to be written only once."""
        return self.role, self.lines, self.argument_names, self.uses_kept


def write_function(linkage: Linkage, segment: Segment) -> Function:
    """The function of a segment. A backward segment in which nothing happens has no lines."""
    return _Writer(linkage, segment).write()


_ORDER = [Origin.INPUT, Origin.CONSTANT, Origin.RESULT, Origin.SIZE]  # of a function's arguments


class _Writer:
    def __init__(self, linkage: Linkage, segment: Segment) -> None:
        self.linkage, self.segment = linkage, segment
        self.program, self.model = linkage.program, linkage.model
        self.trace, self.record = self.model.trace, self.model.record
        self.scope = linkage.scopes[segment.block]
        self.needs = Needs(linkage, segment)
        self.lines: list[Line] = []
        self.shapes = self.scope.shape_names(again=segment.role is not Role.FORWARD)
        self.depth = 0
        self.local: dict[int, bool] = {}  # variables that have a value in the function; True if only this function holds it
        self.inputs: dict[int, None] = {}
        self.handed: list[int] = []
        self.keeps: list[int] = []
        self.forgets: list[tuple[int, str]] = []
        self.takes: list[tuple[int, str]] = []
        self.waited = segment.role is not Role.BACKWARD
        self.waiting: tuple[int, int] | None = None  # the line that waits, and the bytes that are rebuilt after it
        self.last_compute = self.needs.last_compute

    def write(self) -> Function:
        arguments = self._arguments() if self.segment.role is Role.FORWARD else []
        for position in self.segment.positions:
            node = self.program.node_at(position)
            if node is None:
                self._forget(position)
            elif node.phase is Phase.BACKWARD:
                self.waited = False
            else:
                self._compute(position, node)
        returns = self.needs.returned()
        values = [self._fetch(v, self.last_compute) for v in returns]
        if values:
            self._line(f"return {', '.join(values)}")
        given = [v for v in arguments if v not in self.handed] + [v for v in self.inputs if v not in arguments]
        given.sort(key=lambda v: _ORDER.index(self.trace.variables[v].origin))
        self.shapes.ask(self.lines, self._is_at_hand)
        lines = [line.render() for line in tidy(self.lines)]
        uses_kept = any("kept" in text for text in lines)
        names = tuple(self.scope.name(v) for v in given)
        return Function(
            self.segment.role,
            tuple(lines),
            tuple(given),
            tuple(returns),
            tuple(self.handed),
            tuple(self.keeps),
            tuple(self.forgets),
            uses_kept,
            names,
            tuple(self.takes),
            any(uses(DEVICE, text) for text in lines),
        )

    # ------------------------------------------------------------------ what goes in and out

    def _arguments(self) -> list[int]:
        """The first forward takes what it reads from outside; what its rebuilds will read of that is kept."""
        found = self.scope.outside()
        for variable in found:
            self.local[variable] = False
            if self.needs.freed_inside(variable):
                self.handed.append(variable)
                self.local[variable] = True
                name = self.scope.name(variable)
                self._line(f"{name} = kept.receive({name!r})", (name,))
        for variable in found:
            data = self.model.data_of[variable]
            if data is None:
                continue
            if self.linkage.keepers(variable, data, self.program.copies[data][0], self.segment.block):
                self.keeps.append(variable)
        return found

    # ------------------------------------------------------------------ computing

    def _compute(self, position: int, node: Node) -> None:
        again = position in self.program.again
        if again:
            self._wait(position)
            self._note(position, node)
        body = self.model.bodies[node.id]
        operations = body.operations
        # views are taken when somebody asks for them, but for those that autograd goes back through, in their order
        left_out = self.needs.only_looks if again else self.needs.looks_at_state
        operations = tuple(op for op in operations if not left_out(op))
        ends = early_ends(self.model, body.operations)
        for op in operations if again else ():
            self._fetch_bases(position, self.trace.operations[op], body)
        with self._context(position, node, again):
            for op in operations:
                self._statement(position, self.trace.operations[op])
                self._name_results(position, node, op, again)
                self._drop([v for v in ends.get(op, ()) if v in self.local])
        self._drop_inner(body)
        for data in body.values:
            copy = self.program.copy_made(data, position)
            if self.program.keepers(data, copy, self.segment.block):
                self._keep(self.linkage.owner_of[data])

    def _drop_inner(self, body: Body) -> None:
        """A node's own intermediate results end with it, as the profile says."""
        self._drop([v for v in self.local if self.model.data_of[v] is None and self.needs.allocated_in(v, body)])

    def _drop(self, variables: Sequence[int]) -> None:
        if variables:
            self.lines.append(drop(self.depth, [self.scope.name(v) for v in variables]))
        for variable in variables:
            del self.local[variable]

    @contextmanager
    def _context(self, position: int, node: Node, again: bool) -> Iterator[None]:
        """What has to stand around a node's statements so that they can be forgotten and run again."""
        managers = []
        name = self._node_name(node)
        if self.needs.is_grouped(node) and (not again or self.needs.refills(position, node)):
            managers.append(f"kept.saves({name!r})")
        if self.needs.runs_again(node):
            drawing = generators(self.trace, self.record, self.model.bodies[node.id])
            managers += [f"kept.draws({name!r}, {generator})" for generator in drawing]
        if not managers:
            yield
            return
        self._line(f"with {', '.join(managers)}:")
        self.depth += 1
        yield
        self.depth -= 1

    def _node_name(self, node: Node) -> str:
        body = self.model.bodies[node.id]
        variables = [v for op in body.operations for v in self.trace.operations[op].made]
        owner = [self.linkage.owner_of[d] for d in body.values]
        return self.scope.name((owner or variables)[0])

    def _statement(self, position: int, operation: Operation) -> None:
        for variable in operation.mentions:
            self._fetch(variable, position)
        self._write_call(operation, position in self.program.again)

    def _write_call(self, operation: Operation, again: bool) -> None:
        training = f"{self.scope.module(operation.module_path)}.training" if has_training_flag(operation) else None
        way = self.linkage.proof.way(operation)
        operation = self.shapes.spelled(operation, self._is_at_hand)
        path = operation.module_path

        def named(kind: type) -> str:
            return self.linkage.class_expression(kind, path, self.scope.module(path))

        text = spell(operation, self.scope.expression, training, again, way, named)
        for variable in operation.made:
            self.local[variable] = True
        counted = self._counted_by(operation)
        if counted is not None:
            self._line(f"if {counted}.training:")
            self.lines.append(Line(self.depth + 1, text))
            for variable in operation.made:
                del self.local[variable]
        elif not operation.made:
            self._line(text)
        else:
            targets = ["_" if v is None else self.scope.name(v) for v in operation.results]
            comma = "," if operation.many and len(targets) == 1 else ""
            under = modes(self.trace, self.record, operation)
            if under:
                self._line(f"with {', '.join(under)}:")
                self.depth += 1
            defines = tuple(t for t in targets if t != "_")
            looks = is_view(self.record, operation)
            unread = "for what autograd saves" if again and not self.record.operations[operation.id].mutated else ""
            self.lines.append(Line(self.depth, f"{', '.join(targets)}{comma} = {text}", defines, looks, unread=unread))
            if under:
                self.depth -= 1

    def _is_at_hand(self, variable: int) -> bool:
        """Whether the function has got a variable, or has had it before."""
        name = self.scope.name(variable)
        taken = variable in self.inputs or (self.segment.role is Role.FORWARD and variable in self.scope.outside())
        return taken and variable not in self.handed or any(name in line.defines for line in self.lines)

    def _counted_by(self, operation: Operation) -> str | None:
        """The normalisation module whose batches an operation counts: it does so in training only."""
        changed = changed_argument(operation)
        path = "" if changed is None else self.trace.variables[changed].path
        owner, _, name = path.rpartition(".")
        return self.scope.module(owner) if name == "num_batches_tracked" else None

    def _name_results(self, position: int, node: Node, op: int, again: bool) -> None:
        """After an operation: its stop, and the slots of what it allocated."""
        results = self.trace.operations[op].results
        for backward_node in () if again else self.needs.stops_of(node):
            variable = self.linkage.stop_variable(backward_node)
            if variable is not None and op == self.linkage.last_operation(backward_node):
                name = self.scope.name(variable)
                self._line(f"kept.stop({name!r}, {name})")
        for data in self.model.bodies[node.id].values:
            variable = self.linkage.owner_of[data]
            if variable not in results or data not in self.program.slots:
                continue
            name = self.scope.name(variable)
            if not again or self.needs.puts_back(data, position):
                self._line(f"kept.slot({name!r}, {name})")

    # ------------------------------------------------------------------ where values are found

    def _fetch(self, variable: int, position: int) -> str:
        """Makes sure that a variable has a value here; returns its expression."""
        origin = self.trace.variables[variable].origin
        if origin in (Origin.INPUT, Origin.CONSTANT, Origin.SIZE):
            self.inputs[variable] = None
        if origin is not Origin.RESULT or variable in self.local:
            return self.scope.expression(variable)
        data = self.model.data_of[variable]
        base = variable in self.scope.outside() or (data is not None and variable == self.linkage.owner_of[data])
        if base and data is not None:
            self._take(variable, data, position)
        else:
            self._look_again(variable, position)
        return self.scope.name(variable)

    def _look_again(self, variable: int, position: int) -> None:
        """A view is taken once more; what an in-place operation returned is what it changed."""
        operation = self.linkage.maker[variable]
        changed = changed_argument(operation) if self.record.operations[operation.id].mutated else None
        if changed is None:
            self._statement(position, operation)
            return
        name = self.scope.name(variable)
        self._line(f"{name} = {self._fetch(changed, position)}", (name,))
        self.local[variable] = self.local.get(changed, False)  # inputs and parameters are nobody's to drop

    def _fetch_bases(self, position: int, operation: Operation, body: Body) -> None:
        """Takes what a node reads before its own lines begin."""
        for variable in operation.reads:
            if self.trace.variables[variable].origin is not Origin.RESULT or variable in self.local:
                continue
            made_here = any(variable in self.trace.operations[op].results for op in body.operations)
            if not made_here:
                self._fetch(variable, position)

    def _take(self, variable: int, data: int, position: int) -> None:
        copy = self.program.copy_at(data, position)
        later = [
            r
            for r in self.linkage.keepers(variable, data, copy, self.segment.block)
            if r not in self.segment.positions and r > position
        ]
        name = self.scope.name(variable)
        verb = "read" if later else "take"
        self.takes.append((variable, verb))
        self._line(f"{name} = kept.{verb}({name!r})", (name,))
        self.local[variable] = True

    def _keep(self, variable: int) -> None:
        name = self.scope.name(variable)
        self._line(f"kept.keep({name!r}, {name})")

    # ------------------------------------------------------------------ forgetting

    def _forget(self, position: int) -> None:
        step = self.program.schedule.steps[position]
        assert not isinstance(step, Compute)
        data = step.data
        kind = self.program.graph.data[data].kind
        if kind is Kind.GRADIENT:
            return
        copy = next(c for c in self.program.copies[data] if c.end == position)
        if (data, copy.start) in self.program.unread:
            return
        if self.needs.must_empty(data, copy):
            self._empty(position, data, kind)
        if kind is Kind.VALUE:
            self._delete(position, data)

    def _empty(self, position: int, data: int, kind: Kind) -> None:
        producer = self.program.producer[data]
        home = self.program.block_of[producer]
        names = self.linkage.scopes[home].name
        name = self._node_name(self.program.graph.nodes[producer]) if home == self.segment.block else None
        if kind is Kind.VALUE:
            text = f"forget({names(self.linkage.owner_of[data])!r})"
        else:
            text = f"forget_saved({name!r})"
        self._wait(position)
        if home == self.segment.block:
            self._line(f"kept.{text}")
        elif self.segment.role is Role.FORWARD and kind is Kind.VALUE and position > self.last_compute:
            self.forgets.append((home, names(self.linkage.owner_of[data])))
        else:
            self._line(f"kept.before({self.segment.block - home}).{text}")

    def _delete(self, position: int, data: int) -> None:
        """Drops the function's own names of a piece of memory, if the function goes on."""
        aliases = [v for v in self.local if self.model.data_of[v] == data]
        held = [v for v in aliases if self.local[v]]
        if held and position < self.last_compute:
            self.lines.append(drop(self.depth, [self.scope.name(v) for v in held]))
        for variable in aliases if held else ():
            del self.local[variable]

    # ------------------------------------------------------------------ the backward program

    def _wait(self, position: int) -> None:
        """Waits, unless the function already did since the last backward node."""
        if self.waited:
            return
        self.waited, self.waiting = True, None
        node = self.linkage.waiting_point(position)
        if node is None:
            return
        block, name = self.linkage.stop_name(node)
        where = "kept" if block == self.segment.block else f"kept.before({self.segment.block - block})"
        self.waiting = len(self.lines), 0
        self._line(f"yield {where}.stops[{name!r}]")

    def _note(self, position: int, node: Node) -> None:
        """Says at the wait what the runs after it are for: bytes that nobody had to hold before."""
        copies = [(d, self.program.copy_made(d, position)) for d in node.writes]
        nbytes = sum(self.program.graph.data[d].nbytes for d, c in copies if self.program.wanted_by_autograd(c))
        if self.waiting is None or not nbytes:
            return
        line, before = self.waiting
        self.waiting = line, before + nbytes
        self.lines[line] = replace(self.lines[line], note=note(before + nbytes))

    def _line(self, text: str, defines: tuple[str, ...] = ()) -> None:
        self.lines.append(Line(self.depth, text, defines))
