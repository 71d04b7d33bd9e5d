"""What every place where figures go has in common: a run is opened, values are logged by step, it is closed."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from attrs import define, field, frozen

from pbgeval.errors import ConfigError, OutputError


@frozen
class RunFacts:
    """What a sink says of a run beside its figures."""

    name: str
    settings: Mapping[str, str | int | float | bool | None] = field(factory=dict)


class Sink(Protocol):
    """Where figures go. One process writes; each method raises OutputError if it cannot."""

    def open(self, run: RunFacts) -> None:
        """Begin a run; before that nothing is written."""
        ...

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Take the values of a step; steps do not decrease."""
        ...

    def close(self) -> None:
        """Wait until everything is on the disk; nothing follows.

        Also where opening or logging failed: what the library runs beside us (threads, processes) ends here.
        """
        ...


@contextmanager
def closed_on_failure(sink: Sink) -> Iterator[None]:
    """Close a sink that cannot be written, so that nothing of it runs on; the first fault is the one that is told."""
    try:
        yield
    except OutputError:
        with suppress(OutputError):
            sink.close()
        raise


@contextmanager
def library_faults(what: str, folder: Path, *of_library: type[Exception]) -> Iterator[None]:
    """Turn what a library says is wrong into a fault of one line; anything else is a bug.

    Args:
        what: is written.
        folder: where it is.
        of_library: the library's own exceptions, which need not be those of Python.
    """
    expected: tuple[type[Exception], ...] = (OSError, RuntimeError, ValueError, *of_library)
    try:
        yield
    except expected as error:
        text = getattr(error, "strerror", None) or f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise OutputError(f"{folder}: expected to write {what}, got: {text}") from error


# Values of a step -> a line of JSON, which every result has beside what its sinks write.


def line_of(run: RunFacts, step: int, values: Mapping[str, float]) -> str:
    """Return the line of a step: `run`, `settings`, `step`, `values`."""
    record = {"run": run.name, "settings": dict(run.settings), "step": step, "values": dict(values)}
    return json.dumps(record, sort_keys=True, allow_nan=False)


# Values by step -> a run in MLflow's file store, a folder that `mlflow ui --backend-store-uri FOLDER` shows.

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


# Values by step -> a folder of TensorBoard's event files, of which each process writes its own.


@define(eq=False)
class TensorBoard:
    """A sink; settings of the run are a text."""

    folder: Path
    _writer: Any = field(default=None, init=False)

    def open(self, run: RunFacts) -> None:
        from torch.utils.tensorboard import SummaryWriter

        with library_faults("an event file of TensorBoard", self.folder):
            # Its thread writes later, wherever the process is then.
            self._writer = SummaryWriter(str(self.folder.absolute()))
            if run.settings:
                rows = "".join(f"| {name} | {value} |\n" for name, value in run.settings.items())
                self._writer.add_text("run", f"| {run.name} | |\n|---|---|\n{rows}", 0)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        with library_faults("an event file of TensorBoard", self.folder):
            for name, value in values.items():
                self._writer.add_scalar(name, value, step)
            self._writer.flush()

    def close(self) -> None:
        if self._writer is None:
            return
        with library_faults("an event file of TensorBoard", self.folder):
            self._writer.close()


# Values by step -> a run of Weights & Biases, offline: files in a folder, which `wandb sync` may send later.

PROJECT = "pbgeval"


@define(eq=False)
class WeightsAndBiases:
    """A sink; nothing leaves the machine, whatever the environment says."""

    folder: Path
    _run: Any = field(default=None, init=False)

    def open(self, run: RunFacts) -> None:
        import wandb

        with self._faults():
            self.folder.mkdir(parents=True, exist_ok=True)
            settings = wandb.Settings(
                console="off",  # our own output is not its business
                disable_code=True,
                disable_git=True,
                silent=True,
                x_disable_stats=True,
                x_disable_machine_info=True,
            )
            self._run = wandb.init(
                project=PROJECT,
                name=run.name,
                config=dict(run.settings),
                dir=str(self.folder),
                mode="offline",
                reinit="create_new",
                settings=settings,
            )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        with self._faults():
            self._run.log(dict(values), step=step)

    def close(self) -> None:
        if self._run is None:
            return
        with self._faults():
            self._run.finish()

    def _faults(self) -> AbstractContextManager[None]:
        from wandb.errors import Error

        return library_faults("a run of Weights & Biases", self.folder, Error)


# The name of a sink -> the sink; its library must be there, which is looked at before anything is computed.


class _Kind(NamedTuple):
    make: Callable[[Path], Sink]
    package: str
    extra: str


_KINDS = {
    "tensorboard": _Kind(TensorBoard, "tensorboard", "monitor"),
    "wandb": _Kind(WeightsAndBiases, "wandb", "wandb"),
    "mlflow": _Kind(MLflow, "mlflow", "mlflow"),
}
SINKS = tuple(_KINDS)


def missing_library(name: str) -> str | None:
    """Return what is wrong if a sink's package is not installed, None if it is."""
    kind = _KINDS[name]
    if find_spec(kind.package) is not None:
        return None
    return f"expected the package {kind.package} for the sink {name}, found none; pip install 'pbgeval[{kind.extra}]'"


def make_sink(name: str, folder: Path) -> Sink:
    """Return a sink that writes into a folder once it is opened.

    Raises:
        ConfigError: no such sink, or its package is not there.
    """
    if name not in _KINDS:
        raise ConfigError(f"{folder}: expected a sink of {', '.join(SINKS)}, got {name!r}")
    fault = missing_library(name)
    if fault is not None:
        raise ConfigError(f"{folder}: {fault}")
    return _KINDS[name].make(folder)
