"""Tables and lists of sampled candidates -> counts, by compiled loops that gather, transform, multiply and compare.

This is the fast path of `sampled` for operators and comparators that prepare a table's rows elementwise. A chunk's rows
and scores stay in a core's cache; as blocks of tensors they would pass through memory four times.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import isfinite
from typing import Any

import numpy as np
import torch
from attrs import field, frozen
from torch import Tensor

from pbgeval.notation import ENDS, Side
from pbgeval.ranking.block import NO_LIST_CELLS, ChunkLists, Counted, ListCells
from pbgeval.ranking.counting import NO_CELLS, CellIndex
from pbgeval.ranking.cpu_counting import by_row, first_by_row
from pbgeval.ranking.cpu_loops import (
    COMPLEX,
    COS,
    DIAGONAL,
    DISTANCE,
    DOT,
    IDENTITY,
    TRANSLATION,
    count_gathered,
    count_gathered_exactly,
)
from pbgeval.ranking.settings import Kept
from pbgeval.scoring import blas
from pbgeval.scoring.exact import ExactComparator, relative_error
from pbgeval.scoring.fast_products import grid_shifts, product_error
from pbgeval.scoring.operators import moves_to_query
from pbgeval.scoring.product import longest_inner, size_in_chunks
from pbgeval.stats.ranks import QueryCounts

# The operators that the loop supports: their code, and the parameters that it reads.
OPERATORS: Mapping[str, tuple[int, tuple[str, ...]]] = {
    "none": (IDENTITY, ()),
    "diagonal": (DIAGONAL, ("diagonal",)),
    "translation": (TRANSLATION, ("translation",)),
    "complex_diagonal": (COMPLEX, ("real", "imag")),
}
GATHERED_COMPARATORS = ("dot", "cos", "l2", "squared_l2", "clamped_dot")  # that the loop for exact ranks supports
OPEN_PER_QUERY = 1  # cells that may stay open in float64, on average; does not change the results
Arrays = tuple[Any, ...]  # arguments of the loop


def slow_exact_lists(
    comparator: str,
    operators: Iterable[str],
    *,
    bias: bool,
    dynamic: bool,
) -> str | None:
    """Return why exact ranks in sampled lists are not counted by a loop, in words; None if they are.

    Args:
        comparator: one that has exact ranks.
        operators: of the relations that meet sampled lists.
        bias: whether the comparator has one.
        dynamic: whether relations are dynamic.
    """
    operators = tuple(operators)
    unknown = next((operator for operator in operators if operator not in OPERATORS), None)
    stays = next((operator for operator in operators if not dynamic and not moves_to_query(operator, comparator)), None)
    reasons = {
        f"comparator {comparator!r}": comparator not in GATHERED_COMPARATORS,
        f"comparator {comparator!r} and bias = True": bias and comparator not in ("dot", "cos"),
        f"operator {unknown!r}": unknown is not None,
        f"operator {stays!r}, comparator {comparator!r} and dynamic_relations = False": stays is not None,
    }
    return next((reason for reason, applies in reasons.items() if applies), None) if operators else None


@frozen(eq=False)
class _Sizes:
    """How chunks are laid out for products."""

    lists: ChunkLists
    rows: int  # of a product, with padding
    columns: tuple[int, ...]  # of a product on each side, with padding
    dimension: int

    @classmethod
    def from_lists(cls, lists: ChunkLists, more_columns: int = 0) -> _Sizes:
        table_ND, lengths = lists.tables[Side.LHS].embeddings_ND, (lists.num_candidates(side) for side in ENDS)
        columns = tuple(size_in_chunks(length, table_ND) if length else 0 for length in lengths)
        return cls(lists, size_in_chunks(lists.shape[1], table_ND), columns, table_ND.shape[1] + more_columns)

    def row_shapes(self) -> list[tuple[int, int]]:
        """Return the shape of the gathered rows on each side; rows beyond the lists pad products."""
        return [
            (max(self.lists.first + columns, self.rows, self.lists.ids[side].shape[1]), self.dimension)
            for side, columns in zip(ENDS, self.columns, strict=True)
        ]

    def multiplications(self, routine: blas.Gemm) -> Arrays:
        """Return the arguments of the multiplication on each side."""
        inner = longest_inner(self.dimension)
        return tuple(routine.multiplication(self.rows, columns, self.dimension, inner) for columns in self.columns)


@frozen(eq=False)
class GatheredChunks:
    """Chunks of edges that share lists, and the results of their queries."""

    lists: ChunkLists
    results: Mapping[Side, Arrays]  # by hidden side: see `loop_arguments`

    def count(self, chunks: tuple[int, int]) -> bool:
        """Count the queries of chunks `first` to `stop`; other threads may count other chunks at the same time.

        Returns:
            Whether all scores and their sums are finite; if not, the results are invalid.
        """
        lists, sizes, routine = self.lists, _Sizes.from_lists(self.lists), blas.find_sgemm()
        assert routine is not None, "the caller has checked"
        code, names = OPERATORS[lists.scorer.operator]
        lhs_shape, rhs_shape = sizes.row_shapes()
        scores_P, lhs_KD, rhs_KD, of_rhs_KD, query_KD = blas.aligned_zeros(
            [(sizes.rows * max(sizes.columns),), lhs_shape, rhs_shape, rhs_shape, (sizes.rows, sizes.dimension)]
        )
        with routine.one_thread():
            total = count_gathered(
                sizes.multiplications(routine),
                tuple(_table(lists, side) for side in ENDS),
                _ids(lists),
                (code, lists.rel_BQ is not None, _relations(lists)),
                tuple(_parameters(lists.scorer.parameters.get(side, {}), names, np.float32) for side in ENDS),
                chunks,
                tuple(((lists.shape[1], lists.num_candidates(side)), *self.results[side]) for side in ENDS),
                ((lhs_KD, rhs_KD), of_rhs_KD, query_KD, scores_P),
            )
        return isfinite(total)

    def found(self, side: Side) -> Counted:
        """Return the counts, true scores and scores read of the queries that hide a side, once all are counted."""
        return _counted(self.results[side])


@frozen(eq=False)
class ExactChunks:
    """Chunks whose queries are counted in exact arithmetic, except for the cells that stay open."""

    lists: ChunkLists
    results: Mapping[Side, Arrays]  # by hidden side: see `loop_arguments`
    exact_comparator: ExactComparator
    kept: Kept  # of the scores
    _scores: Mapping[Side, np.ndarray] = field(init=False)  # (Q, C) of each side, float32; not kept: without columns
    _open: list[Mapping[Side, CellIndex]] = field(factory=list, init=False)  # one for each thread's chunks
    _num_decided: list[np.ndarray] = field(factory=list, init=False)  # in float64, by side, of each thread's chunks

    @_scores.default
    def _room_for_scores(self) -> dict[Side, np.ndarray]:
        is_kept = self.kept is Kept.SCORES
        lengths = {side: self.lists.num_candidates(side) if is_kept else 0 for side in ENDS}
        return {side: np.empty((self.lists.num_queries, length), np.float32) for side, length in lengths.items()}

    def count(self, chunks: tuple[int, int]) -> bool:
        """Count the queries of chunks `first` to `stop`; other threads may count other chunks at the same time.

        Returns:
            Whether all scores and their sums are finite, and the cells that stay open fit in their list; if not, the
            results are invalid.
        """
        lists, routine, adds_squares = self.lists, blas.find_sgemm(), self.exact_comparator.adds_squares
        width = lists.tables[Side.LHS].embeddings_ND.shape[1]
        assert routine is not None, "the caller has checked"
        sizes = _Sizes.from_lists(lists, more_columns=int(adds_squares))  # a column for the square
        scores_P, lhs_KD, rhs_KD, query_KD = blas.aligned_zeros(
            [(sizes.rows * max(sizes.columns),), *sizes.row_shapes(), (sizes.rows, sizes.dimension)]
        )
        num_queries = lists.shape[1]
        constant_Q, in_float64 = np.empty(num_queries, np.float64), tuple(np.empty((3, width), np.float64))
        max_open = max(1, OPEN_PER_QUERY * num_queries * (chunks[1] - chunks[0]))
        listed = {side: np.empty((2, max_open), np.int64) for side in ENDS}
        num_open = np.zeros((2, 3), np.int64)  # by side: cells that stay open, cells that were decided; the last unused
        form = DISTANCE if adds_squares else COS if self.exact_comparator.name == "cos" else DOT
        share, end = relative_error(width), self.exact_comparator.end
        bounds = *product_error(sizes.dimension, torch.float32), share, end, grid_shifts(width)
        with routine.one_thread():
            total = count_gathered_exactly(
                sizes.multiplications(routine),
                tuple(_table(lists, side) for side in ENDS),
                self.exact_comparator.bias,
                _ids(lists),
                lists.first,
                _relations(lists),
                tuple(_query_operator(lists, side) for side in ENDS),
                chunks,
                tuple(
                    (
                        (num_queries, lists.num_candidates(side)),
                        *self.results[side],
                        (*listed[side], num_open[side.value]),
                        self._scores[side],
                    )
                    for side in ENDS
                ),
                (form, width, *bounds),
                ((lhs_KD, rhs_KD), query_KD, constant_Q, in_float64, scores_P),
            )
        self._num_decided.append(num_open[:, 1])
        open_cells = {}
        for side in ENDS:
            query_P, column_P = torch.from_numpy(listed[side][:, : num_open[side.value, 0]])
            open_cells[side] = query_P, column_P
        self._open.append(open_cells)
        return isfinite(total) and bool((num_open[:, 0] <= max_open).all())

    def found(self, side: Side) -> Counted:
        """Return the counts, values and open cells of the queries that hide a side, once all are counted."""
        with self.exact_comparator.lock:
            self.exact_comparator.tally.update(
                in_float64=sum(int(of_thread[side.value]) for of_thread in self._num_decided)
            )
        query_P, column_P = (torch.cat(parts) for parts in zip(*(cells[side] for cells in self._open), strict=True))
        scores_QC = torch.from_numpy(self._scores[side]) if self.kept is Kept.SCORES else None
        return _counted(self.results[side], (query_P, column_P), scores_QC)


def _counted(results: Arrays, open_cells: CellIndex = NO_CELLS, scores_QC: Tensor | None = None) -> Counted:
    """Return what a loop has written in the arguments that `loop_arguments` made for a side."""
    (_, true_Q), _, _, (_, _, read_P), counts_6Q = results
    counts = QueryCounts.of_rows(torch.from_numpy(counts_6Q))
    return Counted(counts, torch.from_numpy(true_Q).float(), torch.from_numpy(read_P), open_cells, scores_QC)


def loop_arguments(lists: ChunkLists, cells: Mapping[Side, ListCells], dtype: type) -> dict[Side, Arrays]:
    """Return the cells of queries by hidden side as arguments of the loops, with room for scores and counts."""
    results: dict[Side, Arrays] = {}
    num_queries = lists.num_queries
    for side in ENDS:
        special = cells.get(side, NO_LIST_CELLS)
        reads_true_Q = np.ones(num_queries, bool) if special.true_is_read_Q is None else special.true_is_read_Q.numpy()
        known_start_Q, known_P = by_row(special.known, num_queries, lists.num_candidates(side))
        read_start_Q = first_by_row(special.read[0].numpy(), num_queries)  # in the order of the cells
        results[side] = (
            (reads_true_Q, np.zeros(num_queries, dtype)),
            by_row(special.excluded, num_queries, lists.num_candidates(side)),
            (known_start_Q, known_P, np.empty(known_P.size, np.float32)),
            (read_start_Q, special.read[1].contiguous().numpy(), np.empty(special.read[1].numel(), dtype)),
            np.zeros((6, num_queries), np.int64),
        )
    return results


def _table(lists: ChunkLists, side: Side) -> Arrays:
    """Return a side's embeddings, what is added to its rows (empty: nothing), and their largest norm."""
    table = lists.tables[side]
    global_D, max_norm = table.global_embedding_D, table.max_norm
    added_D = np.zeros(0, np.float32) if global_D is None else global_D.numpy()
    return table.embeddings_ND.numpy(), added_D, np.inf if max_norm is None else float(max_norm)


