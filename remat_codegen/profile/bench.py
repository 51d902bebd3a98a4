"""One compute node with its inputs, run by itself forward and backward. Never more than one run's tensors exist."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from remat_codegen.graph.ir import Node
from remat_codegen.graph.nature import in_one_piece, is_opaque, weights_of
from remat_codegen.graph.simplify import Model, early_ends
from remat_codegen.profile.cache import Measurement
from remat_codegen.profile.clock import Clock, Stage
from remat_codegen.profile.memory import course, peak_bytes, peak_bytes_after
from remat_codegen.profile.numbers import random_tensor, recorded_tensor
from remat_codegen.torch_seam import schema
from remat_codegen.trace import Operation, Origin, Ref, Variable, autocasting, refs, substitute

Seeded = tuple[torch.Tensor, list[Any]]  # what the way back begins at, and what is held until it is over
Values = Callable[[Variable, str, int], torch.Tensor]  # of a variable, on a device, integers below a number


def results_used_outside(model: Model, operations: Sequence[int]) -> list[int]:
    """The variables that a node hands on: what it makes, and what it was given and changes in place."""
    own = [model.trace.operations[op] for op in operations]
    made = {v for op in own for v in op.made}
    changed = model.record.mutated_by(operations)
    given = {v for op in own for v in op.reads} - made
    outputs = {r.variable for r in model.trace.outputs if isinstance(r, Ref)}
    readers, inside = model.trace.readers, set(operations)
    wanted = {v for v in made if v in outputs or any(r not in inside and _does_something(model, r) for r in readers[v])}
    altered = {v for v in given if model.record.variables[v].storage in changed}
    return sorted(wanted | {v for v in altered if v in outputs or readers[v][-1] > max(inside)})


def _does_something(model: Model, operation: int) -> bool:
    """Whether an operation gives anything, or changes it: torch.export's own assertions, as beside `x.float()`, only look."""
    return bool(model.trace.operations[operation].made or model.record.operations[operation].mutated)


def gone_back_from(model: Model, operations: Sequence[int]) -> list[int]:
    """Those of the variables that a node hands on to which gradients come, one for each tensor."""
    rows = model.record.variables
    found = {rows[v].tensor: v for v in results_used_outside(model, operations) if rows[v].gradient_strides is not None}
    return list(found.values())


def given_to(model: Model, forward: int) -> list[int]:
    """The variables that a forward node mentions and does not make, in their order."""
    own = [model.trace.operations[op] for op in model.bodies[forward].operations]
    made = {v for op in own for v in op.made}
    return [v for v in dict.fromkeys(v for op in own for v in op.reads) if v not in made]


class Swallow(torch.autograd.Function):
    """Stands before a node's inputs: takes their gradients as the engine made them, and holds them until the step is over."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, held: list[Any]) -> torch.Tensor:
        ctx.held = held
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        ctx.held.extend(grads)
        return None, None


class _Seed(torch.autograd.Function):
    """Stands after a node's outputs: hands over gradients that nobody else holds, as in the middle of a backward pass."""

    @staticmethod
    def forward(ctx: Any, grads: list[Any], *outputs: torch.Tensor) -> torch.Tensor:
        ctx.grads = grads
        return torch.zeros((), requires_grad=True)

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        grads, ctx.grads = list(ctx.grads), None
        return None, *grads


