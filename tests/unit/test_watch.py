from __future__ import annotations

import threading
import time

import pytest

from pbgeval.cluster import watch
from pbgeval.cluster.watch import STALL_VARIABLE, StalledWorkerError, Watch
from pbgeval.inputs.queue import LocalCounter


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "_SECONDS_BETWEEN_CHECKS", 0.02)
    monkeypatch.setenv(STALL_VARIABLE, "0.3")


def both() -> tuple[Watch, Watch]:
    counters = LocalCounter()
    return Watch(counters, "work", 0, 2), Watch(counters, "work", 1, 2)


def test_one_alone_does_not_wait():
    Watch(LocalCounter(), "work", 0, 1).wait_for_all()


def test_a_worker_that_does_nothing_is_noticed():
    first, _ = both()

    begun = time.monotonic()
    with pytest.raises(StalledWorkerError, match=r"^worker 1: expected progress, found none for 0 s$"):
        first.wait_for_all()
    assert time.monotonic() - begun > 0.3


def test_a_worker_that_goes_on_is_waited_for():
    first, second = both()
    ended = []

    def work() -> None:
        for _ in range(8):
            time.sleep(0.1)
            second.tick()
        second.wait_for_all()
        ended.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    first.wait_for_all()
    thread.join()
    assert ended


def test_slow_units_make_patience(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(STALL_VARIABLE, "0.01")
    first, second = both()
    time.sleep(0.05)
    first.tick()  # 20 times as long is a second
    thread = threading.Timer(0.5, second.wait_for_all)
    thread.start()
    first.wait_for_all()
    thread.join()
