"""What a trace holds, and what it leaves out."""

import pytest
import torch
from torch import nn

from remat_codegen.errors import UnsupportedError
from remat_codegen.trace.reader import _without_slices
from remat_codegen.trace.refusals import location
from remat_codegen.trace.tracing import trace

LIBRARY = torch.library.Library("remat_codegen_tests", "DEF")
LIBRARY.define("tell(int number) -> ()")
LIBRARY.impl("tell", lambda number: None, "CompositeExplicitAutograd")


class Wasteful(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 4)

    def forward(self, x):
        torch.arange(3).unsqueeze(0) + 1
        torch.rand(2)
        ones = torch.ones(4)
        ones[:2].add_(1)
        torch.ops.remat_codegen_tests.tell(3)
        x.exp()
        return self.a(x) + ones


def test_constants_that_nothing_reads_are_left_out():
    """And nothing that draws, changes something, or may do what no schema says; what reads an input stays as it was written."""
    found = trace(Wasteful(), (torch.randn(2, 4),), {})
    names = [op.target._schema.name for op in found.operations]
    assert "aten::arange" not in names and "aten::unsqueeze" not in names
    for kept in ("aten::rand", "aten::ones", "aten::add_", "aten::exp", "remat_codegen_tests::tell"):
        assert kept in names


class Written(nn.Module):
    """The state that forward leaves is computed from zeros into which an input was written."""

    def forward(self, x):
        moved = torch.zeros(3, 4)
        for row in range(2):
            moved[row] = x[row] * 2
        self.state = moved.tanh()
        return x * 3


def test_what_is_computed_from_what_was_written_is_no_constant():
    found = trace(Written(), (torch.randn(2, 4),), {})
    (state,) = [op.results[0] for op in found.operations if op.target._schema.name == "aten::tanh"]
    assert [variable for variable, _ in found.left] == [state]


class Packs(nn.Module):
    """Forward takes lengths, by which a recurrent network leaves out what is padding."""

    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(4, 4, batch_first=True)

    def forward(self, x, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return nn.utils.rnn.pad_packed_sequence(self.rnn(packed)[0], batch_first=True)[0]


def test_packed_sequences_are_refused_with_what_to_do():
    with pytest.raises(
        UnsupportedError, match=r"a packed sequence has sizes by the values .*; plan on inputs without lengths"
    ) as found:
        trace(Packs(), (torch.randn(2, 3, 4), torch.tensor([2, 3])), {})
    assert found.value.where.startswith("test_tracing.py:")


def test_a_part_of_a_list_has_the_paths_of_the_list():
    lengths = {"layers": 6, "stages.1": 4}
    assert _without_slices("layers.slice(None, 3, None).2.out", lengths) == "layers.2.out"
    assert _without_slices("layers.slice(-2, None, None).1", lengths) == "layers.5"
    assert _without_slices("stages.1.slice(3, 0, -1).0.slice.fc", lengths) == "stages.1.3.slice.fc"
    assert _without_slices("other.slice(None, 3, None).2", lengths) == "other.slice(None, 3, None).2"


def test_where_only_the_end_of_a_list_s_path_is_known_lists_that_end_so_tell():
    lengths = {"encoder.shared": 2, "ft.0.shared": 2, "one.layers": 2, "other.layers": 3}
    assert _without_slices("shared.slice(1, None, None).0", lengths) == "shared.1"
    assert _without_slices("layers.slice(1, None, None).0", lengths) == "layers.slice(1, None, None).0"


def halved(x):
    return x.mul(0.5)


class Calls(nn.Module):
    def message(self, x):
        x = x.sin()
        return halved(x)

    def forward(self, x):
        return self.message(x).exp()


def test_messages_name_the_line_that_runs_an_operation():
    """That of a method or a function which forward calls; names are taken from forward's own."""
    found = {op.base: op.source for op in trace(Calls(), (torch.randn(3),), {}).operations}
    said = {name: source.innermost.text for name, source in found.items()}
    assert said == {"sin": "x = x.sin()", "mul": "return x.mul(0.5)", "exp": "return self.message(x).exp()"}
    assert {source.text for source in found.values()} == {said["exp"]}
    assert location(found["sin"]) == f"test_tracing.py:{Calls.message.__code__.co_firstlineno + 1}"
