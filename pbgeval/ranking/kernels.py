"""Which kernel counts the queries of a contest against candidates: the one place that decides."""

from __future__ import annotations

from enum import Enum

import torch

from pbgeval.jit import is_installed
from pbgeval.ranking import blocks, counting
from pbgeval.ranking.chunk_loops import COLUMNS_AT_A_TIME
from pbgeval.scoring import device_scores
from pbgeval.scoring.block_scorer import RowComparator, ScorerComparator
from pbgeval.scoring.block_sizes import sizes_on
from pbgeval.scoring.scorer import EdgeScorer

SCORER_CANDIDATES_PER_BLOCK = 1 << 13  # a model may score all entities for each block; changes no number
# Of the candidates that the compiled loop counts at a time: enough that calls of Python cost nothing beside it, few
# enough that what is made of them needs little room.
BYTES_PER_BLOCK = 1 << 24
LOSS_CANDIDATES_PER_BLOCK = 1024  # changes the last bits of a loss, so it is fixed


class Kernel(Enum):
    """How candidates are counted; for certified ranks, by fast scores."""

    SCORES = "by blocks of scores"
    COMPILED = "by a loop on a CPU that forgets scores"
    DEVICE = "by a kernel on a GPU that forgets them"

    def queries_per_block(self, comparator: RowComparator, device: torch.device) -> int:
        """Return how many queries are counted together; of a model that keeps their scores, as many as it wants."""
        if isinstance(comparator, ScorerComparator) and comparator.by_rows is not None:
            return comparator.by_rows.queries_per_block
        sizes = sizes_on(device)
        return sizes.counted_queries if self is Kernel.DEVICE else sizes.queries

    def candidates_per_block(
        self, comparator: RowComparator, num_columns: int, device: torch.device, *, with_loss: bool
    ) -> int:
        """Return how many candidates of so many columns are counted together."""
        if isinstance(comparator, ScorerComparator):
            return SCORER_CANDIDATES_PER_BLOCK
        if with_loss:
            return LOSS_CANDIDATES_PER_BLOCK
        compiled = max(BYTES_PER_BLOCK // (4 * max(num_columns, 1) * COLUMNS_AT_A_TIME), 1) * COLUMNS_AT_A_TIME
        sizes = sizes_on(device)
        return {
            Kernel.DEVICE: sizes.counted_candidates,
            Kernel.SCORES: sizes.candidates,
            Kernel.COMPILED: compiled,
        }[self]


def choose_kernel(
    scorer: EdgeScorer, device: torch.device, dtype: torch.dtype, *, wants_scores: bool, num_cells: int
) -> Kernel:
    """Choose who counts.

    Args:
        scorer: of one of the relations; all have one comparator.
        device: where vectors are.
        dtype: of vectors: float64 for certified ranks.
        wants_scores: whether the scores themselves are asked for.
        num_cells: the scores that will be counted, about: few of them do not pay for loading a compiled loop.
    """
    certified = scorer.certified
    if certified is None and device_scores.takes(device):
        return Kernel.DEVICE if scorer.comparator.is_inner_product and not wants_scores else Kernel.SCORES
    is_product = scorer.comparator.is_inner_product and dtype is torch.float32
    if wants_scores or not (is_product if certified is None else not certified.has_root):
        return Kernel.SCORES
    return Kernel.COMPILED if blocks.is_worth_it(device, num_cells) else Kernel.SCORES


def load_compiled(device: torch.device, dtype: torch.dtype) -> None:
    """Load (at first compile) the loops that may count on a device, which the first blocks of scores do else.

    So their memory is known before any is planned.
    """
    if device.type == "cpu" and is_installed():
        none = torch.empty(0, dtype=torch.int64)
        images = torch.empty(0, dtype=dtype), torch.empty(0, dtype=dtype), none
        counting.count_compiled(torch.empty((0, 0), dtype=dtype), images, none, None, None)
        if blocks.product_is_callable():
            nobody = torch.empty((0, 16), dtype=torch.float32)
            blocks.count(nobody, nobody, (nobody[:, 0], nobody[:, 0]), (none, none), None)
