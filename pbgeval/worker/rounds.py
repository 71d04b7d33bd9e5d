"""All evaluated edges in one round, or a sample round by round until the target is met."""

from __future__ import annotations

import numpy as np
from attrs import evolve

from pbgeval.inputs.edges import EvaluatedRows
from pbgeval.metrics.intervals import Interval, round_level, sample_intervals, should_stop
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
    sampling = plan_sampling(bench)
    files = open_per_edge_files(bench)
    round_number, go_on, found, scratch_path = 0, True, None, bench.scratch.path
    while go_on:
        round_number += 1
        bench = evolve(bench, journal=RunJournal(bench.journal.journal, f"round-{round_number}/"))
        if sampling is not None:
            # A folder of its own: keys are numbered anew, and another round's answers must not be read for this one's.
            scratch = evolve(bench.scratch, path=scratch_path / f"round-{round_number}")
            bench = evolve(bench, scratch=scratch)
            bench = evolve(bench, evaluated=_begin_round(bench, sampling, round_number))
        by_chunk = sampling is not None and sampling.by_chunk
        found = _do_round(bench, record, files, round_number, by_chunk=by_chunk)
        go_on = sampling is not None and _goes_on(bench, record, sampling, round_number)
    in_step(bench.team, files.close)
    in_step(bench.team, lambda: files.write_tables(bench))
    assert found is not None, "there is at least one round"
    found = evolve(found, edges=diagnose_edges(bench))
    return found if sampling is None else evolve(found, estimate=_estimate(bench, record, sampling, round_number))


def _begin_round(bench: Bench, sampling: Sampling, round_number: int) -> EvaluatedRows:
    """Make the folder that workers share in the round; return the rows that each evaluates."""

    def begin() -> EvaluatedRows:
        if bench.team.rank_in_team == 0:
            bench.scratch.make()
        return sampling.rows_of_round(bench, round_number)

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


def _goes_on(bench: Bench, record: Record, sampling: Sampling, round_number: int) -> bool:
    """Move the round's queries to worker 0, which decides for all whether another round is needed."""
    record.sample.gather(bench.team)
    is_last = not sampling.with_target or round_number == sampling.sample.num_rounds
    if is_last:
        return False
    decision: bool | None = None
    if bench.team.rank_in_team == 0:
        config = bench.inputs.config
        intervals = _intervals(bench, record, sampling, round_number, [config.target_key])
        target = intervals.get(config.target_key)
        decision = not should_stop(target, config.target_error or 0.0)
    return bench.team.broadcast_object(decision)


def _intervals(
    bench: Bench,
    record: Record,
    sampling: Sampling,
    round_number: int,
    keys: list[str] | None,
    path_index: int | None = None,
) -> dict[str, Interval]:
    return sample_intervals(
        record.sample.queries(path_index),
        sampling.sample.design(round_number),
        bench.settings.sides,
        bench.settings.layout.cutoffs,
        level=round_level(round_number) if sampling.with_target else 0.95,
        keys=keys,
    )


def _estimate(bench: Bench, record: Record, sampling: Sampling, round_number: int) -> Estimate | None:
    """Return what the report says of the sample, on worker 0."""
    if bench.team.rank_in_team != 0:
        return None
    record.sample.add_key_frequencies(record.grouped)
    num_units = sampling.sample.round_totals[round_number - 1]
    if sampling.by_chunk and num_units < FEW_CHUNKS and not sampling.sample.is_complete(round_number):
        bench.work.observer.warn(
            f"only {num_units} chunks were sampled: intervals of rare hits may cover less than they say; "
            "sample more edges"
        )
    return Estimate(
        unit="chunk" if sampling.by_chunk else "edge",
        num_units=num_units,
        population=sampling.sample.num_units,
        num_strata=len(sampling.sample.strata),
        rounds=round_number,
        level=round_level(round_number) if sampling.with_target else 0.95,
        is_population=sampling.sample.is_complete(round_number),
        intervals=_intervals(bench, record, sampling, round_number, None),
        intervals_of_paths=[
            _intervals(bench, record, sampling, round_number, None, path_index)
            for path_index in range(len(bench.inputs.buckets))
        ],
    )
