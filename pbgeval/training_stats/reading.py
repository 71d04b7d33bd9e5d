"""A `training_stats.json`, PyTorch-BigGraph's own or ours, or a folder with those of several workers -> records.

A trainer that is killed leaves at most a cut line: it is passed over with a warning, wherever it stands, since the
trainer that goes on writes below it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from attrs import frozen

from pbgeval.errors import StorageError
from pbgeval.reading import read_bytes
from pbgeval.training_stats.records import FILE_NAME, MalformedError, PassKey, PassRecord, VisitRecord, record_of


@frozen
class History:
    """What a training run has recorded so far."""

    visits: tuple[VisitRecord, ...]  # in order of pass and index
    passes: tuple[PassRecord, ...]  # in order

    @property
    def passes_of_visits(self) -> dict[PassKey, tuple[VisitRecord, ...]]:
        """The visits of each pass, the last of each bucket: a run that went on after a crash repeats some."""
        found: dict[PassKey, dict[tuple[int, int], VisitRecord]] = {}
        for visit in self.visits:
            found.setdefault(visit.key, {})[visit.bucket] = visit
        return {key: tuple(visits.values()) for key, visits in found.items()}


def read_history(path: Path, warn: Callable[[str], None]) -> History:
    """Read a file, or all files of a folder: that of worker 0, and those of others beside it.

    Args:
        path: a file of records, or the folder where it is (a checkpoint of PBG's, the `output` of a monitor).
        warn: is told of lines that are no records, a line each.

    Raises:
        StorageError: there is no such file, it cannot be read, or not one line of it is a record.
    """
    visits: list[VisitRecord] = []
    passes: list[PassRecord] = []
    for file in _files(path):
        for record in _records(file, warn):
            if isinstance(record, VisitRecord):
                visits.append(record)
            else:
                passes.append(record)
    visits.sort(key=lambda visit: (_order(visit.key), visit.index))
    passes.sort(key=lambda of_pass: _order(of_pass.key))
    return History(tuple(visits), tuple(passes))


def file_of_worker(folder: Path, worker: int) -> Path:
    """Return the file that a worker writes: no two append to one."""
    return folder / (FILE_NAME if worker == 0 else f"training_stats.worker_{worker}.json")


def _order(key: PassKey) -> tuple[int, int, int]:
    return key.epoch, key.edge_path, key.edge_chunk


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    of_workers = sorted(path.glob("training_stats.worker_*.json"))
    return [path / FILE_NAME, *of_workers] if (path / FILE_NAME).exists() or not of_workers else of_workers


def _records(file: Path, warn: Callable[[str], None]) -> list[VisitRecord | PassRecord]:
    try:
        text = read_bytes(file).decode(errors="replace")
    except OSError as error:
        raise StorageError(f"{file}: expected the statistics of a training run, got: {error.strerror}") from error
    records = []
    lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    for number, line in lines:
        try:
            records.append(record_of(_parsed(line)))
        except MalformedError as error:
            warn(f"{file}: line {number} is passed over: {error}")
    if lines and not records:
        raise StorageError(f"{file}: expected a record of training per line, as PyTorch-BigGraph writes them, got none")
    return records


def _parsed(line: str) -> dict[str, object]:
    try:
        parsed = json.loads(line)
    except json.JSONDecodeError as error:
        raise MalformedError(f"it is cut off or no JSON ({error.msg} at character {error.pos + 1})") from error
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, lists in lists without end
        raise MalformedError(f"it is no JSON that can be read ({error})") from error
    if not isinstance(parsed, dict):
        raise MalformedError(f"expected a JSON object, got {type(parsed).__name__}")
    return parsed
