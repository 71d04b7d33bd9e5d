from __future__ import annotations

import json
import math
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pbgeval.metrics.classification import (
    SYNONYMS,
    area_under_precision_recall,
    area_under_roc,
    average_precision,
    best_informedness,
    classification_metrics,
    confusion_matrix,
    confusion_metrics,
    metric_name,
)
from tests.kit.graphs import score_values

ROC_AUC = "area_under_the_receiver_operating_characteristic_curve"
RATES = {  # numerator and denominator, from true positives, false positives, false negatives, true negatives
    "true_positive_rate": lambda tp, fp, fn, tn: (tp, tp + fn),
    "true_negative_rate": lambda tp, fp, fn, tn: (tn, tn + fp),
    "false_positive_rate": lambda tp, fp, fn, tn: (fp, tn + fp),
    "false_negative_rate": lambda tp, fp, fn, tn: (fn, tp + fn),
    "positive_predictive_value": lambda tp, fp, fn, tn: (tp, tp + fp),
    "negative_predictive_value": lambda tp, fp, fn, tn: (tn, tn + fn),
    "false_discovery_rate": lambda tp, fp, fn, tn: (fp, tp + fp),
    "false_omission_rate": lambda tp, fp, fn, tn: (fn, tn + fn),
    "positive_likelihood_ratio": lambda tp, fp, fn, tn: (tp * (fp + tn), fp * (tp + fn)),
    "negative_likelihood_ratio": lambda tp, fp, fn, tn: (fn * (fp + tn), tn * (tp + fn)),
    "diagnostic_odds_ratio": lambda tp, fp, fn, tn: (tp * tn, fp * fn),
    "accuracy": lambda tp, fp, fn, tn: (tp + tn, tp + fp + fn + tn),
    "f1_score": lambda tp, fp, fn, tn: (2 * tp, 2 * tp + fp + fn),
    "threat_score": lambda tp, fp, fn, tn: (tp, tp + fp + fn),
    "balanced_accuracy_score": lambda tp, fp, fn, tn: (
        tp * (tn + fp) + tn * (tp + fn),
        2 * (tp + fn) * (tn + fp),
    ),
    "informedness": lambda tp, fp, fn, tn: (
        tp * (tn + fp) + tn * (tp + fn) - (tp + fn) * (tn + fp),
        (tp + fn) * (tn + fp),
    ),
}
items = st.lists(
    st.tuples(
        st.booleans(),
        st.one_of(score_values(), st.sampled_from([math.inf, -math.inf, -0.0])),
        st.integers(0, 3),
    ),
    max_size=9,
)


def columns(of) -> list[list]:
    return [list(column) for column in zip(*of, strict=True)] or [[], [], []]


def auc_over_pairs(labels, scores, weights) -> Fraction | None:
    won = total = Fraction(0)
    for label, score, weight in zip(labels, scores, weights, strict=True):
        for other_label, other, other_weight in zip(labels, scores, weights, strict=True):
            if label and not other_label:
                pair = Fraction(weight) * Fraction(other_weight)
                total += pair
                won += pair * Fraction((score > other) + (score >= other), 2)
    return won / total if total else None


def precision_recall_points(labels, scores, weights) -> list[tuple[Fraction, Fraction]]:
    """(recall, precision) at every score as threshold, highest first; only what weighs something."""
    positives = sum(weight for label, weight in zip(labels, weights, strict=True) if label)
    points = []
    for threshold in sorted({s for s, w in zip(scores, weights, strict=True) if w}, reverse=True):
        above = [(lab, w) for lab, s, w in zip(labels, scores, weights, strict=True) if s >= threshold]
        found = sum(w for label, w in above if label)
        points.append((Fraction(found, positives), Fraction(found, sum(w for _, w in above))))
    return points


def counts_at(threshold, labels, scores, weights) -> list[int]:
    """TP, FP, FN, TN; a threshold of None is above all."""
    counts = {(predicted, label): 0 for predicted in (True, False) for label in (True, False)}
    for label, score, weight in zip(labels, scores, weights, strict=True):
        counts[threshold is not None and score >= threshold, bool(label)] += weight
    return [counts[True, True], counts[True, False], counts[False, True], counts[False, False]]


@given(items)
def test_area_under_roc_is_the_share_of_won_pairs(of):
    labels, scores, weights = columns(of)
    plain, weighted = auc_over_pairs(labels, scores, [1] * len(of)), auc_over_pairs(labels, scores, weights)

    assert (None if plain is None else float(plain)) == area_under_roc(labels, scores)  # exact: integers, one division
    found = area_under_roc(labels, scores, weights)
    assert (None if weighted is None else pytest.approx(float(weighted), rel=1e-14, abs=1e-16)) == found


