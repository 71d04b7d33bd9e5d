"""The reference itself, by hand and by brute force over orders of scores; against the package, laws compare it."""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction
from itertools import pairwise, permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import reference
from tests.kit.graphs import Relation, TinyGraph, score_grids, score_values
from tests.reference import Query, Ranks


def same_row_draws(row):
    """A stand-in for uniform draws: always the same row."""
    return lambda _side, _rows, count: [row] * count


# Ranks


@given(score_values(), st.lists(score_values(), max_size=5))
def test_ranks_are_the_extreme_and_mean_places_over_all_descending_orders(true_score, competitors):
    scores = [true_score, *competitors]
    places = [
        order.index(0) + 1
        for order in permutations(range(len(scores)))
        if all(scores[a] >= scores[b] for a, b in pairwise(order))
    ]

    optimistic, pessimistic = reference.rank_by_sorting(true_score, competitors)

    assert (min(places), max(places)) == (optimistic, pessimistic)
    assert Fraction(sum(places), len(places)) == reference.realistic(optimistic, pessimistic)


@pytest.mark.parametrize("scores", [(math.nan, [1.0]), (1.0, [2.0, math.nan])])
def test_nan_is_refused(scores):
    with pytest.raises(ValueError, match="NaN"):
        reference.rank_by_sorting(*scores)


# Scores


@pytest.mark.parametrize(
    ("name", "params", "expected"),
    [
        ("none", {}, [1, 2, 3, 4]),
        ("diagonal", {"diagonal": [2, 0, -1, 1]}, [2, 0, -3, 4]),
        ("translation", {"translation": [1, 1, 0, -4]}, [2, 3, 3, 0]),
        ("complex_diagonal", {"real": [1, 0], "imag": [0, 1]}, [1, -4, 3, 2]),  # (1+3i)·1 and (2+4i)·i
    ],
)
def test_operators_by_hand(name, params, expected):
    assert expected == reference.apply_operator(name, params, [1, 2, 3, 4])


def test_a_matrix_multiplies_a_column_and_affine_then_translates():
    params = {"linear_transformation": [[1, 10], [100, 1000]], "translation": [0.5, -0.5]}

    assert [21, 2100] == reference.apply_operator("linear", params, [1, 2])
    assert [21.5, 2099.5] == reference.apply_operator("affine", params, [1, 2])


@pytest.mark.parametrize(
    ("comparator", "expected", "with_bias"),
    [("dot", 11.0, 12.0), ("squared_l2", -8.0, 0.0), ("l2", -math.sqrt(8), -2 + 4), ("cos", 11 / math.sqrt(125), 5.0)],
)
def test_comparators_by_hand(comparator, expected, with_bias):
    """The bias withholds the first number from the comparator, then adds both first numbers."""
    x, y = [1.0, 2.0], [3.0, 4.0]

    assert expected == pytest.approx(reference.score(comparator, x, y), rel=1e-15)
    assert with_bias == pytest.approx(reference.score(comparator, x, y, bias=True), rel=1e-15)


def test_l2_of_equal_rows_is_just_below_zero():
    assert pytest.approx(-1e-15) == reference.score("l2", [0.5, 2.0], [0.5, 2.0])


def test_a_long_row_is_shortened_before_the_global_embedding_is_added():
    assert [pytest.approx(1.6, rel=1e-7), pytest.approx(-0.2, rel=1e-6)] == reference.prepare_row([3, 4], 1.0, [1, -1])
    assert [4.0, 3.0] == reference.prepare_row([3, 4], 5.0, [1, -1])


def hand_graph(dynamic):
    """Two partitions of users, one of items; the operators double: the rhs by 2, the lhs (if dynamic) by 3 and 5."""
    lhs_params = {"diagonal": [3.0, 5.0]} if dynamic else {}
    return TinyGraph(
        relations=[Relation("likes", "user", "item", "diagonal", {"diagonal": [2.0, 2.0]}, lhs_params)],
        embeddings={
            "user": [[[1.0, 0.0], [0.0, 1.0]], [[1.0, 1.0], [4.0, 0.0], [1.0, 1.0]]],
            "item": [[[1.0, 2.0], [2.0, 1.0], [0.0, 0.5]]],
        },
        global_embeddings={},
        buckets={(0, 0): [], (1, 0): [(0, 0, 1), (2, 0, 0)]},
        dynamic=dynamic,
    )


