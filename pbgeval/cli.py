"""Flags -> config -> driver -> exit status. Nothing else in the package prints.

Exit status: 0 complete; 1 the user's fault, a line each on stderr; 75 incomplete, run again to go on; a traceback only
for a bug of ours.
Heavy imports happen inside commands, so that `--help` answers at once.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pbgeval.errors import EvalError, IncompleteError, OutputError
from pbgeval.version import __version__

if TYPE_CHECKING:
    from pbgeval.report.report import Report

MOST_FAULTS = 20  # lines on stderr
FAULT_STATUS = 1
INCOMPLETE_STATUS = 75  # EX_TEMPFAIL: run again to go on
INTERRUPTED_STATUS = 130  # how typer ends after Ctrl-C

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"kgeval-dist {__version__}")
        raise typer.Exit


def _print_config_help(wanted: bool) -> None:
    if wanted:
        from pbgeval.config import help_config

        print(help_config())
        raise typer.Exit


@app.callback(invoke_without_command=True)
def run(
    context: typer.Context,
    config: Annotated[
        Path | None, typer.Option("--config", help="Config file: ours, PyTorch-BigGraph's, or JSON.")
    ] = None,
    param: Annotated[
        list[str] | None,
        typer.Option("--param", "-p", metavar="KEY=VALUE", help="Override a key; dotted paths, lists by comma."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", help="Output directory [default: results/<config>-<digest>].")
    ] = None,
    workers: Annotated[int | None, typer.Option("--workers", help="Processes on this host; changes no number.")] = None,
    device: Annotated[str, typer.Option("--device", help="auto, cpu or cuda.")] = "auto",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the output of another run.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing but errors.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
    help_config: Annotated[
        bool,
        typer.Option("--help-config", callback=_print_config_help, is_eager=True, help="Print every config key."),
    ] = False,
) -> None:
    """Evaluate knowledge-graph embeddings: rank the true edges of a partitioned graph."""
    if context.invoked_subcommand is not None:
        return
    from pbgeval.config import load_config
    from pbgeval.distributed.resources import DEVICES
    from pbgeval.driver import RunOptions, evaluate
    from pbgeval.errors import ConfigError
    from pbgeval.report.console import ConsoleObserver

    if config is None:
        raise ConfigError("--config: expected a config file, found none; see kgeval-dist --help")
    if device not in DEVICES:
        raise ConfigError(f"--device {device}: expected one of {', '.join(DEVICES)}")
    if workers is not None and workers < 1:
        raise ConfigError(f"--workers {workers}: expected a number of processes >= 1; leave it out to use all cores")
    loaded = load_config(config, param or [])
    options = RunOptions(output=output, workers=workers, device=device, overwrite=overwrite)
    report = evaluate(loaded, options, ConsoleObserver(quiet=quiet))
    if not quiet:
        _print_result(report)


@app.command()
def metrics(
    name: Annotated[str | None, typer.Argument(help="A metric or a synonym, hits@5 say [default: all].")] = None,
) -> None:
    """List the rank metrics: names, range, level by chance, formula, source."""
    from pbgeval.errors import ConfigError
    from pbgeval.metrics.names import UnknownMetricError
    from pbgeval.report.metric_list import metric_list

    try:
        print(metric_list(name), end="")
    except UnknownMetricError as error:
        raise ConfigError(str(error)) from error


def _print_result(report: Report) -> None:
    from rich.console import Console

    from pbgeval.report.output import files_of
    from pbgeval.report.table import print_table

    if report.path is None:  # a worker of somebody else's group that does not own the output
        return
    try:
        print_table(report, Console())
        print(f"{report.path}: {', '.join(files_of(report))}", flush=True)
    except SystemExit:  # rich, when the reader of a pipe has gone: the result is written all the same
        return
    except OSError as error:
        raise OutputError(
            f"standard output: expected to print the table, got: {error.strerror}; the result is in {report.path}"
        ) from error


def main() -> None:
    """Run the command and turn faults into lines and a status."""
    try:
        status = app(standalone_mode=False)
        if status == INTERRUPTED_STATUS:
            raise KeyboardInterrupt
    except IncompleteError as error:
        status = _fail(list(error.faults), INCOMPLETE_STATUS)
    except EvalError as error:
        status = _fail(list(error.faults))
    except typer.TyperException as error:
        status = _fail([f"{error.format_message().rstrip('.')}; see kgeval-dist --help"])
    except (KeyboardInterrupt, typer.Abort):
        status = _fail(
            ["interrupted: expected a complete run; the same command goes on from what is done"], INCOMPLETE_STATUS
        )
    sys.exit(status if isinstance(status, int) else 0)


def _fail(faults: list[str], status: int = FAULT_STATUS) -> int:
    for fault in faults[:MOST_FAULTS]:
        print(fault, file=sys.stderr)
    if len(faults) > MOST_FAULTS:
        print(f"... and {len(faults) - MOST_FAULTS} more", file=sys.stderr)
    return status
