"""Times of nodes are the device's own: how they are taken. How well, shows benchmarks/bench_node_times.py."""

from __future__ import annotations

import torch
from torch import nn


class Kinds(nn.Module):
    """Nodes of several kinds: a table, a mask, views, dropout, attention, a matrix product, a write in place."""

    def __init__(self):
        super().__init__()
        self.table, self.linear, self.last = nn.Embedding(100, 64), nn.Linear(64, 192), nn.Linear(64, 100)

    def forward(self, ids):
        x = self.table(ids) * (ids != 0).unsqueeze(-1)
        q, k, v = self.linear(x).unflatten(-1, (4, 48)).transpose(1, 2).chunk(3, -1)
        x = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = nn.functional.dropout(self.last(x).softmax(-1), 0.1, self.training).clone()
        x[:, 1:] += 1
        return x.gather(-1, ids.unsqueeze(-1))


def model_on(device):
    """The graph of such a model there."""
    from emitted import model_of

    return model_of(Kinds().to(device), (torch.randint(0, 100, (4, 16), device=device),), {})


def test_every_kind_of_node_is_measured_and_none_is_for_nothing(device):
    from remat_codegen.profile.cache import Cache
    from remat_codegen.profile.measure import Measured

    model = model_on(device)
    found = Measured(device, Cache(device, enabled=False)).of(model)
    assert min(found.time_ns) > 0 and min(found.workspace_bytes) >= 0


def test_the_buffer_that_flushes_the_cache_counts_in_no_peak(device):
    from remat_codegen.profile.cache import Cache
    from remat_codegen.profile.clock import LEAST_FLUSHED_BYTES
    from remat_codegen.profile.measure import Measured

    found = Measured(device, Cache(device, enabled=False)).of(model_on(device))
    assert max(found.workspace_bytes) < LEAST_FLUSHED_BYTES
    left = torch.cuda.memory_allocated(device)
    Measured(device, Cache(device, enabled=False)).of(model_on(device))
    assert torch.cuda.memory_allocated(device) - left < LEAST_FLUSHED_BYTES, "it is gone when all is measured"


def test_never_more_than_one_run_of_a_node_is_in_memory(device):
    """As much memory is taken by twenty runs as by one."""
    from remat_codegen.profile.clock import CudaClock

    clock, nbytes = CudaClock(device), 64 << 20
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    clock.least_times_ns(lambda _: torch.empty(nbytes, dtype=torch.uint8, device=device), torch.Tensor.zero_)
    assert torch.cuda.max_memory_allocated(device) - before == nbytes
    assert torch.cuda.memory_allocated(device) == before


def test_the_device_is_busy_for_as_long_as_work_is_queued(device, monkeypatch):
    """The buffer is written before each run, more often before work that takes the host longer, and never between events."""
    from remat_codegen.profile.clock import MOST_WRITES, CudaClock

    clock, one = CudaClock(device), torch.zeros(1, device=device)
    writes = []
    monkeypatch.setattr(clock, "_write", lambda times, _own=clock._write: (writes.append(times), _own(times)))
    clock.least_ns(lambda: one.add_(1))
    few = writes[-1]
    clock.least_ns(lambda: [one.add_(1) for _ in range(1000)])
    assert 1 <= few <= writes[-1] <= MOST_WRITES + 1
    assert len(writes) >= 6


def test_the_second_device_has_times_of_its_own(second_device):
    from remat_codegen.profile.cache import Cache
    from remat_codegen.profile.measure import Measured

    found = Measured(second_device, Cache(second_device, enabled=False)).of(model_on(second_device))
    assert min(found.time_ns) > 0 and found.device == second_device
