"""The best candidates of each query -> `topk/<path index>/topk_<l>_<r>.h5`, and the same as a table with names.

A group per ranked side, `head` and `tail`, with datasets (edges, k), the best candidate first:
`entity` int64 (row in its partition) and `partition` int64, both -1 where there are fewer than k candidates;
`score` float64; `known` uint8, 1 where the candidate is a known answer other than the true entity.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from attrs import frozen

from pbgeval.errors import StorageError
from pbgeval.notation import Bucket, Side
from pbgeval.storage.edges import EdgeSource
from pbgeval.storage.entities import EntityLabels
from pbgeval.storage.hdf5 import open_hdf5
from pbgeval.storage.row_files import ColumnLayout, RowFile, create_row_file, open_row_file, write_lines
from pbgeval.storage.text import cell_of

TABLE_COLUMNS = ("row", "side", "head", "relation", "tail", "place", "candidate", "score", "known", "is_true")
_CELLS_AT_A_TIME = 1 << 17  # lines of the table in memory
_ESCAPES = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})


@frozen(eq=False)
class TopK:
    """The best candidates of consecutive queries."""

    entity_QK: np.ndarray  # int64: row in its partition; -1 where there is none
    partition_QK: np.ndarray  # int64; -1 where there is none
    score_QK: np.ndarray  # float64; NaN where there is none
    known_QK: np.ndarray  # bool: a known answer other than the true entity


@frozen
class TopKFile:
    """The best candidates of one bucket file's queries; small and picklable."""

    rows: RowFile
    sides: tuple[Side, ...]

    @property
    def path(self) -> Path:
        return self.rows.path

    @property
    def num_edges(self) -> int:
        return self.rows.num_rows

    @property
    def digest(self) -> str:
        """That of the run that made the file."""
        return str(self.rows.attributes["digest"])

    @property
    def k(self) -> int:
        """The number of candidates kept of each query."""
        return self.rows.row_shape(f"{self.sides[0].label}/entity")[0]

    def write(self, side: Side, rows: int | np.ndarray, best: TopK) -> None:
        """Write the best candidates of some queries. Other processes may write other rows at the same time.

        Args:
            side: the side that is hidden.
            rows: the first row of consecutive ones, or int64 (n), strictly increasing: rows of the edge file.
            best: of those n queries, k each.

        Raises:
            OutputError: the file cannot be written (gone, permissions, a full disk).
            ValueError: rows or shapes do not fit.
        """
        columns = {
            "entity": best.entity_QK,
            "partition": best.partition_QK,
            "score": best.score_QK,
            "known": best.known_QK.astype(np.uint8),
        }
        self.rows.write(rows, {f"{side.label}/{name}": values for name, values in columns.items()})

    def read(self, side: Side, start: int, stop: int) -> TopK:
        """Return rows start to stop (exclusive).

        Raises:
            StorageError: the file is gone or damaged.
        """
        entity, partition, score, known = (
            self.rows.read(f"{side.label}/{name}", start, stop) for name in ("entity", "partition", "score", "known")
        )
        return TopK(entity, partition, score, known.astype(bool))

    def sync(self) -> None:
        """Wait until all that was written is on the disk; call it once, after all writes."""
        self.rows.sync()


@frozen
class Vocabulary:
    """What the numbers in edge files stand for."""

    entities: EntityLabels
    relations: Sequence[str]  # a label for each relation id
    types: Sequence[tuple[str, str]]  # (lhs, rhs) of each relation; a single pair holds for all
    num_partitions: Mapping[str, int]  # of each type

    def types_of(self, side: Side, rel_E: np.ndarray) -> list[str]:
        """Return the type of each edge's entity on a side."""
        of_relation = [side.pick(*pair) for pair in self.types]
        return of_relation * len(rel_E) if len(of_relation) == 1 else [of_relation[rel] for rel in rel_E.tolist()]


def topk_path(folder: Path, path_index: int, bucket: Bucket) -> Path:
    """Where the best candidates of a bucket's queries are, in the output directory `folder`."""
    return folder / "topk" / str(path_index) / f"topk_{bucket.lhs}_{bucket.rhs}.h5"


def create_topk_file(
    folder: Path,
    path_index: int,
    bucket: Bucket,
    num_edges: int,
    sides: Sequence[Side],
    k: int,
    digest: str,
    check: Callable[[], None] | None = None,
) -> TopKFile:
    """Make a file in which no query has a candidate yet, replacing what was there. One process does.

    Args:
        folder: the output directory.
        path_index: index in `edge_paths`.
        bucket: of the edge file.
        num_edges: rows of the edge file.
        sides: those that are ranked.
        k: candidates kept of each query.
        digest: of the run.
        check: raises if the run has lost the directory.

    Raises:
        OutputError: it cannot be written (permissions, a full disk).
    """
    path = topk_path(folder, path_index, bucket)
    return TopKFile(create_row_file(path, num_edges, _layouts(sides, k), {"digest": digest}, check), tuple(sides))


