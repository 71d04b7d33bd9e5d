"""Standard errors over draws of the test edges: sums by cluster add up, and the errors are those of all pairs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import NamedTuple
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pbgeval.metrics.standard_errors import standard_errors
from pbgeval.notation import ENDS, Side
from pbgeval.stats import cluster_sums as module
from pbgeval.stats.cluster_sums import BY_EDGE, BY_KEY, NUM_GROUPS, ClusterSums
from pbgeval.stats.query_metrics import QueryMetric, keyed_metrics
from pbgeval.stats.rank_stats import StatsLayout
from pbgeval.stats.rank_types import RankType
from tests.examples import examples
from tests.kit.counts import counts_of

LAYOUT = StatsLayout((1, 3))


class Query(NamedTuple):
    side: Side
    edge: int
    key: int
    counts: tuple[int, int, int]  # better, tied, beaten


@st.composite
def queries_of_edges(draw: st.DrawFn, most: int = 9, largest: int = 40) -> list[Query]:
    found = []
    for edge in range(draw(st.integers(1, most))):
        for side in ENDS:
            counts = draw(st.integers(0, largest)), draw(st.sampled_from([0, 0, 0, 1, 2])), draw(st.integers(0, 3))
            competes = draw(st.sampled_from([True, True, True, False]))
            found.append(Query(side, edge, draw(st.integers(0, 5)), counts if competes else (0, 0, 0)))
    return found


def sums_of(queries: Sequence[Query], *, with_keys: bool = True) -> ClusterSums:
    sums = ClusterSums(LAYOUT)
    for side in ENDS:
        own = [query for query in queries if query.side is side]
        groups = {BY_EDGE: np.array([query.edge for query in own], np.int64)}
        if with_keys:
            groups[BY_KEY] = np.array([query.key for query in own], np.int64)
        sums.add(side, groups, counts_of([query.counts for query in own]))
    return sums


def expected_error(queries: Sequence[Query], metric: QueryMetric, rank_type: RankType) -> float | None:
    """Return the error from all pairs of queries of one edge or key, as `compare` counts them."""
    counts = counts_of([query.counts for query in queries])
    numerator_Q = metric.numerators(counts, rank_type, 40).numpy() / metric.denominator(40)
    counted_Q = metric.counted(counts.num_competitors_Q).numpy()
    if not counted_Q.sum():
        return None
    residual_Q = numerator_Q - counted_Q * (numerator_Q.sum() / counted_Q.sum())
    side_Q, edge_Q, key_Q = (np.array([value_of(query) for query in queries]) for value_of in _COLUMNS)
    for side in set(side_Q):
        residual_Q[side_Q == side] -= residual_Q[side_Q == side].mean()
    num_edges = len(set(edge_Q))
    if num_edges < 2:
        return None
    of_edge = num_edges / (num_edges - 1)
    variance = of_edge * sum(residual_Q[edge_Q == edge].sum() ** 2 for edge in set(edge_Q))
    more = 0.0
    for side in set(side_Q):
        sizes = np.bincount(key_Q[side_Q == side])
        num_keys = sizes.sum() ** 2 / (sizes**2).sum()
        if num_keys < 2 - 1e-9:
            return None
        of_keys = sum(residual_Q[(side_Q == side) & (key_Q == key)].sum() ** 2 for key in set(key_Q))
        more += of_keys * num_keys / (num_keys - 1) - of_edge * (residual_Q[side_Q == side] ** 2).sum()
    return abs(metric.slope) * math.sqrt(variance + max(more, 0.0)) / counted_Q.sum()


_COLUMNS = (lambda query: query.side.value, lambda query: query.edge, lambda query: query.key)


@settings(max_examples=examples(60))
@given(queries_of_edges())
def test_errors_are_those_of_all_pairs_of_queries_of_one_edge_or_key(queries: list[Query]) -> None:
    actual = standard_errors(sums_of(queries), ENDS)

    for label, (name, metric, rank_type) in product(("head", "tail", "both"), keyed_metrics(LAYOUT.cutoffs)):
        expected = expected_error([query for query in queries if query.side.is_in(label)], metric, rank_type)
        found = actual.get(f"{label}.{name}")
        if found is None:
            assert expected is None or expected < 1e-6, name
        else:
            assert found == pytest.approx(expected, rel=1e-5, abs=1e-7), name


@settings(max_examples=examples(30))
@given(queries_of_edges(12, 1 << 33), st.randoms(use_true_random=False), st.integers(1, 4))
def test_sums_are_the_same_whatever_the_order_the_workers_and_how_many_are_added_at_once(queries, random, workers):
    shuffled = random.sample(queries, len(queries))
    merged = ClusterSums(LAYOUT)
    with mock.patch.object(module, "_ROW_BITS", 1):
        for worker in range(workers):
            merged.add_packed(sums_of(shuffled[worker::workers]).pack())

    assert merged.pack().tolist() == sums_of(queries).pack().tolist()
    of_head = [query.counts for query in queries if query.side is Side.LHS]
    doubled = merged.column(BY_KEY, Side.LHS, "pessimistic.mean_rank").sum()
    assert doubled == sum(2 * (better + tied) for better, tied, _ in of_head)
    assert merged.column(BY_KEY, Side.LHS, "num_competitors").sum() == sum(map(sum, of_head))


def test_counts_that_many_queries_share_have_the_sums_of_each_query() -> None:
    random = np.random.default_rng(0)
    better = random.integers(0, 20, 10_000)
    counts = counts_of([(int(of), int(of) % 5 == 0, 25) for of in better])
    groups = {BY_KEY: random.integers(0, NUM_GROUPS, len(better))}
    assert counts.repeated is not None
    together, apart = ClusterSums(LAYOUT), ClusterSums(LAYOUT)
    together.add(Side.RHS, groups, counts)
    for start in range(0, len(better), 1000):  # too few to be looked through
        part = slice(start, start + 1000)
        apart.add(Side.RHS, {BY_KEY: groups[BY_KEY][part]}, counts.select(part))

    assert together.pack().tolist() == apart.pack().tolist()


def test_entities_without_numbers_have_clusters_of_edges_alone() -> None:
    queries = [Query(side, edge, 0, (edge % 3, 0, 9)) for edge in range(40) for side in ENDS]

    assert standard_errors(sums_of(queries), ENDS) == {}  # one key: no error can be told
    of_head = standard_errors(sums_of(queries, with_keys=False), ENDS)["head.realistic.mean_rank"]
    assert of_head == pytest.approx(np.std([edge % 3 for edge in range(40)], ddof=1) / math.sqrt(40))


def test_figures_on_which_all_queries_agree_have_no_error() -> None:
    queries = [Query(side, edge, edge, (1, 0, 9)) for edge in range(40) for side in ENDS]

    assert standard_errors(sums_of(queries), ENDS) == {}
    assert standard_errors(ClusterSums(LAYOUT), ENDS) == {}
