from __future__ import annotations

import itertools
from fractions import Fraction
from statistics import fmean

import numpy as np
import pytest

from pbgeval.stats.ranks import RankType
from tests import reference
from tests.sampled_estimates_reference import (
    UniformSample,
    estimate_adjusted_mean_rank,
    estimate_adjusted_mean_rank_index,
    estimate_mean_rank,
    estimate_query_auc,
    estimated_ranks,
)

COMPETITORS = {  # scores of the competitors of a true score of 2
    "first": [1.0, 0.0, 1.0, -3.0],
    "middle": [3.0, 1.0, 5.0, 0.0, 4.0],
    "tied": [2.0, 2.0, 3.0, 1.0, 2.0],
    "all tied": [2.0] * 4,
    "last": [4.0, 3.0, 8.0],
}


def all_draws(competitors, num_drawn, with_replacement):
    """Every equally likely draw; order counts with replacement, and does not without."""
    if with_replacement:
        return list(itertools.product(competitors, repeat=num_drawn))
    return list(itertools.combinations(competitors, num_drawn))


def sample_of(draws, num_candidates, with_replacement, lists=None) -> UniformSample:
    ranks = [reference.rank_by_sorting(2.0, draw) for draw in draws]
    optimistic, pessimistic = zip(*ranks, strict=True)
    columns = np.broadcast_arrays(optimistic, pessimistic, [len(draw) for draw in draws], num_candidates)
    return UniformSample(*columns, with_replacement, None if lists is None else np.array(lists))


def exact_rank(competitors, rank_type) -> Fraction:
    low, high = reference.rank_by_sorting(2.0, competitors)
    return {
        RankType.OPTIMISTIC: Fraction(low),
        RankType.REALISTIC: Fraction(low + high, 2),
        RankType.PESSIMISTIC: Fraction(high),
    }[rank_type]


def exact_figures(cases, rank_type) -> dict[str, float]:
    ranks = [exact_rank(competitors, rank_type) for competitors in cases]
    sizes = [len(competitors) for competitors in cases]
    aucs = [1 - (exact_rank(of, RankType.REALISTIC) - 1) / len(of) for of in cases if of]
    return {
        "mean_rank": float(sum(ranks) / len(ranks)),
        "adjusted_mean_rank": float(2 * sum(ranks) / sum(size + 2 for size in sizes)),
        "adjusted_mean_rank_index": float(1 - 2 * sum(rank - 1 for rank in ranks) / sum(sizes)),
        "query_auc": float(sum(aucs) / len(aucs)),
    }


def figures(sample, rank_type):
    return {
        "mean_rank": estimate_mean_rank(sample, rank_type),
        "adjusted_mean_rank": estimate_adjusted_mean_rank(sample, rank_type),
        "adjusted_mean_rank_index": estimate_adjusted_mean_rank_index(sample, rank_type),
        "query_auc": estimate_query_auc(sample),
    }


@pytest.mark.parametrize("rank_type", RankType)
@pytest.mark.parametrize("with_replacement", [True, False])
@pytest.mark.parametrize("num_drawn", [1, 2, 3])
@pytest.mark.parametrize("name", COMPETITORS)
def test_over_all_draws_the_mean_is_the_rank_and_the_mean_variance_its_variance(
    name, num_drawn, with_replacement, rank_type
):
    competitors = COMPETITORS[name]
    draws = all_draws(competitors, num_drawn, with_replacement)

    ranks = estimated_ranks(sample_of(draws, len(competitors) + 1, with_replacement), rank_type)

    assert pytest.approx(float(exact_rank(competitors, rank_type)), rel=1e-12) == fmean(ranks)
    each = [sample_of([draw], len(competitors) + 1, with_replacement) for draw in draws]
    errors = [estimate_mean_rank(one, rank_type).standard_error for one in each]
    if num_drawn == 1 and not (len(competitors) == 1 and not with_replacement):
        assert {None} == {*errors}
    else:
        assert pytest.approx(float(np.var(ranks)), abs=1e-12) == fmean(error**2 for error in errors)


@pytest.mark.parametrize("rank_type", RankType)
@pytest.mark.parametrize("with_replacement", [True, False])
def test_each_figure_of_several_queries_is_unbiased_and_so_is_its_variance(with_replacement, rank_type):
    """Two queries of unlike sizes, over all pairs of their draws."""
    cases = [COMPETITORS["tied"], COMPETITORS["last"]]
    pairs = list(itertools.product(*(all_draws(of, 2, with_replacement) for of in cases)))
    found = [figures(sample_of(pair, [len(of) + 1 for of in cases], with_replacement), rank_type) for pair in pairs]

    for name, expected in exact_figures(cases, rank_type).items():
        values = [of[name].value for of in found]
        assert pytest.approx(expected, abs=1e-12) == fmean(values), name
        assert pytest.approx(float(np.var(values)), abs=1e-12) == fmean(of[name].standard_error ** 2 for of in found)
