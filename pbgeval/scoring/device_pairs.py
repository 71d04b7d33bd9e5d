"""Rows, and pairs of prepared rows, on a GPU: hashes, lengths and scores in float64, each by one kernel."""

from __future__ import annotations

import functools
from types import ModuleType

import torch
from attrs import frozen
from torch import Tensor

from pbgeval.scoring.device_scores import current

ROWS, WORDS = 32, 16  # of a program that describes rows
PAIRS = 128
WARPS = 4
LENGTH_SLACK = 1.0 + 1e-9  # covers roundings of a length
BOUND_SLACK = 1.0 + 2.0**-40  # and of a bound
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
    if num_rows:
        with current(rows_ND.device):
            _kernels().describe_rows[(-(-num_rows // ROWS),)](
                rows_ND,
                factors,
                hash_N,
                norm_N,
                square_N,
                num_rows,
                rows_ND.stride(0),
                num_columns,
                num_squared,
                SLACK=LENGTH_SLACK,
                ROWS=ROWS,
                WORDS=WORDS,
                num_warps=WARPS,
            )
    return Described(hash_N, norm_N, square_N)


@frozen
class PairKind:
    """Which pairs are scored: of a distance or of inner products, with the bits of a grid and the unit of a bound."""

    is_distance: bool
    bias: bool
    bits: int
    unit: float  # relative error of a rounding


def values(kind: PairKind, query_PD: Tensor, candidate_PD: Tensor) -> Tensor:
    """Return the value of each pair of rows on grids, float64 (P,)."""
    return _start(kind, "values", (query_PD, None), (candidate_PD, None), None)[0]


def scores(kind: PairKind, query_PD: Tensor, candidate_PD: Tensor) -> tuple[Tensor, Tensor]:
    """Return the score of each pair of rows, without the constant, and how far at most it is off, float64 (P,)."""
    score_P, error_P, _ = _start(kind, "scores", (query_PD, None), (candidate_PD, None), None)
    return score_P, error_P


def signs(
    kind: PairKind,
    queries: tuple[Tensor, Tensor],
    candidates: tuple[Tensor, Tensor],
    true: tuple[Tensor, Tensor, Tensor],
    query_P: Tensor,
) -> Tensor:
    """Compare pairs with true scores: 1 higher, 0 equal, -1 lower, `OPEN` where bounds do not tell; int8 (P,).

    Args:
        kind: of the pairs.
        queries: prepared rows, and each pair's index among them.
        candidates: the same.
        true: scores of all queries, how far they are off, and prepared rows of their true entities.
        query_P: each pair's index among these.
    """
    return _start(kind, "signs", queries, candidates, (*true, query_P))[2]


def _start(
    kind: PairKind,
    what: str,
    queries: tuple[Tensor, Tensor | None],
    candidates: tuple[Tensor, Tensor | None],
    true: tuple[Tensor, Tensor, Tensor, Tensor] | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Start the kernel of pairs; return scores, errors and signs, of which those asked for are written."""
    (query_ND, row_P), (candidate_ND, column_P) = queries, candidates
    device, num_pairs = query_ND.device, candidate_ND.shape[0] if column_P is None else column_P.numel()
    score_P, error_P = (
        torch.empty(num_pairs if is_written else 0, dtype=torch.float64, device=device)
        for is_written in (what != "signs", what == "scores")
    )
    sign_P = torch.empty(num_pairs if what == "signs" else 0, dtype=torch.int8, device=device)
    if not num_pairs:
        return score_P, error_P, sign_P
    query_ND, candidate_ND = (of if of.stride(-1) == 1 else of.contiguous() for of in (query_ND, candidate_ND))
    row_P, column_P = (sign_P if of is None else of.contiguous() for of in (row_P, column_P))  # if none, not read
    true_Q, error_Q, true_QD, at_P = [sign_P[:, None]] * 4 if true is None else (of.contiguous() for of in true)
    with current(device):
        _kernels().score_exactly[(-(-num_pairs // PAIRS),)](
            query_ND,
            row_P,
            candidate_ND,
            column_P,
            at_P,
            true_Q,
            error_Q,
            true_QD,
            score_P,
            error_P,
            sign_P,
            num_pairs,
            query_ND.stride(0),
            candidate_ND.stride(0),
            true_QD.stride(0),
            candidate_ND.shape[-1],
            kind.bits,
            INDEXED=what == "signs",
            KIND=what,
            IS_DISTANCE=kind.is_distance,
            HAS_BIAS=kind.bias,
            UNIT=kind.unit,
            SLACK=BOUND_SLACK,
            PAIRS=PAIRS,
            num_warps=WARPS,
        )
    return score_P, error_P, sign_P
