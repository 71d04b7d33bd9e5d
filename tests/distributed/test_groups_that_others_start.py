"""Groups that a launcher other than ours starts: they meet, count as one worker does, or say why not."""

from __future__ import annotations

import datetime
import os
import socket
import subprocess
from pathlib import Path

import pytest

from pbgeval.cluster.environment import GroupPlace
from pbgeval.cluster.team import address_of, open_store
from pbgeval.errors import LaunchError
from tests.clusters import EVERY_POLICY, CaseAndResult
from tests.kit.case import TinyCase
from tests.kit.commands import COMMAND, numbers_of, run_of
from tests.patience import PATIENCE


@pytest.fixture
def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


def start_as_mpirun(case: TinyCase, output: Path, size: int, port: int) -> list[subprocess.Popen[str]]:
    """Start the command as often as Open MPI's mpirun would on one host."""
    return [
        subprocess.Popen(
            [COMMAND, "--config", case.config, "--output", output, "--quiet"],
            cwd=case.root,
            env=os.environ
            | {"OMPI_COMM_WORLD_SIZE": str(size), "OMPI_COMM_WORLD_LOCAL_SIZE": str(size), "MASTER_PORT": str(port)}
            | {"OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_LOCAL_RANK": str(rank), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]


@pytest.mark.slow
@EVERY_POLICY
def test_workers_of_mpirun_give_the_numbers_of_one_worker(
    evaluated: CaseAndResult, tmp_path: Path, free_port: int
) -> None:
    workers = start_as_mpirun(evaluated.case, tmp_path / "mpi", 2, free_port)

    assert [("", "")] * 2 == [worker.communicate(timeout=PATIENCE) for worker in workers]
    assert 2 == run_of(tmp_path / "mpi")["num_workers"]
    assert numbers_of(evaluated.alone) == numbers_of(tmp_path / "mpi")


@pytest.mark.slow
@EVERY_POLICY
def test_a_job_of_submitit_on_this_host_gives_the_numbers_of_one_worker(
    evaluated: CaseAndResult, tmp_path: Path
) -> None:
    job = [COMMAND, "submit", "--scheduler", "local", "--workers-per-node", "2", "--cpus-per-worker", "1", "--wait"]

    done = subprocess.run(
        [*job, evaluated.case.config, "--output", "job"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )

    assert (0, "") == (done.returncode, done.stderr)
    assert done.stdout.splitlines()[-1].endswith(": complete")
    assert 2 == run_of(tmp_path / "job")["num_workers"]
    assert numbers_of(evaluated.alone) == numbers_of(tmp_path / "job")


def test_a_port_that_is_taken_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(LaunchError, match=f"^srun: worker 0 cannot use port {port} on 127.0.0.1: "):
            open_store(GroupPlace("srun", 0, 2, 0, "127.0.0.1", port))


@pytest.mark.parametrize(("rank_in_team", "cause"), [(0, "1/2 clients joined"), (1, "Connection refused")])
def test_workers_that_do_not_come_are_one_line(
    rank_in_team: int, cause: str, free_port: int, capfd: pytest.CaptureFixture[str]
) -> None:
    place = GroupPlace("srun", rank_in_team, 2, 0, "127.0.0.1", free_port)

    with pytest.raises(LaunchError, match=rf"^srun: 2 workers did not meet at .* within 1 s: .*{cause}; ") as raised:
        open_store(place, datetime.timedelta(seconds=1))
    assert "\n" not in str(raised.value)
    assert ("", "") == tuple(capfd.readouterr())


def test_a_host_that_no_name_server_knows_has_the_address_that_slurm_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scontrol = tmp_path / "scontrol"
    scontrol.write_text('#!/bin/sh\necho "NodeName=$3 Arch=x86_64 NodeAddr=127.0.0.9 NodeHostName=x"\n')
    scontrol.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)

    assert "127.0.0.9" == address_of("no-such-host.invalid")
    assert "localhost" == address_of("localhost")
