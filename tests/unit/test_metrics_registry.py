"""Every metric of the registry goes through one case: value, range, direction, order, merging, level by chance."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
import torch
from attrs import evolve

from pbgeval.metrics.distribution import CandidateGroups, RankDistribution, comparable_weights
from pbgeval.metrics.registry import (
    FAMILIES,
    METRICS,
    OPTIONAL_FAMILIES,
    SYNONYMS,
    find_metric,
    known_rank_metrics,
    metric_key,
)
from pbgeval.stats.keyed_sums import KeyedSums
from pbgeval.stats.query_metrics import ADJUSTED_MEAN_RANK_INDEX, QUERY_AUC, query_metrics
from tests import rank_metrics_reference as reference
from tests.rank_metrics_reference import Queries

CUTOFFS = (1, 3, 10)
CASES = {
    "first": Queries([1], [10]),
    "last": Queries([10], [10]),
    "no competitor": Queries([1, 1], [1, 1]),
    "ties": Queries([1.5, 2, 2, 7.5, 3], [10, 10, 12, 8, 40]),
    "all within the cut-off": Queries([1, 2, 2.5, 1], [2, 3, 3, 1]),
    "worst": Queries([9, 30, 200], [9, 30, 200]),
    "many": Queries([1 + 7 * i % (i + 3) for i in range(60)], [i + 3 for i in range(60)]),
    "a percent is more than one": Queries([2, 9, 1.5, 30, 4], [250, 900, 120, 3000, 399], [0.5, 2, 1, 0.25, 1]),
    "half of the weight": Queries([4, 1, 9, 2], [9, 9, 20, 5], [0.5, 0.25, 0.5, 0.75]),
    "weights": Queries([3, 1.5, 8, 8, 2], [9, 40, 8, 30, 2], [0.125, 1, 7.5, 0.3, 2]),
    "weight zero": Queries([9, 4, 8, 8], [9, 9, 9, 1000], [0, 0.5, 1, 0]),
    "one has all the weight": Queries([5, 2], [6, 6], [0, 3]),
    "equal weights": Queries([3, 1, 2], [7, 5, 6], [0.25, 0.25, 0.25]),
    "huge weights": Queries([3, 1, 2], [7, 5, 6], [2.0**1023, 2.0**1022, 2.0**1023]),
    "tiny weights": Queries([3, 1, 2], [7, 5, 6], [2.0**-1060, 2.0**-1059, 2.0**-1060]),
}
OPTIONAL = [family.of_cutoff(cutoff) for family in OPTIONAL_FAMILIES for cutoff in CUTOFFS]
ALL = {metric.name: metric for metric in [*known_rank_metrics(CUTOFFS), *OPTIONAL]}
IMPROVABLE = sorted(name for name, metric in ALL.items() if metric.direction is not None)
WITH_EXPECTATION = sorted(name for name, metric in ALL.items() if metric.compute_expectation is not None)
# Sums are rounded once and products of few factors lose little; differences from the level by chance lose up to 1e3
RELATIVE, ABSOLUTE = 1e-11, 1e-12


def distribution_of(queries: Queries) -> RankDistribution:
    weights = None if queries.weights is None else comparable_weights(np.array(queries.weights, float))
    groups = CandidateGroups.from_queries(np.array(queries.num_candidates, np.int64), weights)
    return RankDistribution.from_queries(
        np.array(queries.ranks, float), np.array(queries.num_candidates, np.int64), groups, weights
    )


def ends_of(value_range: str) -> tuple[float, float]:
    """The ends of a range in words, where they are the same for all queries."""
    in_words = {"[-E / (1 - E), 1]": (-math.inf, 1.0), "whole numbers from 0": (0.0, math.inf)}
    return in_words.get(value_range) or tuple(map(float, value_range.partition(";")[0][1:-1].split(", ")))


@pytest.mark.parametrize("name", sorted(ALL))
class TestEveryMetric:
    """What holds for all metrics."""

    def test_its_value_is_that_of_the_definition_and_in_its_range(self, name):
        values = {case: ALL[name].value(distribution_of(queries)) for case, queries in CASES.items()}
        low, high = ends_of(ALL[name].range)

        expected = {case: reference.value(name, queries) for case, queries in CASES.items()}
        assert expected == pytest.approx(values, rel=RELATIVE, abs=ABSOLUTE)
        assert {case: of for case, of in values.items() if not low - ABSOLUTE <= of <= high + ABSOLUTE} == {}

    def test_the_order_of_queries_changes_no_bit(self, name, seed):
        for case in ("ties", "many", "weights", "weight zero", "half of the weight"):
            columns = [CASES[case].ranks, CASES[case].num_candidates, CASES[case].weights]
            order = np.random.default_rng(seed).permutation(len(columns[0]))
            shuffled = Queries(*(None if of is None else np.array(of)[order].tolist() for of in columns))

            assert ALL[name].value(distribution_of(CASES[case])) == ALL[name].value(distribution_of(shuffled)), case

    def test_queries_and_histograms_of_them_give_the_same_bits(self, name):
        queries = CASES["many"]
        if ALL[name].compute is None:
            pytest.skip("histograms keep ranks and numbers of candidates apart")
        ranks, num_candidates = (
            KeyedSums.from_values(torch.tensor(values)) for values in (queries.ranks, queries.num_candidates)
        )
        of_counts = RankDistribution.from_counts(ranks, CandidateGroups.from_counts(num_candidates))

        assert ALL[name].value(distribution_of(queries)) == ALL[name].value(of_counts)

    def test_without_queries_it_is_none_and_a_count_is_zero(self, name):
        nothing = distribution_of(Queries([], []))

        assert (0 if name == "count" else None) == ALL[name].value(nothing)
        assert (ALL[name].expectation(nothing), ALL[name].variance(nothing)) == (None, None)

    def test_queries_that_weigh_nothing_are_counted_but_have_no_mean(self, name):
        weightless = distribution_of(Queries([1, 2], [3, 3], [0, 0]))

        assert (2 if name == "count" else None) == ALL[name].value(weightless)

    def test_what_it_says_of_itself_is_complete(self, name):
        metric = ALL[name]

        assert (metric.compute_expectation is None) == (metric.compute_variance is None)
        assert "" not in (metric.range, metric.chance, metric.formula, metric.source)
        assert metric.direction in (1, -1, None)


@pytest.mark.parametrize("name", IMPROVABLE)
def test_a_rank_that_improves_makes_a_metric_no_worse(name):
    """Of many candidates, too, where a share of them is more than one."""
    num_candidates, weights = [150, 30, 12, 5], [0.25, 1.25, 0.5, 1.0]
    steps = ([150, 30, 12, 5], [40, 30, 11.5, 5], [3, 9, 11.5, 2], [2, 3, 4, 1.5], [1, 1, 1, 1])
    values = [ALL[name].value(distribution_of(Queries(ranks, num_candidates, weights))) for ranks in steps]

    improved = [(after - before) * ALL[name].direction for before, after in pairwise(values)]
    assert min(improved) + ABSOLUTE >= 0 < sum(improved)


@pytest.mark.parametrize("name", WITH_EXPECTATION)
def test_a_level_by_chance_is_that_over_all_combinations_of_ranks(name):
    for sizes, weights in [*(([2, 12, 3], of) for of in (None, [2, 1, 1], [1, 0, 2])), ([250], None)]:
        mean, variance = reference.moments_by_enumeration(
            lambda ranks, of=(sizes, weights): reference.value(name, Queries(ranks, *of)), sizes
        )
        distribution = distribution_of(Queries([1] * len(sizes), sizes, weights))

        found = ALL[name].expectation(distribution), ALL[name].variance(distribution)
        assert found == pytest.approx((mean, variance), rel=RELATIVE, abs=ABSOLUTE), (sizes, weights)


@pytest.mark.parametrize("name", [name for name in reference.UP if name.startswith("adjusted")])
def test_an_adjusted_index_is_one_at_best_and_zero_at_its_expectation(name):
    assert ALL[name].value(distribution_of(Queries([1, 1, 1], [30, 20, 40]))) == pytest.approx(1.0)
    assert ALL[name].expectation(distribution_of(Queries([4], [9]))) == 0.0


def test_where_chance_decides_nothing_adjusted_metrics_are_zero():
    alone = distribution_of(Queries([1, 1, 1], [1, 1, 1], [0.1, 0.2, 0.3]))
    within = distribution_of(Queries([1, 3, 2], [4, 3, 3], [0.1, 0.2, 0.3]))

    assert (
        [ALL[name].value(alone) for name in reference.UP],
        [ALL[name].value(alone) for name in reference.Z],
        [find_metric(name).value(within) for name in ("hits_at_4", "ah@4", "z_hits_at_4")],
    ) == ([0.0] * 6, [0.0] * 6, [1.0, 0.0, 0.0])


def test_means_from_exact_sums_take_the_place_of_those_of_the_ranks():
    means = {"mean_rank": 3.5, "mean_reciprocal_rank": 0.25, "hits_at_3": 0.125}
    given = evolve(distribution_of(Queries([1, 4], [9, 9], None)), means=means.get)
    values = {name: find_metric(name).value(given) for name in ("mr", "mrr", "hits@3", "hits@1", "amri", "hmr", "ah@3")}

    assert pytest.approx(values) == {
        "mr": 3.5,
        "mrr": 0.25,
        "hits@3": 0.125,
        "hits@1": 0.5,
        "amri": 0.375,
        "hmr": 4.0,
        "ah@3": -5 / 16,
    }


@pytest.mark.parametrize("case", CASES)
def test_a_mean_that_needs_pairs_follows_from_queries_and_the_others_from_ranks(case):
    queries = CASES[case]
    columns = zip(queries.shares, queries.ranks, queries.num_candidates, strict=True)
    beaten = [(p, (num - Fraction(rank)) / (num - 1)) for p, rank, num in columns if num > 1]
    shares = sum(p for p, _ in beaten)
    expected = float(sum(p * share for p, share in beaten) / shares) if shares else None
    means = distribution_of(queries).means

    assert expected == (pytest.approx(means("query_auc"), rel=RELATIVE, abs=ABSOLUTE) if shares else means("query_auc"))
    assert [means(name) for name in ("mean_rank", "hits_at_3", "adjusted_mean_rank_index", "median_rank")] == [None] * 4


@pytest.mark.parametrize("metric", [*query_metrics((1, 3)), ADJUSTED_MEAN_RANK_INDEX, QUERY_AUC])
def test_a_metric_needs_pairs_if_it_differs_where_queries_exchange_their_candidates(metric):
    doubled_Q = torch.tensor([2, 3, 8, 40, 400])
    means = []
    for competitors_Q in (torch.tensor([1000, 499, 900, 30, 200]), torch.tensor([200, 1000, 30, 499, 900])):
        numerator = int(metric.numerators_of_doubled(doubled_Q, competitors_Q, 32).sum())
        means.append(metric.mean(numerator, int(metric.counted(competitors_Q).sum()), 32))

    assert metric.needs_pairs == (means[0] != means[1])


def test_every_name_means_one_metric():
    names = [metric.name for metric in METRICS] + [name for metric in METRICS for name in metric.synonyms]

    assert sorted({name.lower() for name in names}) == sorted(names)
    assert all(family.cutoff_of(name) is None for family in FAMILIES for name in names)
    assert set(SYNONYMS.values()) <= {metric.name for metric in METRICS}


@pytest.mark.parametrize(
    ("key", "names"),
    {
        "mean_rank": "arithmetic_mean_rank mean_rank mr pos_rank",
        "mean_reciprocal_rank": "inverse_harmonic_mean_rank mean_reciprocal_rank mrr",
        "inverse_arithmetic_mean_rank": "iamr",
        "geometric_mean_rank": "gmr",
        "inverse_geometric_mean_rank": "igmr",
        "harmonic_mean_rank": "hmr",
        "standard_deviation": "rank_std std",
        "variance": "rank_var var",
        "median_absolute_deviation": "rank_mad mad",
        "count": "rank_count",
        "adjusted_arithmetic_mean_rank": "amr aamr adjusted_mean_rank",
        "adjusted_mean_rank_index": "amri aamri adjusted_arithmetic_mean_rank_index",
        "adjusted_geometric_mean_rank_index": "gmri agmri",
        "adjusted_inverse_harmonic_mean_rank": "amrr aihmr adjusted_mrr adjusted_mean_reciprocal_rank",
        "z_arithmetic_mean_rank": "zamr zmr",
        "z_geometric_mean_rank": "zgmr",
        "z_inverse_harmonic_mean_rank": "zmrr zihmr",
        "hits_at_10": "h@k hits@k hits_at_ h@ h_at_ hits@10 h10 r10 hits_at_k hits@10_list",
        "hits_at_7": "hits_at_7 h@7 hits@007",
        "adjusted_hits_at_10": "ahk ah@k ahits@k ahits_at_ adjusted_hits_at_k adjusted_hits@10",
        "adjusted_hits_at_3": "ah@3 ahits_at_3 ah3",
        "z_hits_at_10": "zahk z_hits_at_ z_hits_at_k",
        "z_hits_at_5": "z_hits@5 zahits_at_5",
    }.items(),
)
def test_names_of_pykeen_pbg_and_ogb_are_known(key, names):
    assert ({key}, key) == ({metric_key(name) for name in names.split()}, find_metric(key).name)


@pytest.mark.parametrize("name", ["hits_at_0", "hits@-1", "hits@1.5", "hits_at_" + "9" * 40, "h", "r", "", "hits"])
def test_what_is_no_cutoff_is_no_metric(name):
    assert None is find_metric(name)


@pytest.mark.reference
def test_all_reference_values_of_rank_metrics(reference_path):
    cases = json.loads((reference_path / "vectors" / "rank_metrics.json").read_text())["cases"]
    num_compared = 0
    for case in cases:
        queries = Queries(case["ranks"], case["num_candidates"], case["weights"])
        distribution = distribution_of(queries)
        for part, method in (("metrics", "value"), ("expected", "expectation"), ("variance", "variance")):
            for name, expected in case[part].items():
                if expected is None:  # the count of weighted queries, which the oracle does not give
                    assert (len(queries.ranks), "count") == (find_metric(name).value(distribution), name)
                    continue
                if method != "value" and name == "median_rank":  # by enumeration; ours has no closed form
                    continue
                tolerance = 1e-7 if name == "z_geometric_mean_rank" else 1e-9
                value = getattr(find_metric(name), method)(distribution)
                assert expected == pytest.approx(value, rel=tolerance, abs=1e-12), (case["name"], part, name)
                num_compared += 1

    assert num_compared == 948
