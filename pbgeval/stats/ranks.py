"""Counts of competitors, or whole rows of scores -> ranks.

A rank is not additive, its counts are: `RankCounts` of disjoint blocks of candidates add up, and only then
comes the rank. Competitors never include the true entity itself, so a best rank is `1 + better` and a worst
one `1 + better + tied`. Realistic ranks are half-integral; they are kept doubled, as integers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence, Sized
from functools import cached_property
from operator import add, sub
from typing import Any, Generic

import numpy as np
import torch
from attrs import field, frozen
from torch import Tensor

from pbgeval.stats.keyed_sums import KeyedSums
from pbgeval.stats.rank_types import Array, RankType, doubled_rank
from pbgeval.storage.transfers import on_the_host

MIN_REPEATED = 4096  # queries whose counts are looked through for equal ones
CODES_PER_QUERY = 8  # most numbers that a table of what occurs may have; beyond, nothing is gained
IndexLists = Sequence[Sequence[int] | Tensor | np.ndarray]


@frozen(eq=False)
class RankCounts:
    """How many candidates of a block beat, tie and compete, per query."""

    better_Q: Tensor  # int64: competitors that score strictly higher than the true entity
    tied_Q: Tensor  # int64: competitors that score exactly the same
    num_competitors_Q: Tensor  # int64: all competitors, the true entity not among them
    found_repeated: RepeatedCounts | None = field(default=None, kw_only=True)  # by a GPU; None: look for them

    @property
    def columns(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.better_Q, self.tied_Q, self.num_competitors_Q

    @property
    def num_queries(self) -> int:
        return self.better_Q.numel()

    def __add__(self, other: RankCounts) -> RankCounts:
        """Add the counts of another, disjoint block of candidates for the same queries."""
        return RankCounts(*map(add, self.columns, other.columns))

    def __sub__(self, other: RankCounts) -> RankCounts:
        """Take back the counts of some of these candidates."""
        return RankCounts(*map(sub, self.columns, other.columns))

    @classmethod
    def zero(cls, num_queries: int, device: torch.device | str = "cpu") -> RankCounts:
        """Return the counts of no candidates at all: adding them changes nothing."""
        return cls(*(torch.zeros(num_queries, dtype=torch.int64, device=device) for _ in range(3)))

    @classmethod
    def concatenate(cls, parts: list[RankCounts]) -> RankCounts:
        """Join the counts of disjoint sets of queries."""
        return cls(*map(torch.cat, zip(*(part.columns for part in parts or [cls.zero(0)]), strict=True)))

    def cpu(self) -> RankCounts:
        return RankCounts(*(column.cpu() for column in self.columns))

    def select(self, query: Tensor | slice) -> RankCounts:
        """Return the counts of some of the queries."""
        return RankCounts(*(column[query] for column in self.columns))

    def between(self, start: int, stop: int) -> RankCounts:
        """Return the counts of consecutive queries; of all of them these, with what is known of them."""
        return self if (start, stop) == (0, self.num_queries) else self.select(slice(start, stop))

    def doubled_rank(self, rank_type: RankType) -> Tensor:
        """Return twice the rank of each query, an int64 tensor (Q,): realistic ranks may be half-integral."""
        return doubled_rank(self.better_Q, self.tied_Q, rank_type)

    @cached_property
    def repeated(self) -> RepeatedCounts | None:
        """The counts that occur, each once; None where there are so many different ones that it does not pay.

        Of a hundred sampled competitors a rank has few values, so statistics of many queries are those of few counts.
        """
        num_queries = self.better_Q.numel()
        if self.found_repeated is not None or num_queries < MIN_REPEATED or self.better_Q.device.type != "cpu":
            return self.found_repeated
        columns = [column.numpy() for column in self.columns]
        lowest, widths = zip(*((int(of.min()), int(of.max()) - int(of.min()) + 1) for of in columns), strict=True)
        if math.prod(widths) > CODES_PER_QUERY * num_queries:
            return None
        code_Q = np.ravel_multi_index([of - low for of, low in zip(columns, lowest, strict=True)], widths)
        times_C = np.bincount(code_Q)
        codes_D = np.flatnonzero(times_C)
        index_C = np.cumsum(times_C > 0) - 1
        return RepeatedCounts(_counts_of_codes(codes_D, widths, lowest), times_C[codes_D], index_C[code_Q])

    def from_device(self) -> RankCounts:
        """Return counts of another device, where no query has 2^31 candidates, on the CPU.

        If many queries share few counts, each of these is copied once, and which of them each query has.
        """
        columns_3Q = torch.stack(self.columns)
        if self.num_queries >= MIN_REPEATED:
            lowest, highest = torch.stack(columns_3Q.aminmax(dim=1)).tolist()
            widths = tuple(high - low + 1 for low, high in zip(lowest, highest, strict=True))
            if math.prod(widths) <= CODES_PER_QUERY * self.num_queries:
                code_Q = torch.zeros_like(self.better_Q)
                for column_Q, low, width in zip(self.columns, lowest, widths, strict=True):
                    code_Q = code_Q * width + (column_Q - low)
                codes_D, index_Q, times_D = torch.unique(code_Q, return_inverse=True, return_counts=True)
                codes_D, times_D, index_Q = on_the_host([codes_D, times_D, index_Q.int()])
                counts, index_Q = _counts_of_codes(codes_D.numpy(), widths, lowest), index_Q.long()
                repeated = RepeatedCounts(counts, times_D.numpy(), index_Q.numpy())
                return RankCounts(*counts.select(index_Q).columns, found_repeated=repeated)
        return RankCounts(*columns_3Q.int().cpu().long())

    def each_once(self) -> tuple[RankCounts, np.ndarray | None]:
        """Return the counts that occur and how often each does, int64; None: each stands for itself."""
        return (self, None) if self.repeated is None else (self.repeated.counts, self.repeated.times_D)


def _counts_of_codes(codes_D: np.ndarray, widths: tuple[int, ...], lowest: Sequence[int]) -> RankCounts:
    """Return the counts that numbers stand for: places in a table, whose axes begin with the lowest counts."""
    places = np.unravel_index(codes_D, widths)
    return RankCounts(*(torch.from_numpy(of + low) for of, low in zip(places, lowest, strict=True)))


@frozen(eq=False)
class RepeatedCounts:
    """Counts that many queries share."""

    counts: RankCounts  # each of them once, (D)
    times_D: np.ndarray  # int64: how many queries have them
    index_Q: np.ndarray  # int64: which of them each query has

    def by_group(self, group_Q: np.ndarray) -> tuple[np.ndarray, RankCounts, np.ndarray] | None:
        """Take queries of one group with the same counts together; those with a negative group are in none.

        Args:
            group_Q: of each query, int64.

        Returns:
            Groups (P,) in order, the counts, and how many queries have both; None where groups have too large numbers.
        """
        num_counts, index_Q = self.times_D.size, self.index_Q
        if int(group_Q.min()) < 0:
            group_Q, index_Q = group_Q[group_Q >= 0], index_Q[group_Q >= 0]
        highest = int(group_Q.max(initial=0))
        if highest >= (1 << 62) // num_counts:
            return None
        pairs = KeyedSums.from_values(torch.from_numpy(group_Q * num_counts + index_Q))
        group_P, index_P = np.divmod(pairs.keys, num_counts)
        return group_P, self.counts.select(torch.from_numpy(index_P)), pairs.counts


@frozen(eq=False)
class QueryCounts:
    """The counts of each query, with and without the known answers."""

    raw: RankCounts  # all competitors
    known: RankCounts  # the known answers among them, which do not compete in filtered figures
    in_time: RankCounts | None = None  # those that do not compete in time-aware ones; None: not counted
    _rows_NQ: Tensor | None = field(default=None, kw_only=True)  # of which `of_rows` made these

    @property
    def filtered(self) -> RankCounts:
        """The competitors that are not known answers."""
        return self.raw - self.known

    @property
    def time_filtered(self) -> RankCounts:
        """The competitors that are no known answers of the query's time."""
        return self.raw if self.in_time is None else self.raw - self.in_time

    @classmethod
    def of_rows(cls, counts_NQ: Tensor) -> QueryCounts:
        """Read better, tied and competing of all competitors, of the known ones and, if counted, of those in time."""
        columns = counts_NQ.unbind()
        if len(columns) == 3:
            return cls.unfiltered(RankCounts(*columns))
        parts = (RankCounts(*columns[first : first + 3]) for first in range(0, len(columns), 3))
        return cls(*parts, rows_NQ=counts_NQ)

    def rows(self, *, filtered: bool = True) -> Tensor:
        """Return what `of_rows` reads; of all competitors alone unless `filtered`."""
        if filtered and self._rows_NQ is not None:
            return self._rows_NQ
        parts = self._parts if filtered else [self.raw]
        return torch.stack([column_Q for part in parts for column_Q in part.columns])

    @property
    def _parts(self) -> list[RankCounts]:
        return [self.raw, self.known, *([] if self.in_time is None else [self.in_time])]

    def __add__(self, other: QueryCounts) -> QueryCounts:
        """Add the counts of another, disjoint block of candidates for the same queries."""
        return QueryCounts(*(one + of for one, of in zip(self._parts, other._parts, strict=True)))

    @classmethod
    def unfiltered(cls, raw: RankCounts) -> QueryCounts:
        """Return counts where no answer is known."""
        zero_Q = raw.better_Q.new_zeros(1).expand_as(raw.better_Q)  # of a single number: there may be many queries
        return cls(raw, RankCounts(zero_Q, zero_Q, zero_Q))

    @classmethod
    def concatenate(cls, parts: list[QueryCounts]) -> QueryCounts:
        """Join the counts of disjoint sets of queries; those of an empty set may lack what others have in time."""
        parts = [part for part in parts if part.raw.better_Q.numel()] or parts[:1]
        if len(parts) <= 1:  # no copy of what may be large
            return parts[0] if parts else cls.unfiltered(RankCounts.zero(0))
        return cls(*(RankCounts.concatenate(list(of)) for of in zip(*(part._parts for part in parts), strict=True)))

    def cpu(self, *, filtered: bool = True) -> QueryCounts:
        """Return the counts on the CPU, as `from_device`; those of known answers are zeros unless `filtered`."""
        if self.raw.better_Q.device.type == "cpu":
            return self
        return self.of_rows(self.rows().int().cpu().long()) if filtered else self.unfiltered(self.raw.from_device())

    def select(self, query: Tensor | slice) -> QueryCounts:
        """Return the counts of some of the queries."""
        return QueryCounts(*(part.select(query) for part in self._parts))


