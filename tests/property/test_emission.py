"""Whatever is forgotten and rebuilt, the generated file computes the same bits."""

from __future__ import annotations

import pytest
import zoo
from emitted import droppable, run_zoo, zoo_model
from hypothesis import given, settings
from hypothesis import strategies as st


def wrong(comparison) -> dict[str, str]:
    return {what: d.where for what, d in comparison.differences.items() if d.worst is not None}


@pytest.mark.parametrize("name", zoo.ZOO)
@pytest.mark.parametrize("wraps", [False, True])
@pytest.mark.parametrize("everything", [False, True])
def test_nothing_and_everything_forgotten(name, wraps, everything, tmp_path):
    graph = zoo_model(name)[3].graph
    dropped = set(droppable(graph)) if everything else set()
    assert wrong(run_zoo(name, dropped, tmp_path, wraps)) == {}


@settings(max_examples=30)
@given(data=st.data())
def test_anything_forgotten(data, tmp_path_factory):
    name = data.draw(st.sampled_from(sorted(zoo.ZOO)), label="model")
    choices = droppable(zoo_model(name)[3].graph)
    dropped = data.draw(st.sets(st.sampled_from(choices)), label="forgotten")
    assert wrong(run_zoo(name, dropped, tmp_path_factory.mktemp("generated"))) == {}