@pytest.mark.parametrize(
    ("dynamic", "side", "others", "expected"),
    [
        (False, "lhs", [(0, 0), (1, 1)], (6.0, [4.0, 16.0])),  # u'·2v, v = (2, 1)
        (False, "rhs", [(0, 0), (0, 2)], (6.0, [6.0, 1.0])),  # u·2v', u = (1, 1)
        (True, "lhs", [(0, 0), (1, 1)], (6.0, [4.0, 16.0])),
        (True, "rhs", [(0, 0), (0, 2)], (11.0, [13.0, 2.5])),  # (3, 5)u·v'
    ],
)
def test_edge_scores_by_hand(dynamic, side, others, expected):
    assert expected == reference.edge_scores(hand_graph(dynamic), (1, 0), (0, 0, 1), side, others)


# Queries


def test_the_partition_competes_without_the_true_entity():
    """Users of partition 1 score 6, 16, 6 against 2·(2, 1), and 6, 8, 6 against 2·(1, 2); a copied row ties."""
    ranks = reference.partition_ranks(hand_graph(dynamic=False), (1, 0))

    assert [Ranks(2, 3, 3), Ranks(1, 2, 3), Ranks(2, 3, 3), Ranks(1, 2, 3)] == ranks


def test_all_partitions_compete_and_known_edges_do_not():
    graph = hand_graph(dynamic=False)
    known = reference.known_edges(graph, graph.buckets | {(1, 3): [(1, 0, 1)], (0, 0): [(0, 0, 1), (1, 0, 2)]})

    ranks = [query.ranks for query in reference.full_queries(graph, (1, 0), "all", known)]

    # lhs of the first edge: (0, 1), (1, 2) are left; the items of users (1, 0) and (1, 2) are one known each.
    assert [Ranks(1, 2, 3), Ranks(1, 2, 3), Ranks(2, 3, 5), Ranks(1, 2, 3)] == ranks


# Chunks

EDGES = [(0, 1, 5), (1, 0, 6), (2, 1, 7), (0, 1, 7), (4, 0, 9)]


def test_short_chunks_are_topped_up():
    batches = reference.default_batches(EDGES, dynamic=True, window=2)

    chunks = reference.chunks(EDGES, batches, (3, 2), same_row_draws(8))

    assert [[0, 1, 2], [3, 4]] == [chunk.rows for chunk in chunks]
    assert [[0, 1, 2, 8, 8], [0, 4, 8, 8, 8]] == [chunk.lists["lhs"] for chunk in chunks]
    assert [[5, 6, 7, 8, 8], [7, 9, 8, 8, 8]] == [chunk.lists["rhs"] for chunk in chunks]
    assert [5, 5] == [chunk.list_length for chunk in chunks]


@pytest.mark.parametrize(
    ("window", "expected"), [(9, [[1, 4], [0, 2], [3]]), (2, [[1], [0], [2, 3], [4]]), (3, [[1], [0, 2], [4], [3]])]
)
def test_relations_are_grouped_within_windows(window, expected):
    batches = reference.default_batches(EDGES, dynamic=False, window=window)

    assert expected == [chunk.rows for chunk in reference.chunks(EDGES, batches, (2, 0), same_row_draws(0))]


def test_uniform_draws_alone_make_chunks_of_their_own_number():
    batches = reference.default_batches(EDGES, dynamic=True, window=1)

    chunks = reference.chunks(EDGES, batches, (0, 4), lambda side, rows, count: [len(side) + rows[0]] * count)

    assert [([0, 1, 2, 3], [3] * 4), ([4], [7] * 4)] == [(chunk.rows, chunk.lists["lhs"]) for chunk in chunks]


def test_pbg_cuts_slices_then_relations_then_batches_then_chunks():
    batches = reference.pbg_batches(EDGES, dynamic=False, slices=2, batch_size=2)
    chunks = reference.chunks(EDGES, batches, (2, 1), same_row_draws(8), pbg=True)

    assert [[1], [0, 2], [4], [3]] == batches
    assert [[1, 8], [0, 2, 8], [4, 8], [0, 8]] == [chunk.lists["lhs"] for chunk in chunks]
    assert [2, 3, 2, 2] == [chunk.list_length for chunk in chunks]
    assert [[0, 1, 2], [3, 4]] == reference.pbg_batches(EDGES, dynamic=True, slices=2, batch_size=3)
    assert [[0, 1], [2], [3, 4]] == reference.pbg_batches(EDGES, dynamic=True, slices=2, batch_size=2)
    assert [] == reference.pbg_batches([], dynamic=True, slices=4, batch_size=3)


