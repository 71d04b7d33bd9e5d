"""A score depends on its two vectors alone: not on the block's shape, its strides, the offset, or the threads.

Matrix kernels have other last bits for small shapes and for each thread's share of a product, so every claim here is
about bits.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from pbgeval.scoring import product as kernels
from pbgeval.scoring import self_check
from pbgeval.scoring.comparators import COMPARATORS, Comparator
from pbgeval.scoring.entities import EntityTable
from pbgeval.scoring.operators import OPERATORS
from pbgeval.scoring.product import paired_product, product, transform

DIMENSIONS = (4, 33, 50, 100)
THREADS = (1, 2, 3, 4)
EVERY_SIZE = range(1, 131)
SOME_SIZES = (1, 11, 50, 107)
DTYPES = (torch.float32, torch.float64)
PREPARED = [(name, bias) for name in COMPARATORS for bias in (False, True)]


@pytest.fixture(autouse=True)
def threads_and_shapes_as_before() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    kernels._one_block_shape = False


def vectors(dimension: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """288 rows; the second half repeats the first, so that identical candidates lie far apart."""
    half_ND = torch.randn((144, dimension), generator=torch.Generator().manual_seed(dimension), dtype=dtype)
    return torch.cat([half_ND, half_ND])


def one_big_product(x_ND: Tensor) -> Tensor:
    """Every pair's inner product, from one thread and one call."""
    torch.set_num_threads(1)
    return product(x_ND[None], x_ND[None])[0]


def batched(x_ND: Tensor, num_products: int) -> Tensor:
    """Several products at once, of which the last is the one that is looked at."""
    return torch.cat([x_ND.roll(1, 0).expand(num_products - 1, -1, -1), x_ND[None]])


def shapes() -> Iterator[tuple[int, int, int]]:
    """(rows, columns, products at once): all sizes of each, at some sizes of the other."""
    for size in EVERY_SIZE:
        for other in SOME_SIZES:
            yield size, other, size % 3 + 1
            yield other, size, (size + other) % 3 + 1


def assert_all_shapes_agree(dimension: int, threads: int, dtype: torch.dtype) -> None:
    x_ND = vectors(dimension, dtype)
    expected_NN = one_big_product(x_ND)
    torch.set_num_threads(threads)

    unlike = [
        (rows, columns, num_products)
        for rows, columns, num_products in shapes()
        if not torch.equal(
            expected_NN[:rows, -columns:],
            product(batched(x_ND[:rows], num_products), batched(x_ND[-columns:], num_products))[-1],
        )
    ]

    assert [] == unlike


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("dimension", "threads"), [(4, 1), (33, 1), (50, 1), (100, 1), (33, 2), (50, 3), (100, 4)])
def test_a_product_of_any_shape_has_the_bits_of_one_big_product(dimension, threads, dtype):
    assert_all_shapes_agree(dimension, threads, dtype)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("dimension", [*DIMENSIONS, 6, 401])
def test_a_product_of_any_shape_has_the_bits_of_one_big_product_with_any_threads(dimension, threads, dtype):
    assert_all_shapes_agree(dimension, threads, dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("dimension", [*DIMENSIONS, 6, 401])
def test_identical_candidates_tie_exactly_wherever_they_lie(dimension, dtype):
    scores_NN = one_big_product(vectors(dimension, dtype))

    assert torch.equal(scores_NN[:, :144], scores_NN[:, 144:])
    assert torch.equal(scores_NN[:144], scores_NN[144:])


@pytest.mark.parametrize(("name", "threads"), [("dot", 1), ("cos", 2), ("l2", 3), ("squared_l2", 4)])
def test_identical_candidates_tie_within_every_row_of_any_shape(name, threads):
    x_1D = vectors(33)[:1]
    torch.set_num_threads(threads)
    comparator = Comparator(name)
    for rows, columns in ((rows, columns) for columns in EVERY_SIZE for rows in (1, 50)):
        queries_QD = comparator.prepare_queries(vectors(33)[1 : 1 + rows])
        candidates_CD = comparator.prepare_candidates(x_1D.repeat(columns, 1))

        scores_QC = comparator.scores(queries_QD[None], candidates_CD[None])[0]

        assert torch.equal(scores_QC[:, :1].expand(rows, columns), scores_QC), (rows, columns)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("threads", THREADS)
def test_pairs_have_the_bits_of_the_big_product(threads, dtype):
    for dimension in DIMENSIONS:
        x_ND = vectors(dimension, dtype)
        expected_N = one_big_product(x_ND).diagonal()
        torch.set_num_threads(threads)
        for size in EVERY_SIZE:
            assert torch.equal(expected_N[5 : 5 + size], paired_product(x_ND[5 : 5 + size], x_ND[5 : 5 + size])), size


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_matrix_gives_a_row_the_same_bits_in_any_company(dtype):
    """Also when the matrix is smaller than a block, and when the row comes alone."""
    for dimension in DIMENSIONS:
        x_ND = vectors(dimension, dtype)
        matrix_DD = vectors(dimension, dtype)[100 : 100 + dimension].contiguous()
        whole_ND = transform(x_ND, matrix_DD)
        for start, stop in ((0, 1), (3, 5), (7, 20), (100, 230)):
            for threads in THREADS:
                torch.set_num_threads(threads)
                assert torch.equal(whole_ND[start:stop], transform(x_ND[start:stop], matrix_DD))


@pytest.mark.parametrize(("name", "bias"), PREPARED)
def test_scores_of_a_comparator_have_the_same_bits_in_any_block(name, bias):
    comparator = Comparator(name, bias)
    for dimension in DIMENSIONS:
        x_ND = vectors(dimension)
        queries_ND, candidates_ND = comparator.prepare_queries(x_ND), comparator.prepare_candidates(x_ND)
        expected_NN = comparator.scores(queries_ND[None], candidates_ND[None])[0]
        for threads in (1, 3):
            torch.set_num_threads(threads)
            assert torch.equal(
                expected_NN.diagonal()[:37], comparator.paired_scores(queries_ND[:37], candidates_ND[:37])
            )
            for rows, columns in ((1, 1), (1, 130), (2, 11), (7, 50), (50, 7), (130, 1), (100, 130)):
                prepared = comparator.prepare_queries(x_ND[:rows]), comparator.prepare_candidates(x_ND[-columns:])
                for num_products in (1, 3):
                    scores_BQC = comparator.scores(*(batched(side, num_products) for side in prepared))
                    assert torch.equal(expected_NN[:rows, -columns:], scores_BQC[-1]), (rows, columns)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("name", "bias"), PREPARED)
