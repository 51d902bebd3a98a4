"""Plans of older versions, whose digests of graphs are other ones.

These had the memory of gradients in them, and changed with how that is counted. Where the source is as it was, what they were
made for is the model that there is, if their order can be run on it.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace

from remat_codegen.graph.ir import DIGEST_DIGITS, Graph
from remat_codegen.header.heading import Header
from remat_codegen.header.saved_plan import SavedPlan
from remat_codegen.run.traced import Traced
from remat_codegen.schedule import validate, with_forgets


def source_digest(traced: Traced) -> str:
    """Of the text that a target stands in."""
    return hashlib.sha256(traced.target.source.encode()).hexdigest()


def recognised(header: Header, traced: Traced) -> Header:
    """A file's header, with the digests of now where its plan is an older version's for the same model."""
    plan = header.plan
    if plan is None or source_digest(traced)[:12] != header.source:
        return header
    plans = [_recognised(one, traced.at(number).graph) for number, one in enumerate(plan.all())]
    same = header.graph == plan.graph[:12] and plans[0].graph != plan.graph
    known = replace(plans[0], others=tuple(plans[1:]))
    return replace(header, plan=known, graph=plans[0].graph[:12] if same else header.graph)


def _recognised(plan: SavedPlan, graph: Graph) -> SavedPlan:
    if len(plan.graph) == DIGEST_DIGITS:
        return plan
    try:
        validate(graph, with_forgets(graph, plan.order))
    except (ValueError, IndexError):
        return plan
    return replace(plan, graph=graph.digest())
