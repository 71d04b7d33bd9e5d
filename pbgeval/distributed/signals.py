"""Signals that ask a process to end -> an exception, so that it leaves its directory in order."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from pbgeval.errors import IncompleteError

# Of operators and schedulers: to end, and warnings that the end is near.
SIGNALS_TO_END = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU)


class _EndedError(BaseException):
    """No `Exception`: nothing on the way out may take it for a fault."""


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Turn signals to end into an `IncompleteError`, where nobody else handles them (submitit does, and requeues).

    Raises:
        IncompleteError: such a signal came.
    """
    if threading.current_thread() is not threading.main_thread() or "SUBMITIT_EXECUTOR" in os.environ:
        yield
        return
    ours = [number for number in SIGNALS_TO_END if signal.getsignal(number) is signal.SIG_DFL]
    for number in ours:
        signal.signal(number, _end)
    try:
        yield
    except _EndedError as error:
        raise IncompleteError(f"this process: expected to finish, but was ended by {error}") from None
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


def _end(number: int, _: FrameType | None) -> None:
    raise _EndedError(signal.Signals(number).name)
