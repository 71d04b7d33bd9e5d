"""The result of an evaluation, in memory and in its files: figures, tables, and what differs from run to run."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeAlias

from attrs import field, frozen

from pbgeval.errors import OutputError
from pbgeval.metrics.breakdown_names import BREAKDOWN_FILES
from pbgeval.results.csv_tables import read_csv
from pbgeval.results.shape import RUN as RUN_SHAPE
from pbgeval.results.shape import shape_of
from pbgeval.storage.json_files import parse_json
from pbgeval.storage.shapes import Shape, misfits
from pbgeval.storage.text import did_you_mean, json_text, one_line, read_bytes

SCHEMA_VERSION = 2
METRICS, RUN = "metrics.json", "run.json"
CONFIG_SUFFIXES = (".py", ".json", ".yaml", ".yml", ".toml")
MAX_NAMED = 3  # folders that may have been meant
BUCKETS, HISTOGRAM = "buckets", "rank_histogram"  # tables, as those of breakdowns: files of these names and .csv
TABLES = (BUCKETS, HISTOGRAM, *(file.removesuffix(".csv") for file in BREAKDOWN_FILES.values()))
Row: TypeAlias = Mapping[str, Any]
Rows: TypeAlias = Sequence[Row]


@frozen(eq=False)
class SavedTables(Mapping[str, Rows]):
    """The tables of an output directory, each read when it is first used."""

    folder: Path
    _read: dict[str, Rows] = field(factory=dict, init=False)

    def __getitem__(self, name: str) -> Rows:
        if name not in self:
            raise KeyError(name)
        if name not in self._read:
            self._read[name] = read_csv(self.folder / f"{name}.csv")
        return self._read[name]

    def __contains__(self, name: object) -> bool:
        return name in TABLES and (self.folder / f"{name}.csv").exists()

    def __iter__(self) -> Iterator[str]:
        return (name for name in TABLES if name in self)

    def __len__(self) -> int:
        return len(list(iter(self)))


@frozen(eq=False, repr=False)
class OnDemand(Mapping[str, Any]):
    """A mapping with values that are computed when they are first read. It is copied and pickled as a dict."""

    _values: dict[str, Any]
    _later: dict[str, Callable[[], Any]]  # computes a value that nobody has read

    @classmethod
    def of(cls, known: Mapping[str, Any], later: Mapping[str, Callable[[], Any]]) -> Self:
        """Return values that are known, then those that can be computed."""
        return cls({**known, **dict.fromkeys(later)}, dict(later))

    def __getitem__(self, key: str) -> Any:  # noqa: ANN401 - whatever it holds
        compute = self._later.get(key)
        if compute is not None:
            self._values[key] = compute()
            self._later.pop(key, None)  # and what it is computed from
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return repr(dict(self))

    def __reduce__(self) -> tuple[type[dict[str, Any]], tuple[dict[str, Any]]]:
        return dict, (dict(self),)


def histogram_rows(tables: Mapping[str, Rows], rank_type: str) -> Rows:
    """Return the rows of `rank_histogram.csv` of at least one rank type; of a saved table, only these are read."""
    if isinstance(tables, SavedTables):
        return read_csv(tables.folder / f"{HISTOGRAM}.csv", rank_type)
    return tables.get(HISTOGRAM, ())


@frozen(eq=False, repr=False)
class Result:
    """What an evaluation has found: `Report` is the same for people, with names for figures and tables to look at."""

    document: Mapping[str, Any]  # the content of metrics.json: the same for equal runs
    run: Mapping[str, Any] = field(factory=dict)  # of run.json: what may differ, such as hosts and times
    rows: Mapping[str, Rows] = field(factory=dict)  # of each table, by name
    path: Path | None = None  # the output directory

    def to_json(self) -> str:
        """Return the content of metrics.json: sorted keys, shortest round-trip floats, no NaN.

        Examples:
            >>> report.to_json().splitlines()[1]
            '  "complete": true,'
        """
        return json_text(self.document)

    @classmethod
    def read(cls, folder: Path | str) -> Self:
        """Read everything that an evaluation wrote; a table is read when it is first used.

        Raises:
            OutputError: there is no metrics.json, or a file is not one of ours.

        Examples:
            >>> import pbgeval
            >>> pbgeval.Report.read("results/run")["mrr"] == report["mrr"]
            True
        """
        path = Path(folder) / METRICS
        if not path.exists():
            raise OutputError(f"{folder}: {no_result(Path(folder))}")
        document = _read_object(path)
        if "schema_version" not in document:
            raise OutputError(f"{path}: expected a result of pbgeval, got other JSON")
        version = document["schema_version"]
        if version != SCHEMA_VERSION:
            raise OutputError(
                f"{path}: expected schema_version {SCHEMA_VERSION}, got {version}; evaluate again with this version"
            )
        _check_shape(path, document, shape_of(document))
        run_path = Path(folder) / RUN
        run = _read_object(run_path) if run_path.exists() else {}
        _check_shape(run_path, run, RUN_SHAPE)
        return cls(document, run, SavedTables(Path(folder)), Path(folder))


def section_of(document: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    """Return a part of metrics.json by its keys; empty where there is none."""
    for name in names:
        document = document.get(name) or {}
    return document


def settings_of(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the keys of the config that the figures depend on."""
    return section_of(document, "provenance", "settings")


