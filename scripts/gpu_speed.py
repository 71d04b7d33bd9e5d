"""Benchmarks of `gpu_check`: the kernel that counts, the chip's float32 limit, and two passes over memory."""

from __future__ import annotations

import contextlib
import platform
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
import torch
from attrs import evolve

from pbgeval.errors import EvalError
from pbgeval.ranking import counting
from pbgeval.scoring import device_exact, device_scores
from pbgeval.scoring.exact import ExactComparator
from pbgeval.scoring.true_scores import row_hashes

REPEATS = 7
CANDIDATES_PER_PASS = 4096  # of a block of scores of the two-pass path


def machine(device: torch.device) -> dict[str, Any]:
    """Say what this is measured on."""
    found: dict[str, Any] = {
        "python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__, "device": device.type,
    }  # fmt: skip
    with contextlib.suppress(EvalError, ImportError):  # the self-check says what is missing, or cannot be imported
        found["triton"] = device_scores.version()
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        found["name"], found["multiprocessors"] = properties.name, properties.multi_processor_count
        found["capability"] = list(torch.cuda.get_device_capability(device))
    return found


def benchmarks(device: torch.device, smoke: bool) -> dict[str, Callable[[], dict[str, Any]]]:
    """Return the benchmarks by name."""
    found: dict[str, Callable[[], dict[str, Any]]] = {"float32 matmul": partial(_matmul, device, smoke)}
    for dimension in (16,) if smoke else (100, 200, 400):
        for queries_per_key in (1, 3):
            name = f"tiles and two passes, D = {dimension}, {queries_per_key} queries of a key"
            found[name] = partial(_counting, device, dimension, queries_per_key, smoke)
    for dimension in (16,) if smoke else (100, 128, 256, 400):
        for sigmas in (0, 3):
            name = f"exact, D = {dimension}, true scores at {sigmas} standard deviations"
            found[name] = partial(_exact, device, dimension, sigmas, smoke)
    if not smoke:
        for tiles in (
            {"rows": 64, "warps": 8},
            {"columns": 64, "warps": 8},
            {"stages": 2},
            {"stages": 4},
        ):
            found[f"other tiles {tiles}, D = 200"] = partial(_other_tiles, device, tiles)
    return found


def _seconds(device: torch.device, work: Callable[[], object]) -> float:
    """Return the median time of some work, warmed up; on a GPU by its own events, without what the host does before."""
    work()
    times: list[float] = []
    for _ in range(REPEATS if device.type == "cuda" else 1):
        if device.type == "cuda":
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            begin.record()
            work()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end) / 1000)
        else:
            begun = time.perf_counter()
            work()
            times.append(time.perf_counter() - begun)
    return statistics.median(times)


def _matmul(device: torch.device, smoke: bool) -> dict[str, Any]:
    """The limit: a large product of torch, without TF32."""
    torch.backends.cuda.matmul.allow_tf32 = False
    size = 64 if smoke else 8192
    x = torch.randn(size, size, device=device)
    seconds = _seconds(device, lambda: x @ x)
    return {"size": size, "teraflops": 2 * size**3 / seconds / 1e12}


def _data(device: torch.device, dimension: int, queries_per_key: int, smoke: bool) -> tuple[torch.Tensor, ...]:
    num_queries, num_candidates = (60, 200) if smoke else (1 << 14, 1 << 17)
    row_Q = torch.arange(num_queries, device=device) // queries_per_key
    query_KD = torch.randn(int(row_Q[-1]) + 1, dimension, device=device)
    candidate_CD = torch.randn(num_candidates, dimension, device=device)
    true_Q = torch.randn(num_queries, device=device) * dimension**0.5
    return query_KD, candidate_CD, true_Q, row_Q


def _counting(device: torch.device, dimension: int, queries_per_key: int, smoke: bool) -> dict[str, Any]:
    query_KD, candidate_CD, true_Q, row_Q = _data(device, dimension, queries_per_key, smoke)
    num_known = 30 * query_KD.shape[0]  # known answers, 30 to a key
    row_P, column_P = (torch.randint(len(of), (num_known,), device=device) for of in (query_KD, candidate_CD))
    targets = _targets(true_Q, row_Q)

    def tiles() -> torch.Tensor:
        columns = device_scores.Columns.from_rows(candidate_CD, row_hashes(candidate_CD))
        return device_scores.count(query_KD, columns, targets)

    def two_passes() -> tuple[torch.Tensor, torch.Tensor]:
        better_Q, tied_Q = torch.zeros_like(row_Q), torch.zeros_like(row_Q)
        for part_CD in torch.split(candidate_CD, CANDIDATES_PER_PASS):
            counts = counting.count(query_KD @ part_CD.mT, true_Q, row_Q=row_Q).raw
            better_Q, tied_Q = better_Q + counts.better_Q, tied_Q + counts.tied_Q
        return better_Q, tied_Q

    with mock.patch.object(device_scores, "DEVICE_TYPES", (device.type,)):
        seconds = _seconds(device, tiles)
        columns = device_scores.Columns.from_rows(candidate_CD, row_hashes(candidate_CD))
        alone = _seconds(device, lambda: device_scores.count(query_KD, columns, targets))
        of_pairs = _seconds(device, lambda: device_scores.pairs(query_KD, row_P, candidate_CD, column_P))
        passes_seconds = _seconds(device, two_passes)
        difference = int((tiles()[0] - two_passes()[0]).abs().sum())
    assert difference <= 1e-5 * row_Q.numel() * len(candidate_CD) + 2, f"{difference} candidates fall otherwise"
    flops = 2 * row_Q.numel() * candidate_CD.shape[0] * dimension  # a row for each query
    return {
        "queries": row_Q.numel(), "keys": len(query_KD), "candidates": len(candidate_CD), "dimension": dimension,
        "tiles_seconds": seconds, "tiles_seconds_without_layout": alone, "pairs": num_known, "pairs_seconds": of_pairs,
        "two_pass_seconds": passes_seconds, "two_pass_over_tiles": passes_seconds / seconds,
        "tiles_teraflops": flops / alone / 1e12, "candidates_that_fall_otherwise": difference,
    }  # fmt: skip


