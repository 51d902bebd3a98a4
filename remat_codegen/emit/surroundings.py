"""What has to stand around an operation so that it runs as it does in the original: modes that the model as a whole is not in,
and the generators that it draws from."""

from __future__ import annotations

import torch

from remat_codegen.emit.spell import DEVICE
from remat_codegen.graph.record import Record
from remat_codegen.graph.simplify import Body
from remat_codegen.trace import Operation, Trace, chosen_kernels

NOTHING_SAVED = "torch.autograd.graph.saved_tensors_hooks(lambda _: None, lambda _: _)"  # no gradient ever comes there


def modes(trace: Trace, record: Record, operation: Operation) -> list[str]:
    """What an operation runs under that the model as a whole does not, as expressions for a `with`."""
    found = [] if operation.grad_enabled else ["torch.no_grad()"]
    kernels = chosen_kernels(trace.operations[operation.id].target)
    found += [kernels] if kernels is not None else []
    found += [NOTHING_SAVED] if record.operations[operation.id].unsaved else []
    here, usual = dict(operation.autocast), dict(trace.autocast)
    for device in sorted(here | usual):
        if device not in here:
            found.append(f"torch.autocast({device!r}, enabled=False)")
        elif here[device] != usual.get(device):
            found.append(f"torch.autocast({device!r}, dtype={here[device]})")
    return found


def generators(trace: Trace, record: Record, body: Body) -> list[str]:
    """The expressions for the generators that a node's operations draw from."""
    devices: dict[str, None] = {}
    for op in body.operations:
        if record.operations[op].random:
            made = trace.operations[op].made
            devices[trace.variables[made[0]].device if made else "cpu"] = None
    return [_generator(device) for device in devices]


def _generator(device: str) -> str:
    """The expression for the generator that draws on a device."""
    place = torch.device(device)
    if place.type == "cpu":
        return "torch.default_generator"
    return f"torch.cuda.default_generators[{DEVICE}.index]"
