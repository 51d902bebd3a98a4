"""Rotor: the optimal checkpointing of a chain with two choices per block (Beaumont, Eyraud-Dubois, Herrmann, Joly, Shilova
2019).

A block either keeps all that its backward pass needs, or only its input, and then runs forward again when its turn comes; by
dynamic programming over sub-chains and memory (`rk_rotor.Table`) both are chosen for all blocks at once, and blocks may be
passed over several times.

Cost model: the table's (sizes rounded up to slots), for the families with exactly these two options; then the simulator
judges the sequences, and the fastest that fits is taken. Complexity: O(L^2 M L) for L blocks and M slots, with a row for each
distinct sub-chain only. Ties: the table's. Oracle: `best_sequence` of `tests/graphs.py`. A graph that is no chain of blocks
is one block: all or nothing.
"""

from __future__ import annotations

from functools import lru_cache

from remat_codegen.graph.ir import Graph
from remat_codegen.planners.base.deadline import NO_LIMIT, Effort, stoppable
from remat_codegen.planners.base.judge import Candidate, check, is_chain
from remat_codegen.planners.base.keeping import candidate, chosen, keeping
from remat_codegen.planners.base.result import Plan
from remat_codegen.planners.chain.chain import Chain
from remat_codegen.planners.chain.options import Family, Grid, Piece, solve_family
from remat_codegen.profile.costs import Profile
from remat_codegen.schedule.order import fixed

SLOTS = 2000  # memory slots in the need of a step without recomputation
TIGHTEST = 12  # how many of the smallest memories are always tried


@stoppable
def plan(graph: Graph, profile: Profile, budget_bytes: int, *, slots: int = SLOTS, effort: Effort = NO_LIMIT) -> Plan:
    """The fastest sequence of the chain within the budget."""
    plain = candidate(graph, profile, range(len(graph.nodes)))
    if plain.peak_bytes <= budget_bytes:
        return chosen("rotor", [plain], profile, budget_bytes)
    if not is_chain(graph):
        rebuilt = candidate(graph, profile, keeping(graph, ()))
        return chosen("rotor", [rebuilt], profile, budget_bytes, ("no chain of blocks: everything is rebuilt",))
    sequences = _sequences(graph, profile, plain.peak_bytes, slots)
    count = len(sequences.columns)
    tried = {i: sequences.candidate(i) for i in range(min(count, TIGHTEST))}
    low, high = min(count, TIGHTEST) - 1, count
    while high - low > 1:
        middle = (low + high) // 2
        effort.tell("fitting the budget", count - (high - low), count)
        tried[middle] = found = sequences.candidate(middle)
        low, high = (middle, high) if found.peak_bytes <= budget_bytes else (low, middle)
    return chosen("rotor", list(tried.values()) or [plain], profile, budget_bytes)


@lru_cache(maxsize=2)
def _sequences(graph: Graph, profile: Profile, plain_bytes: int, slots: int) -> _Sequences:
    """The dynamic program is the same for every budget: whoever plans for several finds it here."""
    return _Sequences(graph, profile, plain_bytes, slots)


class _Sequences:
    """What the dynamic program of a graph says; the sequences that somebody asked for as schedules, looked at once."""

    def __init__(self, graph: Graph, profile: Profile, plain_bytes: int, slots: int) -> None:
        self.chain = chain_of(graph, profile)
        self.table = self.chain.table(plain_bytes, slots)
        self.columns = self.table.distinct()
        self.known: dict[int, Candidate] = {}

    def candidate(self, index: int) -> Candidate:
        """The sequence for the memory of a column."""
        if index not in self.known:
            found = self.chain.candidate(self.table.operations(self.columns[index]))
            check(self.chain.graph, found.schedule)
            self.known[index] = found
        return self.known[index]


def chain_of(graph: Graph, profile: Profile) -> Chain:
    """The graph as a chain of blocks with two options each."""
    return Chain(graph, profile, lambda pieces: [two_options(p) for p in pieces], fixed(graph))


def two_options(piece: Piece) -> Family:
    """The family of a piece that keeps all or nothing."""
    return solve_family(piece, Grid(largest=0), lambda graph, profile: [keeping(graph, ())])
