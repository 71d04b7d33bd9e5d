"""All evaluated edges in one round, or a sample round by round until the target is met."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch
from attrs import define, evolve, frozen

from pbgeval.cluster.resources import resident_bytes
from pbgeval.errors import ConfigError
from pbgeval.inputs.edge_sample import FIRST_ROUND_EDGES, EdgeSample
from pbgeval.inputs.edges import EvaluatedRows, RowsOfBucket, kept_rows
from pbgeval.inputs.memory_check import bytes_of_pools
from pbgeval.inputs.partitions import check_sample
from pbgeval.metrics.intervals import Interval, round_level, round_needed, sample_intervals
from pbgeval.notation import Bucket
from pbgeval.ranking.chunks import group_by_relation
from pbgeval.results.document import SampleEstimate
from pbgeval.storage.edges import EdgeSource
from pbgeval.worker.context import WorkerContext
from pbgeval.worker.journal import RunJournal
from pbgeval.worker.record import Record

# `sample_edges`, `target_error` -> which rows of the bucket files are evaluated in each round, and in which cluster.
#
# A cluster is an edge with its two queries or, where candidates are sampled, a chunk of edges that share a list. Every
# worker comes to the same sample: it follows from the seed and the numbers of units alone.


@frozen(eq=False)
class Sampling:
    """A plan of rounds, what is drawn in them, and which of them are done."""

    plan: EdgeSample
    chunk_size: int | None  # of the chunks that are drawn; None: edges are
    with_target: bool  # rounds go on until the target is met
    rounds: tuple[int, ...] = ()  # by their numbers in the plan; the last one may be in hand

    @property
    def sample(self) -> EdgeSample:
        """Cumulative sample sizes; each round draws the difference."""
        return evolve(self.plan, round_totals=tuple(self.plan.round_totals[number - 1] for number in self.rounds))

    @property
    def level(self) -> float:
        """The level of the intervals after the latest round, by its number in the plan: skipped rounds change none."""
        return round_level(self.rounds[-1]) if self.with_target else 0.95


def plan_sampling(context: WorkerContext) -> Sampling | None:
    """Decide on the sample; None where all edges are evaluated, also because so many are asked for. All take part."""
    config = context.inputs.config
    if not config.samples_edges:
        return None
    context.work.observer.phase("drawing the sample")
    if context.inputs.featurized:
        key = "sample_edges" if config.sample_edges is not None else "target_error"
        raise ConfigError(f"{key}: needs entity ids, but an entity type is featurized; remove the key")
    chunk_size = context.settings.lists.chunk_size if "sampled" in context.inputs.candidates else None
    own = []
    with context.collectively():
        for path_index, bucket, file in context.team.share([*context.inputs.files]):
            if chunk_size is not None:
                groups = (rows_E for _, of_window in _windows(context, file) for rows_E in of_window)
                num_units = sum(_num_chunks(rows_E, chunk_size) for rows_E in groups)
            else:
                rows = kept_rows(context.numberer, file)
                num_units = file.num_edges if rows is None else len(rows)
            own.append((path_index, bucket, num_units))
    population = sorted(part for of_worker in context.team.gather_objects(own) for part in of_worker)
    plan = (
        EdgeSample.of_rounds(population, config.seed, math.ceil(FIRST_ROUND_EDGES / (chunk_size or 1)))
        if config.sample_edges is None
        else EdgeSample.of_size(population, math.ceil(config.sample_edges / (chunk_size or 1)), config.seed)
    )
    if config.sample_edges is not None and plan.round_totals[-1] == plan.num_units:
        if context.team.rank_in_team == 0:
            told = f"{plan.num_units:,} {'edges' if chunk_size is None else 'chunks of edges'}"
            context.work.observer.note(f"sample_edges={config.sample_edges}: all {told} are evaluated")
        return None
    return Sampling(plan, chunk_size, with_target=config.sample_edges is None)


def _windows(context: WorkerContext, file: EdgeSource) -> Iterator[tuple[int, list[np.ndarray]]]:
    """Yield (first row, rows of each group) of every window of a bucket, in the order in which the pass cuts chunks."""
    window_rows = context.settings.lists.window_rows()
    drops_edges = context.inputs.restrictions.drops_edges
    is_whole = len(context.settings.relations) == 1 and not drops_edges
    for start in range(0, file.num_edges, window_rows):
        rows = np.arange(start, min(start + window_rows, file.num_edges))
        if is_whole:  # nothing has to be read
            yield start, [rows]
            continue
        block = file.read(start, start + len(rows))
        rel = block.rel.numpy()
        if drops_edges:
            kept = EvaluatedRows(context.inputs.restrictions).kept(context.numberer.numbered(file, block))
            rows, rel = rows[kept], rel[kept]
        of_group = torch.from_numpy(np.zeros_like(rel) if context.settings.dynamic else rel)
        groups = group_by_relation(of_group, torch.arange(len(rel)))
        yield start, [rows[rows_E.numpy()] for rows_E in groups.values()]


def _num_chunks(rows_E: np.ndarray, chunk_size: int) -> int:
    return -(-len(rows_E) // chunk_size)


def _rows_of_chunks(context: WorkerContext, file: EdgeSource, units: np.ndarray, clusters: np.ndarray) -> RowsOfBucket:
    """Return the rows of the chunks drawn from a bucket, with their clusters; and the chunks by window."""
    size = context.settings.lists.chunk_size
    drawn = [np.empty((2, 0), np.int64)]  # rows and their clusters
    of_windows: dict[int, np.ndarray] = {}
    before = 0  # chunks of the bucket before a group
    for start, groups in _windows(context, file) if len(units) else ():
        before_window = before
        for rows_E in groups:
            first, stop = np.searchsorted(units, [before, before + _num_chunks(rows_E, size)])
            for unit, cluster in zip(units[first:stop].tolist(), clusters[first:stop].tolist(), strict=True):
                of_chunk = rows_E[(unit - before) * size :][:size]
                drawn.append(np.stack([of_chunk, np.full(len(of_chunk), cluster)]))
            before += _num_chunks(rows_E, size)
        first, stop = np.searchsorted(units, [before_window, before])
        of_windows[start] = units[first:stop] - before_window
    row_E, cluster_E = np.concatenate(drawn, axis=1)
    order = np.argsort(row_E)
    return RowsOfBucket(row_E[order], cluster_E[order], of_windows)


FEW_CHUNKS = 30  # below, intervals of rare hits covered 86 to 92 % in simulations (decision 0009)


@define(eq=False)
class Rounds:
    """All evaluated edges in one round, or a sample round by round until the target is met."""

    context: WorkerContext  # of the round in hand, or the latest
    record: Record
    sampling: Sampling | None  # None: all edges are evaluated

    @classmethod
    def plan(cls, context: WorkerContext, record: Record) -> Rounds:
        """Decide on the sample, if there is one; every worker takes part."""
        sampling = plan_sampling(context)
        if sampling is None:
            context = evolve(context, held_bytes=bytes_of_pools(context.inputs, context.work.protocol))
        return cls(context, record, sampling)

    def __iter__(self) -> Iterator[WorkerContext]:
        """Begin a round, whose edges the caller ranks, until no further one is needed; every worker takes part."""
        scratch_path = self.context.scratch.path
        number: int | None = 1
        earlier = 0  # edges of the rounds that are done
        while number is not None:
            # Which rows a round adds depends on the rounds before it: 1, 4 is not 1, 2, 3, 4.
            path = (number,) if self.sampling is None else (*self.sampling.rounds, number)
            name = f"round-{'-'.join(map(str, path))}"
            journal = RunJournal(self.context.journal.journal, f"{name}{self.context.scored_by}/")
            self.context = context = evolve(self.context, journal=journal)
            if self.sampling is not None:
                self.sampling = sampling = evolve(self.sampling, rounds=path)
                # A folder of its own: keys are numbered anew, and another round's answers must not be read for this.
                context = evolve(context, scratch=evolve(context.scratch, path=scratch_path / name))
                self.context = context = _begin_round(context, sampling)
                self.record.share_pools(context.pool_share)
                context.work.observer.round_started(
                    earlier,
                    context.evaluated.num_sampled,
                    is_last=number > 1 or not sampling.with_target or sampling.plan.num_rounds == 1,
                )
                earlier += context.evaluated.num_sampled
            yield context
            number = None if self.sampling is None else _next_round(context, self.record, self.sampling)

    def estimate(self) -> SampleEstimate | None:
        """Return what the report says of the sample, on worker 0; None where all edges are evaluated."""
        return None if self.sampling is None else _estimate(self.context, self.record, self.sampling)


def _begin_round(context: WorkerContext, sampling: Sampling) -> WorkerContext:
    """Make the folder that workers share in the latest round; return the context with the rows to evaluate."""
    sample = sampling.sample
    with context.collectively():
        # All of it comes to worker 0, however many workers there are.
        num_edges = min(sample.round_totals[-1] * (sampling.chunk_size or 1), context.inputs.num_edges)
        num_queries = num_edges * len(context.settings.sides)
        share = context.settings.auc.share_of_round(num_queries) if sampling.with_target else 1.0
        held = check_sample(
            context.inputs.config.max_memory_bytes,
            resident_bytes(),
            num_queries,
            math.ceil(share * context.settings.auc.num_scores(num_queries)),
            filtered=context.work.protocol.filtered,
        )
        if context.team.rank_in_team == 0:
            context.scratch.make()
        chosen: dict[tuple[int, Bucket], RowsOfBucket] = {}
        for path_index, bucket, file in context.inputs.files:
            units, first_cluster = sample.draw(path_index, bucket, sample.num_rounds)  # what the latest round adds
            clusters = first_cluster + np.arange(len(units))
            if sampling.chunk_size is not None:
                chosen[path_index, bucket] = _rows_of_chunks(context, file, units, clusters)
            else:
                rows = kept_rows(context.numberer, file)
                chosen[path_index, bucket] = RowsOfBucket(units if rows is None else rows[units], clusters, {})
        evaluated = EvaluatedRows(context.inputs.restrictions, chosen)
        return evolve(context, evaluated=evaluated, pool_share=share, held_bytes=held)


def _next_round(context: WorkerContext, record: Record, sampling: Sampling) -> int | None:
    """Gather the round's queries on worker 0, which decides which round is needed next, if any."""
    record.sample.gather(context.team)
    done = sampling.rounds[-1]
    if not sampling.with_target or done == sampling.plan.num_rounds:
        return None
    needed = done
    if context.team.rank_in_team == 0:
        config = context.inputs.config
        target = _intervals(context, record, sampling, [config.target_key]).get(config.target_key)
        needed = round_needed(target, config.target_error or 0.0, done, sampling.plan.round_totals)
    needed = context.team.broadcast_object(needed)
    return None if needed == done else needed


