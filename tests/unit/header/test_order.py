"""Orders of nodes as texts: what is written comes back, and nothing else is read."""

from __future__ import annotations

import pytest
from graphs import orders
from hypothesis import given
from hypothesis import strategies as st

from remat_codegen.errors import PlanFileError
from remat_codegen.header.order import decode_order, encode_order


@given(orders())
def test_an_order_comes_back_from_its_text(order):
    assert decode_order(encode_order(order)) == order


@given(st.text(alphabet="0123456789|:;,-+*()") | st.text())
def test_any_other_order_is_refused_or_read(text):
    try:
        order = decode_order(text)
    except PlanFileError:
        return
    assert decode_order(encode_order(order)) == order


@pytest.mark.parametrize(
    "text", ["9|999999*(1:0)+0+0", "9|1:0-999999999", "999999999|", "1|1:2", "1|0:1", "1|5:0", "1|1:-1", "1|2*(0:0)+1-1"]
)
def test_hostile_orders_are_refused(text):
    with pytest.raises(PlanFileError):
        decode_order(text)


def test_the_line_does_not_grow_with_the_number_of_layers():
    def order(layers: int) -> list[int]:
        nodes, loss = [*range(10 * layers + 1)], 10 * layers
        for k in range(layers):
            nodes += [loss + 2 * k + 1, *range(10 * (layers - k - 1), 10 * (layers - k - 1) + 5), loss + 2 * k + 2]
        return nodes

    few, many = (len(encode_order(order(n))) for n in (12, 480))
    assert many < few + 12


def test_an_order_that_runs_a_node_too_early_is_refused():
    with pytest.raises(PlanFileError, match="comes before"):
        encode_order([0, 2, 1])
