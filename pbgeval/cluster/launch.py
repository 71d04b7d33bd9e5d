"""Start local workers and wait for them, or find that a launcher already started this one.

Importing torch takes seconds. So the command, once it has imported everything and done nothing else, forks a server
(`worker_server`), which forks workers within milliseconds. Other programs are not ours to fork: their workers are new
processes that import pbgeval alone. multiprocessing's spawn would run the caller's main module again in each.
"""

from __future__ import annotations

import io
import multiprocessing
import os
import pickle
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing import connection
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.spawn import get_executable
from types import FunctionType
from typing import Any

from attrs import frozen

from pbgeval.cluster.environment import LOOPBACK, place_in_group, variables_of_torch
from pbgeval.cluster.liveness import StalledWorkerError, is_lost_connection
from pbgeval.cluster.signals import SIGNALS_TO_END, exit_on_signals
from pbgeval.cluster.surroundings import check_room, exhausted_limit, standard_files
from pbgeval.errors import FEWER_WORKERS, EvalError, IncompleteError, LaunchError, workers_option

MAX_LOCAL_WORKERS = 1024
MAX_RESTARTS = 3
_FILES = 48  # open at the same time in the launcher, or in a worker
_FILES_OF_A_WORKER = 4  # in the launcher
_SIGNALS = (signal.SIGINT, *SIGNALS_TO_END)
_SECONDS_FOR_THE_CAUSE = 60.0  # from a worker that lost its peer to that peer's own end
_SECONDS_TO_EXIT = 60.0  # for a worker that has returned
_SECONDS_TO_SAVE = 15.0  # for workers that are asked to end: what they have finished goes to the journal

Function = Callable[..., Any]


def is_worker_of_a_group() -> bool:
    """Whether a launcher (torchrun, srun, mpirun) has told this process its place in a group.

    Raises:
        LaunchError: what it has told makes no sense.
    """
    return place_in_group(os.environ) is not None


def start_local_workers(
    function: Function,
    arguments: tuple[Any, ...],
    num_workers: int,
    say: Callable[[str], None],
    server: WorkerServer | None = None,
) -> dict[int, Any]:
    """Run `function(*arguments)` in `num_workers` new processes on this host that form a group.

    Where one is killed, all start again, a few times: the function goes on from what the disk holds. `say` is told.
    A `server` forks the workers as long as it lives; without one, they are spawned.

    Returns:
        What each worker returned, by its rank.

    Raises:
        IncompleteError: workers were ended by a signal, again and again (memory).
        EvalError: a worker raised it.
        LaunchError: there are too many workers, or they did not start.
        KeyboardInterrupt: this process was interrupted; its workers have been ended.
        RuntimeError: a worker raised, which is a bug of ours; the message holds its traceback.
    """
    needed, limit = _FILES + _FILES_OF_A_WORKER * num_workers, resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if num_workers > MAX_LOCAL_WORKERS:
        raise LaunchError(f"{workers_option(num_workers)}: at most {MAX_LOCAL_WORKERS:,} processes can run on one host")
    if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
        raise LaunchError(
            "workers: this process ignores SIGCHLD, so it cannot learn how its workers end; call "
            "signal.signal(signal.SIGCHLD, signal.SIG_DFL), or use workers=1"
        )
    if 0 <= limit < needed:
        raise LaunchError(
            f"Too many open files: {num_workers} workers need up to {needed:,}, and the limit is {limit:,}; raise it"
            f" (ulimit -n {needed}), or use {workers_option(1)}"
        )
    check_room(num_workers, os.environ)
    for restart in range(MAX_RESTARTS + 1):
        try:
            run = _run_spawned if server is None or server.requests.closed else server.run
            return run(function, arguments, num_workers)
        except _LostWorkerError as error:
            if restart == MAX_RESTARTS:
                raise IncompleteError(f"{error}; gave up after {MAX_RESTARTS} restarts; try {FEWER_WORKERS}") from None
            say(f"{error}; restarting all workers ({restart + 1} of {MAX_RESTARTS} restarts)")
        except OSError as error:  # too many processes, for instance
            raise LaunchError(
                f"cannot start {num_workers} workers: {error.strerror or error};"
                f" raise the limit (ulimit -n, ulimit -u), or use {workers_option(1)}"
            ) from error
    raise AssertionError("the last attempt returns or raises")


class _LostWorkerError(Exception):
    """A worker has gone by no fault of the function's."""


@frozen(eq=False)
class WorkerServer:
    """A copy of this process that forks local workers."""

    process: BaseProcess
    requests: Connection

    def run(self, function: Function, arguments: tuple[Any, ...], num_workers: int) -> dict[int, Any]:
        """Let it run workers; however this ends, none of them is left."""
        try:
            self.requests.send_bytes(pickle.dumps((function, arguments, num_workers)))
            results, error = pickle.loads(self.requests.recv_bytes())
        except (EOFError, OSError):  # its workers have ended with it, and hold the connection until then
            self.stop()
            raise _LostWorkerError("the process that starts workers was killed") from None
        except BaseException:
            self.stop()
            raise
        if error is not None:
            raise error
        return results  # type: ignore[no-any-return]

    def stop(self) -> None:
        """End it, and its workers before it."""
        self.requests.close()
        self.process.join()


