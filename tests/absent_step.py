"""What a step of some models takes on a GPU, as JSON: on the one that is here, or, with the name of one, on that without it.

    python tests/absent_step.py [NAME]

Without cuDNN, which the null GPU does not have.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import torch
import zoo
from torch import nn

from remat_codegen.graph.record import record
from remat_codegen.graph.simplify import simplify
from remat_codegen.profile.cache import Cache
from remat_codegen.profile.devices import find
from remat_codegen.profile.estimated import Estimated
from remat_codegen.profile.measure import Measured
from remat_codegen.schedule import simulate, without_recomputation
from remat_codegen.trace import absent, trace

HALF = torch.bfloat16
AUTOCAST = (("cuda", HALF),)


class Attending(nn.Module):
    """Attention between products: of groups of heads, or one head for all, with a mask, with dropout, over other rows."""

    def __init__(self, width: int, groups: int = 4, masked: bool = False, dropout: float = 0.0) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(64, heads * width) for heads in (4, groups, groups))
        self.out, self.groups, self.masked, self.dropout = nn.Linear(4 * width, 64), groups, masked, dropout

    def forward(self, x, y):
        q, k, v = (t.unflatten(-1, (n, -1)).transpose(1, 2) for t, n in self._projected(x, y))
        rows, columns = x.shape[1], y.shape[1]
        mask = torch.ones(rows, columns, dtype=torch.bool, device=x.device).tril() if self.masked else None
        found = nn.functional.scaled_dot_product_attention(
            q, k, v, mask, self.dropout, rows == columns and mask is None, enable_gqa=self.groups not in (1, 4)
        )
        return self.out(found.transpose(1, 2).flatten(2))

    def _projected(self, x, y):
        return (self.q(x), 4), (self.k(y), self.groups), (self.v(y), self.groups)


class Normed(nn.Module):
    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(32, 64), norm, nn.Linear(64, 32)

    def forward(self, x):
        return self.down(nn.functional.silu(self.norm(self.up(x))))


def cases() -> Iterator[tuple[str, nn.Module, tuple[torch.Tensor, ...], Any]]:
    """Names, models, inputs, and what they are called under."""
    words, rows = torch.zeros(4, 64, dtype=torch.int64), torch.zeros(50, 32)
    yield "gpt2", zoo.GPT2(), (words,), ()
    yield "gpt2 under autocast", zoo.GPT2(), (words,), AUTOCAST
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    yield "encoder", nn.TransformerEncoder(layer, 2), (torch.zeros(4, 40, 64),), ()
    for norm in (nn.RMSNorm, nn.LayerNorm):
        yield f"{norm.__name__} under autocast", Normed(norm(64)), (rows,), AUTOCAST
        yield f"{norm.__name__} in halves", Normed(norm(64)).to(HALF), (rows.to(HALF),), ()
    for dtype in (torch.float32, HALF):
        for width in (20, 64, 128, 256):
            for more in ({}, {"masked": True}, {"groups": 2}, {"groups": 2, "masked": True}, {"groups": 1}, {"dropout": 0.1}):
                x = torch.zeros(2, 200, 64, dtype=dtype)
                yield f"attention {dtype} {width} {more}", Attending(width, **more).to(dtype), (x, x), ()
        yield f"attention {dtype} over other rows", Attending(64).to(dtype), (x, torch.zeros(2, 300, 64, dtype=dtype)), ()


def taken(module: nn.Module, inputs: tuple[torch.Tensor, ...], autocast: Any, name: str | None) -> dict[str, Any]:
    """A step's graph, what its operations save, and its peak."""
    gpu = None if name is None else find(name)
    if gpu is None:
        module, inputs = module.cuda(), tuple(t.cuda() for t in inputs)
    else:
        module, inputs = absent.moved(module, inputs, gpu)
    traced = trace(module, inputs, {}, autocast)
    recorded = record(traced)
    model = simplify(traced, recorded)
    costs = Measured("cuda", Cache("cuda", enabled=False), hurry_at=0).of(model) if gpu is None else Estimated(gpu).of(model)
    peak = simulate(model.graph, costs, without_recomputation(model.graph)).peak_bytes
    saved = [[op.base, list(row.phantoms)] for op, row in zip(traced.operations, recorded.operations, strict=True)]
    return {"graph": model.graph.digest(), "saved": saved, "peak": peak}


def main(name: str | None = None) -> dict[str, Any]:
    """All of them by name."""
    warnings.simplefilter("ignore")
    torch.backends.cuda.enable_cudnn_sdp(False)
    with torch.backends.cudnn.flags(enabled=False):
        return {label: taken(module.train(), inputs, autocast, name) for label, module, inputs, autocast in cases()}


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
