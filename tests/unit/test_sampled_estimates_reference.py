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


@pytest.mark.parametrize("rank_type", RankType)
def test_all_competitors_without_replacement_are_exact(rank_type):
    cases = [*COMPETITORS.values(), []]
    sample = sample_of(cases, [len(of) + 1 for of in cases], with_replacement=False)

    found = figures(sample, rank_type)

    assert [float(exact_rank(of, rank_type)) for of in cases] == pytest.approx(
        estimated_ranks(sample, rank_type).tolist()
    )
    expected = exact_figures(cases, rank_type)
    assert {name: pytest.approx(value, rel=1e-14, abs=1e-15) for name, value in expected.items()} == {
        name: of.value for name, of in found.items()
    }
    assert {0.0} == {of.standard_error for of in found.values()}


def test_one_list_for_all_leaves_no_standard_error():
    draws = [(1.0, 3.0), (3.0, 3.0)]

    assert estimate_mean_rank(sample_of(draws, 4, True, lists=[7, 7])).standard_error is None
    assert estimate_mean_rank(sample_of(draws, 4, True, lists=[7, 8])).standard_error > 0
    assert 0.0 == estimate_mean_rank(sample_of([(1.0,), (3.0,)], 2, False, lists=[7, 7])).standard_error


def test_queries_without_competitors_are_exact_also_where_they_share_lists():
    sample = sample_of([(), ()], 1, True, lists=[0, 0])

    assert (1.0, 0.0) == (estimate_mean_rank(sample).value, estimate_mean_rank(sample).standard_error)
    assert 1.0 == estimate_adjusted_mean_rank(sample).value
    assert estimate_adjusted_mean_rank_index(sample).value is None
    assert estimate_query_auc(sample).value is None
