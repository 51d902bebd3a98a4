"""Reads an exported program: its variables, sizes and operations, in the order in which they run."""

from __future__ import annotations

import contextlib
import operator
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import sympy
import torch

from remat_codegen.errors import TraceError, UnsupportedError, ValuesError
from remat_codegen.torch_seam import (
    ENTERS_AUTOCAST,
    EXITS_AUTOCAST,
    SWITCHES_GRADIENTS,
    OpOverload,
    detect_fake_mode,
    is_functorch,
    pytree,
    storage_key,
)
from remat_codegen.trace.attributes import attribute_paths
from remat_codegen.trace.checkpoints import escapes, regions_of
from remat_codegen.trace.frames import calls_of, held_by, held_by_attributes, left_by, set_by, stays_in_objects
from remat_codegen.trace.ir import Operation, Origin, Ref, Source, Trace, Variable
from remat_codegen.trace.places import Call
from remat_codegen.trace.recording import asked
from remat_codegen.trace.refusals import is_library, location, naming_the_line
from remat_codegen.trace.sizes import Dynamic, Symbols, Together, combine, hint
from remat_codegen.trace.surroundings import Autocast, Surroundings, with_autocast
from remat_codegen.trace.waiting import with_waiting

SWITCHES = (SWITCHES_GRADIENTS, ENTERS_AUTOCAST, EXITS_AUTOCAST)
ON_TENSORS = "write it with operations on tensors, or move it out of the model"


