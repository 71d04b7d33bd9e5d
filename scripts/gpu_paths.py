"""Equality checks of `gpu_check`: every path on a device against the CPU, the kernels against the general path.

Data are small multiples of 1/4, whose scores are exact in float32 and float64: there, all must be equal integers, ties
included. On normal numbers counts may differ by candidates within the rounding bound only; those are counted.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from unittest import mock

import gpu_graph
import gpu_runs
import torch

from pbgeval.ranking import counting
from pbgeval.ranking.sampled_lists import CandidatePolicy
from pbgeval.ranking.settings import LossSettings
from pbgeval.scoring import device_scores, self_check
from pbgeval.scoring.comparators import COMPARATORS, L1, Comparator
from pbgeval.scoring.true_scores import row_hashes

CPU = torch.device("cpu")
Check = Callable[[], dict[str, Any]]


def checks(device: torch.device, smoke: bool) -> dict[str, Check]:
    """Return the checks by name."""
    found: dict[str, Check] = {}
    for dtype in (torch.float32, torch.float64):
        found[f"self-check {dtype}"] = partial(_self_check, device, dtype, smoke)
    found["scores depend on two vectors alone"] = partial(_bits, device, smoke)
    for name in COMPARATORS:
        for bias in (False, True):
            if Comparator(name, bias).is_inner_product:
                found[f"tiles = general, {name}, bias {bias}"] = partial(_tiles_are_general, device, name, bias, smoke)
    found |= {f"tiles = pairs = CPU, {name}": partial(_sums, device, name, smoke) for name in ("l1", "complex_l1")}
    found["tiles within the rounding bound"] = partial(_rounding, device, smoke)
    paths = _paths(device, smoke)
    found |= {
        name: paths[name] for name in [*paths][:: 4 if smoke else 1]
    }  # interpreted: each policy and what it wants
    for candidates in ("sampled", "partition", "all"):
        found[f"exact figures = CPU, {candidates}"] = partial(_exact, device, candidates, smoke)
    return found


def _paths(device: torch.device, smoke: bool) -> dict[str, Check]:
    """Return the checks of all paths against the CPU."""
    found: dict[str, Check] = {}
    for comparator, operator in (("dot", "complex_diagonal"), ("squared_l2", "translation"), ("l2", "linear")):
        for policy in (CandidatePolicy.SAMPLED, CandidatePolicy.PARTITION):
            for wants in ("loss, exact AUC", "sampled AUC", "float64"):
                name = f"{policy.value} = CPU, {comparator}, {operator}, {wants}"
                found[name] = partial(_bucket, device, policy, comparator, operator, wants, smoke)
        for wants in ("counts", "top-k and every score", "float64"):
            found[f"all = CPU, {comparator}, {operator}, {wants}"] = partial(
                _all, device, comparator, operator, wants, smoke
            )
    return found


def _self_check(device: torch.device, dtype: torch.dtype, smoke: bool) -> dict[str, Any]:
    """Check as a run does, and go on with what it finds: that is what the next checks and all benchmarks compute by."""
    smaller: dict[str, Any] = {"DEVICE_DIMENSIONS": (16, 33), "DEVICE_SHAPES": ((1, 1), (3, 17), (20, 140))}
    with _kernels_on(device), mock.patch.multiple(self_check, **smaller) if smoke else contextlib.nullcontext():
        report = self_check.check_kernels(device, dtype, exact=dtype is torch.float32)
    return {"passed_self_check": report.passed, "rule": report.rule.value, "kernels": report.fingerprint}


@contextlib.contextmanager
def _kernels_on(device: torch.device) -> Iterator[mock.Mock]:
    """Let the kernels compute on the device, interpreted if need be; calls of the one that counts are counted."""
    name = mock.patch.object(torch.cuda, "get_device_name", return_value="Triton's interpreter")
    with (
        mock.patch.object(device_scores, "DEVICE_TYPES", (device.type,)),
        mock.patch.object(device_scores, "count", wraps=device_scores.count) as count,
        contextlib.nullcontext() if device.type == "cuda" else name,
    ):
        yield count


def _scores(query_QD: torch.Tensor, candidate_CD: torch.Tensor) -> torch.Tensor:
    return device_scores.scores(query_QD[None], candidate_CD[None])[0]


def _counted(
    query_KD: torch.Tensor, candidate_CD: torch.Tensor, true_Q: torch.Tensor, row_Q: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return how many candidates are better and how many tie, with none excluded, int64."""
    columns = device_scores.Columns.from_rows(candidate_CD, row_hashes(candidate_CD))
    nowhere_Q, no_hash_Q = torch.full_like(row_Q, -1), torch.zeros_like(row_Q)
    targets = device_scores.Targets(row_Q, true_Q, torch.full_like(true_Q, torch.nan), no_hash_Q, nowhere_Q)
    better_Q, tied_Q = device_scores.count(query_KD, columns, targets)
    return better_Q.long(), tied_Q.long()


