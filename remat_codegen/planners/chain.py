"""Rotor: the optimal checkpointing of a chain with two choices per block (Beaumont, Eyraud-Dubois, Herrmann, Joly, Shilova
2019).

A block either keeps all that its backward pass needs, or only its input, and then runs forward again when its turn comes; by
dynamic programming over sub-chains and memory (`rotor.Table`) both are chosen for all blocks at once, and blocks may be
passed over several times.

Cost model: the table's (sizes rounded up to slots), for the families with exactly these two options; then the simulator
judges the sequences, and the fastest that fits is taken. Complexity: O(L^2 M L) for L blocks and M slots, with a row for each
distinct sub-chain only. Ties: the table's. Oracle: `best_sequence` of `tests/graphs.py`. A graph that is no chain of blocks
is one block: all or nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from remat_codegen.graph.ir import Block, Graph
from remat_codegen.planners.ends import Progress, candidate, chosen, fixed, keeping
from remat_codegen.planners.options import Family, Grid, Piece, cut_out, pinned_data, solve_family
from remat_codegen.planners.result import Plan
from remat_codegen.planners.rockmate import Candidate, is_chain
from remat_codegen.planners.rotor import Backward, Link, Operation, Table
from remat_codegen.profile.costs import Profile

SLOTS = 2000  # memory slots in the need of a step without recomputation
TIGHTEST = 12  # how many of the smallest memories are always tried


def plan(graph: Graph, profile: Profile, budget_bytes: int, *, slots: int = SLOTS, progress: Progress | None = None) -> Plan:
    """The fastest sequence of the chain within the budget."""
    plain = candidate(graph, profile, range(len(graph.nodes)))
    if plain.peak_bytes <= budget_bytes:
        return chosen("rotor", [plain], profile, budget_bytes)
    if not is_chain(graph):
        rebuilt = candidate(graph, profile, keeping(graph, ()))
        return chosen("rotor", [rebuilt], profile, budget_bytes, ("no chain of blocks: everything is rebuilt",))
    chain = Chain(graph, profile)
    table = chain.table(plain.peak_bytes, slots)
    columns = table.distinct()
    tried = {m: chain.candidate(table, m) for m in columns[:TIGHTEST]}
    low, high = min(len(columns), TIGHTEST) - 1, len(columns)
    while high - low > 1:
        middle = (low + high) // 2
        if progress is not None:
            progress("fitting the budget", len(columns) - (high - low), len(columns))
        tried[columns[middle]] = found = chain.candidate(table, columns[middle])
        low, high = (middle, high) if found.peak_bytes <= budget_bytes else (low, middle)
    return chosen("rotor", list(tried.values()) or [plain], profile, budget_bytes)


def two_options(piece: Piece) -> Family:
    """The family of a piece that keeps all or nothing."""
    return solve_family(piece, Grid(largest=0), lambda graph, profile: [keeping(graph, ())])


class Chain:
    """A graph as a chain of pieces that have two options each."""

    def __init__(self, graph: Graph, profile: Profile) -> None:
        self.graph, self.profile = graph, profile
        pinned = pinned_data(graph)
        cut = [cut_out(graph, profile, b, pinned) for b in graph.blocks]
        self.nodes = [nodes for _, nodes in cut]
        known: dict[Piece, Family] = {}
        for piece, _ in cut:
            if piece not in known:
                known[piece] = two_options(piece)
        read = {d for n in graph.nodes for d in n.reads}
        self.settled = {n.id for n in graph.forward_nodes if all(d in pinned or d not in read for d in n.writes)}
        self.fixed = fixed(graph) - self.settled
        self.links = [Link(known[p], self._sealed(b)) for (p, _), b in zip(cut, graph.blocks, strict=True)]

    def _sealed(self, block: Block) -> bool:
        return any(i in self.fixed for i in range(block.first, block.last + 1))

    def table(self, plain_bytes: int, slots: int) -> Table:
        """The dynamic program, with enough slots for keeping all."""
        unit = max(1, -(-plain_bytes // slots))
        kept = extra = 0
        for family in (link.family for link in self.links):
            most = max(o.saved_bytes for o in family.options)
            kept += -(-(most + family.piece.output_bytes) // unit)
            peak = max(max(o.forward_peak_bytes, o.backward_peak_bytes) for o in family.options)
            extra = max(extra, peak + family.piece.entering_bytes)
        return Table(self.links, unit, kept + extra // unit + 2)

    def candidate(self, table: Table, slots: int) -> Candidate:
        """The schedule of the sequence that the table holds for a number of slots."""
        return candidate(self.graph, self.profile, self.order(table.operations(slots)))

    def order(self, operations: Sequence[Operation]) -> list[int]:
        """From runs of blocks to runs of nodes."""
        order: list[int] = []
        ran: set[int] = set()
        for operation in operations:
            nodes = self.nodes[operation.block]
            if isinstance(operation, Backward):
                local = self.links[operation.block].family.options[operation.option].backward
                last = operation.block == len(self.nodes) - 1
                order.extend(nodes[i] for i in local if nodes[i] != self.graph.loss or last)
                continue
            forward = nodes[: nodes.index(self.graph.loss)]
            order.extend(i for i in forward if i not in ran or i not in self.settled)
            ran.update(forward)
        return order
