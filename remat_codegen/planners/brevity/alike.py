"""Equal blocks that run in equal ways: one function in the generated file, and a reviewer reads it once.

A candidate of rockmate's is replaced by one with fewer options in use, where that costs next to nothing (ALIKE), and a chain
of many repetitions by one in which all blocks of a kind run in one way, or equal segments of the chain do, where that costs
little (REGULAR, FORM): measured costs of two runs differ by more, and the file's length would depend on them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import permutations, product

from remat_codegen.graph.ir import Graph
from remat_codegen.planners.base.judge import Candidate
from remat_codegen.planners.brevity.periodic import periodic
from remat_codegen.planners.brevity.twofold import twofold
from remat_codegen.planners.chain.chain import Chain
from remat_codegen.planners.chain.options import Option
from remat_codegen.planners.chain.rk_rotor import Backward, Forward, Operation
from remat_codegen.planners.chain.ways import price

ALIKE = 0.005  # the share of a step's time that is given for treating equal blocks alike
REGULAR = 0.02  # and that is given, in a chain of repetitions, for treating all of them alike
FORM = 0.03  # and at most for a simple form, where its functions are as much shorter as that is worth (ways.PRICE)
REPETITIONS = 4  # blocks of each kind, from which on a graph is one of repetitions
MOST_REGULAR = 20_000  # combinations of one option for each family that are looked at
REGULAR_TRIES = 16  # of these, how many are simulated


def repeats(graph: Graph) -> bool:
    """Whether most blocks are repetitions: then planning must not take longer for more of them, nor may the file grow."""
    return REPETITIONS * len({b.kind for b in graph.blocks}) <= len(graph.blocks)


def treat_alike(chain: Chain, operations: list[Operation], best: Candidate, budget_bytes: int) -> Candidate:
    """The candidate with fewer options in use, where that costs next to nothing: equal blocks that run in equal ways are one
    function in the generated file, and a reviewer reads it once."""
    slowest = best.time_ns * (1 + ALIKE)
    repetitive = repeats(chain.graph)
    regular = _regular(chain, budget_bytes, best.time_ns * (1 + REGULAR) if repetitive else slowest)
    if regular is not None:
        return regular
    step_ns, limit_ns = best.time_ns, best.time_ns * (1 + FORM)
    while (found := _first_simpler(chain, operations, best, budget_bytes, slowest)) is not None:
        best, operations = found
    return _form(chain, operations, best, budget_bytes, limit_ns, step_ns) if repetitive else best


def _form(
    chain: Chain, operations: list[Operation], best: Candidate, budget_bytes: int, limit_ns: float, step_ns: float
) -> Candidate:
    """Of a candidate and those of simple forms, the one with the lowest price; rather none that lets blocks run forward in any
    pattern."""
    passed_over = _passed_over(operations)
    segments = periodic(chain, budget_bytes, limit_ns, step_ns) if passed_over else None
    dearest = price(chain, operations, best.time_ns, step_ns)
    if segments is not None:
        dearest, best = segments
    return twofold(chain, budget_bytes, limit_ns, step_ns, dearest) or best


def _passed_over(operations: Sequence[Operation]) -> bool:
    """Whether blocks run forward more than once."""
    forward = [o.block for o in operations if isinstance(o, Forward)]
    return len(forward) > len(set(forward))


def _first_simpler(
    chain: Chain, operations: Sequence[Operation], best: Candidate, budget_bytes: int, slowest_ns: float
) -> tuple[Candidate, list[Operation]] | None:
    """The candidate with the fewest options in use, of these the fastest; None if none is fast and small enough."""
    other = best.time_ns - _time_of(chain, operations)  # of the step's time: much the same for all
    changed = [(_options_in_use(chain, o), _time_of(chain, o), o) for o in _simpler(chain, operations)]
    for _, time_ns, simpler in sorted(changed, key=lambda c: c[:2]):
        if time_ns + other <= slowest_ns:
            found = chain.candidate(simpler)
            if found.peak_bytes <= budget_bytes and found.time_ns <= slowest_ns:
                return found, simpler
    return None


def _time_of(chain: Chain, operations: Sequence[Operation]) -> int:
    """What the options in use take. The same runs of blocks differ by that, and by little else."""
    chosen = [chain.families[o.block].options[o.option] for o in operations if isinstance(o, Backward)]
    return sum(o.forward_ns + o.backward_ns for o in chosen)


def _regular(chain: Chain, budget_bytes: int, slowest_ns: float) -> Candidate | None:
    """The fastest candidate with one option for each family, and every block forward once; None without one in time."""
    families, blocks = chain.distinct, range(len(chain.families))
    if math.prod(len(f.options) for f in families) > MOST_REGULAR:
        return None
    counts = Counter(map(id, chain.families))
    combinations = product(*([(counts[id(f)] * (o.forward_ns + o.backward_ns), o) for o in f.options] for f in families))
    timed = sorted(((sum(t for t, _ in c), [o for _, o in c]) for c in combinations), key=lambda pair: pair[0])
    tries = error = 0
    for time_ns, options in timed:
        chosen = {id(f): o for f, o in zip(families, options, strict=True)}
        if time_ns > slowest_ns or tries == REGULAR_TRIES:
            return None
        estimate = _estimated_peak(chain, chosen)
        if estimate + error > budget_bytes:
            continue
        tries += 1
        back = [Backward(b, f.options.index(chosen[id(f)])) for b, f in reversed([*enumerate(chain.families)])]
        found = chain.candidate([*map(Forward, blocks), *back])
        if found.peak_bytes <= budget_bytes and found.time_ns <= slowest_ns:
            return found
        error = found.peak_bytes - estimate  # which is much the same for all of them
    return None


def _estimated_peak(chain: Chain, chosen: Mapping[int, Option]) -> int:
    """The peak of a chain in which every family runs in one way, but for what surrounds the chain."""
    peak = kept = 0
    for family in chain.families:
        option = chosen[id(family)]
        peak = max(peak, kept + max(option.forward_peak_bytes, option.backward_peak_bytes))
        kept += option.saved_bytes + family.piece.output_bytes
    return peak


def _options_in_use(chain: Chain, operations: Sequence[Operation]) -> int:
    return len({(id(chain.families[o.block]), o.option) for o in operations if isinstance(o, Backward)})


def _simpler(chain: Chain, operations: Sequence[Operation]) -> Iterator[list[Operation]]:
    """The operations with fewer options in use: one in use replaced by another one, or one option for all blocks of a kind."""
    uses: dict[int, Counter[int]] = {}
    for o in operations:
        if isinstance(o, Backward):
            uses.setdefault(id(chain.families[o.block]), Counter())[o.option] += 1
    options = {id(f): range(len(f.options)) for f in chain.distinct}
    for family, counted in uses.items():
        if len(counted) < 2:
            continue
        for option in options[family]:
            yield _with_option(chain, operations, family, set(counted), option)
        for rare, other in permutations(counted, 2) if len(counted) > 2 else ():
            yield _with_option(chain, operations, family, {rare}, other)


def _with_option(
    chain: Chain, operations: Sequence[Operation], family: int, replaced: set[int], option: int
) -> list[Operation]:
    """The operations, with an option of a family in place of others."""

    def changed(o: Operation) -> Operation:
        if isinstance(o, Backward) and id(chain.families[o.block]) == family and o.option in replaced:
            return replace(o, option=option)
        return o

    return [changed(o) for o in operations]
