"""What each row of a table is said to free and to cost."""

from __future__ import annotations

import pytest
from graphs import Op, training_graph

from remat_codegen.marked.demand import Again, Keeps, Part
from remat_codegen.marked.summary import summarize
from remat_codegen.marked.table import Entry
from remat_codegen.schedule import with_forgets

# Four operations in a row that take 10 each and 20 back; the loss takes 0: a step takes 120.
GRAPH, PROFILE = training_graph([Op(((i - 1,) if i else ()), 8, 0, (i,), 10, 20) for i in range(4)], (), (0, 0))


def entry(path, mark="", freed=100):
    return Entry(path, mark, None, 1, Keeps.NOTHING, Again.ONCE, False, freed, 0)


def summary(parts, entries, again=()):
    """The rows, with nodes that run again after the loss: key, entries, bytes, names, and share of the step's time."""
    order = [*range(GRAPH.loss + 1), *again, *range(GRAPH.loss + 1, len(GRAPH.nodes))]
    found = summarize(GRAPH, PROFILE, with_forgets(GRAPH, order), parts, entries)
    return [(r.key, r.entries, r.freed_bytes, r.recomputed, round(r.overhead * 120)) for r in found]


@pytest.mark.parametrize(
    ("parts", "entries", "again", "rows"),
    [
        pytest.param([], [], (), [], id="no row of no entry"),
        pytest.param(
            [("h.0.mlp", Part(0, 1))],
            [entry("h.0.mlp")],
            (),
            [("h.0", ("mlp",), 100, (), 0)],
            id="a part that does not run again",
        ),
        pytest.param(
            [("h.0.mlp", Part(0, 1))],
            [entry("h.0.mlp")],
            (0, 1),
            [("h.0", ("mlp",), 100, ("f0", "f1"), 20)],
            id="what runs again, with its time",
        ),
        pytest.param(
            [("h.0.mlp", Part(0, 0))],
            [entry("h.0.mlp")],
            (0, 0),
            [("h.0", ("mlp",), 100, ("f0", "f0"), 20)],
            id="as often as it does",
        ),
        pytest.param(
            [("h.0.mlp", Part(0, 0)), ("h.0.attn", Part(1, 1))],
            [entry("h.0.mlp", freed=1), entry("h.0.attn", freed=2)],
            (0, 1),
            [("h.0", ("mlp", "attn"), 3, ("f0", "f1"), 20)],
            id="entries of a layer in one row, with the sum of their bytes",
        ),
        pytest.param(
            [("h.0.mlp", Part(0, 0)), ("h.1.mlp", Part(1, 1))],
            [entry("h.0.mlp"), entry("h.1.mlp")],
            (1,),
            [("h.0", ("mlp",), 100, (), 0), ("h.1", ("mlp",), 100, ("f1",), 10)],
            id="layers in rows of their own",
        ),
        pytest.param(
            [("h.0", Part(0, 2)), ("h.1", Part(1, 1, outer=0))],
            [entry("h.0.mlp"), entry("h.1.mlp")],
            (0, 1),
            [("h.0", ("mlp",), 100, ("f0",), 10), ("h.1", ("mlp",), 100, ("f1",), 10)],
            id="what stands in an inner part counts there",
        ),
        pytest.param(
            [("h.0", Part(0, 0))],
            [entry("h.0.mlp")],
            (0, 3),
            [("h.0", ("mlp",), 100, ("f0",), 10)],
            id="not what stands in no part",
        ),
    ],
)
def test_what_rows_free_and_cost(parts, entries, again, rows):
    assert summary(parts, entries, again) == rows


def test_a_row_says_so_in_json():
    order = range(len(GRAPH.nodes))
    (row,) = summarize(GRAPH, PROFILE, with_forgets(GRAPH, order), [], [entry("h.0.mlp", "gelu")])
    assert row.to_json() == {"row": "h.0", "entries": ["mlp.gelu"], "freed_bytes": 100, "recomputed": [], "overhead": 0.0}
