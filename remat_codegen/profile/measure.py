"""Measures each distinct compute node on the device, one at a time (rk-GB, appendix A.6).

A node is run on random inputs of the layout it has in the model (other ones where PyTorch refuses these): forward for its
time and memory, backward for its time and memory with the gradients' layout. Never more than one node's tensors exist.
Nodes of equal signature are measured once.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from remat_codegen.errors import TraceError
from remat_codegen.graph.ir import Kind, Node, Phase
from remat_codegen.graph.record import example_loss
from remat_codegen.graph.simplify import Model, early_ends
from remat_codegen.profile.cache import Cache
from remat_codegen.profile.costs import Profile
from remat_codegen.profile.memory import peak_bytes, peak_bytes_after
from remat_codegen.torch_seam import schema
from remat_codegen.trace import Operation, Origin, Ref, Variable, autocasting, location, refs, substitute

MEASURED_SECONDS = 0.3  # a node is run again until it took this long, or MOST_RUNS times
MOST_RUNS = 15
LEAST_RUNS = 3
HELD = " held"  # marks the costs of a backward node whose gradients others hold, too
RETURNED = " returned"  # and of one whose results the model's caller holds


def measure(model: Model, device: str, cache: Cache, advance: Callable[[int, int, str], None] | None = None) -> Profile:
    """Time and workspace of every node of `model.graph` on `device`. `advance(done, total, name)` reports progress."""
    graph = model.graph
    shared = _with_held_gradients(model)
    marks = {n.id: _marks(model, n, shared) for n in graph.nodes if n.phase is not Phase.BACKWARD}
    distinct = {(n.signature, marks[n.id]): n for n in reversed(graph.nodes) if n.phase is not Phase.BACKWARD}
    costs: dict[str, tuple[int, int]] = {}
    with torch.random.fork_rng(devices=[device] if device.startswith("cuda") else []):
        torch.manual_seed(0)
        for done, ((signature, marked), node) in enumerate(distinct.items()):
            if advance is not None:
                advance(done, len(distinct), node.name)
            costs |= _node_costs(model, node, signature, device, cache, marked)
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
    shared = {record.of_variable[v.id] for v in trace.variables if v.origin is Origin.PARAMETER and v.requires_grad}
    last: dict[int, int] = {}
    used: list[set[int]] = []
    for op in trace.operations:
        used.append({record.of_variable[v] for v in refs((op.args, dict(op.kwargs)))} & shared)
        last |= {storage: op.id for storage in used[-1] if record.backward[op.id]}
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
        most = max(record.most_gradient_bytes[op] for op in model.bodies[node.forward].operations)
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


def _results_used_outside(model: Model, operations: Sequence[int]) -> list[int]:
    """The variables that a node hands on: what it makes, and what it was given and changes in place."""
    own = [model.trace.operations[op] for op in operations]
    made = {v for op in own for v in op.results if v is not None}
    changed = {storage for op in operations for storage in model.record.mutated[op]}
    given = {v for op in own for v in refs((op.args, dict(op.kwargs)))} - made
    outputs = {r.variable for r in model.trace.outputs if isinstance(r, Ref)}
    readers, inside = model.trace.readers, set(operations)
    wanted = {v for v in made if v in outputs or not inside.issuperset(readers[v])}
    altered = {v for v in given if model.record.of_variable[v] in changed}
    return sorted(wanted | {v for v in altered if v in outputs or readers[v][-1] > max(inside)})


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
    bench = _results_used_outside(model, model.bodies[node.forward].operations)
    seeded = [replace(model.trace.variables[v], stride=s) for v in bench if (s := model.record.gradient_of[v]) is not None]
    read = sum(model.graph.data[d].nbytes for d in node.reads if model.graph.data[d].kind is Kind.GRADIENT)
    return [v.dtype.itemsize * _numbers(v) for v in seeded], read


def _marks(model: Model, node: Node, shared: frozenset[int]) -> str:
    """What nodes of one signature may still differ in: who else holds what the backward node would free on its way."""
    returned = {r.variable for r in model.trace.outputs if isinstance(r, Ref)}
    made = (
        {v for op in model.bodies[node.id].operations for v in model.trace.operations[op].results}
        if node.id < model.graph.loss
        else set()
    )
    return (HELD if node.id in shared else "") + (RETURNED if made & returned else "")


def _node_costs(model: Model, node: Node, signature: str, device: str, cache: Cache, marks: str) -> dict[str, tuple[int, int]]:
    """Time and peak of a forward node and of its backward node, by signature."""
    if node.phase is Phase.LOSS:
        key = "loss of " + repr([(v.shape, v.stride, v.dtype) for v in _differentiable_outputs(model)])
        stored = cache.get(key)
        if stored is None:
            stored = _measure_loss(model, device)
            cache.put(key, stored)
        return {signature: (stored[0], stored[1])}
    stored = cache.get(signature + marks)
    if stored is None:
        stored = _run(model, node, device, HELD in marks)
        cache.put(signature + marks, stored)
    return {signature: (stored[0], stored[1]), f"{signature} backward{marks}": (stored[2], stored[3])}


def _run(model: Model, node: Node, device: str, held: bool) -> list[int]:
    """What a node costs. Raises TraceError, naming the user's line, where PyTorch cannot run it on any of our numbers."""
    refused: list[RuntimeError] = []
    for values in (random_tensor, near_identity, counting):
        try:
            return _Bench(model, node, device, held, values).run()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            refused.append(error)
    sources = (model.trace.operations[op].source for op in model.bodies[node.id].operations)
    where = next((location(s) for s in sources if s is not None), None)
    said = next(iter(str(refused[0]).splitlines()), "").split(". ")[0]
    raise TraceError(
        f"{node.name} cannot be measured, forward and backward, on numbers that are drawn for it: {said}", where=where
    ) from refused[0]


