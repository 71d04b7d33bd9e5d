"""Queries of a run, or of two -> the figures of each relation, and a few sentences on why its MRR is what it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from attrs import frozen

from pbgeval.results.saved_queries import SavedQueries
from pbgeval.stats.rank_types import RankType, doubled_rank
from pbgeval.storage.text import plural

SIDES = ("head", "tail")
MAX_WINNERS = 3  # named in a sentence
MUCH = 0.05  # share of a relation's queries from which something is told
UNLIKE = 1.25  # ratio of the MRR of two sides that is told


@frozen(eq=False)
class RelationFacts:
    """The figures of each relation; arrays have a row for each run, and for each relation and side an element."""

    names: Sequence[str]
    num_R2: np.ndarray  # int64: queries
    sum_NR2: np.ndarray  # float64: sums of 1 / rank
    numbers: Sequence[np.ndarray]  # of each relation's queries
    doubled_NQ: np.ndarray  # int64: twice the rank

    @classmethod
    def of_runs(cls, runs: Sequence[SavedQueries], rank_type: RankType) -> RelationFacts:
        """Add up the queries of each relation."""
        first = runs[0]
        num = len(first.relations)
        at_Q = 2 * first.relation_Q + first.side_Q
        doubled_NQ = np.stack([doubled_rank(of.better_Q, of.tied_Q, rank_type) for of in runs])
        sums = [np.bincount(at_Q, 2.0 / of, 2 * num).reshape(num, 2) for of in doubled_NQ]
        order = np.argsort(first.relation_Q, kind="stable")
        ends = np.cumsum(np.bincount(first.relation_Q, minlength=num))
        return cls(
            first.relations,
            np.bincount(at_Q, minlength=2 * num).reshape(num, 2),
            np.stack(sums),
            np.split(order, ends[:-1]) if num else [],
            doubled_NQ,
        )

    @property
    def num_queries(self) -> int:
        """How many queries there are."""
        return int(self.num_R2.sum())

    @property
    def total_mrr(self) -> list[float]:
        """The MRR of each run."""
        return [float(of.sum()) / max(self.num_queries, 1) for of in self.sum_NR2]

    @property
    def change(self) -> np.ndarray:
        """What each relation adds to the difference of the MRR, B less A, float64 (R,)."""
        sums_NR = self.sum_NR2.sum(2)
        return np.asarray(sums_NR[-1] - sums_NR[0]) / max(self.num_queries, 1)

    @property
    def weight(self) -> np.ndarray:
        """What each relation takes from an MRR of 1, or by how much it changes the MRR, float64 (R,)."""
        if len(self.sum_NR2) > 1:
            return np.asarray(np.abs(self.change))
        return np.asarray((self.num_R2 - self.sum_NR2[0]).sum(1)) / max(self.num_queries, 1)

    @property
    def by_weight(self) -> list[int]:
        """The relations, the one of the greatest weight first."""
        return [*map(int, np.argsort(-self.weight, kind="stable"))]

    @property
    def mrr_R(self) -> np.ndarray:
        """The MRR of each relation in the first run, both sides together; NaN without queries."""
        return np.asarray(self.sum_NR2[0].sum(1) / np.where(self.num_R2.any(1), self.num_R2.sum(1), np.nan))

    @property
    def lowest(self) -> int | None:
        """The relation with the lowest MRR, of equal ones that with the most queries; None where there is but one."""
        known = np.flatnonzero(self.num_R2.any(1))
        order = known[np.lexsort((-self.num_R2.sum(1)[known], self.mrr_R[known]))]
        return int(order[0]) if len(order) > 1 else None

    def of_sides(self, relation: int) -> list[list[float]]:
        """Return, of head and tail, the number of queries and the sum of 1 / rank in each run."""
        return [[int(self.num_R2[relation, side]), *self.sum_NR2[:, relation, side].tolist()] for side in (0, 1)]

    def mrr(self, run: int, relation: int, side: int) -> float:
        """Return the MRR of a relation's side that has queries."""
        return float(self.sum_NR2[run, relation, side] / self.num_R2[relation, side])


def explain_relation(facts: RelationFacts, relation: int, queries: SavedQueries) -> list[str]:
    """Return what explains the MRR of a relation, a sentence each."""
    at = facts.numbers[relation]
    sides = [side for side in (0, 1) if facts.num_R2[relation, side]]
    lines = [*_sides(facts, relation)]
    rank_Q = facts.doubled_NQ[0][at] / 2
    first = np.count_nonzero(rank_Q <= 1)
    lines.append(
        f"{_percent(first, len(at))} of the answers come first; half of the ranks are at most {_median(rank_Q)}."
    )
    lines += _own(facts, queries, at)
    for side in sides:
        lines += _winners(queries, at[queries.side_Q[at] == side], side)
    tied = np.count_nonzero(queries.tied_Q[at])
    if tied:
        lines.append(f"{_percent(tied, len(at))} of the answers have the score of other candidates.")
    lines += _candidates(queries, at, sides)
    unseen = np.count_nonzero((queries.better_Q[at] > 0) & (queries.winner_Q[at] < 0))
    if unseen >= MUCH * len(at):
        lines.append(
            f"In {_percent(unseen, len(at))} of the queries all saved candidates are known answers: evaluate with a "
            "larger save_topk to see what comes before the answer."
        )
    return lines


