"""One run on the example inputs, recorded: for models that torch.export cannot follow, as what they do depends on values.

The run is real, and noted before autograd as torch.export notes its own: the same operations, with where in the source each was
made. What Python asked of a tensor, as in `int(index.max())`, is a number of that run. A recording has what is read of an
exported program.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
from torch.export.graph_signature import ConstantArgument, InputKind, InputSpec, OutputKind, OutputSpec, TensorArgument
from torch.fx import Graph, GraphModule, Node

from remat_codegen.torch_seam import (
    OpOverload,
    disable_current_modes,
    made_by,
    pytree,
    recorded_graph,
    schema,
    trace_in_progress,
    version,
)
from remat_codegen.trace.refusals import asking_line, unknown_class
from remat_codegen.trace.state import attributes_of, hooks_of, put_back, put_hooks_back, tensors_in
from remat_codegen.trace.values import ASKING, are_constant, are_drawn

SEED = 0
PLAIN = (int, float, complex, str, type(None), torch.dtype, torch.device)  # what a model may return beside tensors


@dataclass(frozen=True)
class Signature:
    """What a run is given, and what it gives: in the order of its placeholders, and of its outputs."""

    input_specs: list[InputSpec]
    output_specs: list[OutputSpec]


@dataclass(frozen=True)
class CallSpec:
    """The structure of what it gives."""

    out_spec: Any


@dataclass(frozen=True)
class Recording:
    """A recorded run. `given` are the tensors of its placeholders, `lines` those that asked for values; `by_chance` is how
    often that was asked of random numbers alone."""

    graph_module: GraphModule
    graph_signature: Signature
    constants: dict[str, torch.Tensor]
    call_spec: CallSpec
    given: dict[Node, torch.Tensor]
    lines: tuple[str, ...]
    by_chance: int = 0
    range_constraints: dict[Any, Any] = field(default_factory=dict)

    @property
    def graph(self) -> Graph:
        """Its operations."""
        return self.graph_module.graph


@dataclass
class Chance:
    """How to answer what is asked of random numbers alone: by these, or always in one way, so that layers that may be left out
    are all there. `asked` is how often that was, and `most` how often it may be: a loop would not end."""

    answer: bool | None = None
    most: int = 0
    asked: int = 0

    def decided(self, known: Any) -> Any:
        """The answer for one that is known: a truth value, or a number from 0 to 1. Raises RuntimeError for one too many."""
        self.asked += 1
        if self.answer is None or type(known) not in (bool, float) or not 0 <= known <= 1:
            return known
        if self.asked > self.most:
            raise RuntimeError  # nobody hears of it: such a run is left out
        return type(known)(self.answer)


def made_bytes(recording: Recording) -> int:
    """The bytes of all that a run's operations make."""
    made = (n.meta.get("val") for n in recording.graph.nodes if n.op == "call_function")
    tensors = (t for value in made for t in pytree.tree_leaves(value) if isinstance(t, torch.Tensor))
    return sum(t.numel() * t.element_size() for t in tensors)


