"""A run that overfits to its buckets is warned of; one that is well mixed is not."""

from __future__ import annotations

import math
from pathlib import Path
from statistics import NormalDist

import numpy as np
import pytest
from attrs import evolve

from pbgeval.monitor.curves import judge_history, read_curves
from pbgeval.monitor.gap_test import BucketVisit, GapTest, Verdict
from pbgeval.monitor.records import read_history
from pbgeval.notation import Bucket
from tests.kit.training import MIXED, OVERFIT, train


@pytest.mark.slow
def test_training_a_bucket_for_long_is_noticed_and_a_step_at_a_time_is_not() -> None:
    overfit, mixed = train(0, **OVERFIT), train(0, **MIXED | {"num_passes": 4})

    [warning] = overfit.warnings
    assert "bucket_overfitting" in [of.details.verdict for of in overfit.passes]
    assert ": bucket overfitting: the mean reciprocal rank" in warning.splitlines()[-1]
    assert mixed.warnings == []
    assert [of.details.verdict for of in mixed.passes] == [
        "needs_3_visits",
        "needs_3_visits",
        "no_bucket_overfitting",
        "no_bucket_overfitting",
    ]


@pytest.mark.slow
def test_learning_by_heart_is_noticed_with_a_single_bucket_too(tmp_path: Path) -> None:
    graph = {"edges_per_bucket": 2000, "num_entities": 96, "num_partitions": 1}
    train(0, steps_per_visit=4, num_passes=10, output=tmp_path, eval_fraction=0.3, compare_with_training=True, **graph)

    curves = read_curves(tmp_path, "mrr", pytest.fail)
    assert (curves.overfits, curves.best.key.epoch < 4) == (True, True)
    assert not evolve(curves, passes=curves.passes[:2]).overfits, "it still learns"


@pytest.mark.slow
def test_runs_that_overfit_are_warned_and_well_mixed_ones_are_not() -> None:
    assert all(train(seed, **OVERFIT, until_warned=True).warned_of_overfitting for seed in range(1, 5))
    assert not any(train(seed, **MIXED).warned_of_overfitting for seed in range(1, 5))


def verdicts(before: np.ndarray, after: np.ndarray, num_queries: int = 100, **settings: float) -> list[Verdict]:
    """Judge passes given as (passes, buckets)."""
    test = GapTest(**settings)
    return [
        test.judge({b: BucketVisit(num_queries, *of) for b, of in enumerate(zip(*rows, strict=True))}).verdict
        for rows in zip(before, after, strict=True)
    ]


@pytest.mark.slow
def test_the_warning_comes_without_reason_in_no_more_runs_than_stated() -> None:
    """Gains and falls of buckets lie just at the tolerance, with noise of their own: the hardest case of the null."""
    random = np.random.default_rng(1)
    num_runs, num_passes, num_buckets = 400, 8, 9
    alarms = 0
    for _ in range(num_runs):
        noise = random.normal(0, 0.01, (2, num_passes, num_buckets))
        after = np.full((num_passes, num_buckets), 0.5) + noise[0]
        before = after - 0.05 * after + noise[1]  # the fall varies with both, the gain with one
        found = verdicts(before, after, alarm_rate=0.2, tolerance=0.05)
        alarms += "bucket_overfitting" in found

    assert alarms / num_runs <= (0.2 + NormalDist().inv_cdf(0.999) * math.sqrt(0.2 * 0.8 / num_runs))


