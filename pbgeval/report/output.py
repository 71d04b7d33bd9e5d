"""The output directory: who may write it, and what is in it.

metrics.json is written at the start with `complete: false` and replaced at the end, so an interrupted run is seen
as such, and goes on from its journal. One run at a time works here: it owns the directory. With --overwrite an earlier
result is put back if the new run fails by the user's fault: nothing is lost. Only files that we name are ever replaced
or removed, and only folders that we made.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any, Protocol

from attrs import define, field

from pbgeval.errors import OutputError
from pbgeval.files import (
    move_files,
    move_folders,
    remove_files,
    remove_folders,
    remove_scratch,
    write_atomically,
)
from pbgeval.metrics.breakdowns import BREAKDOWN_FILES
from pbgeval.report.histogram_rows import HistogramRows
from pbgeval.report.report import SCHEMA_VERSION, Report
from pbgeval.report.result_line import result_line
from pbgeval.sinks.json_lines import line_of

METRICS, BUCKETS, HISTOGRAM = "metrics.json", "buckets.csv", "rank_histogram.csv"
UNIT_LOG = "units.jsonl"  # who computed which unit, and when
PAGE = "report.html"  # of `kgeval-dist report`
LINES = "metrics.jsonl"  # the figures in one line, as sinks get them
OUR_FILES = [METRICS, BUCKETS, HISTOGRAM, LINES, UNIT_LOG, PAGE, *BREAKDOWN_FILES.values()]
SINK_FOLDER = "sinks"  # a folder of what each of `sinks` writes
OUR_FOLDERS = ["ranks", "topk", SINK_FOLDER]  # the first two hold files per edge
JOURNAL = "journal"  # a folder of the results of finished units, while there are others
SCRATCH = ".scratch"  # a folder of arrays that workers share while they work
IMPORTED = "imported"  # a folder of buckets that were files of edges by name; made before there is an owner
EARLIER = ".earlier"  # a folder for the files of the run that is being replaced


def digest_of(provenance: Mapping[str, Any]) -> str:
    """Return the run's digest: of all that can change a number, and of nothing else."""
    canonical = json.dumps(provenance, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:32]


def files_of(report: Report) -> list[str]:
    """Return the names of the files and folders of a report's output directory, as they are shown."""
    if report.path is None:
        return []
    wanted = [METRICS, BUCKETS, HISTOGRAM, LINES, *BREAKDOWN_FILES.values(), *OUR_FOLDERS]
    return [name for name in wanted if (report.path / name).exists()]


def write_incomplete(
    folder: Path, provenance: Mapping[str, Any], facts: Mapping[str, Any], check: Callable[[], None] | None = None
) -> None:
    """Write metrics.json of a run that is not complete.

    Args:
        folder: the output directory.
        provenance: of the run, without its digest.
        facts: what is known so far.
        check: raises if the directory is no longer ours, as for `write_atomically`.

    Raises:
        OutputError: it cannot be written.
    """
    document = {
        **facts,
        "schema_version": SCHEMA_VERSION,
        "complete": False,
        "provenance": {**provenance, "digest": digest_of(provenance)},
    }
    text = json.dumps(document, sort_keys=True, indent=2, allow_nan=False)
    write_atomically(folder / METRICS, f"{text}\n", check=check)


class Owner(Protocol):
    """A claim to the directory, against all other processes."""

    def acquire(self) -> None: ...
    def release(self) -> None: ...

    @property
    def is_held(self) -> bool:
        """Whether the claim still holds: nobody has taken over."""
        ...

    def check(self) -> None:
        """Raise IncompleteError if it does not."""
        ...


