"""pbgeval: a distributed, partitioned evaluator of knowledge-graph embeddings.

    from pbgeval import EvalConfig, evaluate
    report = evaluate(EvalConfig(...))
    report["mrr"]

Names are imported when first used (PEP 562), so that importing the package costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pbgeval.version import __version__

if TYPE_CHECKING:
    from pbgeval.config import EntitySchema, EvalConfig, RelationSchema, load_config
    from pbgeval.driver import RunOptions, evaluate
    from pbgeval.report.report import Report

__all__ = [
    "EntitySchema",
    "EvalConfig",
    "RelationSchema",
    "Report",
    "RunOptions",
    "__version__",
    "evaluate",
    "load_config",
]

_HOMES = {
    "EntitySchema": "pbgeval.config",
    "EvalConfig": "pbgeval.config",
    "RelationSchema": "pbgeval.config",
    "Report": "pbgeval.report.report",
    "RunOptions": "pbgeval.driver",
    "evaluate": "pbgeval.driver",
    "load_config": "pbgeval.config",
}


def __getattr__(name: str) -> Any:  # noqa: ANN401 - any public name
    if name not in _HOMES:
        raise AttributeError(f"module 'pbgeval' has no attribute '{name}'")
    return getattr(import_module(_HOMES[name]), name)
