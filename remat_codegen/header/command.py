"""The command in a file's header that makes it again, or the line of Python where no command does: written and read.

#     remat-codegen model.py:GPT2 --budget 1GiB -o gpt2_remat.py
#     remat_codegen.plan(model, inputs, budget='1GiB')
"""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from remat_codegen.ask.request import Request
from remat_codegen.errors import VerifyError
from remat_codegen.header.plan_line import header_of
from remat_codegen.header.saved_plan import SavedPlan

LINE_BACK = "put it back as it was, or generate the file again"
DEFAULT = Request("")
EARLIER_EDITION = 1  # which commands mean that name none

# Options in the order of a command, and of the arguments of a call; of a request, but for what its plan says.
_IN_COMMAND = "budget init inputs device batch dynamic static autocast loss planner seed edition".split()
_IN_CALL = "budget device planner batch dynamic static autocast loss seed edition".split()
_NUMBERS = ("seed", "edition")

_COMMAND = re.compile(r"#     (remat-codegen .+)")
_CALL = re.compile(r"#     (remat_codegen\.plan\(.+\))")


# ---------------------------------------------------------------------------------------------- written


def command_of(request: Request, plan: SavedPlan) -> str:
    """The command that makes a file, with what differs from the defaults; for a model that no command makes, the call."""
    if request.given:
        return _call(request, plan)
    words = ["remat-codegen", portable(request.target)]
    for name, value in _said(request, plan, _IN_COMMAND).items():
        words += [f"--{name}"] if value is True else [f"--{name}", portable(value) if name == "inputs" else str(value)]
    return join_words([*words, "-o", request.output_path.name])


def _call(request: Request, plan: SavedPlan) -> str:
    said = [f"{name}={value!r}" for name, value in _said(request, plan, _IN_CALL).items()]
    inputs = "inputs" if request.inputs is None else repr(request.inputs)
    return f"remat_codegen.plan({', '.join(['model', inputs, *said])})"


def _said(request: Request, plan: SavedPlan, names: Sequence[str]) -> dict[str, Any]:
    """What differs from the defaults: the budget in any case."""
    found: dict[str, Any] = {"budget": plan.budget, "device": plan.estimated or plan.device, "planner": plan.planner}
    found |= {"edition": 2 if request.edition == 2 else None}
    asked = {name: found[name] if name in found else getattr(request, name) for name in names}
    return {name: value for name, value in asked.items() if value != getattr(DEFAULT, name)}


def portable(target: str) -> str:
    """A target, or who makes inputs, without what belongs to one machine: an absolute path becomes the file's name."""
    place, _, name = target.rpartition(":")
    return f"{Path(place).name}:{name}" if Path(place).is_absolute() and place.endswith(".py") else target


def join_words(words: Sequence[str]) -> str:
    """A command line as a shell reads it, on one line: what cannot be printed goes into $'...'."""
    return " ".join(shlex.quote(w) if w.isprintable() else f"$'{''.join(map(_escaped, w))}'" for w in words)


# ---------------------------------------------------------------------------------------------- read


def request_in(text: str, target: str, file: Path) -> Request | None:
    """The request that a file was made by; None where its header does not say. `target` is what a model is called that no
    command makes. Raises VerifyError where it says something else."""
    command, call = command_in(text), call_in(text)
    try:
        if command is not None:
            return _of_command(command)
        if call is not None:
            return Request(target, output=Path(file.name), given=True, **({"edition": EARLIER_EDITION} | keywords_of(call)))
    except (ValueError, TypeError) as error:
        kind = "command" if command is not None else "call"
        raise VerifyError(f"cannot read the {kind} in its header: {error}", where=str(file), hint=LINE_BACK) from error
    return None


def _of_command(command: str) -> Request:
    """The request that a command makes. Raises ValueError where it is not one of ours."""
    _, target, *rest = split_words(command)
    static = "--static" in rest
    rest = [word for word in rest if word != "--static"]
    given = dict(zip(rest[::2], rest[1::2], strict=True))
    if "-o" not in given:
        raise ValueError("it names no -o")
    texts: dict[str, Any] = {name: given[f"--{name}"] for name in _IN_COMMAND if f"--{name}" in given}
    numbers = {name: int(texts[name]) for name in _NUMBERS if name in texts}
    return Request(target, output=Path(given["-o"]), **({"edition": EARLIER_EDITION, "static": static} | texts | numbers))


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
