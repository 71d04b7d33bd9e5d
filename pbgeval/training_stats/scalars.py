"""Records of a training run -> named values, each at a step.

    visit/<metric>/<before, after>              of each visit, at its running number; PBG's names of metrics
    bucket_<l>_<r>/mrr/<before, after>          likewise, of the visits to one bucket
    pass/<metric>/<before, after, training>     of each pass, at the number of its last visit; names of metrics.json
    pass/<metric>/<gap, generalisation>         likewise, and `_error`: its standard error
    pass/<diverged, lost>                       visits that diverged; what buckets have lost since their last visit

Of a pass the figures of both sides together; of edge paths and chunks but the first with `path_<p>/chunk_<c>/` before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pbgeval.training_stats.records import Difference, Figures, PassKey, PassRecord, Values, VisitRecord

Scalars = Iterator[tuple[str, float | int | None]]
_OF_BUCKETS = "mrr"
_BOTH = "both."


def scalars_of(record: VisitRecord | PassRecord) -> dict[str, float]:
    """Return the values of a record by their names; what is undefined has none."""
    found = _of_visit(record) if isinstance(record, VisitRecord) else _of_pass(record)
    return {_prefix(record.key) + name: value for name, value in found if value is not None}


def _prefix(key: PassKey) -> str:
    if (key.edge_path, key.edge_chunk) == (0, 0):
        return ""
    return f"path_{key.edge_path}/chunk_{key.edge_chunk}/"


def _of_visit(record: VisitRecord) -> Scalars:
    whens: list[tuple[str, Figures | None]] = [("before", record.before), ("after", record.after)]
    for when, figures in whens:
        if figures is None:
            continue
        for metric, value in figures.metrics.items():
            yield f"visit/{metric}/{when}", value
        yield f"bucket_{record.bucket.lhs}_{record.bucket.rhs}/{_OF_BUCKETS}/{when}", figures.metrics.get(_OF_BUCKETS)


def _of_pass(record: PassRecord) -> Scalars:
    details = record.details
    if details is None:
        return
    whens: list[tuple[str, Values | None]] = [
        ("before", details.before),
        ("after", details.after),
        ("training", details.training),
    ]
    for when, values in whens:
        for metric, value in (values or {}).items():
            if metric.startswith(_BOTH):
                yield f"pass/{metric.removeprefix(_BOTH)}/{when}", value
    differences: list[tuple[str, Mapping[str, Difference]]] = [
        ("gap", details.gap),
        ("generalisation", details.generalisation),
    ]
    for name, of_metrics in differences:
        for metric, difference in of_metrics.items():
            yield f"pass/{metric.removeprefix(_BOTH)}/{name}", difference.value
            yield f"pass/{metric.removeprefix(_BOTH)}/{name}_error", difference.standard_error
    yield "pass/diverged", details.num_diverged
    yield "pass/lost", details.lost