def test_a_prepared_row_has_the_same_bits_in_any_company(name, bias, dtype):
    comparator = Comparator(name, bias)
    for dimension in (4, 33, 100, 401):
        x_ND = vectors(dimension, dtype)
        for prepare in (comparator.prepare_queries, comparator.prepare_candidates):
            whole_ND = prepare(x_ND)
            for rows in (slice(0, 1), slice(5, 7), slice(11, 112), slice(0, 288, 7)):
                assert torch.equal(whole_ND[rows], prepare(x_ND[rows]))
                assert torch.equal(whole_ND[rows], prepare(x_ND[rows].contiguous()))
                assert torch.equal(whole_ND[rows], prepare(x_ND[rows].t().contiguous().t()))


@pytest.mark.parametrize("name", OPERATORS)
def test_a_transformed_row_has_the_same_bits_in_any_company(name):
    operator = OPERATORS[name]
    for dimension in (4, 34, 100):
        x_ND = vectors(dimension)
        generator = torch.Generator().manual_seed(7)
        parameters = {key: torch.randn((3, *of), generator=generator) for key, of in operator.shapes(dimension).items()}
        rel_N = torch.arange(len(x_ND)) % 3
        whole_ND = operator.apply(parameters, x_ND, rel_N)
        for relation in range(3):
            of_one = {key: value[relation] for key, value in parameters.items()}
            assert torch.equal(whole_ND[relation::3], operator.apply(of_one, x_ND[relation::3].contiguous(), None))
        for rows in (slice(0, 1), slice(5, 7), slice(11, 112)):
            assert torch.equal(whole_ND[rows], operator.apply(parameters, x_ND[rows], rel_N[rows]))


def test_a_shortened_row_has_the_same_bits_in_any_company():
    for dimension in (4, 33, 100, 401):
        table = EntityTable("user", 0, vectors(dimension), torch.linspace(-1, 1, dimension), max_norm=3.0)
        whole_ND = table.range_of_rows(0, 288)
        for ids in ([0], [5, 6], [287, 0, 143, 0], list(range(11, 112))):
            assert torch.equal(whole_ND[ids], table.rows(torch.tensor(ids)))
        assert torch.equal(whole_ND[130:131], table.range_of_rows(130, 131))


@pytest.mark.parametrize("num_products", [1, 2, 3])
def test_strides_do_not_matter(num_products):
    for dimension in DIMENSIONS:
        x_ND = vectors(dimension)
        wide_ND = torch.cat([x_ND.flip(1), x_ND, x_ND.flip(0)], dim=1)
        inner_ND = wide_ND[:, dimension : 2 * dimension]  # rows with gaps between them
        turned_ND = x_ND.t().contiguous().t()  # columns lie together
        for rows, columns in ((1, 1), (3, 17), (50, 100), (130, 129)):
            expected = product(batched(x_ND[:rows], num_products), batched(x_ND[:columns], num_products))
            for other_ND in (inner_ND, turned_ND):
                queries_QD, candidates_CD = other_ND[:rows], other_ND[:columns]
                if num_products > 1:
                    queries_BQD = torch.stack([queries_QD.roll(1, 0)] * (num_products - 1) + [queries_QD])
                    candidates_BCD = torch.stack([candidates_CD.roll(1, 0)] * (num_products - 1) + [candidates_CD])
                else:
                    queries_BQD, candidates_BCD = queries_QD[None], candidates_CD[None]
                assert torch.equal(expected, product(queries_BQD, candidates_BCD))