@contextmanager
def worker_server() -> Iterator[WorkerServer | None]:
    """Make a copy of this process as it is now, from which `start_local_workers` forks; None where forks are unsafe.

    Only for a process that is ours from its first line and has done nothing but import.
    """
    if "fork" not in multiprocessing.get_all_start_methods() or sys.platform == "darwin":
        yield None  # forked processes are not safe on macOS
        return
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=_serve, args=(ours, theirs), name="server of workers")
    with exit_on_signals():
        process.start()
    theirs.close()
    server = WorkerServer(process, ours)
    try:
        yield server
    finally:
        server.stop()


def _serve(launcher_side: Connection, requests: Connection) -> None:
    """Run workers as the launcher asks, until it has gone."""
    launcher_side.close()
    for number in _SIGNALS:
        # Schedulers and terminals send them to every process of a job; it is the launcher that says who ends.
        signal.signal(number, signal.SIG_IGN)
    while True:
        results, error = None, None
        try:
            function, arguments, num_workers = pickle.loads(requests.recv_bytes())
            results = _run(partial(_fork, function, arguments), num_workers, requests)
        except EOFError:  # while it waits for a request, or for its workers
            return
        except BaseException as raised:
            error = raised
        requests.send_bytes(pickle.dumps((results, error)))


def _fork(
    function: Function, arguments: tuple[Any, ...], variables: dict[str, str], answers: Connection
) -> BaseProcess:
    process = multiprocessing.get_context("fork").Process(target=_work, args=(function, arguments, variables, answers))
    process.start()
    return process


def _run_spawned(function: Function, arguments: tuple[Any, ...], num_workers: int) -> dict[int, Any]:
    """Run workers that begin with nothing; leave this process, which may be the user's own program, as it was."""
    packed = _packed((function, arguments))
    with standard_files():  # a pipe to a worker in their place would be closed there
        return _run(partial(_SpawnedProcess, packed), num_workers, None)


