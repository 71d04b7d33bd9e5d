"""Queries of one block and the candidates of a partition -> the cells of a block of scores that are not like others."""

from __future__ import annotations

import numpy as np
import torch
from attrs import define, field, frozen
from torch import Tensor

from pbgeval.candidates.ranges import concatenated_ranges
from pbgeval.counting.known import expand_by_row
from pbgeval.notation import Side
from pbgeval.passes.certified import CertifiedQueries
from pbgeval.passes.groups import Group
from pbgeval.passes.settings import KnownInUnit
from pbgeval.passes.tally import LossFold
from pbgeval.ranking import QueryCounts
from pbgeval.scoring.true_scores import CertifiedTrue, TrueScores
from pbgeval.scoring.twins import Twins


@define
class PartitionQueries:
    """Queries of one block, while candidates stream past."""

    rows_Q: Tensor
    prepared_QD: Tensor
    true: TrueScores | CertifiedTrue
    own_Q: Tensor  # position of each true entity among the candidates
    counts: QueryCounts
    fold: LossFold | None
    auc_query: Tensor = field(factory=lambda: torch.empty(0, dtype=torch.int64))
    auc_candidate: Tensor = field(factory=lambda: torch.empty(0, dtype=torch.int64))
    known: tuple[Tensor, Tensor] | None = None  # (query, position of candidate) of known answers; None: no filter
    certified: CertifiedQueries | None = None  # the same queries, if ranks are certified

    @property
    def float_true(self) -> TrueScores:
        """True scores to compare with, where ranks are not certified."""
        assert isinstance(self.true, TrueScores), "certified ranks are counted elsewhere"
        return self.true


@frozen(eq=False)
class PartitionCandidates:
    """Who competes: rows of the partition."""

    rows_C: np.ndarray | None  # int64, sorted; None: all
    num_candidates: int

    def ids(self, start: int, stop: int) -> Tensor:
        return torch.arange(start, stop) if self.rows_C is None else torch.from_numpy(self.rows_C[start:stop])

    def vectors(self, group: Group, hidden: Side, start: int, stop: int) -> Tensor:
        table = group.side(hidden).table
        if self.rows_C is None:
            return table.range_of_rows(start, stop, group.relation.dtype)
        return table.rows(self.ids(start, stop), group.relation.dtype)

    def positions(self, rows: np.ndarray) -> np.ndarray:
        """Return where rows of the partition are among the candidates; -1 where they are not."""
        if self.rows_C is None:
            return rows
        if not self.rows_C.size:
            return np.full(rows.shape, -1, np.int64)
        at = np.minimum(np.searchsorted(self.rows_C, rows), self.rows_C.size - 1)
        return np.where(self.rows_C[at] == rows, at, -1)


def known_answers(
    known: KnownInUnit, rows_Q: Tensor, own_Q: Tensor, candidates: PartitionCandidates
) -> tuple[Tensor, Tensor]:
    """Return (query, position) of the known answers of a block's keys, by position, its own left in.

    Queries with one key share them: they are listed for the first of its queries in the block.
    """
    key_Q = known.key_E[rows_Q.numpy()]
    keys, first_Q = np.unique(key_Q, return_index=True)
    low, high = np.searchsorted(known.key_P, keys), np.searchsorted(known.key_P, keys, "right")
    position = candidates.positions(known.row_P[concatenated_ranges(low, high - low)])
    query = np.repeat(first_Q, high - low)
    order = np.argsort(position, kind="stable")
    order = order[np.searchsorted(position[order], 0) :]  # those that are candidates
    return torch.from_numpy(query[order]), torch.from_numpy(position[order])


def twins_in_block(queries: PartitionQueries, twins: Twins, start: int, num_columns: int) -> tuple[Tensor, Tensor]:
    """Return (query, column) of the candidates with a query's true vector."""
    own_Q = queries.own_Q - start
    own_here_Q = torch.where(own_Q < num_columns, own_Q, -1)
    query, column = twins.of_queries(queries.float_true.hash_Q.cpu().numpy(), own_here_Q.numpy())
    return torch.from_numpy(query), torch.from_numpy(column)


def sampled_in_block(queries: PartitionQueries, start: int, num_columns: int) -> tuple[Tensor, Tensor]:
    """Return (query, column) of the cells that the pooled AUC samples."""
    here = (queries.auc_candidate >= start) & (queries.auc_candidate < start + num_columns)
    return queries.auc_query[here], queries.auc_candidate[here] - start


def known_in_block(
    group: Group, hidden: Side, queries: PartitionQueries, start: int, num_columns: int
) -> tuple[Tensor, Tensor] | None:
    """Return (query, column) of the known answers of every query within a block of candidates, its own left out."""
    if queries.known is None or group.competition.known is None:
        return None
    first, stop = np.searchsorted(queries.known[1].numpy(), [start, start + num_columns])
    key_Q = torch.from_numpy(group.competition.known[hidden].key_E[queries.rows_Q.numpy()])
    keys, row_Q = torch.unique(key_Q, return_inverse=True)
    row_P = row_Q[queries.known[0][first:stop]]
    order = torch.argsort(row_P)
    column_P = queries.known[1][first:stop][order] - start
    query, entry = expand_by_row(row_Q, row_P[order], keys.numel())
    column = column_P[entry]
    others = column != (queries.own_Q - start)[query]
    return query[others], column[others]
