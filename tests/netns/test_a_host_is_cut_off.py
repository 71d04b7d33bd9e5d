"""Of two hosts one is cut off: the other finishes or says how to go on, and the one that was cut off spoils nothing."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from pbgeval.cluster.liveness import STALL_VARIABLE
from tests.clusters import Host, stop, wait_until, wait_until_begun, writers
from tests.kit.case import TinyCase
from tests.kit.commands import COMMAND, contents_and_times, metrics_of, numbers_of, run_of
from tests.kit.groups import has_ended
from tests.patience import PATIENCE

pytestmark = [pytest.mark.netns, pytest.mark.slow]

PORT = 29_700  # of hosts that no other test uses
IMPATIENT = {STALL_VARIABLE: "5", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


@pytest.fixture
def two_hosts(hosts: list[Host]) -> Iterator[list[Host]]:
    yield hosts
    for host in hosts:
        host.end()


def evaluate(case: TinyCase, tmp_path: Path) -> list[str | Path]:
    return ["-m", "pbgeval", "--config", case.config, "--output", tmp_path / "output", "--quiet"]


def start_torchrun(
    hosts: list[Host], meeting: Host, case: TinyCase, tmp_path: Path, name: str
) -> list[subprocess.Popen[str]]:
    """Start as the documentation says for runs that are to survive a host; worker 0 is on the first host."""
    torchrun = [COMMAND.parent / "torchrun", "--nnodes=1:2", "--nproc-per-node=1", "--max-restarts=3"]
    torchrun += ["--rdzv-backend=c10d", f"--rdzv-id={name}", f"--rdzv-endpoint={meeting.address}:{PORT}"]
    return [
        host.start(
            [
                *torchrun,
                f"--rdzv-conf=is_host={host is meeting},last_call_timeout=10,keep_alive_interval=2",
                f"--local-addr={host.address}",
                *evaluate(case, tmp_path),
            ],
            tmp_path,
            IMPATIENT,
        )
        for host in hosts
    ]


def start_workers(hosts: list[Host], case: TinyCase, tmp_path: Path) -> list[subprocess.Popen[str]]:
    """Start a worker on each host, without a launcher; worker 0, on the first, holds the store."""
    group = {"WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": hosts[0].address, "MASTER_PORT": str(PORT)}
    python = COMMAND.parent / "python"
    return [
        host.start([python, *evaluate(case, tmp_path)], tmp_path, IMPATIENT | group | {"RANK": str(rank)})
        for rank, host in enumerate(hosts)
    ]


def worker_on(host: Host, output: Path) -> int:
    return next(process for name, process in writers(output).items() if name.startswith(f"{host.name}-"))


def go_on(process: int) -> None:
    os.kill(process, signal.SIGCONT)


def test_the_rest_finishes_without_a_host_that_is_cut_off(
    two_hosts: list[Host], long_case: TinyCase, undisturbed: dict[str, str], tmp_path: Path
) -> None:
    output = tmp_path / "output"
    first, second = start_torchrun(two_hosts, two_hosts[0], long_case, tmp_path, "second")
    wait_until_begun(output)
    both = list(writers(output).values())
    stop(both)
    two_hosts[1].cut_off()
    for process in both:
        go_on(process)

    out, err = first.communicate(timeout=PATIENCE)
    assert first.returncode == 0, out + err
    assert (undisturbed, 1) == (numbers_of(output), run_of(output)["num_workers"])
    after = contents_and_times(output)
    wait_until(lambda: all(map(has_ended, both)), "the worker that was cut off did not end")
    two_hosts[1].end()
    second.communicate(timeout=PATIENCE)
    assert after == contents_and_times(output)


def test_an_owner_that_was_cut_off_spoils_nothing(
    two_hosts: list[Host], long_case: TinyCase, undisturbed: dict[str, str], tmp_path: Path
) -> None:
    """Hosts meet at the second, worker 0 and the store are on the first: it is cut off, and goes on after the end."""
    output = tmp_path / "output"
    first, second = start_torchrun(two_hosts, two_hosts[1], long_case, tmp_path, "first")
    wait_until_begun(output)
    owner = worker_on(two_hosts[0], output)
    stop([owner])
    two_hosts[0].cut_off()

    out, err = second.communicate(timeout=PATIENCE)
    assert second.returncode == 0, out + err
    assert undisturbed == numbers_of(output)
    after = contents_and_times(output)
    go_on(owner)
    wait_until(lambda: has_ended(owner), "the owner did not end")
    two_hosts[0].end()
    _, err = first.communicate(timeout=PATIENCE)
    assert after == contents_and_times(output)


def test_without_the_host_of_the_store_the_run_ends_and_goes_on(
    two_hosts: list[Host], long_case: TinyCase, undisturbed: dict[str, str], tmp_path: Path
) -> None:
    output = tmp_path / "output"
    workers = start_workers(two_hosts, long_case, tmp_path)
    wait_until_begun(output)
    stop(writers(output).values())
    two_hosts[0].cut_off()
    for process in writers(output).values():
        go_on(process)

    ends = [worker.communicate(timeout=PATIENCE) for worker in workers]
    assert [worker.returncode for worker in workers] == [75, 75], ends
    for _, err in ends:
        assert "worker" in err
        assert err.endswith("Run the same command again to resume.\n")
    assert not metrics_of(output)["complete"]

    resumed = two_hosts[0].start([COMMAND, *evaluate(long_case, tmp_path)[2:], "--workers", "1"], tmp_path)
    assert resumed.communicate(timeout=PATIENCE) == ("", "")
    assert undisturbed == numbers_of(output)
