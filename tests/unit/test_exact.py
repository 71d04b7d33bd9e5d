"""Blocks of adversarial rows, counted exactly whatever the product, the block or the number of threads."""

from __future__ import annotations

from fractions import Fraction
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pbgeval.ranking import cpu_counting, cpu_loops, torch_backend
from pbgeval.ranking.block import Block, CandidateRows, QueryRows
from pbgeval.ranking.cpu_backend import CpuBackend
from pbgeval.ranking.exact import competing_cells, decided, limits
from pbgeval.ranking.settings import Kept
from pbgeval.ranking.torch_backend import TorchBackend
from pbgeval.scoring.comparators import Comparator, ZeroVectorError
from pbgeval.scoring.exact import ExactComparator
from pbgeval.scoring.fast_products import (
    FastScores,
    PreparedRows,
    fast_scores,
    kind_in,
    operands_of,
    values_of_pairs,
)
from pbgeval.scoring.true_scores import ExactTrue
from pbgeval.stats.ranks import QueryCounts, RankCounts
from tests.exact_reference import Prepared, compare, exact_score_of
from tests.examples import crossed, examples
from tests.kit.graphs import COMPARATORS, EXACT_OWN_COMPARATORS
from tests.kit.loops import loops_used

EXACT = (*COMPARATORS, *EXACT_OWN_COMPARATORS)
KINDS = ("float32", "float64", "grid", "chosen", "compiled", "bfloat16")
LARGEST, SMALLEST, SMALLEST_NORMAL = 3.4028234663852886e38, 2.0**-149, 2.0**-126


def neighbour(x: float, steps: int) -> float:
    """The float32 number some steps away."""
    value = np.float32(x)
    for _ in range(abs(steps)):
        value = np.nextafter(value, np.float32(np.inf if steps > 0 else -np.inf))
    return float(value)


values = st.one_of(
    st.sampled_from(
        [0.0, -0.0, 1.0, -1.0, 0.25, 4.0, 5.0, 1e-30, SMALLEST, -SMALLEST, SMALLEST_NORMAL, 1e19, -1e19, 2e38]
    ),
    st.floats(-4, 4, width=32),
    st.floats(width=32, allow_nan=False, allow_infinity=False),
)


@st.composite
def blocks(draw: st.DrawFn) -> tuple[list[list[float]], list[list[float]], list[int]]:
    """Queries, candidates (many of them copies of others, or one unit in the last place from them), true entities."""
    dimension = draw(st.integers(2, 6))
    of_kind = draw(st.sampled_from([values, st.floats(-4, 4, width=32), st.just(draw(values))]))
    row = st.lists(of_kind, min_size=dimension, max_size=dimension)
    queries = draw(st.lists(row, min_size=1, max_size=4))
    candidates = draw(st.lists(row, min_size=1, max_size=5))
    for _ in range(draw(st.integers(0, 6))):
        copy = list(draw(st.sampled_from(candidates)))
        place = draw(st.integers(0, dimension - 1))
        if abs(copy[place]) < LARGEST / 2:
            copy[place] = neighbour(copy[place], draw(st.integers(-1, 1)))
        if draw(st.booleans()):
            copy.reverse()
        candidates.append(copy)
    true = draw(st.lists(st.integers(0, len(candidates) - 1), min_size=len(queries), max_size=len(queries)))
    return queries, candidates, true


def scores_by(kind: str, queries: PreparedRows, candidates: PreparedRows) -> FastScores | None:
    """The block's scores by one kind of product; None where that kind cannot be trusted."""
    if kind in ("grid", "chosen"):
        return fast_scores(queries, candidates, values=kind == "grid")
    if kind == "float64":
        product = kind_in(queries.comparator, torch.float64)
        return product.scores(queries.operand(torch.float64), candidates.operand(torch.float64))
    operands = operands_of(queries, candidates)
    return None if operands is None else operands[0].scores(*operands[1:])


