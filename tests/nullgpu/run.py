"""Runs this Python on a CUDA build of PyTorch with a GPU that computes nothing; README.md beside says what for.

    python tests/nullgpu/run.py -m pytest tests/cuda
    NULLGPU_DEVICES=2 python tests/nullgpu/run.py script.py

Builds the null GPU first, with gcc and the CUDA headers of PyTorch's wheels, where that is not done yet: into build/nullgpu.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

HERE = Path(__file__).resolve().parent
BUILD = HERE.parents[1] / "build" / "nullgpu"
SITE = Path(sysconfig.get_paths()["purelib"])
HEADERS = SITE / "nvidia" / "cu13" / "include"
RUNTIME = ["settings.c", "memory.c", "cudart.c", "libraries.c", "process.c"]
DRIVER = ["settings.c", "driver.c"]
WRITTEN = re.compile(r"^int (cu\w+)\(", re.MULTILINE)  # functions of libraries.c
SHORT = {"NDEV": "NULLGPU_DEVICES", "CC": "NULLGPU_CAPABILITY"}  # other names, for `NDEV=2 make test-nullgpu`


def main() -> None:
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        sys.exit(__doc__)
    folder = built()
    os.execve(sys.executable, [sys.executable, *sys.argv[1:]], environment(folder))


def environment(folder: Path) -> dict[str, str]:
    """The environment of a process that sees the null GPU, as do those that it starts."""
    found = dict(os.environ)
    for short, name in SHORT.items():
        text = found.pop(short, "")  # CC is make's C compiler, too: no number then
        if text.isdigit():
            found.setdefault(name, text)
    paths = [str(folder), *filter(None, [found.get("LD_LIBRARY_PATH")])]
    found |= {"LD_LIBRARY_PATH": ":".join(paths), "LD_PRELOAD": str(folder / "libnullgpu.so")}
    found["CUDA_MODULE_LOADING"] = "LAZY"
    found["TORCH_AUTOGRAD_SHUTDOWN_WAIT_LIMIT"] = "0"  # seconds; a thread may wait for ever (process.c)
    return found


def built() -> Path:
    """Where the libraries are, which are built where these sources and this PyTorch have none yet."""
    torch = SITE / "torch" / "lib"
    if not (torch / "libtorch_cuda.so").exists() or not HEADERS.exists():
        sys.exit(f"{SITE} has no PyTorch for CUDA 13: pip install torch==2.14.1 has one")
    stubs = stubs_text(torch)
    folder = BUILD / digest(stubs)
    if not (folder / "libnullgpu.so").exists():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "stubs.c").write_text(stubs)
        compile_library(folder / "libcuda.so.1", DRIVER, "-Wl,-soname,libcuda.so.1")
        compile_library(folder / "libnullgpu.so", [*RUNTIME, str(folder / "stubs.c")])
    return folder


def stubs_text(torch: Path) -> str:
    """C of the functions of cuBLAS, cuBLASLt and cuFFT that PyTorch's libraries call and libraries.c does not have."""
    called: set[str] = set()
    for library in ("libtorch_cuda.so", "libtorch_cuda_linalg.so"):
        symbols = subprocess.run(["nm", "-D", "--undefined-only", torch / library], capture_output=True, text=True, check=True)
        called |= set(re.findall(r" U ((?:cublas|cufft)\w+)", symbols.stdout))
    called -= set(WRITTEN.findall((HERE / "libraries.c").read_text()))
    return "".join(f"int {name}() {{ return 0; }}\n" for name in sorted(called))


def digest(stubs: str) -> str:
    """Names what is built: another PyTorch calls other functions, and has other headers."""
    content = hashlib.sha256(f"{SITE}\n{stubs}".encode())
    for file in sorted(HERE.rglob("*.[ch]")):
        content.update(file.read_bytes())
    return content.hexdigest()[:12]


def compile_library(output: Path, sources: list[str], *flags: str) -> None:
    """Under another name first, so that a build that was interrupted, or another one beside it, leaves no half of a library."""
    begun = output.with_name(f"{output.name}.{os.getpid()}")
    includes = [f"-I{folder}" for folder in (HERE, HERE / "include", HEADERS)]
    command = [
        "gcc",
        "-shared",
        "-fPIC",
        "-O1",
        "-w",
        *includes,
        "-o",
        begun,
        *(HERE / s for s in sources),
        "-lpthread",
        *flags,
    ]
    subprocess.run(command, check=True)
    begun.replace(output)


if __name__ == "__main__":
    main()
