"""The program: flags -> config -> evaluation -> exit status, and the names of all commands.

Exit status: 0 complete; 1 input errors, one per line on stderr; 75 incomplete: the same command resumes.
Heavy imports happen inside commands, so that `--help` answers at once.
"""

from __future__ import annotations

import gc
import os
import sys
import traceback
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from pbgeval.cluster.surroundings import exhausted_limit
from pbgeval.command_line.comparing import compare
from pbgeval.command_line.examples import demo, template
from pbgeval.command_line.imports import import_graph, import_model
from pbgeval.command_line.lists import topk, types
from pbgeval.command_line.options import (
    ConfigFile,
    CpusPerWorker,
    Device,
    MemoryPerNode,
    OutputFolder,
    Overrides,
    Overwrite,
    Quiet,
    SlurmOptions,
    TimeLimit,
    Workers,
    app,
    command,
    refuse_misplaced,
    usage_line,
)
from pbgeval.command_line.planning import plan
from pbgeval.command_line.printing import show
from pbgeval.command_line.reports import monitor, report
from pbgeval.command_line.sharing import publish, verify
from pbgeval.command_line.suites import suite
from pbgeval.errors import INCOMPLETE_STATUS, ConfigError, EvalError, IncompleteError, OutputError
from pbgeval.storage.text import is_url, plural, printable, without_secrets
from pbgeval.version import __version__

if TYPE_CHECKING:
    from pbgeval.report.report import Report

__all__ = ["app", "main"]

MAX_FAULTS = 9  # lines on stderr
INTERRUPTED_STATUS = 130  # how typer ends after Ctrl-C
INTERRUPTED = "Interrupted. Run the same command again to resume."


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"kgeval-dist {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def program(
    context: typer.Context,
    config: Annotated[
        Path | None,
        typer.Option("--config", metavar="CONFIG", hidden=True, help="Config file to run, for torchrun and srun."),
    ] = None,
    param: Overrides = None,
    output: OutputFolder = None,
    workers: Workers = None,
    device: Device = "auto",
    overwrite: Overwrite = False,
    quiet: Quiet = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
    help_config: Annotated[
        bool,
        typer.Option("--help-config", help="List the config keys. Add a word to search: --help-config candidates."),
    ] = False,
) -> None:
    """Evaluate knowledge-graph embeddings: exact, filtered link prediction.

    `--config FILE` without a command is `run FILE`.
    """
    if context.invoked_subcommand is not None:
        refuse_misplaced(context)
        return
    if help_config:
        from pbgeval.config import help_config as listing

        print(listing(" ".join(context.obj)))
    elif config is not None:
        raise typer.Exit(_evaluate(config, param or [], output, workers, device, overwrite, quiet))
    elif len(sys.argv) > 1:
        raise ConfigError("no config file is given; kgeval-dist run CONFIG")
    else:
        print(context.get_help())


@command()
def run(
    config: ConfigFile,
    param: Overrides = None,
    output: OutputFolder = None,
    workers: Workers = None,
    device: Device = "auto",
    overwrite: Overwrite = False,
    quiet: Quiet = False,
) -> None:
    """Evaluate the embeddings that a config file describes."""
    raise typer.Exit(_evaluate(config, param or [], output, workers, device, overwrite, quiet))