def test_rows_of_chunks_that_share_one_tensor_do_not_matter():
    """As the sampled pass hands them over: candidates are a view into lists, queries the head of the list."""
    x_BCD = vectors(33).view(4, 72, 33)

    scores_BQC = product(x_BCD[:, :50], x_BCD)

    expected_NN = one_big_product(vectors(33))
    for chunk in range(4):
        rows = slice(chunk * 72, chunk * 72 + 50)
        assert torch.equal(expected_NN[rows, chunk * 72 : (chunk + 1) * 72], scores_BQC[chunk])


@pytest.mark.parametrize("shape", [(0, 3, 4), (2, 0, 4), (2, 3, 0)])
def test_products_of_nothing_are_empty(shape):
    num_products, rows, columns = shape

    scores_BQC = product(torch.ones(num_products, rows, 5), torch.ones(num_products, columns, 5))

    assert shape == tuple(scores_BQC.shape)
    assert (0,) == tuple(paired_product(torch.ones(0, 5), torch.ones(0, 5)).shape)


# The self-check and the one block shape


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tiles_of_one_shape_have_the_same_bits_too(dtype):
    """With one thread, as the self-check leaves it."""
    torch.set_num_threads(1)
    kernels.use_one_block_shape()
    for dimension in DIMENSIONS:
        x_ND = vectors(dimension, dtype)
        expected_NN = product(x_ND[None], x_ND[None])[0]
        assert torch.equal(expected_NN[:, :144], expected_NN[:, 144:])
        assert torch.equal(expected_NN.diagonal()[:130], paired_product(x_ND[:130], x_ND[:130]))
        for rows, columns in ((1, 1), (1, 130), (130, 1), (17, 129), (128, 128), (129, 11)):
            scores_BQC = product(batched(x_ND[:rows], 2), batched(x_ND[-columns:], 2))
            assert torch.equal(expected_NN[:rows, -columns:], scores_BQC[-1]), (rows, columns)


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_the_self_check_finds_nothing_wrong_here(threads, dtype):
    torch.set_num_threads(threads)

    report = self_check.check_kernels(torch.device("cpu"), dtype)

    assert report.passed
    assert threads == torch.get_num_threads()
    assert not kernels._one_block_shape
    assert {"torch", "device", "dtype", "product_digest"} == set(report.fingerprint)


def test_the_fingerprint_is_that_of_the_machine_not_of_the_number_of_threads():
    fingerprints = []
    for threads in THREADS:
        torch.set_num_threads(threads)
        fingerprints.append(self_check.check_kernels(torch.device("cpu")).fingerprint)

    assert [fingerprints[0]] * len(THREADS) == fingerprints


def small_shapes_are_wrong(query_BQD: Tensor, candidate_BCD: Tensor) -> Tensor:
    scores_BQC = torch.bmm(query_BQD, candidate_BCD.transpose(1, 2))
    return scores_BQC * (1 + 2.0**-20) if scores_BQC.shape[1] < 16 else scores_BQC


def later_columns_are_wrong(query_BQD: Tensor, candidate_BCD: Tensor) -> Tensor:
    scores_BQC = torch.bmm(query_BQD, candidate_BCD.transpose(1, 2))
    scores_BQC[:, :, 200:] *= 1 + 2.0**-20
    return scores_BQC


def threads_are_wrong(query_BQD: Tensor, candidate_BCD: Tensor) -> Tensor:
    scores_BQC = torch.bmm(query_BQD, candidate_BCD.transpose(1, 2))
    return scores_BQC * (1 + 2.0**-20) if torch.get_num_threads() > 1 else scores_BQC


def batches_are_wrong(query_BQD: Tensor, candidate_BCD: Tensor) -> Tensor:
    scores_BQC = torch.bmm(query_BQD, candidate_BCD.transpose(1, 2))
    return scores_BQC * (1 + 2.0**-20) if len(scores_BQC) == 3 else scores_BQC


BROKEN = [small_shapes_are_wrong, later_columns_are_wrong, threads_are_wrong, batches_are_wrong]


@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_kernel_is_found_and_one_block_shape_used(broken, monkeypatch):
    torch.set_num_threads(3)
    monkeypatch.setattr(kernels, "product", broken)

    report = self_check.check_kernels(torch.device("cpu"))

    assert not report.passed
    assert 1 == torch.get_num_threads()
    assert kernels._one_block_shape