class Reader:
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
        self.lengths = {path: len(m) for path, m in module.named_modules() if isinstance(m, indexed)}
        self.variables: list[Variable] = []
        self.operations: list[Operation] = []
        self.of_node: dict[torch.fx.Node, Any] = {}
        self.numbered: dict[int, int] = {}  # operations by the numbers that their nodes have in the trace
        self.calls: dict[int, Call] = {}  # by evaluation
        self.casts: list[int] = []  # the first operation in each autocast that is open
        self.casting: list[range] = []
        self.told: list[int] = []  # variables whose values Python has asked for since the last operation
        self.inputs: list[int | None] = []
        self.left: dict[int, bool] = {}  # variables that modules hold when forward has ended: whether with their autograd nodes
        self.constants: list[tuple[int, torch.Tensor]] = []
        self.elsewhere: dict[str, None] = {}  # parameters that forward reads by a list, a dict or a variable
        self.escaped: dict[int, str] = {}  # variables of reentrant checkpoints that others read: the line of the call

    def read(self) -> Trace:
        graph = self.exported.graph
        specs = {spec.arg.name: spec for spec in self.exported.graph_signature.input_specs}
        wanted = self._asked_symbols(specs)
        for node in graph.nodes:
            if node.op == "placeholder":
                self._placeholder(node, specs[node.name])
                self._sizes_of(node, wanted)
        with self._cast(bool(self.autocast)):
            outputs = self._body(self.exported.graph_module, Surroundings(True, self.autocast))
        kept = self._user_outputs(outputs)
        return Trace(
            variables=tuple(self.variables),
            operations=with_waiting(self.operations, (out.variable for out in kept if isinstance(out, Ref))),
            inputs=tuple(self.inputs),
            outputs=tuple(kept),
            output_spec=self.exported.call_spec.out_spec,
            constants=tuple(self.constants),
            containers=self.containers,
            elsewhere=tuple(self.elsewhere),
            autocast=self.autocast,
            sizes=tuple(self.sizes),
            fixed=self.symbols.fixed(self._guards(), self.sizes) if self.sizes else frozenset(),
            left=tuple(self.left.items()),
            escaped=tuple(self.escaped.items()),
            casting=tuple(self.casting),
        )

    @contextlib.contextmanager
    def _cast(self, inside: bool = True) -> Iterator[None]:
        """What is read in here is in an autocast, if `inside`. Whether that keeps copies of parameters, no trace says."""
        if inside:
            self.casts.append(len(self.operations))
        yield
        if inside:
            self._left_cast()

    def _left_cast(self) -> None:
        first = self.casts.pop()
        if not self.casts and first < len(self.operations):
            self.casting.append(range(first, len(self.operations)))

    def _guards(self) -> list[Any]:
        """What tracing has taken for granted of sizes."""
        mode = detect_fake_mode([n.meta.get("val") for n in self.exported.graph.nodes if n.op == "placeholder"])
        return [guard.expr for guard in mode.shape_env.guards] if mode is not None and mode.shape_env is not None else []

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
                what = f"the size {node.name}.{dimension} is computed from another one, which is not supported"
                raise UnsupportedError(what, hint="leave both out of --dynamic; a file with marks takes all sizes")
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
            if spec.kind is kinds.CUSTOM_OBJ:
                raise _custom_object(node, spec.arg)
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
        elif constant is not None and (same := self._parameter_of(constant)) is not None:
            self.elsewhere[same.path], self.of_node[node] = None, Ref(same.id)
            return
        elif constant is not None and constant.requires_grad:
            source = next(filter(None, (source_of(user) for user in node.users)), None)
            what = "a tensor that is not the model's own requires a gradient"
            hint = "make it a parameter of the model, and modules that forward makes modules of it"
            raise UnsupportedError(what, where=location(source), hint=hint)
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

    def _parameter_of(self, constant: torch.Tensor) -> Variable | None:
        """The parameter that torch.export takes for a constant, as forward reads it by a list, a dict or a variable; None where
        it is none."""
        if constant.layout is not torch.strided:
            return None

        def place(tensor: torch.Tensor) -> tuple[Any, ...]:
            return storage_key(tensor), tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype

        known = (v for v in self.variables if v.origin is Origin.PARAMETER)
        return next((v for v in known if place(self.parameters[v.path]) == place(constant)), None)

    def _variable(
        self, name: str, origin: Origin, path: str, value: torch.Tensor, grad: bool = False, aliases: tuple[str, ...] = ()
    ) -> int:
        if value.layout is not torch.strided:
            raise UnsupportedError(f"{path or name} is a sparse tensor, which is not supported", hint="use a dense one")
        shape, stride = tuple(map(hint, value.shape)), tuple(map(hint, value.stride()))
        device = str(value.device)
        new = Variable(len(self.variables), name, origin, path, shape, stride, value.dtype, device, grad, aliases)
        self.variables.append(new)
        return new.id

    def _body(self, graph_module: torch.fx.GraphModule, around: Surroundings) -> Any:
        """Reads a graph's operations, and those of the regions inside it; returns its outputs."""
        outside: list[Autocast] = []  # of casts that a recorded run is in
        for node in graph_module.graph.nodes:
            self._note_escaped(node)
            if node.op == "output":
                return tuple(self._argument(a) for a in node.args[0])
            if node.op == "get_attr":
                self.of_node[node] = getattr(graph_module, node.target)
            elif node.target is asked:
                self._asked(self._argument(node.args[0]))
            elif node.target in SWITCHES:
                around = self._switched(node, around, outside)
            elif node.op == "call_function":
                with naming_the_line(source_of(node)):
                    self._call(node, around)
                given, attached = self.of_node[node], left_by(node)
                if attached is not None and isinstance(given, Ref):
                    self.left[given.variable] = attached
        raise TraceError("the traced graph has no output")

    def _note_escaped(self, node: torch.fx.Node) -> None:
        for given in node.all_input_nodes:
            region, made = escapes(given, node), self.of_node.get(given)
            if region is not None and isinstance(made, Ref):
                self.escaped.setdefault(made.variable, region.where or "forward")

    def _asked(self, tensor: Any) -> None:
        """Notes of the operations before and after that Python asked for a value between them."""
        if isinstance(tensor, Ref):
            self.told.append(tensor.variable)
            if self.operations:
                last = self.operations[-1]
                self.operations[-1] = replace(last, asked=(*last.asked, tensor.variable))

    def _switched(self, node: torch.fx.Node, around: Surroundings, outside: list[Autocast]) -> Surroundings:
        """The modes from a call on that sets one: of recorded runs, which have no regions."""
        if node.target is SWITCHES_GRADIENTS:
            return replace(around, grad_enabled=bool(node.args[0]))
        if node.target is EXITS_AUTOCAST:
            self._left_cast()
            return replace(around, autocast=outside.pop())
        given: Any = node.args
        device, dtype, enabled, _ = given
        self.casts.append(len(self.operations))
        outside.append(around.autocast)
        return replace(around, autocast=with_autocast(around.autocast, str(device), dtype if enabled else None))

    def _call(self, node: Any, around: Surroundings) -> None:
        if node.target is operator.getitem:
            whole, index = node.args
            self.of_node[node] = self.of_node[whole][index]
            self.numbered[held_by(node)[0]] = self.numbered.get(held_by(whole)[0], -1)
        elif str(node.target) == "wrap_with_set_grad_enabled":
            inside = replace(around, grad_enabled=bool(node.args[0]))
            self.of_node[node] = self._region(node.args[1], node.args[2:], inside)
        elif str(node.target) == "wrap_with_autocast":
            device, dtype, enabled, _, body, *args = node.args
            inside = replace(around, autocast=with_autocast(around.autocast, device, dtype if enabled else None))
            with self._cast():
                self.of_node[node] = self._region(body, tuple(args), inside)
        elif isinstance(node.meta.get("val"), (torch.SymInt, torch.SymFloat, torch.SymBool)):
            self.of_node[node] = self._number(node, node.meta["val"])
        elif isinstance(node.target, OpOverload):
            self.of_node[node] = self._operation(node, around)
        elif getattr(node.target, "__module__", "") == "_operator" or node.target in (torch.sym_int, torch.sym_float):
            self.of_node[node] = node.target(*[self._argument(a) for a in node.args])
        elif is_functorch(node.target):
            raise UnsupportedError("torch.func (jvp, grad and the like) inside of forward is not supported", hint=ON_TENSORS)
        else:
            what = f"operation {getattr(node.target, '__name__', node.target)} is not supported"
            raise UnsupportedError(what, hint=ON_TENSORS)

    def _number(self, node: Any, value: Any) -> Any:
        if isinstance(value, torch.SymInt):
            return self.symbols.size(value)
        if isinstance(node.target, OpOverload):
            hint = "leave it a tensor, or compute it outside of the model"
            raise ValuesError("the model makes a number of a tensor's value, which a plan cannot follow", hint=hint)
        return combine(node.target, [self._argument(a) for a in node.args])

    def _region(self, body: torch.fx.Node, args: tuple[Any, ...], around: Surroundings) -> Any:
        graph_module = self.of_node[body]
        inner = [n for n in graph_module.graph.nodes if n.op == "placeholder"]
        for placeholder, arg in zip(inner, args, strict=True):
            self.of_node[placeholder] = self._argument(arg)
        return self._body(graph_module, around)

    def _held(self, node: torch.fx.Node) -> tuple[int, ...]:
        """The operations whose results variables hold while a node runs. An index into a result stands for its operation."""
        number, held = held_by(node)
        self.numbered[number] = len(self.operations)
        return self._operations(held)

    def _set(self, node: torch.fx.Node) -> tuple[tuple[str, int], ...]:
        """The attributes that hold results while a node runs: paths, and the operations that made these."""
        return tuple((path, op) for path, numbers in set_by(node) for op in self._operations([numbers]))

    def _operations(self, held: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
        """The operations whose results are held, by numbers of nodes."""
        known = (next((n for n in numbers if n in self.numbered), -1) for numbers in held)
        return tuple(dict.fromkeys(op for n in known if (op := self.numbered.get(n, -1)) >= 0))

    def _calls(self, node: torch.fx.Node) -> tuple[Call, ...]:
        """The frames that made a node; what their lists hold as operations."""
        found = calls_of(node)
        for call in found:
            if call.contents and call.evaluation not in self.calls:
                contents = tuple((name, self._operations(held)) for name, held in call.contents)
                self.calls[call.evaluation] = replace(call, contents=contents)
        return tuple(self.calls.get(call.evaluation, call) if call.contents else call for call in found)

    def _operation(self, node: Any, around: Surroundings) -> Any:
        value = node.meta.get("val")
        many = isinstance(value, (list, tuple))
        values = tuple(value) if many else (value,)
        names = [f"{node.name}_{i}" for i in range(len(values))] if many else [node.name]
        results = tuple(
            self._variable(name, Origin.RESULT, "", v) if isinstance(v, torch.Tensor) else None
            for name, v in zip(names, values, strict=True)
        )
        path, kind = _module(node)
        path = _without_slices(path, self.lengths)
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
                source_of(node),
                around.grad_enabled,
                around.autocast,
                regions_of(node),
                self._calls(node),
                self._held(node),
                self._set(node),
                tuple(self.told),
                self._operations(held_by_attributes(node)),
                stays_in_objects(node),
            )
        )
        self.told = []
        returned = tuple(v if r is None else Ref(r) for r, v in zip(results, values, strict=True))
        return returned if many else returned[0]

    def _argument(self, value: Any) -> Any:
        return pytree.tree_map(lambda a: self.of_node[a] if isinstance(a, torch.fx.Node) else a, _plain(value))


