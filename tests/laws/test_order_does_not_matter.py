"""Statistics add: any order, any split of the queries, any number of workers and any block size give the same bits."""

from __future__ import annotations

import json
import pickle
import tempfile
import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from attrs import define, field
from hypothesis import given, settings
from hypothesis import strategies as st

from pbgeval.cluster.claim import Ownership, describe_process
from pbgeval.cluster.team import Team
from pbgeval.config import EvalConfig
from pbgeval.inputs.dispatch import equal_parts
from pbgeval.inputs.edge_files import buckets_of_files
from pbgeval.inputs.opening import open_inputs
from pbgeval.inputs.protocol import make_protocol
from pbgeval.notation import ENDS, Bucket, WorkUnit, slice_units, window_units
from pbgeval.progress import Observer
from pbgeval.report.report import Report
from pbgeval.stats.groups import GroupKey, GroupStats, ScorePool, sortable_int32
from pbgeval.stats.histograms import RankHistograms
from pbgeval.stats.keyed_sums import MAX_DENSE_VALUES, KeyedSums
from pbgeval.stats.rank_stats import (
    FRACTION_BITS,
    LOSS_FRACTION_BITS,
    MAX_LOSS,
    MAX_QUERIES,
    RankStats,
    StatsLayout,
)
from pbgeval.stats.ranks import RankCounts
from pbgeval.worker.context import Work
from pbgeval.worker.run import do_work
from tests.examples import examples
from tests.kit.counts import counts_of

LAYOUT = StatsLayout((1, 3, 10))
KEYS = tuple(GroupKey(path, Bucket(0, rhs), side) for path in range(2) for rhs in range(2) for side in ENDS)

# (better, tied, beaten) of a query, now and then of a size that only a huge graph has
sizes = st.one_of(st.integers(0, 4), st.integers(0, 1 << 22), st.integers(0, 1 << 40))
queries = st.tuples(sizes, sizes, sizes)
losses = st.floats(0, 1e6)
scores = st.lists(st.sampled_from([-np.inf, -1.5, -0.0, 0.0, 0.25, np.inf]), max_size=5)


def side_stats(
    of: Sequence[tuple[tuple[int, int, int], float, list[float]]],
) -> tuple[RankStats, RankCounts, ScorePool]:
    counts = counts_of([query for query, _, _ in of])
    loss_Q = torch.tensor([loss for _, loss, _ in of], dtype=torch.float64)
    stats = RankStats.from_queries(LAYOUT, counts, num_short_lists=len(of), num_excluded=2 * len(of), loss_Q=loss_Q)
    images = [sortable_int32(torch.tensor(values)) for _, _, values in of]
    return stats, counts, ScorePool(images[:1], images[1:])


def bits(parts: Sequence[tuple[RankStats, RankCounts, ScorePool]]) -> list[Any]:
    """Every bit of the statistics; the pools' scores are unordered."""
    groups = GroupStats.zero(LAYOUT, KEYS)
    for part in parts:
        groups.add(KEYS[0], *part)
    pool, histograms = groups.pools[KEYS[0]].sort(), groups.side_histograms(KEYS[0].side)
    arrays = [array.tolist() for part in histograms.parts for array in (part.keys, part.counts)]
    return [groups.rank_stats(KEYS[0].side).sums.tolist(), arrays, len(pool.true) + len(pool.competing)]


@given(st.lists(st.tuples(queries, losses, scores), max_size=12), st.integers(1, 5), st.randoms(use_true_random=False))
def test_any_split_of_the_queries_in_any_order_gives_the_same_bits(of, num_parts, chance):
    parts = [[] for _ in range(num_parts)]
    for query in chance.sample(of, len(of)):
        chance.choice(parts).append(query)

    assert bits([side_stats(of)])[:2] == bits([side_stats(part) for part in parts])[:2]


@given(st.lists(st.integers(0, 2 * MAX_DENSE_VALUES), max_size=20), st.lists(st.integers(0, 1 << 40), max_size=20))
def test_sparse_counts_are_counters(first, second):
    def count(values: list[int]) -> KeyedSums:
        return KeyedSums.from_values(torch.tensor(values, dtype=torch.int64))

    added = count(first) + count(second)

    expected = sorted(Counter(first + second).items())
    assert list(zip(added.keys.tolist(), added.counts.tolist(), strict=True)) == expected
    assert sorted(Counter(second + first).items()) == expected


