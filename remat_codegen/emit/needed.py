"""Which statements at the top of a user's file a class needs: those that define what it mentions, and those that change that
when the file is loaded, such as a class whose decorator puts it into a table."""

from __future__ import annotations

from remat_codegen.emit import outside
from remat_codegen.emit.statements import Statement
from remat_codegen.emit.userfile import File


def needed_for(file: File, class_name: str) -> list[Statement]:
    """The statements that a class cannot do without, in order."""
    changed = {s: file.changes(s) for s in file.running}
    hands = {s: file.hands(s) for s in file.running}
    always = {s for s in file.running if s.is_future or (s.star and not s.stars()) or outside.sets_something(file, s)}
    wanted: set[str] = {class_name}
    chosen = set[Statement]()
    more = {s for s in file.running if s in always or s.defines & wanted}
    while more:
        chosen |= more
        wanted |= {n for s in more for n in s.mentions}
        kept = {n for s in chosen if not s.is_import for n in s.defines}
        marks = kept & set(file.definitions)
        data = kept - marks - file.constants
        rebound = wanted - set(file.imports)

        def is_needed(s: Statement, kept=kept, marks=marks, data=data, rebound=rebound) -> bool:
            handed, marked = hands[s]
            changes = changed[s] & kept or file.reaches[s].writes & rebound
            return bool(changes or handed & data or marked & marks)

        defining = {s for s in file.running if s.defines & wanted}
        more = (defining | {s for s in file.running if not s.is_import and is_needed(s)}) - chosen
    return [s for s in file.running if s in chosen]
