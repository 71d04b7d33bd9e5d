"""Signals that ask a process to end, and what they raise in it."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from pbgeval.cluster.signals import ENDINGS, raised_signals


@pytest.fixture(autouse=True)
def _interruptible() -> Iterator[None]:
    """Ctrl-C is what Python makes of it, also where the tests run in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def units_in_a_generator() -> Iterator[int]:
    try:
        yield 1
    finally:
        signal.raise_signal(signal.SIGTERM)  # a launcher ends a worker that is on its way out


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_a_second_signal_disturbs_no_worker_on_its_way_out() -> None:
    caught: list[str] = []

    def interrupted() -> None:
        for _ in units_in_a_generator():
            signal.raise_signal(signal.SIGINT)

    def work() -> None:
        with raised_signals():
            try:
                interrupted()
            except ENDINGS as ending:
                caught.append(type(ending).__name__)
                raise

    with pytest.raises(KeyboardInterrupt):
        work()

    assert caught == ["KeyboardInterrupt"]
