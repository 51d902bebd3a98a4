"""`torch.vmap` inside of forward, as the operations on whole batches that PyTorch makes of it.

torch.export shows the operations on one element, between a call that begins a batch and one that ends it. What runs, and what
autograd goes back through, are others: they are found by running these under torch.func once more.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from remat_codegen.errors import UnsupportedError
from remat_codegen.torch_seam import OpOverload, detect_fake_mode, leave_vmap, proxy_tensor
from remat_codegen.trace.reader import source_of
from remat_codegen.trace.refusals import location

BEGINS, ENDS = "_vmap_increment_nesting", "_vmap_decrement_nesting"
BETWEEN = frozenset({BEGINS, ENDS, "_add_batch_dim", "_remove_batch_dim", "lazy_load_decompositions"})
aten = torch.ops.aten


def flatten_vmaps(graph_module: GraphModule, trained: set[str]) -> None:
    """Rewrites them in a traced graph, in place, and in the regions inside it. `trained` are the placeholders with gradient.

    Raises UnsupportedError for what is not just operations on tensors.
    """
    for child in graph_module.children():
        if isinstance(child, GraphModule):
            flatten_vmaps(child, {n.name for n in child.graph.nodes if n.op == "placeholder"})
    graph = graph_module.graph
    for node in graph.nodes:
        if _name(node) == "lazy_load_decompositions":
            graph.erase_node(node)
    while (region := _region(graph)) is not None:
        try:
            _flatten(graph, region, trained)
        except Exception as error:  # whatever torch.func cannot run twice
            what, hint = "this torch.vmap inside of forward cannot be planned", "write it with operations on whole batches"
            raise UnsupportedError(what, where=location(source_of(region[-2])), hint=hint) from error


def _name(node: Node) -> str:
    return getattr(node.target, "__name__", "") if node.op == "call_function" else ""


def _region(graph: Graph) -> list[Node] | None:
    """The first outermost vmap, from where it begins to where it ends."""
    depth, found = 0, list[Node]()
    for node in graph.nodes:
        depth += {BEGINS: 1, ENDS: -1}.get(_name(node), 0)
        if depth or found:
            found.append(node)
        if found and not depth:
            return found
    return None


def _flatten(graph: Graph, region: list[Node], trained: set[str]) -> None:
    inside = set(region)
    if any(not _is_plain(node) for node in region):
        raise TypeError("something else than operations")
    given = list(dict.fromkeys(n for node in region for n in node.all_input_nodes if n not in inside))
    made = [node for node in region if any(user not in inside for user in node.users)]
    values = _in_one_mode([_value(node, node in _reached(graph, trained)) for node in given])

    def run(*tensors: Any) -> list[Any]:
        known: dict[Node, Any] = dict(zip(given, tensors, strict=True))
        with _levels() as level:
            for node in region:
                level[0] += {BEGINS: 1, ENDS: -1}.get(_name(node), 0)
                args, kwargs = torch.fx.map_arg((node.args, node.kwargs), known.__getitem__)
                known[node] = node.target(*args, **kwargs)  # type: ignore[operator]
        return [known[node] for node in made]

    with detect_fake_mode(values) or contextlib.nullcontext():
        flat = proxy_tensor.make_fx(run)(*values).graph
    known = dict(zip((n for n in flat.nodes if n.op == "placeholder"), given, strict=True))
    for node in flat.nodes:
        if node.op == "call_function" and not (node.target is aten.detach.default and not node.users):
            with graph.inserting_before(region[0]):
                known[node] = graph.node_copy(node, known.__getitem__)
            known[node].meta = {**region[-2].meta, "val": node.meta["val"]}
        elif node.op == "get_attr":
            raise TypeError("a constant")
    (results,) = next(n for n in flat.nodes if n.op == "output").args
    for old, new in zip(made, results, strict=True):
        old.replace_all_uses_with(known[new], lambda user: user not in inside)
    for node in reversed(region):
        graph.erase_node(node)


def _is_plain(node: Node) -> bool:
    operation = isinstance(node.target, OpOverload) or node.target is operator.getitem
    return operation or _name(node) in BETWEEN


@contextlib.contextmanager
def _levels() -> Iterator[list[int]]:
    """Leaves the batches that were begun, whatever happens."""
    level = [0]
    try:
        yield level
    finally:
        for _ in range(level[0]):
            leave_vmap()


def _value(node: Node, trains: bool) -> Any:
    """What stands for a node: some operations run otherwise where gradients are wanted."""
    value = node.meta["val"]
    if not isinstance(value, torch.Tensor):
        raise TypeError("a size")
    return value.detach().requires_grad_(trains and value.is_floating_point())


def _in_one_mode(values: list[torch.Tensor]) -> list[torch.Tensor]:
    """The same, fakes of one mode: a recorded run gives each of what it begins with one of its own."""
    modes = [mode for value in values if (mode := detect_fake_mode([value])) is not None]
    if len({*modes}) < 2:
        return values
    with modes[0]:
        made = (torch.empty_strided(v.shape, v.stride(), dtype=v.dtype, device=v.device) for v in values)
        return [new.requires_grad_(value.requires_grad) for new, value in zip(made, values, strict=True)]


def _reached(graph: Graph, trained: set[str]) -> set[Node]:
    """The nodes that depend on what gets gradients."""
    found: set[Node] = set()
    for node in graph.nodes:
        if node.name in trained or found.intersection(node.all_input_nodes):
            found.add(node)
    return found