def counted(kind: str, queries: QueryRows, candidate_CL: torch.Tensor, own_Q: torch.Tensor) -> RankCounts | None:
    """The counts of one block."""
    candidates = CandidateRows(candidate_CL[None], queries.exact_comparator)
    block = Block(queries, candidates, own_Q, None)
    backend = CpuBackend(None, queries.exact_comparator, torch.device("cpu"), torch.float64, Kept.NOTHING, True)
    if kind in ("compiled", "bfloat16"):
        if not queries.exact_comparator.is_product:
            return None
        operands = operands_of(queries.prepared, candidates.prepared, in_bfloat16=kind == "bfloat16")
        if operands is None:
            return None
        found = backend._count_operands(block, operands, own_Q.numel() * len(candidate_CL))
    else:
        fast = scores_by(kind, queries.prepared, candidates.prepared)
        if fast is None:
            return None
        with mock.patch.object(torch_backend, "fast_scores", return_value=fast):
            found = TorchBackend.count(backend, block)
    return decided(block, found.counts, found.open).raw


def counts_of(
    comparator: ExactComparator, query_KL: torch.Tensor, candidate_CL: torch.Tensor, true: list[int], kind: str
) -> list[tuple[int, int]] | None:
    """(better, tied) of queries, candidates in two blocks, each query with a row of its own."""
    of_true = ExactTrue.from_pairs(comparator, query_KL, candidate_CL[true])
    queries = QueryRows(query_KL[None], torch.arange(len(true)), of_true, comparator)
    cut = (len(candidate_CL) + 1) // 2
    blocks = zip((0, cut), torch.split(candidate_CL, cut), strict=False)
    parts = [counted(kind, queries, block_CL, torch.tensor(true) - start) for start, block_CL in blocks]
    if None in parts:
        return None
    better, tied = (sum(getattr(part, name) for part in parts).tolist() for name in ("better_Q", "tied_Q"))
    return list(zip(better, tied, strict=True))


def expected_counts(
    name: str, bias: bool, query_KL: torch.Tensor, candidate_CL: torch.Tensor, true: list[int]
) -> list[tuple[int, int]]:
    vectors = slice(0, candidate_CL.shape[1] - bias)
    candidates = [Prepared(row[vectors], row[-1] if bias else 0.0) for row in candidate_CL.tolist()]
    expected = []
    for row, own in zip(query_KL.tolist(), true, strict=True):
        query = Prepared(row[vectors], weight=row[-2] if bias else 1.0)
        scores = [exact_score_of(name, bias, query, candidate) for candidate in candidates]
        signs = [compare(score, scores[own]) for at, score in enumerate(scores) if at != own]
        expected.append((signs.count(1), signs.count(0)))
    return expected


@pytest.mark.one_case
@settings(max_examples=examples(40))
@pytest.mark.parametrize("bias", [False, True], ids=["plain", "bias"])
@pytest.mark.parametrize("name", EXACT)
@given(blocks())
def test_counts_are_exact_for_every_product(name, bias, block):
    comparator = ExactComparator(name, bias)
    queries, candidates, true = block
    try:
        query_KL = comparator.prepare_queries(torch.tensor(queries, dtype=torch.float64))
        candidate_CL = comparator.prepare_candidates(torch.tensor(candidates, dtype=torch.float64))
    except ZeroVectorError:
        return
    expected = expected_counts(name, bias, query_KL, candidate_CL, true)
    for kind in KINDS:
        assert counts_of(comparator, query_KL, candidate_CL, true, kind) in (None, expected), kind


