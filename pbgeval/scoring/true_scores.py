"""Queries and their true entities -> what candidates are compared with, and what tells a true entity's twin."""

from __future__ import annotations

from collections.abc import Callable

import torch
from attrs import frozen
from torch import Tensor

from pbgeval.scoring.block_scorer import RowComparator
from pbgeval.scoring.certified import CertifiedComparator
from pbgeval.scoring.duplicates import row_hashes
from pbgeval.scoring.fast_products import values_of_pairs

PairedScores = Callable[[Tensor, Tensor], Tensor]


@frozen(eq=False)
class TrueScores:
    """Of some queries. Candidates are compared with `score_Q`, a sum as PBG makes it: it rounds less than a product."""

    score_Q: Tensor
    kernel_Q: Tensor  # with the bits that the kernel of the candidates gives
    hash_Q: Tensor  # int64: of the true entity's prepared row

    @classmethod
    def from_pairs(
        cls, comparator: RowComparator, query_QD: Tensor, true_QD: Tensor, paired: PairedScores | None = None
    ) -> TrueScores:
        """Score each prepared query with its own true entity's prepared row.

        `paired` is what scores pairs with the bits of the kernel that candidates meet, where that is not the product.
        """
        kernel_Q = (paired or comparator.paired_scores)(query_QD, true_QD)
        score_Q = comparator.pbg_true_scores(query_QD, true_QD)
        return cls(kernel_Q if score_Q is None else score_Q, kernel_Q, row_hashes(true_QD))

    def packed(self) -> Tensor:
        """Return a row of floats per query; the hash keeps its bits."""
        hash_Qw = self.hash_Q.unsqueeze(1).view(self.score_Q.dtype)
        return torch.cat([self.score_Q.unsqueeze(1), self.kernel_Q.unsqueeze(1), hash_Qw], dim=1)

    @classmethod
    def unpacked(cls, rows_QW: Tensor, device: torch.device) -> TrueScores:
        """Read what `packed` made."""
        hash_Q = rows_QW[:, 2:].contiguous().view(torch.int64).squeeze(1)
        return cls(rows_QW[:, 0].to(device), rows_QW[:, 1].to(device), hash_Q.to(device))

    @staticmethod
    def width(dtype: torch.dtype) -> int:
        """Return the number of columns of packed rows."""
        return 2 + 8 // torch.empty(0, dtype=dtype).element_size()


@frozen(eq=False)
class CertifiedTrue:
    """Of some queries, for certified ranks: the true entities' prepared rows, from which exact scores follow."""

    rows_QL: Tensor  # float32
    value_Q: Tensor  # float32: the score with which the pooled AUC compares, as competitors' values are made
    score_Q: Tensor  # float64, without the query's constant
    error_Q: Tensor  # float64: it is off by at most this

    @classmethod
    def from_pairs(cls, comparator: CertifiedComparator, query_QL: Tensor, true_QL: Tensor) -> CertifiedTrue:
        """Score each prepared query with its own true entity's prepared row."""
        value_Q = values_of_pairs(comparator, query_QL, true_QL).float()
        return cls(true_QL, value_Q, *comparator.scores_in_float64(query_QL, true_QL))

    def packed(self) -> Tensor:
        """Return a row of floats per query."""
        return torch.cat([self.rows_QL, self.value_Q.unsqueeze(1)], dim=1)

    @classmethod
    def unpacked(cls, comparator: CertifiedComparator, rows_QW: Tensor, query_QL: Tensor) -> CertifiedTrue:
        """Read what `packed` made; the queries are those that it was made with."""
        true_QL = rows_QW[:, :-1]
        return cls(true_QL, rows_QW[:, -1], *comparator.scores_in_float64(query_QL, true_QL))
