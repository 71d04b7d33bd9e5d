"""Queries and their true entities -> what candidates are compared with; rows -> hashes."""

from __future__ import annotations

import functools

import numpy as np
import torch
import torch.nn.functional as F
from attrs import frozen
from torch import Tensor

from pbgeval.scoring import device_pairs, device_scores
from pbgeval.scoring.block_scorer import PairedScores, RowComparator
from pbgeval.scoring.block_sizes import sizes_on
from pbgeval.scoring.comparators import Comparator
from pbgeval.scoring.exact import ExactComparator
from pbgeval.scoring.fast_products import values_of_pairs
from pbgeval.storage.transfers import sent


@frozen(eq=False)
class TrueScores:
    """The true scores of some queries. `score_Q` is summed as in PBG."""

    score_Q: Tensor
    kernel_Q: Tensor  # the same score, with the bits of the kernel that scores candidates
    hash_Q: Tensor  # int64: the hash of the true entity's prepared row

    @classmethod
    def from_pairs(
        cls, comparator: RowComparator, query_QD: Tensor, true_QD: Tensor, paired: PairedScores
    ) -> TrueScores:
        """Score each prepared query with its own true entity's prepared row.

        `paired` scores pairs with the bits of the kernel that scores candidates.
        """
        kernel_Q = paired(query_QD, true_QD)
        # A model has one kernel, and no PBG score beside it.
        score_Q = comparator.pbg_true_scores(query_QD, true_QD) if isinstance(comparator, Comparator) else kernel_Q
        return cls(score_Q, kernel_Q, row_hashes(true_QD))

    def compare(self, query_P: Tensor, score_P: Tensor, is_duplicate_P: Tensor) -> tuple[Tensor, Tensor]:
        """Tell whether candidates are better than the true entities of their queries, and whether they tie, bool (P,).

        A duplicate has exactly the true entity's vector, so it ties, whichever score counts.
        """
        true_P = self.score_Q[query_P]
        return (score_P > true_P) & ~is_duplicate_P, (score_P == true_P) | is_duplicate_P


@frozen(eq=False)
class ExactTrue:
    """The true entities' prepared rows of some queries, for exact ranks."""

    rows_QD: Tensor  # float32
    value_Q: Tensor  # float32: the score that the pooled AUC compares, computed as those of competitors
    score_Q: Tensor  # float64, without the query's constant
    error_Q: Tensor  # float64: the largest possible error of `score_Q`

    @classmethod
    def from_pairs(
        cls, comparator: ExactComparator, query_KD: Tensor, true_QD: Tensor, row_Q: Tensor | None = None
    ) -> ExactTrue:
        """Score each true entity's prepared row with its prepared query: row `row`, or the one at its place."""
        if comparator.has_pair_kernel(query_KD.device):
            return cls(true_QD, *device_pairs.true_scores(comparator, query_KD, true_QD, row_Q))
        query_QD = query_KD if row_Q is None else query_KD.index_select(0, row_Q)
        value_Q = values_of_pairs(comparator, query_QD, true_QD).float()
        return cls(true_QD, value_Q, *comparator.scores_in_float64(query_QD, true_QD))


VALUE = 1  # the field of either that the pooled AUC compares


def fields_of_true(dimension: int, dtype: torch.dtype, *, exact: bool) -> list[tuple[tuple[int, ...], torch.dtype]]:
    """Return what a query has of each field of `TrueScores`, or of `ExactTrue`: its shape, and the type of numbers.

    Args:
        dimension: the number of columns of vectors.
        dtype: of scores that are not exact.
        exact: whether ranks are.
    """
    if exact:
        return [((dimension,), torch.float32), ((), torch.float32), ((), torch.float64), ((), torch.float64)]
    return [((), dtype), ((), dtype), ((), torch.int64)]


# Prepared rows -> hashes of their values: they find candidates with exactly the vector of a query's true entity.
#
# A true score that is summed elementwise rounds less than a matrix kernel, and near-ties fall as they do in PBG; but
# then a candidate with the true entity's own vector need not have the same last bits. Such duplicates are found by hash
# and tie by definition (law 2).


def row_hashes(prepared_ND: Tensor) -> Tensor:
    """Return a 64-bit hash of each row, int64 (N,); 0.0 and -0.0 are equal.

    It is an inner product of 64-bit words with random integers, modulo 2^64.
    """
    if device_scores.supports(prepared_ND.device) and prepared_ND.dtype is torch.float32:
        return described(prepared_ND).hash_N
    if prepared_ND.dtype is torch.float32 and prepared_ND.shape[1] % 2:
        prepared_ND = F.pad(prepared_ND, (0, 1))
    multiplier_D = _multipliers(prepared_ND.shape[1] * prepared_ND.element_size() // 8, prepared_ND.device)
    hash_N = torch.empty(prepared_ND.shape[0], dtype=torch.int64, device=prepared_ND.device)
    step = sizes_on(prepared_ND.device).summed_rows
    for start in range(0, len(hash_N), step):
        words_ND = (prepared_ND[start : start + step] + 0.0).view(torch.int64)
        words_ND = words_ND ^ (words_ND >> 32)  # the lower halves of small numbers are zeros
        words_ND ^= words_ND >> 16
        hash_N[start : start + step] = words_ND.mul_(multiplier_D).sum(1)
    return hash_N


def described(rows_ND: Tensor, num_squared: int = 0) -> device_pairs.Described:
    """Return the hashes and lengths of rows of float32 on a GPU, and the squared lengths of their first columns."""
    return device_pairs.describe(rows_ND, _multipliers((rows_ND.shape[1] + 1) // 2, rows_ND.device), num_squared)


@functools.cache
def _multipliers(number: int, device: torch.device) -> Tensor:
    """Return random odd numbers, int64 (number,)."""
    words = np.random.Philox(key=0).random_raw(number) | np.uint64(1)
    return sent(torch.from_numpy(words.view(np.int64)), device)
