"""What a worker spends its time on."""

from __future__ import annotations

import contextlib

import pytest

from pbgeval.worker import context as time_use
from pbgeval.worker.context import TimeUse


def test_what_is_inside_something_else_counts_there_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([0.0, 1.0, 3.0, 3.5, 4.5, 10.0, 20.0, 21.25])
    monkeypatch.setattr(time_use.time, "perf_counter", lambda: next(now))
    spent = TimeUse()

    with spent.spent_on("computing"):
        with spent.spent_on("loading"):
            pass
        with spent.spent_on("loading"):
            pass
    with contextlib.suppress(ValueError), spent.spent_on("queue"):
        raise ValueError("which changes nothing")

    assert spent.seconds == {"computing": 7.0, "loading": 3.0, "queue": 1.25}