def _evaluate(
    config: Path,
    param: list[str],
    output: str | None,
    workers: int | None,
    device: str,
    overwrite: bool = False,
    quiet: bool = False,
) -> int:
    """Load the config, evaluate, print the table; return the exit status. Tasks of a submitted job begin here too."""
    from pbgeval.cluster.environment import check_workers, variables_of_torch
    from pbgeval.cluster.signals import default_signals, ended_by_signals, exit_on_signals
    from pbgeval.report.console import ConsoleObserver

    check_workers("--workers", workers)
    is_ours = "torch" not in sys.modules  # a process from its first line
    observer = ConsoleObserver(quiet=quiet)
    observer.phase("starting")  # importing torch takes seconds
    with exit_on_signals():
        from pbgeval.cluster.launch import is_worker_of_a_group, worker_server

        in_group = is_worker_of_a_group()
        several = (workers or os.cpu_count() or 1) > 1 and not in_group
        os.environ.update(variables_of_torch(os.environ, local_workers=several))
        if is_ours:  # garbage is not looked for among what stays: each look takes a tenth of a second
            gc.disable()
        from pbgeval.evaluation import Launch, run_evaluation

        if is_ours:
            gc.freeze()
            gc.enable()
    with (
        worker_server() if several and is_ours else nullcontext() as server,
        default_signals() if in_group else ended_by_signals(),
    ):
        launch = Launch.from_arguments(output, workers, device, overwrite, observer, server)
        try:
            report = run_evaluation(config, launch, param)
        except KeyboardInterrupt as error:  # typer would drop what it says
            raise IncompleteError(*error.args or [INTERRUPTED]) from None
    if not quiet:
        _print_result(report)
        if output is not None and is_url(output) and report.path is not None:
            print(printable(f"copied to {without_secrets(output, output)}"), flush=True)
    return 0 if report.document["complete"] else INCOMPLETE_STATUS


command()(plan)


@command()
def submit(
    config: ConfigFile,
    scheduler: Annotated[
        Literal["slurm", "local"], typer.Option("--scheduler", help="Where to run the job. local: this host.")
    ] = "slurm",
    param: Overrides = None,
    output: OutputFolder = None,
    nodes: Annotated[int, typer.Option("--nodes", min=1, metavar="N", help="Number of hosts.")] = 1,
    workers_per_node: Annotated[
        int, typer.Option("--workers-per-node", min=1, metavar="N", help="Number of processes per host.")
    ] = 1,
    partition: Annotated[
        str | None, typer.Option("--partition", metavar="NAME", help="Slurm partition [default: set by the cluster].")
    ] = None,
    time: TimeLimit = "1:00:00",
    cpus_per_worker: CpusPerWorker = None,
    gpus_per_node: Annotated[
        int | None, typer.Option("--gpus-per-node", min=0, metavar="N", help="GPUs per host [default: none].")
    ] = None,
    memory: MemoryPerNode = None,
    slurm: SlurmOptions = None,
    device: Device = "auto",
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the job and exit with its status.")] = False,
) -> None:
    """Evaluate in a Slurm job, or in a job on this host.

    A preempted job is requeued and resumes.
    """
    from pbgeval.cluster.submit import SubmittedRun, flags_of, job_parameters, minutes_of, submit_run
    from pbgeval.config import load_config
    from pbgeval.evaluation import output_of
    from pbgeval.results.sending import check_url

    parameters = job_parameters(
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
    url = output if output is not None and is_url(output) else None
    if url is not None:
        check_url(url)
    path = output_of(loaded, None if output is None or url else Path(output)).absolute()  # checks the files at once
    num_workers = nodes * workers_per_node
    run_ = partial(_evaluate, config.absolute(), param or [], url or str(path), num_workers, device)
    logs = path.with_name(f"{path.name}.logs")
    job = submit_run(SubmittedRun(run_, cpus_per_worker), scheduler, parameters, loaded.name, logs)
    print(f"job {job.job_id}: {plural(num_workers, 'worker')}, {scheduler}")
    print(printable(f"output: {without_secrets(url, url) if url else path}"))
    print(printable(f"logs: {logs}/{job.job_id}_*_log.err"), flush=True)
    if wait and not job.wait():  # which raises the job's faults
        print(f"job {job.job_id} ended before the run was complete; submit it again to resume", file=sys.stderr)
        raise typer.Exit(INCOMPLETE_STATUS)
    if wait:
        print(f"job {job.job_id}: complete")


command("import-model")(import_model)
command("import-graph")(import_graph)
command()(demo)
command()(template)
command()(publish)
command()(verify)


@command()
def inspect(
    path: Annotated[
        Path, typer.Argument(metavar="PATH", help="Edge folder, entity folder, checkpoint, or a single edge file.")
    ],
) -> None:
    """Describe edge files, entity folders and checkpoints."""
    from pbgeval.storage.inspection import describe

    for index, (name, lines) in enumerate(describe(path).items()):
        print(f"{chr(10) if index else ''}{printable(name)}")
        width = max(len(what) for what, _ in lines)
        print("\n".join(f"  {what:{width}}  {printable(value)}" for what, value in lines))


@command()
def metrics(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Metric, for example hits@5 [default: all].")
    ] = None,
) -> None:
    """List the rank metrics with formulas and synonyms."""
    from pbgeval.metrics.names import UnknownMetricError, metric_list

    try:
        print(metric_list(name), end="")
    except UnknownMetricError as error:
        raise ConfigError(str(error)) from error


