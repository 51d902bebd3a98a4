"""The life of a generated file in a repository: is it still what its model and this generator would give (`check`), and
making it again from its own header (`update`).

Both read the file's first comment lines: the command that made it, and its plan (header/). Neither needs anything else but
the model; `check` neither measures nor solves.
"""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from remat_codegen import __version__
from remat_codegen.ask.budget import format_bytes
from remat_codegen.ask.request import Request
from remat_codegen.ask.target import read_source, split_spec
from remat_codegen.errors import PlanFileError, RematError, TargetError, UnsupportedError, VerifyError
from remat_codegen.files import check_writable, write_atomically
from remat_codegen.header import saved_plan
from remat_codegen.header.command import LINE_BACK, call_in
from remat_codegen.header.heading import Header, by_version, read_header
from remat_codegen.header.saved_plan import SavedPlan
from remat_codegen.header.seal import seal
from remat_codegen.marked.evaluations import Vertex
from remat_codegen.marked.steady import Before
from remat_codegen.run import marked, marked_text, pipeline
from remat_codegen.run.planning import make_plan
from remat_codegen.run.priced import capability_of, measured_costs
from remat_codegen.run.smaller import with_smaller
from remat_codegen.run.traced import Traced, trace_target
from remat_codegen.schedule import simulate, with_forgets, without_recomputation
from remat_codegen.show.results import Progress, percent

LONGEST_DIFF = 40  # lines
NEWER = "`update` writes it anew, `check --strict` shows how"
ANOTHER_WAY = "by other values, the model takes another way than its plan is for: only its source was compared, not its table"
NEAR = 4 / 3  # by how many times a budget may change for the marks to stay that were used until then
EARLIER = "; found for an earlier plan of this file"


@dataclass(frozen=True, slots=True)
class Finding:
    """What `check` found: reasons why a file is out of date (none where it is not), a diff, and what could not be checked.
    `unmakeable`: its model is gone, or cannot be traced any more, so that `update` would not help.
    """

    file: Path
    reasons: tuple[str, ...] = ()
    diff: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    unmakeable: bool = False

    @property
    def ok(self) -> bool:
        """Whether the file is what its model and this generator give."""
        return not self.reasons

    def lines(self) -> list[str]:
        """What to print."""
        verdict = [f"{self.file}: {reason}" for reason in self.reasons] or [f"{self.file}: up to date"]
        return [*verdict, *(f"{self.file}: note: {note}" for note in self.notes), *self.diff]

    def to_json(self) -> dict[str, Any]:
        """The object that `--json` prints."""
        rows = {"reasons": list(self.reasons), "diff": list(self.diff), "notes": list(self.notes)}
        return {"file": str(self.file), "ok": self.ok, **rows}


@dataclass(frozen=True, slots=True)
class Updated:
    """What `update` did to a file. `planned` says whether a new plan was made, `off` how far an estimate was off that it was
    made instead of."""

    file: Path
    changed: bool
    planned: bool
    off: str = ""

    def line(self) -> str:
        """What to print."""
        how = f"planned again{self.off and f'; {self.off}'}" if self.planned else "with the same plan"
        return f"{self.file}: written, {how}" if self.changed else f"{self.file}: up to date"

    def to_json(self) -> dict[str, Any]:
        """The object that `--json` prints."""
        rows = {"file": str(self.file), "changed": self.changed, "planned": self.planned}
        return rows | ({"off": self.off} if self.off else {})


def _not_here(file: Path, text: str) -> VerifyError:
    """What there is to say of a file whose model no command makes."""
    hint = f"where that model is, run {call_in(text)}.write({file.name!r})"
    return VerifyError("was made from a model in memory, which is not here", where=str(file), hint=hint)


def _read(file: Path) -> str:
    """A file's text; a checkout with CRLF is the same file."""
    try:
        return file.read_bytes().decode("utf-8").replace("\r\n", "\n")
    except OSError as error:
        raise VerifyError(f"cannot be read: {error.strerror}", where=str(file)) from error
    except UnicodeDecodeError as error:
        raise VerifyError("was not written by remat-codegen: it is not UTF-8", where=str(file)) from error


