"""Puts a generated file together: the user's classes, the block functions, the schedule, the helpers. Layout by
Jinja2, black last.

Pure: the same model, schedule and facts give the same bytes, in any process.
"""

from __future__ import annotations

import base64
import contextlib
import inspect
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from remat_codegen.emit import calls, usersource
from remat_codegen.emit.formatting import formatted
from remat_codegen.emit.guards import Guards
from remat_codegen.emit.helpers import Uses, helper_names, names_in, names_lazy_layers, needed_helpers
from remat_codegen.emit.imports import sections
from remat_codegen.emit.lines import uses
from remat_codegen.emit.names import Namer, wishes
from remat_codegen.emit.outside import OPERATIONS_OF_TORCH
from remat_codegen.emit.program import Named, Written, write_program
from remat_codegen.emit.scope import module_expression
from remat_codegen.emit.segments import divide
from remat_codegen.emit.spell import DEVICE, literal
from remat_codegen.emit.template_views import Block, Forward, Guarded, Heading, Module, Passes
from remat_codegen.emit.templates import MIB
from remat_codegen.errors import UnsupportedError
from remat_codegen.graph.simplify import Model
from remat_codegen.header.heading import Facts, title
from remat_codegen.runtime import function_of
from remat_codegen.schedule import Schedule
from remat_codegen.torch_seam import schema
from remat_codegen.trace import Origin, function_call, without_kernels

LARGEST_LITERAL = 64  # elements of a constant tensor that is written out as numbers
LARGEST_PACKED_BYTES = 2**20  # of one that is written out as packed bytes
PACKED_LINE = 96  # characters
THEIRS = "_of_the_user"  # marks a name of theirs while helpers of the same name give way
ARGUMENTS = ("m", "kept", "step", DEVICE)  # of block functions

_COOKIE = re.compile(r"[ \t\f]*#.*?coding[:=][ \t]*[-_.a-zA-Z0-9]+")  # what Python takes for a file's encoding


@dataclass(frozen=True, slots=True)
class Original:
    """What a file is generated from. `structure` is runtime.structure of the model with its settings, `objects` what the
    objects that it holds have by name, by path, `source` the text of its own file, if its class stands in one. `hooked` has
    the number of hooks of each module that has any, `defaults` what runtime.told said of those of forward before it ran.
    """

    target: str
    class_name: str
    forward: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    structure: Mapping[str, str]
    objects: Mapping[str, Mapping[str, str]]
    source: str | None = None
    hooked: Mapping[str, int] = field(default_factory=dict)
    defaults: Mapping[str, str] = field(default_factory=dict)


def render(original: Original, model: Model, schedule: Schedule, facts: Facts) -> str:
    """The generated file. Raises UnsupportedError, naming the user's line, for what cannot be written."""
    return _Renderer(original, model, schedule, facts).render()


