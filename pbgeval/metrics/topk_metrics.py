"""Places of a query's answers -> what its first k places hold of them: recall, NDCG and others, and their means.

A query here is a key with all its evaluated answers. Answers that tie with other candidates share a run of places, and
figures are exact means over all orders of each run. Values are rounded once, per query, to fixed point, so their sums
are the same in any order.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import reduce
from operator import add
from typing import Any

import numpy as np
import torch
from attrs import define, field, frozen

from pbgeval.metrics.breakdown_names import ANSWER_HALF_LINK, QUERY_HALF_LINK
from pbgeval.metrics.names import OF_LISTS
from pbgeval.metrics.popularity import LIMITS, limits_of
from pbgeval.notation import Side, distinct
from pbgeval.stats.keyed_sums import begins
from pbgeval.stats.query_metrics import fixed_point, ratio
from pbgeval.stats.rank_stats import FRACTION_BITS, LIMB_BITS, by_label

TOPK_METRICS = "topk_metrics"  # its section of metrics.json


@frozen(eq=False)
class AnswerPlaces:
    """The runs of places (letter R) that hold answers of some queries (letter U), by query and place."""

    num_answers_U: np.ndarray  # int64, positive
    query_R: np.ndarray  # int64, ascending
    before_R: np.ndarray  # int64: places of the query before the run
    length_R: np.ndarray  # int64
    hits_R: np.ndarray  # int64, positive: answers in the run, every order of which is as likely

    @classmethod
    def of_counts(
        cls, query_A: np.ndarray, better_A: np.ndarray, tied_A: np.ndarray, among_A: np.ndarray
    ) -> tuple[AnswerPlaces, np.ndarray]:
        """Arrange answers by the other candidates that are better and tied: this decides every run.

        Of two answers of a query, the lower one counts what is better than or tied with the higher one as better. So
        equal counts mean one score, or answers with nobody between them: their order is no matter but for `among_A`.

        Args:
            query_A: query of each answer, ascending from 0 without gaps; then by what follows.
            better_A: candidates without answers that score higher.
            tied_A: those that score the same.
            among_A: grows with falling scores among the answers that nobody ties with; 0 for others.

        Returns:
            The places, and the run of each answer.
        """
        is_new_A = begins(query_A, better_A, tied_A, among_A)
        starts_R, num_answers_U = np.flatnonzero(is_new_A), np.bincount(query_A)
        query_R, better_R, tied_R = (of_A[starts_R] for of_A in (query_A, better_A, tied_A))
        hits_R = np.diff(starts_R, append=len(query_A))
        before_R = better_R + starts_R - (np.cumsum(num_answers_U) - num_answers_U)[query_R]
        return cls(num_answers_U, query_R, before_R, tied_R + hits_R, hits_R), np.cumsum(is_new_A) - 1

    def within(self, k: int) -> np.ndarray:
        """Return how many places of each run are among the first k, int64 (R,)."""
        return np.asarray(np.clip(k - self.before_R, 0, self.length_R))

    def values(self, k: int) -> dict[str, np.ndarray]:
        """Return each metric of each query, float64 (U,) in [0, 1]; places beyond the last candidate hold nothing."""
        within_R, best_U = self.within(k), np.minimum(self.num_answers_U, k)  # hits that are possible
        stop_R = np.where(within_R > 0, self.before_R + within_R, 0)
        num_places = int(max(stop_R.max(initial=0), best_U.max(initial=0)))
        discounts = np.cumsum([0.0, *(1 / math.log2(place + 1) for place in range(1, num_places + 1))])
        harmonic = np.cumsum(np.append(0.0, 1 / np.arange(1, num_places + 1)))
        gain_R, reciprocal_R = (of[stop_R] - of[stop_R - within_R] for of in (discounts, harmonic))
        # Whoever is at a place of the run meets the answers of earlier runs, itself, and of those before it in the run
        # each with the same chance.
        share_R, others_R = self.hits_R / self.length_R, (self.hits_R - 1) / np.maximum(self.length_R - 1, 1)
        earlier_R = np.cumsum(self.hits_R) - self.hits_R
        earlier_R -= earlier_R[np.searchsorted(self.query_R, self.query_R)]
        precision_R = (earlier_R + 1 - others_R * (self.before_R + 1)) * reciprocal_R + others_R * within_R
        hits_U, gain_U, precision_U = (
            np.bincount(self.query_R, share_R * of_R, len(best_U)) for of_R in (within_R, gain_R, precision_R)
        )
        reciprocal_U, found_U = self._first(within_R)
        values = (
            hits_U / self.num_answers_U,
            hits_U / k,
            2 * hits_U / (k + self.num_answers_U),
            precision_U / best_U,
            gain_U / discounts[best_U],
            reciprocal_U,
            found_U,
        )
        return {name: np.clip(value_U, 0.0, 1.0) for name, value_U in zip(OF_LISTS, values, strict=True)}

    def _first(self, within_R: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the mean of 1 / place of each query's first answer, 0 beyond k, and how likely one is within k."""
        reciprocal_U, none_U = np.zeros(len(self.num_answers_U)), np.ones(len(self.num_answers_U))
        at_R = np.flatnonzero(np.diff(self.query_R, prepend=-1))  # a query's first run has its first answer
        for place in range(int(within_R.max(initial=0))):
            at_R = at_R[(within_R[at_R] > place) & (none_U[self.query_R[at_R]] > 0)]
            if not at_R.size:
                break
            query, left, hits = self.query_R[at_R], self.length_R[at_R] - place, self.hits_R[at_R]
            reciprocal_U[query] += none_U[query] * (hits / left) / (self.before_R[at_R] + place + 1)
            none_U[query] *= (left - hits) / left
        return reciprocal_U, 1.0 - none_U


