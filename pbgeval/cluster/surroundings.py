"""What the shell has left of a process: its standard files, its signals, its working directory, numbers of threads.

Imports nothing that starts threads: this is looked at before torch, numpy and numba are loaded.
"""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pbgeval.errors import LaunchError

MAX_THREADS_PER_CORE = 8
NUMBERS_OF_THREADS = (
    *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS", "NUMEXPR_NUM_THREADS"),
    *("BLIS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS", "GOTO_NUM_THREADS"),
)
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


def heed_children() -> None:
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


def is_lack_of_processes(error: BaseException) -> bool:
    """Tell whether the system has refused to start a process or a thread."""
    # A write to a pipe that is full and does not block has the same number, and says how much was written.
    is_write = hasattr(error, "characters_written")
    is_fork = isinstance(error, OSError) and error.errno == errno.EAGAIN and not is_write
    return is_fork or (isinstance(error, RuntimeError) and "can't start new thread" in str(error))
