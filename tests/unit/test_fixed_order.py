from __future__ import annotations

import struct

import pytest
import torch

from pbgeval.scoring import fixed_order
from pbgeval.scoring.fixed_order import means_in_order, norms_in_order, sum_in_order, transform_in_order
from tests.kit.loops import use_loops


@pytest.mark.parametrize("width", [1, 2, 3, 5, 8, 101])
def test_the_second_half_is_added_to_the_first(width):
    x_ND = torch.randn((4, width), dtype=torch.float64, generator=torch.Generator().manual_seed(width))

    expected = []
    for row in x_ND.tolist():
        while len(row) > 1:
            half = (len(row) + 1) // 2
            row = [a + b for a, b in zip(row[:half], [*row[half:], 0.0], strict=False)]
        expected += row
    assert (sum_in_order(x_ND).tolist(), sum_in_order(x_ND[:, :0]).tolist()) == (expected, [0.0] * 4)


def test_a_matrix_product_adds_from_the_first_column_to_the_last():
    generator = torch.Generator().manual_seed(0)
    x_ED, matrix_FD = (torch.randn((size, 7), dtype=torch.float64, generator=generator) for size in (3000, 5))

    transformed_EF = transform_in_order(x_ED, matrix_FD)

    for row in (0, 1023, 1024, 2999):
        sums = [0.0] * 5
        for column in range(7):
            sums = [total + float(x_ED[row, column] * matrix_FD[f, column]) for f, total in enumerate(sums)]
        assert sums == transformed_EF[row].tolist()


def test_means_of_runs_of_rows():
    x_FD = torch.tensor([[1.0], [2.0], [4.0], [8.0]], dtype=torch.float64)

    assert means_in_order(x_FD, torch.tensor([0, 1, 4])).tolist() == [[1.0], [14 / 3]]
    assert means_in_order(x_FD, torch.tensor([0])).tolist() == []


@pytest.mark.parametrize("width", [1, 2, 3, 8, 101])
def test_directions_by_a_loop_have_the_bits_of_the_general_path(width, monkeypatch):
    use_loops(monkeypatch, True, fixed_order._directions)
    x_ND = torch.randn((300, width), dtype=torch.float64, generator=torch.Generator().manual_seed(width))
    x_ND[5:9] *= 2.0**-140
    x_ND[9:12, 1:] = 0.0
    for rows_ND in (x_ND, x_ND.float()):
        expected_ND = rows_ND.double() / norms_in_order(rows_ND.double()).unsqueeze(1)

        assert torch.equal(fixed_order.directions_in_order(rows_ND), expected_ND.float())
    x_ND[7] = 0.0
    assert fixed_order.directions_in_order(x_ND) is None


@pytest.mark.parametrize("width", [0, 1, 2, 3, 8, 101])
def test_squared_lengths_by_a_loop_have_the_bits_of_the_general_path(width, monkeypatch):
    x_BND = torch.randn((3, 100, width), generator=torch.Generator().manual_seed(width))
    x_BND[0, 5:9] *= 2.0**-140
    x_BND[1, 9:12, 1:] = 0.0
    expected_BN = sum_in_order(x_BND.double() * x_BND.double())
    for has_loop in (True, False):
        use_loops(monkeypatch, has_loop, fixed_order._squares)

        assert torch.equal(fixed_order.squares_in_order(x_BND), expected_BN)
        assert torch.equal(
            fixed_order.squares_in_order(x_BND[..., ::2]), sum_in_order(x_BND[..., ::2].double().square())
        )


def test_a_sum_of_squares_of_the_largest_and_smallest_float32():
    largest, smallest = (struct.unpack("f", struct.pack("I", bits))[0] for bits in (0x7F7FFFFF, 1))

    norms = norms_in_order(torch.tensor([[largest] * 4, [smallest] * 4], dtype=torch.float64)).tolist()

    assert [2 * largest, 2 * smallest] == norms
