"""How a run ends: its report is written, or its output directory left as it must be after a fault."""

from __future__ import annotations

from attrs import evolve

from pbgeval.cluster.journal import DamagedEntryError, ForeignEntryError, Journal
from pbgeval.errors import EvalError, IncompleteError, OutputError
from pbgeval.report.output import OutputDirectory, send_to_sinks
from pbgeval.report.report import Report
from pbgeval.worker.context import Outcome, Work
from pbgeval.worker.sweep import range_of_name

# The journal of a run that has ended before its end -> a line that says what is left of it.


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


def keep_or_release(output: OutputDirectory) -> None:
    """Leave the directory, if it is ours, to a run that goes on from what is done, or as it was if nothing is."""
    if output.owner.is_held and output.can_go_on:
        output.suspend()
    else:
        output.release()


def end_of(error: EvalError, output: OutputDirectory, work: Work) -> EvalError:
    """Leave the directory after a fault, and say what is left to do if the run can go on."""
    if not isinstance(error, IncompleteError):
        output.release()
        return error
    left = what_is_left(work)
    keep_or_release(output)
    return IncompleteError(*error.faults, left)


def conclude(outcome: Outcome, output: OutputDirectory, work: Work) -> Report:
    """Write the report, and then what the config's sinks want of it; or raise the faults."""
    if outcome.faults:
        raise (IncompleteError if outcome.incomplete else EvalError)(*outcome.faults)
    if outcome.report is None:
        raise RuntimeError("the evaluation ended without a report")
    output.write(outcome.report)
    report = evolve(outcome.report, path=output.path)
    try:
        if work.inputs.config.sinks:
            earlier = output.files_of_sinks()
            send_to_sinks(report, work.inputs.config.sinks, work.observer.warn)
            output.list_files(output.files_of_sinks() - earlier)
    except OutputError as error:
        work.observer.warn(f"{error}; the result itself is complete")
    finally:
        output.owner.release()
    return report
