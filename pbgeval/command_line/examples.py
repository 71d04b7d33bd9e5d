"""Commands for what comes with the package to be copied: `demo` and `template`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from pbgeval.command_line.options import Quiet
from pbgeval.storage.text import printable


def demo(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="New or empty folder.")] = Path("demo"),
    only_files: Annotated[
        bool, typer.Option("--only-files", help="Write the files of edges and the configs; import and train nothing.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Make a folder with a graph, a model and a config.

    Trains the model on the graph, which takes one to two minutes. An existing demo folder is completed.
    """
    from pbgeval.report.console import ConsoleObserver

    observer = ConsoleObserver(quiet)

    def tell(line: str) -> None:
        if not quiet:
            print(printable(line), flush=True)

    if only_files:
        from pbgeval.examples.files import write_files

        write_files(folder)
        return
    from pbgeval.examples.demo import make_demo

    try:
        make_demo(folder, observer, tell)
    finally:
        observer.finished()
    place = shlex.quote(str(folder))
    tell(f"evaluate the model with: kgeval-dist run {place}/eval.py --output {place}/results")


def template(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Name of the template [default: list them].")
    ] = None,
) -> None:
    """Print a cluster job or a script that exports models."""
    from pbgeval.examples.files import TEMPLATES, find_template

    if name is None:
        width = max(map(len, TEMPLATES))
        print("\n".join(f"{of:{width}}  {found.what}" for of, found in TEMPLATES.items()))
    else:
        print(find_template(name).text, end="")
