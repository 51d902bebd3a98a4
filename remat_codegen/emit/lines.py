"""Tidies the lines of a function: what is used once, right away, is written where it is used; nothing outlives its
last use by a wait."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

COLUMNS = 120
WIDEST = 112  # columns; an expression is not moved into a line that it would make longer than this
MOST_AT_ONCE = 3  # names in x = y = kept.forget("x")


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a function body. `defines` are the names that it assigns, `drops` those that it deletes.

    A `view` only looks at memory: nobody misses it if nobody reads it. What a `light` one defines is no tensor, and may stay.
    A `note` is a comment behind it; `unread` is that of a line whose result nobody reads.
    """

    depth: int
    text: str
    defines: tuple[str, ...] = ()
    view: bool = False
    drops: tuple[str, ...] = ()
    light: bool = False
    note: str = ""
    unread: str = ""

    def render(self) -> str:
        """The line as it stands in a function, with its note above it where there is no room behind it."""
        indent = "    " * (self.depth + 1)
        beside = f"{indent}{self.text}  # {self.note}" if self.note else f"{indent}{self.text}"
        return beside if len(beside) <= COLUMNS or not self.note else f"{indent}# {self.note}\n{indent}{self.text}"

    def reads(self, name: str) -> int:
        """How often the line reads a name."""
        if self.drops:
            return 0
        return uses(name, self.text.partition(" = ")[2] if self.defines else self.text)


def drop(depth: int, names: Sequence[str]) -> Line:
    """A line that deletes names."""
    return Line(depth, f"del {', '.join(names)}", drops=tuple(names))


_TEXTS = re.compile(r"\"[^\"\n]*\"|'[^'\n]*'")


def uses(name: str, text: str) -> int:
    """How often a name is used in an expression."""
    return len(_name(name).findall(_without_texts(text)))


@functools.lru_cache(maxsize=4096)
def _without_texts(code: str) -> str:
    """Code with blanks in its strings: the letters of torch.einsum("b l d, d n -> b l n", ...) are no names."""
    return _TEXTS.sub(lambda text: " " * len(text[0]), code)


