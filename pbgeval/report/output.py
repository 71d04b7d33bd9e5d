"""The output directory: who may write it, and what is in it.

metrics.json is written at the start with `complete: false` and replaced at the end, so an interrupted run is seen
as such, and goes on from its journal. One run at a time works here: it owns the directory.

Nothing is removed or replaced but files of a run of ours. A finished result lists its own in files.txt. An unfinished
one has begun where no file had a name that it writes, so its files are those of such names. With --overwrite an earlier
result is put aside file by file, and put back if the new run fails. Each step of that is the rename of a file, and
metrics.json goes first and comes back last: where it is missing and a result is put aside, whoever comes next puts
that back.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from attrs import define, field, frozen

from pbgeval.cluster.claim import HEARTBEAT, OWNER, Ownership, is_of_others, leftovers_of
from pbgeval.errors import OVERWRITE, OutputError
from pbgeval.notation import Side
from pbgeval.report.report import METRICS, RUN, SCHEMA_VERSION, TABLES, Report, Row
from pbgeval.report.tables import to_csv
from pbgeval.sinks import LoggedRun, line_of, open_sink
from pbgeval.stats.groups import GroupStats
from pbgeval.stats.histograms import EXACT_BINS, bin_edges
from pbgeval.stats.ranks import RankType
from pbgeval.storage.row_files import KEPT_EDGES
from pbgeval.storage.text import json_text, listed, open_input
from pbgeval.storage.writing import (
    files_below,
    move_files,
    output_faults,
    remove_files,
    remove_if_empty,
    remove_scratch,
    write_atomically,
)

# A report -> what sinks get of it: the run, a step, and its headline figures as named values.


def result_line(report: Report, name: str) -> tuple[LoggedRun, int, dict[str, float]]:
    """Return the run under a name, the checkpoint's version as the step (0 if it has none), and the defined values.

    They are those of the headline's rank type and those without one, of head, tail and both; raw ones of a filtered
    run as `raw.<key>`, time-aware ones as `time_filtered.<key>`, standard errors as `<key>.standard_error`.
    """
    document = report.document
    provenance = document["provenance"]
    version = provenance.get("checkpoint_version")
    facts = {
        "digest": provenance["digest"],
        "filter": document["filter"],
        "headline": document["headline"],
        "num_edges": document["num_edges"],
        "checkpoint_version": version,
        **{name: provenance.get("settings", {}).get(name) for name in ("comparator", "seed", "precision")},
    }
    values = {
        f"{prefix}{key}": float(value)
        for prefix, part in (("", "metrics"), ("raw.", "raw_metrics"), ("time_filtered.", "time_filtered_metrics"))
        for key, value in document.get(part, {}).items()
        if value is not None and key.split(".")[1:-1] in ([], [document["headline"]])
    }
    values |= {
        f"{key}.standard_error": float(interval["standard_error"])
        for key, interval in document["intervals"].items()
        if key in values and "standard_error" in interval
    }
    return LoggedRun(name, facts), version if isinstance(version, int) else 0, values


# Histograms of ranks -> the rows of `rank_histogram.csv`, of which there are tens of thousands: made when wanted.

_HISTOGRAM_COLUMNS = ("side", "rank_type", "lower_edge", "upper_edge", "count")


@frozen(eq=False)
class HistogramRows(Sequence[Row]):
    """How often each rank occurs: a row for each bin of each side and rank type."""

    parts: tuple[tuple[str, RankType, np.ndarray, np.ndarray], ...] = ()  # side, rank type, bins in order, counts

    @classmethod
    def from_groups(cls, groups: GroupStats, sides: Iterable[Side]) -> HistogramRows:
        """Take the histograms of all groups."""
        ranks = (
            (side.label, kind, histograms.ranks(kind))
            for side, histograms in ((side, groups.side_histograms(side)) for side in sides)
            for kind in RankType
        )
        return cls(tuple((label, kind, of.keys, of.counts) for label, kind, of in ranks))

    def __len__(self) -> int:
        return sum(len(bins_B) for _, _, bins_B, _ in self.parts)

    def __iter__(self) -> Iterator[Row]:
        return (
            dict(zip(_HISTOGRAM_COLUMNS, (side, kind, *values), strict=True))
            for side, kind, *columns in self._columns()
            for values in zip(*columns, strict=True)
        )

    def to_csv(self) -> str:
        """Return what `to_csv` of tables gives of these rows, sooner: none of them needs marks or quotes."""
        return (
            ",".join(_HISTOGRAM_COLUMNS if len(self) else ())
            + "\n"
            + "".join(
                f"{side},{kind},{low},{high},{count}\n"
                for side, kind, lows, highs, counts in self._columns()
                for texts in [[*map(str, lows)]]  # bins hold one rank each, but for large ranks
                for low, high, count in zip(texts, texts if lows == highs else map(str, highs), counts, strict=True)
            )
        )

    def _columns(self) -> Iterator[tuple[str, str, list[float], list[float], list[int]]]:
        """Yield each side and rank type, and the other columns of its rows."""
        for side, kind, bins_B, counts_B in self.parts:
            halves = 2 if kind is RankType.REALISTIC else 1  # what a bin's rank is divided by
            exact = int(np.searchsorted(bins_B, EXACT_BINS))  # bins of one rank; the others are wide
            ranks = (bins_B[:exact] / halves).tolist()
            wide = [bin_edges(of) for of in bins_B[exact:].tolist()]
            low, high = ([*ranks, *(edges[end] / halves for edges in wide)] for end in (0, 1))
            yield side, kind.value, low, high, counts_B.tolist()

    def __getitem__(self, index: Any) -> Any:  # noqa: ANN401 - a row or rows, as of a list
        return list(self)[index]


UNIT_LOG = "units.jsonl"  # who computed which unit, and when
PAGE = "report.html"  # of `kgeval-dist report`
LINES = "metrics.jsonl"  # the figures in one line, as sinks get them
FILES = "files.txt"  # the paths of all files of a finished result, a line each
PAGE_MARK = '<meta name="generator" content="kgeval-dist report">'  # as page.html has it
SINK_FOLDER = "sinks"  # a folder of what each of `sinks` writes
JOURNAL = "journal"  # a folder of the results of finished units, while there are others
SCRATCH = ".scratch"  # a folder of arrays that workers share while they work
IMPORTED = "imported"  # a folder of buckets that were files of edges by name; made before there is an owner
EARLIER = ".earlier"  # a folder for the files of the run that is being replaced

FOLDERS = ("ranks", "topk", SINK_FOLDER, JOURNAL, SCRATCH, EARLIER)
_CSV_FILES = [f"{name}.csv" for name in TABLES]
RESULT_FILES = [METRICS, RUN, LINES, UNIT_LOG, FILES, *_CSV_FILES]


def _names(pattern: str) -> str:
    """Return the pattern of a file's name, and of the one that it has while it is written."""
    return rf"(?:(?:{pattern})|[.](?:{pattern})[.](?:[0-9a-f]{{12}}|[0-9]+))"