def _exact(device: torch.device, dimension: int, sigmas: int, smoke: bool) -> dict[str, Any]:
    """Time the counts of exact ranks, and what they consist of; rows and bounds of the candidates are made before."""
    num_queries, num_candidates = (70, 200) if smoke else (20_000, 1 << 18)
    comparator = ExactComparator("dot")
    query_QD, candidate_CD = (torch.randn(of, dimension, device=device) for of in (num_queries, num_candidates))
    prepared = comparator.prepare_queries(query_QD.double()), comparator.prepare_candidates(candidate_CD.double())
    queries, candidates = (
        device_exact.ExactRows.from_prepared(comparator, rows_ND[None], of_queries=of_queries)
        for rows_ND, of_queries in zip(prepared, (True, False), strict=True)
    )
    score_Q = torch.full((num_queries,), sigmas * dimension**0.5, dtype=torch.float64, device=device)
    if not sigmas:  # as of a model that has learnt nothing
        score_Q = (query_QD.double() * torch.randn_like(query_QD)).sum(1)
    none_Q = torch.zeros(num_queries, dtype=torch.int64, device=device)
    target = device_exact.Target(score_Q, torch.full_like(score_Q, 1e-12), none_Q, none_Q - 1)
    found: dict[str, Any] = {"queries": num_queries, "candidates": num_candidates, "dimension": dimension}
    with mock.patch.object(device_exact, "MIN_SCREENED_CELLS", 0):
        counts = device_exact.count(queries, candidates, target)
        found["exact_seconds"] = _seconds(device, lambda: device_exact.count(queries, candidates, target))
    found["open_cells"] = int(counts.num_open[0])
    limits = device_exact.limits_of(queries, candidates, target, torch.empty_like(counts.count_NQ))
    flops = 2 * num_queries * num_candidates * dimension
    screen, sizes = device_exact.screen_of(queries, candidates, limits), (num_queries, num_candidates)
    mark_GQ, none = device_exact.empty_marks(sizes, device), none_Q[:1]
    for parts in (1, 2):
        into = torch.zeros(num_queries, dtype=torch.int32, device=device), mark_GQ
        seconds = _seconds(device, partial(screen.run, parts, sizes, into, (none, 1 - parts)))
        found[f"marked_in_{parts}"] = float(mark_GQ[: -(-num_candidates // device_exact.SEGMENT)].float().mean())
        found[f"screen_in_{parts}_teraflops"] = flops / seconds / 1e12
    in_float64, places = num_candidates // 16, torch.arange(num_candidates // 16, device=device)
    few = device_exact.ExactRows.from_prepared(comparator, prepared[1][None, places], of_queries=False)
    with mock.patch.object(device_exact, "MIN_SCREENED_CELLS", 1 << 62):
        seconds = _seconds(device, lambda: device_exact.count(queries, few, target))
    expected = device_exact.count(queries, few, target)
    assert bool((expected.count_NQ[0] <= counts.count_NQ[0]).all()), "fewer candidates, more of them better"
    return found | {
        "teraflops": flops / found["exact_seconds"] / 1e12,
        "float64_teraflops": 2 * num_queries * in_float64 * dimension / seconds / 1e12,
    }


def _targets(true_Q: torch.Tensor, row_Q: torch.Tensor) -> device_scores.Targets:
    """Return what candidates are compared with, without duplicates, and with no true entity among the candidates."""
    no_score_Q, nowhere_Q = torch.full_like(true_Q, torch.nan), torch.full_like(row_Q, -1)
    return device_scores.Targets(row_Q, true_Q, no_score_Q, torch.zeros_like(row_Q), nowhere_Q)


def _other_tiles(device: torch.device, tiles: dict[str, int]) -> dict[str, Any]:
    query_KD, candidate_CD, true_Q, row_Q = _data(device, 200, 1, smoke=False)
    columns, targets = device_scores.Columns.from_rows(candidate_CD, row_hashes(candidate_CD)), _targets(true_Q, row_Q)
    with mock.patch.object(device_scores, "TILES", evolve(device_scores.TILES, **tiles)):
        seconds = _seconds(device, lambda: device_scores.count(query_KD, columns, targets))
    return {"seconds": seconds, "teraflops": 2 * len(query_KD) * len(candidate_CD) * 200 / seconds / 1e12}
