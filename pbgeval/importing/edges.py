"""A file of edges -> buckets of a partitioned graph, in two passes over the file: count, then write.

The file is a .npy array of integers (edges, 3), or text with three columns, tabs or spaces between them: ids, or labels
where there are files of labels. Memory follows a block of edges.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from attrs import field, frozen

from pbgeval.adapters.labels import MAX_DIGITS
from pbgeval.adapters.model import part_of
from pbgeval.distinct import distinct
from pbgeval.errors import DataError
from pbgeval.notation import Bucket
from pbgeval.reading import text_lines
from pbgeval.storage.array_rows import open_npy
from pbgeval.storage.checkpoint_files import create_bucket
from pbgeval.storage.text_files import one_line

EDGES_AT_A_TIME = 1 << 18
ORDERS = ("hrt", "htr", "rht", "rth", "thr", "trh")  # of columns: head (lhs), relation, tail (rhs)


@frozen(eq=False)
class EdgeForm:
    """What the columns of files of edges mean."""

    num_entities: int
    num_relations: int
    order: str = "hrt"
    entity_ids: Mapping[str, int] | None = None  # by label; None: files have ids
    relation_ids: Mapping[str, int] | None = None
    _columns: tuple[int, ...] = field(init=False)

    @_columns.default
    def _of_order(self) -> tuple[int, ...]:
        return tuple(self.order.index(letter) for letter in "hrt")

    def blocks(self, path: Path) -> Iterator[np.ndarray]:
        """Yield blocks of edges, int64 (n, 3): lhs, rel, rhs.

        Raises:
            StorageError: the file cannot be read.
            DataError: a line is not as it should be, an id out of range, or a label unknown; it names the row or line.
        """
        first = 0
        for block_n3 in self._of_array(path) if path.suffix == ".npy" else self._of_text(path):
            ordered_n3 = block_n3[:, self._columns]
            entity, relation = ("entity", self.num_entities), ("relation", self.num_relations)
            for column, (what, size) in enumerate((entity, relation, entity)):
                wrong = (ordered_n3[:, column] < 0) | (ordered_n3[:, column] >= size)
                if wrong.any():
                    at = int(np.flatnonzero(wrong)[0])
                    raise DataError(
                        f"{path}: edge {first + at}: expected an id of {what} in 0..{size - 1}, got "
                        f"{int(ordered_n3[at, column])}; are the edges those of the model, in the order {self.order}?"
                    )
            yield ordered_n3
            first += len(block_n3)

    def _of_array(self, path: Path) -> Iterator[np.ndarray]:
        array, _ = open_npy(path, "iu")
        if array.ndim != 2 or array.shape[1] != 3:
            raise DataError(f"{path}: expected integers of shape (edges, 3), got shape {array.shape}")
        for start in range(0, array.shape[0], EDGES_AT_A_TIME):
            yield array[start : start + EDGES_AT_A_TIME].astype(np.int64)

    def _of_text(self, path: Path) -> Iterator[np.ndarray]:
        rows: list[tuple[int, ...]] = []
        ids = tuple(self.relation_ids if letter == "r" else self.entity_ids for letter in self.order)
        for number, text in text_lines(path):
            parts = text.split("\t") if "\t" in text else text.split()
            if len(parts) < 3:
                raise DataError(f"{path}:{number}: expected three columns, got {one_line(text)!r}")
            rows.append(tuple(_id(path, number, *of) for of in zip(parts, ids, strict=False)))
            if len(rows) == EDGES_AT_A_TIME:
                yield np.array(rows, np.int64)
                rows = []
        if rows:
            yield np.array(rows, np.int64)


def _id(path: Path, line: int, text: str, ids: Mapping[str, int] | None) -> int:
    if ids is not None:
        if text in ids:
            return ids[text]
        raise DataError(f"{path}:{line}: expected a label that is known, got {one_line(text)!r}")
    if not (text.isascii() and text.isdigit()):
        raise DataError(
            f"{path}:{line}: expected an id, got {one_line(text)!r}; give --entities and --relations for labels"
        )
    if len(text) > MAX_DIGITS:
        raise DataError(f"{path}:{line}: expected an id of at most {MAX_DIGITS} digits, got {one_line(text)!r}")
    return int(text)


def import_edges(path: Path, target: Path, form: EdgeForm, num_partitions: int) -> int:
    """Write the edges of a file as buckets; rows keep their order within a bucket.

    Args:
        path: the file.
        target: the folder of the buckets.
        form: of the file.
        num_partitions: of the entities, which are parts as equal as can be.

    Returns:
        The number of edges.

    Raises:
        EvalError: what is wrong with the file, or that something cannot be written.
    """
    borders = np.array([part_of(form.num_entities, index, num_partitions)[0] for index in range(num_partitions)])
    sizes = np.zeros(num_partitions**2, np.int64)
    for block_n3 in form.blocks(path):
        sizes += np.bincount(_buckets(block_n3, borders), minlength=num_partitions**2)
    files = {
        code: create_bucket(target, Bucket(*divmod(code, num_partitions)), int(sizes[code]))
        for code in np.flatnonzero(sizes).tolist()
    }
    if not files:
        raise DataError(f"{path}: expected at least one edge, found none")
    written = np.zeros_like(sizes)
    for block_n3 in form.blocks(path):
        bucket_n = _buckets(block_n3, borders)
        for code in distinct(bucket_n).tolist():
            rows_n3 = block_n3[bucket_n == code]
            lhs, rhs = divmod(code, num_partitions)
            columns = {"lhs": rows_n3[:, 0] - borders[lhs], "rel": rows_n3[:, 1], "rhs": rows_n3[:, 2] - borders[rhs]}
            files[code].write(int(written[code]), columns)
            written[code] += len(rows_n3)
    for file in files.values():
        file.sync()
    return int(sizes.sum())


def _buckets(block_n3: np.ndarray, borders: np.ndarray) -> np.ndarray:
    lhs, rhs = (np.searchsorted(borders, block_n3[:, column], "right") - 1 for column in (0, 2))
    return lhs * len(borders) + rhs
