"""Counts of queries among uniform draws -> unbiased estimates for all candidates, with the draws' standard errors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from attrs import frozen

from pbgeval.stats.query_metrics import QUERY_AUC
from pbgeval.stats.rank_types import RankType

if TYPE_CHECKING:
    from pbgeval.stats.ranks import RankCounts


@frozen
class Estimate:
    """A metric estimated from a sample."""

    value: float | None  # None: undefined on this sample
    standard_error: float | None  # None: the sample does not tell; 0.0: the value is exact


# Counts of queries among uniform draws -> sums that are joined in any order -> unbiased estimates with their errors.
#
# Queries are never all in one place. Each estimate is affine in a ratio of two sums over queries, weight x (share of
# the draws that score higher) and weight; its error needs the squares of both, summed over lists of draws. Sums of a
# unit are taken in the order of its chunks and joined with `math.fsum`, which rounds once, so neither workers nor the
# order of units change a bit.

LEVEL = 0.95  # of intervals; a higher one is corrected for repeated looks
WORTH_OF_TIES = {RankType.OPTIMISTIC.value: 0.0, RankType.REALISTIC.value: 0.5, RankType.PESSIMISTIC.value: 1.0}
RANGES = {  # no interval reaches beyond
    "mean_rank": (1.0, math.inf),
    "adjusted_arithmetic_mean_rank": (0.0, 2.0),
    "adjusted_mean_rank_index": (-1.0, 1.0),
    QUERY_AUC.name: (0.0, 1.0),
}
NUM_COUNTS = 3  # queries, those without draws, lists
NUM_SHARE_SUMS = 5  # the fields of _ShareSums
NUM_SUMS = NUM_COUNTS + NUM_SHARE_SUMS * (len(WORTH_OF_TIES) + 1)


class _ShareSums(NamedTuple):
    """Sums of weight x share and of weight, over queries, and over lists those of the lists' sums squared."""

    weighted: float
    weights: float
    squares: float  # of a list's weighted shares
    products: float  # of a list's weighted shares and its weights
    weight_squares: float

    def mean(self, num_lists: int) -> tuple[float, float | None]:
        """Return the mean share and its standard error: 0 where no query weighs anything, None of a single list."""
        if not self.weights:
            return 0.0, 0.0
        mean = self.weighted / self.weights
        if num_lists < 2:
            return mean, None
        # Of lists that agree nothing is left but rounding, of either sign.
        squares = math.fsum((self.squares, -2.0 * mean * self.products, mean * mean * self.weight_squares))
        return mean, math.sqrt(max(squares, 0.0) * num_lists / (num_lists - 1)) / self.weights