class _Renderer:
    def __init__(self, original: Original, model: Model, schedule: Schedule, facts: Facts) -> None:
        self.original, self.model, self.schedule, self.facts = original, model, schedule, facts
        self.trace = model.trace
        self.source = "" if calls_operations_of_others(model) else original.source or ""
        self.carries = usersource.carry(self.source, original.class_name, "pass") is not None
        self.parameters = self._parameters()
        bound = "given" if self.parameters is None else None
        self.arguments = calls.arguments(self.trace, original.forward, original.args, original.kwargs, bound)
        self.told = calls.told(original.forward, original.args, original.kwargs, original.defaults, bound)
        paths = [(path, module_expression("self", path, self.trace.containers), v) for path, v in self.trace.state]
        self.state = [calls.Argument(path.rpartition(".")[2], expression, v, None) for path, expression, v in paths]
        peaks = facts.plan.unmodified_peak_bytes, facts.plan.budget_bytes
        self.guards = Guards(model, self.arguments, original.structure, original.objects, facts.growth, *peaks, facts.smaller)
        self.constants: dict[str, str] = {}

    def render(self) -> str:
        carried = None if not self.carries else usersource.carry(self.source, self.original.class_name, "pass")
        self.taken = carried.names if carried is not None else frozenset()
        self.clashes = self.taken & (helper_names() | {"run_forward", "run_backward"})
        namer = Namer()
        namer.taken |= self.taken | helper_names() | {"rematerialize", "run_forward", "run_backward", self.original.class_name}
        given = self._given()
        program = divide(self.model.graph, self.schedule)
        written = write_program(program, self.model, wishes(self.trace), namer, given, self._function_class)
        text = self._module(written, given).text()
        if any(_COOKIE.match(line) for line in text.split("\n", 2)[:2]):
            text = f"# -*- coding: utf-8 -*-\n{text}"
        return formatted(text).replace('\n"""', '\n# fmt: off\n"""', 1)  # a project's own settings would fold its lines

    def _parameters(self) -> str | None:
        """The parameter list of the new forward; None where it takes whatever the original takes."""
        return usersource.parameters_of(self.source, self.original.class_name) if self.carries else None

    def _plain(self) -> str:
        """The forward whose parameters the new one takes."""
        return "self.plain_forward" if self.carries else "self.original.forward"

    # ------------------------------------------------------------------ names of what is given

    def _given(self) -> dict[int, str]:
        """Names in run_forward for inputs and constants."""
        namer = Namer()
        given = {}
        for argument in (*self.arguments, *self.state):
            if argument.variable is not None:
                given[argument.variable] = namer.fresh(re.sub(r"\W+", "_", argument.name).strip("_"))
        for size in self.trace.sizes:
            given[size.variable] = namer.fresh(self.trace.variables[size.variable].path)
        for variable, tensor in self.trace.constants:
            name = f"CONSTANT_{len(self.constants)}"
            self.constants[name] = self._constant(variable, tensor)
            on_host = self.trace.variables[variable].device == "cpu"
            given[variable] = name if on_host else f"there({name}, {DEVICE})"
        return given

    def _constant(self, variable: int, tensor: Any) -> str:
        if tensor.nbytes > LARGEST_PACKED_BYTES:
            name = self.trace.variables[variable].path
            raise UnsupportedError(
                f"the tensor {name} is neither a parameter nor a buffer, and too large to be written into a file",
                hint="register it with register_buffer(persistent=False)",
            )
        if tensor.numel() > LARGEST_LITERAL:
            text = ", ".join(repr(line) for line in packed(tensor))
            return f"unpacked({tuple(tensor.shape)}, {tensor.dtype}, 'cpu', {text})"
        values = literal(tensor.tolist(), str)
        text = f"torch.tensor({values}, dtype={tensor.dtype}, device='cpu')"
        return text if tensor.numel() else f"{text}.reshape({tuple(tensor.shape)})"

    # ------------------------------------------------------------------ the parts

    def _module(self, written: Written, given: dict[int, str]) -> Module:
        """The file: where helpers have names of the user's, those give way. What is guarded is literals, without names."""
        passes, functions = self._passes(written, given), "\n\n\n".join(self._function(named) for named in written.functions)
        guarded = self.guards.guarded(given)
        forward, schedule = self._forward(written, guarded).text(), passes.text()
        helpers = self._helpers(forward, [functions, schedule, *self.constants.values()])
        others = {name: next(n for k in range(1, 99) if (n := name + "_" * k) not in self.taken) for name in self.clashes}
        others |= {f"{name}{THEIRS}": name for name in self.clashes}
        texts = (forward, functions, schedule, helpers)
        forward, functions, schedule, helpers = (usersource.rename_names(text, others) for text in texts)
        class_name, target = _identifier(self.original.class_name), on_one_line(self.original.target)
        carried = usersource.carry(self.source, self.original.class_name, forward) if self.carries else None
        first = title(self.facts.version, target, self.facts.source_digest, self.model.graph.digest())
        return Module(
            heading=Heading(first, self.facts, self._described(), "explain" if self.facts.needs else "check and update").text(),
            target=target,
            class_name=class_name,
            facts=self.facts,
            carried=carried,
            imports=self._imports("\n".join([functions, schedule, helpers]), carried),
            new_forward=forward,
            guarded=guarded,
            arguments=", ".join(f"{t.name!r}: {t.text!r}" for t in self.told),
            defaulted=any(t.is_default for t in self.told),
            functions=functions,
            schedule=schedule,
            helpers=helpers,
            constants={name: usersource.rename_names(text, others) for name, text in self.constants.items()},
        )

    def _passes(self, written: Written, given: dict[int, str]) -> Passes:
        result = calls.result(self.trace, lambda v: self._output(v, written, given), self._class)
        result = ", ".join([result, *(self._output(v, written, given) for v in self._beside_result())])
        inputs = [given[a.variable] for a in self._used() if a.variable is not None]
        return Passes(
            head=", ".join(["m", *(["step"] if _uses_step(written) else []), *inputs]),
            forward=[*self._found(given, [*written.forward, result]), *_with_return(written.forward, result)],
            backward=[*self._found(given, written.backward), *written.backward],
            alive=f"{written.alive_bytes / MIB:,.1f} MiB",
        )

    def _used(self) -> list[calls.Argument]:
        """The arguments and buffers that are tensors."""
        return [a for a in (*self.arguments, *self.state) if a.variable is not None]

    def _forward(self, written: Written, guarded: Guarded) -> Forward:
        rematerializes = bool(written.backward)
        expressions, theirs = {a.expression for a in self.arguments}, {a.name for a in self.arguments}
        names = {n: n if n not in theirs else f"remat_{n}" for n in ("result", "decided")}
        names |= {n: n if n not in expressions else f"remat_{n}" for n in ("step", "fitting")}
        return Forward(
            parameters=self.parameters or "self, *args, **kwargs",
            passed_on=calls.passed_on(self.original.forward) if self.parameters else "*args, **kwargs",
            plain="self.plain_forward" if self.carries else "self.original",
            given=", ".join(f"{a.name!r}: {a.expression}" for a in self.arguments),
            told=", ".join(f"{t.name!r}: {t.expression}" for t in self.told),
            defaulted=repr(defaulted) if (defaulted := tuple(t.name for t in self.told if t.is_default)) else "",
            binds=None if self.parameters else self._plain(),
            without_cache=any(a.name == "use_cache" and a.value is False for a in self.arguments),
            lazy=self.carries and names_lazy_layers(self.source),
            guarded=guarded,
            hooked=repr(dict(self.original.hooked)),
            rematerializes=rematerializes,
            uses_step=_uses_step(written),
            uncached=rematerializes and bool(self.trace.autocast) and not self.model.record.shared_cast_bytes,
            inputs=[a.expression for a in self._used()],
            assigned=[a.expression for a in self.state],
            decisions=list(self.trace.decisions),
            names=names,
        )

    def _helpers(self, forward: str, code: Sequence[str]) -> str:
        """The helpers that the new forward and all other code call."""
        called, own = Uses.of("\n\n".join(code)), Uses.of(forward)
        names = called.names | (own.names - {a.name for a in self.arguments})
        names |= {"defaulted_as"} if self.carries and any(t.is_default for t in self.told) else set()
        return "\n\n".join(needed_helpers(Uses(names, called.attributes | own.attributes | {"forward"})))

    def _function(self, named: Named) -> str:
        function = named.function
        own = [name for name, used in (("kept", function.uses_kept), (DEVICE, function.uses_device)) if used]
        arguments = ["m", *own, *function.argument_names]
        return Block(named.name, ", ".join(arguments), self._about(named), function.lines).text()

    def _about(self, named: Named) -> str:
        return f"{_in_docstring(named.about)}."

    def _class(self, kind: type) -> str:
        """How a generated file reaches a class of the user's: by its name, or where the maker of the original imported it."""
        root, *rest = kind.__qualname__.split(".")
        if self.carries and root in ARGUMENTS:
            what = f"the class {root} has a name that generated code uses"
            raise UnsupportedError(what, where=_line_of(kind), hint="rename it")
        if self.carries and root in self.taken:
            return ".".join([f"{root}{THEIRS}" if root in self.clashes else root, *rest])
        if kind.__module__ == "collections":
            return f"__import__('collections').{kind.__name__}"
        return f"known_class({kind.__module__!r}, {kind.__qualname__!r})"

    def _function_class(self, kind: type, path: str, caller: str) -> str:
        """How it reaches an autograd.Function that the code of the module at `path` calls; `caller` is the expression for that.

        A file's own name says little: it may be imported under another, or run as a script. Its classes know where they stand.
        """
        if self.carries and kind.__qualname__.partition(".")[0] in self.taken:
            return self._class(kind)
        model: Any = getattr(self.original.forward, "__self__", None)
        caller = caller if path or self.carries else f"{caller}.original"
        with contextlib.suppress(AttributeError):
            if function_of(model.get_submodule(path), kind.__qualname__) is kind:
                return f"function_of({caller}, {kind.__qualname__!r})"
        return self._class(kind)

    def _output(self, variable: int, written: Written, given: dict[int, str]) -> str:
        found = self.trace.variables[variable]
        if found.origin in (Origin.PARAMETER, Origin.BUFFER):
            return module_expression("m", found.path, self.trace.containers)
        return written.outputs.get(variable) or given[variable]

    def _found(self, given: dict[int, str], lines: Sequence[str]) -> list[str]:
        """The lines that take the sizes and the device which `lines` mention from what the step is given."""
        used = [s for s in self.trace.sizes if any(uses(given[s.variable], line) for line in lines)]
        sizes = [f"{given[s.variable]} = {given[s.source]}.shape[{s.dimension}]" for s in used]
        return [*sizes, *([f"{DEVICE} = {self._live(given)}.device"] if any(uses(DEVICE, line) for line in lines) else [])]

    def _live(self, given: dict[int, str]) -> str:
        """A tensor of the step that lies on its accelerator."""
        held = [v for v in self.trace.variables if v.origin is not Origin.RESULT and v.device == self.trace.accelerator]
        ranks = (Origin.INPUT, Origin.PARAMETER, Origin.BUFFER)
        first = next((v for origin in ranks for v in held if v.origin is origin), None)
        if first is None:
            raise UnsupportedError(
                f"neither an input nor a parameter is on {self.trace.accelerator}, so a file cannot tell where to compute",
                hint="register a tensor of that device with register_buffer()",
            )
        named = first.origin is Origin.INPUT
        return given[first.id] if named else module_expression("m", first.path, self.trace.containers)

    def _beside_result(self) -> list[int]:
        """The variables that buffers are at the end, in the order of `state`, and those that decide something."""
        outputs = self.trace.outputs
        return [o.variable for o in outputs[len(outputs) - len(self.state) - len(self.trace.decisions) :]]

    def _described(self) -> str:
        parts = []
        for argument in self.arguments:
            if argument.variable is not None:
                v = self.trace.variables[argument.variable]
                parts.append(f"{argument.name}: {str(v.dtype).removeprefix('torch.')}{list(v.shape)}")
        names = [f"{self.trace.variables[s.source].path}.{s.dimension}" for s in self.trace.sizes]
        free = f" ({', '.join(names)} may differ)" if names else ""
        return (on_one_line(", ".join(parts)) or "no inputs") + free

    def _imports(self, code: str, carried: usersource.Carried | None) -> list[list[str]]:
        used = names_in(code)
        standard = "base64 contextlib functools inspect math re sys types warnings weakref zlib".split()
        lines = [f"import {m}" for m in standard if m in used]
        lines += ["import torch"] if carried is not None else ["import torch", "from torch import nn"]
        lines += ["import inspect"] if self.parameters is None and "inspect" not in used else []
        lines += ["import torch.nn.functional as F"] if "F" in used else []
        return sections([*lines, *(carried.imports if carried is not None else ())])


