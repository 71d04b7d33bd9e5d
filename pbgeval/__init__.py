"""pbgeval: a distributed, partitioned evaluator of knowledge-graph embeddings.

    from pbgeval import EvalConfig, evaluate
    report = evaluate(EvalConfig(...))
    report["mrr"]

    def score(lhs, rel, rhs): ...  # ids that broadcast -> scores, higher is better
    evaluate(EvalConfig(candidates="all"), model=edge_scorer(score, num_entities=9, num_relations=2), edges=edges)

Names are imported when first used (PEP 562), so that importing the package costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pbgeval.version import __version__

if TYPE_CHECKING:
    from pbgeval.config import EntitySchema, EvalConfig, RelationSchema, load_config
    from pbgeval.evaluation import RunOptions, evaluate
    from pbgeval.models.functions import batch_scorer, edge_scorer, side_scorer
    from pbgeval.monitor.monitor import Monitor
    from pbgeval.monitor.schema import ModelSchema, ModelTensors, MonitoredRelation
    from pbgeval.report.comparison import Comparison, compare
    from pbgeval.report.report import Report
    from pbgeval.scoring.block_scorer import Scorer
    from pbgeval.storage.edges import Edges

__all__ = [
    "Comparison",
    "Edges",
    "EntitySchema",
    "EvalConfig",
    "ModelSchema",
    "ModelTensors",
    "Monitor",
    "MonitoredRelation",
    "RelationSchema",
    "Report",
    "RunOptions",
    "Scorer",
    "__version__",
    "batch_scorer",
    "compare",
    "edge_scorer",
    "evaluate",
    "load_config",
    "side_scorer",
]

_HOMES = {
    "Comparison": "pbgeval.report.comparison",
    "Edges": "pbgeval.storage.edges",
    "EntitySchema": "pbgeval.config",
    "EvalConfig": "pbgeval.config",
    "ModelSchema": "pbgeval.monitor.schema",
    "ModelTensors": "pbgeval.monitor.schema",
    "Monitor": "pbgeval.monitor.monitor",
    "MonitoredRelation": "pbgeval.monitor.schema",
    "RelationSchema": "pbgeval.config",
    "Report": "pbgeval.report.report",
    "RunOptions": "pbgeval.evaluation",
    "Scorer": "pbgeval.scoring.block_scorer",
    "batch_scorer": "pbgeval.models.functions",
    "compare": "pbgeval.report.comparison",
    "edge_scorer": "pbgeval.models.functions",
    "evaluate": "pbgeval.evaluation",
    "load_config": "pbgeval.config",
    "side_scorer": "pbgeval.models.functions",
}


def __getattr__(name: str) -> Any:  # noqa: ANN401 - any public name
    if name not in _HOMES:
        raise AttributeError(f"module 'pbgeval' has no attribute '{name}'")
    return getattr(import_module(_HOMES[name]), name)