class Bench:
    """One node with its inputs, ready to be run forward and backward, where others hold what `key` says."""

    def __init__(
        self, model: Model, node: Node, clock: Clock, key: Measurement, values: Values, ranges: Mapping[int, int]
    ) -> None:
        self.model, self.clock, self.device, self.held = model, clock, clock.device, key.held
        self.values, self.ranges, self.between = values, ranges, _nothing
        self.operations = [model.trace.operations[i] for i in model.bodies[node.id].operations]
        made = {v for op in self.operations for v in op.made}
        mentioned, given = [v for op in self.operations for v in op.reads], given_to(model, node.id)
        self.begun, self.waiting = ({given[place] for place in places} for places in (key.begun, key.waiting))
        indices = {v for op in self.operations if "index" in schema(op.target).name for v in refs(op.args[1:])}
        self.masks = {v for v in indices if model.trace.variables[v].dtype is torch.bool}
        self.recorded = model.trace.run.values if model.trace.run is not None else {}
        self.given = {v: self._input(v) for v in given}
        self.settled = {v: self._recorded(v) for v in made.intersection(mentioned, self.recorded) if self._owns_memory(v)}
        for op in (op for op in self.operations if is_opaque(op)):
            weights = [self.given[v] for v in refs(weights_of(op)) if v in self.given]
            if len(weights) == len(weights_of(op)) and weights[0].is_cuda:
                in_one_piece(op, weights)
        changed = model.record.mutated_by(op.id for op in self.operations)
        leaves = {v for v, t in self.given.items() if t.requires_grad and t.is_leaf}
        self.apart = {op.id: {v: _with_own_sum(self.given[v]) for v in self.begun & {*op.reads}} for op in self.operations[1:]}
        self.changed = {v for v in leaves if model.record.variables[v].storage in changed}
        self.outputs = results_used_outside(model, [op.id for op in self.operations])
        back = any(n.forward == node.id for n in model.graph.backward_nodes)
        ends = early_ends(model, [op.id for op in self.operations])
        self.ends = {op: [v for v in variables if v not in self.outputs] for op, variables in ends.items()}
        self.roots = gone_back_from(model, [op.id for op in self.operations])
        self.goes_back = back and bool(self.roots)

    def _input(self, variable: int) -> torch.Tensor:
        if variable in self.recorded:
            return self._recorded(variable)
        v = self.model.trace.variables[variable]
        tensor = self.values(v, self.device, self.ranges.get(variable, 1))
        if variable in self.masks:  # which takes most
            tensor = torch.ones_like(tensor)
        if self.model.record.variables[variable].requires_grad:
            tensor.requires_grad_()
            # Others count among what the node writes, and stay: also an input's.
            if variable in self.begun or (v.origin is Origin.PARAMETER and variable not in self.waiting):
                tensor.grad = torch.zeros_like(tensor)
        return tensor

    def _recorded(self, variable: int) -> torch.Tensor:
        """What a variable was when the trace was recorded: by other integers, other sizes would follow."""
        return recorded_tensor(self.model.trace.variables[variable], self.recorded[variable], self.device)

    def _owns_memory(self, variable: int) -> bool:
        owner = self.model.record.maker_of(variable)
        return owner is not None and variable in self.model.trace.operations[owner].results

    def _settle(self, variable: int, value: torch.Tensor) -> torch.Tensor:
        """A result that the node computes from other numbers than the model does, as it is in there. Autograd may have saved it
        (indices of a sort), and is not to take that for a change in place."""
        known = self.settled.get(variable)
        if known is None:
            return value
        if value.shape != known.shape:
            return known.clone()
        value.data.copy_(known)
        return value

    def _inputs(self, held: list[Any] | None) -> dict[int, torch.Tensor]:
        """What the node reads; `held` gets the gradients of that."""
        tensors: dict[int, torch.Tensor] = {}
        for v, tensor in self.given.items():
            if held is not None and tensor.requires_grad and tensor.grad is None:
                tensor = Swallow.apply(tensor, held)
            if v in self.changed:  # autograd lets nobody change a leaf; that the copy counts in the peak does no harm
                tensor = tensor.clone()
            tensors[v] = tensor
        return tensors

    def _forward(self, tensors: dict[int, torch.Tensor]) -> dict[int, torch.Tensor]:
        """What the node hands on. `tensors` gets the others that it makes."""
        for number, op in enumerate(self.operations):
            if number:
                self.between()
            given = tensors if not self.apart.get(op.id) else {**tensors, **self.apart[op.id]}
            with (
                torch.set_grad_enabled(op.grad_enabled and torch.is_grad_enabled()),
                autocasting(op.autocast),
                self._saving(op),
            ):
                out = op.target(*substitute(op.args, given), **substitute(dict(op.kwargs), given))
            for variable, value in zip(op.results, out if op.many else (out,), strict=True):
                if variable is not None:
                    tensors[variable] = self._settle(variable, value)
            out = value = None
            for variable in self.ends.get(op.id, ()):
                del tensors[variable]
        return {v: tensors[v] for v in self.outputs}

    def _saving(self, op: Operation) -> contextlib.AbstractContextManager[Any]:
        """As in the generated file: nothing is saved where nothing goes back."""
        unsaved = self.model.record.operations[op.id].unsaved
        nothing = torch.autograd.graph.saved_tensors_hooks(lambda _: None, lambda _: _)
        return nothing if unsaved else contextlib.nullcontext()

    def run(self) -> list[int]:
        """Forward time, forward peak, backward time, backward peak (0, 0 where there is none); then what is held at most in
        each of several operations, on the CPU."""
        if torch.device(self.device).type == "cuda":  # the first call of a library has it allocate what stays
            _go_back(_through(self._stages())) if self.goes_back else self._forward(self._inputs(None))
        held: list[Any] = []
        forth: list[Stage] = [lambda _: self._inputs(None), self._forward]
        recorded, noted = self.clock.noting(*forth)
        forward_peak, *within = self._forward_peaks(lambda: held.append(_through(recorded)))
        held.clear()
        if not self.goes_back:
            _, forward_ns = self.clock.least_times_ns(*forth, warm=True, noted=noted)
            return [forward_ns, forward_peak, 0, 0, *within]
        (*recorded, back), noted = self.clock.noting(*self._stages(), _go_back)
        backward_peak = peak_bytes_after(lambda: _through(recorded), back, self.device)
        _, forward_ns, _, backward_ns = self.clock.least_times_ns(*self._stages(), _go_back, warm=True, noted=noted)
        return [forward_ns, forward_peak, backward_ns, backward_peak, *within]

    def times(self, warm: bool) -> list[int]:
        """Forward and backward time alone; `warm` says that no run has to come before those that count."""
        if not self.goes_back:
            return [self.clock.least_times_ns(lambda _: self._inputs(None), self._forward, warm=warm)[1], 0]
        return self.clock.least_times_ns(*self._stages(), _go_back, warm=warm)[1::2]

    def _forward_peaks(self, work: Callable[[], None]) -> list[int]:
        """The peak of work that runs it forward, and where there are several operations, what is held at most in each of them,
        which only the CPU's allocator tells."""
        if len(self.operations) == 1 or torch.device(self.device).type != "cpu":
            return [peak_bytes(work, self.device)]

        def marked(mark: Callable[[], None]) -> None:
            self.between = mark
            work()

        within = course(marked).most_between()
        self.between = _nothing
        return [max(within), *within]

    def _stages(self) -> tuple[Stage, Stage, Stage]:
        """What comes before the way back: inputs, results, and the gradients of these."""

        def begun(_: Any) -> tuple[list[Any], dict[int, torch.Tensor]]:
            held: list[Any] = []
            return held, self._inputs(held)

        return begun, lambda given: (given[0], self._forward(given[1])), lambda made: self._seeded(*made)

    def _seeded(self, held: list[Any], outputs: dict[int, torch.Tensor]) -> Seeded:
        """What the way back begins at, and what is held until it is over."""
        roots = [v for v in self.roots if outputs[v].grad_fn is not None]
        grads = [self._gradient(v) for v in roots]
        held += grads if self.held else []
        root = _Seed.apply(grads, *[outputs[v] for v in roots])
        kept = {r.variable for r in self.model.trace.outputs if isinstance(r, Ref)}
        held.append([t.detach() for v, t in outputs.items() if v in kept])  # nobody else reads a result this late
        return root, held

    def _gradient(self, variable: int) -> torch.Tensor:
        stride = self.model.record.variables[variable].gradient_strides
        v = self.model.trace.variables[variable]
        return random_tensor(replace(v, stride=tuple(stride or v.stride)), self.device)


def _nothing() -> None:
    """What is done between two operations."""


def _with_own_sum(tensor: torch.Tensor) -> torch.Tensor:
    """The same tensor, but that what goes back to it is added up apart: as soon as it is there, not with what else does."""
    leaf = tensor.detach().requires_grad_(tensor.requires_grad)
    leaf.grad = tensor.grad
    return leaf


def _through(stages: Sequence[Stage]) -> Any:
    value: Any = None
    for stage in stages:
        value = stage(value)
    return value


def _go_back(prepared: Seeded) -> None:
    root, held = prepared
    root.backward()
    del held
