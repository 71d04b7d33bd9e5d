"""Vectors on a GPU -> scores of blocks, scores of pairs, and counts: one definition of a score (decision 0014).

    product        score = 0, and for each column in ascending order: score = fma(query, candidate, score)
    other terms    minus their sum over the columns, in the same order (`distances`)

Each step is rounded once, to the nearest number, subnormal ones included; rows end in zeros up to a multiple of 16
columns. So the bits of a score depend on its two vectors alone, whatever kernel, block or tile computes it.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
from types import ModuleType
from typing import Any, Literal

import torch
import torch.nn.functional as F
from attrs import frozen
from torch import Tensor

from pbgeval.errors import LaunchError, install

DEVICE_TYPES = ("cuda",)  # tests let Triton's interpreter compute on a CPU
OLDEST_TRITON = 3, 5  # an older one has no dot of float64
ALIGNMENT = 16
PAIRS_PER_PROGRAM = 128
Term = Literal["product", "absolute", "modulus"]  # what a column adds to a score; the latter two take it away
MAX_COUNTED = 1 << 30  # candidates that are counted at once: counts are int32


@frozen
class Tiles:
    """The shape of a tile, and how Triton compiles it; candidates and rows of any number are cut into such."""

    rows: int
    columns: int
    warps: int = 8


TILES = Tiles(128, 128, warps=16)  # of float32, by Triton's dot: 103 to 106 registers, none spilled
LOOP_TILES = Tiles(64, 64)  # of float64, of what is no product, or where the dot has other bits


def supports(device: torch.device) -> bool:
    """Tell whether scores on a device are those of these kernels, and of nothing else."""
    return device.type in DEVICE_TYPES


@functools.cache
def is_installed() -> bool:
    """Tell whether Triton can be imported."""
    return importlib.util.find_spec("triton") is not None


def version() -> str:
    """Return the version of what compiles the kernels.

    Raises:
        LaunchError: it is not installed, or too old.
    """
    _kernels()
    import triton

    found = str(triton.__version__)
    if tuple(map(int, found.split(".")[:2])) < OLDEST_TRITON:
        raise LaunchError(f"triton 3.5 or later (torch 2.9) is required on a GPU, got {found}; or use device cpu")
    return found


def _kernels() -> ModuleType:
    if not is_installed():
        raise LaunchError(f"triton is required on a GPU: {install('triton')}, or use device cpu")
    from pbgeval.scoring import chain_kernels

    return chain_kernels


@functools.cache
def _devices_by_loop() -> set[str]:
    """Return the types of devices whose dot the self-check has found to have other bits.

    Each process has one set, because it has one Triton. Kernels are started by backends and comparators that know of
    no self-check.
    """
    return set()


def multiplies_by_dot(device: torch.device, dtype: torch.dtype) -> bool:
    """Tell whether tiles are multiplied by Triton's dot; else the chain is spelled out, which is slower."""
    return dtype is torch.float32 and device.type not in _devices_by_loop()


def num_terms(term: Term, dimension: int) -> int:
    """Return how many terms a row of so many columns has."""
    return dimension // 2 if term == "modulus" else dimension


def multiply_by_loop(device: torch.device) -> None:
    """Spell the chain out from now on: the self-check has found other bits."""
    _devices_by_loop().add(device.type)


