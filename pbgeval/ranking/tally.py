"""Blocks of scores of one side of one work unit -> what was found about its queries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np
import torch
from attrs import define, field, frozen
from torch import Tensor

from pbgeval.ranking.settings import LossSettings
from pbgeval.scoring.block_scorer import RowComparator
from pbgeval.scoring.loss import LOSSES
from pbgeval.stats.groups import ScorePool, share_of, sortable_int32, with_clusters
from pbgeval.stats.ranks import QueryCounts
from pbgeval.storage.transfers import sent, sent_together


@frozen(eq=False)
class SideResult:
    """What a pass found about the queries of one side of some edges."""

    rows_Q: Tensor  # int64: position of each query's edge among the edges that were handed in
    counts: QueryCounts
    raw_pool: ScorePool
    filtered_pool: ScorePool  # empty where nothing is filtered
    loss_Q: Tensor | None = None  # float64, in the order of `rows_Q`
    # Columns of `StatsLayout`: num_short_lists; num_excluded, copies of true entities that were dropped; num_outside,
    # queries that are not ranked because their true entity may not compete.
    numbers: Mapping[str, int] = field(factory=dict)


@define
class SideTally:
    """Collects the queries of one side, on the host; order does not matter."""

    _cluster_E: np.ndarray | None = None  # int64: the cluster of each edge, if edges are sampled
    _share: float = 1.0  # of the scores of a sample of edges that enter the pools
    _rows: list[Tensor] = field(factory=list)
    _counts: list[QueryCounts] = field(factory=list)
    _losses: list[Tensor] = field(factory=list)
    _raw: ScorePool = field(factory=ScorePool)
    _unknown: list[np.ndarray] = field(factory=list)  # competing scores that are not of known answers
    _numbers: Counter[str] = field(factory=Counter)

    def add_queries(self, rows_Q: Tensor, counts: QueryCounts, loss_Q: Tensor | None = None, **numbers: int) -> None:
        """Add queries whose counts are complete; arguments are those of `SideResult`, and its numbers by name."""
        self._rows.append(rows_Q)
        self._counts.append(counts)
        self._numbers.update(numbers)
        if loss_Q is not None:
            self._losses.append(loss_Q)

    @property
    def has_clusters(self) -> bool:
        """Whether scores that are added must come with the positions of their edges."""
        return self._cluster_E is not None

    def add_true_scores(self, true: Tensor, rows: Tensor | None) -> None:
        """Add scores of true entities to the pools of the AUC; `rows` are the positions of their edges."""
        self._raw.true.append(share_of(self._pooled(true, rows), self._share))

    def add_scores(self, competing: Tensor, rows: Tensor | None, known: Tensor | None = None) -> None:
        """Add scores of competitors to the pools; `known` tells which are of known answers (None: no filter)."""
        pooled = self._pooled(competing, rows)
        self._raw.competing.append(share_of(pooled, self._share))
        if known is not None:
            self._unknown.append(share_of(pooled[~known.numpy()], self._share))

    def _pooled(self, scores: Tensor, rows: Tensor | None) -> np.ndarray:
        images = sortable_int32(scores.float())
        if self._cluster_E is None:
            return images
        assert rows is not None, "clusters are those of edges"
        return with_clusters(images, self._cluster_E[rows.numpy()])

    def finish(self, *, filtered: bool) -> SideResult:
        return SideResult(
            rows_Q=torch.cat([torch.empty(0, dtype=torch.int64), *self._rows]),
            counts=QueryCounts.concatenate(self._counts),
            raw_pool=self._raw,
            filtered_pool=ScorePool(self._raw.true, self._unknown) if filtered else ScorePool(),
            loss_Q=torch.cat(self._losses) if self._losses else None,
            numbers=self._numbers,
        )


class LossFold:
    """The loss of some queries, folded over blocks of their candidates, on the comparator's own scale."""

    def __init__(self, settings: LossSettings, comparator: RowComparator, true_Q: Tensor) -> None:
        self._loss = LOSSES[settings.name]
        self._margin = settings.margin
        self._comparator = comparator
        self._true_Q = comparator.real_scores(true_Q).double()
        self._state_Q = torch.full_like(self._true_Q, self._loss.start)

    def fold(self, scores_KC: Tensor, excluded: tuple[Tensor, Tensor] | Tensor, row_Q: Tensor | None = None) -> None:
        """Add a block of candidates; the cells that `excluded` names, or says in a mask, do not compete.

        Row `row_Q` of the scores is that of each query; None: each has its own, in order.
        """
        real_QC = self._comparator.real_scores(scores_KC)
        real_QC = real_QC if row_Q is None else real_QC[row_Q]
        if isinstance(excluded, Tensor):
            real_QC = real_QC.masked_fill(excluded, -torch.inf)
        else:
            real_QC = real_QC.clone() if real_QC is scores_KC else real_QC
            query_P, column_P = sent_together(real_QC.device, *excluded)
            real_QC[query_P, column_P] = -torch.inf
        self._state_Q = self._loss.fold(self._state_Q, self._true_Q, real_QC, self._margin)

    @property
    def folded(self) -> tuple[Tensor, Tensor]:
        """What `take` is given on the host."""
        return self._state_Q, self._true_Q

    def take(self, state_Q: Tensor, true_Q: Tensor) -> None:
        """Go on with what a GPU has delivered."""
        self._state_Q, self._true_Q = state_Q, true_Q

    def finish(self, list_length_Q: Tensor, weight_Q: Tensor) -> Tensor:
        """Return each query's loss times its weight, float64 (Q,)."""
        loss_Q = self._loss.finish(self._state_Q, self._true_Q, list_length_Q.double())
        return loss_Q * sent(weight_Q, loss_Q.device)
