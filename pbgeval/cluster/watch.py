"""Workers that wait for each other -> how long nothing has been heard of one, by the clock of those who wait."""

from __future__ import annotations

import os
import time
from typing import Protocol

from attrs import define, field

from pbgeval.errors import LaunchError

STALL_SECONDS = 300.0  # without progress, or FACTOR times the slowest unit, whichever is longer
FACTOR = 20
STALL_VARIABLE = "PBGEVAL_STALL_SECONDS"
_MOST_SECONDS_BETWEEN_LOOKS = 0.2
_SECONDS_BETWEEN_CHECKS = 1.0


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
        raise LaunchError(f"{STALL_VARIABLE}: expected seconds, more than none, in the environment, found {text!r}")
    return seconds


class StalledWorkerError(RuntimeError):
    """A worker has made no progress for too long."""


class Counters(Protocol):
    """Counters that all workers share."""

    def add(self, counter: str, amount: int) -> int: ...


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
        """Wait until all workers have come here, looking now and then: no collective that would wait forever.

        Raises:
            StalledWorkerError: one that has not has made no progress for too long.
        """
        self.counters.add(f"{self.prefix}/here/{self.rank_in_team}", 1)
        arrived = self.counters.add(f"{self.prefix}/arrived", 1)
        seen: dict[int, tuple[int, float]] = {}  # ticks of each worker, and when they changed
        pause, checked = 0.001, time.monotonic()
        while arrived < self.size:
            time.sleep(pause)
            pause = min(2 * pause, _MOST_SECONDS_BETWEEN_LOOKS)
            if time.monotonic() - checked > _SECONDS_BETWEEN_CHECKS:
                checked = time.monotonic()
                self._check(seen)
            arrived = self.counters.add(f"{self.prefix}/arrived", 0)

    def _check(self, seen: dict[int, tuple[int, float]]) -> None:
        now, slowest = time.monotonic(), 0
        for rank in range(self.size):
            slowest = max(slowest, self.counters.add(f"{self.prefix}/slowest/{rank}", 0))
            ticks = self.counters.add(f"{self.prefix}/ticks/{rank}", 0)
            if self.counters.add(f"{self.prefix}/here/{rank}", 0):
                seen.pop(rank, None)
            elif rank not in seen or seen[rank][0] != ticks:
                seen[rank] = (ticks, now)
        limit = max(stall_seconds(), FACTOR * slowest / 1000)
        for rank, (_, since) in seen.items():
            if now - since > limit:
                raise StalledWorkerError(f"worker {rank}: expected progress, found none for {now - since:.0f} s")
