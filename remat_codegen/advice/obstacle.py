"""What stands in the way of a smaller budget: the operation at the peak of the smallest step known, and what is alive there."""

from __future__ import annotations

from collections.abc import Sequence

from remat_codegen.advice.losses import loss_note, own_bytes
from remat_codegen.ask.budget import format_bytes
from remat_codegen.graph.ir import Data, Node, Phase, shown_name
from remat_codegen.graph.record import NO_MEMORY
from remat_codegen.graph.simplify import Model, main_operation
from remat_codegen.profile.costs import Profile
from remat_codegen.schedule import Compute, Schedule, alive_before, simulate
from remat_codegen.trace import Operation, called, function_call, location

MOST = 3  # of what is alive, to be named
DEAR = "conv"  # how names begin of what copies what it is given, to work with
ALONE = 0.6  # of the peak: what runs there is to blame, not what is kept beside it


def obstacle(model: Model, profile: Profile, schedule: Schedule) -> str | None:
    """What takes the peak of a step, and what would help, for the end of a sentence. None where nothing runs at the peak."""
    timeline = simulate(model.graph, profile, schedule)
    step = schedule.steps[timeline.peak_step]
    if not isinstance(step, Compute):
        return None
    node = model.graph.nodes[step.node]
    if (note := loss_note(model, profile, [s.node for s in schedule.steps if isinstance(s, Compute)])) is not None:
        return note
    beside = [model.graph.data[d] for d in alive_before(model.graph, schedule, timeline.peak_step) - {*node.writes}]
    held = _listed(model, sorted(beside, key=lambda data: (-data.nbytes, data.id)))
    own = own_bytes(model, profile, node)
    if own >= ALONE * timeline.peak_bytes:
        remedy = "--batch with less, or computing it for a part of its input at a time, would help"
        return f"in the way is {_said(model, node)}, which takes {format_bytes(own)} by itself: {remedy}"
    return f"in the way is {_said(model, node)}, with {held} alive: a smaller --batch would help"


def _said(model: Model, node: Node) -> str:
    """A node for people: backward of softmax at model.py:31 (h.3.attn)."""
    if node.phase is Phase.LOSS:
        return "the loss"
    operation = _dearest(model, node.id if node.forward is None else node.forward)
    line, path = location(operation.source), operation.module_path
    name = operation.base if function_call(operation.target) is None else called(operation.target)
    where = f"{f' at {line}' if line else ''}{f' ({path})' if path else ''}"
    return f"{name if node.phase is Phase.FORWARD else f'backward of {name}'}{where}"


def _dearest(model: Model, forward: int) -> Operation:
    """What takes memory to work with, of a node's operations: a convolution rather than the activation that goes with it, a
    product rather than its sum."""
    own = [model.trace.operations[op] for op in model.bodies[forward].operations]
    if (dear := next((op for op in own if op.base.startswith(DEAR)), None)) is not None:
        return dear
    return max([main_operation(model, forward), *own], key=lambda op: _made_bytes(model, op))


def _made_bytes(model: Model, operation: Operation) -> int:
    """The bytes of what an operation makes, but for views of what others have made."""
    storages = {model.record.variables[v].storage for v in operation.made} - {NO_MEMORY}
    found = (model.record.storages[s] for s in storages)
    return sum(s.nbytes for s in found if s.operation == operation.id)


def _listed(model: Model, data: Sequence[Data]) -> str:
    """The largest of what is alive: name, module and bytes; how much the others are together."""
    named = [f"{shown_name(d)}{_module(model, d)}, {format_bytes(d.nbytes)}" for d in data[:MOST]]
    others = sum(d.nbytes for d in data[MOST:])
    return "; ".join([*named, *([f"{len(data) - MOST} others, {format_bytes(others)}"] if others else [])])


def _module(model: Model, data: Data) -> str:
    node = model.graph.nodes[model.graph.producers[data.id][0]]
    if node.phase is Phase.LOSS:
        return ""
    path = main_operation(model, node.id if node.forward is None else node.forward).module_path
    return f" of {path}" if path else ""