@pytest.mark.parametrize(
    ("name", "kind"), [*crossed(COMPARATORS, KINDS, quick=2), ("l1", "chosen"), ("clamped_dot", "float64")]
)
def test_a_cluster_of_near_ties(name, kind):
    """Five hundred candidates around the true entity, each one or two units in the last place from it, or its copy."""
    generator = np.random.default_rng(3)
    true = generator.standard_normal(24).astype(np.float32)
    rows = np.repeat(true[None], 500, axis=0)
    for row in rows[50:]:
        for place in generator.choice(24, 2, replace=False):
            row[place] = neighbour(row[place], int(generator.integers(-2, 3)))
    comparator = ExactComparator(name)
    query_KL = comparator.prepare_queries(torch.from_numpy(generator.standard_normal((2, 24))))
    candidate_CL = comparator.prepare_candidates(torch.from_numpy(rows).double())

    found = counts_of(comparator, query_KL, candidate_CL, [0, 120], kind)

    assert expected_counts(name, False, query_KL, candidate_CL, [0, 120]) == found
    assert comparator.tally["exactly"] > 0 or kind in ("compiled", "bfloat16")  # the loop compares rows
    assert (
        comparator.tally["in_float64"] > 0 or kind == "float64"
    )  # whose bounds leave to float64 what it cannot decide


def test_values_have_the_same_bits_for_any_order_of_sums():
    """As sums on grids are exact, and those of columns have one order; and cells alone have a block's bits."""
    generator = torch.Generator().manual_seed(0)
    x_ND = torch.randn((300, 64), dtype=torch.float64, generator=generator) * torch.rand((300, 1)).exp()
    x_ND[8:12] *= 2.0**-140  # below normal numbers of float32
    x_ND[12:20, 5:] *= 2.0**-60
    x_ND[20, 2:] = 0.0
    for name in EXACT:
        for bias in (False, True):
            comparator = ExactComparator(name, bias)
            query_KL, candidate_CL = comparator.prepare_queries(x_ND[:37]), comparator.prepare_candidates(x_ND)
            blocks_KC = []
            for is_compiled in (True, False):
                queries = PreparedRows(comparator, query_KL[None], True)
                candidates = PreparedRows(comparator, candidate_CL[None], False)
                with loops_used(is_compiled):
                    blocks_KC.append(fast_scores(queries, candidates, values=True).scores_KC[0])
            every_KC, again_KC = blocks_KC
            assert torch.equal(every_KC, again_KC)
            kind = kind_in(comparator, None)
            for column in (0, 8, 299):
                one = PreparedRows(comparator, candidate_CL[None, column : column + 1], False)
                one_K1 = kind.scores(queries.operand(None), one.operand(None)).scores_KC[0]
                assert torch.equal(every_KC[:, column : column + 1], one_K1)
                for is_compiled in (False, True):
                    with loops_used(is_compiled):
                        pairs_K = values_of_pairs(comparator, query_KL, candidate_CL[column].expand(37, -1))
                    assert torch.equal(every_KC[:, column], pairs_K)


@pytest.mark.parametrize("name", COMPARATORS)
def test_what_bfloat16_loses_is_within_its_bound(name: str) -> None:
    """Of every cell, in float64 beyond doubt: normal numbers of all sizes, near ties, rows that lose nothing or all."""
    generator = np.random.default_rng(5)
    sizes = 10.0 ** generator.integers(-12, 13, (400, 1))
    rows = generator.standard_normal((400, 37)) * sizes
    rows[:40] = np.round(rows[:40] / sizes[:40]) * 4.0  # held by bfloat16
    rows[40:60] = 1 + 2.0**-9  # between two of its numbers
    rows[60:70] = SMALLEST * 3
    comparator = ExactComparator(name)
    query_KL = comparator.prepare_queries(torch.from_numpy(rows[::9]))
    candidate_CL = comparator.prepare_candidates(torch.from_numpy(rows))
    for start in (0, 40, 70):  # bounds go by the longest row of a block
        block_CL = candidate_CL[start : start + 40]
        kind, queries, candidates = operands_of(
            PreparedRows(comparator, query_KL, True), PreparedRows(comparator, block_CL, False), in_bfloat16=True
        )
        assert (kind.in_bfloat16, queries.factors_ND.dtype) == (True, torch.bfloat16)
        scores_KC = cpu_counting.multiplied(queries.factors_ND, candidates.factors_ND)
        offset_K, error_K = kind.bounds(queries, candidates)
        q_KL, c_CL = query_KL[:, :-1].double(), block_CL.double()
        exact_KC = -torch.cdist(q_KL, c_CL, compute_mode="donot_use_mm_for_euclid_dist").square()
        if not comparator.adds_squares:
            exact_KC = q_KL @ c_CL.T
        off_KC = (scores_KC.double() - offset_K.unsqueeze(1) - exact_KC).abs()
        assert (off_KC <= error_K.unsqueeze(1) + exact_KC.abs() * 1e-12).all()
        assert start < 70 or off_KC.amax() > 0.01 * error_K.amax()  # it is no empty bound