def test_sums_over_more_than_ten_billion_queries_do_not_overflow():
    """Doubled 32 times, the largest values that a query can add still make Python's sums."""
    largest, loss = (1 << 40) - 1, MAX_LOSS - 1
    of = [(0, 0, 7), (largest, 0, 0), (largest, largest, 0), (0, 0, 0)]
    stats, _, _ = side_stats(
        [(query, of_query, []) for query, of_query in zip(of, (loss, loss, 0.5, 0.0), strict=True)]
    )
    for _ in range(32):
        stats = stats + stats

    times = 1 << 32
    assert MAX_QUERIES == 4 * times > 10**10
    assert 4 * times == stats.total("num_queries")
    assert times * (7 + largest + 2 * largest) == stats.total("num_competitors")
    beyond = [0, 2 * largest, 2 * largest, 0], [0, 2 * largest, 3 * largest, 0]  # the first rank, in halves
    expected = {
        "optimistic.mean_rank": beyond[0],
        "realistic.mean_rank": beyond[1],
        "realistic.mean_reciprocal_rank": [round(2.0 / (2 + value) * 2.0**FRACTION_BITS) for value in beyond[1]],
        "loss": [round(value * 2**LOSS_FRACTION_BITS) for value in (loss, loss, 0.5, 0.0)],
    }
    assert {name: times * sum(of) for name, of in expected.items()} == {name: stats.total(name) for name in expected}


@pytest.mark.slow
@settings(max_examples=examples(40))
@given(st.lists(st.lists(st.tuples(queries, losses, scores), max_size=3), min_size=len(KEYS), max_size=len(KEYS)))
def test_what_a_worker_packs_is_what_worker_0_adds(of_groups):
    sender, receiver = GroupStats.zero(LAYOUT, KEYS), GroupStats.zero(LAYOUT, KEYS)
    for key, of in zip(KEYS, of_groups, strict=True):
        sender.add(key, *side_stats(of))
        receiver.add(key, *side_stats(of[:1]))
    before = {key: receiver.pools[key].sort() for key in KEYS}

    receiver.add_sparse(sender.pack_sparse())

    for key in KEYS:
        pool, sent = receiver.pools[key].sort(), sender.pools[key].sort()
        assert sorted([*before[key].true, *sent.true]) == pool.true.tolist()
        assert sorted([*before[key].competing, *sent.competing]) == pool.competing.tolist()
    for side in ENDS:
        mine = [query for key, of in zip(KEYS, of_groups, strict=True) if key.side is side for query in of + of[:1]]
        expected = RankHistograms.from_queries(counts_of([query for query, _, _ in mine]))
        for one, two in zip(expected.parts, receiver.side_histograms(side).parts, strict=True):
            assert (one.keys.tolist(), one.counts.tolist()) == (two.keys.tolist(), two.counts.tolist())


# Units


def units_of(sizes: Sequence[int], window: int) -> list[WorkUnit]:
    return [unit for at, size in enumerate(sizes) for unit in window_units(0, Bucket(0, at), size, window)]


@given(st.lists(st.integers(0, 30), max_size=8), st.integers(1, 9), st.integers(1, 12))
def test_workers_share_the_units_without_gap_or_overlap(sizes, window, team_size):
    units = units_of(sizes, window)

    shares = equal_parts(units, team_size)

    assert units == [unit for share in shares for unit in share]
    largest = max((unit.num_edges for unit in units), default=0)
    assert [
        share for share in shares if not sum(unit.num_edges for unit in share) <= sum(sizes) / team_size + largest
    ] == []


@given(st.integers(0, 60), st.integers(1, 20))
def test_windows_cover_a_bucket_and_begin_at_multiples_of_their_size(num_edges, window):
    units = list(window_units(3, Bucket(1, 2), num_edges, window))

    assert list(range(num_edges)) == [row for unit in units for row in range(unit.start, unit.stop)]
    assert all(unit.start % window == 0 and 0 < unit.num_edges <= window for unit in units)
    assert all((3, Bucket(1, 2)) == unit[:2] for unit in units)


