"""The best candidates of each query (`row_files`) -> the same as a table with names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from attrs import frozen

from pbgeval.notation import ENDS, Bucket, Side
from pbgeval.storage.edges import EdgeSource
from pbgeval.storage.entities import EntityLabels
from pbgeval.storage.row_files import QueryFile
from pbgeval.storage.text import cell_of, name_of
from pbgeval.storage.writing import write_atomically

TABLE_COLUMNS = ("row", "side", "head", "relation", "tail", "place", "candidate", "score", "known", "is_true")
TIMED_COLUMNS = (*TABLE_COLUMNS[:5], "time", *TABLE_COLUMNS[5:])
_CELLS_AT_A_TIME = 1 << 17  # lines of the table in memory
_LABELS = {"\\\\": "\\", "\\t": "\t", "\\n": "\n", "\\r": "\r"}  # by what stands for them
_ESCAPES = str.maketrans({label: cell for cell, label in _LABELS.items()})
_ESCAPED = re.compile(r"\\[\\tnr]")


@frozen
class Vocabulary:
    """What the numbers in edge files stand for."""

    entities: EntityLabels
    relations: Sequence[str]  # a label for each relation id
    types: Sequence[tuple[str, str]]  # (lhs, rhs) of each relation; a single pair holds for all
    num_partitions: Mapping[str, int]  # of each type


def write_topk_table(topk: QueryFile, edges: EdgeSource, vocabulary: Vocabulary, *, by_time: bool = False) -> Path:
    """Write a file's content as a table for people, beside it: `topk_<l>_<r>.tsv`.

    A line per candidate, the columns `TABLE_COLUMNS`: the row of the edge, the side that is hidden, the edge, the
    place (1 is the best), the candidate and its score, and 1 or 0 for a known answer and for the true entity. In
    labels a tab, line break or backslash is written as in Python, and `cell_of` marks what could be a formula.
    Memory follows a block of rows, not the file.

    Args:
        topk: what is written; all its rows are there.
        edges: the bucket file whose queries they are.
        vocabulary: the labels.
        by_time: whether queries of different times are different: the columns are `TIMED_COLUMNS`.

    Returns:
        The path of the table.

    Raises:
        OutputError: it cannot be written.
        StorageError: edges or names cannot be read.
    """
    path = topk.path.with_suffix(".tsv")
    write_atomically(path, _pieces(topk, edges, vocabulary, by_time))
    return path


def _pieces(topk: QueryFile, edges: EdgeSource, vocabulary: Vocabulary, by_time: bool) -> Iterator[str]:
    yield "\t".join(TIMED_COLUMNS if by_time else TABLE_COLUMNS) + "\n"
    (k,) = topk.layouts[f"{topk.sides[0].label}/entity"].row_shape or (1,)
    rows_at_a_time = max(1, _CELLS_AT_A_TIME // (k * len(topk.sides)))
    for start in range(0, topk.num_rows, rows_at_a_time):
        stop = min(start + rows_at_a_time, topk.num_rows)
        yield "".join(_lines(topk, edges, vocabulary, by_time, start, stop))


def _lines(
    topk: QueryFile, edges: EdgeSource, vocabulary: Vocabulary, by_time: bool, start: int, stop: int
) -> Iterator[str]:
    """Yield the lines of rows start to stop, grouped by edge."""
    block = edges.read(start, stop)
    rel_E = block.rel.numpy()
    assert not by_time or block.time is not None, "queries of different times differ, but their edges have none"
    times = [f"\t{time}" for time in block.time.tolist()] if by_time and block.time is not None else [""] * len(rel_E)
    ends = {
        side: _ends(side, side.pick(block.lhs, block.rhs).numpy(), rel_E, edges.bucket, vocabulary) for side in ENDS
    }
    labels = {side: _labels(vocabulary, *ends[side]) for side in ENDS}
    best = {side: topk.read_side(side, start, stop) for side in topk.sides}
    candidates = {side: _candidate_labels(vocabulary, ends[side][0], best[side]) for side in topk.sides}
    for index, rel in enumerate(rel_E.tolist()):
        edge = (
            f"{labels[Side.LHS][index]}\t{escaped(vocabulary.relations[rel])}\t{labels[Side.RHS][index]}{times[index]}"
        )
        for side in topk.sides:
            found = best[side]
            true = ends[side][1][index], ends[side][2][index]
            for place in np.flatnonzero(found["entity"][index] >= 0).tolist():
                is_true = true == (found["partition"][index, place], found["entity"][index, place])
                yield (
                    f"{start + index}\t{side.label}\t{edge}\t{place + 1}\t{candidates[side][index, place]}"
                    f"\t{float(found['score'][index, place])!r}\t{found['known'][index, place]}\t{int(is_true)}\n"
                )


def _ends(
    side: Side, ids_E: np.ndarray, rel_E: np.ndarray, bucket: Bucket, vocabulary: Vocabulary
) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Return type, partition and row of each edge's entity on a side."""
    of_relation = [side.pick(*pair) for pair in vocabulary.types]
    types = of_relation * len(rel_E) if len(of_relation) == 1 else [of_relation[rel] for rel in rel_E.tolist()]
    partitions = [bucket.partition_of(side, vocabulary.num_partitions[name]) for name in types]
    return types, np.array(partitions, np.int64), ids_E


def _labels(vocabulary: Vocabulary, types: list[str], partitions: np.ndarray, rows: np.ndarray) -> np.ndarray:
    labels = np.empty(len(types), object)
    for entity_type in sorted(set(types)):
        here = np.flatnonzero(np.array(types) == entity_type)
        labels[here] = [*map(escaped, vocabulary.entities.look_up(entity_type, partitions[here], rows[here]))]
    return labels


def _candidate_labels(vocabulary: Vocabulary, types: list[str], best: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the labels of each query's candidates, "" where there is none."""
    query, place = np.nonzero(best["entity"] >= 0)
    entities = best["partition"][query, place], best["entity"][query, place]
    labels = np.full(best["entity"].shape, "", object)
    labels[query, place] = _labels(vocabulary, [types[index] for index in query.tolist()], *entities)
    return labels


def escaped(label: str) -> str:
    """Return the cell of the table that stands for a label."""
    return cell_of(label.translate(_ESCAPES))


def unescaped(cell: str) -> str:
    """Return the label that a cell of the table stands for."""
    return _ESCAPED.sub(lambda found: _LABELS[found[0]], name_of(cell))
