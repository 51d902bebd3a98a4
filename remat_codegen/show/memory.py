"""Memory over time, as a picture: what is alive during a training step, with a plan and without. SVG by hand, so that it needs
nothing and looks the same everywhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from remat_codegen.ask.budget import format_bytes
from remat_codegen.graph.ir import Graph
from remat_codegen.profile.costs import Profile
from remat_codegen.schedule import Compute, Schedule, simulate

WIDTH, HEIGHT = 720, 260
LEFT, RIGHT, TOP, BOTTOM = 76, 12, 28, 36  # margins
MOST_POINTS = 600  # of a curve: more would not be seen


@dataclass(frozen=True, slots=True)
class Curve:
    """Bytes that are alive over a step's time: one (nanoseconds, bytes) for each node that runs, at its end."""

    points: tuple[tuple[int, int], ...]

    @property
    def end_ns(self) -> int:
        """The step's time."""
        return self.points[-1][0] if self.points else 0


def curve(graph: Graph, profile: Profile, schedule: Schedule) -> Curve:
    """What the simulator says is alive while each node of a schedule runs."""
    timeline = simulate(graph, profile, schedule)
    found, now = [], 0
    for step, during in zip(schedule.steps, timeline.during_bytes, strict=True):
        if isinstance(step, Compute):
            now += profile.time_ns[step.node]
            found.append((now, during))
    return Curve(tuple(found))


def picture(plan: Curve, plain: Curve, budget_bytes: int) -> str:
    """The step with the plan, beside the one without, as an SVG element."""
    frame = _Frame(max(plan.end_ns, plain.end_ns, 1), max(*(b for _, b in (*plan.points, *plain.points)), budget_bytes, 1))
    about = "memory of a training step over its time, with the plan and without"
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'role="img" font-family="sans-serif" font-size="11"><title>{about}</title>'
    )
    parts = [
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        *frame.axes(),
        frame.area(plain, "#bbbbbb", 0.45),
        frame.area(plan, "#2a78d6", 0.55),
        frame.level(budget_bytes, f"budget {format_bytes(budget_bytes)}"),
        *_legend(),
    ]
    return "".join([head, *parts, "</svg>"])


def _legend() -> list[str]:
    rows = ((LEFT, "#2a78d6", "with the plan"), (LEFT + 110, "#bbbbbb", "without recomputation"))
    return [
        f'<rect x="{x}" y="9" width="10" height="10" fill="{colour}"/><text x="{x + 15}" y="18">{text}</text>'
        for x, colour, text in rows
    ]


@dataclass(frozen=True, slots=True)
class _Frame:
    """The picture's scales: times from the left, bytes from below."""

    end_ns: int
    top_bytes: int

    def x(self, time_ns: float) -> float:
        return round(LEFT + (WIDTH - LEFT - RIGHT) * time_ns / self.end_ns, 1)

    def y(self, nbytes: float) -> float:
        return round(HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * nbytes / (1.05 * self.top_bytes), 1)

    def axes(self) -> list[str]:
        """Lines at four levels, and the times at both ends."""
        found = []
        for quarter in range(5):
            level = self.top_bytes * quarter // 4
            y = self.y(level)
            found.append(f'<path d="M{LEFT} {y}H{WIDTH - RIGHT}" stroke="#e4e4e4"/>')
            found.append(f'<text x="{LEFT - 6}" y="{y + 4}" text-anchor="end">{format_bytes(level)}</text>')
        for time_ns, anchor in ((0, "start"), (self.end_ns, "end")):
            text = f"{time_ns / 1e6:.1f} ms"
            found.append(f'<text x="{self.x(time_ns)}" y="{HEIGHT - 16}" text-anchor="{anchor}">{text}</text>')
        return found

    def area(self, curve: Curve, colour: str, opacity: float) -> str:
        """What is alive, filled down to nothing."""
        steps = "".join(f"V{self.y(nbytes)}H{self.x(end)}" for end, nbytes in _thinned(curve.points, self.end_ns))
        shape = f"M{LEFT} {self.y(0)}{steps}V{self.y(0)}Z"
        return f'<path d="{shape}" fill="{colour}" fill-opacity="{opacity}" stroke="{colour}"/>'

    def level(self, nbytes: int, text: str) -> str:
        """A dashed line with words above it."""
        y = self.y(nbytes)
        line = f'<path d="M{LEFT} {y}H{WIDTH - RIGHT}" stroke="#c0392b" stroke-dasharray="5 3" fill="none"/>'
        return f'{line}<text x="{WIDTH - RIGHT - 4}" y="{y - 4}" text-anchor="end" fill="#c0392b">{escape(text)}</text>'


def _thinned(points: Sequence[tuple[int, int]], end_ns: int) -> list[tuple[int, int]]:
    """A curve with no more points than can be seen: of those that fall together, the highest."""
    slot = max(1, -(-end_ns // MOST_POINTS))
    found: dict[int, tuple[int, int]] = {}
    for end, nbytes in points:
        _, most = found.get(end // slot, (0, 0))
        found[end // slot] = end, max(most, nbytes)
    return list(found.values())
