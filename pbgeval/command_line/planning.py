"""The command `plan`."""

from __future__ import annotations

import os
import sys
import time
from contextlib import nullcontext

from attrs import evolve

from pbgeval.command_line.options import ConfigFile, Device, OutputFolder, Overrides, Workers
from pbgeval.storage.text import printable


def plan(
    config: ConfigFile,
    param: Overrides = None,
    output: OutputFolder = None,
    workers: Workers = None,
    device: Device = "auto",
) -> None:
    """Tell what a run would take: memory, bytes to read, and time.

    Reads headers and measures for half a second, with as many workers as the run has. Edges by name are converted for
    it. Nothing is kept.
    """
    begun, is_ours = time.perf_counter(), "torch" not in sys.modules  # a process from its first line
    from pbgeval.cluster.environment import check_workers, variables_of_torch
    from pbgeval.cluster.launch import worker_server

    check_workers("--workers", workers)
    several = (workers or os.cpu_count() or 1) > 1
    os.environ.update(variables_of_torch(os.environ, local_workers=several))
    from pbgeval.config import load_config
    from pbgeval.config.precision import precision_of
    from pbgeval.evaluation import plan_evaluation
    from pbgeval.report.console import ConsoleObserver

    starting = time.perf_counter() - begun  # the imports of a run
    with worker_server() if several and is_ours else nullcontext() as server:
        loaded = load_config(config, param or [])
        devices, found = plan_evaluation(loaded, workers, device, ConsoleObserver(), output, server)
    found = evolve(found, starting_seconds=starting)
    rows = [*found.facts, ("precision", precision_of(loaded)), ("device", devices)]
    width = max(len(what) for what, _ in rows)
    print("\n".join(f"{what:{width}}  {printable(value)}" for what, value in rows))
