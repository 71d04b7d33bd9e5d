"""Clusters of one machine for tests: two nodes of a real Slurm, two hosts that are network namespaces.

Each test process has its own, started when first needed and taken down at its end. Where it does not start the tests
are skipped with the reason, which conftest turns into a failure where CI=true and it could have started.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from math import isqrt
from pathlib import Path

import pytest
from attrs import frozen

from tests.kit.case import TinyCase
from tests.kit.commands import COMMAND, undisturbed_numbers
from tests.patience import PATIENCE

SCRIPTS = Path(__file__).resolve().parent.parent / "scripts"
PYTHON = COMMAND.parent / "python"
NUM_HOSTS = 2
NUM_UNITS = 25


def wait_until(happens: Callable[[], bool], otherwise: str, seconds: float = PATIENCE) -> None:
    """Wait until something happens; fail if it does not."""
    until = time.monotonic() + seconds
    while not happens():
        assert time.monotonic() < until, otherwise
        time.sleep(0.05)


def wait_until_begun(output: Path) -> None:
    """Wait until both of two workers have begun, and the journal holds something."""

    def has_begun() -> bool:
        return any((output / "journal").glob("*.unit")) and len(writers(output)) == 2

    wait_until(has_begun, "no unit was finished")


def writers(output: Path) -> dict[str, int]:
    """Return the processes that have begun a unit, by the names by which they sign in the journal."""
    names = [path.stem.removeprefix("log-") for path in (output / "journal").glob("log-*.jsonl")]
    return {name: int(name.rsplit("-", 2)[1]) for name in names}


def stop(processes: Iterable[int]) -> None:
    """Stop processes for a while, so that what a test does meanwhile does not depend on how fast they are."""
    for process in processes:
        os.kill(process, signal.SIGSTOP)


def stop_until_ended(processes: Iterable[int]) -> None:
    """Let processes do nothing more until they are ended, even if they are continued before they are ended."""
    left = set(processes)

    def have_ended() -> bool:
        for process in list(left):
            try:
                os.kill(process, signal.SIGSTOP)
            except ProcessLookupError:
                left.discard(process)
        return not left

    wait_until(have_ended, "they were not ended")


@frozen
class Slurm:
    """A running cluster of two nodes with two cores each."""

    environment: Mapping[str, str]
    folder: Path  # of its configuration and logs

    def run(self, *command: str | Path, cwd: Path, timeout: float = PATIENCE) -> subprocess.CompletedProcess[str]:
        """Run a command of Slurm's, or one that calls them."""
        return subprocess.run(
            command, cwd=cwd, env=self.environment, capture_output=True, text=True, check=False, timeout=timeout
        )

    def end_of(self, number: str) -> str:
        """Wait for a job's end; return its state and exit code (`COMPLETED 0:0`).

        `sbatch --wait` looks for the end at ever longer intervals.
        """
        begun = ("PENDING", "RUNNING", "COMPLETING")
        wait_until(lambda: self.job(number)["JobState"] not in begun, f"job {number} did not end")
        return "{JobState} {ExitCode}".format(**self.job(number))

    def job(self, number: str) -> dict[str, str]:
        """Return what Slurm knows of a job: JobState, Restarts, ..."""
        shown = self.run("scontrol", "show", "job", number, "--oneliner", cwd=self.folder).stdout
        return dict(word.split("=", 1) for word in shown.split() if "=" in word)

    def set_minutes(self, number: str, minutes: int) -> None:
        """Change the time limit of a job."""
        done = self.run("scontrol", "update", f"JobId={number}", f"TimeLimit={minutes}", cwd=self.folder)
        assert done.returncode == 0, done.stderr

    def seconds_of(self, number: str) -> int:
        """Return for how long a job has been running, less than a day."""
        hours, minutes, seconds = map(int, self.job(number)["RunTime"].split(":"))
        return 3600 * hours + 60 * minutes + seconds

    def ends_of(self, number: str) -> list[str]:
        """Return how a job has ended, each time that it was started."""
        lines = (self.folder / "log" / "jobcomp.txt").read_text().splitlines()
        ends = [dict(word.split("=", 1) for word in line.split() if "=" in word) for line in lines]
        return [end["JobState"] for end in ends if end["JobId"] == number]

    @contextmanager
    def starting_nothing(self, partition: str, cwd: Path) -> Iterator[None]:
        """Keep jobs of a partition in the queue; those that run go on."""
        update = ("scontrol", "update", f"PartitionName={partition}")
        self.run(*update, "State=DOWN", cwd=cwd)
        try:
            yield
        finally:
            self.run(*update, "State=UP", cwd=cwd)


