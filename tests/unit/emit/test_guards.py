"""What a generated file checks before each step, and what stands around its operations."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from emitted import model_of
from torch import nn

from remat_codegen.emit.calls import Argument
from remat_codegen.emit.guards import PLAIN_MARGIN, Guards, is_channels_last, united
from remat_codegen.emit.surroundings import NOTHING_SAVED, generators, modes
from remat_codegen.trace import Origin


class Net(nn.Module):
    """A module with a layer that is frozen, and one that is not in training."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.still = nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2), nn.Dropout(0.1)
        self.drop, self.frozen = nn.Dropout(0.1), nn.Linear(4, 4)
        self.frozen.requires_grad_(False)
        self.gate = nn.Parameter(torch.ones(4))

    def forward(self, image, n):
        x = self.norm(self.conv(image)).relu()
        with torch.no_grad():
            there = torch.sin(self.gate)
        with torch.autocast("cpu", torch.bfloat16):
            x = self.frozen(self.drop(x))
        x = torch.dropout(self.still(x.float()), 0.1, True) * there
        return x * n


@pytest.fixture(scope="module")
def model():
    module = Net().train()
    module.still.eval()
    train = module.train
    module.train = lambda mode=True: module  # as it is
    found = model_of(module, (torch.randn(2, 2, 4, 4), 3), {})
    module.train = train
    return found


@pytest.fixture(scope="module")
def guards(model):
    """The checks of a file for the model."""
    image = next(v for v in model.trace.inputs if v is not None)
    arguments = [Argument("image", "image", image, None), Argument("n", "n", None, 3)]
    return Guards(model, arguments, {}, {}, {}, 100, 100)


def test_arguments_have_to_be_as_they_were(guards):
    assert guards._expected() == "{'image': ((2, 2, 4, 4), torch.float32, False), 'n': 3}"


def test_parameters_that_are_not_trained_have_to_stay_so(guards):
    assert guards._frozen() == "{'frozen.bias', 'frozen.weight'}"


def test_autocast_has_to_be_as_it_was_around_the_model(guards):
    assert guards._autocast() == "{'cpu': None}"


@pytest.mark.parametrize(
    ("module", "mode"),
    [
        pytest.param("still", False, id="one that was not in training has to stay so"),
        pytest.param("drop", None, id="one whose flag is read at run time may be in either"),
        pytest.param("norm", None, id="so may one that normalises"),
    ],
)
def test_modes_that_modules_have_to_be_in(guards, module, mode):
    assert guards._modes().get(module) is mode


def test_a_module_whose_mode_forward_asks_for_has_to_stay_in_it(guards, model):
    asked = replace(model.trace.modules, modes=frozenset({"", "one", "other", "norm"}), evaluating=frozenset({"other"}))
    trace = replace(model.trace, modules=asked)
    found = replace(guards, model=replace(model, trace=trace))._modes()
    assert {path: found.get(path) for path in ("", "one", "other", "norm")} == {
        "": None,
        "one": True,
        "other": False,
        "norm": None,
    }


def test_a_layout_is_checked_where_images_are_read(guards):
    assert guards._layouts() == "{'image': image}, ()"


def test_the_layout_that_was_traced_has_to_be_the_one(guards, model):
    variables = tuple(
        replace(v, stride=(32, 1, 8, 2)) if v.origin is Origin.INPUT and len(v.shape) == 4 else v for v in model.trace.variables
    )
    last = replace(guards, model=replace(model, trace=replace(model.trace, variables=variables)))
    assert last._layouts() == "{'image': image}, ('image',)"


def test_types_of_parameters_are_checked_only_where_forward_mentions_types(guards, model):
    def said(*dtypes):
        modules = replace(model.trace.modules, dtypes=frozenset(dtypes))
        return replace(guards, model=replace(model, trace=replace(model.trace, modules=modules)))._dtypes()

    assert said() == "" and said(torch.float32, torch.bfloat16) == "{torch.bfloat16, torch.float32}"


