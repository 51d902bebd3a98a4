"""What the functions of blocks do, for a schedule: what they name, keep, take, forget, put back, and wait for."""

from __future__ import annotations

import pytest
import torch
from emitted import model_of, rebuilding
from layered import layered, linkage_of
from torch import nn

from remat_codegen.emit.functions import write_function
from remat_codegen.emit.linkage import changed_argument
from remat_codegen.emit.segment_needs import Needs
from remat_codegen.emit.segments import Role
from remat_codegen.errors import UnsupportedError
from remat_codegen.schedule import with_forgets
from remat_codegen.trace import Operation, Ref

# Data of the first layer, as the graph numbers them.
EXP, WIDE, SIN, DROP, MASK, TANH, MUL = range(7)
WIDE_2 = MUL + 1


@pytest.fixture(scope="module")
def model():
    return layered()


@pytest.fixture(scope="module")
def written(model):
    """Writes the functions of a step that drops some data before the way back: by role and block."""
    known = {}

    def write(*dropped):
        if dropped not in known:
            linkage = linkage_of(model, rebuilding(model.graph, set(dropped)))
            late = [s for s in linkage.program.segments if s.role is not Role.FORWARD and s.block < len(model.graph.blocks)]
            found = {(str(s.role), s.block): write_function(linkage, s) for s in late}  # which say what is waited for
            for segment in late:
                if segment.role is Role.REBUILD:
                    linkage.waiting_point(segment.positions[0])
            first = [s for s in linkage.program.segments if s.role is Role.FORWARD]
            known[dropped] = linkage, found | {(str(s.role), s.block): write_function(linkage, s) for s in first}
        return known[dropped]

    return write


@pytest.mark.parametrize("block", range(1, 4))
def test_a_block_of_which_nothing_is_rebuilt_is_plain_pytorch(written, block):
    _, functions = written()
    assert not functions["forward", block].uses_kept and functions["backward", block].lines == ()


@pytest.mark.parametrize(
    ("dropped", "key", "line"),
    [
        pytest.param(
            [WIDE], ("forward", 1), "wide = kept.slot('wide', F.linear(x, m.wide.weight, m.wide.bias))", id="it gets a slot"
        ),
        pytest.param([WIDE], ("forward", 1), "wide = kept.forget('wide')", id="it is forgotten where the schedule says so"),
        pytest.param(
            [WIDE], ("forward", 1), "sin = kept.stop('sin', torch.sin(wide))", id="whose way back comes first has a stop"
        ),
        pytest.param(
            [WIDE],
            ("backward", 1),
            "yield kept.stops['sin']  # 0.1 KiB, not held since the forward pass",
            id="it is waited for",
        ),
        pytest.param([WIDE], ("backward", 1), "x = kept.take('x')", id="what it is made of is taken"),
        pytest.param(
            [WIDE], ("backward", 1), "kept.slot('wide', F.linear(x, m.wide.weight, m.wide.bias))", id="it is put back"
        ),
        pytest.param([WIDE, TANH], ("backward", 1), "x = kept.take('x')", id="each at its time, with what it is made of"),
        pytest.param([DROP, MASK], ("forward", 1), "kept.keep('sin', sin)", id="what it will be made of is kept"),
        pytest.param(
            [DROP, MASK],
            ("forward", 1),
            "with kept.saves('drop', forget=True), kept.draws('drop', torch.default_generator):",
            id="what autograd saves beside it is forgotten, and the generator's state held",
        ),
        pytest.param(
            [DROP, MASK],
            ("backward", 1),
            "with kept.saves('drop'), kept.draws('drop', torch.default_generator):",
            id="what autograd saves beside it is put back, with the same random numbers",
        ),
        pytest.param(
            [TANH], ("forward", 1), "with kept.saves('tanh'):", id="a result that autograd saves itself is found again"
        ),
        pytest.param([TANH], ("backward", 1), "kept.slot('tanh', torch.tanh(narrow))", id="then the slot alone puts it back"),
        pytest.param(
            [MUL], ("again", 1), "kept.slot('mul', x * tanh)", id="what others read is rebuilt by a function of its own"
        ),
        pytest.param([MUL], ("again", 1), "tanh = kept.take('tanh')", id="which takes what the block kept"),
        pytest.param([EXP], ("again", 0), "kept.slot('x_2', torch.exp(mul))", id="an input of the model is at hand"),
        pytest.param([WIDE], ("forward", 1), "del sin", id="a name that held memory goes with it"),
    ],
)
def test_what_is_written_for_data_that_is_dropped(written, dropped, key, line):
    _, functions = written(*dropped)
    assert line in [text.strip() for text in functions[key].lines]


