from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from benchmarks.scaling.local_counter import LocalCounter
from pbgeval.cluster import liveness
from pbgeval.cluster.liveness import STALL_VARIABLE, Lifeline, StalledWorkerError, Watch
from tests.clusters import wait_until


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(liveness, "_SECONDS_BETWEEN_CHECKS", 0.02)
    monkeypatch.setenv(STALL_VARIABLE, "0.3")


@pytest.fixture
def watches() -> tuple[Watch, Watch]:
    counters = LocalCounter()
    return Watch(counters, "work", 0, 2), Watch(counters, "work", 1, 2)


def test_one_alone_does_not_wait():
    Watch(LocalCounter(), "work", 0, 1).wait_for_all()


def test_a_worker_that_does_nothing_is_noticed(watches):
    begun = time.monotonic()
    with pytest.raises(StalledWorkerError, match=r"^worker 1 has made no progress for 0 s$"):
        watches[0].wait_for_all()
    assert time.monotonic() - begun > 0.3


def test_a_worker_that_goes_on_is_waited_for(watches):
    first, second = watches

    def work() -> bool:
        for _ in range(8):
            time.sleep(0.1)
            second.tick()
        second.wait_for_all()
        return True

    with ThreadPoolExecutor(1) as threads:
        ended = threads.submit(work)
        first.wait_for_all()
        assert ended.result()


def test_slow_units_make_patience(monkeypatch: pytest.MonkeyPatch, watches):
    monkeypatch.setenv(STALL_VARIABLE, "0.01")
    time.sleep(0.05)
    watches[0].tick()  # 20 times as long is a second
    thread = threading.Timer(0.5, watches[1].wait_for_all)
    thread.start()
    watches[0].wait_for_all()
    thread.join()


LIMIT = 2.0  # seconds: four looks


@pytest.fixture
def workers() -> tuple[Lifeline, Lifeline, list[str]]:
    """Two workers, and what they say."""
    counters, said = LocalCounter(), []
    return Lifeline(counters, 0, 2, LIMIT, said.append), Lifeline(counters, 1, 2, LIMIT, said.append), said


def test_workers_that_give_signs_of_life_go_on(workers):
    *both, said = workers
    for one in [*both] * 20:
        one.beat()
        one.look()
    assert said == []


@pytest.mark.parametrize("silent", [0, 1])
def test_a_worker_that_is_silent_is_noticed(silent, workers):
    other, said = workers[1 - silent], workers[2]
    workers[silent].beat()
    other.beat()

    for _ in range(4):
        other.beat()
        other.look()
    assert said == []
    other.look()
    assert [f"worker {silent} has sent no heartbeat for 2 s"] == said


def test_a_store_that_does_not_answer_is_noticed(workers):
    _, second, said = workers
    second.beat()

    for _ in range(5):
        second.look()
    assert said == ["worker 1 has heard nothing from the group's store for 2 s"]


def test_its_threads_notice_and_end(monkeypatch):
    monkeypatch.setattr(liveness, "_SECONDS_BETWEEN_LOOKS", 0.01)
    said = []
    with Lifeline(LocalCounter(), 0, 2, 0.1, said.append).held():
        wait_until(lambda: said, "no worker has noticed")

    assert said[0] == "worker 1 has sent no heartbeat for 0.1 s"