@given(items)
def test_average_precision_and_the_curves_area_follow_from_the_points_of_every_threshold(of):
    labels, scores, weights = columns(of)
    for given_weights, used in ((None, [1] * len(of)), (weights, weights)):
        if not any(w for label, w in zip(labels, used, strict=True) if label):
            assert average_precision(labels, scores, given_weights) is None
            assert area_under_precision_recall(labels, scores, given_weights) is None
            continue
        points = [(Fraction(0), Fraction(1)), *precision_recall_points(labels, scores, used)]
        steps = list(pairwise(points))
        expected = sum((r1 - r0) * p1 for (r0, _), (r1, p1) in steps)
        trapezoids = sum((r1 - r0) * (p0 + p1) / 2 for (r0, p0), (r1, p1) in steps)

        assert pytest.approx(float(expected), rel=1e-13) == average_precision(labels, scores, given_weights)
        found = area_under_precision_recall(labels, scores, given_weights)
        assert pytest.approx(float(trapezoids), rel=1e-13) == found


@given(items)
def test_best_informedness_is_the_best_over_all_thresholds(of):
    labels, scores, _ = columns(of)
    if len({*labels}) < 2:
        assert best_informedness(labels, scores) is None
        return
    matrices = [counts_at(threshold, labels, scores, [1] * len(of)) for threshold in [None, *scores]]
    expected = max(Fraction(tp, tp + fn) - Fraction(fp, fp + tn) for tp, fp, fn, tn in matrices)

    assert pytest.approx(float(expected), abs=1e-15) == best_informedness(labels, scores)


@given(items)
def test_the_threshold_predicts_as_many_as_are_positive(of):
    labels, scores, _ = columns(of)
    in_order = sorted(scores, reverse=True)
    expected = in_order[sum(labels) - 1] if any(labels) else None

    found = confusion_matrix(labels, scores)

    assert expected == found.threshold
    counts = [found.true_positive, found.false_positive, found.false_negative, found.true_negative]
    assert counts_at(expected, labels, scores, [1] * len(of)) == counts
    assert all(isinstance(count, int) for count in counts)


@given(items)
def test_whole_weights_are_repetitions(of):
    labels, scores, weights = columns(of)
    repeated = [(label, score, 1) for label, score, weight in of for _ in range(weight)]
    repeated_labels, repeated_scores, _ = columns(repeated)

    found = confusion_matrix(labels, scores, weights)

    assert confusion_matrix(repeated_labels, repeated_scores) == found


@given(items, score_values())
def test_a_given_threshold_is_used_as_it_is(of, threshold):
    labels, scores, _ = columns(of)

    found = confusion_matrix(labels, scores, threshold=threshold)

    counts = [found.true_positive, found.false_positive, found.false_negative, found.true_negative]
    assert counts_at(threshold, labels, scores, [1] * len(of)) == counts
    assert threshold == found.threshold


@given(items, st.none() | score_values())
def test_rates_are_ratios_of_counts_or_undefined(of, threshold):
    labels, scores, _ = columns(of)
    matrix = confusion_matrix(labels, scores, threshold=threshold)
    counts = [matrix.true_positive, matrix.false_positive, matrix.false_negative, matrix.true_negative]
    tp, fp, fn, tn = counts
    found = confusion_metrics(matrix)

    for name, parts in RATES.items():
        numerator, denominator = parts(*counts)
        assert (pytest.approx(numerator / denominator, abs=1e-15) if denominator else None) == found[name], name
    has_both = tp + fn > 0 and tn + fp > 0
    margins = (tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)
    matthews = (tp * tn - fp * fn) / math.sqrt(margins) if margins else 0.0
    assert (pytest.approx(matthews, abs=1e-15) if has_both else None) == found["matthews_correlation_coefficient"]
    fowlkes = math.sqrt(tp / (tp + fp) * tp / (tp + fn)) if (tp + fp) * (tp + fn) else None
    assert (None if fowlkes is None else pytest.approx(fowlkes)) == found["fowlkes_mallows_index"]
    tpr, fpr = (tp / (tp + fn), fp / (fp + tn)) if has_both else (0, 0)
    expected = math.sqrt(fpr) / (math.sqrt(tpr) + math.sqrt(fpr)) if tpr + fpr else None
    assert (None if expected is None else pytest.approx(expected)) == found["prevalence_threshold"]
    assert 16 + 3 == len(found)


def test_perfect_and_reversed_scores():
    best = classification_metrics([1, 1, 0, 0, 0], [5, 4, 3, 2, 1])
    worst = classification_metrics([1, 1, 0, 0, 0], [1, 2, 3, 4, 5])

    assert (1.0, 1.0, 1.0, 1.0) == tuple(
        best[name] for name in (ROC_AUC, "average_precision_score", "matthews_correlation_coefficient", "informedness")
    )
    assert (0.0, 0.5 * (1 / 4 + 2 / 5)) == (worst[ROC_AUC], worst["average_precision_score"])
    assert best["diagnostic_odds_ratio"] is None
    assert best["positive_likelihood_ratio"] is None


