"""Bucket files -> edges whose entities are numbers, ids checked, and which of them are evaluated."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np
from attrs import Factory, define, field, frozen

from pbgeval.cluster.team import Team
from pbgeval.errors import DataError
from pbgeval.inputs.names import Restrictions
from pbgeval.inputs.opening import Inputs
from pbgeval.notation import ENDS, Bucket, EntityNumbering, Side, is_among, values_between
from pbgeval.ranking.keys import EdgeColumns, check_codes_fit, key_codes
from pbgeval.storage.edges import ArrayEdges, EdgeBlock, EdgeSource

ROWS_AT_A_TIME = 1 << 20


@define
class EdgeNumberer:
    """Turns rows of partitions into entity numbers, and refuses ids out of range."""

    inputs: Inputs
    numbering: EntityNumbering = field(init=False, default=Factory(lambda self: self.inputs.numbering, takes_self=True))
    # Number of row 0 and number of rows of a side's partition: by relation of the config, or one for all relations.
    _ranges: dict[tuple[Bucket, Side], tuple[np.ndarray, np.ndarray]] = field(factory=dict, init=False)

    def numbered(self, file: EdgeSource, block: EdgeBlock) -> EdgeColumns:
        """Return the edges of a block with numbers for entities.

        Raises:
            DataError: an id is out of range; it names file, dataset and row.
        """
        rel_n = block.rel.numpy()
        _check_ids(file, block, "rel", rel_n, self.inputs.num_relations, lambda _: "relations")
        ends = {side: self._numbers(file, block, side, side.pick(block.lhs, block.rhs).numpy(), rel_n) for side in ENDS}
        return EdgeColumns(ends[Side.LHS], rel_n, ends[Side.RHS], None if block.time is None else block.time.numpy())

    def key_codes(self, hidden: Side, edges: EdgeColumns) -> np.ndarray:
        """Return a number for each query's key, int64."""
        first_E, entity_E = edges.key(hidden)
        check_codes_fit(int(first_E.max(initial=-1)) + 1, self.numbering.num_entities)
        return key_codes(first_E, entity_E, self.numbering.num_entities)

    def _numbers(
        self, file: EdgeSource, block: EdgeBlock, side: Side, row_n: np.ndarray, rel_n: np.ndarray
    ) -> np.ndarray:
        place = file.bucket, side
        if place not in self._ranges:
            slots = self.inputs.partitions_at(side, file.bucket)
            offset_R = np.array([self.numbering.offset(*slot) for slot in slots], np.int64)
            size_R = np.array([self.inputs.embeddings[slot].num_rows for slot in slots], np.int64)
            is_one = bool((offset_R == offset_R[0]).all())
            self._ranges[place] = (offset_R[:1], size_R[:1]) if is_one else (offset_R, size_R)
        offset_R, size_R = self._ranges[place]
        is_one = len(offset_R) == 1

        def label_of(at: int) -> str:
            slots = self.inputs.partitions_at(side, file.bucket)
            return "entity type '{}', partition {}".format(*slots[0 if is_one else int(rel_n[at])])

        _check_ids(file, block, side.pick("lhs", "rhs"), row_n, int(size_R[0]) if is_one else size_R[rel_n], label_of)
        if is_one:
            return row_n + int(offset_R[0]) if offset_R[0] else row_n
        return np.asarray(row_n + offset_R[rel_n])


def _check_ids(
    file: EdgeSource,
    block: EdgeBlock,
    name: str,
    id_n: np.ndarray,
    size: int | np.ndarray,
    label_of: Callable[[int], str],
) -> None:
    """Refuse ids that are not in 0..size - 1; names the first, and what has this size there."""
    wrong_n = id_n.view(np.uint64) >= np.asarray(size, np.uint64)  # a negative number is a large one, too
    if wrong_n.any():
        at = int(np.flatnonzero(wrong_n)[0])
        stop, row = int(np.broadcast_to(size, id_n.shape)[at]), block.start + at
        where, owner = f"dataset {name}, row {row}", f"{label_of(at)} has {stop}"
        advice = "check that edge_paths and entity_path belong to one graph"
        if isinstance(file, ArrayEdges):
            where = f"row {row}, {dict(lhs='head', rel='relation', rhs='tail')[name]}"
            owner = f"the model has {stop} {'relations' if name == 'rel' else 'entities'}"
            advice = "columns are head, relation, tail, with the ids of the model"
        raise DataError(f"{file.path}: {where}: expected an id in 0..{stop - 1} ({owner}), got {id_n[at]}; {advice}")


@frozen(eq=False)
class RowsOfBucket:
    """The rows of a bucket's file that one round of a sample evaluates."""

    row_E: np.ndarray  # int64, increasing
    cluster_E: np.ndarray  # int64: the cluster of each in the whole sample
    chunks: Mapping[int, np.ndarray]  # where clusters are chunks: those of each window, by the window's first row

    def clusters_between(self, start: int, stop: int) -> np.ndarray:
        """Return the cluster of each row of a range of the file, -1 of those that are not evaluated."""
        cluster_E = np.full(stop - start, -1, np.int64)
        first, last = np.searchsorted(self.row_E, [start, stop])
        cluster_E[self.row_E[first:last] - start] = self.cluster_E[first:last]
        return cluster_E


