"""Fast scores with bounds -> the counts of exact arithmetic: what the bounds leave open is decided pair by pair.

A score above the true score by more than both can be off is better, one as far below is worse, whatever rounds how.
Scores in between are counted apart by the same loops (as if they tied), found, and decided: in float64 where its own
bound allows, else exactly. So the integers do not depend on the product, its block or the hardware.
"""

from __future__ import annotations

import torch
from attrs import frozen
from torch import Tensor

from pbgeval.ranking import QueryCounts, RankCounts
from pbgeval.scoring.certified import CertifiedComparator
from pbgeval.scoring.fast_products import FastScores
from pbgeval.scoring.true_scores import CertifiedTrue

PAIRS_AT_A_TIME = 1 << 12  # decided together; changes no number


@frozen(eq=False)
class Thresholds:
    """What the scores of a block are compared with, in their own type."""

    high_Q: Tensor  # a higher score is better
    low_Q: Tensor  # a lower score is worse

    @classmethod
    def of_block(cls, fast: FastScores, true: CertifiedTrue, row_Q: Tensor) -> Thresholds:
        """Allow for the errors of a block and of the true scores; `row_Q` is the row of each query."""
        return cls.of_bounds((fast.offset_K, fast.error_K), true, row_Q, fast.scores_KC.dtype)

    @classmethod
    def of_bounds(
        cls, offset_and_error_K: tuple[Tensor, Tensor], true: CertifiedTrue, row_Q: Tensor, dtype: torch.dtype
    ) -> Thresholds:
        """Do the same for scores of a type whose offsets and errors are given."""
        offset_K, error_K = offset_and_error_K
        middle_Q = true.score_Q + offset_K[row_Q]
        # The last term allows for the roundings of these lines.
        width_Q = (true.error_Q + error_K[row_Q]) * (1 + 2.0**-40) + middle_Q.abs() * 2.0**-50
        return cls(_rounded(middle_Q + width_Q, dtype, torch.inf), _rounded(middle_Q - width_Q, dtype, -torch.inf))


def _rounded(x_Q: Tensor, dtype: torch.dtype, towards: float) -> Tensor:
    """Round numbers in one direction."""
    rounded_Q = x_Q.to(dtype)
    short_Q = rounded_Q.double() < x_Q if towards > 0 else rounded_Q.double() > x_Q
    next_Q = torch.nextafter(rounded_Q, torch.full_like(rounded_Q, towards))
    return torch.where(short_Q, next_Q, rounded_Q)


def undecided(scores_KC: Tensor, thresholds: Thresholds, row_Q: Tensor, num_Q: Tensor) -> tuple[Tensor, Tensor]:
    """Return (query, column) of the scores that no bound decides.

    Args:
        scores_KC: fast scores.
        thresholds: what they are compared with.
        row_Q: row of each query.
        num_Q: zero where a query has none.
    """
    open_Q = num_Q.nonzero().squeeze(1)
    scores_OC = scores_KC[row_Q[open_Q]]
    inside_OC = (scores_OC <= thresholds.high_Q[open_Q].unsqueeze(1)) & (
        scores_OC >= thresholds.low_Q[open_Q].unsqueeze(1)
    )
    at, column = inside_OC.nonzero(as_tuple=True)
    return open_Q[at], column


def decide(
    comparator: CertifiedComparator,
    queries: tuple[Tensor, Tensor],
    candidates: tuple[Tensor, Tensor],
    true: CertifiedTrue,
    query_P: Tensor,
) -> Tensor:
    """Return whether candidates score higher (1), the same (0) or lower (-1) than true entities, int8 (P,).

    Args:
        comparator: what scores are.
        queries: prepared rows, and the one of each pair.
        candidates: likewise.
        true: of all queries.
        query_P: the query of each pair, whose true entity is meant.
    """
    parts = [torch.empty(0, dtype=torch.int8, device=query_P.device)]
    for start in range(0, query_P.numel(), PAIRS_AT_A_TIME):
        pairs = slice(start, start + PAIRS_AT_A_TIME)
        query = query_P[pairs]
        of_queries, of_candidates = (queries[0], queries[1][pairs]), (candidates[0], candidates[1][pairs])
        score_P, error_P = comparator.pair_scores_in_float64(of_queries, of_candidates)
        gap_P = score_P - true.score_Q[query]
        signs_P = gap_P.sign().to(torch.int8)
        bound_P = (error_P + true.error_Q[query]) * (1 + 2.0**-40)
        # Where neither can be off, equal numbers are equal scores.
        open_P = ((gap_P.abs() <= bound_P) & (bound_P > 0)).nonzero().squeeze(1)
        if open_P.numel():
            query_PL, candidate_PL = (rows[index[open_P]] for rows, index in (of_queries, of_candidates))
            exact_P = comparator.signs(query_PL, candidate_PL, true.rows_QL[query[open_P]])
            signs_P[open_P] = torch.from_numpy(exact_P).to(signs_P.device)
        comparator.tally.add(query.numel() - open_P.numel(), open_P.numel())
        parts.append(signs_P)
    return torch.cat(parts)


def with_decisions(counts: QueryCounts, query_P: Tensor, signs_P: Tensor, known_P: Tensor) -> QueryCounts:
    """Return counts in which the undecided candidates, counted as tied, are what they were found to be.

    Args:
        counts: of a block, by its thresholds.
        query_P: query of each undecided candidate that competes.
        signs_P: what was decided.
        known_P: whether it is a known answer, bool.
    """
    return QueryCounts(
        _with_decisions(counts.raw, query_P, signs_P),
        _with_decisions(counts.known, query_P[known_P], signs_P[known_P]),
    )


def _with_decisions(counts: RankCounts, query_P: Tensor, signs_P: Tensor) -> RankCounts:
    num_queries = counts.better_Q.numel()
    better_Q = torch.bincount(query_P[signs_P > 0], minlength=num_queries)
    tied_Q = torch.bincount(query_P[signs_P == 0], minlength=num_queries)
    return RankCounts(counts.better_Q + better_Q, tied_Q, counts.competing_Q)
