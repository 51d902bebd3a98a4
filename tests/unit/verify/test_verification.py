"""What `verify` says where it cannot compare, and where the original differs from itself."""

from __future__ import annotations

import math
import os

import pytest
import torch

from remat_codegen.ask.request import Request
from remat_codegen.errors import VerifyError
from remat_codegen.header.seal import seal
from remat_codegen.run import pipeline
from remat_codegen.show.results import Progress
from remat_codegen.verify import beside as comparing
from remat_codegen.verify import fresh, stepcosts
from remat_codegen.verify import verification as verification

NET = """
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(32, 128), torch.nn.Linear(128, 32)

    def forward(self, x):
        return self.b(self.a(x).sin().exp()).tanh()
"""
NOISY = """
import os

import torch


class Noisy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        process, calls = map(int, os.environ["NOISY"].split())
        os.environ["NOISY"] = f"{process} {calls + 1}"
        return x * (1 + 1e-6 * (calls % 2 if os.getpid() == process else 3))

    @staticmethod
    def backward(ctx, grad):
        return grad


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(32, 128), torch.nn.Linear(128, 32)

    def forward(self, x):
        return Noisy.apply(self.b(self.a(x).sin().exp())).tanh()
"""


def written(write_file, tmp_path, source):
    """A file with its target."""
    file, target = tmp_path / "net_remat.py", f"{write_file(source)}:Net"
    pipeline.generate(Request(target, "100%", file, inputs="float32[64,32]"), Progress(None))
    return file, target


def verify(file, target, **options):
    return pipeline.verify(file, target, inputs="float32[64,32]", progress=Progress(None), **options)


def row(found, what):
    return next(r for r in found.rows if r.what == what)


def test_one_model_at_a_time_is_trained(write_file, tmp_path, monkeypatch):
    """Two would take twice the room, where there is little."""
    import gc
    import weakref

    file, target = written(write_file, tmp_path, NET)
    runs: list[weakref.ref] = []
    most, usual = [], comparing.Run.__init__

    def counted(self, *args):
        usual(self, *args)
        runs.append(weakref.ref(self))
        gc.collect()
        most.append(sum(r() is not None for r in runs))

    monkeypatch.setattr(comparing.Run, "__init__", counted)
    generated = comparing.load_generated(file)
    from remat_codegen.ask.target import load_target

    loaded = load_target(target, inputs="float32[64,32]")
    found = comparing.compare(loaded.module, generated.rematerialize, loaded.args, loaded.kwargs)
    assert found.identical and most == [1, 1]


def test_an_original_that_does_not_fit_is_not_run(write_file, tmp_path, monkeypatch):
    file, target = written(write_file, tmp_path, NET)
    monkeypatch.setattr(comparing, "free_bytes", lambda: 4096)
    monkeypatch.setattr(comparing, "_train_original", lambda *given: pytest.fail("the original was run"))
    found = verify(file, target)
    assert row(found, "the original").detail.startswith("not compared: the original does not fit: its step needs")
    assert "4.0 KiB are free" in row(found, "the original").detail
    assert {r.what for r in found.rows} == {"the original", "in a process of its own", "peak within budget"}
    assert found.ok and found.measured_peak_bytes > 0 and found.original_peak_bytes is None


def test_an_original_that_runs_out_of_memory_is_not_compared(write_file, tmp_path, monkeypatch):
    def out_of_memory(*given):
        raise MemoryError("there is no more")

    file, target = written(write_file, tmp_path, NET)
    monkeypatch.setattr(comparing, "_train_original", out_of_memory)
    found = verify(file, target)
    assert row(found, "the original").detail == "not compared: the original does not fit (MemoryError: there is no more)"
    assert found.ok and found.measured_peak_bytes <= found.budget_bytes


def test_a_file_over_its_budget_fails_even_if_nothing_is_compared(write_file, tmp_path, monkeypatch):
    file, target = written(write_file, tmp_path, NET)
    monkeypatch.setattr(comparing, "free_bytes", lambda: 4096)
    found = verify(file, target, budget="1000")
    assert not found.ok and not row(found, "peak within budget").ok


@pytest.fixture
def noise(monkeypatch):
    """Has NOISY give one of two results in turn, and a third one in other processes: a run has three calls, so that it differs
    from the one before, by as much each time."""
    monkeypatch.setenv("NOISY", f"{os.getpid()} 0")


def test_the_originals_own_noise_is_the_tolerance(write_file, tmp_path, noise):
    found = verify(*written(write_file, tmp_path, NOISY))
    assert found.ok, found.failures()
    assert "equal up to the original's own noise" in row(found, "outputs").detail
    assert row(found, "in a process of its own").detail == "not compared: the original itself differs from run to run"


def test_more_than_the_originals_noise_fails(write_file, tmp_path, noise):
    file, target = written(write_file, tmp_path, NOISY)
    text = file.read_text()
    assert text.count("torch.tanh(") == 1  # in the generated function
    file.write_text(seal(text.replace("torch.tanh(", "1.001 * torch.tanh(")))
    assert not row(verify(file, target), "outputs").ok


