"""Statistics or ranks -> named numbers. `from_ranks` is imported when first used (PEP 562), as in `pbgeval`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pbgeval.metrics.given import from_ranks

__all__ = ["from_ranks"]

_HOMES = {"from_ranks": "pbgeval.metrics.given"}


def __getattr__(name: str) -> Any:  # noqa: ANN401 - any public name
    if name not in _HOMES:
        raise AttributeError(f"module 'pbgeval.metrics' has no attribute '{name}'")
    return getattr(import_module(_HOMES[name]), name)