def _intervals(
    context: WorkerContext, record: Record, sampling: Sampling, keys: list[str] | None, path_index: int | None = None
) -> dict[str, Interval]:
    return sample_intervals(
        record.sample.queries(path_index),
        sampling.sample.design(len(sampling.rounds)),
        context.settings.sides,
        context.settings.layout.cutoffs,
        level=sampling.level,
        keys=keys,
    )


def _estimate(context: WorkerContext, record: Record, sampling: Sampling) -> SampleEstimate | None:
    """Return what the report says of the sample, on worker 0."""
    if context.team.rank_in_team != 0:
        return None
    record.sample.add_key_frequencies(record.grouped)
    sample = sampling.sample
    num_units = sample.round_totals[-1]
    design = sample.design(len(sampling.rounds))
    if sampling.chunk_size is not None and num_units < FEW_CHUNKS and not design.is_population:
        context.work.observer.warn(
            f"only {num_units} chunks were sampled: intervals of rare hits may cover less than they say; "
            "sample more edges"
        )
    return SampleEstimate(
        unit="edge" if sampling.chunk_size is None else "chunk",
        design=design,
        rounds=len(sampling.rounds),
        level=sampling.level,
        pool_share=context.pool_share,
        intervals=_intervals(context, record, sampling, None),
        intervals_of_paths=[
            _intervals(context, record, sampling, None, path_index) for path_index in range(len(context.inputs.buckets))
        ],
    )
