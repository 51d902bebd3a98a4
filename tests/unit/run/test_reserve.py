"""What a file takes beside the planned tensors: what lasts as long as autograd's graph."""

from __future__ import annotations

from remat_codegen.ask.request import Request
from remat_codegen.run import marked
from remat_codegen.run.priced import reserve_of
from remat_codegen.run.traced import trace_target
from remat_codegen.show.results import Progress

NORMALISED_BY_THE_SIZE = """
import torch
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


def test_parameters_made_in_forward_count_with_their_gradients(tmp_path):
    source = tmp_path / "by_the_size.py"
    source.write_text(NORMALISED_BY_THE_SIZE)
    request = Request(f"{source}:Net", "75%", tmp_path / "file.py", verify=True)
    found = trace_target(request, Progress(None))
    weight_and_bias = 2 * 64 * 32 * 4
    assert found.model.trace.leaf_bytes == weight_and_bias
    assert reserve_of(found).least_bytes >= 2 * weight_and_bias
    result = marked.generate(request, Progress(None)).verify
    assert result is not None and result.ok, result.failures()
