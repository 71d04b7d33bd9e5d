from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from pbgeval.errors import DataError
from pbgeval.scoring import entities
from pbgeval.scoring.entities import EntityTable

ROWS = torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0], [-6.0, 8.0], [0.6, 0.8]])


def table(rows: torch.Tensor, **more) -> EntityTable:
    return EntityTable("user", 3, rows, **more)


@pytest.mark.parametrize("max_norm", [0.5, 1.0, 5.0, 100.0])
def test_max_norm_is_that_of_torchs_embedding(max_norm):
    rows = torch.cat([ROWS, torch.randn((200, 2), generator=torch.Generator().manual_seed(1))])
    ids = torch.arange(len(rows))

    expected = F.embedding(ids, rows.clone(), max_norm=max_norm)

    assert_close(table(rows, max_norm=max_norm).rows(ids), expected, rtol=3e-7, atol=0)
    assert_close(table(rows, max_norm=max_norm).range_of_rows(0, len(rows)), expected, rtol=3e-7, atol=0)


def test_max_norm_changes_no_row_of_the_partition():
    rows = ROWS.clone()

    table(rows, max_norm=0.1).rows(torch.arange(5))

    assert torch.equal(ROWS, rows)


def test_the_global_embedding_is_added_to_the_shortened_row():
    of = table(ROWS, max_norm=1.0, global_embedding_D=torch.tensor([10.0, -1.0]))

    assert_close(of.rows(torch.tensor([0, 1])), torch.tensor([[10.6, -0.2], [10.3, -0.6]]), rtol=0, atol=1e-6)


def test_a_featurized_entity_is_the_mean_of_its_features():
    features, offsets = torch.tensor([0, 1, 3, 4, 4]), torch.tensor([0, 2, 3, 5])
    expected = torch.tensor([[1.65, 2.2], [-6.0, 8.0], [0.6, 0.8]])

    assert_close(table(ROWS, featurized=True).rows_of_features(offsets, features), expected)


def test_features_are_shortened_one_by_one_and_the_mean_gets_the_global_embedding():
    of = table(ROWS, featurized=True, max_norm=1.0, global_embedding_D=torch.tensor([1.0, 1.0]))

    found = of.rows_of_features(torch.tensor([0, 2]), torch.tensor([0, 3]))

    assert_close(found, torch.tensor([[1.0 + (0.6 - 0.6) / 2, 1.0 + (0.8 + 0.8) / 2]]), rtol=0, atol=1e-6)


# What cannot be ranked


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("rows_at_a_time", [2, 1000])
def test_rows_that_are_not_finite_are_named(value, rows_at_a_time, monkeypatch):
    monkeypatch.setattr(entities, "ROWS_AT_A_TIME", rows_at_a_time)
    rows = torch.ones(9, 2)
    rows[3, 1] = value

    with pytest.raises(DataError, match=r"user', partition 3: .*NaN or infinite embeddings in row 3; this"):
        table(rows).check(refuse_zero_vectors=False, has_bias=False)


@pytest.mark.parametrize(
    ("row", "has_bias", "bad"),
    [([0.0, 0.0], False, True), ([0.0, -0.0], True, True), ([1.0, 0.0], True, True), ([1.0, 0.0], False, False)],
)
def test_zero_vectors_are_refused_where_they_have_no_direction(row, has_bias, bad):
    of = table(torch.tensor([[1.0, 1.0], row]))

    of.check(refuse_zero_vectors=False, has_bias=has_bias)
    if not bad:
        of.check(refuse_zero_vectors=True, has_bias=has_bias)
        return
    with pytest.raises(DataError, match="zero vectors in row 1"):
        of.check(refuse_zero_vectors=True, has_bias=has_bias)


def test_a_zero_vector_is_what_the_operator_sees():
    """A global embedding moves a zero row, and can move another row to zero."""
    of = table(torch.tensor([[0.0, 0.0], [1.0, -2.0]]), global_embedding_D=torch.tensor([-1.0, 2.0]))

    with pytest.raises(DataError, match="zero vectors in row 1;"):
        of.check(refuse_zero_vectors=True, has_bias=False)


def test_features_may_be_zero_and_a_table_may_be_empty():
    table(torch.zeros(2, 2), featurized=True).check(refuse_zero_vectors=True, has_bias=False)
    table(torch.zeros(0, 2)).check(refuse_zero_vectors=True, has_bias=False)
