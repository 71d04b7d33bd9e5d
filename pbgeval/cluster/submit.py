"""A run -> a job of Slurm, or of this host, through submitit: one task per worker, requeued when it is preempted.

submitit handles SIGTERM and SIGUSR2 in the tasks; nothing of ours may replace its handlers there.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import frozen

from pbgeval.errors import EvalError, IncompleteError, LaunchError, required

if TYPE_CHECKING:
    import submitit


_MAX_TIME_LIMITS = 100  # how often a job that ran out of time is requeued
_SECONDS_OF_WARNING = 90  # between the scheduler's signal and the end
_SECONDS_BETWEEN_LOOKS = 2.0
_SECONDS_FOR_SQUEUE = 60.0
_SECONDS_FOR_FILES = 5.0  # a shared file system may show a result later than the queue shows the end
_TIME = re.compile(r"(?:(?P<days>\d+)-)?(?P<first>\d+)(?::(?P<second>\d+))?(?::(?P<third>\d+))?")


@frozen
class SubmittedRun:
    """What each task of a job does. A requeued job does the same, and goes on where the output directory says."""

    run: Callable[[], int]  # returns the exit status
    num_threads: int | None = None

    def __call__(self) -> None:
        """Be one worker.

        Raises:
            EvalError: a fault of the user's, or the job ended before the run was complete, so that no scheduler takes
                it for done.
        """
        if self.num_threads is not None:
            os.environ.setdefault("OMP_NUM_THREADS", str(self.num_threads))
        if status := self.run():
            raise IncompleteError(f"the run ended early, with status {status}; submit it again to resume")

    def checkpoint(self) -> object:
        """Return what submitit runs after a requeue."""
        return _import_submitit().helpers.DelayedSubmission(self)


@frozen
class SubmittedJob:
    """A job in a scheduler's queue."""

    scheduler: str
    job: submitit.Job[None]

    @property
    def job_id(self) -> str:
        return str(self.job.job_id)

    def wait(self) -> bool:
        """Wait until the job has left the queue for good, requeues included; tell whether the run is complete.

        Raises:
            IncompleteError: the run has ended early, and can go on when it is submitted again.
            LaunchError: faults of the user's, or an error, of which one line.
        """
        is_waiting = _is_in_queue if self.scheduler == "slurm" else lambda job: not job.done()
        while is_waiting(self.job):
            time.sleep(_SECONDS_BETWEEN_LOOKS)
        until = time.monotonic() + _SECONDS_FOR_FILES
        while not (results := self._results()) and time.monotonic() < until:
            time.sleep(1.0)
        if errors := [result for outcome, result in results.values() if outcome == "error"]:
            raise _fault_in(errors[0])
        return 0 in results

    def _results(self) -> dict[int, tuple[str, Any]]:
        """Return what tasks have left behind: `success`, or `error` and a traceback."""
        tasks = {number: self.job.task(number).paths.result_pickle for number in range(self.job.num_tasks)}
        load = _import_submitit().core.utils.pickle_load
        there = list(self.job.paths.folder.iterdir())  # NFS looks for files anew when a folder is read
        return {number: load(path) for number, path in tasks.items() if path in there}


