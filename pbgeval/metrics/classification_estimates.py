"""Labels and scores of a sample -> area under the ROC curve and average precision with standard errors."""

from __future__ import annotations

import math

import numpy as np

from pbgeval.metrics.classification import LabelledScores, Values, area_under_roc, average_precision
from pbgeval.metrics.estimates import Estimate

_BLOCK_CELLS = 1 << 22  # of resampled counts held at once


def estimate_area_under_roc(y_true: Values, scores: Values) -> Estimate:
    """Estimate the area under the ROC curve of a population from independent draws of it.

    The area does not depend on the share of positives, so the sample may hold the classes in any proportion.
    Standard error: DeLong, DeLong and Clarke-Pearson (1988), the variances of the positives' and of the negatives'
    shares of won pairs, ties one half. Draws without replacement make it too large, never too small.

    Args:
        y_true: labels (N,), bool or 0 and 1.
        scores: (N,), higher is more positive.

    Returns:
        A value of None without either class, a standard error of None with fewer than two of either class.

    Raises:
        ValueError: as `area_under_roc`.
    """
    labelled = LabelledScores.of(y_true, scores)
    value = area_under_roc(y_true, scores)
    positive = np.sort(labelled.scores_N[labelled.is_positive_N])
    negative = np.sort(labelled.scores_N[~labelled.is_positive_N])
    if min(len(positive), len(negative)) < 2:
        return Estimate(value, None)
    shares_won = _doubled_beaten(positive, negative) / (2 * len(negative))
    shares_lost = 1.0 - _doubled_beaten(negative, positive) / (2 * len(positive))
    variance = np.var(shares_won, ddof=1) / len(positive) + np.var(shares_lost, ddof=1) / len(negative)
    return Estimate(value, math.sqrt(variance))


def estimate_average_precision(
    y_true: Values, scores: Values, weights: Values | None = None, *, seed: int, num_resamples: int = 1000
) -> Estimate:
    """Estimate the average precision of a population from independent draws of each class.

    Average precision does depend on the share of positives. Where a class was sampled more thinly than the other,
    weigh each of its scores by 1 / (the share of it that was drawn).

    Standard error: stratified bootstrap, the standard deviation of the metric over resamples of as many positives
    and as many negatives as there are, each class with replacement (Efron and Tibshirani, 1993). It takes the sizes
    of the classes for known. The value is that of the sample; average precision of a sample has a bias of the order
    of 1 / (positives drawn), which the standard error does not hold.

    Args:
        y_true: labels (N,), bool or 0 and 1.
        scores: (N,), higher is more positive.
        weights: (N,), finite and at least 0.
        seed: of the resamples; the same seed gives the same bits.
        num_resamples: at least 2.

    Returns:
        A value of None without positives, a standard error of None with fewer than two positives or
            negatives that weigh anything.

    Raises:
        ValueError: as `area_under_roc`; fewer than 2 resamples.
    """
    if num_resamples < 2:
        raise ValueError(f"num_resamples: expected at least 2, got {num_resamples}")
    value = average_precision(y_true, scores, weights)
    labelled = LabelledScores.of(y_true, scores, weights).in_order()
    num_positives = int(labelled.is_positive_N.sum())
    if value is None or min(num_positives, labelled.num_scores - num_positives) < 2:
        return Estimate(value, None)
    generator = np.random.default_rng(seed)
    block = max(1, _BLOCK_CELLS // labelled.num_scores)
    sizes = [min(block, num_resamples - start) for start in range(0, num_resamples, block)]
    resampled = np.concatenate([_resampled_average_precision(labelled, size, generator) for size in sizes])
    return Estimate(value, float(np.std(resampled, ddof=1)))


def _doubled_beaten(scores: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return for each score twice the number of others below it, and once those equal; others are sorted."""
    return np.searchsorted(others, scores, "left") + np.searchsorted(others, scores, "right")


def _resampled_average_precision(
    labelled: LabelledScores, num_resamples: int, generator: np.random.Generator
) -> np.ndarray:
    """Return the average precision of some resamples of scores in order."""
    is_positive_N, weights_N = labelled.is_positive_N, labelled.weights_N
    drawn_BN = np.zeros((num_resamples, labelled.num_scores))
    for of_class_N in (is_positive_N, ~is_positive_N):
        size = int(of_class_N.sum())
        drawn_BN[:, of_class_N] = generator.multinomial(size, np.full(size, 1 / size), num_resamples)
    if weights_N is not None:
        drawn_BN *= weights_N / weights_N.max()
    starts_T = labelled.starts_of_ties()
    positive_BT = np.add.reduceat(drawn_BN * is_positive_N, starts_T, axis=1)
    all_BT = np.cumsum(np.add.reduceat(drawn_BN, starts_T, axis=1), axis=1)
    precision_BT = np.cumsum(positive_BT, axis=1) / np.where(all_BT > 0, all_BT, 1.0)  # 0 / 1 before the first draw
    precision_B: np.ndarray = (positive_BT * precision_BT).sum(axis=1) / positive_BT.sum(axis=1)
    return precision_B
