"""When segments share a function: rebuilds that run a first function again, first functions that differ in what nobody asks
for, and ways back that begin as other blocks' rebuilds."""

from __future__ import annotations

import pytest
from layered import layered, linkage_of

from remat_codegen.emit.functions import write_function
from remat_codegen.emit.reruns import run_again
from remat_codegen.emit.segments import Role
from remat_codegen.emit.uniting import share_rebuilds, unite
from remat_codegen.schedule import with_forgets

# Nodes of the first two layers, and the backward nodes before which each layer's way back begins.
FIRST, SECOND = (1, 2, 3, 4, 5), (6, 7, 8, 9, 10)
THIRD_BACK, SECOND_BACK, FIRST_BACK = 17, 22, 27


class Shared:
    """The functions of a step in which nodes run again before some backward nodes."""

    def __init__(self, again):
        graph = layered().graph
        order = list(range(graph.loss + 1))
        for node in graph.backward_nodes:
            order += [*again.get(node.id, ()), node.id]
        self.linkage = linkage_of(layered(), with_forgets(graph, order))
        program = self.linkage.program
        late = [s for s in program.segments if s.role is not Role.FORWARD and s.block < len(graph.blocks)]
        self.own = [(s, write_function(self.linkage, s)) for s in late]
        self.backwards = share_rebuilds(self.linkage, self.own)
        for segment, _ in self.backwards:
            if segment.role is Role.REBUILD:
                self.linkage.waiting_point(segment.positions[0])
        first = [s for s in program.segments if s.role is Role.FORWARD]
        self.first = [(s, write_function(self.linkage, s)) for s in first]
        self.united = unite(self.linkage, self.first)
        self.found = run_again(self.linkage, self.united, self.backwards)

    def rebuilds(self):
        """What rebuilds run: by block, whether a function of their own or the first one."""
        return {s.block: str(f.role) for s, f in self.found if f.lines}

    def alike(self, one, other, united=True):
        functions = {s.block: f for s, f in (self.united if united else self.first)}
        return functions[one].text == functions[other].text


@pytest.mark.parametrize(
    ("again", "runs"),
    [
        pytest.param({}, {}, id="nothing, where nothing is rebuilt"),
        pytest.param(
            {SECOND_BACK: FIRST}, {1: "forward"}, id="the first function, where a whole block is rebuilt for the next"
        ),
        pytest.param({SECOND_BACK: SECOND}, {2: "forward"}, id="also where it is for the block's own way back"),
        pytest.param(
            {SECOND_BACK: FIRST + SECOND}, {1: "forward", 2: "forward"}, id="also where one block's run needs the other's"
        ),
        pytest.param({FIRST_BACK: FIRST[:-1]}, {1: "backward"}, id="its own, where the first one would compute more"),
        pytest.param({SECOND_BACK: FIRST[-1:]}, {1: "again"}, id="its own, where it needs what the first one keeps"),
        pytest.param(
            {THIRD_BACK: FIRST[-1:], SECOND_BACK: FIRST}, {1: "again"}, id="its own, where the first one keeps something"
        ),
        pytest.param({SECOND_BACK: SECOND, 25: (7,)}, {2: "backward"}, id="its own, where the way back computes once more"),
        pytest.param({24: SECOND}, {2: "backward"}, id="its own, where it is in the midst of the way back"),
        pytest.param(
            {21: SECOND, 22: FIRST}, {2: "again", 3: "backward", 1: "forward"}, id="its own, where it forgets something"
        ),
    ],
)
def test_what_a_rebuild_runs(again, runs):
    assert Shared(again).rebuilds() == runs


def test_a_second_run_takes_what_the_rebuild_would():
    shared = Shared({SECOND_BACK: FIRST})
    own, found = ({s.block: f for s, f in pairs if f.lines}[1] for pairs in (shared.backwards, shared.found))
    assert own.takes == found.takes != () and found.lines != own.lines


def test_after_a_block_ran_again_its_way_back_has_no_lines():
    shared = Shared({SECOND_BACK: SECOND})
    rows = [(str(s.role), bool(f.lines)) for s, f in shared.found if s.block == 2]
    assert rows == [("again", True), ("backward", False)]


@pytest.mark.parametrize(
    ("again", "before", "after"),
    [
        pytest.param({}, True, True, id="they are alike where nothing is rebuilt"),
        pytest.param({FIRST_BACK: (0,)}, False, True, id="a place to wait that nobody waits at may be added"),
        pytest.param({SECOND_BACK: FIRST + SECOND}, False, True, id="a slot that nobody reads may be added"),
        pytest.param({30: FIRST[:1]}, False, False, id="what one forgets, and the other does not, stays a difference"),
        pytest.param({SECOND_BACK: FIRST[-1:]}, False, False, id="what one keeps, and the other does not, does too"),
    ],
)
def test_first_functions_that_differ_in_what_nobody_asks_for_become_one(again, before, after):
    shared = Shared(again)
    assert (shared.alike(1, 2, united=False), shared.alike(1, 2)) == (before, after)


def test_blocks_of_another_kind_are_left_alone():
    shared = Shared({FIRST_BACK: (0,)})
    first, united = ({s.block: f for s, f in pairs} for pairs in (shared.first, shared.united))
    assert first[0] is united[0] and first[3] is united[3]


def test_what_could_not_be_united_has_no_marks_left_of_it():
    shared = Shared({30: FIRST[:1]})
    assert shared.linkage.program.slots == {1} and not any(
        "kept" in line for s, f in shared.united if s.block == 2 for line in f.lines
    )


@pytest.mark.parametrize(
    ("again", "shared"),
    [
        pytest.param({SECOND_BACK: FIRST + SECOND}, True, id="as the other block's does, with a result that nobody reads"),
        pytest.param({THIRD_BACK: FIRST, SECOND_BACK: SECOND}, True, id="also where that is at another time"),
        pytest.param({SECOND_BACK: SECOND}, False, id="not, where no other block has a rebuild"),
        pytest.param({SECOND_BACK: FIRST, 23: SECOND}, False, id="not, where it is in the midst of the way back"),
        pytest.param({SECOND_BACK: FIRST + SECOND[:-1]}, False, id="not, where it computes less"),
        pytest.param({SECOND_BACK: FIRST + SECOND, 25: (7,)}, False, id="not, where more happens on the way back"),
    ],
)
def test_a_way_back_may_begin_as_another_block_s_rebuild(again, shared):
    found = Shared(again)
    roles = [str(s.role) for s, _ in found.backwards if s.block == 2]
    assert roles == (["again", "backward"] if shared else ["backward"])
    if shared:
        texts = {f.text for s, f in found.backwards if s.role is Role.REBUILD}
        assert len(texts) == 1 and len(found.linkage.program.unread) == 1
    else:
        assert found.linkage.program.unread == set()
