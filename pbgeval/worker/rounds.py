"""All evaluated edges in one round, or a sample round by round until the target is met."""

from __future__ import annotations

import numpy as np
from attrs import evolve

from pbgeval.distributed.resources import resident_bytes
from pbgeval.inputs.edges import EvaluatedRows
from pbgeval.inputs.memory import BYTES_PER_SCORE, check_sample
from pbgeval.metrics.intervals import Interval, sample_intervals
from pbgeval.metrics.sample_rounds import round_needed, should_stop
from pbgeval.report.document import Estimate
from pbgeval.worker.bucket_known import KnownOfBuckets
from pbgeval.worker.buckets import BucketTools, do_units
from pbgeval.worker.dimensions import group_classes, query_dimensions
from pbgeval.worker.edge_diagnostics import diagnose_edges
from pbgeval.worker.key_frequencies import count_keys
from pbgeval.worker.known import candidate_sets
from pbgeval.worker.per_edge import PerEdgeFiles, open_per_edge_files
from pbgeval.worker.record import Record
from pbgeval.worker.run_journal import RunJournal, share_names
from pbgeval.worker.sampling import Sampling, plan_sampling
from pbgeval.worker.steps import in_step
from pbgeval.worker.sweep import do_sweep
from pbgeval.worker.work import Bench, Found

FEW_CHUNKS = 30  # below, intervals of rare hits covered 86 to 92 % in simulations (decision 0009)


def do_rounds(bench: Bench, record: Record) -> Found:
    """Evaluate; every worker takes part, and comes to the same end."""
    planned = plan_sampling(bench)
    if planned is None:
        num_scores = bench.settings.auc.num_scores(bench.inputs.num_edges * len(bench.settings.sides))
        bench = evolve(bench, held_bytes=num_scores * BYTES_PER_SCORE[bench.work.protocol.filtered])
    sampling = planned
    files = open_per_edge_files(bench)
    rounds, found, scratch_path = list[int](), None, bench.scratch.path  # rounds that were planned, and are done
    number: int | None = 1
    while number is not None:
        rounds.append(number)
        bench = evolve(bench, journal=RunJournal(bench.journal.journal, f"round-{number}/"))
        if planned is not None:
            sampling = planned.only(rounds)
            # A folder of its own: keys are numbered anew, and another round's answers must not be read for this one's.
            scratch = evolve(bench.scratch, path=scratch_path / f"round-{number}")
            bench = evolve(bench, scratch=scratch)
            evaluated, held = _begin_round(bench, sampling)
            bench = evolve(bench, evaluated=evaluated, held_bytes=held)
        by_chunk = sampling is not None and sampling.by_chunk
        found = _do_round(bench, record, files, number, by_chunk=by_chunk)
        number = None if planned is None or sampling is None else _next_round(bench, record, planned, sampling)
    in_step(bench.team, files.close)
    in_step(bench.team, lambda: files.write_tables(bench))
    assert found is not None, "there is at least one round"
    found = evolve(found, edges=diagnose_edges(bench))
    return found if sampling is None else evolve(found, estimate=_estimate(bench, record, sampling))


def _begin_round(bench: Bench, sampling: Sampling) -> tuple[EvaluatedRows, int]:
    """Make the folder that workers share in the latest round; return the rows to evaluate, and the sample's bytes."""

    def begin() -> tuple[EvaluatedRows, int]:
        # All of it comes to worker 0, however many workers there are.
        per_unit = (bench.settings.lists.chunk_size if sampling.by_chunk else 1) * len(bench.settings.sides)
        num_queries = min(
            sampling.sample.round_totals[-1] * per_unit, bench.inputs.num_edges * len(bench.settings.sides)
        )
        num_scores = bench.settings.auc.num_scores(num_queries)
        limit, filtered = bench.inputs.config.max_memory_bytes, bench.work.protocol.filtered
        held = check_sample(limit, resident_bytes(), num_queries, num_scores, filtered=filtered)
        if bench.team.rank_in_team == 0:
            bench.scratch.make()
        return sampling.rows_of_round(bench, sampling.sample.num_rounds), held

    return in_step(bench.team, begin)


def _do_round(bench: Bench, record: Record, files: PerEdgeFiles, round_number: int, *, by_chunk: bool) -> Found:
    if bench.work.protocol.sweeps:
        return do_sweep(bench, record, files)
    tools = BucketTools(
        sets=candidate_sets(bench, np.arange(bench.inputs.num_relations)),
        dimensions=query_dimensions(bench, np.arange(bench.numberer.numbering.num_entities)),
        frequencies=count_keys(bench) if bench.work.protocol.counts_keys and bench.evaluated.sample is None else None,
        known=KnownOfBuckets(bench) if bench.work.protocol.filtered else None,
        files=files,
        by_chunk=by_chunk,
    )
    done = set(bench.journal.look(bench.team, bench.work.observer, share_names))
    watch = bench.team.watch(f"round/{round_number}")
    num_loads = in_step(bench.team, lambda: do_units(bench, record, tools, round_number, done, watch), watch)
    return Found(num_loads, in_step(bench.team, lambda: group_classes(bench, tools.dimensions.training)))


def _next_round(bench: Bench, record: Record, planned: Sampling, sampling: Sampling) -> int | None:
    """Move the round's queries to worker 0, which decides for all which round is needed, if any."""
    record.sample.gather(bench.team)
    done = sampling.rounds[-1]
    if not sampling.with_target or done == planned.sample.num_rounds:
        return None
    number: int | None = None
    if bench.team.rank_in_team == 0:
        config = bench.inputs.config
        target_error = config.target_error or 0.0
        target = _intervals(bench, record, sampling, [config.target_key]).get(config.target_key)
        if not should_stop(target, target_error):
            number = round_needed(target, target_error, done, planned.sample.round_totals)
    return bench.team.broadcast_object(number)


def _intervals(
    bench: Bench, record: Record, sampling: Sampling, keys: list[str] | None, path_index: int | None = None
) -> dict[str, Interval]:
    return sample_intervals(
        record.sample.queries(path_index),
        sampling.sample.design(sampling.sample.num_rounds),
        bench.settings.sides,
        bench.settings.layout.cutoffs,
        level=sampling.level,
        keys=keys,
    )


def _estimate(bench: Bench, record: Record, sampling: Sampling) -> Estimate | None:
    """Return what the report says of the sample, on worker 0."""
    if bench.team.rank_in_team != 0:
        return None
    record.sample.add_key_frequencies(record.grouped)
    num_rounds = sampling.sample.num_rounds
    num_units, is_population = sampling.sample.round_totals[-1], sampling.sample.is_complete(num_rounds)
    if sampling.by_chunk and num_units < FEW_CHUNKS and not is_population:
        bench.work.observer.warn(
            f"only {num_units} chunks were sampled: intervals of rare hits may cover less than they say; "
            "sample more edges"
        )
    return Estimate(
        unit="chunk" if sampling.by_chunk else "edge",
        design=sampling.sample.design(num_rounds),
        rounds=num_rounds,
        level=sampling.level,
        is_population=is_population,
        intervals=_intervals(bench, record, sampling, None),
        intervals_of_paths=[
            _intervals(bench, record, sampling, None, path_index) for path_index in range(len(bench.inputs.buckets))
        ],
    )