def _bits(device: torch.device, smoke: bool) -> dict[str, Any]:
    """Duplicates tie wherever they lie, also alone and in pairs. The interpreter multiplies by BLAS: exact data."""
    num_keys, num_candidates = (40, 150) if smoke else (700, 5000)
    make = gpu_graph.exact if device.type == "cpu" else gpu_graph.normal
    query_KD, half_CD = make((num_keys, 101), 1).to(device), make((num_candidates, 101), 2).to(device)
    first_Q = torch.arange(num_keys, device=device)
    true_Q = device_scores.pairs(query_KD, first_Q, half_CD, first_Q)
    scores_QC = _scores(query_KD, torch.cat([half_CD, half_CD]))
    assert torch.equal(scores_QC[:, :num_candidates], scores_QC[:, num_candidates:]), "identical candidates do not tie"
    assert torch.equal(true_Q, scores_QC.diagonal()), "a pair has other bits than its cell in the block"
    alone_11 = _scores(query_KD[7:8], half_CD[7:8])
    assert torch.equal(alone_11.flatten(), true_Q[7:8]), "alone, a score has other bits"
    better_Q, tied_Q = _counted(query_KD, torch.cat([half_CD, half_CD]), true_Q, first_Q)
    assert torch.equal(better_Q, (scores_QC > true_Q[:, None]).sum(1)), "other scores are counted than stored"
    assert torch.equal(tied_Q, (scores_QC == true_Q[:, None]).sum(1)), "other ties are counted than stored"
    return {"pairs": num_keys}


def _tiles_are_general(device: torch.device, name: str, bias: bool, smoke: bool) -> dict[str, Any]:
    sizes = ((30, 90, 21),) if smoke else ((1, 1, 16), (500, 5000, 100), (3000, 20001, 201))
    comparator = Comparator(name, bias)
    for num_keys, num_candidates, dimension in sizes:
        query_KD, candidate_CD = (
            gpu_graph.exact((num_keys, dimension), 3),
            gpu_graph.exact((num_candidates, dimension), 4),
        )
        if name != "cos":  # its normalised rows are not exact
            query_KD, candidate_CD = comparator.prepare_queries(query_KD), comparator.prepare_candidates(candidate_CD)
        query_KD, candidate_CD = query_KD.to(device), candidate_CD.to(device)
        row_Q = torch.arange(num_keys, device=device).repeat_interleave(torch.arange(num_keys, device=device) % 7)
        own_Q = torch.arange(row_Q.numel(), device=device) * 13 % num_candidates
        scores_KC = (query_KD.double() @ candidate_CD.double().mT).float()  # exact
        assert torch.equal(_scores(query_KD, candidate_CD), scores_KC), f"scores, {sizes}"
        expected = counting.count(scores_KC, scores_KC[row_Q, own_Q], row_Q=row_Q).raw
        better_Q, tied_Q = _counted(query_KD, candidate_CD, scores_KC[row_Q, own_Q], row_Q)
        assert torch.equal(expected.better_Q, better_Q), f"better, {sizes}"
        assert torch.equal(expected.tied_Q, tied_Q), f"tied, {sizes}"
    return {"sizes": sizes}


