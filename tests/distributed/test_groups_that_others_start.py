"""Groups that a launcher other than ours starts: they meet, count as one worker does, or say why not."""

from __future__ import annotations

import datetime
import os
import socket
from pathlib import Path

import pytest

from pbgeval.cluster.environment import GroupPlace
from pbgeval.cluster.team import address_of, open_store
from pbgeval.errors import LaunchError
from tests.clusters import CaseAndResult
from tests.kit.commands import COMMAND, numbers_of, run_of, start
from tests.kit.groups import free_port, start_as_mpirun
from tests.patience import PATIENCE


@pytest.mark.slow
def test_workers_of_mpirun_give_the_numbers_of_one_worker(evaluated: CaseAndResult, tmp_path: Path) -> None:
    case, output = evaluated.case, tmp_path / "mpi"
    workers = start_as_mpirun([COMMAND, "--config", case.config, "--output", output, "--quiet"], 2, case.root)

    assert [worker.communicate(timeout=PATIENCE) for worker in workers] == [("", "")] * 2
    assert (2, numbers_of(evaluated.alone)) == (run_of(output)["num_workers"], numbers_of(output))


@pytest.mark.slow
def test_a_job_of_submitit_on_this_host_gives_the_numbers_of_one_worker(
    evaluated: CaseAndResult, tmp_path: Path
) -> None:
    job = [COMMAND, "submit", "--scheduler", "local", "--workers-per-node", "2", "--cpus-per-worker", "1", "--wait"]

    done = start([*job, evaluated.case.config, "--output", "job"], tmp_path)

    assert done.printed.endswith(": complete\n")
    assert (2, numbers_of(evaluated.alone)) == (run_of(tmp_path / "job")["num_workers"], numbers_of(tmp_path / "job"))


def test_a_port_that_is_taken_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(LaunchError, match=f"^srun: worker 0 cannot use port {port} on 127.0.0.1: "):
            open_store(GroupPlace("srun", 0, 2, 0, "127.0.0.1", port))


@pytest.mark.one_case
@pytest.mark.parametrize(("rank_in_team", "cause"), [(0, "1/2 clients joined"), (1, "Connection refused")])
def test_workers_that_do_not_come_are_one_line(
    rank_in_team: int, cause: str, capfd: pytest.CaptureFixture[str]
) -> None:
    place = GroupPlace("srun", rank_in_team, 2, 0, "127.0.0.1", free_port())

    with pytest.raises(LaunchError, match=rf"^srun: 2 workers did not meet at .* within 1 s: .*{cause}; ") as raised:
        open_store(place, datetime.timedelta(seconds=1))
    assert "\n" not in str(raised.value)
    assert tuple(capfd.readouterr()) == ("", "")


def test_a_host_that_no_name_server_knows_has_the_address_that_slurm_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scontrol = tmp_path / "scontrol"
    scontrol.write_text('#!/bin/sh\necho "NodeName=$3 Arch=x86_64 NodeAddr=127.0.0.9 NodeHostName=x"\n')
    scontrol.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)

    assert address_of("no-such-host.invalid") == "127.0.0.9"
    assert address_of("localhost") == "localhost"