command()(topk)
command()(types)
command()(compare)
command()(suite)
command()(monitor)
command()(report)


def _print_result(report: Report) -> None:
    from pbgeval.results.output import files_of

    if report.path is None:  # a worker of a group that another program started, which does not own the output
        return
    try:
        show(*report.shown())
        print(printable(f"{report.path}: {', '.join(files_of(report))}"))
        print(printable(f"make a page with: kgeval-dist report {report.path}"), flush=True)
        if {"ranks", "topk"} <= {*files_of(report)}:
            print(printable(f"and a page of its queries with: kgeval-dist report {report.path} --queries"), flush=True)
        if report.document["complete"] and "ranks" not in files_of(report) and (reason := _why_no_ranks(report)):
            print(f"ranks were not saved ({reason}; -p save_ranks=True saves them for compare and verify)", flush=True)
    except SystemExit:  # rich, when the reader of a pipe has gone: the result is written all the same
        return
    except OSError as error:
        raise OutputError(f"cannot print the table: {error.strerror}; the result is in {report.path}") from error


def _why_no_ranks(report: Report) -> str:
    """Return why a run does not save ranks unless it is asked to; empty where it does."""
    from pbgeval.inputs.protocol import why_ranks_are_not_saved
    from pbgeval.results.result import policies_of

    is_sampled = "sampled" in policies_of(report.document)
    num_queries, num_buckets = report.document["num_queries"], len(report.rows["buckets"])
    return why_ranks_are_not_saved(num_queries, num_buckets, is_sampled=is_sampled)


def main() -> None:
    """Run the command; turn errors into lines and an exit status."""
    from pbgeval.cluster.signals import ended_by_signals

    try:
        with ended_by_signals():
            status = app(prog_name="kgeval-dist", standalone_mode=False)
        if status == INTERRUPTED_STATUS:
            raise KeyboardInterrupt
    except EvalError as error:
        status = _fail(list(error.faults), INCOMPLETE_STATUS if isinstance(error, IncompleteError) else 1)
    except (ImportError, OSError, RuntimeError) as error:
        if _is_of_torch(error):
            lines = str(error).strip().splitlines() or [type(error).__name__]
            sys.exit(_fail([f"torch cannot be loaded: {lines[-1]}; reinstall torch"]))
        limit = exhausted_limit(error)
        if limit is None:
            raise
        status = _fail([limit], INCOMPLETE_STATUS)
    except typer.TyperException as error:
        status = _fail([usage_line(error)])
    except (KeyboardInterrupt, typer.Abort):
        status = _fail([INTERRUPTED], INCOMPLETE_STATUS)
    sys.exit(status if isinstance(status, int) else 0)


def _is_of_torch(error: BaseException) -> bool:
    """Tell whether torch could not be imported: it is missing, or one of its libraries is."""
    frames = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
    is_inside = any(Path(name).parts[-2:] == ("torch", "__init__.py") for name in frames)
    return "torch" not in sys.modules and (is_inside or getattr(error, "name", None) == "torch")


def _fail(faults: list[str], status: int = 1) -> int:
    for fault in faults[:MAX_FAULTS]:
        print(printable(without_secrets(fault)), file=sys.stderr)
    if len(faults) > MAX_FAULTS:
        print(f"... and {len(faults) - MAX_FAULTS} more", file=sys.stderr)
    return status
