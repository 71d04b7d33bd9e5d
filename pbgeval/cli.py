"""Flags -> config -> driver -> exit status. Nothing else prints, but for `commands.py` and `report_command.py`.

Exit status: 0 complete; 1 the user's fault, a line each on stderr; 75 incomplete, run again to go on; a traceback only
for a bug of ours.
Heavy imports happen inside commands, so that `--help` answers at once.
"""

from __future__ import annotations

import errno
import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pbgeval import commands
from pbgeval import commands as report_command
from pbgeval.errors import INCOMPLETE_STATUS, EvalError, IncompleteError, LaunchError, OutputError
from pbgeval.storage.text import printable
from pbgeval.version import __version__

if TYPE_CHECKING:
    from pbgeval.cluster.submit import SubmittedJob
    from pbgeval.report.report import Report

MOST_FAULTS = 9  # lines on stderr
FAULT_STATUS = 1
INTERRUPTED_STATUS = 130  # how typer ends after Ctrl-C

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
app.add_typer(commands.app)
app.add_typer(report_command.app)


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
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an earlier result: the files that it lists, no others.")
    ] = False,
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
    from pbgeval.errors import ConfigError

    if config is None:
        raise ConfigError("--config: expected a config file, found none; see kgeval-dist --help")
    if workers is not None and workers < 1:
        raise ConfigError(f"--workers {workers}: expected a number of processes >= 1; leave it out to use all cores")
    status = _evaluate(config, param or [], output, workers, device, overwrite, quiet)
    if status != 0:
        raise typer.Exit(status)


def _evaluate(
    config: Path,
    param: list[str],
    output: Path | None,
    workers: int | None,
    device: str,
    overwrite: bool = False,
    quiet: bool = False,
) -> int:
    """Load the config, evaluate, print the table; return the exit status. Tasks of a submitted job begin here too."""
    from pbgeval.cluster.signals import ended_at_once, ended_by_signals, left_to_the_system

    is_ours = "torch" not in sys.modules  # a process from its first line
    with ended_at_once():
        from pbgeval.cluster.environment import variables_of_torch
        from pbgeval.cluster.launch import is_worker_of_a_group, worker_server

        in_group = is_worker_of_a_group()
        several = (workers or os.cpu_count() or 1) > 1 and not in_group
        os.environ.update(variables_of_torch(os.environ, local_workers=several))
        with _imports():
            from pbgeval.config import load_config
            from pbgeval.evaluation import RunOptions, evaluate
            from pbgeval.report.console import ConsoleObserver

    _check_device(device)
    options = RunOptions(output=output, workers=workers, device=device, overwrite=overwrite)
    with (
        worker_server() if several and is_ours else nullcontext(),
        left_to_the_system() if in_group else ended_by_signals(),
    ):
        report = evaluate(load_config(config, param), options, ConsoleObserver(quiet=quiet))
    if not quiet:
        _print_result(report)
    return 0 if report.document["complete"] else INCOMPLETE_STATUS


@contextmanager
def _imports() -> Iterator[None]:
    """Import what stays without looking for garbage among it, then or later: each look takes a tenth of a second."""
    if "torch" in sys.modules:  # not a process that is ours from its first line
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def _check_device(device: str) -> None:
    from pbgeval.cluster.resources import DEVICES
    from pbgeval.errors import ConfigError

    if device not in DEVICES:
        raise ConfigError(f"--device {device}: expected one of {', '.join(DEVICES)}")


