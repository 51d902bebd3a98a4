"""Parameters and other leaves that forward makes count, as they last as long as autograd's graph, with their gradients."""

from __future__ import annotations

import pytest

from remat_codegen.ask.request import Request
from remat_codegen.profile.costs import Profile
from remat_codegen.run import marked
from remat_codegen.run.priced import with_leaves
from remat_codegen.run.traced import trace_target
from remat_codegen.show.results import Progress

NORMALISED_BY_THE_SIZE = """
import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Sequential(*(nn.Sequential(nn.Linear(32, 32), nn.GELU()) for _ in range(6)))

    def forward(self, x):
        x = nn.LayerNorm(x.shape[1:])(x)
        for layer in self.up:
            x = layer(x) + x.sin()
        return x


def example_inputs():
    return (torch.randn(4, 64, 32),)
"""
BY_FACTORIES = "F.layer_norm(x, x.shape[1:], torch.ones(64, 32, requires_grad=True), torch.zeros(64, 32, requires_grad=True))"
BY_SWITCHING = "F.layer_norm(x, x.shape[1:], *(make(64, 32).requires_grad_() for make in (torch.ones, torch.zeros)))"


@pytest.mark.parametrize("made", ["nn.LayerNorm(x.shape[1:])(x)", BY_FACTORIES, BY_SWITCHING])
def test_leaves_made_in_forward_count_with_their_gradients(tmp_path, made):
    source = tmp_path / "by_the_size.py"
    source.write_text(NORMALISED_BY_THE_SIZE.replace("nn.LayerNorm(x.shape[1:])(x)", made))
    request = Request(f"{source}:Net", "75%", tmp_path / "file.py", verify=True)
    found = trace_target(request, Progress(None))
    weight_and_bias = 2 * 64 * 32 * 4
    assert found.model.trace.leaf_bytes == weight_and_bias
    plain = Profile((0,) * len(found.graph.nodes), (0,) * len(found.graph.nodes), "cpu")
    room = with_leaves(plain, found).workspace_bytes
    assert (room[found.graph.loss], room[found.graph.loss + 1]) == (weight_and_bias, 2 * weight_and_bias)
    result = marked.generate(request, Progress(None)).verify
    assert result is not None and result.ok, result.failures()
    assert result.assumed_peak_bytes >= result.original_peak_bytes
    assert result.planned_peak_bytes >= result.measured_peak_bytes
