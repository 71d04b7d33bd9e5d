from __future__ import annotations

import pytest
import torch

from pbgeval.inputs import partitions as read_ahead
from pbgeval.inputs.partitions import rows_ahead

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)


@pytest.fixture
def copies(monkeypatch):
    """Rows whose copy has begun, and those that have been waited for."""
    begun, waited = [], []

    def start(rows, device):
        begun.append(int(rows))
        return lambda: waited.append(int(rows)) or rows

    monkeypatch.setattr(read_ahead, "_start_copy", start)
    return begun, waited


@pytest.mark.parametrize("device", [CPU, CUDA])
@pytest.mark.parametrize("num_parts", [0, 1, 2, 5])
def test_rows_come_in_order(copies, device, num_parts):
    found = [int(rows) for rows in rows_ahead(range(num_parts), torch.tensor, device)]

    assert (list(range(num_parts)), list(range(num_parts)) if device == CUDA else []) == (found, copies[1])


def test_a_gpu_gets_the_next_rows_while_the_last_are_in_use(copies):
    of_parts = rows_ahead([3, 4, 5, 6], torch.tensor, CUDA)
    begun, waited = copies

    assert (int(next(of_parts)), waited) == (3, [3])
    assert set(begun) <= {3, 4}, "one part ahead, not two"
    assert int(next(of_parts)) == 4


@pytest.mark.parametrize("device", [CPU, CUDA])
def test_what_reading_raises_comes_with_the_part_that_cannot_be_read(copies, device):
    def read(part):
        if part == 1:
            raise OSError("gone")
        return torch.tensor(part)

    of_parts = rows_ahead([0, 1, 2], read, device)

    assert int(next(of_parts)) == 0
    with pytest.raises(OSError, match="gone"):
        next(of_parts)
