"""The queries of one contest, prepared, and what candidates that stream past them have added up to."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
import torch
from attrs import define, field
from torch import Tensor

from pbgeval.errors import EvalError
from pbgeval.notation import Side
from pbgeval.ranking.cells import SampledCells, ScoreCollector
from pbgeval.ranking.certified import Bfloat16Use
from pbgeval.ranking.constraints import is_among
from pbgeval.ranking.groups import first_nan_of_pairs
from pbgeval.ranking.kernels import Kernel
from pbgeval.ranking.known_answers import KnownAnswers
from pbgeval.ranking.query_edges import CompetingEntities, ContestQueries, QueryBlock
from pbgeval.ranking.settings import LossSettings
from pbgeval.ranking.tally import LossFold
from pbgeval.ranking.topk import TopCandidates
from pbgeval.ranking.type_gains import TypeGains
from pbgeval.scoring.block_scorer import RowComparator, ScorerComparator
from pbgeval.scoring.certified import CertifiedComparator
from pbgeval.scoring.comparators import UnrankableRowsError
from pbgeval.scoring.fast_products import values_of_pairs
from pbgeval.scoring.scorer import EdgeScorer
from pbgeval.scoring.true_scores import CertifiedTrue, TrueScores
from pbgeval.stats.ranks import QueryCounts, RankCounts
from pbgeval.storage.rows import Rows

KEYS_AT_A_TIME = 4096  # prepared together; changes no number
QUERIES_AT_A_TIME = 8192  # true scores computed together


class QuerySource(Protocol):
    """The vectors of the entities of some edges, as operators see them, and names for errors."""

    def vectors(self, scorer: EdgeScorer, side: Side, ids: np.ndarray) -> Tensor:
        """Return the vectors of entities at one side of a relation's edges, (n, D)."""

    def unrankable(
        self, error: UnrankableRowsError, scorer: EdgeScorer, side: Side, entity: int, edge: int | None
    ) -> EvalError:
        """Return the error that names an entity whose row cannot be prepared, and the edge that uses it."""

    def nan_score(self, hidden: Side, edge: int, entity: int) -> EvalError:
        """Return the error that names a query and a candidate whose score is not a number."""


RESULT_ARRAYS = 8  # of a packed result: counts; query, bits and mark of each score; best candidates; three of types


@define(eq=False)
class ContestResult:
    """What candidates have added to a contest."""

    counts_NQ: Tensor  # int64: the rows of `QueryCounts`
    scores: ScoreCollector = field(factory=ScoreCollector)
    top: TopCandidates | None = None
    gains: TypeGains | None = None  # of its queries for types

    def empty(self) -> ContestResult:
        """Return the result of the same queries before they have met any candidate."""
        top = None if self.top is None else TopCandidates(self.top.num_keys, self.top.k, self.top.is_answer)
        gains = None if self.gains is None else self.gains.empty()
        return ContestResult(torch.zeros_like(self.counts_NQ), ScoreCollector(), top, gains)

    def pack(self) -> list[np.ndarray]:
        """Return everything as RESULT_ARRAYS arrays of integers (n,), for `add_packed`."""
        nothing = np.empty(0, np.int64)
        best = nothing if self.top is None else self.top.packed()
        gains = [nothing] * 3 if self.gains is None else self.gains.pack()
        return [self.counts_NQ.numpy().reshape(-1), *self.scores.pack(), best, *gains]

    def add_packed(self, arrays: Sequence[np.ndarray]) -> None:
        """Add what another result of the same queries packed."""
        counts, query, bits, known, best, *of_gains = arrays
        self.counts_NQ += torch.from_numpy(counts).view_as(self.counts_NQ)
        self.scores.add_packed(query, bits, known)
        if self.top is not None:
            self.top.merge_packed(best)
        if self.gains is not None:
            self.gains.add_packed(of_gains)