def _ids(lists: ChunkLists) -> Arrays:
    """Return the ids of both sides' rows."""
    return tuple(lists.ids[side].contiguous().numpy() for side in ENDS)


def _relations(lists: ChunkLists) -> np.ndarray:
    """Return the relation of each query; without columns if all share one."""
    return np.empty((lists.shape[0], 0), np.int64) if lists.rel_BQ is None else lists.rel_BQ.contiguous().numpy()


def _query_operator(lists: ChunkLists, hidden: Side) -> tuple[int, bool, Arrays]:
    """Return the operator on the queries that hide a side, for exact scores: code, whether it has moved, parameters.

    An operator on the candidates is replaced by its adjoint on the queries: see `scorer`.
    """
    scorer = lists.scorer
    code, names = OPERATORS[scorer.operator]
    is_moved = scorer.acts_on_candidates(hidden)
    parameters = scorer.parameters.get(hidden if is_moved else hidden.other, {})
    undone = "imag" if scorer.comparator.name == "dot" else "translation"  # the adjoint, or the way back
    if is_moved and undone in parameters:
        parameters = {**parameters, undone: -parameters[undone]}
    return code if parameters else IDENTITY, is_moved, _parameters(parameters, names, np.float64)


def _parameters(parameters: Mapping[str, Tensor], names: tuple[str, ...], dtype: type) -> Arrays:
    """Return two parameters as matrices, one row per relation; a missing one has no columns."""
    found = [parameters[name] for name in names if name in parameters]
    arrays = [value.reshape(-1, value.shape[-1]).contiguous().numpy() for value in found]
    none: np.ndarray = np.zeros((1, 0), dtype)
    return tuple([*arrays, none, none][:2])
