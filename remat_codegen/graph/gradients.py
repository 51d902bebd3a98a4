"""The lives of gradients while the engine goes back: each piece of memory from where it is made to where nobody holds it.

A step of the way back has the number of the operation that it undoes, the loss that of all operations.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from remat_codegen.torch_seam import key_of_storage, storage_key

LEAST = 16  # bytes: single numbers are the seeds of the way back


@dataclass(frozen=True, slots=True)
class Gradient:
    """What lives from one step of the way back, in which it is `born`, to a later one, in which it has `died`.

    Where others are `added` to it, in these steps, the sum is the same gradient: autograd writes it into the same memory, or
    into new memory and lets go of the old. `of` are the variables whose gradient it is, or a term of that.
    """

    nbytes: int
    born: int
    died: int
    added: tuple[int, ...] = ()
    of: tuple[int, ...] = ()


@dataclass(slots=True)
class Undoing:
    """What a step of the way back does with gradients: the bytes of those that are alive as it begins; the most at once; the
    most when a sum is made of which a term is older, less what has gone by then of what was saved for the step; and what it
    asks for of what was saved, in order: keys of storages, each with the bytes of the gradients that are alive then."""

    first_bytes: int = 0
    most_bytes: int = 0
    added_bytes: int = 0
    asked: list[tuple[int, int]] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class _Life:
    """Of a piece of memory. `terms` are what it is the sum of, if it is one."""

    nbytes: int
    born: int
    died: int | None = None
    ref: Any = None
    added: list[int] = field(default_factory=list)
    of: list[int] = field(default_factory=list)
    terms: tuple[_Life, ...] = ()

    @property
    def replaced(self) -> _Life | None:
        """The first of its terms, where that goes as the sum comes, and was there before this step."""
        first = self.terms[0] if self.terms else None
        goes = first is not None and first.died == self.born != first.born and first.nbytes == self.nbytes
        return first if goes else None


@dataclass(frozen=True, slots=True)
class _Ask:
    """Of memory that was saved."""

    key: int


class Lives:
    """Follows pieces of memory by weak references. `step` says which step it is."""

    def __init__(self, step: Callable[[], int]) -> None:
        self.step = step
        self.alive: dict[int, _Life] = {}  # by the key of a storage
        self._ended: list[_Life] = []
        # What comes or goes in a step, the bytes that go of what is saved for it, what is asked for; None where a sum is made.
        self._changes: list[tuple[_Life | int | _Ask | None, int]] = []

    def begin(self, storage: torch.UntypedStorage) -> None:
        """A new piece of memory."""
        key, life = key_of_storage(storage), _Life(storage.nbytes(), self.step())

        def end(_: Any, life: _Life = life, key: int = key) -> None:
            life.died = self.step()
            self._changes.append((life, life.died))
            self.alive.pop(key, None)
            self._ended.append(life)

        life.ref = weakref.ref(storage, end)
        self.alive[key] = life
        self._changes.append((life, life.born))

    def add_to(self, tensor: torch.Tensor) -> None:
        """Another gradient is added to one in place."""
        if (life := self.alive.get(storage_key(tensor))) is not None:
            life.added.append(self.step())

    def add(self, one: Any, other: Any, total: torch.Tensor) -> None:
        """Two gradients are added in new memory."""
        terms = [self.alive.get(storage_key(t)) if isinstance(t, torch.Tensor) else None for t in (one, other)]
        known, life = tuple(t for t in terms if t is not None), self.alive.get(storage_key(total))
        if life is not None and len(known) == len(terms):
            life.terms = known
            if any(term.born != life.born for term in known):
                self._changes.append((None, self.step()))

    def ask(self, storage: torch.UntypedStorage) -> None:
        """Something that was saved is asked for."""
        self._changes.append((_Ask(key_of_storage(storage)), self.step()))

    def release(self, nbytes: int, step: int) -> None:
        """What was saved for a step goes."""
        if step == self.step():
            self._changes.append((nbytes, step))

    def belongs(self, tensor: torch.Tensor, variable: int) -> None:
        """A gradient, with its terms, is that of a variable."""
        waiting = [self.alive.get(storage_key(tensor))]
        while waiting:
            life = waiting.pop()
            if life is not None and variable not in life.of:
                life.of.append(variable)
                waiting += life.terms

    def stay_but(self, lasting: Iterable[torch.Tensor], until: int | None) -> None:
        """Lets what is alive live until a step, or only where it was born; but for some gradients, which never go."""
        never = {storage_key(t) for t in lasting}
        for life in [life for key, life in self.alive.items() if key not in never]:
            life.died = life.born if until is None else until
            self._ended.append(life)

    def gradients(self) -> list[Gradient]:
        """Those that outlived a step, in the order in which they came. What is never freed is a leaf's own .grad."""
        lasting = [life for life in self._ended if life.died != life.born and life.nbytes > LEAST]
        successors = {id(life.replaced): life for life in lasting if life.replaced is not None}
        firsts = [life for life in lasting if life.replaced is None]
        return [_as_one(list(_chain(life, successors))) for life in sorted(firsts, key=lambda life: -life.born)]

    def undoing(self) -> dict[int, Undoing]:
        """By step: what it does with gradients. Without those that never go, which is what fake tensors make instead of adding
        to a leaf's .grad."""
        found: dict[int, Undoing] = {}
        held, alive, released = 0, set[int](), Counter[int]()
        for change, step in self._changes:
            row = found.setdefault(step, Undoing(held))
            if change is None:
                row.added_bytes = max(row.added_bytes, held - released[step])
            elif isinstance(change, int):
                released[step] += change
            elif isinstance(change, _Ask):
                row.asked.append((change.key, held))
            elif change.died is not None:
                held += change.nbytes if id(change) not in alive else -change.nbytes
                alive ^= {id(change)}
                row.most_bytes = max(row.most_bytes, held)
        return found


def _chain(life: _Life | None, successors: dict[int, _Life]) -> Iterator[_Life]:
    while life is not None:
        yield life
        life = successors.get(id(life))


def _as_one(chain: list[_Life]) -> Gradient:
    first, last = chain[0], chain[-1]
    added = [step for life in chain for step in (*([] if life is first else [life.born]), *life.added)]
    assert last.died is not None
    return Gradient(first.nbytes, first.born, last.died, tuple(added), tuple(last.of))
