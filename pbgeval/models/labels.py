"""A mapping file -> the label of each id: a line `id<TAB>label` for each (DGL-KE, OpenBioLink, LibKGE)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pbgeval.errors import StorageError
from pbgeval.storage.text import one_line, text_lines

MAX_DIGITS = 18  # of an id: an int64 holds it


def read_labels(path: Path, num_labels: int) -> list[str]:
    """Return the labels in the order of their ids, whatever the order of the lines.

    Args:
        path: the file, UTF-8.
        num_labels: how many there must be.

    Raises:
        StorageError: it cannot be read, a line is not as it should be, or ids are missing or repeated.
    """
    labels: dict[int, str] = {}
    for number, (index, label) in enumerate(_lines(path), 1):
        if index in labels:
            raise StorageError(f"{path}:{number}: expected each id once, found {index} again")
        labels[index] = label
    missing = next((index for index in range(num_labels) if index not in labels), None)
    if missing is not None or len(labels) != num_labels:
        found = f"{len(labels)} labels" + ("" if missing is None else f", none for id {missing}")
        raise StorageError(f"{path}: expected a label for each id from 0 to {num_labels - 1}, found {found}")
    return [labels[index] for index in range(num_labels)]


def labels_in_order(path: Path, num_labels: int) -> Iterator[str]:
    """Yield the labels in the order of their ids; of a file in that order, without holding them in memory.

    Raises:
        StorageError: as `read_labels`.
    """
    num_lines = 0
    for at, (index, _) in enumerate(_lines(path)):
        if index != at:
            yield from read_labels(path, num_labels)
            return
        num_lines += 1
    if num_lines != num_labels:
        raise StorageError(f"{path}: expected {num_labels} labels, one for each id, found {num_lines}")
    yield from (label for _, label in _lines(path))


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    for number, text in text_lines(path):
        index, tab, label = text.partition("\t")
        if not (tab and index.isascii() and index.isdigit() and len(index) <= MAX_DIGITS):
            raise StorageError(f"{path}:{number}: expected id<TAB>label, found {one_line(text)}")
        yield int(index), label
