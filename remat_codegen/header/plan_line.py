"""A plan as comment lines at the top of the file that was made from it, so that the file alone can be made again.

    #: {"version":1,"graph":digest,"planner":...,"order":"337|175:173;177:168-169;...","seal":digest}

`order` is as order.py writes it, `seal` as seal.py.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from remat_codegen.errors import PlanFileError
from remat_codegen.header.order import decode_order, encode_order
from remat_codegen.header.saved_plan import VERSION, SavedPlan, plan_of

PREFIX = "#: "
COLUMNS = 120
UNSEALED = "0" * 16
AGAIN = "`remat-codegen update` plans again"


def encode_plan(plan: SavedPlan) -> str:
    """The plan as one line of printable ASCII without spaces. Raises PlanFileError where its order cannot be run."""
    rows = {"version": VERSION, **_encoded(plan), "seal": UNSEALED}
    return json.dumps(rows, separators=(",", ":")).replace(" ", "\\u0020").replace("\x7f", "\\u007f")


def _encoded(plan: SavedPlan) -> dict[str, Any]:
    others = {"others": [_encoded(other) for other in plan.others]} if plan.others else {}
    return plan.rows() | {"order": encode_order(plan.order)} | others


def decode_plan(text: str) -> SavedPlan:
    """The plan that `encode_plan` wrote. Raises PlanFileError for anything else."""
    try:
        rows: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PlanFileError(f"the plan in the header cannot be read: {error}", hint=AGAIN) from error
    if not isinstance(rows, dict) or rows.get("version") != VERSION:
        raise PlanFileError("the plan in the header has another version", hint=AGAIN)
    try:
        return plan_of(rows, _decoded)
    except PlanFileError as error:
        raise PlanFileError(f"the plan in the header has {error.what}", hint=AGAIN) from error


def _decoded(order: Any) -> tuple[int, ...]:
    if not isinstance(order, str):
        raise PlanFileError("no good 'order'")
    return decode_order(order)


def plan_lines(plan: SavedPlan) -> tuple[str, ...]:
    """The plan as comment lines of at most 120 columns. Raises PlanFileError where its order cannot be run."""
    return tuple(_wrapped(encode_plan(plan)))


def _wrapped(text: str) -> list[str]:
    """Comment lines, broken behind commas and semicolons where there are any."""
    found, room = [], COLUMNS - len(PREFIX)
    while text:
        here = max(text.rfind(",", 0, room), text.rfind(";", 0, room)) + 1
        end = len(text) if len(text) <= room else here or room
        found.append(PREFIX + text[:end])
        text = text[end:]
    return found


def plan_in(text: str) -> SavedPlan | None:
    """The plan in a generated file's header, None where it has none. Raises PlanFileError where it is damaged."""
    found = joined(header_of(text))
    return decode_plan(found) if found else None


def is_plan(line: str) -> bool:
    """Whether a line holds a plan, or a part of one."""
    return line.startswith(PREFIX)


def header_of(text: str) -> list[str]:
    """The comment lines that a file begins with."""
    found = []
    for line in text.split("\n"):
        if not line.startswith("#"):
            break
        found.append(line)
    return found


def joined(lines: Sequence[str]) -> str:
    """What the lines of a header say that hold its plan."""
    return "".join(line.removeprefix(PREFIX) for line in lines if is_plan(line))
