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

from pbgeval.config import EvalConfig, check_config
from pbgeval.distributed.environment import advice_on_restarts
from pbgeval.distributed.launch import is_worker_of_a_group, start_local_workers
from pbgeval.distributed.lifeline import signs_of_life
from pbgeval.distributed.ownership import Ownership, describe_process
from pbgeval.distributed.resources import host_name, num_cores
from pbgeval.distributed.signals import ended_by_signals
from pbgeval.distributed.team import Team
from pbgeval.errors import EvalError, IncompleteError, LaunchError
from pbgeval.inputs.opening import open_inputs
from pbgeval.inputs.protocol import make_protocol, num_shares
from pbgeval.inputs.provenance import provenance_of, things_to_know
from pbgeval.progress import Observer, Silence
from pbgeval.report.output import OutputDirectory, digest_of
from pbgeval.report.report import Report
from pbgeval.worker import Outcome, Work, do_work, what_is_left, work_as_local_worker


@frozen
class RunOptions:
    """How this run is carried out; none of it changes a number."""

    # default: results/<config name>-<digest> in the working directory
    output: Path | None = field(default=None, converter=optional(Path))
    workers: int | None = None  # local processes; default: as many as cores, the config's `workers` and units allow
    device: str = "auto"  # auto, cpu or cuda
    overwrite: bool = False  # replace another run's output


def evaluate(config: EvalConfig, options: RunOptions | None = None, observer: Observer | None = None) -> Report:
    """Evaluate a checkpoint and write the result.

    A config that `load_config` has not checked is checked here. Started by torchrun, srun or mpirun, this process is
    one worker of its group; otherwise it starts local workers itself.

    Raises:
        EvalError: faults of the user's, a line each; nothing is left in the output directory.
    """
    options, observer = options or RunOptions(), observer or Silence()
    started = time.time()
    if config.source is None:
        config = check_config(config)
    inputs = open_inputs(config)
    protocol = make_protocol(inputs)
    provenance = provenance_of(inputs)
    path = options.output or _default_output(config, provenance)
    output = OutputDirectory(path, Ownership(path, describe_process(host_name(), os.environ), observer.warn))
    work = Work(inputs, protocol, provenance, options.device, observer, started, output.path)
    if is_worker_of_a_group():
        return _evaluate_in_group(work, options, output)
    for message in things_to_know(inputs):
        observer.warn(message)
    return _evaluate_here(work, options, output)


def output_of(config: EvalConfig) -> Path:
    """Return where the result of a config goes unless said otherwise.

    Raises:
        EvalError: faults of the user's, found in headers.
    """
    return _default_output(config, provenance_of(open_inputs(config)))


def _default_output(config: EvalConfig, provenance: Mapping[str, Any]) -> Path:
    return Path("results") / f"{config.name}-{digest_of(provenance)[:8]}"


def _evaluate_here(work: Work, options: RunOptions, output: OutputDirectory) -> Report:
    """Work alone, or start local workers and wait for them."""
    finished = output.claim(work.provenance, overwrite=options.overwrite)
    if finished is not None:
        work.observer.warn(f"{output.path}: finished before, nothing was computed; --overwrite computes it again")
        return finished
    num_workers = options.workers or _default_workers(work)
    try:
        if num_workers == 1:
            with ended_by_signals():
                outcome = do_work(work, Team())
        else:
            outcome = start_local_workers(work_as_local_worker, (work,), num_workers, work.observer.warn)[0]
        return _conclude(outcome, output)
    except EvalError as error:
        raise _end_of(error, output, work) from None
    except BaseException:  # a bug of ours, an interruption: what is done must not be lost
        _keep_or_release(output)
        raise


def _keep_or_release(output: OutputDirectory) -> None:
    """Leave the directory to a run that goes on from what is done, or as it was if nothing is."""
    if output.can_go_on:
        output.suspend()
    else:
        output.release()


def _end_of(error: EvalError, output: OutputDirectory, work: Work) -> EvalError:
    """Leave the directory after a fault, and say what is left to do if the run can go on."""
    if not isinstance(error, IncompleteError):
        output.release()
        return error
    left = what_is_left(work)
    _keep_or_release(output)
    return IncompleteError(*error.faults, left)


def _default_workers(work: Work) -> int:
    allowed = work.inputs.config.workers or num_cores()
    return max(1, min(num_cores(), allowed, num_shares(work.inputs, work.protocol)))


def _evaluate_in_group(work: Work, options: RunOptions, output: OutputDirectory) -> Report:
    """Be one worker of a group that somebody else started; worker 0 owns the output directory."""
    team = Team.join()
    try:
        with signs_of_life(team):
            return _take_part(work, options, output, team)
    except BaseException:  # a lost worker, a bug of ours, an interruption: what is done must not be lost
        output.suspend()  # where it is still held, which is by worker 0; others may be writing their results
        raise


def _take_part(work: Work, options: RunOptions, output: OutputDirectory, team: Team) -> Report:
    claimed = None
    if team.rank_in_team == 0:
        for message in [*things_to_know(work.inputs), *advice_on_restarts(os.environ)]:
            work.observer.warn(message)
        claimed = _try_to_claim(work, options, output, team)
    claimed = team.broadcast_object(claimed)
    if claimed.faults or claimed.report is not None:
        team.leave()
        return _report_for(team, claimed)
    outcome = do_work(work, team)
    if team.rank_in_team == 0:
        outcome = _try_to_conclude(outcome, output, work)
    outcome = team.broadcast_object(outcome)
    team.leave()
    return _report_for(team, outcome)


def _report_for(team: Team, outcome: Outcome) -> Report:
    """Return the report, or raise the faults; the output directory belongs to worker 0's report alone."""
    report = _report_of(outcome)
    return report if team.rank_in_team == 0 else evolve(report, path=None)


def _try_to_claim(work: Work, options: RunOptions, output: OutputDirectory, team: Team) -> Outcome:
    try:
        if options.workers not in (None, team.size):
            raise LaunchError(f"--workers {options.workers}: expected {team.size}, the size of the group, or no flag")
        return Outcome(report=output.claim(work.provenance, overwrite=options.overwrite))
    except EvalError as error:
        return Outcome(error.faults)


def _try_to_conclude(outcome: Outcome, output: OutputDirectory, work: Work) -> Outcome:
    try:
        return Outcome(report=_conclude(outcome, output))
    except EvalError as error:
        error = _end_of(error, output, work)
        return Outcome(error.faults, incomplete=isinstance(error, IncompleteError))


def _conclude(outcome: Outcome, output: OutputDirectory) -> Report:
    """Write the report, or raise the faults."""
    report = _report_of(outcome)
    output.write(report)
    return evolve(report, path=output.path)


def _report_of(outcome: Outcome) -> Report:
    if outcome.faults:
        raise (IncompleteError if outcome.incomplete else EvalError)(*outcome.faults)
    if outcome.report is None:
        raise RuntimeError("the evaluation ended without a report")
    return outcome.report
