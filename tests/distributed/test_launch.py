"""What the launcher says about workers that end: the one that was the cause, however late it looks."""

from __future__ import annotations

import os
import signal

import pytest
import torch

from pbgeval.distributed import launch
from pbgeval.distributed.launch import start_local_workers
from pbgeval.distributed.team import Team
from pbgeval.errors import LaunchError


def sum_without(victim: int, kill: bool) -> None:
    """One worker ends; the other waits for it in a sum and loses its connection."""
    team = Team.join()
    team.sum_(torch.ones(1, dtype=torch.int64))
    if team.rank_in_team == victim:
        if kill:
            os.kill(os.getpid(), signal.SIGKILL)
        raise ValueError("a bug of ours")
    team.sum_(torch.ones(1, dtype=torch.int64))


@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("seconds", [0.1, 4.0])
def test_a_killed_worker_is_the_cause_and_not_its_peers(
    victim: int, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "_SECONDS_BETWEEN_LOOKS", seconds)

    with pytest.raises(LaunchError, match=f"^worker {victim}: expected to finish, but was ended by SIGKILL"):
        start_local_workers(sum_without, (victim, True), 2)


@pytest.mark.parametrize("victim", [0, 1])
def test_a_worker_that_raises_is_the_cause_and_not_its_peers(victim: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "_SECONDS_BETWEEN_LOOKS", 4.0)

    with pytest.raises(RuntimeError, match="a bug of ours") as raised:
        start_local_workers(sum_without, (victim, False), 2)
    assert str(raised.value).startswith(f"worker-{victim} failed:")
