"""What modules and blocks are called."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from emitted import model_of
from torch import nn

from remat_codegen.emit.names import wishes
from remat_codegen.emit.scope import Scope, _ranges, common_path, has_training_flag, module_expression
from remat_codegen.graph.ir import Block
from remat_codegen.trace import Operation, Ref, Source


@pytest.mark.parametrize(
    ("path", "root", "text"),
    [
        pytest.param("", "", "m", id="the module itself"),
        pytest.param("attn.proj", "", "m.attn.proj", id="attributes"),
        pytest.param("h.3.attn", "", "m.h[3].attn", id="an element of a container"),
        pytest.param("h.3.attn", "h.3", "m.attn", id="from a module inside on"),
        pytest.param("h.3.mlp.0.w", "h.3", "m.mlp[0].w", id="a container from a module inside on"),
        pytest.param("attn.3", "", "getattr(m.attn, '3')", id="a number that is no element"),
        pytest.param("a-b.c", "", "getattr(m, 'a-b').c", id="a name that cannot be written"),
        pytest.param("class.c", "", "getattr(m, 'class').c", id="a keyword"),
        pytest.param("__x.c", "", "getattr(m, '__x').c", id="a name that a class would mangle"),
        pytest.param("__x__", "", "m.__x__", id="one that it would not"),
        pytest.param("größe", "", "getattr(m, 'größe')", id="other letters than those of ASCII"),
        pytest.param("rates[0]", "", "m.rates[0]", id="an element of a list"),
        pytest.param("rates['a']", "", "m.rates['a']", id="an element of a dictionary"),
    ],
)
def test_how_a_module_is_reached(path, root, text):
    assert module_expression("m", path, frozenset({"h", "h.3.mlp"}), root) == text


@pytest.mark.parametrize(
    ("paths", "shared"),
    [
        pytest.param(["h.0.a", "h.0.b.c"], "h.0", id="what all begin with"),
        pytest.param(["h.0", "h.0.a"], "h.0", id="one of them may be it"),
        pytest.param(["h.0", "h.1"], "h", id="parts are whole"),
        pytest.param(["h.10", "h.1"], "h", id="a part that begins alike is another"),
        pytest.param(["a", "b"], "", id="nothing"),
        pytest.param(["a", ""], "", id="nothing beside the model itself"),
    ],
)
def test_the_path_that_all_begin_with(paths, shared):
    assert common_path(paths) == shared


def drawing(target, args, kind="torch.nn.modules.dropout.Dropout", text="", **kwargs):
    source = Source("model.py", 1, text)
    return Operation(0, target, args, tuple(kwargs.items()), (), False, "drop", kind, source)


DROPOUT, ATTENTION = torch.ops.aten.dropout.default, torch.ops.aten.scaled_dot_product_attention.default
X = Ref(0)


@pytest.mark.parametrize(
    ("operation", "flag"),
    [
        pytest.param(drawing(DROPOUT, (X, 0.1, True)), True, id="a module of PyTorch's hands its flag on"),
        pytest.param(
            drawing(DROPOUT, (X, 0.1, True), "m.Net", "F.dropout(x, 0.1, self.training)"), True, id="a line that says so"
        ),
        pytest.param(drawing(DROPOUT, (X, 0.1, True), "m.Net", "F.dropout(x, 0.1)"), False, id="not: a line that does not"),
        pytest.param(drawing(torch.ops.aten.dropout_.default, (X, 0.1, True)), True, id="in place, too"),
        pytest.param(drawing(torch.ops.aten.sin.default, (X,)), False, id="not: what does the same always"),
        pytest.param(drawing(ATTENTION, (X, X, X, None, 0.1)), True, id="attention that drops"),
        pytest.param(drawing(ATTENTION, (X, X, X), dropout_p=0.1), True, id="attention that drops, by keyword"),
        pytest.param(drawing(ATTENTION, (X, X, X, None, 0.0)), False, id="not: attention that does not"),
        pytest.param(drawing(ATTENTION, (X, X, X)), False, id="not: attention that says nothing of it"),
    ],
)
def test_whose_flag_an_operation_follows(operation, flag):
    assert has_training_flag(operation) is flag


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.wide, self.mlp, self.drop = nn.Linear(4, 8), nn.Sequential(nn.Linear(8, 4), nn.Tanh()), nn.Dropout(0.5)

    def forward(self, x):
        wide = torch.exp(self.wide(x))
        return self.drop(x + self.mlp(wide))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.start = nn.Linear(4, 4)
        self.h = nn.ModuleList([Layer(), Layer()])
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, image, mask):
        view = self.scale.view(1, 4)
        x = self.start(image).exp() * mask
        for layer in self.h:
            x = layer(x)
        return (x * view).sin()


def divided(model, *starts):
    """A model in blocks that begin at some nodes."""
    ends = [*starts[1:], model.graph.loss]
    made = [n.writes[0] for n in model.graph.nodes[: model.graph.loss]]
    blocks = [
        Block(i, a, b - 1, made[a - 1] if i else None, made[b - 1] if b < model.graph.loss else None, i)
        for i, (a, b) in enumerate(zip(starts, ends, strict=True))
    ]
    return replace(model, graph=replace(model.graph, blocks=tuple(blocks)))


@pytest.fixture(scope="module")
def scopes():
    """The scopes of three blocks: what is before the layers, and a layer each; the last one with what comes after."""
    model = model_of(Net(), (torch.randn(2, 4), torch.ones(2, 4)), {})
    begin = [b.operations[0] for b in model.bodies]
    paths = [model.trace.operations[op].module_path for op in begin]
    first, second = paths.index("h.0.wide"), paths.index("h.1.wide")
    model = divided(model, 0, first, second)
    return [Scope.of(model, block, wishes(model.trace)) for block in range(3)]


def names(scope, variables):
    return [scope.name(v) for v in variables]


def test_a_block_stands_in_the_module_that_holds_all_that_it_takes(scopes):
    assert [s.root for s in scopes] == ["", "h.0", ""]


def test_parameters_are_reached_from_there(scopes):
    paths = {v.path: v.id for v in scopes[1].model.trace.variables}
    assert scopes[1].expression(paths["h.0.mlp.0.weight"]) == "m.mlp[0].weight"
    assert scopes[2].expression(paths["h.1.mlp.0.weight"]) == "m.h[1].mlp[0].weight"


def test_inputs_have_their_own_names(scopes):
    assert names(scopes[0], scopes[0].outside()) == ["image", "mask"]


def test_what_enters_a_block_is_x(scopes):
    assert names(scopes[1], scopes[1].outside()) == ["x"]


def test_results_are_named_after_the_source_and_differ(scopes):
    found = names(scopes[1], sorted(scopes[1].results))
    assert "wide" in found and len({*found, "x"}) == len(found) + 1


def test_a_block_owns_what_its_operations_make(scopes):
    entering = scopes[1].outside()[0]
    assert scopes[0].own(entering) and not scopes[1].own(entering)


def test_a_block_is_called_after_the_submodule_that_does_most_of_its_work(scopes):
    assert scopes[1].title() == "mlp" and scopes[2].title() == "h"


def test_modules_outside_of_a_block_s_own_are_not_spelled(scopes):
    assert scopes[1]._module_inside("h.0.mlp") == "m.mlp" and scopes[1]._module_inside("h.0") == "m"
    assert scopes[1]._module_inside("h.01") is None and scopes[1]._module_inside("") is None


@pytest.mark.parametrize(
    ("numbers", "text"), [([3], "3"), ([1, 2, 3], "1-3"), ([1, 3], "1-3"), ([1, 4, 5], "1, 4-5"), ([], "")]
)
def test_a_line_between_two_does_not_part_them(numbers, text):
    assert _ranges(numbers) == text


def test_lines_that_are_near_each_other_are_said_together(scopes):
    first = Layer.forward.__code__.co_firstlineno
    assert scopes[1].lines() == f"test_scope.py:{first + 1}-{first + 2}"
    file, _, ranges = scopes[2].lines().partition(":")
    assert file == "test_scope.py" and ranges.count("-") == 1 and ", " in ranges
