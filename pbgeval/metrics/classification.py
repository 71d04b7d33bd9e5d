"""Labels and scores -> area under the ROC curve, average precision, and the rates of a confusion matrix.

Ties are not broken: scores that are equal pass a threshold together. Each metric is None where it is undefined.
Names end in T for distinct scores, the thresholds, from the highest down.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Sequence

import numpy as np
import torch
from attrs import frozen
from torch import Tensor

# Labels and scores -> weights of positives and negatives at each distinct score, from the highest down.
#
# All metrics of binary classification follow from them, and ties are no case of their own: what scores alike falls on
# the same side of any threshold. Names end in N for scores as they come, in T for distinct scores.

Values = Tensor | np.ndarray | Sequence[float] | Sequence[int] | Sequence[bool]


@frozen(eq=False)
class LabelledScores:
    """Checked input, in the order it came."""

    is_positive_N: np.ndarray  # bool
    scores_N: np.ndarray  # no NaN
    weights_N: np.ndarray | None  # float64, finite, at least 0; None: all 1

    @classmethod
    def of(cls, y_true: Values, scores: Values, weights: Values | None = None) -> LabelledScores:
        """Check arrays (N,) of one length.

        Raises:
            ValueError: lengths differ, a label is not 0 or 1, a score is NaN, a weight is negative or not finite.
        """
        labels_N, scores_N = _array(y_true), _array(scores)
        weights_N = None if weights is None else _array(weights).astype(np.float64)
        for name, of in (("y_true", labels_N), ("scores", scores_N), ("weights", weights_N)):
            if of is not None and of.shape != (labels_N.size,):
                raise ValueError(f"{name}: expected {labels_N.size} values, one per score, got shape {of.shape}")
        _refuse("y_true", labels_N, (labels_N != 0) & (labels_N != 1), "0 or 1")
        _refuse("scores", scores_N, scores_N != scores_N, "a number")
        if weights_N is not None:
            _refuse("weights", weights_N, ~(np.isfinite(weights_N) & (weights_N >= 0)), "finite and at least 0")
            with np.errstate(over="ignore"):  # refused in words
                total = weights_N.sum()
            if not np.isfinite(total):
                raise ValueError("weights: their sum is not a finite number; divide them all by the largest")
        return cls(labels_N.astype(np.bool_), scores_N, weights_N)

    @property
    def num_scores(self) -> int:
        return len(self.scores_N)

    def by_threshold(self) -> ScoreGroups:
        """Return the weights at each distinct score; what weighs nothing is left out."""
        ordered = self.in_order()
        one_N = np.ones(ordered.num_scores, np.int64) if ordered.weights_N is None else ordered.weights_N
        starts_T = ordered.starts_of_ties()
        parts = one_N * ordered.is_positive_N, one_N * ~ordered.is_positive_N
        positive_T, negative_T = (np.add.reduceat(part, starts_T) if len(part) else part for part in parts)
        return ScoreGroups(ordered.scores_N[starts_T], positive_T, negative_T)

    def in_order(self) -> LabelledScores:
        """Return those that weigh anything by decreasing score; equal ones stand next to each other."""
        order_N = np.argsort(self.scores_N, kind="stable")[::-1]
        if self.weights_N is None:
            return LabelledScores(self.is_positive_N[order_N], self.scores_N[order_N], None)
        order_N = order_N[self.weights_N[order_N] > 0]
        return LabelledScores(self.is_positive_N[order_N], self.scores_N[order_N], self.weights_N[order_N])

    def starts_of_ties(self) -> np.ndarray:
        """Return where each distinct score begins, scores being in order."""
        scores_N = self.scores_N
        return np.flatnonzero(np.append(True, scores_N[1:] != scores_N[:-1])[: len(scores_N)])


@frozen(eq=False)
class ScoreGroups:
    """Weights by distinct score, scores decreasing; int64 where there are no weights, so that sums are exact."""

    scores_T: np.ndarray
    positive_T: np.ndarray
    negative_T: np.ndarray

    @property
    def has_both_classes(self) -> bool:
        return bool(self.positive_T.any() and self.negative_T.any())


def _array(values: Values) -> np.ndarray:
    if isinstance(values, Tensor):
        values = values.detach().cpu()  # numpy has no bfloat16
        return (values.double() if values.dtype in (torch.bfloat16, torch.float16) else values).numpy()
    return np.asarray(values)


def _refuse(name: str, values_N: np.ndarray, is_wrong_N: np.ndarray, expected: str) -> None:
    if bool(is_wrong_N.any()):
        row = int(np.argmax(is_wrong_N))
        raise ValueError(f"{name}, row {row}: expected {expected}, got {values_N[row]}")


# True and false positives and negatives at a threshold -> the rates of a confusion matrix.
#
# Definitions: Fawcett, "An introduction to ROC analysis" (2006); Chicco and Jurman (2020) for Matthews' coefficient;
# Balayla, "Prevalence threshold and the geometry of screening curves" (2020). A ratio whose denominator is 0 is None.

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
