"""Measures each distinct compute node on the device, one at a time (rk-GB, appendix A.6).

A node is run on random inputs of the layout it has in the model (other ones where PyTorch refuses these), integers from the
range that its operations can take: forward for its time and memory, backward for its time and memory with the gradients'
layout. Never more than one node's tensors exist. Nodes of equal signature are measured once. What a time is says `clock.py`.
When all are, their times are measured again, and the shorter ones count: who else uses a machine for a moment makes a few
operations, that follow each other, seem slow beside all others. Where time is short, times come from single runs, which are not
remembered; memory is what it is all the same. What a busy machine gave is remembered as that (pace.py).
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from remat_codegen.errors import TraceError
from remat_codegen.graph.ir import Node, Phase
from remat_codegen.graph.record import example_loss
from remat_codegen.graph.simplify import Model
from remat_codegen.profile.bench import Bench, Swallow, Values, given_to
from remat_codegen.profile.cache import Cache, Measurement
from remat_codegen.profile.clock import ALONE_SECONDS, MEASURED_SECONDS, Clock, clock_for
from remat_codegen.profile.corrections import Destined, with_held_gradients, with_sums, workspaces
from remat_codegen.profile.costs import Advance, Costs, Profile
from remat_codegen.profile.memory import peak_bytes
from remat_codegen.profile.numbers import counting, near_identity, ones, random_tensor
from remat_codegen.profile.pace import Pace
from remat_codegen.profile.ranges import integer_ranges
from remat_codegen.profile.resolution import to_resolution
from remat_codegen.trace import Ref, Variable, location

TIMED = 2  # the first costs: time and peak forward, and backward


@dataclass(frozen=True)
class Measured(Costs):
    """Costs on a device that is there, remembered in `cache`. `hurry_at` is as for a clock, which is the device's own if not
    given; `limit_s` is the limit of time, in seconds, for which there is a hurry."""

    stage = "profile"
    device: str
    cache: Cache
    hurry_at: float = math.inf
    clock: Clock | None = None
    limit_s: float = math.inf

    def of(self, model: Model, advance: Advance | None = None) -> Profile:
        """As in `Costs`. Raises TraceError, naming the user's line, for a node that PyTorch can run on none of our numbers."""
        nodes, held, sums = model.graph.nodes, with_held_gradients(model), with_sums(model)
        keys = {n.id: _measurement(model, n, held, sums) for n in nodes if n.phase is not Phase.BACKWARD}
        clock = clock_for(self.device, self.hurry_at) if self.clock is None else self.clock
        try:
            found = self._found(model, clock, {keys[n.id]: n for n in reversed(nodes) if n.id in keys}, advance)
        finally:  # interrupted, too: what was measured need not be measured again
            self.cache.save()
        forward = {key.signature: costs for key, costs in found.items()}  # the same, whoever holds what
        costs = [forward[keys[n.id].signature][:2] if n.forward is None else found[keys[n.forward]][2:4] for n in nodes]
        needed, early = workspaces(model, [peak for _, peak in costs], held)
        within = tuple(tuple(forward[keys[n.id].signature][4:]) if n.id in keys else () for n in nodes)
        times = tuple(ns for ns, _ in costs)
        times = times if clock.is_exact else to_resolution(model.graph, times)
        return Profile(times, needed, self.device, early_bytes=early, peaks_within=within)

    def _found(
        self, model: Model, clock: Clock, distinct: dict[Measurement, Node], advance: Advance | None
    ) -> dict[Measurement, list[int]]:
        """Time and peak forward, and but for the loss backward."""
        stored = _Stored(self.cache, clock, Pace(clock, self.cache.least_ns) if self.cache.enabled else None)
        found, advance = dict[Measurement, list[int]](), advance or (lambda done, total, name: None)
        with torch.random.fork_rng(devices=[self.device] if self.device.startswith("cuda") else []):
            torch.manual_seed(0)
            for done, (key, node) in enumerate(distinct.items()):
                advance(done, 2 * len(distinct), node.name)
                found[key] = stored.or_measured(key, functools.partial(_run, model, node, clock, key))
            for done, (key, node) in enumerate(distinct.items(), len(distinct)):
                advance(done, 2 * len(distinct), node.name)
                found[key] = stored.or_less(key, found[key], functools.partial(_run, model, node, clock, key))
        return found

    def tell(self, note: Callable[[str], None]) -> None:
        """As in `Costs`: what was measured in a hurry, or on a busy machine."""
        hurried, slowed, again = self.cache.hurried, len(self.cache.slowed), len(self.cache.again)
        if hurried:
            note(f"note: {_kinds(hurried)} could not be measured as often as usual, within {self.limit_s:g} s")
        if slowed:
            note(
                f"note: {_kinds(slowed)} measured on a machine that did less than it can, as when others use it: "
                "when it is quieter they are measured again, and plan better"
            )
        if again:
            note(f"note: {_kinds(again)} measured again, for the machine was busy when they were measured before")


