"""Measures each distinct compute node on the device, one at a time (rk-GB, appendix A.6).

A node is run on random inputs of the layout it has in the model (other ones where PyTorch refuses these), integers from the
range that its operations can take: forward for its time and memory, backward for its time and memory with the gradients'
layout. Never more than one node's tensors exist. Nodes of equal signature are measured once. What a time is says `clock.py`.
Where time is short, times come from single runs, which are not remembered; memory is what it is all the same. What a busy
machine gave is remembered as that (pace.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from remat_codegen.errors import TraceError
from remat_codegen.graph.ir import Kind, Node, Phase
from remat_codegen.graph.record import LOSSES, example_loss
from remat_codegen.graph.simplify import Model
from remat_codegen.profile.bench import Bench, Swallow, Values, results_used_outside
from remat_codegen.profile.cache import Cache
from remat_codegen.profile.clock import Clock, clock_for
from remat_codegen.profile.costs import Profile
from remat_codegen.profile.memory import peak_bytes
from remat_codegen.profile.numbers import counting, near_identity, random_tensor, span
from remat_codegen.profile.pace import Pace
from remat_codegen.profile.ranges import integer_ranges
from remat_codegen.trace import Origin, Ref, Variable, location

HELD = " held"  # marks the costs of a backward node whose gradients others hold, too
RETURNED = " returned"  # and of one whose results the model's caller holds


def measure(
    model: Model,
    device: str,
    cache: Cache,
    advance: Callable[[int, int, str], None] | None = None,
    hurry_at: float = math.inf,
    clock: Clock | None = None,
) -> Profile:
    """Time and workspace of every node of `model.graph` on `device`. `advance(done, total, name)` reports progress, `hurry_at`
    is as for a clock, which is the device's own if not given."""
    graph = model.graph
    shared = _with_held_gradients(model)
    marks = {n.id: _marks(model, n, shared) for n in graph.nodes if n.phase is not Phase.BACKWARD}
    distinct = {(n.signature, marks[n.id]): n for n in reversed(graph.nodes) if n.phase is not Phase.BACKWARD}
    costs: dict[str, tuple[int, int]] = {}
    clock = clock_for(device, hurry_at) if clock is None else clock
    stored = _Stored(cache, clock, Pace(clock, cache.least_ns) if cache.enabled else None)
    with torch.random.fork_rng(devices=[device] if device.startswith("cuda") else []):
        torch.manual_seed(0)
        for done, ((signature, marked), node) in enumerate(distinct.items()):
            if advance is not None:
                advance(done, len(distinct), node.name)
            costs |= _node_costs(model, node, signature, stored, marked)
    keys = [n.signature if n.forward is None else n.signature + marks[n.forward] for n in graph.nodes]
    time_ns = tuple(costs[k][0] for k in keys)
    seeds = [0 if n.forward in shared else _more_seeds(model, n) for n in graph.nodes]
    summed = _summed_bytes(model)
    rows = zip(graph.nodes, keys, seeds, strict=True)
    peaks = [costs[key][1] + more - _written_bytes(model, n) for n, key, more in rows]
    between = _bytes_between_gradients(model)
    alone = {n.id: max(0, peak) + summed.get(n.id, 0) for n, peak in zip(graph.nodes, peaks, strict=True)}
    workspace = tuple(max(nbytes, between.get(node, 0)) for node, nbytes in alone.items())
    return Profile(time_ns, workspace, device)


def _summed_bytes(model: Model) -> dict[int, int]:
    """By backward node: what autograd allocates to add the gradients of parameters that several operations use.

    A node measured alone does not show it. The sum is a new tensor: the first gradient is a view as a rule (a linear's is
    transposed), which autograd does not add to in place.
    """
    trace, record = model.trace, model.record
    shared = record.storages_of(v.id for v in trace.variables if v.origin is Origin.PARAMETER and v.requires_grad)
    last: dict[int, int] = {}
    used: list[set[int]] = []
    for op in trace.operations:
        used.append(record.storages_of(op.reads) & shared)
        last |= {storage: op.id for storage in used[-1] if record.operations[op.id].backward}
    found = {}
    for node in model.graph.backward_nodes:
        assert node.forward is not None
        own = model.bodies[node.forward].operations
        added = {s for op in own for s in used[op] if last.get(s, -1) > max(own)}
        found[node.id] = sum(record.storages[s].nbytes for s in added)
    return found


