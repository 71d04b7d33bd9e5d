from __future__ import annotations

import pytest

from pbgeval.metrics.names import SCORE_METRICS, UnknownMetricError, metric_list
from pbgeval.metrics.registry import FAMILIES, METRICS, OPTIONAL_FAMILIES


def test_every_metric_is_listed_with_all_that_is_known_of_it():
    text = metric_list()

    families = (*FAMILIES, *OPTIONAL_FAMILIES)
    for metric in [*METRICS, *(family.of_cutoff(10) for family in families), *SCORE_METRICS]:
        own = metric_list(metric.name)
        assert own in text
        for word in (metric.name, metric.formula, metric.range, metric.chance, metric.source):
            assert word in own
        assert all(synonym in own for synonym in metric.synonyms)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("mcc", "matthews_correlation_coefficient"),
        ("pooled_hits@50", "pooled_hits_at_10"),
        ("mrr@10", "mean_reciprocal_rank_at_10"),
    ],
)
def test_a_metric_is_found_by_any_of_its_names(name, key):
    assert metric_list(name).startswith(f"{key}\n")


def test_an_unknown_name_answers_with_the_nearest():
    with pytest.raises(UnknownMetricError, match=r"nearest: .*mean_rank"):
        metric_list("meanrank")
    with pytest.raises(UnknownMetricError, match=r"nearest: .*hits@1"):
        metric_list("hitz@10")
