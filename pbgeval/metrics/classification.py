"""Labels and scores -> area under the ROC curve, average precision, and the rates of a confusion matrix.

Ties are not broken: scores that are equal pass a threshold together. Each metric is None where it is undefined.
Names end in T for distinct scores, the thresholds, from the highest down.
"""

from __future__ import annotations

import difflib

import numpy as np

from pbgeval.metrics.confusion import confusion_metrics, confusion_of_groups
from pbgeval.metrics.labelled_scores import LabelledScores, ScoreGroups, Values

ROC_AUC = "area_under_the_receiver_operating_characteristic_curve"
SYNONYMS = {
    "roc_auc": ROC_AUC,
    "auc_roc": ROC_AUC,
    "auroc": ROC_AUC,
    "ap": "average_precision_score",
    "aps": "average_precision_score",
    "average_precision": "average_precision_score",
    "pr_auc": "area_under_the_precision_recall_curve",
    "auc_pr": "area_under_the_precision_recall_curve",
    "tpr": "true_positive_rate",
    "recall": "true_positive_rate",
    "sensitivity": "true_positive_rate",
    "hit_rate": "true_positive_rate",
    "tnr": "true_negative_rate",
    "specificity": "true_negative_rate",
    "selectivity": "true_negative_rate",
    "fpr": "false_positive_rate",
    "fall_out": "false_positive_rate",
    "fnr": "false_negative_rate",
    "miss_rate": "false_negative_rate",
    "ppv": "positive_predictive_value",
    "precision": "positive_predictive_value",
    "npv": "negative_predictive_value",
    "fdr": "false_discovery_rate",
    "for": "false_omission_rate",
    "lr+": "positive_likelihood_ratio",
    "plr": "positive_likelihood_ratio",
    "lr-": "negative_likelihood_ratio",
    "nlr": "negative_likelihood_ratio",
    "dor": "diagnostic_odds_ratio",
    "acc": "accuracy",
    "ba": "balanced_accuracy_score",
    "bacc": "balanced_accuracy_score",
    "balanced_accuracy": "balanced_accuracy_score",
    "f1": "f1_score",
    "pt": "prevalence_threshold",
    "ts": "threat_score",
    "csi": "threat_score",
    "critical_success_index": "threat_score",
    "jaccard": "threat_score",
    "fm": "fowlkes_mallows_index",
    "fmi": "fowlkes_mallows_index",
    "bm": "informedness",
    "j": "informedness",
    "bookmaker_informedness": "informedness",
    "mcc": "matthews_correlation_coefficient",
    "phi": "matthews_correlation_coefficient",
}


def area_under_roc(y_true: Values, scores: Values, weights: Values | None = None) -> float | None:
    """Return P(score of a positive > score of a negative) + P(equal) / 2: the area under the ROC curve.

    [0, 1], higher is better, chance 0.5. None without positives or without negatives. Without weights the pairs are
    counted exactly, and divided once. Source: Hanley and McNeil (1982).

    Args:
        y_true: labels (N,), bool or 0 and 1.
        scores: (N,), higher is more positive; +-inf compare as numbers.
        weights: (N,), finite and at least 0; a pair weighs the product of its two.

    Raises:
        ValueError: lengths differ, a label is not 0 or 1, a score is NaN, a weight is negative or not finite.
    """
    return _area_under_roc(LabelledScores.of(y_true, scores, weights).by_threshold())


def average_precision(y_true: Values, scores: Values, weights: Values | None = None) -> float | None:
    """Return the mean over positives of the precision at the positive's score: sum of (R_t - R_(t-1)) P_t.

    (0, 1], higher is better; chance is near the share of positives. None without positives. Thresholds are the
    distinct scores, and nothing is interpolated, as in scikit-learn. Arguments and errors: as `area_under_roc`.
    Source: Manning, Raghavan and Schuetze, "Introduction to Information Retrieval", 8.4.
    """
    return _average_precision(LabelledScores.of(y_true, scores, weights).by_threshold())


def area_under_precision_recall(y_true: Values, scores: Values, weights: Values | None = None) -> float | None:
    """Return the area under the precision-recall curve by trapezoids, which begins at recall 0, precision 1.

    [0, 1], higher is better; too optimistic where positives are rare or scores tie, because precision is not linear
    in recall (Davis and Goadrich, 2006): `average_precision` is the one to report. None without positives. Arguments
    and errors: as `area_under_roc`.
    """
    return _area_under_precision_recall(LabelledScores.of(y_true, scores, weights).by_threshold())


