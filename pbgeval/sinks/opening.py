"""The name of a sink -> the sink; its library must be there, which is looked at before anything is computed."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from pbgeval.errors import ConfigError
from pbgeval.sinks.mlflow import MLflow
from pbgeval.sinks.sink import Sink
from pbgeval.sinks.tensorboard import TensorBoard
from pbgeval.sinks.wandb import WeightsAndBiases


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