def test_a_score_that_is_a_bound_stays_open():
    """The bounds are of what the score that counts may be, ends included."""
    rows = QueryRows(torch.ones(1, 1, 2), torch.tensor([0]), None)
    block = Block(rows, CandidateRows(torch.ones(1, 6, 2)), own_Q=torch.tensor([2]), known=None)
    scores_KC, (low_Q, high_Q) = torch.tensor([[0.5, 1, 1.5, 2, 1.5, 3]]), torch.tensor([[1.0], [2.0]])
    counts = QueryCounts.unfiltered(RankCounts(*torch.tensor([[1], [3], [5]])))

    backend = TorchBackend(Comparator("dot"), None, torch.device("cpu"), torch.float32, Kept.NOTHING)

    query_P, column_P = competing_cells(block, backend.cells_between(block, scores_KC, high_Q, low_Q, counts))

    assert (query_P.tolist(), column_P.tolist()) == ([0] * 3, [1, 3, 4])


def test_all_cells_that_do_not_compete_may_lie_between_limits():
    """The list has room for the true entities and excluded cells of all queries, beside those that compete."""
    scores_KC, limits = torch.ones(2, 70), (torch.ones(3), torch.ones(3))
    row_Q = torch.tensor([0, 0, 1])
    num_competing_Q = torch.tensor([60, 0, 60])  # of 70: nine are excluded, and one is the true entity
    with loops_used(True, cpu_loops.list_between):
        query_P, column_P = cpu_counting.cells_between(scores_KC, row_Q, limits, num_competing_Q, 18)
        none = cpu_counting.cells_between(scores_KC[:, :0], row_Q, limits, torch.zeros(3, dtype=torch.int64), 0)

    assert query_P.tolist() == [0] * 70 + [2] * 70  # the second has none that compete
    assert column_P.tolist() == [*range(70), *range(70)]
    assert [of.numel() for of in none] == [0, 0]


def test_a_root_is_left_to_float64_where_its_error_is_too_wide():
    root = ExactComparator("l2", bias=True)

    assert root.has_root
    assert operands_of(PreparedRows(root, torch.ones(1, 4), True), PreparedRows(root, torch.ones(1, 3), False)) is None


@given(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6), st.floats(0.0, 9.0), st.floats(0.0, 9.0))
def test_limits_are_the_nearest_scores_that_hold_all_that_errors_allow(score, offset, error, error_of_row):
    score_1, offset_1, *errors = (torch.tensor([x], dtype=torch.float64) for x in (score, offset, error, error_of_row))
    true = ExactTrue(torch.zeros(1, 1), torch.zeros(1), score_1, errors[0])
    middle, width = Fraction(score) + Fraction(offset), Fraction(error) + Fraction(error_of_row)
    roundings = (abs(middle) + width) / 2**30

    high_1, low_1 = limits((offset_1, errors[1]), true, torch.tensor([0]), torch.float32)

    for limit_1, sign in ((high_1, 1), (low_1, -1)):
        inside = torch.nextafter(limit_1, torch.tensor([-sign * torch.inf]))
        assert sign * Fraction(limit_1.item()) >= sign * middle + width
        assert sign * Fraction(inside.item()) <= sign * middle + width + roundings
