from __future__ import annotations

import json
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
import torch

from pbgeval import from_ranks
from pbgeval.metrics.names import UnknownMetricError
from pbgeval.metrics.registry import known_rank_metrics
from tests import rank_metrics_reference as reference
from tests.rank_metrics_reference import Queries

OPTIMISTIC, PESSIMISTIC, NUM_CANDIDATES = [1, 3, 2, 10], [2, 3, 6, 11], [10, 5, 9, 12]
WEIGHTS = [0.5, 2.0, 0.0, 1.25]


@pytest.fixture
def metrics():
    return from_ranks(OPTIMISTIC, PESSIMISTIC, NUM_CANDIDATES)


@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["alike", "weights"])
def test_every_metric_of_every_rank_type_is_that_of_the_definition(weights):
    metrics = from_ranks(OPTIMISTIC, PESSIMISTIC, NUM_CANDIDATES, weights)
    realistic = [(best + worst) / 2 for best, worst in zip(OPTIMISTIC, PESSIMISTIC, strict=True)]
    expected = {
        f"{rank_type}.{name}": reference.value(name, Queries(ranks, NUM_CANDIDATES, weights))
        for rank_type, ranks in (("optimistic", OPTIMISTIC), ("realistic", realistic), ("pessimistic", PESSIMISTIC))
        for name in [metric.name for metric in known_rank_metrics((1, 3, 10))]
    }
    values = metrics.to_dict(cutoffs=(1, 3, 10))

    assert expected == pytest.approx({key: values[key] for key in values if not key.startswith("expected")}, rel=1e-11)
    assert values == {key: metrics[key] for key in values}


def expected_over_orders(name: str, weights: list[float] | None) -> float:
    """Average a metric over every combination of places among the ties; all are as likely."""
    places = [range(best, worst + 1) for best, worst in zip(OPTIMISTIC, PESSIMISTIC, strict=True)]
    values = [reference.value(name, Queries(ranks, NUM_CANDIDATES, weights)) for ranks in product(*places)]
    return float(sum(map(Fraction, values)) / len(values))


LINEAR = [metric.name for metric in known_rank_metrics((1, 3, 10)) if metric.has_rank_type("expected")]


@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["alike", "weights"])
@pytest.mark.parametrize("name", LINEAR)
def test_an_expected_metric_is_the_mean_over_all_orders_of_the_ties(name, weights):
    metrics = from_ranks(OPTIMISTIC, PESSIMISTIC, NUM_CANDIDATES, weights)

    assert expected_over_orders(name, weights) == pytest.approx(metrics[f"expected.{name}"], rel=1e-12)


def test_expected_ranks_have_the_linear_metrics_alone(metrics):
    values = metrics.to_dict(cutoffs=(1, 3, 10))

    assert {f"expected.{name}" for name in LINEAR} == {key for key in values if key.startswith("expected.")}
    assert {"count", "mean_rank", "mean_reciprocal_rank", "adjusted_mean_rank_index", "z_hits_at_3"} <= {*LINEAR}
    with pytest.raises(UnknownMetricError, match=r"no metric 'expected\.median_rank' of expected ranks"):
        metrics["expected.median_rank"]


@pytest.mark.reference
def test_all_reference_values_of_expected_metrics(reference_path):
    cases = json.loads((reference_path / "vectors" / "expected_tie_metrics.json").read_text())["cases"]
    names = {"expected_rank": "expected.mean_rank", "expected_reciprocal_rank": "expected.mrr"}
    names |= {f"expected_hits_at_{k}": f"expected.hits@{k}" for k in (1, 3, 10, 50)}
    names["reciprocal_of_mean_rank"] = "realistic.mrr"

    assert len(cases) == 27
    for case in cases:
        metrics = from_ranks([case["optimistic"]], [case["pessimistic"]], [case["pessimistic"] + 5])
        expected = {key: case[key] for key in names}
        assert {key: metrics[name] for key, name in names.items()} == pytest.approx(expected, rel=1e-9, abs=0.0), case


