"""A record, made on fake tensors, lays out results and gradients as a real step does.

A kernel copies what lies in another order than it works in: memory that a plan has to know of.
"""

from __future__ import annotations

from functools import partial

import builders
import catalogue
import further
import more
import pytest
import torch

from remat_codegen.ask.request import Request
from remat_codegen.graph.record import example_loss
from remat_codegen.graph.simplify import Model
from remat_codegen.profile.numbers import random_tensor
from remat_codegen.run.traced import trace_target
from remat_codegen.show.results import Progress
from remat_codegen.trace import Origin, Ref, autocasting, substitute

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
FILES = {n: c for c in (catalogue, more, further) for n in c.NAMES if n not in getattr(c, "REFUSED", ())}
BY_DATA = {"phimoe"}  # has experts that some data leaves without a token


def given(model: Model) -> dict[int, torch.Tensor]:
    """What the operations are run on, by variable: the model's constants, and numbers drawn for everything else."""
    tensors = dict(model.trace.constants)
    for v in model.trace.variables:
        if v.origin not in (Origin.RESULT, Origin.SIZE, Origin.CONSTANT):
            tensor = random_tensor(v, "cpu")
            tensors[v.id] = tensor.requires_grad_(v.requires_grad) if v.dtype.is_floating_point else tensor
    return tensors


def real_layouts(model: Model) -> tuple[dict[int, tuple[int, ...]], dict[int, tuple[int, ...]]]:
    """The strides of results, and of their gradients, in a step that runs the trace; by variable."""
    tensors, gradients = given(model), dict[int, tuple[int, ...]]()
    for op in model.trace.operations:
        with torch.set_grad_enabled(op.grad_enabled), autocasting(op.autocast):
            out = op.target(*substitute(op.args, tensors), **substitute(dict(op.kwargs), tensors))
        made = zip(op.results, out if op.many else (out,), strict=True)
        tensors |= {variable: value for variable, value in made if variable is not None}

    def note(variable: int, gradient: torch.Tensor) -> None:
        gradients[variable] = gradient.stride()

    for variable, tensor in tensors.items():  # now: what is changed in place has got another node
        if tensor.requires_grad and not tensor.is_leaf:
            tensor.register_hook(partial(note, variable))
    outputs = [tensors[r.variable] for r in model.trace.outputs if isinstance(r, Ref)]
    example_loss(outputs, model.record.loss).backward()
    return {v: t.stride() for v, t in tensors.items()}, gradients


@pytest.mark.parametrize("name", [n for n in FILES if n not in BY_DATA])
def test_a_record_lies_as_a_real_step_does(name):
    builders.require(name)
    file = FILES[name].__file__
    model = trace_target(Request(f"{file}:{name}", "1", inputs=f"{file}:{name}_inputs"), Progress(None)).model
    results, gradients = real_layouts(model)
    for v in model.trace.results():
        row = model.record.variables[v.id]
        shape, recorded = v.shape, {"result": row.strides, "gradient": row.gradient_strides}
        for what, real in (("result", results.get(v.id)), ("gradient", gradients.get(v.id))):
            if real is None or recorded[what] is None or 0 in shape or len(real) != len(shape):  # unsqueezed in place since
                continue
            pairs = zip(shape, real, recorded[what], strict=True)
            assert all(ours == theirs for size, ours, theirs in pairs if size > 1), (what, v.name, shape, real, recorded[what])
