from __future__ import annotations

import numpy as np
import pytest
import torch

from pbgeval.scoring.product import padded_rows, padded_size, product


@pytest.mark.parametrize("sizes", [(0, 2, 3), (2, 0, 3), (2, 3, 0)])
def test_products_of_nothing_are_none(sizes):
    num_products, num_queries, num_candidates = sizes
    found = product(torch.ones(num_products, num_queries, 4), torch.ones(num_products, num_candidates, 4))

    assert found.shape == sizes


def test_infinities_and_nans_pass_through():
    found = product(
        torch.tensor([[[torch.inf, 1.0], [0.0, 1.0]]]), torch.tensor([[[1.0, 0.0], [-1.0, 2.0], [0.0, 1.0]]])
    )

    np.testing.assert_array_equal(found[0], [[torch.inf, -torch.inf, torch.nan], [0.0, 2.0, 1.0]])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("num_rows", [1, 15, 16, 17, 48, 100])
def test_rows_padded_before_give_the_same_product(num_rows, dtype):
    x_ND = torch.randn((num_rows, 20), generator=torch.Generator().manual_seed(num_rows)).to(dtype)
    y_CD = torch.randn((50, 20), generator=torch.Generator().manual_seed(0)).to(dtype)
    padded_ND = padded_rows(x_ND)

    assert padded_size(num_rows, 1, dtype) == padded_ND.shape[0]
    assert torch.equal(product(x_ND[None], y_CD[None])[0], product(padded_ND[None], y_CD[None])[0, :num_rows])
