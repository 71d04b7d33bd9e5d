from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pbgeval.cluster.environment import variables_of_torch
from tests.clusters import wait_until
from tests.kit.commands import ending_at_import, start
from tests.kit.groups import has_ended
from tests.patience import PATIENCE

HOW_TO_WAIT = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")

# A program of ours: a launcher with two workers that say who they are, then wait to be ended.
WORK = """
import os, signal, sys, time
from pathlib import Path

def work(folder):
    rank = os.environ["RANK"]
    imported = hasattr(sys.modules["__main__"], "IMPORTED")
    defaults = all(signal.getsignal(one) is signal.SIG_DFL for one in (signal.SIGTERM, signal.SIGUSR2, signal.SIGINT))
    path = Path(folder) / f"{rank}.new"
    path.write_text(f"{os.getpid()} {os.getppid()} {imported} {defaults}")
    path.rename(Path(folder) / rank)
    if Path(folder, "wait").exists():
        time.sleep(600)
    return rank
"""
PROGRAM = """
import sys
from pbgeval.cluster.launch import start_local_workers, worker_server
from work_of_the_program import work

if __name__ == "__main__":
    IMPORTED = True
    with worker_server() as server:
        print(sorted(start_local_workers(work, (sys.argv[1],), 2, print, server).items()), flush=True)
"""


def started(folder: Path, *, wait: bool, **environment: str) -> subprocess.Popen[str]:
    program = folder / "program.py"
    program.write_text(PROGRAM, encoding="utf-8")
    (folder / "work_of_the_program.py").write_text(WORK, encoding="utf-8")
    if wait:
        (folder / "wait").touch()
    command = [sys.executable, str(program), str(folder)]
    variables = {**os.environ, **environment}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=variables)


def said_by_workers(folder: Path) -> list[list[str]]:
    wait_until(lambda: all((folder / rank).exists() for rank in "01"), "the workers did not start")
    return [(folder / rank).read_text().split() for rank in "01"]


def ended(process: int, seconds: float = 30) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until and not has_ended(process):
        time.sleep(0.05)
    return has_ended(process)


@pytest.fixture
def temporary(tmp_path: Path) -> Path:
    (tmp_path / "temporary").mkdir()
    return tmp_path / "temporary"


@pytest.fixture
def launcher(tmp_path: Path, temporary: Path) -> Iterator[subprocess.Popen[str]]:
    """A launcher whose workers wait."""
    process = started(tmp_path, wait=True, TMPDIR=str(temporary))
    yield process
    process.kill()
    process.communicate(timeout=PATIENCE)


def test_workers_are_forked_from_a_process_that_has_imported(tmp_path: Path) -> None:
    launcher = started(tmp_path, wait=False)
    out, err = launcher.communicate(timeout=PATIENCE)

    assert launcher.returncode == 0, err
    assert "[(0, '0'), (1, '1')]" in out
    first, second = said_by_workers(tmp_path)
    assert first[1] == second[1], "they have one parent,"
    assert int(first[1]) not in (os.getpid(), launcher.pid), "which is not the launcher"
    assert ["True", "True"] == first[2:] == second[2:]
    assert ended(int(first[1])), "no worker is left to serve"


@pytest.mark.parametrize(
    ("said", "local_workers", "expected"),
    [
        ({}, False, {"GOMP_SPINCOUNT": "10000"}),
        ({"OMP_WAIT_POLICY": "active"}, False, {}),
        ({"GOMP_SPINCOUNT": "7"}, False, {}),
        ({"GOMP_SPINCOUNT": "7"}, True, {"TORCH_CPP_LOG_LEVEL": "ERROR"}),
        ({"GOMP_SPINCOUNT": "7", "TORCH_CPP_LOG_LEVEL": "INFO"}, True, {}),
    ],
)
def test_threads_that_wait_soon_sleep_and_workers_print_no_lost_store_unless_the_user_says_otherwise(
    said: dict[str, str], local_workers: bool, expected: dict[str, str]
) -> None:
    assert variables_of_torch({"PATH": "", **said}, local_workers=local_workers) == expected


def test_the_command_says_how_threads_wait_before_torch_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = ending_at_import("torch", "GOMP_SPINCOUNT", "pbgeval.cli")
    for name in HOW_TO_WAIT:
        monkeypatch.delenv(name, raising=False)

    done = start([sys.executable, "-c", program, "--config", "eval.py", "--workers", "1"], tmp_path)

    assert done.printed == "10000\n"


def test_the_server_outlives_what_ends_a_run(launcher: subprocess.Popen[str], tmp_path: Path) -> None:
    """A scheduler sends its signal to every process of a job; workers that leave things in order need their parent."""
    workers = said_by_workers(tmp_path)
    server = int(workers[0][1])

    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        os.kill(server, number)

    assert [ended(process, 0.5) for process in (server, *(int(worker) for worker, *_ in workers))] == [False] * 3


def test_workers_start_again_when_their_server_is_killed(launcher: subprocess.Popen[str], tmp_path: Path) -> None:
    first = said_by_workers(tmp_path)
    for rank in "01":
        (tmp_path / rank).unlink()

    os.kill(int(first[0][1]), signal.SIGKILL)

    second = said_by_workers(tmp_path)
    assert [parent for _, parent, *_ in second] == [str(launcher.pid)] * 2, "spawned by the launcher"
    launcher.terminate()
    out, _ = launcher.communicate(timeout=PATIENCE)
    assert "the process that starts workers was killed; restarting all workers (1 of 3 restarts)" in out
    assert all(ended(int(process)) for process, *_ in [*first, *second])


@pytest.mark.one_case
@pytest.mark.parametrize(
    ("victim", "number"), [("launcher", signal.SIGKILL), ("launcher", signal.SIGTERM), ("server", signal.SIGKILL)]
)
def test_neither_a_process_nor_a_file_is_left_behind(
    victim: str, number: int, launcher: subprocess.Popen[str], temporary: Path, tmp_path: Path
) -> None:
    workers = said_by_workers(tmp_path)

    os.kill(launcher.pid if victim == "launcher" else int(workers[0][1]), number)

    assert [ended(int(process)) for worker in workers for process in worker[:2]] == [True] * 4
    launcher.kill()
    launcher.wait(timeout=PATIENCE)
    assert list(temporary.iterdir()) == []
