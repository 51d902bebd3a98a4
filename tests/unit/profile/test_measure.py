"""What nodes are measured on, how times are taken, and under what measurements are kept."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from emitted import model_of
from torch import nn

from remat_codegen.profile import bench, cache, clock, measure
from remat_codegen.profile.cache import Cache
from remat_codegen.profile.numbers import DRAWN, random_tensor
from remat_codegen.profile.ranges import integer_ranges
from remat_codegen.trace import Origin, Variable


class Reads(nn.Module):
    """Trains one table, and reads integers by a function of it and of them."""

    def __init__(self, function, rows=50):
        super().__init__()
        self.table, self.function = nn.Parameter(torch.randn(rows, 8)), function

    def forward(self, ids):
        return self.function(self.table, ids) + self.table.sum()


def range_of(function, ids=None):
    """Below what integers are drawn for `ids`, all operations together being the node; 1 where it is not known."""
    ids = torch.zeros(4, 8, dtype=torch.int64) if ids is None else ids
    trace = model_of(Reads(function), (ids,), {}).trace
    (given,) = [v for v in trace.inputs if v is not None]
    return integer_ranges(trace.operations, trace.variables).get(given, 1)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda w, i: F.embedding(i, w), 50),
        (lambda w, i: F.embedding_bag(i, w), 50),
        (lambda w, i: w.gather(0, i), 50),
        (lambda w, i: w.gather(-1, i), 8),
        (lambda w, i: w.index_select(1, i[0]), 8),
        (lambda w, i: torch.take_along_dim(w[:4], i, 1), 8),
        (lambda w, i: w.scatter(0, i, 1.0), 50),
        (lambda w, i: w.scatter_add(1, i, torch.ones(4, 8)), 8),
        (lambda w, i: w[i], 50),
        (lambda w, i: w[:, i], 8),
        (lambda w, i: w[i, i], 8),
        (lambda w, i: w.index_put((i[0],), torch.ones(8)), 50),
        (lambda w, i: F.cross_entropy(w[:32], i.view(-1)), 8),
        (lambda w, i: F.nll_loss(w[:32].log_softmax(-1), i.reshape(32)), 8),
        (lambda w, i: F.one_hot(i, 20).float() @ w[:20], 20),
    ],
    ids="embedding bag gather last select along scatter scatter_add index columns both put entropy nll one_hot".split(),
)
def test_integers_are_drawn_from_the_range_of_what_they_index(function, expected):
    assert range_of(function) == expected


def test_a_range_is_found_through_views_casts_and_the_narrowest_reader():
    assert range_of(lambda w, i: F.embedding(i[:, 1:].to(torch.int32).unsqueeze(0).expand(2, -1, -1).contiguous(), w)) == 50
    assert range_of(lambda w, i: F.embedding(i, w) + F.embedding(i.flatten(), w[:7]).view(4, 8, 8)) == 7
    assert range_of(lambda w, i: F.embedding(i, w) * (i != 3).unsqueeze(-1)) == 50


@pytest.mark.parametrize(
    "function",
    [
        lambda w, i: F.embedding(i, w) + F.embedding(i * 3, w),
        lambda w, i: F.embedding(i.float().mul(2).long(), w),
        lambda w, i: F.embedding(i, w) * i.unsqueeze(-1),
        lambda w, i: w.sum() * i,
    ],
    ids="times float value number".split(),
)
def test_integers_that_something_else_reads_stay_zeros(function):
    assert range_of(function) == 1


def test_integers_of_a_range_fill_it_and_are_the_same_each_time():
    trace = model_of(Reads(lambda w, i: F.embedding(i, w)), (torch.zeros(64, 64, dtype=torch.int64),), {}).trace
    variable = trace.variables[next(v for v in trace.inputs if v is not None)]
    drawn = []
    for _ in range(2):
        torch.manual_seed(0)
        drawn.append(random_tensor(variable, "cpu", 50))
    assert torch.equal(*drawn) and drawn[0].unique().tolist() == list(range(50))
    assert random_tensor(variable, "cpu").eq(0).all()


def test_nodes_run_on_integers_of_their_range_and_on_zeros_where_these_do_not_fit(monkeypatch):
    seen = []
    monkeypatch.setattr(clock, "MEASURED_SECONDS", 0.0)
    monkeypatch.setattr(
        torch, "randint", lambda low, high, *a, _own=torch.randint, **k: seen.append(high) or _own(low, high, *a, **k)
    )
    model = model_of(Reads(lambda w, i: F.embedding(i, w)), (torch.zeros(4, 8, dtype=torch.int64),), {})
    assert min(measure.Measured("cpu", Cache("cpu", enabled=False)).of(model).time_ns) > 0
    assert set(seen) == {50}
    monkeypatch.setattr(measure, "integer_ranges", lambda operations, variables: dict.fromkeys(range(len(variables)), 1000))
    assert min(measure.Measured("cpu", Cache("cpu", enabled=False)).of(model).time_ns) > 0
    assert set(seen) == {50, 1000, 1}


def test_places_that_are_found_by_a_mask_are_within_what_there_is():
    def last(w, mask):
        return w.gather(1, mask.sum(1, keepdim=True).long() - 1)

    model = model_of(Reads(last), (torch.ones(50, 8),), {})
    assert min(measure.Measured("cpu", Cache("cpu", enabled=False)).of(model).time_ns) > 0


def test_each_timed_run_prepares_anew_and_lets_go_of_the_run_before(monkeypatch):
    alive, most, ran = set(), [0], []

    class Prepared:
        def __init__(self):
            alive.add(id(self))
            most[0] = max(most[0], len(alive))

        def __del__(self):
            alive.discard(id(self))

    monkeypatch.setattr(clock, "MEASURED_SECONDS", 0.0)
    assert clock.clock_for("cpu").least_times_ns(lambda _: Prepared(), lambda prepared: ran.append(1))[1] > 0
    assert (len(ran), most[0], alive) == (1 + clock.LONG_RUNS, 1, set())


def test_how_long_inputs_take_says_nothing_of_the_work(monkeypatch):
    monkeypatch.setattr(clock, "MEASURED_SECONDS", 0.0)
    own, ran = clock.clock_for("cpu"), []
    long, short = int(2e9), int(1e6)
    assert own.least_times_ns(len, ran.append, warm=True, noted=[short, long]) == [short, long] and not ran
    stages = (lambda _: [], lambda made: ran.append(1))
    assert own.least_times_ns(*stages, warm=True, noted=[long, short])[0] < long and len(ran) == clock.LONG_RUNS


@pytest.mark.parametrize(
    ("times", "rounded"),
    [
        pytest.param([1000], 1000, id="one run says nothing of that"),
        pytest.param([1000, 1000, 1000], 1000, id="equal ones are sure"),
        pytest.param([1049, 1037, 1041], 1036, id="the shorter half is apart by four, so to fours"),
        pytest.param([1035, 1041, 1047], 1036, id="and so it is for what differs by less"),
        pytest.param([900, 9000, 9000], 896, id="however far, to an eighth at most"),
        pytest.param([1000, 1001, 1001, 1002, 5000, 40000], 1000, id="runs that others disturbed do not count"),
    ],
)
def test_times_are_rounded_to_what_their_runs_are_apart(times, rounded):
    assert clock.rounded_ns(times) == rounded
    assert abs(clock.rounded_ns(times) - min(times)) <= clock.COARSEST / 2 * min(times)


@pytest.mark.parametrize(("alone_s", "runs"), [(0.0, 2), (1.0, 2 + clock.LONG_RUNS + 1 + clock.LONG_RUNS)])
def test_long_work_takes_what_it_took_when_its_memory_was_recorded(alone_s, runs, monkeypatch):
    monkeypatch.setattr(clock, "MEASURED_SECONDS", 0.0)
    monkeypatch.setattr(clock, "ALONE_SECONDS", alone_s)
    monkeypatch.setattr(measure, "ALONE_SECONDS", alone_s)
    ran, forward = [], bench.Bench._forward
    monkeypatch.setattr(bench.Bench, "_forward", lambda *given: ran.append(1) or forward(*given))
    model = model_of(nn.Linear(8, 8), (torch.randn(4, 8),), {})
    profile = measure.Measured("cpu", Cache("cpu", enabled=False)).of(model)
    assert min(profile.time_ns) > 0 and len(profile.time_ns) == 3 and len(ran) == runs


def test_who_disturbs_the_machine_for_a_moment_makes_nothing_cost_more():
    """Each time is taken twice, once behind all others: here by clocks that are too slow in the first or the second half."""

    def disturbed(late):
        class Disturbed(clock.Clock):
            def least_times_ns(self, *stages, warm=False, noted=()):
                value = None
                for stage in stages:
                    value = stage(value)
                asked.append(len(stages))
                return [1000 * (10 if (len(asked) > 2) is late else 1)] * len(stages)

        asked = []
        costs = measure.Measured("cpu", Cache("cpu", enabled=False), clock=Disturbed())
        return costs.of(model_of(nn.Sequential(nn.Linear(8, 8), nn.Tanh()), (torch.randn(4, 8),), {})).time_ns, asked

    quiet = (1000,) * 3
    assert disturbed(late=True) == disturbed(late=False) == (quiet, [1, 4, 1, 4])


def test_what_is_remembered_is_the_shorter_time_and_is_not_measured_again(tmp_path):
    class Counting(clock.Clock):
        def least_times_ns(self, *stages, warm=False, noted=()):
            asked.append(0)
            return super().least_times_ns(*stages, warm=warm, noted=noted)

    asked, cache = [], Cache("cpu", tmp_path)
    costs, model = measure.Measured("cpu", cache, clock=Counting()), model_of(nn.Linear(8, 8), (torch.randn(4, 8),), {})
    found = costs.of(model)
    assert len(asked) == 4 and costs.of(model) == found and len(asked) == 4
    assert measure.Measured("cpu", Cache("cpu", tmp_path), clock=Counting()).of(model) == found and len(asked) == 4


@pytest.mark.parametrize(("seconds", "runs"), [(1.0, 1), (0.16, 1), (0.1, 2), (0.05, 3), (0.03, 5), (0.001, 8)])
def test_work_is_run_until_it_took_long_enough(seconds, runs):
    taken = [[0, int(seconds * 1e9)]] * 20
    assert next(n for n in range(1, 20) if clock._enough(taken[:n])) == runs


def test_large_tensors_repeat_numbers_and_no_row_of_a_matrix():
    drawn = random_tensor(Variable(0, "w", Origin.PARAMETER, "w", (1500, 1024), (1024, 1), torch.float32, "cpu"), "cpu")
    assert drawn[0, 0] == drawn.flatten()[DRAWN] and len(set(map(tuple, drawn[:, :4].tolist()))) == 1500
    assert torch.linalg.matrix_rank(drawn) == 1024


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_what_changes_the_choice_of_kernels_changes_the_key(device, monkeypatch, tmp_path):
    monkeypatch.setattr(cache, "device_name", lambda device: "some GPU")
    paths = {Cache(device, tmp_path).path}

    def changed():
        paths.add(Cache(device, tmp_path).path)
        return len(paths)

    assert changed() == 1
    torch.use_deterministic_algorithms(True)
    try:
        assert changed() == 2
    finally:
        torch.use_deterministic_algorithms(False)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        assert changed() == 3
    finally:
        torch.set_float32_matmul_precision(before)
    if device == "cuda":
        with torch.backends.cudnn.flags(enabled=True, benchmark=True):
            assert changed() == 4
        driver = tmp_path / "version"
        driver.write_text("NVRM version: 580.1\nGCC version: 12\n")
        monkeypatch.setattr(cache, "NVIDIA_DRIVER", driver)
        assert changed() == 5
        monkeypatch.setattr(torch.version, "cuda", "99.9")
        assert changed() == 6
        with nn.attention.sdpa_kernel(nn.attention.SDPBackend.MATH):
            assert changed() == 7
    monkeypatch.setattr(cache, "device_name", lambda device: "another")
    assert changed() in (4, 8)