def _kinds(number: int) -> str:
    return f"{number} {'kind' if number == 1 else 'kinds'} of operations"


def _measurement(model: Model, node: Node, held: frozenset[int], sums: list[Destined]) -> Measurement:
    """What a node's costs are remembered under, and its backward node's."""
    if node.phase is Phase.LOSS:
        outputs = repr([(v.shape, v.stride, v.dtype) for v in _differentiable_outputs(model)])
        return Measurement(outputs, loss=model.record.loss)
    made = {v for op in model.bodies[node.id].operations for v in model.trace.operations[op].results}
    returned = {r.variable for r in model.trace.outputs if isinstance(r, Ref)}
    given, own = list(enumerate(given_to(model, node.id))), sums[node.id]
    begun, waiting = (tuple(i for i, v in given if v in those) for those in (own.begun, own.waiting))
    return Measurement(node.signature, node.id in held, bool(made & returned), begun, waiting)


class _Stored:
    """What is remembered, each with the machine's pace at that time, 0 where nobody looked at it."""

    def __init__(self, cache: Cache, clock: Clock, pace: Pace | None) -> None:
        self.cache, self.clock, self.pace = cache, clock, pace
        self.new = set[Measurement]()
        self._pace_ns()  # all may be remembered of a busier machine

    def or_measured(self, key: Measurement, measured: Callable[[], list[int]]) -> list[int]:
        """What is remembered under a key, else what is measured; this, too, where the other is of a busier moment than now."""
        if (found := self.cache.get(key)) is not None:
            *costs, then = found
            if not self._is_slow(then):
                return costs
            if self._is_slow(self._pace_ns()):
                self.cache.slowed.add(key)
                return costs
            self.cache.again.add(key)
        costs = measured()
        if self.clock.in_a_hurry:
            self.cache.hurried += 1
            return costs
        self.new.add(key)
        return self._remembered(key, costs, self._pace_ns())

    def or_less(self, key: Measurement, costs: list[int], times: Callable[[list[int]], list[int]]) -> list[int]:
        """The costs, with shorter times where those that are measured now are: of what was measured just before, unless that
        would be the same again, or time is short."""
        enough = self.clock.is_exact or self.clock.in_a_hurry or _takes(costs, ALONE_SECONDS)
        if key not in self.new or enough:
            return costs
        found = list(costs)
        found[: 2 * TIMED : 2] = map(min, costs[: 2 * TIMED : 2], times(costs))
        return self._remembered(key, found, min(self.cache.entries[key.spelled()][-1], self._pace_ns()))

    def _remembered(self, key: Measurement, costs: list[int], pace_ns: int) -> list[int]:
        (set.add if self._is_slow(pace_ns) else set.discard)(self.cache.slowed, key)
        self.cache.put(key, [*costs, pace_ns])
        return costs

    def _pace_ns(self) -> int:
        if self.pace is None:
            return 0
        now = self.pace.now_ns()
        self.cache.least_ns = self.pace.least_ns
        return now

    def _is_slow(self, taken_ns: int) -> bool:
        return self.pace is not None and self.pace.is_slow(taken_ns)


