"""Signals that ask a process to end -> status 75 and a line, by an exception where something must be put in order."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType
from typing import Any

from attrs import define, field

from pbgeval.errors import INCOMPLETE_STATUS, IncompleteError

# Of operators and schedulers: to end, and warnings that the end is near.
SIGNALS_TO_END = (
    signal.SIGTERM,
    signal.SIGQUIT,
    signal.SIGHUP,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGXCPU,
)

Handler = Callable[[int, FrameType | None], Any] | signal.Handlers


class _EndedError(BaseException):
    """No `Exception`: nothing on the way out may take it for a fault."""


ENDINGS = (_EndedError, KeyboardInterrupt)  # what signals raise


@define(eq=False)
class _RaisingHandler:
    """A handler that raises signals, and remembers those that have not ended anything yet."""

    only_first: bool = False  # a later one is not raised
    received: list[int] = field(factory=list, init=False)  # numbers of signals
    is_held: bool = field(default=False, init=False)  # they wait

    def __call__(self, number: int, _: FrameType | None) -> None:
        self.received.append(number)
        if not self.is_held and (len(self.received) == 1 or not self.only_first):
            self.raise_first()

    def raise_first(self) -> None:
        """Raise the first signal that has not ended anything yet, if there is one."""
        for number in self.received[:1]:
            raise KeyboardInterrupt if number == signal.SIGINT else _EndedError(signal.Signals(number).name)

    @classmethod
    def in_force(cls) -> _RaisingHandler | None:
        """Return the handler that this process has now, if it has one of this kind."""
        handlers = map(signal.getsignal, SIGNALS_TO_END)
        return next((handler for handler in handlers if isinstance(handler, cls)), None)


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Turn signals to end into an `IncompleteError`, where no other library handles them (submitit does, and requeues).

    Raises:
        IncompleteError: such a signal came.
    """
    handler = _RaisingHandler.in_force() or _RaisingHandler()
    with _handled_by(handler, handler):
        try:
            yield
        except _EndedError as error:
            raise IncompleteError(f"This process was ended by {error}. Run the same command again to resume.") from None
        finally:
            handler.received.clear()


def raise_if_ended() -> None:
    """Raise what a signal to end has raised and Python has dropped, as in the callback of a weak reference.

    For places that work comes by often, within `ended_by_signals`.
    """
    handler = _RaisingHandler.in_force()
    if handler is not None:
        handler.raise_first()


@contextmanager
def delayed_signals() -> Iterator[None]:
    """Let signals to end wait until what is inside, which must be short, is done; then raise the first."""
    handler = _RaisingHandler.in_force()
    if handler is None or handler.is_held:
        yield
        return
    handler.is_held = True
    try:
        yield
    finally:
        handler.is_held = False
    handler.raise_first()


@contextmanager
def raised_signals() -> Iterator[None]:
    """Let the first signal to end raise one of `ENDINGS` inside; afterwards let it do what it would have done without.

    A worker that a terminal has interrupted is ended by its launcher, too: on its way out, Python would drop a second
    exception with a traceback.
    """
    if _RaisingHandler.in_force() is not None:
        yield
        return
    handler = _RaisingHandler(only_first=True)
    try:
        with _handled_by(handler, handler):
            yield
    finally:
        for number in handler.received[:1]:
            signal.raise_signal(number)


def exit_on_signals() -> AbstractContextManager[None]:
    """End this process with status 75 and a line when such a signal, or Ctrl-C, comes.

    For its first seconds: there is nothing to leave in order, and an exception can get lost inside an import.
    """
    return _handled_by(_end, _end)


def default_signals() -> AbstractContextManager[None]:
    """Let such signals end this process as they end any: a worker may wait for the others inside a library."""
    return _handled_by(signal.SIG_DFL, signal.default_int_handler)


@contextmanager
def _handled_by(handler: Handler, handler_of_interruptions: Handler) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread() or "SUBMITIT_EXECUTOR" in os.environ:
        yield
        return
    handlers = {**dict.fromkeys(SIGNALS_TO_END, handler), signal.SIGINT: handler_of_interruptions}
    before = {number: signal.getsignal(number) for number in handlers}
    ours = [number for number in handlers if _is_ours(before[number])]
    for number in ours:
        signal.signal(number, handlers[number])
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, before[number])


def _end(number: int, _: FrameType | None) -> None:
    message = f"This process was ended by {signal.Signals(number).name}. Run the same command again to resume.\n"
    os.write(2, message.encode())
    os._exit(INCOMPLETE_STATUS)


def _is_ours(handler: object) -> bool:
    """Tell whether a handler is Python's own or one of this module's, which may be replaced."""
    return handler in (signal.SIG_DFL, signal.default_int_handler, _end) or isinstance(handler, _RaisingHandler)
