"""A score depends on its two vectors alone: not on the block's shape, its strides, the offset, or the threads.

Matrix kernels have other last bits for small shapes, for each thread's share of a product, and for long vectors, so
every claim here is about bits; and they differ by machine, so each holds by the rule that the self-check finds.
"""

from __future__ import annotations

import functools
import random
import sys
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from pbgeval.errors import LowPrecisionError
from pbgeval.scoring import product as kernels
from pbgeval.scoring import self_check
from pbgeval.scoring.comparators import COMPARATORS, Comparator
from pbgeval.scoring.entities import EntityTable
from pbgeval.scoring.operators import OPERATORS
from pbgeval.scoring.product import BlockRule, paired_product, product
from pbgeval.scoring.self_check import KernelReport
from tests.examples import crossed
from tests.kit.commands import run_program

DIMENSIONS = (4, 33, 50, 100)
THREADS = (1, 2, 3, 4)
EVERY_SIZE = range(1, 131)
SOME_SIZES = (1, 11, 50, 107)
CPU = torch.device("cpu")
DTYPES = (torch.float32, torch.float64)
PREPARED = [(name, bias) for name in COMPARATORS for bias in (False, True)]


@pytest.fixture(autouse=True)
def threads_and_rules_as_before() -> Iterator[None]:
    threads = torch.get_num_threads()
    rules = dict(kernels._rules_of_process())
    yield
    torch.set_num_threads(threads)
    kernels._rules_of_process().clear()
    kernels._rules_of_process().update(rules)


def compute_with(threads: int, dtype: torch.dtype = torch.float32) -> KernelReport:
    """Go on as a process does that was given so many threads."""
    torch.set_num_threads(threads)
    return self_check.check_kernels(CPU, dtype)


def vectors(dimension: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """288 rows; the second half repeats the first, so that identical candidates lie far apart."""
    half_ND = torch.randn((144, dimension), generator=torch.Generator().manual_seed(dimension), dtype=dtype)
    return torch.cat([half_ND, half_ND])


def one_big_product(x_ND: Tensor) -> Tensor:
    """Every pair's inner product, from one thread and one call."""
    compute_with(1, x_ND.dtype)
    return product(x_ND[None], x_ND[None])[0]


def assert_identical_rows_tie(scores_NN: Tensor) -> None:
    """Those of `vectors`, exactly, wherever they lie: and so in blocks of any shape that have the same bits."""
    assert torch.equal(scores_NN[:, :144], scores_NN[:, 144:])
    assert torch.equal(scores_NN[:144], scores_NN[144:])


def batched(x_ND: Tensor, num_products: int) -> Tensor:
    """Several products at once, of which the last is the one that is looked at."""
    return torch.cat([x_ND.roll(1, 0).expand(num_products - 1, -1, -1), x_ND[None]])


def shapes() -> Iterator[tuple[int, int, int]]:
    """(rows, columns, products at once): all sizes of each, at some sizes of the other."""
    for size in EVERY_SIZE:
        for other in SOME_SIZES:
            yield size, other, size % 3 + 1
            yield other, size, (size + other) % 3 + 1


SHAPED = [
    *((4, 1), (33, 1), (50, 1), (100, 1), (33, 2), (50, 3), (100, 4)),
    *(pytest.param(dimension, threads, marks=pytest.mark.slow) for dimension in (6, 401) for threads in THREADS),
]


@pytest.mark.one_case
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("dimension", "threads"), SHAPED)
def test_a_product_of_any_shape_has_the_bits_of_one_big_product(dimension, threads, dtype):
    x_ND = vectors(dimension, dtype)
    expected_NN = one_big_product(x_ND)
    assert_identical_rows_tie(expected_NN)
    compute_with(threads, dtype)

    unlike = [
        (rows, columns, num_products)
        for rows, columns, num_products in shapes()
        if not torch.equal(
            expected_NN[:rows, -columns:],
            product(batched(x_ND[:rows], num_products), batched(x_ND[-columns:], num_products))[-1],
        )
    ]

    assert unlike == []


