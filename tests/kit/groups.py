"""Groups of processes within seconds: forked from a server that has imported everything once.

The environment is the one that torchrun sets, so the workers take the path of a group that somebody else started.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
from collections.abc import Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path

from pbgeval.config import load_config
from pbgeval.evaluation import evaluate
from tests.kit.case import TinyCase
from tests.patience import PATIENCE

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tests.kit.groups", "pbgeval.worker", "pbgeval.report.recompute", "numba"])


def run_group(case: TinyCase, overrides: Sequence[str], output: Path, *, workers: int, threads: int) -> None:
    """Evaluate a case with some workers and threads for each; a group of one is a process alone.

    Raises:
        AssertionError: a worker did not come to a good end.
    """
    processes = start_group(case, overrides, output, workers=workers, threads=threads)
    for process in processes:
        process.join(PATIENCE)
        if process.is_alive():
            process.kill()
    assert [0] * workers == [process.exitcode for process in processes]


def start_group(
    case: TinyCase, overrides: Sequence[str], output: Path, *, workers: int, threads: int
) -> list[BaseProcess]:
    """Start the workers of a group; return their processes, in order of rank."""
    port = _free_port()
    processes = [
        _CONTEXT.Process(
            target=_work,
            args=(case.config, list(overrides), output, rank, workers, threads, port, dict(os.environ)),
        )
        for rank in range(workers)
    ]
    for process in processes:
        process.start()
    return processes


def _work(
    config: Path,
    overrides: list[str],
    output: Path,
    rank: int,
    workers: int,
    threads: int,
    port: int,
    environment: dict[str, str],
) -> None:
    os.environ |= environment  # the server has that of the first test
    os.environ["OMP_NUM_THREADS"] = str(threads)
    if workers > 1:
        os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(workers), "LOCAL_RANK": str(rank)}
        os.environ |= {"LOCAL_WORLD_SIZE": str(workers), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.chdir(config.parent)
    evaluate(load_config(config, overrides), output=output, workers=workers)


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
