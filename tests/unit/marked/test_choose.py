"""The search for tables: never worse than where it starts, and the same each time."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from dataclasses import replace

import pytest
from graphs import chain_graph, random_graph

from remat_codegen.marked.candidates import Candidate, Candidates, Row
from remat_codegen.marked.choose import A_LITTLE, A_LITTLE_MORE, LITTLE_GAP, MISSES, OPTIONS, Chooser, kinds
from remat_codegen.marked.demand import Again, Keeps
from remat_codegen.planners.dtr import plan
from remat_codegen.schedule import simulate, without_recomputation


def candidates_of(graph):
    """Each node, and all neighbours."""
    able = [n.id for n in graph.forward_nodes if n.recomputable]
    single = [Candidate(n, n, (n,), ("node", n % 3)) for n in able]
    pairs = [Candidate(n, n + 1, (n,), ("pair", n % 2)) for n in able if n + 1 in able]
    return Candidates([*single, *pairs])


def chooser_of(seed, share):
    """A search, and a planner's schedule for the same limit."""
    graph, profile = random_graph(seed, 10)
    limit = int(share * simulate(graph, profile, without_recomputation(graph)).peak_bytes)
    schedule = plan(graph, profile, limit).schedule or without_recomputation(graph)
    return Chooser(graph, profile, candidates_of(graph), lambda order: limit), schedule


@pytest.mark.parametrize("seed", range(6))
def test_what_is_found_is_no_worse_than_where_it_starts(seed):
    chooser, schedule = chooser_of(seed, 0.7)
    found = chooser.search([schedule])
    starts = chooser.starts([schedule])
    assert all(found.over_bytes <= start.over_bytes for start in starts)
    little = A_LITTLE * chooser.step_ns
    assert all(found.cost_ns <= s.cost_ns + little for s in starts if s.over_bytes <= found.over_bytes)


@pytest.mark.parametrize("seed", range(3))
def test_the_same_search_finds_the_same(seed):
    chooser, schedule = chooser_of(seed, 0.7)
    again, _ = chooser_of(seed, 0.7)
    assert chooser.search([schedule]) == again.search([schedule])
    assert chooser.tried == again.tried


def test_tables_are_priced_once():
    chooser, schedule = chooser_of(0, 0.7)
    rows = chooser.first(schedule)
    assert chooser.price(rows) is chooser.price(rows[::-1])
    assert chooser.tried <= 1


@pytest.mark.parametrize("a_byte", [math.inf, 0.5])
def test_tables_whose_peak_nobody_looks_at_are_no_better(a_byte):
    passed_over = 0
    for seed in range(6):
        chooser, schedule = chooser_of(seed, 0.7)
        careful, _ = chooser_of(seed, 0.7)
        for best in chooser.starts([schedule]):
            moves = chooser.other_options(best, True), chooser.without(best, False), chooser.larger(best, False)
            for move in itertools.chain.from_iterable(itertools.chain.from_iterable(moves)):
                chooser.known.clear()
                found, known = chooser.price(move(best.rows), best, a_byte), careful.price(move(best.rows))
                assert found == known or (found is None and known.rank(a_byte) >= best.rank(a_byte))
                passed_over += found != known
    assert passed_over


@pytest.mark.parametrize(
    ("helps", "tried"),
    [
        pytest.param(set(), MISSES, id="none of the first ones"),
        pytest.param({1}, 2 + MISSES, id="the second: then it begins anew"),
        pytest.param(set(range(9)), 9, id="all"),
    ],
)
def test_a_change_that_helps_no_layer_is_not_tried_on_all(helps, tried, monkeypatch):
    chooser, schedule = chooser_of(0, 0.7)
    best, seen = chooser.starts([schedule])[0], []

    def price(rows, best, price):
        seen.append(rows)
        return replace(best, rows=rows, cost_ns=best.cost_ns - 1) if rows in helps else None

    monkeypatch.setattr(chooser, "price", price)
    unchanged = [lambda rows: rows] * 2  # of which there is nothing to say
    for _ in range(2):
        chooser.improved(best, [[*unchanged, *(lambda rows, number=i: number for i in range(9))]], math.inf, math.inf)
    assert len(seen) == 2 * tried


