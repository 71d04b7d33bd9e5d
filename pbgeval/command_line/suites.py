"""The command `suite`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pbgeval.command_line.options import Device, Overwrite, Quiet, Workers, local_path
from pbgeval.command_line.printing import show
from pbgeval.storage.text import printable


def suite(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="YAML file of graphs and models.", parser=local_path)],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="DIR",
            parser=local_path,
            help="Folder for all results [default: as FILE says, else results/NAME beside it].",
        ),
    ] = None,
    workers: Workers = None,
    device: Device = "auto",
    overwrite: Overwrite = False,
    quiet: Quiet = False,
) -> None:
    """Evaluate several models on several graphs.

    Writes a folder for each evaluation, one table with the average over all graphs, and one page. To resume an
    interrupted suite, run the same command again: finished evaluations are not computed again.
    """
    from pbgeval.cluster.environment import check_workers
    from pbgeval.report.console import ConsoleObserver
    from pbgeval.report.page import WARNINGS
    from pbgeval.suite import Suite

    check_workers("--workers", workers)
    found = Suite.read(file, output)
    results = found.run(
        workers=workers,
        device=device,
        overwrite=overwrite,
        observer=ConsoleObserver(quiet=quiet),
        announce=(lambda _: None) if quiet else (lambda line: print(printable(line), flush=True)),
    )
    if not quiet:
        show(results.table())
        if warnings := results.warnings:
            print(f"{WARNINGS}:", *(printable(f"- {warning}") for warning in warnings), sep="\n")
    paths = results.write(found.output)
    if not quiet:
        print(printable(f"{found.output}: {', '.join(path.name for path in paths)}"))
