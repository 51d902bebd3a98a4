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
from remat_codegen.trace.kernels import without_kernels
from remat_codegen.trace.places import Call
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
    """A line of the user's model. `stack` lists the lines that led to it, outermost first, as (file, line, text)."""

    file: str
    line: int
    text: str
    stack: tuple[tuple[str, int, str], ...] = ()


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
    """One call. `results` are variables, in the order of the returned tuple if `many`; None where a result is not a
    tensor or unused. `autocast` is what it runs under, `regions` are the calls of torch.utils.checkpoint that it stands in,
    outermost first. `calls` say where in the source it was made, and `held` are the operations whose results variables of that
    source hold while it runs; they are no part of what makes two operations alike. `asked` are variables whose values Python
    asked for between it and its neighbours, in a recorded run."""

    id: int
    target: Any
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]
    results: tuple[int | None, ...]
    many: bool
    module_path: str
    module_type: str
    source: Source | None
    grad_enabled: bool = True
    autocast: Autocast = ()
    regions: tuple[Region, ...] = ()
    calls: tuple[Call, ...] = field(default=(), compare=False, repr=False)
    held: tuple[int, ...] = field(default=(), compare=False, repr=False)
    asked: tuple[int, ...] = field(default=(), compare=False, repr=False)

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
    """What one run found on the example inputs, where what forward does depends on values; a plan is then for that run.

    `lines` are those that depend on values. `values` are the integers and truth values that operations read, by variable, on
    the CPU: others might be no indices, or would find another number of places. `found` are by operation what kernels gave in
    it whose results depend on values: numbers, and a Like for each tensor.
    """

    lines: tuple[str, ...]
    values: Mapping[int, torch.Tensor]
    found: Mapping[int, tuple[tuple[str, Any], ...]]


@dataclass(frozen=True)
class Trace:
    """A model's forward pass. `inputs` are variables in the order of the flattened (args, kwargs); None where a leaf
    is no tensor.

    `output_spec` is the pytree of what forward returns, `outputs` its leaves: Ref or a constant.
    `constants` are the tensors that the model holds as plain attributes, by variable.
    `containers` are the paths of modules that are indexed by number. `autocast` is what the whole model is called under.
    `sizes` are those of the inputs that may differ from call to call. `assigned` are attributes of modules that forward sets
    to tensors, and places in dicts and lists that it is given, as it calls them. `state` are the paths of buffers that forward
    assigns, whose new values come after the result in `outputs`, and their variables, the last of `inputs`; None where forward
    does not read the old ones. `decisions` are lines that decide something by an input's value, and what it was: these values
    are the last of `outputs`. `settings` are names of attributes of modules: the numbers and texts that forward reads;
    `objects` are those of plain objects that modules hold, by path.
    `modes` are the paths of modules that forward asks for their mode; those in `evaluating` were in evaluation mode.
    `numbers` are the whole numbers that modules hold as attributes, by path. `dtypes` are those of the parameters, where
    forward mentions types (`x.to(y.dtype)`), so that it would compute something else in others. `run` is there where it was
    recorded in one run, as torch.export cannot follow what forward does. `gpu` is the GPU that was traced
    for, if it is not there.
    """

    variables: tuple[Variable, ...]
    operations: tuple[Operation, ...]
    inputs: tuple[int | None, ...]
    outputs: tuple[Any, ...]
    output_spec: Any
    constants: tuple[tuple[int, torch.Tensor], ...] = ()
    containers: frozenset[str] = frozenset()
    autocast: Autocast = ()
    sizes: tuple[Dynamic, ...] = ()
    evaluating: frozenset[str] = frozenset()
    assigned: tuple[str, ...] = ()
    state: tuple[tuple[str, int | None], ...] = ()
    decisions: tuple[tuple[str, bool], ...] = ()
    settings: tuple[str, ...] = ()
    objects: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    dtypes: frozenset[torch.dtype] = frozenset()
    numbers: Mapping[str, int] = field(default_factory=dict)
    modes: frozenset[str] = frozenset()
    run: Run | None = field(default=None, compare=False, repr=False)
    gpu: Device | None = field(default=None, compare=False, repr=False)

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
