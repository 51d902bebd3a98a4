"""The command line: one function per verb. Nothing heavy is imported before a verb has read its options.

Exit codes: 0 done; 1 a verification failed, or no plan fits; 2 anything the user can put right, an interruption, or a fault
of ours. Each error is one line on standard error. Results go to standard output, everything else to standard error.
"""

from __future__ import annotations

import contextlib
import difflib
import gc
import logging
import os
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import click

from remat_codegen import __version__
from remat_codegen.ask.request import DEFAULT_PLANNER, PLANNERS, Request
from remat_codegen.cli.cache import cache
from remat_codegen.cli.devices import devices
from remat_codegen.cli.explain import explain_command
from remat_codegen.cli.graphs import VERBS
from remat_codegen.cli.options import (
    FILE,
    NAME,
    captured,
    choosing_options,
    loss_option,
    model_options,
    output_options,
    question_of,
    time_limit_option,
    verbatim,
)
from remat_codegen.cli.report import report as report_verb
from remat_codegen.errors import RematError, VersionWarning
from remat_codegen.files import check_writable

DEFAULT_VERB = "generate"

EXAMPLES = """\b
Examples:
  remat-codegen model.py:GPT2 --budget 1GiB -o gpt2_remat.py
  remat-codegen model.py:GPT2 --budget 40% --init "layers=24, dropout=0.0" --verify
  remat-codegen my.package:build --budget 800MiB --inputs "idx=int64[4,512]<50257; mask=bool[4,512]"
  remat-codegen model.py:GPT2 --budget 1GiB --save-plan plan.json
  remat-codegen model.py:GPT2 --budget 8GiB,16GiB,24GiB  # one file, which takes what its GPU has room for
  remat-codegen model.py:GPT2 --budget 8GiB --batch 32,16,8  # one file, which recomputes less for a smaller batch
  remat-codegen model.py:GPT2 --plan plan.json -o again.py
  remat-codegen model.py:GPT2 --fit 24GiB --optimizer adamw --largest-batch
  remat-codegen model.py:GPT2 --max-overhead 10%
  remat-codegen verify gpt2_remat.py model.py:GPT2
  remat-codegen check gpt2_remat.py
  remat-codegen update gpt2_remat.py
  remat-codegen compare model.py:GPT2 --budgets 20%..90%/8 -o picture.svg
  remat-codegen trace model.py:GPT2 -o graph.json
  remat-codegen plan graph.json --budget 60% --planner dtr
  remat-codegen model.py:GPT2 --fit --optimizer adamw --device h100  # a GPU that need not be there
  remat-codegen cache --clear
  remat-codegen report gpt2_remat.py -o report.html
"""


class CommandLine(click.Group):
    """A group whose verb may be left out: what is not the name of a verb is a target to generate for."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Puts the default verb in front where none is named."""
        own = {"--help", "-h", "--version"}
        if args and args[0] not in own and args[0] not in self.commands:
            self._check_verb(args[0])
            args = [DEFAULT_VERB, *args]
        elif not args:
            raise click.UsageError("no target; write it like model.py:Name, and see remat-codegen --help")
        return super().parse_args(ctx, args)

    def _check_verb(self, word: str) -> None:
        close = difflib.get_close_matches(word, self.commands, n=1)
        if close and ":" not in word:
            raise click.UsageError(f"{word!r} is neither a verb nor a target; did you mean {close[0]}?")

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The default verb's usage first: it is what most people want."""
        formatter.write_usage(NAME, "TARGET --budget BUDGET [-o FILE] [OPTIONS]")
        formatter.write_usage(NAME, "VERB [ARGS] [OPTIONS]", prefix=" " * len("Usage: "))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The default verb's options, then the verbs."""
        default = self.commands[DEFAULT_VERB]
        shown = [
            record
            for p in default.get_params(ctx)
            if isinstance(p, click.Option) and (record := p.get_help_record(ctx)) is not None
        ]
        shown.append(("--version", "Show the version and exit."))
        with formatter.section("Options"):
            formatter.write_dl(shown)
        self.format_commands(ctx, formatter)

    def main(self, args: Sequence[str] | None = None, prog_name: str | None = None, **extra: Any) -> NoReturn:  # type: ignore[override]
        """Runs a command line and leaves the process with its exit code."""
        args = list(sys.argv[1:] if args is None else args)
        with _one_line_errors(show_traceback="--traceback" in args), _silence():
            sys.exit(self._run(args, prog_name or NAME))

    def _run(self, args: list[str], name: str) -> int:
        """What click's own `main` does, less its handling of Ctrl-C and its layout of errors."""
        try:
            with self.make_context(name, args) as ctx:
                return self.invoke(ctx) or 0
        except click.exceptions.Exit as done:  # --help, --version
            return done.exit_code


def _fail(text: str) -> NoReturn:
    print(f"{NAME}: {' '.join(text.split())}", file=sys.stderr)
    sys.exit(2)


