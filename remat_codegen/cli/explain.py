"""The verb `explain`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from remat_codegen.cli.options import NAME, shown_plan_options

FILE = click.Path(path_type=Path)


def explain_command(captured: Callable[..., Any], output_options: Callable[..., Any]) -> click.Command:
    """The command, made from what all verbs share: how a result is shown, and the options for that."""

    @click.command("explain", short_help="Read a generated file's schedule back from its source.")
    @click.argument("file", type=FILE)
    @click.argument("target", required=False)
    @click.option("--plan", type=FILE, metavar="FILE", help="Compare with this plan instead of the one in the file.")
    @shown_plan_options
    @click.option("--no-cache", is_flag=True, help="Measure every operation anew.")
    @output_options
    def explain(
        file: Path,
        target: str | None,
        plan: Path | None,
        budget: str | None,
        batch: int | None,
        no_cache: bool,
        as_json: bool,
        quiet: bool,
        traceback: bool,
    ) -> int:
        """Reads the schedule of FILE back from its functions, simulates it on the model, and shows it block by block.

        TARGET is the model where it is not the one that the file's header names. Exit code 1, with a line for each problem,
        where the functions cannot be followed, do not compute what the model does, or are not what the generator writes.
        """
        with captured(as_json, quiet) as (progress, show):
            from remat_codegen.readback.tables import shown
            from remat_codegen.run import explain as explaining

            found = explaining.explain(file, progress, target, plan, cache=not no_cache, budget=budget, batch=batch)
            show(found.to_json(), *shown(found))
        for problem in found.problems:
            print(f"{file}:{problem.line}: {problem.text}", file=sys.stderr)
        if found.out_of_date:
            print(f"{NAME}: out of date: {file}; run {NAME} update", file=sys.stderr)
        return 0 if found.ok else 1

    return explain
