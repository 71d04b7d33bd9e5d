"""pbgeval: exact, filtered link-prediction metrics for embeddings too large for one machine.

    from pbgeval import evaluate, evaluate_triples, edge_scorer
    report = evaluate("eval.py", overrides=["hits_at=1,10"], workers=2)
    report["mrr"], report.raw["mrr"], report.table("relations").to_pandas()

    def score(lhs, rel, rhs): ...  # ids that broadcast -> scores, higher is better
    model = edge_scorer(score, num_entities=9, num_relations=2)
    evaluate_triples(model, test, train=[train], known=[valid])

A name is imported when it is first used (PEP 562), so importing the package is fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pbgeval.version import __version__

if TYPE_CHECKING:
    from pbgeval.cluster.team import Team
    from pbgeval.config import EntitySchema, EvalConfig, RelationSchema, load_config
    from pbgeval.errors import EvalError
    from pbgeval.evaluation import evaluate, evaluate_files, evaluate_triples
    from pbgeval.metrics.given import from_ranks
    from pbgeval.models.functions import batch_scorer, edge_scorer, side_scorer
    from pbgeval.monitor.measure import ScoredModel
    from pbgeval.monitor.monitor import Monitor
    from pbgeval.monitor.records import TensorBoardSink, read_history
    from pbgeval.monitor.schema import ModelSchema, ModelTensors, MonitoredRelation
    from pbgeval.notation import Side
    from pbgeval.progress import Observer
    from pbgeval.report.comparing_many import compare_runs
    from pbgeval.report.comparison import Comparison, compare
    from pbgeval.report.many_runs import ManyRuns
    from pbgeval.report.report import Report
    from pbgeval.scoring.block_scorer import Scorer
    from pbgeval.stats.ranks import from_scores
    from pbgeval.storage.edges import Edges
    from pbgeval.suite import SuiteGraph

__all__ = [
    "Comparison",
    "Edges",
    "EntitySchema",
    "EvalConfig",
    "EvalError",
    "ManyRuns",
    "ModelSchema",
    "ModelTensors",
    "Monitor",
    "MonitoredRelation",
    "Observer",
    "RelationSchema",
    "Report",
    "ScoredModel",
    "Scorer",
    "Side",
    "SuiteGraph",
    "Team",
    "TensorBoardSink",
    "__version__",
    "batch_scorer",
    "compare",
    "compare_runs",
    "edge_scorer",
    "evaluate",
    "evaluate_files",
    "evaluate_triples",
    "from_ranks",
    "from_scores",
    "load_config",
    "read_history",
    "side_scorer",
]

_HOMES = {
    "Comparison": "pbgeval.report.comparison",
    "Edges": "pbgeval.storage.edges",
    "EntitySchema": "pbgeval.config",
    "EvalConfig": "pbgeval.config",
    "EvalError": "pbgeval.errors",
    "ManyRuns": "pbgeval.report.many_runs",
    "ModelSchema": "pbgeval.monitor.schema",
    "ModelTensors": "pbgeval.monitor.schema",
    "Monitor": "pbgeval.monitor.monitor",
    "MonitoredRelation": "pbgeval.monitor.schema",
    "Observer": "pbgeval.progress",
    "RelationSchema": "pbgeval.config",
    "Report": "pbgeval.report.report",
    "ScoredModel": "pbgeval.monitor.measure",
    "Scorer": "pbgeval.scoring.block_scorer",
    "Side": "pbgeval.notation",
    "SuiteGraph": "pbgeval.suite",
    "Team": "pbgeval.cluster.team",
    "TensorBoardSink": "pbgeval.monitor.records",
    "batch_scorer": "pbgeval.models.functions",
    "compare": "pbgeval.report.comparison",
    "compare_runs": "pbgeval.report.comparing_many",
    "edge_scorer": "pbgeval.models.functions",
    "evaluate": "pbgeval.evaluation",
    "evaluate_files": "pbgeval.evaluation",
    "evaluate_triples": "pbgeval.evaluation",
    "from_ranks": "pbgeval.metrics.given",
    "from_scores": "pbgeval.stats.ranks",
    "load_config": "pbgeval.config",
    "read_history": "pbgeval.monitor.records",
    "side_scorer": "pbgeval.models.functions",
}


def __getattr__(name: str) -> Any:  # noqa: ANN401 - any public name
    if name not in _HOMES:
        raise AttributeError(f"module 'pbgeval' has no attribute '{name}'")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """Return the public names, which are imported when they are first used."""
    return sorted(__all__)
