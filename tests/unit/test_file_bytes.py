"""Pieces of files that several threads read are whole and in their places; a file that ends before is named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pbgeval.errors import StorageError
from pbgeval.inputs import partitions
from pbgeval.storage import file_bytes
from pbgeval.storage.arrays import BFLOAT16, MappedRows
from pbgeval.storage.file_bytes import read_into
from tests.examples import examples


@settings(max_examples=examples(50))
@given(st.integers(0, 40), st.integers(0, 200), st.integers(1, 64), st.integers(1, 9))
def test_bytes_are_those_of_the_file(
    tmp_path_factory: pytest.TempPathFactory, offset: int, length: int, piece: int, threads: int
) -> None:
    path = tmp_path_factory.mktemp("file") / "x"
    content = np.random.default_rng(0).integers(0, 256, 300, np.uint8)
    path.write_bytes(content.tobytes())
    found = np.zeros(length, np.uint8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(file_bytes, "PIECE_BYTES", piece)
        patch.setattr(torch, "get_num_threads", lambda: threads)
        read_into(path, offset, found)
    assert found.tolist() == content[offset : offset + length].tolist()


@pytest.mark.parametrize("threads", [1, 2])
def test_a_file_that_ends_before_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: int) -> None:
    monkeypatch.setattr(file_bytes, "PIECE_BYTES", 8)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    path = tmp_path / "x"
    path.write_bytes(bytes(30))
    with pytest.raises(StorageError, match=r"x: the file is truncated: 30 of at least 44 bytes; copy it again$"):
        read_into(path, 4, np.zeros(10, np.float32))
    with pytest.raises(StorageError, match="cannot read the file: "):
        read_into(tmp_path / "gone", 4, np.zeros(10, np.float32))


@pytest.mark.parametrize(("columns", "dtype"), [(5, "<f4"), (4, "<f4"), (5, "<f8"), (3, BFLOAT16)])
def test_rows_are_read_into_memory_that_is_there(tmp_path: Path, columns: int, dtype: str) -> None:
    """Every number of it is written: it holds others before."""
    table = np.arange(20 * columns).reshape(20, columns).astype(np.dtype(dtype))
    path = tmp_path / "x"
    path.write_bytes(bytes(7) + table.tobytes())
    rows = MappedRows(path, 7, 20, columns, dtype, dimension=5)
    into = torch.full((6, 5), torch.nan)
    rows.read_into(into, 3)
    assert torch.equal(into, rows.load()[3:9])
    assert (into[:, columns:] == 0).all()


def test_a_gpu_gets_a_partition_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = np.arange(100, dtype=np.float32).reshape(20, 5)
    table.tofile(tmp_path / "x")
    shapes = []
    monkeypatch.setattr(partitions, "PIECE_BYTES", 7 * 5 * 4)
    monkeypatch.setattr(partitions, "pinned", lambda shape: shapes.append(shape) or torch.empty(shape))
    monkeypatch.setattr(partitions, "_start_copy", lambda rows, device: rows.clone)
    monkeypatch.setattr(torch, "empty", lambda *shape, device=None, **named: torch.zeros(*shape, **named))

    found = partitions.load_on(MappedRows(tmp_path / "x", 0, 20, 5), torch.device("cuda", 0))

    assert found.numpy().tolist() == table.tolist()
    assert shapes == [(7, 5), (7, 5), (6, 5)]
