"""Groups of processes within seconds: forked from a server that has imported everything once.

The environment is the one that torchrun sets, so the workers take the path of a group that a launcher started.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import runpy
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path

from pbgeval.config import load_config
from pbgeval.evaluation import evaluate
from tests.kit.case import TinyCase
from tests.patience import PATIENCE

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tests.kit.groups", "pbgeval.worker.run", "pbgeval.results.recompute", "numba"])


def run_group(case: TinyCase, overrides: Sequence[str], output: Path, *, workers: int, threads: int) -> None:
    """Evaluate a case with some workers and threads for each; a group of one is a process alone.

    Raises:
        AssertionError: a worker did not come to a good end.
    """
    join(start_group(case, overrides, output, workers=workers, threads=threads))


def start_group(
    case: TinyCase, overrides: Sequence[str], output: Path, *, workers: int, threads: int
) -> list[BaseProcess]:
    """Start the workers of a group; return their processes, in order of rank."""
    return start_workers(workers, threads, _evaluate, case.config, list(overrides), output, workers)


def _evaluate(config: Path, overrides: list[str], output: Path, workers: int) -> None:
    os.chdir(config.parent)
    evaluate(load_config(config, overrides), output=output, workers=workers)


def start_workers(workers: int, threads: int, work: Callable[..., object], *arguments: object) -> list[BaseProcess]:
    """Let each process of a new group call a function."""
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}  # the server has that of the first test
    if workers > 1:
        environment |= {"WORLD_SIZE": str(workers), "LOCAL_WORLD_SIZE": str(workers)}
        environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    ranks = [{"RANK": str(rank), "LOCAL_RANK": str(rank)} if workers > 1 else {} for rank in range(workers)]
    processes = [_CONTEXT.Process(target=_work, args=(environment | rank, work, *arguments)) for rank in ranks]
    for process in processes:
        process.start()
    return processes


def _work(environment: dict[str, str], work: Callable[..., object], *arguments: object) -> None:
    os.environ |= environment
    work(*arguments)


def run_script(script: Path, *words: object, cwd: Path) -> str:
    """Run a Python script to its good end, in a process that has imported everything; return what it prints."""
    with tempfile.TemporaryDirectory() as folder:
        printed = Path(folder, "printed")
        join(start_workers(1, 1, _be_script, str(script), [*map(str, words)], cwd, printed))
        return printed.read_text(encoding="utf-8")


def _be_script(script: str, words: list[str], cwd: Path, printed: Path) -> None:
    os.chdir(cwd)
    sys.argv = [script, *words]
    sys.path.insert(0, os.path.dirname(script))
    with printed.open("w", encoding="utf-8") as file, contextlib.redirect_stdout(file):
        os.dup2(file.fileno(), 1)  # of processes that it starts, too
        runpy.run_path(script, run_name="__main__")


def join(processes: Sequence[BaseProcess]) -> None:
    """Wait until all have come to a good end."""
    for process in processes:
        process.join(PATIENCE)
        if process.is_alive():
            process.kill()
    assert [0] * len(processes) == [process.exitcode for process in processes]


def start_as_mpirun(command: Sequence[str | Path], size: int, cwd: Path) -> list[subprocess.Popen[str]]:
    """Start a command as often as Open MPI's mpirun would on one host."""
    group = {"OMPI_COMM_WORLD_SIZE": str(size), "OMPI_COMM_WORLD_LOCAL_SIZE": str(size), "OMP_NUM_THREADS": "1"}
    group |= {"MASTER_PORT": str(free_port())}
    ranks = [
        {name: str(rank) for name in ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK")} for rank in range(size)
    ]
    return [
        subprocess.Popen(
            command, cwd=cwd, env=os.environ | group | rank, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for rank in ranks
    ]


def free_port() -> int:
    """Return a free port of this machine."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def has_ended(process: int) -> bool:
    """Whether a process is gone, or only its status is left."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
