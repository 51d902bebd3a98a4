"""What a trace consists of, and what walks through the arguments of its operations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any

import torch

from remat_codegen.profile.devices import Device
from remat_codegen.torch_seam import schema
from remat_codegen.trace.places import Call
from remat_codegen.trace.sdpa_kernel import without_kernels
from remat_codegen.trace.sizes import Dynamic, Size
from remat_codegen.trace.surroundings import Autocast


class Origin(StrEnum):
    """Where a variable's tensor comes from."""

    PARAMETER = "parameter"
    BUFFER = "buffer"
    CONSTANT = "constant"
    INPUT = "input"
    SIZE = "size"
    RESULT = "result"


@dataclass(frozen=True, slots=True)
class Ref:
    """A tensor argument: the index of a variable."""

    variable: int


@dataclass(frozen=True, slots=True)
class Variable:
    """A tensor of the trace. `path` is a parameter's or buffer's name in `state_dict`, or an input's name.

    `aliases` are the other names of a tied parameter or buffer. `sizes` is an input's shape with the names of sizes that may
    change in it, None where there is none.
    """

    id: int
    name: str
    origin: Origin
    path: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: str
    requires_grad: bool = False
    aliases: tuple[str, ...] = ()
    sizes: tuple[int | str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Source:
    """A line of a forward of the user's model; `called` is that of a method or function which it calls, and which runs the
    operation."""

    file: str
    line: int
    text: str
    called: Source | None = None

    @property
    def innermost(self) -> Source:
        """The line that runs the operation."""
        return self.called or self


@dataclass(frozen=True, slots=True)
class Region:
    """A call of torch.utils.checkpoint inside of forward. `id` is where it begins: calls right inside of each other share it.

    `where` is its line, file.py:12. `selective` is one that chooses what it keeps (`context_fn`), `keeps_state` one that
    holds the generator's state.
    """

    id: int
    where: str | None = None
    reentrant: bool = False
    selective: bool = False
    keeps_state: bool = True


@dataclass(frozen=True, slots=True)
class Operation:
    """One call."""

    id: int
    target: Any
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]
    results: tuple[int | None, ...]  # variables, in the order of the returned tuple; None where one is no tensor or unused
    many: bool  # whether it returns a tuple, rather than one result
    module_path: str
    module_type: str
    source: Source | None
    grad_enabled: bool = True
    autocast: Autocast = ()  # what it runs under
    regions: tuple[Region, ...] = ()  # the calls of torch.utils.checkpoint that it stands in, outermost first
    # What follows is no part of what makes two operations alike.
    calls: tuple[Call, ...] = field(default=(), compare=False, repr=False)  # where in the source it was made
    # Operations whose results variables of that source hold while it runs.
    held: tuple[int, ...] = field(default=(), compare=False, repr=False)
    # Attributes of modules that forward has set, and hold results while it runs: paths, and the operations that made these.
    attributes: tuple[tuple[str, int], ...] = field(default=(), compare=False, repr=False)
    # Variables whose values Python asked for between it and its neighbours, in a recorded run.
    asked: tuple[int, ...] = field(default=(), compare=False, repr=False)
    by_attributes: tuple[int, ...] = field(default=(), compare=False, repr=False)  # of `held`, what no variable holds
    # The plain objects, by number, that have what it gives when forward has ended.
    in_objects: frozenset[int] = field(default=frozenset(), compare=False, repr=False)

    @property
    def name(self) -> str:
        """The operation in ATen's spelling, such as aten.linear.default."""
        return str(self.target)

    @property
    def base(self) -> str:
        """The same without namespace and overload, such as linear."""
        return str(schema(without_kernels(self.target)).name.removeprefix("aten::"))

    @property
    def reads(self) -> tuple[int, ...]:
        """The variables that its arguments hold as tensors, in order, and as often as they do."""
        return refs((self.args, self.kwargs))

    @property
    def mentions(self) -> tuple[int, ...]:
        """What it reads, and the sizes that its arguments are made of."""
        return *self.reads, *(v for leaf in _leaves((self.args, self.kwargs)) if isinstance(leaf, Size) for v in leaf.variables)

    @property
    def made(self) -> tuple[int, ...]:
        """The results that somebody uses, in order."""
        return tuple(v for v in self.results if v is not None)


