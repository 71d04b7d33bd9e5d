"""Start local workers with torch elastic, or see that somebody else already started us."""

from __future__ import annotations

import errno
import logging
import os
import resource
import signal
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pbgeval.distributed import warm_start
from pbgeval.distributed.environment import place_in_group
from pbgeval.distributed.signals import SIGNALS_TO_END
from pbgeval.distributed.watch import StalledWorkerError
from pbgeval.errors import IncompleteError, LaunchError

FAULTS_FILE_PREFIX = "pbgeval-workers-"
LOST = "lost-connection"  # a file that says that a worker lost its peers

# What they say about workers that ended, we say in one line.
_LOGGERS_OF_ELASTIC = (
    "torch.distributed.elastic.agent.server.api",
    "torch.distributed.elastic.multiprocessing.api",
    "torch.multiprocessing.spawn",
)
_FILES = 48  # open at the same time in the launcher, or in a worker
_FILES_OF_A_WORKER = 4  # in the launcher
_SECONDS_BETWEEN_LOOKS = 0.1
_SECONDS_TO_BE_ENDED = 60.0  # for a worker that lost its peer: the launcher, however busy, ends it long before
_SIGNALS = (signal.SIGINT, signal.SIGQUIT, *SIGNALS_TO_END)
MOST_RESTARTS = 3


def is_worker_of_a_group() -> bool:
    """Whether a launcher (torchrun, srun, mpirun) has told this process its place in a group.

    Raises:
        LaunchError: what it has told makes no sense.
    """
    return place_in_group(os.environ) is not None


def start_local_workers(
    function: Callable[..., Any], arguments: tuple[Any, ...], num_workers: int, say: Callable[[str], None]
) -> dict[int, Any]:
    """Run `function(*arguments)` in `num_workers` new processes on this host that form a group.

    Where one is killed, all start again, a few times: the function goes on from what the disk holds. `say` is told.

    Returns:
        What each worker returned, by its rank.

    Raises:
        IncompleteError: this process was ended by a signal (the operator, the scheduler), or workers were, again and
            again (memory).
        LaunchError: workers did not start.
        KeyboardInterrupt: this process was interrupted; its workers have been ended.
        RuntimeError: a worker raised, which is a bug of ours; the message holds its traceback.
    """
    needed, limit = _FILES + _FILES_OF_A_WORKER * num_workers, resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if 0 <= limit < needed:
        raise LaunchError(
            f"{num_workers} workers need up to {needed} open files, and the limit is {limit}; raise it"
            f" (ulimit -n {needed}), or use --workers 1"
        )
    warm_start.set_environment()
    for restart in range(MOST_RESTARTS + 1):
        try:
            return _run_once(function, arguments, num_workers)
        except _LostWorkerError as error:
            if restart == MOST_RESTARTS:
                raise IncompleteError(f"{error}, for the {restart + 1}th time; try fewer --workers") from None
            say(f"{error}; all workers start again ({restart + 1} of {MOST_RESTARTS} times)")
        except OSError as error:  # elastic passes on nothing of workers' own
            raise LaunchError(
                f"the launcher: expected to start {num_workers} workers, got: {error.strerror or error};"
                " raise the limit (ulimit -n, ulimit -u), or use --workers 1"
            ) from error
    raise AssertionError("the last attempt returns or raises")


class _LostWorkerError(Exception):
    """A worker has gone by no fault of the function's."""


