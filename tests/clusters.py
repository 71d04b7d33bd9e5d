"""Clusters of one machine for tests: two nodes of a real Slurm, two hosts that are network namespaces.

Each test process has its own, started when first needed and taken down at its end. Where it does not start the tests
are skipped with the reason, which conftest turns into a failure where CI=true and it could have started.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from attrs import frozen

from tests.tiny_checkpoint import COMMAND, TinyCase, start_command

SCRIPTS = Path(__file__).resolve().parent.parent / "scripts"
PYTHON = COMMAND.parent / "python"
NUM_HOSTS = 2


@frozen
class Slurm:
    """A running cluster of two nodes with two cores each."""

    environment: Mapping[str, str]

    def run(self, *command: str | Path, cwd: Path, timeout: float = 100) -> subprocess.CompletedProcess[str]:
        """Run a command of Slurm's, or one that calls them."""
        return subprocess.run(
            command, cwd=cwd, env=self.environment, capture_output=True, text=True, check=False, timeout=timeout
        )

    def run_batch(self, *arguments: str | Path, cwd: Path, timeout: float = 60) -> tuple[str, str]:
        """Submit a batch job, wait, return its state and exit code (`COMPLETED 0:0`) and its log.

        `sbatch --wait` looks for the end at ever longer intervals.
        """
        submitted = self.run("sbatch", "--parsable", "--output=log", *arguments, cwd=cwd)
        assert submitted.returncode == 0, submitted.stderr
        until = time.monotonic() + timeout
        while time.monotonic() < until:
            job = self.run("scontrol", "show", "job", submitted.stdout.strip(), "--oneliner", cwd=cwd).stdout
            words = dict(word.split("=", 1) for word in job.split() if "=" in word)
            if words["JobState"] not in ("PENDING", "RUNNING", "COMPLETING"):
                return f"{words['JobState']} {words['ExitCode']}", (cwd / "log").read_text()
            time.sleep(0.2)
        raise TimeoutError(f"job {submitted.stdout.strip()} did not end: {(cwd / 'log').read_text()}")


@pytest.fixture(scope="session")
def slurm() -> Iterator[Slurm]:
    """A real Slurm cluster; tests that use it are marked `slurm`."""
    missing = [program for program in ("slurmctld", "slurmd", "munged") if shutil.which(program) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} not installed: scripts/test --all installs them as root where apt-get is")
    # Not below pytest's own folder, whose path may be too long for the name of a socket.
    folder = Path(tempfile.mkdtemp(prefix="pbgeval-slurm-"))
    script = str(SCRIPTS / "slurm_cluster")
    started = subprocess.run([script, "up", folder, "2", "2"], capture_output=True, text=True, check=False, timeout=100)
    try:
        if started.returncode != 0:
            pytest.skip(f"the Slurm cluster did not start: {started.stderr}")
        configuration = started.stdout.strip()
        outer = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "SUBMITIT_"))}
        yield Slurm(outer | {"SLURM_CONF": configuration, "OMP_NUM_THREADS": "1", "PYTHON": str(PYTHON)})
    finally:
        subprocess.run([script, "down", folder], capture_output=True, check=False, timeout=100)
        shutil.rmtree(folder, ignore_errors=True)


@frozen
class Host:
    """A network namespace with an address of its own."""

    name: str
    address: str

    def start(self, command: Sequence[str | Path], cwd: Path) -> subprocess.Popen[str]:
        """Start a command on this host; gloo talks by its network."""
        return subprocess.Popen(
            ["ip", "netns", "exec", self.name, *command],
            cwd=cwd,
            env=os.environ | {"GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


@pytest.fixture(scope="session")
def hosts() -> Iterator[list[Host]]:
    """Two hosts with a network between them; tests that use them are marked `netns`."""
    script, name = str(SCRIPTS / "network_hosts"), str(os.getpid() % 1_000_000)
    up = subprocess.run([script, "up", str(NUM_HOSTS), name], capture_output=True, text=True, check=False, timeout=60)
    try:
        if up.returncode != 0:
            pytest.skip(f"network namespaces could not be made: {up.stderr}")
        yield [Host(*line.split()) for line in up.stdout.splitlines()]
    finally:
        subprocess.run([script, "down", name], capture_output=True, check=False, timeout=60)


@frozen
class CaseAndResult:
    """A small evaluation, and what one worker alone makes of it."""

    case: TinyCase
    alone: Path  # an output directory


@pytest.fixture(scope="session")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> CaseAndResult:
    """The case that clusters evaluate, and its result."""
    folder = tmp_path_factory.mktemp("evaluated")
    case = TinyCase.write(folder / "case")
    done = start_command(case, "--workers", "1", "--quiet", "--output", str(folder / "alone"))
    assert (0, "", "") == (done.status, done.out, done.err)
    return CaseAndResult(case, folder / "alone")
