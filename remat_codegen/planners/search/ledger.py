"""An order whose memory is kept up to date as runs are added and taken out: what `lives` recounts, this changes in place.

As in Checkmate, time is made of stages: stage t ends with the first run of node t, and before it, after the loss, forward nodes
may run again, in their order. A run is its *key*, t * stride + node (the stage's own node comes last), so that the keys of an
order are sorted and no key moves when others come and go. A data node is alive from a run that writes it to the last key that
reads that copy, as `with_forgets` frees it; `memory` says what `simulate` would, position by position.

`add` and `remove` are each other's inverse, so a move that does not pay is taken back by the log. Both cost a few slices of
`memory` for each data node that the run reads or writes. Oracle: `simulate` (tests on random graphs and random moves).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Sequence

import numpy as np

from remat_codegen.schedule.lives import Order, Problem

NEVER = 1 << 62
SPARE = 1.5  # how much longer the array of memory is made than it has to be


class Ledger:
    """An order over a problem. `work` counts what was looked at and changed since the beginning."""

    def __init__(self, problem: Problem, keys: Iterable[int] = ()) -> None:
        self.problem = problem
        self.stride = len(problem.plain) + 1
        self.work = 0
        self.noise = np.random.default_rng(1)
        self.free = [problem.from_forward[d] and problem.movable(d) and problem.size[d] > 0 for d in range(len(problem.size))]
        self.touches = [
            tuple(d for d in {**dict.fromkeys(w), **dict.fromkeys(r)} if self.free[d])
            for w, r in zip(problem.writes, problem.reads, strict=True)
        ]
        self.written = [sum(problem.size[d] for d in w) + problem.workspace[n] for n, w in enumerate(problem.writes)]
        self.reset(keys)

    # ------------------------------------------------------------------ orders and keys

    def own(self, node: int) -> int:
        """The key of a node's first run."""
        return node * self.stride + self.stride - 1

    def stage(self, key: int) -> int:
        """The node whose stage a key lies in."""
        return key // self.stride

    def node(self, key: int) -> int:
        """The node that runs."""
        stage, node = divmod(key, self.stride)
        return stage if node == self.stride - 1 else node

    def repeated(self, key: int) -> bool:
        """Whether it is not a first run."""
        return key % self.stride != self.stride - 1

    def order(self) -> Order:
        """The order of node ids."""
        return tuple(map(self.node, self.keys))

    def repeats(self) -> tuple[int, ...]:
        """The keys of the runs that are not first ones: with them, an order is known."""
        return tuple(filter(self.repeated, self.keys))

    def keys_of(self, order: Sequence[int]) -> list[int]:
        """The repeats of an order, sorted into stages. Where a node runs twice in one stage, once is kept."""
        found: list[int] = []
        pending: list[int] = []
        reached = -1
        for node in order:
            if node > reached:
                reached = node
                found.extend(sorted({node * self.stride + i for i in pending}))
                pending = []
            else:
                pending.append(node)
        return found

    def reset(self, repeats: Iterable[int] = ()) -> None:
        """Starts anew, with these repeats (keys)."""
        problem = self.problem
        self.log: list[tuple[bool, int]] = []
        self.keys = sorted([*map(self.own, problem.plain), *repeats])
        self.runs: list[list[int]] = [[] for _ in problem.plain]
        self.readers: list[list[int]] = [[] for _ in problem.size]
        self.time = 0
        for key in self.keys:
            node = self.node(key)
            self.runs[node].append(key)
            self.time += problem.time[node]
            for data in problem.reads[node]:
                self.readers[data].append(key)
        for data in problem.outputs:
            self.readers[data].append(NEVER)
        self.memory = np.zeros(int(len(self.keys) * SPARE) + 64, dtype=np.int64)
        self.memory[: len(self.keys)] = self._count()
        self._gap_tables()
        self.work += 4 * len(self.keys)

    def _count(self) -> np.ndarray:
        problem, keys = self.problem, self.keys
        change = [0] * (len(keys) + 1)
        position = {key: i for i, key in enumerate(keys)}
        position[NEVER] = len(keys) - 1
        for data, readers in enumerate(self.readers):
            if not problem.from_forward[data]:
                continue
            creates = self.runs[problem.producer[data]]
            for index, key in enumerate(creates):
                following = creates[index + 1] if index + 1 < len(creates) else NEVER + 1
                last = bisect_left(readers, following) - 1
                end = readers[last] if last >= 0 and readers[last] > key else key
                change[position[key]] += problem.size[data]
                change[position[end] + 1] -= problem.size[data]
        beside = [problem.workspace[self.node(key)] for key in keys]
        for i, key in enumerate(keys):
            stage = self.stage(key)
            beside[i] += problem.backward_before[stage] if self.repeated(key) else problem.backward_during[stage]
        return np.cumsum(np.array(change[:-1], dtype=np.int64)) + np.array(beside, dtype=np.int64)

    @property
    def peak(self) -> int:
        """The most that is alive at once."""
        return most(self.memory[: len(self.keys)])

    def position(self, key: int) -> int:
        """Where a key stands, or would stand."""
        return len(self.keys) - 1 if key == NEVER else bisect_left(self.keys, key)

    # ------------------------------------------------------------------ copies

    def touched_before(self, data: int, key: int) -> int:
        """The last key before another one that writes or reads a data node."""
        readers, runs = self.readers[data], self.runs[self.problem.producer[data]]
        read = bisect_left(readers, key)
        made = runs[bisect_left(runs, key) - 1]
        return max(readers[read - 1], made) if read else made

    def made_after(self, data: int, key: int) -> int:
        """The next key that writes it."""
        runs = self.runs[self.problem.producer[data]]
        index = bisect_right(runs, key)
        return runs[index] if index < len(runs) else NEVER + 1

    def read_after(self, data: int, key: int) -> int | None:
        """The next key that reads the copy that is there at a key; None if it is not needed any more."""
        readers = self.readers[data]
        index = bisect_right(readers, key)
        if index == len(readers):
            return None
        found = readers[index]
        return found if found < self.made_after(data, key) else None

    # ------------------------------------------------------------------ moves

    def add(self, key: int) -> None:
        """Runs a forward node once more. What it reads is held until then."""
        problem, node, memory, keys = self.problem, self.node(key), self.memory, self.keys
        count = len(keys)
        if count + 1 >= len(memory):
            self.memory = memory = np.concatenate((memory, np.zeros(len(memory), dtype=np.int64)))
        p = bisect_left(keys, key)
        follower = keys[p]
        after = self.node(follower)
        through = int(memory[p]) - self.written[after]
        if not self.repeated(follower):
            through -= problem.backward_during[after] - problem.backward_before[after]
        memory[p + 1 : count + 1] = memory[p:count]
        keys.insert(p, key)
        memory[p] = through + self.written[node]
        for data in problem.writes[node]:
            if self.read_after(data, key) is not None:  # the copy of before need not be held until here
                end = self.position(self.touched_before(data, key))
                memory[end + 1 : p + 1] -= problem.size[data]
        insort(self.runs[node], key)
        for data in problem.reads[node]:
            if self.read_after(data, key) is None:
                end = self.position(self.touched_before(data, key))
                memory[end + 1 : p + 1] += problem.size[data]
            insort(self.readers[data], key)
        self._changed(node)
        self.time += problem.time[node]
        self.log.append((True, key))
        self.work += 8 + len(problem.reads[node])

    def remove(self, key: int) -> None:
        """Takes a repeat out. What it wrote is held from before."""
        problem, node, memory, keys = self.problem, self.node(key), self.memory, self.keys
        p, count = bisect_left(keys, key), len(keys)
        for data in problem.reads[node]:
            readers = self.readers[data]
            del readers[bisect_left(readers, key)]
            if self.read_after(data, key) is None:
                end = self.position(self.touched_before(data, key))
                memory[end + 1 : p + 1] -= problem.size[data]
        runs = self.runs[node]
        del runs[bisect_left(runs, key)]
        for data in problem.writes[node]:
            if self.read_after(data, key) is not None:
                end = self.position(self.touched_before(data, key))
                memory[end + 1 : p] += problem.size[data]
        memory[p : count - 1] = memory[p + 1 : count]
        del keys[p]
        self._changed(node)
        self.time -= problem.time[node]
        self.log.append((False, key))
        self.work += 8 + len(problem.reads[node])

    def take_out(self, key: int) -> None:
        """Removes a repeat and the repeats that only it needed."""
        pending = [key]
        while pending:
            key = pending.pop()
            reads = self.problem.reads[self.node(key)]
            self.remove(key)
            pending.extend(dict.fromkeys(c for d in reads if (c := self._made_for_nothing(d, key)) is not None))

    def _made_for_nothing(self, data: int, key: int) -> int | None:
        """The repeat that wrote a data node, if nothing that it wrote is read."""
        runs = self.runs[self.problem.producer[data]]
        made = runs[bisect_left(runs, key) - 1]
        return made if self.repeated(made) and self.useless(made) else None

    def useless(self, key: int) -> bool:
        """Whether nothing reads what a repeat writes."""
        return all(self.read_after(d, key) is None for d in self.problem.writes[self.node(key)])

    def fits_without(self, key: int, limit: int) -> bool:
        """Whether there is room to hold what a repeat writes instead of running it; its inputs may then end earlier, which is
        not looked at."""
        self.work += 4
        p = bisect_left(self.keys, key)
        held: list[tuple[int, int]] = []
        for data in self.problem.writes[self.node(key)]:
            if self.read_after(data, key) is not None:
                held.append((self.position(self.touched_before(data, key)) + 1, self.problem.size[data]))
        if not held:
            return True
        if len(held) == 1:
            start, nbytes = held[0]
            return start >= p or most(self.memory[start:p]) + nbytes <= limit
        start = min(s for s, _ in held)
        if start >= p:
            return True
        row = self.memory[start:p].copy()
        for begin, nbytes in held:
            row[begin - start :] += nbytes
        return most(row) <= limit

    def undo(self, mark: int) -> None:
        """Takes back all that the log holds beyond a mark."""
        while len(self.log) > mark:
            added, key = self.log.pop()
            (self.remove if added else self.add)(key)
            self.log.pop()

    # ------------------------------------------------------------------ gaps

    def _gap_tables(self) -> None:
        """All stretches between two touches of a copy, the second a read, of what may be dropped and rebuilt: a row each."""
        self.rows: list[list[int]] = [[] for _ in self.problem.size]
        self.known: list[list[tuple[int, int]]] = [[] for _ in self.problem.size]  # what the rows say
        self.idle_rows: list[int] = []
        self.gap_start = np.full(64, NEVER, dtype=np.int64)
        self.gap_end = np.full(64, -1, dtype=np.int64)
        self.gap_run = np.full(64, -1, dtype=np.int64)  # the key of the run that rebuilds what a gap drops
        self.gap_size = np.zeros(64, dtype=np.int64)
        self.gap_price = np.ones(64, dtype=np.float64)
        self.used = 0
        self.changed: dict[int, None] = {d: None for d, free in enumerate(self.free) if free}

    def _changed(self, node: int) -> None:
        """Remembers whose gaps have to be looked for again, once somebody asks."""
        for data in self.touches[node]:
            self.changed[data] = None

    def gaps(self) -> None:
        """Brings the table of gaps up to date."""
        for data in self.changed:
            self._refresh(data)
        self.work += len(self.changed)
        self.changed = {}

    def _refresh(self, data: int) -> None:
        made = self.runs[self.problem.producer[data]]
        loss, reads = self.own(self.problem.loss), self.readers[data]
        found = []
        index, last = 0, 0
        for key in reads:
            while index < len(made) and made[index] < key:
                last = made[index]
                index += 1
            if key > loss:
                found.append((last, key))
            last = key
        rows, known = self.rows[data], self.known[data]
        if found == known:
            return
        self.known[data] = found
        while len(rows) > len(found):
            row = rows.pop()
            self.gap_end[row] = self.gap_run[row] = -1
            self.idle_rows.append(row)
        while len(rows) < len(found):
            rows.append(self.idle_rows.pop() if self.idle_rows else self._row())
        stride, maker, size = self.stride, self.problem.producer[data], self.problem.size[data]
        price = self.problem.time[maker] + 1
        for place, (row, gap) in enumerate(zip(rows, found, strict=True)):
            if place >= len(known) or known[place] != gap:
                start, end = gap
                self.gap_start[row], self.gap_end[row], self.gap_run[row] = start, end, end // stride * stride + maker
                self.gap_size[row], self.gap_price[row] = size, price

    def _row(self) -> int:
        if self.used == len(self.gap_end):
            for name in ("gap_start", "gap_end", "gap_run", "gap_size", "gap_price"):
                column = getattr(self, name)
                setattr(self, name, np.concatenate((column, column)))  # a row is filled in before it is looked at
        self.used += 1
        return self.used - 1

    def gaps_over(self, key: int) -> np.ndarray:
        """The rows of the gaps that a key lies in, and that are rebuilt after it."""
        self.gaps()
        self.work += 8
        return ((self.gap_start[: self.used] < key) & (self.gap_run[: self.used] > key)).nonzero()[0]

    def split(self, row: int, limit: int) -> bool:
        """Drops a data node over a gap. What rebuilding it reads is held where there is room, else rebuilt as well. False, and
        something half made for the log to undo, if it cannot be rebuilt."""
        first = int(self.gap_run[row])
        if first <= self.gap_start[row]:
            return False
        return self._run_at(first, limit)

    def _run_at(self, key: int, limit: int) -> bool:
        pending = [key]
        while pending:
            key = pending.pop()
            node = self.node(key)
            if node in self.problem.once:
                return False
            runs = self.runs[node]
            at = bisect_left(runs, key)
            if at < len(runs) and runs[at] == key:
                continue
            lost = [d for d in self.problem.reads[node] if self.read_after(d, key - 1) is None]
            self.add(key)
            stage = key - node
            for data in lost:
                start = self.position(self.touched_before(data, key)) + 1
                part = self.memory[start : bisect_left(self.keys, key) + 1]
                producer = self.problem.producer[data]
                if producer in self.problem.once or (len(part) and most(part) <= limit):
                    continue  # there is room to hold it
                pending.append(stage + producer)
        return True


def most(row: np.ndarray) -> int:
    """The largest number of a row. (Its own method looks at more of what it may be asked, which takes longer than the row.)"""
    return int(np.maximum.reduce(row))