def best_informedness(y_true: Values, scores: Values, weights: Values | None = None) -> float | None:
    """Return Youden's J at the best threshold: the greatest TPR - FPR, 0 where nothing is predicted positive.

    [0, 1], higher is better, chance 0. None without positives or without negatives. Arguments and errors: as
    `area_under_roc`. Source: Youden, "Index for rating diagnostic tests" (1950).
    """
    return _best_informedness(LabelledScores.of(y_true, scores, weights).by_threshold())


def classification_metrics(
    y_true: Values, scores: Values, weights: Values | None = None, *, threshold: float | None = None
) -> dict[str, float | int | None]:
    """Return all metrics of this module, and those of `confusion_metrics`, by name.

    Args:
        y_true: labels (N,), bool or 0 and 1.
        scores: (N,), higher is more positive; +-inf compare as numbers.
        weights: (N,), finite and at least 0.
        threshold: of the confusion matrix; None: as many positives as are true, see `confusion_matrix`.

    Returns:
        Undefined ones are None. `num_scores` is N, whatever the weights.

    Raises:
        ValueError: as `area_under_roc`; the threshold is NaN.
    """
    labelled = LabelledScores.of(y_true, scores, weights)
    return metrics_of_groups(labelled.by_threshold(), labelled.num_scores, threshold)


def metrics_of_groups(
    groups: ScoreGroups, num_scores: int, threshold: float | None = None
) -> dict[str, float | int | None]:
    """Return the metrics of `classification_metrics` from weights by distinct score."""
    return {
        "num_scores": num_scores,
        ROC_AUC: _area_under_roc(groups),
        "average_precision_score": _average_precision(groups),
        "area_under_the_precision_recall_curve": _area_under_precision_recall(groups),
        "best_informedness": _best_informedness(groups),
        **confusion_metrics(confusion_of_groups(groups, threshold)),
    }


def metric_name(name: str) -> str:
    """Return the name that a name or synonym means; case, `-` and blanks do not matter.

    Raises:
        KeyError: there is none; names the nearest.
    """
    key = name.strip().lower()
    key = key if key in SYNONYMS else key.replace("-", "_").replace(" ", "_")
    known = [*SYNONYMS, *NAMES]
    if key not in known:
        nearest = ", ".join(difflib.get_close_matches(key, known, n=3))
        raise KeyError(f"no classification metric '{name}'" + (f"; nearest: {nearest}" if nearest else ""))
    return SYNONYMS.get(key, key)


def _area_under_roc(groups: ScoreGroups) -> float | None:
    if not groups.has_both_classes:
        return None
    positive_T, negative_T = _normalised(groups)
    lower_T = negative_T.sum() - np.cumsum(negative_T)  # negatives that score less
    if negative_T.dtype.kind != "i":
        lower_T = np.append(np.cumsum(negative_T[:0:-1])[::-1], 0.0)  # as sums, not differences, of what is rounded
    doubled_wins = (positive_T * (2 * lower_T + negative_T)).sum().item()
    return float(doubled_wins / (2 * positive_T.sum().item() * negative_T.sum().item()))


def _average_precision(groups: ScoreGroups) -> float | None:
    if not groups.positive_T.any():
        return None
    positive_T, negative_T = _normalised(groups)
    return float((positive_T * _precision(positive_T, negative_T)).sum() / positive_T.sum())


def _area_under_precision_recall(groups: ScoreGroups) -> float | None:
    if not groups.positive_T.any():
        return None
    positive_T, negative_T = _normalised(groups)
    precision_T = _precision(positive_T, negative_T)
    before_T = np.append(1.0, precision_T[:-1])
    return float((positive_T * (precision_T + before_T)).sum() / (2 * positive_T.sum()))


def _best_informedness(groups: ScoreGroups) -> float | None:
    if not groups.has_both_classes:
        return None
    positive_T, negative_T = _normalised(groups)
    informedness_T = np.cumsum(positive_T) / positive_T.sum() - np.cumsum(negative_T) / negative_T.sum()
    return max(0.0, float(informedness_T.max()))


def _precision(positive_T: np.ndarray, negative_T: np.ndarray) -> np.ndarray:
    """Return the precision at each threshold."""
    above_T = np.cumsum(positive_T)
    precision_T: np.ndarray = above_T / (above_T + np.cumsum(negative_T))
    return precision_T


def _normalised(groups: ScoreGroups) -> tuple[np.ndarray, np.ndarray]:
    """Divide weights by a power of two near their largest: no product leaves the range, and no ratio changes."""
    positive_T, negative_T = groups.positive_T, groups.negative_T
    if positive_T.dtype.kind == "i":
        return positive_T, negative_T
    _, exponent = np.frexp(max(positive_T.max(), negative_T.max()))
    return np.ldexp(positive_T, -exponent), np.ldexp(negative_T, -exponent)


NAMES = tuple(classification_metrics([], []))  # of all metrics of this module, and of `confusion_metrics`
