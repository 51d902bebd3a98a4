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
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import black
import jinja2
import torch

from remat_codegen.emit import calls, usersource
from remat_codegen.emit.guards import Guards
from remat_codegen.emit.helpers import Uses, helper_names, names_in, needed_helpers
from remat_codegen.emit.imports import sections
from remat_codegen.emit.lines import COLUMNS, uses
from remat_codegen.emit.names import Namer, wishes
from remat_codegen.emit.outside import OPERATIONS_OF_TORCH
from remat_codegen.emit.program import Named, Written, write_program
from remat_codegen.emit.scope import module_expression
from remat_codegen.emit.segments import divide
from remat_codegen.emit.spell import DEVICE, literal
from remat_codegen.errors import UnsupportedError
from remat_codegen.graph.simplify import Model
from remat_codegen.runtime import function_of
from remat_codegen.schedule import Schedule
from remat_codegen.torch_seam import schema
from remat_codegen.trace import Origin, function_call, without_kernels
from remat_codegen.trace.sizes import Asked

MODE = black.Mode(target_versions={black.TargetVersion.PY311}, line_length=COLUMNS)
LARGEST_LITERAL = 64  # elements of a constant tensor that is written out as numbers
LARGEST_PACKED_BYTES = 2**20  # of one that is written out as packed bytes
PACKED_LINE = 96  # characters
MIB = 2**20
THEIRS = "_of_the_user"  # marks a name of theirs while helpers of the same name give way
ARGUMENTS = ("m", "kept", "step", DEVICE)  # of block functions

_COOKIE = re.compile(r"[ \t\f]*#.*?coding[:=][ \t]*[-_.a-zA-Z0-9]+")  # what Python takes for a file's encoding


@dataclass(frozen=True, slots=True)
class Original:
    """What a file is generated from. `structure` is runtime.structure of the model with its settings, `objects` what the
    objects that it holds have by name, by path, `source` the text of its own file, if its class stands in one. `hooked` has
    the number of hooks of each module that has any.
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


@dataclass(frozen=True, slots=True)
class Figures:
    """What a plan takes; `overhead` and `bound` are ratios over the step without recomputation, 0.12 for 12 %. `batch` is the
    size that it is for, where a file has several."""

    budget_bytes: int
    planned_peak_bytes: int
    unmodified_peak_bytes: int
    overhead: float
    bound: float | None = None
    batch: int | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """What the header says. `overhead` and `bound` are ratios over the step without recomputation, 0.12 for 12 %.

    `growth` is the power of each size that may change, by variable, that the peak grows with.
    `as_written` is what the model takes with checkpoints of its own, where it has some. `answer` says what the budget is
    the answer to, where it was found, `recorded` what depends on values. `needs` is what the command cannot make by itself, in
    words.
    `others` are the plans for larger budgets, or for smaller batch sizes, where the file has several. `plan_lines` are the
    comment lines that hold the plan (planline.py). `loss` says what the step goes back from, where that is not the usual.
    `smaller` are sizes of inputs, each with the most at which the original forward is within the budget.
    """

    version: str
    command: str
    source_digest: str
    planner: str
    device: str
    budget_bytes: int
    planned_peak_bytes: int
    unmodified_peak_bytes: int
    overhead: float
    bound: float | None = None
    plan_lines: tuple[str, ...] = ()
    growth: Mapping[int, float] = field(default_factory=dict)
    as_written: str = ""
    needs: str = ""
    answer: tuple[str, ...] = ()
    recorded: tuple[str, ...] = ()
    batch: int | None = None
    others: tuple[Figures, ...] = ()
    loss: str = ""
    smaller: tuple[tuple[Asked, int], ...] = ()


def render(original: Original, model: Model, schedule: Schedule, facts: Facts) -> str:
    """The generated file. Raises UnsupportedError, naming the user's line, for what cannot be written."""
    return _Renderer(original, model, schedule, facts).render()


