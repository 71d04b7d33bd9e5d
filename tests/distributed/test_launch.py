"""What the launcher says about workers that end: the one that was the cause, however late it looks."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import torch

from pbgeval.distributed import launch
from pbgeval.distributed.launch import start_local_workers
from pbgeval.distributed.team import Team
from pbgeval.errors import IncompleteError
from tests.examples import crossed


def sum_without(victim: int, kill: bool) -> None:
    """One worker ends; the other waits for it in a sum and loses its connection."""
    team = Team.join()
    team.sum_(torch.ones(1, dtype=torch.int64))
    if team.rank_in_team == victim:
        if kill:
            os.kill(os.getpid(), signal.SIGKILL)
        raise ValueError("a bug of ours")
    team.sum_(torch.ones(1, dtype=torch.int64))


@pytest.mark.parametrize(("victim", "seconds"), crossed([0, 1], [0.1, 2.0], quick=4))
def test_a_killed_worker_is_the_cause_and_not_its_peers(
    victim: int, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "_SECONDS_BETWEEN_LOOKS", seconds)
    monkeypatch.setattr(launch, "MOST_RESTARTS", 0)

    with pytest.raises(IncompleteError, match=f"^worker {victim}: expected to finish, but was ended by SIGKILL"):
        start_local_workers(sum_without, (victim, True), 2, print)


def sum_once_disturbed(folder: Path) -> int:
    """Worker 1 is killed the first time; all add up the second time."""
    team = Team.join()
    if team.rank_in_team == 1 and not (folder / "disturbed").exists():
        (folder / "disturbed").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return int(team.sum_(torch.ones(1, dtype=torch.int64)))


def test_a_group_heals_when_a_worker_is_killed(tmp_path: Path) -> None:
    said: list[str] = []

    assert {0: 2, 1: 2} == start_local_workers(sum_once_disturbed, (tmp_path,), 2, said.append)
    (line,) = said
    assert line.startswith("worker 1: expected to finish, but was ended by SIGKILL")


@pytest.mark.parametrize("victim", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_worker_that_raises_is_the_cause_and_not_its_peers(victim: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "_SECONDS_BETWEEN_LOOKS", 2.0)

    with pytest.raises(RuntimeError, match="a bug of ours") as raised:
        start_local_workers(sum_without, (victim, False), 2, print)
    assert str(raised.value).startswith(f"worker-{victim} failed:")
