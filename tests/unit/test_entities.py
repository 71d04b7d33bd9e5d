from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from pbgeval.errors import DataError
from pbgeval.scoring import block_sizes
from pbgeval.scoring.entities import EntityTable

ROWS = torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0], [-6.0, 8.0], [0.6, 0.8]])


def table(rows: torch.Tensor, **more) -> EntityTable:
    return EntityTable("user", 3, rows, **more)


@pytest.mark.parametrize("max_norm", [0.5, 1.0, 5.0, 100.0])
def test_max_norm_is_that_of_torchs_embedding_and_changes_no_row_of_the_partition(max_norm):
    rows = torch.cat([ROWS, torch.randn((200, 2), generator=torch.Generator().manual_seed(1))])
    ids, before = torch.arange(len(rows)), rows.clone()

    expected = F.embedding(ids, rows.clone(), max_norm=max_norm)

    of = table(rows, max_norm=max_norm)
    for found in (of.rows(ids), of.range_of_rows(0, len(rows))):
        assert_close(found, expected, rtol=3e-7, atol=0)
    assert torch.equal(before, rows)


def test_the_global_embedding_is_added_to_the_shortened_row():
    of = table(ROWS, max_norm=1.0, global_embedding_D=torch.tensor([10.0, -1.0]))

    assert_close(of.rows(torch.tensor([0, 1])), torch.tensor([[10.6, -0.2], [10.3, -0.6]]), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("more", "offsets", "features", "expected"),
    [
        ({}, [0, 2, 3, 5], [0, 1, 3, 4, 4], [[1.65, 2.2], [-6.0, 8.0], [0.6, 0.8]]),
        # Features are shortened one by one, and the mean gets the global embedding.
        ({"max_norm": 1.0, "global_embedding_D": torch.ones(2)}, [0, 2], [0, 3], [[1.0, 1.8]]),
    ],
)
def test_a_featurized_entity_is_the_mean_of_its_features(more, offsets, features, expected):
    found = table(ROWS, featurized=True, **more).rows_of_features(torch.tensor(offsets), torch.tensor(features))

    assert_close(found, torch.tensor(expected))


# What cannot be ranked


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("rows_at_a_time", [2, 1000])
def test_rows_that_are_not_finite_are_named(value, rows_at_a_time, monkeypatch):
    monkeypatch.setattr(block_sizes.CPU, "checked_rows", rows_at_a_time)
    rows = torch.ones(9, 2)
    rows[3, 1] = value

    with pytest.raises(DataError, match=r"user', partition 3: .*NaN or infinite embeddings in row 3; this"):
        table(rows).check(refuse_zero_vectors=False, has_bias=False)


@pytest.mark.parametrize(
    ("rows", "more", "has_bias", "bad"),
    [
        ([[1.0, 1.0], [0.0, 0.0]], {}, False, "row 1"),
        ([[1.0, 1.0], [0.0, -0.0]], {}, True, "row 1"),
        ([[1.0, 1.0], [1.0, 0.0]], {}, True, "row 1"),
        ([[1.0, 1.0], [1.0, 0.0]], {}, False, None),
        # A global embedding moves a zero row, and can move another row to zero.
        ([[0.0, 0.0], [1.0, -2.0]], {"global_embedding_D": torch.tensor([-1.0, 2.0])}, False, "row 1;"),
        # Features may be zero and a table may be empty.
        ([[0.0, 0.0]] * 2, {"featurized": True}, False, None),
        (torch.zeros(0, 2), {}, False, None),
    ],
)
def test_zero_vectors_are_refused_where_they_have_no_direction(rows, more, has_bias, bad):
    of = table(torch.as_tensor(rows), **more)

    of.check(refuse_zero_vectors=False, has_bias=has_bias)
    with pytest.raises(DataError, match=f"zero vectors in {bad}") if bad else nullcontext():
        of.check(refuse_zero_vectors=True, has_bias=has_bias)
