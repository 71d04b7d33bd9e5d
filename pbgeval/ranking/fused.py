"""Queries and candidates -> counts, by one kernel on a GPU: scores are multiplied, compared and forgotten in registers.

The fast path of `counting` on a GPU with Triton, where nobody asks for the scores themselves.
Scores of single cells (true entities, known answers, twins, what the pooled AUC samples) are read off the very
accumulators that were counted, so what does not compete is taken back exactly (docs/decisions/0014).

Letters: R rows of the kernel, each a key and up to S (slots) of its queries; P cells.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util

import torch
import torch.nn.functional as F
from attrs import frozen
from torch import Tensor

from pbgeval.stats.ranks import RankCounts

DEVICE_TYPES = ("cuda",)  # tests let Triton's interpreter count on a CPU
_why_not: str | None = None  # what the self-check found wrong
SLOTS = 4  # queries that share a row of scores; a key with more of them has several rows
RUNS_PER_PROCESSOR = 4  # so that none waits long for the last


@frozen
class Tiles:
    """The one shape of block that scores are computed in; every other is padded to it."""

    rows: int = 128
    columns: int = 128
    depth: int = 16  # vectors are padded to a multiple of it
    warps: int = 8
    stages: int = 3


TILES = Tiles()


def version() -> str:
    """Return the version of what compiles the kernel."""
    import triton

    return f"triton {triton.__version__}"


def self_check(device: torch.device) -> str | None:
    """Compare scores of pairs, of cells and of duplicates; where they differ, the general path counts from then on.

    Returns:
        What counts, for a fingerprint; None on a CPU.
    """
    global _why_not
    if not has_kernel(device):
        why_not = _why_not or "triton is required for the fused kernel: pip install 'pbgeval[gpu]'"
        return None if device.type == "cpu" else f"general: {why_not}"
    half_ND = torch.randn((150, 101), generator=torch.Generator().manual_seed(0)).to(device)
    own_Q = torch.arange(150, device=device)
    cells = (own_Q.repeat(2), torch.cat([own_Q, own_Q + 150]))
    try:
        true_Q = paired_scores(half_ND, half_ND)
        _, cell_score_P = count(half_ND, torch.cat([half_ND, half_ND]), true_Q, own_Q, cells)
        if not torch.equal(cell_score_P, true_Q.repeat(2)):
            _why_not = "scores of identical vectors differ"
    except (RuntimeError, OSError) as error:  # such as no compiler for the code that starts the kernel
        _why_not = str(error).partition("\n")[0]
    return version() if _why_not is None else f"general: {_why_not}"


def has_kernel(device: torch.device) -> bool:
    """Tell whether the kernel counts inner products in float32 on a device."""
    return device.type in DEVICE_TYPES and is_installed() and _why_not is None


@functools.cache
def is_installed() -> bool:
    """Tell whether Triton can be imported."""
    return importlib.util.find_spec("triton") is not None


def padded(x_ND: Tensor) -> Tensor:
    """Return rows as the kernel reads them, with zeros behind them: call it once for rows that are counted often."""
    missing = -x_ND.shape[1] % TILES.depth
    return (F.pad(x_ND, (0, missing)) if missing else x_ND).contiguous()


def count(
    query_KD: Tensor,
    candidate_CD: Tensor,
    true_Q: Tensor,
    row_Q: Tensor,
    cells: tuple[Tensor, Tensor],
) -> tuple[RankCounts, Tensor]:
    """Compare every candidate with the true entity of each query. No score may be NaN: the caller has seen to it.

    Args:
        query_KD: prepared queries, one of each key.
        candidate_CD: prepared candidates.
        true_Q: score of each query's true entity.
        row_Q: the key of each query, ascending.
        cells: (key, candidate) whose scores are wanted, in any order.

    Returns:
        The counts, nobody excluded; and the scores of the cells, float32.
    """
    query_KD, candidate_CD = padded(query_KD), padded(candidate_CD)
    num_keys, num_candidates = query_KD.shape[0], candidate_CD.shape[0]
    if not num_candidates or not row_Q.numel():
        return RankCounts.zero(row_Q.numel(), row_Q.device), true_Q.new_empty(0)
    num_slots, key_R, first_K, places_Q = _rows_of_queries(row_Q, num_keys)
    true_RS = true_Q.new_full((key_R.numel(), num_slots), torch.nan)
    true_RS[places_Q] = true_Q
    start_T = _starts_of_runs(key_R.numel(), num_candidates, query_KD.device)
    code_P, order_P = (first_K[cells[0].to(query_KD.device)] * num_candidates + cells[1].to(query_KD.device)).sort()
    border_RT = torch.arange(true_RS.shape[0], device=query_KD.device).unsqueeze(1) * num_candidates + start_T
    scores_P, counts_2RS = _launch(
        query_KD.index_select(0, key_R),
        candidate_CD,
        true_RS,
        torch.stack([start_T[:-1], start_T[1:]], dim=1).repeat(-(-true_RS.shape[0] // TILES.rows), 1, 1),
        torch.searchsorted(code_P, border_RT),
        code_P % num_candidates,
    )
    cell_score_P = torch.empty_like(scores_P)
    cell_score_P[order_P] = scores_P
    better_Q, tied_Q = counts_2RS[:, places_Q[0], places_Q[1]]
    return RankCounts(better_Q, tied_Q, torch.full_like(row_Q, num_candidates)), cell_score_P


def paired_scores(query_QD: Tensor, candidate_QD: Tensor) -> Tensor:
    """Return the score (Q,) of each query with its own candidate, with the bits that `count` compares.

    The same kernel meets each tile of queries with the tile of their own candidates, and reads the diagonal.
    """
    query_QD, candidate_QD = padded(query_QD), padded(candidate_QD)
    num_queries, device = query_QD.shape[0], query_QD.device
    if not num_queries:
        return query_QD.new_empty(0)
    start_B = torch.arange(0, num_queries, TILES.rows, device=device)
    bounds_B12 = torch.stack([start_B, (start_B + TILES.rows).clamp(max=num_queries)], dim=1).unsqueeze(1)
    own_Q = torch.arange(num_queries, device=device)
    first_cell_Q2 = torch.stack([own_Q, own_Q + 1], dim=1)
    return _launch(query_QD, candidate_QD, query_QD.new_zeros((num_queries, 1)), bounds_B12, first_cell_Q2, own_Q)[0]


def _rows_of_queries(key_Q: Tensor, num_keys: int) -> tuple[int, Tensor, Tensor, tuple[Tensor, Tensor]]:
    """Lay queries out in rows of the kernel.

    Returns:
        How many slots a row has; the key of each row; the first row of each key; row and slot of each query.
    """
    queries_K = torch.bincount(key_Q, minlength=num_keys)
    num_slots = SLOTS if int(queries_K.max()) > 1 else 1
    rows_K = (-(-queries_K // num_slots)).clamp(min=1)  # a key without queries may have cells
    first_K = rows_K.cumsum(0) - rows_K
    before_K = queries_K.cumsum(0) - queries_K
    place_Q = torch.arange(key_Q.numel(), device=key_Q.device) - before_K[key_Q]
    key_R = torch.repeat_interleave(torch.arange(num_keys, device=key_Q.device), rows_K)
    return num_slots, key_R, first_K, (first_K[key_Q] + place_Q // num_slots, place_Q % num_slots)


def _starts_of_runs(num_rows: int, num_candidates: int, device: torch.device) -> Tensor:
    """Cut the candidates in runs, so that every processor has some work: where they start, and the end (int64)."""
    processors = torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
    num_blocks, num_tiles = -(-num_rows // TILES.rows), -(-num_candidates // TILES.columns)
    num_runs = min(-(-RUNS_PER_PROCESSOR * processors // num_blocks), num_tiles)
    return torch.tensor(
        [*range(0, num_candidates, -(-num_tiles // num_runs) * TILES.columns), num_candidates], device=device
    )


def _launch(
    query_RD: Tensor,
    candidate_CD: Tensor,
    true_RS: Tensor,
    bounds_BT2: Tensor,
    first_cell_RT: Tensor,
    column_P: Tensor,
) -> tuple[Tensor, Tensor]:
    """Run the kernel: return scores of the cells (P,) and counts (2, R, S) in int64."""
    from pbgeval.ranking.fused_kernel import count_tiles

    num_rows, num_slots = true_RS.shape
    num_blocks, num_runs = bounds_BT2.shape[:2]
    device = query_RD.device
    score_P = torch.empty(column_P.shape, dtype=torch.float32, device=device)
    counts_2TRS = torch.empty((2, num_runs, num_rows, num_slots), dtype=torch.int32, device=device)
    # Triton starts a kernel on the current device, whatever device its tensors are on.
    with torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext():
        count_tiles[num_blocks, num_runs](
            query_RD,
            candidate_CD,
            true_RS,
            bounds_BT2.int().contiguous(),
            first_cell_RT.contiguous(),
            column_P.int(),
            score_P,
            counts_2TRS,
            num_rows,
            D=query_RD.shape[1],
            SLOTS=num_slots,
            TILE_ROWS=TILES.rows,
            TILE_COLUMNS=TILES.columns,
            TILE_DEPTH=TILES.depth,
            num_warps=TILES.warps,
            num_stages=TILES.stages,
        )
    return score_P, counts_2TRS.sum(1, dtype=torch.int64)
