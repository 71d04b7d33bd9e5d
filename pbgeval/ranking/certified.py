"""Fast scores with bounds -> the counts of exact arithmetic: what the bounds leave open is decided pair by pair.

A score above the true score by more than both can be off is better, one as far below is worse, whatever rounds how.
Scores in between are counted apart by the same loops (as if they tied), found, and decided: in float64 where its own
bound allows, else exactly. So the integers do not depend on the product, its block or the hardware.
"""

from __future__ import annotations

import torch
from attrs import define, evolve, field, frozen
from torch import Tensor

from pbgeval.ranking import blocks
from pbgeval.ranking.counting import CellIndex, are_among, count, count_compared
from pbgeval.scoring.block_sizes import sizes_on
from pbgeval.scoring.certified import CertifiedComparator
from pbgeval.scoring.fast_products import (
    Bfloat16Use,
    FastScores,
    GridProduct,
    Operands,
    PreparedRows,
    fast_scores,
    operands_of,
)
from pbgeval.scoring.true_scores import CertifiedTrue
from pbgeval.stats.ranks import QueryCounts, RankCounts


def _limits(
    offset_and_error_K: tuple[Tensor, Tensor], true: CertifiedTrue, row_Q: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Return above which score of a block a candidate is better, and below which it is worse, in the scores' type.

    Args:
        offset_and_error_K: of the block's rows.
        true: what candidates are compared with.
        row_Q: row of each query.
        dtype: of the block's scores.
    """
    offset_K, error_K = offset_and_error_K
    middle_Q = true.score_Q + offset_K[row_Q]
    # The last term allows for the roundings of these lines.
    width_Q = (true.error_Q + error_K[row_Q]) * (1 + 2.0**-40) + middle_Q.abs() * 2.0**-50
    return _rounded(middle_Q + width_Q, dtype, torch.inf), _rounded(middle_Q - width_Q, dtype, -torch.inf)


def _rounded(x_Q: Tensor, dtype: torch.dtype, towards: float) -> Tensor:
    """Round numbers in one direction."""
    rounded_Q = x_Q.to(dtype)
    short_Q = rounded_Q.double() < x_Q if towards > 0 else rounded_Q.double() > x_Q
    return torch.where(short_Q, torch.nextafter(rounded_Q, torch.full_like(rounded_Q, towards)), rounded_Q)


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
        candidates: prepared rows, and the one of each pair.
        true: of all queries.
        query_P: the query of each pair, whose true entity is meant.
    """
    parts = [torch.empty(0, dtype=torch.int8, device=query_P.device)]
    sizes = sizes_on(query_P.device)
    step = sizes.rows(sizes.decided_pairs, candidates[0].shape[-1])
    for start in range(0, query_P.numel(), step):
        pairs = slice(start, start + step)
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
        with comparator.lock:
            comparator.tally.update(in_float64=query.numel() - open_P.numel(), exactly=open_P.numel())
        parts.append(signs_P)
    return torch.cat(parts)


def _with_decisions(counts: RankCounts, query_P: Tensor, signs_P: Tensor) -> RankCounts:
    """Return counts in which the undecided candidates, counted as tied, are what they were found to be."""
    decided = count_compared(query_P, signs_P > 0, signs_P == 0, counts.better_Q.numel())
    return RankCounts(counts.better_Q + decided.better_Q, decided.tied_Q, counts.num_competitors_Q)


# Blocks of fast scores -> the counts of exact arithmetic, for every pass (`precision = "certified"`).

MAX_OPEN = 1 << 18  # cells of a block that are listed at once; changes no number
# Of cells, by a product in bfloat16: deciding one takes as long as hundreds of products.
MAX_OPEN_SHARE = 2.0**-9


@frozen(eq=False)
class CertifiedQueries:
    """Some queries, and the rows that they share or that each has."""

    prepared: PreparedRows  # (K, L + 1)
    row_Q: Tensor  # row of each
    true: CertifiedTrue


def count_by_bounds(
    queries: CertifiedQueries,
    fast: FastScores,
    own_Q: Tensor,
    known: CellIndex | None,
    excluded: CellIndex | None = None,
) -> tuple[QueryCounts, CellIndex]:
    """Count a block as far as bounds decide; what they leave open is counted as tied, and named: (query, column).

    Args:
        queries: of the block.
        fast: the block's scores, (K, C).
        own_Q: column of each true entity, out of range where it is not in the block.
        known: (row, column) of the known answers, rows ascending; None: no filter.
        excluded: (query, column) of other cells that do not compete, each once.
    """
    row_Q, true, scores_KC = queries.row_Q, queries.true, fast.scores_KC
    limits = _limits((fast.offset_K, fast.error_K), true, row_Q, scores_KC.dtype)
    counts = count(scores_KC, *limits, row_Q=row_Q, own_Q=own_Q, excluded=excluded, known=known)
    # The cells between the limits of their query, which were counted as tied. A GPU is not asked which queries have any
    open_Q = torch.arange(row_Q.numel(), device=row_Q.device)
    if row_Q.device.type == "cpu":
        open_Q = counts.raw.tied_Q.nonzero().squeeze(1)
    scores_OC = scores_KC[row_Q[open_Q]]
    high_O1, low_O1, own_O1 = (of_Q[open_Q].unsqueeze(1) for of_Q in (*limits, own_Q))
    is_open_OC = (scores_OC <= high_O1) & (scores_OC >= low_O1)
    is_open_OC &= torch.arange(scores_KC.shape[1], device=row_Q.device) != own_O1
    at, column_P = is_open_OC.nonzero(as_tuple=True)
    query_P = open_Q[at]
    if excluded is not None:
        competes_P = ~are_among(query_P, column_P, excluded, scores_KC.shape[1])
        query_P, column_P = query_P[competes_P], column_P[competes_P]
    return counts, (query_P, column_P)


def count_certified_compiled(
    queries: CertifiedQueries,
    candidates: PreparedRows,
    own_Q: Tensor,
    known: CellIndex | None,
    bfloat16: Bfloat16Use,
) -> QueryCounts | None:
    """Count a block as exact arithmetic does, by a compiled loop, without a block of scores in memory.

    Args:
        queries: of the block.
        candidates: prepared rows.
        own_Q: column of each true entity, out of range where it is not in the block.
        known: (row, column) of the known answers, each once; None: no filter.
        bfloat16: what is known of blocks like this one.

    Returns:
        None where the loop does not count such a block.
    """
    num_cells = own_Q.numel() * candidates.rows_NL.shape[0]
    if not blocks.is_worth_it(candidates.rows_NL.device, num_cells):
        return None
    rows_CL = candidates.rows_NL
    if bfloat16.num_given_up <= 2 + bfloat16.num_blocks // 2 and blocks.multiplies_bfloat16():
        operands = operands_of(queries.prepared, candidates, in_bfloat16=True)
        if operands is not None:
            counts = _counted(queries, rows_CL, operands, own_Q, known, int(num_cells * MAX_OPEN_SHARE) + 1)
            bfloat16.num_blocks += 1
            bfloat16.num_given_up += counts is None
            if counts is not None:
                return counts
    operands = operands_of(queries.prepared, candidates)
    return None if operands is None else _counted_in_parts(queries, rows_CL, operands, own_Q, known)


def _counted(
    queries: CertifiedQueries,
    candidates_CL: Tensor,
    operands: Operands,
    own_Q: Tensor,
    known: CellIndex | None,
    most_open: int,
) -> QueryCounts | None:
    """Count a block; None if its product leaves more than so many cells open."""
    counts, cells, _ = blocks.count(
        operands.queries.rows_NW,
        operands.candidates.rows_NW,
        _limits(
            operands.kind.bounds(operands.queries, operands.candidates), queries.true, queries.row_Q, torch.float32
        ),
        (queries.row_Q, own_Q),
        known,
        room_for_open=most_open,
    )
    return None if cells is None else decided(queries, candidates_CL, 0, len(candidates_CL), counts, cells, known)


def _counted_in_parts(
    queries: CertifiedQueries,
    candidates_CL: Tensor,
    operands: Operands,
    own_Q: Tensor,
    known: CellIndex | None,
) -> QueryCounts:
    """Count a block, and where many tie, or nearly, its halves, which are listed in the same room."""
    # There is room at least for a column.
    counts = _counted(queries, candidates_CL, operands, own_Q, known, max(MAX_OPEN, own_Q.numel()))
    if counts is not None:
        return counts
    middle, total = candidates_CL.shape[0] // 2, QueryCounts.unfiltered(RankCounts.zero(own_Q.numel(), own_Q.device))
    for start, stop in ((0, middle), (middle, candidates_CL.shape[0])):
        of_half = known
        if known is not None:
            here = (known[1] >= start) & (known[1] < stop)
            of_half = known[0][here], known[1][here] - start
        half = evolve(operands, candidates=operands.candidates.take(slice(start, stop)))
        total = total + _counted_in_parts(queries, candidates_CL[start:stop], half, own_Q - start, of_half)
    return total


def decided(
    queries: CertifiedQueries,
    candidates_CL: Tensor,
    first_Q: Tensor | int,
    num_columns: int,
    counts: QueryCounts,
    cells: CellIndex,
    known: CellIndex | None,
) -> QueryCounts:
    """Return counts in which the cells (query, column) that no bound decides are what exact arithmetic says.

    Args:
        queries: of the counts.
        candidates_CL: prepared rows.
        first_Q: the row of the first column; for each query, where they meet different candidates.
        num_columns: that a query meets.
        counts: as far as bounds decide.
        cells: (query, column) of those that were counted as tied.
        known: (row, column) of the known answers; None: no filter.
    """
    query_P, column_P = cells
    if not query_P.numel():
        return counts
    row_P = queries.row_Q[query_P]
    known_P = are_among(row_P, column_P, known, num_columns)
    first_P = first_Q[query_P] if isinstance(first_Q, Tensor) else first_Q
    signs_P = decide(
        queries.prepared.comparator,
        (queries.prepared.rows_NL, row_P),
        (candidates_CL, column_P + first_P),
        queries.true,
        query_P,
    )
    return QueryCounts(
        _with_decisions(counts.raw, query_P, signs_P), _with_decisions(counts.known, query_P[known_P], signs_P[known_P])
    )


@define(eq=False)
class UndecidedCells:
    """What bounds leave open in the blocks of some queries, to be decided together."""

    queries: CertifiedQueries
    candidates_CL: Tensor  # prepared rows of all blocks
    _counts: list[QueryCounts] = field(factory=list, init=False)  # as far as bounds decide
    _cells: list[CellIndex] = field(factory=list, init=False)
    _known: list[CellIndex] = field(factory=list, init=False)

    def add(self, counts: QueryCounts, cells: CellIndex, first_column: int, known: CellIndex | None) -> None:
        """Add a block that begins with a column; None: nothing is filtered."""
        self._counts.append(counts)
        for listed, new in ((self._cells, cells), *([] if known is None else [(self._known, known)])):
            listed.append((new[0], new[1] + first_column))

    def decide_if_many(self) -> QueryCounts:
        """Return the counts of the blocks added, if many cells are open, else none: they wait."""
        num_open = sum(query_P.numel() for query_P, _ in self._cells)
        is_full = num_open >= sizes_on(self.candidates_CL.device).decided_pairs
        return self.decide() if is_full else self._nothing()

    def decide(self) -> QueryCounts:
        """Return the counts of the blocks added since the last time."""
        counts = sum(self._counts, start=self._nothing())
        if self._cells:
            cells, known = (
                None if not listed else (torch.cat([of[0] for of in listed]), torch.cat([of[1] for of in listed]))
                for listed in (self._cells, self._known)
            )
            assert cells is not None, "there are blocks"
            counts = decided(self.queries, self.candidates_CL, 0, len(self.candidates_CL), counts, cells, known)
        for listed in (self._counts, self._cells, self._known):
            listed.clear()
        return counts

    def _nothing(self) -> QueryCounts:
        return QueryCounts.unfiltered(RankCounts.zero(self.queries.row_Q.numel(), self.queries.row_Q.device))


@frozen(eq=False)
class CertifiedChunks:
    """Chunks of queries, each with candidates of its own, and their scores: fast ones, or values if asked for."""

    fast: FastScores  # of all queries (Q, C)
    queries: CertifiedQueries
    candidates_CL: Tensor  # of all chunks, one after the other
    first_Q: Tensor  # row of the first candidate of each query's chunk

    @classmethod
    def score(
        cls,
        comparator: CertifiedComparator,
        query_BQL: Tensor,
        candidate_BCL: Tensor,
        true_QL: Tensor,
        *,
        values: bool,
    ) -> CertifiedChunks:
        """Multiply prepared rows of some chunks, whose true entities' rows are given for all queries in order."""
        fast = fast_scores(
            PreparedRows(comparator, query_BQL, of_queries=True),
            PreparedRows(comparator, candidate_BCL, of_queries=False),
            values=values,
        )
        query_QL = query_BQL.flatten(0, 1)
        true = CertifiedTrue.from_pairs(comparator, query_QL, true_QL)
        row_Q = torch.arange(len(query_QL), device=query_QL.device)
        return cls(
            FastScores(fast.scores_KC.flatten(0, 1), fast.offset_K.flatten(), fast.error_K.flatten()),
            CertifiedQueries(PreparedRows(comparator, query_QL, of_queries=True), row_Q, true),
            candidate_BCL.flatten(0, 1),
            row_Q // query_BQL.shape[1] * candidate_BCL.shape[1],
        )

    def count(self, own_Q: Tensor, known: CellIndex, excluded: CellIndex) -> QueryCounts:
        """Count the candidates of each query but its true entity and those excluded; cells are (query, candidate)."""
        device = self.first_Q.device
        known, excluded = ((query.to(device), column.to(device)) for query, column in (known, excluded))
        counts, cells = count_by_bounds(self.queries, self.fast, own_Q.to(device), known, excluded)
        return decided(
            self.queries, self.candidates_CL, self.first_Q, self.fast.scores_KC.shape[1], counts, cells, known
        )

    def values_of(self, query: Tensor, candidate: Tensor) -> Tensor:
        """Return the values of cells."""
        candidate_PL = self.candidates_CL[self.first_Q[query] + candidate]
        return GridProduct(self.queries.prepared.comparator).paired(self.queries.prepared.rows_NL[query], candidate_PL)