def recorded(module: torch.nn.Module, args: Any, kwargs: Any, chance: Chance) -> Recording:
    """Runs `module` on copies of the inputs. It is left as it was, and so are PyTorch's generators."""
    own: dict[str, torch.Tensor] = {f"p_{name}": tensor for name, tensor in module.named_parameters()}
    own |= {f"b_{name}": tensor for name, tensor in module.named_buffers()}
    leaves, spec = pytree.tree_flatten((args, kwargs))
    copies = {id(leaf): copy_of(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor)}
    copied_args, copied_kwargs = pytree.tree_unflatten([copies.get(id(leaf), leaf) for leaf in leaves], spec)
    structure: list[Any] = []

    def run(*_: torch.Tensor) -> list[Any]:
        flat, found = pytree.tree_flatten(module(*copied_args, **copied_kwargs))
        structure[:] = [found]
        for leaf in flat:
            if not isinstance(leaf, (torch.Tensor, *PLAIN)):
                raise unknown_class(type(leaf).__name__)
        return flat

    lines: dict[str, None] = {}
    with seeded(), _left_as_it_was(module), _noting_what_is_asked(lines, chance):
        traced = recorded_graph(run, module, [*own.values(), *copies.values()])
    _leave_out_answers(traced.graph)
    placeholders = [n for n in traced.graph.nodes if n.op == "placeholder"]
    ours = [_renamed(node, name) for node, name in zip(placeholders, own, strict=False)]
    constants = _constants_as_placeholders(traced)
    unnamed = dict(zip(copies, placeholders[len(own) :], strict=True))
    theirs = [
        _renamed(unnamed.pop(id(leaf)), name) if id(leaf) in unnamed else _placeholder(traced.graph, name, leaf)
        for name, leaf in zip(_names(module, args, kwargs), leaves, strict=True)
    ]
    _in_this_order(traced.graph, [*ours, *constants, *theirs])
    specs = [_own_spec(node, name) for node, name in zip(ours, own, strict=True)]
    specs += [InputSpec(InputKind.CONSTANT_TENSOR, TensorArgument(n.name), n.name) for n in constants]
    specs += [InputSpec(InputKind.USER_INPUT, _argument(n), None) for n in theirs]
    results = [OutputSpec(OutputKind.USER_OUTPUT, TensorArgument(""), None)] * structure[0].num_leaves
    known = dict(zip([*ours, *theirs], [*own.values(), *leaves], strict=True)) | constants
    tensors = {node: value for node, value in known.items() if isinstance(value, torch.Tensor)}
    by_name = {node.name: tensor for node, tensor in constants.items()}
    return Recording(
        traced, Signature(specs, results), by_name, CallSpec(structure[0]), tensors, tuple(lines), chance.asked > 0
    )


def copy_of(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor like this one that nobody else has."""
    return tensor.detach().clone().requires_grad_(tensor.requires_grad)


@contextlib.contextmanager
def seeded() -> Iterator[None]:
    """In here, PyTorch's generators begin anew, so that every run draws the same; afterwards they go on as if nothing was."""
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices):
        torch.manual_seed(SEED)
        yield


@contextlib.contextmanager
def _left_as_it_was(module: torch.nn.Module) -> Iterator[None]:
    """Takes back what a run assigns and writes in a module."""
    held, hooks = attributes_of(module), hooks_of(module)
    tensors = {id(t): t for t in (*module.parameters(), *module.buffers(), *tensors_in(held))}
    before = [(t, t.detach().clone(), version(t)) for t in tensors.values()]
    try:
        yield
    finally:
        put_back(module, held)
        put_hooks_back(hooks)
        with torch.no_grad():
            for tensor, copy, number in before:
                if version(tensor) != number:
                    tensor.copy_(copy)


@contextlib.contextmanager
def _noting_what_is_asked(lines: dict[str, None], chance: Chance) -> Iterator[None]:
    """Answers where Python asks for values, and adds the lines that ask, but for what is the same in each call."""
    usual = {name: getattr(torch.Tensor, name) for name in ASKING}
    own = {name for name in ASKING if name in vars(torch.Tensor)}

    def answering(name: str) -> Any:
        def ask(tensor: torch.Tensor) -> Any:
            drawn = are_drawn([tensor])
            if not are_constant([tensor]):
                lines.setdefault(asking_line())
                _note_asked(tensor)
            with disable_current_modes():
                known = usual[name](tensor)
            return chance.decided(known) if drawn else known

        return ask

    for name in ASKING:
        setattr(torch.Tensor, name, answering(name))
    try:
        with _narrowing_by_numbers():
            yield
    finally:
        for name in ASKING:
            setattr(torch.Tensor, name, usual[name]) if name in own else delattr(torch.Tensor, name)


@contextlib.contextmanager
def _narrowing_by_numbers() -> Iterator[None]:
    """Has `x.narrow(dim, start, length)` ask for a start that is a tensor, as its kernel does where nobody sees it."""

    def narrow(input: torch.Tensor, dim: int, start: Any, length: int) -> torch.Tensor:
        begin = int(start) if isinstance(start, torch.Tensor) else start
        return usual(input, dim, begin, length)

    usual = torch.narrow
    with mock.patch.object(torch, "narrow", narrow), mock.patch.object(torch.Tensor, "narrow", narrow, create=True):
        yield


