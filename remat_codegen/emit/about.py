"""What generated functions say about themselves: the user's lines, and what that means for memory."""

from __future__ import annotations

from collections.abc import Sequence

from remat_codegen.emit.scope import Scope
from remat_codegen.emit.segments import Program, Role, Segment

MIB = 2**20


def size(nbytes: int) -> str:
    """Bytes, for a comment."""
    return f"{nbytes / MIB:,.1f} MiB" if nbytes >= MIB / 20 else f"{nbytes / 2**10:,.1f} KiB"


def about(program: Program, segment: Segment, scopes: Sequence[Scope], rebuild: Segment | None = None) -> str:
    """What a function does, for its docstring: modules, the user's lines, and what that means for memory.

    `scopes` are those of all blocks that it is for; `segment` is what it does in one of them, and `rebuild` where a first
    function runs again.
    """
    path = pattern([scope.root for scope in scopes])
    lines = f"{path} ({scopes[0].lines()})" if path else scopes[0].lines()
    if segment.role is not Role.FORWARD:
        again = size(program.rebuilt_bytes(segment))
        backward = segment.role is Role.BACKWARD
        return f"Goes back through {lines}; rebuilds {again}" if backward else f"Rebuilds {lines}: {again}"
    kept, forgotten = program.kept_bytes(segment)
    stays = f"keeps {size(kept)} for the way back" if kept else "keeps nothing for the way back"
    away = f", forgets {size(forgotten)}" if forgotten else ""
    back = f"; run again, for {size(program.rebuilt_bytes(rebuild))}" if rebuild is not None else ""
    return f"Computes {lines}; {stays}{away}{back}"


def pattern(paths: Sequence[str]) -> str:
    """h.*.attn for h.0.attn, h.1.attn ...; what they have in common for paths that differ in more."""
    split = [path.split(".") for path in dict.fromkeys(paths)]
    found = ["*" if len(set(parts)) > 1 else parts[0] for parts in zip(*split, strict=False)]
    alike = len({len(parts) for parts in split}) == 1 and found.count("*") < 2
    return ".".join(found if alike else found[: found.index("*")] if "*" in found else found)


def note(nbytes: int) -> str:
    """What stands behind a wait: what the runs after it are for."""
    return f"{size(nbytes)}, not held since the forward pass"
