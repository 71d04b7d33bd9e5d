"""The command `compare`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from pbgeval.command_line.options import RankTypeName, local_path, options_in_place_of
from pbgeval.errors import ConfigError
from pbgeval.notation import grouped
from pbgeval.storage.text import printable

if TYPE_CHECKING:
    from pbgeval.report.comparison import Comparison
    from pbgeval.report.many_runs import ManyRuns
    from pbgeval.report.paired_runs import Asked

FORMAT_OF_SUFFIX = {
    ".json": "json",
    ".csv": "csv",
    ".md": "md",
    ".tex": "latex",
    ".html": "html",
    ".svg": "svg",
}
_OPTIONS = {
    "edge_paths=[...]": "--edges",
    'clusters="edge"': "--clusters edge",
    'filter="raw"': "--filter raw",
}


def compare(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="[NAME=]RUN...",
            help="Output directories with saved ranks, of the same queries. Two runs A B: differences are B - A. "
            "Runs of one NAME are seeds of one model.",
        ),
    ],
    edges: Annotated[
        list[Path] | None,
        typer.Option("--edges", metavar="PATH", help="Evaluated edges. Repeatable [default: as the runs read them]."),
    ] = None,
    metric: Annotated[
        list[str] | None,
        typer.Option(
            "--metric",
            metavar="NAME",
            help="Metric to compare, for example hits@10. Repeatable [default: mean rank, MRR, hits@k].",
        ),
    ] = None,
    side: Annotated[
        Literal["head", "tail", "relation", "both", "lhs", "rhs"], typer.Option("--side", help="Predicted side.")
    ] = "both",
    rank_type: Annotated[RankTypeName, typer.Option("--rank-type", help="Rank type to compare.")] = "realistic",
    filter_: Annotated[
        Literal["raw", "filtered"] | None,
        typer.Option("--filter", help="Ranks to compare [default: filtered where all runs have them]."),
    ] = None,
    clusters: Annotated[
        Literal["key", "edge"],
        typer.Option(
            "--clusters",
            help="Dependent queries. edge: those of the same edge; key: also those with the same key.",
        ),
    ] = "key",
    format_: Annotated[
        Literal["text", "json", "csv", "md", "latex", "html", "svg"] | None,
        typer.Option(
            "--format",
            help="html: a page; json, csv: all figures; svg: the diagram of several runs; others: tables "
            "[default: by -o].",
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="File to write [default: print].")
    ] = None,
) -> None:
    """Compare runs on the same queries.

    Two runs: paired differences with 95% intervals and p-values, overall and by relation. More runs, or runs with
    names: each with each, with letters for those that do not differ, and what they have in common.
    """
    from pbgeval.report.paired_runs import Asked
    from pbgeval.report.tables import console_of
    from pbgeval.storage.writing import write_atomically

    asked = Asked(edges, metric, side, rank_type, filter_, clusters)
    with options_in_place_of(_OPTIONS):
        found = _compared(runs, asked)
    if output is None and format_ in (None, "text"):
        console_of().print(found)  # as wide as the terminal
        return
    form = format_ or FORMAT_OF_SUFFIX.get("" if output is None else output.suffix.lower(), "text")
    text = _text_of(found, form)
    if output is None:
        print(text, end="")
    else:
        write_atomically(output, text)
        print(printable(str(output)))


def _compared(runs: Sequence[str], asked: Asked) -> Comparison | ManyRuns:
    """Compare two runs as A and B, or any number each with each."""
    from pbgeval.report.comparing_many import compare_groups, names_of
    from pbgeval.report.comparison import compare_two

    given = [_name_and_folder(text) for text in runs]
    if len(given) == 2 and not any(name for name, _ in given):
        return compare_two(given[0][1], given[1][1], asked)
    names = [name or own for (name, _), own in zip(given, names_of([folder for _, folder in given]), strict=True)]
    return compare_groups(grouped((name, folder) for name, (_, folder) in zip(names, given, strict=True)), asked)


def _name_and_folder(text: str) -> tuple[str, Path]:
    """Return the name of a run, empty if it has none, and its folder."""
    name, equals, folder = text.partition("=")
    if not equals or Path(text).exists():
        return "", local_path(text)
    if not name or not folder:
        raise ConfigError(f"{text}: expected NAME=RUN")
    return name, local_path(folder)


def _text_of(found: Comparison | ManyRuns, form: str) -> str:
    from pbgeval.report.comparison import FORMATS, Comparison
    from pbgeval.report.many_runs import MANY_FORMATS, diagram_of

    if isinstance(found, Comparison) and form == "svg":
        raise ConfigError("--format svg: the diagram is of more than two runs, or of runs with names (NAME=RUN)")
    if form in ("html", "svg"):
        from pbgeval.report.comparison_pages import comparison_page, many_runs_page
        from pbgeval.report.page import svg_of

        if form == "svg" and not isinstance(found, Comparison):
            return svg_of(diagram_of(found))
        return (comparison_page(found) if isinstance(found, Comparison) else many_runs_page(found)).render()
    return FORMATS[form](found) if isinstance(found, Comparison) else MANY_FORMATS[form](found)
