"""Where each node stands in the model: its module and its line; and modules by phase."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from remat_codegen.graph.ir import Graph, Node, Phase
from remat_codegen.graph.simplify import Model, allocates, main_operation
from remat_codegen.page.data import ModuleRow, NodeRow, Place, Run, ValueRow
from remat_codegen.profile.costs import Profile
from remat_codegen.trace import Operation, called

PHASES = ("forward", "again", "backward")


def nodes_of(model: Model, profile: Profile, texts: Mapping[str, int]) -> tuple[NodeRow, ...]:
    """A row for each node. `texts` are the page's files, by their names on this machine."""
    graph = model.graph
    block_of = [b.id for b in graph.blocks for _ in range(b.first, b.last + 1)]
    return tuple(_node(model, profile, node, block_of, texts) for node in graph.nodes)


def _node(model: Model, profile: Profile, node: Node, block_of: Sequence[int], texts: Mapping[str, int]) -> NodeRow:
    forward = node.id if node.forward is None else node.forward
    operation = None if node.phase is Phase.LOSS else main_operation(model, forward)
    source = None if operation is None else operation.source
    return NodeRow(
        name=node.name,
        phase=node.phase,
        operation=_said(operation, node.phase),
        also=() if operation is None else _also(model, forward, operation),
        module="" if operation is None else operation.module_path,
        block=block_of[min(forward, len(block_of) - 1)],
        time_ns=profile.time_ns[node.id],
        workspace_bytes=profile.workspace_bytes[node.id],
        place=None if source is None or source.file not in texts else Place(texts[source.file], source.line),
    )


def _said(operation: Operation | None, phase: Phase) -> str:
    if operation is None:
        return "the loss, and the beginning of the backward pass"
    name = called(operation.target)
    return name if phase is Phase.FORWARD else f"backward of {name}"


def _also(model: Model, node: int, main: Operation) -> tuple[str, ...]:
    """What else of a node allocates memory, in order."""
    others = (model.trace.operations[op] for op in model.bodies[node].operations if op != main.id)
    return tuple(called(op.target) for op in others if allocates(model.record, op))


@dataclass(slots=True)
class _Sums:
    time_ns: list[int] = field(default_factory=lambda: [0, 0, 0])
    peak_bytes: list[int] = field(default_factory=lambda: [0, 0, 0])
    kept_bytes: int = 0
    rebuilt_bytes: int = 0


def modules_of(
    graph: Graph, nodes: Sequence[NodeRow], runs: Sequence[Run], during_bytes: Sequence[int], values: Sequence[ValueRow]
) -> tuple[ModuleRow, ...]:
    """A row for each module in which something runs, the whole model first, each before what stands in it."""
    sums: dict[str, _Sums] = {}
    for node in nodes[: graph.loss]:
        for path in _around(node.module):
            sums.setdefault(path, _Sums())
    for run, most in zip(runs, during_bytes, strict=True):
        row = nodes[run.node]
        phase = 2 if run.node >= graph.loss else int(run.again)
        for path in _around(row.module):
            own = sums[path]
            own.time_ns[phase] += row.time_ns
            own.peak_bytes[phase] = max(own.peak_bytes[phase], most)
    for value in values:
        for path in _around(nodes[value.node].module):
            sums[path].kept_bytes += value.nbytes * (value.fate == "kept")
            sums[path].rebuilt_bytes += value.nbytes * (value.fate == "rebuilt")
    return _rows(sums)


def _rows(sums: Mapping[str, _Sums]) -> tuple[ModuleRow, ...]:
    inside: dict[str, list[str]] = {}
    for path in sums:
        if path:
            inside.setdefault(_outer(path), []).append(path)
    rows: list[ModuleRow] = []

    def add(path: str, depth: int, parent: int | None) -> None:
        own, number = sums[path], len(rows)
        times, peaks = tuple(own.time_ns), tuple(own.peak_bytes)
        rows.append(ModuleRow(path, depth, parent, times, peaks, own.kept_bytes, own.rebuilt_bytes))  # type: ignore[arg-type]
        for one in inside.get(path, ()):
            add(one, depth + 1, number)

    add("", 0, None)
    return tuple(rows)


def _around(path: str) -> list[str]:
    """A module and those around it, the whole model first: "", h, h.3, h.3.attn."""
    words = path.split(".") if path else []
    return ["", *(".".join(words[: i + 1]) for i in range(len(words)))]


def _outer(path: str) -> str:
    return path.rpartition(".")[0]