def _run_once(function: Callable[..., Any], arguments: tuple[Any, ...], num_workers: int) -> dict[int, Any]:
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException, Std
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    with tempfile.TemporaryDirectory(prefix=FAULTS_FILE_PREFIX) as folder:
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=num_workers,
            run_id=uuid.uuid4().hex,
            rdzv_backend="c10d",
            rdzv_endpoint="localhost:0",
            local_addr="127.0.0.1",
            max_restarts=0,
            monitor_interval=_SECONDS_BETWEEN_LOOKS,
            signals_to_handle=",".join(number.name for number in _SIGNALS),
            start_method=warm_start.start_method(),
            logs_specs=DefaultLogsSpecs(log_dir=folder, tee=Std.NONE),
        )
        try:
            with _elastic_contained():
                results: dict[int, Any] = elastic_launch(config, _Traced(function, folder))(*arguments)
        except ChildFailedError as error:
            raise _explained(error, Path(folder)) from None
        except SignalException as error:
            if error.sigval == signal.SIGINT:
                raise KeyboardInterrupt from None
            raise IncompleteError(f"the launcher: expected to finish, but was ended by {error.sigval.name}") from None
    return results


@contextmanager
def _elastic_contained() -> Iterator[None]:
    """Silence elastic's log, and put back the signal handlers that it leaves behind."""
    levels = {logger: logger.level for logger in map(logging.getLogger, _LOGGERS_OF_ELASTIC)}
    handlers = {number: signal.getsignal(number) for number in _SIGNALS}
    for logger in levels:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in levels.items():
            logger.setLevel(level)
        if threading.current_thread() is threading.main_thread():
            for number, handler in handlers.items():
                signal.signal(number, handler)


class _Traced:
    """Calls a function and leaves the traceback of what it raises in a file: elastic itself keeps none of spawn's."""

    def __init__(self, function: Callable[..., Any], folder: str) -> None:
        self._function = function
        self._folder = folder
        self.__name__ = function.__name__
        self.__qualname__ = function.__qualname__

    def __call__(self, *arguments: Any) -> Any:  # noqa: ANN401 - whatever the function takes and returns
        warm_start.become_worker()
        try:
            return self._function(*arguments)
        except Exception as error:
            import traceback

            is_out_of_files = isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE)
            if isinstance(error, StalledWorkerError) or is_out_of_files:
                (Path(self._folder) / LOST).write_text(str(error), encoding="utf-8")
            elif is_lost_connection(error):
                # Another worker has ended. The launcher must see that one first: it explains the end of both.
                (Path(self._folder) / LOST).touch()
                time.sleep(_SECONDS_TO_BE_ENDED)
            else:
                worker = f"worker-{os.environ.get('RANK', '0')}"
                path = Path(self._folder) / f"{worker}.txt"
                path.write_text(f"{worker} failed:\n{traceback.format_exc()}", encoding="utf-8")
            sys.exit(1)


def _tracebacks(folder: Path) -> list[str]:
    """Return what workers of any group have left."""
    return [path.read_text(encoding="utf-8") for path in sorted(folder.glob("worker-*.txt"))]


def is_lost_connection(error: BaseException) -> bool:
    """Whether a peer has gone or stalled: a collective (gloo raises plain RuntimeErrors), the store, a watch say so."""
    from torch.distributed import DistError

    is_of_gloo = isinstance(error, RuntimeError) and "gloo" in str(error)
    return is_of_gloo or isinstance(error, DistError | StalledWorkerError)


def _explained(error: Any, folder: Path) -> BaseException:  # noqa: ANN401 - elastic's class is imported late
    rank, failure = error.get_first_failure()
    if failure.exitcode == -signal.SIGINT:
        return KeyboardInterrupt()
    if failure.exitcode < 0:
        name = signal.Signals(-failure.exitcode).name
        memory = " (which usually means too little memory)" if name == "SIGKILL" else ""
        return _LostWorkerError(f"worker {rank}: expected to finish, but was ended by {name}{memory}")
    tracebacks = _tracebacks(folder)
    if tracebacks:
        return RuntimeError(tracebacks[0])
    if (folder / LOST).exists():
        stalled = (folder / LOST).read_text(encoding="utf-8")
        lost = f"worker {rank}: expected the others to go on, but lost the connection to one of them"
        return _LostWorkerError(stalled or lost)
    return LaunchError(
        f"worker {rank}: expected to start, but ended with status {failure.exitcode} before its work began; a script "
        'that calls evaluate must do so under `if __name__ == "__main__":`, because workers import it, or use workers=1'
    )
