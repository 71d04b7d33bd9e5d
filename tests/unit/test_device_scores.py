"""The kernels of a GPU against float64 and the reference; without a GPU, by Triton's interpreter.

The interpreter's products are right to the bit for exact data (multiples of 1/4); `kernel_device` adds them in order.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import re

import numpy as np
import pytest
import torch
from torch import Tensor

from pbgeval.errors import LaunchError
from pbgeval.scoring import device_scores, product, self_check
from pbgeval.scoring.device_scores import Columns, Targets
from pbgeval.scoring.self_check import DeviceRule
from tests.examples import crossed

DTYPES = (torch.float32, torch.float64)


@pytest.fixture(params=["dot", "spelled out"])
def way(request: pytest.FixtureRequest, kernel_device: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The device, whose tiles are multiplied by Triton's dot, then by the chain spelled out."""
    if request.param == "spelled out":
        monkeypatch.setattr(device_scores, "_devices_by_loop", lambda: {kernel_device})
    return kernel_device


def exact(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return (torch.randint(-6, 7, shape, generator=torch.Generator().manual_seed(seed)) / 4).to(dtype)


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def every_pair(query_QD: Tensor, candidate_CD: Tensor) -> Tensor:
    """Scores (Q, C) by the kernel of pairs."""
    sizes = len(query_QD), len(candidate_CD)
    row, column = torch.meshgrid(*(torch.arange(size, device=query_QD.device) for size in sizes), indexing="ij")
    return device_scores.pairs(query_QD, row.flatten(), candidate_CD, column.flatten()).view(sizes)


def targets(row_Q, true_Q, own_Q=None, kernel_Q=None, hash_Q=None) -> Targets:
    none_Q = torch.full_like(row_Q, -1)
    return Targets(
        row_Q,
        true_Q,
        true_Q if kernel_Q is None else kernel_Q,
        none_Q if hash_Q is None else hash_Q,
        none_Q if own_Q is None else own_Q,
    )


# Scores


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("num_blocks", "num_queries", "num_candidates", "dimension"),
    [(1, 1, 1, 1), (2, 17, 33, 7), (3, 1, 50, 16), (1, 40, 1, 33), (2, 16, 32, 32), (1, 5, 4, 0)],
)
def test_scores_of_exact_vectors_are_those_of_float64(way, dtype, num_blocks, num_queries, num_candidates, dimension):
    query_BQD = exact(num_blocks, num_queries, dimension, seed=1, dtype=dtype)
    candidate_BCD = exact(num_blocks, num_candidates, dimension, seed=2, dtype=dtype)

    found_BQC = device_scores.scores(query_BQD.to(way), candidate_BCD.to(way)).cpu()

    assert found_BQC.dtype is dtype
    assert torch.equal(found_BQC.double(), query_BQD.double() @ candidate_BCD.double().mT)


@pytest.mark.parametrize("shape", [(0, 3, 4), (2, 0, 4), (2, 3, 0)])
def test_a_block_without_cells_has_no_scores(way, shape):
    num_blocks, num_queries, num_candidates = shape
    query_BQD, candidate_BCD = exact(num_blocks, num_queries, 5), exact(num_blocks, num_candidates, 5)
    found_BQC = product.product(query_BQD.to(way), candidate_BCD.to(way))
    nobody = torch.empty(0, dtype=torch.int64, device=way)

    assert found_BQC.shape == shape
    assert device_scores.pairs(exact(3, 5).to(way), nobody, exact(3, 5).to(way), nobody).shape == (0,)


