"""`kgeval-dist report`: a folder -> a page of HTML, or tables for papers.

Heavy imports happen inside the command, so that `--help` answers at once.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pbgeval.storage.text_files import printable

if TYPE_CHECKING:
    from pbgeval.report.page.source import Source
    from pbgeval.report.training_curves import Curves

app = typer.Typer()

SUFFIXES = {"html": "html", "md": "md", "latex": "tex"}


@app.command()
def report(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Output directory of an evaluation, or of a monitor (or both).")
    ],
    form: Annotated[
        str, typer.Option("--format", help="html (a page), md or latex (tables, on standard output).")
    ] = "html",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File or folder [default of html: DIR/report.html].")
    ] = None,
    metric: Annotated[
        str, typer.Option("--metric", help="Of the map of buckets and of training, hits@10 say.")
    ] = "mrr",
    monitor: Annotated[
        Path | None, typer.Option("--monitor", help="Records of the training run [default: those in DIR].")
    ] = None,
) -> None:
    """Show a result: headline, buckets, ranks, relations, ties and leakage, provenance, gaps while training."""
    from pbgeval.errors import ConfigError, OutputError
    from pbgeval.files import write_atomically
    from pbgeval.report.output import PAGE, is_page

    if form not in SUFFIXES:
        raise ConfigError(f"--format {form}: expected one of {', '.join(SUFFIXES)}")
    target = output / f"report.{SUFFIXES[form]}" if output is not None and output.is_dir() else output
    if form == "html":
        page = target or folder / PAGE
        if page != output and os.path.lexists(page) and not is_page(page):  # a name that the user did not give
            raise OutputError(f"{page}: this file is not a page of kgeval-dist report; give another --output")
        _page(folder, monitor, metric, page)
        return
    text = _tables(_read(folder, monitor, metric), form)
    if target is None:
        print(text, end="")
    else:
        write_atomically(target, text)
        print(printable(str(target)))


def _tables(source: Source, form: str) -> str:
    from pbgeval.report.page.paper import latex, markdown

    return markdown(source) if form == "md" else latex(source)


def _page(folder: Path, monitor: Path | None, metric: str, target: Path) -> None:
    from pbgeval.config.explain import meanings
    from pbgeval.files import write_atomically
    from pbgeval.report.page.page import PageOptions, render_page

    source = _read(folder, monitor, metric)
    write_atomically(target, render_page(source, PageOptions(metric, meanings())))
    if not source.is_complete:
        print(printable(f"warning: {folder}: this evaluation is not complete, and the page says so"), file=sys.stderr)
    print(printable(str(target)))


def _read(folder: Path, monitor: Path | None, metric: str) -> Source:
    """Read whatever the folder has.

    Raises:
        OutputError: neither an evaluation nor records of training.
    """
    from pbgeval.errors import OutputError
    from pbgeval.report.output import METRICS
    from pbgeval.report.page.source import Source, read_result

    has_records = any(folder.glob("training_stats*.json"))
    has_result = (folder / METRICS).exists()
    if not has_result and not has_records:
        raise OutputError(
            f"{folder}: expected {METRICS} of an evaluation or training_stats.json of a training run, found neither; "
            "give an output directory"
        )
    result = read_result(folder) if has_result else None
    records = monitor or (folder if has_records else None)
    training = None if records is None else _curves(records, metric, needed=result is None or monitor is not None)
    return Source(folder.resolve().name, result, training)


def _curves(records: Path, metric: str, *, needed: bool) -> Curves | None:
    """Read the records of a training run; where an evaluation is what was asked for, they may have nothing to show."""
    from pbgeval.errors import ConfigError, DataError
    from pbgeval.monitor.curves import read_curves
    from pbgeval.report.training_curves import METRICS, pbg_name

    name = pbg_name(metric)
    if name is None and needed:
        raise ConfigError(f"--metric {metric}: expected one of {', '.join(METRICS)} for the records of a training run")
    try:
        return read_curves(records, name or "mrr", lambda line: print(printable(f"warning: {line}"), file=sys.stderr))
    except DataError as error:
        if needed:
            raise
        print(printable(f"warning: {records}: nothing of the training run is shown: {error}"), file=sys.stderr)
        return None
