"""A run whose worker or launcher is ended by a signal: never status 0, one line, no result, no process left."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.tiny_checkpoint import COMMAND, TinyCase

pytestmark = pytest.mark.slow  # each needs a run of some seconds

Start = Callable[[int], subprocess.Popen[str]]


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> TinyCase:
    """Nine buckets, each of about a second and more."""
    return TinyCase.write(
        tmp_path_factory.mktemp("case"),
        dynamic=True,
        partition_sizes=(20_000,) * 3,
        edges_per_bucket=30_000,
        dimension=16,
        candidates="partition",
    )


@pytest.fixture
def start(case: TinyCase, tmp_path: Path) -> Iterator[Start]:
    """Starts the command with some workers, and returns when the first bucket is done."""
    started: list[subprocess.Popen[str]] = []

    def start_it(workers: int) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [COMMAND, "--config", case.config, "--workers", str(workers), "--output", tmp_path / "output"],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # a signal to its group, as from a terminal, does not reach the tests
        )
        started.append(process)
        assert process.stderr is not None
        line = process.stderr.readline()
        assert " bucket (" in line, line
        return process

    yield start_it
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def workers_of(launcher: int) -> list[int]:
    """Return the processes of Python's multiprocessing that are children of a process."""
    workers = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                command = (folder / "cmdline").read_text()
            except OSError:  # it has ended meanwhile
                continue
            if parent == launcher and "spawn_main" in command:
                workers.append(int(folder.name))
    return sorted(workers)


def is_alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def all_end(processes: list[int], seconds: float) -> bool:
    until = time.monotonic() + seconds
    while any(map(is_alive, processes)):
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


def the_end(process: subprocess.Popen[str]) -> tuple[int, str, list[str]]:
    """Wait; return status, output, and the lines on stderr that are not progress."""
    out, err = process.communicate(timeout=60)
    return process.returncode, out, [line for line in err.splitlines() if " bucket (" not in line]


@pytest.mark.parametrize("victim", [0, 1])
def test_a_worker_that_is_killed(victim: int, start: Start, tmp_path: Path) -> None:
    launcher = start(2)
    workers = workers_of(launcher.pid)
    assert 2 == len(workers)
    os.kill(workers[victim], signal.SIGKILL)

    status, out, lines = the_end(launcher)

    assert (1, "") == (status, out)
    assert 1 == len(lines), lines
    assert "expected to finish, but was ended by SIGKILL; nothing was written as a result" in lines[0]
    assert all_end(workers, 5)
    assert not (tmp_path / "output").exists()


def test_workers_end_when_the_launcher_is_killed(start: Start, tmp_path: Path) -> None:
    launcher = start(2)
    workers = workers_of(launcher.pid)
    assert 2 == len(workers)
    launcher.kill()

    assert -signal.SIGKILL == launcher.wait(timeout=10)
    assert all_end(workers, 15)
    assert '"complete": false' in (tmp_path / "output" / "metrics.json").read_text()


@pytest.mark.parametrize("num_workers", [1, 2])
def test_an_interruption_at_the_keyboard(num_workers: int, start: Start, tmp_path: Path) -> None:
    launcher = start(num_workers)
    workers = workers_of(launcher.pid)
    os.killpg(launcher.pid, signal.SIGINT)

    status, out, lines = the_end(launcher)

    assert (1, "") == (status, out)
    assert ["interrupted: nothing was written as a result"] == lines
    assert all_end(workers, 5)
    assert not (tmp_path / "output").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_launcher_that_is_ended(number: signal.Signals, start: Start, tmp_path: Path) -> None:
    launcher = start(2)
    workers = workers_of(launcher.pid)
    launcher.send_signal(number)

    status, out, lines = the_end(launcher)

    assert (1, "") == (status, out)
    assert [f"the launcher: expected to finish, but was ended by {number.name}"] == [
        line.partition(";")[0] for line in lines
    ]
    assert all_end(workers, 5)
    assert not (tmp_path / "output").exists()
