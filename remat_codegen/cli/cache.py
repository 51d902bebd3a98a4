"""The verb `cache`. Like `cli`, nothing heavy is imported at the top."""

from __future__ import annotations

from typing import Any

import click

from remat_codegen.ask.budget import format_bytes
from remat_codegen.cli.options import captured, output_options
from remat_codegen.errors import OutputError


@click.command(short_help="Show, or clear, what was measured.")
@click.option("--clear", is_flag=True, help="Remove it: the next run measures every operation anew.")
@output_options
def cache(clear: bool, as_json: bool, quiet: bool, traceback: bool) -> int:
    """Shows where the costs of operations are kept that earlier runs have measured, and how many there are.

    There is one file for each device, version of PyTorch and choice of kernels.
    """
    with captured(as_json, quiet) as (_, show):
        from remat_codegen.profile import store
        from remat_codegen.show.results import two_columns

        found = store.files()
        if clear:
            _clear()
        entries, nbytes = sum(f.entries or 0 for f in found), sum(f.nbytes for f in found)
        rows: dict[str, Any] = {"folder": str(store.folder()), "cleared": clear, "entries": entries, "bytes": nbytes}
        rows["files"] = [{"file": f.path.name, "entries": f.entries, "bytes": f.nbytes} for f in found]
        table = two_columns()
        table.add_row("folder", rows["folder"].replace("[", "\\["))
        table.add_row("cleared" if clear else "files", f"{len(found)} files" if clear else str(len(found)))
        table.add_row("entries", f"{entries:,}")
        table.add_row("size", format_bytes(nbytes))
        show(rows, table)
    return 0


def _clear() -> None:
    from remat_codegen.profile import store

    try:
        store.clear()
    except OSError as error:
        raise OutputError(f"cannot be cleared: {error.strerror}", where=str(store.folder())) from error
