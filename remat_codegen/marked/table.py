"""The table of a file: PLAN, which says module by module what is rebuilt, with the bytes that each row frees.

    PLAN = {
        "h.0": "ln_1 ln_2 attn.probs mlp.gelu",  # 120.0 MiB
    }

A key is a module's path up to the first number in it, so that a layer is a row; what is rebuilt is named from there. `h.0` with
`attn.probs` is the mark `probs` in the forward of `h.0.attn`; with `ln_1`, every call of that module.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from remat_codegen.budget import format_bytes
from remat_codegen.marked.demand import Keeps

COLUMNS = 120


@dataclass(frozen=True, slots=True)
class Entry:
    """One part, or all of one name. `path` is a module's, `mark` the name of a mark in its forward, empty for its calls.

    `number` says which evaluation of them this is in a step, None for all `times`. `freed_bytes` are not held between forward
    and backward; `order` is what entries are sorted by.
    """

    path: str
    mark: str
    number: int | None
    times: int
    keeps: Keeps
    twice: bool
    late: bool
    freed_bytes: int
    order: int

    @property
    def name(self) -> str:
        """What the helpers call it."""
        return f"{self.path}.{self.mark}".strip(".") if self.mark else self.path

    @property
    def key(self) -> str:
        """The key of its row."""
        return key_of(self.name.rpartition(".")[0])

    @property
    def said(self) -> str:
        """What stands in its row."""
        return (self.name.removeprefix(f"{self.key}.") if self.key else self.name) + self.options

    @property
    def options(self) -> str:
        """What stands behind its name."""
        number = "" if self.number is None else f"#{self.number}"
        words = [self.keeps, "twice" if self.twice else "", "late" if self.late else ""]
        return "/".join([number, *filter(None, words)])


def united(entries: Iterable[Entry]) -> list[Entry]:
    """Entries without numbers where all evaluations of one name are alike."""
    groups: dict[tuple[str, str], list[Entry]] = defaultdict(list)
    for entry in entries:
        groups[entry.path, entry.mark].append(entry)
    found = []
    for group in groups.values():
        alike = len({(e.keeps, e.twice, e.late) for e in group}) == 1
        if alike and len({e.number for e in group}) == group[0].times:
            order, freed = min(e.order for e in group), sum(e.freed_bytes for e in group)
            found.append(replace(group[0], number=None, order=order, freed_bytes=freed))
        else:
            found += group
    return sorted(found, key=lambda e: (e.order, e.name))


def key_of(path: str) -> str:
    """The key of the row that a part stands in: the path of the layer that it belongs to."""
    words = path.split(".")
    return next((".".join(words[: i + 1]) for i, word in enumerate(words) if word.isdigit()), "")


def table(entries: Sequence[Entry]) -> list[str]:
    """The lines between the braces of PLAN, each row with the bytes that it frees."""
    rows: dict[str, list[Entry]] = defaultdict(list)
    for entry in entries:
        rows[entry.key].append(entry)
    return [line for key, row in rows.items() for line in _row(key, row)]


def _row(key: str, row: Sequence[Entry]) -> list[str]:
    words = [entry.said for entry in row]
    freed = f"# {format_bytes(sum(e.freed_bytes for e in row))}"
    line = f'"{key}": "{" ".join(words)}",'
    if len(line) + len(freed) + 6 <= COLUMNS:
        return [f"{line}  {freed}"]
    return [f'"{key}": (  {freed}', *(f'    "{text}"' for text in _folded(words)), "),"]


def _folded(words: Sequence[str]) -> list[str]:
    """Words in lines, each but the last with a space at its end."""
    lines = [""]
    for word in words:
        if len(lines[-1]) + len(word) + 1 > COLUMNS - 12:
            lines.append("")
        lines[-1] += f"{word} "
    return [*lines[:-1], lines[-1].rstrip()]
