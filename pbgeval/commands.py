"""The commands beside the evaluation and its submission: a file or a folder -> what is printed or written.

Heavy imports happen inside commands, so that `--help` answers at once.
"""

from __future__ import annotations

import os
import sys
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pbgeval.storage.text import printable

if TYPE_CHECKING:
    from pbgeval.importing.engine import Limits
    from pbgeval.importing.graph import GraphFiles
    from pbgeval.monitor.curves import Curves
    from pbgeval.report.page.tables import Source
    from pbgeval.report.report import Report


app = typer.Typer()

_MOST_K = 2**40  # as of hits_at


@app.command("import-model")
def import_model(
    model: Annotated[Path, typer.Argument(help="Folder of DGL-KE, checkpoint of LibKGE, or plain arrays.")],
    output: Annotated[Path, typer.Option("--output", help="New folder: checkpoint, entity, buckets, eval.py.")],
    partitions: Annotated[int, typer.Option("--partitions", min=1, help="Of the entities.")] = 1,
    edges: Annotated[
        list[str] | None,
        typer.Option("--edges", metavar="NAME=FILE", help="Edges to write as buckets: .npy or text, three columns."),
    ] = None,
    order: Annotated[str, typer.Option("--order", help="Of the columns: hrt, htr, ...")] = "hrt",
    entities: Annotated[
        Path | None, typer.Option("--entities", help="id<TAB>label, where files of edges have labels.")
    ] = None,
    relations: Annotated[Path | None, typer.Option("--relations", help="Likewise.")] = None,
    trust_pickle: Annotated[
        bool, typer.Option("--trust-pickle", help="Unpickle the file, which runs any code in it.")
    ] = False,
) -> None:
    """Write another system's model as a checkpoint in partitions, and its edges as buckets."""
    from pbgeval.importing.model import EdgeFiles
    from pbgeval.importing.model import import_model as write
    from pbgeval.models.opening import open_model

    files = EdgeFiles(dict(_named_files(edges or [])), order, entities, relations)
    opened = open_model(model, trust_pickle=trust_pickle)
    for line in write(opened, output, partitions, files):
        print(printable(line))


