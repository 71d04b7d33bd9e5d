"""Figures that are compared with a tolerance, where some are not defined."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import pytest


def close_to(expected: Mapping[Hashable, float | None], **tolerance: float) -> dict[Hashable, Any]:
    """Return figures that are equal to those near them; None is equal to None alone."""
    return {name: None if value is None else pytest.approx(value, **tolerance) for name, value in expected.items()}
