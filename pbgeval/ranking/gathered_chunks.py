"""Tables and lists of sampled candidates -> counts, by a compiled loop that gathers, transforms, multiplies, compares.

Rows and scores of a chunk stay in a core's cache; as blocks of tensors they would go through memory four times. The
fast path of `sampled` for operators and comparators whose prepared rows are the table's own, elementwise transformed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite

import numpy as np
import torch
from attrs import field, frozen
from torch import Tensor

from pbgeval.jit import is_installed
from pbgeval.notation import Side
from pbgeval.ranking.chunk_loops import COMPLEX, DIAGONAL, IDENTITY, TRANSLATION, count_gathered
from pbgeval.ranking.compiled import CELLS_WORTH_COMPILING
from pbgeval.ranking.count_chunks import ChunkCells, ChunkResults, multiplication_of, product_is_callable
from pbgeval.scoring.product import size_in_chunks

# What the loop knows of operators: their code, and which parameters it reads.
OPERATORS: Mapping[str, tuple[int, tuple[str, ...]]] = {
    "none": (IDENTITY, ()),
    "diagonal": (DIAGONAL, ("diagonal",)),
    "translation": (TRANSLATION, ("translation",)),
    "complex_diagonal": (COMPLEX, ("real", "imag")),
}
_NO_PARAMETERS = np.zeros((1, 0), np.float32)


@frozen(eq=False)
class ChunkEnd:
    """One end of the edges of some chunks."""

    table_ND: Tensor
    global_D: Tensor | None
    ids_BK: Tensor  # the list, if this end is hidden in queries, which begins with the chunk's own; else only those
    parameters: Mapping[str, Tensor]  # of operators that act here; leading dimension R, if relations are dynamic
    cells: ChunkCells | None  # of the list; None: this end is not hidden


def serves(num_cells: int, tensors: Sequence[Tensor]) -> bool:
    """Tell whether the compiled loop takes so many scores, made of some tensors: on a CPU, in float32, and worth it."""
    if any(x.device.type != "cpu" or x.dtype is not torch.float32 or not x.is_contiguous() for x in tensors):
        return False
    worth_it = count_gathered.is_loaded or num_cells >= CELLS_WORTH_COMPILING
    return num_cells > 0 and worth_it and is_installed() and product_is_callable()


@frozen(eq=False)
class GatheredChunks:
    """Chunks of edges that share lists, of one shape, and what is found about their queries."""

    ends: Mapping[Side, ChunkEnd]
    rel_BQ: Tensor | None  # None: relations are not dynamic
    operator: str
    shape: tuple[int, int]  # chunks, queries of each
    results: dict[Side, ChunkResults] = field(init=False)  # by the side that queries hide

    @results.default
    def _room(self) -> dict[Side, ChunkResults]:
        none = torch.empty(0, dtype=torch.int64)
        nothing = ChunkResults(0, self.shape[1], 0, ChunkCells((none, none), (none, none), (none, none)))
        return {
            side: nothing if end.cells is None else ChunkResults(*self.shape, end.ids_BK.shape[1], end.cells)
            for side, end in self.ends.items()
        }

    def count(self, chunks: tuple[int, int]) -> bool:
        """Count the queries of chunks `first` to `stop`; threads may count other chunks meanwhile.

        Returns:
            Whether all scores are numbers and their sums too; if not, what was found is of no use.
        """
        code, names = OPERATORS[self.operator]
        is_dynamic = self.rel_BQ is not None
        ends = [self.ends[side] for side in Side]
        dimension = ends[0].table_ND.shape[1]
        sizes = [size_in_chunks(size, ends[0].table_ND) for size in (self.shape[1], *map(_list_length, ends))]
        routine, lhs_multiplication = multiplication_of(sizes[0], sizes[1] if ends[0].cells else 0, dimension)
        _, rhs_multiplication = multiplication_of(sizes[0], sizes[2] if ends[1].cells else 0, dimension)
        rel_BQ = torch.empty((self.shape[0], 0), dtype=torch.int64) if self.rel_BQ is None else self.rel_BQ
        with routine.one_thread():
            total = count_gathered(
                (lhs_multiplication, rhs_multiplication),
                tuple(end.table_ND.numpy() for end in ends),
                tuple(np.zeros(0, np.float32) if end.global_D is None else end.global_D.numpy() for end in ends),
                tuple(end.ids_BK.contiguous().numpy() for end in ends),
                (code, is_dynamic, rel_BQ.contiguous().numpy()),
                tuple(_parameters(end.parameters, names) for end in ends),
                chunks,
                tuple(self.results[side].arguments(chunks[0]) for side in Side),
            )
        return isfinite(total)


def _list_length(end: ChunkEnd) -> int:
    return end.ids_BK.shape[1]


def _parameters(parameters: Mapping[str, Tensor], names: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Return the parameters by name as matrices, a row for each relation; without any, matrices of no columns."""
    found = [parameters[name] for name in names if name in parameters]
    arrays = [value.reshape(-1, value.shape[-1]).contiguous().numpy() for value in found]
    first, second = [*arrays, _NO_PARAMETERS, _NO_PARAMETERS][:2]
    return first, second