@app.command()
def submit(
    config: Annotated[Path, typer.Option("--config", help="Config file, as without submit.")],
    scheduler: Annotated[str, typer.Option("--scheduler", help="slurm or local (this host).")] = "slurm",
    param: Annotated[
        list[str] | None, typer.Option("--param", "-p", metavar="KEY=VALUE", help="Override a key of the config.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", help="Output directory [default: results/<config>-<digest>].")
    ] = None,
    nodes: Annotated[int, typer.Option("--nodes", min=1, help="Hosts.")] = 1,
    workers_per_node: Annotated[int, typer.Option("--workers-per-node", min=1, help="Processes on each.")] = 1,
    partition: Annotated[str | None, typer.Option("--partition", help="Slurm's partition, not ours.")] = None,
    time: Annotated[str, typer.Option("--time", help="Until a job is requeued, as in sbatch.")] = "1:00:00",
    cpus_per_worker: Annotated[int | None, typer.Option("--cpus-per-worker", min=1, help="Cores of each.")] = None,
    gpus_per_node: Annotated[int | None, typer.Option("--gpus-per-node", min=0, help="GPUs of each host.")] = None,
    memory: Annotated[str | None, typer.Option("--mem", help="Memory of each host, 64GB say.")] = None,
    slurm: Annotated[
        list[str] | None, typer.Option("--slurm", metavar="KEY=VALUE", help="A further flag of sbatch.")
    ] = None,
    device: Annotated[str, typer.Option("--device", help="auto, cpu or cuda.")] = "auto",
    wait: Annotated[bool, typer.Option("--wait", help="Wait, and exit with the job's status.")] = False,
) -> None:
    """Evaluate in a job of Slurm, or of this host; a preempted job is requeued and goes on."""
    from functools import partial

    from pbgeval.cluster.submit import SCHEDULERS, JobShape, SubmittedRun, flags_of, minutes_of, submit_run
    from pbgeval.config import load_config
    from pbgeval.errors import ConfigError
    from pbgeval.evaluation import output_of

    if scheduler not in SCHEDULERS:
        raise ConfigError(f"--scheduler {scheduler}: expected one of {', '.join(SCHEDULERS)}")
    _check_device(device)
    shape = JobShape(
        nodes=nodes,
        workers_per_node=workers_per_node,
        minutes=minutes_of(time),
        partition=partition,
        cpus_per_worker=cpus_per_worker,
        gpus_per_node=gpus_per_node,
        memory=memory,
        slurm=flags_of(slurm or []),
    )
    loaded = load_config(config, param or [])
    path = output_of(loaded, output).absolute()  # files are looked at here, so that faults do not wait in a queue
    run_ = partial(_evaluate, config.absolute(), param or [], path, shape.num_workers, device)
    logs = path.with_name(f"{path.name}.logs")
    job = submit_run(SubmittedRun(run_, cpus_per_worker), scheduler, shape, loaded.name, logs)
    print(f"job {job.job_id}: {shape.num_workers} workers, {scheduler}")
    print(printable(f"output: {path}"))
    print(printable(f"logs: {logs}/{job.job_id}_*_log.err"), flush=True)
    if wait:
        _wait_for(job)


def _wait_for(job: SubmittedJob) -> None:
    """Wait for a job; end with its status.

    Raises:
        LaunchError: the job met a fault.
        IncompleteError: it met one that may pass.
        typer.Exit: it was ended from outside.
    """
    end = job.wait()
    if end.faults:
        raise (IncompleteError if end.can_go_on else LaunchError)(*end.faults)
    if not end.is_complete:
        print(f"job {job.job_id}: ended before it was complete; submit it again to go on", file=sys.stderr)
        raise typer.Exit(INCOMPLETE_STATUS)
    print(f"job {job.job_id}: complete")


def _print_result(report: Report) -> None:
    from rich.console import Console

    from pbgeval.report.output import files_of
    from pbgeval.report.table import print_table

    if report.path is None:  # a worker of somebody else's group that does not own the output
        return
    try:
        print_table(report, Console())
        print(printable(f"{report.path}: {', '.join(files_of(report))}"), flush=True)
    except SystemExit:  # rich, when the reader of a pipe has gone: the result is written all the same
        return
    except OSError as error:
        raise OutputError(
            f"standard output: expected to print the table, got: {error.strerror}; the result is in {report.path}"
        ) from error


def main() -> None:
    """Run the command and turn faults into lines and a status."""
    from pbgeval.cluster.signals import ended_by_signals

    try:
        with ended_by_signals():
            status = app(standalone_mode=False)
        if status == INTERRUPTED_STATUS:
            raise KeyboardInterrupt
    except IncompleteError as error:
        status = _fail(list(error.faults), INCOMPLETE_STATUS)
    except EvalError as error:
        status = _fail(list(error.faults))
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE):
            raise
        status = _fail(
            [f"{error.strerror}: raise the limit (ulimit -n), and run the same command again"], INCOMPLETE_STATUS
        )
    except typer.TyperException as error:
        status = _fail([f"{error.format_message().rstrip('.')}; see kgeval-dist --help"])
    except (KeyboardInterrupt, typer.Abort):
        status = _fail(
            ["interrupted: expected a complete run; the same command goes on from what is done"], INCOMPLETE_STATUS
        )
    sys.exit(status if isinstance(status, int) else 0)


def _fail(faults: list[str], status: int = FAULT_STATUS) -> int:
    for fault in faults[:MOST_FAULTS]:
        print(printable(fault), file=sys.stderr)
    if len(faults) > MOST_FAULTS:
        print(f"... and {len(faults) - MOST_FAULTS} more", file=sys.stderr)
    return status