def scores(query_BQD: Tensor, candidate_BCD: Tensor, term: Term = "product") -> Tensor:
    """Return the scores (B, Q, C) of B blocks, by one kernel."""
    num_blocks, num_queries, dimension = query_BQD.shape
    num_candidates = candidate_BCD.shape[1]
    score_BQC = query_BQD.new_empty((num_blocks, num_queries, num_candidates))
    candidate_BKL = _transposed(candidate_BCD)
    tiles = _tiles(query_BQD, term)
    num_tiles = -(-num_queries // tiles.rows) * -(-num_candidates // tiles.columns)
    launch(
        _kernels().score_tiles,
        num_blocks * num_tiles,
        _padded(query_BQD),
        candidate_BKL,
        score_BQC,
        num_queries,
        num_candidates,
        _num_steps(dimension),
        candidate_BKL.shape[-1] // ALIGNMENT,
        num_terms(term, dimension),
        **_options(query_BQD, term),
    )
    return score_BQC


def pairs(query_QD: Tensor, row_P: Tensor, candidate_CD: Tensor, column_P: Tensor, term: Term = "product") -> Tensor:
    """Return the score (P,) of each pair of a row of queries and a row of candidates."""
    num_pairs, dimension = row_P.numel(), query_QD.shape[-1]
    score_P = query_QD.new_empty(num_pairs)
    launch(
        _kernels().score_pairs,
        -(-num_pairs // PAIRS_PER_PROGRAM),
        query_QD.contiguous(),
        row_P.contiguous(),
        candidate_CD.contiguous(),
        column_P.contiguous(),
        score_P,
        num_pairs,
        dimension,
        _num_steps(num_terms(term, dimension)),
        **_options_of_pairs(term),
    )
    return score_P


def compare(
    query_KD: Tensor,
    targets: Targets,
    candidate_CD: Tensor,
    hash_C: Tensor,
    at_P: Tensor,
    column_P: Tensor,
    term: Term = "product",
) -> Tensor:
    """Compare pairs with true scores, as `count` does: 1 better, 0 tied, -1 worse; int8 (P,).

    Args:
        query_KD: prepared rows.
        targets: of all queries.
        candidate_CD: prepared rows.
        hash_C: their hashes.
        at_P: the query of each pair.
        column_P: its candidate.
        term: of a score.
    """
    sign_P = torch.empty(at_P.numel(), dtype=torch.int8, device=query_KD.device)
    launch(
        _kernels().compare_pairs,
        -(-at_P.numel() // PAIRS_PER_PROGRAM),
        query_KD.contiguous(),
        targets.row_Q.contiguous(),
        targets.score_Q.contiguous(),
        targets.kernel_Q.contiguous(),
        targets.hash_Q.contiguous(),
        candidate_CD.contiguous(),
        hash_C,
        at_P,
        column_P,
        sign_P,
        at_P.numel(),
        query_KD.shape[1],
        _num_steps(num_terms(term, query_KD.shape[1])),
        **_options_of_pairs(term),
    )
    return sign_P


@frozen(eq=False)
class Columns:
    """Candidates that many blocks of queries are counted against."""

    transposed_KL: Tensor
    hash_C: Tensor  # int64: of each candidate's prepared row

    @classmethod
    def from_rows(cls, candidate_CD: Tensor, hash_C: Tensor) -> Columns:
        """Lay prepared rows out as kernels read them."""
        return cls(_transposed(candidate_CD), hash_C)


@frozen(eq=False)
class Targets:
    """What the candidates of some queries are compared with."""

    row_Q: Tensor  # int64: which of the prepared rows each query has
    score_Q: Tensor  # of its true entity: the one that counts
    kernel_Q: Tensor  # the same by these kernels
    hash_Q: Tensor  # int64: of the true entity's prepared row
    own_Q: Tensor  # int64: the candidate that is the true entity itself, -1 where it is none of them


def count(
    query_KD: Tensor, columns: Columns, targets: Targets, term: Term = "product", count_NQ: Tensor | None = None
) -> Tensor:
    """Add how many candidates are better than each query's true entity, and how many tie, to two rows of counts, int32.

    The true entity itself does not compete. A candidate with its very vector ties. No score may be NaN.

    Returns:
        The counts; where none are given, zeros to which these are added.
    """
    num_queries, num_candidates = targets.row_Q.numel(), columns.hash_C.numel()
    assert num_candidates <= MAX_COUNTED, "counts are int32"
    if count_NQ is None:
        count_NQ = torch.zeros((2, num_queries), dtype=torch.int32, device=query_KD.device)
    tiles = _tiles(query_KD, term)
    launch(
        _kernels().count_tiles,
        -(-num_queries // tiles.rows) * -(-num_candidates // tiles.columns),
        _padded(query_KD),
        targets.row_Q.contiguous(),
        targets.score_Q.contiguous(),
        targets.kernel_Q.contiguous(),
        targets.hash_Q.contiguous(),
        targets.own_Q.contiguous(),
        columns.transposed_KL,
        columns.hash_C,
        count_NQ[0],
        count_NQ[1],
        num_queries,
        num_candidates,
        _num_steps(query_KD.shape[1]),
        columns.transposed_KL.shape[-1] // ALIGNMENT,
        num_terms(term, query_KD.shape[1]),
        **_options(query_KD, term),
    )
    return count_NQ


def _tiles(query: Tensor, term: Term) -> Tiles:
    return TILES if term == "product" and multiplies_by_dot(query.device, query.dtype) else LOOP_TILES


def _options(query: Tensor, term: Term) -> dict[str, int | bool | str]:
    """Return what the kernels of tiles are compiled for."""
    tiles = _tiles(query, term)
    spelled_out = "fma" if term == "product" else term
    return {
        "TERM": "dot" if tiles is TILES else spelled_out,
        "TILE_ROWS": tiles.rows,
        "TILE_COLUMNS": tiles.columns,
        "TILE_DEPTH": ALIGNMENT,
        "num_warps": tiles.warps,
        "num_stages": 3,
        "enable_fp_fusion": term == "product",
    }


def _options_of_pairs(term: Term) -> dict[str, int | bool | str]:
    """Return what the kernels of pairs are compiled for."""
    return {
        "TERM": "fma" if term == "product" else term,
        "PAIRS": PAIRS_PER_PROGRAM,
        "DEPTH": ALIGNMENT,
        "num_warps": 4,
        "enable_fp_fusion": term == "product",
    }


def _num_steps(dimension: int) -> int:
    return -(-dimension // ALIGNMENT)


def _padded(x_ND: Tensor) -> Tensor:
    """Return rows with zeros up to a multiple of 16 columns, next to each other."""
    missing = -x_ND.shape[-1] % ALIGNMENT
    return (F.pad(x_ND, (0, missing)) if missing else x_ND).contiguous()


def _transposed(x_CD: Tensor) -> Tensor:
    """Return rows as columns, with zeros up to multiples of 16 both ways."""
    num_rows, dimension = x_CD.shape[-2:]
    if num_rows % ALIGNMENT == dimension % ALIGNMENT == 0:
        return x_CD.mT.contiguous()
    shape = (*x_CD.shape[:-2], _num_steps(dimension) * ALIGNMENT, -(-num_rows // ALIGNMENT) * ALIGNMENT)
    transposed_KL = x_CD.new_zeros(shape)
    transposed_KL[..., :dimension, :num_rows] = x_CD.mT
    return transposed_KL


def launch(
    kernel: Any,  # noqa: ANN401 - Triton has no types
    num_programs: int,
    first: Tensor,
    *others: Tensor | float | None,
    **options: object,
) -> None:
    """Start the programs of a kernel, if there are any, on the device of the tensors: Triton takes the current one."""
    if num_programs:
        with _current(first.device):
            kernel[(num_programs,)](first, *others, **options)


def _current(device: torch.device) -> contextlib.AbstractContextManager[object]:
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()
