from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pbgeval.errors import OutputError
from pbgeval.files import write_atomically
from pbgeval.report.watching import follow

LONG = 60.0  # seconds: longer than any of these tests


@contextmanager
def meanwhile(work: Callable[[], None]) -> Iterator[None]:
    """Do something in another thread, and wait for it."""
    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        thread.join()


def test_a_complete_result_is_drawn_once(tmp_path: Path) -> None:
    drawn = []

    def draw() -> bool:
        drawn.append("page")
        return True

    assert follow(tmp_path, draw, patience=LONG)
    assert ["page"] == drawn


def test_every_change_is_drawn_until_the_result_is_complete(tmp_path: Path) -> None:
    path, drawn, seen = tmp_path / "metrics.json", [], threading.Semaphore(0)
    path.write_text("0")

    def draw() -> bool:
        drawn.append(path.read_text())
        seen.release()
        return drawn[-1] == "complete"

    def write() -> None:
        for text in ("1", "2", "complete"):
            assert seen.acquire(timeout=LONG)
            write_atomically(path, text)

    with meanwhile(write):
        assert follow(tmp_path, draw, seconds=0.01, patience=LONG)

    assert ["0", "1", "2", "complete"] == drawn


def test_what_does_not_change_is_not_drawn_again_and_ends_when_nobody_works_there(tmp_path: Path) -> None:
    (tmp_path / "metrics.json").write_text("0")
    drawn = []

    def draw() -> bool:
        drawn.append("page")
        return False

    assert not follow(tmp_path, draw, seconds=0.01, patience=0.1)
    assert ["page"] == drawn


def test_a_heart_that_beats_is_a_sign_of_life(tmp_path: Path) -> None:
    path = tmp_path / "metrics.json"
    path.write_text("0")
    looks = []

    def look_and_beat(seconds: float) -> None:
        looks.append(seconds)
        os.utime(tmp_path / "owner.heartbeat", ns=(len(looks), len(looks)))
        if len(looks) == 20:
            write_atomically(path, "complete")

    (tmp_path / "owner.heartbeat").write_text("")
    clock = iter(range(10**6))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "monotonic", lambda: next(clock))
        patch.setattr(time, "sleep", look_and_beat)
        assert follow(tmp_path, lambda: path.read_text() == "complete", patience=5), "5 ticks without a beat end it"
    assert 20 == len(looks)


def test_a_result_that_is_put_aside_for_a_moment_ends_nothing(tmp_path: Path) -> None:
    path, seen = tmp_path / "metrics.json", threading.Semaphore(0)
    path.write_text("0")
    drawn = []

    def draw() -> bool:
        try:
            if not path.exists():
                raise OutputError("there is none")
            drawn.append(path.read_text())
            return drawn[-1] == "complete"
        finally:
            seen.release()  # not before: it would be put aside in the middle of a look

    def begin_anew() -> None:
        assert seen.acquire(timeout=LONG)
        path.rename(tmp_path / "aside")
        assert seen.acquire(timeout=LONG)
        write_atomically(path, "complete")

    with meanwhile(begin_anew):
        assert follow(tmp_path, draw, seconds=0.01, patience=LONG)

    assert ["0", "complete"] == drawn


def test_what_is_no_result_is_a_fault(tmp_path: Path) -> None:
    (tmp_path / "metrics.json").write_text("0")

    def draw() -> bool:
        raise OutputError("expected a result")

    with pytest.raises(OutputError, match="expected a result"):
        follow(tmp_path, draw, patience=LONG)


def test_a_result_that_comes_back_during_a_look_is_drawn_again(tmp_path: Path) -> None:
    path, drawn = tmp_path / "metrics.json", []
    path.write_text("0")

    def draw() -> bool:
        drawn.append(path.read_text())
        if drawn == ["0"]:
            write_atomically(path, "1")
        elif drawn[-1] == "1":
            write_atomically(path, "complete")
            raise OutputError("what was there is gone")
        return drawn[-1] == "complete"

    assert follow(tmp_path, draw, seconds=0.01, patience=LONG)
    assert ["0", "1", "complete"] == drawn


def test_what_stays_and_is_no_result_ends_following(tmp_path: Path) -> None:
    path = tmp_path / "metrics.json"
    path.write_text("0")

    def draw() -> bool:
        if path.read_text() == "0":
            write_atomically(path, "no result")
            return False
        raise OutputError("no result")

    with pytest.raises(OutputError, match="no result"):
        follow(tmp_path, draw, seconds=0.01, patience=LONG)
