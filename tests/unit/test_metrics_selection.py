from __future__ import annotations

import pytest

from pbgeval.metrics.names import ALL_BY_DEFAULT, PRESETS, Selection, UnknownMetricError, key_of_name

KEYS = [
    "head.realistic.mean_reciprocal_rank",
    "both.optimistic.mean_reciprocal_rank",
    "both.expected.hits_at_3",
    "both.auc",
    "tail.query_auc",
    "both.average_precision_score",
    "both.f1_score",
    "both.pooled_hits_at_20",
    "both.realistic.mean_reciprocal_rank_at_10",
    "both.loss",
]


def chosen(*asked: str) -> list[str]:
    return [key for key in KEYS if Selection.from_names(asked).has(key)]


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (("rank",), [0, 1, 2]),
        (("auc",), [3, 4]),
        (("average_precision",), [5]),
        (("classification",), [3, 5, 6]),
        (("mrr",), [0, 1]),
        (("head.mrr",), [0]),
        (("best.mrr", "F1"), [1, 6]),
        (("hits@3", "roc_auc"), [2, 3]),
        (("pooled_hits@20", "mrr@10"), [7, 8]),
        (("loss",), []),
        ((), []),
    ],
)
def test_families_and_names_choose_keys(asked, expected):
    found = chosen(*asked)

    assert [*(KEYS[index] for index in expected), "both.loss"] == found  # the loss has a switch of its own
    assert found == list(Selection.from_names(asked).select(dict.fromkeys(KEYS)))


@pytest.mark.parametrize(
    ("asked", "needed"), [(("rank",), False), (("query_auc",), False), (("auc",), True), (("mcc",), True),
                          (("pooled_hits@3",), True), (("mrr@10",), False), (("classification",), True)]
)  # fmt: skip
def test_scores_are_kept_only_for_what_is_computed_from_them(asked, needed):
    assert needed == Selection.from_names(asked).needs_pools


@pytest.mark.parametrize("asked", [("rank", "auc"), ("mrr", "head.best.hits@7", "AP"), PRESETS["ogb"]])
def test_its_names_make_the_same_choice(asked):
    selection = Selection.from_names(asked)
    again = Selection.from_names(selection.names)

    assert (selection.names, chosen(*asked)) == (again.names, chosen(*selection.names))


def test_further_rank_metrics_are_those_that_are_named():
    assert list(ALL_BY_DEFAULT.optional_metrics) == []
    assert [metric.name for metric in Selection.from_names(["mrr@3"]).optional_metrics] == ["mean_reciprocal_rank_at_3"]


@pytest.mark.parametrize(
    "name", ["auc", "MRR", "tail.worst.mr", "expected.mrr", "hits@10", "ap", "loss", "pooled_hits@7", "mrr@99"]
)
def test_what_a_report_can_have_is_accepted(name):
    key_of_name(name, "realistic", ["tail", "both"], [1, 10], with_loss=True)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mmr", "no metric 'mmr'.*nearest: .*mrr"),
        ("hits@3", "add 3 to hits_at"),
        ("head.mrr", "expected side both or tail"),
        ("expected.median_rank", "no metric 'expected.median_rank'"),
        ("loss", "set compute_loss = True"),
        ("pooled_hits@0", "no metric"),
        ("pooled_hits@x", "no metric"),
        ("", "no metric"),
    ],
)
def test_what_no_report_has_is_refused(name, message):
    with pytest.raises(UnknownMetricError, match=message):
        key_of_name(name, "realistic", ["tail", "both"], [1, 10], with_loss=False)
