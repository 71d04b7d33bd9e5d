"""Rows, and pairs of prepared rows, on a GPU: hashes, lengths and scores in float64, each by one kernel."""

from __future__ import annotations

import functools
from types import ModuleType

import torch
from attrs import frozen
from torch import Tensor

from pbgeval.scoring.device_scores import launch
from pbgeval.scoring.exact import SLACK, UNIT, ExactComparator
from pbgeval.scoring.fixed_order import grid_bits

ROWS, WORDS = 32, 16  # of a program that describes rows
PAIRS = 128
OPEN = 2  # the sign of a pair that is left open


@functools.cache
def _kernels() -> ModuleType:
    from pbgeval.scoring import pair_kernels

    return pair_kernels


@frozen(eq=False)
class Described:
    """What is known of some rows, (N,) each."""

    hash_N: Tensor  # int64
    norm_N: Tensor  # float64: at least the length
    square_N: Tensor  # float64: the squared length of the first columns


def describe(rows_ND: Tensor, factors: Tensor, num_squared: int) -> Described:
    """Describe rows of float32.

    Args:
        rows_ND: the columns of a row are next to each other.
        factors: int64, what words of two columns are multiplied with for a hash.
        num_squared: the number of columns whose squares are added up.
    """
    num_rows, num_columns = rows_ND.shape
    hash_N = torch.empty(num_rows, dtype=torch.int64, device=rows_ND.device)
    norm_N, square_N = (torch.empty(num_rows, dtype=torch.float64, device=rows_ND.device) for _ in range(2))
    rows_ND = rows_ND if rows_ND.stride(1) == 1 else rows_ND.contiguous()
    launch(
        _kernels().describe_rows,
        -(-num_rows // ROWS),
        rows_ND,
        factors,
        hash_N,
        norm_N,
        square_N,
        num_rows,
        rows_ND.stride(0),
        num_columns,
        num_squared,
        ROWS=ROWS,
        WORDS=WORDS,
    )
    return Described(hash_N, norm_N, square_N)


def values(
    comparator: ExactComparator,
    query_BKD: Tensor,
    candidate_BCD: Tensor,
    cells: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Return the value of each pair of rows on grids, float64 (P,).

    Args:
        comparator: defines the scores.
        query_BKD: prepared rows.
        candidate_BCD: prepared rows, as many grids.
        cells: the row of each pair among the queries of all grids, and its column; None: rows at the same place.
    """
    num_pairs = query_BKD.shape[:-1].numel() if cells is None else cells[0].numel()
    value_P = torch.empty(num_pairs, dtype=torch.float64, device=query_BKD.device)
    _start(comparator, "values", query_BKD, candidate_BCD, cells, {"value": value_P})
    return value_P


def true_scores(
    comparator: ExactComparator, query_KD: Tensor, true_QD: Tensor, row_Q: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return of each true entity with its query the value, float32, the score and its error, float64 (Q,).

    Args:
        comparator: defines the scores.
        query_KD: prepared rows.
        true_QD: prepared rows.
        row_Q: which of the queries each true entity has; None: the one at its place.
    """
    value_Q = torch.empty(len(true_QD), dtype=torch.float32, device=query_KD.device)
    score_Q, error_Q = (torch.empty_like(value_Q, dtype=torch.float64) for _ in range(2))
    into = {"value": value_Q, "score": score_Q, "error": error_Q}
    cells = row_Q if row_Q is None else (row_Q, row_Q)
    _start(comparator, "true", query_KD[None], true_QD[None], cells, into)
    return value_Q, score_Q, error_Q


def signs(
    comparator: ExactComparator,
    query_BQD: Tensor,
    candidate_BCD: Tensor,
    true: tuple[Tensor, Tensor, Tensor],
    cells: tuple[Tensor, Tensor],
    number: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Compare cells with true scores: 1 higher, 0 equal, -1 lower, `OPEN` where bounds do not tell.

    Args:
        comparator: defines the scores.
        query_BQD: prepared rows.
        candidate_BCD: prepared rows, as many grids.
        true: of all queries: scores, how far they are off, and prepared rows of their true entities.
        cells: the query of each cell among those of all grids, and its column.
        number: on the device, int64, how many cells there are, and a zero; None: all.

    Returns:
        Signs, int8 (P,); how many of them are `OPEN`, int64 (1,), in place of the zero.
    """
    sign_P = torch.empty(cells[0].numel(), dtype=torch.int8, device=query_BQD.device)
    num_open = torch.zeros(1, dtype=torch.int64, device=query_BQD.device) if number is None else number[1:]
    into = {"sign": sign_P, "num_open": num_open}
    _start(comparator, "signs", query_BQD, candidate_BCD, cells, into, true, number)
    return sign_P, num_open


def _start(
    comparator: ExactComparator,
    what: str,
    query_BKD: Tensor,
    candidate_BCD: Tensor,
    cells: tuple[Tensor, Tensor] | None,
    into: dict[str, Tensor],
    true: tuple[Tensor, Tensor, Tensor] | None = None,
    number: Tensor | None = None,
) -> None:
    """Start the kernel of pairs, which writes numbers of each pair, by name."""
    unread = next(iter(into.values()))
    num_pairs = unread.numel()
    if not num_pairs:
        return
    query_ND, candidate_ND = (of.flatten(0, -2) for of in (query_BKD, candidate_BCD))
    query_ND, candidate_ND = (of if of.stride(-1) == 1 else of.contiguous() for of in (query_ND, candidate_ND))
    row_P, column_P = (unread, unread) if cells is None else (of.contiguous() for of in cells)
    true_Q, error_Q, true_QD = (unread, unread, unread[:, None]) if true is None else true
    launch(
        _kernels().score_exactly,
        -(-num_pairs // PAIRS),
        query_ND,
        row_P,
        candidate_ND,
        column_P,
        true_Q.contiguous(),
        error_Q.contiguous(),
        true_QD,
        *(into.get(name, unread) for name in ("value", "score", "error", "sign", "num_open")),
        number,
        num_pairs,
        query_ND.stride(0),
        candidate_ND.stride(0),
        true_QD.stride(0),
        query_BKD.shape[-2],
        candidate_BCD.shape[-2],
        candidate_BCD.shape[-1],
        grid_bits(candidate_BCD.shape[-1] - int(comparator.adds_bias)),
        INDEXED=cells is not None,
        KIND=what,
        IS_DISTANCE=comparator.adds_squares,
        HAS_BIAS=comparator.bias,
        UNIT=UNIT * SLACK,
        PAIRS=PAIRS,
    )
