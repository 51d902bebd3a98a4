"""Values of tensors that forward asks for (`if mask.all():`), where they are the same in every call, as no input, parameter or
random number is in them. torch.export refuses to decide by any value; these can be computed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.fx.experimental import proxy_tensor
from torch.utils._python_dispatch import _disable_current_modes

ASKING = ("__bool__", "__int__", "__float__", "__index__", "item", "tolist")  # how Python asks for a tensor's value


def are_constant(tensors: list[torch.Tensor]) -> bool:
    """Whether tensors of a trace are computed from nothing that may be another in the next call."""
    nodes = _makers(tensors)
    return nodes is not None and not any(_varies(node) for node in nodes)


@contextlib.contextmanager
def known_values() -> Iterator[None]:
    """Computes the values that forward asks for, where they are constant."""
    before = {name: getattr(torch.Tensor, name) for name in ASKING}
    own = {name: name in vars(torch.Tensor) for name in ASKING}

    def answering(name: str, usual: Callable[..., Any]) -> Callable[..., Any]:
        def ask(tensor: torch.Tensor) -> Any:
            known = _computed(tensor)
            if known is None:
                return usual(tensor)
            with _disable_current_modes():
                return usual(known)

        return ask

    for name, usual in before.items():
        setattr(torch.Tensor, name, answering(name, usual))
    try:
        yield
    finally:
        for name, usual in before.items():
            setattr(torch.Tensor, name, usual) if own[name] else delattr(torch.Tensor, name)


def _computed(tensor: torch.Tensor) -> torch.Tensor | None:
    """A constant tensor of a trace, computed; None where it is none, or where something was changed in place."""
    nodes = _makers([tensor])
    if not nodes or any(_varies(node) or node.op != "call_function" for node in nodes) or _are_changed(nodes):
        return None
    made, values = _maker(tensor), dict[torch.fx.Node, Any]()
    with _disable_current_modes():
        for node in (n for n in next(iter(nodes)).graph.nodes if n in nodes):  # in their order
            args, kwargs = torch.fx.map_arg((node.args, node.kwargs), values.__getitem__)
            values[node] = node.target(*args, **kwargs)
        return values[made] if made is not None else None


def _makers(tensors: list[torch.Tensor]) -> set[torch.fx.Node] | None:
    """The nodes of a trace that tensors come from; None where nothing is traced or there is no tensor."""
    if proxy_tensor.get_proxy_mode() is None or not tensors:
        return None
    return _ancestors({node for node in map(_maker, tensors) if node is not None})


def _maker(tensor: torch.Tensor) -> torch.fx.Node | None:
    mode = proxy_tensor.get_proxy_mode()
    slot = proxy_tensor.get_proxy_slot(tensor, mode.tracer, None) if mode is not None else None
    return None if slot is None else slot.proxy.node


def _varies(node: torch.fx.Node) -> bool:
    return node.op == "placeholder" or torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def _are_changed(nodes: set[torch.fx.Node]) -> bool:
    """Whether a trace changes something of nodes, or of what looks at it, in place so far."""
    graph = next(iter(nodes)).graph
    changing = [n for n in graph.nodes if isinstance(n.target, torch._ops.OpOverload) and n.target._schema.is_mutable]
    return any(nodes & _ancestors(set(n.all_input_nodes)) for n in changing)


def _ancestors(nodes: set[torch.fx.Node]) -> set[torch.fx.Node]:
    found = set(nodes)
    while more := {node for known in found for node in known.all_input_nodes} - found:
        found |= more
    return found
