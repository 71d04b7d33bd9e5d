"""The output directory: who may write it, and what is in it.

metrics.json is written at the start with `complete: false` and replaced at the end, so an interrupted run is seen
as such, and goes on from its journal. One run at a time works here: it owns the directory.

A run begins in an empty directory. With `overwrite` it renames the directory of an earlier result to `NAME.earlier`,
with all that is in it, and begins in a new one. If it fails, the earlier directory gets its name back. If it
succeeds, the files of the earlier result are removed; others stay in `NAME.earlier`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

from attrs import define, field

from pbgeval.cluster.claim import HEARTBEAT, OWNER, Ownership, leftovers_of
from pbgeval.errors import OVERWRITE, OutputError
from pbgeval.results.csv_tables import to_csv
from pbgeval.results.rank_rows import HistogramRows
from pbgeval.results.result import METRICS, RUN, SCHEMA_VERSION, TABLES, Result, errors_of
from pbgeval.sinks import TENSORBOARD, LoggedRun, line_of, open_tensorboard
from pbgeval.storage.json_files import differing, digest_of
from pbgeval.storage.text import json_text, listed, open_input
from pbgeval.storage.writing import (
    files_below,
    is_temporary,
    output_faults,
    remove_empty_folders,
    remove_files,
    remove_if_empty,
    remove_scratch,
    rename_folder,
    write_atomically,
)

# A result -> what sinks get of it: the run, a step, and its headline figures as named values.


def result_line(result: Result, name: str) -> tuple[LoggedRun, int, dict[str, float]]:
    """Return the run under a name, the checkpoint's version as the step (0 if it has none), and the defined values.

    They are those of the headline's rank type and those without one, of head, tail and both; raw ones of a filtered
    run as `raw.<key>`, time-aware ones as `time_filtered.<key>`, standard errors as `<key>.standard_error`.
    """
    document = result.document
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
    values |= {f"{key}.standard_error": float(error) for key, error in errors_of(document).items() if key in values}
    return LoggedRun(name, facts), version if isinstance(version, int) else 0, values


UNIT_LOG = "units.jsonl"  # who computed which unit, and when
PAGE = "report.html"  # of `kgeval-dist report`
QUERIES_PAGE = "queries.html"  # of `kgeval-dist report --queries`
PAGES = (PAGE, QUERIES_PAGE)
SUMMARY = "summary.json"  # the headline in a sentence and ten numbers
LINES = "metrics.jsonl"  # the headline figures in one line
FILES = "files.txt"  # the paths of all files of a finished result, a line each
PAGE_MARK = '<meta name="generator" content="kgeval-dist report">'  # as base.html has it
SINK_FOLDER = "sinks"  # a folder of TensorBoard's files
JOURNAL = "journal"  # a folder of the results of finished units, while there are others
SCRATCH = ".scratch"  # a folder of arrays that workers share while they work
IMPORTED = "imported"  # a folder of buckets that were files of edges by name; made before there is an owner
DEFAULT_OUTPUTS = Path("results")  # in the working directory: where outputs are whose name is not given
EARLIER = ".earlier"  # after the name of a directory that a run replaces

KEPT_EDGES = "edges.npy"  # in the folder of an edge path's ranks: edges that were in memory

FOLDERS = ("ranks", "topk", SINK_FOLDER, JOURNAL, SCRATCH)
_CSV_FILES = [f"{name}.csv" for name in TABLES]
RESULT_FILES = [METRICS, RUN, SUMMARY, LINES, UNIT_LOG, FILES, *_CSV_FILES]
_ENDINGS = {"ranks": (".h5", KEPT_EDGES), "topk": (".h5", ".tsv"), JOURNAL: (".unit", ".jsonl")}  # files of a run


def kept_edges_path(folder: Path, path_index: int) -> Path:
    """Return where an output directory keeps edges that were in memory."""
    return folder / "ranks" / str(path_index) / KEPT_EDGES


def _is_of_result(name: str) -> bool:
    """Tell whether a result has a file of this name, if it has not been listed yet; those of sinks aside."""
    return name in RESULT_FILES or _is_inside(name, "ranks") or _is_inside(name, "topk")


def _is_inside(name: str, folder: str) -> bool:
    return name.startswith(f"{folder}/") and name.endswith(_ENDINGS[folder])


def digest_in(folder: Path) -> str | None:
    """Return the digest of the run whose output directory this is; None: of none, or it cannot be read."""
    try:
        return str(Result.read(folder).document["provenance"]["digest"])
    except OutputError:
        return None


def _differences(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> str:
    """Say which settings and files differ between two runs."""
    told = [{**of.get("settings", {}), **of.get("data", {})} for of in (theirs, ours)]
    names = differing(*told)
    if "relations" in names:  # of what a relation is, candidates are a setting of their own, for all or for some
        apart = [[{**of, "candidates": None} for of in provenance.get("relations", ())] for provenance in told]
        names = sorted({"candidates" if apart[0] == apart[1] and name == "relations" else name for name in names})
    model = ours.get("data", {}).get("model")
    is_function = isinstance(model, dict) and "scorer" in model
    reason = ": a function or module may have changed, so its results are not reused" if is_function else ""
    return f"; differs in {listed(names)}{reason if names == ['model'] else ''}" if names else ""


def files_of(result: Result) -> list[str]:
    """Return the names of the files and folders of a result's output directory, as they are shown."""
    if result.path is None:
        return []
    names = (SUMMARY, METRICS, RUN, *_CSV_FILES, LINES, "ranks", "topk", SINK_FOLDER, IMPORTED)
    return [name for name in names if (result.path / name).exists()]


