"""Whether workers that wait for each other are alive and make progress.

A worker increments counters that all workers share, and checks those of the others. A worker whose counter has not
changed for too long, by the clock of the worker that checks, has stalled. There are two kinds of counters:

    Watch      units done in a stretch of work: a worker that has finished checks the others while it waits for them
    Lifeline   signs of life: a thread increments and checks them all the time, even while the process waits

A host that loses its network closes no connection: collectives and calls of the store would wait for it for days. So
the thread of a lifeline has its own connection. Worker 0 checks all counters, and the others check worker 0's, so a
group of n takes 3n calls a beat. A worker that loses worker 0 exits, and so do the workers that wait for it. A second
thread, which calls nothing that could block, ends the process when the first one has heard nothing for too long. It can
only end it as SIGKILL would, because the main thread may be waiting inside a library. The journal stays, and the next
run takes over the directory.

A lifeline's time is counted in looks rather than read from a clock, so a process that was stopped for a while does not
take all others for dead.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from attrs import define, field

from pbgeval.errors import INCOMPLETE_STATUS, LaunchError

STALL_SECONDS = 300.0  # without progress, or FACTOR times the slowest unit, whichever is longer
FACTOR = 20
STALL_VARIABLE = "PBGEVAL_STALL_SECONDS"
_MAX_SECONDS_BETWEEN_POLLS = 0.2
_SECONDS_BETWEEN_CHECKS = 1.0
_SECONDS_BETWEEN_LOOKS = 0.5
_BEATS_PER_LIMIT = 10
_MAX_SECONDS_BETWEEN_BEATS = 10.0
_SECONDS_TO_STOP = 5.0


def stall_seconds() -> float:
    """Return for how long a worker may be silent: what the environment says, or the default.

    Raises:
        LaunchError: the environment says no number.
    """
    text = os.environ.get(STALL_VARIABLE, str(STALL_SECONDS))
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not seconds > 0:
        raise LaunchError(f"{STALL_VARIABLE}: expected a number of seconds > 0 in the environment, got {text!r}")
    return seconds


class StalledWorkerError(RuntimeError):
    """A worker has made no progress for too long."""


def is_lost_connection(error: BaseException) -> bool:
    """Whether a peer has gone or stalled: a collective (gloo raises plain RuntimeErrors), the store, a watch say so."""
    from torch.distributed import DistError

    return isinstance(error, DistError | StalledWorkerError) or (
        isinstance(error, RuntimeError) and "gloo" in str(error)
    )


@contextmanager
def repeated(action: Callable[[], object], seconds: float) -> Iterator[None]:
    """Do something in a thread, again and again; one that does not come back soon is left alone in the end."""
    ended = threading.Event()

    def work() -> None:
        while not ended.wait(seconds):
            action()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(_SECONDS_TO_STOP)


class Counters(Protocol):
    """Counters by name that all workers share, all zero at first; `Team` has them."""

    def add(self, counter: str, amount: int, /) -> int:
        """Add at once for all workers, and return the new value."""


@define
class _Changes:
    """Counters of other workers, and when each was last seen to change."""

    seen: dict[int, tuple[int, float]] = field(factory=dict, init=False)

    def note(self, rank: int, count: int, now: float) -> None:
        if rank not in self.seen or self.seen[rank][0] != count:
            self.seen[rank] = (count, now)

    def first_silent(self, now: float, limit: float) -> tuple[int, float] | None:
        """Return a worker that has not changed for longer than a limit, and for how long."""
        return next(((rank, now - at) for rank, (_, at) in list(self.seen.items()) if now - at > limit), None)


@define
class Watch:
    """One worker's part in a stretch of work in which every worker reports its progress."""

    counters: Counters
    prefix: str  # of the names of counters; each stretch has its own
    rank_in_team: int
    size: int
    _last: float = field(factory=time.monotonic, init=False)
    _slowest: int = field(default=0, init=False)  # milliseconds of the longest unit that this worker has reported

    def tick(self) -> None:
        """Report that a unit is done."""
        now = time.monotonic()
        milliseconds, self._last = int(1000 * (now - self._last)), now
        self.counters.add(f"{self.prefix}/ticks/{self.rank_in_team}", 1)
        if milliseconds > self._slowest:
            self.counters.add(f"{self.prefix}/slowest/{self.rank_in_team}", milliseconds - self._slowest)
            self._slowest = milliseconds

    def wait_for_all(self) -> None:
        """Wait until all workers have come here, polling now and then: no collective that would wait forever.

        Raises:
            StalledWorkerError: one that has not has made no progress for too long.
        """
        self.counters.add(f"{self.prefix}/here/{self.rank_in_team}", 1)
        arrived = self.counters.add(f"{self.prefix}/arrived", 1)
        changes, pause, checked = _Changes(), 0.001, time.monotonic()
        while arrived < self.size:
            time.sleep(pause)
            pause = min(2 * pause, _MAX_SECONDS_BETWEEN_POLLS)
            if time.monotonic() - checked > _SECONDS_BETWEEN_CHECKS:
                checked = time.monotonic()
                self._check(changes)
            arrived = self.counters.add(f"{self.prefix}/arrived", 0)

    def _check(self, changes: _Changes) -> None:
        now, slowest = time.monotonic(), 0
        for rank in range(self.size):
            slowest = max(slowest, self.counters.add(f"{self.prefix}/slowest/{rank}", 0))
            if self.counters.add(f"{self.prefix}/here/{rank}", 0):
                changes.seen.pop(rank, None)
            else:
                changes.note(rank, self.counters.add(f"{self.prefix}/ticks/{rank}", 0), now)
        silent = changes.first_silent(now, max(stall_seconds(), FACTOR * slowest / 1000))
        if silent is not None:
            raise StalledWorkerError(f"worker {silent[0]} has made no progress for {silent[1]:.0f} s")