# ---------------------------------------------------------------------------------------------- finding the model


def original(file: Path, options: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """What a file was made from, and `options` of a command about it, where these say nothing with what the header's command
    says. Raises VerifyError where no command made the file."""
    text = _read(file)
    request = located(read_header(text, file).request, file)
    if request.given:
        raise _not_here(file, text)
    batch = "" if "," in request.batch else request.batch  # of several, verify tries each
    said = {"init": request.init, "inputs": request.inputs, "batch": batch, "device": request.device}
    unsaid = {"init": "", "inputs": None, "batch": "", "device": "cpu"}
    return request.target, {k: said[k] if k in said and v == unsaid[k] else v for k, v in options.items()}


def located(request: Request, file: Path) -> Request:
    """The request with its target, and a function that makes its inputs, looked for where the command may have been run:
    the working folder, the file's own folder, and those above it."""
    inputs = request.inputs
    if inputs is not None and _names_file(inputs):
        inputs = _located(inputs, file)
    return replace(request, target=_located(request.target, file), inputs=inputs)


def _names_file(text: str) -> bool:
    return ".py:" in text and text.rpartition(":")[2].isidentifier()


def _located(spec: str, file: Path) -> str:
    place, _, name = spec.rpartition(":")
    if not place.endswith(".py"):
        return spec
    found = next((folder / place for folder in _folders(file) if (folder / place).is_file()), None)
    return spec if found is None else f"{found}:{name}"


def _folders(file: Path) -> list[Path]:
    here = file.resolve().parent
    return [Path.cwd(), here, *here.parents]


@contextlib.contextmanager
def _as_if_alone(spec: str, file: Path) -> Iterator[None]:
    """Imports find a package where the command may have been run; the user's modules are forgotten afterwards, so that files
    that are checked together do not see each other's."""
    before, path = set(sys.modules), list(sys.path)
    top = spec.rpartition(":")[0].partition(".")[0]
    if not spec.rpartition(":")[0].endswith(".py"):
        roots = [f for f in _folders(file) if (f / top).is_dir() or (f / f"{top}.py").is_file()]
        sys.path[:0] = [str(f) for f in roots[:1]]
    try:
        yield
    finally:
        sys.path[:] = path
        for name in set(sys.modules) - before:
            if _is_users(sys.modules[name]):
                del sys.modules[name]


def _is_users(module: Any) -> bool:
    file, own = getattr(module, "__file__", None), str(Path(__file__).parent.parent)
    installed = sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), own
    return isinstance(file, str) and not file.startswith(installed) and "site-packages" not in file


# ---------------------------------------------------------------------------------------------- check


def check(file: Path, progress: Progress, plan: Path | None = None, strict: bool = False) -> Finding:
    """Compares a generated file with what its model and this generator give now: no measuring, no solving.

    `plan` is a saved plan to use instead of the file's own. That this generator words a file otherwise, for the same model and
    the same plan, is a note; where `strict`, it is a reason. Raises VerifyError where remat-codegen did not write the file,
    PlanFileError where the plan cannot be read.
    """
    text = _read(file)
    header = read_header(text, file, plan)
    request = located(header.request, file)
    edited = ("it was edited by hand",) if header.sealed is False else ()
    if header.request.given:
        return Finding(file, (*edited, _not_here(file, text).without_place()), unmakeable=True)
    if request.gpu is None and _has_no_device(request.device):
        return _check_without_device(file, header, request, edited)
    with _as_if_alone(request.target, file):
        try:
            planned = request if header.plan is None else replace(request, loss=header.plan.loss)
            traced = trace_target(planned, progress)
        except RematError as error:
            return _unmakeable(file, edited, error)
        found = _compared(file, text, header, traced, edited, progress)
    only_worded = found.reasons == (_newer(header),) and header.sealed is True and plan is None
    if strict or not only_worded:
        return found
    return Finding(file, notes=(f"{_newer(header)}: {NEWER}",))


