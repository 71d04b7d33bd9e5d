from __future__ import annotations

import pytest

from pbgeval.metrics.names import UnknownMetricError, resolve
from pbgeval.report.report import Figures

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
        ("mr", "both.realistic.mean_rank"),
        ("hits@10", "both.realistic.hits_at_10"),
        ("hits.1", "both.realistic.hits_at_1"),
        ("Both.Realistic.Hits@10", "both.realistic.hits_at_10"),
        ("head.best.mr", "head.optimistic.mean_rank"),
        ("tail.worst.hits@1", "tail.pessimistic.hits_at_1"),
        ("avg.mrr", "both.realistic.mean_reciprocal_rank"),
        ("head.mrr", "head.realistic.mean_reciprocal_rank"),
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


def test_hits_of_a_report_without_any_may_be_left_out_by_either_setting():
    with pytest.raises(
        UnknownMetricError,
        match=r"^no metric 'hits@10' here; add hits@10 to metrics, and 10 to hits_at if it is not there$",
    ):
        resolve("hits@10", "realistic", ["both.realistic.mean_reciprocal_rank"])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mmr", "no metric 'mmr' here; nearest: .*mrr"),
        ("mean_reciprocal_rnk", "no metric 'mean_reciprocal_rnk' here; nearest: .*mean_reciprocal_rank"),
        ("acu", "no metric 'acu' here; nearest: .*auc"),
        ("left.mrr", r"^no metric 'left.mrr' here; kgeval-dist metrics lists them$"),
        ("hits_at_11", "add 11 to hits_at; nearest: .*hits_at_1"),
        ("loss", "set compute_loss = True"),
        ("mrr.standard_error", r"^no metric 'mrr.standard_error' here; errors are in report.standard_errors\['mrr'\]$"),
        *((name, f"no metric '{name}'") for name in ("", "head", "head.best", ".", "relation.mrr")),
    ],
)
def test_an_unknown_name_says_what_is_nearest_or_how_to_get_it(name, message):
    with pytest.raises(UnknownMetricError, match=message):
        resolve(name, "realistic", KEYS)


def test_a_metric_without_an_error_has_none_and_no_advice_that_cannot_help() -> None:
    mrr, hits = "both.realistic.mean_reciprocal_rank", "both.realistic.hits_at_1"
    errors = Figures({mrr: 0.1}, "realistic", "Standard errors", (mrr, hits))

    assert (errors["mrr"], errors["hits@1"], [*errors]) == (0.1, None, [mrr])
    with pytest.raises(UnknownMetricError, match="add 7 to hits_at"):
        errors["hits@7"]