# Fewer columns than a step, one step, and a part of a third.
@pytest.mark.parametrize(("dtype", "dimension"), crossed(DTYPES, [5, 16, 37], quick=2))
def test_a_score_depends_on_its_two_vectors_alone(way, dtype, dimension):
    """Law 2: in a tile of any place, alone, in a pair, of any strides: the same bits, so identical candidates tie."""
    query_QD, half_CD = normal(19, dimension, seed=1, dtype=dtype).to(way), normal(28, dimension, dtype=dtype).to(way)
    candidate_CD = torch.cat([half_CD, half_CD])
    expected_QC = every_pair(query_QD, candidate_CD)

    whole_QC = product.product(query_QD[None], candidate_CD[None])[0]

    assert torch.equal(whole_QC, expected_QC)
    assert torch.equal(whole_QC[:, :28], whole_QC[:, 28:])
    assert torch.equal(product.paired_product(query_QD, candidate_CD[:19]), expected_QC.diagonal())
    assert torch.equal(product.transform(query_QD, candidate_CD), expected_QC)
    for rows, columns in ((slice(3, 4), slice(41, 42)), (slice(0, 17), slice(5, 50)), (slice(18, 19), slice(0, 33))):
        blocks = torch.stack([query_QD[rows], query_QD[rows]]), torch.stack([candidate_CD[columns]] * 2)
        turned = [of.mT.contiguous().mT for of in blocks]
        wide = [torch.cat([of, of], dim=2)[..., dimension:] for of in blocks]
        for other in (blocks, turned, wide, (blocks[0][:1].expand(2, -1, -1), blocks[1])):
            found_BQC = product.product(*other)
            assert torch.equal(found_BQC[0], expected_QC[rows, columns])
            assert torch.equal(found_BQC[1], expected_QC[rows, columns])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_chain_goes_from_the_first_column_to_the_last(way, dtype):
    """A small term is lost beside a large one, unless the large ones have cancelled before."""
    huge, one = 2.0**60, torch.ones(1, 3, dtype=dtype)
    rows_CD = torch.tensor([[huge, 1, -huge], [huge, -huge, 1], [1, huge, -huge]], dtype=dtype)
    found = product.product(one[None].to(way), rows_CD[None].to(way)).flatten().tolist()
    assert found == every_pair(one.to(way), rows_CD.to(way)).flatten().tolist() == [0, 1, 0]


def test_padding_makes_no_number_of_infinity_and_none_is_lost(way):
    """An infinite number of a row meets no zero that pads the other; 0.0 and -0.0, and subnormal numbers, are kept."""
    inf, least = torch.inf, 2.0**-149
    query_QD = torch.tensor([[inf, 1.0], [-inf, 1.0], [least, 0.0], [-0.0, -0.0], [torch.nan, 1.0]])
    candidate_CD = torch.tensor([[1.0, 2.0], [-1.0, -inf], [1.0, 0.0]])
    expected = [[inf, -inf, inf], [-inf, torch.nan, -inf], [least, torch.nan, least], [0, torch.nan, 0]]
    expected.append([torch.nan] * 3)

    found_QC = product.product(query_QD[None].to(way), candidate_CD[None].to(way))[0].cpu()

    torch.testing.assert_close(found_QC, torch.tensor(expected), rtol=0, atol=0, equal_nan=True)
    pairs_QC = every_pair(query_QD.to(way), candidate_CD.to(way)).cpu()
    torch.testing.assert_close(pairs_QC, found_QC, rtol=0, atol=0, equal_nan=True)


# Sums over columns that are no products


def sums_in_order(query_QD: Tensor, candidate_CD: Tensor, term: str) -> Tensor:
    """Scores (Q, C), one column after the other, each step rounded as numpy rounds it."""
    query_QD, candidate_CD = query_QD.numpy(), candidate_CD.numpy()
    sum_QC = np.zeros((len(query_QD), len(candidate_CD)), query_QD.dtype)
    num_terms = device_scores.num_terms(term, query_QD.shape[1])
    for k in range(num_terms):
        term_QC = np.abs(query_QD[:, None, k] - candidate_CD[:, k])
        if term == "modulus":
            other_QC = query_QD[:, None, num_terms + k] - candidate_CD[:, num_terms + k]
            term_QC = np.sqrt(term_QC * term_QC + other_QC * other_QC)
        sum_QC += term_QC
    return torch.from_numpy(-sum_QC)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's numpy warns of overflow
