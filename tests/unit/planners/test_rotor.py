"""rk-Rotor against every tree of choices on tiny chains."""

import numpy as np
import pytest
from graphs import best_sequence, chain_graph
from hypothesis import given, settings
from hypothesis import strategies as st

from remat_codegen.graph.ir import Graph
from remat_codegen.planners.chain.options import Family, Option, Piece, cut_out, pinned_data
from remat_codegen.planners.chain.rk_rotor import Backward, Forward, Link, Table
from remat_codegen.profile.costs import Profile

EMPTY = (Graph((), (), 0, ()), Profile((), ()))
small = st.integers(0, 6)


class Sized(Piece):
    """A piece of which only the output's size matters."""

    __slots__ = ("size",)

    @property
    def output_bytes(self) -> int:
        return self.size


def family(output: int, entering: int, options, passed) -> Family:
    piece = Sized(*EMPTY, None, entering)
    object.__setattr__(piece, "size", output)
    made = tuple(Option((), f, f - a, f - 2 * a, b, s, fp, bp) for f, a, b, s, fp, bp in options)
    return Family(piece, made, passed[0], passed[0] - 1, passed[1], 0, False)


option = st.tuples(st.integers(2, 9), st.integers(0, 1), small, small, small, small)
families = st.builds(family, small, small, st.lists(option, min_size=1, max_size=2), st.tuples(st.integers(1, 9), small))


@settings(derandomize=True, max_examples=60, deadline=None)
@given(chain=st.lists(families, min_size=1, max_size=4), repeat=st.booleans())
def test_every_memory_equals_brute_force(chain, repeat):
    chain = (chain * 2)[:4] if repeat else chain
    table = Table([Link(f) for f in chain], 1, 30)
    for memory in range(0, 31, 3):
        expected = best_sequence(chain, memory)
        assert table.time_ns[memory] == (np.inf if expected is None else expected)
    assert np.all(table.time_ns[1:] <= table.time_ns[:-1])


@settings(derandomize=True, max_examples=30, deadline=None)
@given(chain=st.lists(families, min_size=1, max_size=4), unit=st.integers(2, 5))
def test_slots_round_up(chain, unit):
    table = Table([Link(f) for f in chain], unit, 12)
    for slots in range(13):
        exact = best_sequence(chain, slots * unit)
        if np.isfinite(table.time_ns[slots]):
            assert exact is not None and exact <= table.time_ns[slots]


@settings(derandomize=True, max_examples=30, deadline=None)
@given(chain=st.lists(families, min_size=2, max_size=4))
def test_operations_are_a_step(chain):
    table = Table([Link(f) for f in chain], 1, 60)
    for slots in table.distinct():
        operations = table.operations(slots)
        backward = [o.block for o in operations if isinstance(o, Backward)]
        assert backward == sorted(backward, reverse=True) == list(reversed(range(len(chain))))
        assert [o.block for o in operations[: len(chain)]] == list(range(len(chain)))
        assert sum(isinstance(o, Forward) for o in operations) >= len(chain)


def test_sealed_blocks_run_forward_once():
    slow = family(1, 1, [(5, 0, 5, 20, 3, 3)], (5, 3))
    free = Table([Link(slow)] * 4, 1, 100)
    sealed = Table([Link(slow), Link(slow, sealed=True), Link(slow), Link(slow)], 1, 100)
    assert free.distinct()[0] < sealed.distinct()[0]
    for slots in sealed.distinct():
        assert sum(o == Forward(1) for o in sealed.operations(slots)) == 1


def test_nothing_fits_nowhere():
    table = Table([Link(family(9, 9, [(5, 0, 5, 9, 9, 9)], (5, 9)))] * 2, 1, 5)
    assert table.distinct() == []


@pytest.mark.parametrize("count", [30, 60])
def test_equal_sub_chains_share_rows(count):
    one, two = family(1, 1, [(5, 0, 5, 3, 3, 3)], (5, 3)), family(2, 1, [(5, 0, 5, 2, 3, 3)], (5, 3))
    table = Table([Link(one), Link(two)] * (count // 2), 1, 50)
    assert len(table.rows) <= 4 * count


def test_equal_blocks_are_equal_pieces():
    graph, profile = chain_graph([1, 2, 2, 2, 3])
    pinned = pinned_data(graph)
    pieces = [cut_out(graph, profile, b, pinned)[0] for b in graph.blocks]
    assert pieces[1] == pieces[2] == pieces[3]
    assert len(set(pieces)) == 3
