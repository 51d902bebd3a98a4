"""Which operation of the model a call in a generated file is, and what the expressions of one stand for."""

from __future__ import annotations

import ast
import re

import pytest
import torch
from emitted import model_of
from torch import nn

from remat_codegen.emit.names import wishes
from remat_codegen.readback.expressions import Expressions, dotted
from remat_codegen.readback.machine import Machine
from remat_codegen.readback.matching import ENDLESS, Operations, _contains, _ends_with, _numbers, _same
from remat_codegen.readback.values import Block, Other, Place, Shapes, Step, Stops, Tensor, Unreadable


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.tied = nn.Linear(4, 4), nn.Linear(4, 4)
        self.tied.weight = self.linear.weight
        self.layers = nn.ModuleList([nn.Linear(4, 4)])

    def forward(self, x, other):
        low = x.clamp(0.5, 1.0).exp()
        high = x.clamp(1.0, 2.0).exp()
        warm = torch.cosh(high)
        cold = torch.cosh(high)
        whole = low.view(4, 2) * 3
        again = low.view(4, 2) + 1
        difference = 2 - x
        with torch.no_grad():
            still = torch.sin(other)
        moving = torch.sin(other)
        doubled = other.mul(2)
        changed = doubled.add_(1)
        part = high[1:, :2]
        first, second = high.chunk(2, -1)
        sums = part.sum() + first.sum() * second.sum() + (changed / still).sum() + moving.sum() + (warm * cold).sum()
        return self.tied(self.linear(self.layers[0](low))).sum() + whole.sum() + again.sum() + difference.sum() + sums


@pytest.fixture(scope="module")
def model():
    return model_of(Net(), (torch.randn(2, 4), torch.randn(2, 4)), {})


@pytest.fixture(scope="module")
def operations(model):
    return Operations(model)


@pytest.fixture(scope="module")
def known(model):
    """Variables by the names that a reader of the source gives them; of inputs and parameters by their paths."""
    names = {v.path: v.id for v in model.trace.variables if v.path}
    return names | {name: v for v, name in wishes(model.trace).items()}


def bases(model, found):
    return [model.trace.operations[op].base for op in found]


def test_operations_are_found_by_what_they_read(model, operations, known):
    assert bases(model, operations.reading([known["difference"]])) == ["sum"]
    assert sorted(bases(model, operations.reading([known["still"], known["changed"]]))) == ["div"]


def test_in_which_order_tensors_are_read_does_not_matter(operations, known):
    pair = [known["still"], known["changed"]]
    assert operations.reading(pair) == operations.reading(pair[::-1])


def test_what_nothing_reads_together_is_nothing(operations, known):
    assert operations.reading([known["low"], known["other"]]) == []


def test_what_is_changed_in_place_and_what_that_returns_is_one_tensor(operations, known):
    assert operations.canonical(known["changed"]) == operations.canonical(known["doubled"])


def test_equal_views_are_one_tensor(model, operations, known):
    views = [op for op in model.trace.operations if op.base == "view"]
    assert len({operations.canonical(op.results[0]) for op in views}) == 1
    assert operations.canonical(known["low"]) != operations.canonical(views[0].results[0])


def test_a_parameter_has_all_its_paths(operations):
    assert operations.by_path["linear.weight"] == operations.by_path["tied.weight"]


def test_a_node_is_made_without_its_views(model, operations):
    for node, core in enumerate(operations.core):
        assert core and (operations.only_views(node) or not any(map(operations.is_view, core)))


def test_what_stands_around_an_operation_is_a_mode(model, operations):
    still, moving = [op.id for op in model.trace.operations if op.base == "sin"]
    assert operations.modes(still) == {"torch.no_grad()"} and operations.modes(moving) == set()


def test_names_are_those_of_the_generated_functions(model, operations, known):
    block = operations.block_of(operations.reading([known["still"], known["changed"]])[0])
    found = operations.named(block, "still")
    assert model.trace.operations[found].base == "sin" and operations.named(block, "unknown") is None


@pytest.mark.parametrize(
    ("base", "name", "called"),
    [
        pytest.param("sin", "sin", True, id="by its own name"),
        pytest.param("sin", "cos", False, id="not by another"),
        pytest.param("add_", "add", True, id="in place or not"),
        pytest.param("div", "/", True, id="by an operator"),
        pytest.param("div", "*", False, id="not by another operator"),
        pytest.param("rsub", "-", True, id="by the operator with its sides exchanged"),
        pytest.param("slice", "[]", True, id="by an index"),
    ],
)
def test_what_an_operation_may_be_called(model, operations, base, name, called):
    op = next(op.id for op in model.trace.operations if op.base == base)
    assert operations.is_called(op, name) is called


