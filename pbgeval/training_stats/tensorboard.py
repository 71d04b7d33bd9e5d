"""Records of a training run -> a sink of values by step: TensorBoard, Weights & Biases, MLflow.

    Monitor(schema, "run/monitor", sinks=[TensorBoardSink("run/events"), ScalarSink("wandb", "run/offline")])

`scalars.py` says which values a record has.
"""

from __future__ import annotations

import atexit
from pathlib import Path

from attrs import define, field

from pbgeval.sinks.opening import make_sink
from pbgeval.sinks.sink import RunFacts, Sink, closed_on_failure
from pbgeval.training_stats.records import PassRecord, VisitRecord
from pbgeval.training_stats.scalars import scalars_of


@define(eq=False)
class ScalarSink:
    """A sink of a monitor, of worker 0 where there are several; files are made with the first record.

    Raises:
        ConfigError: no such sink, or its package is not there.
    """

    name: str  # tensorboard, wandb, mlflow
    folder: Path = field(converter=Path)
    run: str = "training"  # what the sink calls the run
    _sink: Sink = field(init=False)
    _is_open: bool = field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self._sink = make_sink(self.name, self.folder)

    def append(self, record: VisitRecord | PassRecord) -> None:
        """Write a record's values.

        Raises:
            OutputError: they cannot be written (permissions, a full disk).
        """
        if not self._is_open:
            with closed_on_failure(self._sink):
                self._sink.open(RunFacts(self.run))
            self._is_open = True
            atexit.register(self.close)  # trainers do not say when they end
        self._sink.log(record.index, scalars_of(record))

    def close(self) -> None:
        """End the run; nothing follows.

        Raises:
            OutputError: what is left cannot be written.
        """
        if self._is_open:
            atexit.unregister(self.close)
            self._is_open = False
            self._sink.close()


def TensorBoardSink(folder: Path | str) -> ScalarSink:
    """Return a sink of TensorBoard's event files, of which each process may write its own.

    Raises:
        ConfigError: the package tensorboard is not there.
    """
    return ScalarSink("tensorboard", Path(folder))
