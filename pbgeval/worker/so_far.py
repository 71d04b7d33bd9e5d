"""The journal of a run that goes on -> metrics.json with `complete: false` and the metrics so far (worker 0).

Where all entities compete, no query has met all candidates before the end: fewer candidates flatter, so there are no
metrics before it, only how far the run is.
"""

from __future__ import annotations

import time
from typing import Any

from attrs import define, field

from pbgeval.distributed.journal import DamagedEntryError
from pbgeval.errors import OutputError
from pbgeval.metrics.summary import AucSample, SortedPools, summarise
from pbgeval.report.output import write_incomplete
from pbgeval.worker.record import Record
from pbgeval.worker.run_journal import share_names
from pbgeval.worker.work import Bench

LEAST_SECONDS = 10.0  # between two reports
SECONDS_PER_SECOND = 100.0  # of work, for each second that the last report took


@define(eq=False)
class SoFar:
    """What all workers have written to the journal, as worker 0 has read it."""

    bench: Bench
    _record: Record = field(init=False)
    _entries: set[str] = field(factory=set, init=False)
    _done: list[str] = field(factory=list, init=False)
    _written: float = field(factory=time.monotonic, init=False)
    _cost: float = field(default=0.0, init=False)

    def __attrs_post_init__(self) -> None:
        self._record = Record.empty(self.bench.work.protocol)

    def write_if_due(self) -> None:
        """Write metrics.json if the last time is long enough ago for what it takes."""
        if self.bench.team.rank_in_team == 0:
            wait = max(LEAST_SECONDS, SECONDS_PER_SECOND * self._cost)
            if time.monotonic() - self._written >= wait:
                self.write()

    def write(self) -> None:
        """Write metrics.json.

        Raises:
            IncompleteError: another run has taken over.
            OutputError: it cannot be written.
        """
        begun = time.monotonic()
        self._read()
        work = self.bench.work
        # A run that has taken over meanwhile, from an owner that was cut off, may have finished.
        write_incomplete(work.output, work.provenance, self._facts(), self.bench.journal.journal.check_lease)
        self._written = time.monotonic()
        self._cost = self._written - begun

    def _read(self) -> None:
        """Add the entries that have come since the last time."""
        journal, part = self.bench.journal.journal, self.bench.journal.part
        for name in journal.entries():
            if name in self._entries:
                continue
            self._entries.add(name)
            try:
                entry = journal.read(name)
            except (DamagedEntryError, OutputError):  # whoever resumes the run deals with it
                continue
            if not share_names(self._done, entry.units) and all(unit.startswith(part) for unit in entry.units):
                self._done += entry.units
                self._record.add_packed(entry.arrays)

    def _facts(self) -> dict[str, Any]:
        work, record = self.bench.work, self._record
        groups = record.raw if record.filtered is None else record.filtered
        auc = work.protocol.auc
        summary = summarise(
            groups,
            SortedPools.of_groups(groups, AucSample(all_true=auc.true_rate >= 1, all_competing=auc.exact)),
            work.protocol.sides,
            work.inputs.config.selection,
            with_loss=work.inputs.config.compute_loss,
        )
        return {
            "filter": "raw" if record.filtered is None else "filtered",
            "headline": work.inputs.config.headline,
            "num_edges": summary.num_edges,
            "num_queries": summary.num_queries,
            "metrics": summary.metrics,
            "intervals": summary.intervals,
            "run": {"units_done": len(self._done), "units": len(work.protocol.units)},
        }