def job_parameters(
    *,
    nodes: int = 1,
    workers_per_node: int = 1,
    minutes: int = 60,
    partition: str | None = None,
    cpus_per_worker: int | None = None,
    gpus_per_node: int | None = None,
    memory: str | None = None,
    slurm: Mapping[str, str | bool] = {},
) -> dict[str, Any]:
    """Return what submitit is told that a job needs; names that begin with `slurm_` count for Slurm alone.

    Args:
        nodes: hosts.
        workers_per_node: tasks on each.
        minutes: a job that needs longer is requeued and goes on.
        partition: of Slurm.
        cpus_per_worker: cores.
        gpus_per_node: GPUs.
        memory: per node, as Slurm writes it: 16GB.
        slurm: further flags of sbatch.
    """
    return {
        "nodes": nodes,
        "tasks_per_node": workers_per_node,
        "timeout_min": minutes,
        "cpus_per_task": cpus_per_worker,
        "gpus_per_node": gpus_per_node,
        "slurm_partition": partition,
        "slurm_mem": memory,
        "slurm_signal_delay_s": min(_SECONDS_OF_WARNING, minutes * 60 // 3),
        "slurm_srun_args": [
            "--kill-on-bad-exit=1",  # a worker that has gone ends the step: the others would wait for it
            # srun no longer takes it over from sbatch
            *([] if cpus_per_worker is None else [f"--cpus-per-task={cpus_per_worker}"]),
        ],
        "slurm_additional_parameters": {"requeue": True, **slurm},
    }


def submit_run(run: SubmittedRun, scheduler: str, parameters: Mapping[str, Any], name: str, logs: Path) -> SubmittedJob:
    """Put a run into a scheduler's queue.

    Args:
        run: what each task does.
        scheduler: slurm or local.
        parameters: of `job_parameters`.
        name: of the job.
        logs: a folder that all hosts see, for submitit's files.

    Raises:
        LaunchError: submitit or the scheduler is missing, or the scheduler refuses the job.
    """
    library = _import_submitit()
    if scheduler == "local" and parameters["nodes"] != 1:
        raise LaunchError(f"--nodes {parameters['nodes']}: --scheduler local has one host; use --workers-per-node")
    if scheduler == "slurm" and not (shutil.which("sbatch") and shutil.which("srun")):
        raise LaunchError(
            "--scheduler slurm: sbatch and srun are not installed on this host; submit from a login node, or use "
            "--scheduler local"
        )
    executor = library.AutoExecutor(folder=logs, cluster=scheduler, slurm_max_num_timeout=_MAX_TIME_LIMITS)
    executor.update_parameters(name=name, **parameters)
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # submitit repeats what sbatch says
            return SubmittedJob(scheduler, executor.submit(run))
    except (library.core.utils.FailedJobError, library.core.utils.FailedSubmissionError) as error:
        raise LaunchError(
            f"sbatch rejected the job: {_last_line(str(error)).removeprefix('sbatch: error: ')}"
        ) from error


def minutes_of(text: str) -> int:
    """Return a time as Slurm writes it (`30`, `30:00`, `1:30:00`, `2-12`, `2-12:30`) in minutes, rounded up.

    Raises:
        LaunchError: it is no such time, or none at all.
    """
    match = _TIME.fullmatch(text)
    days, first, second, third = [int(part or 0) for part in match.groups()] if match else [0] * 4
    has_hours = match is not None and bool(match["days"] or match["third"])  # they are first
    seconds = ((days * 24 + first) * 60 + second) * 60 + third if has_hours else first * 60 + second
    if seconds == 0:
        raise LaunchError(f"--time {text}: expected minutes, H:MM:SS or D-HH:MM, above 0")
    return -(-seconds // 60)


def flags_of(pairs: list[str]) -> dict[str, str | bool]:
    """Return `KEY=VALUE` and `KEY` as further flags of sbatch."""
    parts = [pair.partition("=") for pair in pairs]
    for key, is_pair, value in parts:
        if not re.fullmatch(r"[a-z][a-z0-9-]*", key):
            raise LaunchError(
                f"--slurm {key}{is_pair}{value}: expected an option of sbatch, for example account=physics"
            )
    return {key: value if is_pair else True for key, is_pair, value in parts}


def _is_in_queue(job: submitit.Job[None]) -> bool:
    """Ask Slurm, without its accounting, which many clusters lack; an answer that does not come means yes."""
    command = ["squeue", "--noheader", "--format=%T", f"--jobs={job.job_id}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_SECONDS_FOR_SQUEUE)
    except subprocess.TimeoutExpired:
        return True
    if done.returncode != 0:
        return "Invalid job id" not in done.stderr  # Slurm forgets a job some minutes after its end
    return bool(done.stdout.strip())


def _fault_in(traceback: str) -> EvalError:
    """Return what ended a task, from its traceback."""
    found = re.search(rf"^{re.escape(EvalError.__module__)}\.(\w+): (.*)\Z", traceback, re.MULTILINE | re.DOTALL)
    if found is None:
        return LaunchError(_last_line(traceback))
    return (IncompleteError if found[1] == IncompleteError.__name__ else LaunchError)(*found[2].strip().splitlines())


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip(" -")]
    return lines[-1].strip() if lines else "no message"


def _import_submitit() -> Any:  # noqa: ANN401 - a module
    with required(LaunchError, "submitit is required for kgeval-dist submit", "submitit"):
        import submitit
        import submitit.core.utils
        import submitit.helpers
    return submitit
