"""Scores or lists of answers -> the figures of the Open Graph Benchmark's link prediction tasks.

The protocol of `ogb.linkproppred.Evaluator` and `ogb.lsc.WikiKG90Mv2Evaluator` 1.3.6. Its two families break ties
differently: ranks of the reciprocal ranks are the mean of the optimistic and the pessimistic one, while Hits@K against
a pool counts a positive that ties with the K-th negative as a miss. Source: Hu et al., "Open Graph Benchmark" (2020).
"""

from __future__ import annotations

import math
from typing import Generic

import numpy as np
import torch
from attrs import frozen
from torch import Tensor

from pbgeval.metrics.ndcg import as_tensor
from pbgeval.stats.ranks import Array, from_scores

HITS_CUTOFFS = (1, 3, 10)  # of the reciprocal rank tasks
LONGEST_LIST = 10  # answers per query in WikiKG90Mv2


@frozen(eq=False)
class OgbLists(Generic[Array]):
    """What OGB's evaluator returns for `eval_metric = "mrr"`: a value for each query."""

    ranks_Q: Array  # float64: 1 + (negatives that score higher) + (negatives that score the same) / 2

    @property
    def reciprocal_ranks_Q(self) -> Array:
        """OGB's `mrr_list`, float64 in (0, 1], higher is better."""
        return 1.0 / self.ranks_Q

    def hits_Q(self, k: int) -> Array:
        """OGB's `hits@k_list`, float64: 1 where the rank is at most k, else 0; rank 1.5 misses k = 1."""
        is_hit_Q = self.ranks_Q <= k
        return is_hit_Q.double() if isinstance(is_hit_Q, Tensor) else is_hit_Q.astype(np.float64)

    def lists(self) -> dict[str, Array]:
        """Return the lists by OGB's names."""
        return {**{f"hits@{k}_list": self.hits_Q(k) for k in HITS_CUTOFFS}, "mrr_list": self.reciprocal_ranks_Q}

    def means(self) -> dict[str, float | None]:
        """Return the mean of each list: the leaderboard's figures; None without queries."""
        named = {name.removesuffix("_list"): of for name, of in self.lists().items()}
        return {name: math.fsum(of.tolist()) / len(of) if len(of) else None for name, of in named.items()}


def ogb_lists(positive_scores_Q: Array, negative_scores_QC: Array) -> OgbLists[Array]:
    """Rank each positive among the negatives of its own.

    Args:
        positive_scores_Q: score of each true edge, higher is better; OGB's `y_pred_pos`.
        negative_scores_QC: scores of its negatives; OGB's `y_pred_neg`. A negative counts as often as it is listed.

    Raises:
        ValueError: the shapes do not fit; a score is NaN (row and column of [positive, negatives] are named).
    """
    positive_Q, negative_QC = as_tensor(positive_scores_Q), as_tensor(negative_scores_QC)
    if positive_Q.ndim != 1 or negative_QC.ndim != 2 or len(positive_Q) != len(negative_QC):
        shapes = f"{tuple(positive_Q.shape)} and {tuple(negative_QC.shape)}"
        raise ValueError(f"expected scores (queries,) and (queries, negatives), got {shapes}")
    scores_QC = torch.cat([positive_Q[:, None], negative_QC], dim=1)
    ranks_Q = from_scores(scores_QC, torch.zeros(len(positive_Q), dtype=torch.int64)).realistic_Q
    return OgbLists(ranks_Q if isinstance(positive_scores_Q, Tensor) else ranks_Q.numpy())


def hits_against_pool(positive_scores_Q: Array, negative_scores_N: Array, k: int) -> float | None:
    """Return OGB's Hits@K: the share of positives that score strictly higher than the K-th best negative of all.

    [0, 1], higher is better. All positives share one pool of negatives, so this is no rank metric: K negatives score
    as high or higher for a miss. 1 where the pool has fewer than K negatives, as in OGB. None without positives.

    Args:
        positive_scores_Q: scores of true edges; OGB's `y_pred_pos`.
        negative_scores_N: scores of the negatives; OGB's `y_pred_neg`.
        k: at least 1; 20 in ogbl-ddi, 50 in ogbl-collab, 100 in ogbl-ppa.

    Raises:
        ValueError: k is less than 1; arrays of more axes; a score is NaN.
    """
    positive_Q, negative_N = as_tensor(positive_scores_Q), as_tensor(negative_scores_N)
    if k < 1:
        raise ValueError(f"k: expected at least 1, got {k}")
    for name, scores in (("positive", positive_Q), ("negative", negative_N)):
        if scores.ndim != 1:
            raise ValueError(f"{name} scores: expected one axis, got {scores.ndim}")
        undefined = (scores != scores).nonzero()
        if len(undefined):
            raise ValueError(f"{name} scores, row {int(undefined[0])}: NaN cannot be ranked")
    if not len(positive_Q):
        return None
    if len(negative_N) < k:
        return 1.0
    kth_best = torch.topk(negative_N, k).values[-1]
    return int((positive_Q > kth_best).sum()) / len(positive_Q)


def mean_reciprocal_rank_of_top10(true_Q: Array, predicted_QK: Array) -> float | None:
    """Return the MRR of WikiKG90Mv2: 1 / position of the true entity in a list of at most ten, 0 where it is not.

    [0, 1], higher is better; a lower bound of the MRR of whole rankings. None without queries.

    Args:
        true_Q: true entity of each query, int, at least 0.
        predicted_QK: entities listed, best first, at most 10; -1 pads lists that are shorter.

    Raises:
        ValueError: shapes, a list of more than 10, a negative true entity, or an entity that a list holds twice: OGB
            then gives all queries an MRR of 0.
    """
    answer_Q, listed_QK = as_tensor(true_Q), as_tensor(predicted_QK)
    if answer_Q.ndim != 1 or listed_QK.ndim != 2 or len(answer_Q) != len(listed_QK):
        shapes = f"{tuple(answer_Q.shape)} and {tuple(listed_QK.shape)}"
        raise ValueError(f"expected entities (queries,) and lists (queries, at most 10), got {shapes}")
    if listed_QK.shape[1] > LONGEST_LIST:
        raise ValueError(f"lists: expected at most {LONGEST_LIST} entities, got {listed_QK.shape[1]}")
    if not len(answer_Q):
        return None
    if int(answer_Q.min()) < 0:
        raise ValueError(f"row {int(answer_Q.argmin())}: the true entity is {int(answer_Q.min())}")
    in_order_QK = listed_QK.sort(dim=1).values
    is_repeated_Q = ((in_order_QK[:, 1:] == in_order_QK[:, :-1]) & (in_order_QK[:, 1:] >= 0)).any(1)
    if bool(is_repeated_Q.any()):
        raise ValueError(f"row {int(is_repeated_Q.nonzero()[0])}: an entity is listed twice, for which OGB gives MRR 0")
    position_K = torch.arange(1, listed_QK.shape[1] + 1, dtype=torch.float64, device=answer_Q.device)
    reciprocal_Q = ((listed_QK == answer_Q[:, None]) / position_K).sum(1)
    return math.fsum(reciprocal_Q.tolist()) / len(answer_Q)