@pytest.mark.parametrize(
    ("dropped", "key", "field", "names"),
    [
        pytest.param([], ("forward", 0), "arguments", ["x"], id="the model's input is handed to the block that reads it"),
        pytest.param([], ("forward", 1), "returns", ["mul"], id="what later blocks read is returned"),
        pytest.param([], ("forward", 3), "returns", ["sum_2"], id="what the model returns is returned"),
        pytest.param([WIDE], ("forward", 1), "keeps", ["x"], id="an input that a rebuild reads is kept by the caller"),
        pytest.param([DROP, MASK], ("forward", 1), "keeps", [], id="not one that no rebuild reads"),
        pytest.param([WIDE], ("backward", 1), "arguments", [], id="a rebuild of kept values takes no arguments"),
        pytest.param([EXP], ("again", 0), "arguments", ["x"], id="one of the model's input takes that"),
        pytest.param([MUL], ("again", 1), "returns", [], id="a rebuild returns nothing that nobody runs again with"),
        pytest.param([MUL, WIDE_2], ("again", 1), "returns", ["mul"], id="it returns what a later rebuild reads"),
    ],
)
def test_what_goes_in_and_out(written, dropped, key, field, names):
    linkage, functions = written(*dropped)
    assert [linkage.scopes[key[1]].name(v) for v in getattr(functions[key], field)] == names


@pytest.mark.parametrize(
    ("dropped", "key", "takes"),
    [
        pytest.param([WIDE], ("backward", 1), [("x", "take")], id="for the last time it is taken"),
        pytest.param([EXP], ("again", 0), [], id="an argument is not taken"),
        pytest.param([MUL], ("again", 1), [("x", "take"), ("tanh", "take")], id="in the order in which they are read"),
    ],
)
def test_how_kept_values_are_taken(written, dropped, key, takes):
    linkage, functions = written(*dropped)
    assert [(linkage.scopes[key[1]].name(v), how) for v, how in functions[key].takes] == takes


def test_what_another_rebuild_takes_again_is_read(model):
    graph, order = model.graph, []
    for node in graph.nodes:
        order += (
            [1, node.id] if node.forward in (10, 2) else [node.id]
        )  # the first linear, for the second layer, and for its own
    linkage = linkage_of(model, with_forgets(graph, order))
    late = [s for s in linkage.program.segments if s.role is not Role.FORWARD and s.block == 1]
    takes = [(str(s.role), how) for s in late for _, how in write_function(linkage, s).takes]
    assert takes == [("again", "read"), ("backward", "take")]


def test_what_autograd_holds_is_emptied_where_something_puts_it_back(model):
    graph, order = model.graph, []
    for node in graph.nodes:
        order += [1, node.id] if node.forward in (10, 2) else [node.id]
    linkage = linkage_of(model, with_forgets(graph, order))
    needs, copies = Needs(linkage, linkage.program.segments[1]), linkage.program.copies[WIDE]
    assert [linkage.program.wanted_by_autograd(c) for c in copies] == [False, False, True]
    assert [needs.must_empty(WIDE, c) for c in copies] == [True, False, False], "neither what nobody read nor the last"


def test_what_a_later_block_forgets_of_another_is_left_to_the_caller(written):
    linkage, functions = written(MUL)
    assert functions["forward", 2].forgets == ((1, "mul"),)
    assert not any("forget" in line for line in functions["forward", 1].lines)


def test_equal_blocks_have_equal_functions(written):
    _, functions = written()
    assert functions["forward", 1].text == functions["forward", 2].text != functions["forward", 3].text


def test_where_nothing_is_rebuilt_nothing_is_waited_for(written):
    linkage, _ = written()
    assert linkage.stops == set()