def explain_change(facts: RelationFacts, relation: int, runs: Sequence[SavedQueries]) -> list[str]:
    """Return how the answers of a relation moved from run A to run B, a sentence each."""
    at = facts.numbers[relation]
    a_Q, b_Q = facts.doubled_NQ[:, at]
    better, worse = np.count_nonzero(b_Q < a_Q), np.count_nonzero(b_Q > a_Q)
    lines = [
        f"Of {plural(len(a_Q), 'answer')}, B ranks {better:,} better and {worse:,} worse than A.",
        f"Half of the ranks are at most {_median(a_Q / 2)} (A) and {_median(b_Q / 2)} (B).",
    ]
    for side in (0, 1):
        if facts.num_R2[relation, side]:
            a, b = (facts.mrr(run, relation, side) for run in (0, 1))
            lines.append(f"MRR of {SIDES[side]}s: {a:.3f} (A), {b:.3f} (B).")
    own = [int(own_first(queries, at).sum()) for queries in runs]
    if max(own) >= MUCH * len(at):
        of_a, of_b = (_percent(of, len(at)) for of in own)
        lines.append(f"The entity that the query names comes first itself in {of_a} (A) and {of_b} (B) of the queries.")
    return lines


def _sides(facts: RelationFacts, relation: int) -> Iterator[str]:
    if facts.num_R2[relation].all():
        mrr = [facts.mrr(0, relation, side) for side in (0, 1)]
        hard, easy = sorted((0, 1), key=lambda side: mrr[side])
        if mrr[easy] > UNLIKE * mrr[hard]:
            harder = f"{SIDES[hard].capitalize()}s are harder than {SIDES[easy]}s"
            yield f"{harder}: MRR {mrr[hard]:.3f} and {mrr[easy]:.3f}."
        else:
            yield f"Heads and tails are about as hard: MRR {mrr[0]:.3f} and {mrr[1]:.3f}."


def own_first(queries: SavedQueries, at: np.ndarray) -> np.ndarray:
    """Return in which of some queries the entity that the query names comes first, before the answer, bool."""
    return np.asarray(queries.is_own_Q[at] & (queries.better_Q[at] > 0))


def _own(facts: RelationFacts, queries: SavedQueries, at: np.ndarray) -> Iterator[str]:
    """Yield how often the entity that the query names comes first, and what it costs."""
    is_own_Q = own_first(queries, at)
    own = int(is_own_Q.sum())
    if own >= MUCH * len(at):
        mrr = float((2.0 / (facts.doubled_NQ[0][at] - 2 * is_own_Q)).mean())
        yield (
            f"In {_percent(own, len(at))} of the queries the entity that the query names comes first itself; without "
            f"it in these queries, the MRR would be {mrr:.3f}."
        )


def _winners(queries: SavedQueries, at: np.ndarray, side: int) -> Iterator[str]:
    """Yield which candidates come before the answer most often, of queries of a side."""
    lost = at[(queries.better_Q[at] > 0) & (queries.winner_Q[at] >= 0) & ~queries.is_own_Q[at]]
    winners, counts = np.unique(queries.winner_Q[lost], return_counts=True)
    own = int(own_first(queries, at).sum())
    if not len(winners):
        if own:
            yield f"In {own:,} of {len(at):,} {SIDES[side]} queries the entity that the query names comes first."
        return
    order = np.lexsort((winners, -counts))
    told = [f"{_name(queries.winners[winners[one]])} ({counts[one]:,})" for one in order[:MAX_WINNERS]]
    start = f"In {len(lost):,} of {len(at):,} {SIDES[side]} queries another entity comes first"
    if own:
        start += f" (and in {own:,} more the one that the query names)"
    if len(lost) == 1:
        yield f"{start}: {_name(queries.winners[winners[0]])}."
    elif counts[order[0]] > 1:
        yield f"{start}, most often {', '.join(told)}."
    else:
        yield f"{start}, each time a different one."


def _candidates(queries: SavedQueries, at: np.ndarray, sides: Sequence[int]) -> Iterator[str]:
    of_sides = [at[queries.side_Q[at] == side] for side in sides]
    competing = " and ".join(
        f"{queries.competing_Q[of].mean():,.0f} ({SIDES[side]}s)" for side, of in zip(sides, of_sides, strict=True)
    )
    yield f"On average an answer competes with {competing} candidates."
    if queries.known_Q[at].any():
        known = " and ".join(
            f"{_short(float(queries.known_Q[of].mean()))} ({SIDES[side]} queries)"
            for side, of in zip(sides, of_sides, strict=True)
        )
        yield f"A query has on average {known} other known answers, which do not compete."


def _percent(count: int | np.integer[Any], of: int) -> str:
    share = 100 * count / of
    return "<1%" if 0 < share < 1 else ">99%" if 99 < share < 100 else f"{share:.0f}%"


def _median(rank_Q: np.ndarray) -> str:
    return f"{np.sort(rank_Q)[(len(rank_Q) - 1) // 2]:,.10g}"


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2g}"


def _name(name: str) -> str:
    return name if len(name) <= 80 else f"{name[:80]}…"
