"""What several verbs of the command line share: their options, and how a result is shown."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click

NAME = "remat-codegen"
FILE = click.Path(path_type=Path)


def _seed(ctx: click.Context, option: click.Parameter, value: int) -> int:
    if not 0 <= value < 2**63:
        raise click.BadParameter(f"{value} is not a seed; it goes from 0 to 2**63 - 1", ctx, option)
    return value


time_limit_option = click.option(
    "--time-limit",
    type=click.FloatRange(0.1),
    metavar="SECONDS",
    help="How long a plan is looked for: the best so far is taken then. Measuring is not counted.",
)


def model_options(command: Callable) -> Callable:
    """Options of every verb that constructs a model."""
    options = (
        click.option("--init", default="", metavar="ARGS", help='Constructor arguments, like "layers=24, dropout=0.0".'),
        click.option(
            "--inputs",
            metavar="INPUTS",
            help='Inputs, like "idx=int64[4,512]<50257; mask=bool[4,512]", or file.py:function. Otherwise example_inputs() '
            "beside the model or on its class.",
        ),
        click.option(
            "--device", default="cpu", show_default=True, metavar="DEVICE", help="Where the model trains: cpu, cuda, cuda:1."
        ),
        click.option(
            "--seed", default=0, show_default=True, metavar="N", callback=_seed, type=int, help="Seeds weights and inputs."
        ),
    )
    return with_options(command, options)


def output_options(command: Callable) -> Callable:
    """Options of every verb."""
    options = (
        click.option("--json", "as_json", is_flag=True, help="Print one JSON object on standard output."),
        click.option("-q", "--quiet", is_flag=True, help="Print nothing but errors (and the JSON object)."),
        click.option("--traceback", is_flag=True, help="Show where an error comes from."),
    )
    return with_options(command, options)


def with_options(command: Callable, options: Sequence[Callable]) -> Callable:
    for option in reversed(options):
        command = option(command)
    return command


def verbatim(lines: Iterable[str]) -> list[Any]:
    """Lines as they are, however long."""
    from rich.text import Text

    return [Text(line, no_wrap=True, overflow="ignore") for line in lines]


@contextlib.contextmanager
def captured(as_json: bool, quiet: bool) -> Iterator[tuple[Any, Callable[..., None]]]:
    """Progress for a verb, and a function that shows its result: an object, or tables."""
    from rich.console import Console

    from remat_codegen.report import Progress

    stdout = sys.stdout

    def show(result: dict[str, Any], *tables: Any) -> None:
        if as_json:
            print(json.dumps(result), file=stdout, flush=True)
        elif not quiet:
            console = Console(file=stdout, width=None if stdout.isatty() else 120)  # a file's lines are not cut at 80
            for table in tables:
                console.print(table, soft_wrap=bool(getattr(table, "no_wrap", False)))  # a line as it is, however long

    with contextlib.redirect_stdout(sys.stderr):  # the user's model may print
        yield Progress(None if quiet else Console(file=sys.stderr)), show
