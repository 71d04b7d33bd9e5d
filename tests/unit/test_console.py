"""Progress as it is told off a terminal: lines of several workers, of which no share is smaller than one before."""

from __future__ import annotations

import re
import time

import pytest

from pbgeval.notation import Bucket
from pbgeval.progress import BucketReport, UnitReport
from pbgeval.report import console
from pbgeval.report.console import ConsoleObserver


def finished(observer: ConsoleObserver, edges_done: int, edges_total: int = 100) -> None:
    bucket = BucketReport(1, 1.0, 0.5)
    observer.unit_finished(UnitReport("edges", Bucket(0, 0), 10, 1.0, edges_done, edges_total, 0.5, None, bucket))


@pytest.fixture
def workers() -> list[ConsoleObserver]:
    observers = [ConsoleObserver() for _ in range(2)]
    for rank, observer in enumerate(observers):
        observer.started(100, rank)
    return observers


def shares(text: str) -> list[int]:
    return [int(share) for share in re.findall(r"(\d+)%", text)]


def test_shares_of_several_workers_never_step_back(
    workers: list[ConsoleObserver], capfd: pytest.CaptureFixture[str]
) -> None:
    """Worker 1 counts 48 edges after worker 0's 46, and is first with its line."""
    for rank, edges_done in ((0, 20), (1, 48), (0, 46), (1, 100), (0, 90)):
        finished(workers[rank], edges_done)

    lines = capfd.readouterr().err
    assert [line.partition(" in ")[0] for line in lines.splitlines()] == ["edges bucket (0, 0): 1 edge"] * 5
    assert shares(lines) == [20, 46, 90]


def test_shares_of_the_entities_never_step_back(
    workers: list[ConsoleObserver], capfd: pytest.CaptureFixture[str]
) -> None:
    for rank, done in ((0, 5), (1, 48), (0, 36), (0, 38), (1, 70), (0, 100)):
        workers[rank].candidates_done(done, 100)

    assert shares(capfd.readouterr().err) == [36, 100]


def test_a_share_is_not_told_a_percent_too_low(
    workers: list[ConsoleObserver], capfd: pytest.CaptureFixture[str]
) -> None:
    workers[0].candidates_done(29, 100)  # 100 * 0.29 is below 29

    assert shares(capfd.readouterr().err) == [29]


def test_shares_of_several_rounds_count_the_earlier_ones(
    workers: list[ConsoleObserver], capfd: pytest.CaptureFixture[str]
) -> None:
    for count in (finished, ConsoleObserver.candidates_done):
        for earlier, num_edges in ((0, 20), (20, 60)):
            workers[0].round_started(earlier, num_edges, is_last=earlier > 0)
            count(workers[0], num_edges // 2, num_edges)
            count(workers[0], num_edges, num_edges)

        lines = capfd.readouterr().err.splitlines()
        assert [shares(line) for line in lines] == [[], [], [62], [100]]


def test_the_speed_of_a_resumed_run_is_of_what_it_does_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "_is_terminal", lambda: True)
    observer = ConsoleObserver()
    observer.started(100, 0)
    bar = observer._bar
    assert bar is not None
    time.sleep(0.05)
    least = bar.tasks[-1].elapsed

    finished(observer, 90)  # 80 before

    done, speed = re.fullmatch(r"(\d+)/100 ([\d,]+) edges/s MRR 0.5000", bar.tasks[-1].fields["told"]).groups()
    assert done == "90"
    assert float(speed.replace(",", "")) * least <= 10.5
    observer.finished()
