"""What cannot be planned is refused before planning, with the operation and the line of the user's model."""

from __future__ import annotations

import pytest
import torch

from remat_codegen.ask.request import Request
from remat_codegen.errors import TraceError, UnsupportedError
from remat_codegen.run import pipeline
from remat_codegen.show.results import Progress

REFUSED = {
    "hook": ("(h.register_hook(lambda g: -g), h)[1]", r"register_hook\(\) inside of forward"),
    "multi": (
        "(torch.autograd.graph.register_multi_grad_hook([h], print), h)[1]",
        r"register_multi_grad_hook\(\) inside of forward",
    ),
    "packing": (
        "[hooks := torch.autograd.graph.saved_tensors_hooks(torch.neg, torch.neg), hooks.__enter__(), h.sin()][2]",
        "saved_tensors_hooks inside of forward change",
    ),
    "grad": ("h * torch.autograd.grad(h.sum(), x, create_graph=True)[0]", r"torch.autograd.grad\(\) inside of forward"),
}


LINES = {
    "torch.nn.functional.ctc_loss(h[None], x[:1].long(), (1,), (1,))": "aten._ctc_loss.default decides the size of what",
    "torch.vmap(torch.no_grad()(torch.sin))(h) + h": "this torch.vmap inside of forward cannot",
    "torch.func.jvp(torch.sin, (h,), (h,))[0]": "torch.func (jvp, grad and the like) inside of forward is not supported",
    "torch.func.grad(lambda h: h.sum())(h)": "torch.autograd.grad() inside of forward changes or reads gradients",
    "h.relu().to_sparse() @ self.weight": "to_sparse is a sparse tensor",
    "torch.nn.functional.embedding(x.long(), self.weight, sparse=True)": "aten.embedding.default has a sparse gradient",
    "h.index_fill(0, torch.tensor([0]), h.sum())": "aten.index_fill",
    "torch.sparse_coo_tensor([[0], [1]], h.sum()[None]).coalesce().sum() * int(h.max())": "aten.coalesce.default cannot be run",
    "torch.cond(h.sum() > 0, torch.sin, torch.cos, (h,))": "operation cond is not supported",
    "Answer(h)": "forward returns a Answer, which torch.export does not know",
    "AnswerCache(h)": "training needs no cache: set use_cache=False",
    "(torch.manual_seed(0), torch.rand_like(h))[1] * h": "torch.manual_seed() inside of forward sets a generator",
    "torch.random.fork_rng().__enter__() or h": "torch.fork_rng() inside of forward sets a generator",
    "x.requires_grad_() * h": "requires_grad is set to True inside of forward",
    "x.mul(2).requires_grad_()": "requires_grad is set to True inside of forward",
    "(h, x.mul(2).requires_grad_().exp())": "requires_grad is set to True inside of forward",
    "[setattr(p, 'requires_grad', False) for p in self.parameters()] and h": "requires_grad is set to False inside of forward",
    "h * self.counted()": "forward changes calls, and computes with it",
    "h * self.tick()": "forward changes ticks, and computes with it",
    "h * self.tally()": "forward changes tallies, and computes with it",
    "h * torch.rand(h.shape, generator=self.own)": "the model uses a torch.Generator of its own",
}


COUNTERS = """
    calls = 0

    def __init__(self, *given):
        super().__init__(*given)
        self.ticks, self.tallies, self.own = 0, {"n": 0}, torch.Generator()

    def counted(self):
        self.calls += 1
        return self.calls

    def tick(self):
        self.ticks += 1
        return min(0.9, (1 + self.ticks) / (10 + self.ticks))

    def tally(self):
        self.tallies["n"] += 1
        return self.tallies["n"]
"""


BEFORE_2_13 = {  # what older versions of PyTorch make of these; None where they can be planned
    "torch.func.jvp(torch.sin, (h,), (h,))[0]": "the forward pass cannot be traced",
    "h.index_fill(0, torch.tensor([0]), h.sum())": None,
}


