"""Records of a training run -> named values, each at a step.

    visit/<metric>/<before, after>              of each visit, at its running number; PBG's names of metrics
    bucket_<l>_<r>/mrr/<before, after>          the same for the visits to one bucket
    pass/<metric>/<before, after, training>     of each pass, at the number of its last visit; names of metrics.json
    pass/<metric>/<gap, generalisation>         the same, and `_error`: its standard error
    pass/<diverged, lost>                       visits that diverged; what buckets have lost since their last visit

Of a pass the figures of both sides together; of edge paths and chunks but the first with `path_<p>/chunk_<c>/` before.
"""

from __future__ import annotations

import atexit
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from attrs import define, field

from pbgeval.monitor.records import PassKey, PassRecord, VisitRecord
from pbgeval.sinks import Log, LoggedRun, check_sink, open_sink

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
    for when, figures in (("before", record.before), ("after", record.after)):
        if figures is None:
            continue
        for metric, value in figures.metrics.items():
            yield f"visit/{metric}/{when}", value
        yield f"bucket_{record.bucket.lhs}_{record.bucket.rhs}/{_OF_BUCKETS}/{when}", figures.metrics.get(_OF_BUCKETS)


def _of_pass(record: PassRecord) -> Scalars:
    details = record.details
    if details is None:
        return
    whens = (("before", details.before), ("after", details.after), ("training", details.training))
    for when, values in whens:
        for metric, value in (values or {}).items():
            if metric.startswith(_BOTH):
                yield f"pass/{metric.removeprefix(_BOTH)}/{when}", value
    for name, of_metrics in (("gap", details.gap), ("generalisation", details.generalisation)):
        for metric, difference in of_metrics.items():
            yield f"pass/{metric.removeprefix(_BOTH)}/{name}", difference.value
            yield f"pass/{metric.removeprefix(_BOTH)}/{name}_error", difference.standard_error
    yield "pass/diverged", details.num_diverged
    yield "pass/lost", details.lost


# Records of a training run -> a sink of values by step: TensorBoard, Weights & Biases, MLflow.


@define(eq=False)
class ScalarSink:
    """A sink of a monitor, of worker 0 where there are several; files are made with the first record.

    Raises:
        ConfigError: no such sink, or its package is not there.
    """

    name: str  # tensorboard, wandb, mlflow
    folder: Path = field(converter=Path)
    run: str = "training"  # what the sink calls the run
    _run: ExitStack = field(factory=ExitStack, init=False)
    _log: Log | None = field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        check_sink(self.name, self.folder)

    def append(self, record: VisitRecord | PassRecord) -> None:
        """Write a record's values.

        Raises:
            OutputError: they cannot be written (permissions, a full disk).
        """
        if self._log is None:
            self._log = self._run.enter_context(open_sink(self.name, self.folder, LoggedRun(self.run)))
            atexit.register(self.close)  # trainers do not say when they end
        self._log(record.index, scalars_of(record))

    def close(self) -> None:
        """End the run; nothing follows.

        Raises:
            OutputError: what is left cannot be written.
        """
        if self._log is not None:
            atexit.unregister(self.close)
            self._log = None
            self._run.close()


def TensorBoardSink(folder: Path | str) -> ScalarSink:
    """Return a sink of TensorBoard's event files, of which each process may write its own.

    Raises:
        ConfigError: the package tensorboard is not there.
    """
    return ScalarSink("tensorboard", Path(folder))