class _SpawnedProcess:
    """A worker in a new interpreter, with the few methods of `multiprocessing.Process` that are needed here."""

    def __init__(self, packed: bytes, variables: dict[str, str], answers: Connection) -> None:
        theirs, self._requests = multiprocessing.Pipe(duplex=False)
        numbers = theirs.fileno(), answers.fileno()
        path = [entry for entry in sys.path if isinstance(entry, str)]
        program = (
            f"import sys; sys.path = {path!a}; import signal; signal.signal(signal.SIGINT, signal.SIG_DFL); "
            f"from {__name__} import be_spawned; be_spawned{numbers}"
        )
        flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
        with theirs:
            self._process = subprocess.Popen(
                [get_executable(), *flags, "-c", program],
                stdin=subprocess.DEVNULL,
                env={**os.environ, **variables_of_torch(os.environ, local_workers=True), **variables},
                pass_fds=numbers,
            )
        try:
            with suppress(BrokenPipeError):  # it has ended, which is noticed where its answer is awaited
                self._requests.send_bytes(packed)
        except BaseException:  # a signal
            self.kill()
            self.join()
            raise

    @property
    def exitcode(self) -> int | None:
        return self._process.returncode

    def join(self, timeout: float | None = None) -> None:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout)

    def terminate(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()

    def close(self) -> None:
        self._requests.close()


class _Packer(pickle.Pickler):
    """Refuse what is defined in the caller's main module, which workers do not run."""

    def reducer_override(self, value: object) -> Any:  # noqa: ANN401 - of its base class
        if isinstance(value, (type, FunctionType)) and value.__module__ in ("__main__", "__mp_main__"):
            raise LaunchError(
                f"workers: {value.__qualname__} is defined in the main program, which workers do not run; "
                "move it to a module and import it, or use workers=1"
            )
        return NotImplemented


def _packed(value: object) -> bytes:
    """Return a value as bytes for a process that has not run this one's main module.

    Raises:
        LaunchError: it, for example a user's observer, cannot be sent.
    """
    packed = io.BytesIO()
    try:
        _Packer(packed).dump(value)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise LaunchError(f"workers: cannot send to another process: {error}; use workers=1") from error
    return packed.getvalue()


def _call_packed(packed: bytes) -> Any:  # noqa: ANN401 - of the function
    try:
        function, arguments = pickle.loads(packed)
    except (ImportError, AttributeError) as error:
        raise LaunchError(f"workers: cannot load in another process: {error}; use workers=1") from error
    return function(*arguments)


def be_spawned(requests_number: int, answers_number: int) -> None:
    """Be a worker in a process that has just begun, whose launcher is at the other end of these files."""
    requests = Connection(requests_number, writable=False)
    try:
        packed = requests.recv_bytes()
    except EOFError:  # the launcher has gone
        return
    _work(_call_packed, (packed,), {}, Connection(answers_number, readable=False), requests)


def _run(
    start: Callable[[dict[str, str], Connection], BaseProcess | _SpawnedProcess],
    num_workers: int,
    launcher: Connection | None,
) -> dict[int, Any]:
    """Start workers, wait for all, and leave none behind.

    Args:
        start: starts one that has the given variables in its environment, and answers on the connection.
        num_workers: how many.
        launcher: a connection that ends when the workers are of no use anymore.
    """
    with socket.socket() as free:
        free.bind((LOOPBACK, 0))
        port = free.getsockname()[1]
    started: list[tuple[BaseProcess | _SpawnedProcess, Connection]] = []
    try:
        for rank in range(num_workers):
            variables = {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(num_workers),
                "MASTER_ADDR": LOOPBACK,
                "MASTER_PORT": str(port),
            }
            answers, theirs = multiprocessing.Pipe(duplex=False)
            with theirs:
                started.append((start(variables, theirs), answers))
        results = _wait_for([answers for _, answers in started], [process for process, _ in started], launcher)
        for process, _ in started:
            process.join(_SECONDS_TO_EXIT)
        return results
    finally:
        try:
            for process, _ in started:
                process.terminate()
            until = time.monotonic() + _SECONDS_TO_SAVE
            for process, _ in started:
                process.join(max(0.0, until - time.monotonic()))
        finally:
            for process, answers in started:
                process.kill()
                process.join()
                process.close()
                answers.close()


def _wait_for(
    answers: list[Connection], processes: list[BaseProcess | _SpawnedProcess], launcher: Connection | None
) -> dict[int, Any]:
    """Return what all workers answer, by rank.

    Raises:
        EOFError: the launcher has gone.
        BaseException: that of the worker which was the cause: a worker that lost its peers is none.
    """
    results: dict[int, Any] = {}
    waiting = dict(enumerate(answers))
    lost: int | None = None
    while waiting:
        wanted = [*waiting.values(), *([] if launcher is None else [launcher])]
        ready = connection.wait(wanted, None if lost is None else _SECONDS_FOR_THE_CAUSE)
        if launcher in ready:
            raise EOFError
        if not ready:
            break
        for rank in [rank for rank, of_worker in waiting.items() if of_worker in ready]:
            try:
                kind, found = waiting.pop(rank).recv()
            except EOFError:
                raise _explained(rank, processes[rank]) from None
            if kind == "raised":
                raise found
            if kind == "lost":
                lost = rank
            results[rank] = found
    if lost is not None:
        raise _LostWorkerError(f"worker {lost} lost the connection to another worker")
    return results


def _work(
    function: Function,
    arguments: tuple[Any, ...],
    variables: dict[str, str],
    answers: Connection,
    parent: Connection | None = None,
) -> None:
    """Be a worker: call the function, and answer once with how it ended; end with the parent."""
    for number in _SIGNALS:
        # At once and without a traceback: what Ctrl-C sends to all.
        signal.signal(number, signal.SIG_DFL)
    os.environ.update(variables)

    def watched(*arguments: Any) -> Any:  # noqa: ANN401 - of the function
        threading.Thread(target=_end_with_parent, args=(parent,), name="parent", daemon=True).start()
        return function(*arguments)

    answers.send(_answer(watched, arguments, f"worker-{os.environ['RANK']}"))


def _answer(function: Function, arguments: tuple[Any, ...], worker: str) -> tuple[str, Any]:
    try:
        return "returned", function(*arguments)
    except EvalError as error:
        return "raised", error
    except StalledWorkerError as error:
        return "raised", _LostWorkerError(str(error))
    except Exception as error:
        import traceback

        if is_lost_connection(error):
            return "lost", None
        limit = exhausted_limit(error)
        if limit is not None:
            return "raised", IncompleteError(f"{worker}: {limit}")
        return "raised", RuntimeError(f"{worker} failed:\n{traceback.format_exc()}")


def _end_with_parent(parent: Connection | None) -> None:
    """End this process when the connection does; without one, when the process that forked it does."""
    forked_by = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent])
    elif forked_by is not None:
        connection.wait([forked_by.sentinel])
    os.kill(os.getpid(), signal.SIGKILL)


def _explained(rank: int, process: BaseProcess | _SpawnedProcess) -> BaseException:
    """Return what it means that a worker ended without an answer."""
    process.join()
    status = process.exitcode or 0
    if status == -signal.SIGINT:
        return KeyboardInterrupt()
    if status < 0:
        memory = " (which usually means too little memory)" if status == -signal.SIGKILL else ""
        return _LostWorkerError(f"worker {rank} was ended by {signal.Signals(-status).name}{memory}")
    return LaunchError(f"worker {rank} ended with status {status} before its work was done; use {workers_option(1)}")