def test_a_way_back_is_waited_for_by_the_value_that_autograd_comes_to_first(written, model):
    linkage, _ = written(WIDE)
    (stop,) = linkage.stops
    assert model.graph.nodes[stop].forward == 2 and linkage.stop_name(stop) == (1, "sin")


def test_a_way_back_that_autograd_does_not_show_is_waited_for_by_an_earlier_one(written, model):
    linkage, _ = written(WIDE)
    (stop,) = linkage.stops
    hidden = linkage.stop_variable
    linkage.stop_variable = lambda node: None if node == stop else hidden(node)
    try:
        (position,) = (p for p in linkage.program.again)
        assert linkage.waiting_point(position) == stop - 1
    finally:
        del linkage.stop_variable
        linkage.stops.discard(stop - 1)


def test_what_cannot_be_waited_for_is_refused(model):
    linkage = linkage_of(model, rebuilding(model.graph, {WIDE}))
    linkage.stop_variable = lambda node: None if node > model.graph.loss else 0
    (position,) = linkage.program.again
    with pytest.raises(UnsupportedError, match="cannot be waited for"):
        linkage.waiting_point(position)


def test_at_the_very_end_nothing_is_waited_for(model):
    order = [*range(len(model.graph.nodes)), 1]
    linkage = linkage_of(model, with_forgets(model.graph, order))
    (position,) = linkage.program.again
    assert linkage.waiting_point(position) is None


ATEN = torch.ops.aten


@pytest.mark.parametrize(
    ("target", "args", "changed"),
    [
        pytest.param(ATEN.add_.Tensor, (Ref(4), Ref(5)), 4, id="what stands before the mark for in place"),
        pytest.param(ATEN.add.Tensor, (Ref(4), Ref(5)), None, id="nothing, where it is not in place"),
        pytest.param(ATEN.view.default, (Ref(4), [1]), None, id="nothing by a view"),
    ],
)
def test_what_an_operation_changes_in_place(target, args, changed):
    assert changed_argument(Operation(0, target, args, (), (), False, "", "", None)) == changed


class State(nn.Module):
    """Looks at a buffer, through two views; looks at what it made; and changes what it made."""

    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.arange(8.0))
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        looked = self.table.view(2, 4)[:1]
        y = self.linear(x).tanh() + looked
        y = torch.relu_(y.mul(2)).view(4, 2)
        return (y * y.cos()).sum()


@pytest.fixture(scope="module")
def state():
    model = model_of(State(), (torch.randn(2, 4),), {})
    linkage = linkage_of(model, rebuilding(model.graph, set()))
    return model, Needs(linkage, linkage.program.segments[0])


@pytest.mark.parametrize(
    ("base", "looks", "at_state"),
    [
        pytest.param("slice", True, True, id="a view of a view of a buffer"),
        pytest.param("linear", False, False, id="what makes something"),
        pytest.param("relu_", False, False, id="what changes something"),
    ],
)
def test_operations_that_only_look(state, base, looks, at_state):
    model, needs = state
    (operation,) = [op for op in model.trace.operations if op.base == base]
    assert (needs.only_looks(operation.id), needs.looks_at_state(operation.id)) == (looks, at_state)


def test_a_view_of_what_was_made_looks_at_no_state(state):
    model, needs = state
    views = [op.id for op in model.trace.operations if op.base == "view"]
    assert [needs.looks_at_state(op) for op in views] == [True, False]


@pytest.mark.parametrize(
    ("dropped", "node", "grouped", "again"),
    [
        pytest.param([], 3, False, False, id="not, where nothing is rebuilt"),
        pytest.param([DROP, MASK], 3, True, True, id="a node whose mask is rebuilt"),
        pytest.param([TANH], 4, True, True, id="a node that saves its own result, which is rebuilt"),
        pytest.param([WIDE], 1, False, True, id="not a node whose result only others save"),
        pytest.param([WIDE], 2, False, False, id="nor one that saves what another makes"),
    ],
)
def test_whether_what_autograd_saves_of_a_node_has_to_be_found_again(written, dropped, node, grouped, again):
    linkage, _ = written(*dropped)
    needs = Needs(linkage, linkage.program.segments[1])
    given = linkage.program.graph.nodes[node]
    assert (needs.is_grouped(given), needs.runs_again(given)) == (grouped, again)
