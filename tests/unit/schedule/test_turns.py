"""Orders of nodes, and when two are one plan."""

from __future__ import annotations

import pytest
from graphs import chain_graph

from remat_codegen.schedule import is_same_but_for_turns


@pytest.mark.parametrize(
    ("again", "same"),
    [
        ([(1, [0, 1]), (2, [0])], True),
        ([(1, [1, 0]), (2, [0])], True),
        ([(1, [0, 1]), (2, [1])], False),  # another one
        ([(1, [0, 1, 0])], False),  # earlier
        ([(1, [0, 1]), (2, [0, 0])], False),  # more often
    ],
)
def test_what_runs_between_backward_nodes_may_come_in_any_order(again, same):
    graph, _ = chain_graph([1, 2, 3])
    before = {graph.loss + later: nodes for later, nodes in again}
    planned = {graph.loss + 1: [0, 1], graph.loss + 2: [0]}

    def order(runs: dict[int, list[int]]) -> list[int]:
        return [node for own in graph.nodes for node in (*runs.get(own.id, ()), own.id)]

    assert is_same_but_for_turns(graph, order(planned), order(before)) is same
    assert is_same_but_for_turns(graph, order(before), order(planned)) is same
