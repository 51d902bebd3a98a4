"""What a generated file checks before each step: that it is called as it was planned for. Texts of its constants and calls."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from remat_codegen import runtime
from remat_codegen.emit.calls import Argument
from remat_codegen.emit.lines import COLUMNS
from remat_codegen.emit.scope import has_training_flag
from remat_codegen.emit.spell import literal
from remat_codegen.emit.template_views import Guarded
from remat_codegen.graph.simplify import Model
from remat_codegen.trace import Origin, Trace, Variable
from remat_codegen.trace.sizes import Asked, Dynamic

PLAIN_MARGIN = 1.25  # what the original forward needs at other sizes is known without workspaces


@dataclass(frozen=True)
class Guards:
    """The checks of a file for `model`, called with `arguments`. `found` is runtime.structure of it, `objects`
    are those of the objects that it holds, by path; `growth` is the power of each size that may change, by variable, that the
    peak grows with; `smaller` are sizes, each with the most at which the original forward is within the budget."""

    model: Model
    arguments: Sequence[Argument]
    found: Mapping[str, str]
    objects: Mapping[str, Mapping[str, str]]
    growth: Mapping[int, float]
    unmodified_peak_bytes: int
    budget_bytes: int
    smaller: Sequence[tuple[Asked, int]] = ()

    @property
    def trace(self) -> Trace:
        """The trace of the model."""
        return self.model.trace

    def guarded(self, given: dict[int, str]) -> Guarded:
        """The constants and checks of a file. `given` are names of inputs and sizes, by variable."""
        return Guarded(
            expected=self._expected(),
            structure=self._structure(),
            autocast=self._autocast(),
            frozen=self._frozen(),
            objects=self._objects(),
            modes=self._modes(),
            sizes=self._sizes(given),
            plain_at_one=self._plain_sizes(given),
            smaller=self._smaller(),
            layouts=self._layouts(),
            dtypes=self._dtypes(),
        )

    def _expected(self) -> str:
        """What each argument has to be: (shape, dtype, requires_grad) of a tensor, or a value."""
        rows = []
        for argument in self.arguments:
            if argument.variable is None:
                text = literal(argument.value, str)
            else:
                v = self.trace.variables[argument.variable]
                text = f"({self._shape(v)!r}, {v.dtype}, {v.requires_grad})"
            rows.append(f"{argument.name!r}: {text}")
        return "{" + ", ".join(rows) + "}"

    def _structure(self) -> str:
        """What runtime.structure has to find, in words, as black does not part them."""
        rows: dict[str, list[str]] = {}
        for path, text in united(self.found).items():
            rows.setdefault(text, []).append(path)
        texts = [f"{' '.join(paths)}: {text.replace(' ', chr(0)).replace(f',{chr(0)}', ', ')}" for text, paths in rows.items()]
        lines = textwrap.wrap("; ".join(texts), COLUMNS - 12, break_long_words=False, break_on_hyphens=False)
        return "(" + " ".join(repr((line + " " * (line is not lines[-1])).replace("\0", " ")) for line in lines) + ")"

    def _objects(self) -> str:
        """What runtime.check_objects has to find: paths of the same settings in one row."""
        rows: dict[str, list[str]] = {}
        texts = {path: repr(settings) for path, settings in self.objects.items()}
        for path, text in united(texts, self._of_all_parts).items():
            rows.setdefault(text, []).append(path)
        return "{" + ", ".join(f"{' '.join(paths)!r}: {text}" for text, paths in rows.items()) + "}" if rows else ""

    def _of_all_parts(self, path: str) -> str:
        """h.*.config for h.0.config, if all parts of h have one: runtime.held_at looks at all of them."""
        pattern = _starred(path)
        parts = pattern.split(".")
        count = len(parts) - parts[::-1].index("*") if "*" in parts else 0
        alike = [q for q in self.found if q != "." and _fits(q.split("."), parts[:count])]
        whole = [".".join((q, *parts[count:])) for q in alike]
        return pattern if all(p in self.objects and _starred(p) == pattern for p in whole) else path

    def _shape(self, variable: Variable) -> tuple[int | str, ...]:
        """A shape in which sizes that may change are names."""
        return variable.shape if variable.sizes is None else tuple(variable.sizes)

    def _sizes(self, given: dict[int, str]) -> list[str]:
        """For each size that may change: its least, the planned, its most, and the power of it that the peak grows with."""
        rows = []
        for size in self.trace.sizes:
            least = 1 if self._plain_at_one(size) else size.least
            known = (least, size.planned, size.most, self.growth[size.variable])
            rows.append(f"{given[size.variable]!r}: {known},")
        return rows

    def _plain_at_one(self, size: Dynamic) -> bool:
        """Whether the original forward is within the budget at size 1, where the plan does not hold."""
        share = size.share_at_one
        return share is not None and self.unmodified_peak_bytes * share * PLAIN_MARGIN <= self.budget_bytes

    def _plain_sizes(self, given: dict[int, str]) -> str:
        """The names of sizes at whose size 1 the original forward runs."""
        names = [given[s.variable] for s in self.trace.sizes if self._plain_at_one(s)]
        return "{" + ", ".join(repr(n) for n in names) + "}" if names else ""

    def _smaller(self) -> str:
        """For each such size the most that the dimensions of inputs may be."""
        rows = [{a.name: {d: most for t, d in sizes if t is a.value} for a in self.arguments} for sizes, most in self.smaller]
        texts = [repr({name: limits for name, limits in row.items() if limits}) for row in rows]
        return f"[{', '.join(texts)}]" if texts else ""

    def _modes(self) -> dict[str, bool]:
        """By module: the mode it has to be in, where its operations are those of one mode only."""
        normalising = {op.module_path for op in self.trace.operations if op.base == "batch_norm" and has_training_flag(op)}
        evaluating = self.trace.modules.evaluating
        asked = self.trace.modules.modes - normalising - {""}
        modes = {path: path not in evaluating for path in sorted(asked)}
        for operation in self.trace.operations:
            path = operation.module_path
            fixed = self.model.record.operations[operation.id].random and not has_training_flag(operation)
            if path and (path in evaluating or fixed):
                modes[path] = path not in evaluating
        return modes

    def _dtypes(self) -> str:
        """The types of the parameters, where forward mentions types."""
        dtypes = self.trace.modules.dtypes
        return "{" + ", ".join(sorted(map(str, dtypes))) + "}" if dtypes else ""

    def _layouts(self) -> str:
        """The inputs that may be in channels_last, and which of them were, or the parameters; empty where there are none."""
        images = [a for a in self.arguments if a.variable is not None and _is_image(self.trace.variables[a.variable])]
        weights = [v for v in self.trace.variables if v.origin is Origin.PARAMETER and _is_image(v)]
        if not images and not weights:
            return ""
        last = {a.name for a in images if a.variable is not None and is_channels_last(self.trace.variables[a.variable])}
        last |= {"parameters"} if any(map(is_channels_last, weights)) else set()
        return f"{{{', '.join(f'{a.name!r}: {a.expression}' for a in images)}}}, {tuple(sorted(last))!r}"

    def _frozen(self) -> str:
        """The parameters that are not trained."""
        frozen = [v for v in self.trace.variables if v.origin is Origin.PARAMETER and not v.requires_grad]
        paths = [name for v in frozen for name in (v.path, *v.aliases)]
        return "{" + ", ".join(repr(p) for p in sorted(paths)) + "}" if paths else ""

    def _autocast(self) -> str:
        """For each device type in use, what autocast has to cast to when the model is called; None for not at all."""
        types = {torch.device(v.device).type for v in self.trace.results()} | {device for device, _ in self.trace.autocast}
        rows = [f"{t!r}: {dict(self.trace.autocast).get(t)}" for t in sorted(types & {"cpu", "cuda"})]
        return "{" + ", ".join(rows) + "}"


def _starred(path: str) -> str:
    return ".".join("*" if part.isdigit() else part for part in path.split("."))


def united(texts: Mapping[str, str], pattern: Callable[[str], str] = _starred) -> dict[str, str]:
    """Texts by path, with those of all layers in one row, `h.*`, where they are alike."""
    alike: dict[str, set[str]] = {}
    for path, text in texts.items():
        alike.setdefault(pattern(path), set()).add(text)
    return {(pattern(p) if len(alike[pattern(p)]) == 1 else p): text for p, text in texts.items()}


def _fits(path: Sequence[str], pattern: Sequence[str]) -> bool:
    return len(path) == len(pattern) and all(p in ("*", name) for name, p in zip(path, pattern, strict=True))


def _is_image(variable: Variable) -> bool:
    return len(variable.shape) in (4, 5) and variable.dtype.is_floating_point


def is_channels_last(variable: Variable) -> bool:
    """Whether a tensor with channels in its second dimension has them next to each other, and not its last dimension."""
    tensor = torch.empty_strided(variable.shape, variable.stride, dtype=variable.dtype, device="meta")
    return not tensor.is_contiguous() and runtime.is_channels_last(tensor)