@pytest.mark.parametrize(
    ("shape", "stride", "last"),
    [
        pytest.param((2, 3, 4, 5), (60, 1, 15, 3), True, id="channels next to each other"),
        pytest.param((2, 3, 4, 5), (60, 20, 5, 1), False, id="as usual"),
        pytest.param((2, 1, 4, 5), (20, 1, 5, 1), False, id="a single channel is both"),
        pytest.param((2, 3, 1, 1), (3, 1, 1, 1), False, id="a single place is both"),
        pytest.param((2, 3, 4, 5), (60, 1, 3, 12), False, id="another order"),
        pytest.param((2, 3, 2, 4, 5), (120, 1, 60, 15, 3), True, id="with depth"),
    ],
)
def test_which_layout_is_channels_last(model, shape, stride, last):
    assert is_channels_last(replace(model.trace.variables[0], shape=shape, stride=stride)) is last


@pytest.mark.parametrize(
    ("texts", "rows"),
    [
        pytest.param({"h.0": "a", "h.1": "a"}, {"h.*": "a"}, id="layers that are alike have a row"),
        pytest.param({"h.0": "a", "h.1": "b"}, {"h.0": "a", "h.1": "b"}, id="layers that differ have one each"),
        pytest.param({"h.0.x": "a", "h.1.x": "a", "h.0.y": "b"}, {"h.*.x": "a", "h.*.y": "b"}, id="each part by itself"),
        pytest.param({"a": "x", "b": "x"}, {"a": "x", "b": "x"}, id="what has no number is no layer"),
    ],
)
def test_layers_are_told_together_where_they_are_alike(texts, rows):
    assert united(texts) == rows


def test_what_has_the_same_structure_has_a_row():
    found = {".": "Net", "h.0": "Linear(4, 4)", "h.1": "Linear(4, 4)", "end": "Linear(4, 4)"}
    text = Guards(None, [], found, {}, {}, 0, 0)._structure()
    assert eval(text) == ".: Net; h.* end: Linear(4, 4)"


def test_a_long_structure_has_several_lines_and_no_word_is_parted():
    found = {f"layer_{'abcdefghij'[i]}": f"Linear({i}, 4)" for i in range(10)}
    text = Guards(None, [], found, {}, {}, 0, 0)._structure()
    assert eval(text) == "; ".join(f"{path}: {kind}" for path, kind in found.items()) and text.count("' '") >= 1


ALL = {"h.0.config": {"n": "1"}, "h.1.config": {"n": "1"}}


@pytest.mark.parametrize(
    ("objects", "text"),
    [
        pytest.param(ALL, "{'h.*.config': {'n': '1'}}", id="those of all layers in a row"),
        pytest.param({"h.0.config": {"n": "1"}}, "{'h.0.config': {'n': '1'}}", id="not, where not all have one"),
        pytest.param(
            {**ALL, "config": {"n": "1"}}, "{'h.*.config config': {'n': '1'}}", id="others that are alike beside them"
        ),
        pytest.param({}, "", id="nothing, where there are none"),
    ],
)
def test_settings_of_objects_have_a_row_each(objects, text):
    assert Guards(None, [], {".": "", "h": "", "h.0": "", "h.1": ""}, objects, {}, 0, 0)._objects() == text


@pytest.fixture(scope="module")
def sized():
    """A model whose number of rows may change, and its checks: at one row it takes half of the peak without a plan."""

    class Sized(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x):
            return self.linear(x).sin().cos()

    x = torch.randn(6, 4)
    model = model_of(Sized(), (x,), {}, asked=((x, 0),))
    (size,) = model.trace.sizes
    model = replace(model, trace=replace(model.trace, sizes=(replace(size, share_at_one=0.5, least=2, most=None),)))
    return Guards(model, [Argument("x", "x", size.source, None)], {}, {}, {size.variable: 1.5}, 100, 1000), size, x


def test_a_size_that_may_change_is_a_name_in_the_shape(sized):
    guards, size, _ = sized
    name = guards.trace.variables[size.source].sizes[0]
    assert isinstance(name, str) and guards._expected() == f"{{'x': (('{name}', 4), torch.float32, False)}}"