@contextlib.contextmanager
def _one_line_errors(show_traceback: bool) -> Iterator[None]:
    """Whatever goes wrong is one line and exit code 2."""
    try:
        yield
    except BrokenPipeError:  # the reader of standard output has gone; nobody is left to tell
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(2)
    except (KeyboardInterrupt, click.Abort):
        if sys.stderr.isatty():
            print(file=sys.stderr)  # ends the line that holds the ^C
        _fail("interrupted")
    except click.ClickException as error:
        _fail(f"error: {error.format_message()}")
    except Exception as error:
        if show_traceback:
            traceback.print_exc()
        if isinstance(error, RematError):
            _fail(f"error: {error.line()}")
        if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
            _fail(f"error: out of memory: {_first_line(error)}")
        hint = "" if show_traceback else "; run it again with --traceback to see where"
        _fail(f"internal error: {type(error).__name__}: {_first_line(error)}{hint}")


def _first_line(error: Exception) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), "no message")[:300]


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Keeps libraries' warnings off the terminal, and what the user's model prints off standard output."""
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("default", VersionWarning)
            warnings.showwarning = lambda message, *_: print(f"{NAME}: {message}", file=sys.stderr)
            yield
    finally:
        logging.disable(before)


# --- verbs -----------------------------------------------------------------------------------------------------------------


@click.group(
    cls=CommandLine, epilog=EXAMPLES, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}
)
@click.version_option(__version__, prog_name=NAME, message="%(prog)s %(version)s")
def cli() -> None:
    """Writes PyTorch source code that trains a model within a memory budget, by recomputing what it forgets.

    TARGET names a model: file.py:Name or package.module:Name, where Name is a class of modules, a function that returns a
    module, or a module.
    """


DETERMINISTIC = click.option(
    "--deterministic", is_flag=True, help="Verify with PyTorch's deterministic algorithms; what has none is an error."
)


@cli.command(DEFAULT_VERB, short_help="Write the rematerialized model (the verb may be left out).", epilog=EXAMPLES)
@click.argument("target")
@click.option(
    "--budget",
    metavar="BUDGET",
    help="Memory of a training step: 1GiB, 800MiB, 1.5GB, bytes, or 40% of the unmodified peak. Several, with commas "
    "between, give one file with a plan for each.",
)
@choosing_options
@click.option("-o", "--output", type=FILE, metavar="FILE", help="The file to write.  [default: <name>_remat.py]")
@model_options
@click.option(
    "--planner", type=click.Choice(PLANNERS), default=DEFAULT_PLANNER, show_default=True, help="Who decides what is recomputed."
)
@click.option(
    "--autocast",
    type=click.Choice(("bfloat16", "float16")),
    help="What torch.autocast casts to where the model is called. [default: it is called without]",
)
@click.option(
    "--dynamic",
    multiple=True,
    metavar="NAME.DIM",
    callback=lambda ctx, option, value: ",".join(value).replace(" ", ""),
    help="A size of an input that may differ from call to call, like idx.0. The budget holds up to the traced size.",
)
@click.option("--static", is_flag=True, help="Take the example's sizes alone: a training step of others is refused.")
@loss_option
@time_limit_option
@click.option("--save-plan", type=FILE, metavar="FILE", help="Write the plan as JSON, too.")
@click.option("--plan", type=FILE, metavar="FILE", help="Write out a saved plan without solving again.")
@click.option("--verify", is_flag=True, help="Train the original, then the file, and compare; exit code 1 on any difference.")
@DETERMINISTIC
@click.option("--no-cache", is_flag=True, help="Measure every operation anew.")
@click.option(
    "--edition",
    type=click.IntRange(1, 2),
    help="2: the model's own source, marked in place, and a table; 1: functions. [default: 2, or 1 where that is faster]",
)
@output_options
def generate(
    no_cache: bool,
    as_json: bool,
    quiet: bool,
    traceback: bool,
    budget: str | None,
    output: Path | None,
    plan: Path | None,
    fit: str | None,
    optimizer: str | None,
    max_overhead: str | None,
    largest_batch: str | None,
    **options: Any,
) -> int:
    """Writes the rematerialized model for TARGET."""
    question = question_of(budget, plan, fit, optimizer, max_overhead, largest_batch)
    request = Request(budget=budget, output=output, plan=plan, cache=not no_cache, **options)
    _check_files(request)
    with captured(as_json, quiet) as (progress, show):
        from remat_codegen.show import results

        if question is not None:
            from remat_codegen.fit import choosing

            result = choosing.generate(request, question, progress)
        elif request.edition == 1:
            from remat_codegen.run import functions

            result = functions.generate(request, progress)
        else:
            from remat_codegen.run import marked

            result = marked.generate(request, progress)
        tables = [*results.sum_tables(result), results.report_table(result)]
        if result.verify is not None:
            tables.append(results.verification_table(result.verify))
        show(result.to_json(), *tables)
    return _exit_code(result.verify)


@cli.command(short_help="Run a generated file against its original.")
@click.argument("file", type=FILE)
@click.argument("target", required=False)
@model_options
@click.option(
    "--steps", default=2, show_default=True, metavar="N", type=click.IntRange(1, 1000), help="Optimizer steps to compare."
)
@click.option(
    "--budget",
    metavar="BUDGET",
    help="Judge the peak by this, and of plans for several budgets the one that the file takes for so much; if not given, all, "
    "by what the file's header says.",
)
@DETERMINISTIC
@output_options
def verify(file: Path, target: str | None, as_json: bool, quiet: bool, traceback: bool, **options: Any) -> int:
    """Trains the original TARGET, then FILE, and compares: outputs, gradients, buffers, random state, and the measured peak.

    Without TARGET, the original is what FILE was made from, with the inputs that it was planned for, as its header says.
    """
    with captured(as_json, quiet) as (progress, show):
        from remat_codegen.run import check_update, pipeline
        from remat_codegen.show import results

        if target is None:
            target, options = check_update.original(file, options)
        result = pipeline.verify(file, target, progress=progress, **options)
        show(result.to_json(), results.verification_table(result))
    return _exit_code(result)


PLAN = click.option("--plan", type=FILE, metavar="FILE", help="Use this saved plan instead of the one in the file.")


@cli.command(short_help="Say whether generated files are up to date (for CI).")
@click.argument("files", type=FILE, nargs=-1, required=True, metavar="FILE...")
@PLAN
@click.option("--strict", is_flag=True, help="Fail, too, where this version only words a file otherwise.")
@output_options
def check(files: tuple[Path, ...], plan: Path | None, strict: bool, as_json: bool, quiet: bool, traceback: bool) -> int:
    """Compares each FILE with what its model and this generator would give now.

    Exit code 1, with the reason and a diff, where the model's source or graph has changed, or the file was edited. That a newer
    generator writes it differently is a note, unless --strict. Neither measures nor solves.
    """
    _one_file(files, plan)
    with captured(as_json, quiet) as (progress, show):
        from remat_codegen.run import check_update

        found = [check_update.check(file, progress, plan, strict) for file in files]
        ok = all(f.ok for f in found)
        show({"ok": ok, "files": [f.to_json() for f in found]}, *verbatim(line for f in found for line in f.lines()))
    stale = ", ".join(str(f.file) for f in found if not f.ok and not f.unmakeable)
    lost = ", ".join(str(f.file) for f in found if f.unmakeable)
    for line in [f"out of date: {stale}; run {NAME} update"] * bool(stale) + [f"not checked: {lost}"] * bool(lost):
        print(f"{NAME}: {line}", file=sys.stderr)
    return 0 if ok else 1


@cli.command(short_help="Make generated files again from their headers.")
@click.argument("files", type=FILE, nargs=-1, required=True, metavar="FILE...")
@PLAN
@time_limit_option
@click.option("--no-cache", is_flag=True, help="Measure every operation anew.")
@click.option(
    "--measure", is_flag=True, help="Plan a file for a GPU by name anew, by what is measured on the GPU that is here."
)
@output_options
def update(
    files: tuple[Path, ...],
    plan: Path | None,
    time_limit: float | None,
    measure: bool,
    no_cache: bool,
    as_json: bool,
    quiet: bool,
    traceback: bool,
) -> int:
    """Makes each FILE again as its header says: with the same plan where the model's graph is the same, else with a new one.

    --time-limit is for each FILE, and is not written into it.
    """
    _one_file(files, plan)
    with captured(as_json, quiet) as (progress, show):
        from remat_codegen.run import check_update

        done = [check_update.update(file, progress, not no_cache, plan, time_limit, measure) for file in files]
        show({"files": [d.to_json() for d in done]}, *verbatim(d.line() for d in done))
    return 0


def _one_file(files: Sequence[Path], plan: Path | None) -> None:
    if plan is not None and len(files) > 1:
        raise click.UsageError("--plan belongs to one file; give just that one")


def _check_files(request: Request) -> None:
    """What can be known of the files before minutes of work."""
    written = [p for p in (request.output_path, request.save_plan) if p is not None]
    read = [Path(request.target.rpartition(":")[0]), request.plan]
    for path in written:
        check_writable(path)
    for position, path in enumerate(written):
        others = [*written[:position], *(p for p in read if p is not None)]
        if any(_same_file(path, other) for other in others):
            raise click.UsageError(f"{path} would be overwritten, which is read or written under another option, too")


def _same_file(one: Path, other: Path) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)


for _verb in (*VERBS, cache, devices):
    cli.add_command(_verb)


cli.add_command(explain_command(captured, output_options))
cli.add_command(report_verb)


def _exit_code(verification: Any) -> int:
    if verification is None or verification.ok:
        return 0
    print(f"{NAME}: verification failed: {verification.failures()}", file=sys.stderr)
    return 1


def main() -> NoReturn:
    """The console script. Graphs and plans are many small objects, few of them in cycles, which are looked for less often, and
    not at all when the process ends."""
    gc.set_threshold(10_000, 50, 10)
    try:
        cli.main()
    finally:
        gc.freeze()
