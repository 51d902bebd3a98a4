"""What the templates of a file of functions are filled with: texts, and what is written or left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from remat_codegen.emit.templates import View
from remat_codegen.emit.usersource import Carried
from remat_codegen.header.heading import Facts


@dataclass(frozen=True, slots=True)
class Heading(View):
    """The comment lines that any file begins with. `title` is the first, `described` are the inputs, in words, `plan_is_for`
    the commands that read the plan, where that is said."""

    template: ClassVar[str] = "header.py.jinja"

    title: str
    facts: Facts
    described: str
    plan_is_for: str = ""


@dataclass(frozen=True, slots=True)
class Block(View):
    """A function of a block."""

    template: ClassVar[str] = "block.py.jinja"

    name: str
    arguments: str
    about: str
    lines: Sequence[str]


@dataclass(frozen=True, slots=True)
class Passes(View):
    """run_forward and run_backward: their parameters, their lines, and what is held between them, in words."""

    template: ClassVar[str] = "schedule.py.jinja"

    head: str
    forward: Sequence[str]
    backward: Sequence[str]
    alive: str


@dataclass(frozen=True, slots=True)
class Guarded:
    """The constants that a file checks its steps with, as text; empty where there is nothing to check.

    `frozen` are parameters that are not trained, `modes` modules whose mode matters, `objects` what forward reads of plain
    objects, `sizes` a line for each size that may change, `plain_at_one` those at whose size 1 the original forward runs,
    `smaller` sizes up to which it does. `layouts` and `dtypes` are what the checks of these names are called with.
    """

    expected: str
    structure: str
    autocast: str
    frozen: str
    objects: str
    modes: Mapping[str, bool]
    sizes: Sequence[str]
    plain_at_one: str
    smaller: str
    layouts: str
    dtypes: str


@dataclass(frozen=True, slots=True)
class Forward(View):
    """The new forward.

    `told` is a text of those arguments that have to be as in TOLD, by name; empty where there are none. `defaulted` is one of
    those that are forward's own defaults.

    It takes `parameters`, and passes them on as `passed_on` to the `plain` one; `given` is a text of all of them by name, bound
    by the signature of `binds` where that is not None. It calls run_forward with `inputs`, and a step where one is used, and
    puts results into the places `assigned`. `decisions` are values that have to be again as they were. `names` are our own.
    """

    template: ClassVar[str] = "forward.py.jinja"

    parameters: str
    passed_on: str
    plain: str
    given: str
    told: str
    defaulted: str
    binds: str | None
    without_cache: bool
    lazy: bool
    guarded: Guarded
    hooked: str
    rematerializes: bool
    uses_step: bool
    uncached: bool
    inputs: Sequence[str]
    assigned: Sequence[str]
    decisions: Sequence[tuple[str, bool]]
    names: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Module(View):
    """A whole file of functions. `carried` is what it has of the user's file, None where it wraps the original class.
    `arguments` is a text of what TOLD has; `defaulted` says whether forward's defaults are things, of which each file has its
    own."""

    template: ClassVar[str] = "module.py.jinja"

    heading: str
    target: str
    class_name: str
    facts: Facts
    carried: Carried | None
    imports: Sequence[Sequence[str]]
    new_forward: str
    guarded: Guarded
    arguments: str
    defaulted: bool
    functions: str
    schedule: str
    helpers: str
    constants: Mapping[str, str]