@pytest.mark.parametrize(
    ("values", "bounds"),
    [
        pytest.param((0.5, 1.0), (0.5, 1.0), id="those with the same numbers"),
        pytest.param((2.0,), (1.0, 2.0), id="else those that end with them"),
        pytest.param((0.5,), (0.5, 1.0), id="else those that have them at all"),
        pytest.param((7.0,), None, id="else all"),
    ],
)
def test_among_operations_that_read_the_same_numbers_decide(model, operations, known, values, bounds):
    found = [op for op in operations.reading([known["x"]]) if model.trace.operations[op].base == "clamp"]
    chosen = [model.trace.operations[op].args[1:] for op in operations.given(found, values)]
    assert chosen == ([bounds] if bounds else [(0.5, 1.0), (1.0, 2.0)])


@pytest.mark.parametrize(
    ("value", "found"),
    [
        pytest.param((1, [2.5, (3,)]), [1, 2.5, 3], id="in order, whatever they stand in"),
        pytest.param((True, None, "a", Other()), [], id="nothing else is one"),
        pytest.param((2**63 - 1,), [ENDLESS], id="up to the end is up to the end"),
    ],
)
def test_numbers_of_a_structure(value, found):
    assert _numbers(value) == found


@pytest.mark.parametrize(
    ("have", "wanted", "fits"),
    [
        pytest.param([1, 2], [1, 2], (True, True, True), id="the same"),
        pytest.param([0, 1, 2], [1, 2], (False, True, True), id="at the end"),
        pytest.param([1, 0, 2], [1, 2], (False, False, True), id="in between others"),
        pytest.param([2, 1], [1, 2], (False, False, False), id="not in another order"),
        pytest.param([1], [], (False, False, True), id="none, where there is one"),
        pytest.param([], [], (True, True, True), id="none, where there is none"),
    ],
)
def test_how_well_numbers_fit(have, wanted, fits):
    assert (_same(have, wanted), _ends_with(have, wanted), _contains(have, wanted)) == fits


# ---------------------------------------------------------------------- expressions


class Reader(Expressions):
    def global_name(self, name):
        return Other() if name in ("torch", "F", "math") else None


@pytest.fixture
def reader(model, operations, known):
    """Reads expressions in which some names are tensors, `m` the model, `kept` a block's, and `step` the step's."""
    found = Reader(Machine(model, operations), operations)
    found.env = {name: Tensor(operations.canonical(known[name])) for name in ("x", "other", "low", "high", "still", "changed")}
    found.env |= {"m": Place(""), "kept": Block(0), "step": Step(), "n": 3, "pair": (Tensor(known["x"]), 5)}
    for name in ("x", "other", "low", "high", "still", "changed"):
        found.machine.hold(found.env[name])
    return found


def read(reader, text):
    return reader.evaluate(ast.parse(text, mode="eval").body)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        pytest.param("7", 7, id="a number"),
        pytest.param("'a'", "a", id="a text"),
        pytest.param("n", 3, id="a name"),
        pytest.param("n + 2 * n", 9, id="whole numbers are computed with"),
        pytest.param("n // 2 - 5 % 3", -1, id="also divided"),
        pytest.param("n / 2", Other(), id="others are not needed"),
        pytest.param("n ** 2", Other(), id="nor are powers"),
        pytest.param("-n", -3, id="signs are"),
        pytest.param("not n", Other(), id="truth values are not"),
        pytest.param("n < 4", Other(), id="nor are comparisons of numbers"),
        pytest.param("n and 4", Other(), id="nor what depends on them"),
        pytest.param("(1, [n, 2])", (1, (3, 2)), id="tuples and lists are alike"),
        pytest.param("{'a': n}", {0: 3}, id="of a dictionary the values count"),
        pytest.param("f'{n}'", Other(), id="a formatted text has no bearing"),
        pytest.param("1 if m.training else 2", 1, id="of a choice what is for training"),
        pytest.param("torch.float32", Other(), id="what a library has, has no bearing"),
        pytest.param("m.linear", Place("linear"), id="a module by its path"),
        pytest.param("m.layers[0]", Place("layers.0"), id="a module of a list"),
        pytest.param("step[2]", Block(2), id="what a block keeps"),
        pytest.param("kept.shapes", Shapes(0), id="the shapes that it keeps"),
        pytest.param("kept.stops", Stops(0), id="the places to wait for"),
        pytest.param("x.shape", (2, 4), id="a tensor's shape, as traced"),
        pytest.param("x.shape[1]", 4, id="a size"),
        pytest.param("x.shape[:1]", (2,), id="some sizes"),
        pytest.param("x.dtype", Other(), id="what else a tensor has, has no bearing"),
        pytest.param("pair[1]", 5, id="a part of several results"),
        pytest.param("pair[2]", Other(), id="one that is not there has no bearing"),
    ],
)
def test_what_an_expression_stands_for(reader, text, value):
    assert read(reader, text) == value


