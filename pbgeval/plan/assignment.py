"""Ordered work units -> a consecutive share for each worker, of nearly equal numbers of edges."""

from __future__ import annotations

from collections.abc import Sequence

from pbgeval.notation import WorkUnit


def share_of_worker(units: Sequence[WorkUnit], rank_in_team: int, team_size: int) -> list[WorkUnit]:
    """Return the units of one worker. Every unit belongs to exactly one worker; order is kept.

    A unit goes to the worker in whose equal part of all edges its middle lies.
    """
    total = sum(unit.num_edges for unit in units)
    share, before = [], 0
    for unit in units:
        owner = min((2 * before + unit.num_edges) * team_size // (2 * max(total, 1)), team_size - 1)
        before += unit.num_edges
        if owner == rank_in_team:
            share.append(unit)
    return share
