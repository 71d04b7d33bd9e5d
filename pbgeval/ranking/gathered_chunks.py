"""Tables and lists of sampled candidates -> counts, by a compiled loop that gathers, transforms, multiplies, compares.

Rows and scores of a chunk stay in a core's cache; as blocks of tensors they would go through memory four times. The
fast path of `sampled` for operators and comparators whose prepared rows are the table's own, elementwise transformed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

import numpy as np
import torch
from attrs import field, frozen
from torch import Tensor

from pbgeval.jit import is_installed
from pbgeval.notation import ENDS, Side
from pbgeval.ranking.blocks import product_is_callable
from pbgeval.ranking.chunk_loops import COMPLEX, DIAGONAL, IDENTITY, TRANSLATION, count_gathered
from pbgeval.ranking.counting import JIT_MIN_CELLS, CellIndex, by_row
from pbgeval.scoring import blas
from pbgeval.scoring.entities import EntityTable
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
class ChunkEnd:
    """One end of the edges of some chunks."""

    table: EntityTable
    ids_BK: Tensor  # the list, if this end is hidden in queries, which begins with the chunk's own; else only those
    parameters: Mapping[str, Tensor]  # of operators that act here; leading dimension R, if relations are dynamic
    # (query, candidate) that do not compete, known answers among the others, and cells whose scores are sampled, by
    # query; queries are numbered through all chunks. None: this end is not hidden.
    cells: tuple[CellIndex, CellIndex, CellIndex] | None


def supports(num_cells: int, tensors: Sequence[Tensor]) -> bool:
    """Tell whether the compiled loop takes so many scores, made of some tensors: on a CPU, in float32, and worth it."""
    takes = all(x.device.type == "cpu" and x.dtype is torch.float32 and x.is_contiguous() for x in tensors)
    pays = num_cells > 0 and count_gathered.pays_for(num_cells, JIT_MIN_CELLS)
    return takes and pays and is_installed() and product_is_callable()


@frozen(eq=False)
class GatheredChunks:
    """Chunks of edges that share lists, of one shape, and what is found about their queries."""

    ends: Mapping[Side, ChunkEnd]
    rel_BQ: Tensor | None  # None: relations are not dynamic
    operator: str
    shape: torch.Size  # chunks, queries of each
    _results: dict[Side, Arrays] = field(init=False)  # by the side that queries hide, as the loop takes them

    @_results.default
    def _room(self) -> dict[Side, Arrays]:
        num_queries = self.shape.numel()
        nothing = torch.empty(0, dtype=torch.int64)
        room = {}
        for side, end in self.ends.items():
            excluded, known, sampled = end.cells or ((nothing, nothing),) * 3
            known_start_Q, known_P = by_row(known, num_queries, end.ids_BK.shape[1])
            # In the order of the sample.
            sampled_start_Q = np.searchsorted(sampled[0].numpy(), np.arange(num_queries + 1))
            room[side] = (
                np.empty(num_queries, np.float32),
                by_row(excluded, num_queries, end.ids_BK.shape[1]),
                (known_start_Q, known_P, np.empty(known_P.size, np.float32)),
                (sampled_start_Q, sampled[1].contiguous().numpy(), np.empty(sampled[1].numel(), np.float32)),
                np.zeros((6, num_queries), np.int64),
            )
        return room

    def count(self, chunks: tuple[int, int]) -> bool:
        """Count the queries of chunks `first` to `stop`; threads may count other chunks meanwhile.

        Returns:
            Whether all scores are numbers and their sums too; if not, what was found is of no use.
        """
        code, names = OPERATORS[self.operator]
        ends = [self.ends[side] for side in ENDS]
        table_ND = ends[0].table.embeddings_ND
        dimension = table_ND.shape[1]
        routine = blas.find_sgemm()
        assert routine is not None, "the caller has asked"
        lengths = [end.ids_BK.shape[1] if end.cells else 0 for end in ends]
        rows = size_in_chunks(self.shape[1], table_ND)
        columns = [size_in_chunks(length, table_ND) if length else 0 for length in lengths]
        rel_BQ = torch.empty((self.shape[0], 0), dtype=torch.int64) if self.rel_BQ is None else self.rel_BQ
        lhs, rhs = (max(of, rows, end.ids_BK.shape[1]) for end, of in zip(ends, columns, strict=True))
        # Rows beyond the lists pad products.
        scores_P, lhs_KD, rhs_KD, of_rhs_KD, query_RD = blas.aligned_zeros(
            [(rows * max(columns),), *((of, dimension) for of in (lhs, rhs, rhs, rows))]
        )
        with routine.one_thread():
            total = count_gathered(
                tuple(routine.multiplication(rows, of, dimension, longest_inner(dimension)) for of in columns),
                tuple(end.table.embeddings_ND.numpy() for end in ends),
                tuple(
                    np.zeros(0, np.float32) if (of_D := end.table.global_embedding_D) is None else of_D.numpy()
                    for end in ends
                ),
                tuple(end.ids_BK.contiguous().numpy() for end in ends),
                (code, self.rel_BQ is not None, rel_BQ.contiguous().numpy()),
                tuple(_parameters(end.parameters, names) for end in ends),
                chunks,
                tuple(((self.shape[1], of), *self._results[side]) for side, of in zip(ENDS, lengths, strict=True)),
                ((lhs_KD, rhs_KD), of_rhs_KD, query_RD, scores_P),
            )
        return isfinite(total)

    def found(self, side: Side) -> tuple[QueryCounts, Tensor, Tensor]:
        """Return the counts, true and sampled scores of the queries that hide a side, once all have been counted."""
        true_Q, _, _, (_, _, sampled_score_P), counts_6Q = self._results[side]
        return (
            QueryCounts.of_rows(torch.from_numpy(counts_6Q)),
            torch.from_numpy(true_Q),
            torch.from_numpy(sampled_score_P),
        )


def _parameters(parameters: Mapping[str, Tensor], names: tuple[str, ...]) -> Arrays:
    """Return two parameters by name as matrices, a row for each relation; without any, matrices of no columns."""
    found = [parameters[name] for name in names if name in parameters]
    arrays = [value.reshape(-1, value.shape[-1]).contiguous().numpy() for value in found]
    return tuple([*arrays, _NO_PARAMETERS, _NO_PARAMETERS][:2])
