"""Named values by step -> a line of JSON, or a run of TensorBoard, Weights & Biases or MLflow in a folder."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from attrs import field, frozen

from pbgeval.errors import ConfigError, OutputError, install

Log = Callable[[int, Mapping[str, float]], None]  # takes the values of a step; steps do not decrease


@frozen
class LoggedRun:
    """What a sink says of a run beside its figures."""

    name: str
    settings: Mapping[str, str | int | float | bool | None] = field(factory=dict)


def line_of(run: LoggedRun, step: int, values: Mapping[str, float]) -> str:
    """Return the line of a step, which every result has beside what its sinks write."""
    return json.dumps(
        {"run": run.name, "settings": dict(run.settings), "step": step, "values": dict(values)},
        sort_keys=True,
        allow_nan=False,
    )


# A sink opens a run in a folder and returns what logs values; what it leaves to be closed goes onto the stack.


def _tensorboard(folder: Path, run: LoggedRun, stack: ExitStack) -> Log:
    from torch.utils.tensorboard import SummaryWriter

    # Each process writes a file of its own. A thread writes later, wherever the process is then.
    writer = SummaryWriter(str(folder.absolute()))
    stack.callback(writer.close)
    if run.settings:
        rows = "".join(f"| {name} | {value} |\n" for name, value in run.settings.items())
        writer.add_text("run", f"| {run.name} | |\n|---|---|\n{rows}", 0)

    def log(step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            writer.add_scalar(name, value, step)
        writer.flush()

    return log


def _wandb(folder: Path, run: LoggedRun, stack: ExitStack) -> Log:
    """Write offline: files which `wandb sync` may send later; nothing leaves the machine, whatever the environment."""
    import wandb

    folder.mkdir(parents=True, exist_ok=True)
    made = wandb.init(
        project=PROJECT,
        name=run.name,
        config=dict(run.settings),
        dir=str(folder),
        mode="offline",
        reinit="create_new",
        settings=wandb.Settings(
            console="off",  # our own output is not its business
            disable_code=True,
            disable_git=True,
            silent=True,
            x_disable_stats=True,
            x_disable_machine_info=True,
        ),
    )
    stack.callback(made.finish)
    return lambda step, values: made.log(dict(values), step=step)


MAX_VALUES = 1000  # of one call of MLflow
MAX_SETTING = 500  # characters
# mlflow 3.17 refuses a file store unless asked for it, and tells its makers how it is used.
ENVIRONMENT = {"MLFLOW_ALLOW_FILE_STORE": "true", "MLFLOW_DISABLE_TELEMETRY": "true"}
_NOT_ALLOWED = re.compile(r"[^\w\-. :/]")  # in the name of a metric


def _mlflow(folder: Path, run: LoggedRun, stack: ExitStack) -> Log:
    """Write a file store, which `mlflow ui --backend-store-uri FOLDER` shows."""
    with _environment(ENVIRONMENT):
        from mlflow.entities import Metric, Param
        from mlflow.tracking import MlflowClient

        folder.mkdir(parents=True, exist_ok=True)
        client = MlflowClient(tracking_uri=folder.absolute().as_uri())
        known = client.get_experiment_by_name(PROJECT)
        run_id = client.create_run(
            client.create_experiment(PROJECT) if known is None else known.experiment_id, run_name=run.name
        ).info.run_id
        stack.callback(client.set_terminated, run_id)
        client.log_batch(
            run_id,
            params=[Param(name, str(value)[:MAX_SETTING]) for name, value in run.settings.items() if value is not None],
        )

    def log(step: int, values: Mapping[str, float]) -> None:
        now = int(time.time() * 1000)
        metrics = [Metric(_NOT_ALLOWED.sub("_", name), value, now, step) for name, value in values.items()]
        for start in range(0, len(metrics), MAX_VALUES):
            client.log_batch(run_id, metrics=metrics[start : start + MAX_VALUES])

    return log


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables that a library reads when it is imported and when a store is opened, and put them back."""
    before = {name: os.environ[name] for name in variables if name in os.environ}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            del os.environ[name]
        os.environ.update(before)


class _Kind(NamedTuple):
    """A sink, which has the name of its package."""

    open: Callable[[Path, LoggedRun, ExitStack], Log]
    package: str
    writes: str


PROJECT = "pbgeval"
_KINDS = {
    "tensorboard": _Kind(_tensorboard, "tensorboard", "an event file of TensorBoard"),
    "wandb": _Kind(_wandb, "wandb", "a run of Weights & Biases"),
    "mlflow": _Kind(_mlflow, "mlflow-skinny", "a run of MLflow"),
}
SINKS = tuple(_KINDS)


def missing_library(name: str) -> str | None:
    """Return what is wrong if a sink's package is not installed, None if it is."""
    if find_spec(name) is not None:
        return None
    return f"{name} is required for the sink {name}: {install(_KINDS[name].package)}"


def check_sink(name: str, folder: Path) -> None:
    """Look at a sink before anything is computed.

    Raises:
        ConfigError: there is no such sink, or its package is not there.
    """
    fault = missing_library(name) if name in _KINDS else f"expected a sink of {', '.join(SINKS)}, got {name!r}"
    if fault is not None:
        raise ConfigError(f"{folder}: {fault}")


@contextmanager
def open_sink(name: str, folder: Path, run: LoggedRun) -> Iterator[Log]:
    """Open a run in a folder; yield what takes the values of a step.

    At the end everything is on the disk, and nothing of the library (threads, processes) runs on, even after a fault.

    Raises:
        OutputError: the run cannot be written; says what came first.
    """
    kind, stack = _KINDS[name], ExitStack()

    def log(step: int, values: Mapping[str, float]) -> None:
        with library_faults(name, kind.writes, folder):
            write(step, values)

    with library_faults(name, kind.writes, folder):
        try:
            write = kind.open(folder, run, stack)
            yield log
        except BaseException:
            with suppress(Exception):
                stack.close()
            raise
        stack.close()


@contextmanager
def library_faults(package: str, what: str, folder: Path) -> Iterator[None]:
    """Turn what a library says is wrong with what is written into a fault of one line; anything else is a bug."""
    try:
        yield
    except Exception as error:
        is_of_library = type(error).__module__.partition(".")[0] == package
        if not is_of_library and not isinstance(error, OSError | RuntimeError | ValueError):
            raise
        text = getattr(error, "strerror", None) or f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise OutputError(f"{folder}: cannot write {what}: {text}") from error
