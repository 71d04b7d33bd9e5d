from __future__ import annotations

import pytest
import torch

from pbgeval.scoring.product import padded_rows, padded_size, paired_product, product, transform

X = torch.tensor([[1.0, 2.0], [0.0, -1.0], [3.0, 0.5]])


@pytest.mark.parametrize("size", [1, 2, 15, 16, 17, 50, 100, 128, 1000])
@pytest.mark.parametrize("num_products", [1, 2, 7])
def test_sizes_are_padded_to_what_kernels_agree_on(size, num_products):
    padded = padded_size(size, num_products)

    assert padded >= max(size, 16)
    assert padded % 16 == 0 if num_products == 1 else padded == max(size, 16)


def test_products_by_hand():
    assert (
        product(X[None, :2], X[None]).tolist(),
        paired_product(X, X).tolist(),
        paired_product(X[:2], torch.tensor([[1.0, 2.0], [7.0, 1.5]])).tolist(),
    ) == ([[[5, -2, 4], [-2, 1, -0.5]]], [5, 1, 9.25], [5, -1.5])


def test_several_products_do_not_mix():
    found = product(torch.stack([X, 2 * X]), torch.stack([X[:1], X[1:2]]))

    assert found.tolist() == [[[5], [-2], [4]], [[-4], [2], [-1]]]


def test_a_matrix_is_multiplied_from_the_left():
    matrix_FD = torch.tensor([[0.0, 1.0], [2.0, 0.0], [1.0, 1.0]])

    assert transform(X, matrix_FD).tolist() == [[2, 2, 3], [-1, 0, -1], [0.5, 6, 3.5]]


def test_infinities_and_nans_pass_through():
    found = product(
        torch.tensor([[[torch.inf, 1.0], [0.0, 1.0]]]), torch.tensor([[[1.0, 0.0], [-1.0, 2.0], [0.0, 1.0]]])
    )

    assert [torch.inf, -torch.inf] == found[0, 0, :2].tolist()
    assert bool(found[0, 0, 2].isnan())
    assert found[0, 1].tolist() == [0.0, 2.0, 1.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("num_rows", [1, 15, 16, 17, 48, 100])
def test_rows_padded_before_give_the_same_product(num_rows, dtype):
    x_ND = torch.randn((num_rows, 20), generator=torch.Generator().manual_seed(num_rows)).to(dtype)
    y_CD = torch.randn((50, 20), generator=torch.Generator().manual_seed(0)).to(dtype)
    padded_ND = padded_rows(x_ND)

    assert padded_size(num_rows, 1, dtype) == padded_ND.shape[0]
    assert torch.equal(x_ND, padded_ND[:num_rows])
    assert not padded_ND[num_rows:].any()
    assert torch.equal(product(x_ND[None], y_CD[None])[0], product(padded_ND[None], y_CD[None])[0, :num_rows])
