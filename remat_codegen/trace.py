"""From a module and its inputs to a flat list of operations (rk-GB, appendix A.2), by torch.export in training mode.

    Trace     = variables, operations, outputs
    Variable  = parameter | buffer | constant | input | result
    Operation = target(args, kwargs) -> results, with the user's source line and module path

Arguments hold `Ref(variable)` where a tensor stands. Nothing here knows about memory or gradients.
"""

from __future__ import annotations

import contextlib
import io
import logging
import operator
import re
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import sympy
import torch
import torch.fx.experimental.symbolic_shapes
from torch.utils import _pytree as pytree

from remat_codegen.attributes import attribute_paths
from remat_codegen.errors import TraceError, UnsupportedError
from remat_codegen.sizes import Asked, Dynamic, Size, Symbols, Together, combine, hint
from remat_codegen.views import separate_views


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


Autocast = tuple[tuple[str, torch.dtype], ...]  # the device types that torch.autocast is on for, and what it casts to


@dataclass(frozen=True, slots=True)
class Operation:
    """One call. `results` are variables, in the order of the returned tuple if `many`; None where a result is not a
    tensor or unused. `autocast` is what it runs under."""

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

    @property
    def name(self) -> str:
        """The operation in ATen's spelling, such as aten.linear.default."""
        return str(self.target)


@dataclass(frozen=True, slots=True)
class Trace:
    """A model's forward pass. `inputs` are variables in the order of the flattened (args, kwargs); None where a leaf
    is no tensor.

    `output_spec` is the pytree of what forward returns, `outputs` its leaves: Ref or a constant.
    `constants` are the tensors that the model holds as plain attributes, by variable.
    `containers` are the paths of modules that are indexed by number. `autocast` is what the whole model is called under.
    `sizes` are those of the inputs that may differ from call to call.
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

    def results(self) -> tuple[Variable, ...]:
        """The variables that operations create."""
        return tuple(v for v in self.variables if v.origin is Origin.RESULT)


def refs(value: Any) -> tuple[int, ...]:
    """The variables that an argument structure mentions, in order."""
    return tuple(leaf.variable for leaf in _leaves(value) if isinstance(leaf, Ref))


def sizes_in(value: Any) -> tuple[int, ...]:
    """The sizes that an argument structure mentions, as variables, in order."""
    return tuple(v for leaf in _leaves(value) if isinstance(leaf, Size) for v in leaf.variables)


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


@contextlib.contextmanager
def autocasting(autocast: Autocast) -> Iterator[None]:
    """Runs what is inside under these casts and no others; copies of parameters are not held beyond their operation."""
    with contextlib.ExitStack() as stack:
        for device in {"cpu", "cuda"} - {device for device, _ in autocast}:
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        for device, dtype in autocast:
            stack.enter_context(torch.autocast(device, dtype=dtype, cache_enabled=False))
        yield


def trace(
    module: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    autocast: Autocast = (),
    dynamic: Asked = (),
    together: Together = Together.NONE,
) -> Trace:
    """The operations of `module(*args, **kwargs)`, called under `autocast`. `dynamic` names the sizes that may change;
    `together` says which of them are always equal.

    Raises TraceError where the forward pass fails, or decides something by a tensor's value, or by a size that may change
    (naming the line).
    """
    leaves = pytree.tree_leaves((args, kwargs))
    asked = frozenset((i, d) for tensor, d in dynamic for i, leaf in enumerate(leaves) if leaf is tensor)
    try:
        exported = _export(module, args, kwargs, autocast, dynamic)
    except Exception as error:  # whatever torch.export raises, the user gets one line
        refused = _refusal(error)
        raise refused or _trace_error(error) from error
    separate_views(exported.graph_module)
    return _Reader(exported, module, autocast, asked, together).read()


def _export(module: Any, args: Any, kwargs: Any, autocast: Autocast, dynamic: Asked) -> torch.export.ExportedProgram:
    def export(others: bool = False) -> torch.export.ExportedProgram:
        given, shapes = (args, kwargs), None
        if dynamic:
            given, copied = _copies(given, dynamic)
            shapes = _shapes(module, given[0], given[1], copied, others)
        quiet = contextlib.redirect_stderr(io.StringIO())
        with warnings.catch_warnings(), _silent_logs(), quiet, autocasting(autocast), _only_plain_gradients():
            warnings.simplefilter("ignore")
            return torch.export.export(module, *given, strict=False, dynamic_shapes=shapes)

    try:
        return export()
    except Exception:  # sizes that have to be equal to those asked for: let torch.export find them
        if not dynamic:
            raise
        with contextlib.suppress(Exception):
            return export(others=True)
        raise


@contextlib.contextmanager
def _only_plain_gradients() -> Iterator[None]:
    """Refuses what changes gradients without being an operation: a trace of the forward pass does not show it."""
    function, tensor = torch.autograd.Function, torch.Tensor
    apply = function.__dict__["apply"].__func__

    def refuse_function(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if cls.__module__.startswith("torch._"):
            return apply(cls, *args, **kwargs)
        raise _refused(f"the autograd.Function {cls.__name__} has a backward of its own, which no trace shows")

    def refusing(name: str) -> Any:
        def refuse(*args: Any, **kwargs: Any) -> Any:
            raise _refused(f"{name} inside of forward changes or reads gradients, which no trace shows")

        return refuse

    found = {tensor: ["register_hook", "backward"], torch.autograd: ["grad", "backward"]}
    before = [(owner, name, owner.__dict__[name]) for owner, names in found.items() for name in names]
    function.apply = classmethod(refuse_function)  # type: ignore[assignment, method-assign]
    for owner, name, _ in before:
        setattr(owner, name, refusing(f"{'torch.autograd.' if owner is torch.autograd else ''}{name}()"))
    try:
        yield
    finally:
        for owner, name, own in before:
            setattr(owner, name, own)
        function.apply = classmethod(apply)  # type: ignore[assignment, method-assign]


def _refused(what: str) -> UnsupportedError:
    """The error for what the user's line does that calls us."""
    frames = [f for f in traceback.extract_stack() if not _is_library(f.filename)]
    where = f"{_short(frames[-1].filename)}:{frames[-1].lineno}" if frames else None
    return UnsupportedError(what, where=where, hint="write it with differentiable operations, or move it out of the model")