def test_pads_of_a_short_chunk_count_in_the_length_that_the_loss_sees():
    batches = reference.pbg_batches(EDGES, dynamic=True, slices=1, batch_size=8)
    chunks = reference.chunks(EDGES, batches, (3, 1), same_row_draws(0), pbg=True)

    assert [(4, 4), (3, 4)] == [(len(chunk.lists["lhs"]), chunk.list_length) for chunk in chunks]


def test_copies_of_the_true_entity_are_dropped_unless_pbg_lets_them_compete():
    graph = dataclasses.replace(hand_graph(dynamic=False), buckets={(1, 0): [(0, 0, 1), (0, 0, 2), (2, 0, 1)]})
    edges = graph.buckets[1, 0]
    batches = reference.default_batches(edges, dynamic=False, window=9)

    default = reference.chunks(edges, batches, (3, 1), same_row_draws(0))
    pbg = reference.chunks(edges, batches, (3, 1), same_row_draws(0), pbg=True)

    # lists of users 0 0 2 0 and of items 1 2 1 0; users 0 and 2 are equal rows
    assert [2, 3, 2, 4, 4, 3] == [q.ranks.num_candidates for q in reference.sampled_queries(graph, (1, 0), default)]
    assert [4] * 6 == [q.ranks.num_candidates for q in reference.sampled_queries(graph, (1, 0), pbg, pbg=True)]
    first = reference.sampled_queries(graph, (1, 0), pbg, pbg=True)[0]
    assert (6.0, [6.0, 6.0, 6.0]) == (first.true_score, first.competitors)
    known = reference.known_edges(graph, graph.buckets)
    filtered = reference.sampled_queries(graph, (1, 0), default, known)
    assert [1, 2, 2, 2, 1, 3] == [query.ranks.num_candidates for query in filtered]


# Metrics


def test_metrics_by_hand():
    ranks = [Ranks(1, 2, 5), Ranks(3, 3, 5), Ranks(1, 1, 1)]

    metrics = reference.rank_metrics(ranks, [1, 3])

    assert {
        "optimistic": {
            "count": 3, "mean_rank": 5 / 3, "mean_reciprocal_rank": 7 / 9, "hits_at_1": 2 / 3, "hits_at_3": 1,
        },
        "realistic": {
            "count": 3, "mean_rank": 5.5 / 3, "mean_reciprocal_rank": 2 / 3, "hits_at_1": 1 / 3, "hits_at_3": 1,
        },
        "pessimistic": {
            "count": 3, "mean_rank": 2, "mean_reciprocal_rank": 11 / 18, "hits_at_1": 1 / 3, "hits_at_3": 1,
        },
    } == metrics  # fmt: skip
    assert (7 / 8 + 1 / 2) / 2 == reference.query_auc(ranks)
    assert reference.query_auc([Ranks(1, 1, 1)]) is None


@given(score_grids())
def test_auc_is_the_share_of_pairs_that_are_in_order(grid):
    queries = [Query(0, "lhs", true_score, competitors) for true_score, competitors in zip(*grid, strict=True)]
    pairs = [(query.true_score, score) for query in queries for other in queries for score in other.competitors]
    wins = sum(Fraction(true > score) + Fraction(true == score, 2) for true, score in pairs)

    assert float(wins / len(pairs)) == reference.auc(queries)


def test_losses_by_hand():
    """Two competitors left of a list of four."""
    a, b = math.log(1 + math.exp(-1)), math.log(1 + math.exp(0.5))

    assert pytest.approx(a + (b + math.log(2)) / 4) == reference.loss("logistic", 1.0, [0.5, 0.0], 4)
    assert pytest.approx(0.2 + 0.7) == reference.loss("ranking", 1.0, [0.5, 1.0, 0.0], 4, margin=0.7)
    softmax = -math.log(math.e / (math.e + math.exp(0.5) + 1))
    assert pytest.approx(softmax) == reference.loss("softmax", 1.0, [0.5, 0.0], 4)
    assert [0.0, 0.0] == [reference.loss(name, 1.0, [], 4) for name in ("ranking", "softmax")]