@pytest.mark.parametrize(
    ("budget", "least", "plain"),
    [
        pytest.param(50 * PLAIN_MARGIN, 1, "{'rows'}", id="with room for it, the original runs at one row"),
        pytest.param(50 * PLAIN_MARGIN - 1, 2, "", id="without room nothing runs there"),
    ],
)
def test_a_size_of_one_is_left_to_the_original_where_that_has_room(sized, budget, least, plain):
    guards, size, _ = sized
    guards = replace(guards, budget_bytes=budget)
    assert guards._sizes({size.variable: "rows"}) == [f"'rows': ({least}, 6, None, 1.5),"]
    assert guards._plain_sizes({size.variable: "rows"}) == plain


def test_what_is_not_known_of_one_row_is_not_run_there(sized):
    guards, size, _ = sized
    trace = replace(guards.trace, sizes=(replace(guards.trace.sizes[0], share_at_one=None),))
    guards = replace(guards, model=replace(guards.model, trace=trace), budget_bytes=10**9)
    assert guards._plain_sizes({size.variable: "rows"}) == ""


def test_smaller_calls_are_told_by_the_dimensions_of_arguments(sized):
    guards, _, x = sized
    guards = replace(guards, arguments=[replace(guards.arguments[0], value=x)])
    assert replace(guards, smaller=[(((x, 0),), 3)])._smaller() == "[{'x': {0: 3}}]"
    assert guards._smaller() == ""


def around(model, name):
    (operation,) = [op for op in model.trace.operations if op.base == name and op.module_path in ("", "frozen", "norm")]
    return modes(model.trace, model.record, operation)


@pytest.mark.parametrize(
    ("operation", "under"),
    [
        pytest.param("sin", ["torch.no_grad()"], id="what had no gradient gets none"),
        pytest.param("linear", ["torch.autocast('cpu', dtype=torch.bfloat16)"], id="what was cast is cast"),
        pytest.param("relu", [], id="anything else stands as it is"),
    ],
)
def test_what_an_operation_runs_under(model, operation, under):
    assert around(model, operation) == under


def test_what_autograd_would_save_for_nobody_is_not_saved(model):
    (operation,) = [op for op in model.trace.operations if op.base == "relu"]
    rows = tuple(replace(row, unsaved=i == operation.id) for i, row in enumerate(model.record.operations))
    assert modes(model.trace, replace(model.record, operations=rows), operation) == [NOTHING_SAVED]


def test_where_the_whole_model_is_cast_what_was_not_is_not(model):
    trace = replace(model.trace, autocast=(("cpu", torch.bfloat16),))
    (relu,) = [op for op in trace.operations if op.base == "relu"]
    (linear,) = [op for op in trace.operations if op.base == "linear"]
    assert modes(trace, model.record, relu) == ["torch.autocast('cpu', enabled=False)"]
    assert modes(trace, model.record, linear) == [], "the mode of the whole model is not said again"


def test_a_node_names_the_generator_that_it_draws_from(model):
    drawing = [b for b in model.bodies if any(model.record.operations[op].random for op in b.operations)]
    others = [b for b in model.bodies if b not in drawing]
    assert {tuple(generators(model.trace, model.record, b)) for b in drawing} == {("torch.default_generator",)}
    assert {tuple(generators(model.trace, model.record, b)) for b in others} == {()}


@pytest.mark.parametrize("name", ["dropout", "alpha_dropout", "dropout2d", "feature_alpha_dropout"])
def test_a_dropout_of_nothing_draws_nothing(name):
    class Dropping(nn.Module):
        def __init__(self, p):
            super().__init__()
            self.linear, self.p = nn.Linear(4, 4), p

        def forward(self, x):
            return getattr(nn.functional, name)(self.linear(x), self.p, self.training).exp()

    for p in (0.0, 0.5):
        record = model_of(Dropping(p), (torch.randn(2, 3, 4, 4),), {}).record
        assert any(op.random for op in record.operations) == bool(p)


def test_a_generator_of_a_gpu_is_that_of_the_step_s_device(model):
    variables = tuple(replace(v, device="cuda:0") for v in model.trace.variables)
    (body,) = [b for b in model.bodies if any(model.record.operations[op].random for op in b.operations)][:1]
    found = generators(replace(model.trace, variables=variables), model.record, body)
    assert found == ["torch.cuda.default_generators[device.index]"]
