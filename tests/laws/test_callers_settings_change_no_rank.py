"""Whoever evaluates in a process that trains gets the numbers of a process that does not (decision 0004)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
import torch

from pbgeval.ranking import auc_sampling, blocks
from tests.examples import crossed
from tests.kit.case import TinyCase
from tests.kit.commands import evaluated


@contextmanager
def medium_precision() -> Iterator[None]:
    """As Lightning advises for tensor cores; it changes float32 products where the processor multiplies bfloat16."""
    torch.set_float32_matmul_precision("medium")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision("highest")


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """As training scripts make their tensors smaller, or exact."""
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


SETTINGS: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "medium": medium_precision,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "bfloat16 by default": lambda: default_dtype(torch.bfloat16),
    "float64 by default": lambda: default_dtype(torch.float64),
    "on a GPU by default": lambda: torch.device("meta"),  # where nothing can be computed
}


@pytest.mark.one_case
@pytest.mark.parametrize(
    ("candidates", "precision", "setting"),
    crossed(["all", "partition", "sampled"], ["float32", "certified"], list(SETTINGS), quick=2),
)
def test_products_are_not_those_of_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, candidates: str, precision: str, setting: str
) -> None:
    monkeypatch.setattr(auc_sampling, "EXACT_CELLS", 0)  # certified values are of float64
    monkeypatch.setattr(blocks, "is_installed", lambda: False)  # compiled loops know of no setting
    case = TinyCase.write(tmp_path / "case", partition_sizes=(300, 300), edges_per_bucket=60, dimension=32)
    asked = (f"candidates={candidates}", f"precision={precision}", "num_uniform_negs=100")
    expected = evaluated(case, *asked, output="expected")

    with SETTINGS[setting]():
        found = evaluated(case, *asked, output="found")

    assert found["metrics"] == expected["metrics"]