def _end(message: str) -> None:
    """End this process; `main`, which prints faults, may never run again."""
    sys.stderr.write(f"{message}. Run the same command again to resume.\n")
    sys.stderr.flush()
    os._exit(INCOMPLETE_STATUS)


@define(eq=False)
class Lifeline:
    """One worker's signs of life, and its view of the others'."""

    counters: Counters
    rank_in_team: int
    size: int
    limit: float  # seconds without a sign of life
    end: Callable[[str], None] = _end  # the process
    _looks: int = field(default=0, init=False)  # of the thread that watches: our clock
    _heard: int = field(default=0, init=False)  # when the store has answered
    _is_cut: bool = field(default=False, init=False)  # the store has gone, which others will say
    _changes: _Changes = field(factory=_Changes, init=False)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Give signs of life and watch the others', where there are others."""
        if self.size == 1:
            yield
            return
        pause = min(self.limit / _BEATS_PER_LIMIT, _MAX_SECONDS_BETWEEN_BEATS)
        with repeated(self.beat, pause), repeated(self.look, _SECONDS_BETWEEN_LOOKS):
            yield

    def beat(self) -> None:
        """Give a sign of life, and look at those of others."""
        if self._is_cut:
            return
        try:
            self.counters.add(f"alive/{self.rank_in_team}", 1)
            for rank in range(1, self.size) if self.rank_in_team == 0 else [0]:
                self._changes.note(rank, self.counters.add(f"alive/{rank}", 0), self._looks)
            self._heard = self._looks
        except RuntimeError:
            self._is_cut = True

    def look(self) -> None:
        """Take note that time has passed; end the process if another process has been silent for too long."""
        self._looks += 1
        limit = self.limit / _SECONDS_BETWEEN_LOOKS
        silent = self._changes.first_silent(self._looks, limit)
        if self._looks - self._heard > limit:
            self.end(f"worker {self.rank_in_team} has heard nothing from the group's store for {self.limit:g} s")
        elif silent is not None:
            self.end(f"worker {silent[0]} has sent no heartbeat for {self.limit:g} s")
