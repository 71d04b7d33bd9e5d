"""Notes what a worker reads and how long its steps take, in whatever process imports this.

It writes into the folder $NOTES; a line `name value` for each range of rows read (`read_bytes`) and for each step of
the sweep (`join_all`, `_gather`, `_prepare`, `_rank`: seconds, waiting for other workers included). Workers never run
the main program; they import the module of the observer that they are handed.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor

import pbgeval.worker.sweep as sweep
from pbgeval import Observer
from pbgeval.storage.checkpoint import EmbeddingFile

STEPS = ("join_all", "_gather", "_prepare", "_rank")


class Noting(Observer):
    """Is handed to the workers, which import this module for it."""


def note(name: str, value: float) -> None:
    """Write a line."""
    with (Path(os.environ["NOTES"]) / f"{os.getpid()}.txt").open("a", encoding="ascii") as file:
        file.write(f"{name} {value}\n")


def _timed(name: str, step: Callable[..., Any]) -> Callable[..., Any]:
    def run(*arguments: Any) -> Any:  # noqa: ANN401 - whatever the step takes and returns
        begun = time.perf_counter()
        result = step(*arguments)
        note(name, time.perf_counter() - begun)
        return result

    return run


def _counted(read_rows: Callable[[EmbeddingFile, int, int], Tensor]) -> Callable[[EmbeddingFile, int, int], Tensor]:
    def read(file: EmbeddingFile, start: int, stop: int) -> Tensor:
        rows = read_rows(file, start, stop)
        note("read_bytes", rows.numel() * rows.element_size())
        return rows

    return read


for _name in STEPS:
    setattr(sweep, _name, _timed(_name, getattr(sweep, _name)))
EmbeddingFile.read_rows = _counted(EmbeddingFile.read_rows)