@dataclass(frozen=True, slots=True)
class Like:
    """A tensor without its values and its memory."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: str


@dataclass(frozen=True)
class Run:
    """What one run found on the example inputs, where what forward does depends on values; a plan is then for that run."""

    lines: tuple[str, ...]  # those that depend on values
    # The integers and truth values that operations read, by variable, on the CPU: others might be no indices, or would find
    # another number of places.
    values: Mapping[int, torch.Tensor]
    # What kernels gave in an operation whose results depend on values, by operation: numbers, and a Like for each tensor.
    found: Mapping[int, tuple[tuple[str, Any], ...]]


@dataclass(frozen=True, slots=True)
class Modules:
    """What forward asks of the model's modules beside their tensors: set otherwise, they would compute something else."""

    settings: tuple[str, ...] = ()  # the names of their attributes that are numbers and texts, and that forward reads
    objects: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # the same of plain objects that they hold, by path
    moved: tuple[str, ...] = ()  # what forward sets or changes of such objects, `State.h`
    modes: frozenset[str] = frozenset()  # the paths of those that it asks for their mode
    evaluating: frozenset[str] = frozenset()  # the paths of those that were in evaluation mode, asked for it or not
    numbers: Mapping[str, int] = field(default_factory=dict)  # the whole numbers that they hold as attributes, by path
    dtypes: frozenset[torch.dtype] = frozenset()  # of their parameters, where it mentions types (`x.to(y.dtype)`)


@dataclass(frozen=True)
class Trace:
    """A model's forward pass."""

    variables: tuple[Variable, ...]
    operations: tuple[Operation, ...]
    inputs: tuple[int | None, ...]  # variables of the flattened (args, kwargs), then of `state`; None where a leaf is no tensor
    outputs: tuple[Any, ...]  # Ref or a constant: what forward returns, then new values of `state`, then of `decisions`
    output_spec: Any  # the pytree of what forward returns
    constants: tuple[tuple[int, torch.Tensor], ...] = ()  # tensors that the model holds as plain attributes, by variable
    containers: frozenset[str] = frozenset()  # the paths of modules that are indexed by number
    autocast: Autocast = ()  # what the whole model is called under
    sizes: tuple[Dynamic, ...] = ()  # those of the inputs that may differ from call to call
    fixed: frozenset[int] = frozenset()  # the variables of those that may not after all, as tracing has used their values
    modules: Modules = Modules()
    elsewhere: tuple[str, ...] = ()  # the paths of parameters that it reads by a list, a dict or a variable
    hooked: bool = field(default=False, compare=False)  # whether modules have hooks in the forward pass, or get some in it
    leaf_bytes: int = 0  # of parameters that forward makes: autograd holds them, and in the end their gradients
    # Attributes of modules that forward sets to tensors, and places in dicts and lists that it is given, as it calls them.
    assigned: tuple[str, ...] = ()
    # The variables that modules hold in attributes when it has ended, and whether with their autograd nodes.
    left: tuple[tuple[int, bool], ...] = ()
    # Variables that a checkpoint with use_reentrant=True makes, does not return, and others read: they have no gradient then.
    # With the line of that call.
    escaped: tuple[tuple[int, str], ...] = ()
    # The paths of buffers that forward assigns, and their variables; None where it does not read the old ones.
    state: tuple[tuple[str, int | None], ...] = ()
    decisions: tuple[tuple[str, bool], ...] = ()  # lines that decide something by an input's value, and what it was
    # What its one run found where it was recorded, as torch.export cannot follow what forward does.
    run: Run | None = field(default=None, compare=False, repr=False)
    gpu: Device | None = field(default=None, compare=False, repr=False)  # that was traced for, if it is not there
    casting: tuple[range, ...] = ()  # the operations in each outermost autocast, which keeps its copies of parameters as long

    def results(self) -> tuple[Variable, ...]:
        """The variables that operations create."""
        return tuple(v for v in self.variables if v.origin is Origin.RESULT)

    @cached_property
    def accelerator(self) -> str:
        """The device beside the CPU that tensors are on, cuda:0; empty where there is none."""
        return next((v.device for v in self.variables if v.device != "cpu"), "")

    @cached_property
    def readers(self) -> tuple[tuple[int, ...], ...]:
        """By variable: the operations that mention it, in order."""
        found: list[list[int]] = [[] for _ in self.variables]
        for operation in self.operations:
            for variable in dict.fromkeys(operation.reads):
                found[variable].append(operation.id)
        return tuple(map(tuple, found))


def refs(value: Any) -> tuple[int, ...]:
    """The variables that an argument structure mentions, in order."""
    return tuple(leaf.variable for leaf in _leaves(value) if isinstance(leaf, Ref))


def substitute(value: Any, tensors: Any) -> Any:
    """The argument structure with each Ref replaced by `tensors[variable]`, and each Size by its value as traced."""
    if isinstance(value, Ref):
        return tensors[value.variable]
    if isinstance(value, Size):
        return value.hint
    if isinstance(value, (list, tuple)):
        return type(value)(substitute(v, tensors) for v in value)
    if isinstance(value, dict):
        return {k: substitute(v, tensors) for k, v in value.items()}
    return value


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, (list, tuple)):
        return [leaf for v in value for leaf in _leaves(v)]
    if isinstance(value, dict):
        return [leaf for v in value.values() for leaf in _leaves(v)]
    return [value]
