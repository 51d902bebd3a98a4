"""Small training graphs, made by hand or from a seed, and oracles that try everything."""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from hypothesis import strategies as st

from remat_codegen.graph.ir import Block, Data, Graph, Kind, Node, Phase, validate
from remat_codegen.planners.chain.options import Family
from remat_codegen.profile.costs import Profile
from remat_codegen.schedule.order import runs_once


@dataclass(frozen=True, slots=True)
class Op:
    """A forward node that writes one value. `reads` are numbers of earlier ops; its backward node reads the phantom, the
    values of the ops in `saves` (its own number for its output), and its output's gradient, and contributes to the gradients
    of `reads`.
    """

    reads: tuple[int, ...]
    nbytes: int
    phantom: int = 0
    saves: tuple[int, ...] = ()
    time: int = 1
    back: int = 2
    workspace: int = 0
    recomputable: bool = True


def training_graph(ops: Sequence[Op], blocks: Sequence[int] = (), loss: tuple[int, int] = (1, 0)) -> tuple[Graph, Profile]:
    """A step: ops, a loss (time, workspace) on the last op's value, backward nodes. `blocks` are numbers of ops."""
    count = len(ops)
    data = [Data(i, f"v{i}", Kind.VALUE, op.nbytes) for i, op in enumerate(ops)]
    phantoms: dict[int, int] = {}
    for i, op in enumerate(ops):
        if op.phantom:
            phantoms[i] = len(data)
            data.append(Data(len(data), f"p{i}", Kind.PHANTOM, op.phantom))
    gradients = {i: len(data) + i for i in range(count)}
    data.extend(Data(gradients[i], f"g{i}", Kind.GRADIENT, op.nbytes) for i, op in enumerate(ops))
    nodes = []
    for i, op in enumerate(ops):
        writes = (i, phantoms[i]) if op.phantom else (i,)
        nodes.append(Node(i, f"f{i}", Phase.FORWARD, op.reads, writes, None, op.recomputable, f"{op}"))
    nodes.append(Node(count, "loss", Phase.LOSS, (count - 1,), (gradients[count - 1],), None, False, "loss"))
    for i in reversed(range(count)):
        op = ops[i]
        reads = {*op.saves, gradients[i], *([phantoms[i]] if op.phantom else [])}
        writes = tuple(sorted(gradients[r] for r in set(op.reads)))
        nodes.append(Node(len(nodes), f"b{i}", Phase.BACKWARD, tuple(sorted(reads)), writes, i, False, f"{op} backward"))
    times = [*(op.time for op in ops), loss[0], *(op.back for op in reversed(ops))]
    workspaces = [*(op.workspace for op in ops), loss[1], *(op.workspace for op in reversed(ops))]
    used = {d for n in nodes for d in n.writes}
    assert used == set(range(len(data))), "an op that nobody reads has no gradient"
    graph = Graph(tuple(nodes), tuple(data), count, (count - 1,), _blocks(ops, blocks))
    validate(graph)
    return graph, Profile(tuple(times), tuple(workspaces))


def _blocks(ops: Sequence[Op], sizes: Sequence[int]) -> tuple[Block, ...]:
    kinds: dict[object, int] = {}
    blocks: list[Block] = []
    first = 0
    for i, size in enumerate(sizes):
        local = tuple((tuple(r - first for r in op.reads), op.nbytes, op.phantom, op.time) for op in ops[first : first + size])
        output = first + size - 1
        kind = kinds.setdefault((local, i == 0, i == len(sizes) - 1), len(kinds))
        blocks.append(Block(i, first, output, first - 1 if i else None, None if i == len(sizes) - 1 else output, kind))
        first += size
    return tuple(blocks)


