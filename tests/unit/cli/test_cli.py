"""The command line: what it hands to the pipeline, what it prints, and how every error ends."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import types
import warnings
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import remat_codegen.run.check_update  # before there is a fake: it imports from what that takes the place of
from remat_codegen.ask.request import Request, default_output
from remat_codegen.cli.main import cli
from remat_codegen.errors import TargetError
from remat_codegen.show.results import Report, Row, Verification

GIB = 2**30
GOOD = Verification((Row("outputs", True, "bit-identical"),), GIB, GIB, GIB, True)
BAD = Verification((Row("gradients", False, "0.1 in wte.weight"),), GIB, GIB, GIB, False)


class FakePipeline(types.ModuleType):
    """Remembers what it was asked for; does what a test says."""

    def __init__(self) -> None:
        super().__init__("remat_codegen.run.pipeline")
        self.request: Request | None = None
        self.verified: tuple | None = None
        self.verification = GOOD
        self.action = lambda: None

    def generate(self, request, progress):
        self.request = request
        with progress.stage("trace"):
            progress.update(1, 2)
            self.action()
        found = self.verification if request.verify else None
        return Report(
            "rockmate", "optimal", GIB, GIB, 2 * GIB, 0.1, None, 26, 5, progress.seconds, request.output_path, (), found
        )

    def verify(self, file, target, *, init, inputs, device, seed, steps, deterministic, budget, batch, progress):
        self.verified = file, target, init, inputs, device, seed, steps, deterministic, budget
        self.action()
        return self.verification


@pytest.fixture
def pipeline(monkeypatch, tmp_path) -> FakePipeline:
    fake = FakePipeline()
    monkeypatch.setitem(sys.modules, fake.__name__, fake)
    for name in ("pipeline", "marked"):
        monkeypatch.setattr(remat_codegen.run, name, fake, raising=False)
    monkeypatch.chdir(tmp_path)
    return fake


def run(*args: object) -> Result:
    return CliRunner().invoke(cli, [str(a) for a in args])


def assert_one_line_error(result: Result, *parts: str, prefix: str = "remat-codegen: error: ") -> None:
    lines = [line for line in result.stderr.splitlines() if line != "trace ..."]
    assert result.exit_code == 2, result.output
    assert len(lines) == 1 and lines[0].startswith(prefix), result.stderr
    assert all(part in lines[0] for part in parts), lines[0]
    assert result.stdout == ""


# --- what is handed on -----------------------------------------------------------------------------------------------------


def test_the_verb_may_be_left_out(pipeline):
    for args in (
        ["m.py:Net", "--budget", "1GiB"],
        ["--budget", "1GiB", "m.py:Net"],
        ["generate", "m.py:Net", "--budget", "1GiB"],
    ):
        assert run(*args).exit_code == 0
        assert pipeline.request == Request("m.py:Net", "1GiB")


def test_every_option_arrives(pipeline):
    words = "m.py:Net --budget 40% -o o.py --init layers=2 --inputs float32[2] --device cuda --planner rockmate --seed 7"
    assert run(*words.split(), "--save-plan", "p.json", "--verify", "--no-cache").exit_code == 0
    assert pipeline.request == Request(
        target="m.py:Net",
        budget="40%",
        output=Path("o.py"),
        init="layers=2",
        inputs="float32[2]",
        device="cuda",
        planner="rockmate",
        seed=7,
        save_plan=Path("p.json"),
        verify=True,
        cache=False,
    )


def test_a_saved_plan_needs_no_budget(pipeline):
    assert run("m.py:Net", "--plan", "p.json").exit_code == 0
    assert pipeline.request == Request("m.py:Net", plan=Path("p.json"))


def test_verify(pipeline):
    words = "--init", "layers=2", "--inputs", "float32[2]", "--seed", 3, "--steps", 5, "--deterministic", "--budget", "1GiB"
    result = run("verify", "o.py", "m.py:Net", *words)
    assert result.exit_code == 0 and "bit-identical" in result.stdout
    assert pipeline.verified == (Path("o.py"), "m.py:Net", "layers=2", "float32[2]", "cpu", 3, 5, True, "1GiB")


@pytest.mark.parametrize(
    ("target", "output"),
    [
        ("a/model.py:GPT2", "gpt2_remat.py"),
        ("package.net:ResNet", "resnet_remat.py"),
        ("m.py", "m_py_remat.py"),
        ("m.py:", "model_remat.py"),
    ],
)
def test_default_output(target, output):
    assert default_output(target) == Path(output)


# --- what is printed -------------------------------------------------------------------------------------------------------


def test_the_table_is_on_standard_output_and_progress_is_not(pipeline):
    result = run("m.py:Net", "--budget", "1GiB")
    assert "planned peak" in result.stdout and "26, of 5 kinds" in result.stdout
    assert result.stderr == "trace ...\n"


def test_json_is_one_object_on_standard_output(pipeline):
    pipeline.action = lambda: print("the model says something")
    result = run("m.py:Net", "--budget", "1GiB", "--json")
    found = json.loads(result.stdout)
    assert found["planner"] == "rockmate" and found["output"] == "net_remat.py" and "verify" not in found
    assert result.stdout.count("\n") == 1 and "the model says something" in result.stderr
    assert json.loads(run("m.py:Net", "--budget", "1GiB", "--json", "--verify").stdout)["verify"]["ok"] is True
    assert json.loads(run("verify", "o.py", "m.py:Net", "--json").stdout)["rows"][0]["what"] == "outputs"


def test_quiet(pipeline):
    result = run("m.py:Net", "--budget", "1GiB", "-q")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "")
    assert json.loads(run("m.py:Net", "--budget", "1GiB", "-q", "--json").stdout)


def test_warnings_stay_away(pipeline):
    pipeline.action = lambda: warnings.warn("something old", FutureWarning, stacklevel=1)
    assert "something old" not in run("m.py:Net", "--budget", "1GiB").output


@pytest.mark.parametrize("args", [("m.py:Net", "--budget", "1GiB", "--verify"), ("verify", "o.py", "m.py:Net")])
def test_a_failed_verification_is_exit_code_1(pipeline, args):
    pipeline.verification = BAD
    for quiet in ([], ["-q"]):
        result = run(*args, *quiet)
        assert result.exit_code == 1
        assert result.stderr.splitlines()[-1] == "remat-codegen: verification failed: gradients: 0.1 in wte.weight"
    assert "FAILED" in run(*args).stdout


def test_help_and_version():
    for flag in ("--help", "-h"):
        result = run(flag)
        assert (
            result.exit_code == 0
            and "Examples:" in result.stdout
            and "--save-plan" in result.stdout
            and "verify" in result.stdout
        )
    assert "Examples:" in run("generate", "--help").stdout
    assert "--steps" in run("verify", "--help").stdout
    assert run("--version").stdout == f"remat-codegen {remat_codegen.__version__}\n"


# --- errors ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "part"),
    [
        ([], "no target"),
        (["--budget", "1GiB"], "TARGET"),
        (["m.py:Net"], "give either --budget or --plan"),
        (["m.py:Net", "--budget", "1GiB", "--plan", "p.json"], "leave out --budget"),
        (["m.py:Net", "--budget", "1GB2"], "cannot read the budget '1GB2'"),
        (["m.py:Net", "--budget", "-1GiB"], "-1GiB"),
        (["m.py:Net", "--budget", "1GiB", "--planner", "luck"], "'luck' is not"),
        (["m.py:Net", "--budget", "1GiB", "--seed", "x"], "--seed"),
        (["m.py:Net", "--budget", "1GiB", "--seed", "-1"], "-1 is not a seed"),
        (["m.py:Net", "--budget", "1GiB", "--sead", "1"], "--seed"),
        (["m.py:Net", "more", "--budget", "1GiB"], "more"),
        (["m.py:Net", "--budget", "1GiB", "-o", "missing/out.py"], "does not exist"),
        (["m.py:Net", "--budget", "1GiB", "-o", "."], "is a folder"),
        (["m.py:Net", "--budget", "1GiB", "--save-plan", "missing/p.json"], "does not exist"),
        (["m.py:Net", "--budget", "1GiB", "-o", "m.py"], "m.py would be overwritten"),
        (["m.py:Net", "--budget", "1GiB", "-o", "o.py", "--save-plan", "./o.py"], "would be overwritten"),
        (["m.py:Net", "--plan", "p.json", "--save-plan", "p.json"], "would be overwritten"),
        (["verfy", "o.py", "m.py:Net"], "did you mean verify?"),
        (["verify"], "FILE"),
        (["verify", "o.py", "m.py:Net", "--steps", "0"], "--steps"),
    ],
)
def test_wrong_options_are_one_line_and_nothing_runs(pipeline, args, part):
    assert_one_line_error(run(*args), part)
    assert pipeline.request is None and pipeline.verified is None


def raising(error: BaseException):
    def action():
        raise error

    return action


@pytest.mark.parametrize(
    ("error", "prefix", "part"),
    [
        (TargetError("no such\nfile", where="m.py", hint="look"), "remat-codegen: error: ", "m.py: no such file; look"),
        (KeyboardInterrupt(), "remat-codegen: interrupted", ""),
        (EOFError(), "remat-codegen: internal error: EOFError", ""),
        (ZeroDivisionError("a\nb"), "remat-codegen: internal error: ZeroDivisionError: a; ", "--traceback"),
        (MemoryError(), "remat-codegen: error: out of memory", ""),
    ],
)
@pytest.mark.parametrize("quiet", [[], ["-q"], ["--json"]])
def test_what_goes_wrong_in_a_run_is_one_line(pipeline, tmp_path, error, prefix, part, quiet):
    pipeline.action = raising(error)
    out = tmp_path / "o.py"
    out.write_text("old")
    assert_one_line_error(run("m.py:Net", "--budget", "1GiB", "-o", out, *quiet), part, prefix=prefix)
    assert out.read_text() == "old" and sorted(p.name for p in tmp_path.iterdir()) == ["o.py"]


def test_traceback(pipeline):
    pipeline.action = raising(ZeroDivisionError("oh"))
    result = run("m.py:Net", "--budget", "1GiB", "--traceback")
    assert result.exit_code == 2 and "Traceback" in result.stderr
    assert result.stderr.splitlines()[-1] == "remat-codegen: internal error: ZeroDivisionError: oh"


def test_options_are_read_without_torch():
    code = "import sys; from remat_codegen.cli import main; assert 'torch' not in sys.modules and 'rich' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


# --- bad input, through the whole pipeline -----------------------------------------------------------------------------------

NET = """
import os
import signal

