"""Ranks among uniform draws -> mean reciprocal rank and hits among all candidates, corrected, and still biased.

From m < C - 1 draws there is no unbiased estimator of 1/r or of hits: the expectation of anything that depends on the
sampled rank s is a polynomial of degree at most m in r. What comes nearest is a table of values by sampled rank, the
solution of a least squares problem over a prior of ranks: Krichene and Rendle, "On Sampled Metrics for Item
Recommendation" (KDD 2020), which weighs squared bias against variance. Its expectation and its variance at any rank
are exact here, so that the bias can be looked at. Names end in R for ranks and in S for sampled ranks 1..m + 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from attrs import frozen

from pbgeval.metrics.estimates import Estimate
from pbgeval.metrics.sampled_estimates import UniformSample, standard_error_of_sum
from pbgeval.notation import distinct
from pbgeval.scoring import self_check as vector_math
from pbgeval.stats.ranks import RankType

RankMetric = Callable[[np.ndarray], np.ndarray]  # ranks, float64 -> what each is worth

DEFAULT_VARIANCE_WEIGHT = 0.01
MOST_DRAWS = 4096  # the table's equations have the square of this many coefficients
_EXACT_RANKS = 1024  # of the prior; beyond, one rank stands for a bin
_LEAST_BINS_PER_OCTAVE = 64


@frozen(eq=False)
class CorrectedMetric:
    """What each sampled rank is worth, so that the expectation is near the metric of the rank among all candidates."""

    values_S: np.ndarray  # float64: of sampled ranks 1..m + 1; may leave the metric's range
    num_candidates: int  # C
    with_replacement: bool

    @property
    def num_drawn(self) -> int:
        return len(self.values_S) - 1

    def expectation(self, ranks_R: np.ndarray) -> np.ndarray:
        """Return the expected value for queries of these ranks among all candidates: the metric, and the bias."""
        found_R: np.ndarray = self._probabilities(ranks_R) @ self.values_S
        return found_R

    def variance(self, ranks_R: np.ndarray) -> np.ndarray:
        """Return the variance over draws for queries of these ranks among all candidates."""
        deviation_RS = self.values_S - self.expectation(ranks_R)[:, None]
        found_R: np.ndarray = (self._probabilities(ranks_R) * deviation_RS**2).sum(axis=1)
        return found_R

    def _probabilities(self, ranks_R: np.ndarray) -> np.ndarray:
        return sampled_rank_probabilities(ranks_R, self.num_drawn, self.num_candidates, self.with_replacement)


def sampled_rank_probabilities(
    ranks_R: np.ndarray, num_drawn: int, num_candidates: int, with_replacement: bool
) -> np.ndarray:
    """Return P(sampled rank s | rank r) for s = 1..m + 1, float64 (R, m + 1).

    s - 1 is binomial with replacement, hypergeometric without; ties have been broken in both ranks alike.

    Args:
        ranks_R: whole ranks in 1..num_candidates.
        num_drawn: m.
        num_candidates: C, the true one among them.
        with_replacement: how was drawn.
    """
    higher_R1 = torch.as_tensor(np.asarray(ranks_R), dtype=torch.float64)[:, None] - 1
    drawn_S = torch.arange(num_drawn + 1, dtype=torch.float64)
    rest_S, num_competitors = num_drawn - drawn_S, num_candidates - 1
    ways_S = torch.lgamma(drawn_S[-1] + 1) - torch.lgamma(drawn_S + 1) - torch.lgamma(rest_S + 1)  # log(m over s - 1)
    if with_replacement:
        share_R1 = higher_R1 / num_competitors
        log_RS = torch.xlogy(drawn_S, share_R1) + torch.xlogy(rest_S, 1 - share_R1)
    else:
        log_RS = _log_falling(higher_R1, num_drawn) + _log_falling(num_competitors - higher_R1, num_drawn).flip(1)
    log_RS = log_RS + ways_S
    return torch.softmax(log_RS, dim=1).numpy()


def corrected_metric(
    metric: RankMetric,
    num_drawn: int,
    num_candidates: int,
    *,
    with_replacement: bool,
    variance_weight: float = DEFAULT_VARIANCE_WEIGHT,
) -> CorrectedMetric:
    """Return the table that minimises squared bias + variance_weight x variance, in the mean over all ranks.

    All ranks are taken to be equally likely beforehand. Beyond 1024 a bin of ranks (1/64 of an octave, or less) is
    stood for by its middle.

    Args:
        metric: of whole ranks from 1: 1 / r, r <= K, ...
        num_drawn: m, from 1 to 4096.
        num_candidates: C, at least 2.
        with_replacement: how was drawn.
        variance_weight: gamma in (0, 1]. Near 0 the bias is least, and the variance can be many times the metric's;
            at 1 the value is the metric's mean over the ranks that would have shown this sampled rank.

    Raises:
        ValueError: an argument is out of range; more are drawn without replacement than there are competitors.
    """
    if not 0 < variance_weight <= 1:
        raise ValueError(f"variance_weight: expected a number in (0, 1], got {variance_weight}")
    if num_candidates < 2 or num_drawn < 1 or (not with_replacement and num_drawn > num_candidates - 1):
        raise ValueError(f"{num_drawn} draws from {num_candidates} candidates cannot be")
    if num_drawn == num_candidates - 1 and not with_replacement:  # every competitor: the sampled rank is the rank
        return CorrectedMetric(metric(np.arange(1.0, num_candidates + 1)), num_candidates, with_replacement)
    if num_drawn > MOST_DRAWS:
        raise ValueError(f"num_drawn: at most {MOST_DRAWS} can be corrected, got {num_drawn}; rank all candidates")
    ranks_R, prior_R = _prior(num_drawn, num_candidates)
    chance_RS = sampled_rank_probabilities(ranks_R, num_drawn, num_candidates, with_replacement)
    weighted_RS = prior_R[:, None] * chance_RS
    # Setting the gradient to 0: ((1 - gamma) sum p P P' + gamma diag(sum p P)) values = sum p P metric.
    squares_SS = (1.0 - variance_weight) * (chance_RS.T @ weighted_RS)
    squares_SS[np.diag_indices(num_drawn + 1)] += variance_weight * weighted_RS.sum(axis=0)
    values_S = np.linalg.solve(squares_SS, weighted_RS.T @ metric(ranks_R))
    return CorrectedMetric(values_S, num_candidates, with_replacement)


def estimate_mean_reciprocal_rank(
    sample: UniformSample,
    rank_type: RankType = RankType.REALISTIC,
    *,
    variance_weight: float = DEFAULT_VARIANCE_WEIGHT,
) -> Estimate:
    """Estimate the mean reciprocal rank among all candidates: corrected, biased, and so marked.

    (0, 1], higher is better; the estimate may leave the range. Without bias only where every competitor was drawn.
    None without queries.

    Args:
        sample: what was drawn. Queries of one number of draws and candidates share a table; each pair costs one.
        rank_type: realistic stands for the mean of 1/r over all orders of the ties, not for 1 / (realistic rank).
        variance_weight: as `corrected_metric`.

    Returns:
        The standard error is the spread of the queries' values (of the lists' sums where queries share lists): that
        of the draws and of the choice of queries together. It holds no bias. None from a single query or list.

    Raises:
        ValueError: as `corrected_metric`.
    """
    return _estimate(np.reciprocal, sample, rank_type, variance_weight)


def estimate_hits(
    sample: UniformSample,
    k: int,
    rank_type: RankType = RankType.REALISTIC,
    *,
    variance_weight: float = DEFAULT_VARIANCE_WEIGHT,
) -> Estimate:
    """Estimate Hits@K among all candidates: corrected, biased, and so marked; [0, 1], higher is better.

    Realistic stands for the mean over all orders of the ties. All else: as `estimate_mean_reciprocal_rank`.
    """
    if k < 1:
        raise ValueError(f"k: expected at least 1, got {k}")
    return _estimate(lambda ranks_R: (ranks_R <= k).astype(np.float64), sample, rank_type, variance_weight)


def _estimate(metric: RankMetric, sample: UniformSample, rank_type: RankType, variance_weight: float) -> Estimate:
    num_queries = len(sample.optimistic_Q)
    if not num_queries:
        return Estimate(None, None)
    first_Q = sample.pessimistic_Q if rank_type is RankType.PESSIMISTIC else sample.optimistic_Q
    last_Q = sample.optimistic_Q if rank_type is RankType.OPTIMISTIC else sample.pessimistic_Q
    values_Q = np.empty(num_queries)
    pairs = np.stack([sample.num_drawn_Q, sample.num_candidates_Q], axis=1)
    distinct, pair_of_Q = np.unique(pairs, axis=0, return_inverse=True)
    for pair, (num_drawn, num_candidates) in enumerate(distinct.tolist()):
        chosen_Q = np.flatnonzero(pair_of_Q.reshape(-1) == pair)
        if num_candidates == 1:
            values_Q[chosen_Q] = metric(np.ones(1))
            continue
        table = corrected_metric(
            metric,
            num_drawn,
            num_candidates,
            with_replacement=sample.with_replacement,
            variance_weight=variance_weight,
        )
        values_Q[chosen_Q] = _means_between(table.values_S, first_Q[chosen_Q], last_Q[chosen_Q])
    value = math.fsum(values_Q.tolist()) / num_queries
    error = standard_error_of_sum((values_Q - value) / num_queries, sample)
    return Estimate(value, error, is_biased=not bool(sample.is_exact_Q.all()))


def _means_between(values_S: np.ndarray, first_Q: np.ndarray, last_Q: np.ndarray) -> np.ndarray:
    """Return the mean of the values of sampled ranks first..last: each is as likely when ties are broken by chance."""
    sums_S = np.append(0.0, np.cumsum(values_S))
    means_Q: np.ndarray = (sums_S[last_Q] - sums_S[first_Q - 1]) / (last_Q - first_Q + 1)
    return np.where(first_Q == last_Q, values_S[first_Q - 1], means_Q)


def _prior(num_drawn: int, num_candidates: int) -> tuple[np.ndarray, np.ndarray]:
    """Return ranks, float64 whole numbers, and how likely each (or the bin that it stands for) is."""
    exact = min(num_candidates, _EXACT_RANKS)
    bins_per_octave = max(_LEAST_BINS_PER_OCTAVE, math.ceil(4 * math.sqrt(num_drawn)))  # finer than s can tell
    num_bins = math.ceil(math.log2(num_candidates / exact) * bins_per_octave)
    ends = distinct(np.rint(np.geomspace(exact, num_candidates, num_bins + 1))).astype(np.int64)
    middles = (ends[:-1] + 1 + ends[1:]) // 2
    ranks_R = np.concatenate([np.arange(1, exact + 1), middles]).astype(np.float64)
    return ranks_R, np.concatenate([np.ones(exact), np.diff(ends)]) / num_candidates


def _log_falling(of_R1: torch.Tensor, length: int) -> torch.Tensor:
    """Return log(n (n - 1) ... (n - j + 1)) for j = 0..length; -inf beyond n. Summed: lgamma of 10^9 lacks digits."""
    vector_math.settle()
    factors = (of_R1 - torch.arange(length, dtype=torch.float64)).clamp(min=0)
    return torch.nn.functional.pad(torch.cumsum(torch.log(factors), dim=1), (1, 0))