@pytest.mark.parametrize("dimension", [1, 2, 193, 194, 255, 256, 257, 258, 385, 512, 513, 514, 769])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_no_last_cut_of_the_inner_dimension_has_other_bits_in_small_blocks(dimension, dtype):
    """A single dimension beyond a cut was added by another kernel in blocks of 16 x 16."""
    x_ND = vectors(dimension, dtype)
    expected_NN = one_big_product(x_ND)
    assert_identical_rows_tie(expected_NN)

    # Vectors that are not their own neighbours: sums near zero show a rounding more often.
    assert torch.equal(expected_NN.diagonal(7), paired_product(x_ND[:-7], x_ND[7:]))
    for rows, columns in ((1, 1), (3, 15), (16, 16), (16, 11), (17, 16), (15, 33), (64, 20)):
        assert torch.equal(expected_NN[:rows, -columns:], product(x_ND[None, :rows], x_ND[None, -columns:])[0])


@pytest.mark.parametrize(("name", "bias"), PREPARED)
def test_scores_of_a_comparator_have_the_same_bits_in_any_block(name, bias):
    comparator = Comparator(name, bias)
    for dimension in DIMENSIONS:
        x_ND = vectors(dimension)
        queries_ND, candidates_ND = comparator.prepare_queries(x_ND), comparator.prepare_candidates(x_ND)
        compute_with(1)
        expected_NN = comparator.scores(queries_ND[None], candidates_ND[None])[0]
        assert_identical_rows_tie(expected_NN)
        for threads in (1, 3):
            compute_with(threads)
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
    """Also where squares leave the range of float32, in batches, and with other threads."""
    comparator = Comparator(name, bias)
    exponents = torch.randint(-30, 31, (288, 1), generator=torch.Generator().manual_seed(0))
    for dimension in (4, 33, 100, 401):
        x_ND = vectors(dimension, dtype) * torch.tensor(10.0, dtype=dtype).pow(exponents)
        for prepare in (comparator.prepare_queries, comparator.prepare_candidates):
            whole_ND = prepare(x_ND)
            for threads, rows in enumerate((slice(0, 1), slice(5, 7), slice(11, 112), slice(0, 288, 7)), 1):
                torch.set_num_threads(threads)
                for other_ND in (x_ND[rows], x_ND[rows].contiguous(), x_ND[rows].t().contiguous().t()):
                    assert torch.equal(whole_ND[rows], prepare(other_ND))
                    assert torch.equal(whole_ND[rows], prepare(other_ND[None])[0])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", OPERATORS)
def test_a_transformed_row_has_the_same_bits_in_any_company(name, dtype):
    """Also when a matrix is smaller than a block, when the row comes alone, and with other threads."""
    operator = OPERATORS[name]
    for dimension in (4, 34, 100):
        compute_with(1, dtype)
        x_ND, generator = vectors(dimension, dtype), torch.Generator().manual_seed(7)
        shapes = operator.shapes(dimension).items()
        drawn = {key: torch.randn((3, *of), generator=generator, dtype=dtype) for key, of in shapes}
        parameters = operator.prepared(drawn)
        rel_N = torch.arange(len(x_ND)) % 3
        whole_ND = operator.apply(parameters, x_ND, rel_N)
        for relation in range(3):
            of_one = {key: value[relation] for key, value in parameters.items()}
            assert torch.equal(whole_ND[relation::3], operator.apply(of_one, x_ND[relation::3].contiguous(), None))
        for threads, rows in enumerate((slice(0, 1), slice(5, 7), slice(7, 20), slice(11, 230)), 1):
            compute_with(threads, dtype)
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
    compute_with(1)
    for dimension in DIMENSIONS:
        x_ND = vectors(dimension)
        for rows, columns in ((1, 1), (3, 17), (50, 100), (130, 129)):
            whole = batched(x_ND[:rows], num_products), batched(x_ND[:columns], num_products)
            wide = [torch.cat([of.flip(2), of, of.flip(1)], dim=2)[..., dimension:-dimension] for of in whole]
            turned = [of.mT.contiguous().mT for of in whole]  # columns lie together
            for other in (wide, turned):  # rows with gaps between them
                assert torch.equal(product(*whole), product(*other))


