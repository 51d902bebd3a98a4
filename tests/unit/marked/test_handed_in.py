"""Parts of an expression alone: what else is evaluated in it is handed in. And what is kept until the backward pass read it."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from second_edition import found_in, planned_peak, random_rows, text_of, traced_module, trained
from torch import nn

from remat_codegen.marked.candidates import Candidate, Row
from remat_codegen.marked.choose import OPTIONS
from remat_codegen.marked.demand import Keeps
from remat_codegen.marked.reading import read
from remat_codegen.marked.rows import rows_of
from remat_codegen.run import tabling

STATE_BYTES = 5056


class Residual(nn.Module):
    """Changes in place what its second norm gives; one shortcut makes operations, the other none."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(before, after, 3, padding=1), nn.Conv2d(after, after, 3, padding=1)
        self.norm1, self.norm2, self.act = nn.BatchNorm2d(after), nn.BatchNorm2d(after), nn.ReLU(inplace=True)
        self.shortcut: nn.Module = nn.Conv2d(before, after, 1) if before != after else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.silu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        y += self.shortcut(x)
        return self.act(y)


class Skips(nn.Module):
    """Reads some values at two places that lie apart."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.ModuleList([Residual(4, 8), Residual(8, 8)]), nn.ModuleList([Residual(16, 8), Residual(16, 4)])
        self.drop, self.mix, self.norm = nn.Dropout(0.2), nn.Conv2d(4, 4, 1), nn.GroupNorm(2, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skips = []
        for block in self.down:
            x = block(x)
            skips.append(x)
        for block in self.up:
            x = block(torch.cat([x, skips.pop()], 1))
        return x + self.drop(self.norm(torch.sin(self.mix(x)))).exp()


@pytest.fixture(scope="module")
def traced():
    torch.manual_seed(0)
    return traced_module(Skips().train(), (torch.randn(2, 4, 24, 24),), {}, Path(__file__))


@pytest.mark.parametrize("seed", range(6))
def test_any_table_is_exact_and_read_back(traced, seed, tmp_path):
    found = found_in(traced)
    rows = random_rows(found, random.Random(seed), 0.5)
    text = text_of(traced, found, rows)
    compared = trained(traced, text, tmp_path)
    assert compared.identical, compared.differences
    reading = read(text, tabling.carried_sources(traced))
    again, problems = rows_of(reading, found)
    assert not reading.problems and not problems
    assert set(rows) == set(again)


@pytest.mark.parametrize("seed", range(4))
def test_parts_beside_each_other_take_what_the_simulator_says(traced, seed, tmp_path):
    """Each node alone, as far as there is such a part."""
    found, rng = found_in(traced), random.Random(seed)
    smallest = (next(iter(found.candidates.around(n.id)), None) for n in traced.graph.forward_nodes)
    nodes = list(dict.fromkeys(c for c in smallest if c is not None))
    chosen: list[Candidate] = []
    for candidate in rng.sample(nodes, len(nodes) * 2 // 3):
        if all(candidate.last < c.first or c.last < candidate.first for c in chosen):
            chosen.append(candidate)
    options = [o for o in OPTIONS if o[0] is Keeps.NOTHING]
    alone = [o for o in options if len(o) < 3 or not o[2]]  # of several, none is late
    rows = tuple(Row(c, *rng.choice(options if len(c.vertices) == 1 else alone)) for c in chosen)
    compared = trained(traced, text_of(traced, found, rows), tmp_path)
    assert compared.identical, compared.differences
    assert compared.measured_peak_bytes <= planned_peak(traced, found, rows) + 4096 + STATE_BYTES * (len(rows) + 1)


def test_each_layer_is_marked_in_the_same_way(traced):
    """In one a shortcut makes operations, in the other none: `y += self.shortcut(x)` is one mark all the same."""
    found = found_in(traced)
    ends = [c for c in found.candidates.all if any("norm2" in str(v.called) for v in c.vertices) and len(c.vertices) > 1]
    assert sorted(len(c.vertices) for c in ends) == [3, 4, 4, 4]
    text = text_of(traced, found, tuple(map(Row, ends)))
    assert 'part("y", lambda y, shortcut: y.add_(shortcut), y, self.shortcut(x))' in text


def test_what_is_handed_in_does_not_run_again(traced):
    """`F.silu(self.norm1(self.conv1(x)))` without the norm, and so on."""
    found = found_in(traced)
    text = text_of(traced, found, tuple(Row(c) for c in found.several if len(c.vertices) == 1 and c.vertices[0].outside))
    assert 'part("y", F.silu, self.norm1(self.conv1(x)))' in text
    assert '"exp", lambda norm: self.drop(norm).exp(), self.norm(' in text


class Sum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, y: torch.Tensor | float) -> torch.Tensor:
        y += self.mix(x)
        return torch.sin(y)


class Sums(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.sums = nn.ModuleList([Sum(), Sum()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor | float = 0.5
        for layer in self.sums:
            y = layer(x, y)
        return y


def test_a_number_is_not_changed_in_place():
    """In the first layer y is a number: `y += x` is not marked, for the text is the same for both."""
    traced = traced_module(Sums().train(), (torch.randn(4, 8),), {}, Path(__file__))
    spans = {v.text.span[0] for c in found_in(traced).candidates.all for v in c.vertices if v.text is not None}
    source = traced.target.source.split("\n")
    assert spans and not any("+=" in source[line - 1] for line in spans)


class TopDown(nn.Module):
    """Takes levels out of lists by what is counted, while other entries are set."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList(nn.Conv2d(4, 4, 3, 2, 1) for _ in range(3))
        self.over = nn.ModuleList(nn.Conv2d(4, 4, 3, padding=1) for _ in range(3))

    def weigh(self, levels: list[torch.Tensor]) -> torch.Tensor:
        return torch.tanh(levels[0] * 0.5 + levels[1].sin())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        levels = [x]
        for conv in self.down:
            levels.append(conv(levels[-1]))
        found: list[torch.Tensor] = [*levels]
        i = len(levels) - 2
        while i >= 0:
            up = F.interpolate(found[i + 1].sigmoid(), size=levels[i].shape[-2:], mode="nearest")
            found[i] = torch.sigmoid(self.over[i](self.weigh([levels[i], up]))) * found[i + 1].mean()
            i -= 1
        return found[0].exp().sum()


@pytest.mark.parametrize("seed", range(4))
def test_entries_at_numbers_that_are_counted_are_handed_in(seed, tmp_path):
    torch.manual_seed(0)
    one = traced_module(TopDown().train(), (torch.randn(2, 4, 16, 16),), {}, Path(__file__))
    found = found_in(one)
    rows = random_rows(found, random.Random(seed), 0.8)
    text = text_of(one, found, rows)
    result = trained(one, text, tmp_path)
    assert result.identical, result.differences
    spans = {v.text.span for c in found.candidates.all for v in c.vertices if v.text is not None}
    lines = Path(__file__).read_text().split("\n")
    assert any(lines[line - 1][column:].startswith("F.interpolate(found[i + 1]") for line, column, *_ in spans)
