"""The journal of a run that has ended before its end -> a line that says what is left of it."""

from __future__ import annotations

from pbgeval.distributed.journal import DamagedEntryError, ForeignEntryError, Journal
from pbgeval.errors import OutputError
from pbgeval.worker.sweep_results import range_of_name
from pbgeval.worker.work import Work


def what_is_left(work: Work) -> str:
    """Return how much of the run its journal holds; of a sample with a target, of the rounds begun."""
    journal = Journal(work.journal_path, work.journal_digest, writer="reader")
    done: set[str] = set()
    for entry in journal.entries():
        try:
            done.update(journal.read(entry).units)
        except (DamagedEntryError, ForeignEntryError, OutputError):  # the next run says so
            continue
    if work.protocol.sweeps:
        rows = sum(range_of_name(unit.partition("/")[2]).num_rows for unit in done)
        what = f"{rows:,} of {work.inputs.numbering.num_entities:,} candidate rows have met all queries"
    elif work.inputs.config.sample_edges is not None or work.inputs.config.target_error is not None:
        what = f"{len(done):,} units are done, of a sample that is drawn round by round"
    else:
        what = f"{len(done):,} of {len(work.protocol.units):,} units are done"
    return (
        f"{work.output}: expected a complete run, but it has ended before: {what}; the same command goes on from there"
    )
