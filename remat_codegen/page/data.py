"""What the page shows, as plain data: the object that `report --json` prints, and the one that the page's script draws.

Times are in nanoseconds from the beginning of the step, sizes in bytes, ratios are over the step without recomputation (0.12
for 12 %). Nothing here is computed again when it is drawn.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from remat_codegen.ask.budget import plan_label

FORMAT, VERSION = "remat-codegen report", 1


@dataclass(frozen=True, slots=True)
class Curve:
    """Memory over a step: by each node that runs, in order, from when on it does and the most that is alive meanwhile. The
    three parts add up to `total_bytes`; `activations` are values and what autograd saves beside them, `workspace` is also what
    is no node's: generator states, what autograd has saved for nobody."""

    nodes: tuple[int, ...]
    start_ns: tuple[int, ...]
    end_ns: int
    total_bytes: tuple[int, ...]
    activations_bytes: tuple[int, ...]
    gradients_bytes: tuple[int, ...]
    workspace_bytes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """What a step of the file was seen to hold, with times brought to those of the plan, forward and backward pass each."""

    peak_bytes: int
    error: float  # over the planned peak
    at_ns: tuple[int, ...] = ()
    held_bytes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Outside:
    """What is there anyway, which no budget counts. `optimizer_bytes` are by the optimizer that one may take."""

    parameters_bytes: int
    gradients_bytes: int
    buffers_bytes: int
    inputs_bytes: int
    optimizer_bytes: dict[str, int]


@dataclass(frozen=True, slots=True)
class Figures:
    """The plan in a few numbers. `bound` is an overhead that no plan within the budget can beat; `batch` is the batch size that
    the plan is for, where the file has plans for several."""

    budget_bytes: int | None
    planned_peak_bytes: int
    unmodified_peak_bytes: int
    step_ns: int
    unmodified_ns: int
    overhead: float
    bound: float | None
    recomputed: int
    batch: int | None = None


@dataclass(frozen=True, slots=True)
class OtherPlan:
    """What another of the file's plans takes, for another budget, None where no plan of the header says which, or for another
    batch size; figures as those of the plan that the page shows, by the costs at that batch size."""

    budget_bytes: int | None
    planned_peak_bytes: int
    overhead: float
    bound: float | None
    batch: int | None = None

    @property
    def label(self) -> str:
        """What tells it from the others; empty where no plan says."""
        return "" if self.budget_bytes is None else plan_label(self.budget_bytes, self.batch)


@dataclass(frozen=True, slots=True)
class Place:
    """A line of one of the page's texts, by its index."""

    text: int
    line: int


@dataclass(frozen=True, slots=True)
class NodeRow:
    """A node: what runs. `operation` is what makes its result, `also` what it computes on the way there, `place` the line of
    the user's source."""

    name: str
    phase: str
    operation: str
    also: tuple[str, ...]
    module: str
    block: int
    time_ns: int
    workspace_bytes: int
    place: Place | None


@dataclass(frozen=True, slots=True)
class Run:
    """A node as it runs. `line` is the generated file's line that has it run, 0 where none is known."""

    node: int
    start_ns: int
    end_ns: int
    again: bool
    line: int


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor that looks at a value's memory."""

    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class ValueRow:
    """A piece of memory over the step. `lives` are its copies: from which run to which; `reads` are the runs that read it.
    `fate` is kept, rebuilt, passing (not needed behind the forward pass), gradient or output, and `why` says it in words."""

    name: str
    kind: str
    nbytes: int
    node: int
    tensors: tuple[Tensor, ...]
    lives: tuple[tuple[int, int], ...]
    reads: tuple[int, ...]
    fate: str
    why: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class BlockRow:
    """A block: what it keeps, forgets and computes again, its functions in the file with their lines, and its source."""

    block: int
    path: str
    functions: tuple[tuple[str, int], ...]
    nodes: int
    kept_bytes: int
    forgotten_bytes: int
    recomputed: tuple[str, ...]
    overhead: float
    peak_bytes: int
    place: Place | None


@dataclass(frozen=True, slots=True)
class ModuleRow:
    """A module with all that stands in it, by phase: forward, again (what is recomputed), backward. Peaks are the most that is
    alive in the whole step while something of the module runs, 0 where nothing does."""

    path: str
    depth: int
    parent: int | None
    time_ns: tuple[int, int, int]
    peak_bytes: tuple[int, int, int]
    kept_bytes: int
    rebuilt_bytes: int


@dataclass(frozen=True, slots=True)
class Point:
    """A budget with the best plan that was found within it, and the overhead that none can beat; None where there is none."""

    budget_bytes: int
    overhead: float | None
    planner: str
    bound: float | None


@dataclass(frozen=True, slots=True)
class Tradeoff:
    """Overhead against budget. `own` is the file's point, at its budget, or at what it needs where that is more; `others` are
    those of the file's other plans, where these are for the same batch size. `least_bytes` is what every schedule needs; `more`
    is what a tenth more memory would buy."""

    own: Point
    others: tuple[Point, ...]
    points: tuple[Point, ...]
    planners: tuple[str, ...]
    least_bytes: int
    more: Point | None


@dataclass(frozen=True, slots=True)
class Text:
    """A file as the page shows it: the generated one first."""

    name: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Page:
    """All that the page shows. `generator` is the version that wrote the file, `problems` are lines of that and what is wrong
    there, `others` what the file's other plans take."""

    title: str
    file: str
    command: str
    planner: str
    device: str
    edition: int
    generator: str
    figures: Figures
    others: tuple[OtherPlan, ...]
    measured: MeasuredStep | None
    outside: Outside
    planned: Curve
    unmodified: Curve
    nodes: tuple[NodeRow, ...]
    runs: tuple[Run, ...]
    values: tuple[ValueRow, ...]
    blocks: tuple[BlockRow, ...]
    modules: tuple[ModuleRow, ...]
    tradeoff: Tradeoff | None
    texts: tuple[Text, ...]
    problems: tuple[tuple[int, str], ...]
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """The object that `--json` prints."""
        return {"format": FORMAT, "version": VERSION} | asdict(self)
