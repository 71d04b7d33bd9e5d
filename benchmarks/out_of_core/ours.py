"""Runs one evaluation and notes what its workers read and how long their steps take.

`python ours.py CONFIG OUTPUT WORKERS` writes into the folder $NOTES; a line `name value` for each range of rows read
(`read_bytes`) and for each step of the sweep (`join_all`, `_gather`, `_prepare`, `_rank`: seconds, waiting for other
workers included). Workers import this file, so they note too.
"""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor

import pbgeval.worker.sweep as sweep
from pbgeval import evaluate, load_config
from pbgeval.storage.checkpoint import EmbeddingFile

STEPS = ("join_all", "_gather", "_prepare", "_rank")


def main() -> None:
    """Evaluate."""
    config = load_config(Path(sys.argv[1]))
    begun = time.perf_counter()
    evaluate(config, output=Path(sys.argv[2]), workers=int(sys.argv[3]), device="cpu")
    _note("evaluate", time.perf_counter() - begun)


def _note(name: str, value: float) -> None:
    with (Path(os.environ["NOTES"]) / f"{os.getpid()}.txt").open("a", encoding="ascii") as file:
        file.write(f"{name} {value}\n")


def _timed(name: str, step: Callable[..., Any]) -> Callable[..., Any]:
    def run(*arguments: Any) -> Any:  # noqa: ANN401 - whatever the step takes and returns
        begun = time.perf_counter()
        result = step(*arguments)
        _note(name, time.perf_counter() - begun)
        return result

    return run


def _counted(read_rows: Callable[[EmbeddingFile, int, int], Tensor]) -> Callable[[EmbeddingFile, int, int], Tensor]:
    def read(file: EmbeddingFile, start: int, stop: int) -> Tensor:
        rows = read_rows(file, start, stop)
        _note("read_bytes", rows.numel() * rows.element_size())
        return rows

    return read


for _name in STEPS:
    setattr(sweep, _name, _timed(_name, getattr(sweep, _name)))
EmbeddingFile.read_rows = _counted(EmbeddingFile.read_rows)

if __name__ == "__main__":
    main()
