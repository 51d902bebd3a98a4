"""A digest of a generated file within itself, so that what a person changed can be told from what a newer generator writes
differently."""

from __future__ import annotations

import hashlib
import re

from remat_codegen.header.plan_line import PREFIX, UNSEALED, header_of, is_plan, joined

_SEAL = re.compile(r'"seal":"([0-9a-f]{16})"')


def seal(text: str) -> str:
    """A generated file with its digest in its plan line."""
    return _with_seal(text, _digest(text))


def is_sealed(text: str) -> bool | None:
    """Whether a file is as it was written; None where it never was sealed."""
    found = _SEAL.search(joined(header_of(text)))
    return None if found is None else found[1] == _digest(text)


def _digest(text: str) -> str:
    return hashlib.sha256(_with_seal(text, UNSEALED).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _with_seal(text: str, digest: str) -> str:
    """The file with another digest, and its lines as they are: what wrote it may have broken them elsewhere than we do, even
    in the digest."""
    lines = text.split("\n")
    plan = [i for i, line in enumerate(header_of(text)) if is_plan(line)]
    whole = _SEAL.sub(f'"seal":"{digest}"', joined([lines[i] for i in plan]))
    for i in plan:
        room = len(lines[i]) - len(PREFIX)
        lines[i], whole = PREFIX + whole[:room], whole[room:]
    return "\n".join(lines)
