"""True and false positives and negatives at a threshold -> the rates of a confusion matrix.

Definitions: Fawcett, "An introduction to ROC analysis" (2006); Chicco and Jurman (2020) for Matthews' coefficient;
Balayla, "Prevalence threshold and the geometry of screening curves" (2020). A ratio whose denominator is 0 is None.
"""

from __future__ import annotations

import math

import numpy as np
from attrs import frozen

from pbgeval.metrics.labelled_scores import LabelledScores, ScoreGroups, Values

Count = int | float  # a number of scores, or the sum of their weights
_ROUNDING = 1e-12  # sums of weights that differ by less of the total are taken for equal


@frozen
class ConfusionMatrix:
    """Scores by true and predicted class; predicted positive is what scores at least the threshold."""

    true_positive: Count
    false_positive: Count
    false_negative: Count
    true_negative: Count
    threshold: float | None  # None: nothing is predicted positive


def confusion_matrix(
    y_true: Values, scores: Values, weights: Values | None = None, *, threshold: float | None = None
) -> ConfusionMatrix:
    """Count scores by true and predicted class.

    Args:
        y_true: labels (N,), bool or 0 and 1.
        scores: (N,), higher is more positive; +-inf compare as numbers.
        weights: (N,), finite and at least 0; None: all 1, and the counts are integers.
        threshold: what scores at least this is predicted positive. None: as many positives as are true, that is the
            highest score at which at least as much weight is predicted positive as is positive (the n-th highest
            score of n positives; what ties with it is positive too). Without positives nothing is predicted positive.

    Raises:
        ValueError: as `LabelledScores.of`; the threshold is NaN.
    """
    return confusion_of_groups(LabelledScores.of(y_true, scores, weights).by_threshold(), threshold)


def confusion_of_groups(groups: ScoreGroups, threshold: float | None = None) -> ConfusionMatrix:
    """Return the matrix at a threshold, or at that of as many positives as are true."""
    positive_T, negative_T = groups.positive_T, groups.negative_T
    if threshold is not None and math.isnan(threshold):
        raise ValueError("threshold: expected a number, got NaN")
    if threshold is not None:
        num_above = int((groups.scores_T >= threshold).sum())
    elif not positive_T.any():
        num_above = 0
    else:
        # As much is predicted as is positive where FP >= FN, but for what sums of weights are rounded by.
        missing_T = positive_T.sum() - np.cumsum(positive_T + negative_T)
        rounding = 0 if missing_T.dtype.kind == "i" else _ROUNDING * (positive_T.sum() + negative_T.sum())
        num_above = int(np.argmax(missing_T <= rounding)) + 1
        threshold = groups.scores_T[num_above - 1].item()
    return ConfusionMatrix(
        true_positive=positive_T[:num_above].sum().item(),
        false_positive=negative_T[:num_above].sum().item(),
        false_negative=positive_T[num_above:].sum().item(),
        true_negative=negative_T[num_above:].sum().item(),
        threshold=threshold,
    )


def confusion_metrics(matrix: ConfusionMatrix) -> dict[str, float | None]:
    """Return the rates of a confusion matrix by name.

    Higher is better, but for false_* rates, negative_likelihood_ratio and prevalence_threshold. Undefined are (None):
        true_positive_rate, false_negative_rate: without positives; [0, 1].
        true_negative_rate, false_positive_rate: without negatives; [0, 1].
        positive_predictive_value, false_discovery_rate: where nothing is predicted positive; [0, 1].
        negative_predictive_value, false_omission_rate: where nothing is predicted negative; [0, 1].
        positive_likelihood_ratio = TPR / FPR: without positives or false positives; [0, inf).
        negative_likelihood_ratio = FNR / TNR: without positives or true negatives; [0, inf).
        diagnostic_odds_ratio = TP TN / (FP FN): without false positives or false negatives; [0, inf).
        accuracy: without scores; [0, 1].
        balanced_accuracy_score = (TPR + TNR) / 2, informedness = TPR + TNR - 1: without either class; [0, 1], [-1, 1].
        f1_score, threat_score: without positives, true or predicted; [0, 1].
        fowlkes_mallows_index = sqrt(PPV TPR): without positives, or where none is predicted; [0, 1].
        prevalence_threshold = sqrt(FPR) / (sqrt(TPR) + sqrt(FPR)): without either class, or with TPR = FPR = 0; [0, 1].
        matthews_correlation_coefficient: without either class; 0, its limit, where all are predicted alike; [-1, 1].
    """
    tp, fp = matrix.true_positive, matrix.false_positive
    fn, tn = matrix.false_negative, matrix.true_negative
    tpr, fpr = _ratio(tp, tp + fn), _ratio(fp, fp + tn)
    fnr, tnr = _ratio(fn, tp + fn), _ratio(tn, fp + tn)
    ppv = _ratio(tp, tp + fp)
    informedness = None if tpr is None or tnr is None else tpr + tnr - 1.0
    return {
        "true_positive_rate": tpr,
        "true_negative_rate": tnr,
        "false_positive_rate": fpr,
        "false_negative_rate": fnr,
        "positive_predictive_value": ppv,
        "negative_predictive_value": _ratio(tn, tn + fn),
        "false_discovery_rate": _ratio(fp, tp + fp),
        "false_omission_rate": _ratio(fn, tn + fn),
        "positive_likelihood_ratio": _ratio(tpr, fpr),
        "negative_likelihood_ratio": _ratio(fnr, tnr),
        "diagnostic_odds_ratio": _product(_ratio(tp, fp), _ratio(tn, fn)),
        "accuracy": _ratio(tp + tn, tp + fp + fn + tn),
        "balanced_accuracy_score": None if tpr is None or tnr is None else (tpr + tnr) / 2,
        "f1_score": _ratio(2 * tp, 2 * tp + fp + fn),
        "prevalence_threshold": _prevalence_threshold(tpr, fpr),
        "threat_score": _ratio(tp, tp + fn + fp),
        "fowlkes_mallows_index": None if ppv is None or tpr is None else math.sqrt(ppv * tpr),
        "informedness": informedness,
        "matthews_correlation_coefficient": _matthews(matrix),
    }


def _ratio(numerator: Count | None, denominator: Count | None) -> float | None:
    return None if numerator is None or not denominator else numerator / denominator


def _product(first: float | None, second: float | None) -> float | None:
    return None if first is None or second is None else first * second


def _prevalence_threshold(tpr: float | None, fpr: float | None) -> float | None:
    if tpr is None or fpr is None or not tpr + fpr:
        return None
    return math.sqrt(fpr) / (math.sqrt(tpr) + math.sqrt(fpr))


def _matthews(matrix: ConfusionMatrix) -> float | None:
    """Return (TP TN - FP FN) / sqrt of the product of the four margins."""
    tp, fp, fn, tn = matrix.true_positive, matrix.false_positive, matrix.false_negative, matrix.true_negative
    total = tp + fp + fn + tn
    if not tp + fn or not fp + tn:
        return None
    if not tp + fp or not fn + tn:
        return 0.0
    if isinstance(total, int):
        return (tp * tn - fp * fn) / math.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn))
    tp, fp, fn, tn = (part / total for part in (tp, fp, fn, tn))  # products of large or small weights leave the range
    return (tp * tn - fp * fn) / math.prod(math.sqrt(margin) for margin in (tp + fp, tp + fn, tn + fp, tn + fn))