def _bytes_between_gradients(model: Model) -> dict[int, int]:
    """By backward node: gradients that come and go while it runs, beside those that other nodes read, as the record saw them.

    Where autograd adds two gradients of a value, the one that a node makes is needed until their sum is there. A node measured
    alone has no other to add, and what it makes seems to be what it hands on.
    """
    graph, record = model.graph, model.record
    last_read: dict[int, int] = {d: n.id for n in graph.nodes for d in n.reads}
    first_written: dict[int, int] = {d: n.id for n in reversed(graph.nodes) for d in n.writes}
    gradients = [d for d in graph.data if d.kind is Kind.GRADIENT]
    found = {}
    for node in graph.backward_nodes:
        assert node.forward is not None
        most = max(record.operations[op].most_gradient_bytes for op in model.bodies[node.forward].operations)
        known = sum(d.nbytes for d in gradients if first_written[d.id] <= node.id <= last_read[d.id])
        found[node.id] = max(0, most - known)
    return found


def _more_seeds(model: Model, node: Node) -> int:
    """By how much the gradients that a backward node was measured with exceed those that it reads: each of its results came
    with one of its own, and what of them was freed early seemed to be room."""
    if node.phase is not Phase.BACKWARD or node.forward is None:
        return 0
    seeded, read = _seeded_bytes(model, node)
    return max(0, sum(seeded) - read) if len(seeded) > 1 else 0


def _written_bytes(model: Model, node: Node) -> int:
    return sum(model.graph.data[d].nbytes for d in node.writes)


def _with_held_gradients(model: Model) -> frozenset[int]:
    """Forward nodes whose backward node reads a gradient that somebody else holds, such as a part of what was concatenated."""
    found = set()
    for node in model.graph.backward_nodes:
        seeded, read = _seeded_bytes(model, node)
        if node.forward is not None and len(seeded) == 1 and (read < sum(seeded) or _outlasts(model, node.forward)):
            found.add(node.forward)
    return frozenset(found)


def _outlasts(model: Model, forward: int) -> bool:
    """Whether a gradient that comes to a node outlives the first operation there that goes back: that of a residual waits for
    what the node makes, to be added to it."""
    own = model.bodies[forward].operations
    first = max((g.born for g in model.record.gradients if g.born in own), default=-1)
    return any(g.born > max(own) and min(own) <= g.died < first for g in model.record.gradients)


def _seeded_bytes(model: Model, node: Node) -> tuple[list[int], int]:
    """The sizes of the gradients that a backward node is measured with, and what of them is its own to free."""
    assert node.forward is not None
    bench = results_used_outside(model, model.bodies[node.forward].operations)
    seeded = [
        replace(model.trace.variables[v], stride=s)
        for v in bench
        if (s := model.record.variables[v].gradient_strides) is not None
    ]
    read = sum(model.graph.data[d].nbytes for d in node.reads if model.graph.data[d].kind is Kind.GRADIENT)
    return [v.dtype.itemsize * span(v) for v in seeded], read


def _marks(model: Model, node: Node, shared: frozenset[int]) -> str:
    """What nodes of one signature may still differ in: who else holds what the backward node would free on its way."""
    returned = {r.variable for r in model.trace.outputs if isinstance(r, Ref)}
    made = (
        {v for op in model.bodies[node.id].operations for v in model.trace.operations[op].results}
        if node.id < model.graph.loss
        else set()
    )
    return (HELD if node.id in shared else "") + (RETURNED if made & returned else "")


