"""`sample_edges`, `target_error` -> which rows of the bucket files are evaluated in each round, and in which cluster.

A cluster is an edge with its two queries or, where candidates are sampled, a chunk of edges that share a list. Every
worker comes to the same sample: it follows from the seed and the numbers of units alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from attrs import evolve, frozen

from pbgeval.candidates.chunks import group_by_relation
from pbgeval.errors import ConfigError
from pbgeval.inputs.edges import EvaluatedRows, RowsOfBucket, parts_of_file
from pbgeval.metrics.sample_rounds import round_level
from pbgeval.notation import Bucket
from pbgeval.passes.edge_sample import FIRST_ROUND_EDGES, EdgeSample
from pbgeval.storage.edges import EdgeSource
from pbgeval.worker.steps import in_step
from pbgeval.worker.work import Bench


@frozen(eq=False)
class Sampling:
    """A sample, and what its units are."""

    sample: EdgeSample
    by_chunk: bool
    with_target: bool  # rounds go on until the target is met
    rounds: tuple[int, ...] = ()  # those of the plan that the rounds of `sample` are

    @property
    def level(self) -> float:
        """The level of the intervals after the latest round, by its number in the plan: skipped rounds change none."""
        return round_level(self.rounds[-1]) if self.with_target else 0.95

    def only(self, rounds: Sequence[int]) -> Sampling:
        """Return the sample of some rounds of a plan, each of which draws what is missing to its total."""
        totals = tuple(self.sample.round_totals[number - 1] for number in rounds)
        return evolve(self, sample=self.sample.with_totals(totals), rounds=tuple(rounds))

    def rows_of_round(self, bench: Bench, round_number: int) -> EvaluatedRows:
        """Return the rows that a round adds."""
        chosen: dict[tuple[int, Bucket], RowsOfBucket] = {}
        for path_index, files in enumerate(bench.inputs.buckets):
            for bucket, file in sorted(files.items()):
                drawn = self.sample.draw(path_index, bucket, round_number)
                clusters = drawn.first_cluster + np.arange(len(drawn.units_U))
                if self.by_chunk:
                    chosen[path_index, bucket] = _rows_of_chunks(bench, file, drawn.units_U, clusters)
                else:
                    rows = _kept_rows(bench, file)
                    units = drawn.units_U
                    chosen[path_index, bucket] = RowsOfBucket(units if rows is None else rows[units], clusters, {})
        return EvaluatedRows(bench.inputs.restrictions, chosen)


def plan_sampling(bench: Bench) -> Sampling | None:
    """Decide on the sample; None where all edges are evaluated. Every worker takes part."""
    config = bench.inputs.config
    if config.sample_edges is None and config.target_error is None:
        return None
    if bench.inputs.featurized:
        key = "sample_edges" if config.sample_edges is not None else "target_error"
        raise ConfigError(
            f"{key}: expected None, as a type is featurized: its entities have no numbers; remove the key"
        )
    by_chunk = "sampled" in bench.inputs.candidates
    files = [
        (path_index, bucket, file)
        for path_index, files in enumerate(bench.inputs.buckets)
        for bucket, file in sorted(files.items())
    ]

    def count() -> dict[int, int]:
        mine = range(bench.team.rank_in_team, len(files), bench.team.size)
        return {number: _num_units(bench, files[number][2], by_chunk=by_chunk) for number in mine}

    counts: dict[int, int] = {}
    for of_worker in bench.team.gather_objects(in_step(bench.team, count)):
        counts |= of_worker
    population = [(path_index, bucket, counts[number]) for number, (path_index, bucket, _) in enumerate(files)]
    edges_per_unit = bench.settings.lists.chunk_size if by_chunk else 1
    if config.sample_edges is not None:
        num_draws = math.ceil(config.sample_edges / edges_per_unit)
        return Sampling(EdgeSample.of_size(population, num_draws, config.seed), by_chunk, with_target=False)
    first_units = math.ceil(FIRST_ROUND_EDGES / edges_per_unit)
    return Sampling(EdgeSample.of_rounds(population, config.seed, first_units), by_chunk, with_target=True)


def _num_units(bench: Bench, file: EdgeSource, *, by_chunk: bool) -> int:
    if by_chunk:
        size = bench.settings.lists.chunk_size
        return sum(_num_chunks(rows_E, size) for _, groups in _windows(bench, file) for rows_E in groups)
    rows = _kept_rows(bench, file)
    return file.num_edges if rows is None else len(rows)


def _kept_rows(bench: Bench, file: EdgeSource) -> np.ndarray | None:
    """Return the rows that restrictions leave, None for all."""
    if not bench.inputs.restrictions.drops_edges:
        return None
    parts = [np.empty(0, np.int64)]
    for _, start, stop in parts_of_file(file):
        parts.append(_kept(bench, file, start, stop)[0])
    return np.concatenate(parts)


def _kept(bench: Bench, file: EdgeSource, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
    """Return (rows, their relations) of the edges of a range that restrictions leave."""
    block = file.read(start, stop)
    if not bench.inputs.restrictions.drops_edges:
        return np.arange(start, stop), block.rel.numpy()
    kept = EvaluatedRows(bench.inputs.restrictions).kept(bench.numberer.numbered(file, block))
    return start + kept, block.rel.numpy()[kept]


def _windows(bench: Bench, file: EdgeSource) -> Iterator[tuple[int, list[np.ndarray]]]:
    """Yield (first row, rows of each group) of every window of a bucket, in the order in which the pass cuts chunks."""
    window_rows = bench.settings.lists.window_rows()
    is_whole = len(bench.settings.relations) == 1 and not bench.inputs.restrictions.drops_edges
    for start in range(0, file.num_edges, window_rows):
        stop = min(start + window_rows, file.num_edges)
        if is_whole:  # nothing has to be read
            yield start, [np.arange(start, stop)]
            continue
        rows, rel = _kept(bench, file, start, stop)
        if bench.settings.dynamic:
            rel = np.zeros_like(rel)
        groups = group_by_relation(torch.from_numpy(rel), torch.arange(len(rel))) if len(rel) else []
        yield start, [rows[group.rows_E.numpy()] for group in groups]


def _num_chunks(rows_E: np.ndarray, chunk_size: int) -> int:
    return -(-len(rows_E) // chunk_size)


def _rows_of_chunks(bench: Bench, file: EdgeSource, units: np.ndarray, clusters: np.ndarray) -> RowsOfBucket:
    """Return the rows of the chunks drawn from a bucket, with their clusters; and the chunks by window."""
    size = bench.settings.lists.chunk_size
    rows, cluster_of_row = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    of_windows: dict[int, np.ndarray] = {}
    before = 0  # chunks of the bucket before a group
    for start, groups in _windows(bench, file) if len(units) else ():
        before_window = before
        for rows_E in groups:
            first, stop = np.searchsorted(units, [before, before + _num_chunks(rows_E, size)])
            for unit, cluster in zip(units[first:stop].tolist(), clusters[first:stop].tolist(), strict=True):
                of_chunk = rows_E[(unit - before) * size :][:size]
                rows.append(of_chunk)
                cluster_of_row.append(np.full(len(of_chunk), cluster))
            before += _num_chunks(rows_E, size)
        first, stop = np.searchsorted(units, [before_window, before])
        of_windows[start] = units[first:stop] - before_window
    row_E, cluster_E = np.concatenate(rows), np.concatenate(cluster_of_row)
    order = np.argsort(row_E)
    return RowsOfBucket(row_E[order], cluster_E[order], of_windows)