@pytest.mark.parametrize(
    ("labels", "scores", "defined"),
    [
        ([], [], {"num_scores": 0}),
        (
            [1],
            [0.5],
            {
                "num_scores": 1,
                "average_precision_score": 1.0,
                "area_under_the_precision_recall_curve": 1.0,
                "true_positive_rate": 1.0,
                "false_negative_rate": 0.0,
                "positive_predictive_value": 1.0,
                "false_discovery_rate": 0.0,
                "accuracy": 1.0,
                "f1_score": 1.0,
                "threat_score": 1.0,
                "fowlkes_mallows_index": 1.0,
            },
        ),
        (
            [0, 0],
            [0.5, 7.0],
            {
                "num_scores": 2,
                "true_negative_rate": 1.0,
                "false_positive_rate": 0.0,
                "negative_predictive_value": 1.0,
                "false_omission_rate": 0.0,
                "accuracy": 1.0,
            },
        ),
    ],
)
def test_what_is_undefined_is_none(labels, scores, defined):
    found = classification_metrics(labels, scores)

    assert defined == {name: value for name, value in found.items() if value is not None}


@pytest.mark.parametrize("scale", [1e-300, 0.1, 1.0, 1e300])
def test_the_scale_of_weights_changes_no_ratio(scale):
    labels, scores, weights = [1, 0, 1, 0, 1, 0], [3.0, 3.0, 2.0, 1.0, 0.0, 0.0], [3, 1, 2, 2, 1, 4]

    plain = classification_metrics(labels, scores, weights)
    scaled = classification_metrics(labels, scores, [weight * scale for weight in weights])

    assert {name: pytest.approx(value, rel=1e-12) for name, value in plain.items()} == scaled
    assert None not in plain.values()


def test_equal_weights_that_are_no_binary_fractions_do_not_move_the_threshold():
    labels = [0, 0, 0, 1, 1, 1, 1, 0, 0]
    scores = [9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0]

    assert 6.0 == confusion_matrix(labels, scores).threshold
    assert 6.0 == confusion_matrix(labels, scores, [0.1] * 9).threshold


def test_torch_tensors_of_any_type_are_read():
    labels, scores = torch.tensor([True, False, True]), torch.tensor([1.0, 1.0, 0.5])
    expected = classification_metrics(labels.tolist(), scores.tolist())

    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        assert expected == classification_metrics(labels, scores.to(dtype))
    assert expected == classification_metrics(labels.numpy(), scores.requires_grad_())


def test_integers_beyond_float64_are_told_apart():
    assert 0.0 == area_under_roc([1, 0], np.array([2**53, 2**53 + 1]))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1, 0], [0.5]), "scores: expected 2 values"),
        (([1, 0], [0.5, 1.0], [1.0]), "weights: expected 2 values"),
        (([[1, 0]], [0.5, 1.0]), "y_true: expected 2 values"),
        (([1, 2], [0.5, 1.0]), "y_true, row 1: expected 0 or 1, got 2"),
        (([1, 0], [0.5, math.nan]), "scores, row 1: expected a number"),
        (([1, 0], [0.5, 1.0], [-1.0, 1.0]), "weights, row 0"),
        (([1, 0], [0.5, 1.0], [1.0, math.inf]), "weights, row 1"),
        (([1, 0], [0.5, 1.0], [1.7e308, 1.7e308]), "weights: their sum"),
    ],
)
def test_what_cannot_be_judged_is_refused(arguments, message):
    for metric in (area_under_roc, average_precision, classification_metrics, confusion_matrix):
        with pytest.raises(ValueError, match=message):
            metric(*arguments)


def test_a_threshold_is_a_number():
    with pytest.raises(ValueError, match="threshold: expected a number, got NaN"):
        confusion_matrix([1, 0], [0.5, 1.0], threshold=math.nan)


def test_names_and_synonyms_lead_to_metrics():
    names = classification_metrics([], [])

    assert {*SYNONYMS.values()} <= {*names}
    assert {metric_name(name) for name in names} == {*names}
    assert [ROC_AUC, "matthews_correlation_coefficient", "positive_likelihood_ratio"] == [
        metric_name(name) for name in ("ROC-AUC", " MCC", "lr+")
    ]
    with pytest.raises(KeyError, match="accuracy"):
        metric_name("acuracy")


@pytest.mark.reference
@pytest.mark.parametrize("name", ["noties", "ties", "rare", "all_equal"])
def test_vectors_of_scikit_learn(name, reference_path):
    cases = json.loads((reference_path / "vectors" / "classification.json").read_text())["cases"]
    case = {case["name"]: case for case in cases}[name]
    assert 4 == len(cases)
    labels, scores = case.pop("y_true"), case.pop("y_score")

    found = classification_metrics(labels, scores)
    matrix = confusion_matrix(labels, scores)
    found["auc_pr_trapezoid"] = found.pop("area_under_the_precision_recall_curve")
    found["youden_best_threshold_j"] = found.pop("best_informedness")
    found |= {"name": name, "threshold": matrix.threshold, "tp": matrix.true_positive, "fp": matrix.false_positive}
    found |= {"fn": matrix.false_negative, "tn": matrix.true_negative}

    assert {*case} == {*found}
    assert abs(case[ROC_AUC] - found[ROC_AUC]) <= 1e-12
    for key, expected in case.items():
        value = found[key]
        assert (pytest.approx(expected, rel=1e-9, abs=1e-12) if isinstance(expected, float) else expected) == value, key