import torch
import torch.nn as nn

class Net(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        if width < 0:
            raise ValueError("width must not be negative")
        self.a, self.b = nn.Linear(width, 64), nn.Linear(64, 1)

    def forward(self, x):
        return self.b(torch.tanh(self.a(x)))

class Branching(Net):
    def forward(self, x):
        y = self.a(x)
        if y.sum() > 0:
            y = -y
        return y

class Interrupted(Net):
    def forward(self, x):
        os.kill(os.getpid(), signal.SIGINT)
        return self.b(self.a(x))

def frozen():
    return Net().requires_grad_(False)

number = 3

def example_inputs():
    return (torch.randn(16, 8),)
"""


@pytest.mark.parametrize(
    ("name", "options", "parts"),
    [
        ("Nett", [], ["has no 'Nett'", "did you mean Net?"]),
        ("number", [], ["is int, not a torch.nn.Module"]),
        ("Net", ["--init", "width=-1"], ["net.py:12: Net() fails: ValueError: width must not be negative"]),
        ("Net", ["--init", "widht=1"], ["did you mean width?"]),
        ("Net", ["--inputs", "float32[16,9]"], ["net.py:16", "cannot be traced"]),
        ("Net", ["--inputs", "float32[16,8"], ["--inputs"]),
        ("Net", ["--inputs", "float32[16,8]; float32[1]"], ["the inputs do not fit forward"]),
        ("Net", ["--budget", "a lot"], ["cannot read the budget 'a lot'"]),
        ("Net", ["--budget", "1KiB"], ["1.0 KiB", "the smallest budget that works is"]),
        ("Net", ["--budget", "1%"], ["the smallest budget that works is", " bytes), or ", " %;"]),
        ("Net", ["--device", "tpu"], ["unknown device 'tpu'"]),
        ("Net", ["-o", "missing/out.py"], ["the folder", "does not exist"]),
        ("frozen", [], ["no parameter requires grad"]),
        ("Branching", ["--edition", "1"], ["net.py:21", "values"]),
    ],
)
def test_bad_input_is_one_line_and_leaves_the_output(write_file, tmp_path, monkeypatch, name, options, parts):
    monkeypatch.chdir(tmp_path)
    path = write_file(NET, "net.py")
    out = write_file("old", "out.py")
    result = run(f"{path}:{name}", "--budget", "1GiB", "-o", out, "-q", "--no-cache", *options)
    assert_one_line_error(result, *parts)
    assert out.read_text() == "old"


def test_missing_files_are_one_line(write_file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = write_file(NET, "net.py")
    assert_one_line_error(run("nett.py:Net", "--budget", "1GiB", "-q"), "nett.py: no such file; did you mean net.py?")
    assert_one_line_error(run(f"{path}:Net", "--plan", "plan.json", "-q"), "plan.json: cannot read the plan")
    assert_one_line_error(run("verify", "out.py", f"{path}:Net", "-q"), "out.py: no such file; name a generated file")
    assert_one_line_error(run("verify", tmp_path, f"{path}:Net", "-q"), "is no .py file; name a generated file")
    assert sorted(p.name for p in tmp_path.iterdir() if p.suffix) == ["net.py"]


def test_no_example_inputs_is_one_line(write_file):
    path = write_file(NET.replace("def example_inputs", "def other"), "net.py")
    assert_one_line_error(run(f"{path}:Net", "--budget", "1GiB", "-q"), "has no example inputs", "--inputs")


def test_ctrl_c_is_one_line_and_leaves_the_output(write_file):
    path, out = write_file(NET, "net.py"), write_file("old", "out.py")
    before = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        result = run(f"{path}:Interrupted", "--budget", "1GiB", "-o", out, "-q")
    finally:
        signal.signal(signal.SIGINT, before)
    assert_one_line_error(result, prefix="remat-codegen: interrupted")
    assert out.read_text() == "old"


def test_from_a_model_to_a_verified_file(write_file, tmp_path):
    path, out, plan = write_file(NET, "net.py"), tmp_path / "out.py", tmp_path / "plan.json"
    result = run(f"{path}:Net", "--budget", "100%", "-o", out, "--save-plan", plan, "--verify", "--json", "--no-cache")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["verify"]["ok"] and plan.exists()
    text = out.read_text()
    assert run("verify", out, f"{path}:Net", "-q").exit_code == 0
    assert run(f"{path}:Net", "--plan", plan, "-o", out, "-q").exit_code == 0
    assert out.read_text() == text
