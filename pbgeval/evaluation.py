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
from pathlib import Path
from typing import Any

from attrs import evolve, field, frozen
from attrs.converters import optional

from pbgeval.cluster.claim import Ownership, describe_process
from pbgeval.cluster.environment import advice_on_restarts
from pbgeval.cluster.launch import is_worker_of_a_group, start_local_workers
from pbgeval.cluster.resources import host_name, num_cores
from pbgeval.cluster.signals import ended_by_signals
from pbgeval.cluster.team import Team
from pbgeval.config import EvalConfig, check_config
from pbgeval.errors import EvalError, LaunchError
from pbgeval.inputs.edge_files import DEFAULT_OUTPUTS, buckets_of_files, has_files_of_edges
from pbgeval.inputs.in_memory import Array, Edges, GivenModel, open_in_memory
from pbgeval.inputs.object_storage import has_urls, local_copies
from pbgeval.inputs.opening import Inputs, open_inputs
from pbgeval.inputs.protocol import make_protocol, num_shares
from pbgeval.inputs.provenance import provenance_of, things_to_know
from pbgeval.progress import Observer
from pbgeval.report.output import OutputDirectory, digest_of
from pbgeval.report.report import Report
from pbgeval.storage.writing import temporary_folder
from pbgeval.worker import Outcome, Work, do_work, work_as_local_worker
from pbgeval.worker.conclusion import conclude, end_of, keep_or_release, report_of, try_to_claim, try_to_conclude
from pbgeval.worker.group_inputs import inputs_of_group


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
    return _evaluate_files(config, options, observer, started)


def _evaluate_files(config: EvalConfig, options: RunOptions, observer: Observer, started: float) -> Report:
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
    protocol = make_protocol(inputs)
    provenance = provenance_of(inputs)
    path = options.output or _default_output(inputs.config, provenance)
    owner = Ownership(path, describe_process(host_name(), os.environ), observer.warn)
    output = OutputDirectory(path, owner)
    work = Work(inputs, protocol, provenance, options.device, observer, started, output.path, owner.claim)
    if is_worker_of_a_group():
        return _evaluate_in_group(work, options, output, team or Team.join())
    for message in things_to_know(inputs):
        observer.warn(message)
    return _evaluate_here(work, options, output)


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


def _evaluate_here(work: Work, options: RunOptions, output: OutputDirectory) -> Report:
    """Work alone, or start local workers and wait for them."""
    finished = output.claim(work.provenance, overwrite=options.overwrite)
    if finished is not None:
        work.observer.warn(f"{output.path}: finished before, nothing was computed; --overwrite computes it again")
        return finished
    num_workers = options.workers or _default_workers(work)
    try:
        with ended_by_signals():
            if num_workers == 1:
                outcome = do_work(work, Team())
            else:
                outcome = start_local_workers(work_as_local_worker, (work,), num_workers, work.observer.warn)[0]
        return conclude(outcome, output, work)
    except EvalError as error:
        raise end_of(error, output, work) from None
    except BaseException:  # a bug of ours, an interruption: what is done must not be lost
        keep_or_release(output)
        raise


def _default_workers(work: Work) -> int:
    allowed = work.inputs.config.workers or num_cores()
    return max(1, min(num_cores(), allowed, num_shares(work.inputs, work.protocol)))


def _evaluate_in_group(work: Work, options: RunOptions, output: OutputDirectory, team: Team) -> Report:
    """Be one worker of a group that somebody else started; worker 0 owns the output directory."""
    try:
        with team.signs_of_life():
            return _take_part(work, options, output, team)
    except BaseException:  # a lost worker, a bug of ours, an interruption: what is done must not be lost
        output.suspend()  # where it is still held, which is by worker 0; others may be writing their results
        raise


def _take_part(work: Work, options: RunOptions, output: OutputDirectory, team: Team) -> Report:
    claimed = None
    if team.rank_in_team == 0:
        for message in [*things_to_know(work.inputs), *advice_on_restarts(os.environ)]:
            work.observer.warn(message)
        claimed = try_to_claim(work, output, team, options.workers, overwrite=options.overwrite)
    claimed = team.broadcast_object(claimed)
    if claimed.faults or claimed.report is not None:
        team.leave()
        return _report_for(team, claimed)
    outcome = do_work(work, team)
    if team.rank_in_team == 0:
        outcome = try_to_conclude(outcome, output, work)
    outcome = team.broadcast_object(outcome)
    team.leave()
    return _report_for(team, outcome)


def _report_for(team: Team, outcome: Outcome) -> Report:
    """Return the report, or raise the faults; the output directory belongs to worker 0's report alone."""
    report = report_of(outcome)
    return report if team.rank_in_team == 0 else evolve(report, path=None)
