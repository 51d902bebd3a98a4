"""What the step takes as the model is written, where its forward checkpoints by itself: with torch.utils.checkpoint.

The graph is that of the step without any of it; here a schedule does to it what the calls of torch.utils.checkpoint do, and the
one simulator prices that: the forward pass keeps what enters a region; the first backward node in a region that needs something
of the forward pass has the region run again, as a whole, up to the last that is needed (the reentrant kind: to its end). A
region inside of another one keeps nothing in the outer one's second run either, and runs a third time.
"""

from __future__ import annotations

from remat_codegen.graph.ir import Graph, Node
from remat_codegen.graph.simplify import Model
from remat_codegen.header.saved_plan import SavedPlan
from remat_codegen.planners.base.reserve import GENERATOR_STATE_BYTES
from remat_codegen.profile.costs import Profile
from remat_codegen.schedule import Schedule, Timeline, simulate, validate, with_forgets
from remat_codegen.schedule.order import fixed
from remat_codegen.show.results import AsWritten
from remat_codegen.trace import Region

Path = tuple[Region, ...]


def as_written(model: Model, profile: Profile, plain_ns: int) -> AsWritten | None:
    """What the model's own checkpointing takes; None where it has none that matters."""
    where = lines(model)
    if where is None:
        return None
    schedule = schedule_of(model)
    if schedule is None:
        return AsWritten(where)
    timeline = priced(model.graph, profile, schedule)
    peak = timeline.peak_bytes + states_bytes(model)
    return AsWritten(where, peak, round(timeline.time_ns / max(1, plain_ns) - 1, 4))


def of_plan(plan: SavedPlan, model: Model) -> AsWritten | None:
    """The same, as it was when a plan was made."""
    where = lines(model)
    return None if where is None else AsWritten(where, plan.as_written_peak_bytes, plan.as_written_overhead)


def priced(graph: Graph, profile: Profile, schedule: Schedule) -> Timeline:
    """The simulator's figures of a valid schedule."""
    validate(graph, schedule)
    return simulate(graph, profile, schedule)


def lines(model: Model) -> tuple[str, ...] | None:
    """The lines that ask for checkpoints, in the order of the calls; None where nothing that trains stands in one."""
    trained = {n.forward for n in model.graph.backward_nodes}
    found = [r for node, path in enumerate(paths(model)) if node in trained for r in path]
    return tuple(dict.fromkeys(r.where for r in found if r.where is not None)) if found else None


def schedule_of(model: Model) -> Schedule | None:
    """The step as torch.utils.checkpoint runs it; None where a region chooses by itself what it keeps."""
    regions = paths(model)
    if any(r.selective for path in regions for r in path):
        return None
    return with_forgets(model.graph, _order(model.graph, regions))


def states_bytes(model: Model) -> int:
    """The generator's states that regions hold for their second run, and the one that is put back after it. A CUDA generator's
    does not lie on the device."""
    if any(v.device.startswith("cuda") for v in model.trace.results()):
        return 0
    holding = {path[0] for path in paths(model) if path and path[0].keeps_state}
    return (len(holding) + 1) * GENERATOR_STATE_BYTES if holding else 0


def paths(model: Model) -> list[Path]:
    """By forward node: the regions that it stands in, outermost first. Where a node goes beyond a region, its last operation,
    whose result is what may be kept, decides."""
    return [model.trace.operations[body.operations[-1]].regions for body in model.bodies]


def _order(graph: Graph, regions: list[Path]) -> list[int]:
    """The nodes as they run: each backward node after those that it has run again."""
    once = fixed(graph)
    early = {d for n in graph.forward_nodes for d in n.writes}
    back = {n.forward: n for n in graph.backward_nodes}
    order, open_again = list(range(graph.loss + 1)), set[Path]()
    for node in graph.backward_nodes:
        path = regions[node.forward] if node.forward is not None else ()
        for depth in range(1, len(path) + 1) if early.intersection(node.reads) else ():
            part = path[:depth]
            if part not in open_again:
                open_again.add(part)
                order.extend(n for n in _again(graph, regions, part, back, early) if n not in once)
        order.append(node.id)
    return order


def _again(graph: Graph, regions: list[Path], part: Path, back: dict[int | None, Node], early: set[int]) -> list[int]:
    """The nodes of a region that run again: up to the last of which something is kept."""
    inside = [n.id for n in graph.forward_nodes if regions[n.id][: len(part)] == part]
    if part[-1].reentrant:
        return inside
    end, inner = 0, set[Path]()
    for node in inside:
        below = regions[node][: len(part) + 1]
        saved = early.intersection(back[node].reads) if node in back else set()
        if len(below) > len(part):  # an inner region keeps what enters it, as it begins
            end = end if below in inner else node
            inner.add(below)
        elif saved:  # what is kept of a node's operands is so before it runs
            end = node + 1 if saved.intersection(graph.nodes[node].writes) else node
    return [n for n in inside if n < end]