def _node_costs(model: Model, node: Node, signature: str, stored: _Stored, marks: str) -> dict[str, tuple[int, int]]:
    """Time and peak of a forward node and of its backward node, by signature."""
    if node.phase is Phase.LOSS:
        kind = "" if model.record.loss == LOSSES[0] else f"{model.record.loss} "
        key = f"{kind}loss of " + repr([(v.shape, v.stride, v.dtype) for v in _differentiable_outputs(model)])
        found = stored.or_measured(key, lambda: _measure_loss(model, stored.clock))
        return {signature: (found[0], found[1])}
    found = stored.or_measured(signature + marks, lambda: _run(model, node, stored.clock, HELD in marks))
    return {signature: (found[0], found[1]), f"{signature} backward{marks}": (found[2], found[3])}


class _Stored:
    """What is remembered, each with the machine's pace at that time, 0 where nobody looked at it."""

    def __init__(self, cache: Cache, clock: Clock, pace: Pace | None) -> None:
        self.cache, self.clock, self.pace = cache, clock, pace
        self._pace_ns()  # all may be remembered of a busier machine

    def or_measured(self, key: str, measured: Callable[[], list[int]]) -> list[int]:
        """What is remembered under a key, else what is measured; this, too, where the other is of a busier moment than now."""
        if (found := self.cache.get(key)) is not None:
            *costs, then = found
            if not self._is_slow(then):
                return costs
            if self._is_slow(self._pace_ns()):
                self.cache.slowed.add(key)
                return costs
            self.cache.again.add(key)
        return self._remembered(key, measured())

    def _remembered(self, key: str, costs: list[int]) -> list[int]:
        if self.clock.in_a_hurry:
            self.cache.hurried += 1
            return costs
        now = self._pace_ns()
        if self._is_slow(now):
            self.cache.slowed.add(key)
        self.cache.put(key, [*costs, now])
        return costs

    def _pace_ns(self) -> int:
        if self.pace is None:
            return 0
        now = self.pace.now_ns()
        self.cache.least_ns = self.pace.least_ns
        return now

    def _is_slow(self, taken_ns: int) -> bool:
        return self.pace is not None and self.pace.is_slow(taken_ns)


def _run(model: Model, node: Node, clock: Clock, held: bool) -> list[int]:
    """What a node costs. Raises TraceError, naming the user's line, where PyTorch cannot run it on any of our numbers."""
    ranges = integer_ranges([model.trace.operations[op] for op in model.bodies[node.id].operations], model.trace.variables)
    refused: list[Exception] = []
    tried: list[tuple[Values, dict[int, int]]] = [(random_tensor, {}), (near_identity, {}), (counting, {})]
    for values, drawn in [(random_tensor, ranges), *tried] if ranges else tried:
        try:
            return Bench(model, node, clock, held, values, drawn).run()
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, IndexError) as error:
            refused.append(error)
    sources = (model.trace.operations[op].source for op in model.bodies[node.id].operations)
    where = next((location(s) for s in sources if s is not None), None)
    said = next(iter(str(refused[0]).splitlines()), "").split(". ")[0]
    what = f"{node.name} cannot be measured, forward and backward, on numbers that are drawn for it: {said}"
    hint = "compute it before the model and pass in the result, or keep what it takes in range (clamp)"
    raise TraceError(what, where=where, hint=hint) from refused[0]


def _measure_loss(model: Model, clock: Clock) -> list[int]:
    """The example loss on tensors like the model's outputs: time and peak, gradient of the outputs included."""
    leaves = [random_tensor(v, clock.device).requires_grad_() for v in _differentiable_outputs(model)]
    if not leaves:
        return [0, 0]

    def work() -> None:
        held: list[Any] = []
        example_loss([Swallow.apply(t, held) for t in leaves], model.record.loss).backward()

    return [clock.median_ns(work), peak_bytes(work, clock.device)]


def _differentiable_outputs(model: Model) -> list[Variable]:
    """What the loss reads, each as often as it is returned: every time adds to the gradient."""
    outputs = [model.trace.variables[r.variable] for r in model.trace.outputs if isinstance(r, Ref)]
    taking = [v for v in outputs if model.record.variables[v.id].requires_grad]
    return [v for v in taking if not v.shape] if model.record.loss == "model" else taking
