"""1.96 standard errors reach the value of the population in 95 of 100 test sets, where keys are drawn with their edges.

Queries of one key share something of their own, as they do where a vector is bad; some keys have many queries.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch

from pbgeval.metrics.standard_errors import standard_errors
from pbgeval.notation import ENDS, Bucket, Side
from pbgeval.stats.cluster_sums import ClusterSums
from pbgeval.stats.groups import GroupKey
from pbgeval.stats.query_metrics import keyed_metrics
from pbgeval.stats.rank_stats import RankStats, StatsLayout, query_mean
from pbgeval.stats.rank_types import RankType
from pbgeval.stats.ranks import RankCounts
from pbgeval.worker.record import clusters_of

LAYOUT = StatsLayout((1, 10))
NUM_EDGES, NUM_KEYS, NUM_TEST_SETS = 2_000, 1_600, 1_000
NUM_COMPETITORS = 499
METRICS = ("mean_reciprocal_rank", "hits_at_1", "hits_at_10", "mean_rank", "query_auc")


def drawn_set(seed: int) -> dict[Side, tuple[np.ndarray, RankCounts]]:
    """Draw keys and edges; return the keys and counts of both sides. Ranks have ties."""
    words = np.random.default_rng(seed)
    of_edge_E = 0.7 * words.normal(size=NUM_EDGES)
    found = {}
    for side in ENDS:
        weight_K = 0.05 + words.pareto(2.5, NUM_KEYS)
        key_E = words.choice(NUM_KEYS, NUM_EDGES, p=weight_K / weight_K.sum())
        of_query_E = 0.7 * words.normal(size=NUM_KEYS)[key_E] + 0.5 * words.normal(size=NUM_EDGES)
        better_E = np.floor(np.exp(2.0 - 1.5 * (of_edge_E + of_query_E))).astype(np.int64).clip(0, NUM_COMPETITORS // 2)
        tied_E = (better_E % 7 == 0) * words.integers(0, 4, NUM_EDGES)
        counts = (torch.from_numpy(of) for of in (better_E, tied_E, np.full(NUM_EDGES, NUM_COMPETITORS)))
        found[side] = key_E + NUM_KEYS * seed, RankCounts(*counts)
    return found


def values_of(queries: dict[Side, tuple[np.ndarray, RankCounts]]) -> dict[str, float]:
    """Return the metrics of realistic ranks by the report's keys."""
    values = {}
    of_side = {side: RankStats.from_queries(LAYOUT, counts) for side, (_, counts) in queries.items()}
    for label in ("head", "tail", "both"):
        parts = [stats for side, stats in of_side.items() if side.is_in(label)]
        total = sum(parts[1:], parts[0]).total
        for name, metric, kind in keyed_metrics(LAYOUT.cutoffs):
            value = query_mean(total, metric, kind)
            if kind is RankType.REALISTIC and value is not None:
                values[f"{label}.{name}"] = value
    return values


def errors_of(queries: dict[Side, tuple[np.ndarray, RankCounts]]) -> dict[str, float]:
    sums = ClusterSums(LAYOUT)
    for side, (key_E, counts) in queries.items():
        sums.add(side, clusters_of(GroupKey(0, Bucket(0, 0), side), np.arange(NUM_EDGES), key_E), counts)
    return standard_errors(sums, ENDS)


@functools.cache
def coverage() -> dict[str, float]:
    """Return for each figure how often its interval holds the mean of a thousand other test sets."""
    others = [values_of(drawn_set(seed)) for seed in range(NUM_TEST_SETS, NUM_TEST_SETS + 1_000)]
    true = {key: float(np.mean([of[key] for of in others])) for key in others[0]}
    drawn = [drawn_set(seed) for seed in range(NUM_TEST_SETS)]
    found = [(values_of(queries), errors_of(queries)) for queries in drawn]
    return {
        key: float(np.mean([abs(values[key] - true[key]) <= 1.96 * errors[key] for values, errors in found]))
        for key in true
    }


@pytest.mark.slow
@pytest.mark.parametrize("metric", METRICS)
def test_errors_cover_in_ninety_five_of_a_hundred_test_sets(metric: str) -> None:
    found = {key.partition(".")[0]: share for key, share in coverage().items() if key.endswith(f".{metric}")}

    shares = " | ".join(f"{100 * found[side]:.1f}%" for side in ("head", "tail", "both"))
    print(f"| `{metric}` | {shares} |")  # noqa: T201 - the table in benchmarks/coverage
    assert len(found) == 3
    assert {key: share for key, share in found.items() if not 0.93 <= share <= 0.97} == {}