def asked(tensor: torch.Tensor) -> None:
    """Stands in a recorded graph where Python asked for a tensor's value."""


def _note_asked(tensor: torch.Tensor) -> None:
    tracer = trace_in_progress()
    node = made_by(tensor, tracer)
    if node is not None:
        tracer.graph.call_function(asked, (node,))


@contextlib.contextmanager
def saving_nothing() -> Iterator[None]:
    """Nobody goes back through a recorded run: it takes no more memory than a forward pass."""
    with torch.autograd.graph.saved_tensors_hooks(lambda _: None, lambda held: held):
        yield


def _leave_out_answers(graph: Graph) -> None:
    """Removes what gives no tensor but a number, which is known, and what nobody uses and nobody sees; not that it asked."""
    for node in reversed(list(graph.nodes)):
        if isinstance(node.target, OpOverload) and not node.users and not schema(node.target).is_mutable:
            number = isinstance(node.meta.get("val"), (bool, int, float, complex))
            if number:
                with graph.inserting_before(node):
                    for given in node.all_input_nodes:
                        graph.call_function(asked, (given,))
            if number or node.target is torch.ops.aten.detach.default:
                graph.erase_node(node)


def _constants_as_placeholders(traced: GraphModule) -> dict[Node, torch.Tensor]:
    """Has each tensor that a run came across, and did not make, be one placeholder."""
    graph, found = traced.graph, dict[int, Node]()
    tensors = dict[Node, torch.Tensor]()
    for node in [n for n in graph.nodes if n.op == "get_attr"]:
        value = getattr(traced, str(node.target), None)
        if isinstance(value, torch.Tensor):
            if id(value) not in found:
                found[id(value)] = new = _placeholder(graph, f"c_{len(found)}", node.meta.get("val", value))
                tensors[new] = value
            node.replace_all_uses_with(found[id(value)])
            graph.erase_node(node)
    return tensors


def _placeholder(graph: Graph, name: str, value: Any) -> Node:
    with graph.inserting_before(next(iter(graph.nodes))):
        node = graph.placeholder(name)
    node.meta["val"] = value
    return node


def _renamed(node: Node, name: str) -> Node:
    """A placeholder of that name, in the place of one without."""
    new = _placeholder(node.graph, name, node.meta["val"])
    node.replace_all_uses_with(new)
    node.graph.erase_node(node)
    return new


def _own_spec(node: Node, name: str) -> InputSpec:
    """A parameter's or a buffer's."""
    kind = InputKind.PARAMETER if name.startswith("p_") else InputKind.BUFFER
    persistent = True if kind is InputKind.BUFFER else None
    return InputSpec(kind, TensorArgument(node.name), name[2:], persistent)


def _names(module: torch.nn.Module, args: Any, kwargs: Any) -> list[str]:
    """What to call the leaves of the inputs, in their order: as forward calls them, with where they stand in there."""
    parameters = inspect.signature(module.forward).parameters.values()
    named = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)][: len(args)]
    more = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), "args")
    named += [f"{more}_{i}" for i in range(len(args) - len(named))]
    paths, _ = pytree.tree_flatten_with_path(([*args], kwargs))
    words = [[str(getattr(k, "key", getattr(k, "idx", getattr(k, "name", "")))) for k in path] for path, _ in paths]
    return ["_".join([named[int(w[1])] if w[0] == "0" else w[1], *w[2:]]) for w in words]


def _argument(node: Node) -> TensorArgument | ConstantArgument:
    value = node.meta["val"]
    return TensorArgument(node.name) if isinstance(value, torch.Tensor) else ConstantArgument(node.name, value)


def _in_this_order(graph: Graph, placeholders: list[Node]) -> None:
    first = next(n for n in graph.nodes if n.op != "placeholder")
    for node in placeholders:
        first.prepend(node)
