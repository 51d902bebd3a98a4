"""The little languages of --inputs and --init."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from remat_codegen.ask.inputs import Inputs, TensorSpec, as_inputs, make_inputs, parse_init, parse_inputs
from remat_codegen.ask.request import Request
from remat_codegen.errors import TargetError, UnsupportedError
from remat_codegen.run.traced import trace_target
from remat_codegen.show.results import Progress


def test_one_positional_tensor():
    inputs = make_inputs("int64[4,512]<50257")
    assert inputs.kwargs == {}
    (idx,) = inputs.args
    assert idx.shape == (4, 512) and idx.dtype == torch.int64
    assert idx.min() >= 0 and 40_000 < idx.max() < 50257


def test_several_inputs_by_position_and_name():
    inputs = make_inputs(
        " float32[2,3] ; mask = bool[4]; scale=float64[]; k=3; use_cache=False; mode='a;b=c'; ids=int32[100]<5:7 ;"
    )
    assert [a.shape for a in inputs.args] == [(2, 3)]
    assert list(inputs.kwargs) == ["mask", "scale", "k", "use_cache", "mode", "ids"]
    assert inputs.kwargs["mask"].dtype == torch.bool
    assert inputs.kwargs["scale"].shape == ()
    assert inputs.kwargs["k"] == 3 and inputs.kwargs["use_cache"] is False and inputs.kwargs["mode"] == "a;b=c"
    assert inputs.kwargs["ids"].unique().tolist() == [5, 6]


def test_values_without_a_range():
    x, n, b = make_inputs("float32[4000]; int64[100]; bool[100]").args
    assert abs(x.mean()) < 0.1 and abs(x.std() - 1) < 0.1
    assert n.unique().tolist() == [0, 1]
    assert b.unique().tolist() == [False, True]


def test_a_range_of_floats_is_uniform():
    (x,) = make_inputs("float64[1000]<-2:2").args
    assert -2 <= x.min() < -1.9 and 1.9 < x.max() < 2


@pytest.mark.parametrize(
    "dtype", ["float32", "float64", "float16", "bfloat16", "complex64", "complex128", "int64", "int32", "int16", "uint8"]
)
def test_every_dtype(dtype):
    (x,) = make_inputs(f"{dtype}[3]").args
    assert x.dtype is getattr(torch, dtype) and x.is_leaf


def test_inputs_that_require_grad():
    (x,) = make_inputs("float32[2] requires_grad").args
    assert x.requires_grad and x.is_leaf
    (y,) = make_inputs("float32[2]<1 requires_grad").args
    assert y.requires_grad and y.is_leaf


def test_the_same_seed_draws_the_same_values():
    text = "float32[5]; int64[5]<1000"
    assert all(map(torch.equal, make_inputs(text, seed=1).args, make_inputs(text, seed=1).args))
    assert not torch.equal(make_inputs(text, seed=1).args[0], make_inputs(text, seed=2).args[0])


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "no input"),
        (" ; ", "no input"),
        ("int46[2]", "did you mean int64"),
        ("idx=int64[2,x]<5", "'x'"),
        ("idx=int64[2,]", "''"),
        ("int64[2,-1]", "'-1'"),
        ("int64[2", "int64[2"),
        ("int64", "int64"),
        ("idx=int64[2]<", "idx=int64[2]<"),
        ("int64[2]<a", "'a'"),
        ("int64[2]<1.5", "1.5"),
        ("int64[2]<5:5", "empty"),
        ("int64[2]<-3", "empty"),
        ("int8[2]<1000", "does not fit"),
        ("bool[2]<2", "no range"),
        ("float32[2]<nan", "'nan'"),
        ("float32[2]<inf", "'inf'"),
        ("int64[2] requires_grad", "cannot require"),
        ("float32[2] grad", "float32[2] grad"),
        ("x=float32[2]; float32[3]", "item 2"),
        ("x=float32[2]; x=float32[3]", "'x' is given twice"),
        ("x=hello", "x=hello"),
        ("x=", "x="),
        ("2x=float32[2]", "2x=float32[2]"),
        ("float32[1000000000000000]", "float32[1000000000000000]"),
    ],
)
def test_errors_name_the_piece_that_is_wrong(text, named):
    with pytest.raises(TargetError) as caught:
        make_inputs(text)
    line = caught.value.line()
    assert line.startswith("--inputs: ") and named in line and "\n" not in line


@given(st.text(alphabet="abint64floatx=[],;:<'0123 -.", max_size=30))
def test_any_text_is_inputs_or_a_target_error(text):
    try:
        assert parse_inputs(text)
    except TargetError as error:
        assert "\n" not in error.line()


def test_parsing_makes_no_tensor():
    assert parse_inputs("x=float32[999999,999999]<0:1") == (("x", TensorSpec("float32", (999999, 999999), 0, 1)),)


def test_what_a_function_may_return():
    x = torch.zeros(2)
    assert as_inputs(x, "f").args == (x,)
    assert as_inputs((x, 3), "f") == Inputs((x, 3), {})
    assert as_inputs({"x": x}, "f") == Inputs((), {"x": x})
    assert as_inputs((), "f") == Inputs()


@pytest.mark.parametrize(("value", "named"), [(None, "None"), ([1], "a list"), (3, "an int"), ({1: 2}, "keys"), ("x", "a str")])
def test_what_it_may_not(value, named):
    with pytest.raises(TargetError, match=named) as caught:
        as_inputs(value, "model.py:example_inputs()")
    assert caught.value.line().startswith("model.py:example_inputs(): returned ")


def test_moving_keeps_one_tensor_in_two_places_one_and_makes_leaves():
    x = torch.ones(2, requires_grad=True)
    moved = Inputs((x * 2, [x, 1]), {"again": x}).to("cpu")
    assert moved.args[0].is_leaf and moved.args[0].requires_grad
    assert moved.args[1][0] is moved.kwargs["again"]
    assert moved.args[1][1] == 1


def test_init():
    assert parse_init("") == ((), {})
    assert parse_init(" layers=24, dropout=0.0 ") == ((), {"layers": 24, "dropout": 0.0})
    assert parse_init("3, 'a', sizes=(1, -2), flag=None") == ((3, "a"), {"sizes": (1, -2), "flag": None})


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("layers", "'layers'"),
        ("layers=x", "layers=x"),
        ("layers=", "layers="),
        ("a=1, a=2", "twice"),
        ("**{'a': 1}", "**{'a': 1}"),
        ("*[1]", "*[1]"),
        ("1) + f(2", "cannot read"),
        ("1)(2", "cannot read"),
        ("a=__import__('os')", "__import__"),
        ("a=1 #", "cannot read"),
    ],
)
def test_init_errors(text, named):
    with pytest.raises(TargetError) as caught:
        parse_init(text)
    assert caught.value.line().startswith("--init: ") and named in caught.value.line()


@pytest.mark.parametrize(("inputs", "said"), [("idx=int64[2,8]<40", "idx looks up row"), ("idx=int64[2,8]<20", "")])
def test_rows_that_an_embedding_does_not_have(inputs, said, tmp_path):
    (tmp_path / "net.py").write_text(
        "import torch\n\n\nclass Net(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.wte = torch.nn.Embedding(20, 4)\n\n    def forward(self, idx):\n        return self.wte(idx).sin()\n"
    )
    asked = Request(f"{tmp_path / 'net.py'}:Net", "90%", inputs=inputs)
    if not said:
        trace_target(asked, Progress(None))
        return
    with pytest.raises(UnsupportedError, match=r"of wte\.weight, which has 20") as refused:
        trace_target(asked, Progress(None))
    assert refused.value.what.startswith(said) and refused.value.where.endswith("net.py:10")
