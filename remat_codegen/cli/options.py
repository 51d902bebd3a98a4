"""What several verbs of the command line share: their options, and how a result is shown."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from remat_codegen.ask.budget import check_units, parse_budget, parse_budgets, parse_overhead
from remat_codegen.ask.optimizers import OPTIMIZERS
from remat_codegen.ask.request import FREE, LOSSES, Question

NAME = "remat-codegen"
FILE = click.Path(path_type=Path)


def _seed(ctx: click.Context, option: click.Parameter, value: int) -> int:
    if not 0 <= value < 2**63:
        raise click.BadParameter(f"{value} is not a seed; it goes from 0 to 2**63 - 1", ctx, option)
    return value


def _time_limit(help_text: str) -> Callable[[Callable], Callable]:
    return click.option("--time-limit", type=click.FloatRange(0.1), metavar="SECONDS", help=help_text)


time_limit_option = _time_limit("How long measuring and planning may take: the best plan so far is taken then.")
plan_limit_option = _time_limit("How long each plan is looked for: the best so far is taken then. Measuring is not counted.")


def model_options(command: Callable) -> Callable:
    """Options of every verb that constructs a model."""
    options = (
        click.option(
            "--init",
            multiple=True,
            metavar="ARGS",
            callback=lambda ctx, option, value: ", ".join(value),
            help='Constructor arguments, like "layers=24, dropout=0.0".',
        ),
        click.option(
            "--inputs",
            metavar="INPUTS",
            help='Inputs, like "idx=int64[4,512]<50257; mask=bool[4,512]", or file.py:function. Otherwise example_inputs() '
            "beside the model or on its class.",
        ),
        click.option(
            "--batch",
            default="",
            metavar="N",
            help="Give the inputs another batch size: the leading size of all, or those that are named, idx.0,mask.0=16. "
            "Several, 32,16,8, give one file with a plan for each.",
        ),
        click.option(
            "--device",
            default="cpu",
            show_default=True,
            metavar="DEVICE",
            help="Where the model trains: cpu, cuda, cuda:1. Or a GPU by name, like h100, with estimated costs; it need not be "
            "there (`remat-codegen devices`).",
        ),
        click.option(
            "--seed", default=0, show_default=True, metavar="N", callback=_seed, type=int, help="Seeds weights and inputs."
        ),
    )
    return with_options(command, options)


def shown_plan_options(command: Callable) -> Callable:
    """Options that say which of a file's plans is shown, where it has several."""
    options = (
        click.option(
            "--budget",
            metavar="BUDGET",
            help="Which of the file's plans is shown: a budget in bytes, or as the file's command has it. [default: the least]",
        ),
        click.option(
            "--batch",
            type=click.IntRange(1),
            metavar="N",
            help="Which of the file's plans is shown, where they are for several batch sizes. [default: the largest]",
        ),
    )
    return with_options(command, options)


loss_option = click.option(
    "--loss",
    type=click.Choice(LOSSES),
    help="What is computed of the outputs: cross-entropy needs one more tensor of their size, none just their gradient, sum "
    "not even that; model: forward returns the loss.  [default: model where all that forward returns goes into a number, "
    "else cross-entropy]",
)


def choosing_options(command: Callable) -> Callable:
    """Options that ask for a budget or a batch instead of giving one: parameters `fit`, `optimizer`, `max_overhead` and
    `largest_batch`, which `question_of` reads."""
    options = (
        click.option(
            "--fit",
            is_flag=False,
            flag_value=FREE,
            metavar="[AMOUNT]",
            help="The budget is what this leaves beside parameters, gradients, the optimizer's state, buffers and inputs; "
            "without an amount, what the device has free.",
        ),
        click.option("--optimizer", type=click.Choice(tuple(OPTIMIZERS)), help="Whose state --fit subtracts."),
        click.option(
            "--max-overhead", metavar="PERCENT", help="Find the smallest budget for at most so much more time, like 10%."
        ),
        click.option(
            "--largest-batch",
            is_flag=False,
            flag_value="",
            metavar="[NAME.DIM]",
            help="Find the largest batch for --budget or --fit. Sizes may be named as for --dynamic.",
        ),
    )
    return with_options(command, options)


def question_of(
    budget: str | None,
    plan: Path | None,
    fit: str | None,
    optimizer: str | None,
    max_overhead: str | None,
    largest_batch: str | None,
) -> Question | None:
    """What has to be found; None where the budget or the plan is given. Raises click.UsageError where options do not go
    together, BudgetError where one cannot be read."""
    ways = {"--budget": budget, "--fit": fit, "--max-overhead": max_overhead, "--plan": plan}
    given = [option for option, value in ways.items() if value is not None]
    if not given:
        raise click.UsageError("give either --budget or --plan, or have a budget found: --fit AMOUNT, --max-overhead PERCENT")
    if len(given) > 1:
        why = "--plan brings its own budget; " if given[-1] == "--plan" else ""
        raise click.UsageError(f"{why}leave out {given[0]} or {given[1]}")
    if largest_batch is not None and given[0] not in ("--budget", "--fit"):
        raise click.UsageError(f"--largest-batch goes with --budget or --fit, not with {given[0]}")
    if (fit is None) != (optimizer is None):
        raise click.UsageError("--fit needs --optimizer, like adamw, or none" if fit else "--optimizer goes with --fit only")
    fit = FREE if fit == "auto" else fit
    if budget is not None and len(parse_budgets(budget)) > 1 and largest_batch is not None:
        raise click.UsageError("--largest-batch goes with one budget")
    if budget is not None:
        check_units(budget)
    if fit not in (None, FREE):
        parse_budget(fit or "")
    if max_overhead is not None:
        parse_overhead(max_overhead)
    if fit is None and max_overhead is None and largest_batch is None:
        return None
    return Question(fit, optimizer, max_overhead, largest_batch)


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

    from remat_codegen.show.results import Progress

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