def median_ns(work: Callable[[], Any], device: str) -> int:
    """The median time of several runs of `work`, after one to warm up, in nanoseconds."""
    runs: list[int] = []
    work()
    while len(runs) < LEAST_RUNS or (sum(runs) < MEASURED_SECONDS * 1e9 and len(runs) < MOST_RUNS):
        _synchronize(device)
        begin = time.perf_counter_ns()
        work()
        _synchronize(device)
        runs.append(time.perf_counter_ns() - begin)
    return int(statistics.median(runs))


def _synchronize(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)


def _measure_loss(model: Model, device: str) -> list[int]:
    """The example loss on tensors like the model's outputs: time and peak, gradient of the outputs included."""
    leaves = [random_tensor(v, device).requires_grad_() for v in _differentiable_outputs(model)]
    if not leaves:
        return [0, 0]

    def work() -> None:
        held: list[Any] = []
        example_loss([_Swallow.apply(t, held) for t in leaves]).backward()

    return [median_ns(work, device), peak_bytes(work, device)]


def _differentiable_outputs(model: Model) -> list[Variable]:
    """What the loss reads, each as often as it is returned: every time adds to the gradient."""
    outputs = [model.trace.variables[r.variable] for r in model.trace.outputs if isinstance(r, Ref)]
    return [v for v in outputs if model.record.requires_grad[v.id]]


def random_tensor(variable: Variable, device: str, floats: Callable[..., torch.Tensor] = torch.randn) -> torch.Tensor:
    """A tensor of a variable's layout: normal numbers, zeros where it holds integers, either where it is boolean."""
    size = _numbers(variable)
    if variable.dtype.is_floating_point or variable.dtype.is_complex:
        base = floats(size, dtype=variable.dtype, device=device)
    else:
        high = 2 if variable.dtype is torch.bool else 1  # an index may point into a dimension of size 1
        base = torch.randint(0, high, (size,), device=device).to(variable.dtype)
    return base.as_strided(variable.shape, variable.stride)


def _numbers(variable: Variable) -> int:
    """How many numbers its layout spans, those between its rows included."""
    if 0 in variable.shape:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(variable.shape, variable.stride, strict=True))


def near_identity(variable: Variable, device: str) -> torch.Tensor:
    """Another tensor of its layout, for operations that take probabilities or positive definite matrices only."""
    tensor = random_tensor(variable, device, _small)
    numbers = variable.dtype.is_floating_point or variable.dtype.is_complex
    if numbers and tensor.dim() > 1 and 0 not in tensor.stride():  # a repeated row has no diagonal of its own
        tensor.diagonal(dim1=-2, dim2=-1).fill_(0.9)
    return tensor


def counting(variable: Variable, device: str) -> torch.Tensor:
    """Another tensor of its layout, with whole numbers that are not 0, for operations that count those and look at the last."""
    tensor = random_tensor(variable, device)
    numbers = variable.dtype.is_floating_point or variable.dtype.is_complex or variable.dtype is torch.bool
    return tensor if numbers else tensor.fill_(2)


def _small(count: int, **options: Any) -> torch.Tensor:
    return torch.rand(count, **options).mul_(1e-3)


class _Swallow(torch.autograd.Function):
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


