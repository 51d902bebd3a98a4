"""A plan as comment lines at the top of the file that was made from it, so that the file alone can be made again.

    #: {"version":1,"graph":digest,"planner":...,"order":"337|175:173;177:168-169;...","seal":digest}

`order` holds what runs again: the last node's number, then `a:b,c-d` for "once node a has run for the first time, b runs again,
then c to d". What every layer repeats is written once: `9*(...)+13-14` is nine copies, in each of which the numbers before a
colon are 13 higher, those after it 14 lower, than in the one before.

`seal` is a digest of the whole file, so that what a person changed can be told from what a newer generator writes differently.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from remat_codegen.errors import PlanFileError
from remat_codegen.header.planfile import VERSION, SavedPlan, plan_of

PREFIX = "#: "
COLUMNS = 120
UNSEALED = "0" * 16
LONGEST_ORDER = 1_000_000  # nodes; a damaged line must not fill the memory
AGAIN = "`remat-codegen update` plans again"
LONGEST_PERIOD = 256  # items of a layer's pattern

_COMMAND = re.compile(r"#     (remat-codegen .+)")
_CALL = re.compile(r"#     (remat_codegen\.plan\(.+\))")
_SEAL = re.compile(r'"seal":"([0-9a-f]{16})"')


# ---------------------------------------------------------------------------------------------- a plan


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
    found = _joined(header_of(text))
    return decode_plan(found) if found else None


def _is_plan(line: str) -> bool:
    return line.startswith(PREFIX)


def header_of(text: str) -> list[str]:
    """The comment lines that a file begins with."""
    found = []
    for line in text.split("\n"):
        if not line.startswith("#"):
            break
        found.append(line)
    return found


def command_in(text: str) -> str | None:
    """The command in a generated file's header that makes it; None where there is none."""
    return next((m[1] for line in header_of(text) if (m := _COMMAND.fullmatch(line))), None)


def call_in(text: str) -> str | None:
    """The line of Python in a generated file's header that makes it, where no command does; None where there is none."""
    return next((m[1] for line in header_of(text) if (m := _CALL.fullmatch(line))), None)


def keywords_of(call: str) -> dict[str, Any]:
    """The keyword arguments of such a line, and `inputs` where they are a text. Raises ValueError where it is no such call."""
    try:
        found = ast.parse(call, mode="eval").body
    except SyntaxError as error:
        raise ValueError(f"it is no Python: {error.msg}") from error
    if not isinstance(found, ast.Call) or len(found.args) != 2:
        raise ValueError("it is no call of remat_codegen.plan with a model and its inputs")
    given = {k.arg: ast.literal_eval(k.value) for k in found.keywords if k.arg is not None}
    inputs = found.args[1]
    return given | ({"inputs": ast.literal_eval(inputs)} if isinstance(inputs, ast.Constant) else {})


def option_in(text: str, name: str) -> str | None:
    """An option of the command in a generated file's header, or the argument of that name of the call; None where it is not
    given. Raises ValueError where neither can be read."""
    words, call = split_words(command_in(text) or ""), call_in(text)
    option = f"--{name}"
    given = words[words.index(option) + 1] if option in words[:-1] else None
    return given if call is None else keywords_of(call).get(name)


# ---------------------------------------------------------------------------------------------- the seal


def seal(text: str) -> str:
    """A generated file with its digest in its plan line."""
    return _with_seal(text, _digest(text))


def is_sealed(text: str) -> bool | None:
    """Whether a file is as it was written; None where it never was sealed."""
    found = _SEAL.search(_joined(header_of(text)))
    return None if found is None else found[1] == _digest(text)


def _joined(lines: Sequence[str]) -> str:
    return "".join(line.removeprefix(PREFIX) for line in lines if _is_plan(line))


