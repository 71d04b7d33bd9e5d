"""Statistics add: any order, any split of the queries, any number of workers and any block size give the same bits."""

from __future__ import annotations

import json
import pickle
import tempfile
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from attrs import define, field
from hypothesis import given
from hypothesis import strategies as st

from pbgeval.cluster.claim import Claim, Ownership, describe_process
from pbgeval.cluster.team import Team
from pbgeval.config import EvalConfig
from pbgeval.evaluation import in_buckets
from pbgeval.inputs.opening import open_inputs
from pbgeval.inputs.protocol import make_protocol
from pbgeval.progress import Observer
from pbgeval.report.report import Report, report_of
from pbgeval.results.result import Result
from pbgeval.stats.keyed_sums import MAX_DENSE_VALUES, KeyedSums
from pbgeval.stats.rank_stats import (
    FRACTION_BITS,
    LOSS_FRACTION_BITS,
    MAX_LOSS,
    MAX_QUERIES,
    RankStats,
    StatsLayout,
)
from pbgeval.worker.context import Work
from pbgeval.worker.run import do_work
from tests.kit.counts import counts_of

LAYOUT = StatsLayout((1, 3, 10))


@given(st.lists(st.integers(0, 2 * MAX_DENSE_VALUES), max_size=20), st.lists(st.integers(0, 1 << 40), max_size=20))
def test_sparse_counts_are_counters(first, second):
    one, two = (KeyedSums.from_values(torch.tensor(values, dtype=torch.int64)) for values in (first, second))

    for added in (one + two, two + one):
        found = list(zip(added.keys.tolist(), added.counts.tolist(), strict=True))
        assert found == sorted(Counter(first + second).items())


def test_sums_over_more_than_ten_billion_queries_do_not_overflow():
    """Doubled 32 times, the largest values that a query can add still make Python's sums."""
    largest, losses, times = (1 << 40) - 1, [MAX_LOSS - 1, MAX_LOSS - 1, 0.5, 0.0], 1 << 32
    counts = counts_of([(0, 0, 7), (largest, 0, 0), (largest, largest, 0), (0, 0, 0)])
    stats = RankStats.from_queries(LAYOUT, counts, loss_Q=torch.tensor(losses, dtype=torch.float64))
    for _ in range(32):
        stats = stats + stats

    assert MAX_QUERIES == 4 * times > 10**10
    beyond = [0, 2 * largest, 2 * largest, 0], [0, 2 * largest, 3 * largest, 0]  # the first rank, in halves
    expected = {
        "num_queries": [1] * 4,
        "num_competitors": [7, largest, 2 * largest, 0],
        "optimistic.mean_rank": beyond[0],
        "realistic.mean_rank": beyond[1],
        "realistic.mean_reciprocal_rank": [round(2.0 / (2 + value) * 2.0**FRACTION_BITS) for value in beyond[1]],
        "loss": [round(value * 2**LOSS_FRACTION_BITS) for value in losses],
    }
    assert {name: times * sum(of) for name, of in expected.items()} == {name: stats.total(name) for name in expected}


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

    def sum_(self, table: torch.Tensor) -> None:
        table.copy_(sum(self.gather_objects(table.clone())))

    def gather(self, array: np.ndarray) -> list[np.ndarray]:
        parts = self.gather_objects(array)  # which all of them take part in
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
    with tempfile.TemporaryDirectory() as name, in_buckets(config, Path(name) / "made", Observer()) as split:
        (output := Path(name) / "output").mkdir()
        return result_in(split, team_size, output)


def result_in(config: EvalConfig, team_size: int, output: Path) -> Report:
    inputs = open_inputs(config)
    owner = Ownership(output, describe_process("here", {}), pytest.fail)
    owner.acquire()
    work = Work(inputs, make_protocol(inputs), {}, "cpu", Observer(), 0.0, output, Claim(output, owner.me))
    board = Board(team_size)

    def work_as(rank_in_team: int) -> Any:
        # So many workers on this host that each takes one thread.
        team = ThreadTeam(rank_in_team, team_size, local_size=64, nonce=12 * "0", board=board)
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
    assert isinstance(outcome, Result), outcome
    return report_of(outcome)


def comparable(report: Report) -> str:
    """All that is written but `run`: it must be the same, byte by byte."""
    document = report.to_dict()
    tables = [[name, list(rows)] for name, rows in report.rows.items()]
    return json.dumps([document, *tables], sort_keys=True, default=dict)


SMALL_BLOCKS = {  # all that is done a part at a time, which changes no number
    "inputs.edges.ROWS_AT_A_TIME": 3,
    "inputs.edge_sample._POSITIONS_PER_BLOCK": 4,
    "inputs.partitions.MAX_KNOWN_ROWS": 3,
    "inputs.partitions.PAIRS_BYTES": 16,
    "ranking.chunks.ENTRIES_PER_BLOCK": 20,
    "ranking.counting.EXPANDED_AT_A_TIME": 4,
    "ranking.cpu_backend.BYTES_PER_BLOCK": 64,
    "ranking.cpu_backend.MAX_CELLS_READ": 4,
    "ranking.cpu_backend.MAX_OPEN": 4,
    "ranking.keys.MIN_NEW_CODES": 4,
    "ranking.keys.ROWS_AT_ONCE": 3,
    "ranking.known_answers.PAIRS_AT_A_TIME": 2,
    "ranking.known_answers._ROWS_AT_ONCE": 4,
    "ranking.pooled_scores.SCORES_AT_A_TIME": 5,
    "ranking.query_group_state.ROWS_AT_A_TIME": 4,
    "scoring.distances.CELLS_AT_A_TIME": 20,
    "stats.grouped.MAX_PENDING_ROWS": 4,
    "stats.paired._PENDING_ROWS": 4,
    "worker.diagnostics.SIEVE_CELLS": 4,
    "worker.diagnostics.TRAINING_ROWS_AT_A_TIME": 3,
    "worker.finish.EDGES_AT_A_TIME": 4,
    "worker.known.MAX_KEYS_TOGETHER": 5,
    "worker.sweep.ROWS_AT_A_TIME": 3,
} | {
    f"scoring.block_sizes.CPU.{name}": value
    for name, value in {
        **{"queries": 3, "candidates": 2, "pairs": 2, "cells": 8, "related_cells": 20, "prepared_rows": 2},
        **{"summed_rows": 2, "checked_rows": 2, "swept_rows": 3, "swept_numbers": 12, "numbers": 12},
        **{"range_bytes": 40},
    }.items()
}


def with_constants(stack: ExitStack, constants: dict[str, int]) -> None:
    for name, value in constants.items():
        stack.enter_context(mock.patch(f"pbgeval.{name}", value))
