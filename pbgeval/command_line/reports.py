"""Commands that show a result or a training run: `monitor` and `report`."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Annotated, Literal

import typer

from pbgeval.command_line.options import LocalFolder, refuse_beside_queries
from pbgeval.command_line.printing import show, warn
from pbgeval.errors import OutputError
from pbgeval.storage.text import did_you_mean, printable


def monitor(
    records: Annotated[
        Path, typer.Argument(metavar="RECORDS", help="training_stats.json of a Monitor or of PBG, or its folder.")
    ],
    metric: Annotated[
        str,
        typer.Option("--metric", metavar="NAME", help="Metric to show, for example hits@10 (PBG's name: r10)."),
    ] = "mrr",
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="PATH", help="File or folder to write [default: beside the records]."),
    ] = None,
) -> None:
    """Show the held-out metrics of a training run.

    Prints a table and writes a page.
    """
    from pbgeval.config.explain import meanings
    from pbgeval.report.page import page_of, read_source
    from pbgeval.report.training import training_table
    from pbgeval.results.result import METRICS

    if not records.exists():
        raise OutputError(f"{records}: no such file or folder{did_you_mean(records, os.path.exists)}")
    folder = records if records.is_dir() else records.parent
    if not any(folder.glob("training_stats*.json")):
        if (folder / METRICS).exists():
            raise OutputError(f"{folder} is an evaluation; use kgeval-dist report {shlex.quote(str(folder))}")
        if folder is records:
            raise OutputError(
                f"{folder}: no training_stats.json in this folder; a Monitor writes it to its output folder, and "
                "PyTorch-BigGraph to the checkpoint when it trains with eval_fraction above 0"
            )
    source = read_source(folder, records, metric, warn)
    if source.training is not None:
        show(training_table(source.training))
    print(printable(page_of(source, meanings=meanings()).write(output or folder)))


def report(
    folder: Annotated[
        Path, LocalFolder(metavar="DIR", help="Output directory of an evaluation, of a monitor, or of both.")
    ],
    form: Annotated[
        Literal["html", "md", "latex"], typer.Option("--format", help="html: a page; md or latex: tables, printed.")
    ] = "html",
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            metavar="PATH",
            help="File, folder or URL (s3://...) to write [default: DIR/report.html, DIR/queries.html].",
        ),
    ] = None,
    metric: Annotated[
        str,
        typer.Option(
            "--metric", metavar="NAME", help="Metric of the bucket map and the training curves, for example hits@10."
        ),
    ] = "mrr",
    monitor: Annotated[
        Path | None,
        typer.Option("--monitor", metavar="DIR", help="Folder with the records of the training run [default: DIR]."),
    ] = None,
    queries: Annotated[
        bool,
        typer.Option(
            "--queries",
            help="Write a page of single queries: pick a relation and a query, see answers, ranks and the best "
            "candidates. Needs save_ranks=True and save_topk=10.",
        ),
    ] = False,
) -> None:
    """Write a result as an HTML page or as tables."""
    from pbgeval.config.explain import meanings
    from pbgeval.report.page import latex, markdown, page_of, read_source
    from pbgeval.report.rendering import save

    if queries:
        given = {"--format": form != "html", "--metric": metric != "mrr", "--monitor": monitor is not None}
        refuse_beside_queries(given)
        print(printable(_write_queries(folder, output or folder)))
        return
    source = read_source(folder, monitor, metric, warn)
    if form == "html":
        where = page_of(source, metric, meanings()).write(output or folder)
        if not source.is_complete:
            warn(f"{folder}: this evaluation is not complete")
        print(printable(where))
        return
    text = (markdown if form == "md" else latex)(source)
    if output is None:
        print(text, end="")
    else:
        print(printable(save(text, f"report.{'tex' if form == 'latex' else form}", output)))


def _write_queries(folder: Path, output: Path | str) -> str:
    """Write the page of a run's queries; return where it is."""
    from pbgeval.report.queries import QueryPage
    from pbgeval.report.rendering import save
    from pbgeval.report.report import Report
    from pbgeval.results.output import QUERIES_PAGE

    return save(QueryPage.of_run(Report.read(folder)).render(), QUERIES_PAGE, output)
