"""What the calls in a generated file do to a training step: the runtime's `Kept` and `Step`, and autograd, without tensors.

The machine is told what runs and who holds what, line by line, and writes the schedule down: a Compute where a node
begins, a Forget where the last that held a piece of memory lets go of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from remat_codegen.graph.ir import Kind, Node
from remat_codegen.graph.simplify import Model
from remat_codegen.readback.matching import Operations
from remat_codegen.readback.values import Problem, Stop, Unreadable, tensors
from remat_codegen.schedule import Compute, Forget, Step
from remat_codegen.torch_seam import schema
from remat_codegen.trace import location

Key = tuple[int, str]  # a block and a name in it


@dataclass(slots=True)
class _Run:
    """The node that runs at present, and what of it has run."""

    node: int
    again: bool
    done: set[int] = field(default_factory=set)


class Machine:
    """A training step while it is read. `line` is where the reader is; `describe` says where that is in the model."""

    def __init__(self, model: Model, operations: Operations) -> None:
        self.model, self.graph, self.operations = model, model.graph, operations
        self.line = 0
        self.describe: Callable[[], str] = lambda: ""
        self.steps: list[Step] = []
        self.lines: list[int] = []
        self.problems: list[Problem] = []
        self.alive: set[int] = set()
        self.held: Counter[int] = Counter()  # by Python's names
        self.saved: set[int] = set()  # by autograd
        self.lost: dict[int, int] = {}  # the line where autograd's copy was forgotten
        self.made_again: dict[int, int] = {}  # the line where it was computed again after that
        self.reached = -1
        self.run: _Run | None = None
        self.backward = False
        self.went_back = self.graph.loss - 1  # the last node of the loss and the backward pass that ran
        self.group: Key | None = None
        self.draws: list[Key] = []
        self.modes: list[str] = []  # what the file runs under: `torch.no_grad()`
        self.values: dict[Key, Any] = {}
        self.handed: dict[Key, Any] = {}
        self.slots: dict[Key, int | None] = {}
        self.groups: dict[Key, set[int]] = {}
        self.generators: dict[Key, set[int]] = {}
        self.stops: dict[Key, int] = {}
        self.made_by: dict[int, int] = {}  # the operation that a variable has its way back from
        self.back_of = {n.forward: n.id for n in self.graph.backward_nodes}
        self.last_touch = {d: n.id for n in self.graph.nodes for d in (*n.reads, *n.writes)}
        self.awaiting = [{r for r in readers if r > self.graph.loss} for readers in self.graph.readers]

    # ------------------------------------------------------------------ problems

    def complain(self, text: str, line: int | None = None) -> None:
        """Notes a problem, once, and goes on."""
        problem = Problem(self.line if line is None else line, f"{text}{self.describe()}")
        if all((p.line, p.text.partition(" (in ")[0]) != (problem.line, text) for p in self.problems):
            self.problems.append(problem)

    def give_up(self, text: str) -> Unreadable:
        """The exception for what leaves nothing to go on with."""
        return Unreadable(self.line, f"{text}{self.describe()}")

    # ------------------------------------------------------------------ who holds what

    def hold(self, value: Any) -> Any:
        """Somebody has a value, and with it the memory it lies in."""
        for variable in tensors(value):
            data = self.model.data_of[variable]
            if data is not None:
                self.held[data] += 1
        return value

    def drop(self, value: Any) -> None:
        """Somebody no longer has a value."""
        for variable in tensors(value):
            data = self.model.data_of[variable]
            if data is not None:
                self.held[data] -= 1

    def settle(self) -> None:
        """Frees what nobody holds any more."""
        busy: Iterable[int] = ()
        if self.run is not None and not self._is_complete(self.run):
            busy = self.graph.nodes[self.run.node].writes
        for data in sorted(self.alive - set(busy)):
            kind = self.graph.data[data].kind
            if kind is not Kind.GRADIENT and not self.held[data] and data not in self.saved:
                self._add(Forget(data))
                self.alive.discard(data)

    def _add(self, step: Step) -> None:
        self.steps.append(step)
        self.lines.append(self.line)

    # ------------------------------------------------------------------ computing

    def operation(self, op: int) -> None:
        """An operation runs."""
        node = self.operations.node_of[op]
        if op in self.operations.core[node] and not (node <= self.reached and self.operations.only_views(node)):
            if self.run is None or self.run.node != node or op in self.run.done:
                self._begin(node)
            assert self.run is not None
            self.run.done.add(op)
            if self.run.again:
                self.made_again |= dict.fromkeys(self.graph.nodes[node].writes, self.line)
            self._check_random(op, node)
            self._fill_group(node)
        for variable in self.model.trace.operations[op].results:
            if variable is not None:
                self.made_by[self.operations.canonical(variable)] = op

    def _begin(self, node: int) -> None:
        self.finish()
        again = node <= self.reached
        if again:
            self._check_again(node)
        else:
            self._skip_views(node)
            self.reached = node
        self._read(self.graph.nodes[node])
        self.run = _Run(node, again)
        self._add(Compute(node))
        for data in self.graph.nodes[node].writes:
            self.alive.add(data)
            if not again and self.awaiting[data]:
                self.saved.add(data)

    def _skip_views(self, node: int) -> None:
        """Views that nobody reads do not stand in the file."""
        for between in range(self.reached + 1, node):
            if not self.operations.only_views(between):
                if node == self.graph.loss:
                    raise self.give_up(f"the forward pass is over, and {self.name(between)} was not computed")
                raise self.give_up(f"computes {self.name(node)} before {self.name(between)}, which the model computes first")
            self._add(Compute(between))

    def _check_again(self, node: int) -> None:
        name = self.name(node)
        if not self.graph.nodes[node].recomputable:
            raise self.give_up(f"computes {name} again, which changes something that stays and may run only once")
        if not self.backward:
            self.complain(f"computes {name} again in the forward pass")
        writes = self.graph.nodes[node].writes
        if writes and all(d in self.alive for d in writes):
            self.complain(f"computes {name} again, which was not forgotten: it is still in memory")

    def _read(self, node: Node) -> None:
        for data in node.reads:
            if data not in self.alive:
                raise self.give_up(f"computes {node.name} without {self.graph.data[data].name}, which is not in memory")

    def _check_random(self, op: int, node: int) -> None:
        if not self.model.record.operations[op].random:
            return
        if self.run is not None and self.run.again:
            if not any(node in self.generators.get(key, ()) for key in self.draws):
                self.complain(f"computes {self.name(node)} again with other random numbers: not inside its kept.draws(...)")
        else:
            for key in self.draws:
                self.generators.setdefault(key, set()).add(node)

    def _fill_group(self, node: int) -> None:
        """What an operation saves inside `saves` goes to its group; when it runs again, autograd finds it there."""
        if self.group is None or self.run is None:
            return
        if not self.run.again:
            self.groups.setdefault(self.group, set()).add(node)
        elif node in self.groups.get(self.group, ()):
            phantom = self.model.bodies[node].phantom
            if phantom is not None and self.awaiting[phantom]:
                self.saved.add(phantom)

    def _is_complete(self, run: _Run) -> bool:
        return run.done >= self.operations.core[run.node]

    def finish(self) -> None:
        """The node that runs at present must be done."""
        if self.run is not None and not self._is_complete(self.run):
            missing = min(self.operations.core[self.run.node] - self.run.done)
            name = schema(self.model.trace.operations[missing].target).name.split("::")[-1]
            self.complain(f"computes only a part of {self.name(self.run.node)}: {name} is missing")
            self.run.done |= self.operations.core[self.run.node]
        self.run = None
        self.settle()

    def name(self, node: int) -> str:
        """A node as messages name it: by what it makes, and where it comes from."""
        operations = self.model.bodies[node].operations
        if not operations:
            return "the loss" if node == self.graph.loss else self.graph.nodes[node].name
        last = self.model.trace.operations[operations[-1]]
        where = ", ".join(p for p in (last.module_path, location(last.source)) if p)
        return f"{self.graph.nodes[node].name}{f' ({where})' if where else ''}"

    # ------------------------------------------------------------------ Kept and Step

    def keep(self, key: Key, value: Any) -> None:
        """Holds a value for a rebuild."""
        self.drop(self.values.pop(key, None))
        self.values[key] = self.hold(value)

    def take(self, key: Key, last: bool) -> Any:
        """A kept value."""
        if key not in self.values:
            raise self.give_up(f"takes {key[1]!r}, which nothing has kept")
        value = self.hold(self.values[key])
        if last:
            self.drop(self.values.pop(key))
        return value

    def receive(self, key: Key) -> Any:
        """A value that was handed over."""
        if key not in self.handed:
            raise self.give_up(f"receives {key[1]!r}, which nothing has handed over")
        return self.handed.pop(key)

    def slot(self, key: Key, value: Any) -> None:
        """A value that can be forgotten under a name."""
        found = [self.model.data_of[v] for v in tensors(value)]
        self.slots[key] = found[0] if found else None

    def forget(self, key: Key) -> None:
        """Autograd's copy of a value goes."""
        if key not in self.slots:
            self.complain(f"forgets {key[1]!r}, which has no slot")
            return
        data = self.slots[key]
        if data is not None:
            self._lose(data)

    def forget_saved(self, key: Key) -> None:
        """What autograd saved beside values goes."""
        if key not in self.groups:
            self.complain(f"forgets what {key[1]!r} saves, which no kept.saves(...) has collected")
        for node in self.groups.get(key, ()):
            phantom = self.model.bodies[node].phantom
            if phantom is not None:
                self._lose(phantom)

    def _lose(self, data: int) -> None:
        self.saved.discard(data)
        self.lost[data] = self.line
        self.made_again.pop(data, None)

    def rebuild(self, key: Key, value: Any) -> None:
        """A value goes back to where autograd looks for it."""
        found = [self.model.data_of[v] for v in tensors(value)]
        if key not in self.slots:
            self.complain(f"puts {key[1]!r} back, which has no slot")
        elif not found or found[0] != self.slots[key]:
            self.complain(f"puts another value back as {key[1]!r}")
        elif found[0] is not None and self.awaiting[found[0]]:
            if found[0] in self.saved:
                self.complain(f"puts {key[1]!r} back, which was not forgotten")
            self.saved.add(found[0])

    def stop(self, key: Key, value: Any) -> None:
        """The backward program can wait until autograd goes back through a value."""
        made = [self.made_by.get(v) for v in tensors(value)]
        node = self.back_of.get(self.operations.node_of[made[0]]) if made and made[0] is not None else None
        if node is None:
            self.complain(f"stops at {key[1]!r}, which autograd does not go back through")
        else:
            self.stops[key] = node

    def at(self, key: Key) -> Stop:
        """A place to wait for."""
        if key not in self.stops:
            raise self.give_up(f"waits for {key[1]!r}, which no kept.stop(...) has set")
        return Stop(self.stops[key])

    # ------------------------------------------------------------------ the way back

    def end_forward(self, result: Any) -> None:
        """The forward pass has returned: outputs stay to the end of the step; then the loss."""
        self.finish()
        self._skip_views(self.graph.loss)
        self.reached = self.graph.loss
        self.hold(result)
        self._go_back_through(self.graph.nodes[self.graph.loss])

    def wait(self, stop: Stop) -> None:
        """Autograd goes on until just before a backward node."""
        self._go_back(stop.node)

    def end(self) -> None:
        """The backward program has nothing more to do: autograd goes back to the start."""
        self._go_back(len(self.graph.nodes))
        for value in (*self.values.values(), *self.handed.values()):
            self.drop(value)
        self.settle()

    def _go_back(self, end: int) -> None:
        self.finish()
        for node in range(self.went_back + 1, end):
            self._go_back_through(self.graph.nodes[node])

    def _go_back_through(self, node: Node) -> None:
        self.went_back = node.id
        for data in node.reads:
            if data not in self.alive or (node.id > self.graph.loss and self._not_saved(data)):
                self._miss(node, data)
        self._add(Compute(node.id))
        for data in node.writes:
            self.alive.add(data)
        for data in node.reads:
            self.awaiting[data].discard(node.id)
            if not self.awaiting[data]:
                self.saved.discard(data)
        for data in sorted({*node.reads, *node.writes}):
            if self.graph.data[data].kind is Kind.GRADIENT and self.last_touch[data] == node.id:
                self._add(Forget(data))
                self.alive.discard(data)
        self.settle()

    def _not_saved(self, data: int) -> bool:
        return self.graph.data[data].kind is not Kind.GRADIENT and data not in self.saved

    def _miss(self, node: Node, data: int) -> None:
        """Autograd wants what is not there."""
        what = "what it saves" if self.graph.data[data].kind is Kind.PHANTOM else "the value"
        name = self.name(self.graph.producers[data][0])
        back = node.name if node.forward is None else self.name(node.forward)
        if data in self.made_again:
            text = f"computes {name} again, but {what} is not put back before the way back through {back}"
        else:
            text = f"{what} of {name} is forgotten here, and not computed again before the way back through {back}"
        self.complain(text, self.made_again.get(data, self.lost.get(data, self.line)))