def listed_files(text: bytes) -> set[str]:
    """Return the paths in files.txt, as far as a run can have written them."""
    names = text.decode("utf-8", "surrogateescape").split("\n")
    return {
        name
        for name in names
        if ".." not in name.split("/") and (name.startswith(f"{SINK_FOLDER}/") or _is_of_result(name))
    }


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


def result_in(folder: Path) -> Result | None:
    """Return the result that an output directory holds, finished or not; None if it is free for one.

    Raises:
        OutputError: it holds files that are not ours.
    """
    if folder.exists() and not folder.is_dir():
        raise OutputError(f"{folder}: this is a file, not a directory; choose another output")
    if folders := [name for name in (OWNER, HEARTBEAT, *RESULT_FILES) if (folder / name).is_dir()]:
        raise OutputError(
            f"{folder}: expected files, found folders: {listed(folders)}; move them away, or choose another output"
        )
    found = _read_result(folder)
    if found is None:
        # A run that has just begun has few files here; it may have made folders for others.
        others = [
            name
            for name in (files_below(folder, FOLDERS) if folder.is_dir() else [])
            if name != IMPORTED and not name.lstrip(".").startswith(("owner.", METRICS))
        ]
        if others:
            raise OutputError(
                f"{folder}: expected an empty directory or one of an earlier run, found {listed(sorted(others))}"
                "; choose another output"
            )
    return found


def _read_result(folder: Path) -> Result | None:
    """Return the result of a folder, finished or not; None if there is none.

    Raises:
        OutputError: metrics.json is not one of ours.
    """
    if not os.path.lexists(folder / METRICS):
        return None
    try:
        return Result.read(folder)
    except OutputError as error:
        raise OutputError(f"{error}; move it away, or choose another output") from error