def _compared(file: Path, text: str, header: Header, traced: Traced, edited: tuple[str, ...], progress: Progress) -> Finding:
    digest = _source_digest(traced)
    changed = (f"{traced.target.path.name} has changed",) if digest[:12] != header.source else ()
    if header.plan is None:
        return Finding(file, (*edited, *changed, header.damage))
    both = [(plan.graph, traced.at(number).graph.digest()) for number, plan in enumerate(header.plan.all())]
    if differing := [(planned, now) for planned, now in both if planned != now]:
        if header.plan.recorded and traced.model.trace.run is not None and not (edited or changed):
            return Finding(file, notes=(ANOTHER_WAY,))
        diff = (f"-graph {differing[0][0][:12]}", f"+graph {differing[0][1][:12]}")
        reasons = (*edited, *changed, _other_graph(header.plan, capability_of(header.request)))
        return Finding(file, reasons, _with_its_table(file, text, header, traced) or diff)
    try:
        with progress.stage("emit"):
            wanted = _emitted(file, text, header, header.plan, traced)
    except PlanFileError as error:  # the table is not the plan's: it can be made again
        return Finding(file, (*edited, *changed, error.what))
    except RematError as error:
        return _unmakeable(file, (*edited, *changed), error)
    if wanted == text:
        return Finding(file)
    return Finding(file, (*edited, *changed) or (_newer(header),), _diff(text, wanted, file))


def _with_its_table(file: Path, text: str, header: Header, traced: Traced) -> tuple[str, ...]:
    """What would change if a file had the table that it has, as far as there is what that names: the model's text, above all.
    Nothing where that cannot be told."""
    if header.plan is None or header.request.edition == 1 or not traced.are_of(header.plan):
        return ()
    try:
        brought, _ = marked_text.read_back(text, traced)
        if len(brought.all()) != len(header.plan.all()):
            return ()
        wanted = seal(by_version(marked_text.emit(traced, header.plan, header.request, brought), __version__, header.version))
    except RematError:
        return ()
    return _diff(text, wanted, file, "with its table")


def _other_graph(plan: SavedPlan, here: str | None) -> str:
    """Why the graph may be another one: PyTorch chooses kernels by the GPU's generation."""
    if plan.capability == here or None in (plan.capability, here):
        return "the model's graph has changed: it has to be planned again"
    gpus = f"a GPU of compute capability {plan.capability}, and this one has {here}"
    return f"it was planned for {gpus}: PyTorch chooses other kernels here; check it on such a GPU, or update it for this one"


def _unmakeable(file: Path, reasons: tuple[str, ...], error: RematError) -> Finding:
    return Finding(file, (*reasons, f"it cannot be made again: {error.line()}"), unmakeable=True)


def _newer(header: Header) -> str:
    if header.version == __version__:
        return "this remat-codegen writes it differently"
    return f"remat-codegen {__version__} writes it differently than {header.version} did"


def _emitted(file: Path, text: str, header: Header, plan: SavedPlan, traced: Traced) -> str:
    """What the generator writes now, but for its version: a new version that writes the same changes no file."""
    written = _with_plan_of(file, text, header, plan, traced)
    return seal(by_version(written, __version__, header.version))


def _with_plan_of(file: Path, text: str, header: Header, plan: SavedPlan, traced: Traced) -> str:
    """What the generator writes for a file's plan. In the second edition that is its table, whose step has to be the plan's."""
    schedule = saved_plan.schedule_of(plan, traced.graph, file)
    if not traced.are_of(plan):
        raise PlanFileError("its plan is for other batch sizes than its command", where=str(file))
    if header.request.edition == 1:
        return pipeline.emit(traced, schedule, plan, header.request)
    brought, problems = marked_text.read_back(text, traced)
    if not brought.lead_to(plan, traced.graph):
        more = "".join(f": line {p.line}: {p.text}" for p in problems[:1])
        raise PlanFileError(f"its table is not the plan in its header{more}", where=str(file))
    return marked_text.emit(traced, plan, header.request, brought)