def _name(name: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![\w.\"']){re.escape(name)}(?![\w\"'])(?!=[^=])")


def tidy(lines: Sequence[Line]) -> list[Line]:
    """All passes, in order."""
    plain = prune(merge_drops(release(index_at_once(inline(without_unused(join_withs(bind(lines))))))))
    plain = without_unused(plain)  # again, for names that only a `del` at the end of the function read
    return return_at_once(bind_forgets(forget_at_once(merge_withs(plain))))


def bind(lines: Sequence[Line]) -> list[Line]:
    """`x = kept.slot("x", f(y))` and `x = kept.stop("x", f(y))`, rather than a line of its own for the slot or the stop."""
    done: list[Line] = []
    for line in lines:
        before = done[-1] if done else None
        bound = None if before is None or before.depth != line.depth else _bound(before, line.text)
        done[-1:] = [bound] if bound is not None else [*done[-1:], line]
    return done


def _bound(before: Line, text: str) -> Line | None:
    """The line that computes a value, with the call that the next line makes with it."""
    name = before.defines[0] if len(before.defines) == 1 else None
    left, _, expression = before.text.partition(" = ")
    if name is None or left != name:
        return None
    stop = f"kept.stop({name!r}, "
    if text == f"kept.slot({name!r}, {name})" and expression.startswith(stop):
        inner = expression.removeprefix(stop).removesuffix(")")
        return replace(before, text=f"{name} = kept.slot({name!r}, {inner}, stop=True)", view=False)
    for verb in ("slot", "stop"):
        if text == f"kept.{verb}({name!r}, {name})":
            return replace(before, text=f"{name} = kept.{verb}({name!r}, {_bare(expression, '(', ')')})", view=False)
    return None


def forget_at_once(lines: Sequence[Line]) -> list[Line]:
    """`with kept.saves("x", forget=True):`, rather than a line of its own behind it."""
    found = list(lines)
    for index in reversed(range(len(found))):
        named = re.fullmatch(r"kept\.forget_saved\((.*)\)", found[index].text)
        if named is None:
            continue
        end = index
        while end > 0 and found[end - 1].depth == found[index].depth and _only_lets_go(found[end - 1]):
            end -= 1
        opening = _block_before(found, end)
        if opening is None:
            continue
        text = found[opening].text.replace(f"kept.saves({named[1]})", f"kept.saves({named[1]}, forget=True)")
        if text != found[opening].text:
            found[opening] = replace(found[opening], text=text)
            del found[index]
    return found


def _only_lets_go(line: Line) -> bool:
    """Whether a line may as well come after its neighbour that forgets: it computes nothing."""
    return bool(line.drops) or line.text.startswith(("kept.forget(", "kept.forget_saved(", "kept.keep("))


def _block_before(lines: Sequence[Line], index: int) -> int | None:
    """The line that opens the block which ends right before a line."""
    inside = index - 1
    while inside >= 0 and lines[inside].depth > lines[index].depth:
        inside -= 1
    return inside if 0 <= inside < index - 1 and lines[inside].depth == lines[index].depth else None


def return_at_once(lines: Sequence[Line]) -> list[Line]:
    """`return f(y)` at the end of a `with`, rather than behind it."""
    if len(lines) < 2:
        return list(lines)
    *rest, before, last = lines
    name = before.defines[0] if len(before.defines) == 1 else None
    opening = _block_before(lines, len(lines) - 1)
    if last.text != f"return {name}" or opening is None or not lines[opening].text.startswith("with kept."):
        return list(lines)
    left, _, expression = before.text.partition(" = ")
    return [*rest, replace(before, text=f"return {expression}", defines=())] if left == name else list(lines)


def bind_forgets(lines: Sequence[Line]) -> list[Line]:
    """`x = y = kept.forget("x")`, which gives None, rather than a `del` of its own for x and its view y."""
    done: list[Line] = []
    for line in lines:
        before = done[-1] if done else None
        forgets = f"kept.forget({line.drops[0]!r})" if 0 < len(line.drops) <= MOST_AT_ONCE else None
        if before is not None and before.text == forgets and before.depth == line.depth:
            done[-1] = replace(before, text=" = ".join([*line.drops, forgets]), defines=line.drops)
            continue
        done.append(line)
    return done


def without_unused(lines: Sequence[Line]) -> list[Line]:
    """Views that nobody reads are left out; other results that nobody reads get no name.

    A part of several that has a `del` of its own keeps its name: until then, it holds the memory that it looks at.
    """
    found = list(lines)
    for index in reversed(range(len(found))):
        line, rest = found[index], found[index + 1 :]
        targets, assigns, expression = line.text.partition(" = ")
        names = targets.split(", ")
        unread = {n for n in line.defines if not _read_later(n, replace(line, defines=()), rest)}
        if unread != {*line.defines}:
            unread = {n for n in unread if _without_drop(rest, n) == rest}
        if not assigns or not unread or not {*line.defines} <= {*names} <= {*line.defines, "_"}:
            continue
        for name in unread:
            found[index + 1 :] = _without_drop(found[index + 1 :], name)
        if unread != {*line.defines}:
            left = ", ".join("_" if n in unread else n for n in names)
            found[index] = replace(
                line, text=f"{left} = {expression}", defines=tuple(n for n in line.defines if n not in unread)
            )
        elif line.view and line.depth in [found[i].depth for i in (index - 1, index + 1) if 0 <= i < len(found)]:
            del found[index]
        else:
            text = _bare(expression, "(", ")")
            note = line.unread if line.depth and not text.startswith("kept.") else ""
            found[index] = replace(line, text=text, defines=(), note=note)
    return found


def inline(lines: Sequence[Line]) -> list[Line]:
    """Moves `x = f(y)` into the next line where that is the only one to use x, and nothing else would be evaluated
    earlier for it. A `return` takes what is returned as it is, however wide."""
    done: list[Line] = []
    rest = list(lines)
    while rest:
        line = rest.pop(0)
        while done:
            merged = _merge(done[-1], line, rest)
            if merged is None:
                break
            rest = _without_drop(rest, done.pop().defines[0])
            line = merged
        done.append(line)
    return done


def index_at_once(lines: Sequence[Line]) -> list[Line]:
    """`x[:a, :b]` rather than `x[:a][:, :b]`, which PyTorch turns into the same calls."""
    return [replace(line, text=_indexed_at_once(line.text)) for line in lines]


_SLICES = r"[^\[\]():,]*:[^\[\]():,]*"
_TWICE = re.compile(rf"\[({_SLICES}(?:, {_SLICES})*)\]\[((?::, )+)")


def _indexed_at_once(text: str) -> str:
    """Two indices as one, where the first has slices only, and the second skips just those."""
    for found in _TWICE.finditer(text):
        if found[1].count(",") + 1 == found[2].count(","):
            return _indexed_at_once(f"{text[: found.start()]}[{found[1]}, {text[found.end() :]}")
    return text


def _merge(first: Line, second: Line, rest: Sequence[Line]) -> Line | None:
    if len(first.defines) != 1 or first.depth != second.depth or second.drops:
        return None
    name = first.defines[0]
    if " = kept." in first.text and second.text != f"return {name}":
        return None
    left, _, expression = first.text.partition(" = ")
    if left != name or second.text.startswith(("with", "yield", "kept.")):
        return None
    start, body = second.text.split(" = ", 1) if second.defines else ("", second.text)
    place = _name(name).search(_without_texts(body))
    if place is None or uses(name, body) != 1 or _read_later(name, second, rest) or ")" in body[: place.start()]:
        return None
    text = body[: place.start()] + _bare(expression, body[: place.start()], body[place.end() :]) + body[place.end() :]
    text = f"{start} = {text}" if start else text
    wide = len(text) + 4 * second.depth > WIDEST and second.text != f"return {name}"
    return None if wide else replace(second, text=text)


def _bare(expression: str, before: str, after: str) -> str:
    """An expression that becomes an argument of its own, without parentheses around it."""
    if not (before.endswith(("(", ", ")) and after.startswith((")", ","))):
        return expression
    depth, inner = 0, expression[1:-1]
    if not (expression.startswith("(") and expression.endswith(")")) or not inner:
        return expression
    for char in inner:
        depth += (char in "([{") - (char in ")]}")
        if depth < 0 or (depth == 0 and char == ","):
            return expression
    return inner


def _read_later(name: str, second: Line, rest: Sequence[Line]) -> bool:
    """Whether a name is read after a line, before it is assigned again."""
    if name in second.defines:
        return False
    for line in rest:
        if line.reads(name):
            return True
        if name in line.defines:
            return False
    return False


def _without_drop(lines: Sequence[Line], name: str) -> list[Line]:
    """The lines without the next `del` of a name, which is not assigned any more."""
    found = list(lines)
    for index, line in enumerate(found):
        if name in line.defines:
            break
        if name in line.drops:
            left = tuple(n for n in line.drops if n != name)
            found[index : index + 1] = [drop(line.depth, left)] if left else []
            break
    return found


def release(lines: Sequence[Line]) -> list[Line]:
    """Deletes, before each `yield`, what is not read after it: a generator's variables would live on while it waits."""
    done: list[Line] = []
    alive: dict[str, None] = {}
    for index, line in enumerate(lines):
        if line.text.startswith("yield"):
            gone = [n for n in alive if not any(later.reads(n) for later in lines[index:]) and not _dropped(n, lines[index:])]
            done += [drop(line.depth, gone)] if gone else []
            for name in gone:
                del alive[name]
        alive |= dict.fromkeys(() if line.light else line.defines)
        for name in line.drops:
            alive.pop(name, None)
        done.append(line)
    return done


def _dropped(name: str, lines: Sequence[Line]) -> bool:
    return any(name in line.drops for line in lines)


def merge_drops(lines: Sequence[Line]) -> list[Line]:
    """One `del` for neighbouring ones."""
    done: list[Line] = []
    for line in lines:
        if line.drops and done and done[-1].drops and done[-1].depth == line.depth:
            done[-1] = drop(line.depth, [*done[-1].drops, *line.drops])
        else:
            done.append(line)
    return done


def prune(lines: Sequence[Line]) -> list[Line]:
    """Without what is deleted right before the function ends anyway."""
    kept = list(lines)
    while kept and kept[-1].drops:
        kept.pop()
    return kept


def join_withs(lines: Sequence[Line]) -> list[Line]:
    """One `with torch...` for equal neighbours, and what is deleted in between. (Autocast's copies end with each `with`.)"""
    done: list[Line] = []
    opened: str | None = None  # the one that the lines before are in
    for line in lines:
        if line.depth == 0 and line.text.startswith("with torch.") and "autocast" not in line.text:
            if line.text != opened:
                done.append(line)
            opened = line.text
        elif line.depth == 0 and not (line.drops and opened):
            opened = None
            done.append(line)
        else:
            done.append(replace(line, depth=max(line.depth, 1)) if opened else line)
    return done


def merge_withs(lines: Sequence[Line]) -> list[Line]:
    """One `with` where another is all that it holds."""
    found = list(lines)
    for index in reversed(range(len(found) - 1)):
        outer, inner = found[index : index + 2]
        if not (outer.text.startswith("with ") and inner.text.startswith("with ") and inner.depth == outer.depth + 1):
            continue
        end = next((i for i in range(index + 1, len(found)) if found[i].depth <= outer.depth), len(found))
        body = found[index + 2 : end]
        if all(line.depth > inner.depth for line in body):
            both = f"{outer.text.removesuffix(':')}, {inner.text.removeprefix('with ')}"
            dedented = [replace(line, depth=line.depth - 1) for line in body]
            found[index:end] = [replace(outer, text=both), *dedented]
    return found
