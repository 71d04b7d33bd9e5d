from __future__ import annotations

import math
from pathlib import Path

import pytest

from pbgeval.errors import DataError
from pbgeval.metrics.estimates import Estimate
from pbgeval.monitor.curves import curves_of
from pbgeval.monitor.records import (
    Figures,
    History,
    PassDetails,
    PassKey,
    PassRecord,
    VisitDetails,
    VisitRecord,
    read_history,
)
from pbgeval.notation import Bucket

FIRST, SECOND = PassKey(0), PassKey(1)


def visit(key: PassKey, lhs: int, index: int, count: int, before: float | None, after: float | None) -> VisitRecord:
    figures = [None if value is None else Figures(count, {"mrr": value}) for value in (before, after)]
    return VisitRecord(key, Bucket(lhs, 0), index, None, *figures)


def test_a_pass_is_the_mean_over_its_held_out_edges() -> None:
    visits = (visit(FIRST, 0, 0, 10, 0.1, 0.2), visit(FIRST, 1, 1, 30, 0.3, 0.6), visit(FIRST, 2, 2, 0, None, None))

    [row] = curves_of(History(visits, ()), {FIRST: "undecided"}, "mrr").passes

    assert row.before == pytest.approx((10 * 0.1 + 30 * 0.3) / 40)
    assert row.after == pytest.approx((10 * 0.2 + 30 * 0.6) / 40)
    assert row.gap == pytest.approx(0.25)
    assert (None, None, "undecided", 3, 0) == (
        row.gap_error,
        row.training,
        row.verdict,
        row.num_visits,
        row.num_diverged,
    )


def test_teeth_follow_a_bucket_from_pass_to_pass() -> None:
    visits = (
        visit(FIRST, 0, 0, 10, 0.1, 0.2),
        visit(FIRST, 1, 1, 10, 0.3, 0.4),
        visit(SECOND, 1, 2, 10, 0.35, 0.5),
        visit(SECOND, 0, 3, 10, 0.15, 0.3),
    )

    teeth = curves_of(History(visits, ()), {}, "mrr").teeth

    assert {(0, 0, 0, 0): ((0, 0.1, 0.2), (1, 0.15, 0.3)), (0, 0, 1, 0): ((0, 0.3, 0.4), (1, 0.35, 0.5))} == teeth


def test_our_own_records_bring_errors_training_edges_and_verdicts() -> None:
    key = "both.pessimistic.mean_reciprocal_rank"
    details = PassDetails(training={key: 0.9}, gap={key: Estimate(0.1, 0.01)}, verdict="persists")
    passes = (PassRecord(FIRST, 0, Figures(10, {"mrr": 0.2}), details),)

    [row] = curves_of(History((visit(FIRST, 0, 0, 10, 0.1, 0.2),), passes), {FIRST: "too_early"}, "mrr").passes

    assert (0.01, 0.9, "persists") == (row.gap_error, row.training, row.verdict)


def test_a_model_that_diverged_is_counted_and_left_out_of_the_means() -> None:
    diverged = VisitRecord(FIRST, Bucket(1, 0), 1, None, None, None, VisitDetails(diverged=True, reason="NaN"))
    history = History((visit(FIRST, 0, 0, 10, 0.1, 0.2), diverged), ())

    [row] = curves_of(history, {}, "mrr").passes

    assert (1, 2) == (row.num_diverged, row.num_visits)
    assert row.after == pytest.approx(0.2)
    assert math.isclose(0.1, row.gap or 0.0)


@pytest.mark.parametrize(
    ("history", "found"),
    [
        (History((visit(FIRST, 0, 0, 10, 0.1, 0.2),), ()), "found mrr"),
        (History((visit(FIRST, 0, 0, 0, None, None),), ()), "found no held-out edges at all"),
    ],
)
def test_records_without_the_metric_are_refused(history: History, found: str) -> None:
    with pytest.raises(DataError, match=f"'auc', {found}"):
        curves_of(history, {}, "auc")


@pytest.mark.reference
def test_files_of_pbg_itself_are_read(reference_path: Path) -> None:
    history = read_history(reference_path / "golden" / "fb237_4p_transe" / "checkpoint", pytest.fail)
    curves = curves_of(history, {}, "mrr")

    assert 8 == len(curves.passes)
    assert 16 == len(curves.teeth)
    averages = {of.key: of.average.metrics["mrr"] for of in history.passes if of.average is not None}
    assert len(averages) == 8
    for row in curves.passes:  # PBG's average is over the figures before; its sums weigh buckets alike or by edges
        assert row.before == pytest.approx(averages[row.key], rel=2e-2)
