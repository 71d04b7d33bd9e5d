from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pbgeval.metrics.ogb import hits_against_pool, mean_reciprocal_rank_of_top10, ogb_lists
from tests import reference
from tests.kit.graphs import score_values

LIBRARIES = {"numpy": np.array, "torch": torch.tensor}
values = st.one_of(score_values(), st.sampled_from([math.inf, -math.inf]))


@pytest.fixture(params=LIBRARIES)
def library(request):
    return LIBRARIES[request.param]


@given(st.lists(st.tuples(values, st.lists(values, min_size=3, max_size=3)), min_size=1, max_size=5))
def test_ranks_are_the_mean_of_the_first_and_the_last_place_among_ties(queries):
    positive, negative = (list(column) for column in zip(*queries, strict=True))
    ranks = [sum(reference.rank_by_sorting(score, others)) / 2 for score, others in queries]
    expected = {f"hits@{k}_list": [float(rank <= k) for rank in ranks] for k in (1, 3, 10)}
    expected["mrr_list"] = [1 / rank for rank in ranks]

    for make in LIBRARIES.values():
        found = ogb_lists(make(positive), make(negative))
        assert expected == {name: of.tolist() for name, of in found.lists().items()}
        means = {name.removesuffix("_list"): pytest.approx(sum(of) / len(of)) for name, of in expected.items()}
        assert means == found.means()


@given(st.lists(values, min_size=1, max_size=6), st.lists(values, max_size=6), st.integers(1, 7))
def test_a_hit_of_the_pool_has_fewer_than_k_negatives_as_high(positive, negative, k):
    num_hits = sum(sum(other >= score for other in negative) < k for score in positive)

    for make in LIBRARIES.values():
        assert num_hits / len(positive) == hits_against_pool(make(positive), make(negative), k)


@given(
    st.lists(
        st.tuples(st.integers(0, 12), st.lists(st.integers(0, 12), max_size=10, unique=True)), min_size=1, max_size=5
    )
)
def test_the_top_ten_count_one_over_the_position(queries):
    expected = sum(1 / (listed.index(true) + 1) for true, listed in queries if true in listed) / len(queries)
    padded = [listed + [-1] * (10 - len(listed)) for _, listed in queries]

    for make in LIBRARIES.values():
        found = mean_reciprocal_rank_of_top10(make([true for true, _ in queries]), make(padded))
        assert pytest.approx(expected, rel=1e-14) == found


def test_no_queries_have_no_figures(library):
    nothing = library([0.0])[:0]

    found = ogb_lists(nothing, nothing.reshape(0, 4))

    assert {"hits@1": None, "hits@3": None, "hits@10": None, "mrr": None} == found.means()
    assert hits_against_pool(nothing, library([1.0]), 1) is None
    no_lists = library([[1]])[:0]
    assert mean_reciprocal_rank_of_top10(library([1])[:0], no_lists) is None


def test_a_query_without_negatives_is_first(library):
    assert [1.0] == ogb_lists(library([-5.0]), library([[0.0]])[:, :0]).ranks_Q.tolist()


def test_results_are_float64_of_the_scores_library():
    of_torch = ogb_lists(torch.zeros(2), torch.zeros(2, 5)).lists()
    of_numpy = ogb_lists(np.zeros(2, "float32"), np.zeros((2, 5), "float32")).lists()

    assert {torch.float64} == {of.dtype for of in of_torch.values()}
    assert {np.dtype("float64")} == {of.dtype for of in of_numpy.values()}


def test_nan_and_shapes_are_refused(library):
    with pytest.raises(ValueError, match="row 1: the score of candidate 2 is NaN"):
        ogb_lists(library([0.0, 0.0]), library([[0.0, 0.0], [0.0, math.nan]]))
    with pytest.raises(ValueError, match="row 0: the score of candidate 0 is NaN"):
        ogb_lists(library([math.nan]), library([[0.0]]))
    with pytest.raises(ValueError, match="expected scores"):
        ogb_lists(library([0.0, 0.0]), library([[0.0]]))
    with pytest.raises(ValueError, match="negative scores, row 1: NaN"):
        hits_against_pool(library([0.0]), library([0.0, math.nan]), 1)
    with pytest.raises(ValueError, match="positive scores: expected one axis"):
        hits_against_pool(library([[0.0]]), library([0.0]), 1)
    with pytest.raises(ValueError, match="k: expected at least 1"):
        hits_against_pool(library([0.0]), library([0.0]), 0)


@pytest.mark.parametrize(
    ("true", "listed", "message"),
    [
        ([1, 2], [[1, 2], [3, 3]], "row 1: an entity is listed twice"),
        ([1, -1], [[1, 2], [3, -1]], "row 1: the true entity is -1"),
        ([1], [list(range(11))], "at most 10 entities, got 11"),
        ([1, 2], [[1, 2]], "expected entities"),
    ],
)
def test_lists_that_ogb_would_not_judge_are_refused(library, true, listed, message):
    with pytest.raises(ValueError, match=message):
        mean_reciprocal_rank_of_top10(library(true), library(listed))


@pytest.mark.reference
@pytest.mark.parametrize("make", LIBRARIES.values(), ids=LIBRARIES)
def test_vectors_of_ogb(make, reference_path):
    cases = json.loads((reference_path / "vectors" / "ogb.json").read_text())["cases"]
    assert ["mrr", "mrr", "mrr", "hits", "hits", "hits", "top10"] == [case["kind"] for case in cases]
    for case in cases:
        if case["kind"] == "mrr":
            found = ogb_lists(make(case["y_pred_pos"]), make(case["y_pred_neg"])).lists()
            for name, of in found.items():
                assert pytest.approx(case[name], rel=2**-23) == of.tolist(), case["name"]  # OGB's are float32
        elif case["kind"] == "hits":
            found = hits_against_pool(make(case["y_pred_pos"]), make(case["y_pred_neg"]), case["K"])
            assert case[f"hits@{case['K']}"] == found, case["name"]
        else:
            found = mean_reciprocal_rank_of_top10(make(case["t"]), make(case["t_pred_top10"]))
            assert pytest.approx(case["mrr"], rel=1e-14) == found
