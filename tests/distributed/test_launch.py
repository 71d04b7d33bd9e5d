"""What the launcher says about workers that end: the one that was the cause, however late it looks."""

from __future__ import annotations

import multiprocessing
import os
import signal
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch

from pbgeval.cluster import launch
from pbgeval.cluster.launch import start_local_workers
from pbgeval.cluster.team import Team
from pbgeval.errors import IncompleteError, LaunchError


def sum_without(victim: int, kill: bool) -> None:
    """One worker ends; the other waits for it in a sum and loses its connection."""
    team = Team.join()
    team.sum_(torch.ones(1, dtype=torch.int64))
    if team.rank_in_team == victim:
        if kill:
            os.kill(os.getpid(), signal.SIGKILL)
        raise ValueError("a bug of ours")
    team.sum_(torch.ones(1, dtype=torch.int64))


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize(
    ("kill", "kind", "line"),
    [
        (True, IncompleteError, "worker {} was ended by SIGKILL"),
        (False, RuntimeError, "worker-{} failed:(.|\n)*a bug of ours"),
    ],
)
def test_a_worker_that_ends_is_the_cause_and_not_its_peers(
    victim: int, kill: bool, kind: type[Exception], line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "MAX_RESTARTS", 0)

    with pytest.raises(kind, match=f"^{line.format(victim)}"):
        start_local_workers(sum_without, (victim, kill), 2, print)


def listening_addresses() -> set[str]:
    """Return where sockets of this process listen, as the kernel writes it."""
    sockets = {os.readlink(link) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()}
    tables = [Path(f"/proc/self/net/{name}").read_text().splitlines()[1:] for name in ("tcp", "tcp6", "udp", "udp6")]
    return {
        fields[1].partition(":")[0]
        for fields in (line.split() for table in tables for line in table)
        if fields[3] in ("0A", "07") and f"socket:[{fields[9]}]" in sockets
    }


def meet_and_look(_: None) -> set[str]:
    team = Team.join()
    team.sum_(torch.ones(1, dtype=torch.int64))
    found = listening_addresses()
    team.leave()
    return found


@pytest.mark.slow
def test_local_workers_listen_on_loopback_only() -> None:
    found = start_local_workers(meet_and_look, (None,), 2, print)

    assert found[0], "worker 0 listens"
    assert found[0] | found[1] <= {"0100007F"}
    assert listening_addresses() == set(), "and the launcher does not"


def fail_to_meet() -> None:
    raise LaunchError("a port: it is taken")


def start_workers_in_a_daemon(answers: Connection) -> None:
    answers.send(start_local_workers(os.getppid, (), 2, print))


@pytest.mark.slow
def test_a_fault_of_a_worker_is_raised_as_it_is() -> None:
    with pytest.raises(LaunchError, match=r"^a port: it is taken$"):
        start_local_workers(fail_to_meet, (), 2, print)


@pytest.mark.slow
def test_a_daemon_of_multiprocessing_starts_workers() -> None:
    context = multiprocessing.get_context("spawn")
    answers, theirs = context.Pipe(duplex=False)
    process = context.Process(target=start_workers_in_a_daemon, args=(theirs,), daemon=True)
    process.start()
    found = answers.recv()
    process.join()

    assert found == {0: process.pid, 1: process.pid}
