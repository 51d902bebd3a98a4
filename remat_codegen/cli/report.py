"""The verb `report`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from remat_codegen.ask.request import PLANNERS
from remat_codegen.cli.options import FILE, captured, output_options, shown_plan_options
from remat_codegen.errors import OutputError
from remat_codegen.files import check_writable, write_atomically


def _planners(ctx: click.Context, option: click.Parameter, value: str | None) -> tuple[str, ...] | None:
    """The planners of a list; none for `none`, which plans nothing that anyone would look at."""
    if value is None:
        return None
    names = tuple(dict.fromkeys(name.strip() for name in value.split(",")))
    if names == ("none",):
        return ()
    unknown = next((n for n in names if n not in PLANNERS), None)
    if unknown is not None:
        raise click.BadParameter(f"{unknown!r} is no planner; they are {', '.join(PLANNERS)}", ctx, option)
    return names


@click.command("report", short_help="Show what a generated file does, as one page.")
@click.argument("file", type=FILE)
@click.argument("target", required=False)
@click.option("-o", "--output", type=FILE, metavar="FILE", help="The page to write, like report.html.  [default: FILE.html]")
@shown_plan_options
@click.option("--measure", is_flag=True, help="Run the file, and show what its step holds beside what was planned.")
@click.option(
    "--planners",
    metavar="NAMES",
    callback=_planners,
    help="Who plans for other budgets; none leaves them out.  [default: dtr-msps,rotor]",
)
@click.option("--no-cache", is_flag=True, help="Measure every operation anew.")
@output_options
def report(
    file: Path,
    target: str | None,
    output: Path | None,
    budget: str | None,
    batch: int | None,
    measure: bool,
    planners: tuple[str, ...] | None,
    no_cache: bool,
    as_json: bool,
    quiet: bool,
    traceback: bool,
) -> int:
    """Reads the schedule of FILE back from its source and shows it on one page that needs no network.

    The page has memory over the step, each value over its life with why it is kept or rebuilt, blocks and modules, and what
    other budgets would cost. Of a file with several plans it shows one, and lists the others. TARGET is the model where it is
    not the one that the file's header names. With --json the same is printed as one object; then a page is written only where
    -o says so.
    """
    page_file = output if output is not None or as_json else file.with_suffix(".html")
    if page_file is not None:
        _check(page_file, file)
    with captured(as_json, quiet) as (progress, show):
        from remat_codegen.page.render import render
        from remat_codegen.run import reporting
        from remat_codegen.run.tradeoff import QUICK
        from remat_codegen.show.page_table import page_table

        chosen = QUICK if planners is None else planners
        page = reporting.report(
            file, progress, target, planners=chosen, measure=measure, cache=not no_cache, budget=budget, batch=batch
        )
        if page_file is not None:
            write_atomically(page_file, render(page))
        show(page.to_json(), page_table(page, page_file))
    for line, text in page.problems:
        print(f"{file}:{line}: {text}", file=sys.stderr)
    return 0


def _check(output: Path, file: Path) -> None:
    """Raises OutputError where the page cannot be written, or would be over the file that it is about."""
    if output.resolve() == file.resolve():
        raise OutputError("is the file that the page is about", where=str(output), hint="write a .html")
    check_writable(output)
