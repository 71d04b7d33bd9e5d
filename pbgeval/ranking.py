"""Counts of competitors -> ranks.

A rank is not additive, its counts are: `RankCounts` of disjoint blocks of candidates add up, and only then
comes the rank. Competitors never include the true entity itself, so a best rank is `1 + better` and a worst
one `1 + better + tied`. Realistic ranks are half-integral; they are kept doubled, as integers.
"""

from __future__ import annotations

from enum import Enum

import torch
from attrs import frozen
from torch import Tensor


class RankType(Enum):
    """How ties are resolved (PyKEEN's words; OpenBioLink and PBG report the pessimistic one)."""

    OPTIMISTIC = "optimistic"  # the true entity comes first among its ties
    REALISTIC = "realistic"  # the mean of the other two
    PESSIMISTIC = "pessimistic"  # the true entity comes last among its ties


RANK_TYPE_SYNONYMS = {
    "best": RankType.OPTIMISTIC,
    "avg": RankType.REALISTIC,
    "average": RankType.REALISTIC,
    "worst": RankType.PESSIMISTIC,
    **{rank_type.value: rank_type for rank_type in RankType},
}


@frozen(eq=False)
class RankCounts:
    """What a block of candidates says about each query."""

    better_Q: Tensor  # int64: competitors that score strictly higher than the true entity
    tied_Q: Tensor  # int64: competitors that score exactly the same
    competing_Q: Tensor  # int64: all competitors, the true entity not among them

    def __add__(self, other: RankCounts) -> RankCounts:
        """Add the counts of another, disjoint block of candidates for the same queries."""
        return RankCounts(
            self.better_Q + other.better_Q, self.tied_Q + other.tied_Q, self.competing_Q + other.competing_Q
        )

    @classmethod
    def zero(cls, num_queries: int, device: torch.device | str = "cpu") -> RankCounts:
        """Return the counts of no candidates at all: adding them changes nothing."""
        return cls(*(torch.zeros(num_queries, dtype=torch.int64, device=device) for _ in range(3)))

    @classmethod
    def concatenate(cls, parts: list[RankCounts]) -> RankCounts:
        """Join the counts of disjoint sets of queries."""
        if not parts:
            return cls.zero(0)
        return cls(
            torch.cat([part.better_Q for part in parts]),
            torch.cat([part.tied_Q for part in parts]),
            torch.cat([part.competing_Q for part in parts]),
        )

    def cpu(self) -> RankCounts:
        return RankCounts(self.better_Q.cpu(), self.tied_Q.cpu(), self.competing_Q.cpu())

    def of(self, query: Tensor) -> RankCounts:
        """Return the counts of some of the queries."""
        return RankCounts(self.better_Q[query], self.tied_Q[query], self.competing_Q[query])

    def doubled_rank(self, rank_type: RankType) -> Tensor:
        """Return twice the rank of each query, an int64 tensor (Q,): realistic ranks may be half-integral."""
        doubled_optimistic_Q = 2 + 2 * self.better_Q
        if rank_type is RankType.OPTIMISTIC:
            return doubled_optimistic_Q
        ties = 1 if rank_type is RankType.REALISTIC else 2
        return doubled_optimistic_Q + ties * self.tied_Q


@frozen(eq=False)
class QueryCounts:
    """What a block of candidates says about each query, with and without the known answers."""

    raw: RankCounts  # all competitors
    known: RankCounts  # the known answers among them, which do not compete in filtered figures

    @property
    def filtered(self) -> RankCounts:
        """The competitors that are not known answers."""
        return RankCounts(
            self.raw.better_Q - self.known.better_Q,
            self.raw.tied_Q - self.known.tied_Q,
            self.raw.competing_Q - self.known.competing_Q,
        )

    def __add__(self, other: QueryCounts) -> QueryCounts:
        """Add the counts of another, disjoint block of candidates for the same queries."""
        return QueryCounts(self.raw + other.raw, self.known + other.known)

    @classmethod
    def unfiltered(cls, raw: RankCounts) -> QueryCounts:
        """Return counts where no answer is known."""
        return cls(raw, RankCounts.zero(raw.better_Q.numel(), raw.better_Q.device))

    @classmethod
    def concatenate(cls, parts: list[QueryCounts]) -> QueryCounts:
        """Join the counts of disjoint sets of queries."""
        return cls(
            RankCounts.concatenate([part.raw for part in parts]), RankCounts.concatenate([part.known for part in parts])
        )

    def cpu(self) -> QueryCounts:
        return QueryCounts(self.raw.cpu(), self.known.cpu())

    def of(self, query: Tensor) -> QueryCounts:
        """Return the counts of some of the queries."""
        return QueryCounts(self.raw.of(query), self.known.of(query))
