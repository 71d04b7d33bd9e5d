from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pbgeval.metrics.ndcg import Discount, Gain, Ndcg, dcg, gains, ideal_dcg, ndcg, ndcg_of_lists
from tests.kit.graphs import score_values

LIBRARIES = {"numpy": np.array, "torch": torch.tensor}
cutoffs = st.none() | st.integers(1, 7)
discounts = st.sampled_from(["standard", "jk"])


@pytest.fixture(params=LIBRARIES)
def library(request):
    return LIBRARIES[request.param]


def slow_dcg(of, k, discount) -> float:
    total = 0.0
    for at, gain in enumerate(of):
        position = at + 1
        if k is not None and position > k:
            break
        if discount == "standard":
            total += gain / math.log2(position + 1)
        else:
            total += gain if position == 1 else gain / math.log2(position)
    return total


def slow_ndcg_over_orders(grades, scores, k, discount, is_exponential) -> float | None:
    """The mean over all orders of the candidates that agree with their scores."""
    worth = [2**grade - 1 if is_exponential else grade for grade in grades]
    ideal = max(slow_dcg(order, k, discount) for order in itertools.permutations(worth))
    if ideal == 0:
        return None
    found = []
    for order in itertools.permutations(range(len(scores))):
        if all(scores[first] >= scores[second] for first, second in itertools.pairwise(order)):
            found.append(slow_dcg([worth[at] for at in order], k, discount) / ideal)
    return math.fsum(found) / len(found)


graded = st.lists(
    st.tuples(st.integers(0, 4), st.one_of(score_values(), st.sampled_from([math.inf, -math.inf, 0.0, -0.0]))),
    min_size=1,
    max_size=5,
)


@given(graded, cutoffs, discounts, st.booleans())
def test_ndcg_is_the_mean_over_the_orders_of_ties(candidates, k, discount, is_exponential):
    grades, scores = (list(column) for column in zip(*candidates, strict=True))
    expected = slow_ndcg_over_orders(grades, scores, k, discount, is_exponential)
    gain = Gain.EXPONENTIAL if is_exponential else Gain.LINEAR

    for make in LIBRARIES.values():
        [found] = ndcg(make([grades]), make([scores]), k, discount=discount, gain=gain).values()
        assert (None if expected is None else pytest.approx(expected, rel=1e-12)) == found
        assert found is None or 0.0 <= found <= 1.0


@given(graded, cutoffs, discounts)
def test_in_the_given_order_ties_stand_as_the_columns_do(candidates, k, discount):
    grades, scores = (list(column) for column in zip(*candidates, strict=True))
    listed = [grade for grade, _ in sorted(candidates, key=lambda of: -of[1])]  # stable
    ideal = slow_dcg(sorted(grades, reverse=True), k, discount)
    expected = pytest.approx(slow_dcg(listed, k, discount) / ideal, rel=1e-12) if ideal else None

    assert [expected] == ndcg(
        torch.tensor([grades]), torch.tensor([scores]), k, discount=discount, ties="given"
    ).values()


@given(st.lists(st.lists(st.integers(0, 9), min_size=4, max_size=4), max_size=4), cutoffs, discounts)
def test_a_list_and_its_ideal_are_all_that_a_stream_needs(grades, k, discount):
    listed = np.array(grades, float).reshape(-1, 4)
    best = ideal_dcg(listed, k, discount)

    assert [pytest.approx(slow_dcg(row, k, discount)) for row in grades] == dcg(listed, k, discount).tolist()
    ideals = [slow_dcg(sorted(row, reverse=True), k, discount) for row in grades]
    assert [pytest.approx(of) for of in ideals] == best.tolist()
    top = listed if k is None else listed[:, :k]
    in_parts = Ndcg.concatenate(
        [ndcg_of_lists(top[at : at + 1], best[at : at + 1], k, discount) for at in range(len(top))]
    )
    whole = ndcg(listed, -np.tile(np.arange(4.0), (len(listed), 1)), k, discount=discount)
    assert whole.mean == pytest.approx(in_parts.mean) or (whole.mean is None and in_parts.mean is None)
    assert sum(not any(row) for row in grades) == in_parts.num_undefined == whole.num_undefined


def test_the_two_discounts_by_hand(library):
    listed = library([[3.0, 2.0, 1.0]])

    assert [3 + 2 / math.log2(3) + 1 / 2] == dcg(listed, discount=Discount.STANDARD).tolist()
    assert [3 + 2 + 1 / math.log2(3)] == dcg(listed, discount=Discount.JK).tolist()
    assert [3 + 2] == dcg(listed, 2, "jk").tolist()
    assert [[7.0, 3.0, 1.0]] == gains(listed, "exponential").tolist()
    assert [[3.0, 2.0, 1.0]] == gains(listed).tolist()


def test_lists_shorter_than_k_end_in_nothing(library):
    assert [1.0, 0.0] == dcg(library([[1.0], [0.0]]), 10).tolist()
    assert [0.0] == dcg(library([[0.0]])[:, :0], 10).tolist()


def test_queries_without_anything_to_gain_are_counted_and_left_out():
    found = ndcg(np.array([[0, 0], [1, 0], [0, 1]]), np.array([[2.0, 1.0]] * 3))

    assert [None, 1.0, pytest.approx(1 / math.log2(3))] == found.values()
    assert 1 == found.num_undefined
    assert pytest.approx((1 + 1 / math.log2(3)) / 2) == found.mean


def test_no_queries_have_no_mean():
    for found in (Ndcg.concatenate([]), ndcg(np.empty((0, 3)), np.empty((0, 3)))):
        assert (None, 0, []) == (found.mean, found.num_undefined, found.values())


