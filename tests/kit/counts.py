"""Counts of queries by hand."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pbgeval.stats.ranks import RankCounts


def counts_of(queries: Sequence[tuple[int, int, int]]) -> RankCounts:
    """Return the counts of queries that are given as candidates that are better, tied and beaten."""
    better_Q, tied_Q, beaten_Q = torch.tensor(queries, dtype=torch.int64).reshape(-1, 3).unbind(1)
    return RankCounts(better_Q, tied_Q, better_Q + tied_Q + beaten_Q)
