"""NDCG from levels of gain. That levels add, for any split: tests/laws/test_queries_for_types.py."""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pbgeval.metrics.ndcg import Discount, ndcg_of_levels
from pbgeval.ranking.type_gains import GainLevels
from pbgeval.stats.groups import TypeStats
from tests.examples import examples

scores = st.sampled_from([-math.inf, -1.5, -0.5, 0.0, 0.25, math.inf])


def slow_dcg(gains, k: int | None, discount: str) -> float:
    by = {"standard": lambda place: math.log2(place + 1), "jk": lambda place: math.log2(place) if place > 1 else 1.0}
    return sum(gain / by[discount](place) for place, gain in enumerate(gains[:k], 1))


def slow_ndcg_over_orders(gains, scores, k, discount) -> float | None:
    """The mean over all orders of the candidates that agree with their scores."""
    ideal = max(slow_dcg(order, k, discount.value) for order in itertools.permutations(gains))
    if ideal == 0:
        return None
    found = []
    for order in itertools.permutations(range(len(scores))):
        if all(scores[first] >= scores[second] for first, second in itertools.pairwise(order)):
            found.append(slow_dcg([gains[at] for at in order], k, discount.value) / ideal)
    return math.fsum(found) / len(found)


def levels_of(of: list[tuple[float, int]], k: int, *, one_by_one: bool = False) -> GainLevels:
    """Merge (score, gain) pairs, at once, or each by itself if it is not below the floor."""
    levels = GainLevels.zero(1, k, 1)
    for some in [[pair] for pair in of] if one_by_one else [of]:
        score, gain = (np.array(column) for column in zip(*some, strict=True))
        if not one_by_one or score[0] >= levels.floor(0, 1)[0]:
            numbers = np.zeros(len(some), np.int64)
            levels.merge(numbers, score.astype(np.float64), numbers + 1, gain[:, None].astype(np.int64))
    return levels


def ndcg_of(of: list[tuple[float, int]], cutoffs: list[int], discount: Discount) -> list[float]:
    """Return NDCG of (score, gain) pairs, which is the same to the bit beside other queries."""
    gain = np.array([gain for _, gain in of])
    levels, gain_H = levels_of(of, max(cutoffs)), np.unique(gain)[::-1]
    columns = levels.count_Kk, levels.gain_KkG[:, :, 0], np.array([[(gain == one).sum() for one in gain_H]])
    found = ndcg_of_levels(*columns, gain_H, cutoffs, discount)
    several = ndcg_of_levels(*(np.repeat(column, 5, 0) for column in columns), gain_H, cutoffs, discount)
    assert [found[0].tobytes()] * 5 == [row.tobytes() for row in several]
    return found[0].tolist()


@given(
    st.lists(st.tuples(scores, st.sampled_from([4, 2, 1, 0])), min_size=1, max_size=5),
    st.lists(st.integers(1, 6), min_size=1, max_size=3),
    st.sampled_from(list(Discount)),
)
def test_ndcg_of_levels_is_that_of_all_candidates(of, cutoffs, discount):
    """The general path knows every candidate."""
    score, gain = zip(*of, strict=True)
    expected = [slow_ndcg_over_orders(gain, score, k, discount) for k in cutoffs]

    assert ndcg_of(of, cutoffs, discount) == pytest.approx(
        [math.nan if of is None else of for of in expected], rel=1e-12, nan_ok=True
    )


@settings(max_examples=examples(500))
@given(st.lists(st.tuples(scores, st.integers(0, 3)), min_size=1, max_size=14), st.integers(1, 4), st.randoms())
def test_levels_are_the_same_in_any_order_and_without_who_is_below_the_floor(of, k, chance):
    whole, merged = levels_of(of, k), levels_of(chance.sample(of, len(of)), k, one_by_one=True)

    is_level = whole.count_Kk > 0
    assert whole.count_Kk.tolist() == merged.count_Kk.tolist()
    assert whole.score_Kk[is_level].tolist() == merged.score_Kk[is_level].tolist()
    assert whole.gain_KkG[is_level].tolist() == merged.gain_KkG[is_level].tolist()


def test_statistics_of_types_add_and_are_rounded_once() -> None:
    values = np.array([[1.0, 0.1], [math.nan, math.nan], [0.3, 1 / 3], [0.2, 0.7]])
    whole, parts = TypeStats.zero((2, 5), 2), [TypeStats.zero((2, 5), 2) for _ in range(2)]
    whole.add(np.array([2, 2, 5, 2]), values)
    parts[0].add(np.array([2, 5]), values[[0, 2]])
    parts[1].add(np.array([2, 2]), values[[3, 1]])

    assert whole.table_RF.tolist() == (parts[0].table_RF + parts[1].table_RF).tolist()
    assert [whole.counts(), *(whole.counts(relation) for relation in (2, 5, 9))] == [(3, 1), (2, 1), (1, 0), (0, 0)]
    assert [None, None] == whole.means(9) == TypeStats.zero((2,), 2).means()
    whole.table_RF[:] = whole.table_RF * (1 << 31)  # 2^33 queries
    assert whole.means() == [0.5, pytest.approx((0.1 + 1 / 3 + 0.7) / 3, rel=1e-15)]


@pytest.mark.reference
def test_vectors_of_scikit_learn_and_the_exercise(reference_path):
    cases = json.loads((reference_path / "vectors" / "ndcg.json").read_text())["cases"]
    assert len(cases) >= 4
    for case in cases:
        of = list(zip(case["scores"], case["relevance"], strict=True))
        for discount, suffix in ((Discount.STANDARD, "standard"), (Discount.JK, "jarvelin_kekalainen_b2")):
            found = ndcg_of(of, [case["k"] or len(of)], discount)
            assert found == [pytest.approx(case[f"ndcg_{suffix}"], rel=1e-12)]
