"""Read a run's journal when a worker starts, and append finished work from time to time.

Writing takes at most a hundredth of the time: entries hold the sum of as many units as it takes for that. Where a
signal ends the process, what is finished is written first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext

import numpy as np
from attrs import define, field

from pbgeval.cluster.journal import DamagedEntryError, ForeignEntryError, Journal
from pbgeval.cluster.signals import ENDINGS, delayed_signals, raise_if_ended, raised_signals
from pbgeval.cluster.team import Team
from pbgeval.errors import OVERWRITE, JournalError
from pbgeval.progress import Observer
from pbgeval.worker.collective import collectively

MIN_SECONDS = 0.2  # between two entries of a worker
MIN_SECONDS_AT_END = 2.0  # of work that is worth an entry when nothing follows
MAX_SECONDS_TO_WAIT = 5.0  # after a signal, for the unit in hand
SECONDS_PER_SECOND = 100.0  # of work, for each second that the last entry, or report, took


def share_names(done: set[str], units: Sequence[str]) -> bool:
    """Whether some units are among those that are done, where equal units have equal names."""
    return not done.isdisjoint(units)


@define
class Pace:
    """When to do again what should take at most a small share of the time."""

    last: float = field(factory=time.monotonic, init=False)  # the end of the last time
    cost: float = field(default=0.0, init=False)  # seconds that the last time took

    def is_due(self, min_seconds: float) -> bool:
        """Whether enough time has passed, for each second that the last time took and in all."""
        return time.monotonic() - self.last >= max(min_seconds, SECONDS_PER_SECOND * self.cost)

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count what happens inside as the last time."""
        begun = time.monotonic()
        yield
        self.last = time.monotonic()
        self.cost = self.last - begun


@define
class RunJournal:
    """The journal of one part of a run: a round of a sample, or all of it."""

    journal: Journal
    part: str  # in front of the names of units
    pace: Pace = field(factory=Pace, init=False)  # of entries: packing and adding up take time, too
    _mine: list[str] = field(factory=list, init=False)  # entries whose results this worker takes
    _finished: list[str] = field(factory=list, init=False)  # units that no entry holds yet
    _agrees: bool = field(default=True, init=False)  # the results in hand are those of `_finished`
    _begun: float = field(default=0.0, init=False)  # when a unit was begun
    _slowest: float = field(default=0.0, init=False)  # seconds of a unit

    def look(self, team: Team, observer: Observer, overlap: Callable[[set[str], Sequence[str]], bool]) -> set[str]:
        """Find out which units of this part are done; every worker takes part, and what one raises stops all.

        Damaged entries are removed, so that their units are computed again. Of entries that share units (two groups of
        workers did the same, each cut off from the other) the first counts.

        Args:
            team: of all workers.
            observer: is told of damaged entries.
            overlap: tells whether some units share anything with those accepted before.

        Returns:
            The units that are done; `take` hands over their results.

        Raises:
            JournalError: an entry is of another run or version.
            OutputError: an entry cannot be read.
        """
        entries = team.broadcast_object(self.journal.entries() if team.rank_in_team == 0 else None)
        with collectively(team):
            found = {entry: self._units_of(entry, observer) for entry in team.share(entries)}
        units_of = {entry: units for of_worker in team.gather_objects(found) for entry, units in of_worker.items()}
        done: set[str] = set()
        for entry in entries:
            units = [unit.removeprefix(self.part) for unit in units_of[entry] if unit.startswith(self.part)]
            if units and not overlap(done, units):
                done.update(units)
                if entry in found:
                    self._mine.append(entry)
        return done

    def take(self, merge: Callable[[Sequence[np.ndarray]], None]) -> None:
        """Hand over this worker's part of what `look` has found.

        Raises:
            OutputError: an entry cannot be read.
        """
        for entry in self._mine:
            merge(self.journal.read(entry)[1])
            self.journal.log("restored", entry=entry)

    def begin(self, unit: str) -> None:
        """Note that a unit has begun, if nothing has asked this process to end."""
        raise_if_ended()
        if not self._finished and not self.pace.cost:
            self.pace.last = time.monotonic()  # what was done before the first unit is done again in any case
        self._begun = time.monotonic()
        self.journal.log("start", unit=self.part + unit)

    @contextmanager
    def saved_at_signals(self, write: Callable[[], None]) -> Iterator[None]:
        """Write what is finished when a signal ends the work inside.

        Args:
            write: calls `write` with the results in hand.
        """
        with raised_signals():
            try:
                yield
            except ENDINGS:
                if self._agrees and self._finished:
                    with delayed_signals():
                        write()
                raise

    @contextmanager
    def changing(self, *, is_brief: bool = True) -> Iterator[None]:
        """Change the results in hand, and `finish` and `write` with them: a signal waits until they agree.

        Args:
            is_brief: False: a whole unit is computed inside. A signal waits only if units are brief, and something is
                finished; else what no entry holds is lost.
        """
        is_brief |= bool(self._finished) and self._slowest <= MAX_SECONDS_TO_WAIT
        with delayed_signals() if is_brief else nullcontext():
            self._agrees = False
            yield
            self._agrees = True

    def finish(self, unit: str) -> bool:
        """Note that a unit is done; tell whether it is time for an entry."""
        self.journal.log("finish", unit=self.part + unit)
        self._slowest = max(self._slowest, time.monotonic() - self._begun)
        self._finished.append(self.part + unit)
        return self.pace.is_due(MIN_SECONDS)

    def write(self, arrays: Sequence[np.ndarray], *, at_end: bool = False) -> None:
        """Write the sum of the results of all units that are finished and in no entry.

        Args:
            arrays: integers (n,).
            at_end: the run is nearly done, so that less than MIN_SECONDS_AT_END of work is not worth an entry.

        Raises:
            OutputError: the journal cannot be written.
        """
        if self._finished and not (at_end and time.monotonic() - self.pace.last < MIN_SECONDS_AT_END):
            entry = self.journal.write(self._finished, arrays)
            self.journal.log("entry", entry=entry, units=len(self._finished))
        self._finished = []

    def _units_of(self, entry: str, observer: Observer) -> Sequence[str]:
        """Return the units of an entry, once it is known to be whole; none of a damaged one, which is removed."""
        try:
            return self.journal.read(entry)[0]
        except DamagedEntryError as error:
            observer.warn(f"{error}; removed, its units are computed again")
            self.journal.remove(entry)
            return ()
        except ForeignEntryError as error:
            raise JournalError(
                f"{error}: expected results of this run with the same save_topk and program version (digest "
                f"{self.journal.digest[:8]}); {OVERWRITE} starts anew"
            ) from error
