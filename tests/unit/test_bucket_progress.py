from __future__ import annotations

import numpy as np
import pytest

from benchmarks.scaling.local_counter import LocalCounter
from pbgeval.notation import Bucket, WorkUnit
from pbgeval.worker.buckets import BucketProgress

WINDOWS = [WorkUnit(0, Bucket(0, 1), start, start + 10) for start in (0, 10)] + [WorkUnit(0, Bucket(0, 1), 20, 30)]
OTHERS = [WorkUnit(1, Bucket(0, 1), 0, 7)]  # of another edge path


def test_the_worker_that_finishes_the_last_window_of_a_bucket_reports_it():
    counter = LocalCounter()
    one, other = (BucketProgress([*WINDOWS, *OTHERS], counter, "round/1") for _ in range(2))

    assert (one.finished(WINDOWS[2], 1.0, 0.25), other.finished(WINDOWS[0], 2.5, 0.5)) == (None, None)
    report = other.finished(WINDOWS[1], 0.5, 0.75)

    assert report is not None
    assert (report.num_edges, pytest.approx(report.seconds)) == (30, 4.0)
    assert report.mean_reciprocal_rank == pytest.approx(0.5)


def test_of_a_sample_the_edges_drawn_count():
    progress = BucketProgress(WINDOWS[:2], LocalCounter(), "round/1", lambda unit: 1 + unit.start % 2)

    assert progress.finished(WINDOWS[0], 1.0, 0.5) is None
    report = progress.finished(WINDOWS[1], 1.0, 0.5)

    assert report is not None
    assert report.num_edges == progress.num_edges == sum(1 + unit.start % 2 for unit in WINDOWS[:2])
    assert report.mean_reciprocal_rank == pytest.approx(0.5)


def test_the_running_mean_is_that_of_all_workers_and_its_interval_closes_at_the_end():
    counter, means = LocalCounter(), [0.1, 0.3, 0.2, 0.4, 0.25, 0.35, 0.15, 0.25]
    units = [WorkUnit(0, Bucket(0, 1), 10 * number, 10 * number + 10) for number in range(8)]
    workers = [BucketProgress(units, counter, "round/1") for _ in range(2)]

    found = [workers[number % 2].running(unit, means[number]) for number, unit in enumerate(units)]

    assert (list(range(10, 90, 10)), pytest.approx([np.mean(means[: n + 1]) for n in range(8)]), [None] * 4) == (
        [done for done, _, _ in found],
        [mean for _, mean, _ in found],
        [width for _, _, width in found[:4]],
    )
    of_five = 1.959964 * np.std(means[:5], ddof=1) / np.sqrt(5) * np.sqrt(1 - 5 / 8)
    assert (found[4][2], found[-1][2]) == (pytest.approx(of_five, rel=1e-4), 0)
