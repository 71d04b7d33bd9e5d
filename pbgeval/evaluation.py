"""The whole run: config -> inputs -> units -> statistics -> report. Read this first.

open_inputs      every file's header, checked: most faults end here, before anything starts
make_protocol    lists of candidates, work units, their order
claim            the output directory is ours, or already holds this very result
do_work          on each worker: its units, one after the other; then one sum over all workers
write            the report, once
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from attrs import evolve, field, frozen
from attrs.converters import optional

from pbgeval.cluster.claim import Ownership, describe_process
from pbgeval.cluster.environment import advice_on_restarts
from pbgeval.cluster.journal import DamagedEntryError, ForeignEntryError, Journal
from pbgeval.cluster.launch import is_worker_of_a_group, start_local_workers
from pbgeval.cluster.resources import host_name, num_cores
from pbgeval.cluster.signals import ended_by_signals
from pbgeval.cluster.team import Team
from pbgeval.config import EvalConfig, check_config
from pbgeval.errors import EvalError, IncompleteError, LaunchError, OutputError
from pbgeval.inputs.edge_files import DEFAULT_OUTPUTS, buckets_of_files, has_files_of_edges
from pbgeval.inputs.object_storage import has_urls, local_copies
from pbgeval.inputs.opening import GivenModel, Inputs, open_in_memory, open_inputs
from pbgeval.inputs.protocol import make_protocol, num_shares
from pbgeval.inputs.provenance import provenance_of, startup_warnings
from pbgeval.progress import Observer
from pbgeval.report.output import OutputDirectory, digest_of, send_to_sinks
from pbgeval.report.report import Report
from pbgeval.storage.edges import Array, Edges
from pbgeval.storage.writing import temporary_folder
from pbgeval.worker import Outcome, Work, do_work, work_as_local_worker
from pbgeval.worker.group_inputs import inputs_of_group
from pbgeval.worker.sweep import range_of_name


@frozen
class RunOptions:
    """How this run is carried out; none of it changes a number."""

    # default: results/<config name>-<digest> in the working directory
    output: Path | None = field(default=None, converter=optional(Path))
    workers: int | None = None  # local processes; default: as many as cores, the config's `workers` and units allow
    device: str = "auto"  # auto, cpu or cuda
    overwrite: bool = False  # replace another run's output


def evaluate(
    config: EvalConfig,
    options: RunOptions | None = None,
    observer: Observer | None = None,
    *,
    model: GivenModel | None = None,
    edges: Edges | Array | None = None,
) -> Report:
    """Evaluate a checkpoint and write the result.

    A config that `load_config` has not checked is checked here. Started by torchrun, srun or mpirun, this process is
    one worker of its group; otherwise it starts local workers itself.

    Args:
        config: what is evaluated, and how.
        options: how it is carried out.
        observer: is told of progress.
        model: in place of a checkpoint: a path that the key `model` could have, or a `Scorer`, say of `edge_scorer`.
        edges: in place of `edge_paths` (`Edges`: with known ones). Then nothing is written but into `options.output`.

    Raises:
        EvalError: faults of the user's, a line each; nothing is left in the output directory.
    """
    options, observer = options or RunOptions(), observer or Observer()
    started = time.time()
    if model is not None or edges is not None:
        return _evaluate_in_memory(open_in_memory(config, model, edges), options, observer, started)
    if config.source is None:
        config = check_config(config)
    if is_worker_of_a_group() and (has_urls(config) or has_files_of_edges(config)):
        with inputs_of_group(config, options.output, observer) as (inputs, team):
            return _evaluate(inputs, options, observer, started, team)
    with local_copies(config) as local, buckets_of_files(local, options.output, observer) as split:
        return _evaluate(open_inputs(split), options, observer, started)


def _evaluate_in_memory(inputs: Inputs, options: RunOptions, observer: Observer, started: float) -> Report:
    if options.workers not in (None, 1):  # what is in memory may not be sent to other processes
        raise LaunchError(f"workers: expected None or 1 for what is in memory, got {options.workers}; start a group")
    if not is_worker_of_a_group():
        options = evolve(options, workers=1)
    if options.output is not None:
        return _evaluate(inputs, options, observer, started)
    if is_worker_of_a_group():
        raise LaunchError("output: expected RunOptions(output=...), a folder that all workers of the group share")
    if inputs.config.sinks:
        raise LaunchError("sinks: expected RunOptions(output=...), a folder that they write into")
    with temporary_folder() as folder:
        return evolve(_evaluate(inputs, evolve(options, output=folder), observer, started), path=None)


def _evaluate(
    inputs: Inputs, options: RunOptions, observer: Observer, started: float, team: Team | None = None
) -> Report:
    """Plan, claim, work, report: with workers that this process starts, or as one worker of a group.

    Worker 0 owns the output directory, and tells the others what it has found there and what it has written.
    """
    protocol = make_protocol(inputs)
    provenance = provenance_of(inputs)
    path = options.output or _default_output(inputs.config, provenance)
    owner = Ownership(path, describe_process(host_name(), os.environ), observer.warn)
    output = OutputDirectory(path, owner)
    work = Work(inputs, protocol, provenance, options.device, observer, started, output.path, owner.claim)
    in_group = is_worker_of_a_group()
    team = team or (Team.join() if in_group else Team())
    is_first = team.rank_in_team == 0
    try:
        with team.signs_of_life() if in_group else nullcontext():
            with team.together():
                claimed = _claim(work, options, output, team) if is_first else None
            report = team.broadcast_object(claimed)
            if report is None:
                with team.together():
                    report = _work(work, options, output, team)
                report = team.broadcast_object(report)
            team.leave()
    except BaseException:  # what is done must not be lost; where a fault has been dealt with, the directory is not held
        if in_group:
            output.suspend()  # by worker 0; others may be writing their results
        else:
            _keep_or_release(output)
        raise
    return report if is_first else evolve(report, path=None)


def _claim(work: Work, options: RunOptions, output: OutputDirectory, team: Team) -> Report | None:
    """Make the output directory ours; return the finished result of this very run that it may hold."""
    in_group = is_worker_of_a_group()
    for message in [*startup_warnings(work.inputs), *(advice_on_restarts(os.environ) if in_group else ())]:
        work.observer.warn(message)
    if in_group and options.workers not in (None, team.size):
        raise LaunchError(f"--workers {options.workers}: the group has {team.size} workers; leave out --workers")
    finished = output.claim(work.provenance, overwrite=options.overwrite)
    if finished is not None:
        work.observer.note(f"{output.path}: already complete; showing the saved result (--overwrite recomputes it)")
    return finished


def _work(work: Work, options: RunOptions, output: OutputDirectory, team: Team) -> Report | None:
    """Do this worker's part, or start local workers and wait for them; return the report on worker 0."""
    num_workers = 1 if is_worker_of_a_group() else options.workers or _default_workers(work)
    try:
        with nullcontext() if is_worker_of_a_group() else ended_by_signals():
            if num_workers == 1:
                outcome = do_work(work, team)
            else:
                outcome = start_local_workers(work_as_local_worker, (work,), num_workers, work.observer.warn)[0]
        return _conclude(outcome, output, work) if team.rank_in_team == 0 else None
    except EvalError as error:
        raise _end_of(error, output, work) from None


