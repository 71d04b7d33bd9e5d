from __future__ import annotations

import tempfile
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pbgeval.storage.rows import MemoryRows, ScratchRows
from pbgeval.storage.writing import ScratchFolder
from tests.examples import examples


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
@settings(max_examples=examples(25))
@given(st.integers(0, 7), st.integers(0, 4), st.data())
def test_rows_in_memory_and_in_a_folder_are_those_written(dtype, num_rows, num_columns, data):
    chance = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    shape = (num_rows, num_columns) if num_columns else (num_rows,)
    expected = torch.randint(-(1 << 62), 1 << 62, shape, generator=chance).to(dtype)
    if dtype.is_floating_point:
        expected.view(-1)[:1] = float("nan")
    cuts = sorted({0, num_rows, *data.draw(st.sets(st.integers(0, num_rows)))})
    parts = data.draw(st.permutations(list(pairwise(cuts))))
    start, stop = sorted(data.draw(st.tuples(*[st.integers(0, num_rows)] * 2)))
    some = data.draw(st.lists(st.integers(0, num_rows - 1), max_size=9)) if num_rows else []
    with tempfile.TemporaryDirectory() as folder:
        writers = [ScratchRows(ScratchFolder(Path(folder), worker, 2), "rows", shape, dtype) for worker in (0, 1)]
        memory = MemoryRows.empty(shape, dtype, torch.device("cpu"))
        writers[0].create()
        for number, (first, last) in enumerate(parts):
            writers[number % 2].write(first, expected[first:last])
            memory.write(first, expected[first:last])
        for rows in (memory, *writers):
            assert same_bits(expected[start:stop], rows.read(start, stop))
            taken = rows.take(torch.tensor(some, dtype=torch.int64))
            assert same_bits(expected[some], taken)
            taken.zero_()  # a copy
            assert same_bits(expected[start:stop], rows.read(start, stop))


def same_bits(one: torch.Tensor, two: torch.Tensor) -> bool:
    return (one.shape, one.dtype, one.numpy().tobytes()) == (two.shape, two.dtype, two.contiguous().numpy().tobytes())