def test_equal_layers_are_tried_from_their_ends_and_the_middle():
    chooser, _ = chooser_of(0, 0.7)
    group = max(chooser.candidates.groups(), key=len)
    for single in chooser._some([group], True):
        tried = [one for (one,) in single]
        same = sorted(tried, key=lambda c: c.first)
        ends = [*dict.fromkeys((same[-1], same[0], same[len(same) // 2]))]
        assert tried == [*ends, *(one for one in same if one not in ends)]
    assert list(chooser._some([group], False)) == [[group]]


@pytest.mark.parametrize("seed", range(6))
def test_near_the_bound_little_is_searched(seed):
    """What is found is then hardly above it."""
    chooser, schedule = chooser_of(seed, 0.7)
    quick = chooser.in_two(chooser.least(chooser.starts([schedule])), math.inf)
    near, far = (chooser_of(seed, 0.7)[0] for _ in range(2))
    found = near.search([schedule], bound_ns=quick.time_ns)
    assert far.search([schedule], bound_ns=0.0).rank(math.inf) <= found.rank(math.inf) or found.over_bytes
    if chooser._slowest_ns(quick) <= quick.time_ns + LITTLE_GAP * chooser.step_ns and not quick.over_bytes:
        assert not found.over_bytes and found.time_ns <= quick.time_ns + LITTLE_GAP * chooser.step_ns
        assert near.tried < far.tried


def test_a_step_within_its_limit_needs_no_table():
    chooser, schedule = chooser_of(0, 1.0)
    assert chooser.search([schedule]).rows == ()


def test_rows_that_hardly_pay_are_dropped_in_the_end():
    """Within the limit, and at most so much slower than what was found before."""
    fewer = 0
    for seed in range(8):
        chooser, schedule = chooser_of(seed, 0.7)
        before = chooser.least(map(chooser.searched, chooser.starts([schedule])))
        found = chooser.simpler(before)
        assert found.over_bytes <= before.over_bytes and kinds(found.rows) <= kinds(before.rows)
        again_ns = before.time_ns - chooser.step_ns
        assert found.time_ns <= before.time_ns + max(A_LITTLE * chooser.step_ns, A_LITTLE_MORE * again_ns)
        fewer += len(found.rows) < len(before.rows)
    assert fewer


def repeated(share):
    """A search in a graph of equal layers, and a planner's schedule for the same limit."""
    graph, profile = chain_graph([1, 3, 2] * 8)
    able = [n.id for n in graph.forward_nodes if n.recomputable]
    found = Candidates(Candidate(n, n, (n,), ("node", n % 3)) for n in able)
    limit = int(share * simulate(graph, profile, without_recomputation(graph)).peak_bytes)
    return Chooser(graph, profile, found, lambda order: limit), plan(graph, profile, limit).schedule


def test_layers_are_told_alike_where_that_takes_little():
    assert max(map(fewer_of, (0.5, 0.6, 0.7, 0.8))) > 0


def fewer_of(share):
    """How many layers fewer are told apart in the end."""
    chooser, schedule = repeated(share)
    before = chooser.least(map(chooser.searched, chooser.starts([schedule])))
    slowest_ns = before.time_ns + 0.05 * chooser.step_ns
    found = chooser.with_layers_alike(before, slowest_ns, 10_000)
    assert found.over_bytes <= before.over_bytes and found.time_ns <= slowest_ns
    layers = chooser.layers
    assert layers.different(found.rows) <= layers.different(before.rows)
    assert not any(  # nothing is left to be told alike
        p is not None and p.over_bytes <= found.over_bytes and p.time_ns <= slowest_ns
        for p in map(chooser.price, itertools.chain(layers.united(found.rows), layers.sorted(found.rows)))
    )
    return layers.different(before.rows) - layers.different(found.rows)


def test_what_is_said_of_layers():
    chooser, _ = repeated(0.5)
    layers, (first, second, third) = chooser.layers, next(g for g in chooser.candidates.by_key.values() if len(g) > 2)[:3]
    rows = Row(first), Row(second, Keeps.RESULT), Row(third)
    assert layers.different(rows) == 2 and layers.different(()) == 0
    united = [{(r.candidate, r.keeps) for r in table} for table in layers.united(rows)]
    assert {(c, Keeps.NOTHING) for c in (first, second, third)} in united
    assert {(c, Keeps.RESULT) for c in (first, second, third)} in united and len(united) == 2
    side_by_side = next(layers.sorted(rows))
    assert {r.candidate: r.keeps for r in side_by_side} in (
        {first: Keeps.RESULT, second: Keeps.NOTHING, third: Keeps.NOTHING},
        {first: Keeps.NOTHING, second: Keeps.NOTHING, third: Keeps.RESULT},
    )
    assert not [*layers.sorted(side_by_side)]


def test_layers_with_a_third_pattern_are_divided_among_two_others():
    chooser, _ = repeated(0.5)
    layers, same = chooser.layers, next(g for g in chooser.candidates.by_key.values() if len(g) > 4)
    three = Row(same[0]), Row(same[1], Keeps.RESULT), Row(same[2], Keeps.RESULT), Row(same[3], again=Again.TWICE)
    tables = [[(r.keeps, r.again) for r in sorted(t, key=lambda r: r.candidate.first)] for t in layers.divided(three)]
    plain, inside, twice = (Keeps.NOTHING, Again.ONCE), (Keeps.RESULT, Again.ONCE), (Keeps.NOTHING, Again.TWICE)
    pairs = (plain, inside), (plain, twice), (inside, twice)
    assert tables == [[a] * first + [b] * (4 - first) for a, b in pairs for first in (1, 2, 3)]
    assert not [*layers.divided(three[:3])]


@pytest.mark.parametrize("share", [0.7, 0.8, 0.9])
def test_layers_of_many_patterns_may_be_quicker_with_two_of_them(share):
    chooser, _ = repeated(share)
    layers, rng = chooser.layers, random.Random(0)
    same, quicker = next(g for g in chooser.candidates.by_key.values() if len(g) > 4), 0
    for _ in range(20):
        options = [(keeps, again) for keeps in (Keeps.RESULT, Keeps.NOTHING) for again in (Again.ONCE, Again.TWICE)]
        before = chooser.price(tuple(Row(c, *rng.choice(options)) for c in same if rng.random() < 0.8))
        found = chooser.in_two(before, math.inf)
        assert found is before or (found.time_ns < before.time_ns and not found.over_bytes)
        assert found is before or layers.different(found.rows) <= 2
        assert not before.over_bytes or found is before
        quicker += found is not before
    assert quicker


def test_schedules_for_less_are_looked_at_until_two_keep_to_the_limit():
    chooser, schedule = chooser_of(0, 0.7)
    plain = without_recomputation(chooser.graph)
    fits = next(s for s in (schedule, plan(chooser.graph, chooser.profile, 0).schedule) if s is not None)
    assert not min(p.over_bytes for p in map(chooser.price, chooser.tables_of(fits)))

    def schedules():
        yield plain
        yield fits
        yield fits
        raise AssertionError("nobody has to plan that")

    assert not chooser.search(schedules()).over_bytes


@pytest.mark.parametrize("seed", range(6))
def test_a_table_begins_with_what_files_can_say(seed):
    """Schedules may ask for more: such as a result that is kept, of nodes that run four times."""
    chooser, schedule = chooser_of(seed, 0.7)
    seen = set()
    for candidate in candidates_of(chooser.graph).around(chooser.graph.loss - 2, math.inf):
        made = {d for n in range(candidate.first, candidate.last + 1) for d in chooser.graph.nodes[n].writes}
        for kept, runs in itertools.product([set(), *({d} for d in made), made], [2, 3, 4, 5]):
            row = chooser._row(candidate, kept, Counter(dict.fromkeys(range(chooser.graph.loss), runs)), schedule)
            seen.add((row.keeps, row.again, row.late))
    assert seen.issubset({*OPTIONS, (Keeps.RESULT, Again.ONCE, False)})


def test_the_largest_within_a_candidate_lie_apart():
    found = Candidates(Candidate(a, b, (a,), (a, b)) for a, b in [(0, 5), (0, 2), (1, 2), (3, 3), (4, 5), (5, 5)])
    assert [(c.first, c.last) for c in found.largest_within(found.all[0])] == [(0, 2), (3, 3), (4, 5)]


def test_a_way_to_mark_that_goes_with_others_comes_before_the_fewest_marks():
    """As in blocks the first of which has no stochastic depth: what is two expressions there is one node."""
    whole, product, drop = ("forward", (1, 0, 1, 40)), ("forward", (1, 15, 1, 30)), (1, 10, 1, 39)
    alone = Candidate(0, 0, ("sum",), "alone", ((whole, ((1, 20, 1, 28),)),))
    apart = Candidate(0, 0, ("product", "sum"), "apart", ((product, ()), (whole, (drop,))))
    others = [Candidate(n, n, ("sum",), "others", ((whole, (drop,)),)) for n in (4, 8)]
    blocks = [Candidate(n, n + 3, ("block",), "block", ((whole, ()),)) for n in (0, 4, 8)]
    assert apart in Candidates([alone, apart, *others, *blocks]).all
    assert alone in Candidates([alone, apart]).all, "where nobody else needs it, the fewest marks"


def test_what_can_be_said_in_fewer_words_is():
    """`~mask` may run again beside what reads it, or as part of that, which is as good: there are two marks in the one text and
    one in the other, so that layers that forget only the latter are to have that way, too."""
    graph, profile = chain_graph([1, 3, 2] * 4)
    whole, inner = ("forward", (1, 0, 1, 40)), ("forward", (1, 20, 1, 28))
    blocks = range(1, 10, 3)
    within = [Candidate(n, n, ("invert",), "invert", ((inner, ()),)) for n in blocks]
    rest = [Candidate(n + 1, n + 1, ("fill",), "fill", ((whole, (inner[1],)),)) for n in blocks]
    both = [Candidate(n, n + 1, ("both",), "both", ((whole, ()),)) for n in blocks]
    chooser = Chooser(graph, profile, Candidates([*within, *rest, *both]), lambda order: 10**9)
    rows = tuple(map(Row, [*within[:2], *rest]))
    [[joining]] = list(chooser.joined(chooser.price(rows), False))
    assert joining(rows) == tuple(map(Row, both))
    kept = (replace(rows[0], again=Again.TWICE), *rows[1:])
    assert kept[0] in joining(kept), "not where the one is rebuilt more often"
    assert list(chooser.joined(chooser.price(tuple(map(Row, rest))), False)) == []