def _sums(device: torch.device, name: str, smoke: bool) -> dict[str, Any]:
    """Sums over columns have the bits of the CPU, also where squares are subnormal or overflow."""
    num_queries, num_candidates, dimension = (20, 70, 22) if smoke else (700, 5000, 202)
    comparator = COMPARATORS[name]
    assert isinstance(comparator, L1), "a sum over columns"
    distance = comparator.distance
    for dtype in (torch.float32, torch.float64):
        query_QD = gpu_graph.normal((num_queries, dimension), 7).to(dtype)
        query_QD *= torch.tensor([1.0, 2.0**-70, 2.0**64, 2.0**123], dtype=dtype).repeat(num_queries // 4)[:, None]
        candidate_CD = gpu_graph.normal((num_candidates, dimension), 8).to(dtype)
        expected_QC = distance(query_QD[None], candidate_CD[None])[0]
        query_QD, candidate_CD = query_QD.to(device), candidate_CD.to(device)
        every_Q = torch.arange(num_queries, device=device)
        found_QC = device_scores.scores(query_QD[None], candidate_CD[None], distance.name)[0].cpu()
        found_Q = device_scores.pairs(query_QD, every_Q, candidate_CD, every_Q, distance.name).cpu()
        assert torch.equal(found_QC, expected_QC), f"{dtype}: tiles have other bits than the CPU"
        assert torch.equal(found_Q, expected_QC.diagonal()), f"{dtype}: pairs have other bits than the CPU"
    return {"sizes": (num_queries, num_candidates, dimension)}


def _rounding(device: torch.device, smoke: bool) -> dict[str, Any]:
    """Normal numbers: what the bound leaves open, and how many of those cuBLAS decides differently."""
    num_queries, num_candidates, dimension = (20, 90, 33) if smoke else (2000, 20000, 200)
    query_QD = gpu_graph.normal((num_queries, dimension), 5).to(device)
    candidate_CD = gpu_graph.normal((num_candidates, dimension), 6).to(device)
    true_Q = (query_QD * candidate_CD[:num_queries]).sum(1)
    unit = (dimension + 1) * 2.0**-24
    bound_QC = unit / (1 - unit) * (query_QD.double().abs() @ candidate_CD.double().abs().t())
    gap_QC = query_QD.double() @ candidate_CD.double().t() - true_Q.double().unsqueeze(1)
    surely_Q, possibly_Q = (gap_QC > bound_QC).sum(1), (gap_QC >= -bound_QC).sum(1)
    found = _counted(query_QD, candidate_CD, true_Q, torch.arange(num_queries, device=device))
    general = counting.count(query_QD @ candidate_CD.t(), true_Q).raw
    for better_Q, tied_Q in (found, (general.better_Q, general.tied_Q)):
        assert bool((surely_Q <= better_Q).all()), "better by more than rounding"
        assert bool((better_Q + tied_Q <= possibly_Q).all()), "worse by more than rounding"
    return {
        "doubtful": int((possibly_Q - surely_Q).sum()),
        "decided_differently": int((found[0] - general.better_Q).abs().sum()),
    }


def _bucket(
    device: torch.device, policy: CandidatePolicy, comparator: str, operator: str, wants: str, smoke: bool
) -> dict[str, Any]:
    dtype = torch.float64 if wants == "float64" else torch.float32
    loss = LossSettings("softmax", 0.1) if wants.startswith("loss") else None
    graph = gpu_graph.Graph.made(comparator, operator, dtype, smoke)
    auc = gpu_graph.auc_sampling(graph, exact=wants.startswith("loss"))
    expected = gpu_graph.rank_bucket(graph, CPU, policy, auc, loss)
    with _kernels_on(device) as count:
        found = gpu_graph.rank_bucket(graph, device, policy, auc, loss)
    return {**_compare(expected, found), "counting_launches": count.call_count}


def _all(device: torch.device, comparator: str, operator: str, wants: str, smoke: bool) -> dict[str, Any]:
    dtype = torch.float64 if wants == "float64" else torch.float32
    graph = gpu_graph.Graph.made(comparator, operator, dtype, smoke)
    with_scores = wants.startswith("top-k")
    expected = gpu_graph.rank_all(graph, CPU, with_scores=with_scores)
    with _kernels_on(device) as count:
        found = gpu_graph.rank_all(graph, device, with_scores=with_scores)
    assert count.call_count > 0, "a kernel counts, whether scores are kept or not"
    return {**_compare(expected, found), "counting_launches": count.call_count}


def _exact(device: torch.device, candidates: str, smoke: bool) -> dict[str, Any]:
    """Evaluate with exact ranks and known answers: all figures are those of the CPU, to the last digit."""
    # So many that the pooled AUC takes a sample of the scores: where it takes all, no kernel counts.
    sizes = (60, 2, 40, 8) if smoke else (100_000, 2, 5_000, 100)
    settings: dict[str, Any] = {"candidates": candidates, **gpu_runs.EXACT}
    if candidates == "sampled":
        settings |= {"num_batch_negs": 100, "num_uniform_negs": 100}
    with gpu_runs.files(gpu_runs.Job(*sizes, settings)) as config:
        expected = gpu_runs.exact_figures(config, CPU)
        with _kernels_on(device):
            found = gpu_runs.exact_figures(config, device)
    unlike = sorted(name for name, value in expected.items() if found[name] != value)
    assert not unlike, f"{len(unlike)} of {len(expected)} figures differ: {unlike[:5]}"
    return {"figures": len(expected)}


def _compare(expected: dict[str, torch.Tensor], found: dict[str, torch.Tensor]) -> dict[str, Any]:
    """Integers are equal; losses, in float, nearly."""
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        other = found[name]
        if value.is_floating_point():
            torch.testing.assert_close(other, value, rtol=1e-5, atol=1e-5)
        else:
            assert torch.equal(value, other), f"{name}: {int((value != other).sum())} of {value.numel()} differ"
    return {"compared": {name: value.numel() for name, value in expected.items()}}
