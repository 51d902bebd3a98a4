"""Operations that look at one tensor and ask others only for a type or a shape, as operations on that one tensor.

A view is taken anew wherever it is needed, from what it looks at. `a.type_as(b)` would need b there too, which may be long
forgotten; `a.to(b's dtype)` does not. `torch.broadcast_tensors` and `torch.meshgrid` look at several tensors at once; here each
of their results looks at its own.

Where a size may change, a trace has a slice for each `:` of `a[:, 0]`, which PyTorch leaves out when it knows the size: its way
back would take a gradient of its own.
"""

from __future__ import annotations

import operator
import sys
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from remat_codegen.trace.frames import HELD

aten = torch.ops.aten


def separate_views(graph_module: GraphModule) -> None:
    """Rewrites such operations in a traced graph, in place, and in the regions inside it."""
    for child in graph_module.children():
        if isinstance(child, GraphModule):
            separate_views(child)
    graph = graph_module.graph
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        if _is_whole_slice(node):
            _replace(node, node.args[0])  # type: ignore[arg-type]
            continue
        with graph.inserting_before(node):
            if node.target in _ONE_RESULT:
                _replace(node, _ONE_RESULT[node.target](graph, node))
            elif node.target in _MANY_RESULTS:
                _replace_parts(node, _MANY_RESULTS[node.target](graph, node))


def _is_whole_slice(node: Node) -> bool:
    """Whether a node is the `:` of a dimension whose size may change, beside another index in the same line: alone, `a[:]` is a
    slice in any case."""
    if node.target is not aten.slice.Tensor or node.kwargs:
        return False
    usual = 0, 0, sys.maxsize, 1
    given: tuple[Any, ...] = (*node.args, *usual[len(node.args) - 1 :])
    tensor, dimension, start, end, step = given
    if start not in (0, None) or end not in (sys.maxsize, None) or step != 1:
        return False
    may_change = not isinstance(tensor.meta["val"].shape[dimension], int)
    beside = (other for other in (tensor, *node.users) if other.target in _INDEXING)
    return may_change and any(other.stack_trace == node.stack_trace is not None for other in beside)


def _replace(node: Node, new: Node) -> None:
    node.replace_all_uses_with(new)
    node.graph.erase_node(node)


def _replace_parts(node: Node, new: list[Node]) -> None:
    for user in list(node.users):
        assert user.target is operator.getitem, f"{node.target} is used as a whole"
        part = new[user.args[1]]  # type: ignore[index]
        part.meta |= {HELD: user.meta[HELD]} if HELD in user.meta else {}  # variables hold that one, not the whole
        user.replace_all_uses_with(part)
        node.graph.erase_node(user)
    node.graph.erase_node(node)


def _call(graph: Graph, old: Node, target: Any, args: tuple[Any, ...], value: Any) -> Node:
    """A node that stands for the user's line of `old`."""
    new = graph.call_function(target, args)
    new.meta = {**old.meta, "val": value}
    return new


def _shape(graph: Graph, old: Node, like: Node, shape: Any) -> list[Any]:
    """A shape as an argument; sizes that may change are asked of `like`, a tensor of that shape."""
    return [
        size if isinstance(size, int) else _call(graph, old, aten.sym_size.int, (like, d), size) for d, size in enumerate(shape)
    ]


def _type_as(graph: Graph, node: Node) -> Node:
    tensor, value = node.args[0], node.meta["val"]
    if tensor.meta["val"].device == value.device:  # type: ignore[union-attr]
        return _call(graph, node, aten.to.dtype, (tensor, value.dtype), value)
    return _call(graph, node, aten.to.device, (tensor, value.device, value.dtype), value)


def _with_shape(target: Any) -> Any:
    def rewrite(graph: Graph, node: Node) -> Node:
        tensor, other = node.args
        value = node.meta["val"]
        return _call(graph, node, target, (tensor, _shape(graph, node, other, value.shape)), value)  # type: ignore[arg-type]

    return rewrite


def _broadcast(graph: Graph, node: Node) -> list[Node]:
    values = node.meta["val"]
    given: Any = node.args[0]
    sizes = list(values[0].shape)
    if not all(isinstance(s, int) for s in sizes):
        sizes = [_size_of_any(graph, node, given, d, s) for d, s in enumerate(sizes)]
    return [_call(graph, node, aten.expand.default, (t, list(sizes)), v) for t, v in zip(given, values, strict=True)]


def _size_of_any(graph: Graph, node: Node, given: Any, dimension: int, size: Any) -> Any:
    """A size of the broadcast shape, asked of a tensor that has it."""
    if isinstance(size, int):
        return size
    rank = len(node.meta["val"][0].shape)
    for tensor in given:
        shape = tensor.meta["val"].shape
        place = dimension - (rank - len(shape))
        if place >= 0 and str(shape[place]) == str(size):
            return _call(graph, node, aten.sym_size.int, (tensor, place), size)
    raise AssertionError("a broadcast shape has a size that none of the tensors has")


def _meshgrid(graph: Graph, node: Node) -> list[Node]:
    values = node.meta["val"]
    given: Any = node.args[0]
    swapped = len(given) > 1 and (node.kwargs.get("indexing") or (node.args[1] if len(node.args) > 1 else "ij")) == "xy"
    places = [1, 0, *range(2, len(given))] if swapped else list(range(len(given)))
    counts: dict[int, Any] = {}
    for tensor, place in zip(given, places, strict=True):
        shape = tensor.meta["val"].shape
        counts[place] = _shape(graph, node, tensor, shape)[0] if len(shape) else 1
    sizes = [counts[place] for place in range(len(given))]
    found = []
    for tensor, place, value in zip(given, places, values, strict=True):
        flat = [sizes[place] if p == place else 1 for p in range(len(given))]
        count = [value.shape[place] if p == place else 1 for p in range(len(given))]
        row = _call(graph, node, aten.view.default, (tensor, flat), tensor.meta["val"].reshape(count))
        found.append(_call(graph, node, aten.expand.default, (row, sizes), value))
    return found


_INDEXING = (aten.slice.Tensor, aten.select.int, aten.unsqueeze.default, aten.index.Tensor, aten.index_put_.default)
_ONE_RESULT = {
    aten.type_as.default: _type_as,
    aten.expand_as.default: _with_shape(aten.expand.default),
    aten.view_as.default: _with_shape(aten.view.default),
    aten.reshape_as.default: _with_shape(aten.reshape.default),
}
_MANY_RESULTS = {
    aten.broadcast_tensors.default: _broadcast,
    aten.meshgrid.default: _meshgrid,
    aten.meshgrid.indexing: _meshgrid,
}
