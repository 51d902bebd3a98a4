"""The simulator's memory against the allocator's own record, step by step."""

from __future__ import annotations

import pytest
import torch
from emitted import zoo_model
from torch.profiler import ProfilerActivity, profile, record_function

from remat_codegen.graph.record import example_loss
from remat_codegen.profile.cache import Cache
from remat_codegen.profile.measure import Measured
from remat_codegen.profile.memory import allocations, quiet
from remat_codegen.schedule import Compute, Forget, simulate, without_recomputation
from remat_codegen.trace import Origin, Ref, substitute

TOLERANCE = 64  # bytes: the seeds of the backward pass


class Interpreter:
    """Runs a model's operations one after another as a schedule says, with a mark in the profiler's record before each node."""

    def __init__(self, module, args, kwargs, model, schedule):
        self.model, self.schedule = model, schedule
        self.tensors = {}
        leaves = iter([t for t in torch.utils._pytree.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)])
        for variable in model.trace.variables:
            if variable.origin in (Origin.PARAMETER, Origin.BUFFER):
                self.tensors[variable.id] = (
                    module.get_parameter(variable.path)
                    if (variable.origin is Origin.PARAMETER)
                    else module.get_buffer(variable.path)
                )
            elif variable.origin is Origin.INPUT:
                self.tensors[variable.id] = next(leaves).detach().requires_grad_(variable.requires_grad)
        for tensor in self.tensors.values():
            if tensor.requires_grad:
                tensor.grad = torch.zeros_like(tensor)

    def run(self):
        for step in self.schedule.steps:
            if isinstance(step, Forget):
                self.drop(lambda v, d=step.data: self.model.data_of[v] == d)
            elif step.node == self.model.graph.loss:
                return self.backward()
            else:
                mark(step.node)
                self.forward(step.node)

    def forward(self, node):
        body = self.model.bodies[node]
        for op in body.operations:
            operation = self.model.trace.operations[op]
            args, kwargs = substitute((operation.args, dict(operation.kwargs)), self.tensors)
            out = operation.target(*args, **kwargs)
            for variable, value in zip(operation.results, out if operation.many else (out,), strict=True):
                if variable is not None:
                    self.tensors[variable] = value
            self.mark_backward(op)
        self.drop(lambda v: self.model.data_of[v] is None and self.model.record.maker_of(v) in body.operations)

    def mark_backward(self, op):
        """A mark before autograd goes back through a node."""
        node = next((n for n in self.model.graph.backward_nodes if self.last_back(n.forward) == op), None)
        if node is not None:
            self.tensors[self.model.record.operations[op].stop].grad_fn.register_prehook(lambda grads: mark(node.id))

    def last_back(self, forward):
        return max(op for op in self.model.bodies[forward].operations if self.model.record.operations[op].backward)

    def drop(self, condition):
        for variable in [v for v in self.tensors if condition(v)]:
            del self.tensors[variable]

    def backward(self):
        mark(self.model.graph.loss)
        outputs = [self.tensors[o.variable] for o in self.model.trace.outputs if isinstance(o, Ref)]
        self.tensors.clear()
        example_loss(outputs, self.model.record.loss).backward()


def mark(node):
    with record_function(f"node {node}"):
        pass


def measured(work):
    """What is held at each mark, and the peak."""
    with quiet(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        work()
    names = [(e.start_ns(), e.name()) for e in recorded.profiler.kineto_results.events() if e.name().startswith("node ")]
    marks, held, peak = {}, 0, 0
    for _, event in sorted([*names, *allocations(recorded)], key=lambda e: e[0]):
        if isinstance(event, int):
            held += event
            peak = max(peak, held)
        else:
            marks[int(event.removeprefix("node "))] = held
    return marks, peak


@pytest.mark.parametrize("name", ["gpt2", "vgg", "resnet", "unet"])
def test_memory_before_every_node_and_the_peak(name, tmp_path):
    module, args, kwargs, model = zoo_model(name)
    costs = Measured("cpu", Cache("cpu", tmp_path)).of(model)
    schedule = without_recomputation(model.graph)
    timeline = simulate(model.graph, costs, schedule)
    marks, peak = measured(Interpreter(module, args, kwargs, model, schedule).run)
    before = {
        step.node: timeline.after_bytes[position - 1] if position else 0
        for position, step in enumerate(schedule.steps)
        if isinstance(step, Compute)
    }
    wrong = {model.graph.nodes[n].name: (held, before[n]) for n, held in marks.items() if abs(held - before[n]) > TOLERANCE}
    assert wrong == {}
    assert len(marks) == len(model.graph.nodes)
    assert abs(peak - timeline.peak_bytes) <= TOLERANCE