def _diff(old: str, new: str, file: Path, how: str = "") -> tuple[str, ...]:
    would = " ".join(filter(None, [f"{file} (as it would be", how])) + ")"
    lines = list(difflib.unified_diff(old.splitlines(), new.splitlines(), f"{file}", would, lineterm="", n=1))
    more = len(lines) - LONGEST_DIFF
    return (*lines[:LONGEST_DIFF], f"... {more} more lines") if more > 1 else tuple(lines)


def _source_digest(traced: Traced) -> str:
    return hashlib.sha256(traced.target.source.encode()).hexdigest()


def _has_no_device(device: str) -> bool:
    import torch

    return device.startswith("cuda") and int(device.partition(":")[2] or 0) >= torch.cuda.device_count()


def _check_without_device(file: Path, header: Header, request: Request, edited: tuple[str, ...]) -> Finding:
    """What can be said of a file for a device that is not here: whether it, or the model's own file, was changed."""
    reasons = [*edited]
    place = split_spec(request.target)[0]
    if place.endswith(".py"):
        try:
            digest = hashlib.sha256(read_source(Path(place)).encode()).hexdigest()
            reasons += [f"{Path(place).name} has changed"] if digest[:12] != header.source else []
        except TargetError as error:
            reasons.append(f"it cannot be made again: {error.line()}")
    note = f"{header.request.device} is not here, so the model was not traced"
    return Finding(file, tuple(reasons), notes=(note,))


# ---------------------------------------------------------------------------------------------- update


def update(
    file: Path,
    progress: Progress,
    cache: bool = True,
    saved: Path | None = None,
    time_limit: float | None = None,
    measured: bool = False,
) -> Updated:
    """Makes a generated file again from its header: with the same plan where that still fits, else with a new one.

    `saved` is a plan on disk to use instead of the file's own. `time_limit` is for measuring and planning, in seconds; it is
    this run's, and does not stand in the file. `measured` says that a file for a GPU by name is one for this GPU from now on,
    planned by its measured costs.
    Raises VerifyError where remat-codegen did not write the file, and what `generate` raises.
    """
    text = _read(file)
    header = read_header(text, file, saved)
    if header.request.given:
        raise _not_here(file, text)
    check_writable(file)
    header = replace(header, request=replace(header.request, gpu=None)) if measured else header
    request = replace(located(header.request, file), cache=cache, time_limit=time_limit)
    with _as_if_alone(request.target, file):
        traced = trace_target(request, progress)
        wanted, plan = _made_again(file, text, header, request, traced, progress)
    if wanted != text:
        write_atomically(file, wanted)
    if plan is not None and saved_plan.beside(file).exists():
        write_atomically(saved_plan.beside(file), plan.dumps())
    off = _how_far_off(header.plan, request, traced, plan, progress)
    return Updated(file, wanted != text, plan is not None, off)


def _how_far_off(before: SavedPlan | None, request: Request, traced: Traced, plan: SavedPlan | None, progress: Progress) -> str:
    """What an estimated plan takes by the measured costs that it was planned again by; empty where it was no such plan."""
    if before is None or plan is None or before.estimated is None or request.gpu is not None or before.graph != plan.graph:
        return ""
    graph, profile = traced.graph, measured_costs(request, traced, progress)  # remembered
    plain = simulate(graph, profile, without_recomputation(graph))
    found = simulate(graph, profile, with_forgets(graph, before.order))
    over, peak = percent(found.time_ns / max(1, plain.time_ns) - 1), format_bytes(found.peak_bytes)
    told = f"{percent(before.overhead)} and {format_bytes(before.planned_peak_bytes)}"
    return f"by measured costs the plan for {before.estimated} takes {over} more time and {peak}, where it was estimated {told}"


