"""What the shell has left of a process: its standard files, its signals, its working directory, numbers of threads.

Imports nothing that starts threads: this is looked at before torch, numpy and numba are loaded.
"""

from __future__ import annotations

import codecs
import errno
import os
import resource
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pbgeval.errors import FEWER_WORKERS, LaunchError

MAX_THREADS_PER_CORE = 8
NUMBERS_OF_THREADS = (
    *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS", "NUMEXPR_NUM_THREADS"),
    *("BLIS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS", "GOTO_NUM_THREADS"),
)
THREADS_OF_A_PROCESS = 2  # that are started, beside those of OpenMP and of OpenBLAS
THREADS_OF_A_WORKER = 6  # itself, and those that talk to other workers
MANY_PROCESSES = 1 << 14  # a higher limit is enough for any run
PROCESS_ADVICE = "raise the limit on processes and threads (ulimit -u), and run the same command again"


def check_threads(environment: Mapping[str, str]) -> None:
    """Refuse numbers of threads that would bring the host to a stop.

    Raises:
        LaunchError: a variable asks for more than a few threads per core.
    """
    num_cores = os.cpu_count() or 1
    most = MAX_THREADS_PER_CORE * num_cores
    faults = []
    for name in NUMBERS_OF_THREADS:
        for given in (of.strip() for of in environment.get(name, "").split(",")):  # one per level, for OpenMP
            if given.isdecimal() and (len(given) > 18 or int(given) > most):
                faults.append(
                    f"{name}: expected at most {most:,} threads on this host with {num_cores:,} cores, got "
                    f"{given[:30]}; "
                    "set a smaller number, or unset it"
                )
    if faults:
        raise LaunchError(*faults)


def threads_per_library(environment: Mapping[str, str], num_processes: int = 1) -> int:
    """Return how many threads OpenMP and OpenBLAS have in each of some processes on this host."""
    given = environment.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    if given.isdecimal() and int(given) > 0:
        return int(given)
    num_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, num_cores // num_processes)


def check_room(num_workers: int, environment: Mapping[str, str]) -> None:
    """Refuse to go on where libraries could not start their threads: they would end the process, or wait for ever.

    Args:
        num_workers: processes that are yet to be started; 0: none, this one does the work.
        environment: of this process.

    Raises:
        LaunchError: the system lets this user start too few threads and processes.
    """
    libraries = 2 * (threads_per_library(environment, max(1, num_workers)) - 1)
    needed = num_workers * (THREADS_OF_A_WORKER + libraries) if num_workers else THREADS_OF_A_PROCESS + libraries
    limit, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if limit == resource.RLIM_INFINITY or limit > MANY_PROCESSES:
        return  # starting threads takes 0.2 ms each, at every start of the command
    found = _room_for_threads(needed)
    if found < needed:
        raise LaunchError(
            f"this user can start {found} more threads or processes, but {needed} are needed; raise the limit "
            f"(ulimit -u), or use {FEWER_WORKERS if num_workers else 'a smaller OMP_NUM_THREADS'}"
        )


def _room_for_threads(most: int) -> int:
    """Return how many threads can be started at a time, by doing so; their number is not looked up anywhere."""
    done = threading.Event()
    threads = [threading.Thread(target=done.wait, daemon=True) for _ in range(most)]
    before = threading.stack_size(1 << 18)  # small: they do nothing
    started = 0
    try:
        for thread in threads:
            thread.start()
            started += 1
    except RuntimeError:  # can't start new thread
        pass
    finally:
        threading.stack_size(before)
        done.set()
        for thread in threads[:started]:
            thread.join()
    return started


def check_working_directory() -> None:
    """Refuse to start in a folder that is gone: no path can be looked up from there.

    Raises:
        LaunchError: the working directory was removed, or cannot be reached.
    """
    try:
        os.getcwd()
    except OSError as error:
        raise LaunchError(
            f"the working directory cannot be used: {error.strerror}; change to a folder that exists"
        ) from error


def check_encoding(encoding: str) -> None:
    """Refuse to start where names of files are ASCII: others, of a config for instance, would not be found.

    Args:
        encoding: of the names of files.

    Raises:
        LaunchError: it is ASCII (LC_ALL=C with PYTHONUTF8=0).
    """
    if codecs.lookup(encoding).name == "ascii":
        raise LaunchError(
            "the locale allows ASCII letters alone in names of files; unset PYTHONUTF8, or set LC_ALL=C.UTF-8"
        )


def restore_sigchld() -> None:
    """Learn how processes that this one starts end, also where the parent ignores it (trap '' CHLD)."""
    if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)


@contextmanager
def standard_files() -> Iterator[None]:
    """Keep the numbers of standard input, output and errors from other files, where these were closed."""
    opened = []
    try:
        for number in range(3):
            try:
                os.fstat(number)
            except OSError:
                os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
                os.set_inheritable(number, True)
                opened.append(number)
        yield
    finally:
        for number in opened:
            os.close(number)


def exhausted_limit(error: BaseException) -> str | None:
    """Return what an error says of too many files, processes or threads, and what to do; None: it is another error."""
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        return f"{error.strerror}: raise the limit (ulimit -n), and run the same command again"
    # A write to a pipe that is full and does not block has the same number, and says how much was written.
    is_write = hasattr(error, "characters_written")
    is_fork = isinstance(error, OSError) and error.errno == errno.EAGAIN and not is_write
    said = ("can't start new thread", os.strerror(errno.EAGAIN))  # by Python, and by threads of torch in C++
    if is_fork or (isinstance(error, RuntimeError) and any(text in str(error) for text in said)):
        return f"cannot start a thread or process; {PROCESS_ADVICE}"
    return None
