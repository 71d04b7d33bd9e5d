"""Units -> the partitions that they need: loaded, checked, kept while useful, and read ahead by a thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from itertools import chain, pairwise
from typing import cast

import torch
from attrs import define, field, frozen
from torch import Tensor

from pbgeval.errors import MAX_MEMORY, ConfigError
from pbgeval.inputs.dispatch import Partition, PartitionCache
from pbgeval.inputs.opening import Inputs
from pbgeval.notation import ENDS, Bucket, T
from pbgeval.ranking.settings import Tables
from pbgeval.scoring.block_sizes import CPU, GPU_WORKSPACE_BYTES, sizes_on
from pbgeval.scoring.entities import EntityTable
from pbgeval.storage.arrays import MappedRows
from pbgeval.storage.checkpoint import EmbeddingFile, PartitionRows


@define(eq=False)
class PartitionHolder:
    """The partitions that a worker holds. Contiguous files are mapped, so workers of a host share their pages."""

    inputs: Inputs
    global_embeddings: dict[str, Tensor]
    device: torch.device
    holding: PartitionCache
    reads_ahead: bool = True  # else there is memory for no more than the room
    num_loads: int = field(default=0, init=False)
    _tables: dict[Partition, Future[EntityTable]] = field(factory=dict, init=False)  # held, and what is read ahead
    _reader: ThreadPoolExecutor = field(
        factory=lambda: ThreadPoolExecutor(1, thread_name_prefix="read-ahead"), init=False
    )

    def close(self) -> None:
        """Wait for what is read; nothing more is."""
        self._reader.shutdown(cancel_futures=True)

    def enter(self, index: int, bucket: Bucket) -> Tables:
        """Return the tables of a unit (its index in the plan, and its bucket), by entity type and side.

        Raises:
            DataError: a partition holds what cannot be ranked.
            StorageError: a file has become unreadable.
        """
        missing = self.holding.enter(index)
        for partition in self._tables.keys() - self.holding.held - {self.holding.ahead}:
            del self._tables[partition]
        self.num_loads += len(missing)
        for partition in missing:  # here, beside what is read ahead
            loaded: Future[EntityTable] = Future()
            loaded.set_result(self._load(partition))
            self._tables[partition] = loaded
        return {
            (entity_type, side): self._tables[entity_type, number].result()
            for places in self.inputs.places_of_edges(bucket)
            for side, (entity_type, number) in zip(ENDS, places, strict=True)
        }

    def read_ahead(self) -> None:
        """Begin to read what the units after this one need first."""
        partition = self.holding.read_ahead() if self.reads_ahead else None
        if partition is not None:
            self.num_loads += 1
            self._tables[partition] = self._reader.submit(self._load, partition)

    def _load(self, partition: Partition) -> EntityTable:
        entity_type, number = cast("tuple[str, int]", partition)
        config = self.inputs.config
        table = EntityTable(
            entity_type=entity_type,
            partition=number,
            embeddings_ND=load_on(self.inputs.embeddings[entity_type, number], self.device),
            global_embedding_D=self.global_embeddings.get(entity_type),
            max_norm=config.max_norm,
            featurized=config.entities[entity_type].featurized,
        )
        table.check(refuse_zero_vectors=config.comparator == "cos", has_bias=config.bias)
        return table


# `max_memory` -> sizes of blocks, and what is kept in memory between the sweeps. Changes no number.

CELLS_PER_RANGE = 1 << 29  # of queries and candidates, on a CPU
LEAST_ROWS = 1 << 14  # of a range, however many queries: each range costs about 1 ms per 1,024 of them
MIN_ROWS_PER_RANGE = 1 << 10  # candidates that queries stream past at a time; at most, sizes of blocks say
MAX_KNOWN_ROWS = 1 << 20  # known edges read at a time
BYTES_PER_KNOWN_ROW = 24 * 4  # three columns of int64 and what the join makes of them
NUMBERS_OF_TRUE = 5  # beside the vector of a true entity, in numbers of float32: its value, score and error
BLOCK_BYTES = 64 << 20  # scores of one thread's block, compared and expanded, and what kernels allocate
BYTES_OF_COUNTS = 48 * 2  # six of a query: of all candidates, and of those that no entry of the journal holds yet
BYTES_PER_QUERY = BYTES_OF_COUNTS + 32 + 24  # edge, key, true entity, score; what the end of a run makes of a block
BYTES_PER_EDGE = 4 * 8 * 2  # row, lhs, rel, rhs, and a copy while they are sorted
PAIRS_BYTES = 1 << 30  # of known answers in memory where no limit is given
# What units take beside their partitions and loops, as processes with loaded loops have grown: with two threads by 50
# to 105 MiB for sampled lists, by 58 to 1,058 MiB for partitions with 50 to 800 columns.
BYTES_OF_UNITS = 32 << 20
BYTES_PER_EDGE_OF_UNIT = 768  # read, numbered, counted, packed
MAX_DIAGNOSED_EDGES = 1 << 20  # that are compared with each other though the evaluation itself does not hold all edges
BYTES_PER_DIAGNOSED = 100  # of such an edge, once all units are done and partitions are given back
BYTES_PER_UNIT_THREAD = 12 << 20  # where queries meet partitions
# How often prepared rows of a unit's queries, and of a range of its partition, are in memory at once: where scores are
# made in float32, and in float64.
COPIES_IN_UNITS = ((1.5, 3), (4, 5))
BYTES_PER_SAMPLED_QUERY = 400  # of a sample of edges: its row in the table of counts, copies, and what intervals make
BYTES_PER_BEST = 2 * (8 + 8 + 1)  # a candidate of `save_topk`: score, number, whether it is known; and a copy
BYTES_PER_SCORE = (12, 24)  # that the pooled AUC compares: raw alone, and filtered too
BYTES_PER_COUNTED = 3 * (2 * 8 + 2 * 8)  # a true score that all others are compared with: places, highest, copies
BYTES_OF_SORTING = 32 << 20  # scores that wait to be counted
BYTES_PER_SAMPLED_SCORE = (48, 72)  # the same of a sample of edges: with its cluster, and what intervals make
SHARE_OF_BLOCKS = 8  # of what is free, blocks of further threads take at most this part
SLACK = 1.1
FEWER_EDGES = "sample fewer edges"  # what may help where a limit is too small
FEWER_SCORES = f"{FEWER_EDGES}, or leave out the pooled AUC (metrics=rank)"


@frozen
class MemoryPlan:
    """How large blocks are."""

    rows_per_range: int  # candidates read at a time
    known_rows: int  # known edges read at a time
    pairs_bytes: int  # known answers that are buffered before they are spilled
    queries_in_memory: bool  # else prepared queries are spilled
    block_threads: int = 1 << 10  # at most so many blocks of scores at once

    def bytes_used(self, fixed: int, num_queries: int, row_bytes: int, num_threads: int, num_known: int) -> int:
        """Return about how much a worker holds when it holds most: while it reads known edges, or later.

        Args:
            fixed: bytes, as `fixed_bytes` returns them.
            num_queries: of all edges.
            row_bytes: of one prepared row.
            num_threads: of the worker.
            num_known: known edges that are read.
        """
        further_blocks = min(self.block_threads, num_threads) - 1
        queries_bytes = num_queries * row_bytes if self.queries_in_memory else 0
        known_bytes = min(self.known_rows, num_known) * BYTES_PER_KNOWN_ROW
        return fixed + max(
            known_bytes, further_blocks * BLOCK_BYTES + queries_bytes + self.rows_per_range * row_bytes * 6
        )


def beside_blocks(free: int) -> int:
    """Return of a GPU's free bytes what `plan_room` may halve: blocks of scores and of rows need their room, too."""
    return min(free, 2 * max(free - GPU_WORKSPACE_BYTES, 0))