@given(st.integers(0, 60), st.integers(1, 20))
def test_slices_cover_a_bucket_as_pbg_cuts_it(num_edges, num_slices):
    units = list(slice_units(0, Bucket(0, 0), num_edges, num_slices))

    assert list(range(num_edges)) == [row for unit in units for row in range(unit.start, unit.stop)]
    assert len(units) <= num_slices
    assert all(-(-num_edges // num_slices) == unit.num_edges for unit in units[:-1])


# Whole evaluations


@define(eq=False)
class Board:
    """Where the workers of a team, threads of this process, leave values for each other."""

    size: int
    values: list[Any] = field(init=False)
    counters: dict[str, int] = field(factory=dict)
    lock: threading.Lock = field(factory=threading.Lock)
    barrier: threading.Barrier = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.values = [None] * self.size
        self.barrier = threading.Barrier(self.size)


@define(eq=False)
class ThreadTeam(Team):
    """A worker of a team whose workers are threads of this process."""

    board: Board = field(kw_only=True)

    def sum_(self, table: torch.Tensor) -> torch.Tensor:
        table.copy_(sum(self.gather_objects(table.clone())))
        return table

    def gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        parts = self.gather_objects(tensor)  # which all of them take part in
        return parts if self.rank_in_team == 0 else []

    def gather_objects(self, value: Any) -> list[Any]:
        self.board.values[self.rank_in_team] = value
        self.board.barrier.wait()
        values = list(self.board.values)
        self.board.barrier.wait()
        return values

    def broadcast_object(self, value: Any) -> Any:
        return pickle.loads(pickle.dumps(self.gather_objects(value)[0]))  # a copy, as between processes

    def add(self, counter: str, amount: int, /) -> int:
        with self.board.lock:
            self.board.counters[counter] = self.board.counters.get(counter, 0) + amount
            return self.board.counters[counter]


def result_of(config: EvalConfig, team_size: int) -> Report:
    """The report of a team of threads; edges may be files, too."""
    with tempfile.TemporaryDirectory() as output, buckets_of_files(config, None, Observer()) as in_buckets:
        return result_in(in_buckets, team_size, Path(output))


def result_in(config: EvalConfig, team_size: int, output: Path) -> Report:
    inputs = open_inputs(config)
    owner = Ownership(output, describe_process("here", {}), pytest.fail)
    owner.acquire()
    work = Work(inputs, make_protocol(inputs), {}, "cpu", Observer(), 0.0, output, owner.claim)
    board = Board(team_size)

    def work_as(rank_in_team: int) -> Any:
        # So many workers on this host that each takes one thread.
        team = ThreadTeam(rank_in_team, team_size, local_size=64, nonce="threads", board=board)
        try:
            return do_work(work, team)
        except BaseException:
            board.barrier.abort()  # a bug: the others must not wait for ever
            raise

    try:
        with ThreadPoolExecutor(team_size) as pool:
            outcome, *_ = pool.map(work_as, range(team_size))
    finally:
        owner.release()
    assert outcome.faults == ()
    assert outcome.report is not None
    return outcome.report


def comparable(report: Report) -> str:
    """All that is written but `run`: it must be the same, byte by byte."""
    document = report.to_dict()
    tables = [[name, list(rows)] for name, rows in report.rows.items()]
    return json.dumps([document, *tables], sort_keys=True, default=dict)


SMALL_BLOCKS = {
    "worker.diagnostics.TRAINING_ROWS_AT_A_TIME": 3,
    "worker.diagnostics.SIEVE_CELLS": 4,
    "ranking.chunks.ENTRIES_PER_BLOCK": 20,
    "ranking.sampled.CELLS_AT_A_TIME": 30,
    "scoring.entities.ROWS_AT_A_TIME": 2,
    "ranking.kernels.QUERIES_PER_BLOCK": 3,
    "ranking.kernels.CANDIDATES_PER_BLOCK": 2,
    "ranking.ranking_pass.CELLS_AT_A_TIME": 2,
    "ranking.bucket_pass.BYTES_PER_RANGE": 40,
    "ranking.contest_state.KEYS_AT_A_TIME": 2,
    "ranking.contest_state.QUERIES_AT_A_TIME": 3,
    "ranking.contest_state.ROWS_AT_A_TIME": 4,
    "inputs.partitions.MAX_ROWS_PER_RANGE": 3,
    "inputs.partitions.MAX_KNOWN_ROWS": 3,
    "inputs.partitions.PAIRS_BYTES": 16,
    "worker.finish.EDGES_AT_A_TIME": 4,
    "inputs.edges.ROWS_AT_A_TIME": 3,
}


def with_constants(stack: ExitStack, constants: dict[str, int]) -> None:
    for name, value in constants.items():
        stack.enter_context(mock.patch(f"pbgeval.{name}", value))
