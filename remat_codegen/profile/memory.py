"""The most memory that a piece of work holds at once, over what was held before it: the allocator's own record."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

BEGIN = "remat-codegen: what is measured begins"


def peak_bytes(work: Callable[[], Any], device: str = "cpu") -> int:
    """Bytes, exact on the CPU; on CUDA as the caching allocator counts them (blocks rounded to 512 bytes)."""
    return peak_bytes_after(lambda: None, lambda _: work(), device)


def peak_bytes_after(prepare: Callable[[], Any], work: Callable[[Any], Any], device: str = "cpu") -> int:
    """The same for `work(prepare())`, over what is held when `work` begins: what it releases of its argument counts."""
    if torch.device(device).type == "cuda":
        return _cuda_peak(prepare, work, device)
    with quiet(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        prepared = [prepare()]
        with record_function(BEGIN):
            pass
        work(prepared.pop())
    assert recorded.profiler is not None
    begin = next(e.start_ns() for e in recorded.profiler.kineto_results.events() if e.name() == BEGIN)
    events = allocations(recorded)
    return max(0, 0, *running_total([nbytes for when, nbytes in events if when >= begin]))


def _cuda_peak(prepare: Callable[[], Any], work: Callable[[Any], Any], device: str) -> int:
    prepared = [prepare()]
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    work(prepared.pop())
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before


def cpu_events(work: Callable[[], Any]) -> list[int]:
    """Every allocation (positive) and release (negative) of the CPU allocator during `work`, in bytes, in order.

    Releases of what was allocated before are left out: the profiler reports them now and then, when it remembers an address
    from an earlier recording.
    """
    with quiet(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        work()
    return [nbytes for _, nbytes in allocations(recorded)]


def allocations(recorded: Any) -> list[tuple[int, int]]:
    """When (ns) and how many bytes: the allocations and releases of a finished recording, in order."""
    assert recorded.profiler is not None
    tree = recorded.profiler.kineto_results.experimental_event_tree()
    events = [e for e in _walk(tree) if type(e.extra_fields).__name__ == "_ExtraFields_Allocation"]
    found, alive = [], set()
    for event in sorted(events, key=lambda e: e.start_time_ns):
        address, nbytes = event.extra_fields.ptr, event.extra_fields.alloc_size
        if nbytes < 0 and address not in alive:
            continue
        alive.add(address) if nbytes > 0 else alive.discard(address)
        found.append((event.start_time_ns, nbytes))
    return found


def _walk(events: Iterable[Any]) -> Iterator[Any]:
    waiting = list(events)
    while waiting:
        event = waiting.pop()
        yield event
        waiting.extend(event.children)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without what C++ code writes to standard error: the profiler reports its own comings and goings there."""
    saved, sink = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(sink, 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(sink)


def running_total(changes: Sequence[int]) -> list[int]:
    """What is held after each change."""
    totals, held = [], 0
    for change in changes:
        held += change
        totals.append(held)
    return totals