def _default_workers(work: Work) -> int:
    allowed = work.inputs.config.workers or num_cores()
    return max(1, min(num_cores(), allowed, num_shares(work.inputs, work.protocol)))


def _what_is_left(work: Work) -> str:
    """Return how much of the run its journal holds; of a sample with a target, of the rounds begun."""
    journal = Journal(work.journal_path, work.journal_digest, writer="reader")
    done: set[str] = set()
    for entry in journal.entries():
        try:
            done.update(journal.read(entry).units)
        except (DamagedEntryError, ForeignEntryError, OutputError):  # the next run says so
            continue
    if work.protocol.sweeps:
        rows = sum(range_of_name(unit.partition("/")[2]).num_rows for unit in done)
        what = f"all queries are scored against {rows:,} of {work.inputs.numbering.num_entities:,} entities"
    elif work.inputs.config.sample_edges is not None or work.inputs.config.target_error is not None:
        what = f"{len(done):,} units of the sample are done"
    else:
        what = f"{len(done):,} of {len(work.protocol.units):,} units are done"
    return f"{work.output}: the run is incomplete ({what}). Run the same command again to resume."


def _keep_or_release(output: OutputDirectory) -> None:
    """Leave the directory, if it is ours, to a run that goes on from what is done, or as it was if nothing is."""
    if output.owner.is_held and output.can_go_on:
        output.suspend()
    else:
        output.release()


def _end_of(error: EvalError, output: OutputDirectory, work: Work) -> EvalError:
    """Leave the directory after a fault, and say what is left to do if the run can go on."""
    if not isinstance(error, IncompleteError):
        output.release()
        return error
    left = _what_is_left(work)
    _keep_or_release(output)
    return IncompleteError(*error.faults, left)


def _conclude(outcome: Outcome, output: OutputDirectory, work: Work) -> Report:
    """Write the report, and then what the config's sinks want of it; or raise the faults."""
    if outcome.faults:
        raise (IncompleteError if outcome.incomplete else EvalError)(*outcome.faults)
    if outcome.report is None:
        raise RuntimeError("the evaluation ended without a report")
    output.write(outcome.report)
    report = evolve(outcome.report, path=output.path)
    try:
        if work.inputs.config.sinks:
            earlier = output.files_of_sinks()
            send_to_sinks(report, work.inputs.config.sinks, work.observer.warn)
            output.list_files(output.files_of_sinks() - earlier)
    except OutputError as error:
        work.observer.warn(f"{error}; the result itself is complete")
    finally:
        output.owner.release()
    return report


def output_of(config: EvalConfig, output: Path | None = None) -> Path:
    """Return where the result of a config goes, said or not, after a look at all that is read.

    Raises:
        EvalError: faults of the user's, found in headers and in files of edges by name.
    """
    with local_copies(config, read_in_place=True) as local, buckets_of_files(local, output, Observer()) as split:
        default = _default_output(config, provenance_of(open_inputs(split)))
    return output or default


def _default_output(config: EvalConfig, provenance: Mapping[str, Any]) -> Path:
    return DEFAULT_OUTPUTS / f"{config.name}-{digest_of(provenance)[:8]}"
