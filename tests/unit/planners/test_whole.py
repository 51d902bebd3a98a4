"""The whole graph's program and its rounding: whatever the one finds room for, the other does, too."""

import pytest
from graphs import chain_graph, dense_graph, random_graph, unet_graph

from remat_codegen.planners import checkmate
from remat_codegen.planners.base import rk_checkmate
from remat_codegen.planners.base.judge import judge
from remat_codegen.planners.base.result import Status
from remat_codegen.schedule import simulate, with_forgets, without_recomputation

MANY = 160


def least_peak(graph, profile):
    """The least peak that the integer program knows; proved to be the least where it is OPTIMAL."""
    found = rk_checkmate.solve(graph, profile, None, minimise_peak=True, seconds=20)
    return simulate(graph, profile, with_forgets(graph, found.order)).peak_bytes, found.status


def check_rounding(graph, profile, shares=(0.0, 0.02, 0.3)):
    """The rounding fits wherever a plan exists, from the least peak on, and gives up below it."""
    most = simulate(graph, profile, without_recomputation(graph)).peak_bytes
    least, status = least_peak(graph, profile)
    for budget in sorted({least + int((most - least) * share) for share in shares}):
        found = checkmate.approximate(graph, profile, budget)
        assert found.schedule is not None and found.peak_bytes <= budget, budget
        judge(graph, profile, found.schedule)
    if status is Status.OPTIMAL:
        assert checkmate.approximate(graph, profile, least - 1).status is Status.INFEASIBLE


@pytest.mark.parametrize("seed", range(12))
def test_the_rounding_fits_wherever_a_plan_does(seed):
    check_rounding(*random_graph(seed, 4 + seed, seed % 2 == 1))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12, MANY))
def test_the_rounding_fits_many_graphs(seed):
    check_rounding(*random_graph(seed, 4 + seed % 13, seed % 2 == 1))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_the_rounding_fits_graphs_of_other_shapes(seed):
    check_rounding(*unet_graph(seed, 2, 3))
    check_rounding(*dense_graph(seed, 14, 7))
    check_rounding(*chain_graph([seed, 1, seed, 2]))


@pytest.mark.parametrize("seed", range(6))
def test_a_point_of_the_program_is_found_where_nothing_else_is(seed):
    graph, profile = random_graph(seed, 10)
    least, _ = least_peak(graph, profile)
    for point in checkmate.any_point(graph, profile, least, 10.0):
        judge(graph, profile, point.schedule)
        assert point.peak_bytes <= least
    assert checkmate.any_point(graph, profile, least, 10.0)
    assert not checkmate.any_point(graph, profile, least - 1, 10.0)
