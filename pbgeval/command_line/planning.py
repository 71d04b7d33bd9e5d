"""The command `plan`."""

from __future__ import annotations

import os

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

    Reads headers and measures for half a second. Edges by name are converted for it. Nothing is kept.
    """
    from pbgeval.cluster.environment import check_workers, variables_of_torch
    from pbgeval.config import load_config
    from pbgeval.config.precision import precision_of
    from pbgeval.report.console import ConsoleObserver

    check_workers("--workers", workers)
    several = (workers or os.cpu_count() or 1) > 1
    os.environ.update(variables_of_torch(os.environ, local_workers=several))
    from pbgeval.evaluation import plan_evaluation

    loaded = load_config(config, param or [])
    devices, found = plan_evaluation(loaded, workers, device, ConsoleObserver(), output)
    rows = [*found.facts, ("precision", precision_of(loaded)), ("device", devices)]
    width = max(len(what) for what, _ in rows)
    print("\n".join(f"{what:{width}}  {printable(value)}" for what, value in rows))