@frozen(eq=False)
class EvaluatedRows:
    """Which edges are evaluated: those that restrictions leave, and of them those that a sample draws."""

    restrictions: Restrictions
    sample: Mapping[tuple[int, Bucket], RowsOfBucket] | None = None  # by edge path and bucket; None: all

    @property
    def is_part(self) -> bool:
        """Whether some edges are not evaluated."""
        return self.sample is not None or self.restrictions.drops_edges

    @property
    def num_sampled(self) -> int:
        """How many edges the sample has in this round; 0 without one."""
        return sum(len(rows.row_E) for rows in (self.sample or {}).values())

    def drawn(self, path_index: int, bucket: Bucket) -> RowsOfBucket | None:
        """Return the rows of a bucket that the sample has; None where edges are not sampled."""
        return None if self.sample is None else self.sample[path_index, bucket]

    def clusters(self, path_index: int, bucket: Bucket, rows: np.ndarray) -> np.ndarray | None:
        """Return the clusters of some rows of a bucket that the sample has; None where edges are not sampled."""
        drawn = self.drawn(path_index, bucket)
        return None if drawn is None else drawn.cluster_E[np.searchsorted(drawn.row_E, rows)]

    def positions(self, block: EdgeColumns, path_index: int, bucket: Bucket, start: int) -> np.ndarray:
        """Return the positions of the edges that are evaluated, ascending.

        Args:
            block: consecutive edges of a bucket's file.
            path_index: index in `edge_paths`.
            bucket: theirs.
            start: row of the first.
        """
        drawn = self.drawn(path_index, bucket)
        if drawn is None:
            return self.kept(block)
        return values_between(drawn.row_E, start, start + block.num_edges) - start

    def num_between(self, path_index: int, bucket: Bucket, start: int, stop: int) -> int:
        """Return how many rows from start to stop are evaluated or, where restrictions drop some, may be."""
        drawn = self.drawn(path_index, bucket)
        if drawn is None:
            return stop - start
        first, last = np.searchsorted(drawn.row_E, [start, stop])
        return int(last - first)

    def blocks(
        self, numberer: EdgeNumberer, path_index: int, file: EdgeSource
    ) -> Iterator[tuple[np.ndarray, EdgeColumns]]:
        """Yield (rows, edges) of a bucket's file that are evaluated, block by block."""
        for _, start, stop in parts_of_file(file):
            if self.num_between(path_index, file.bucket, start, stop):
                block = numberer.numbered(file, file.read(start, stop))
                if not self.is_part:
                    yield np.arange(start, stop), block
                    continue
                kept = self.positions(block, path_index, file.bucket, start)
                yield start + kept, block if len(kept) == block.num_edges else block.select(kept)

    def kept(self, block: EdgeColumns) -> np.ndarray:
        """Return the positions of the edges that restrictions leave, ascending."""
        kept, limits = np.ones(block.num_edges, bool), self.restrictions
        columns = (block.rel_n, limits.relations), (block.lhs_n, limits.entities), (block.rhs_n, limits.entities)
        for number_n, allowed in columns:
            if allowed is not None:
                kept &= is_among(number_n, allowed)
        return np.flatnonzero(kept)


def shares_of_files(
    buckets: Iterable[dict[Bucket, EdgeSource]], team: Team, rows_at_a_time: int
) -> Iterator[tuple[EdgeSource, int, int]]:
    """Yield (file, first row, one past the last) of this worker's part of all files, block by block.

    Rows are shared, and each worker cuts its own part in blocks: one with less memory reads fewer rows at a time, and
    if blocks were shared, rows between two workers' parts would be read by neither.
    """
    files = [file for of_path in buckets for _, file in sorted(of_path.items())]
    first, stop = team.part(sum(file.num_edges for file in files))
    before = 0
    for file in files:
        low, high = (min(_whole_chunks(file, max(border - before, 0)), file.num_edges) for border in (first, stop))
        yield from _blocks_of_file(file, low, high, rows_at_a_time)
        before += file.num_edges


def parts_of_file(file: EdgeSource) -> Iterator[tuple[EdgeSource, int, int]]:
    """Yield (file, first row, one past the last) of a whole file, block by block."""
    return _blocks_of_file(file, 0, file.num_edges, ROWS_AT_A_TIME)


def _blocks_of_file(file: EdgeSource, low: int, high: int, rows: int) -> Iterator[tuple[EdgeSource, int, int]]:
    step = _whole_chunks(file, rows)
    return ((file, start, min(start + step, high)) for start in range(low, high, step))


def kept_rows(numberer: EdgeNumberer, file: EdgeSource) -> np.ndarray | None:
    """Return the rows of a file that restrictions leave, ascending; None for all."""
    restrictions = numberer.inputs.restrictions
    if not restrictions.drops_edges:
        return None
    blocks = EvaluatedRows(restrictions).blocks(numberer, 0, file)
    return np.concatenate([np.empty(0, np.int64), *(rows for rows, _ in blocks)])


def _whole_chunks(file: EdgeSource, rows: int) -> int:
    """Round up to whole chunks: a compressed file is unpacked chunk by chunk, so blocks follow its chunks."""
    return -(-rows // file.rows_per_chunk) * file.rows_per_chunk


def numbered_files(numberer: EdgeNumberer, files: Iterable[EdgeSource]) -> Iterator[EdgeColumns]:
    """Read whole files as numbered edges, block by block."""
    return numbered_blocks(numberer, (part for file in files for part in parts_of_file(file)))


def numbered_blocks(numberer: EdgeNumberer, parts: Iterable[tuple[EdgeSource, int, int]]) -> Iterator[EdgeColumns]:
    """Read parts of files as numbered edges."""
    return (numberer.numbered(file, file.read(start, stop)) for file, start, stop in parts)
