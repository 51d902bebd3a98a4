"""What generated values are called."""

from __future__ import annotations

import importlib.util
import sys

import pytest
import torch

from remat_codegen.emit.names import RESERVED, Namer, owner_of, wishes
from remat_codegen.trace import Operation
from remat_codegen.trace.tracing import trace

SOURCE = """
import torch
from torch import nn


class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(4, 4)
        self.steps = nn.Sequential(nn.Linear(4, 4))

    def forward(self, x):
        inner = self.proj(
            x
        )
        return self.steps(inner).tanh()


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = Inner(), Inner()

    def forward(self, x):
        long = torch.sin(x) + 1
        self.kept = long.cos()
        low, high = self.a(long).chunk(2, -1)
        whole = low.exp().sinh().chunk(2, -1)
        both: torch.Tensor = low * high
        both += 1
        x.relu_()
        return self.b(torch.cat((both, whole[0], whole[1], x[:, :0]), -1))
"""


@pytest.mark.parametrize(
    ("wish", "name"),
    [
        pytest.param("scores", "scores", id="a free name is taken as it is"),
        pytest.param("odd name!", "odd_name_", id="what no name may hold becomes a line below"),
        pytest.param("", "value", id="no wish is a value"),
        pytest.param("class", "v_class", id="a keyword gets something in front"),
        pytest.param("match", "v_match", id="a soft keyword too"),
        pytest.param("2x", "v_2x", id="what begins with a digit too"),
        pytest.param("größe", "v_gr__e", id="other letters than those of ASCII are left out"),
        pytest.param("kept", "kept_2", id="a reserved name gets a number"),
        pytest.param("sum", "sum_2", id="a builtin gets a number"),
    ],
)
def test_a_name_is_near_the_wish(wish, name):
    assert Namer().fresh(wish) == name


def test_names_of_one_scope_differ():
    namer = Namer()
    assert [namer.fresh(w) for w in ("x", "x", "x_2", "x")] == ["x", "x_2", "x_2_2", "x_3"]


def test_scopes_know_nothing_of_each_other():
    first, second = Namer(), Namer()
    assert first.fresh("x") == second.fresh("x") == "x" and first.taken - RESERVED == {"x"}


@pytest.mark.parametrize(
    ("path", "kind", "owner"),
    [
        pytest.param("h.0.proj", "torch.nn.modules.linear.Linear", "h.0", id="of a module of PyTorch's it is the one around"),
        pytest.param("h.0", "model.Block", "h.0", id="of a user's module it is that one"),
        pytest.param("proj", "torch.nn.modules.linear.Linear", "", id="at the top it is the model"),
    ],
)
def test_an_operation_belongs_to_the_user_s_module(path, kind, owner):
    operation = Operation(0, torch.ops.aten.sin.default, (), (), (), False, path, kind, None)
    assert owner_of(operation) == owner


@pytest.fixture(scope="module")
def wished(tmp_path_factory):
    """The wish for each operation's results, in order, by the name of the operation and the module that it ran in."""
    path = tmp_path_factory.mktemp("names") / "named_model.py"
    path.write_text(SOURCE)
    spec = importlib.util.spec_from_file_location("named_model", path)
    module = sys.modules["named_model"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    traced = trace(module.Model(), (torch.randn(2, 4),), {})
    found = wishes(traced)
    rows = {}
    for op in traced.operations:
        rows.setdefault((op.base, op.module_path), []).append([found[v] for v in op.results if v is not None])
    return rows


@pytest.mark.parametrize(
    ("operation", "where", "names"),
    [
        pytest.param("add", "", [["long"]], id="the last operation of an assignment has its name"),
        pytest.param("sin", "", [["sin"]], id="another of that statement has the operation's"),
        pytest.param("linear", "a.proj", [["inner"]], id="a statement may have several lines"),
        pytest.param("linear", "b.proj", [["inner"]], id="each module's run of a statement has its own last operation"),
        pytest.param("cos", "", [["cos"]], id="an attribute is no name"),
        pytest.param("linear", "a.steps.0", [["linear"]], id="a module that has only a number has the operation's name"),
        pytest.param("tanh", "a", [["tanh"]], id="what is returned has the operation's name"),
        pytest.param("mul", "", [["both"]], id="an annotated assignment names, too"),
        pytest.param("add_", "", [["both"]], id="one in place names, too"),
        pytest.param("relu_", "", [["relu"]], id="without an assignment the mark for in place is left out"),
        pytest.param(
            "chunk", "", [["low", "high"], ["chunk", "chunk"]], id="several results have a name each, if there are so many"
        ),
    ],
)
def test_values_are_named_after_the_source(wished, operation, where, names):
    assert wished[operation, where] == names