def test_the_mean_does_not_depend_on_the_order_of_queries():
    generator = np.random.default_rng(1)
    grades, scores = generator.integers(0, 3, (500, 6)), generator.normal(size=(500, 6))
    order = generator.permutation(500)

    assert ndcg(grades, scores).mean == ndcg(grades[order], scores[order]).mean


def test_all_tied_is_the_mean_over_all_orders_and_half_precision_ties_too():
    grades = torch.tensor([[3, 0, 1, 0]])
    expected = sum(slow_dcg(order, 2, "jk") for order in itertools.permutations([3, 0, 1, 0])) / 24 / 4

    for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.int64):
        assert [pytest.approx(expected)] == ndcg(grades, torch.zeros(1, 4, dtype=dtype), 2, discount="jk").values()


def test_ties_do_not_reach_from_one_query_into_the_next():
    """The last score of the first query equals the first of the second."""
    found = ndcg(np.array([[0.0, 4.0], [1.0, 0.0]]), np.array([[2.0, 1.0], [1.0, 0.0]]))

    assert [pytest.approx(1 / math.log2(3)), 1.0] == found.values()


@pytest.mark.parametrize("huge", [1e307, 1e300])
def test_huge_gains_are_exact_or_refused(huge):
    grades, scores = np.array([[huge, huge / 2]]), np.array([[0.0, 0.0]])
    expected = 0.75 * (1 + 1 / math.log2(3)) / (1 + 0.5 / math.log2(3))

    assert [pytest.approx(expected)] == ndcg(grades, scores).values()
    with pytest.raises(ValueError, match="too large for float64"):
        ndcg(np.full((1, 400), 1e307), np.zeros((1, 400)))
    with pytest.raises(ValueError, match="use linear gains"):
        ndcg(np.array([[2000.0]]), np.zeros((1, 1)), gain="exponential")


@pytest.mark.parametrize(
    ("grades", "scores", "k", "message"),
    [
        ([[1.0, -1.0]], [[0.0, 0.0]], None, "at least 0"),
        ([[1.0, math.nan]], [[0.0, 0.0]], None, "finite"),
        ([[1.0, math.inf]], [[0.0, 0.0]], None, "finite"),
        ([[1.0, 0.0], [1.0, 0.0]], [[0.0, 0.0], [0.0, math.nan]], None, "row 1: a score is NaN"),
        ([[1.0, 0.0]], [[0.0, 0.0]], 0, "k: expected at least 1, got 0"),
        ([[1.0, 0.0]], [[0.0]], None, "one shape"),
        ([1.0, 0.0], [0.0, 0.0], None, "one shape"),
    ],
)
def test_what_has_no_ndcg_is_refused(library, grades, scores, k, message):
    with pytest.raises(ValueError, match=message):
        ndcg(library(grades), library(scores), k)


@pytest.mark.parametrize(
    ("ideal", "message"), [([1.0, 1.0], "one per list"), ([-1.0], "at least 0"), ([math.inf], "finite")]
)
def test_an_ideal_that_cannot_be_is_refused(ideal, message):
    with pytest.raises(ValueError, match=message):
        ndcg_of_lists(np.array([[1.0]]), np.array(ideal))


@pytest.mark.reference
def test_vectors_of_scikit_learn_torchmetrics_and_the_exercise(reference_path):
    cases = json.loads((reference_path / "vectors" / "ndcg.json").read_text())["cases"]
    assert len(cases) >= 4
    for case in cases:
        grades, scores, k = np.array([case["relevance"]]), np.array([case["scores"]]), case["k"]
        listed = np.array(case["relevance"])[np.argsort(-scores[0], kind="stable")][None]
        for discount, suffix in (("standard", "standard"), ("jk", "jarvelin_kekalainen_b2")):
            assert [pytest.approx(case[f"ndcg_{suffix}"], rel=1e-12)] == ndcg(
                grades, scores, k, discount=discount
            ).values()
            assert [pytest.approx(case[f"dcg_{suffix}"], rel=1e-12)] == dcg(listed, k, discount).tolist()
        of_float32 = ndcg(torch.tensor(grades), torch.tensor(scores), k).values()
        assert [pytest.approx(case["ndcg_torchmetrics"], rel=1e-6)] == of_float32  # torchmetrics sums in float32


@pytest.mark.reference
def test_vectors_of_entity_types_follow_from_their_gains(reference_path):
    """The taxonomy's gains are in the vectors: 1 - d / h, so d, and 2^-d of the same items in the same order."""
    vectors = json.loads((reference_path / "vectors" / "type_ndcg.json").read_text())
    num_compared = 0
    for case in vectors["cases"]:
        for key, expected in case["ndcg"].items():
            name, k = key.split("@")
            best = np.array([case["ideal_linear_top10"]])
            if name == "exponential":
                best = 2.0 ** -np.round((1 - best) * vectors["max_depth"])
            listed = np.array([case["linear" if name == "linear" else "exponential_b2"]])
            for discount, of in (("jk", "seed_log2_p"), ("standard", "standard_log2_p_plus_1")):
                ideal = ideal_dcg(best, int(k), discount)
                found = ndcg_of_lists(listed, ideal, int(k), discount)
                assert [pytest.approx(expected[of], rel=1e-12, abs=1e-15)] == found.values(), (case["name"], key)
                num_compared += 1
            assert [pytest.approx(expected["dcg_seed"], rel=1e-12)] == dcg(listed, int(k), "jk").tolist()
            assert [pytest.approx(expected["idcg_seed"], rel=1e-12)] == ideal_dcg(best, int(k), "jk").tolist()

    assert 18 * 8 * 2 == num_compared
