"""AOTAutograd's partitioner: what to save between forward and backward, by a minimum cut (Horace He, "Min-cut optimal
recomputation", 2022; torch/_functorch/partitioners.py).

Each data node written before the loss is split in two, joined by an edge of its bytes; what is written follows from what is
read by edges of infinite capacity; the sink is reached from what backward nodes read, the source leads to what must not be
recomputed. The cut edges are the saved data: the fewest bytes from which all the rest can be rebuilt.

What must not be recomputed (`banned`) is told there by the names of operations. A graph has none, so here by the profile: the
*rate* of a node is its time, beyond that of the fastest node (what starting one costs), per byte it reads and writes; the
lower quartile of the rates is what moving memory costs.

- not `recomputable`: random and state-changing operations that are not exact to repeat. (With the generated file's restoring
  of generators random operations are exact, and not banned.)
- above `INTENSIVE` times that rate: compute intensive (matrix products, convolutions, attention).
- a reduction: what it writes is 4 times smaller than what it reads.
- conservative mode, also: above `FUSIBLE` times that rate (not what a fusing compiler gets for free), and each `LONGEST`th
  node of a chain of recomputed ones.

Aggressive mode bans only the first three. Neither mode knows a budget: the one plan fits or is INFEASIBLE. There is no fusing
compiler behind a generated file, so recomputation costs its measured time.

Cost model: bytes saved at the loss; the simulator judges. Complexity: one max-flow (networkx, preflow-push) on 2 x data + 2
vertices. Ties: the cut nearest to the source, what is saved being closest to the forward pass. Oracle: the least saved bytes
by trying all sets on small graphs.
"""

from __future__ import annotations

from collections.abc import Collection

import networkx as nx

from remat_codegen.graph.ir import Graph, total_bytes
from remat_codegen.planners.base.deadline import NO_LIMIT, Effort, stoppable
from remat_codegen.planners.base.keeping import candidate, chosen, keeping
from remat_codegen.planners.base.result import Plan
from remat_codegen.profile.costs import Profile
from remat_codegen.schedule.order import fixed

INTENSIVE = 8.0
FUSIBLE = 3.0
REDUCTION = 4
LONGEST = 100


@stoppable
def plan(graph: Graph, profile: Profile, budget_bytes: int, *, aggressive: bool = False, effort: Effort = NO_LIMIT) -> Plan:
    """The step that saves the least, given what may be recomputed."""
    saved = least_saved(graph, banned(graph, profile, aggressive))
    found = candidate(graph, profile, keeping(graph, saved))
    name = "mincut-aggressive" if aggressive else "mincut"
    return chosen(name, [found], profile, budget_bytes, (f"{total_bytes(graph, saved)} bytes saved over the loss",))


def least_saved(graph: Graph, banned_nodes: Collection[int]) -> frozenset[int]:
    """The data of fewest bytes from which the backward pass can be computed without running `banned_nodes` again."""
    flow = nx.DiGraph()
    flow.add_nodes_from(["source", "sink"])
    outputs = set(graph.outputs)
    for node in graph.forward_nodes:
        for data in node.writes:
            # One byte more than the size, so that of equal cuts the one of fewer data is least; outputs are there anyway.
            flow.add_edge(("in", data), ("out", data), capacity=0 if data in outputs else graph.data[data].nbytes * 1024 + 1)
            if node.id in banned_nodes:
                flow.add_edge("source", ("in", data))
            for read in () if node.id in banned_nodes else node.reads:
                flow.add_edge(("out", read), ("in", data))
    for node in graph.nodes[graph.loss :]:
        for data in node.reads:
            if ("out", data) in flow:
                flow.add_edge(("out", data), "sink")
    _, (reached, _) = nx.minimum_cut(flow, "source", "sink")
    return frozenset(d for d in range(len(graph.data)) if ("in", d) in reached and ("out", d) not in reached)


def banned(graph: Graph, profile: Profile, aggressive: bool) -> frozenset[int]:
    """The forward nodes that must not run again."""
    found = set(fixed(graph))
    rates = {n.id: rate(graph, profile, n.id) for n in graph.forward_nodes}
    ranked = sorted(r for r in rates.values() if r > 0)
    usual = ranked[len(ranked) // 4] if ranked else 0.0
    limit = usual * (INTENSIVE if aggressive else FUSIBLE)
    length: dict[int, int] = {}  # by data: how many nodes in a row are recomputed up to it
    for node in graph.forward_nodes:
        read, written = total_bytes(graph, node.reads), total_bytes(graph, node.writes)
        chain = 1 + max((length.get(d, 0) for d in node.reads), default=0)
        reduces = node.reads and written * REDUCTION < read
        if rates[node.id] > limit or reduces or (not aggressive and chain >= LONGEST):
            found.add(node.id)
        for data in node.writes:
            length[data] = 0 if node.id in found else chain
    return frozenset(i for i in found if i < graph.loss)


def rate(graph: Graph, profile: Profile, node: int) -> float:
    """Nanoseconds for each byte that a node reads or writes, beyond what starting a node costs."""
    moved = total_bytes(graph, {*graph.nodes[node].reads, *graph.nodes[node].writes})
    start = min((profile.time_ns[n.id] for n in graph.forward_nodes if n.writes), default=0)
    return (profile.time_ns[node] - start) / max(moved, 1)
