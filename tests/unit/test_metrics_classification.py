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

from pbgeval.metrics.auc import pooled_auc
from pbgeval.metrics.classification import (
    NAMES,
    classification_metrics,
    confusion_counts,
    confusion_metrics,
)
from pbgeval.metrics.names import SCORE_METRICS, split
from pbgeval.stats.groups import ScorePool, sortable_int32
from tests.kit.close import close_to
from tests.kit.graphs import score_values

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


def groups_of(labels, scores, weights=None) -> np.ndarray:
    """Weights by distinct score, the highest first; what weighs nothing is left out."""
    table = {}
    for label, score, weight in zip(labels, scores, [1] * len(labels) if weights is None else weights, strict=True):
        if weight:
            parts = table.setdefault(score + 0.0, [0, 0])
            parts[0 if label else 1] += weight
    dtype = np.int64 if weights is None else np.float64
    return np.array([table[score] for score in sorted(table, reverse=True)], dtype).reshape(-1, 2).T


def metrics_of(labels, scores, weights=None) -> dict:
    return classification_metrics(*groups_of(labels, scores, weights), len(labels))


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
def test_average_precision_and_the_curves_area_follow_from_the_points_of_every_threshold(of):
    labels, scores, weights = columns(of)
    for given_weights, used in ((None, [1] * len(of)), (weights, weights)):
        found = metrics_of(labels, scores, given_weights)
        areas = [found[name] for name in ("average_precision_score", "area_under_the_precision_recall_curve")]
        if not any(w for label, w in zip(labels, used, strict=True) if label):
            assert areas == [None, None]
            continue
        points = [(Fraction(0), Fraction(1)), *precision_recall_points(labels, scores, used)]
        steps = list(pairwise(points))
        expected = sum((r1 - r0) * p1 for (r0, _), (r1, p1) in steps)
        trapezoids = sum((r1 - r0) * (p0 + p1) / 2 for (r0, p0), (r1, p1) in steps)

        assert areas == pytest.approx([float(expected), float(trapezoids)], rel=1e-13)


@given(items)
def test_best_informedness_is_the_best_over_all_thresholds(of):
    labels, scores, _ = columns(of)
    found = metrics_of(labels, scores)["best_informedness"]
    if len({*labels}) < 2:
        assert found is None
        return
    matrices = [counts_at(threshold, labels, scores, [1] * len(of)) for threshold in [None, *scores]]
    expected = max(Fraction(tp, tp + fn) - Fraction(fp, fp + tn) for tp, fp, fn, tn in matrices)

    assert found == pytest.approx(float(expected), abs=1e-15)


@given(items)
def test_the_threshold_predicts_as_many_as_are_positive_and_whole_weights_are_repetitions(of):
    labels, scores, weights = columns(of)
    repeated = [(label, score, 1) for label, score, weight in of for _ in range(weight)]
    repeated_labels, repeated_scores, ones = columns(repeated)
    in_order = sorted(repeated_scores, reverse=True)
    threshold = in_order[sum(repeated_labels) - 1] if any(repeated_labels) else None

    found = confusion_counts(*groups_of(repeated_labels, repeated_scores))

    assert list(found) == counts_at(threshold, repeated_labels, repeated_scores, ones)
    assert all(isinstance(count, int) for count in found)
    assert confusion_counts(*groups_of(labels, scores, weights)) == found


@given(st.lists(st.integers(0, 5), min_size=4, max_size=4))
def test_rates_are_ratios_of_counts_or_undefined(counts):
    tp, fp, fn, tn = counts
    expected = {
        name: over / under if under else None
        for name, (over, under) in ((name, parts(*counts)) for name, parts in RATES.items())
    }
    has_both = tp + fn > 0 and tn + fp > 0
    margins = (tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)
    matthews = (tp * tn - fp * fn) / math.sqrt(margins) if margins else 0.0
    fowlkes = math.sqrt(tp / (tp + fp) * tp / (tp + fn)) if (tp + fp) * (tp + fn) else None
    tpr, fpr = (tp / (tp + fn), fp / (fp + tn)) if has_both else (0, 0)
    expected |= {
        "matthews_correlation_coefficient": matthews if has_both else None,
        "fowlkes_mallows_index": fowlkes,
        "prevalence_threshold": math.sqrt(fpr) / (math.sqrt(tpr) + math.sqrt(fpr)) if tpr + fpr else None,
    }

    assert confusion_metrics(*counts) == close_to(expected, abs=1e-15)


@pytest.mark.parametrize(
    ("labels", "weight", "counts"),
    [([0, 0, 0, 1, 1, 1, 1, 0, 0], 0.1, (1, 3, 3, 2)), ([0, *[1] * 6, 0], 1 / 3, (5, 1, 1, 1))],
)
def test_equal_weights_that_are_no_binary_fractions_do_not_move_the_threshold(labels, weight, counts):
    scores = range(len(labels), 0, -1)

    assert confusion_counts(*groups_of(labels, scores)) == counts
    found = confusion_counts(*groups_of(labels, scores, [weight] * len(labels)))
    assert found == pytest.approx([weight * count for count in counts])


def test_names_and_synonyms_lead_to_metrics():
    assert {*NAMES, "auc"} <= {of.name for of in SCORE_METRICS}
    assert [split(name).metric for name in ("ROC-AUC", " MCC", "lr+")] == [
        "auc", "matthews_correlation_coefficient", "positive_likelihood_ratio",
    ]  # fmt: skip


@pytest.mark.reference
@pytest.mark.parametrize("name", ["noties", "ties", "rare", "all_equal"])
def test_vectors_of_scikit_learn(name, reference_path):
    cases = json.loads((reference_path / "vectors" / "classification.json").read_text())["cases"]
    case = {case["name"]: case for case in cases}[name]
    assert len(cases) == 4
    labels, scores = case.pop("y_true"), case.pop("y_score")

    found = metrics_of(labels, scores)
    found["auc_pr_trapezoid"] = found.pop("area_under_the_precision_recall_curve")
    found["youden_best_threshold_j"] = found.pop("best_informedness")
    counts = dict(zip(("tp", "fp", "fn", "tn"), confusion_counts(*groups_of(labels, scores)), strict=True))
    roc_auc = case.pop("area_under_the_receiver_operating_characteristic_curve")
    threshold, _ = case.pop("threshold"), case.pop("name")

    assert list(counts.values()) == counts_at(threshold, labels, scores, [1] * len(labels))
    places = np.unique(scores, return_inverse=True)[1]  # as pools of float32 compare them
    images = [sortable_int32(torch.tensor(places[np.array(labels) == label], dtype=torch.float32)) for label in (1, 0)]
    area = pooled_auc([ScorePool([images[0]], [images[1]]).sort()], all_true=True, all_competing=True)
    assert area.value == pytest.approx(roc_auc, abs=1e-12)
    assert found | counts == close_to(case, rel=1e-9, abs=1e-12)
