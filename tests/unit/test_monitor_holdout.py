"""The holdout: every edge on exactly one side, by a hash of what it is and of nothing else."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pbgeval import ModelSchema, MonitoredRelation
from pbgeval.errors import ConfigError, DataError
from pbgeval.monitor.monitor import Monitor
from pbgeval.monitor.schema import hash_edges, sample_of_rest, threshold_of
from pbgeval.notation import Bucket

TYPES = [("user", 0, "user", 1), ("user", 0, "tag", 0)]
SCHEMA = ModelSchema(
    [MonitoredRelation("knows", "user", "user"), MonitoredRelation("has", "user", "tag")], {"user": 3, "tag": 1}, "dot"
)

edge_lists = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 1), st.integers(0, 9)), max_size=60)
fractions = st.one_of(st.sampled_from([0.0, 0.05, 0.5, math.nextafter(1, 0)]), st.floats(0, 1, exclude_max=True))


def columns(edges: list[tuple[int, int, int]]) -> list[np.ndarray]:
    return list(np.array(edges, np.int64).reshape(-1, 3).T)


def monitor(fraction: float, seed: int = 0, **settings: Any) -> Monitor:
    return Monitor(SCHEMA, eval_fraction=fraction, seed=seed, **settings)


def test_the_hash_never_changes() -> None:
    lhs, rel, rhs = np.array([0, 1, 123456789]), np.array([0, 1, 1]), np.array([0, 2, 2**40])

    expected = [14377751117927794031, 14114088380413934199, 9522092560112171017]
    assert hash_edges(7, TYPES, lhs, rel, rhs).tolist() == expected


@given(fractions, edge_lists, st.integers(0, 3))
def test_every_edge_is_on_exactly_one_side_and_its_copies_are_too(
    fraction: float, edges: list[tuple[int, int, int]], seed: int
) -> None:
    split = monitor(fraction, seed).split(np.array(edges, np.int64).reshape(-1, 3), (0, 1))
    training, held_out = ([tuple(edge) for edge in part.tolist()] for part in split)

    assert (sorted(training + held_out), {*training} & {*held_out}) == (sorted(edges), set())
    if threshold_of(fraction) > 0:
        assert list(range(len(edges))) == sorted([*split.training_rows, *split.held_out_rows])
    sampled = split.sampled_edges
    rows = torch.stack([sampled.lhs, sampled.rel, sampled.rhs], 1).tolist()
    assert min(len(held_out), len(training)) == len(rows)
    assert set(map(tuple, rows)) <= set(training)


@given(edge_lists, st.permutations(range(60)), st.integers(1, 7), st.integers(0, 3))
def test_the_side_depends_on_no_order_chunk_path_or_epoch(
    edges: list[tuple[int, int, int]], order: list[int], num_chunks: int, edge_path: int
) -> None:
    whole = set(map(tuple, monitor(0.5).split(np.array(edges, np.int64).reshape(-1, 3), (2, 0)).held_out.tolist()))
    shuffled = [edges[index] for index in order if index < len(edges)]
    again = monitor(0.5)
    found = set()
    for chunk in range(num_chunks):
        part = np.array(shuffled[chunk::num_chunks], np.int64).reshape(-1, 3)
        for _ in range(2):  # epochs
            held_out = again.split(part, (2, 0), edge_path=edge_path, edge_chunk=chunk).held_out
        found |= set(map(tuple, held_out.tolist()))

    assert whole == found


@pytest.mark.parametrize("fraction", [0.05, 0.2, 0.5, 0.9])
def test_the_fraction_is_met_in_expectation_and_another_seed_draws_other_edges(fraction: float) -> None:
    edges = np.stack(np.meshgrid(np.arange(300), [0, 1], np.arange(100), indexing="ij"), -1).reshape(-1, 3)
    first, second = (set(map(tuple, monitor(fraction, seed).split(edges, (0, 0)).held_out.tolist())) for seed in (1, 2))

    assert abs(len(first) / len(edges) - fraction) < 4 * math.sqrt(fraction * (1 - fraction) / len(edges))
    both = math.sqrt(fraction**2 * (1 - fraction**2) / len(edges))
    assert abs(len(first & second) / len(edges) - fraction**2) < 5 * both


def test_other_partitions_and_types_are_other_edges_but_for_a_type_with_one_partition() -> None:
    edges = np.stack([np.arange(2000), np.zeros(2000, int), np.arange(2000)], 1)
    tagged = edges + np.array([0, 1, 0])
    split = monitor(0.5).split

    assert set(split(edges, (0, 1)).held_out_rows) != set(split(edges, (0, 2)).held_out_rows)
    assert set(split(edges, (0, 1)).held_out_rows) != set(split(tagged, (0, 1)).held_out_rows)
    assert set(split(tagged, (0, 1)).held_out_rows) == set(split(tagged, (0, 2)).held_out_rows)


@pytest.mark.parametrize("fraction", [0.0, 0.05, 0.3, 1e-12, math.nextafter(1, 0)])
def test_the_threshold_is_the_exact_value_of_the_fraction(fraction: float) -> None:
    assert math.floor(Fraction(fraction) * 2**64) == threshold_of(fraction)
    assert threshold_of(fraction) < 2**64


@pytest.mark.parametrize("fraction", [1.0, 1, -0.1, math.nan, math.inf, "0.1", None])
def test_a_fraction_that_leaves_nothing_to_train_on_is_refused(fraction: Any) -> None:
    with pytest.raises(ConfigError, match="eval_fraction: expected a number from 0"):
        threshold_of(fraction)


@given(st.lists(st.integers(0, 30), max_size=50), st.integers(0, 30), st.integers(0, 60))
def test_the_sample_of_training_edges_is_the_next_by_hash(hashes: list[int], threshold: int, num_edges: int) -> None:
    hash_E = np.array(hashes, np.uint64)
    expected = sorted((word, row) for row, word in enumerate(hashes) if word >= threshold)[:num_edges]

    assert sorted(row for _, row in expected) == sample_of_rest(hash_E, threshold, num_edges).tolist()


@pytest.mark.parametrize("kind", ["tensor", "array", "tensors", "arrays", "int32"])
def test_edges_come_back_in_the_form_they_came_in(kind: str) -> None:
    array = np.array([(1, 0, 2), (3, 1, 0), (1, 0, 2), (5, 0, 5), (2, 1, 1)])
    forms: dict[str, Any] = {
        "tensor": torch.from_numpy(array),
        "array": array,
        "tensors": tuple(torch.from_numpy(array).unbind(1)),
        "arrays": list(array.T),
        "int32": array.astype(np.int32),
    }

    def form(edges: Any) -> list[Any]:
        columns = edges if isinstance(edges, tuple | list) else [edges]
        return [type(edges), *((type(of), of.dtype) for of in columns)]

    assert [form(part) for part in monitor(0.5).split(forms[kind], (0, 0))] == [form(forms[kind])] * 2


@pytest.mark.parametrize(
    ("edges", "message"),
    [
        (np.zeros((4, 2), int), r"expected \(E, 3\) of lhs, rel, rhs"),
        ("edges", "or the three columns, got str"),
        ((np.zeros(3, int), np.zeros(2, int), np.zeros(3, int)), "expected 3 integers as rel"),
        (np.zeros((4, 3)), "integers as lhs, got"),
        (np.array([[0, 2, 0]]), r"rel: expected a relation in 0\.\.1, got 2"),
    ],
)
def test_edges_of_another_form_are_refused(edges: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        monitor(0.5).split(edges, (0, 0))
    with pytest.raises(DataError, match=r"bucket \(3, 0\): expected partitions below \(3, 3\)"):
        monitor(0.5).split(np.zeros((1, 3), int), Bucket(3, 0))
