"""Values by step -> a run in MLflow's file store, a folder that `mlflow ui --backend-store-uri FOLDER` shows."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from attrs import define, field

from pbgeval.sinks.sink import RunFacts, library_faults

EXPERIMENT = "pbgeval"
MOST_VALUES = 1000  # of one call
LONGEST_SETTING = 500  # characters
# mlflow 3.17 refuses a file store unless asked for it, and tells its makers how it is used.
ENVIRONMENT = {"MLFLOW_ALLOW_FILE_STORE": "true", "MLFLOW_DISABLE_TELEMETRY": "true"}
_NOT_ALLOWED = re.compile(r"[^\w\-. :/]")  # in the name of a metric


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables that the library reads when it is imported and when a store is opened, and put them back."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@define(eq=False)
class MLflow:
    """A sink."""

    folder: Path
    _client: Any = field(default=None, init=False)
    _run_id: str = field(default="", init=False)

    def open(self, run: RunFacts) -> None:
        with _environment(ENVIRONMENT), self._faults():
            from mlflow.entities import Param
            from mlflow.tracking import MlflowClient

            self.folder.mkdir(parents=True, exist_ok=True)
            self._client = MlflowClient(tracking_uri=self.folder.absolute().as_uri())
            known = self._client.get_experiment_by_name(EXPERIMENT)
            experiment = self._client.create_experiment(EXPERIMENT) if known is None else known.experiment_id
            self._run_id = self._client.create_run(experiment, run_name=run.name).info.run_id
            settings = [
                Param(name, str(value)[:LONGEST_SETTING]) for name, value in run.settings.items() if value is not None
            ]
            self._client.log_batch(self._run_id, params=settings)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        with self._faults():
            now = int(time.time() * 1000)
            metrics = [Metric(_NOT_ALLOWED.sub("_", name), value, now, step) for name, value in values.items()]
            for start in range(0, len(metrics), MOST_VALUES):
                self._client.log_batch(self._run_id, metrics=metrics[start : start + MOST_VALUES])

    def close(self) -> None:
        if not self._run_id:
            return
        with self._faults():
            self._client.set_terminated(self._run_id)

    def _faults(self) -> AbstractContextManager[None]:
        from mlflow.exceptions import MlflowException

        return library_faults("a run of MLflow", self.folder, MlflowException)