@pytest.mark.parametrize(("dtype", "term", "dimension"), crossed(DTYPES, ["absolute", "modulus"], [5, 38], quick=2))
def test_sums_over_columns_have_the_bits_of_one_order(kernel_device, dtype, term, dimension):
    """In tiles, in pairs, and where they are counted; also where squares are subnormal or overflow, or rows are one."""
    candidate_CD = normal(35, dimension, seed=2, dtype=dtype)
    scale_Q = torch.tensor([1.0, 2.0**-70, 1e19, torch.finfo(dtype).max / 8, 1.0], dtype=dtype).repeat(4)
    query_QD = torch.cat([normal(15, dimension, dtype=dtype), candidate_CD[:5]]) * scale_Q[:, None]
    candidate_CD[30:] = candidate_CD[:5] * scale_Q[1:6, None]
    expected_QC = sums_in_order(query_QD, candidate_CD, term)
    query_QD, candidate_CD = query_QD.to(kernel_device), candidate_CD.to(kernel_device)
    every_Q, own_Q = torch.arange(20, device=kernel_device), torch.arange(20, device=kernel_device) % 3
    row_P, column_P = every_Q.repeat_interleave(35), torch.arange(35, device=kernel_device).repeat(20)

    whole_BQC = device_scores.scores(torch.stack([query_QD] * 2), torch.stack([candidate_CD.flip(0)] * 2), term)
    pairs_P = device_scores.pairs(query_QD, row_P, candidate_CD, column_P, term)

    assert torch.equal(whole_BQC[1].flip(1).cpu(), expected_QC)
    assert torch.equal(pairs_P.view(20, 35).cpu(), expected_QC)
    assert torch.equal(torch.signbit(pairs_P), torch.signbit(expected_QC.flatten()).to(kernel_device))
    true_Q = expected_QC.to(kernel_device)[every_Q, own_Q]
    of = targets(every_Q, true_Q, own_Q)
    hash_C = torch.zeros(35, dtype=torch.int64, device=kernel_device)
    better_Q, tied_Q = device_scores.count(query_QD, Columns.from_rows(candidate_CD, hash_C), of, term)
    gap_QC = torch.sign(expected_QC.to(kernel_device).nan_to_num() - true_Q.nan_to_num()[:, None])
    assert torch.equal(better_Q.long(), (gap_QC > 0).sum(1))
    assert torch.equal(tied_Q.long(), (gap_QC == 0).sum(1) - 1)
    signs_P = device_scores.compare(query_QD, of, candidate_CD, hash_C, row_P, column_P, term)
    assert torch.equal(signs_P.view(20, 35).to(gap_QC), gap_QC)


# Counts


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("num_queries", "num_candidates"), [(1, 1), (40, 70), (33, 16), (0, 5), (5, 0)])
def test_a_duplicate_ties_whatever_the_score_that_counts_and_its_hash_alone_does_not_tell(
    way, dtype, num_queries, num_candidates
):
    """The score that counts is not the kernel's sum: here it is higher or lower, so a duplicate would fall."""
    query_QD, candidate_CD = exact(num_queries, 7, seed=1, dtype=dtype), exact(num_candidates, 7, seed=2, dtype=dtype)
    hash_C = torch.arange(num_candidates) % 3  # most candidates with a query's hash have other scores
    scores_QC = query_QD.double() @ candidate_CD.double().mT
    own_Q = torch.arange(num_queries) % num_candidates if num_candidates else torch.full((num_queries,), -1)
    kernel_Q = torch.zeros(num_queries, dtype=torch.float64)
    if num_candidates:
        kernel_Q = (query_QD.double() * candidate_CD.double()[own_Q]).sum(1)
    true_Q = kernel_Q + torch.tensor([0.25, -0.25, 0.0])[torch.arange(num_queries) % 3].double()
    hash_Q = hash_C[own_Q] if num_candidates else own_Q
    duplicate_QC = (scores_QC == kernel_Q[:, None]) & (hash_C == hash_Q[:, None])
    competes_QC = torch.arange(num_candidates) != own_Q[:, None]
    expected = (
        (competes_QC & ~duplicate_QC & (scores_QC > true_Q[:, None])).sum(1).tolist(),
        (competes_QC & (duplicate_QC | (scores_QC == true_Q[:, None]))).sum(1).tolist(),
    )
    true = (of.to(way) for of in (torch.arange(num_queries), true_Q.to(dtype), own_Q, kernel_Q.to(dtype), hash_Q))

    found = device_scores.count(
        query_QD.to(way), Columns.from_rows(candidate_CD.to(way), hash_C.to(way)), targets(*true)
    )

    assert tuple(of.tolist() for of in found) == expected


def test_infinite_scores_compare_as_numbers(way):
    query_KD, candidate_CD = torch.tensor([[1e30], [-1e30]]), torch.tensor([[1e30], [-1e30], [0.0]])
    true = torch.arange(2).to(way), torch.tensor([torch.inf, -torch.inf]).to(way)
    columns = Columns.from_rows(candidate_CD.to(way), torch.zeros(3, dtype=torch.int64, device=way))

    better_Q, tied_Q = device_scores.count(query_KD.to(way), columns, targets(*true))

    assert (better_Q.tolist(), tied_Q.tolist()) == ([0, 2], [1, 1])


@pytest.mark.parametrize("dimension", [7, 100, 130])
def test_scores_are_within_the_rounding_bound(way, dimension):
    """|fl(q.c) - q.c| <= n u / (1 - n u) * sum|q_i c_i| in any order of summation (Higham 2002, 3.5)."""
    query_QD, candidate_CD = normal(30, dimension, seed=3), normal(50, dimension, seed=4)
    rounding = (dimension + 1) * 2.0**-24 / (1 - (dimension + 1) * 2.0**-24)
    bound_QC = rounding * (query_QD.double().abs() @ candidate_CD.double().abs().t())

    found_QC = product.product(query_QD[None].to(way), candidate_CD[None].to(way))[0].cpu()

    assert bool(((found_QC.double() - query_QD.double() @ candidate_CD.double().t()).abs() <= bound_QC).all())


