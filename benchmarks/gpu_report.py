"""How the parts of benchmarks/gpu.py are written down: tables in Markdown."""

from __future__ import annotations

from typing import Any

MIB = 1 << 20
HEAD = """\
| model, budget | budget | planned | requested | allocated | reserved | of the original | \
planned step | measured step | gradients (noise) | verified |
|---|---:|---:|---:|---:|---:|---:|---:|---:|---|---|"""
NOTE = """\
Sizes are MiB over what is held between steps: as planned, and as requested, allocated and reserved while the file's step ran;
then those allocated by the original's. Steps are times of the original's step. Gradients are compared with the original's, bit
by bit or by the largest difference over the largest element; in brackets, what the original differs from itself."""
NULL = (
    "**The device is the null GPU, whose kernels do nothing: values and times mean nothing here, nor does what was verified.**"
)


def outcome(found: dict[str, Any]) -> str:
    """A step in a few words."""
    if "failed" in found:
        return "failed: " + found["failed"].split("\n")[-1][:200]
    return f"done in {found.get('wall_s', 0) + found.get('measured', {}).get('wall_s', 0):.0f} s"


def markdown(name: str, identity: dict[str, Any], done: dict[str, Any]) -> str:
    """A part's page: the device, a table of the steps, and the output of what failed."""
    lines = [f"# {name} on a GPU", ""]
    small = ", small models" if identity["small"] else ""
    versions = f"PyTorch {identity['torch']}, cuDNN {identity['cudnn']}, Python {identity['python']}"
    lines.append(
        f"{identity['device']} (compute capability {identity['capability']}), {versions}{small}. `make gpu PART={name}`"
    )
    lines += ["", NULL] if not identity["computes"] else []
    rows = {key: found for key, found in done.items() if "planned_peak_bytes" in found}
    if rows:
        lines += ["", HEAD, *(row(key, found) for key, found in rows.items()), "", NOTE]
    for key, found in done.items():
        text = found.get("failed") or found.get("said")
        if text:
            lines += ["", f"{key}{' failed' if 'failed' in found else ''}:", "", "```text", text, "```"]
    return "\n".join(lines) + "\n"


def row(key: str, found: dict[str, Any]) -> str:
    """A step in a table. What was not measured, or did not fit, is a dash."""
    measured = found.get("measured", {})
    file, original = measured.get("file_peak_bytes") or {}, measured.get("original_peak_bytes") or {}
    peaks = [mib(file.get(kind)) for kind in ("requested", "allocated", "reserved")]
    cells = [key, mib(found["budget_bytes"]), mib(found["planned_peak_bytes"]), *peaks, mib(original.get("allocated"))]
    cells += [f"{1 + found['overhead']:.2f} x", ratio(measured.get("seconds") or {}), gradients(measured.get("gradients"))]
    return f"| {' | '.join([*cells, verified(found.get('verify'))])} |"


def mib(size: int | None) -> str:
    return "-" if size is None else f"{size / MIB:.1f}"


def ratio(seconds: dict[str, float]) -> str:
    """The file's time over the original's, or its time alone where the original does not fit."""
    if not seconds.get("original"):
        return f"{1000 * seconds['file']:.1f} ms" if seconds.get("file") else "-"
    return f"{seconds['file'] / seconds['original']:.2f} x" if seconds.get("file") else "-"


def gradients(found: dict[str, float] | None) -> str:
    return "-" if found is None else f"{apart(found['file'])} ({apart(found['noise'])})"


def apart(size: float) -> str:
    return "identical" if size == 0 else f"{size:.1e}"


def verified(found: dict[str, Any] | None) -> str:
    """What `--verify` said, if it was asked."""
    if found is None:
        return "-"
    return "yes" if found.get("ok") else "no: " + "; ".join(r["what"] for r in found.get("rows", []) if not r["ok"])