def _custom_object(node: torch.fx.Node, arg: Any) -> UnsupportedError:
    source = next((source_of(user) for user in node.users), None)
    where = None if source is None else location(source)
    if arg.class_fqn.endswith(".Generator"):
        hint = "draw from the default generator"
        return UnsupportedError("the model uses a torch.Generator of its own", where=where, hint=hint)
    return UnsupportedError(f"the model uses a {arg.class_fqn}, which is not supported", where=where, hint=ON_TENSORS)


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


_OF_SLICE = re.compile(r"(.*?)\.?\bslice\((\S+), (\S+), (\S+)\)\.(\d+)")


def _without_slices(path: str, lengths: Mapping[str, int]) -> str:
    """The path of a module that forward took from a part of a list: layers.3 for `layers.slice(2, None, None).1`. Where only
    the end of a path is known, the length is the one that all lists have whose paths end so."""
    while (found := _OF_SLICE.match(path)) is not None:
        known = {n for at, n in lengths.items() if at == found[1]} or {
            n for at, n in lengths.items() if at.endswith(f".{found[1]}")
        }
        if len(known) != 1:
            break
        numbers = range(*known)[slice(*(None if bound == "None" else int(bound) for bound in found.groups()[1:4]))]
        if int(found[5]) >= len(numbers):  # it is another list
            break
        number = numbers[int(found[5])]
        path = f"{found[1]}.{number}{path[found.end() :]}".lstrip(".")
    return path


_STACK_LINE = re.compile(r'File "([^"]+)", line (\d+), in ([^\n]*)\n[ \t]*([^\n]*)')


def source_of(node: torch.fx.Node) -> Source | None:
    """The user's line that a node of an exported program comes from."""
    frames = [(name, Source(f, int(n), t.strip())) for f, n, name, t in _STACK_LINE.findall(node.meta.get("stack_trace") or "")]
    own = [(name, line) for name, line in frames if not is_library(line.file)] or frames
    if not own:
        return None
    _, last = own[-1]
    forward = next((line for name, line in reversed(own) if name == "forward"), last)
    return forward if forward is last else replace(forward, called=last)
