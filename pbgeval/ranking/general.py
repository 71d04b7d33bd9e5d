"""A block of scores -> how many competitors beat, tie with and lose to each true entity.

The general path: any device, any block shape. Comparisons are written as floats into a reused buffer and summed:
counts of a block are exact in float32 up to 2^24 candidates, and reducing booleans would cost six times as much.
On a CPU, `compiled` does the same in one reading.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence

import torch
from attrs import define, field
from torch import Tensor

from pbgeval.ranking import compiled
from pbgeval.stats.ranks import RankCounts

MOST_CANDIDATES = 1 << 24  # of a block: float32 counts are exact up to here


class _Buffers(threading.local):
    """Each thread has its own."""

    compared: Tensor | None = None
    expanded: Tensor | None = None


@define
class BlockCounter:
    """Counts blocks of scores; keeps the same buffers for all of them."""

    _buffers: _Buffers = field(factory=_Buffers, init=False)

    def count(
        self,
        scores_KC: Tensor,
        true_Q: Tensor,
        excluded: tuple[Tensor, Tensor] | None = None,
        *,
        row_Q: Tensor | None = None,
        low_Q: Tensor | None = None,
        holds_true: bool = False,
    ) -> RankCounts:
        """Compare every candidate with its query's true entity.

        Args:
            scores_KC: scores of the block, no NaN among them.
            true_Q: score of each query's true entity, from the same kernel.
            excluded: (query, candidate) of the cells that do not compete, each named once; their scores are read
                from this very block, so what was counted is what is taken back.
            row_Q: row of each query's scores; None: each query has its own, in order.
            low_Q: scores from here up to `true_Q` count as tied; None: those equal to it.
            holds_true: whether each query's true entity itself is among the block's candidates, its score being
                `true_Q` to the bit; it does not compete.
        """
        num_queries, num_candidates = true_Q.numel(), scores_KC.shape[1]
        if num_candidates > MOST_CANDIDATES:
            raise ValueError(f"a block of {num_candidates} candidates: float32 counts are exact up to 2^24")
        low_Q = true_Q if low_Q is None else low_Q
        better_Q, tied_Q = self._compare(scores_KC, true_Q, low_Q, row_Q)
        num_competing = num_candidates - int(holds_true)
        competing_Q = torch.full((num_queries,), num_competing, dtype=torch.int64, device=scores_KC.device)
        if holds_true:
            tied_Q -= 1
        if excluded is not None and excluded[0].numel():
            query, candidate = (index.to(scores_KC.device) for index in excluded)
            row = query if row_Q is None else row_Q[query]
            cell_scores, cell_true = scores_KC[row, candidate], true_Q[query]
            is_tied = (cell_scores <= cell_true) & (cell_scores >= low_Q[query])
            better_Q.index_add_(0, query, (cell_scores > cell_true).long(), alpha=-1)
            tied_Q.index_add_(0, query, is_tied.long(), alpha=-1)
            competing_Q.index_add_(0, query, torch.ones_like(query), alpha=-1)
        return RankCounts(better_Q, tied_Q, competing_Q)

    def _compare(self, scores_KC: Tensor, true_Q: Tensor, low_Q: Tensor, row_Q: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return how many scores of each query's row are better than and tied with its true score."""
        if compiled.serves(scores_KC, true_Q.numel()):
            row_Q = torch.arange(true_Q.numel()) if row_Q is None else row_Q
            return compiled.count_rows(scores_KC, row_Q, true_Q, low_Q)
        scores_QC = scores_KC
        if row_Q is not None:
            self._buffers.expanded, expanded_QC = _view(
                self._buffers.expanded, (row_Q.numel(), scores_KC.shape[1]), scores_KC
            )
            scores_QC = torch.index_select(scores_KC, 0, row_Q, out=expanded_QC)
        better_Q = self._count(torch.gt, scores_QC, true_Q)
        return better_Q, self._count(torch.ge, scores_QC, low_Q) - better_Q

    def _count(self, compare: Callable[..., Tensor], scores_QC: Tensor, true_Q: Tensor) -> Tensor:
        like = torch.empty(0, device=scores_QC.device)  # float32, whatever the scores are
        self._buffers.compared, compared_QC = _view(self._buffers.compared, scores_QC.shape, like)
        compare(scores_QC, true_Q.unsqueeze(1), out=compared_QC)
        return compared_QC.sum(1).long()


def _view(buffer: Tensor | None, shape: Sequence[int], like: Tensor) -> tuple[Tensor, Tensor]:
    """Return a buffer that is large enough, if possible the same, and a view of it with a shape."""
    needed = math.prod(shape)
    if buffer is None or buffer.numel() < needed or (buffer.device, buffer.dtype) != (like.device, like.dtype):
        buffer = torch.empty(needed, dtype=like.dtype, device=like.device)
    return buffer, buffer[:needed].view(shape)
