"""The command `compare`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from pbgeval.command_line.options import RankTypeName, local_path, options_in_place_of, refuse_beside_queries
from pbgeval.command_line.printing import show, warn
from pbgeval.errors import ConfigError
from pbgeval.storage.text import printable

if TYPE_CHECKING:
    from pbgeval.report.comparison import Comparison
    from pbgeval.report.many_runs import ManyRuns
    from pbgeval.report.paired_runs import CompareOptions
    from pbgeval.report.queries import QueryPage

FORMAT_OF_SUFFIX = {
    "": "text",
    ".txt": "text",
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
    queries: Annotated[
        bool,
        typer.Option(
            "--queries",
            help="Show the queries of two runs that moved most, with ranks and best candidates: a table, or a page "
            "with -o FILE.html. Needs save_topk=10.",
        ),
    ] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="File to write [default: print].")
    ] = None,
) -> None:
    """Compare runs on the same queries.

    Two runs: paired differences with 95% intervals and p-values, overall and by relation. More runs, or several of a
    name: each with each, with letters for those that do not differ, and what they have in common.
    """
    from pbgeval.report.paired_runs import CompareOptions
    from pbgeval.storage.writing import write_atomically

    options = CompareOptions(edges, metric, side, rank_type, filter_, clusters)
    form = format_ or FORMAT_OF_SUFFIX.get("" if output is None else output.suffix.lower())
    if form is None:
        ends = ", ".join(filter(None, FORMAT_OF_SUFFIX))
        raise ConfigError(f"{output}: expected a file that ends in one of {ends}, or --format")
    if queries:
        given = {"--edges": edges is not None, "--metric": metric is not None, "--clusters": clusters != "key"}
        refuse_beside_queries(given)
    with options_in_place_of(_OPTIONS):
        found = _moved(runs, options) if queries else _compared(runs, options, each_with_each=form == "svg")
    for warning in found.warnings:
        warn(warning)
    if output is None and form == "text":
        show(*found.tables())
        return
    text = _text_of(found, form)
    if output is None:
        print(text, end="")
    else:
        write_atomically(output, text)
        print(printable(str(output)))


def _compared(runs: Sequence[str], options: CompareOptions, *, each_with_each: bool) -> Comparison | ManyRuns:
    """Compare two runs as A and B, or any number each with each, as also two with names if that is asked for."""
    from pbgeval.report.comparison import compare_two

    given = [_name_and_folder(text) for text in runs]
    has_names = any(name for name, _ in given)
    if len(given) == 2 and not has_names:
        return compare_two(given[0][1], given[1][1], options)
    from pbgeval.notation import grouped
    from pbgeval.report.comparing_many import compare_groups, names_of  # here: two runs do not need it

    names = [name or own for (name, _), own in zip(given, names_of([folder for _, folder in given]), strict=True)]
    if len(given) == 2 and names[0] != names[1] and not each_with_each:
        if names[0] == "B" or names[1] == "A":
            raise ConfigError(f"{' '.join(runs)}: tables call the first run A and the second B; give them other names")
        return compare_two(given[0][1], given[1][1], options, (names[0], names[1]))
    return compare_groups(grouped((name, folder) for name, (_, folder) in zip(names, given, strict=True)), options)


def _moved(runs: Sequence[str], options: CompareOptions) -> QueryPage:
    """Return the queries of two runs."""
    from pbgeval.report.queries import QueryPage

    given = [_name_and_folder(text) for text in runs]
    if len(given) != 2:
        raise ConfigError(f"--queries: expected two runs, got {len(given)}")
    return QueryPage.of_two(given, options)


def _name_and_folder(text: str) -> tuple[str, Path]:
    """Return the name of a run, empty if it has none, and its folder."""
    name, equals, folder = text.partition("=")
    if not equals or Path(text).exists():
        return "", local_path(text)
    if not name or not folder:
        raise ConfigError(f"{text}: expected NAME=RUN")
    return name, local_path(folder)


def _text_of(found: Comparison | ManyRuns | QueryPage, form: str) -> str:
    from pbgeval.report.many_runs import ManyRuns

    if form == "svg" and not isinstance(found, ManyRuns):
        raise ConfigError("--format svg: the diagram is of more than two runs, or of runs with names (NAME=RUN)")
    if form in ("html", "svg"):
        return _drawn(found, form)
    return found.to_format(form)


def _drawn(found: Comparison | ManyRuns | QueryPage, form: str) -> str:
    """Return a page, or the diagram of many runs."""
    from pbgeval.report.comparison import Comparison
    from pbgeval.report.comparison_pages import comparison_page, many_runs_page
    from pbgeval.report.many_runs import ManyRuns, diagram_of
    from pbgeval.report.page import svg_of

    if isinstance(found, ManyRuns):
        return svg_of(diagram_of(found)) if form == "svg" else many_runs_page(found).render()
    return (comparison_page(found) if isinstance(found, Comparison) else found).render()