def _digest(text: str) -> str:
    return hashlib.sha256(_with_seal(text, UNSEALED).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _with_seal(text: str, digest: str) -> str:
    """The file with another digest, and its lines as they are: what wrote it may have broken them elsewhere than we do, even
    in the digest."""
    lines = text.split("\n")
    plan = [i for i, line in enumerate(header_of(text)) if _is_plan(line)]
    whole = _SEAL.sub(f'"seal":"{digest}"', _joined([lines[i] for i in plan]))
    for i in plan:
        room = len(lines[i]) - len(PREFIX)
        lines[i], whole = PREFIX + whole[:room], whole[room:]
    return "\n".join(lines)


# ---------------------------------------------------------------------------------------------- an order


@dataclass(frozen=True, slots=True)
class _Item:
    """Nodes that run again after node `after` has run for the first time."""

    after: int
    nodes: tuple[int, ...]

    def moved(self, after: int, nodes: int) -> _Item:
        return _Item(self.after + after, tuple(n + nodes for n in self.nodes))

    def __str__(self) -> str:
        return f"{self.after}:{_ranges(self.nodes)}"


def encode_order(order: Sequence[int]) -> str:
    """An order of nodes, whose first runs are in order, by what runs again. Raises PlanFileError for other orders."""
    reached, again = -1, dict[int, list[int]]()
    for node in order:
        if node == reached + 1:
            reached = node
        elif 0 <= node <= reached:
            again.setdefault(reached, []).append(node)
        else:
            raise PlanFileError(f"the plan's order cannot be run: node {node} comes before node {reached + 1}")
    items = [_Item(after, tuple(nodes)) for after, nodes in again.items()]
    return f"{reached}|{';'.join(_folded(items))}"


def decode_order(text: str) -> tuple[int, ...]:
    """The order that `encode_order` wrote. Raises PlanFileError for anything else."""
    found = re.fullmatch(r"(-1|\d{1,9})\|(.*)", text, re.ASCII)
    if found is None:
        raise PlanFileError("no readable order")
    last = int(found[1])
    again: dict[int, tuple[int, ...]] = {}
    room = LONGEST_ORDER - last
    for item in _unfolded(found[2]):
        room -= len(item.nodes)
        fits = 0 <= item.after <= last and all(0 <= n <= item.after for n in item.nodes)
        if room < 0 or not fits or item.after in again:
            raise PlanFileError("no readable order")
        again[item.after] = item.nodes
    if room < 0:
        raise PlanFileError("no readable order")
    return tuple(n for first in range(last + 1) for n in (first, *again.get(first, ())))


def _folded(items: Sequence[_Item]) -> list[str]:
    """Items as text, with patterns that repeat written once."""
    found, i = [], 0
    while i < len(items):
        period, times = _best_repeat(items, i)
        if times == 1:
            found.append(str(items[i]))
        else:
            first, second = items[i], items[i + period]
            body = ";".join(map(str, items[i : i + period]))
            step = second.after - first.after, second.nodes[0] - first.nodes[0]
            found.append(f"{times}*({body}){step[0]:+d}{step[1]:+d}")
        i += period * times
    return found


def _best_repeat(items: Sequence[_Item], start: int) -> tuple[int, int]:
    """The period and the number of repeats that say most of what follows `start`."""
    best, saved = (1, 1), 0
    for period in range(1, min(LONGEST_PERIOD, (len(items) - start) // 2) + 1):
        times = _repeats(items, start, period)
        if (times - 1) * period > saved:
            best, saved = (period, times), (times - 1) * period
    return best


def _repeats(items: Sequence[_Item], start: int, period: int) -> int:
    one, two = items[start], items[start + period]
    after, nodes = two.after - one.after, two.nodes[0] - one.nodes[0]
    end = start + period
    while end < len(items) and items[end] == items[end - period].moved(after, nodes):
        end += 1
    return max(1, (end - start) // period)


_PIECE = re.compile(r"(?:(\d{1,6})\*\(([\d:;,-]*)\)([+-]\d{1,9})([+-]\d{1,9})|(\d{1,9}:[\d,-]+))(?:;|$)", re.ASCII)


def _unfolded(text: str) -> list[_Item]:
    found: list[_Item] = []
    position = 0
    while position < len(text):
        piece = _PIECE.match(text, position)
        if piece is None:
            raise PlanFileError("no readable order")
        position = piece.end()
        if piece[5] is not None:
            found.append(_item(piece[5]))
            continue
        times, items = int(piece[1]), [_item(t) for t in piece[2].split(";")]
        if times * sum(len(i.nodes) for i in items) > LONGEST_ORDER:
            raise PlanFileError("no readable order")
        found += [i.moved(k * int(piece[3]), k * int(piece[4])) for k in range(times) for i in items]
    return found


def _item(text: str) -> _Item:
    after, colon, rest = text.partition(":")
    nodes: list[int] = []
    for part in rest.split(","):
        found = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", part, re.ASCII)
        if found is None or not colon or not after.isdigit():
            raise PlanFileError("no readable order")
        first, last = int(found[1]), int(found[2] or found[1])
        if last - first > LONGEST_ORDER:
            raise PlanFileError("no readable order")
        nodes.extend(range(first, last + 1))
    return _Item(int(after), tuple(nodes))


def _ranges(nodes: Sequence[int]) -> str:
    """168,169,171 as 168-169,171."""
    starts = [0, *(i + 1 for i, (a, b) in enumerate(pairwise(nodes)) if b != a + 1), len(nodes)]
    spans = [(nodes[a], nodes[b - 1]) for a, b in pairwise(starts)]
    return ",".join(f"{a}" if a == b else f"{a}-{b}" for a, b in spans)


# ---------------------------------------------------------------------------------------------- a command


def join_words(words: Sequence[str]) -> str:
    """A command line as a shell reads it, on one line: what cannot be printed goes into $'...'."""
    return " ".join(shlex.quote(w) if w.isprintable() else f"$'{''.join(map(_escaped, w))}'" for w in words)


def split_words(text: str) -> list[str]:
    """The words that `join_words` joined. Raises ValueError where quotes are left open."""
    found, position = [], 0
    token = re.compile(r"""\s*(?:\$'((?:[^'\\]|\\.)*)'|((?:'[^']*'|"[^"]*"|\\.|[^\s'"\\])+))(?=\s|$)""")
    text = text.strip()
    while position < len(text):
        piece = token.match(text, position)
        if piece is None:
            raise ValueError("a quote is not closed")
        found.append(_unescaped(piece[1]) if piece[1] is not None else "".join(shlex.split(piece[2])))
        position = piece.end()
    return found


def _escaped(char: str) -> str:
    if char in "\\'":
        return f"\\{char}"
    return char if char.isprintable() else f"\\U{ord(char):08x}"


def _unescaped(text: str) -> str:
    return re.sub(r"\\(?:U([0-9a-f]{8})|(.))", lambda m: chr(int(m[1], 16)) if m[1] else m[2], text)