def random_graph(seed: int, count: int, once: bool = False) -> tuple[Graph, Profile]:
    """A random DAG in which every op is read by a later one."""
    rng = random.Random(seed)
    ops = []
    unread: set[int] = set()
    for i in range(count):
        reads = {i - 1} if i and rng.random() < 0.7 else set()
        reads |= {rng.choice(sorted(unread))} if unread and (i == count - 1 or rng.random() < 0.6) else set()
        reads |= unread if i == count - 1 else set()
        unread = (unread - reads) | {i}
        saves = tuple(s for s in (*sorted(reads), i) if rng.random() < 0.6)
        recomputable = not once or rng.random() < 0.8
        phantom = rng.choice((0, 0, 1, 3))
        ops.append(
            Op(
                tuple(sorted(reads)),
                rng.randint(1, 5),
                phantom,
                saves,
                rng.randint(0, 6),
                2,
                rng.choice((0, 0, 2)),
                recomputable,
            )
        )
    return training_graph(ops, (), (1, rng.choice((0, 3))))


def chain_ops(first: int, seed: int) -> list[Op]:
    """A block of three ops: two in a row, and one that adds the block's input to their result."""
    rng = random.Random(seed)
    entering = (first - 1,) if first else ()
    wide = Op(entering, rng.randint(2, 8), rng.choice((0, 2)), (*entering, first), rng.randint(1, 5), 3, rng.choice((0, 2)))
    narrow = Op((first,), 2, 1, (first,), rng.randint(1, 5), 3)
    add = Op((*entering, first + 1), 2, rng.choice((0, 1)), (), 1, 1)
    return [wide, narrow, add]


def chain_graph(seeds: Sequence[int]) -> tuple[Graph, Profile]:
    """A chain of blocks of three ops; equal seeds make equal blocks (the first and the last differ in what surrounds them)."""
    ops: list[Op] = []
    for seed in seeds:
        ops.extend(chain_ops(len(ops), seed))
    return training_graph(ops, [3] * len(seeds))


# Graphs without separators


