"""What is held while a model's own code runs, beside what is read later: by its variables, and by autograd for nobody."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import accumulate

from remat_codegen.graph.allocator import allocated_bytes
from remat_codegen.graph.drawing import GENERATOR_STATE_BYTES, drawing_nodes
from remat_codegen.graph.ir import total_bytes
from remat_codegen.graph.simplify import Model
from remat_codegen.graph.unread import lost_of
from remat_codegen.marked.demand import Copied, Held, Part, Unread, schedule_of
from remat_codegen.marked.features import draws
from remat_codegen.profile.costs import Profile
from remat_codegen.schedule import Schedule, Timeline, simulate
from remat_codegen.trace import Operation

MOST_SAMPLED = 64  # numbers of a tensor, at most


def node_of(model: Model) -> dict[int, int]:
    """The forward nodes of operations."""
    return {op: node for node, body in enumerate(model.bodies) for op in body.operations}


def _sampled(shape: Sequence[int]) -> int:
    """How many numbers a sample has of a tensor of that shape."""
    most = 4 if len(shape) < 4 else 2
    return math.prod(-(-size // (size // most + 1)) for size in shape)


class Holders:
    """Who holds what in one model."""

    def __init__(self, model: Model) -> None:
        self.model, self.trace, self.record, self.node_of = model, model.trace, model.record, node_of(model)

    def schedule(self, parts: Sequence[Part]) -> Schedule:
        """The training step with these parts."""
        return schedule_of(self.model.graph, parts, self.held)

    @property
    def plain(self) -> Schedule:
        """The step without recomputation."""
        return self.schedule(())

    def plain_step(self, profile: Profile) -> Timeline:
        """What that takes."""
        return simulate(self.model.graph, self.costs(profile), self.plain)

    def least_bytes(self, profile: Profile) -> int:
        """Bytes that no table is below: of the node that needs the most beside what variables hold while it runs."""
        graph, costs, held = self.model.graph, self.costs(profile), self.held.by_variables
        touched = (total_bytes(graph, {*n.reads, *n.writes, *held.get(n.id, ())}) for n in graph.nodes)
        return max(a + b for a, b in zip(touched, costs.workspace_bytes, strict=True))

    @cached_property
    def held(self) -> Held:
        """What is held while the model's code runs, beside what is read later."""
        beside = [(self._node_that_makes(s), self.record.storages[s].nbytes) for s in self._left if s not in self.of_storage]
        left = frozenset(self.of_storage[s] for s in self._left if s in self.of_storage)
        variables, unread = self._held_by_variables(), tuple(self._unread())
        takes_states = (self.trace.run is not None or draws(self.trace)) and not self.trace.accelerator
        state_bytes = GENERATOR_STATE_BYTES if takes_states else 0
        drawing, asked, around = drawing_nodes(self.model), self._asked(), self._around()
        more = self._samples(), self._unread_until(), tuple(self._copied())
        return Held(variables, unread, left, tuple(beside), drawing, state_bytes, asked, around, *more)

    def _copied(self) -> Iterator[Copied]:
        """Autocast's copies of parameters: those of a model that is called under it until the loss is there."""
        reached, device = self._reached(), self.trace.accelerator or "cpu"
        for operations in self.trace.casting:
            end = self.model.graph.loss if self.trace.autocast else reached[operations[-1]]
            casting = [(op, cast) for op in operations if op in self.node_of for cast in self.record.operations[op].casts]
            first = {cast.leaf: (self.node_of[op], op, cast) for op, cast in reversed(casting)}
            for node, op, cast in first.values():
                body = self.model.bodies[node]
                data = body.phantom if cast.saved else None
                begun = node if data is None and op != body.operations[-1] else node + 1
                yield Copied(range(begun, end + 1), data, allocated_bytes(cast.nbytes, device))

    def _unread_until(self) -> dict[int, int]:
        """By forward node: up to which one variables hold what it made, and no operation reads."""
        reached, found = self._reached(), dict[int, int]()
        for storage, last in self._last_holders().items():
            maker = self.node_of.get(self.record.storages[storage].operation or -1)
            if storage not in self.of_storage and maker is not None and reached[last] > maker:
                found[maker] = max(found.get(maker, -1), reached[last])
        return found

    def _reached(self) -> list[int]:
        """By operation: the last forward node that has begun by then."""
        return [*accumulate((self.node_of.get(op.id, -1) for op in self.trace.operations), max)]

    def _samples(self) -> dict[int, int]:
        """By data: the bytes of some of its numbers, which files take where hooks, or a run that was recorded, could have parts
        compute something else when they run again (parts.py, `_some`). Of what only autograd has, nobody knows a shape."""
        if not self.trace.hooked and self.trace.run is None:
            return {}
        found = {body.phantom: MOST_SAMPLED * 4 for body in self.model.bodies if body.phantom is not None}
        for variable, data in zip(self.trace.variables, self.model.data_of, strict=True):
            if data is not None and data not in found:
                found[data] = _sampled(variable.shape) * variable.dtype.itemsize
        device = self.trace.accelerator or "cpu"
        return {d: allocated_bytes(min(n, self.model.graph.data[d].nbytes), device) for d, n in found.items()}

    @cached_property
    def _left(self) -> list[int]:
        """The storages of what forward leaves behind in attributes."""
        return sorted(self._made(self.record.storages_of(v for v, _ in self.trace.left)))

    def _asked(self) -> dict[int, tuple[tuple[int, int], ...]]:
        """By forward node: the data that its backward node asks for, and by how much gradients have grown by then."""
        found: dict[int, dict[int, int]] = {}
        for node, body in enumerate(self.model.bodies):
            rows = [self.record.operations[op] for op in reversed(body.operations)]
            before = next((row.gradient_bytes for row in rows if row.gradient_bytes is not None), 0)
            for storage, alive in (asked for row in rows for asked in row.asked):
                data = body.phantom if storage is None else self.of_storage.get(storage)
                if data is not None:
                    found.setdefault(node, {}).setdefault(data, alive - before)
        return {node: tuple(asked.items()) for node, asked in found.items()}

    @cached_property
    def of_storage(self) -> dict[int, int]:
        """The data nodes of storages that are one."""
        return {self.record.variables[v].storage: d for v, d in enumerate(self.model.data_of) if d is not None}

    def _around(self) -> dict[int, tuple[tuple[int, int], ...]]:
        """By forward node: what variables hold beside data while all of its operations run, as who makes it and bytes."""
        found = {}
        for node, body in enumerate(self.model.bodies):
            each = [self._held_within(self.trace.operations[op], node) for op in body.operations]
            always = set[int].intersection(*each) if each else set[int]()
            makers = ((self._node_that_makes(s), self.record.storages[s].nbytes) for s in sorted(always))
            found[node] = tuple((maker, nbytes) for maker, nbytes in makers if maker != node)
        return {node: held for node, held in found.items() if held}

    def _made(self, storages: Iterable[int]) -> list[int]:
        """Those of some storages that operations make."""
        return [s for s in storages if self.record.storages[s].operation is not None]

    def _node_that_makes(self, storage: int) -> int:
        operation = self.record.storages[storage].operation
        assert operation is not None
        return self.node_of[operation]

    def _unread(self) -> Iterator[Unread]:
        """What autograd saves for nobody, while nodes run."""
        reached, held = self._reached(), self._last_holders()
        for lost in lost_of(self.trace, self.record):
            node = self.node_of.get(lost.operation)
            last = reached[lost.until] if lost.left is None else self.model.graph.loss
            if node is None or last <= node:
                continue
            made = self._made(lost.storages)
            data = tuple(self.of_storage[s] for s in made if s in self.of_storage)
            # What variables hold as long counts as theirs.
            more = [s for s in made if s not in self.of_storage and (lost.left is not None or held.get(s, -1) < lost.until)]
            beside = lost.nbytes + sum(self.record.storages[s].nbytes for s in more)
            yield Unread(node, range(node + 1, last + 1), data, beside, None if lost.left is None else reached[lost.left])

    def _last_holders(self) -> dict[int, int]:
        """By storage: the last operation that runs while variables hold it."""
        last = {held: op.id for op in self.trace.operations for held in op.held}
        found: dict[int, int] = {}
        for held, operation in last.items():
            for storage in self.record.storages_of(self.trace.operations[held].made):
                found[storage] = max(found.get(storage, -1), operation)
        return found

    def _held_by_variables(self) -> dict[int, list[int]]:
        """By forward node: data that variables of the model's code hold while it runs."""
        found: dict[int, set[int]] = {}
        for operation in self.trace.operations:
            node = self.node_of.get(operation.id)
            if node is None:
                continue
            found.setdefault(node, set()).update(self._data_held(operation, node))
        return {node: sorted(data - self._passing.get(node, set())) for node, data in found.items()}

    def _data_held(self, operation: Operation, node: int) -> Iterator[int]:
        """Data of earlier nodes that variables hold while an operation runs."""
        variables = (v for op in operation.held for v in self.trace.operations[op].made)
        data = {self.model.data_of[v] for v in variables}
        return (d for d in data if d is not None and self.model.graph.producers[d][0] < node)

    @cached_property
    def _passing(self) -> dict[int, set[int]]:
        """By forward node: data that nobody reads from there on, and that variables hold while some of its operations run."""
        found = {}
        for node, body in enumerate(self.model.bodies):
            held = [set(self._data_held(self.trace.operations[op], node)) for op in body.operations]
            some = set[int]().union(*held) - set[int].intersection(*held) if len(held) > 1 else set[int]()
            found[node] = {d for d in some if max(self.model.graph.readers[d], default=-1) < node} - self._lasting
        return found

    @cached_property
    def _lasting(self) -> frozenset[int]:
        """Data that somebody has even if nobody reads them: the caller, attributes, autograd."""
        unread = (d for u in self._unread() for d in u.data)
        left = (self.of_storage[s] for s in self._left if s in self.of_storage)
        return frozenset((*self.model.graph.outputs, *unread, *left))

    def costs(self, profile: Profile) -> Profile:
        """The costs of nodes, less gradients that go early (so that workspaces may be below 0), and with what variables of the
        model's code hold while they run beside the data that they hold all the while: results that only the node uses which
        made them, and data that go meanwhile. (A part that begins behind that node does not have them when it runs again; those
        of `Held.around` are left out there, others are counted as if it had.)"""
        peaks = dict(enumerate(profile.peaks_within))
        held = [self._held_bytes(node, peaks.get(node, ())) for node in range(len(self.model.bodies))]
        held += [0] * (len(profile.workspace_bytes) - len(held))
        lowest = profile.with_gradients_going_early()
        workspaces = tuple(a + b for a, b in zip(lowest.workspace_bytes, held, strict=True))
        return replace(lowest, workspace_bytes=workspaces, peaks_within=())

    def _held_bytes(self, node: int, peaks: Sequence[int]) -> int:
        """How much more than by itself a node takes at most beside what variables hold; `peaks` are those of its operations,
        if they are known."""
        operations = self.model.bodies[node].operations
        held = [self._held_meanwhile(self.trace.operations[op], node) for op in operations]
        if len(peaks) != len(held):
            return max(held, default=0)
        return max(a + b for a, b in zip(held, peaks, strict=True)) - max(peaks)

    def _held_meanwhile(self, operation: Operation, node: int) -> int:
        """The bytes of what variables hold while an operation runs, and not all the while that its node does."""
        own = sum(self.record.storages[s].nbytes for s in self._held_within(operation, node))
        passing = self._passing[node].intersection(self._data_held(operation, node))
        return own + sum(self.model.graph.data[d].nbytes for d in passing)

    def _held_within(self, operation: Operation, node: int) -> set[int]:
        """The storages that are no data nodes, are held while an operation runs, and are not in its own node's workspace."""
        variables = {v for op in operation.held for v in self.trace.operations[op].made}
        storages = self.record.storages_of(v for v in variables if self.model.data_of[v] is None)
        makers = {s: self.record.storages[s].operation for s in storages}
        own = [self.trace.operations[op] for op in self.model.bodies[node].operations if op >= operation.id]
        read = self.record.storages_of(v for op in own for v in op.reads)
        made = {s: self.node_of.get(op) for s, op in makers.items() if op is not None}
        return {s for s, maker in made.items() if maker is not None and (maker != node or s not in read)}