def _refusal(error: BaseException | None) -> UnsupportedError | None:
    """Our own refusal, whatever torch.export has made of it."""
    while error is not None:
        if isinstance(error, UnsupportedError):
            return error
        error = error.__cause__ or error.__context__
    return None


def _copies(given: Any, dynamic: Asked) -> tuple[Any, Asked]:
    """Copies of the inputs: torch.export marks tensors whose sizes may change, for good."""
    made: dict[int, torch.Tensor] = {}

    def copy(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        if id(leaf) not in made:
            made[id(leaf)] = leaf.detach().clone().requires_grad_(leaf.requires_grad)
        return made[id(leaf)]

    return pytree.tree_map(copy, given), tuple((copy(tensor), dimension) for tensor, dimension in dynamic)


def _shapes(module: Any, args: Any, kwargs: Any, dynamic: Asked, others: bool) -> Any:
    """torch.export's description of the sizes asked for; the `others` may follow from them."""
    collection = torch.export.ShapesCollection()
    for leaf in pytree.tree_leaves((args, kwargs)):
        if isinstance(leaf, torch.Tensor):
            asked = {d for tensor, d in dynamic if tensor is leaf}
            usual = torch.export.Dim.AUTO if others else torch.export.Dim.STATIC
            collection[leaf] = [torch.export.Dim.DYNAMIC if d in asked else usual for d in range(leaf.dim())]
    return collection.dynamic_shapes(module, args, kwargs)


@contextlib.contextmanager
def _silent_logs() -> Iterator[None]:
    """torch.export logs what it raises; the user gets one line of it from us."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


def _trace_error(error: Exception) -> TraceError:
    text = str(error)
    where = _user_frame(error) or _quoted_frame(text)
    fixed = re.search(r"You marked L\['(\w+)'\].*?size\(\)\[(\d+)\] as dynamic but your code specialized it", text)
    if fixed:
        return TraceError(
            f"the model fixes the size {fixed[1]}.{fixed[2]}, so it cannot be dynamic",
            hint="something in forward turns it into a plain number, or compares it with one",
        )
    if isinstance(error, torch.fx.experimental.symbolic_shapes.GuardOnDataDependentSymNode) or "data-dependent" in text:
        return TraceError(
            "the model decides something by the value of a tensor, which a plan cannot follow",
            where=where,
            hint="compute it with torch.where or masks, or move the decision out of the model",
        )
    first = next((line for line in text.splitlines() if line.strip()), type(error).__name__)
    return TraceError(f"the forward pass cannot be traced: {type(error).__name__}: {first[:300]}", where=where)


_FRAME = re.compile(r'File "([^"]+)", line (\d+)')


def _is_library(path: str) -> bool:
    return path.startswith("<") or "/torch/" in path or "/remat_codegen/" in path


def _user_frame(error: BaseException | None) -> str | None:
    """The innermost line of the user's own code in an exception's traceback."""
    found = None
    while error is not None:
        frame = error.__traceback__
        while frame is not None:
            path = frame.tb_frame.f_code.co_filename
            if not _is_library(path):
                found = f"{_short(path)}:{frame.tb_lineno}"
            frame = frame.tb_next
        error = error.__cause__
    return found


def _quoted_frame(text: str) -> str | None:
    found = [f"{_short(path)}:{line}" for path, line in _FRAME.findall(text) if not _is_library(path)]
    return found[-1] if found else None


def _short(path: str) -> str:
    return path.rsplit("/", 1)[-1]


def location(source: Source | None) -> str | None:
    """A source line as messages print it: file.py:12."""
    return None if source is None else f"{_short(source.file)}:{source.line}"


@dataclass(frozen=True, slots=True)
class _Surroundings:
    """The modes that operations run under."""

    grad_enabled: bool
    autocast: Autocast


def _with_autocast(autocast: Autocast, device: str, dtype: torch.dtype | None) -> Autocast:
    others = tuple(entry for entry in autocast if entry[0] != device)
    return others if dtype is None else tuple(sorted((*others, (device, dtype)), key=lambda entry: entry[0]))


class _Reader:
    """Reads one exported program into a Trace."""

    def __init__(
        self, exported: Any, module: torch.nn.Module, autocast: Autocast, asked: frozenset, together: Together
    ) -> None:
        self.exported, self.autocast, self.asked, self.together = exported, autocast, asked, together
        self.symbols = Symbols()
        self.sizes: list[Dynamic] = []
        self.parameters = dict(module.named_parameters(remove_duplicate=False))
        self.names = _names_by_identity(module)
        self.attributes = attribute_paths(module)
        indexed = (torch.nn.ModuleList, torch.nn.Sequential, torch.nn.ParameterList)
        # The model itself may be wrapped in something that cannot be indexed.
        self.containers = frozenset(path for path, m in module.named_modules() if path and isinstance(m, indexed))
        self.evaluating = frozenset(path for path, m in module.named_modules() if not m.training)
        self.variables: list[Variable] = []
        self.operations: list[Operation] = []
        self.of_node: dict[torch.fx.Node, Any] = {}
        self.inputs: list[int | None] = []
        self.constants: list[tuple[int, torch.Tensor]] = []

    def read(self) -> Trace:
        graph = self.exported.graph
        specs = {spec.arg.name: spec for spec in self.exported.graph_signature.input_specs}
        wanted = self._asked_symbols(specs)
        for node in graph.nodes:
            if node.op == "placeholder":
                self._placeholder(node, specs[node.name])
                self._sizes_of(node, wanted)
        outputs = self._body(self.exported.graph_module, _Surroundings(True, self.autocast))
        kept = self._user_outputs(outputs)
        return Trace(
            tuple(self.variables),
            tuple(self.operations),
            tuple(self.inputs),
            tuple(kept),
            self.exported.call_spec.out_spec,
            tuple(self.constants),
            self.containers,
            self.autocast,
            tuple(self.sizes),
            self.evaluating,
        )

    def _asked_symbols(self, specs: dict[str, Any]) -> set[Any]:
        """The symbols of the sizes that were asked for."""
        placeholders = [n for n in self.exported.graph.nodes if n.op == "placeholder"]
        given = [n for n in placeholders if specs[n.name].kind is torch.export.graph_signature.InputKind.USER_INPUT]
        wanted = set()
        for leaf, node in enumerate(given):
            value = node.meta.get("val")
            for dimension, size in enumerate(value.shape if isinstance(value, torch.Tensor) else ()):
                expression = self.symbols.note(size)
                if (leaf, dimension) in self.asked and expression is not None:
                    wanted |= expression.free_symbols
        return wanted

    def _sizes_of(self, node: torch.fx.Node, wanted: set[Any]) -> None:
        """Makes a variable of each size that may change, where it is first seen."""
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor) or not self.asked:
            return
        shape: Any = value.shape
        for dimension, size in enumerate(shape):
            symbol = size.node.expr if isinstance(size, torch.SymInt) else None
            if symbol is None or not symbol.free_symbols & wanted:
                continue
            if symbol not in self.symbols.values:
                raise UnsupportedError(f"the size {node.name}.{dimension} is computed from another one, which is not supported")
            if symbol in self.symbols.variables:
                continue
            self._add_size(Dynamic(-1, self.of_node[node].variable, dimension, hint(size), *self._limits(symbol)), symbol)
        self._name_sizes(node, value)

    def _limits(self, symbol: Any) -> tuple[int, int | None]:
        limits = self.exported.range_constraints.get(symbol)
        if limits is None:
            return 2, None
        return int(limits.lower), int(limits.upper) if isinstance(limits.upper, sympy.Integer) else None

    def _add_size(self, new: Dynamic, symbol: Any) -> None:
        for place, known in enumerate(self.sizes if self.together else ()):
            alike = known.dimension == new.dimension or self.together is Together.ALL
            if alike and known.planned == new.planned:
                most = min((m for m in (known.most, new.most) if m is not None), default=None)
                self.sizes[place] = replace(known, least=max(known.least, new.least), most=most)
                self.symbols.variables[symbol] = known.variable
                return
        name = f"{self.variables[new.source].name}_{new.dimension}"
        variable = Variable(len(self.variables), name, Origin.SIZE, name, (), (), torch.int64, "cpu")
        self.variables.append(variable)
        self.symbols.variables[symbol] = variable.id
        self.sizes.append(replace(new, variable=variable.id))

    def _name_sizes(self, node: torch.fx.Node, value: torch.Tensor) -> None:
        """Puts the names of sizes into an input's variable."""
        names = [self._size_name(size) for size in value.shape]
        if any(isinstance(name, str) for name in names):
            index = self.of_node[node].variable
            self.variables[index] = replace(self.variables[index], sizes=tuple(names))

    def _size_name(self, size: Any) -> int | str:
        symbol = size.node.expr if isinstance(size, torch.SymInt) else None
        known = None if symbol is None else self.symbols.variables.get(symbol)
        return hint(size) if known is None else self.variables[known].name

    def _user_outputs(self, outputs: Any) -> list[Any]:
        specs = self.exported.graph_signature.output_specs
        user = torch.export.graph_signature.OutputKind.USER_OUTPUT
        return [out for out, spec in zip(outputs, specs, strict=True) if spec.kind is user]

    def _placeholder(self, node: torch.fx.Node, spec: Any) -> None:
        kinds = torch.export.graph_signature.InputKind
        value = node.meta.get("val")
        origin = {
            kinds.PARAMETER: Origin.PARAMETER,
            kinds.BUFFER: Origin.BUFFER,
            kinds.USER_INPUT: Origin.INPUT,
            kinds.CONSTANT_TENSOR: Origin.CONSTANT,
        }.get(spec.kind)
        if origin is None:
            raise UnsupportedError(f"the model holds a {spec.kind.name.lower()}, which is not supported")
        if not isinstance(value, torch.Tensor):
            self.of_node[node] = getattr(spec.arg, "value", value)
            if origin is Origin.INPUT:
                self.inputs.append(None)
            return
        path = spec.target or node.name
        constant = self.exported.constants[path] if origin is Origin.CONSTANT else None
        if id(constant) in self.attributes:  # what the model holds is reached there, like a buffer
            origin, path = Origin.BUFFER, self.attributes[id(constant)]
        elif constant is not None and constant.requires_grad:
            hint = "make it a parameter of the model"
            raise UnsupportedError("a tensor that is not the model's own requires a gradient", hint=hint)
        grad = (
            origin is Origin.PARAMETER
            and self.parameters[path].requires_grad
            or bool(origin is Origin.INPUT and value.requires_grad)
            or bool(constant is not None and constant.requires_grad)
        )
        aliases = tuple(n for n in self.names.get(path, ()) if n != path)
        variable = self._variable(node.name, origin, path, value, grad, aliases)
        self.of_node[node] = Ref(variable)
        if origin is Origin.INPUT:
            self.inputs.append(variable)
        if origin is Origin.CONSTANT and constant is not None:
            self.constants.append((variable, constant))

    def _variable(
        self, name: str, origin: Origin, path: str, value: torch.Tensor, grad: bool = False, aliases: tuple[str, ...] = ()
    ) -> int:
        shape, stride = tuple(map(hint, value.shape)), tuple(map(hint, value.stride()))
        device = str(value.device)
        new = Variable(len(self.variables), name, origin, path, shape, stride, value.dtype, device, grad, aliases)
        self.variables.append(new)
        return new.id

    def _body(self, graph_module: torch.fx.GraphModule, around: _Surroundings) -> Any:
        """Reads a graph's operations, and those of the regions inside it; returns its outputs."""
        for node in graph_module.graph.nodes:
            if node.op == "output":
                return tuple(self._argument(a) for a in node.args[0])
            if node.op == "get_attr":
                self.of_node[node] = getattr(graph_module, node.target)
            elif node.op == "call_function":
                self._call(node, around)
        raise TraceError("the traced graph has no output")

    def _call(self, node: Any, around: _Surroundings) -> None:
        if node.target is operator.getitem:
            whole, index = node.args
            self.of_node[node] = self.of_node[whole][index]
        elif str(node.target) == "wrap_with_set_grad_enabled":
            inside = replace(around, grad_enabled=bool(node.args[0]))
            self.of_node[node] = self._region(node.args[1], node.args[2:], inside)
        elif str(node.target) == "wrap_with_autocast":
            device, dtype, enabled, _, body, *args = node.args
            inside = replace(around, autocast=_with_autocast(around.autocast, device, dtype if enabled else None))
            self.of_node[node] = self._region(body, tuple(args), inside)
        elif isinstance(node.meta.get("val"), (torch.SymInt, torch.SymFloat, torch.SymBool)):
            self.of_node[node] = self._number(node, node.meta["val"])
        elif isinstance(node.target, torch._ops.OpOverload):
            self.of_node[node] = self._operation(node, around)
        elif getattr(node.target, "__module__", "") == "_operator" or node.target in (torch.sym_int, torch.sym_float):
            self.of_node[node] = node.target(*[self._argument(a) for a in node.args])
        else:
            raise UnsupportedError(f"operation {node.target} is not supported", where=location(_source(node)))

    def _number(self, node: Any, value: Any) -> Any:
        if isinstance(value, torch.SymInt):
            return self.symbols.size(value)
        return combine(node.target, [self._argument(a) for a in node.args])

    def _region(self, body: torch.fx.Node, args: tuple[Any, ...], around: _Surroundings) -> Any:
        graph_module = self.of_node[body]
        inner = [n for n in graph_module.graph.nodes if n.op == "placeholder"]
        for placeholder, arg in zip(inner, args, strict=True):
            self.of_node[placeholder] = self._argument(arg)
        return self._body(graph_module, around)

    def _operation(self, node: Any, around: _Surroundings) -> Any:
        value = node.meta.get("val")
        many = isinstance(value, (list, tuple))
        values = tuple(value) if many else (value,)
        names = [f"{node.name}_{i}" for i in range(len(values))] if many else [node.name]
        results = tuple(
            self._variable(name, Origin.RESULT, "", v) if isinstance(v, torch.Tensor) else None
            for name, v in zip(names, values, strict=True)
        )
        path, kind = _module(node)
        self.operations.append(
            Operation(
                len(self.operations),
                node.target,
                tuple(self._argument(a) for a in node.args),
                tuple((k, self._argument(v)) for k, v in node.kwargs.items()),
                results,
                many,
                path,
                kind,
                _source(node),
                around.grad_enabled,
                around.autocast,
            )
        )
        returned = tuple(v if r is None else Ref(r) for r, v in zip(results, values, strict=True))
        return returned if many else returned[0]

    def _argument(self, value: Any) -> Any:
        return pytree.tree_map(lambda a: self.of_node[a] if isinstance(a, torch.fx.Node) else a, _plain(value))


def _names_by_identity(module: torch.nn.Module) -> dict[str, list[str]]:
    """For each name of a parameter or buffer, all names of the same tensor."""
    tensors = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
    groups: dict[int, list[str]] = {}
    for name, tensor in tensors:
        groups.setdefault(id(tensor), []).append(name)
    return {name: groups[id(tensor)] for name, tensor in tensors}


def _plain(value: Any) -> Any:
    """fx's immutable lists and dicts as ordinary ones."""
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value] if isinstance(value, list) else tuple(_plain(v) for v in value)
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    return value


def _module(node: torch.fx.Node) -> tuple[str, str]:
    """The path and the type of the innermost module that a node was traced in."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    return (stack[-1][0], str(stack[-1][1])) if stack else ("", "")


_STACK_LINE = re.compile(r'File "([^"]+)", line (\d+), in [^\n]*\n\s*([^\n]*)')


def _source(node: torch.fx.Node) -> Source | None:
    frames = tuple((f, int(n), t.strip()) for f, n, t in _STACK_LINE.findall(node.meta.get("stack_trace") or ""))
    if not frames:
        return None
    own = [f for f in frames if not _is_library(f[0])] or list(frames)
    return Source(*own[-1], stack=frames)
