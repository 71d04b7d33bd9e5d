from __future__ import annotations

import pytest

from pbgeval.metrics.names import UnknownMetricError, resolve

KEYS = [
    f"{side}.{rank_type}.{metric}"
    for side in ("head", "tail", "both")
    for rank_type in ("optimistic", "realistic", "pessimistic")
    for metric in ("mean_rank", "mean_reciprocal_rank", "count", "hits_at_1", "hits_at_10")
] + [f"{side}.{metric}" for side in ("head", "tail", "both") for metric in ("auc", "query_auc")]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("mrr", "both.realistic.mean_reciprocal_rank"),
        ("inverse_harmonic_mean_rank", "both.realistic.mean_reciprocal_rank"),
        ("mr", "both.realistic.mean_rank"),
        ("arithmetic_mean_rank", "both.realistic.mean_rank"),
        ("pos_rank", "both.realistic.mean_rank"),
        ("hits@10", "both.realistic.hits_at_10"),
        ("hits_at_10", "both.realistic.hits_at_10"),
        ("h@10", "both.realistic.hits_at_10"),
        ("r10", "both.realistic.hits_at_10"),
        ("hits.1", "both.realistic.hits_at_1"),
        ("Both.Realistic.Hits@10", "both.realistic.hits_at_10"),
        ("head.best.mr", "head.optimistic.mean_rank"),
        ("tail.worst.hits@1", "tail.pessimistic.hits_at_1"),
        ("avg.mrr", "both.realistic.mean_reciprocal_rank"),
        ("tail.average.mrr", "tail.realistic.mean_reciprocal_rank"),
        ("head.mrr", "head.realistic.mean_reciprocal_rank"),
        ("rank_count", "both.realistic.count"),
        ("auc", "both.auc"),
        ("tail.query_auc", "tail.query_auc"),
        ("lhs.mrr", "head.realistic.mean_reciprocal_rank"),
        ("rhs.mrr", "tail.realistic.mean_reciprocal_rank"),
        (" mrr ", "both.realistic.mean_reciprocal_rank"),
    ],
)
def test_names_that_people_use_are_keys(name, expected):
    assert resolve(name, "realistic", KEYS) == expected


def test_a_key_is_its_own_name_and_a_bare_name_has_the_rank_type_of_the_headline():
    assert [resolve(key, "pessimistic", KEYS) for key in KEYS] == KEYS
    assert resolve("mrr", "pessimistic", KEYS) == "both.pessimistic.mean_reciprocal_rank"


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("mmr", "mrr"), ("mean_reciprocal_rnk", "mean_reciprocal_rank"), ("acu", "auc")],
)
def test_an_unknown_name_suggests_the_nearest(name, nearest):
    with pytest.raises(UnknownMetricError, match=f"no metric '{name}' here; nearest: .*{nearest}"):
        resolve(name, "realistic", KEYS)


def test_a_name_like_no_other_points_to_the_list():
    with pytest.raises(UnknownMetricError, match=r"^no metric 'left.mrr' here; kgeval-dist metrics lists them$"):
        resolve("left.mrr", "realistic", KEYS)


def test_a_cutoff_or_loss_that_was_not_computed_says_how_to_get_it():
    with pytest.raises(UnknownMetricError, match=r"add 11 to hits_at; nearest: .*hits_at_1"):
        resolve("hits_at_11", "realistic", KEYS)
    with pytest.raises(UnknownMetricError, match="set compute_loss = True"):
        resolve("loss", "realistic", ["both.auc"])


@pytest.mark.parametrize("name", ["", "head", "head.best", ".", "tail.mrr"])
def test_what_names_no_metric_is_a_key_error(name):
    with pytest.raises(KeyError):
        resolve(name, "realistic", [key for key in KEYS if not key.startswith("tail")])
