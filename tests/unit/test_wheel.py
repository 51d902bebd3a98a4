"""The package as people get it: built, installed into an empty environment, and used from a folder that knows no checkout."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest
from conftest import ROOT

import remat_codegen

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
MODEL = ROOT / "tests" / "data" / "old" / "tiny.py"


def run(*words, cwd):
    """A command that finds no package but those of its own environment."""
    clean = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")}
    return subprocess.run([str(w) for w in words], cwd=cwd, env=clean, capture_output=True, text=True)


def ran(*words, cwd):
    """What a command that succeeds says."""
    done = run(*words, cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def environment(folder: Path) -> Path:
    """An empty environment's folder of commands."""
    ran(sys.executable, "-m", "venv", folder, cwd=folder.parent)
    return folder / "bin"


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A folder with the wheel and the sdist, and a command that builds others."""
    folder = tmp_path_factory.mktemp("built")
    python = environment(folder / "builder") / "python"
    done = run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "hatchling", cwd=folder)
    if done.returncode:
        pytest.skip(f"hatchling cannot be installed: {done.stderr.strip().splitlines()[-1]}")
    ran(python, "-m", "hatchling", "build", "-d", folder / "dist", cwd=ROOT)
    return folder / "dist", [python, "-m", "hatchling", "build"]


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory):
    """An environment with the wheel; what it depends on is lent by the one that the tests run in."""
    folder = tmp_path_factory.mktemp("installed")
    commands = environment(folder / "env")
    (wheel,) = built[0].glob("*.whl")
    ran(commands / "python", "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", wheel, cwd=folder)
    own = Path(ran(commands / "python", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder).strip())
    lent = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (own / "lent.pth").write_text("\n".join(sorted(lent)) + "\n")  # a .pth file of theirs, such as a checkout's, is not read
    return commands


def test_a_wheel_is_all_that_is_needed(installed, tmp_path):
    shutil.copy(MODEL, tmp_path / "model.py")
    command = installed / "remat-codegen"
    where = Path(ran(installed / "python", "-c", "import remat_codegen; print(remat_codegen.__file__)", cwd=tmp_path).strip())
    assert where.is_relative_to(installed.parent) and list((where.parent / "templates").iterdir())
    assert ran(command, "--version", cwd=tmp_path) == f"remat-codegen {remat_codegen.__version__}\n"
    ran(command, "model.py:Net", "--budget", "60%", "-o", "net_remat.py", "--no-cache", cwd=tmp_path)
    assert "ok" in ran(command, "verify", "net_remat.py", "model.py:Net", cwd=tmp_path)
    assert "up to date" in ran(command, "check", "net_remat.py", cwd=tmp_path)
    assert "the schedule is the plan's" in ran(command, "explain", "net_remat.py", cwd=tmp_path)
    ran(command, "report", "net_remat.py", "-o", "net.html", "--planners", "none", cwd=tmp_path)
    assert "uPlot" in (tmp_path / "net.html").read_text()
    assert str(ROOT) not in (tmp_path / "net_remat.py").read_text()
    assert (where.parent / "py.typed").exists()
    script = "import model, remat_codegen as r; print(repr(r.plan(model.Net(), budget='60%').module()))"
    assert "Net" in ran(installed / "python", "-c", script, cwd=tmp_path)


def test_the_sdist_makes_the_same_wheel(built, tmp_path):
    dist, build = built
    (wheel,), (sdist,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
    with tarfile.open(sdist) as packed:
        packed.extractall(tmp_path, filter="data")
    (unpacked,) = tmp_path.iterdir()
    ran(*build, "-t", "wheel", "-d", tmp_path / "again", cwd=unpacked)
    again = tmp_path / "again" / wheel.name
    assert contents(again) == contents(wheel)


def contents(wheel: Path) -> dict[str, int]:
    """A wheel's files, each with its checksum."""
    with zipfile.ZipFile(wheel) as packed:
        return {entry.filename: entry.CRC for entry in packed.infolist()}
