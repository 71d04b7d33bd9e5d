"""A run whose worker or launcher is ended by a signal: it heals, or ends with 75 and can go on; no process is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from pbgeval.cluster.liveness import STALL_VARIABLE
from tests.clusters import wait_until
from tests.examples import examples
from tests.kit.case import TinyCase
from tests.kit.commands import (
    COMMAND,
    DEVICES,
    journaled_units,
    metrics_of,
    numbers_of,
    run_command,
    snapshot,
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
        line = next(line for line in process.stderr if DEVICES.fullmatch(line.rstrip()) is None)
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


def the_end(process: subprocess.Popen[str]) -> tuple[int, list[str]]:
    """Wait; return status, and the lines on stderr that are not progress."""
    _, err = process.communicate(timeout=PATIENCE)
    return process.returncode, [line for line in err.splitlines() if " bucket (" not in line]


def assert_ended(processes: list[int]) -> None:
    wait_until(lambda: all(map(has_ended, processes)), "they live on", SECONDS_TO_END)


def goes_on_to_the_same_numbers(case: TinyCase, undisturbed: dict[str, str], output: Path) -> None:
    """Run the same command again; nothing that the journal held is computed again, and nothing is missing."""
    kept, logs = journaled_units(output), {path.name for path in (output / "journal").glob("log-*")}
    assert run_command(case, "--workers", "1", "--quiet", "--output", str(output)).printed == ""
    assert undisturbed == numbers_of(output)
    later = [line for line in unit_log(output) if f"log-{line['writer']}.jsonl" not in logs]
    begun = [line["unit"] for line in later if line["event"] == "start"]
    assert (9, set()) == (len(kept) + len(begun), kept.intersection(begun))
    assert len(kept.union(begun)) == 9
    assert bool(kept) == any(line["event"] == "restored" for line in later)


@pytest.fixture(scope="module")
def undisturbed(case: TinyCase, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return undisturbed_numbers(case, tmp_path_factory.mktemp("undisturbed") / "output")


# Patience is 20 times the slowest unit: on a busy machine, where a process's first one takes seconds, two minutes.
IMPATIENT = "from pbgeval.cluster import liveness\nliveness.FACTOR = 4\n"


@pytest.mark.parametrize(
    ("victim", "number", "line"),
    [
        (0, signal.SIGKILL, "worker 0 was ended by SIGKILL"),
        (1, signal.SIGKILL, "worker 1 was ended by SIGKILL"),
        (1, signal.SIGSTOP, "worker 1 has made no progress for"),
    ],
)
def test_a_run_heals_when_a_worker_is_killed_or_stalls(
    victim: int,
    number: signal.Signals,
    line: str,
    start: Start,
    undisturbed: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if number == signal.SIGSTOP:
        monkeypatch.setenv(STALL_VARIABLE, "10")  # longer than the first unit of a process on a busy machine
        # Each Python that is started from now on runs this before all else.
        (tmp_path / "sitecustomize.py").write_text(IMPATIENT, encoding="utf-8")
        monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    launcher = start(2)
    workers = workers_of(launcher.pid)
    os.kill(workers[victim], number)

    status, lines = the_end(launcher)
    (warning,) = [line for line in lines if DEVICES.fullmatch(line) is None]  # new workers name them again
    assert (status, len(workers)) == (0, 2)
    assert f"warning: {line}" in warning
    assert_ended(workers)
    assert undisturbed == numbers_of(tmp_path / "output")


AGAIN = "Run the same command again to resume."
LEFT = " of 9 units; the rest is repeated). " + AGAIN
ENDED = ["This process was ended by {}. " + AGAIN, LEFT]


@pytest.mark.parametrize(
    ("number", "num_workers", "status", "lines"),
    [
        (signal.SIGTERM, 2, 75, ENDED),
        (signal.SIGUSR1, 1, 75, ENDED),
        (signal.SIGQUIT, 1, 75, ENDED),
        (signal.SIGINT, 2, 75, [LEFT]),
        (signal.SIGKILL, 2, -signal.SIGKILL, []),
    ],
)
def test_a_launcher_that_is_ended(
    number: signal.Signals,
    num_workers: int,
    status: int,
    lines: list[str],
    start: Start,
    case: TinyCase,
    undisturbed: dict[str, str],
    tmp_path: Path,
) -> None:
    """An interruption at the keyboard goes to all processes of its group; one worker is in the command's process."""
    launcher = start(num_workers)
    workers = workers_of(launcher.pid)
    (os.killpg if number == signal.SIGINT else os.kill)(launcher.pid, number)

    found, said = the_end(launcher)

    assert (found, len(workers)) == (status, num_workers if num_workers > 1 else 0)
    ends = [line.format(number.name) for line in lines]
    assert len(said) == len(ends), said
    assert [line[-len(end) :] for line, end in zip(said, ends, strict=True)] == ends
    assert_ended(workers)
    assert not metrics_of(tmp_path / "output")["complete"]
    goes_on_to_the_same_numbers(case, undisturbed, tmp_path / "output")


# Each Python that is started from now on has a slow disk: the journal gets its second entry after half a minute.
SLOW_DISK = """
import time
from pbgeval.storage import writing

class Slow(writing.System):
    def sync(self, descriptor):
        time.sleep(0.3)
        super().sync(descriptor)

writing.system = Slow()
"""


