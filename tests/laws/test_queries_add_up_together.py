"""Queries of many buckets that are added at once have the sums of the same queries added bucket by bucket."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
import torch
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from pbgeval.notation import Bucket, Side
from pbgeval.ranking.tally import SideResult
from pbgeval.results.document import RunStats, SideOfEdges
from pbgeval.stats.cluster_sums import CLUSTERS, NUM_GROUPS, ClusterSums
from pbgeval.stats.grouped import KEY_FREQUENCY, RELATION, GroupedStats
from pbgeval.stats.groups import GroupKey, GroupStats, ScorePool, share_of
from pbgeval.stats.rank_stats import StatsLayout
from pbgeval.stats.ranks import QueryCounts, RankCounts
from pbgeval.worker import record as record_module
from pbgeval.worker.record import Record

LAYOUT = StatsLayout((1, 3, 10))
KEYS = [GroupKey(path, Bucket(0, part), side) for path in range(2) for part in range(3) for side in Side]


def some_queries(seed: int, key: GroupKey, num_queries: int) -> SideOfEdges:
    """Return queries with ties, without competitors, with losses that are undefined or missing."""
    draw = random.Random(seed)
    rows = []
    for _ in range(num_queries):
        raw = [draw.choice([0, 0, 1, 2, 40]) for _ in range(3)]
        known = [draw.randint(0, number) for number in raw]
        rows.append([raw[0], raw[1], sum(raw), known[0], known[1], sum(known)])
    columns = torch.tensor(rows, dtype=torch.int64).reshape(-1, 6).T
    loss = [draw.choice([0.0, -0.5, 1.25, math.inf, math.nan]) for _ in range(num_queries)]
    images = np.array([draw.randint(-3, 3) for _ in range(num_queries)], np.int32)
    result = SideResult(
        torch.arange(num_queries),
        QueryCounts(RankCounts(*columns[:3]), RankCounts(*columns[3:])),
        ScorePool([images], []),
        ScorePool([images], [images]),
        loss_Q=torch.tensor(loss, dtype=torch.float64) if key.side is not Side.REL and num_queries else None,
        numbers={"num_outside": draw.randint(0, 2), "num_short_lists": draw.randint(0, 2)},
    )
    groups = {
        name: torch.tensor([draw.randint(1, 3) for _ in rows], dtype=torch.int64) for name in (RELATION, KEY_FREQUENCY)
    }
    clusters = {by: np.array([draw.randrange(NUM_GROUPS) for _ in rows], np.int64) for by in CLUSTERS}
    return SideOfEdges(key, result, groups, clusters)


def packed(parts: list[list[SideOfEdges]], *, filtered: bool) -> list[list[int]]:
    """Add parts, those of a list at once; return all statistics."""
    results = RunStats(
        GroupStats.zero(LAYOUT, KEYS),
        GroupStats.zero(LAYOUT, KEYS) if filtered else None,
        GroupedStats(LAYOUT),
        ClusterSums(LAYOUT),
    )
    for together in parts:
        results.add(together)
    tables = [groups for groups in (results.raw, results.filtered) if groups is not None]
    for groups in tables:  # which of equal buckets came first is not told
        for pool in groups.pools.values():
            for scores in (pool.true, pool.competing):
                scores[:] = [np.sort(np.concatenate([np.empty(0, np.int32), *scores]))]
    return [
        *([groups.table_GD.flatten().tolist() for groups in tables]),
        *([groups.pack_sparse().tolist() for groups in tables]),
        results.grouped.pack().tolist(),
        results.clusters.pack().tolist(),
    ]


@given(st.lists(st.tuples(st.integers(0, 1000), st.sampled_from(KEYS), st.integers(0, 5)), max_size=12), st.booleans())
def test_queries_of_many_buckets_add_up_at_once(drawn: list[tuple[int, GroupKey, int]], filtered: bool) -> None:
    parts = [some_queries(*of) for of in drawn]

    actual = packed([parts], filtered=filtered)

    assert actual == packed([[part] for part in parts], filtered=filtered)


def test_a_smaller_share_of_scores_is_kept_of_those_that_wait_too() -> None:
    """Else how many an earlier round has left waiting would depend on the number of workers."""
    codes = np.arange(1000, dtype=np.int64) << 32
    part = some_queries(0, KEYS[0], 5)
    part = evolve(part, result=evolve(part.result, raw_pool=ScorePool([codes], [codes])))
    record = Record(GroupStats.zero(LAYOUT, KEYS), None, GroupedStats(LAYOUT), ClusterSums(LAYOUT))
    record.add_soon(part)

    record.share_pools(0.25)
    record.pack()  # adds up whatever still waits

    pool = record.raw.pools[KEYS[0]]
    expected = share_of(codes, 0.25)
    assert 0 < len(expected) < 400
    assert [np.concatenate(scores).tolist() for scores in (pool.true, pool.competing)] == [expected.tolist()] * 2


def test_no_more_queries_wait_than_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits takes memory: so it is added up as soon as there are enough."""
    monkeypatch.setattr(record_module, "MAX_WAITING_QUERIES", 4)
    record = Record(GroupStats.zero(LAYOUT, KEYS), None, GroupedStats(LAYOUT), ClusterSums(LAYOUT))
    num_pooled = []

    for seed in range(4):
        record.add_soon(some_queries(seed, KEYS[0], 2))
        num_pooled.append(sum(map(len, record.raw.pools[KEYS[0]].true)))

    assert num_pooled == [0, 4, 4, 8]