def _op(rng: random.Random, number: int, reads: tuple[int, ...], nbytes: int) -> Op:
    """An op that costs much and saves its input, or costs little and saves its output, or saves nothing at all."""
    kind = rng.random()
    if kind < 0.4:
        return Op(reads, nbytes, 0, reads[-1:], rng.randint(20, 60), rng.randint(40, 120), rng.choice((0, nbytes // 4)))
    if kind < 0.8:
        return Op(reads, nbytes, rng.choice((0, nbytes // 8)), (number,), rng.randint(1, 8), rng.randint(2, 16))
    return Op(reads, nbytes, 0, (), rng.randint(1, 4), rng.randint(1, 4))


def unet_graph(seed: int, levels: int, width: int) -> tuple[Graph, Profile]:
    """Down, across and up again; what leaves each level on the way down is read on the way up."""
    rng = random.Random(seed)
    ops: list[Op] = []
    skips: list[int] = []
    for level in range(2 * levels + 1):
        depth = min(level, 2 * levels - level)
        for step in range(width):
            reads = (len(ops) - 1,) if ops else ()
            if level > levels and step == 0:
                reads = (skips.pop(), *reads)
            ops.append(_op(rng, len(ops), reads, 4096 >> depth))
        if level < levels:
            skips.append(len(ops) - 1)
    return training_graph(ops)


def dense_graph(seed: int, count: int, stage: int) -> tuple[Graph, Profile]:
    """Stages in which every second op reads all that its stage made so far."""
    rng = random.Random(seed)
    ops: list[Op] = []
    made: list[int] = []
    for i in range(count):
        if i % stage == 0:
            made = made[-1:]
        reads = tuple(made) if i % 2 == 0 or i == count - 1 else (i - 1,)
        nbytes = 256 * (1 + len(reads)) if i % 2 == 0 else 256
        ops.append(_op(rng, i, reads, nbytes))
        if i % 2 or i in (0, count - 2):
            made.append(i)
    return training_graph(ops)


def encoder_decoder_graph(seed: int, count: int) -> tuple[Graph, Profile]:
    """A chain, and a second one of which every third op reads the first one's end; two tables that all along read."""
    rng = random.Random(seed)
    ops = [Op((), 64, time=1), Op((), 64, time=1)]
    end = count // 2
    for i in range(2, count):
        reads = (i - 1,) if i > 2 else ()
        if i % 4 == 0 or i == 2 or i == 3:
            reads = tuple(sorted({0, 1, *reads}))
        if i > end and i % 3 == 0:
            reads = tuple(sorted({end, *reads}))
        ops.append(_op(rng, i, reads, rng.choice((512, 1024, 2048))))
    return training_graph(ops)


# Plans to be better than


def chen(graph: Graph) -> tuple[int, ...]:
    """About sqrt(n) equal segments: what crosses from one to the next is kept, a segment is rebuilt as a whole."""
    size = max(1, round(graph.loss**0.5))
    last = [max((r for r in reads if r <= graph.loss), default=-1) for reads in graph.readers]
    made = [writes[0] for writes in graph.producers]
    once = runs_once(graph)
    have = {d for d, m in enumerate(made) if m < graph.loss and (m // size < min(last[d], graph.loss - 1) // size or m in once)}
    order = list(range(graph.loss + 1))
    for node in graph.backward_nodes:
        again = _missing(graph, made, node.reads, have)
        order.extend([*again, node.id])
        have.update(d for i in again for d in graph.nodes[i].writes)
    return tuple(order)


def _missing(graph: Graph, made: Sequence[int], wanted: Sequence[int], have: set[int]) -> list[int]:
    again: set[int] = set()
    pending = [d for d in wanted if d not in have and made[d] < graph.loss]
    while pending:
        node = made[pending.pop()]
        if node not in again:
            again.add(node)
            pending.extend(d for d in graph.nodes[node].reads if d not in have)
    return sorted(again)


def dtr(graph: Graph, profile: Profile, budget_bytes: int) -> tuple[int, ...] | None:
    """Eviction as the step runs, the least time for bytes and staleness first (DTR's h_local), or None where that fails."""
    made = [writes[0] for writes in graph.producers]
    last = [reads[-1] if reads else -1 for reads in graph.readers]
    forward = [max((r for r in reads if r <= graph.loss), default=-1) for reads in graph.readers]
    for data in graph.outputs:
        last[data] = len(graph.nodes)
    early, once = [m < graph.loss for m in made], runs_once(graph)
    late = _late_bytes(graph, early)
    alive: set[int] = set()
    touched: dict[int, int] = {}
    order: list[int] = []

    def run(i: int, stage: int, locked: set[int]) -> bool:
        node = graph.nodes[i]
        need = sum(graph.data[d].nbytes for d in node.writes if early[d] and d not in alive) + profile.workspace_bytes[i]
        need += late[stage][i == stage]
        while need + sum(graph.data[d].nbytes for d in alive) > budget_bytes:
            fixed = locked | {*node.reads, *node.writes}
            free = [d for d in alive - fixed if made[d] not in once and (stage > graph.loss or forward[d] < stage)]
            if not free or len(order) > 20 * len(graph.nodes):
                return False
            age = {d: len(order) - touched[d] + 1 for d in free}
            alive.remove(min(free, key=lambda d: (profile.time_ns[made[d]] / ((graph.data[d].nbytes + 1) * age[d]), d)))
        order.append(i)
        alive.update(d for d in node.writes if early[d])
        touched.update(dict.fromkeys((*node.reads, *node.writes), len(order)))
        return True

    for stage in range(len(graph.nodes)):
        reads = {d for d in graph.nodes[stage].reads if early[d]}
        again = _missing(graph, made, sorted(reads), alive)
        locked = reads | {d for i in again for d in (*graph.nodes[i].reads, *graph.nodes[i].writes)}
        if not all(run(i, stage, locked) for i in again) or not run(stage, stage, reads):
            return None
        alive -= {d for d in alive if last[d] <= stage and made[d] not in once}
    return tuple(order)


# Oracles


def least_time(graph: Graph, profile: Profile, budget_bytes: int) -> int | None:
    """The exact least time under a budget, by Dijkstra over (next node, last rerun of this stage, alive data), or None.

    The rules are rk-Checkmate's without recomputation in the forward stages: after the loss, before each backward node,
    forward nodes may run again in their order; anything may be forgotten at any time.
    """
    early = [p[0] < graph.loss for p in graph.producers]
    late = _late_bytes(graph, early)
    once = runs_once(graph)
    queue: list[tuple] = [(0, 0, -1, ())]
    best: dict[tuple, int] = {}
    while queue:
        time, following, last, alive_key = heapq.heappop(queue)
        if best.get((following, last, alive_key), time + 1) <= time:
            continue
        best[following, last, alive_key] = time
        if following == len(graph.nodes):
            return time
        alive = set(alive_key)
        for data in alive - set(graph.outputs):
            heapq.heappush(queue, (time, following, last, tuple(sorted(alive - {data}))))
        again = [i for i in range(max(last + 1, 0), graph.loss) if following > graph.loss and i not in once]
        for i in [*again, following]:
            node = graph.nodes[i]
            if any(early[d] and d not in alive for d in node.reads):
                continue
            written = sum(graph.data[d].nbytes for d in node.writes if early[d])
            before = sum(graph.data[d].nbytes for d in alive) + late[following][i == following]
            if before + written + profile.workspace_bytes[i] <= budget_bytes:
                after = tuple(sorted(alive | {d for d in node.writes if early[d]}))
                place = (following + 1, -1) if i == following else (following, i)
                heapq.heappush(queue, (time + profile.time_ns[i], *place, after))
    return None


def _late_bytes(graph: Graph, early: Sequence[bool]) -> list[tuple[int, int]]:
    """For each node: bytes of gradients alive before it, and while it runs."""
    table = []
    lives = []
    for data, (writes, reads) in enumerate(zip(graph.producers, graph.readers, strict=True)):
        if not early[data]:
            lives.append((writes[0], reads[-1] if reads else writes[-1], graph.data[data].nbytes))
    for node in range(len(graph.nodes)):
        before = sum(b for w, r, b in lives if w < node <= r)
        table.append((before, sum(b for w, r, b in lives if w <= node <= r)))
    return table


def best_sequence(families: Sequence[Family], budget_bytes: int) -> int | None:
    """The least time of a chain by trying every tree of rk-Rotor's choices, with memory counted from outside in."""
    last = len(families) - 1

    @cache
    def trees(s: int, t: int) -> tuple:
        options = range(len(families[s].options))
        once = [("once", o, inner) for o in options for inner in (trees(s + 1, t) if s < t else (None,))]
        split = [("split", r, a, b) for r in range(s + 1, t + 1) for a in trees(r, t) for b in trees(s, r - 1)]
        return (*once, *split)

    def cost(tree: tuple, s: int, t: int, held: int) -> tuple[int, int]:
        entering, first = families[t].piece.entering_bytes, t == last
        if tree[0] == "once":
            option, output = families[s].options[tree[1]], families[s].piece.output_bytes
            time = option.forward_ns if first else option.alone_ns if s == t else option.again_ns
            inner = (0, 0) if s == t else cost(tree[2], s + 1, t, held + option.saved_bytes + output)
            peak = held + max(option.forward_peak_bytes + entering, option.backward_peak_bytes)
            return time + option.backward_ns + inner[0], max(peak, inner[1])
        _, r, inside, then = tree
        a = cost(inside, r, t, held + families[r - 1].piece.output_bytes)
        b = cost(then, s, r - 1, held)
        passed = sum(f.pass_ns if first else f.pass_again_ns for f in families[s:r])
        inputs = [0, *(f.piece.output_bytes for f in families[s : r - 1])]
        peak = max(held + i + f.pass_peak_bytes + entering for i, f in zip(inputs, families[s:r], strict=True))
        return passed + a[0] + b[0], max(peak, a[1], b[1])

    found = [cost(tree, 0, last, 0) for tree in trees(0, last)]
    return min((time for time, peak in found if peak <= budget_bytes), default=None)


def budgets(low: int, high: int, count: int) -> Iterator[int]:
    """Some budgets from low to high."""
    yield from sorted({low + (high - low) * i // max(count - 1, 1) for i in range(count)})


@st.composite
def orders(draw: st.DrawFn) -> tuple[int, ...]:
    """Orders in which a few nodes run, each again after its first time."""
    order: list[int] = []
    for node in range(draw(st.integers(0, 40))):
        order.append(node)
        order += draw(st.lists(st.integers(0, node), max_size=4))
    return tuple(order)