@define
class OutputDirectory:
    """Where one run's files go."""

    path: Path
    owner: Owner = field(factory=lambda: _Nobody())
    _made: list[Path] = field(factory=list, init=False)  # folders that `claim` makes, innermost first

    def claim(self, provenance: Mapping[str, Any], *, overwrite: bool) -> Report | None:
        """Make the directory ours, or return the finished result of the same run that it holds.

        Of an unfinished run that is the same the journal stays, unless it is to be overwritten.

        Raises:
            OutputError: it holds another run, one that is alive, or files that are not ours; or cannot be written.
        """
        try:
            return self._claim(provenance, overwrite=overwrite)
        except OSError as error:
            raise OutputError(
                f"{self.path}: expected a directory that can be written, got: {error.strerror or error}; "
                "choose another --output"
            ) from error

    def _claim(self, provenance: Mapping[str, Any], *, overwrite: bool) -> Report | None:
        digest = digest_of(provenance)
        if self.path.exists() and not self.path.is_dir():
            raise OutputError(
                f"{self.path}: expected a directory for the output, found a file; choose another --output"
            )
        finished = self._look(digest, overwrite=overwrite)
        if finished is not None:
            return finished
        self._made = [folder for folder in (self.path, *self.path.parents) if not folder.exists()]
        self.path.mkdir(parents=True, exist_ok=True)
        self.owner.acquire()
        try:
            finished = self._look(digest, overwrite=overwrite)  # another run may have come to its end meanwhile
            if finished is not None:
                self.owner.release()
                return finished
            self._prepare(provenance, overwrite=overwrite)
        except OutputError as error:
            self.release()
            raise OutputError(f"{error}; choose another --output") from error
        except BaseException:  # something of ours is not as we make it (left alone), or an interruption
            self.owner.release()
            raise
        return None

    def _look(self, digest: str, *, overwrite: bool) -> Report | None:
        """Return the finished result of the same run; refuse what must not be touched."""
        if (self.path / METRICS).exists():
            found = self._found(overwrite)
            if not overwrite and found is not None:
                self._refuse_unless_same(found, digest)
                return found if found.document.get("complete") else None
        elif self.path.is_dir() and not overwrite and not self._holds_nothing_else():
            raise OutputError(
                f"{self.path}: expected an empty directory or one of an earlier run, found other files; "
                "choose another --output, or --overwrite to put the result beside them"
            )
        return None

    def _holds_nothing_else(self) -> bool:
        """Whether all that is here is of a run that has just begun."""
        names = [path.name for path in self.path.iterdir()]
        return all(name == IMPORTED or name.lstrip(".").startswith(("owner.", METRICS)) for name in names)

    def _prepare(self, provenance: Mapping[str, Any], *, overwrite: bool) -> None:
        """Put earlier results aside, and say that a run is not complete."""
        found = self._found(overwrite=True) if (self.path / METRICS).exists() else None
        if found is not None and found.document.get("complete"):
            move_files(self.path, self._earlier, OUR_FILES)
            move_folders(self.path, self._earlier, OUR_FOLDERS)
        is_resumed = found is not None and not overwrite
        remove_files(self.path, [name for name in OUR_FILES if not (is_resumed and name == METRICS)])
        remove_scratch(self.path / SCRATCH)
        if not is_resumed:
            remove_folders(self.path, [JOURNAL, *OUR_FOLDERS])
            write_incomplete(self.path, provenance, {}, self.owner.check)

    def _found(self, overwrite: bool) -> Report | None:
        try:
            return Report.read(self.path)
        except OutputError as error:
            if overwrite:
                return None
            raise OutputError(f"{error}; choose another --output, or --overwrite to replace it") from error

    def _refuse_unless_same(self, found: Report, digest: str) -> None:
        its_provenance = found.document.get("provenance")
        its_digest = str(its_provenance.get("digest", "unknown") if isinstance(its_provenance, dict) else "unknown")
        if its_digest != digest:
            raise OutputError(
                f"{self.path}: expected this run (digest {digest[:8]}), found the output of another "
                f"(digest {its_digest[:8]}); choose another --output, or --overwrite to replace it"
            )

    @property
    def can_go_on(self) -> bool:
        """Whether results of units are kept, from which the run can go on."""
        return any((self.path / JOURNAL).glob("*.unit"))

    def suspend(self) -> None:
        """Leave a run that can go on to whoever starts it again; what another run has taken over is left alone."""
        if not self.owner.is_held:
            self.owner.release()  # its heart stops beating
            return
        remove_scratch(self.path / SCRATCH)
        self.owner.release()

    def release(self) -> None:
        """Leave nothing of a run that could not be carried out, and put back the result that it was to replace.

        What another run has taken over is left alone.
        """
        if not self.owner.is_held:
            self.owner.release()  # its heart stops beating
            return
        remove_files(self.path, OUR_FILES)
        remove_scratch(self.path / SCRATCH)
        remove_folders(self.path, [JOURNAL, *OUR_FOLDERS])
        self.owner.release()
        move_folders(self._earlier, self.path, OUR_FOLDERS)
        move_files(self._earlier, self.path, OUR_FILES)
        for folder in self._made:
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()

    @property
    def _earlier(self) -> Path:
        """Where an earlier run's files wait until ours are complete."""
        return self.path / EARLIER

    def write(self, report: Report) -> None:
        """Write the result; metrics.json last, so that it vouches for the rest.

        Raises:
            IncompleteError: another run has taken over: its result counts.
            OutputError: a file cannot be written.
        """
        tables = {BUCKETS: report.bucket_rows, HISTOGRAM: report.histogram_rows, **report.tables}
        for name, rows in tables.items():
            write_atomically(self.path / name, csv_table(rows), check=self.owner.check)
        run, step, values = result_line(report, self.path.absolute().name)
        write_atomically(self.path / LINES, line_of(run, step, values) + "\n", check=self.owner.check)
        self._write_unit_log()
        write_atomically(self.path / METRICS, report.to_json(), check=self.owner.check)
        remove_scratch(self.path / SCRATCH)  # first: who has lost it writes no entry that would bring the journal back
        remove_folders(self.path, [JOURNAL])
        if self._earlier.is_dir():
            remove_files(self._earlier, OUR_FILES)
            remove_folders(self._earlier, OUR_FOLDERS)
            if not any(self._earlier.iterdir()):
                self._earlier.rmdir()
        self.owner.release()

    def _write_unit_log(self) -> None:
        """Join the logs of all writers, in the order of time."""
        lines = [line for path in (self.path / JOURNAL).glob("log-*.jsonl") for line in path.read_bytes().splitlines()]
        whole = [line for line in lines if line.endswith(b"}")]  # a writer may have been ended within a line
        whole.sort(key=lambda line: json.loads(line)["time"])
        write_atomically(self.path / UNIT_LOG, *(line + b"\n" for line in whole), check=self.owner.check)


class _Nobody:
    """The owner of a directory for which nobody competes."""

    is_held = True

    def acquire(self) -> None: ...
    def release(self) -> None: ...
    def check(self) -> None: ...


def csv_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows as CSV; an undefined value is an empty cell, floats are written shortest round-trip."""
    if isinstance(rows, HistogramRows):  # tens of thousands, of numbers that many share
        return rows.to_csv()
    text = io.StringIO()
    names = list(rows[0]) if rows else []
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    if len(names) > 1 and all(row.keys() == rows[0].keys() for row in rows):
        writer.writerows(map(itemgetter(*names), rows))
    else:
        writer.writerows([row.get(name) for name in names] for row in rows)
    return text.getvalue()