@pytest.mark.parametrize(
    ("found", "again", "noise", "within"),
    [
        (None, None, None, True),
        (1e-7, 1e-7, None, False),
        (1e-7, None, 1e-7, True),
        (3e-7, 1e-7, 1e-7, True),  # noise by chance
        (3e-7, 2e-7, 1e-7, False),
        (0.5, 1e-7, 1e-7, False),  # a router that chose others, once
        (0.5, None, 1e-7, False),
        (1e-7, 1e-7, math.inf, False),
    ],
)
def test_noise_is_what_both_comparisons_are_held_against(found, again, noise, within):
    assert verification._within(*(comparing.Difference(1, worst) for worst in (found, again, noise))) is within


def test_a_file_is_not_exact_in_float64_because_the_original_does_not_fit_so(write_file, tmp_path, monkeypatch):
    file, target = written(write_file, tmp_path, NET)
    text = file.read_text()
    assert text.count("torch.tanh(") == 1
    file.write_text(seal(text.replace("torch.tanh(", "1.001 * torch.tanh(")))
    usual = comparing._train_original

    def narrow(*given):
        if torch.get_default_dtype() is torch.float64:
            raise MemoryError("there is no more")
        return usual(*given)

    monkeypatch.setattr(comparing, "_train_original", narrow)
    outputs = row(verify(file, target), "outputs")
    assert not outputs.ok and "it does not run in float64" in outputs.detail


def test_no_room_for_both_models_at_once_is_said(write_file, tmp_path, monkeypatch):
    file, target = written(write_file, tmp_path, NET)

    def no_room(*given):
        raise torch.OutOfMemoryError("there is no more")

    monkeypatch.setattr(stepcosts, "_ratio", no_room)
    found = verify(file, target)
    assert found.ok and found.original_peak_bytes > 0 and found.time_ratio is None
    assert found.notes[-1].startswith("no measured time")


def test_no_room_beside_this_process_is_no_failure_of_the_file(write_file, tmp_path, monkeypatch):
    file, target = written(write_file, tmp_path, NET)
    ended = fresh.Found(stage="step 1", said="OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB")
    monkeypatch.setattr(fresh, "trained_alone", lambda *given, **options: ended)
    found = row(verify(file, target), "in a process of its own")
    assert found.ok and found.detail.startswith("not compared: there is no room for it beside this one")


@pytest.mark.parametrize(
    "error",
    [RuntimeError("DefaultCPUAllocator: can't allocate memory"), RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED")],
)
def test_libraries_have_other_words_for_out_of_memory(write_file, tmp_path, monkeypatch, error):
    usual = comparing.Run.step

    def step(self):
        if not hasattr(self.model, "plain_forward"):  # the original
            raise error
        usual(self)

    file, target = written(write_file, tmp_path, NET)
    monkeypatch.setattr(comparing.Run, "step", step)
    assert row(verify(file, target), "the original").detail.startswith("not compared: the original does not fit (MemoryError")


PUTS = """
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a = torch.nn.Linear(32, 32)

    def forward(self, x):
        return self.a(x).clone().put_(torch.arange(3), torch.zeros(3)).tanh()
"""


def test_deterministic_algorithms_are_asked_for_here_and_in_the_fresh_process(write_file, tmp_path, monkeypatch):
    file, target = written(write_file, tmp_path, NET)
    tasks, usual = [], fresh._task
    monkeypatch.setattr(fresh, "_task", lambda *given: tasks.append(usual(*given)) or tasks[-1])
    for asked in (True, False):
        found = pipeline.verify(file, target, inputs="float32[64,32]", deterministic=asked, progress=Progress(None))
        assert found.ok and tasks[-1]["deterministic"] is asked
        assert not torch.are_deterministic_algorithms_enabled()


def test_what_has_no_deterministic_algorithm_is_told_in_a_line(write_file, tmp_path):
    file, target = written(write_file, tmp_path, PUTS)
    assert verify(file, target).ok
    with pytest.raises(VerifyError, match="put_ does not have a deterministic implementation") as refused:
        pipeline.verify(file, target, inputs="float32[64,32]", deterministic=True, progress=Progress(None))
    assert "\n" not in refused.value.line() and not torch.are_deterministic_algorithms_enabled()


TEACHING = """
import copy

import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(128, 128), torch.nn.Linear(128, 128)
        self.teacher = copy.deepcopy(self.a).requires_grad_(False)

    def forward(self, x):
        with torch.no_grad():
            for ours, theirs in zip(self.a.parameters(), self.teacher.parameters()):
                theirs.data = theirs.data * 0.9 + ours.data * 0.1
        return self.b(self.a(x).sin().exp().tanh()) * self.teacher(x)
"""


def test_a_teacher_that_gets_new_memory_in_each_step_lets_go_of_the_old(write_file, tmp_path):
    """64 KiB, as much as the step itself holds."""
    write_file(TEACHING, "net.py")
    request = Request(f"{tmp_path / 'net.py'}:Net", "100%", tmp_path / "out.py", inputs="float32[8,128]", verify=True)
    found = pipeline.generate(request, Progress(None)).verify
    assert found.ok, found.failures()
    for measured, planned in (
        (found.measured_peak_bytes, found.planned_peak_bytes),
        (found.original_peak_bytes, found.assumed_peak_bytes),
    ):
        assert measured <= planned
