"""Commands for results that are given to others: `publish` and `verify`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pbgeval.command_line.options import Device, LocalFolder, Overrides, Quiet, Workers, local_path
from pbgeval.errors import OutputError
from pbgeval.storage.text import printable

Result = Annotated[Path, LocalFolder(metavar="RESULT", help="Output directory of a finished evaluation.")]


def publish(
    result: Result,
    dataset: Annotated[
        str, typer.Option("--dataset", metavar="OWNER/NAME", help="Benchmark dataset on the Hugging Face Hub.")
    ],
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="DIR", parser=local_path, help="Local clone of the model repository."),
    ],
    task: Annotated[
        str, typer.Option("--task", metavar="ID", help="Task name in the benchmark's eval.yaml.")
    ] = "default",
    metric: Annotated[str, typer.Option("--metric", metavar="NAME", help="Metric to show on the leaderboard.")] = "mrr",
    source: Annotated[
        str | None,
        typer.Option("--source", metavar="URL", help="Public URL of the full result [default: omitted]."),
    ] = None,
) -> None:
    """Write files for the Hugging Face Hub.

    Writes .eval_results/TASK.yaml and evaluation.md, a section for the model card. Uploads nothing.
    """
    from pbgeval.report.conditions import cautions_of, warnings_of
    from pbgeval.report.console import ConsoleObserver
    from pbgeval.report.page import publish as write
    from pbgeval.results.result import Result

    report = Result.read(result)
    for path in write(report, output, dataset, task=task, metric=metric, source=source):
        print(printable(str(path)))
    for caution in filter(None, [cautions_of(report.document), *warnings_of(report.document)]):
        ConsoleObserver().warn(f"{result}: {caution}")


def verify(
    result: Result,
    config: Annotated[
        Path, typer.Argument(metavar="CONFIG", help="Config of the run, with your own checkpoint and edge paths.")
    ],
    param: Overrides = None,
    share: Annotated[
        float,
        typer.Option("--share", metavar="X", help="Smallest share of wrongly ranked edges to detect."),
    ] = 0.001,
    error: Annotated[
        float, typer.Option("--error", metavar="X", help="Maximum probability of a wrong verdict.")
    ] = 0.001,
    seed: Annotated[
        int | None,
        typer.Option("--seed", min=0, metavar="N", help="Seed of the sample [default: unpredictable]."),
    ] = None,
    workers: Workers = None,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Check a result against its checkpoint and edges.

    Recomputes the metrics from the saved ranks, and ranks a random sample of edges again with the checkpoint, in
    exact precision where the comparator allows it. Exits with status 1 if the result is wrong.
    """
    from pbgeval.command_line.verification import verify as check
    from pbgeval.report.console import ConsoleObserver

    found = check(
        result,
        config,
        overrides=param or [],
        share=share,
        error=error,
        seed=seed,
        workers=workers,
        device=device,
        observer=ConsoleObserver(quiet=quiet),
    )
    if found.fault is not None:
        raise OutputError(f"{result}: verification failed: {found.fault}")
    if not quiet:
        print(printable(f"{result}: verified"))
        print(f"  figures recomputed from the saved ranks: {found.num_figures:,}")
        print(f"  edges ranked again (seed {found.seed}): {found.num_edges:,}, {found.num_different:,} of them differ")
        chance = f"{100 * (1 - error):g}%"
        print(f"  wrong ranks of {100 * share:g}% of the edges would be found with a probability of {chance}")
