from __future__ import annotations

import itertools
import math
from fractions import Fraction
from statistics import NormalDist, fmean

import numpy as np
import pytest
import torch

from pbgeval.metrics.sampled_estimates import (
    UniformSample,
    estimate_adjusted_mean_rank,
    estimate_adjusted_mean_rank_index,
    estimate_mean_rank,
    estimate_query_auc,
    estimated_ranks,
)
from pbgeval.stats.ranks import RankType, from_scores
from tests import reference

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
    sizes = [len(draw) for draw in draws]
    return UniformSample.of_ranks(
        optimistic, pessimistic, sizes, num_candidates, with_replacement=with_replacement, lists=lists
    )


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
        assert not any(of[name].is_biased for of in found)


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


def scored_queries(seed, num_queries, num_candidates):
    """Scores with ties, the true candidate first; true ones score a little higher."""
    generator = np.random.default_rng(seed)
    scores = np.round(generator.normal(size=(num_queries, num_candidates)) * 8) / 8
    scores[:, 0] += 1
    return generator, scores


@pytest.mark.parametrize("with_replacement", [True, False])
def test_intervals_of_sampled_figures_cover_the_exact_ones(with_replacement):
    """95 % of 300 is 285, give or take 3.8."""
    generator, scores = scored_queries(3, 40, 121)
    true = np.zeros(40, np.int64)
    of_all = from_scores(scores, true)
    exact = UniformSample.of_ranks(of_all.optimistic_Q, of_all.pessimistic_Q, 120, 121, with_replacement=False)
    truth = figures(exact, RankType.REALISTIC)
    covered = dict.fromkeys(truth, 0)
    for _ in range(300):
        chosen = np.stack([1 + generator.choice(120, 30, replace=with_replacement) for _ in range(40)])
        drawn = np.concatenate([scores[:, :1], np.take_along_axis(scores, chosen, 1)], axis=1)
        ranks = from_scores(drawn, true)
        sample = UniformSample.of_ranks(
            ranks.optimistic_Q, ranks.pessimistic_Q, 30, 121, with_replacement=with_replacement
        )
        for name, found in figures(sample, RankType.REALISTIC).items():
            low, high = found.interval()
            covered[name] += low <= truth[name].value <= high

    assert {name: True for name in truth} == {name: 272 <= times <= 297 for name, times in covered.items()}


def test_queries_that_share_a_list_have_errors_that_go_together():
    """Twenty queries to a list: the error of whole lists is the spread of the estimate, that of single ones is not."""
    generator, _ = scored_queries(5, 1, 1)
    rank = np.tile([20, 60], 100)  # all of a list have nearly one rank, so their errors are nearly the same
    num_competitors, lists = 200, np.repeat(np.arange(10), 20)
    values, errors, naive = [], [], []
    for _ in range(400):
        drawn = np.stack([generator.choice(num_competitors, 25) for _ in range(10)])[lists]
        optimistic = 1 + (drawn < rank[:, None] - 1).sum(1)
        parts = (optimistic, optimistic, 25, num_competitors + 1)
        found = estimate_mean_rank(UniformSample.of_ranks(*parts, with_replacement=True, lists=lists))
        values.append(found.value)
        errors.append(found.standard_error)
        naive.append(estimate_mean_rank(UniformSample.of_ranks(*parts, with_replacement=True)).standard_error)

    assert abs(fmean(values) - 40) < 4 * np.std(values) / 20
    assert pytest.approx(np.std(values), rel=0.15) == math.sqrt(fmean(error**2 for error in errors))
    assert fmean(naive) < 0.5 * np.std(values)


def test_one_list_for_all_leaves_no_standard_error():
    draws = [(1.0, 3.0), (3.0, 3.0)]

    assert estimate_mean_rank(sample_of(draws, 4, True, lists=[7, 7])).standard_error is None
    assert estimate_mean_rank(sample_of(draws, 4, True, lists=[7, 8])).standard_error > 0
    assert 0.0 == estimate_mean_rank(sample_of([(1.0,), (3.0,)], 2, False, lists=[7, 7])).standard_error