# What a process finds out before it relies on them


def checked(device: str, dtype: torch.dtype = torch.float32) -> self_check.KernelReport:
    return self_check._check_device.__wrapped__(torch.device(device), dtype)


def test_the_self_check_says_how_tiles_are_multiplied_and_of_exact_ranks_what_the_screen_is(kernel_device, monkeypatch):
    device, asked = torch.device(kernel_device), []
    monkeypatch.setattr(self_check, "_screens", lambda of: asked.append(of) or False)

    others = [self_check.check_kernels(device, dtype) for dtype in DTYPES]
    assert not asked
    assert [report.rule for report in others] == [DeviceRule.DOT, DeviceRule.LOOP]
    for report in others:
        assert report.passed
        assert set(report.fingerprint) == {"torch", "triton", "device", "dtype", "product_digest"}
    report = self_check.check_kernels(device, exact=True)
    assert (asked, report.fingerprint["screen"], report.passed) == ([device], "none", False)


def broken(kernel: str, only_by_dot: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a kernel give other last bits, for columns beyond the first tile."""
    launch = getattr(device_scores, kernel)

    def other_bits(query, *others, **named):
        found = launch(query, *others, **named)
        if only_by_dot and not device_scores.multiplies_by_dot(query.device, query.dtype):
            return found
        if kernel == "count":
            return found[0], found[1] + 1
        return found * (1 + 2.0**-20 * (torch.arange(found.shape[-1], device=query.device) >= 32))

    monkeypatch.setattr(device_scores, kernel, other_bits)


@pytest.mark.parametrize("kernel", ["scores", "count"])
def test_where_the_dot_has_other_bits_the_chain_is_spelled_out_and_the_report_says_so(
    kernel_device, kernel, monkeypatch
):
    broken(kernel, True, monkeypatch)

    report = checked(kernel_device)

    assert (report.rule, report.passed) == (DeviceRule.LOOP, False)
    assert not device_scores.multiplies_by_dot(torch.device(kernel_device), torch.float32)


@pytest.mark.parametrize("kernel", ["scores", "count"])
def test_kernels_that_do_not_agree_at_all_are_refused_in_one_line(kernel_device, kernel, monkeypatch):
    broken(kernel, False, monkeypatch)

    with pytest.raises(LaunchError, match=r"kernels of triton \S+ give one pair several scores; use device cpu$"):
        checked(kernel_device)


def test_a_compiler_that_is_missing_is_named_in_one_line(kernel_device, monkeypatch):
    def launch(*_, **__):
        raise RuntimeError("Failed to find C compiler.\nSet CC")

    monkeypatch.setattr(device_scores, "pairs", launch)

    with pytest.raises(LaunchError, match=r": triton cannot run its kernels: Failed to find C compiler\.; or use"):
        checked(kernel_device)


@pytest.mark.parametrize("use", ["self-check", "product", "paired product"])
def test_a_gpu_without_triton_is_refused_in_one_line(kernel_device, use, monkeypatch):
    monkeypatch.setattr(device_scores, "is_installed", lambda: False)
    x_1ND = normal(1, 3, 4).to(kernel_device)
    uses = {
        "self-check": functools.partial(checked, kernel_device),
        "product": lambda: product.product(x_1ND, x_1ND),
        "paired product": lambda: product.paired_product(x_1ND[0], x_1ND[0]),
    }

    with pytest.raises(LaunchError) as caught:
        uses[use]()

    assert str(caught.value) == "triton is required on a GPU: pip install triton, or use device cpu"


@pytest.mark.parametrize("version", ["3.4.0", "3.5.0"])
def test_a_gpu_with_an_old_triton_is_refused_in_one_line(kernel_device, version, monkeypatch):
    monkeypatch.setattr("triton.__version__", version)
    message = re.escape(f"triton 3.5 or later (torch 2.9) is required on a GPU, got {version}; or use device cpu")
    is_refused = pytest.raises(LaunchError, match=f"^{message}$") if version == "3.4.0" else contextlib.nullcontext()

    with is_refused:
        checked(kernel_device)


def test_no_two_shapes_of_tiles_are_read_from_one_set_of_numbers():
    """Tiles are cut in wholes of what kernels assume of rows and columns."""
    for tiles, of in itertools.product((device_scores.TILES, device_scores.LOOP_TILES), ("rows", "columns")):
        assert getattr(tiles, of) % device_scores.ALIGNMENT == 0
