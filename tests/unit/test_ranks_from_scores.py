from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pbgeval.stats.ranks import Ranks, from_scores
from tests import reference
from tests.kit.graphs import score_values

LIBRARIES = {"numpy": np.array, "torch": torch.tensor}
CASES_OF_TIES = [
    "no_ties_unfiltered",
    "heavy_ties_unfiltered",
    "heavy_ties_filtered",
    "all_equal",
    "all_others_filtered",
    "restricted",
    "filter_has_duplicates",
]


@pytest.fixture(params=LIBRARIES)
def library(request):
    return LIBRARIES[request.param]


def as_lists(ranks: Ranks) -> list[list[float]]:
    return [of.tolist() for of in (ranks.optimistic_Q, ranks.pessimistic_Q, ranks.realistic_Q, ranks.num_candidates_Q)]


def by_sorting(scores, true_index, excluded) -> list[list[float]]:
    rows = []
    for row, true, without in zip(scores, true_index, excluded, strict=True):
        others = [score for at, score in enumerate(row) if at != true and at not in without]
        low, high = reference.rank_by_sorting(row[true], others)
        rows.append((low, high, (low + high) / 2, len(others) + 1))
    return [list(column) for column in zip(*rows, strict=True)]


@st.composite
def scored_queries(draw):
    num_candidates = draw(st.integers(1, 6))
    values = st.one_of(score_values(), st.sampled_from([math.inf, -math.inf, -0.0, 0.0]))
    row = st.tuples(
        st.lists(values, min_size=num_candidates, max_size=num_candidates),
        st.integers(0, num_candidates - 1),
        st.lists(st.integers(0, num_candidates - 1), max_size=8),  # may hold the true one, and any one twice
    )
    return [list(column) for column in zip(*draw(st.lists(row, min_size=1, max_size=5)), strict=True)]


@given(scored_queries())
def test_ranks_are_those_found_by_sorting_what_is_not_excluded(queries):
    scores, true_index, excluded = queries
    expected = by_sorting(scores, true_index, excluded)
    mask = [[at in without for at in range(len(scores[0]))] for without in excluded]

    for make in LIBRARIES.values():
        assert as_lists(from_scores(make(scores), make(true_index), excluded)) == expected
        assert as_lists(from_scores(make(scores), true_index, make(mask))) == expected


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int64"])
def test_results_are_of_the_scores_library_and_never_narrower(dtype):
    of_numpy = from_scores(np.ones((1, 3), dtype), np.array([1]))
    of_torch = from_scores(torch.ones((1, 3), dtype=getattr(torch, dtype)), torch.tensor([1]))

    for ranks, int64, float64, array in (
        (of_numpy, np.int64, np.float64, np.ndarray),
        (of_torch, torch.int64, torch.float64, torch.Tensor),
    ):
        fields = (ranks.optimistic_Q, ranks.pessimistic_Q, ranks.num_candidates_Q, ranks.realistic_Q)
        assert [(type(of), of.dtype) for of in fields] == [*[(array, int64)] * 3, (array, float64)]
        assert as_lists(ranks) == [[1], [3], [2.0], [3]]


def test_one_candidate_and_no_query(library):
    assert as_lists(from_scores(library([[-math.inf]]), library([0]), [[0]])) == [[1], [1], [1.0], [1]]
    nothing = library(np.empty((0, 4)).tolist()).reshape(0, 4)
    assert as_lists(from_scores(nothing, [])) == as_lists(from_scores(nothing, [], [])) == [[], [], [], []]


def test_what_is_handed_in_is_left_as_it_was(library):
    scores, mask = library([[1.0, 2.0]]), library([[True, True]])

    from_scores(scores, library([0]), mask)

    assert (scores.tolist(), mask.tolist()) == ([[1.0, 2.0]], [[True, True]])


def test_scores_that_cannot_be_written_to_are_ranked():
    scores = np.broadcast_to(np.array([3.0, 1.0, 2.0]), (2, 3))

    assert as_lists(from_scores(scores, [0, 1])) == [[1, 3], [1, 3], [1.0, 3.0], [3, 3]]


@pytest.mark.parametrize(("true_index", "column"), [(0, 2), (2, 2)])
def test_nan_that_is_compared_is_refused_by_row(library, true_index, column):
    scores = library([[0.0, 1.0, 2.0], [0.0, 1.0, math.nan]])

    with pytest.raises(ValueError, match=f"row 1: the score of candidate {column} is NaN"):
        from_scores(scores, library([0, true_index]), [[], [2] if true_index == 2 else []])


def test_nan_that_is_excluded_does_not_matter(library):
    scores = library([[0.0, 1.0, math.nan]])

    assert as_lists(from_scores(scores, [0], [[2]])) == [[2], [2], [2.0], [2]]


@pytest.mark.parametrize(
    ("true_index", "excluded", "message"),
    [
        ([0], None, "true_index: expected one index for each of 2 rows"),
        ([0, 3], None, "true_index, row 1: 3 is not one of the 3 candidates"),
        ([-1, 0], None, "true_index, row 0: -1 is not"),
        ([0.0, 1.0], None, "expected integer indices, got float64"),
        ([0, 1], [[]], "excluded: expected a list for each of 2 rows, got 1"),
        ([0, 1], [[], [0, 7]], "excluded, row 1: 7 is not"),
        ([0, 1], [[True, False, True]] * 2, "expected integer indices, got bool"),
        ([0, 1], np.zeros((2, 3)), "excluded: expected a bool mask"),
        ([0, 1], np.zeros((3, 2), bool), "excluded: expected a bool mask"),
    ],
)
def test_what_does_not_fit_is_refused(library, true_index, excluded, message):
    with pytest.raises(ValueError, match=message):
        from_scores(library([[0.0] * 3] * 2), true_index, excluded)


def test_scores_of_one_query_need_an_axis_of_queries(library):
    with pytest.raises(ValueError, match="got 1 axes"):
        from_scores(library([0.0, 1.0]), [0])


@pytest.mark.reference
@pytest.mark.parametrize("make", LIBRARIES.values(), ids=LIBRARIES)
@pytest.mark.parametrize("name", CASES_OF_TIES)
def test_vectors_of_ties(name, make, reference_path):
    cases = json.loads((reference_path / "vectors" / "tie_ranks.json").read_text())["cases"]
    assert [case["name"] for case in cases] == CASES_OF_TIES
    case = cases[CASES_OF_TIES.index(name)]
    every = range(len(case["scores"][0]))
    outside = [at for at in every if at not in (case["restrict_entities_to"] or every)]
    excluded = [outside + known for known in case["filter"] or [[]] * len(case["scores"])]

    found = from_scores(make(case["scores"]), make(case["true"]), excluded)

    expected = [case[key] for key in ("optimistic", "pessimistic", "realistic", "number_of_options")]
    assert as_lists(found) == expected
