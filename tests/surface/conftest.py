"""What tests of the surface share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.case import TinyCase


@pytest.fixture
def case(tmp_path: Path) -> TinyCase:
    """A case of four buckets that a test may change."""
    return TinyCase.write(tmp_path / "case", partition_sizes=(9, 8), edges_per_bucket=11)