class _Bench:
    """One node with its inputs, ready to be run forward and backward."""

    def __init__(
        self, model: Model, node: Node, device: str, held: bool, values: Callable[[Variable, str], torch.Tensor]
    ) -> None:
        self.model, self.device, self.held, self.values = model, device, held, values
        self.operations = [model.trace.operations[i] for i in model.bodies[node.id].operations]
        made = {v for op in self.operations for v in op.results if v is not None}
        mentioned = [v for op in self.operations for v in refs((op.args, dict(op.kwargs)))]
        indices = {v for op in self.operations if "index" in schema(op.target).name for v in refs(op.args[1:])}
        self.masks = {v for v in indices if model.trace.variables[v].dtype is torch.bool}
        self.given = {v: self._input(v) for v in dict.fromkeys(mentioned) if v not in made}
        changed = {storage for op in self.operations for storage in model.record.mutated[op.id]}
        leaves = {v for v, t in self.given.items() if t.requires_grad and t.is_leaf}
        self.changed = {v for v in leaves if model.record.of_variable[v] in changed}
        self.outputs = _results_used_outside(model, [op.id for op in self.operations])
        back = any(n.forward == node.id for n in model.graph.backward_nodes)
        ends = early_ends(model, [op.id for op in self.operations])
        self.ends = {op: [v for v in variables if v not in self.outputs] for op, variables in ends.items()}
        self.goes_back = back and any(model.record.gradient_of[v] is not None for v in self.outputs)

    def _input(self, variable: int) -> torch.Tensor:
        v = self.model.trace.variables[variable]
        tensor = self.values(v, self.device)
        if variable in self.masks:  # which takes most
            tensor = torch.ones_like(tensor)
        if self.model.record.requires_grad[variable]:
            tensor.requires_grad_()
            if v.origin is Origin.PARAMETER:  # an input's own gradient counts among what the node writes, and stays
                tensor.grad = torch.zeros_like(tensor)
        return tensor

    def forward(self, held: list[Any] | None = None) -> dict[int, torch.Tensor]:
        tensors: dict[int, torch.Tensor] = {}
        for v, tensor in self.given.items():
            if held is not None and tensor.requires_grad and tensor.grad is None:
                tensor = _Swallow.apply(tensor, held)
            if v in self.changed:  # autograd lets nobody change a leaf in place; the copy is counted, which does no harm
                tensor = tensor.clone()
            tensors[v] = tensor
        for op in self.operations:
            with (
                torch.set_grad_enabled(op.grad_enabled and torch.is_grad_enabled()),
                autocasting(op.autocast),
                self._saving(op),
            ):
                out = op.target(*substitute(op.args, tensors), **substitute(dict(op.kwargs), tensors))
            for variable, value in zip(op.results, out if op.many else (out,), strict=True):
                if variable is not None:
                    tensors[variable] = value
            out = value = None
            for variable in self.ends.get(op.id, ()):
                del tensors[variable]
        return {v: tensors[v] for v in self.outputs}

    def _saving(self, op: Operation) -> contextlib.AbstractContextManager[Any]:
        """As in the generated file: nothing is saved where nothing goes back."""
        unsaved = self.model.record.unsaved[op.id]
        nothing = torch.autograd.graph.saved_tensors_hooks(lambda _: None, lambda _: _)
        return nothing if unsaved else contextlib.nullcontext()

    def run(self) -> list[int]:
        """Forward time, forward peak, backward time, backward peak (0, 0 where there is none)."""
        forward_ns = median_ns(self.forward, self.device)
        held: list[Any] = []

        def forward() -> None:
            held.append(self.forward())

        forward_peak = peak_bytes(forward, self.device)
        held.clear()
        if not self.goes_back:
            return [forward_ns, forward_peak, 0, 0]
        backward_ns, backward_peak = self._measure_backward()
        return [forward_ns, forward_peak, backward_ns, backward_peak]

    def _prepare(self) -> tuple[torch.Tensor, list[Any]]:
        held: list[Any] = []
        outputs = self.forward(held)
        record = self.model.record
        roots = [v for v in self.outputs if outputs[v].grad_fn is not None and record.gradient_of[v] is not None]
        grads = [self._gradient(v) for v in roots]
        held += grads if self.held else []
        root = _Seed.apply(grads, *[outputs[v] for v in roots])
        kept = {r.variable for r in self.model.trace.outputs if isinstance(r, Ref)}
        held.append([t.detach() for v, t in outputs.items() if v in kept])  # nobody else reads a result this late
        return root, held

    def _gradient(self, variable: int) -> torch.Tensor:
        stride = self.model.record.gradient_of[variable]
        v = self.model.trace.variables[variable]
        return random_tensor(replace(v, stride=tuple(stride or v.stride)), self.device)

    def _measure_backward(self) -> tuple[int, int]:
        runs: list[int] = []
        for _ in range(MOST_RUNS):
            root, held = self._prepare()
            _synchronize(self.device)
            begin = time.perf_counter_ns()
            root.backward()
            _synchronize(self.device)
            runs.append(time.perf_counter_ns() - begin)
            del root, held
            if len(runs) > LEAST_RUNS and sum(runs[1:]) > MEASURED_SECONDS * 1e9:
                break
        peak = peak_bytes_after(self._prepare, _go_back, self.device)
        return int(statistics.median(runs[1:])), peak


def _go_back(prepared: tuple[torch.Tensor, list[Any]]) -> None:
    root, held = prepared
    root.backward()
    del held
