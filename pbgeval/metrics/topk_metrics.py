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
    """The runs of places (letter N) that hold answers (letter P) of some queries, by query and place."""

    num_answers_Q: np.ndarray  # int64, positive
    query_N: np.ndarray  # int64, ascending
    before_N: np.ndarray  # int64: places of the query before the run
    length_N: np.ndarray  # int64
    hits_N: np.ndarray  # int64, positive: answers in the run, every order of which is as likely

    @classmethod
    def of_counts(
        cls, query_P: np.ndarray, better_P: np.ndarray, tied_P: np.ndarray, among_P: np.ndarray
    ) -> tuple[AnswerPlaces, np.ndarray]:
        """Arrange answers by the other candidates that are better and tied: this decides every run.

        Of two answers of a query, the lower one counts what is better than or tied with the higher one as better. So
        equal counts mean one score, or answers with no candidate between them: their order matters only for `among_P`.

        Args:
            query_P: query of each answer, ascending from 0 without gaps; then by what follows.
            better_P: candidates without answers that score higher.
            tied_P: those that score the same.
            among_P: grows with falling scores among the answers without ties; 0 for others.

        Returns:
            The places, and the run of each answer.
        """
        is_new_P = begins(query_P, better_P, tied_P, among_P)
        starts_N, num_answers_Q = np.flatnonzero(is_new_P), np.bincount(query_P)
        query_N, better_N, tied_N = (of_P[starts_N] for of_P in (query_P, better_P, tied_P))
        hits_N = np.diff(starts_N, append=len(query_P))
        before_N = better_N + starts_N - (np.cumsum(num_answers_Q) - num_answers_Q)[query_N]
        return cls(num_answers_Q, query_N, before_N, tied_N + hits_N, hits_N), np.cumsum(is_new_P) - 1

    def within(self, k: int) -> np.ndarray:
        """Return how many places of each run are among the first k, int64 (N,)."""
        return np.asarray(np.clip(k - self.before_N, 0, self.length_N))

    def values(self, k: int) -> dict[str, np.ndarray]:
        """Return each metric of each query, float64 (Q,) in [0, 1]; places beyond the last candidate hold nothing."""
        within_N, best_Q = self.within(k), np.minimum(self.num_answers_Q, k)  # hits that are possible
        stop_N = np.where(within_N > 0, self.before_N + within_N, 0)
        num_places = int(max(stop_N.max(initial=0), best_Q.max(initial=0)))
        discounts = np.cumsum([0.0, *(1 / math.log2(place + 1) for place in range(1, num_places + 1))])
        harmonic = np.cumsum(np.append(0.0, 1 / np.arange(1, num_places + 1)))
        gain_N, reciprocal_N = (of[stop_N] - of[stop_N - within_N] for of in (discounts, harmonic))
        # Whoever is at a place of the run meets the answers of earlier runs, itself, and of those before it in the run
        # each with the same chance.
        share_N, others_N = self.hits_N / self.length_N, (self.hits_N - 1) / np.maximum(self.length_N - 1, 1)
        earlier_N = np.cumsum(self.hits_N) - self.hits_N
        earlier_N -= earlier_N[np.searchsorted(self.query_N, self.query_N)]
        precision_N = (earlier_N + 1 - others_N * (self.before_N + 1)) * reciprocal_N + others_N * within_N
        hits_Q, gain_Q, precision_Q = (
            np.bincount(self.query_N, share_N * of_N, len(best_Q)) for of_N in (within_N, gain_N, precision_N)
        )
        reciprocal_Q, found_Q = self._first(within_N)
        values = (
            hits_Q / self.num_answers_Q,
            hits_Q / k,
            2 * hits_Q / (k + self.num_answers_Q),
            precision_Q / best_Q,
            gain_Q / discounts[best_Q],
            reciprocal_Q,
            found_Q,
        )
        return {name: np.clip(value_Q, 0.0, 1.0) for name, value_Q in zip(OF_LISTS, values, strict=True)}

    def _first(self, within_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the mean of 1 / place of each query's first answer, 0 beyond k, and how likely one is within k."""
        reciprocal_Q, none_Q = np.zeros(len(self.num_answers_Q)), np.ones(len(self.num_answers_Q))
        at_N = np.flatnonzero(np.diff(self.query_N, prepend=-1))  # a query's first run has its first answer
        for place in range(int(within_N.max(initial=0))):
            at_N = at_N[(within_N[at_N] > place) & (none_Q[self.query_N[at_N]] > 0)]
            if not at_N.size:
                break
            query, left, hits = self.query_N[at_N], self.length_N[at_N] - place, self.hits_N[at_N]
            reciprocal_Q[query] += none_Q[query] * (hits / left) / (self.before_N[at_N] + place + 1)
            none_Q[query] *= (left - hits) / left
        return reciprocal_Q, 1.0 - none_Q


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

    def add(self, side: Side, places: AnswerPlaces, run_P: np.ndarray, seen_Q: np.ndarray, seen_P: np.ndarray) -> None:
        """Add queries.

        Args:
            side: what they hide.
            places: of their answers.
            run_P: the run of each answer.
            seen_Q: training edges with the half-link of each query, int64; zeros where they are not counted.
            seen_P: the same of each answer.
        """
        values = {f"{name}_at_{k}": value_Q for k in self.cutoffs for name, value_Q in places.values(k).items()}
        found = {f"recall_at_{k}": (places.within(k) / places.length_N)[run_P] for k in self.cutoffs}
        for stratum, at in _strata(seen_Q):
            times = places.num_answers_Q[at]
            sums = {
                "num_queries": len(times),
                "num_answers": int(times.sum()),
                **{f"macro_metrics.{name}": exact_sum(of[at]) for name, of in values.items()},
                **{f"metrics.{name}": exact_sum(of[at], times) for name, of in values.items()},
            }
            self._of.setdefault((QUERY_HALF_LINK, stratum, side), Counter()).update(sums)
        for stratum, at in _strata(seen_P):
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