_PER_EDGE = re.compile(
    rf"ranks/[0-9]+/{_names(rf'ranks_[0-9]+_[0-9]+[.]h5|{re.escape(KEPT_EDGES)}')}"
    rf"|topk/[0-9]+/{_names(r'topk_[0-9]+_[0-9]+[.](?:h5|tsv)')}"
)
_RESULT = re.compile(rf"{_names('|'.join(map(re.escape, RESULT_FILES)))}|{_PER_EDGE.pattern}")
_TEMPORARY = re.compile(r"(?:.*/)?[.][^/]+[.](?:[0-9a-f]{12}|[0-9]+)", re.DOTALL)
_WRITER = r"\w+-[0-9]+-[0-9a-f]{6}"
_JOURNAL = re.compile(rf"{JOURNAL}/(?:{_names(_WRITER + '-[0-9]{6,}[.]unit')}|log-{_WRITER}[.]jsonl)")
_OURS = re.compile(rf"{_RESULT.pattern}|{_JOURNAL.pattern}|{_names(re.escape(PAGE))}")
_IN_THE_WAY = re.compile(
    rf"(?:ranks|topk)(?:/[0-9]+)?|{JOURNAL}|{re.escape(SCRATCH)}|{re.escape(EARLIER)}"
)  # no folder


