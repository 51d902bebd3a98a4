"""The verbs that plan without writing a model: trace, plan and compare. Like `cli`, nothing heavy is imported at the top."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from remat_codegen.ask.budget import parse_budget, parse_budgets
from remat_codegen.ask.request import DEFAULT_PLANNER, NOT_RUN, PLANNERS, Request, is_name
from remat_codegen.cli.options import FILE, NAME, captured, loss_option, model_options, output_options, plan_limit_option
from remat_codegen.files import check_writable, write_atomically

NO_PLAN = 1  # the exit code where the planner found nothing within the budget

_backward = click.option(
    "--add-backward", is_flag=True, help="GRAPH is a forward pass of (time, size) nodes: add a backward pass to it."
)


@click.command(short_help="Write a model's graph and measured costs as JSON.")
@click.argument("target")
@click.option("-o", "--output", type=FILE, required=True, metavar="FILE", help="The file to write, like graph.json.")
@model_options
@loss_option
@click.option("--no-cache", is_flag=True, help="Measure every operation anew.")
@output_options
def trace(target: str, output: Path, no_cache: bool, as_json: bool, quiet: bool, traceback: bool, **options: Any) -> int:
    """Writes the graph of TARGET, with what each node costs on the device, for `plan`, `compare` and other programs."""
    check_writable(output)
    with captured(as_json, quiet) as (progress, show):
        from remat_codegen.run import planning
        from remat_codegen.show import plan_tables as report_graphs

        found = planning.write_trace(Request(target, cache=not no_cache, **options), output, progress)
        show(found, report_graphs.trace_table(found))
    return 0


@click.command(short_help="Plan a graph from a file, without a model.")
@click.argument("graph", type=FILE)
@click.option("--budget", required=True, metavar="BUDGET", help="1GiB, 800MiB, bytes, or 60% of the unmodified peak.")
@click.option(
    "--planner", type=click.Choice(PLANNERS), default=DEFAULT_PLANNER, show_default=True, help="Who decides what is recomputed."
)
@_backward
@plan_limit_option
@click.option("--save-plan", type=FILE, metavar="FILE", help="Write the plan as JSON.")
@output_options
def plan(graph: Path, budget: str, planner: str, as_json: bool, quiet: bool, traceback: bool, **options: Any) -> int:
    """Plans GRAPH, a graph.json or a plain graph of (time, size) nodes: peak, time, overhead, and the lower bound.

    Exit code 1 where the planner finds no plan within the budget.
    """
    wanted = parse_budget(budget)
    with captured(as_json, quiet) as (progress, show):
        from remat_codegen.run import planning
        from remat_codegen.show import plan_tables as report_graphs

        found, outcome = planning.plan_file(graph, wanted, planner, progress, **options)
        show(planning.outcome_json(found, outcome), report_graphs.plan_table(found, outcome))
    if not outcome.fits:
        click.echo(f"{NAME}: {report_graphs.no_plan(outcome)}", err=True)
    return 0 if outcome.fits else NO_PLAN


@click.command("compare", short_help="Run planners side by side, over budgets.")
@click.argument("target", metavar="TARGET|GRAPH.json")
@click.option(
    "--budgets", default="10%..90%/9", show_default=True, metavar="BUDGETS", help="A range and a count, or a list: 40%,1GiB."
)
@click.option("--planners", metavar="NAMES", help="With commas between.  [default: all]")
@click.option("-o", "--output", type=FILE, metavar="FILE", help="Draw a picture, .svg or .png (needs matplotlib).")
@click.option("--measure", is_flag=True, help="Run each plan beside PyTorch, torch.utils.checkpoint and torch.compile.")
@click.option("--runs", default=5, show_default=True, metavar="N", type=click.IntRange(1, 1000), help="Steps to measure.")
@model_options
@loss_option
@_backward
@plan_limit_option
@click.option("--no-cache", is_flag=True, help="Measure every operation anew.")
@output_options
def compare_(
    target: str,
    budgets: str,
    planners: str | None,
    output: Path | None,
    measure: bool,
    runs: int,
    add_backward: bool,
    time_limit: float | None,
    no_cache: bool,
    as_json: bool,
    quiet: bool,
    traceback: bool,
    **options: Any,
) -> int:
    """Plans TARGET, or a graph from a file, with each planner for each budget: overheads, lower bounds, planning times.

    With --measure each plan is written out and run, interleaved with eager PyTorch and what comes with it.
    """
    wanted, names = parse_budgets(budgets), _planners(planners)
    if measure and is_name(options["device"]):
        raise click.UsageError(f"--measure runs what it plans; leave it out, or write --device cuda: {NOT_RUN}")
    if output is not None:
        check_writable(output)
    file = Path(target) if target.endswith(".json") else None
    if file is not None and measure:
        raise click.UsageError("--measure needs a model; a graph from a file cannot be run")
    with captured(as_json, quiet) as (progress, show):
        from remat_codegen.run import comparison, measured
        from remat_codegen.run.priced import priced_file, priced_model
        from remat_codegen.show import picture
        from remat_codegen.show import plan_tables as report_graphs

        if output is not None:
            picture.check_picture(output)
        request = Request(target, cache=not no_cache, **options)
        if file is not None:
            found = priced_file(file, progress, add_backward=add_backward)
        else:
            found = priced_model(request, progress)
        compared = comparison.compare(found, wanted, names, progress, time_limit=time_limit)
        rows = measured.measure(compared, request, runs, progress) if measure else []
        if output is not None:
            write_atomically(output, picture.draw(compared, output, rows))
        tables = report_graphs.compare_tables(compared) + ([report_graphs.measured_table(rows)] if measure else [])
        show(compared.to_json() | ({"measured": rows} if measure else {}), *tables)
    return 0


def _planners(text: str | None) -> tuple[str, ...]:
    if text is None:
        return PLANNERS
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    unknown = next((n for n in names if n not in PLANNERS), None)
    if unknown is not None:
        raise click.UsageError(f"{unknown!r} is no planner; they are {', '.join(PLANNERS)}")
    return names


VERBS = (plan, trace, compare_)
