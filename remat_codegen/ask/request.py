"""What the user asks for, as the command line hands it to the pipeline."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field
from pathlib import Path

from remat_codegen.errors import TargetError
from remat_codegen.profile.devices import Device, find, is_name

# The names in planners/base/registry.py, which is slow to import. A test holds the two together.
PLANNERS = tuple(
    (
        "none all chen rotor checkmate checkmate-lp rockmate dtr dtr-eq dtr-local dtr-lru dtr-size dtr-msps mincut "
        "mincut-aggressive knapsack auto best"
    ).split()
)
DEFAULT_PLANNER = "auto"
EDITIONS = (1, 2)
LOSSES = (
    "cross-entropy",
    "sum",
    "none",
    "model",
)  # of trace/training.py, which imports torch; a test holds both together
NOT_RUN = "costs for a GPU by name are estimated, and nothing is run on it"
LEAST_SHARE = 0.1  # of a limited time, for each of the things that it is for


@dataclass(frozen=True, slots=True)
class Request:
    """One generated file. Text is as the user wrote it; target.py, inputs.py and budget.py read it.

    `budget` is None only where `plan` is given, a saved plan that is written out again without solving. `output` is None where
    the file gets its default name. `edition` is None for the second, marks and a table, where that serves, else the first.
    `given` says that the model is there already, made by the caller's Python: `target` then only names its class. `time_limit`
    is for all that takes long, in seconds, from `asked_at` on, a moment of time.monotonic(). `loss` is what is computed of the
    outputs, the usual for such outputs if None (training.usual_loss). `static` asks for a file that takes the example's sizes
    alone. `gpu` is the GPU that is planned for without having it, where `device` is its name.
    """

    target: str
    budget: str | None = None
    output: Path | None = None
    init: str = ""
    inputs: str | None = None
    device: str = "cpu"
    planner: str = DEFAULT_PLANNER
    seed: int = 0
    save_plan: Path | None = None
    plan: Path | None = None
    verify: bool = False
    cache: bool = True
    autocast: str | None = None
    dynamic: str = ""
    static: bool = False
    deterministic: bool = False
    edition: int | None = None
    given: bool = False
    time_limit: float | None = None
    batch: str = ""
    loss: str | None = None
    asked_at: float = field(default_factory=time.monotonic, compare=False, repr=False)
    gpu: Device | None = None

    def __post_init__(self) -> None:
        """A GPU by name is one of CUDA that is not there. Raises TargetError where there is no such device, or it would have to
        be there, or sizes are to change and to be fixed."""
        if is_name(self.device):
            object.__setattr__(self, "gpu", find(self.device))
            object.__setattr__(self, "device", "cuda")
        if self.gpu is not None and self.verify:
            hint = "leave it out, and run remat-codegen verify FILE where the GPU is"
            raise TargetError(NOT_RUN, where="--verify", hint=hint)
        several = "," in self.batch.rpartition("=")[2]
        if self.static and (self.dynamic or several):
            what = "it takes the example's sizes alone, and " + (
                "--dynamic names others" if self.dynamic else "--batch names several"
            )
            raise TargetError(what, where="--static", hint="leave out one of both")

    @property
    def device_named(self) -> str:
        """The device as it was asked for: h100, where that is not there."""
        return self.device if self.gpu is None else self.gpu.key

    def seconds_left(self, share: float = 1.0) -> float | None:
        """So much of the time that is left, at least `LEAST_SHARE` of all: what comes before may take what it has to, and a
        plan is worth some time. None where there is no limit."""
        if self.time_limit is None:
            return None
        left = self.asked_at + self.time_limit - time.monotonic()
        return max(LEAST_SHARE * self.time_limit, share * left)

    @property
    def time_is_up(self) -> bool:
        """Whether there is a limit, and it has passed."""
        return self.time_limit is not None and time.monotonic() > self.asked_at + self.time_limit

    @property
    def output_path(self) -> Path:
        """Where the generated file goes: `output`, or <name>_remat.py in the working folder."""
        return self.output if self.output is not None else default_output(self.target)


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked for instead of a budget, as the user wrote it; choosing.py answers it.

    `fit` is what the whole training has to fit into, 24GiB or `FREE`, with the state of `optimizer`. `max_overhead` is the most
    extra time, 10%. `largest_batch` names the sizes that are the batch, as for `--dynamic`; empty: the leading ones.
    """

    fit: str | None = None
    optimizer: str | None = None
    max_overhead: str | None = None
    largest_batch: str | None = None


FREE = "device"  # of `Question.fit`: what the device has free


def default_output(target: str) -> Path:
    """The file for `model.py:GPT2`: gpt2_remat.py."""
    name = re.sub(r"\W", "_", target.rpartition(":")[2]).lower()
    return Path(f"{name or 'model'}_remat.py")