def open_topk_file(folder: Path, path_index: int, bucket: Bucket) -> TopKFile:
    """Open a file that `create_topk_file` made, for reading and writing.

    Raises:
        StorageError: there is none, or it does not hold what it should.
    """
    path = topk_path(folder, path_index, bucket)
    with open_hdf5(path) as file:
        names = file.names()
        sides = tuple(side for side in Side if side.label in names)
        if not sides:
            raise StorageError(f"{path}: expected a group head or tail, found neither; did this program write it?")
        shape = file.require(f"{sides[0].label}/entity").shape
    k = int(shape[1]) if shape is not None and len(shape) == 2 else 0
    return TopKFile(open_row_file(path, _layouts(sides, k), ("digest",)), sides)


def write_topk_table(topk: TopKFile, edges: EdgeSource, vocabulary: Vocabulary) -> Path:
    """Write a file's content as a table for people, beside it: `topk_<l>_<r>.tsv`.

    A line per candidate, the columns `TABLE_COLUMNS`: the row of the edge, the side that is hidden, the edge, the
    place (1 is the best), the candidate and its score, and 1 or 0 for a known answer and for the true entity. In
    labels a tab, line break or backslash is written as in Python, and `cell_of` marks what could be a formula.
    Memory follows a block of rows, not the file.

    Args:
        topk: what is written; all its rows are there.
        edges: the bucket file whose queries they are.
        vocabulary: the labels.

    Returns:
        The path of the table.

    Raises:
        OutputError: it cannot be written.
        StorageError: edges or names cannot be read.
    """
    path = topk.path.with_suffix(".tsv")
    write_lines(path, _pieces(topk, edges, vocabulary))
    return path


def _layouts(sides: Sequence[Side], k: int) -> dict[str, ColumnLayout]:
    integers = ColumnLayout(np.dtype(np.int64), -1, (k,))
    columns = {
        "entity": integers,
        "partition": integers,
        "score": ColumnLayout(np.dtype(np.float64), math.nan, (k,)),
        "known": ColumnLayout(np.dtype(np.uint8), 0, (k,)),
    }
    return {f"{side.label}/{name}": layout for side in sides for name, layout in columns.items()}


def _pieces(topk: TopKFile, edges: EdgeSource, vocabulary: Vocabulary) -> Iterator[str]:
    yield "\t".join(TABLE_COLUMNS) + "\n"
    rows_at_a_time = max(1, _CELLS_AT_A_TIME // (topk.k * len(topk.sides)))
    for start in range(0, topk.num_edges, rows_at_a_time):
        stop = min(start + rows_at_a_time, topk.num_edges)
        yield "".join(_lines(topk, edges, vocabulary, start, stop))


def _lines(topk: TopKFile, edges: EdgeSource, vocabulary: Vocabulary, start: int, stop: int) -> Iterator[str]:
    """The lines of rows start to stop: all of an edge together."""
    block = edges.read(start, stop)
    rel_E = block.rel.numpy()
    ends = {
        side: _ends(side, side.pick(block.lhs, block.rhs).numpy(), rel_E, edges.bucket, vocabulary) for side in Side
    }
    labels = {side: _labels(vocabulary, *ends[side]) for side in Side}
    best = {side: topk.read(side, start, stop) for side in topk.sides}
    candidates = {side: _candidate_labels(vocabulary, ends[side][0], best[side]) for side in topk.sides}
    for index, rel in enumerate(rel_E.tolist()):
        edge = f"{labels[Side.LHS][index]}\t{_escape(vocabulary.relations[rel])}\t{labels[Side.RHS][index]}"
        for side in topk.sides:
            found = best[side]
            true = ends[side][1][index], ends[side][2][index]
            for place in np.flatnonzero(found.entity_QK[index] >= 0).tolist():
                is_true = true == (found.partition_QK[index, place], found.entity_QK[index, place])
                yield (
                    f"{start + index}\t{side.label}\t{edge}\t{place + 1}\t{candidates[side][index][place]}"
                    f"\t{float(found.score_QK[index, place])!r}\t{int(found.known_QK[index, place])}\t{int(is_true)}\n"
                )


def _ends(
    side: Side, ids_E: np.ndarray, rel_E: np.ndarray, bucket: Bucket, vocabulary: Vocabulary
) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Type, partition and row of each edge's entity on a side."""
    types = vocabulary.types_of(side, rel_E)
    own = bucket.partition(side)
    partitions = [own if vocabulary.num_partitions[of_type] > 1 else 0 for of_type in types]
    return types, np.array(partitions, np.int64), ids_E


def _labels(vocabulary: Vocabulary, types: list[str], partitions: np.ndarray, rows: np.ndarray) -> list[str]:
    labels = [""] * len(types)
    for entity_type in sorted(set(types)):
        here = np.flatnonzero(np.array([of_type == entity_type for of_type in types]))
        names = vocabulary.entities.of(entity_type, partitions[here], rows[here])
        for position, name in zip(here.tolist(), names, strict=True):
            labels[position] = _escape(name)
    return labels


def _candidate_labels(vocabulary: Vocabulary, types: list[str], best: TopK) -> list[list[str]]:
    """The labels of each query's candidates, "" where there is none."""
    query, place = np.nonzero(best.entity_QK >= 0)
    entities = best.partition_QK[query, place], best.entity_QK[query, place]
    names = _labels(vocabulary, [types[index] for index in query.tolist()], *entities)
    labels = [[""] * best.entity_QK.shape[1] for _ in types]
    for index, column, name in zip(query.tolist(), place.tolist(), names, strict=True):
        labels[index][column] = name
    return labels


def _escape(label: str) -> str:
    return cell_of(label.translate(_ESCAPES))
