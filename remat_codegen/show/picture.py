"""The picture of a comparison: overhead against peak for each planner, the lower bound as a line. Needs matplotlib."""

from __future__ import annotations

import importlib.util
import io
from pathlib import Path
from typing import Any

from remat_codegen.errors import OutputError
from remat_codegen.run.comparison import Compared
from remat_codegen.run.planning import lower_bound, peak_of

SUFFIXES = (".svg", ".png")
MARKERS = "osD^v<>pPX*hd8"


def check_picture(path: Path) -> None:
    """Raises OutputError where `draw` could not write such a file: to be known before the work, not after."""
    if path.suffix.lower() not in SUFFIXES:
        hint = f"name it like {path.stem or 'picture'}.svg"
        raise OutputError("is neither an .svg nor a .png", where=str(path), hint=hint)
    if importlib.util.find_spec("matplotlib") is None:
        raise OutputError("pictures need matplotlib", where=str(path), hint="pip install 'remat-codegen[plot]'")


def draw(compared: Compared, path: Path, measured: list[dict[str, Any]] | None = None) -> bytes:
    """The picture as a file's bytes, the same for the same comparison: no date, no random ids."""
    import matplotlib

    settings: Any = {"svg.hashsalt": "remat-codegen", "svg.fonttype": "none", "font.size": 9, "backend": "agg"}
    with matplotlib.rc_context(settings):
        figure = _figure(compared, measured or [])
        buffer = io.BytesIO()
        kind = path.suffix.lower()[1:]
        figure.savefig(buffer, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else {"Software": None})
    return buffer.getvalue()


def _figure(compared: Compared, measured: list[dict[str, Any]]) -> Any:
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5), layout="constrained")
    axes = figure.subplots()
    colours = colormaps["tab20"].colors  # type: ignore[attr-defined]
    found = compared.found
    drawn: list[float] = []
    for number, (name, outcomes) in enumerate(compared.outcomes.items()):
        style = {"color": colours[number % len(colours)], "marker": MARKERS[number % len(MARKERS)]}
        points = sorted((peak_of(found, o) or 0, o.overhead(found.plain_ns)) for o in outcomes if o.fits)
        shares = [100 * peak / max(found.plain_bytes, 1) for peak, _ in points]
        drawn.extend(100 * (overhead or 0.0) for _, overhead in points)
        axes.plot(shares, [100 * (o or 0.0) for _, o in points], label=name, markersize=4, linewidth=1, **style)
    _mark_infeasible(axes, compared, colours)
    _draw_bound(axes, compared)
    for number, row in enumerate(r for r in measured if r.get("ratio") is not None):
        drawn.append(100 * (row["ratio"] - 1))
        share = 100 * row["peak_bytes"] / max(found.plain_bytes, 1)
        axes.plot([share], [drawn[-1]], "k", marker=MARKERS[number % len(MARKERS)], linestyle="", markerfacecolor="none")
        axes.annotate(row["name"], (share, drawn[-1]), fontsize=6, xytext=(3, 3), textcoords="offset points")
    _frame(axes, compared, drawn)
    figure.legend(loc="outside right upper", fontsize=8, frameon=False)
    return figure


def _mark_infeasible(axes: Any, compared: Compared, colours: Any) -> None:
    """A cross above the axes for each budget within which a planner finds nothing, one row for each planner."""
    for number, outcomes in enumerate(compared.outcomes.values()):
        shares = [100 * o.budget_bytes / max(compared.found.plain_bytes, 1) for o in outcomes if not o.fits]
        height = [1.02 + 0.02 * number] * len(shares)
        colour = colours[number % len(colours)]
        axes.plot(shares, height, "x", color=colour, markersize=4, transform=axes.get_xaxis_transform(), clip_on=False)


def _draw_bound(axes: Any, compared: Compared) -> None:
    known = [(limit, lower_bound(compared.found, compared.least(i))) for i, limit in enumerate(compared.limits)]
    points = sorted((100 * limit / max(compared.found.plain_bytes, 1), 100 * b) for limit, b in known if b is not None)
    # Between two budgets only the larger one's bound is proved.
    axes.step([x for x, _ in points], [y for _, y in points], "k--", where="pre", linewidth=1.2, label="lower bound")


def _frame(axes: Any, compared: Compared, drawn: list[float]) -> None:
    """Scales and labels. The plans worth looking at fill the picture; much slower ones leave it at the top."""
    least = [lower_bound(compared.found, compared.least(i)) for i in range(len(compared.budgets))]
    worth = max([100 * b for b in least if b is not None], default=0.0)
    top = max(drawn, default=1.0)
    axes.set_ylim(-0.02 * min(top, 3 * worth + 20), 1.05 * min(top, 3 * worth + 20) + 1e-6)
    axes.set_xlabel("peak memory, % of the unmodified step (x: no plan within this budget)")
    axes.set_ylabel("extra time, %")
    axes.grid(linewidth=0.3)
    rows = len(compared.outcomes)
    axes.set_title(compared.found.label, pad=8 + 6 * rows, fontsize=9)