@pytest.fixture(scope="session")
def slurm() -> Iterator[Slurm]:
    """A real Slurm cluster of two nodes with two cores; tests that use it are marked `slurm`."""
    with _cluster(cores_per_node=2) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def roomy_slurm() -> Iterator[Slurm]:
    """Another one, whose nodes say that they have 16 cores."""
    with _cluster(cores_per_node=16) as cluster:
        yield cluster


@contextmanager
def _cluster(cores_per_node: int) -> Iterator[Slurm]:
    missing = [program for program in ("slurmctld", "slurmd", "munged") if shutil.which(program) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} not installed: scripts/test --all installs them as root where apt-get is")
    # Not below pytest's own folder, whose path may be too long for the name of a socket.
    folder = Path(tempfile.mkdtemp(prefix="pbgeval-slurm-"))
    script = str(SCRIPTS / "slurm_cluster")
    started = subprocess.run(
        [script, "up", folder, "2", str(cores_per_node)], capture_output=True, text=True, check=False, timeout=PATIENCE
    )
    try:
        if started.returncode != 0:
            pytest.skip(f"the Slurm cluster did not start: {started.stderr}")
        configuration = started.stdout.strip()
        outer = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "SUBMITIT_"))}
        yield Slurm(outer | {"SLURM_CONF": configuration, "OMP_NUM_THREADS": "1", "PYTHON": str(PYTHON)}, folder)
    finally:
        subprocess.run([script, "down", folder], capture_output=True, check=True, timeout=PATIENCE)
        shutil.rmtree(folder, ignore_errors=True)


@frozen
class Host:
    """A network namespace with an address of its own."""

    name: str
    address: str

    def start(
        self, command: Sequence[str | Path], cwd: Path, environment: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        """Start a command on this host, which has its name; gloo talks by its network."""
        named = ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', self.name]
        return subprocess.Popen(
            ["ip", "netns", "exec", self.name, *named, *command],
            cwd=cwd,
            env=os.environ | {"GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1"} | dict(environment or {}),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def cut_off(self) -> None:
        """Take its network away: connections stay open, and nothing comes through."""
        subprocess.run(["ip", "-n", self.name, "link", "set", "eth0", "down"], check=True, timeout=PATIENCE)

    def end(self) -> None:
        """Give it its network back, and end what still runs here."""
        subprocess.run(["ip", "-n", self.name, "link", "set", "eth0", "up"], check=True, timeout=PATIENCE)
        found = subprocess.run(["ip", "netns", "pids", self.name], capture_output=True, text=True, check=True)
        for process in found.stdout.split():
            with suppress(ProcessLookupError):  # it has ended meanwhile
                os.kill(int(process), signal.SIGKILL)


@pytest.fixture(scope="session")
def hosts() -> Iterator[list[Host]]:
    """Two hosts with a network between them; tests that use them are marked `netns`."""
    script, name = str(SCRIPTS / "network_hosts"), str(os.getpid() % 1_000_000)
    up = subprocess.run(
        [script, "up", str(NUM_HOSTS), name], capture_output=True, text=True, check=False, timeout=PATIENCE
    )
    try:
        if up.returncode != 0:
            pytest.skip(f"network namespaces could not be made: {up.stderr}")
        yield [Host(*line.split()) for line in up.stdout.splitlines()]
    finally:
        subprocess.run([script, "down", name], capture_output=True, check=False, timeout=PATIENCE)


@frozen
class CaseAndResult:
    """A small evaluation, and what one worker alone makes of it."""

    case: TinyCase
    alone: Path  # an output directory


@pytest.fixture(scope="session")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> CaseAndResult:
    """The case that clusters evaluate, and its result; its relations have sampled candidates or those of a partition.

    Who starts the workers does not matter for other candidates: tests/distributed has them in groups of all sizes.
    """
    folder = tmp_path_factory.mktemp("evaluated")
    case = TinyCase.write(folder / "case")
    undisturbed_numbers(case, folder / "alone")
    return CaseAndResult(case, folder / "alone")


@pytest.fixture(scope="session")
def long_case(tmp_path_factory: pytest.TempPathFactory) -> TinyCase:
    """A case of `NUM_UNITS` buckets, each of about a fifth of a second: time to be ended in between."""
    return TinyCase.write(
        tmp_path_factory.mktemp("long-case"),
        dynamic=True,
        partition_sizes=(8_000,) * isqrt(NUM_UNITS),
        edges_per_bucket=5_000,
        dimension=16,
        candidates="partition",
    )


@pytest.fixture(scope="session")
def undisturbed(long_case: TinyCase, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The numbers of the long case."""
    return undisturbed_numbers(long_case, tmp_path_factory.mktemp("undisturbed") / "output")
