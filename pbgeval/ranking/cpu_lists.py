"""Tables and lists of sampled candidates -> counts, by a compiled loop that gathers, transforms, multiplies, compares.

Rows and scores of a chunk stay in a core's cache; as blocks of tensors they would go through memory four times. The
fast path of `sampled` for operators and comparators whose prepared rows are the table's own, elementwise transformed.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any

import numpy as np
import torch
from attrs import field, frozen
from torch import Tensor

from pbgeval.notation import ENDS, Side
from pbgeval.ranking.block import Cells, ChunkLists, Counted
from pbgeval.ranking.counting import NO_CELLS
from pbgeval.ranking.cpu_counting import by_row
from pbgeval.ranking.cpu_loops import COMPLEX, DIAGONAL, IDENTITY, TRANSLATION, count_gathered
from pbgeval.scoring import blas
from pbgeval.scoring.product import longest_inner, size_in_chunks
from pbgeval.stats.ranks import QueryCounts

# What the loop knows of operators: their code, and which parameters it reads.
OPERATORS: Mapping[str, tuple[int, tuple[str, ...]]] = {
    "none": (IDENTITY, ()),
    "diagonal": (DIAGONAL, ("diagonal",)),
    "translation": (TRANSLATION, ("translation",)),
    "complex_diagonal": (COMPLEX, ("real", "imag")),
}
_NO_PARAMETERS = np.zeros((1, 0), np.float32)
Arrays = tuple[Any, ...]  # as the loop takes them


@frozen(eq=False)
class GatheredChunks:
    """Chunks of edges that share lists, and what is found about their queries."""

    lists: ChunkLists
    cells: Mapping[Side, Cells]
    _results: dict[Side, Arrays] = field(init=False)  # by the side that queries hide, as the loop takes them

    @_results.default
    def _room(self) -> dict[Side, Arrays]:
        num_queries = self.lists.num_queries
        room = {}
        for side in ENDS:
            excluded, known, read = self.cells.get(side, (NO_CELLS,) * 3)
            num_columns = self.lists.ids[side].shape[1]
            known_start_Q, known_P = by_row(known, num_queries, num_columns)
            read_start_Q = np.searchsorted(read[0].numpy(), np.arange(num_queries + 1))  # in the order of the cells
            room[side] = (
                np.empty(num_queries, np.float32),
                by_row(excluded, num_queries, num_columns),
                (known_start_Q, known_P, np.empty(known_P.size, np.float32)),
                (read_start_Q, read[1].contiguous().numpy(), np.empty(read[1].numel(), np.float32)),
                np.zeros((6, num_queries), np.int64),
            )
        return room

    def count(self, chunks: tuple[int, int]) -> bool:
        """Count the queries of chunks `first` to `stop`; threads may count other chunks meanwhile.

        Returns:
            Whether all scores are numbers and their sums too; if not, what was found is of no use.
        """
        lists, (num_chunks, num_queries) = self.lists, self.lists.shape
        code, names = OPERATORS[lists.scorer.operator]
        tables = [lists.tables[side] for side in ENDS]
        ids = [lists.ids[side].contiguous() for side in ENDS]
        table_ND = tables[0].embeddings_ND
        dimension = table_ND.shape[1]
        routine = blas.find_sgemm()
        assert routine is not None, "the caller has asked"
        lengths = [lists.ids[side].shape[1] if side in lists.hidden else 0 for side in ENDS]
        rows = size_in_chunks(num_queries, table_ND)
        columns = [size_in_chunks(length, table_ND) if length else 0 for length in lengths]
        rel_BQ = torch.empty((num_chunks, 0), dtype=torch.int64) if lists.rel_BQ is None else lists.rel_BQ
        lhs, rhs = (max(of, rows, ids_BK.shape[1]) for ids_BK, of in zip(ids, columns, strict=True))
        # Rows beyond the lists pad products.
        scores_P, lhs_KD, rhs_KD, of_rhs_KD, query_RD = blas.aligned_zeros(
            [(rows * max(columns),), *((of, dimension) for of in (lhs, rhs, rhs, rows))]
        )
        with routine.one_thread():
            total = count_gathered(
                tuple(routine.multiplication(rows, of, dimension, longest_inner(dimension)) for of in columns),
                tuple(table.embeddings_ND.numpy() for table in tables),
                tuple(
                    np.zeros(0, np.float32) if (of_D := table.global_embedding_D) is None else of_D.numpy()
                    for table in tables
                ),
                tuple(ids_BK.numpy() for ids_BK in ids),
                (code, lists.rel_BQ is not None, rel_BQ.contiguous().numpy()),
                tuple(_parameters(lists.scorer.parameters.get(side, {}), names) for side in ENDS),
                chunks,
                tuple(((num_queries, of), *self._results[side]) for side, of in zip(ENDS, lengths, strict=True)),
                ((lhs_KD, rhs_KD), of_rhs_KD, query_RD, scores_P),
            )
        return isfinite(total)

    def found(self, side: Side) -> Counted:
        """Return the counts, true scores and scores read of the queries that hide a side, once all are counted."""
        true_Q, _, _, (_, _, read_P), counts_6Q = self._results[side]
        counts = QueryCounts.of_rows(torch.from_numpy(counts_6Q))
        return Counted(counts, torch.from_numpy(true_Q), torch.from_numpy(read_P), NO_CELLS, None)


def _parameters(parameters: Mapping[str, Tensor], names: tuple[str, ...]) -> Arrays:
    """Return two parameters by name as matrices, a row for each relation; without any, matrices of no columns."""
    found = [parameters[name] for name in names if name in parameters]
    arrays = [value.reshape(-1, value.shape[-1]).contiguous().numpy() for value in found]
    return tuple([*arrays, _NO_PARAMETERS, _NO_PARAMETERS][:2])