def templates(escapes: bool = False) -> jinja2.Environment:
    """The layouts of what is written; `escapes` for HTML."""
    here = Path(__file__).resolve().parent.parent
    folders = [here / "templates", here.parent / "templates"]
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(folders),
        autoescape=escapes,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


class _Renderer:
    def __init__(self, original: Original, model: Model, schedule: Schedule, facts: Facts) -> None:
        self.original, self.model, self.schedule, self.facts = original, model, schedule, facts
        self.trace = model.trace
        self.environment = templates()
        self.source = "" if calls_operations_of_others(model) else original.source or ""
        self.carries = usersource.carry(self.source, original.class_name, "pass") is not None
        self.parameters = self._parameters()
        bound = "given" if self.parameters is None else None
        self.arguments = calls.arguments(self.trace, original.forward, original.args, original.kwargs, bound)
        paths = [(path, module_expression("self", path, self.trace.containers), v) for path, v in self.trace.state]
        self.state = [calls.Argument(path.rpartition(".")[2], expression, v, None) for path, expression, v in paths]
        peaks = facts.unmodified_peak_bytes, facts.budget_bytes
        self.guards = Guards(model, self.arguments, original.structure, original.objects, facts.growth, *peaks, facts.smaller)
        self.constants: dict[str, str] = {}

    def render(self) -> str:
        carried = None if not self.carries else usersource.carry(self.source, self.original.class_name, "pass")
        self.taken = taken = carried.names if carried is not None else frozenset()
        self.clashes = taken & (helper_names() | {"run_forward", "run_backward"})
        namer = Namer()
        namer.taken |= taken | helper_names() | {"rematerialize", "run_forward", "run_backward", self.original.class_name}
        given = self._given()
        program = divide(self.model.graph, self.schedule)
        written = write_program(program, self.model, wishes(self.trace), namer, given, self._function_class)
        parts = self._parts(written, given)
        others = {name: next(n for k in range(1, 99) if (n := name + "_" * k) not in taken) for name in self.clashes}
        others |= {f"{name}{THEIRS}": name for name in self.clashes}
        parts = {k: usersource.rename_names(text, others) if isinstance(text, str) else text for k, text in parts.items()}
        if carried is not None:
            carried = usersource.carry(self.source, self.original.class_name, parts["new_forward"])
        text = self.environment.get_template("module.py.jinja").render(
            facts=self.facts,
            original=replace(
                self.original, target=on_one_line(self.original.target), class_name=_identifier(self.original.class_name)
            ),
            graph_digest=self.model.graph.digest(),
            described=self._described(),
            carried=carried,
            mib=lambda n: f"{n / MIB:,.1f} MiB",
            imports=self._imports(parts, carried),
            constants=self.constants,
            **parts,
        )
        if any(_COOKIE.match(line) for line in text.split("\n", 2)[:2]):
            text = f"# -*- coding: utf-8 -*-\n{text}"
        formatted = black.format_str(text, mode=MODE)
        return formatted.replace('\n"""', '\n# fmt: off\n"""', 1)  # a project's own settings would fold its lines

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

    def _parts(self, written: Written, given: dict[int, str]) -> dict[str, Any]:
        rematerializes = bool(written.backward)
        used = [a for a in (*self.arguments, *self.state) if a.variable is not None]
        inputs = [given[a.variable] for a in used if a.variable is not None]
        functions = "\n\n\n".join(self._function(named) for named in written.functions)
        uses_step = rematerializes or any("step[" in line for line in written.forward)
        head = ["m", *(["step"] if uses_step else []), *inputs]
        result = calls.result(self.trace, lambda v: self._output(v, written, given), self._class)
        result = ", ".join([result, *(self._output(v, written, given) for v in self._beside_result())])
        schedule = self.environment.get_template("schedule.py.jinja").render(
            head=", ".join(head),
            forward=[*self._found(given, [*written.forward, result]), *_with_return(written.forward, result)],
            backward=[*self._found(given, written.backward), *written.backward],
            alive=f"{written.alive_bytes / MIB:,.1f} MiB",
        )
        expressions = [a.expression for a in used]
        layouts, dtypes = self.guards.layouts(), self.guards.dtypes()
        uncached = rematerializes and bool(self.trace.autocast) and not self.model.record.shared_cast_bytes
        parts: dict[str, Any] = {"functions": functions, "schedule": schedule, "result": result}
        parts["new_forward"] = self.environment.get_template("forward.py.jinja").render(
            parameters=self.parameters or "self, *args, **kwargs",
            passed_on=calls.passed_on(self.original.forward) if self.parameters else "*args, **kwargs",
            plain="self.plain_forward" if self.carries else "self.original",
            rematerializes=rematerializes,
            step="step" if "step" not in {a.expression for a in self.arguments} else "remat_step",
            inputs=expressions,
            uses_step=uses_step,
            uncached=uncached,
            dynamic=bool(self.trace.sizes),
            smaller=bool(self.guards.smaller),
            fitting="fitting" if "fitting" not in {a.expression for a in self.arguments} else "remat_fitting",
            plain_at_one=any(self.guards.plain_at_one(s) for s in self.trace.sizes),
            hooked=repr(dict(self.original.hooked)),
            modes=self.guards.modes(),
            objects=self.trace.modules.objects,
            frozen=self.guards.frozen(),
            layouts=layouts,
            dtypes=dtypes,
            assigned=[a.expression for a in self.state],
            decisions=list(self.trace.decisions),
            names={n: n if n not in {a.name for a in self.arguments} else f"remat_{n}" for n in ("result", "decided")},
            given=", ".join(f"{a.name!r}: {a.expression}" for a in self.arguments),
            binds=None if self.parameters else self._plain(),
            without_cache=any(a.name == "use_cache" and a.value is False for a in self.arguments),
        )
        parts |= self.guards.constants(given)
        given_names = (
            {"check_call", "tell_hooks"} | ({"Step"} if uses_step else set()) | ({"uncached_casts"} if uncached else set())
        )
        given_names |= {"with_sizes"} if parts["sizes"] else set()
        checks = {"check_layouts": layouts, "check_dtypes": dtypes, "check_modes": parts["modes"]}
        checks["check_objects"] = parts["objects"]
        given_names |= {name for name, text in checks.items() if text}
        given_names |= {"check_decisions"} if self.trace.decisions else set()
        given_names |= {"is_one"} if parts["plain_at_one"] else set()
        given_names |= {"smaller_call"} if parts["smaller"] else set()
        called = Uses.of("\n\n".join([functions, schedule, *self.constants.values()]))
        helpers = needed_helpers(Uses(called.names | given_names, called.attributes | {"forward"}))
        parts["helpers"] = "\n\n".join(helpers)
        return parts

    def _function(self, named: Named) -> str:
        function = named.function
        own = [name for name, used in (("kept", function.uses_kept), (DEVICE, function.uses_device)) if used]
        arguments = ["m", *own, *function.argument_names]
        return self.environment.get_template("block.py.jinja").render(
            name=named.name, arguments=", ".join(arguments), about=self._about(named), lines=function.lines
        )

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

    def _imports(self, parts: dict[str, Any], carried: usersource.Carried | None) -> list[list[str]]:
        used = names_in("\n".join([parts["functions"], parts["schedule"], parts["helpers"]]))
        standard = "base64 contextlib functools math re sys types warnings weakref zlib".split()
        lines = [f"import {m}" for m in standard if m in used]
        lines += ["import torch"] if carried is not None else ["import torch", "from torch import nn"]
        lines += ["import inspect"] if self.parameters is None else []
        lines += ["import torch.nn.functional as F"] if "F" in used else []
        return sections([*lines, *(carried.imports if carried is not None else ())])


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
