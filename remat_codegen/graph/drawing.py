"""Nodes that draw random numbers, and what running them again takes on a CPU."""

from __future__ import annotations

from remat_codegen.graph.simplify import Model

GENERATOR_STATE_BYTES = 5056  # torch.get_rng_state() on the CPU; a CUDA generator's state does not lie on the device


def drawing_nodes(model: Model) -> frozenset[int]:
    """The forward nodes that may run again, and then from a state that lies where the activations do."""
    if model.trace.accelerator:
        return frozenset()
    operations = model.record.operations
    nodes = (node for node in model.graph.forward_nodes if node.recomputable)
    return frozenset(n.id for n in nodes if any(operations[op].random for op in model.bodies[n.id].operations))