@define(eq=False)
class ContestState:
    """One contest while candidates stream past."""

    queries: ContestQueries
    competing: CompetingEntities
    kernel: Kernel
    source: QuerySource
    prepared: Rows  # (K, D'): a prepared query per key
    true_scores: Rows  # a packed `TrueScores`, or `CertifiedTrue`, per query
    dtype: torch.dtype  # of vectors before they are prepared
    device: torch.device
    sample: SampledCells | None = None  # None: the pooled AUC compares every score
    loss: LossSettings | None = None
    in_time_Q: np.ndarray | None = None  # int64: position of each query's key in the time-aware filter; None: none
    result: ContestResult = field(init=False)
    losses: dict[int, LossFold] = field(factory=dict, init=False)  # by the first query of a block
    bfloat16: Bfloat16Use = field(factory=Bfloat16Use, init=False)  # if ranks are certified
    lock: threading.Lock = field(factory=threading.Lock, init=False)  # held by the thread that hands scores over
    # Of a model that scores all entities for a query at once: true scores are read when a block meets candidates.
    _is_read_Q: np.ndarray | None = field(default=None, init=False)  # bool

    @result.default
    def _nothing(self) -> ContestResult:
        num_rows = 6 if self.in_time_Q is None else 9
        return ContestResult(torch.zeros((num_rows, self.queries.num_queries), dtype=torch.int64))

    def __attrs_post_init__(self) -> None:
        if isinstance(self.comparator, ScorerComparator) and self.comparator.by_rows is not None:
            self._is_read_Q = np.zeros(self.queries.num_queries, bool)

    @property
    def hidden(self) -> Side:
        return self.queries.contest.hidden

    @property
    def comparator(self) -> RowComparator:
        return self.queries.contest.scorer.comparator

    @property
    def certified(self) -> CertifiedComparator | None:
        """The comparator in exact arithmetic, if ranks are certified."""
        return self.queries.contest.scorer.certified

    @property
    def wants_all_scores(self) -> bool:
        """Whether every score of a block is asked for."""
        by_key = self.result.top is not None or self.result.gains is not None
        return by_key or self.loss is not None or self.sample is None

    def true(self, first: int, stop: int) -> TrueScores:
        """Return the true scores of consecutive queries."""
        if self._is_read_Q is not None and not self._is_read_Q[first:stop].all():
            first_key = int(self.queries.key_Q[first])
            prepared_KD = self.prepared.read(first_key, int(self.queries.key_Q[stop - 1]) + 1).to(self.device)
            self._write_true_scores(prepared_KD, first_key, (first, stop))
            self._is_read_Q[first:stop] = True
        return TrueScores.unpacked(self.true_scores.read(first, stop), self.device)

    def prepared_queries(self, block: QueryBlock, device: torch.device) -> Tensor:
        """Return the prepared rows of a block's keys."""
        return self.prepared.read(block.first_key, block.stop_key).to(device)

    def certified_true(self, block: QueryBlock, query_KL: Tensor) -> CertifiedTrue:
        """Return what a block's true scores are computed from, given its prepared rows, if ranks are certified."""
        assert self.certified is not None, "the caller has asked"
        row_Q = torch.from_numpy(self.queries.key_Q[block.first : block.stop] - block.first_key).to(query_KL.device)
        rows_QW = self.true_scores.read(block.first, block.stop).to(query_KL.device)
        return CertifiedTrue.unpacked(self.certified, rows_QW, query_KL[row_Q])

    def true_values(self) -> Tensor:
        """Return every query's true score as competitors' scores are made that the pooled AUC compares, float32."""
        if self.certified is not None:
            return self.true_scores.read(0, self.queries.num_queries)[:, -1]
        if self._is_read_Q is not None:
            for block in self.queries.blocks:  # those that met no candidate
                self.true(block.first, block.stop)
        rows_QW = self.true_scores.read(0, self.queries.num_queries)
        return TrueScores.unpacked(rows_QW, torch.device("cpu")).kernel_Q.float()

    def paired_scores(self, query_PD: Tensor, candidate_PD: Tensor) -> Tensor:
        """Return the score of each prepared query with its own candidate, with the bits that are counted."""
        if self.certified is not None:
            return values_of_pairs(self.certified, query_PD, candidate_PD)
        return self.kernel.paired_scores(self.comparator)(query_PD, candidate_PD)

    def prepared_candidates(self, x_CD: Tensor, numbers_C: np.ndarray) -> Tensor:
        """Return the prepared rows of candidates; one that cannot be prepared is the user's fault."""
        try:
            return self.queries.contest.candidates(x_CD)
        except UnrankableRowsError as error:
            contest, number = self.queries.contest, int(numbers_C[error.rows[0]])
            raise self.source.unrankable(error, contest.scorer, self.hidden, number, None) from error

    def nan_score(self, query: int, number: int) -> EvalError:
        """Return the error that names a query and a candidate whose score is not a number."""
        return self.source.nan_score(self.hidden, int(self.queries.edge_Q[query]), number)

    def add(self, block: QueryBlock, counts: QueryCounts) -> None:
        """Add what some candidates say about a block's queries."""
        rows = counts.rows()
        self.result.counts_NQ[: len(rows), block.first : block.stop] += rows.cpu()

    def add_in_time(self, block: QueryBlock, counts: RankCounts) -> None:
        """Add what those say that a time-aware filter leaves out."""
        nothing = RankCounts.zero(block.stop - block.first)
        self.add(block, QueryCounts(nothing, nothing, counts.cpu()))

    def in_time_cells(
        self, block: QueryBlock, in_time: KnownAnswers, at_a_time: int
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield (query in the block, number) of what a time-aware filter leaves out, but for true entities."""
        assert self.in_time_Q is not None, "there is such a filter"
        competing = self.competing.numbers(block.relation)
        for query, number in in_time.cells(self.in_time_Q[block.first : block.stop], at_a_time):
            counts = number != self.queries.true_Q[block.first + query]
            if competing is not None:
                counts &= is_among(number, competing)
            if counts.any():
                yield query[counts], number[counts]

    def counts(self) -> QueryCounts:
        """Return the counts of all queries, once every candidate has been met."""
        return QueryCounts.of_rows(self.result.counts_NQ)

    def prepare(self, share: tuple[int, int]) -> None:
        """Make the prepared queries and true scores of a share of the keys.

        Args:
            share: first key and one past the last; shares of workers need not be aligned with anything.

        Raises:
            DataError: a query or true entity without a direction under cos, or a true score that is not a number.
        """
        queries = self.queries
        for first, stop in _runs_of_one_schema(queries, *share):
            schema, known_K = int(queries.schema_K[first]), queries.known_K[first:stop]
            scorer, known_side = queries.contest.scorers[schema], self.hidden.other
            rel_K = torch.from_numpy(queries.rel_K[first:stop]) if scorer.dynamic else None
            try:
                known_KD = self.source.vectors(scorer, known_side, known_K)
                prepared_KD = queries.contest.queries(schema, known_KD, rel_K)
            except UnrankableRowsError as error:
                row = error.rows[0]
                edge = int(queries.edge_Q[np.searchsorted(queries.key_Q, first + row)])
                raise self.source.unrankable(error, scorer, known_side, int(known_K[row]), edge) from error
            self.prepared.write(first, prepared_KD)
            if self._is_read_Q is None:
                first_query, last_query = np.searchsorted(queries.key_Q, [first, stop]).tolist()
                self._write_true_scores(prepared_KD, first, (first_query, last_query))

    def _write_true_scores(self, prepared_KD: Tensor, first_key: int, of_queries: tuple[int, int]) -> None:
        queries, (first, last) = self.queries, of_queries
        for at in range(first, last, QUERIES_AT_A_TIME):
            until = min(at + QUERIES_AT_A_TIME, last)
            true_Q = queries.true_Q[at:until]
            row_Q = torch.from_numpy(queries.key_Q[at:until] - first_key).to(prepared_KD.device)
            true_QD = self.source.vectors(queries.contest.scorer, self.hidden, true_Q)
            candidates_QD = self.prepared_candidates(true_QD, true_Q)
            queries_QD = prepared_KD.index_select(0, row_Q)
            if self.certified is not None:
                self.true_scores.write(at, CertifiedTrue.from_pairs(self.certified, queries_QD, candidates_QD).packed())
                continue
            true = TrueScores.from_pairs(self.comparator, queries_QD, candidates_QD, self.paired_scores)
            bad = first_nan_of_pairs(self.comparator, queries_QD, candidates_QD, true.score_Q)
            if bad is not None:
                raise self.nan_score(at + bad, int(true_Q[bad]))
            self.true_scores.write(at, true.packed())


def _runs_of_one_schema(queries: ContestQueries, start: int, stop: int) -> list[tuple[int, int]]:
    borders = np.flatnonzero(np.diff(queries.schema_K[start:stop])) + 1 + start
    runs = []
    for first, last in zip([start, *borders.tolist()], [*borders.tolist(), stop], strict=True):
        runs += [(at, min(at + KEYS_AT_A_TIME, last)) for at in range(first, last, KEYS_AT_A_TIME)]
    return runs
