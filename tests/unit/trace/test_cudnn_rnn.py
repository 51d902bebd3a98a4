"""Recurrent networks on a GPU that is not there: what cuDNN keeps and takes, by rule."""

from __future__ import annotations

import pytest
import torch
from test_absent_devices import H100, on, row, times
from torch import nn

from remat_codegen.ask.request import Request
from remat_codegen.errors import UnsupportedError
from remat_codegen.profile.estimated import Estimated
from remat_codegen.run import check_update
from remat_codegen.run.marked import generate
from remat_codegen.show.results import Progress
from remat_codegen.trace import absent, cudnn_rnn

aten = torch.ops.aten
QUIET = Progress(None)
STEPS, BATCH, WIDTH, HIDDEN = 16, 32, 64, 128
HALF = ((absent.TYPE, torch.bfloat16),)  # whatever autocast casts to, cuDNN's recurrent networks get halves


class Net(nn.Module):
    def __init__(self, kind: type[nn.RNNBase], **options) -> None:
        super().__init__()
        self.layer = kind(WIDTH, HIDDEN, **options)

    def forward(self, x):
        return self.layer(x)[0].relu()


def given(dtype=torch.float32):
    return torch.zeros(STEPS, BATCH, WIDTH, dtype=dtype)


@pytest.mark.parametrize(("name", "published"), [("lstm", 736_000_000), ("gru", 864_000_000)])
def test_the_reserve_is_a_part_more_than_what_is_published(name, published):
    """Of four layers of 320 units (pytorch/pytorch#2895), by 25,000 rows."""
    mode = cudnn_rnn.MODES[name]
    net = cudnn_rnn.Recurrent(1000, 25, mode, 320, 320, 4, 1, False, 4, ())
    assert net.reserve_bytes() == cudnn_rnn.MARGIN * published


CASES = {
    "lstm": (nn.LSTM, {}, 5 * HIDDEN * 4),
    "of three layers, both ways": (nn.LSTM, {"num_layers": 3, "bidirectional": True}, 2 * (3 * 5 + 2) * HIDDEN * 4),
    "with dropout": (nn.LSTM, {"num_layers": 2, "dropout": 0.1}, ((2 * 5 + 1) * 4 + 1 + 4) * HIDDEN),
    "projected": (nn.LSTM, {"proj_size": 32, "bias": False, "num_layers": 2}, (2 * 5 * HIDDEN + 32) * 4),
    "gru": (nn.GRU, {"num_layers": 2}, (2 * 6 + 1) * HIDDEN * 4),
    "plain": (nn.RNN, {"nonlinearity": "relu"}, 2 * HIDDEN * 4),
}


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize(("kind", "options", "row_bytes"), CASES.values(), ids=CASES)
def test_a_network_is_one_operation_that_keeps_its_reserve(kind, options, row_bytes, first):
    module = Net(kind, batch_first=first, **options)
    model = on(H100, module, given())
    base = "rnn_relu" if kind is nn.RNN else kind.__name__.lower()
    saved, beside = row(model, base)
    assert int(cudnn_rnn.MARGIN * STEPS * BATCH * row_bytes) in beside
    assert len(saved) >= 3 + len(module.layer._flat_weights)  # input, output, states, weights
    assert not next(n for n in model.graph.forward_nodes if base in n.name).recomputable
    out, real = model.trace.variables[model.trace.outputs[0].variable], module(given())
    assert out.shape == tuple(real.shape) and model.record.variables[out.id].requires_grad


def test_under_autocast_it_computes_in_halves():
    module = Net(nn.LSTM)
    saved, beside = row(on(H100, module, given(), autocast=HALF), "lstm")
    weights = sum(p.numel() for p in module.parameters())
    assert int(cudnn_rnn.MARGIN * STEPS * BATCH * 5 * HIDDEN * 2) in beside
    assert sum(beside) >= 2 * weights + 2 * STEPS * BATCH * WIDTH  # copies of weights and input


def test_what_cudnn_does_not_take_runs_step_by_step():
    _, beside = row(on(H100, Net(nn.LSTM).bfloat16(), given(torch.bfloat16)), "lstm")
    assert len(beside) > STEPS
    with torch.backends.cudnn.flags(enabled=False):
        assert len(row(on(H100, Net(nn.LSTM), given()), "lstm")[1]) > STEPS


def test_steps_wait_for_each_other():
    costs = Estimated(H100).of(on(H100, Net(nn.LSTM), given()))
    one = H100.launch_ns
    assert max(costs.time_ns) >= 2 * (STEPS + 1) * one  # back twice the products
    assert sorted(costs.time_ns)[-2] >= (STEPS + 1) * one
    least = sum(w.numel() for w in Net(nn.LSTM).parameters()) * 4
    assert sorted(costs.workspace_bytes)[-2] >= least


@pytest.mark.parametrize("kernel", ["flash", "efficient", "cudnn"])
def test_attention_that_sees_no_future_takes_half_of_the_time_both_ways(kernel):
    """Each operation of attention's has `is_causal` in another place."""
    made = lambda: torch.empty(2, 8, 4096, 64, dtype=torch.bfloat16, device=absent.TYPE, requires_grad=True)  # noqa: E731

    def both(causal: bool) -> None:
        q, k, v = made(), made(), made()
        run = getattr(aten, f"_scaled_dot_product_{kernel}_attention")
        more = {"flash": (0.0, causal), "efficient": (None, True, 0.0, causal), "cudnn": (None, True, 0.0, causal)}[kernel]
        out = run(q, k, v, *more)[0]
        out.backward(torch.empty_like(out))

    assert times(H100, lambda: both(True)) == pytest.approx(0.5 * times(H100, lambda: both(False)), rel=0.05)


TAGGER = """from torch import nn


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.before = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.LayerNorm(256))
        self.lstm = nn.LSTM(256, 256, 2, dropout=0.1)
        self.after = nn.Sequential(*[nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.LayerNorm(256)) for _ in range(9)])

    def forward(self, x):
        return self.after(self.lstm(self.before(x))[0])
"""


def test_a_model_with_a_recurrent_network_is_planned_and_checked(tmp_path, monkeypatch):
    (tmp_path / "net.py").write_text(TAGGER)
    monkeypatch.chdir(tmp_path)
    request = Request("net.py:Tagger", "90%", tmp_path / "file.py", inputs="float32[64,16,64]", device="h100", planner="chen")
    report = generate(request, QUIET)
    assert 0 < report.planned_peak_bytes <= report.budget_bytes < report.unmodified_peak_bytes
    assert "estimated for h100" in request.output_path.read_text()
    assert check_update.check(request.output_path, QUIET).lines() == [f"{request.output_path}: up to date"]


def test_a_network_that_is_not_trained_is_refused_on_the_way_back():
    module = Net(nn.LSTM)
    module.layer.eval()
    with pytest.raises(UnsupportedError, match="go back in training mode only"):
        on(H100, module, given())


@pytest.mark.parametrize("kind", [nn.GRUCell, nn.LSTMCell, nn.RNNCell])
@pytest.mark.parametrize("bias", [True, False])
def test_cells_are_unrolled_and_planned(kind, bias):
    class Unrolled(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = kind(WIDTH, WIDTH, bias=bias)

        def forward(self, x):
            state = None
            for step in x.unbind():
                state = self.cell(step, state)
            return state[0] if isinstance(state, tuple) else state

    model = on(H100, Unrolled(), given())
    assert model.record.variables[model.trace.outputs[0].variable].requires_grad
    assert min(Estimated(H100).of(model).time_ns) >= 0