def digest_of(provenance: Mapping[str, Any]) -> str:
    """Return the run's digest: of all that can change a number, and of nothing else."""
    return hashlib.sha256(json.dumps(provenance, sort_keys=True, separators=(",", ":")).encode()).hexdigest()[:32]


def differing(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
    """Return the keys whose values differ, in order."""
    return sorted(key for key in {*a, *b} if a.get(key) != b.get(key))


def _differences(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> str:
    """Say which settings and files differ between two runs."""
    names = differing(*({**of.get("settings", {}), **of.get("data", {})} for of in (theirs, ours)))
    return f"; differs in {listed(names)}" if names else ""


def files_of(report: Report) -> list[str]:
    """Return the names of the files and folders of a report's output directory, as they are shown."""
    if report.path is None:
        return []
    names = (METRICS, RUN, *_CSV_FILES, LINES, "ranks", "topk", SINK_FOLDER)
    return [name for name in names if (report.path / name).exists()]


def listed_files(text: bytes) -> set[str]:
    """Return the paths in files.txt, as far as a run can have written them."""
    names = text.decode("utf-8", "surrogateescape").split("\n")
    of_sinks = {name for name in names if name.startswith(f"{SINK_FOLDER}/") and ".." not in name.split("/")}
    return of_sinks | set(filter(_RESULT.fullmatch, names))


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
    write_atomically(folder / METRICS, json_text(document), check=check)


@define
class OutputDirectory:
    """Where one run's files go."""

    path: Path
    owner: Ownership
    _made: list[Path] = field(factory=list, init=False)  # folders that `claim` makes, innermost first

    def claim(self, provenance: Mapping[str, Any], check: Callable[[], None], *, overwrite: bool) -> Report | None:
        """Make the directory ours, or return the finished result of the same run that it holds.

        Of an unfinished run that is the same the journal stays, unless it is to be overwritten. `check` may refuse.

        Raises:
            OutputError: it holds another run, one that is alive, or files that are not ours; or cannot be written.
        """
        with output_faults(self.path, "write into this directory", "; choose another output"):
            if self.path.exists() and not self.path.is_dir():
                raise OutputError(f"{self.path}: this is a file, not a directory; choose another output")
            if not self._must_put_back:
                finished = self._look(provenance, overwrite=overwrite)
                if finished is not None:
                    return finished
            check()
            self._made = [folder for folder in (self.path, *self.path.parents) if not folder.exists()]
            self.path.mkdir(parents=True, exist_ok=True)
            self.owner.acquire()
            try:
                if self._must_put_back:
                    self._put_back()
                finished = self._look(provenance, overwrite=overwrite)  # another run may have come to its end meanwhile
                if finished is None:
                    self._prepare(provenance, overwrite=overwrite)
                    return None
            except BaseException as error:
                try:
                    if self._must_put_back:
                        self._put_back()
                finally:
                    self._give_up()
                if isinstance(error, OutputError) and "choose another output" not in str(error):
                    raise OutputError(f"{error}; choose another output") from error
                raise
            self.owner.release()
            return finished

    def _look(self, provenance: Mapping[str, Any], *, overwrite: bool) -> Report | None:
        """Return the finished result of the same run; refuse what must not be touched."""
        digest, found = digest_of(provenance), self._found()
        its_digest: str = "" if found is None else found.document["provenance"]["digest"]
        is_same = found is not None and its_digest == digest and not overwrite
        if found is not None and is_same and found.document.get("complete"):
            return found
        if not_ours := self._in_the_way(found):
            raise OutputError(
                f"{self.path}: found {listed(not_ours)}, which a run writes and no result here lists as its own; "
                "move them away, or choose another output"
            )
        if found is not None and not is_same and not overwrite:
            raise OutputError(
                f"{self.path}: expected this run (digest {digest[:8]}), found the output of another (digest "
                f"{its_digest[:8]}{_differences(found.document['provenance'], provenance)}); choose another output, or "
                f"{OVERWRITE} to replace it"
            )
        # A run that has just begun has few files here; it may have made folders for others.
        names = files_below(self.path, FOLDERS) if found is None and self.path.is_dir() and not overwrite else []
        if any(name != IMPORTED and not name.lstrip(".").startswith(("owner.", METRICS)) for name in names):
            raise OutputError(
                f"{self.path}: expected an empty directory or one of an earlier run, found other files; "
                f"choose another output, or {OVERWRITE} to put the result beside them"
            )
        return None

    def _found(self) -> Report | None:
        """Return the result that is here, finished or not; None if there is none.

        Raises:
            OutputError: metrics.json is not one of ours.
        """
        if not os.path.lexists(self.path / METRICS):
            return None
        try:
            found = Report.read(self.path)
        except OutputError as error:
            raise OutputError(f"{error}; move it away, or choose another output") from error
        provenance = found.document.get("provenance")
        if not isinstance(provenance, dict) or not isinstance(provenance.get("digest"), str):
            raise OutputError(
                f"{self.path / METRICS}: expected a result of pbgeval, got other JSON; move it away, or choose another "
                "output"
            )
        return found

    def _in_the_way(self, found: Report | None) -> list[str]:
        """Return the paths of what a run would write over that is not of the result here."""
        is_unfinished = found is not None and not found.document.get("complete")
        per_edge = (path for kind in ("ranks", "topk") for path in (self.path / kind).glob("*/*"))
        inner = (path.relative_to(self.path).as_posix() for path in per_edge)
        files = [OWNER, HEARTBEAT, *RESULT_FILES, *filter(_PER_EDGE.fullmatch, inner)]
        if folders := [name for name in files if self._is_folder(name)]:
            return sorted(folders)
        names = [OWNER] if is_of_others(self.path / OWNER) else []
        for name in set(files_below(self.path, FOLDERS)) - self._files_of(found) - {*names}:
            is_result = _RESULT.fullmatch(name) and not _TEMPORARY.fullmatch(name)
            is_journal = name.startswith(f"{JOURNAL}/") and name.endswith((".unit", ".jsonl"))  # see _files_of
            is_earlier = found is None and name.startswith(f"{EARLIER}/")
            if is_result or is_earlier or _IN_THE_WAY.fullmatch(name) or (is_journal and not is_unfinished):
                names.append(name)
        return sorted(names)

    def _files_of(self, found: Report | None) -> set[str]:
        """Return the paths of the files here that are of a result, finished or not; none of no result."""
        if found is None:
            return set()
        entries = {name for name in files_below(self.path, FOLDERS) if not self._is_folder(name)}
        ours = set(filter(_JOURNAL.fullmatch, entries))
        if PAGE in entries and has_mark(self.path / PAGE, PAGE_MARK):
            ours.add(PAGE)
        if found.document.get("complete"):
            return ours | self._files_listed().intersection(entries)
        return ours | {name for name in entries if _RESULT.fullmatch(name)}

    def _is_folder(self, name: str) -> bool:
        """Tell whether a name is that of a folder, which no run makes where it writes a file."""
        return (self.path / name).is_dir() and not (self.path / name).is_symlink()

    def _remove_leftovers(self) -> None:
        """Remove temporary files of processes that were killed while they wrote a part of the result."""
        entries = files_below(self.path, FOLDERS)
        parts = filter(_TEMPORARY.fullmatch, filter(_OURS.fullmatch, entries))
        remove_files(self.path, [*parts, *leftovers_of(self.path)])

    def _files_listed(self) -> set[str]:
        """Return what files.txt lists, as far as a run can have written it."""
        with suppress(OSError):
            return listed_files((self.path / FILES).read_bytes())
        return set()

    def _prepare(self, provenance: Mapping[str, Any], *, overwrite: bool) -> None:
        """Put earlier results aside, and say that a run is not complete."""
        found = self._found()
        is_resumed = found is not None and not overwrite
        ours = self._files_of(found)
        if found is not None and found.document.get("complete"):
            self._remove_earlier()  # of a run that was ended when its own result was complete
            journal = set(filter(_JOURNAL.fullmatch, ours))
            order = {METRICS: -1, FILES: 1}
            move_files(self.path, self._earlier, sorted(ours - journal, key=lambda name: (order.get(name, 0), name)))
            ours = journal
        if is_resumed:
            ours = {name for name in ours if not (_PER_EDGE.fullmatch(name) or _JOURNAL.fullmatch(name))}
        remove_files(self.path, ours - {METRICS})
        self._remove_leftovers()
        remove_scratch(self.path / SCRATCH)
        if not is_resumed:
            write_incomplete(self.path, provenance, {}, self.owner.check)

    @property
    def can_go_on(self) -> bool:
        """Whether results of units are kept, from which the run can go on."""
        return any((self.path / JOURNAL).glob("*.unit"))

    def suspend(self) -> None:
        """Leave a run that can go on to whoever starts it again; what another run has taken over is left alone."""
        if self.owner.is_held:
            remove_scratch(self.path / SCRATCH)
        self.owner.release()  # where it is not held, its heart stops beating

    def release(self) -> None:
        """Leave nothing of a run that could not be carried out, and put back the result that it was to replace.

        What another run has taken over is left alone.
        """
        if not self.owner.is_held:
            self.owner.release()  # its heart stops beating
            return
        try:
            self._put_back()
        finally:
            self._give_up()

    def _give_up(self) -> None:
        self.owner.release()
        for folder in self._made:
            remove_if_empty(folder)

    @property
    def _earlier(self) -> Path:
        """Where an earlier run's files wait until ours are complete."""
        return self.path / EARLIER

    @property
    def _must_put_back(self) -> bool:
        """Whether a run was ended while a result was put aside or back, or before it had anything of its own."""
        if self._earlier.is_symlink() or not (self._earlier / METRICS).is_file():
            return False
        found = self._found()
        return found is None or not (found.document.get("complete") or self.can_go_on)

    def _files_put_aside(self) -> list[str]:
        names = [] if self._earlier.is_symlink() else files_below(self._earlier, FOLDERS)
        names = [name for name in names if not self._is_folder(f"{EARLIER}/{name}")]
        return [name for name in names if name.startswith(f"{SINK_FOLDER}/") or name == PAGE or _RESULT.fullmatch(name)]

    def _put_back(self) -> None:
        """Remove what there is of an unfinished run, and put back the result that it was to replace, if there is one.

        metrics.json goes last, as it says whose the others are, and comes back last.
        """
        found = self._found()
        if found is not None and found.document.get("complete"):  # all but to tidy up was done
            self._tidy_up()
            return
        if found is not None:
            remove_scratch(self.path / SCRATCH)
            remove_files(self.path, self._files_of(found) - {METRICS})
            remove_if_empty(self.path / JOURNAL)
            remove_files(self.path, [METRICS])
        remove_files(
            self.path, filter(_TEMPORARY.fullmatch, filter(_RESULT.fullmatch, files_below(self.path, FOLDERS)))
        )
        move_files(self._earlier, self.path, sorted(self._files_put_aside(), key=lambda name: (name == METRICS, name)))
        remove_if_empty(self._earlier)

    def _remove_earlier(self) -> None:
        remove_files(self._earlier, self._files_put_aside())
        remove_if_empty(self._earlier)

    def write(self, report: Report) -> None:
        """Write the result; metrics.json last, so that it vouches for the rest. The directory stays ours.

        Raises:
            IncompleteError: another run has taken over: its result counts.
            OutputError: a file cannot be written.
        """
        self.owner.check()
        self._remove_leftovers()
        tables = {f"{name}.csv": rows for name, rows in report.rows.items()}
        for name, rows in tables.items():
            write_atomically(
                self.path / name,
                rows.to_csv() if isinstance(rows, HistogramRows) else to_csv(rows),
                check=self.owner.check,
            )
        write_atomically(self.path / RUN, json_text(report.run), check=self.owner.check)
        write_atomically(
            self.path / LINES, f"{line_of(*result_line(report, self.path.absolute().name))}\n", check=self.owner.check
        )
        logs = [path.read_bytes().splitlines() for path in (self.path / JOURNAL).glob("log-*.jsonl")]
        whole = (line for lines in logs for line in lines if line.endswith(b"}"))  # a writer may have ended in a line
        units = sorted(whole, key=lambda line: json.loads(line)["time"])
        write_atomically(self.path / UNIT_LOG, (line + b"\n" for line in units), check=self.owner.check)
        per_edge = [name for name in files_below(self.path, FOLDERS) if _PER_EDGE.fullmatch(name)]
        self.list_files({METRICS, RUN, LINES, UNIT_LOG, FILES, *tables, *per_edge})
        write_atomically(self.path / METRICS, report.to_json(), check=self.owner.check)
        self._tidy_up()

    def _tidy_up(self) -> None:
        """Remove what a run needs only until its result is complete."""
        remove_scratch(self.path / SCRATCH)  # first: who has lost it writes no entry that would bring the journal back
        remove_files(self.path, filter(_JOURNAL.fullmatch, files_below(self.path, FOLDERS)))
        remove_if_empty(self.path / JOURNAL)
        self._remove_earlier()

    def files_of_sinks(self) -> set[str]:
        """Return the paths of the files of sinks, whoever has made them."""
        return {name for name in files_below(self.path, [SINK_FOLDER]) if name.startswith(f"{SINK_FOLDER}/")}

    def list_files(self, names: Collection[str]) -> None:
        """Add paths to those that the result lists as its own.

        Raises:
            IncompleteError: another run has taken over.
            OutputError: the list cannot be written.
        """
        text = "".join(f"{line}\n" for line in sorted(self._files_listed() | set(names)))
        write_atomically(self.path / FILES, text.encode("utf-8", "surrogateescape"), check=self.owner.check)


def has_mark(path: Path, mark: str) -> bool:
    """Tell whether a page or a picture begins with a mark of ours."""
    with suppress(OSError), open_input(path) as file:
        return mark.encode() in file.read(1000)
    return False


def refuse_others(path: Path, mark: str, what: str) -> None:
    """Refuse to replace a file that is not of ours.

    Raises:
        OutputError: there is a file without our mark.
    """
    if os.path.lexists(path) and not has_mark(path, mark):
        raise OutputError(f"{path}: this file is not {what}; give another --output")


# A result that is on the disk -> the sinks that the config names; one that fails costs a warning, not the result.


def send_to_sinks(report: Report, names: Sequence[str], warn: Callable[[str], None]) -> None:
    """Write the figures of a finished run into `sinks/<name>` of its output directory.

    Args:
        report: with its output directory.
        names: of the sinks, whose libraries are there.
        warn: is told of each sink that could not be written.
    """
    assert report.path is not None, "a result that is nowhere has no sinks"
    run, step, values = result_line(report, report.path.absolute().name)
    for name in dict.fromkeys(names):
        try:
            with open_sink(name, report.path / SINK_FOLDER / name, run) as log:
                log(step, values)
        except OutputError as error:
            warn(f"{error}; the result itself is complete, only the sink {name} is not")