def _uses_step(written: Written) -> bool:
    """Whether the forward pass needs a step: something runs again, or is held by name until the backward pass."""
    return bool(written.backward) or any("step[" in line for line in written.forward)


def _with_return(lines: Sequence[str], result: str) -> list[str]:
    """Statements that end with a `return` of `result`: of the last call itself where that makes it."""
    *rest, last = lines or ("",)
    if result.isidentifier() and last.startswith(f"{result} = "):
        return [*rest, f"return {last.removeprefix(f'{result} = ')}"]
    return [*lines, f"return {result}"]


def packed(tensor: torch.Tensor) -> list[str]:
    """A tensor's bytes as lines of text, for runtime.unpacked."""
    raw = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    text = base64.b64encode(zlib.compress(raw, 9)).decode()
    return [text[i : i + PACKED_LINE] for i in range(0, len(text), PACKED_LINE)]


def on_one_line(text: str) -> str:
    """Text for a comment: what would end its line, or cannot be printed, is escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def calls_operations_of_others(model: Model) -> bool:
    """Whether a model calls operations that something else than PyTorch defines: the original brings them, and only it may."""
    targets = [without_kernels(op.target) for op in model.trace.operations if function_call(op.target) is None]
    return any(schema(t).name.partition("::")[0] not in OPERATIONS_OF_TORCH for t in targets)


def _line_of(kind: type) -> str | None:
    """Where a class of the user's begins, as far as there is a file."""
    with contextlib.suppress(OSError, TypeError):
        return f"{Path(inspect.getfile(kind)).name}:{inspect.getsourcelines(kind)[1]}"
    return None


def _in_docstring(text: str) -> str:
    return on_one_line(text).replace("\\", "\\\\").replace('"', "'")


def _identifier(name: str) -> str:
    """A class's name, which may be any string, as one that can stand in code."""
    return name if name.isidentifier() else re.sub(r"^(?=\d)", "_", re.sub(r"[^0-9A-Za-z_]", "_", name) or "_")
