from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from pbgeval.cluster import claim as claim_module
from pbgeval.cluster.claim import HEARTBEAT, OWNER, Ownership, describe_process, scheduler_job
from pbgeval.errors import OutputError
from tests.clusters import wait_until


def me(**facts: Any) -> dict[str, Any]:
    return describe_process("here", {}) | facts


def claim(folder: Path, **facts: Any) -> Ownership:
    return Ownership(folder, me(**facts), [].append)


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claim_module, "HEARTBEAT_SECONDS", 0.1)


def left_by(folder: Path, **facts: Any) -> None:
    """An owner's file as a process leaves it that was killed."""
    (folder / OWNER).write_text(json.dumps(me(**facts)))


@contextmanager
def owned(one: Ownership) -> Iterator[Ownership]:
    """Own a directory, and release it."""
    one.acquire()
    yield one
    one.release()


def dead_process() -> dict[str, Any]:
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    return {"process": done.pid, "started": "1"}


def test_a_directory_has_one_owner_until_it_is_released(tmp_path):
    line = f"another run is writing here \\(process {os.getpid()} on here\\)"
    with owned(claim(tmp_path)), pytest.raises(OutputError, match=line):
        claim(tmp_path).acquire()
    assert list(tmp_path.iterdir()) == []
    with owned(claim(tmp_path)):
        pass


@pytest.mark.parametrize(
    "left",
    [json.dumps(me(**of)) for of in (dead_process(), {"boot": "earlier"}, {"started": "1"})]
    + ["", "{", '{"host": "here"}'],
)
def test_a_dead_owner_of_this_host_and_a_damaged_file_are_taken_over_at_once(tmp_path, left):
    (tmp_path / OWNER).write_text(left)
    with owned(claim(tmp_path)) as ours:
        assert ours.me["nonce"] == json.loads((tmp_path / OWNER).read_text())["nonce"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("facts", "ours", "said"),
    [
        ({"host": "there"}, {}, ["checking for 0.3 s"]),
        ({"namespace": "another container"}, {}, ["checking for 0.3 s"]),
        ({"host": "there", "job": "SLURM_JOB_ID=7"}, {"job": "SLURM_JOB_ID=7"}, []),  # the same job, on another host
    ],
)
def test_an_owner_elsewhere_is_dead_after_three_missed_heartbeats_or_if_its_job_is_ours(tmp_path, facts, ours, said):
    left_by(tmp_path, **facts)
    (tmp_path / HEARTBEAT).write_text("last")
    lines: list[str] = []
    with owned(Ownership(tmp_path, me(**ours), lines.append)):
        pass

    assert [part in line for part, line in zip(said, lines, strict=True)] == [True] * len(said)


def test_an_owner_elsewhere_that_beats_is_alive(tmp_path):
    with owned(claim(tmp_path, host="there")), pytest.raises(OutputError, match="on there"):
        claim(tmp_path).acquire()


def test_the_heartbeat_stays_in_its_folder_when_the_working_directory_changes(tmp_path, monkeypatch):
    for name in "ab":
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "a")
    ours, beat = claim(Path("output")), tmp_path / "a" / "output" / HEARTBEAT
    ours.acquire()
    monkeypatch.chdir(tmp_path / "b")
    before = beat.read_text()
    wait_until(lambda: beat.read_text() != before, "the heartbeat has stopped")
    monkeypatch.chdir(tmp_path / "a")
    ours.release()

    assert [*beat.parent.iterdir(), *(tmp_path / "b").iterdir()] == []


def test_a_folder_that_is_removed_does_not_come_back(tmp_path):
    with owned(claim(tmp_path / "output")):
        (tmp_path / "output").rename(tmp_path / "elsewhere")
        time.sleep(0.5)  # some heartbeats

    assert not (tmp_path / "output").exists()


@pytest.mark.parametrize("content", ["[]", '{"name": "Ada"}', "mine"])
def test_a_file_of_that_name_that_no_run_wrote_is_refused_and_stays(tmp_path, content):
    (tmp_path / OWNER).write_text(content)
    with pytest.raises(OutputError, match=r"owner\.json: no run wrote this file; move it away"):
        claim(tmp_path).acquire()
    assert (tmp_path / OWNER).read_text() == content


def test_who_was_taken_for_dead_leaves_the_directory_alone(tmp_path):
    """Its job was started again while its host was cut off."""
    first = claim(tmp_path, host="elsewhere", job="SLURM_JOB_ID=5")
    first.acquire()
    with owned(claim(tmp_path, job="SLURM_JOB_ID=5")) as second:
        assert (first.is_held, second.is_held) == (False, True)
        time.sleep(0.25)
        assert (tmp_path / HEARTBEAT).read_text().startswith(second.me["nonce"])
        first.release()
        assert {OWNER, HEARTBEAT} == {path.name for path in tmp_path.iterdir()}
    assert list(tmp_path.iterdir()) == []


def test_of_many_that_start_at_once_one_owns_a_directory(tmp_path, monkeypatch):
    monkeypatch.setattr(claim_module, "HEARTBEAT_SECONDS", 10.0)  # on a busy machine, none is taken for dead
    left_by(tmp_path, **dead_process())
    claims, barrier = [claim(tmp_path) for _ in range(8)], threading.Barrier(8)

    def start(one: Ownership) -> None:
        barrier.wait()
        with suppress(OutputError):
            one.acquire()

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(start, claims))
    (owner,) = (one for one in claims if one.is_held)
    assert owner.me["nonce"] == json.loads((tmp_path / OWNER).read_text())["nonce"]
    owner.release()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, None),
        ({"TORCHELASTIC_RUN_ID": "none"}, None),
        ({"TORCHELASTIC_RUN_ID": "x"}, "TORCHELASTIC_RUN_ID=x"),
        ({"SLURM_JOB_ID": "5", "TORCHELASTIC_RUN_ID": "x"}, "SLURM_JOB_ID=5"),
    ],
)
def test_a_job_is_known_by_its_scheduler(environment, expected):
    assert scheduler_job(environment) == expected
