"""What is not told apart costs the same for each byte; what is, stays apart; and a step takes as long as before."""

from __future__ import annotations

from graphs import Op, training_graph
from hypothesis import given
from hypothesis import strategies as st

from remat_codegen.profile.clock import COARSEST
from remat_codegen.profile.resolution import to_resolution

SIZES = (1000, 2000, 3000, 4000, 5000, 6000)


def costs(forward):
    """A graph of operations that make so many bytes, and times of all of its nodes."""
    graph, profile = training_graph([Op((i - 1,) if i else (), size) for i, size in enumerate(SIZES[: len(forward)])])
    times = list(profile.time_ns)
    times[: len(forward)] = forward
    return graph, times


def test_products_of_one_depth_cost_the_same_for_each_byte():
    graph, times = costs([1000, 2100, 2950, 16000])
    assert to_resolution(graph, times)[:4] == (1008, 2017, 3025, 16000)


def test_a_chain_of_close_times_does_not_run_together():
    graph, times = costs([1000, 2 * 1080, 3 * 1160, 4 * 1240])
    found = to_resolution(graph, times)[:4]
    assert len({round(t / size, 2) for t, size in zip(found, SIZES, strict=False)}) == 2


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=6))
def test_no_time_changes_by_more_than_is_told_apart(forward):
    graph, times = costs(forward)
    found = to_resolution(graph, times)
    assert all(abs(a - b) <= COARSEST * a + 1 for a, b in zip(times, found, strict=True))
    assert abs(sum(found) - sum(times)) <= len(times)
    assert found[len(forward) :] == tuple(times[len(forward) :])
