"""What generated functions say about themselves: the user's lines, and what that means for memory."""

from __future__ import annotations

from remat_codegen.emit.scope import Scope
from remat_codegen.emit.segments import Program, Role, Segment

MIB = 2**20


def size(nbytes: int) -> str:
    """Bytes, for a comment."""
    return f"{nbytes / MIB:,.1f} MiB" if nbytes >= MIB / 20 else f"{nbytes / 2**10:,.1f} KiB"


def about(program: Program, segment: Segment, scope: Scope) -> str:
    """What a function does, for its docstring: the user's lines, and what that means for memory."""
    lines = scope.lines()
    if segment.role is not Role.FORWARD:
        again = size(program.rebuilt_bytes(segment))
        backward = segment.role is Role.BACKWARD
        return f"Goes back through {lines}; rebuilds {again}" if backward else f"Rebuilds {lines}: {again}"
    kept, forgotten = program.kept_bytes(segment)
    stays = f"keeps {size(kept)} for the way back" if kept else "keeps nothing for the way back"
    away = f", forgets {size(forgotten)}" if forgotten else ""
    return f"Computes {lines}; {stays}{away}"


def note(nbytes: int) -> str:
    """What stands behind a wait: what the runs after it are for."""
    return f"{size(nbytes)}, not held since the forward pass"
