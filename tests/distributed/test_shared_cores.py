"""How many workers share a worker's cores: all of its host, or those bound to the same ones; and its memory: all."""

from __future__ import annotations

import pytest

from pbgeval.cluster import team as team_module
from pbgeval.cluster.team import Team

TWO_HOSTS = [("a", {0, 1, 2, 3}), ("a", {0, 1, 2, 3}), ("b", {0, 1, 2, 3})]
BOUND = [("a", {0, 1}), ("a", {2, 3}), ("b", {0, 1}), ("b", {2, 3})]
OVERLAPPING = [("a", {0, 1}), ("a", {1, 2}), ("a", {3})]


@pytest.mark.parametrize(
    ("workers", "sharing", "of_hosts"),
    [(TWO_HOSTS, [2, 2, 1], [2, 2, 1]), (BOUND, [1, 1, 1, 1], [2, 2, 2, 2]), (OVERLAPPING, [2, 2, 1], [3, 3, 3])],
)
def test_a_worker_shares_cores_with_those_that_may_run_on_them(
    workers: list[tuple[str, set[int]]], sharing: list[int], of_hosts: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Team, "gather_objects", lambda *_: workers)
    found = []
    for host, its_cores in workers:
        monkeypatch.setattr(team_module, "host_name", lambda host=host: host)
        monkeypatch.setattr(team_module, "cores", lambda its_cores=its_cores: its_cores)
        found.append(Team()._num_sharing())

    assert [*zip(sharing, of_hosts, strict=True)] == found