@frozen(eq=False)
class Ranks(Generic[Array]):
    """The ranks of each query's true entity, in arrays (Q,) of the library that the scores came in."""

    optimistic_Q: Array  # int64: 1 + better
    pessimistic_Q: Array  # int64: 1 + better + tied
    realistic_Q: Array  # float64: the mean of the two
    num_candidates_Q: Array  # int64: those not excluded, the true one among them

    def counts(self: Ranks[Tensor]) -> RankCounts:
        return RankCounts(self.optimistic_Q - 1, self.pessimistic_Q - self.optimistic_Q, self.num_candidates_Q - 1)


def from_scores(
    scores_QC: Array, true_index_Q: Array | Sequence[int], excluded: Tensor | np.ndarray | IndexLists | None = None
) -> Ranks[Array]:
    """Rank the true candidate of each query among all its candidates.

    Args:
        scores_QC: scores, higher is better; +-inf compare as numbers.
        true_index_Q: column of each query's true candidate.
        excluded: candidates that do not compete: a bool mask (Q, C), or for each query the columns, in any order. The
            true candidate is never excluded, whatever this says.

    Returns:
        Ranks from 1 (best) to the number of candidates; definitions as in docs/metrics.md.

    Raises:
        ValueError: the shapes do not fit, an index is out of range, or a score that is compared is NaN; names the row.

    Examples:
        >>> import numpy as np
        >>> import pbgeval
        >>> scores = np.array([[0.9, 0.5, 0.5], [0.1, 0.2, 0.3]])
        >>> ranks = pbgeval.from_scores(scores, true_index_Q=[1, 2], excluded=[[0], []])
        >>> ranks.optimistic_Q.tolist(), ranks.pessimistic_Q.tolist()
        ([1, 1], [2, 1])
    """
    if scores_QC.ndim != 2:
        raise ValueError(f"scores: expected an array (queries, candidates), got {scores_QC.ndim} axes")
    num_queries, num_candidates = scores_QC.shape
    true_Q = _indices(true_index_Q)
    if true_Q.shape != (num_queries,):
        raise ValueError(f"true_index: expected one index for each of {num_queries} rows, got {true_Q.shape}")
    _check_columns("true_index", np.arange(num_queries), true_Q, num_candidates)
    place: Any = np.arange(num_queries), true_Q
    is_candidate_QC: Any = ~_excluded_mask(excluded, num_queries, num_candidates)
    is_candidate_QC[place] = True
    if isinstance(scores_QC, Tensor):
        place = tuple(torch.from_numpy(of).to(scores_QC.device) for of in place)
        is_candidate_QC = torch.from_numpy(is_candidate_QC).to(scores_QC.device)
    true_score_Q1 = scores_QC[place][:, None]
    undefined_QC = (scores_QC != scores_QC) & is_candidate_QC
    if bool(undefined_QC.any()):
        row, column = (int(of[0]) for of in np.nonzero(_as_numpy(undefined_QC)))
        raise ValueError(f"row {row}: the score of candidate {column} is NaN, which cannot be ranked")
    optimistic_Q = 1 + ((scores_QC > true_score_Q1) & is_candidate_QC).sum(1)
    pessimistic_Q = ((scores_QC >= true_score_Q1) & is_candidate_QC).sum(1)  # the true candidate equals itself
    doubled_Q = optimistic_Q + pessimistic_Q
    realistic_Q = doubled_Q.double() / 2 if isinstance(doubled_Q, Tensor) else doubled_Q / 2  # float64 in both
    return Ranks(optimistic_Q, pessimistic_Q, realistic_Q, is_candidate_QC.sum(1))