CHANGED = "modified by an inplace operation"  # says PyTorch
REFUSALS = RuntimeError, IndexError, ValueError, TypeError, ArithmeticError, AssertionError  # the last by a user's own Function
OF_TYPES = "same dtype|scalar type"  # so does PyTorch, where types are not those it takes


def _run(model: Model, node: Node, clock: Clock, key: Measurement, known: list[int] | None = None) -> list[int]:
    """What a node costs; or its times alone, where its costs are known. Raises TraceError, naming the user's line, where
    PyTorch cannot run it on any of our numbers."""
    if node.phase is Phase.LOSS:
        return _measure_loss(model, clock, known)
    ranges = integer_ranges([model.trace.operations[op] for op in model.bodies[node.id].operations], model.trace.variables)
    refused: list[Exception] = []
    tried: list[tuple[Values, dict[int, int]]] = [(random_tensor, {}), (near_identity, {}), (counting, {})]
    tried += [(ones, {})]
    for values, drawn in [(random_tensor, ranges), *tried] if ranges else tried:
        try:
            bench = Bench(model, node, clock, key, values, drawn)
            return bench.run() if known is None else bench.times(warm=_takes(known, MEASURED_SECONDS))
        except torch.OutOfMemoryError:
            raise
        except REFUSALS as error:
            refused.append(error)
    sources = (model.trace.operations[op].source for op in model.bodies[node.id].operations)
    where = next((location(s) for s in sources if s is not None), None)
    said = next(iter(str(refused[0]).splitlines()), "").split(". ")[0]
    if any(CHANGED in str(error) for error in refused):
        own = [model.trace.operations[op] for op in model.bodies[node.id].operations]
        changing = next((op for op in reversed(own) if model.record.operations[op.id].mutated), own[0])
        where, what = location(changing.source) or where, f"backward needs what {changing.base} changes in place"
        what = f"the model cannot be trained as it is: {what}, and PyTorch refuses it"
        raise TraceError(what, where=where, hint="give a new tensor there, x * y for x.mul_(y)") from refused[0]
    if all(re.search(OF_TYPES, str(error)) for error in refused):
        what = f"{node.name} does not take numbers of these types: {said}"
        raise TraceError(what, where=where, hint="give inputs of the type that the model is trained with") from refused[0]
    what = f"{node.name} cannot be measured, forward and backward, on numbers that are drawn for it: {said}"
    hint = "compute it before the model and pass in the result, or keep what it takes in range (clamp)"
    raise TraceError(what, where=where, hint=hint) from refused[0]


def _takes(costs: list[int], seconds: float) -> bool:
    """Whether something runs as long."""
    return sum(costs[: 2 * TIMED : 2]) >= seconds * 1e9


def _measure_loss(model: Model, clock: Clock, known: list[int] | None) -> list[int]:
    """The example loss on tensors like the model's outputs: time and peak, gradient of the outputs included; or its time alone,
    where they are known."""
    leaves = [random_tensor(v, clock.device).requires_grad_() for v in _differentiable_outputs(model)]
    if not leaves:
        return [0, 0]

    def work(_: Any) -> None:
        held: list[Any] = []
        example_loss([Swallow.apply(t, held) for t in leaves], model.record.loss).backward()

    if known is not None:
        return clock.least_times_ns(work, warm=_takes(known, MEASURED_SECONDS))
    [recorded], noted = clock.noting(work)
    peak = peak_bytes(lambda: recorded(None), clock.device)
    return [*clock.least_times_ns(work, warm=True, noted=noted), peak]


def _differentiable_outputs(model: Model) -> list[Variable]:
    """What the loss reads, each as often as it is returned: every time adds to the gradient."""
    outputs = [model.trace.variables[r.variable] for r in model.trace.outputs if isinstance(r, Ref)]
    taking = [v for v in outputs if model.record.variables[v.id].requires_grad]
    return [v for v in taking if not v.shape] if model.record.loss == "model" else taking