@pytest.mark.parametrize("text", LINES)
def test_what_cannot_be_planned_is_refused_with_the_line(text, tmp_path):
    other = text in BEFORE_2_13 and torch.__version__ < "2.13"
    if other and BEFORE_2_13[text] is None:
        pytest.skip("this version of PyTorch runs it without data")
    body = f"class Net(torch.nn.Linear):\n    def forward(self, x):\n        h = super().forward(x)\n        return {text}\n"
    answer = "class Answer:\n    def __init__(self, tensor):\n        self.tensor = tensor\n\n\n"
    answer += "class AnswerCache(Answer):\n    pass\n"
    (tmp_path / "model.py").write_text(f"import random\n\nimport numpy\nimport torch\n\n\n{body}{COUNTERS}\n\n{answer}")
    request = Request(f"{tmp_path / 'model.py'}:Net", "100%", tmp_path / "out.py", "4, 4", "float32[2,4]<0:1")
    where = "" if any(word in text for word in ("random.ra", "Answer", "counted", "tick", "tally")) else "model.py:10: "
    with pytest.raises((TraceError, UnsupportedError)) as caught:
        pipeline.generate(request, Progress(None))
    assert (BEFORE_2_13[text] if other else where + LINES[text]) in caught.value.line()


BY_VALUES = {
    "h[h > 0]": "h[h > 0]",
    "h * h.max().item()": "h.max().item()",
    "h if h.sum() > 0 else -h": "h.sum() > 0",
}


@pytest.mark.parametrize("text", BY_VALUES)
def test_what_depends_on_values_is_refused_for_files_of_functions(text, tmp_path):
    body = f"class Net(torch.nn.Linear):\n    def forward(self, x):\n        h = super().forward(x)\n        return {text}\n"
    (tmp_path / "model.py").write_text(f"import torch\n\n\n{body}")
    request = Request(f"{tmp_path / 'model.py'}:Net", "100%", tmp_path / "out.py", "4, 4", "float32[2,4]<0:1", edition=1)
    with pytest.raises(UnsupportedError, match=r"depends on values, which no file of functions can follow") as caught:
        pipeline.generate(request, Progress(None))
    assert caught.value.what.startswith("model.py:7 (`") and BY_VALUES[text] in caught.value.what


def test_a_module_of_pytorch_that_decides_by_a_value_is_named(tmp_path):
    norm = "torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4, momentum=None))"
    net = f"class Net(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.norm = {norm}\n"
    net += "\n    def forward(self, x):\n        return self.norm(x)\n"
    (tmp_path / "model.py").write_text(f"import torch\n\n\n{net}")
    path = f"{tmp_path / 'model.py'}:Net"
    request = Request(path, "100%", tmp_path / "out.py", inputs="float32[2,4]", dynamic="x.0", edition=1)
    with pytest.raises(TraceError, match=r"model.py:10: a BatchNorm1d \(batchnorm.py:\d+\) decides something by the value"):
        pipeline.generate(request, Progress(None))


@pytest.mark.parametrize("name", REFUSED)
def test_gradients_that_a_trace_does_not_show_are_refused(name, tmp_path):
    """A plan without them would be silently wrong."""
    text, said = REFUSED[name]
    (tmp_path / "model.py").write_text(
        "import torch\nfrom torch.utils.checkpoint import checkpoint\n\n\n"
        "class Reverse(torch.autograd.Function):\n"
        "    @staticmethod\n    def forward(ctx, x):\n        return x.view_as(x)\n\n"
        "    @staticmethod\n    def backward(ctx, g):\n        return -g\n\n\n"
        "class Net(torch.nn.Linear):\n    def forward(self, x):\n        h = super().forward(x).relu()\n"
        f"        return {text}\n"
    )
    request = Request(f"{tmp_path / 'model.py'}:Net", "100%", tmp_path / "out.py", "4, 4", "float32[2,4] requires_grad")
    with pytest.raises(UnsupportedError, match=f"model.py:18: {said}"):
        pipeline.generate(request, Progress(None))


def test_a_parameter_that_the_first_call_takes_away_is_named(tmp_path):
    """As dropout of weights is often written: whose first call takes it away, it is not there in the steps to come."""
    (tmp_path / "model.py").write_text(
        "import torch\n\n\nclass Net(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.m = torch.nn.Linear(4, 4)\n        self.raw = torch.nn.Parameter(self.m.weight.data)\n\n"
        "    def forward(self, x):\n        self.m._parameters.pop('weight', None)\n"
        "        self.m.weight = torch.dropout(self.raw, 0.5, self.training)\n        return self.m(x)\n"
    )
    request = Request(f"{tmp_path / 'model.py'}:Net", "100%", tmp_path / "out.py", inputs="float32[2,4]")
    with pytest.raises(UnsupportedError, match=r"forward takes the parameter m\.weight away"):
        pipeline.generate(request, Progress(None))
