"""Where the loss is what takes the most memory, and what helps there.

Plans are made for a loss outside of the model, which needs its outputs, their gradient and one more tensor of their size
(training.example_loss). Of a vocabulary's logits that is often more than all activations of a plan, and no rematerialization
helps: only a loss that never has all logits at once.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from remat_codegen.ask.budget import format_bytes
from remat_codegen.graph.ir import Node, Phase, total_bytes
from remat_codegen.graph.simplify import Model
from remat_codegen.profile.costs import Profile
from remat_codegen.schedule import Compute, simulate, with_forgets
from remat_codegen.trace import Operation, Origin, location, refs

CROSS_ENTROPY = {"cross_entropy_loss", "nll_loss", "nll_loss_nd", "nll_loss2d"}
LOG_SOFTMAX = {"log_softmax", "_log_softmax"}  # which are the same where one of each row's numbers is all that is read
TURNED = {"view", "_unsafe_view", "reshape", "flatten", "transpose", "permute", "unsqueeze", "squeeze", "contiguous", "clone"}
PRODUCTS = {"linear", "matmul", "mm", "addmm", "bmm", "einsum"}
MOST = 0.5  # of the peak: what a loss takes that is worth a word
FUSED = "linear_cross_entropy"  # of torch.nn.functional, from PyTorch 2.13 on


def loss_note(model: Model, profile: Profile, order: Sequence[int]) -> str | None:
    """A line that says so where the loss takes most of the peak of a step in this order; None where it does not."""
    graph = model.graph
    schedule = with_forgets(graph, order)
    timeline = simulate(graph, profile, schedule)
    step = schedule.steps[timeline.peak_step] if schedule.steps else None
    node = graph.nodes[step.node] if isinstance(step, Compute) else None
    if model.record.loss == "model" and node is not None and node.phase is Phase.LOSS:
        return None
    if node is None or own_bytes(model, profile, node) < MOST * timeline.peak_bytes:
        return None
    needs = f"of the peak, {format_bytes(timeline.peak_bytes)}, {format_bytes(own_bytes(model, profile, node))} are what"
    if node.phase is Phase.LOSS:
        size = format_bytes(total_bytes(graph, graph.outputs))
        how = "let the model return what its last layer is given, and compute"
        remedy = _remedy(how) if _is_product(model) else "computed for a part of the outputs at a time, it needs less"
        return f"{needs} the loss outside of the model needs, of outputs of {size}: {remedy}"
    where = _cross_entropy(model, node.id if node.forward is None else node.forward)
    return None if where is None else f"{needs} the cross entropy at {where} needs: {_remedy('compute it by')}"


def own_bytes(model: Model, profile: Profile, node: Node) -> int:
    """What is there while a node runs because it runs: what it reads, what it writes, and its workspace."""
    return total_bytes(model.graph, {*node.reads, *node.writes}) + profile.workspace_bytes[node.id]


def _remedy(how: str) -> str:
    """What never has all logits at once: PyTorch's own where this one has it."""
    library = "a library's fused linear cross entropy"
    if not hasattr(torch.nn.functional, FUSED):
        return f"{how} {library}"
    return f"{how} torch.nn.functional.{FUSED} with options=torch.nn.LinearCrossEntropyOptions(), in chunks, or {library}"


def _is_product(model: Model) -> bool:
    """Whether what the loss reads comes from a linear layer, as logits do."""
    outputs = set(model.graph.outputs)
    last = [n for n in model.graph.forward_nodes if outputs.intersection(n.writes)]
    return any(model.trace.operations[op].base in PRODUCTS for n in last for op in model.bodies[n.id].operations)


def _cross_entropy(model: Model, forward: int) -> str | None:
    """The line of a cross entropy that a node computes of a product with parameters; None where it computes none."""
    operations = [model.trace.operations[op] for op in model.bodies[forward].operations]
    found = next((op for op in operations if op.base in CROSS_ENTROPY or _is_picked_from(model, op)), None)
    trained = any(op.base in PRODUCTS and _has_parameters(model, op) for op in model.trace.operations)
    return location(found.source) if found is not None and trained else None


def _is_picked_from(model: Model, operation: Operation) -> bool:
    """Whether it is a logarithm of softmax of which each row gives one number, however it lies."""
    if operation.base not in LOG_SOFTMAX:
        return False
    readers, made = list[Operation](), [*operation.made]
    for variable in made:  # which grows
        here = [model.trace.operations[r] for r in model.trace.readers[variable]]
        readers += [op for op in here if op.base not in TURNED]
        made += [v for op in here if op.base in TURNED for v in op.made]
    return bool(readers) and all(op.base in CROSS_ENTROPY | {"gather"} for op in readers)


def _has_parameters(model: Model, operation: Operation) -> bool:
    return any(model.trace.variables[v].origin is Origin.PARAMETER for v in refs(operation.args))