# The self-check and its rules


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_rule_gives_the_bits_of_the_others(dtype):
    """With one thread, as the self-check leaves the last one."""
    for dimension in (*DIMENSIONS, 401):
        x_ND = vectors(dimension, dtype)
        expected_NN = one_big_product(x_ND)
        torch.set_num_threads(1)
        for rule in (compute_with(1, dtype).rule, BlockRule.COARSER, BlockRule.ONE_SHAPE):
            kernels.use_block_rule(rule, dtype)
            assert torch.equal(expected_NN, product(x_ND[None], x_ND[None])[0]), rule
            assert torch.equal(expected_NN.diagonal()[:130], paired_product(x_ND[:130], x_ND[:130])), rule
            for rows, columns in ((1, 1), (1, 130), (130, 1), (17, 129), (128, 128), (129, 11)):
                scores_BQC = product(batched(x_ND[:rows], 2), batched(x_ND[-columns:], 2))
                assert torch.equal(expected_NN[:rows, -columns:], scores_BQC[-1]), (rule, rows, columns)


@functools.cache
def large_product(dimension: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return 2200 vectors, and the products of the first 1100 with all, in tiles of one shape."""
    x_ND = torch.randn((2200, dimension), generator=torch.Generator().manual_seed(dimension)).to(dtype)
    torch.set_num_threads(1)
    kernels.use_block_rule(BlockRule.ONE_SHAPE, dtype)
    return x_ND, product(x_ND[None, :1100], x_ND[None])[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_cut_of_an_inner_dimension_is_a_single_one(dtype: torch.dtype) -> None:
    cuts = [(dimension, kernels.longest_inner(dimension, dtype)) for dimension in range(2, 800)]

    assert [dimension for dimension, cut in cuts if dimension % cut == 1] == []


def assert_blocks_of_any_place_agree(threads: int, dtype: torch.dtype, dimension: int, num_blocks: int) -> None:
    """Blocks of sizes from one to a thousand or two, on logarithmic scales, anywhere in a large product."""
    draw = random.Random(dimension)
    x_ND, expected_QC = large_product(dimension, dtype)
    compute_with(threads, dtype)
    for _ in range(num_blocks):
        rows, columns = int(2 ** draw.uniform(0, 10)), int(2 ** draw.uniform(0, 11))
        first, start = draw.randint(0, 1100 - rows), draw.randint(0, 2200 - columns)
        num_products = draw.choice((1, 1, 2, 3, 9))
        query_QD, candidate_CD = x_ND[first : first + rows], x_ND[start : start + columns]
        scores_QC = product(batched(query_QD, num_products), batched(candidate_CD, num_products))[-1]
        expected = expected_QC[first : first + rows, start : start + columns]
        assert torch.equal(expected, scores_QC), (num_products, rows, columns, first, start)


@pytest.mark.one_case
@pytest.mark.parametrize(("threads", "dtype"), crossed(THREADS, DTYPES, quick=2))
def test_blocks_of_any_size_and_place_have_the_bits_of_tiles_of_one_shape(threads, dtype):
    for dimension in (33, 256, 401):
        assert_blocks_of_any_place_agree(threads, dtype, dimension, num_blocks=40)


OLDER = ("SSE4_2", *(["AVX2"] if torch.backends.cpu.get_cpu_capability() == "AVX512" else []))
OTHER_MACHINE = """
import torch
from tests.laws import test_kernels_depend_on_vectors_alone as laws
for dtype in laws.DTYPES:
    for threads in laws.THREADS:
        for dimension in (20, 300):
            laws.assert_blocks_of_any_place_agree(threads, dtype, dimension, num_blocks=8)
        print(dtype, threads, laws.compute_with(threads, dtype).rule)
"""


@pytest.mark.slow
@pytest.mark.parametrize("instructions", OLDER)
def test_the_rule_that_is_found_holds_on_machines_with_older_instructions(instructions):
    """MKL takes the kernels of older machines when told so (where it is MKL)."""
    printed = run_program(sys.executable, "-c", OTHER_MACHINE, MKL_ENABLE_INSTRUCTIONS=instructions)
    assert printed.count("BlockRule") == 8


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_the_self_check_goes_on_with_what_it_reports(threads, dtype):
    torch.set_num_threads(threads)

    report = self_check.check_kernels(CPU, dtype)

    passed = report.num_threads == threads and report.rule is not BlockRule.ONE_SHAPE
    assert report.num_threads == torch.get_num_threads() <= threads
    assert (report.rule, report.passed) == (kernels.block_rule(dtype), passed)
    assert set(report.fingerprint) == {"torch", "device", "dtype", "product_digest"}


def test_the_fingerprint_is_that_of_the_machine_not_of_the_number_of_threads():
    assert len({str(compute_with(threads, torch.float32).fingerprint) for threads in THREADS}) == 1


# Which of the products (of a block, of columns) are wrong, and what then holds with how many threads.
BROKEN = [
    (lambda scores_BRS: scores_BRS.shape[1] < 96, {BlockRule.COARSE}, 4),
    (lambda scores_BRS: scores_BRS.shape[1] % 192 > 0, {BlockRule.COARSER}, 4),
    (lambda scores_BRS: torch.arange(scores_BRS.shape[2]) >= 200, {BlockRule.ONE_SHAPE}, 1),
    (  # for threads that share a large product
        lambda scores_BRS: torch.get_num_threads() > 1 and scores_BRS.shape[2] > 1600,
        {BlockRule.FINE, BlockRule.COARSE},
        1,
    ),
    (lambda scores_BRS: torch.get_num_threads() == 4, {BlockRule.FINE, BlockRule.COARSE}, 2),
    (  # for the share of a thread, not for whole products
        lambda scores_BRS: 1 < len(scores_BRS) < 2 * torch.get_num_threads(),
        {BlockRule.COARSE, BlockRule.COARSER},
        4,
    ),
]


@pytest.mark.parametrize(("wrong", "rules", "num_threads"), BROKEN)
def test_broken_kernels_are_found_and_the_cheapest_rule_that_holds_is_used(wrong, rules, num_threads, monkeypatch):
    multiplied = kernels._multiplied

    def broken(query_BRD: Tensor, candidate_BSD: Tensor) -> Tensor:
        scores_BRS = multiplied(query_BRD, candidate_BSD)
        return scores_BRS * (1 + 2.0**-20 * wrong(scores_BRS))

    torch.set_num_threads(4)
    monkeypatch.setattr(self_check, "_check", functools.cache(self_check._check.__wrapped__))
    monkeypatch.setattr(kernels, "_multiplied", broken)

    report = self_check.check_kernels(CPU)

    assert report.rule in rules
    assert num_threads == report.num_threads == torch.get_num_threads()
    assert report.passed == (num_threads == 4)
    x_ND = vectors(33)
    expected_NN = product(x_ND[None], x_ND[None])[0]
    for rows, columns in ((1, 1), (40, 250), (288, 7)):
        found_QC = product(batched(x_ND[:rows], 2), batched(x_ND[-columns:], 2))[-1]
        assert torch.equal(expected_NN[:rows, -columns:], found_QC)


@pytest.mark.parametrize("dtype", DTYPES)
def test_products_of_a_lower_precision_are_refused_however_they_were_asked_for(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An environment variable of a library makes torch do it whatever torch is told; all its products then agree."""

    def imprecise(query_BRD: Tensor, candidate_BSD: Tensor) -> Tensor:
        return torch.bmm(query_BRD.bfloat16().to(dtype), candidate_BSD.bfloat16().to(dtype).transpose(1, 2))

    monkeypatch.setattr(self_check, "_check", functools.cache(self_check._check.__wrapped__))
    monkeypatch.setattr(self_check, "product", imprecise)

    with pytest.raises(LowPrecisionError, match=f"expected those of {dtype}"):
        compute_with(1, dtype)
