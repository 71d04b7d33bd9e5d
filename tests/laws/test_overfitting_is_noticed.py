"""A run that overfits to its buckets is warned of; one that is well mixed is not."""

from __future__ import annotations

import math
from pathlib import Path
from statistics import NormalDist

import numpy as np
import pytest
from attrs import evolve

from pbgeval.monitor.curves import judge_history, read_curves
from pbgeval.monitor.persistence import BucketVisit, GapTest, Verdict
from pbgeval.monitor.records import read_history
from pbgeval.notation import Bucket
from tests.kit.training import MIXED, OVERFIT, train


@pytest.mark.slow
def test_training_a_bucket_for_long_is_noticed_and_a_step_at_a_time_is_not() -> None:
    overfit, mixed = train(0, **OVERFIT), train(0, **MIXED | {"num_passes": 4})

    assert "persists" in [of.details.verdict for of in overfit.passes]
    assert len(overfit.warnings) == 1
    assert ": training overfits to buckets: the mean reciprocal rank" in overfit.warnings[0]
    assert "\n" not in overfit.warnings[0]
    assert mixed.warnings == []
    assert [of.details.verdict for of in mixed.passes] == ["too_early", "too_early", "vanished", "vanished"]


def test_learning_by_heart_is_noticed_with_a_single_bucket_too(tmp_path: Path) -> None:
    graph = {"edges_per_bucket": 2000, "num_entities": 96, "num_partitions": 1}
    train(0, steps_per_visit=4, num_passes=10, output=tmp_path, eval_fraction=0.3, compare_with_training=True, **graph)

    curves = read_curves(tmp_path, "mrr", pytest.fail)
    assert curves.overfits
    assert curves.best is not None
    assert curves.best.key.epoch < 4
    assert not evolve(curves, passes=curves.passes[:2]).overfits, "it still learns"


@pytest.mark.slow
def test_runs_that_overfit_are_warned() -> None:
    assert all(train(seed, **OVERFIT, until_warned=True).warned_of_overfitting for seed in range(1, 5))


@pytest.mark.slow
def test_well_mixed_runs_are_not_warned() -> None:
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
        alarms += Verdict.PERSISTS in found

    assert alarms / num_runs <= (0.2 + NormalDist().inv_cdf(0.999) * math.sqrt(0.2 * 0.8 / num_runs))


def test_a_sawtooth_persists_in_either_direction() -> None:
    random = np.random.default_rng(2)
    low = 0.3 + random.normal(0, 0.005, (5, 6))
    high = 0.4 + random.normal(0, 0.005, (5, 6))
    expected = [Verdict.TOO_EARLY, Verdict.TOO_EARLY, *[Verdict.PERSISTS] * 3]

    assert verdicts(low, high) == expected
    assert verdicts(high, low) == expected


def test_learning_is_no_overfitting_however_large_the_gap() -> None:
    steps = np.linspace(0.05, 0.9, 60).reshape(5, 12)[:, ::2]  # each visit gains, and the gain stays
    assert Verdict.PERSISTS not in verdicts(steps, np.linspace(0.05, 0.9, 60).reshape(5, 12)[:, 1::2] + 0.1)


def test_falling_in_and_between_visits_is_the_other_overfitting_and_no_sawtooth() -> None:
    fall = np.linspace(0.9, 0.1, 10)[:, None] + np.random.default_rng(3).normal(0, 0.003, (10, 6))

    assert Verdict.PERSISTS not in verdicts(fall[::2], fall[1::2])


def test_a_gap_that_goes_to_zero_shrinks_and_vanishes() -> None:
    random = np.random.default_rng(4)
    gap = np.array([0.1, 0.08, 0.05, 0.02, 0.001, 0.001, 0.0, 0.0, 0.0])[:, None]
    after = np.linspace(0.4, 0.5, 9)[:, None] + random.normal(0, 0.001, (9, 6))
    found = verdicts(after - gap, after)

    assert Verdict.PERSISTS not in found
    assert Verdict.SHRINKING in found
    assert Verdict.VANISHED is found[-1]


def test_nothing_is_said_of_a_single_bucket_nor_before_its_third_visit() -> None:
    low, high = np.full((6, 1), 0.2), np.full((6, 1), 0.4)

    assert {Verdict.TOO_EARLY} == set(verdicts(low, high))


def test_of_two_buckets_without_errors_of_their_edges_nothing_is_decided() -> None:
    low, high = np.full((6, 2), 0.2), np.full((6, 2), 0.4)

    assert Verdict.PERSISTS not in verdicts(low, high)


@pytest.mark.reference
def test_a_run_that_pbg_recorded_is_judged(reference_path: Path) -> None:
    history = read_history(reference_path / "golden" / "fb237_4p_transe" / "checkpoint", pytest.fail)
    judgements = list(judge_history(history).values())

    assert [of.verdict for of in judgements[:2]] == [Verdict.TOO_EARLY] * 2
    by_hand: dict[Bucket, list[float]] = {}
    for visits in list(history.passes_of_visits.values())[1:3]:  # the second and third visit to each bucket
        for visit in visits:
            by_hand.setdefault(visit.bucket, []).append(visit.after.metrics["mrr"] - visit.before.metrics["mrr"])
    counts = {visit.bucket: visit.after.count for visit in history.visits}
    gained = sum(counts[bucket] * sum(gaps) / 2 for bucket, gaps in by_hand.items()) / sum(counts.values())
    assert gained == pytest.approx(judgements[2].gained, rel=1e-12)
    assert Verdict.PERSISTS not in [of.verdict for of in judgements]


@pytest.mark.slow
def test_records_of_a_run_tell_the_same_story_as_the_run(tmp_path: Path) -> None:
    run = train(3, steps_per_visit=10, num_passes=4, edges_per_bucket=400, output=tmp_path)
    judgements = list(judge_history(read_history(tmp_path, pytest.fail)).values())

    assert len(judgements) == 4
    # PBG's figures are pessimistic, and ties are rare here.
    lost = [(of.details.lost, judgement.lost) for of, judgement in zip(run.passes, judgements, strict=True)]
    assert (None, None) == lost[0] == lost[1]
    assert lost[3][0] == pytest.approx(lost[3][1], abs=1e-3)