def policies_of(document: Mapping[str, Any]) -> set[str | None]:
    """Return which candidates the relations have."""
    return {relation.get("candidates") for relation in settings_of(document).get("relations") or ()}


def errors_of(document: Mapping[str, Any]) -> dict[str, float]:
    """Return the standard errors of figures: of a sample as estimates of all edges, else over draws of test edges."""
    if is_part_of_edges(document):
        return {key: of["standard_error"] for key, of in document["intervals"].items() if "standard_error" in of}
    return errors_over_draws(document)


def errors_over_draws(document: Mapping[str, Any]) -> dict[str, float]:
    """Return the standard errors of figures over draws of as many test edges as were evaluated."""
    return dict(section_of(document, "standard_errors"))


def is_part_of_edges(document: Mapping[str, Any]) -> bool:
    """Tell whether the evaluated edges are a sample that leaves some out."""
    sample = document.get("sample")
    return sample is not None and bool(sample["num_units"] < sample["population"])


def no_result(folder: Path, expected: str = METRICS) -> str:
    """Return why a path without a result is not an output directory, and which path may have been meant."""
    if folder.name == METRICS and folder.is_file():
        return f"this is a file; give its folder, {str(folder.parent)!r}"
    if folder.suffix in CONFIG_SUFFIXES and folder.is_file():
        return "this is a config file; give the output directory of its run"
    if not folder.is_dir():
        return ("this is not an output directory" if folder.exists() else "no such output directory") + (
            did_you_mean(folder, os.path.isdir) or "; give the output directory of a run"
        )
    inner = [repr(str(place)) for place in sorted(folder.iterdir()) if (place / METRICS).is_file()]
    hint = f"did you mean {' or '.join(inner[:MAX_NAMED])}?" if inner else "give the output directory of a run"
    return f"no {expected} in this folder; {hint}"


def _read_object(path: Path) -> dict[str, Any]:
    try:
        document = parse_json(read_bytes(path))
    except OSError as error:
        raise OutputError(f"{path}: expected a result of pbgeval, got: {error.strerror or error}") from error
    except ValueError as error:
        raise OutputError(f"{path}: expected a result of pbgeval, got no JSON: {one_line(error)}") from error
    if not isinstance(document, dict):
        raise OutputError(f"{path}: expected a result of pbgeval, got other JSON")
    return document


def _check_shape(path: Path, document: Mapping[str, Any], shape: Shape) -> None:
    """Refuse a file that is not as it was written, so that readers need not look again.

    Raises:
        OutputError: says what is wrong, and where.
    """
    for misfit in misfits(document, shape):
        raise OutputError(f"{path}: {misfit}; the file was edited or damaged: copy it again, or evaluate again")