def plan_room(
    limit: int | None,
    resident: int,
    available: int,
    partition_bytes: int,
    fewest: int,
    most: int,
    held: int = 0,
    at_end: int = 0,
) -> tuple[int, bool]:
    """Choose how many partitions a worker keeps.

    Args:
        limit: bytes of the worker; None: half of what is available.
        resident: bytes that this process holds before it begins.
        available: bytes of the host that are free for this worker.
        partition_bytes: of the largest partition.
        fewest: partitions that some bucket needs.
        most: partitions that there are.
        held: bytes that the run holds beside partitions.
        at_end: bytes that it takes once it has given partitions back.

    Returns:
        For how many partitions there is memory, and whether there is for one more, to read ahead into.

    Raises:
        ConfigError: the limit is too small for the partitions of a bucket.
    """
    needed = resident + held + max(fewest * partition_bytes, at_end)
    purpose = f"for a bucket's partitions ({_megabytes(fewest * partition_bytes)}MB) and lists"
    _check_limit(limit, needed, purpose, resident, f"take fewer negatives, {FEWER_SCORES}")
    free = available // 2 if limit is None else int(limit / SLACK) - resident - held
    places = free // max(partition_bytes, 1)
    return max(fewest, min(places - 1, most)), places > fewest


def plan_memory(
    limit: int | None,
    resident: int,
    num_edges: int,
    num_queries: int,
    row_bytes: int,
    num_threads: int = 1,
    held: int = 0,
    most_rows: int = CPU.swept_rows,
) -> MemoryPlan:
    """Choose sizes so that a worker stays below its limit.

    Args:
        limit: bytes; None: as large as is useful.
        resident: bytes that this process holds before it begins.
        num_edges: evaluated edges.
        num_queries: their queries.
        row_bytes: of one prepared row.
        num_threads: that would like a block of scores each.
        held: bytes that the run holds beside edges, queries and blocks.
        most_rows: of a range, as the device counts them together.

    Raises:
        ConfigError: the limit is too small; says how much is needed.
    """
    if limit is None:
        return MemoryPlan(most_rows, MAX_KNOWN_ROWS, PAIRS_BYTES, queries_in_memory=True)
    fixed = fixed_bytes(resident, held, num_edges, num_queries)
    _check_limit(limit, fixed + least_bytes(row_bytes), f"for {num_edges} edges", resident, FEWER_EDGES)
    free = max(int(limit / SLACK) - fixed, 0)
    further_blocks = min(num_threads - 1, free // SHARE_OF_BLOCKS // BLOCK_BYTES)
    free -= further_blocks * BLOCK_BYTES
    queries_bytes = num_queries * row_bytes
    in_memory = queries_bytes <= free // 3
    free -= queries_bytes if in_memory else 0
    rows = free // 3 // (row_bytes * 6)  # raw, finished, prepared, and copies while they are made
    return MemoryPlan(
        rows_per_range=max(MIN_ROWS_PER_RANGE, min(most_rows, rows)),
        known_rows=max(MIN_ROWS_PER_RANGE, min(MAX_KNOWN_ROWS, free // 3 // BYTES_PER_KNOWN_ROW)),
        pairs_bytes=max(1 << 20, free // 8),  # sorting takes as much again, and a slot is read back whole
        queries_in_memory=in_memory,
        block_threads=1 + further_blocks,
    )


def sizes_of_sweep(dimension: int, dtype: torch.dtype, device: torch.device, num_queries: int) -> tuple[int, int]:
    """Return the bytes of a prepared row, and how many candidates queries stream past at a time at most.

    Args:
        dimension: of the widest vectors.
        dtype: of vectors.
        device: of the worker.
        num_queries: of the run. On a CPU, many queries get shorter ranges, so that an interruption repeats little.
    """
    sizes, width = sizes_on(device), dimension + NUMBERS_OF_TRUE
    most_rows = max(min(sizes.swept_rows, sizes.swept_numbers // width), 1)
    if device.type == "cpu":
        most_rows = min(most_rows, max(CELLS_PER_RANGE // max(num_queries, 1), LEAST_ROWS))
    return width * dtype.itemsize, most_rows


def fixed_bytes(resident: int, held: int, num_edges: int, num_queries: int) -> int:
    """Return the bytes of a sweep that no size of blocks changes."""
    return resident + held + BLOCK_BYTES + num_edges * BYTES_PER_EDGE + num_queries * BYTES_PER_QUERY


def least_bytes(row_bytes: int) -> int:
    """Return the bytes of the smallest blocks of a sweep."""
    return MIN_ROWS_PER_RANGE * (row_bytes * 6 + BYTES_PER_KNOWN_ROW * 4) + (16 << 20)


def check_sample(
    limit: int | None, resident: int, num_queries: int, num_scores: int = 0, *, filtered: bool = False
) -> int:
    """Return the bytes that a sample of edges holds until its end.

    Args:
        limit: bytes of the worker, if there is one.
        resident: bytes that this process holds before it begins.
        num_queries: of the sample.
        num_scores: that their pooled AUC compares.
        filtered: whether these are compared again without known answers.

    Raises:
        ConfigError: the limit is too small for them.
    """
    held = num_queries * BYTES_PER_SAMPLED_QUERY + num_scores * BYTES_PER_SAMPLED_SCORE[filtered]
    _check_limit(limit, resident + held + BLOCK_BYTES, f"for a sample of {num_queries} queries", resident, FEWER_SCORES)
    return held


def check_held(limit: int, anonymous: int) -> None:
    """Refuse to go on with more memory than allowed.

    Raises:
        ConfigError: this process holds more than its limit, mapped files aside.
    """
    if anonymous > limit:
        raise ConfigError(
            f"{MAX_MEMORY} a worker holds {_megabytes(anonymous)}MB, got {limit // 10**6}MB; "
            "raise it, and run the same command again to resume"
        )


def least_limit(num_bytes: int) -> int:
    """Return the `max_memory` to advise for a worker that is expected to hold so many bytes."""
    return int(num_bytes * SLACK)


def _check_limit(limit: int | None, num_bytes: int, purpose: str, resident: int, advice: str) -> None:
    """Refuse a limit below what is expected; what a worker holds before it begins differs from start to start.

    So what is advised, and what a plan tells, is more than what is accepted: a run that has begun can begin again.
    """
    if limit is not None and limit < num_bytes:
        raise ConfigError(
            f"{MAX_MEMORY} expected at least {_megabytes(least_limit(num_bytes))}MB {purpose} here (a worker holds "
            f"{resident // 10**6} MB before it begins), got {limit // 10**6}MB; raise it"
            f"{f', {advice}' if limit > least_limit(resident) else ''}"
        )


def _megabytes(num_bytes: int) -> int:
    return -(-num_bytes // 10**6)


# Ranges of rows, one after the other -> their tensors; on a GPU, the next is read and copied while one is computed.


PIECE_BYTES = 1 << 26  # of a partition that a GPU gets whole


def read_rows(rows: PartitionRows, start: int, stop: int, device: torch.device) -> Tensor:
    """Return rows start to stop (exclusive) in memory of the host; for a GPU in pinned memory where that saves a copy.

    Raises:
        StorageError: a file is gone, damaged or has become shorter.
    """
    if device.type == "cpu" or not isinstance(rows, EmbeddingFile | MappedRows):
        return rows.read_rows(start, stop)
    pinned_ND = pinned((stop - start, rows.dimension))
    rows.read_into(pinned_ND, start)
    return pinned_ND


def load_on(rows: PartitionRows, device: torch.device) -> Tensor:
    """Return all rows on a device. A GPU gets them piece by piece, so that little memory of the host is pinned.

    Raises:
        StorageError: as `read_rows`.
    """
    if device.type == "cpu":
        return rows.load()
    step = rows.num_rows if not isinstance(rows, EmbeddingFile | MappedRows) else PIECE_BYTES // (4 * rows.dimension)
    pieces = [(at, min(at + step, rows.num_rows)) for at in range(0, rows.num_rows, max(step, 1))]
    of_pieces = rows_ahead(pieces, lambda piece: read_rows(rows, *piece, device), device)
    if len(pieces) == 1:
        return next(of_pieces)
    rows_ND = torch.empty((rows.num_rows, rows.dimension), dtype=torch.float32, device=device)
    for (start, stop), piece_ND in zip(pieces, of_pieces, strict=True):
        rows_ND[start:stop] = piece_ND
    return rows_ND


def pinned(shape: tuple[int, int]) -> Tensor:
    """Return memory that a GPU copies from; torch makes few pieces of it, which it gives out again and again."""
    return torch.empty(shape, dtype=torch.float32, pin_memory=True)


def rows_ahead(parts: Sequence[T], read: Callable[[T], Tensor], device: torch.device) -> Iterator[Tensor]:
    """Yield the rows of each part, on the device; what reading a part raises is raised where its rows are asked for.

    Args:
        parts: in the order in which they are needed.
        read: returns rows of the CPU.
        device: a GPU has two parts in its memory at a time; on a CPU nothing is read before it is needed.
    """
    if device.type == "cpu":
        yield from map(read, parts)
        return
    with ThreadPoolExecutor(1, thread_name_prefix="read-ahead") as pool:
        begun = (pool.submit(lambda part: _start_copy(read(part), device), part) for part in parts)
        for ready, _ in pairwise(chain(begun, [Future()])):  # the next one is begun before one is waited for
            yield ready.result()()


def _start_copy(rows: Tensor, device: torch.device) -> Callable[[], Tensor]:
    """Start copying rows to a GPU beside what it computes; what is returned waits for them on the GPU, not here."""
    stream = _copy_stream(device)
    with torch.cuda.stream(stream):
        copy = rows.pin_memory().to(device, non_blocking=True)  # from unpinned memory it would block
        done = stream.record_event()

    def arrived() -> Tensor:
        current = torch.cuda.current_stream(device)
        current.wait_event(done)
        copy.record_stream(current)
        return copy

    return arrived


@cache
def _copy_stream(device: torch.device) -> torch.cuda.Stream:
    """Return one stream for all copies: torch gives memory out again only to the stream that had it."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
