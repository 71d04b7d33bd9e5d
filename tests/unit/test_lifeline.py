from __future__ import annotations

import time

import pytest

from pbgeval.cluster import lifeline
from pbgeval.cluster.lifeline import Lifeline
from pbgeval.inputs.queue import LocalCounter

LIMIT = 2.0  # seconds: four looks


def two() -> tuple[Lifeline, Lifeline, list[str]]:
    counters, said = LocalCounter(), []
    return Lifeline(counters, 0, 2, LIMIT, said.append), Lifeline(counters, 1, 2, LIMIT, said.append), said


def test_workers_that_give_signs_of_life_go_on():
    first, second, said = two()

    for _ in range(20):
        for one in (first, second):
            one.beat()
            one.look()
    assert [] == said


@pytest.mark.parametrize("silent", [0, 1])
def test_a_worker_that_is_silent_is_noticed(silent):
    *workers, said = two()
    for one in workers:
        one.beat()
    other = workers[1 - silent]
    other.beat()

    for _ in range(4):
        other.beat()
        other.look()
    assert [] == said
    other.look()
    assert [f"worker {silent}: expected a sign of life, found none for 2 s"] == said


def test_a_store_that_does_not_answer_is_noticed():
    _, second, said = two()
    second.beat()

    for _ in range(5):
        second.look()
    assert ["worker 1: expected the store of the group to answer, heard nothing for 2 s"] == said


def test_its_threads_notice_and_end(monkeypatch):
    monkeypatch.setattr(lifeline, "_SECONDS_BETWEEN_LOOKS", 0.01)
    said = []
    alone = Lifeline(LocalCounter(), 0, 2, 0.1, said.append)
    alone.start()
    until = time.monotonic() + 60
    while not said and time.monotonic() < until:
        time.sleep(0.01)
    alone.stop()

    assert "worker 1: expected a sign of life, found none for 0.1 s" == said[0]
    assert not any(thread.is_alive() for thread in alone._threads)
