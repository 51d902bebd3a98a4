"""The most memory that a piece of work holds at once, over what was held before it: the allocator's own record."""

from __future__ import annotations

import contextlib
import os
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from remat_codegen.profile.followed_peak import followed_peak
from remat_codegen.trace import absent

BEGIN = "remat-codegen: what is measured begins"
MARK, END = "remat-codegen: what is measured goes on", "remat-codegen: what is measured ends"
COUNTERS = "allocated_bytes", "requested_bytes"


@dataclass(frozen=True, slots=True)
class Peak:
    """The most bytes that a piece of work held at once.

    `allocated_bytes` is what budgets are promised in: exact on the CPU; on CUDA the caching allocator's blocks, rounded up to
    512 bytes and more. `requested_bytes` is the same without that rounding; `reserved_bytes` is the most that the whole process
    had of the device, parameters and what is cached included. Both are None on the CPU, which has no such difference.
    """

    allocated_bytes: int
    requested_bytes: int | None = None
    reserved_bytes: int | None = None


def peak_bytes(work: Callable[[], Any], device: str = "cpu", prepare: Callable[[], None] = lambda: None) -> int:
    """Allocated bytes, see `Peak`."""
    return peak(work, device, prepare).allocated_bytes


def peak_bytes_after(prepare: Callable[[], Any], work: Callable[[Any], Any], device: str = "cpu") -> int:
    """The same for `work(prepare())`, over what is held when `work` begins: what it releases of its argument counts."""
    return _peak_after(prepare, work, device).allocated_bytes


def peak(work: Callable[[], Any], device: str = "cpu", prepare: Callable[[], None] = lambda: None) -> Peak:
    """The most that `work` holds over what is held when it begins. Of that, what `prepare` has made counts as released where it
    is, and on CUDA anything."""
    return _peak_after(prepare, lambda _: work(), device)


def _peak_after(prepare: Callable[[], Any], work: Callable[[Any], Any], device: str) -> Peak:
    if torch.device(device).type == "cuda":
        return _cuda_peak(prepare, work, device)
    if device == absent.TYPE:
        return Peak(followed_peak(prepare, work))
    return Peak(_recorded_peak(prepare, work))


def _recorded_peak(prepare: Callable[[], Any], work: Callable[[Any], Any]) -> int:
    """By the profiler's record of the allocator, in which only what `prepare` has made can be released."""
    with quiet(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        prepared = [prepare()]
        with record_function(BEGIN):
            pass
        work(prepared.pop())
    assert recorded.profiler is not None
    begin = next(e.start_ns() for e in recorded.profiler.kineto_results.events() if e.name() == BEGIN)
    events = allocations(recorded)
    return max(0, 0, *running_total([nbytes for when, nbytes in events if when >= begin]))


def _cuda_peak(prepare: Callable[[], Any], work: Callable[[Any], Any], device: str) -> Peak:
    """By the allocator's counters. These are totals: what is released meanwhile of what others held before hides as much."""
    prepared = [prepare()]
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_stats(device)
    torch.cuda.reset_peak_memory_stats(device)
    work(prepared.pop())
    torch.cuda.synchronize(device)
    after = torch.cuda.memory_stats(device)
    allocated, requested = (after[f"{kind}.all.peak"] - before.get(f"{kind}.all.current", 0) for kind in COUNTERS)
    return Peak(allocated, requested, torch.cuda.max_memory_reserved(device))


@dataclass(frozen=True, slots=True)
class Course:
    """What a piece of work held over time, over what was held when it began: `held_bytes` from each of `at_ns` on. `marks_ns`
    are when it called the function that it was given; all times are from its beginning."""

    at_ns: tuple[int, ...]
    held_bytes: tuple[int, ...]
    marks_ns: tuple[int, ...]
    end_ns: int

    def most_between(self) -> list[int]:
        """The most that was held, in bytes, until the first mark, from there to the next, and so on to the end."""
        first = [0, *(bisect_left(self.at_ns, mark) for mark in self.marks_ns)]
        ends = [*first[1:], len(self.at_ns)]
        held = (0, *self.held_bytes)  # what was held as a piece began counts in it
        return [max(0, *held[begin : end + 1]) for begin, end in zip(first, ends, strict=True)]


def course(work: Callable[[Callable[[], None]], Any]) -> Course:
    """The course of `work(mark)` on the CPU, by the profiler's record of its allocator. The highest is what `peak` measures."""

    def note(name: str) -> None:
        with record_function(name):
            pass

    with quiet(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        note(BEGIN)
        work(lambda: note(MARK))
        note(END)
    assert recorded.profiler is not None
    noted = [(e.name(), e.start_ns()) for e in recorded.profiler.kineto_results.events() if e.name() in (BEGIN, MARK, END)]
    begin, end = (next(when for name, when in noted if name == wanted) for wanted in (BEGIN, END))
    events = [(when - begin, nbytes) for when, nbytes in allocations(recorded) if when >= begin]
    held = running_total([nbytes for _, nbytes in events])
    marks = sorted(when - begin for name, when in noted if name == MARK)
    return Course(tuple(when for when, _ in events), tuple(held), tuple(marks), end - begin)


def free_bytes() -> int | None:
    """The host's memory that a process may still take; None where the system does not say."""
    with contextlib.suppress(OSError, StopIteration, ValueError, IndexError):
        line = next(row for row in Path("/proc/meminfo").read_text().splitlines() if row.startswith("MemAvailable:"))
        return int(line.split()[1]) * 1024
    return None


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