def test_far_ranks_that_tie_keep_their_digits():
    first, last = 10**9, 10**9 + 3
    metrics = from_ranks([first], [last], [10**10])
    exact = sum((Fraction(1, rank) for rank in range(first, last + 1)), Fraction(0)) / 4

    assert float(exact) == pytest.approx(metrics["expected.mrr"], rel=4e-16)
    assert 10**9 + 1.5 == metrics["mean_rank"] == metrics["expected.mean_rank"]


def test_levels_by_chance_have_the_same_names(metrics):
    assert (
        sum((num + 1) / 2 for num in NUM_CANDIDATES) / 4 == metrics.expectation("mr") == metrics.expectation("best.mr")
    )
    assert sum(num**2 - 1 for num in NUM_CANDIDATES) / 12 / 16 == pytest.approx(metrics.variance("mr"))
    assert None is metrics.expectation("hmr")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mmr", "no metric 'mmr' of realistic ranks; nearest: .*mrr"),
        ("expected.gmr", "of expected ranks"),
        ("head.mrr", "not told apart by side"),
        ("auc", "no metric 'auc'"),
        ("hits@0", "no metric 'hits@0'"),
        ("", "no metric ''"),
    ],
)
def test_an_unknown_name_is_a_key_error_that_names_the_nearest(metrics, name, message):
    with pytest.raises(KeyError) as raised:
        metrics[name]

    assert raised.type is UnknownMetricError
    raised.match(message)


@pytest.mark.parametrize(
    "convert",
    [
        torch.tensor,
        lambda values: torch.tensor(values, dtype=torch.bfloat16 if max(values) < 100 else None),
        lambda values: np.array(values, np.uint8) if isinstance(values[0], int) else np.array(values, np.float32),
        lambda values: np.array(values, float),
        tuple,
    ],
    ids=["torch", "bfloat16", "small", "float", "tuple"],
)
def test_tensors_arrays_and_sequences_are_alike(convert):
    columns = [OPTIMISTIC, PESSIMISTIC, NUM_CANDIDATES, WEIGHTS]

    assert from_ranks(*columns).to_dict() == from_ranks(*map(convert, columns)).to_dict()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1, 0], [1, 1], [2, 2]), r"optimistic\[1\]: expected a whole number from 1 to 2\^52, got 0"),
        (([1, 1.5], [1, 2], [2, 2]), r"optimistic\[1\]: expected a whole number .* got 1.5"),
        (([1], [float("nan")], [2]), r"pessimistic\[0\]: .* got nan"),
        (([1], [1], [float("inf")]), r"num_candidates\[0\]: .* got inf"),
        (([3, 2], [3, 1], [3, 3]), r"pessimistic\[1\]: expected at least the optimistic rank \(2\), got 1"),
        (([3, 2], [3, 4], [3, 3]), r"num_candidates\[1\]: expected at least the pessimistic rank \(4\), got 3"),
        (([1], [1, 1], [3, 3]), "optimistic: expected 2 numbers, as many as num_candidates, got 1"),
        (([1], [1], [3], [1, 1]), "weights: expected 1 numbers, as many as num_candidates, got 2"),
        (([[1]], [[1]], [[3]]), r"num_candidates: expected one number for each query, got an array of shape \(1, 1\)"),
        ((["1"], ["1"], ["3"]), "num_candidates: expected numbers"),
        (([True], [True], [True]), "num_candidates: expected numbers of at most 64 bits, got bool"),
        (([1], [1], [2**70]), "num_candidates: expected numbers of at most 64 bits"),
        (([1, 1], [1, 1], [3, 3], [1, -0.5]), r"weights\[1\]: expected a finite number, at least 0, got -0.5"),
        (([1, 1], [1, 1], [3, 3], [1, float("nan")]), r"weights\[1\]: .* got nan"),
        (([1, 1], [1, 1], [3, 3], [0, 0]), "weights: expected some above 0, got 2 zeros"),
    ],
    ids=lambda value: None,
)
def test_what_cannot_be_ranks_is_refused_with_its_place(arguments, message):
    with pytest.raises(ValueError, match=message):
        from_ranks(*arguments)


def test_a_cutoff_below_one_is_refused(metrics):
    with pytest.raises(ValueError, match=r"cutoffs\[1\]: expected a positive number, got 0"):
        metrics.to_dict(cutoffs=(1, 0))