@define
class OutputDirectory:
    """Where one run's files go."""

    path: Path
    owner: Ownership
    _made: list[Path] = field(factory=list, init=False)  # folders that `claim` makes, innermost first
    _earlier: Path | None = field(default=None, init=False)  # where the directory is that this run replaces

    def claim(self, provenance: Mapping[str, Any], check: Callable[[], None], *, overwrite: bool) -> Result | None:
        """Make the directory ours, or return the finished result of the same run that it holds.

        Of an unfinished run that is the same the journal stays, unless it is to be overwritten. `check` may refuse.

        Raises:
            OutputError: it holds another run, one that is alive, or files that are not ours; or cannot be written.
        """
        with output_faults(self.path, "write into this directory", "; choose another output"):
            finished = self._look(provenance, overwrite=overwrite)
            if finished is not None:
                return finished
            check()
            self._made = [folder for folder in (self.path, *self.path.parents) if not folder.exists()]
            self.path.mkdir(parents=True, exist_ok=True)
            self.owner.acquire()
            try:
                finished = self._look(provenance, overwrite=overwrite)  # another run may have come to its end meanwhile
                if finished is None:
                    self._prepare(provenance, overwrite=overwrite)
                    return None
            except BaseException as error:
                (self._give_up if self._earlier is None else self.release)()
                if isinstance(error, OutputError) and "choose another output" not in str(error):
                    raise OutputError(f"{error}; choose another output") from error
                raise
            self.owner.release()
            return finished

    def _look(self, provenance: Mapping[str, Any], *, overwrite: bool) -> Result | None:
        """Return the finished result of the same run; refuse what must not be touched."""
        found, digest = result_in(self.path), digest_of(provenance)
        if found is None:
            return None
        its_digest: str = found.document["provenance"]["digest"]
        if its_digest != digest and not overwrite:
            raise OutputError(
                f"{self.path}: expected this run (digest {digest[:8]}), found the output of another (digest "
                f"{its_digest[:8]}{_differences(found.document['provenance'], provenance)}); choose another output, or "
                f"{OVERWRITE} to replace it"
            )
        if overwrite and Path.cwd().is_relative_to(self.path.resolve()):
            raise OutputError(
                f"{self.path}: the working directory is in it, and {OVERWRITE} renames it; start from another "
                "directory, or choose another output"
            )
        return found if found.document.get("complete") and not overwrite else None

    def _prepare(self, provenance: Mapping[str, Any], *, overwrite: bool) -> None:
        """Put an earlier result aside, or tidy up after the run that goes on; say that a run is not complete."""
        is_there = _read_result(self.path) is not None
        if is_there and overwrite:
            self._put_aside()
        remove_files(self.path, [*self._temporary(self.path), *leftovers_of(self.path)])
        remove_scratch(self.path / SCRATCH)
        if overwrite or not is_there:
            write_incomplete(self.path, provenance, {}, self.owner.check)

    def _put_aside(self) -> None:
        """Rename the directory, and own a new one in its place; buckets of edges, which are in use, come over."""
        place = self.path.resolve()  # of a link, the folder
        names = (place.with_name(f"{place.name}{EARLIER}{number or ''}") for number in count())
        earlier = next(path for path in names if not os.path.lexists(path))
        with output_faults(place, f"rename this folder to {earlier.name}", "; move it away, or choose another output"):
            rename_folder(place, earlier)
        self._earlier = earlier
        self.owner.release()
        remove_files(earlier, [OWNER, HEARTBEAT])
        place.mkdir()
        self.owner.acquire()
        _move_folder(earlier / IMPORTED, place / IMPORTED)

    def _put_back(self) -> None:
        """Give the directory that was put aside its name again."""
        earlier, self._earlier = self._earlier, None
        if earlier is None:
            return
        place = self.path.resolve()
        try:
            _move_folder(place / IMPORTED, earlier / IMPORTED)
            rename_folder(earlier, place)
        except OSError:  # others have put something there
            self.owner.say(f"{self.path}: cannot put the earlier result back: it is in {earlier}")

    def _files_of_run(self, folder: Path) -> list[str]:
        """Return the paths of the files in a folder that are of the run there: those that it lists, once it is done."""
        entries, names = files_below(folder, FOLDERS), _files_listed(folder)
        is_ours = names.__contains__ if names else _is_of_result
        ours = [name for name in entries if is_ours(name) or _is_inside(name, JOURNAL)]
        return [*ours, *_pages_in(folder), *self._temporary(folder)]

    @staticmethod
    def _temporary(folder: Path) -> list[str]:
        """Return the paths of what processes have left that were killed while they wrote; of owners: `leftovers_of`."""
        names = files_below(folder, ("ranks", "topk", JOURNAL))
        return [name for name in names if is_temporary(Path(name)) and not name.startswith(".owner.")]

    @property
    def can_go_on(self) -> bool:
        """Whether results of units are kept, from which the run can go on."""
        return any((self.path / JOURNAL).glob("*.unit"))

    def suspend(self) -> None:
        """Release an unfinished run, so that it can be resumed; leave alone what another run has taken over."""
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
        found = _read_result(self.path)
        if found is not None and found.document.get("complete"):  # all but to tidy up was done
            self._tidy_up()
            self.owner.release()
            return
        try:
            remove_scratch(self.path / SCRATCH)
            if found is not None:
                names = self._files_of_run(self.path)
                remove_files(self.path, sorted(names, key=lambda name: name == METRICS))  # it says whose the others are
                remove_empty_folders(self.path)
        finally:
            self._give_up()

    def _give_up(self) -> None:
        self.owner.release()
        for folder in self._made:
            remove_if_empty(folder)
        self._put_back()

    def write(self, result: Result, summary: Mapping[str, Any]) -> None:
        """Write the result; metrics.json last, so that it vouches for the rest. The directory stays ours.

        Args:
            result: what was found.
            summary: the content of summary.json, in the order in which it is read.

        Raises:
            IncompleteError: another run has taken over: its result counts.
            OutputError: a file cannot be written.
        """
        self.owner.check()
        remove_files(self.path, self._temporary(self.path))
        written = {METRICS, FILES}
        for name, content in self._contents(result, summary):
            write_atomically(self.path / name, content, check=self.owner.check)
            written.add(name)
        per_edge = [name for name in files_below(self.path, FOLDERS) if "/" in name and _is_of_result(name)]
        self.list_files({*written, *per_edge})
        remove_files(self.path, _pages_in(self.path))  # they show the run as it was before its end
        write_atomically(self.path / METRICS, result.to_json(), check=self.owner.check)
        self._tidy_up()

    def _contents(self, result: Result, summary: Mapping[str, Any]) -> Iterator[tuple[str, str | bytes]]:
        """Yield the files of a result beside metrics.json, by name."""
        for name, rows in result.rows.items():
            yield f"{name}.csv", rows.to_csv() if isinstance(rows, HistogramRows) else to_csv(rows)
        yield RUN, json_text(result.run)
        yield SUMMARY, f"{json.dumps(summary, indent=2, allow_nan=False, ensure_ascii=False)}\n"
        yield LINES, f"{line_of(*result_line(result, self.path.absolute().name))}\n"
        logs = [path.read_bytes().splitlines() for path in (self.path / JOURNAL).glob("log-*.jsonl")]
        whole = (line for lines in logs for line in lines if line.endswith(b"}"))  # a writer may have ended in a line
        units = sorted(whole, key=lambda line: json.loads(line)["time"])
        yield UNIT_LOG, b"".join(line + b"\n" for line in units)

    def _tidy_up(self) -> None:
        """Remove what a run needs only until its result is complete, and the result that it replaces."""
        remove_scratch(self.path / SCRATCH)  # first: who has lost it writes no entry that would bring the journal back
        remove_files(self.path, [name for name in files_below(self.path, [JOURNAL]) if _is_inside(name, JOURNAL)])
        remove_if_empty(self.path / JOURNAL)
        earlier, self._earlier = self._earlier, None
        if earlier is not None:
            remove_files(earlier, self._files_of_run(earlier))
            remove_scratch(earlier / SCRATCH)
            remove_empty_folders(earlier)
            if earlier.exists():
                self.owner.say(f"{self.path}: files beside the earlier result are kept in {earlier}")

    def files_of_sinks(self) -> set[str]:
        """Return the paths of the files of sinks, from this run or an earlier one."""
        return {name for name in files_below(self.path, [SINK_FOLDER]) if name.startswith(f"{SINK_FOLDER}/")}

    def list_files(self, names: Collection[str]) -> None:
        """Add paths to those that the result lists as its own.

        Raises:
            IncompleteError: another run has taken over.
            OutputError: the list cannot be written.
        """
        text = "".join(f"{line}\n" for line in sorted(_files_listed(self.path) | set(names)))
        write_atomically(self.path / FILES, text.encode("utf-8", "surrogateescape"), check=self.owner.check)