@app.command("import-graph")
def import_graph(
    output: Annotated[Path, typer.Option("--output", help="New folder: entity, and a folder of buckets per name.")],
    edges: Annotated[
        list[str],
        typer.Option("--edges", metavar="NAME=FILE", help="Text, .csv or Parquet; a name may have several files."),
    ],
    partitions: Annotated[
        list[str] | None,
        typer.Option("--partitions", metavar="[TYPE=]N", help="Of the entities, or of those of a type [default: 1]."),
    ] = None,
    order: Annotated[
        str, typer.Option("--order", help="Of columns of text: h, r, t; w weight; _ to ignore. hrt, htrw, ...")
    ] = "hrt",
    columns: Annotated[
        str | None,
        typer.Option(
            "--columns", help="HEAD,RELATION,TAIL[,WEIGHT]: in a header, or of Parquet [default: lhs,rel,rhs]."
        ),
    ] = None,
    types: Annotated[
        Path | None, typer.Option("--types", help="relation<TAB>left type<TAB>right type; relation * for all others.")
    ] = None,
    balance: Annotated[str, typer.Option("--balance", help="How entities are dealt: random or degree.")] = "random",
    seed: Annotated[int, typer.Option("--seed", help="Of random.")] = 0,
    entities: Annotated[
        Path | None, typer.Option("--entities", help="Reuse the dictionaries of this folder of entities.")
    ] = None,
    dictionary_of: Annotated[
        list[str] | None, typer.Option("--dictionary-of", metavar="NAME", help="Whose entities count [default: all].")
    ] = None,
    max_memory: Annotated[str | None, typer.Option("--max-memory", help="4GB say [default: most of it].")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing but errors.")] = False,
) -> None:
    """Write files of named edges as a partitioned graph: dictionaries, counts, buckets."""
    from pbgeval.cluster.resources import num_cores
    from pbgeval.config.schema import parse_memory
    from pbgeval.errors import ConfigError
    from pbgeval.importing.edge_files import ColumnForm
    from pbgeval.importing.engine import Limits
    from pbgeval.importing.graph import GraphFiles
    from pbgeval.importing.relation_types import Partitioning, RelationTypes, partition_counts

    if balance not in ("random", "degree"):
        raise ConfigError(f"--balance {balance}: expected random or degree")
    by_name: dict[str, list[Path]] = {}
    for name, path in _named_files(edges):
        by_name.setdefault(name, []).append(path)
    files = GraphFiles(
        by_name,
        ColumnForm(order, None if columns is None else tuple(columns.split(","))),
        None if types is None else RelationTypes.read(types),
        Partitioning(*partition_counts(partitions or []), balance == "degree", seed),
        entities,
        dictionary_of or (),
    )
    _write_graph(files, output, Limits(None if max_memory is None else parse_memory(max_memory), num_cores()), quiet)


def _write_graph(files: GraphFiles, output: Path, limits: Limits, quiet: bool) -> None:
    """Import, and say what was written.

    Raises:
        IncompleteError: a signal or Ctrl-C has ended it; nothing is left.
    """
    from pbgeval.cluster.signals import ended_by_signals
    from pbgeval.errors import IncompleteError
    from pbgeval.importing.graph import import_graph as write
    from pbgeval.report.console import ConsoleSteps

    try:
        with ConsoleSteps(quiet) as steps, ended_by_signals():
            lines = write(files, output, limits, steps)
    except KeyboardInterrupt:
        raise IncompleteError(
            f"{output}: expected a complete import, but was interrupted; nothing is left of it, start it again"
        ) from None
    if not quiet:
        print("\n".join(map(printable, lines)))


def _named_files(texts: list[str]) -> list[tuple[str, Path]]:
    from pbgeval.errors import ConfigError

    named = [text.partition("=") for text in texts]
    for name, equals, file in named:
        if not (name and equals and file):
            raise ConfigError(f"--edges {name}{equals}{file}: expected NAME=FILE, test=test.txt say")
    return [(name, Path(file)) for name, _, file in named]


@app.command()
def inspect(
    path: Annotated[
        Path, typer.Argument(help="Edges, entities, a checkpoint, one bucket, or a folder of such folders.")
    ],
) -> None:
    """Say what files of PyTorch-BigGraph's formats hold."""
    from pbgeval.storage.inspection import describe

    for index, (name, lines) in enumerate(describe(path).items()):
        print(f"{chr(10) if index else ''}{printable(name)}")
        width = max(len(what) for what, _ in lines)
        print("\n".join(f"  {what:{width}}  {printable(value)}" for what, value in lines))


@app.command()
def metrics(
    name: Annotated[str | None, typer.Argument(help="A metric or a synonym, hits@5 say [default: all].")] = None,
) -> None:
    """List the rank metrics: names, range, level by chance, formula, source."""
    from pbgeval.errors import ConfigError
    from pbgeval.metrics.names import UnknownMetricError
    from pbgeval.report.metric_list import metric_list

    try:
        print(metric_list(name), end="")
    except UnknownMetricError as error:
        raise ConfigError(str(error)) from error


@app.command()
def topk(
    test: Annotated[Path, typer.Option("--test", help="Evaluated edges: head, relation, tail by tabs.")],
    ranking: Annotated[Path, typer.Option("--ranking", help="AnyBURL's or SAFRAN's file of top-k lists.")],
    known: Annotated[
        list[Path] | None, typer.Option("--known", help="Further known edges (training, validation); may repeat.")
    ] = None,
    entities: Annotated[
        Path | None, typer.Option("--entities", help="Entities, one a line [default: all that are named anywhere].")
    ] = None,
    filtering: Annotated[
        str, typer.Option("--filter", help="producer (lists are filtered), known (filter them), none.")
    ] = "producer",
    ties: Annotated[str, typer.Option("--ties", help="confidence (equal ones tie) or order (nobody ties).")] = (
        "confidence"
    ),
    absent: Annotated[
        str, typer.Option("--absent", help="What is not listed: bounds (intervals), last, zero (no hit).")
    ] = "bounds",
    rank_type: Annotated[str, typer.Option("--rank-type", help="The headline.")] = "realistic",
    k: Annotated[
        list[int] | None,
        typer.Option("-k", min=1, max=_MOST_K, metavar="K", help="Hits at K; may repeat [default: 1, 3, 5, 10]."),
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", help="A file for all metrics, as metrics.json.")] = None,
) -> None:
    """Ranks and bounds from the top-k lists of a rule learner: exact where the true entity is listed."""
    from pbgeval.errors import ConfigError
    from pbgeval.metrics.given import Absent
    from pbgeval.models.topk import TopKFilter, TopKTies, read_topk
    from pbgeval.report.topk_report import topk_notes, topk_report
    from pbgeval.stats.ranks import RANK_TYPE_SYNONYMS
    from pbgeval.storage.writing import write_atomically

    _check_choice("--filter", filtering, TopKFilter)
    _check_choice("--ties", ties, TopKTies)
    _check_choice("--absent", absent, Absent)
    if rank_type not in RANK_TYPE_SYNONYMS:
        raise ConfigError(f"--rank-type {rank_type}: expected one of {', '.join(RANK_TYPE_SYNONYMS)}")
    found = read_topk(ranking, test, known or [], entities=entities, filtering=filtering, ties=ties)
    cutoffs = sorted(set(k or (1, 3, 5, 10)))
    settings = {"filter": filtering, "ties": ties, "absent": absent, "hits_at": cutoffs, "known": len(known or [])}
    headline = RANK_TYPE_SYNONYMS[rank_type].value
    report = topk_report(found, settings, Absent(absent), headline=headline, cutoffs=cutoffs)
    if output is not None:
        write_atomically(output, report.to_json())
    _show(report, topk_notes(found))


def _check_choice(flag: str, value: str, choices: type[Enum]) -> None:
    from pbgeval.errors import ConfigError

    names = [choice.value for choice in choices]
    if value not in names:
        raise ConfigError(f"{flag} {value}: expected one of {', '.join(names)}")


def _show(report: Report, notes: list[str]) -> None:
    from rich.console import Console

    from pbgeval.report.table import print_table

    console = Console()
    print_table(report, console)
    for note in notes:
        console.print(note, highlight=False)


@app.command()
def types(
    taxonomy: Annotated[Path, typer.Option("--taxonomy", help="Hierarchy of types: type, depth, parent by tabs.")],
    truth: Annotated[Path, typer.Option("--truth", help="True types: query, type, type, ... by tabs; or JSON.")],
    ranking: Annotated[Path, typer.Option("--ranking", help="A system's types, best first, in the same form.")],
    k: Annotated[
        list[int] | None,
        typer.Option("-k", min=1, max=_MOST_K, metavar="K", help="NDCG at K; may repeat [default: 1, 3, 5, 10]."),
    ] = None,
    gain: Annotated[str, typer.Option("--gain", help="linear (1 - d / depth) or exponential (base^-d).")] = "linear",
    discount: Annotated[
        str, typer.Option("--discount", help="jk (log2 p from position 2) or standard (log2(p + 1)).")
    ] = "jk",
    base: Annotated[float, typer.Option("--base", help="Of the exponential gain, above 1.")] = 2.0,
    as_published: Annotated[
        bool, typer.Option("--as-published", help="Let the root and repeated types gain: NDCG can pass 1.")
    ] = False,
    output: Annotated[Path | None, typer.Option("--output", help="A JSON file with the value of each query.")] = None,
) -> None:
    """Judge ranked lists of entity types by their distance from the true ones in a hierarchy (NDCG)."""
    from rich.console import Console

    from pbgeval.errors import ConfigError
    from pbgeval.metrics.ndcg import DEFAULT_CUTOFFS, Discount, TypeProtocol, evaluate_types
    from pbgeval.metrics.taxonomy import Taxonomy, TypeGain
    from pbgeval.models.type_lists import read_type_lists
    from pbgeval.report.type_report import type_document, type_table
    from pbgeval.storage.writing import write_atomically

    _check_choice("--gain", gain, TypeGain)
    _check_choice("--discount", discount, Discount)
    if not 1.0 < base < float("inf"):
        raise ConfigError(f"--base {base}: expected a number above 1")
    protocol = TypeProtocol(gain, discount, base, as_published)
    cutoffs = sorted(set(k or DEFAULT_CUTOFFS))
    lists = read_type_lists(truth), read_type_lists(ranking)
    result = evaluate_types(Taxonomy.read(taxonomy), *lists, cutoffs, protocol)
    if output is not None:
        write_atomically(output, type_document(result, protocol))
    Console().print(type_table(result, protocol))


@app.command()
def compare(
    a: Annotated[Path, typer.Argument(help="Output directory of a finished run with save_ranks.")],
    b: Annotated[Path, typer.Argument(help="Likewise, of the same queries; differences are B - A.")],
    edges: Annotated[
        list[Path] | None,
        typer.Option("--edges", help="Folder of the evaluated edges; may repeat [default: where the runs found them]."),
    ] = None,
    metric: Annotated[
        list[str] | None,
        typer.Option("--metric", help="mrr, hits@10, ...; may repeat [default: mean rank, MRR, hits as in the runs]."),
    ] = None,
    side: Annotated[str, typer.Option("--side", help="head, tail or both.")] = "both",
    rank_type: Annotated[str, typer.Option("--rank-type", help="optimistic, realistic or pessimistic.")] = "realistic",
    filter_: Annotated[
        str | None, typer.Option("--filter", help="raw or filtered [default: filtered if the runs are].")
    ] = None,
    clusters: Annotated[
        str, typer.Option("--clusters", help="key (queries of one key depend on each other) or edge (needs no edges).")
    ] = "key",
    format_: Annotated[str, typer.Option("--format", help="text, json, csv, md or latex.")] = "text",
    output: Annotated[Path | None, typer.Option("--output", help="A file for all of it, as JSON.")] = None,
) -> None:
    """Compare two runs on the same queries: differences, 95 % intervals, p-values, per relation."""
    from rich.console import Console

    from pbgeval.errors import ConfigError
    from pbgeval.report.comparison import compare as compare_runs
    from pbgeval.report.comparison_formats import FORMATS, comparison_tables, to_json
    from pbgeval.storage.writing import write_atomically

    if format_ not in ("text", *FORMATS):
        raise ConfigError(f"--format {format_}: expected one of text, {', '.join(FORMATS)}")
    found = compare_runs(
        a, b, edge_paths=edges, metrics=metric, side=side, rank_type=rank_type, filter=filter_, clusters=clusters
    )
    if output is not None:
        write_atomically(output, to_json(found))
    if format_ == "text":
        console = Console()
        for table in comparison_tables(found):
            console.print(table)
    else:
        print(FORMATS[format_](found), end="")


@app.command()
def monitor(
    records: Annotated[Path, typer.Argument(help="training_stats.json, PBG's own too, or the folder where it is.")],
    metric: Annotated[str, typer.Option("--metric", help="mrr, pos_rank, r1, r10, r50, auc or loss.")] = "mrr",
    output: Annotated[
        Path | None, typer.Option("--output", help="Folder of the picture [default: where the records are].")
    ] = None,
) -> None:
    """Draw what a training run has recorded of held-out edges: a table and a PNG."""
    from rich.console import Console

    from pbgeval.errors import ConfigError
    from pbgeval.monitor.curves import METRICS, read_curves
    from pbgeval.report.training import training_table, write_picture

    if metric not in METRICS:
        raise ConfigError(f"--metric {metric}: expected one of {', '.join(METRICS)}")
    curves = read_curves(records, metric, lambda line: print(printable(f"warning: {line}"), file=sys.stderr))
    Console().print(training_table(curves))
    folder = output or (records if records.is_dir() else records.parent)
    print(printable(str(write_picture(curves, folder))))


# `kgeval-dist report`: a folder -> a page of HTML, or tables for papers.
#
# Heavy imports happen inside the command, so that `--help` answers at once.

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
    from pbgeval.report.output import PAGE, is_page
    from pbgeval.storage.writing import write_atomically

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
    from pbgeval.report.page.page import PageOptions, render_page
    from pbgeval.storage.writing import write_atomically

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
    from pbgeval.report.page.tables import Source, read_result

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
    from pbgeval.monitor.curves import METRICS, pbg_name, read_curves

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