def test_huge_graphs_keep_their_digits():
    """Ten of a million drawn score higher, of 10^9 candidates."""
    sample = UniformSample.of_ranks([11], [11], 10**6, 10**9 + 1, with_replacement=False)
    share = 1e-5

    assert [10_001.0] == estimated_ranks(sample).tolist()
    found = estimate_mean_rank(sample)
    expected = 1e9 * math.sqrt(share * (1 - share) / (10**6 - 1) * (1 - 1e-3))
    assert pytest.approx(expected, rel=1e-12) == found.standard_error
    assert pytest.approx(1 - 2e-5, abs=1e-15) == estimate_adjusted_mean_rank_index(sample).value
    low, high = found.interval(0.5)
    assert pytest.approx(2 * NormalDist().inv_cdf(0.75) * expected) == high - low


def test_without_queries_or_competitors_there_is_nothing_to_estimate():
    nothing = UniformSample.of_ranks([], [], 5, 10, with_replacement=True)
    alone = UniformSample.of_ranks([1, 1], [1, 1], 0, 1, with_replacement=True)

    assert {(None, None)} == {(of.value, of.standard_error) for of in figures(nothing, RankType.REALISTIC).values()}
    found = figures(alone, RankType.REALISTIC)
    assert [1.0, 1.0, None, None] == [of.value for of in found.values()]
    assert [0.0, 0.0, None, None] == [of.standard_error for of in found.values()]


def test_torch_and_numpy_are_read_alike():
    of_numpy = UniformSample.of_ranks(np.array([2, 1]), np.array([3, 1]), np.array([4, 5]), 9, with_replacement=True)
    of_torch = UniformSample.of_ranks(
        torch.tensor([2, 1]), torch.tensor([3, 1]), torch.tensor([4, 5]), 9, with_replacement=True
    )

    assert [1 + 8 / 4 * 1.5, 1.0] == estimated_ranks(of_numpy).tolist() == estimated_ranks(of_torch).tolist()


def test_batch_negatives_are_refused_with_the_reason():
    with pytest.raises(ValueError, match=r"50 draws are batch negatives.*num_batch_negs = 0"):
        UniformSample.of_ranks([1], [1], 100, 1000, with_replacement=True, num_batch_negatives=50)


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        (([1, 0], [1, 1], 3, 9), "optimistic, row 1: expected a rank from 1, got 0"),
        (([2, 3], [2, 2], 3, 9), "optimistic, row 1: expected at most the pessimistic"),
        (([1, 1], [4, 5], 3, 9), "pessimistic, row 1: expected at most one more than was drawn, got 5"),
        (([1, 1], [1, 1], [3, 9], 9), "num_drawn, row 1: expected as many as there are competitors, got 9"),
        (([1, 1], [1, 1], [3, 0], 9), "num_drawn, row 1: expected at least 1, got 0"),
        (([1, 1], [1, 1], [3, 1], [9, 1]), "num_drawn, row 1: expected as many as"),
        (([1, 1], [1, 1], 3, [9, 0]), "num_candidates, row 1"),
        (([1.5], [1.5], 3, 9), "optimistic: expected integers"),
        (([1], [1, 1], 3, 9), "of one length"),
    ],
)
def test_numbers_that_cannot_be_are_refused_by_row(numbers, message):
    with pytest.raises(ValueError, match=message):
        UniformSample.of_ranks(*numbers, with_replacement=False)


def test_draws_with_replacement_may_be_more_than_there_are_competitors():
    assert [1 + 3 / 7] == estimated_ranks(UniformSample.of_ranks([2], [2], 7, 4, with_replacement=True)).tolist()
    with pytest.raises(ValueError, match="num_drawn, row 0: expected as many as"):
        UniformSample.of_ranks([1], [1], 1, 1, with_replacement=True)


def test_queries_without_competitors_are_exact_also_where_they_share_lists():
    sample = UniformSample.of_ranks([1, 1], [1, 1], 0, 1, with_replacement=True, lists=[0, 0])

    assert (1.0, 0.0) == (estimate_mean_rank(sample).value, estimate_mean_rank(sample).standard_error)
    assert 1.0 == estimate_adjusted_mean_rank(sample).value
    assert estimate_adjusted_mean_rank_index(sample).value is None
    assert estimate_query_auc(sample).value is None