@frozen(eq=False)
class DrawSums:
    """What the estimates of some queries are made of. Queries that share a list of draws are in one part."""

    values: np.ndarray  # float64 (NUM_SUMS,): the counts, then _ShareSums of each rank type and of query_auc

    @classmethod
    def from_queries(cls, counts: RankCounts, population_Q: np.ndarray, list_Q: np.ndarray) -> DrawSums:
        """Sum over queries that were ranked among uniform draws.

        Args:
            counts: of the draws that compete.
            population_Q: int64, N: from how many they were drawn.
            list_Q: int64: queries of one number were ranked among the same draws.
        """
        num_drawn_Q = counts.num_competitors_Q.numpy()
        drawn_Q = population_Q > 0  # the others have rank 1, whatever is drawn
        _, list_of_query = np.unique(list_Q[drawn_Q], return_inverse=True)
        num_draws_Q = np.maximum(num_drawn_Q, 1)[drawn_Q]
        better_Q, tied_Q = (of.numpy()[drawn_Q] / num_draws_Q for of in (counts.better_Q, counts.tied_Q))
        population_Q = population_Q[drawn_Q].astype(np.float64)
        num_lists = int(list_of_query.max(initial=-1)) + 1

        def sums(weight_Q: np.ndarray, worth_of_ties: float) -> _ShareSums:
            weights_L = np.bincount(list_of_query, weight_Q, num_lists)
            weighted_L = np.bincount(list_of_query, weight_Q * (better_Q + worth_of_ties * tied_Q), num_lists)
            return _ShareSums(
                weighted=math.fsum(weighted_L.tolist()),
                weights=math.fsum(weights_L.tolist()),
                squares=math.fsum((weighted_L * weighted_L).tolist()),
                products=math.fsum((weighted_L * weights_L).tolist()),
                weight_squares=math.fsum((weights_L * weights_L).tolist()),
            )

        parts = [sums(population_Q, worth) for worth in WORTH_OF_TIES.values()]
        parts.append(sums(np.ones_like(better_Q), WORTH_OF_TIES[RankType.REALISTIC.value]))
        num_without_draws = int((drawn_Q & (num_drawn_Q == 0)).sum())
        return cls(np.array([len(drawn_Q), num_without_draws, num_lists, *(value for part in parts for value in part)]))

    @classmethod
    def total(cls, parts: Sequence[DrawSums]) -> DrawSums:
        """Join the sums of disjoint sets of queries; their order does not matter."""
        table = np.array([np.zeros(NUM_SUMS), *(part.values for part in parts)])
        return cls(np.array([math.fsum(column) for column in table.T.tolist()]))

    @property
    def num_without_draws(self) -> int:
        """Queries with competitors of which none was drawn: nothing is known of their rank."""
        return int(self.values[1])

    def estimates(self) -> dict[str, Estimate]:
        """Estimate what ranks among all competitors would give, by `<rank type>.<metric>` and `query_auc`.

        Undefined without queries and where a query was left without draws. Standard errors are those of the spread
        between lists, None of a single one; they take the queries as given, and are too large by how much the lists'
        queries differ from each other (docs/metrics.md).
        """
        num_queries = int(self.values[0])
        if not num_queries or self.num_without_draws:
            names = [
                f"{rank_type}.{metric}" for rank_type in WORTH_OF_TIES for metric in RANGES if metric != QUERY_AUC.name
            ]
            return dict.fromkeys([*names, QUERY_AUC.name], Estimate(None, None))
        found: dict[str, Estimate] = {}
        num_lists = int(self.values[2])  # lists of which some query has competitors
        *of_ranks, of_auc = (_ShareSums(*row) for row in self.values[NUM_COUNTS:].reshape(-1, NUM_SHARE_SUMS).tolist())
        for rank_type, sums in zip(WORTH_OF_TIES, of_ranks, strict=True):
            share = sums.mean(num_lists)
            num_competitors = sums.weights
            num_by_chance = num_competitors + 2 * num_queries  # twice the ranks that chance would give, summed
            found[f"{rank_type}.mean_rank"] = _affine(1.0, num_competitors / num_queries, *share)
            found[f"{rank_type}.adjusted_arithmetic_mean_rank"] = _affine(
                2 * num_queries / num_by_chance, 2 * num_competitors / num_by_chance, *share
            )
            # As in every report, the index is 0 where chance decides nothing.
            start, slope = (1.0, -2.0) if num_competitors else (0.0, 0.0)
            found[f"{rank_type}.adjusted_mean_rank_index"] = _affine(start, slope, *share)
        found[QUERY_AUC.name] = _affine(1.0, -1.0, *of_auc.mean(num_lists)) if of_auc.weights else Estimate(None, None)
        return found


def interval_of(key: str, estimate: Estimate) -> dict[str, float] | None:
    """Return the 95% interval of an estimate as `metrics.json` has it, cut at the metric's range; None without one."""
    if estimate.value is None or estimate.standard_error is None:
        return None
    lowest, highest = RANGES[key.rpartition(".")[2]]
    reach = NormalDist().inv_cdf((1.0 + LEVEL) / 2) * estimate.standard_error
    low, high = max(estimate.value - reach, lowest), min(estimate.value + reach, highest)
    return {"standard_error": estimate.standard_error, "low": low, "high": high}


def _affine(start: float, slope: float, mean: float, error: float | None) -> Estimate:
    return Estimate(start + slope * mean, None if error is None else abs(slope) * error)
