from __future__ import annotations

import pytest

from benchmarks.scaling.local_counter import LocalCounter
from pbgeval.notation import Bucket, WorkUnit
from pbgeval.progress import BucketReport
from pbgeval.worker.buckets import BucketProgress

WINDOWS = [WorkUnit(0, Bucket(0, 1), start, start + 10) for start in (0, 10)] + [WorkUnit(0, Bucket(0, 1), 20, 30)]
OTHERS = [WorkUnit(1, Bucket(0, 1), 0, 7)]  # of another edge path


def test_whoever_finishes_the_last_window_of_a_bucket_reports_it():
    counter = LocalCounter()
    one, other = (BucketProgress([*WINDOWS, *OTHERS], counter, "round/1") for _ in range(2))

    assert one.finished(WINDOWS[2], 1.0, 0.25) is None
    assert other.finished(WINDOWS[0], 2.5, 0.5) is None
    report = other.finished(WINDOWS[1], 0.5, 0.75)

    assert report is not None
    assert 30 == report.num_edges
    assert 4.0 == pytest.approx(report.seconds)
    assert 0.5 == pytest.approx(report.mean_reciprocal_rank)


def test_a_bucket_of_one_unit_is_reported_at_once_and_without_a_counter():
    counter = LocalCounter()

    report = BucketProgress([*WINDOWS, *OTHERS], counter, "round/1").finished(OTHERS[0], 1.5, None)

    assert BucketReport(7, 1.5, None) == report
    assert 0 == counter.num_calls


def test_of_a_sample_the_edges_drawn_count():
    progress = BucketProgress(WINDOWS[:2], LocalCounter(), "round/1", lambda unit: 1 + unit.start % 2)

    assert progress.finished(WINDOWS[0], 1.0, 0.5) is None
    report = progress.finished(WINDOWS[1], 1.0, 0.5)

    assert report is not None
    assert report.num_edges == progress.num_edges == sum(1 + unit.start % 2 for unit in WINDOWS[:2])
    assert 0.5 == pytest.approx(report.mean_reciprocal_rank)
