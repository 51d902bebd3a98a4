"""The verb `devices`. Like `cli`, nothing heavy is imported at the top."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import click

from remat_codegen.cli.options import captured, output_options
from remat_codegen.profile.devices import GIGA, TERA, TYPES, Device, known, users_file


@click.command(short_help="Show the GPUs that can be planned for without having one.")
@output_options
def devices(as_json: bool, quiet: bool, traceback: bool) -> int:
    """Shows the GPUs that --device takes by name, and the figures by which costs are estimated for them.

    Your own stand in remat_devices.toml, in the working folder or above it, or in the file that REMAT_CODEGEN_DEVICES names.
    """
    with captured(as_json, quiet) as (_, show):
        found, file = known(), users_file()
        rows = {"file": None if file is None else str(file), "devices": [device.rows() for device in found.values()]}
        show(rows, _table(found.values()))
    return 0


def _table(found: Iterable[Device]) -> Any:
    """Dense peaks in teraflops per second, memory in decimal gigabytes."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    names = ("name", "capability", "SMs", *(f"{dtype}, TFLOP/s" for dtype in TYPES), "GB/s", "GB", "L2, MiB")
    for name in names:
        table.add_column(name, justify="left" if name == "name" else "right")
    for device in found:
        peaks = (f"{device.peaks[dtype] / TERA:g}" if dtype in device.peaks else "-" for dtype in TYPES)
        memory = f"{device.bytes_per_s / GIGA:g}", f"{device.memory_bytes / GIGA:g}", f"{device.cache_bytes / 2**20:g}"
        table.add_row(device.key, device.capability, str(device.multiprocessors), *peaks, *memory)
    return table
