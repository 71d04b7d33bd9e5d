"""Equality checks of `gpu_check`: every path on a device against the CPU, the fused kernel against the general path.

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
import torch

from pbgeval.ranking import counting, fused
from pbgeval.ranking.chunks import CandidatePolicy
from pbgeval.ranking.settings import LossSettings
from pbgeval.scoring import product
from pbgeval.scoring.comparators import COMPARATORS, Comparator
from pbgeval.scoring.self_check import check_kernels

CPU = torch.device("cpu")
Check = Callable[[], dict[str, Any]]


def checks(device: torch.device, smoke: bool) -> dict[str, Check]:
    """Return the checks by name."""
    found: dict[str, Check] = {}
    for dtype in (torch.float32, torch.float64):
        found[f"self-check {dtype}"] = partial(_self_check, device, dtype)
    found["scores depend on two vectors alone"] = partial(_bits, device, smoke)
    for name in COMPARATORS:
        for bias in (False, True):
            if Comparator(name, bias).is_inner_product:
                found[f"fused = general, {name}, bias {bias}"] = partial(_fused_is_general, device, name, bias, smoke)
    found["fused within the rounding bound"] = partial(_rounding, device, smoke)
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


def _self_check(device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    """Report, not assert: where shapes disagree, runs use one block shape; here the next checks must not."""
    report = check_kernels(device, dtype)
    product.use_block_rule(product.BlockRule.FINE, device, dtype)
    return {"shapes_agree": report.passed, "block_rule": report.rule.value, "fingerprint": report.fingerprint}


@contextlib.contextmanager
def _counting(device: torch.device) -> Iterator[mock.Mock]:
    """Let the fused kernel count on the device, interpreted if need be; its calls are counted."""
    with (
        mock.patch.object(fused, "DEVICE_TYPES", (device.type,)),
        mock.patch.object(fused, "_launch", wraps=fused._launch) as launch,
    ):
        yield launch


def _bits(device: torch.device, smoke: bool) -> dict[str, Any]:
    """Duplicates tie wherever they lie, also alone and in pairs. The interpreter multiplies by BLAS: exact data."""
    num_keys, num_candidates = (40, 150) if smoke else (700, 5000)
    make = gpu_graph.exact if device.type == "cpu" else gpu_graph.normal
    query_KD, half_CD = make((num_keys, 101), 1).to(device), make((num_candidates, 101), 2).to(device)
    candidate_CD = torch.cat([half_CD, half_CD])
    first_Q = torch.arange(num_keys, device=device)
    true_Q = fused.paired_scores(query_KD, half_CD[:num_keys])
    cells = (first_Q.repeat(2), torch.cat([first_Q, first_Q + num_candidates]))
    found, cell_score_P = fused.count(query_KD, candidate_CD, true_Q, first_Q, cells)
    assert torch.equal(true_Q.repeat(2), cell_score_P), "a pair has other bits than its cells in the block"
    assert bool((found.tied_Q >= 2).all()), "identical candidates do not tie"
    _, alone_P = fused.count(query_KD[7:8], candidate_CD[7:8], true_Q[7:8], first_Q[:1], (first_Q[:1], first_Q[:1]))
    assert torch.equal(alone_P, true_Q[7:8]), "alone, a score has other bits"
    return {"pairs": 2 * num_keys}


def _fused_is_general(device: torch.device, name: str, bias: bool, smoke: bool) -> dict[str, Any]:
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
        scores_KC = comparator.scores(query_KD.unsqueeze(0), candidate_CD.unsqueeze(0))[0]
        expected = counting.count(scores_KC, scores_KC[row_Q, own_Q], row_Q=row_Q).raw
        found, cell_score_P = fused.count(query_KD, candidate_CD, scores_KC[row_Q, own_Q], row_Q, (row_Q, own_Q))
        assert torch.equal(expected.better_Q, found.better_Q), f"better, {sizes}"
        assert torch.equal(expected.tied_Q, found.tied_Q), f"tied, {sizes}"
        assert torch.equal(scores_KC[row_Q, own_Q], cell_score_P), f"cells, {sizes}"
    return {"sizes": sizes}


def _rounding(device: torch.device, smoke: bool) -> dict[str, Any]:
    """Normal numbers: what the bound leaves open, and how many of those the two paths decide differently."""
    num_queries, num_candidates, dimension = (20, 90, 33) if smoke else (2000, 20000, 200)
    query_QD = gpu_graph.normal((num_queries, dimension), 5).to(device)
    candidate_CD = gpu_graph.normal((num_candidates, dimension), 6).to(device)
    true_Q = (query_QD * candidate_CD[:num_queries]).sum(1)
    unit = (dimension + 1) * 2.0**-24
    bound_QC = unit / (1 - unit) * (query_QD.double().abs() @ candidate_CD.double().abs().t())
    gap_QC = query_QD.double() @ candidate_CD.double().t() - true_Q.double().unsqueeze(1)
    surely_Q, possibly_Q = (gap_QC > bound_QC).sum(1), (gap_QC >= -bound_QC).sum(1)
    row_Q = torch.arange(num_queries, device=device)
    found, _ = fused.count(query_QD, candidate_CD, true_Q, row_Q, (row_Q, row_Q))
    general = counting.count(query_QD @ candidate_CD.t(), true_Q).raw
    for counts in (found, general):
        assert bool((surely_Q <= counts.better_Q).all()), "better by more than rounding"
        assert bool((counts.better_Q + counts.tied_Q <= possibly_Q).all()), "worse by more than rounding"
    return {
        "doubtful": int((possibly_Q - surely_Q).sum()),
        "decided_differently": int((found.better_Q - general.better_Q).abs().sum()),
    }


def _bucket(
    device: torch.device, policy: CandidatePolicy, comparator: str, operator: str, wants: str, smoke: bool
) -> dict[str, Any]:
    dtype = torch.float64 if wants == "float64" else torch.float32
    loss = LossSettings("softmax", 0.1) if wants.startswith("loss") else None
    graph = gpu_graph.Graph.made(comparator, operator, dtype, smoke)
    auc = gpu_graph.auc_sampling(graph, exact=wants.startswith("loss"))
    expected = gpu_graph.rank_bucket(graph, CPU, policy, auc, loss)
    with _counting(device) as launch:
        found = gpu_graph.rank_bucket(graph, device, policy, auc, loss)
    return {**_compare(expected, found), "fused_launches": launch.call_count}


def _all(device: torch.device, comparator: str, operator: str, wants: str, smoke: bool) -> dict[str, Any]:
    dtype = torch.float64 if wants == "float64" else torch.float32
    graph = gpu_graph.Graph.made(comparator, operator, dtype, smoke)
    with_scores = wants.startswith("top-k")
    expected = gpu_graph.rank_all(graph, CPU, with_scores=with_scores)
    with _counting(device) as launch:
        found = gpu_graph.rank_all(graph, device, with_scores=with_scores)
    assert (launch.call_count > 0) is (wants == "counts"), "the fused kernel counts where nobody asks for scores"
    return {**_compare(expected, found), "fused_launches": launch.call_count}


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
