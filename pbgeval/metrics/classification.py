"""Weights of positives and negatives at each score -> average precision and the rates of a confusion matrix.

Ties are not broken: scores that are equal pass a threshold together. Each metric is None where it is undefined.
Names end in T for distinct scores, the thresholds, from the highest down.

Definitions: Fawcett, "An introduction to ROC analysis" (2006); Chicco and Jurman (2020) for Matthews' coefficient;
Balayla, "Prevalence threshold and the geometry of screening curves" (2020). A ratio whose denominator is 0 is None.
"""

from __future__ import annotations

import math

import numpy as np

from pbgeval.stats.float_sums import float_sum
from pbgeval.stats.query_metrics import ratio

Count = int | float  # a number of scores, or the sum of their weights
_ROUNDING = 1e-12  # sums of weights that differ by less of the total are taken for equal


def classification_metrics(
    positive_K: np.ndarray, negative_K: np.ndarray, num_scores: int
) -> dict[str, float | int | None]:
    """Return all metrics of this module by name.

    The area under the ROC curve is not among them: it is the pooled AUC.

    Args:
        positive_K: weights of positives by distinct score, scores decreasing; int64 where there are no weights, so that
            sums are exact.
        negative_K: those of negatives.
        num_scores: handed through.
    """
    return {
        "num_scores": num_scores,
        **_precision_recall(positive_K, negative_K),
        "best_informedness": _best_informedness(positive_K, negative_K),
        **confusion_metrics(*confusion_counts(positive_K, negative_K)),
    }


def confusion_counts(positive_K: np.ndarray, negative_K: np.ndarray) -> tuple[Count, Count, Count, Count]:
    """Return true positives, false positives, false negatives and true negatives.

    As many are predicted positive as are: the threshold is the highest score at which at least as much weight is
    predicted positive as is positive (the n-th highest score of n positives; what ties with it is positive too).
    Without positives nothing is predicted positive.
    """
    num_above = 0
    if positive_K.any():
        # As much is predicted as is positive where FP >= FN, but for what sums of weights are rounded by.
        missing_K = _total(positive_K) - np.cumsum(positive_K + negative_K)
        rounding = 0 if missing_K.dtype.kind == "i" else _ROUNDING * (_total(positive_K) + _total(negative_K))
        num_above = int(np.argmax(missing_K <= rounding)) + 1
    tp, fn = map(_total, np.split(positive_K, [num_above]))
    fp, tn = map(_total, np.split(negative_K, [num_above]))
    return tp, fp, fn, tn


def _total(of_K: np.ndarray) -> Count:
    """Return the number of scores, or the sum of their weights with the same bits everywhere."""
    return int(of_K.sum()) if of_K.dtype.kind == "i" else float_sum(of_K)


def confusion_metrics(tp: Count, fp: Count, fn: Count, tn: Count) -> dict[str, float | None]:
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
    tpr, fpr = ratio(tp, tp + fn), ratio(fp, fp + tn)
    fnr, tnr = ratio(fn, tp + fn), ratio(tn, fp + tn)
    ppv = ratio(tp, tp + fp)
    return {
        "true_positive_rate": tpr,
        "true_negative_rate": tnr,
        "false_positive_rate": fpr,
        "false_negative_rate": fnr,
        "positive_predictive_value": ppv,
        "negative_predictive_value": ratio(tn, tn + fn),
        "false_discovery_rate": ratio(fp, tp + fp),
        "false_omission_rate": ratio(fn, tn + fn),
        "positive_likelihood_ratio": None if tpr is None or fpr is None else ratio(tpr, fpr),
        "negative_likelihood_ratio": None if fnr is None or tnr is None else ratio(fnr, tnr),
        "diagnostic_odds_ratio": None if not fp or not fn else (tp / fp) * (tn / fn),
        "accuracy": ratio(tp + tn, tp + fp + fn + tn),
        "balanced_accuracy_score": None if tpr is None or tnr is None else (tpr + tnr) / 2,
        "f1_score": ratio(2 * tp, 2 * tp + fp + fn),
        "prevalence_threshold": (
            None if tpr is None or fpr is None or not tpr + fpr else math.sqrt(fpr) / (math.sqrt(tpr) + math.sqrt(fpr))
        ),
        "threat_score": ratio(tp, tp + fn + fp),
        "fowlkes_mallows_index": None if ppv is None or tpr is None else math.sqrt(ppv * tpr),
        "informedness": None if tpr is None or tnr is None else tpr + tnr - 1.0,
        "matthews_correlation_coefficient": _matthews(tp, fp, fn, tn),
    }


def _matthews(tp: Count, fp: Count, fn: Count, tn: Count) -> float | None:
    """Return (TP TN - FP FN) / sqrt of the product of the four margins."""
    total = tp + fp + fn + tn
    if not tp + fn or not fp + tn:
        return None
    if not tp + fp or not fn + tn:
        return 0.0
    if isinstance(total, int):
        return (tp * tn - fp * fn) / math.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn))
    tp, fp, fn, tn = (part / total for part in (tp, fp, fn, tn))  # products of large or small weights leave the range
    return (tp * tn - fp * fn) / math.prod(math.sqrt(margin) for margin in (tp + fp, tp + fn, tn + fp, tn + fn))


def _precision_recall(positive_K: np.ndarray, negative_K: np.ndarray) -> dict[str, float | None]:
    """Return the average precision, and the area under the precision-recall curve by trapezoids.

    average_precision_score: the mean over positives of the precision at the positive's score, sum of
        (R_t - R_(t-1)) P_t. (0, 1], higher is better; chance is near the share of positives. Nothing is interpolated,
        as in scikit-learn. Source: Manning, Raghavan and Schuetze, "Introduction to Information Retrieval", 8.4.
    area_under_the_precision_recall_curve: begins at recall 0, precision 1. [0, 1], higher is better; too optimistic
        where positives are rare or scores tie, because precision is not linear in recall (Davis and Goadrich, 2006).
    """
    if not positive_K.any():
        return dict.fromkeys(("average_precision_score", "area_under_the_precision_recall_curve"))
    total = _total(positive_K)
    above_K = np.cumsum(positive_K)
    precision_K = above_K / (above_K + np.cumsum(negative_K))
    return {
        "average_precision_score": float_sum(positive_K * precision_K) / total,
        "area_under_the_precision_recall_curve": float_sum(
            positive_K * (precision_K + np.append(1.0, precision_K[:-1]))
        )
        / (2 * total),
    }


def _best_informedness(positive_K: np.ndarray, negative_K: np.ndarray) -> float | None:
    """Return Youden's J at the best threshold: the greatest TPR - FPR, 0 where nothing is predicted positive.

    [0, 1], higher is better, chance 0. Source: Youden, "Index for rating diagnostic tests" (1950).
    """
    if not (positive_K.any() and negative_K.any()):
        return None
    informedness_K = np.cumsum(positive_K) / _total(positive_K) - np.cumsum(negative_K) / _total(negative_K)
    return max(0.0, float(informedness_K.max()))


NAMES = tuple(classification_metrics(np.empty(0, np.int64), np.empty(0, np.int64), 0))