def exact_sum(values: np.ndarray, times: np.ndarray | int = 1) -> int:
    """Add shares, each as often as said, in fixed point, as an integer of any size."""
    rounded = fixed_point(torch.from_numpy(values), FRACTION_BITS).numpy()
    low, high = rounded & ((1 << LIMB_BITS) - 1), rounded >> LIMB_BITS
    return int((low * times).sum()) + (int((high * times).sum()) << LIMB_BITS)


# Places of queries -> sums by group -> the section of metrics.json.

DENOMINATORS = {"metrics": "num_answers", "macro_metrics": "num_queries"}


@define(eq=False)
class TopkSums:
    """Sums over queries, and over answers, by side and by how many training edges have their half-link."""

    cutoffs: tuple[int, ...]
    _of: dict[tuple[str, int, Side], Counter[str]] = field(factory=dict)

    def add(self, side: Side, places: AnswerPlaces, run_A: np.ndarray, seen_U: np.ndarray, seen_A: np.ndarray) -> None:
        """Add queries.

        Args:
            side: what they hide.
            places: of their answers.
            run_A: the run of each answer.
            seen_U: training edges with the half-link of each query, int64; zeros where they are not counted.
            seen_A: the same of each answer.
        """
        values = {f"{name}_at_{k}": value_U for k in self.cutoffs for name, value_U in places.values(k).items()}
        found = {f"recall_at_{k}": (places.within(k) / places.length_R)[run_A] for k in self.cutoffs}
        for stratum, at in _strata(seen_U):
            times = places.num_answers_U[at]
            sums = {
                "num_queries": len(times),
                "num_answers": int(times.sum()),
                **{f"macro_metrics.{name}": exact_sum(of[at]) for name, of in values.items()},
                **{f"metrics.{name}": exact_sum(of[at], times) for name, of in values.items()},
            }
            self._of.setdefault((QUERY_HALF_LINK, stratum, side), Counter()).update(sums)
        for stratum, at in _strata(seen_A):
            sums = {
                "num_answers": int(at.sum()),
                **{f"metrics.{name}": exact_sum(of[at]) for name, of in found.items()},
            }
            self._of.setdefault((ANSWER_HALF_LINK, stratum, side), Counter()).update(sums)

    def section(self, sides: Sequence[Side], kinds: Sequence[str]) -> dict[str, Any]:
        """Return the means over queries, and those of groups by training edges of some kinds."""
        names = {QUERY_HALF_LINK: OF_LISTS, ANSWER_HALF_LINK: ("recall",)}
        strata = {kind: sorted({stratum for its, stratum, _ in self._of if its == kind}) for kind in names}
        found = self._means(QUERY_HALF_LINK, strata[QUERY_HALF_LINK], sides, OF_LISTS)
        return found | {
            kind: [
                {**limits_of(stratum), **self._means(kind, [stratum], sides, names[kind])} for stratum in strata[kind]
            ]
            for kind in kinds
        }

    def _means(self, kind: str, strata: Sequence[int], sides: Sequence[Side], names: Sequence[str]) -> dict[str, Any]:
        sums = [{side: self._of.get((kind, stratum, side), Counter()) for side in sides} for stratum in strata]
        of_label = by_label({side: reduce(add, (of[side] for of in sums), Counter[str]()) for side in sides}, sides)
        forms = [*DENOMINATORS][: 2 if kind == QUERY_HALF_LINK else 1]
        return {
            **{
                name: {label: of[name] for label, of in of_label.items()}
                for name in map(DENOMINATORS.__getitem__, forms)
            },
            **{
                form: {
                    f"{label}.{name}_at_{k}": ratio(
                        of[f"{form}.{name}_at_{k}"], of[DENOMINATORS[form]] << FRACTION_BITS
                    )
                    for label, of in of_label.items()
                    for k in self.cutoffs
                    for name in names
                }
                for form in forms
            },
        }


def _strata(seen: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Yield strata of training edges, and who is in each."""
    stratum_n = np.searchsorted(LIMITS, seen, "right")
    for stratum in distinct(stratum_n).tolist():
        yield stratum, stratum_n == stratum
