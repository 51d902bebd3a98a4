"""The table of a file: PLAN, which says module by module what is rebuilt, with the bytes that each row frees.

    PLAN = {
        "h.0": "ln_1 ln_2 attn.probs mlp.gelu",  # 120.0 MiB
    }

A key is a module's path up to the first number in it, so that a layer is a row; what is rebuilt is named from there. `h.0` with
`attn.probs` is the mark `probs` in the forward of `h.0.attn`; with `ln_1`, every call of that module.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from remat_codegen.marked.demand import Keeps

COLUMNS = 120
MIB = 2**20


@dataclass(frozen=True, slots=True)
class Entry:
    """One part, or all calls of one. `path` is a module's, `mark` the name of a mark in its forward, empty for its calls.

    `call` is which call of the module it is in a step, None for all of them. `freed_bytes` are not held between forward and
    backward; `order` is what entries are sorted by.
    """

    path: str
    mark: str
    call: int | None
    keeps: Keeps
    twice: bool
    freed_bytes: int
    order: int

    @property
    def name(self) -> str:
        """What the helpers call it."""
        return f"{self.path}.{self.mark}".strip(".") if self.mark else self.path

    @property
    def options(self) -> str:
        """What stands behind its name."""
        number = "" if self.call is None else f"#{self.call}"
        return number + (f"/{self.keeps}" if self.keeps else "") + ("/twice" if self.twice else "")


def united(entries: Iterable[Entry], calls: Mapping[str, int]) -> list[Entry]:
    """Entries without numbers where all calls of a module are alike. `calls` says how often each module is called."""
    groups: dict[tuple[str, str], list[Entry]] = defaultdict(list)
    for entry in entries:
        groups[entry.path, entry.mark].append(entry)
    found = []
    for (path, _), group in groups.items():
        alike = len({(e.keeps, e.twice) for e in group}) == 1
        if alike and {e.call for e in group} == set(range(calls.get(path, 1))):
            order, freed = min(e.order for e in group), sum(e.freed_bytes for e in group)
            found.append(replace(group[0], call=None, order=order, freed_bytes=freed))
        else:
            found += _by_call(group)
    return sorted(found, key=lambda e: (e.order, e.name))


def _by_call(group: Sequence[Entry]) -> list[Entry]:
    """One entry for each call: marks in a loop have one name and one row."""
    found: dict[tuple[int | None, Keeps, bool], Entry] = {}
    for entry in group:
        known = found.get((entry.call, entry.keeps, entry.twice))
        more = entry if known is None else replace(known, freed_bytes=known.freed_bytes + entry.freed_bytes)
        found[entry.call, entry.keeps, entry.twice] = more
    return list(found.values())


def key_of(path: str) -> str:
    """The key of the row that a part stands in: the path of the layer that it belongs to."""
    words = path.split(".")
    return next((".".join(words[: i + 1]) for i, word in enumerate(words) if word.isdigit()), "")


def table(entries: Sequence[Entry]) -> list[str]:
    """The lines between the braces of PLAN, each row with the bytes that it frees."""
    rows: dict[str, list[Entry]] = defaultdict(list)
    for entry in entries:
        rows[key_of(entry.name.rpartition(".")[0])].append(entry)
    return [line for key, row in rows.items() for line in _row(key, row)]


def _row(key: str, row: Sequence[Entry]) -> list[str]:
    words = [_from(key, entry) for entry in row]
    freed = f"# {sum(e.freed_bytes for e in row) / MIB:,.1f} MiB"
    line = f'"{key}": "{" ".join(words)}",'
    if len(line) + len(freed) + 6 <= COLUMNS:
        return [f"{line}  {freed}"]
    return [f'"{key}": (  {freed}', *(f'    "{text}"' for text in _folded(words)), "),"]


def _from(key: str, entry: Entry) -> str:
    return (entry.name.removeprefix(f"{key}.") if key else entry.name) + entry.options


def _folded(words: Sequence[str]) -> list[str]:
    """Words in lines, each but the last with a space at its end."""
    lines = [""]
    for word in words:
        if len(lines[-1]) + len(word) + 1 > COLUMNS - 12:
            lines.append("")
        lines[-1] += f"{word} "
    return [*lines[:-1], lines[-1].rstrip()]
