"""Signs of life of workers on several hosts -> the end of a process that is cut off from the others.

A host whose network has gone closes no connection: collectives and calls of the store would wait for it for days. So a
thread of each worker counts up the worker's own counter in the store, over a connection of its own. Worker 0's looks at
all counters, the others' at worker 0's, so a group of n takes 3n calls a beat; who loses worker 0 ends, and so do those
who waited for it. A second thread, which calls nothing that could block, ends the process when the first one has heard
nothing for too long. It can only end it as SIGKILL would, since the main thread may wait within a library; what is in
the journal stays, and the next run takes the directory over.

Time is counted in looks rather than read from a clock, so a process that was stopped for a while does not take all
others for dead.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from attrs import define, field

from pbgeval.cluster.launch import is_lost_connection
from pbgeval.cluster.team import Team
from pbgeval.cluster.watch import Counters, stall_seconds
from pbgeval.errors import INCOMPLETE_STATUS, IncompleteError

_SECONDS_BETWEEN_LOOKS = 0.5
_BEATS_PER_LIMIT = 10
_MOST_SECONDS_BETWEEN_BEATS = 10.0
_SECONDS_TO_STOP = 5.0


@contextmanager
def signs_of_life(team: Team) -> Iterator[None]:
    """Notice within `PBGEVAL_STALL_SECONDS` that this process is cut off from its group, whatever it waits for.

    The process then ends with status 75, after a line on stderr.

    Raises:
        IncompleteError: the connection to another worker was lost in a way that this process sees by itself.
        LaunchError: the variable is no number.
    """
    lifeline = Lifeline(team.open_counters(), team.rank_in_team, team.size, stall_seconds())
    lifeline.start()
    try:
        yield
    except BaseException as error:
        if not is_lost_connection(error):
            raise
        found = str(error).partition("\n")[0]
        raise IncompleteError(f"worker {team.rank_in_team}: expected the others to go on, got: {found}") from error
    finally:
        lifeline.stop()


def _end(message: str) -> None:
    """End this process; `main`, which prints faults, may never run again."""
    sys.stderr.write(f"{message}; the run is incomplete, the same command goes on from what is done\n")
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
    _seen: dict[int, tuple[int, int]] = field(factory=dict, init=False)  # counters of others, and when they changed
    _stop: threading.Event = field(factory=threading.Event, init=False)
    _threads: list[threading.Thread] = field(factory=list, init=False)

    def start(self) -> None:
        """Begin, where there are others."""
        if self.size > 1:
            self._threads = [threading.Thread(target=work, daemon=True) for work in (self._keep_beating, self._watch)]
            for thread in self._threads:
                thread.start()

    def stop(self) -> None:
        """End both threads; one that waits for a store which does not answer is left alone."""
        self._stop.set()
        for thread in self._threads:
            thread.join(_SECONDS_TO_STOP)

    def beat(self) -> None:
        """Give a sign of life, and look at those of others."""
        self.counters.add(f"alive/{self.rank_in_team}", 1)
        for rank in range(1, self.size) if self.rank_in_team == 0 else [0]:
            count = self.counters.add(f"alive/{rank}", 0)
            if rank not in self._seen or self._seen[rank][0] != count:
                self._seen[rank] = (count, self._looks)
        self._heard = self._looks

    def look(self) -> None:
        """Take note that time has passed; end the process if somebody has been silent for too long."""
        self._looks += 1
        limit = self.limit / _SECONDS_BETWEEN_LOOKS
        silent = [rank for rank, (_, since) in list(self._seen.items()) if self._looks - since > limit]
        if self._looks - self._heard > limit:
            me = f"worker {self.rank_in_team}"
            self.end(f"{me}: expected the store of the group to answer, heard nothing for {self.limit:g} s")
        elif silent:
            self.end(f"worker {silent[0]}: expected a sign of life, found none for {self.limit:g} s")

    def _keep_beating(self) -> None:
        pause = min(self.limit / _BEATS_PER_LIMIT, _MOST_SECONDS_BETWEEN_BEATS)
        while not self._stop.wait(pause):
            try:
                self.beat()
            except RuntimeError:  # the store has gone: the main thread finds out, or the other one after a while
                return

    def _watch(self) -> None:
        while not self._stop.wait(_SECONDS_BETWEEN_LOOKS):
            self.look()
