"""Local workers that start with everything imported.

Importing torch takes seconds of a core. A server (multiprocessing's forkserver) imports while the launcher reads the
config, and forks a worker in milliseconds whenever one is wanted; workers share its pages. Only for a launcher that is
ours from its first line: the server has the environment of the moment when it begins, and in a program of somebody
else's `__main__` or another use of the server may need more than that.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import sys
import threading
from multiprocessing import connection, forkserver, process

from pbgeval.distributed.signals import SIGNALS_TO_END

# Read when torch is imported. The first: torch 2.13's shared rendezvous store breaks restarts of gloo jobs. The second:
# a worker whose store has gone with another worker would print a hundred lines; the launcher says it in one.
_ENVIRONMENT = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
# Read then, too: how often threads that wait for each other look before they sleep. By itself torch's OpenMP (libgomp)
# looks 300,000 times, milliseconds, and meanwhile those they wait for find no core where other programs run.
_SPINS_BEFORE_SLEEP = "10000"
_SAY_HOW_TO_WAIT = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
_PRELOADED = ("pbgeval.distributed.warm_server", "pbgeval.driver")

_begun = False


def set_environment() -> None:
    """Set the variables that torch reads in launcher and workers, unless the user has."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    let_threads_sleep()


def let_threads_sleep() -> None:
    """Let threads of torch soon sleep where they wait, unless the user has said how they wait; changes no number."""
    if not any(name in os.environ for name in _SAY_HOW_TO_WAIT):
        os.environ["GOMP_SPINCOUNT"] = _SPINS_BEFORE_SLEEP


def begin() -> None:
    """Let the server import; where there can be none, workers start as in any program."""
    global _begun
    if "forkserver" not in multiprocessing.get_all_start_methods() or sys.platform == "darwin":
        return  # forked processes are not safe on macOS
    set_environment()
    multiprocessing.set_forkserver_preload(list(_PRELOADED))
    try:
        forkserver.ensure_running()
    except OSError:
        return  # a socket's name, in the folder of temporary files, has at most some 100 letters
    _begun = True


def start_method() -> str:
    """Return how workers start."""
    return "forkserver" if _begun else "spawn"


def become_worker() -> None:
    """Let this worker be ended by signals, and with its launcher, as one that the launcher has spawned.

    Its parent is the server, which outlives the launcher while it has workers.
    """
    if not gc.isenabled():  # by the server
        gc.freeze()
        gc.enable()
    for number in (signal.SIGINT, signal.SIGQUIT, *SIGNALS_TO_END):
        # At once and without a traceback: what Ctrl-C sends to all, and the system to us when the parent dies.
        signal.signal(number, signal.SIG_DFL)
    launcher = process.parent_process()
    if launcher is not None and launcher.pid != os.getppid():
        threading.Thread(target=_end_with, args=(launcher.sentinel,), name="launcher", daemon=True).start()


def _end_with(sentinel: int) -> None:
    connection.wait([sentinel])
    os.kill(os.getpid(), signal.SIGINT)