@pytest.fixture
def anywhere(reader):
    """The same, where any operation may run at any time."""
    reader.machine.operation = lambda op: None
    return reader


@pytest.mark.parametrize(
    ("text", "made"),
    [
        pytest.param("changed / still", "div", id="an operator with two tensors"),
        pytest.param("2 - x", "rsub", id="one with a number"),
        pytest.param("-x", None, id="not one that the model does not have"),
    ],
)
def test_tensors_are_read_by_the_operations_that_make_them(anywhere, model, operations, text, made):
    found = [operations.canonical(op.results[0]) for op in model.trace.operations if op.base == made]
    value = read(anywhere, text)
    assert value == Tensor(found[0]) if made else value.variable not in found


def test_an_index_may_be_an_operation_for_each_dimension(anywhere, known, operations):
    assert read(anywhere, "high[1:, :2]") == Tensor(operations.canonical(known["part"])) and len(anywhere.ran) == 2


def test_a_parameter_is_a_tensor_of_the_model(reader, operations):
    assert read(reader, "m.tied.weight") == Tensor(operations.canonical(operations.by_path["linear.weight"]))


def test_several_results_are_a_tuple(reader, known, operations):
    values = reader.apply("chunk", (reader.machine.hold(reader.env["high"]), 2, -1))
    assert values == tuple(Tensor(operations.canonical(known[n])) for n in ("first", "second"))


def test_a_copy_of_running_statistics_is_the_tensor_itself(reader, known):
    assert reader.apply("clone", (reader.env["x"],)) == reader.env["x"]


def bounds(reader, model):
    """The bounds of the clamp that is read now."""
    before = set(reader.ran)
    reader.apply("clamp", (reader.env["x"],))
    (op,) = reader.ran - before
    return model.trace.operations[op].args[1:]


@pytest.mark.parametrize("backward", [False, True])
def test_of_operations_that_read_the_same_each_has_its_turn(anywhere, known, backward):
    anywhere.machine.backward, anywhere.env["kept"] = backward, Block(1)
    found = [anywhere.apply("cosh", (anywhere.env["high"],)) for _ in range(2)]
    assert found == [Tensor(known["warm"]), Tensor(known["cold"])]


@pytest.mark.parametrize(("block", "found"), [(0, (0.5, 1.0)), (1, (1.0, 2.0))])
def test_the_one_of_the_block_at_hand_comes_first(anywhere, model, block, found):
    anywhere.env["kept"] = Block(block)
    assert bounds(anywhere, model) == found


@pytest.mark.parametrize("name", ["warm", "cold"])
def test_the_one_whose_name_is_assigned_is_meant(anywhere, known, name):
    anywhere.env["kept"], anywhere.wish = Block(1), (name,)
    assert anywhere.apply("cosh", (anywhere.env["high"],)) == Tensor(known[name])


@pytest.mark.parametrize(
    ("modes", "name"),
    [
        pytest.param(["torch.no_grad()"], "still", id="in the mode that it stands in"),
        pytest.param([], "moving", id="outside of it"),
    ],
)
def test_the_one_that_stands_in_the_same_mode_is_meant(anywhere, known, modes, name):
    anywhere.machine.modes = modes
    assert anywhere.apply("sin", (anywhere.env["other"],)) == Tensor(known[name])


@pytest.mark.parametrize(
    ("text", "why"),
    [
        pytest.param("unknown", "reads unknown, which has no value here", id="a name without a value"),
        pytest.param("lambda: 1", "is nothing that remat-codegen writes", id="an expression that no file has"),
        pytest.param(
            "x @ other", "`@` of x, other is nothing that the model computes", id="an operation that the model has not"
        ),
        pytest.param("kept.shapes['x']", "asks for the shape of x, which no first run kept", id="a shape that nothing kept"),
    ],
)
def test_what_cannot_be_followed_is_told(reader, text, why):
    with pytest.raises(Unreadable, match=re.escape(why)):
        read(reader, text)


def test_a_shape_that_a_first_run_kept_is_known(reader):
    reader.shapes[0, "x"] = (2, 4)
    assert read(reader, "kept.shapes['x']") == (2, 4)


@pytest.mark.parametrize(("text", "name"), [("a.b.c", "a.b.c"), ("a", "a"), ("a().b", ""), ("a[0].b", "")])
def test_names_with_dots(text, name):
    assert dotted(ast.parse(text, mode="eval").body) == name
