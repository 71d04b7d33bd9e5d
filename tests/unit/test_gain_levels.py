"""Levels of gain: a monoid that keeps what NDCG at k needs, and NDCG from them."""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pbgeval.metrics.ndcg import Discount, ndcg_of_levels
from pbgeval.metrics.taxonomy import TypePairs
from pbgeval.ranking.type_gains import GainLevels
from pbgeval.stats.groups import TypeStats

# A candidate is a key, a score, and two gains.
scores = st.sampled_from([-math.inf, -1.5, -0.5, 0.0, 0.25, math.inf])
candidates = st.lists(st.tuples(st.integers(0, 2), scores, st.integers(0, 3), st.integers(0, 3)), max_size=14)


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


def levels_of(of: list, k: int) -> GainLevels:
    levels = GainLevels(3, k, 2)
    key, score, first, second = (np.array(column) for column in zip(*of, strict=True)) if of else (np.empty(0),) * 4
    gains = np.stack([first, second], axis=1).astype(np.int64)
    levels.merge(key.astype(np.int64), score.astype(np.float64), np.ones(len(of), np.int64), gains)
    return levels


def slow_levels(of: list, k: int) -> dict[int, list[tuple[float, int, int, int]]]:
    found = {}
    for key in range(3):
        own = [one for one in of if one[0] == key]
        listed = []
        for score in sorted({one[1] for one in own}, reverse=True):
            if sum(one[1] > score for one in own) < k:
                tied = [one for one in own if one[1] == score]
                listed.append((score, len(tied), sum(one[2] for one in tied), sum(one[3] for one in tied)))
        found[key] = listed
    return found


def read(levels: GainLevels) -> dict[int, list[tuple[float, int, int, int]]]:
    return {
        key: [
            (levels.score_Kk[key, at].item(), levels.count_Kk[key, at].item(), *levels.gain_KkG[key, at].tolist())
            for at in range(levels.k)
            if levels.count_Kk[key, at]
        ]
        for key in range(3)
    }


@given(candidates, st.integers(1, 4), st.integers(1, 4), st.randoms(use_true_random=False))
def test_any_split_in_any_order_keeps_the_same_levels(of, k, num_parts, chance):
    parts = [[] for _ in range(num_parts)]
    for one in chance.sample(of, len(of)):
        chance.choice(parts).append(one)
    whole = GainLevels(3, k, 2)
    for part in parts:
        whole.merge_packed(levels_of(part, k).packed())

    assert slow_levels(of, k) == read(levels_of(of, k)) == read(whole)
    floors = whole.floor(0, 3).tolist()
    for key, listed in slow_levels(of, k).items():
        full = sum(level[1] for level in listed) >= k
        assert floors[key] == (listed[-1][0] if full else -math.inf)


@given(
    st.lists(st.tuples(scores, st.integers(0, 3)), min_size=1, max_size=5),
    st.lists(st.integers(1, 6), min_size=1, max_size=3),
    st.sampled_from(list(Discount)),
)
def test_ndcg_of_levels_is_that_of_all_candidates(of, cutoffs, discount):
    """Three gains: 4, 2, 1 of 4, and nothing; the general path knows every candidate."""
    gain_H = np.array([4, 2, 1])
    gains = [[4, 2, 1, 0][grade] for _, grade in of]
    levels = levels_of([(0, score, gain, 0) for (score, _), gain in zip(of, gains, strict=True)], max(cutoffs))
    ideal = np.array([[gains.count(gain) for gain in gain_H]])

    found = ndcg_of_levels(levels.count_Kk[:1], levels.gain_KkG[:1, :, 0], ideal, gain_H, cutoffs, discount)

    expected = [slow_ndcg_over_orders(gains, [score for score, _ in of], k, discount) for k in cutoffs]
    assert found[0].tolist() == pytest.approx(
        [math.nan if of is None else of for of in expected], rel=1e-12, nan_ok=True
    )
    several = ndcg_of_levels(
        np.repeat(levels.count_Kk[:1], 5, 0),
        np.repeat(levels.gain_KkG[:1, :, 0], 5, 0),
        np.repeat(ideal, 5, 0),
        gain_H,
        cutoffs,
        discount,
    )
    assert [found[0].tobytes()] * 5 == [row.tobytes() for row in several]  # the same bits beside others


def test_statistics_of_types_add_and_are_rounded_once() -> None:
    values = np.array([[1.0, 0.1], [math.nan, math.nan], [0.3, 1 / 3], [0.2, 0.7]])
    whole, parts = TypeStats.zero((2, 5), 2), [TypeStats.zero((2, 5), 2) for _ in range(2)]
    whole.add(np.array([2, 2, 5, 2]), values)
    parts[0].add(np.array([2, 5]), values[[0, 2]])
    parts[1].add(np.array([2, 2]), values[[3, 1]])

    assert whole.table_RF.tolist() == (parts[0].table_RF + parts[1].table_RF).tolist()
    assert [whole.counts(), *(whole.counts(relation) for relation in (2, 5, 9))] == [(3, 1), (2, 1), (1, 0), (0, 0)]
    assert whole.means() == [0.5, pytest.approx((0.1 + 1 / 3 + 0.7) / 3, rel=1e-15)]
    assert [None, None] == whole.means(9) == TypeStats.zero((2,), 2).means()
    whole.table_RF[:] = whole.table_RF * (1 << 31)  # 2^33 queries
    assert whole.means() == pytest.approx([0.5, (0.1 + 1 / 3 + 0.7) / 3], rel=1e-15)


def test_no_pair_is_related_where_nothing_is_true() -> None:
    nothing = np.empty(0, np.int64)

    assert TypePairs(4, nothing, nothing).distances(np.array([1]), np.array([1])).tolist() == [-1]


@pytest.mark.reference
def test_vectors_of_scikit_learn_and_the_exercise(reference_path):
    cases = json.loads((reference_path / "vectors" / "ndcg.json").read_text())["cases"]
    assert len(cases) >= 4
    for case in cases:
        of = [(0, float(score), grade, 0) for score, grade in zip(case["scores"], case["relevance"], strict=True)]
        gain_H = np.array(sorted(set(case["relevance"]), reverse=True))
        ideal = np.array([[case["relevance"].count(gain) for gain in gain_H]])
        k = case["k"] or len(of)
        levels = levels_of(of, k)
        for discount, suffix in ((Discount.STANDARD, "standard"), (Discount.JK, "jarvelin_kekalainen_b2")):
            found = ndcg_of_levels(levels.count_Kk[:1], levels.gain_KkG[:1, :, 0], ideal, gain_H, [k], discount)
            assert found[0, 0] == pytest.approx(case[f"ndcg_{suffix}"], rel=1e-12)
