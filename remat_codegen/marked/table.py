"""The table of a file: PLAN, which says module by module what is rebuilt, with the bytes that each row frees.

    PLAN = {
        "h.0": "ln_1 ln_2 attn.probs mlp.gelu",  # 120.0 MiB
        **{f"h.{i}": "attn.probs mlp.gelu" for i in range(1, 12)},  # 108.0 MiB each
    }

A key is a module's path up to the first number in it, so that a layer is a row; what is rebuilt is named from there. `h.0` with
`attn.probs` is the mark `probs` in the forward of `h.0.attn`; with `ln_1`, every call of that module; with `probs#2`, the third
evaluation in a step, and with `probs#2..9`, those from the third to the tenth.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from remat_codegen.ask.budget import format_bytes
from remat_codegen.marked.demand import Again, Keeps

COLUMNS = 120
FEWEST = 3  # equal rows that are written as one
_Written = tuple[str, tuple[str, ...], int]  # a row: its key, its words, and the bytes that it frees


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
    again: Again
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
        return f"{'' if self.number is None else f'#{self.number}'}{self.manner}"

    @property
    def manner(self) -> str:
        """What stands behind its name and number: how it is rebuilt."""
        return "".join(f"/{word}" for word in (self.keeps, self.again, "late" if self.late else "") if word)


def united(entries: Iterable[Entry]) -> list[Entry]:
    """Entries without numbers where all evaluations of one name are alike."""
    groups: dict[tuple[str, str], list[Entry]] = defaultdict(list)
    for entry in entries:
        groups[entry.path, entry.mark].append(entry)
    found = []
    for group in groups.values():
        alike = len({(e.keeps, e.again, e.late) for e in group}) == 1
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


def table(entries: Sequence[Entry], columns: int = COLUMNS) -> list[str]:
    """The lines between the braces of PLAN, each row with the bytes that it frees; equal rows of layers in a row as one. Where
    they stand deeper than four columns, fewer `columns` are left."""
    rows: dict[str, list[Entry]] = defaultdict(list)
    for entry in entries:
        rows[entry.key].append(entry)
    written = [(key, tuple(_words(row)), sum(e.freed_bytes for e in row)) for key, row in rows.items()]
    return [line for run in _runs(written) for line in (_layers(run, columns) if len(run) >= FEWEST else _each(run, columns))]


def _words(row: Sequence[Entry]) -> Iterator[str]:
    """What stands in a row: evaluations of one mark that follow each other, of which the same is said, at once."""
    alike: dict[tuple[str, str], list[Entry]] = defaultdict(list)
    for entry in row:
        alike[entry.name, entry.manner].append(entry)
    spans = {span[0]: span for group in alike.values() for span in _spans(group)}
    for entry, span in ((e, spans[e]) for e in row if e in spans):
        last = f"..{span[-1].number}" if len(span) > 1 else ""
        yield f"{entry.said.removesuffix(entry.manner)}{last}{entry.manner}"


def _spans(entries: Sequence[Entry]) -> Iterator[list[Entry]]:
    """Entries, those together whose numbers follow each other, if they are at least `FEWEST`."""
    span: list[Entry] = []
    for entry in sorted(entries, key=lambda e: e.number or 0):
        if span and (span[-1].number is None or entry.number != span[-1].number + 1):
            yield from [span] if len(span) >= FEWEST else [[e] for e in span]
            span = []
        span.append(entry)
    yield from [span] if len(span) >= FEWEST else [[e] for e in span]


def _runs(rows: Iterable[_Written]) -> Iterator[list[_Written]]:
    """Rows, those together that differ in the number of their layer alone, each of which is one more than the one before."""
    run: list[_Written] = []
    for row in rows:
        if run and not _follows(row, run[-1]):
            yield run
            run = []
        run.append(row)
    if run:
        yield run


def _follows(row: _Written, before: _Written) -> bool:
    (layers, _, number), (others, _, last) = row[0].rpartition("."), before[0].rpartition(".")
    return row[1:] == before[1:] and layers == others and number.isdigit() and last.isdigit() and int(number) == int(last) + 1


def _each(rows: Iterable[_Written], columns: int) -> Iterator[str]:
    for key, words, freed_bytes in rows:
        freed = f"# {format_bytes(freed_bytes)}"
        line = f'"{key}": "{" ".join(words)}",'
        if len(line) + len(freed) + 6 <= columns:
            yield f"{line}  {freed}"
        else:
            yield from (f'"{key}": (  {freed}', *(f'    "{text}"' for text in _folded(words, columns - 12)), "),")


def _layers(run: Sequence[_Written], columns: int) -> Iterator[str]:
    (key, words, freed_bytes), (last, *_) = run[0], run[-1]
    layers, _, first = key.rpartition(".")
    spans = ", ".join(filter(None, ["" if first == "0" else first, str(int(last.rpartition(".")[2]) + 1)]))
    name, among = f'f"{layers}.{{i}}"', f"for i in range({spans})"
    freed = f"# {format_bytes(freed_bytes)} each"
    line = f'**{{{name}: "{" ".join(words)}" {among}}},'
    if len(line) + len(freed) + 6 <= columns:
        yield f"{line}  {freed}"
        return
    yield f"**{{  {freed}"
    if len(line := f'    {name}: "{" ".join(words)}"') + 4 <= columns:
        yield line
    else:
        yield from (f"    {name}: (", *(f'        "{text}"' for text in _folded(words, columns - 16)), "    )")
    yield from (f"    {among}", "},")


def _folded(words: Sequence[str], columns: int) -> list[str]:
    """Words in lines of at most so many columns, each but the last with a space at its end."""
    lines = [""]
    for word in words:
        if len(lines[-1]) + len(word) + 1 > columns:
            lines.append("")
        lines[-1] += f"{word} "
    return [*lines[:-1], lines[-1].rstrip()]