def _made_again(
    file: Path, text: str, header: Header, request: Request, traced: Traced, progress: Progress
) -> tuple[str, SavedPlan | None]:
    """The file's new text, and its new plan, None where it keeps the one that it has."""
    kept = _plan_that_fits(header, traced, file)
    if kept is not None and not _names_inputs(kept, traced):
        kept = with_smaller(request, traced, kept, progress)
    if kept is not None:
        try:
            with progress.stage("emit"):
                return _with_plan_of(file, text, header, kept, traced), None
        except PlanFileError:  # its table was edited
            pass
    _needs_budget(request, file)
    if request.edition == 1:
        plan = _still_saying(make_plan(request, traced, progress, _previous(header)), header)
        plan = with_smaller(request, traced, plan, progress)
        with progress.stage("emit"):
            return pipeline.emit(traced, saved_plan.schedule_of(plan, traced.graph, file), plan, header.request), plan
    profile = measured_costs(request, traced, progress)
    made = make_plan(request, traced, progress, profile=profile)

    def attempt(before: Before[Vertex]) -> tuple[str, SavedPlan]:
        plan, brought = marked.tabled(request, traced, profile, made, progress, before)
        marked.note_losses(plan, made, brought, profile, progress)
        plan = _still_saying(plan, header)
        near = _is_near(plan, header.plan)
        wider = marked_text.with_marks_of(before, traced, plan, header.request, brought) if near else brought
        if wider.also:
            with contextlib.suppress(UnsupportedError):
                return marked.proved(header.request, traced, plan, wider, progress), plan
        return marked.proved(header.request, traced, plan, brought, progress), plan

    return marked.avoiding(attempt, marked_text.before_of(text, traced))


def _is_near(plan: SavedPlan, before: SavedPlan | None) -> bool:
    """Whether budgets are about what they were."""
    if before is None or len(plan.all()) != len(before.all()):
        return False
    pairs = ((now.budget_bytes, was.budget_bytes) for now, was in zip(plan.all(), before.all(), strict=True))
    return all(now < NEAR * was and was < NEAR * now for now, was in pairs)


def _names_inputs(plan: SavedPlan, traced: Traced) -> bool:
    """Whether the sizes in a plan are of inputs that there are: a graph knows no names."""
    try:
        pipeline.limits_of(plan, traced.target)
    except PlanFileError:
        return False
    return True


def _still_saying(plan: SavedPlan, header: Header) -> SavedPlan:
    """A new plan, with what the budget in the file's command was the answer to when it was found."""
    before = header.plan
    if before is None or before.answer is None or before.budget != header.request.budget:
        return plan
    return replace(plan, answer=f"{before.answer.removesuffix(EARLIER)}{EARLIER}")


def _previous(header: Header) -> tuple[int, ...]:
    """The order of the file's plan, unless another planner or device is asked for now."""
    plan, asked = header.plan, header.request
    return plan.order if plan is not None and (*_place(plan), plan.planner) == (*_asked_place(asked), asked.planner) else ()


def _place(plan: SavedPlan) -> tuple[str, str | None]:
    """The device that a plan is for, and the GPU whose costs were estimated."""
    return plan.device, plan.estimated


def _asked_place(request: Request) -> tuple[str, str | None]:
    return request.device, None if request.gpu is None else request.gpu.key


def _needs_budget(request: Request, file: Path) -> None:
    if request.budget is None:
        raise VerifyError("its header names no --budget", where=str(file), hint=LINE_BACK)


def _plan_that_fits(header: Header, traced: Traced, file: Path) -> SavedPlan | None:
    """The file's plan, unless the model's graph or what the header asks for has changed."""
    plan, asked = header.plan, header.request
    if plan is None or (plan.budget, plan.planner) != (asked.budget, asked.planner) or _place(plan) != _asked_place(asked):
        return None
    try:
        for number, one in enumerate(plan.all()):
            saved_plan.schedule_of(one, traced.at(number).graph, file)
    except PlanFileError:
        return None
    return plan if traced.are_of(plan) else None