def _excluded_mask(
    excluded: Tensor | np.ndarray | IndexLists | None, num_queries: int, num_candidates: int
) -> np.ndarray:
    """Return a bool array (Q, C), which may be the caller's."""
    if isinstance(excluded, Tensor | np.ndarray):
        mask_QC = _as_numpy(excluded)
        if mask_QC.dtype != np.bool_ or mask_QC.shape != (num_queries, num_candidates):
            found = f"{mask_QC.dtype} {mask_QC.shape}"
            raise ValueError(f"excluded: expected a bool mask {(num_queries, num_candidates)} or lists, got {found}")
        return mask_QC
    mask_QC = np.zeros((num_queries, num_candidates), np.bool_)
    if excluded is None:
        return mask_QC
    if not isinstance(excluded, Sized):
        raise ValueError(f"excluded: expected a bool mask {(num_queries, num_candidates)} or lists, got {excluded!r}")
    if len(excluded) != num_queries:
        raise ValueError(f"excluded: expected a list for each of {num_queries} rows, got {len(excluded)}")
    columns_of_Q = [_indices(columns) for columns in excluded]
    rows = np.repeat(np.arange(num_queries), [columns.size for columns in columns_of_Q])
    columns = np.concatenate([np.empty(0, np.int64), *columns_of_Q])
    _check_columns("excluded", rows, columns, num_candidates)
    mask_QC[rows, columns] = True
    return mask_QC


def _indices(of: Sequence[int] | Tensor | np.ndarray) -> np.ndarray:
    indices = np.asarray(_as_numpy(of) if isinstance(of, Tensor | np.ndarray) else of)
    if indices.size and indices.dtype.kind not in "iu":  # an empty list has no type
        raise ValueError(f"expected integer indices, got {indices.dtype}")
    return indices.astype(np.int64)


def _check_columns(name: str, rows: np.ndarray, columns: np.ndarray, num_candidates: int) -> None:
    outside = np.flatnonzero((columns < 0) | (columns >= num_candidates))
    if len(outside):
        row, column = int(rows[outside[0]]), int(columns[outside[0]])
        raise ValueError(f"{name}, row {row}: {column} is not one of the {num_candidates} candidates")


def _as_numpy(of: Tensor | np.ndarray) -> np.ndarray:
    return of.detach().cpu().numpy() if isinstance(of, Tensor) else of
