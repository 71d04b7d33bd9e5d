"""A run whose worker or launcher is ended by a signal: it heals, or ends with 75 and can go on; no process is left."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from attrs import frozen

from pbgeval.cluster.liveness import STALL_VARIABLE
from tests.clusters import wait_until
from tests.examples import examples
from tests.kit.case import TinyCase
from tests.kit.commands import (
    COMMAND,
    journaled_units,
    metrics_of,
    numbers_of,
    run_command,
    undisturbed_numbers,
    unit_log,
)
from tests.kit.groups import has_ended, run_group, start_group
from tests.patience import PATIENCE

pytestmark = pytest.mark.slow  # each needs a run of some seconds

SECONDS_TO_END = 60.0  # of workers without a launcher: they notice within a few, on a busy machine too
Start = Callable[[int], subprocess.Popen[str]]


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> TinyCase:
    """Each bucket takes about a fifth of a second."""
    return TinyCase.write(
        tmp_path_factory.mktemp("case"),
        dynamic=True,
        partition_sizes=(8_000,) * 3,
        edges_per_bucket=6_000,
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


def children_of(parent: int) -> list[int]:
    try:
        return [int(one) for one in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]
    except OSError:  # it has ended
        return []


def workers_of(launcher: int) -> list[int]:
    """Return the workers of a launcher, in order of rank: processes that its server has forked."""
    return [worker for server in children_of(launcher) for worker in children_of(server)]


def all_end(processes: list[int]) -> bool:
    wait_until(lambda: all(map(has_ended, processes)), "they live on", SECONDS_TO_END)
    return True


def the_end(process: subprocess.Popen[str], seconds: float = PATIENCE) -> tuple[int, list[str]]:
    """Wait; return status, and the lines on stderr that are not progress."""
    _, err = process.communicate(timeout=seconds)
    return process.returncode, [line for line in err.splitlines() if " bucket (" not in line]


def goes_on_to_the_same_numbers(case: TinyCase, undisturbed: dict[str, str], output: Path) -> None:
    """Run the same command again; nothing that the journal held is computed again, and nothing is missing."""
    left = Left.of(output)
    done = run_command(case, "--workers", "1", "--quiet", "--output", str(output))
    assert (0, "", undisturbed) == (done.status, done.err, numbers_of(output))
    left.was_not_repeated(output)


@frozen
class Left:
    """What a run that was ended has left."""

    units: set[str]  # whose results the journal holds
    logs: set[str]  # of its writers

    @classmethod
    def of(cls, output: Path) -> Left:
        return cls(journaled_units(output), {path.name for path in (output / "journal").glob("log-*")})

    def was_not_repeated(self, output: Path) -> None:
        """Assert by the log of units that the run that came last computed all that was not kept, and nothing else."""
        lines = unit_log(output)
        later = [line for line in lines if f"log-{line['writer']}.jsonl" not in self.logs]
        begun = [line["unit"] for line in later if line["event"] == "start"]
        assert self.units.isdisjoint(begun)
        assert 9 == len(self.units) + len(begun) == len(self.units.union(begun))
        assert bool(self.units) == any(line["event"] == "restored" for line in later)


@pytest.fixture(scope="module")
def undisturbed(case: TinyCase, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return undisturbed_numbers(case, tmp_path_factory.mktemp("undisturbed") / "output")


@pytest.mark.parametrize("victim", [0, 1])
def test_a_run_heals_when_a_worker_is_killed(
    victim: int, start: Start, undisturbed: dict[str, str], tmp_path: Path
) -> None:
    launcher = start(2)
    workers = workers_of(launcher.pid)
    assert len(workers) == 2
    os.kill(workers[victim], signal.SIGKILL)

    status, lines = the_end(launcher)
    assert (status, len(lines)) == (0, 1)
    assert f"warning: worker {victim} was ended by SIGKILL" in lines[0]
    assert all_end(workers)
    assert undisturbed == numbers_of(tmp_path / "output")


# Patience is 20 times the slowest unit: on a busy machine, where a process's first one takes seconds, two minutes.
IMPATIENT = "from pbgeval.cluster import liveness\nliveness.FACTOR = 4\n"


def let_every_process_run(program: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each Python that is started from now on run a program before all else."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(program, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)


def test_a_run_heals_when_a_worker_stalls(
    start: Start, undisturbed: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(STALL_VARIABLE, "10")  # longer than the first unit of a process on a busy machine
    let_every_process_run(IMPATIENT, tmp_path / "impatient", monkeypatch)
    launcher = start(2)
    os.kill(workers_of(launcher.pid)[1], signal.SIGSTOP)

    status, lines = the_end(launcher)
    assert (status, len(lines)) == (0, 1)
    assert "warning: worker 1 has made no progress for" in lines[0]
    assert undisturbed == numbers_of(tmp_path / "output")


def test_workers_end_when_the_launcher_is_killed(
    start: Start, case: TinyCase, undisturbed: dict[str, str], tmp_path: Path
) -> None:
    launcher = start(2)
    workers = workers_of(launcher.pid)
    assert len(workers) == 2
    launcher.kill()

    assert launcher.wait(timeout=PATIENCE) == -signal.SIGKILL
    assert all_end(workers)
    assert '"complete": false' in (tmp_path / "output" / "metrics.json").read_text()
    goes_on_to_the_same_numbers(case, undisturbed, tmp_path / "output")


def test_an_interruption_at_the_keyboard(
    start: Start, case: TinyCase, undisturbed: dict[str, str], tmp_path: Path
) -> None:
    launcher = start(2)
    workers = workers_of(launcher.pid)
    os.killpg(launcher.pid, signal.SIGINT)

    status, lines = the_end(launcher)

    assert (status, lines) == (75, ["Interrupted. Run the same command again to resume."])
    assert all_end(workers)
    goes_on_to_the_same_numbers(case, undisturbed, tmp_path / "output")


@pytest.mark.parametrize(("number", "num_workers"), [(signal.SIGTERM, 2), (signal.SIGUSR1, 1), (signal.SIGQUIT, 1)])
def test_a_launcher_that_is_ended(
    number: signal.Signals,
    num_workers: int,
    start: Start,
    case: TinyCase,
    undisturbed: dict[str, str],
    tmp_path: Path,
) -> None:
    launcher = start(num_workers)
    workers = workers_of(launcher.pid)
    launcher.send_signal(number)

    status, lines = the_end(launcher)

    assert (75, lines[0]) == (status, f"This process was ended by {number.name}. Run the same command again to resume.")
    assert "of 9 units are done). Run the same command again to resume." in lines[1]
    assert len(lines) == 2
    assert all_end(workers)
    goes_on_to_the_same_numbers(case, undisturbed, tmp_path / "output")


@pytest.fixture(scope="module")
def seconds(case: TinyCase, tmp_path_factory: pytest.TempPathFactory) -> float:
    """How long a group of two takes."""
    begun = time.monotonic()
    run_group(case, [], tmp_path_factory.mktemp("timed") / "output", workers=2, threads=1)
    return time.monotonic() - begun


@pytest.mark.parametrize("seed", range(examples(10)))
def test_a_random_worker_is_killed_at_a_random_moment(
    seed: int, case: TinyCase, undisturbed: dict[str, str], seconds: float, tmp_path: Path
) -> None:
    random = np.random.default_rng(seed)
    output = tmp_path / "output"
    workers = start_group(case, [], output, workers=2, threads=1)
    time.sleep(random.uniform(0.05, 0.95) * seconds)
    workers[random.integers(2)].kill()
    for worker in workers:  # as whoever started the group does, once one has gone
        worker.kill()
        worker.join()

    left = Left.of(output)
    is_complete = (output / "metrics.json").exists() and metrics_of(output)["complete"]
    run_group(case, [], output, workers=int(random.integers(1, 4)), threads=1)
    assert undisturbed == numbers_of(output)
    if not is_complete:
        left.was_not_repeated(output)


def test_two_runs_do_not_share_a_directory(
    start: Start, case: TinyCase, undisturbed: dict[str, str], tmp_path: Path
) -> None:
    first = start(1)
    first.send_signal(signal.SIGSTOP)  # it lives, and does not come to its end meanwhile
    second = run_command(case, "--workers", "1", "--output", str(tmp_path / "output"))
    first.send_signal(signal.SIGCONT)

    assert second.status == 1
    (line,) = second.err.splitlines()
    assert f"another run is writing here (process {first.pid} on" in line
    assert the_end(first) == (0, [])
    assert undisturbed == numbers_of(tmp_path / "output")