def _files_listed(folder: Path) -> set[str]:
    """Return what files.txt in a folder lists, as far as a run can have written it; nothing of an unfinished run."""
    with suppress(OSError):
        return listed_files((folder / FILES).read_bytes())
    return set()


def _move_folder(source: Path, target: Path) -> None:
    if source.is_dir() and not source.is_symlink():
        rename_folder(source, target)


def has_mark(path: Path, mark: str) -> bool:
    """Tell whether a page or a picture begins with a mark of ours."""
    with suppress(OSError), open_input(path) as file:
        return mark.encode() in file.read(1000)
    return False


def _pages_in(folder: Path) -> list[str]:
    """Return the names of our pages in an output directory."""
    return [name for name in PAGES if has_mark(folder / name, PAGE_MARK)]


def refuse_others(path: Path, mark: str, what: str) -> None:
    """Refuse to replace a file that is not of ours.

    Raises:
        OutputError: there is a file without our mark.
    """
    if os.path.lexists(path) and not has_mark(path, mark):
        raise OutputError(f"{path}: this file is not {what}; choose another file (--output)")


# A result that is on the disk -> TensorBoard; a fault costs a warning, not the result.


def send_to_tensorboard(result: Result, warn: Callable[[str], None]) -> None:
    """Write the figures of a finished run into `sinks/tensorboard` of its output directory.

    Args:
        result: with its output directory.
        warn: is told if they could not be written.
    """
    assert result.path is not None, "a result that is nowhere has no sinks"
    run, step, values = result_line(result, result.path.absolute().name)
    try:
        with open_tensorboard(result.path / SINK_FOLDER / TENSORBOARD, run) as log:
            log(step, values)
    except OutputError as error:
        warn(f"{error}; the result itself is complete, only the sink {TENSORBOARD} is not")