@pytest.mark.parametrize(("number", "num_workers"), [(signal.SIGINT, 2), (signal.SIGTERM, 2), (signal.SIGQUIT, 1)])
def test_what_is_printed_as_done_is_saved_when_a_run_is_ended(
    number: signal.Signals,
    num_workers: int,
    start: Start,
    case: TinyCase,
    undisturbed: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "sitecustomize.py").write_text(SLOW_DISK, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    launcher = start(num_workers)
    assert launcher.stderr is not None
    for _ in range(3):
        assert " bucket (" in launcher.stderr.readline()
    monkeypatch.undo()

    (os.killpg if number == signal.SIGINT else os.kill)(launcher.pid, number)
    status, said = the_end(launcher)

    output = tmp_path / "output"
    logs = [json.loads(line) for log in (output / "journal").glob("log-*") for line in log.read_text().splitlines()]
    finished = {line["unit"] for line in logs if line["event"] == "finish"}
    saved = journaled_units(output)
    assert len(saved) >= 4
    assert saved == finished
    told = f"({100 * len(saved) // 9}% is saved: {len(saved)} of 9 units; the rest is repeated). {AGAIN}"
    assert (status, said[-1][-len(told) :]) == (75, told)
    goes_on_to_the_same_numbers(case, undisturbed, output)


@pytest.fixture(scope="module")
def seconds(case: TinyCase, tmp_path_factory: pytest.TempPathFactory) -> float:
    """How long a group of two takes."""
    begun = time.monotonic()
    run_group(case, [], tmp_path_factory.mktemp("timed") / "output", workers=2, threads=1)
    return time.monotonic() - begun


@pytest.mark.parametrize("seed", range(examples(10)))
def test_a_group_that_is_killed_at_a_random_moment_goes_on_to_the_same_numbers(
    seed: int, case: TinyCase, undisturbed: dict[str, str], seconds: float, tmp_path: Path
) -> None:
    random = np.random.default_rng(seed)
    workers = start_group(case, [], tmp_path / "output", workers=2, threads=1)
    time.sleep(random.uniform(0.05, 0.95) * seconds)
    for worker in random.permutation(workers):  # the launcher ends the second, once the first has gone
        worker.kill()
        worker.join()

    if (tmp_path / "output" / "metrics.json").exists() and metrics_of(tmp_path / "output")["complete"]:
        assert undisturbed == numbers_of(tmp_path / "output")
    else:
        goes_on_to_the_same_numbers(case, undisturbed, tmp_path / "output")


def test_two_runs_do_not_share_a_directory(
    start: Start, case: TinyCase, undisturbed: dict[str, str], tmp_path: Path
) -> None:
    first = start(1)
    first.send_signal(signal.SIGSTOP)  # it lives, and does not come to its end meanwhile
    second = run_command(case, "--workers", "1", "--output", str(tmp_path / "output"))
    first.send_signal(signal.SIGCONT)

    assert f"another run is writing here (process {first.pid} on" in second.fault
    assert the_end(first) == (0, [])
    assert undisturbed == numbers_of(tmp_path / "output")


# Each Python that is started from now on runs this before all else: the first process that is about to call the system
# for a file of ranks says who it is, and waits for its end.
HELD = """
import os, time
from pathlib import Path
from pbgeval.storage import writing

class Held(writing.System):
    def {call}(self, file, *arguments):
        path = file if isinstance(file, Path) else Path(os.readlink(f"/proc/self/fd/{{file}}"))
        if path.name.startswith("{prefix}"):
            try:
                with open({note!r}, "x") as note:
                    note.write(f"{{os.getpid()}}\\n")
            except FileExistsError:
                pass
            else:
                time.sleep(600)
        return super().{call}(file, *arguments)

writing.system = Held()
"""
TOLD_OF_TIME = {"run.json", "units.jsonl"}  # and of attempts


def files_of_result(output: Path) -> dict[str, bytes]:
    """Return what equal runs must agree on, byte for byte: all files but what tells of time."""
    return {name: content for name, (content, _) in snapshot(output).items() if name not in TOLD_OF_TIME}


@pytest.mark.parametrize(
    ("call", "prefix", "goes_on"),
    [
        ("write_at", ".ranks_", "by itself"),
        ("rename", ".ranks_", "by the same command"),
        ("write_at", "ranks_", "by itself"),
        ("write_at", "ranks_", "by the same command"),
    ],
)
def test_a_worker_that_is_killed_while_it_writes_ranks_leaves_nothing_in_the_result(
    call: str, prefix: str, goes_on: str, tmp_path: Path
) -> None:
    case = TinyCase.write(tmp_path / "case", partition_sizes=(9, 8), save_ranks=True)
    undisturbed_numbers(case, case.root / "undisturbed" / "output")  # the folder's name is in `metrics.jsonl`
    note = tmp_path / "note"
    (tmp_path / "sitecustomize.py").write_text(HELD.format(call=call, prefix=prefix, note=str(note)), encoding="utf-8")
    command = [COMMAND, "--config", "eval.py", "--workers", "2", "--quiet", "--output", "output"]
    launcher = subprocess.Popen(
        command,
        cwd=case.root,
        env=os.environ | {"PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_until(lambda: note.exists() and note.read_text().endswith("\n"), "no worker writes ranks", PATIENCE)
    worker = int(note.read_text())
    workers = workers_of(launcher.pid)
    assert worker in workers
    if prefix.startswith("."):
        assert list((case.root / "output" / "ranks").rglob(".ranks_*")) != []
    if goes_on == "by itself":
        os.kill(worker, signal.SIGKILL)
        assert the_end(launcher) == (0, [])
    else:
        launcher.kill()
        os.kill(worker, signal.SIGKILL)
        launcher.communicate()
        assert_ended(workers)
        assert run_command(case, "--workers", "1", "--quiet", "--output", "output").printed == ""

    assert files_of_result(case.root / "output") == files_of_result(case.root / "undisturbed" / "output")
