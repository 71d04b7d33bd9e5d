"""The slow truth of estimates: ranks among uniform draws -> those among all candidates, and what is linear in them.

Of N = C - 1 competitors m are drawn, with replacement, and the true candidate takes rank s among them. Then

    r = 1 + (s - 1) N / m

has the rank among all C candidates for its expectation, whatever the scores, and so have mean rank, adjusted mean rank
(index) and AUC, which are linear in ranks. Source: Krichene and Rendle, "On Sampled Metrics for Item Recommendation"
(KDD 2020). Standard errors are those of the draws: queries that are ranked among the same list of draws count once, by
the spread of the lists' sums, which queries that differ enlarge.
"""

from __future__ import annotations

import math

import numpy as np
from attrs import frozen

from pbgeval.metrics.estimates import Estimate


@frozen(eq=False)
class UniformSample:
    """Ranks of queries among candidates that were drawn uniformly."""

    optimistic_Q: np.ndarray  # int64: 1 + drawn ones that score higher
    pessimistic_Q: np.ndarray  # int64: 1 + drawn ones that score as high or higher
    num_drawn_Q: np.ndarray  # int64: m, the true one not among them
    num_competitors_Q: np.ndarray  # int64: N, from which was drawn
    list_Q: np.ndarray  # int64: queries of one number were ranked among the same draws


def estimates(sample: UniformSample) -> dict[str, Estimate]:
    """Return all of them, each without bias: AUC per query, and of each rank type mean rank, adjusted and its index.

    Undefined without queries, AUC and index without a query that has competitors. Sources: docs/metrics.md.
    """
    competitors_Q = sample.num_competitors_Q
    num_queries, total = len(competitors_Q), int(competitors_Q.sum())
    has_competitors_Q = competitors_Q > 0
    count = int(has_competitors_Q.sum())
    undefined = Estimate(None, None)
    found = {"query_auc": _linear(sample, 0.5, 1.0, has_competitors_Q / -count) if count else undefined}
    for rank_type, tie in {"optimistic": 0.0, "realistic": 0.5, "pessimistic": 1.0}.items():
        all_ranks = total + 2 * num_queries  # the sum of C + 1
        slopes = {
            "mean_rank": (1.0, competitors_Q, num_queries),
            "adjusted_arithmetic_mean_rank": (2 * num_queries / max(all_ranks, 1), 2 * competitors_Q, all_ranks),
            "adjusted_mean_rank_index": (1.0, -2 * competitors_Q, total),
        }
        for name, (start, slope_Q, of) in slopes.items():
            found[f"{rank_type}.{name}"] = _linear(sample, tie, start, slope_Q / of) if of else undefined
    return found


def _linear(sample: UniformSample, tie: float, start: float, slope_Q: np.ndarray) -> Estimate:
    """Estimate start + sum of slope x (share of competitors that score higher; a tie counts as said)."""
    better_Q, tied_Q = sample.optimistic_Q - 1, sample.pessimistic_Q - sample.optimistic_Q
    share_Q = (better_Q + tie * tied_Q) / np.maximum(sample.num_drawn_Q, 1)  # 0 without competitors
    total, slope = math.fsum((slope_Q * share_Q).tolist()), math.fsum(slope_Q.tolist())
    centre = total / slope if slope else 0.0
    drawn_Q = sample.num_competitors_Q > 0
    if not drawn_Q.any():
        return Estimate(start + total, 0.0)
    _, list_of_term = np.unique(sample.list_Q[drawn_Q], return_inverse=True)
    terms = np.bincount(list_of_term, (slope_Q * (share_Q - centre))[drawn_Q])
    error = math.sqrt(len(terms) * float(np.var(terms, ddof=1))) if len(terms) > 1 else None
    return Estimate(start + total, error)