LOW = 0.3 + np.random.default_rng(2).normal(0, 0.005, (5, 6))
STEPS = np.linspace(0.05, 0.9, 60).reshape(5, 12)
FALL = np.linspace(0.9, 0.1, 10)[:, None] + np.random.default_rng(3).normal(0, 0.003, (10, 6))
NEEDS_3_VISITS, BUCKET_OVERFITTING = "needs_3_visits", "bucket_overfitting"


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (LOW, LOW[::-1] + 0.1, [NEEDS_3_VISITS, NEEDS_3_VISITS, *[BUCKET_OVERFITTING] * 3]),
        (LOW[::-1] + 0.1, LOW, [NEEDS_3_VISITS, NEEDS_3_VISITS, *[BUCKET_OVERFITTING] * 3]),
        (np.full((6, 1), 0.2), np.full((6, 1), 0.4), [NEEDS_3_VISITS] * 6),
        (np.full((6, 2), 0.2), np.full((6, 2), 0.4), None),
        (STEPS[:, ::2], STEPS[:, 1::2] + 0.1, None),  # each visit gains, and the gain stays
        (FALL[::2], FALL[1::2], None),  # the other overfitting
    ],
    ids=["sawtooth", "downwards", "one bucket", "two buckets without errors of their edges", "learning", "falling"],
)
def test_there_is_bucket_overfitting_where_buckets_gain_and_lose_it_again_and_nowhere_else(
    before: np.ndarray, after: np.ndarray, expected: list[Verdict] | None
) -> None:
    found = verdicts(before, after)

    assert BUCKET_OVERFITTING not in found if expected is None else found == expected


def test_a_gap_that_goes_to_zero_shrinks_and_is_no_overfitting() -> None:
    random = np.random.default_rng(4)
    gap = np.array([0.1, 0.08, 0.05, 0.02, 0.001, 0.001, 0.0, 0.0, 0.0])[:, None]
    after = np.linspace(0.4, 0.5, 9)[:, None] + random.normal(0, 0.001, (9, 6))
    found = verdicts(after - gap, after)

    assert {"shrinking"} <= {*found} - {BUCKET_OVERFITTING} == {*found}
    assert found[-1] == "no_bucket_overfitting"


@pytest.mark.parametrize(("gaps", "shrinks"), [((0.01, -0.03), False), ((0.03, -0.001), True), ((-0.02, 0.05), False)])
def test_a_gap_that_turns_round_and_grows_does_not_shrink(gaps: tuple[float, float], shrinks: bool) -> None:
    noise = np.random.default_rng(5).normal(0, 0.0005, (3, 6))
    after = np.full((3, 6), 0.1)

    (*_, last) = verdicts(after - np.array([gaps[0], *gaps])[:, None] + noise, after)

    assert (last == "shrinking") == shrinks


@pytest.mark.reference
def test_a_run_that_pbg_recorded_is_judged(reference_path: Path) -> None:
    history = read_history(reference_path / "golden" / "fb237_4p_transe" / "checkpoint", pytest.fail)
    judgements = list(judge_history(history).values())

    assert [of.verdict for of in judgements[:2]] == [NEEDS_3_VISITS] * 2
    by_hand: dict[Bucket, list[float]] = {}
    for visits in list(history.passes_of_visits.values())[1:3]:  # the second and third visit to each bucket
        for visit in visits:
            by_hand.setdefault(visit.bucket, []).append(visit.after.metrics["mrr"] - visit.before.metrics["mrr"])
    counts = {visit.bucket: visit.after.count for visit in history.visits}
    gained = sum(counts[bucket] * sum(gaps) / 2 for bucket, gaps in by_hand.items()) / sum(counts.values())
    assert gained == pytest.approx(judgements[2].gained, rel=1e-12)
    assert BUCKET_OVERFITTING not in [of.verdict for of in judgements]


@pytest.mark.slow
def test_records_of_a_run_tell_the_same_story_as_the_run(tmp_path: Path) -> None:
    run = train(3, steps_per_visit=10, num_passes=4, edges_per_bucket=400, output=tmp_path)
    judgements = list(judge_history(read_history(tmp_path, pytest.fail)).values())

    assert len(judgements) == 4
    # PBG's figures are pessimistic, and ties are rare here.
    lost = [(of.details.lost, judgement.lost) for of, judgement in zip(run.passes, judgements, strict=True)]
    assert (None, None) == lost[0] == lost[1]
    assert lost[3][0] == pytest.approx(lost[3][1], abs=1e-3)
