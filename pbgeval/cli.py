"""All commands: flags -> config -> evaluation -> exit status. Nothing else prints.

Exit status: 0 complete; 1 the user's fault, a line each on stderr; 75 incomplete, run again to go on.
Heavy imports happen inside commands, so that `--help` answers at once.
"""

from __future__ import annotations

import errno
import gc
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from pbgeval.errors import INCOMPLETE_STATUS, ConfigError, EvalError, IncompleteError, LaunchError, OutputError
from pbgeval.storage.text import printable
from pbgeval.version import __version__

if TYPE_CHECKING:
    from pbgeval.cluster.submit import SubmittedJob
    from pbgeval.progress import Observer
    from pbgeval.report.report import Report
    from pbgeval.report.tables import DataTable

# Choices, here so that help needs no heavy import; a test compares them with what the program takes.
RankTypeName = Literal["optimistic", "realistic", "pessimistic", "best", "avg", "average", "worst"]
# Options of several commands.
Overrides = Annotated[
    list[str] | None,
    typer.Option("--param", "-p", metavar="KEY=VALUE", help="Override a key; dotted paths, lists by comma."),
]
OutputFolder = Annotated[
    Path | None, typer.Option("--output", help="Output directory [default: results/<config>-<digest>].")
]
Cutoffs = Annotated[
    list[int] | None,
    typer.Option("-k", min=1, max=2**40, metavar="K", help="Hits or NDCG at K; may repeat [default: 1, 3, 5, 10]."),
]
Device = Annotated[Literal["auto", "cpu", "cuda"], typer.Option("--device", help="Where to compute.")]

MAX_FAULTS = 9  # lines on stderr
INTERRUPTED_STATUS = 130  # how typer ends after Ctrl-C

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"kgeval-dist {__version__}")
        raise typer.Exit


def _print_config_help(wanted: bool) -> None:
    if wanted:
        from pbgeval.config import help_config

        print(help_config())
        raise typer.Exit


@app.callback(invoke_without_command=True)
def run(
    context: typer.Context,
    config: Annotated[
        Path | None, typer.Option("--config", help="Config file: ours, PyTorch-BigGraph's, or JSON.")
    ] = None,
    param: Overrides = None,
    output: OutputFolder = None,
    workers: Annotated[int | None, typer.Option("--workers", help="Processes on this host; changes no number.")] = None,
    device: Device = "auto",
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an earlier result: the files that it lists, no others.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing but errors.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
    help_config: Annotated[
        bool,
        typer.Option("--help-config", callback=_print_config_help, is_eager=True, help="Print every config key."),
    ] = False,
) -> None:
    """Evaluate knowledge-graph embeddings: rank the true edges of a partitioned graph."""
    if context.invoked_subcommand is not None:
        return
    if config is None:
        raise ConfigError("--config: expected a config file, found none; see kgeval-dist --help")
    if workers is not None and workers < 1:
        raise ConfigError(f"--workers {workers}: expected a number of processes >= 1; leave it out to use all cores")
    raise typer.Exit(_evaluate(config, param or [], output, workers, device, overwrite, quiet))


def _evaluate(
    config: Path,
    param: list[str],
    output: Path | None,
    workers: int | None,
    device: str,
    overwrite: bool = False,
    quiet: bool = False,
) -> int:
    """Load the config, evaluate, print the table; return the exit status. Tasks of a submitted job begin here too."""
    from pbgeval.cluster.signals import ended_at_once, ended_by_signals, left_to_the_system

    is_ours = "torch" not in sys.modules  # a process from its first line
    with ended_at_once():
        from pbgeval.cluster.environment import variables_of_torch
        from pbgeval.cluster.launch import is_worker_of_a_group, worker_server

        in_group = is_worker_of_a_group()
        several = (workers or os.cpu_count() or 1) > 1 and not in_group
        os.environ.update(variables_of_torch(os.environ, local_workers=several))
        if is_ours:  # garbage is not looked for among what stays: each look takes a tenth of a second
            gc.disable()
        from pbgeval.config import load_config
        from pbgeval.evaluation import RunOptions, evaluate
        from pbgeval.report.console import ConsoleObserver

        if is_ours:
            gc.freeze()
            gc.enable()
    options = RunOptions(output=output, workers=workers, device=device, overwrite=overwrite)
    with (
        worker_server() if several and is_ours else nullcontext(),
        left_to_the_system() if in_group else ended_by_signals(),
    ):
        report = evaluate(load_config(config, param), options, ConsoleObserver(quiet=quiet))
    if not quiet:
        _print_result(report)
    return 0 if report.document["complete"] else INCOMPLETE_STATUS


@app.command()
def submit(
    config: Annotated[Path, typer.Option("--config", help="Config file, as without submit.")],
    scheduler: Annotated[
        Literal["slurm", "local"], typer.Option("--scheduler", help="Who starts the workers; local: this host.")
    ] = "slurm",
    param: Overrides = None,
    output: OutputFolder = None,
    nodes: Annotated[int, typer.Option("--nodes", min=1, help="Hosts.")] = 1,
    workers_per_node: Annotated[int, typer.Option("--workers-per-node", min=1, help="Processes on each.")] = 1,
    partition: Annotated[str | None, typer.Option("--partition", help="Slurm's partition, not ours.")] = None,
    time: Annotated[str, typer.Option("--time", help="Until a job is requeued, as in sbatch.")] = "1:00:00",
    cpus_per_worker: Annotated[int | None, typer.Option("--cpus-per-worker", min=1, help="Cores of each.")] = None,
    gpus_per_node: Annotated[int | None, typer.Option("--gpus-per-node", min=0, help="GPUs of each host.")] = None,
    memory: Annotated[str | None, typer.Option("--mem", help="Memory of each host, 64GB say.")] = None,
    slurm: Annotated[
        list[str] | None, typer.Option("--slurm", metavar="KEY=VALUE", help="A further flag of sbatch.")
    ] = None,
    device: Device = "auto",
    wait: Annotated[bool, typer.Option("--wait", help="Wait, and exit with the job's status.")] = False,
) -> None:
    """Evaluate in a job of Slurm, or of this host; a preempted job is requeued and goes on."""
    from pbgeval.cluster.submit import JobShape, SubmittedRun, flags_of, minutes_of, submit_run
    from pbgeval.config import load_config
    from pbgeval.evaluation import output_of

    shape = JobShape(
        nodes=nodes,
        workers_per_node=workers_per_node,
        minutes=minutes_of(time),
        partition=partition,
        cpus_per_worker=cpus_per_worker,
        gpus_per_node=gpus_per_node,
        memory=memory,
        slurm=flags_of(slurm or []),
    )
    loaded = load_config(config, param or [])
    path = output_of(loaded, output).absolute()  # files are looked at here, so that faults do not wait in a queue
    run_ = partial(_evaluate, config.absolute(), param or [], path, shape.num_workers, device)
    logs = path.with_name(f"{path.name}.logs")
    job = submit_run(SubmittedRun(run_, cpus_per_worker), scheduler, shape, loaded.name, logs)
    print(f"job {job.job_id}: {shape.num_workers} workers, {scheduler}")
    print(printable(f"output: {path}"))
    print(printable(f"logs: {logs}/{job.job_id}_*_log.err"), flush=True)
    if wait:
        _wait_for(job)


def _wait_for(job: SubmittedJob) -> None:
    """Wait for a job; end with its status, or raise its faults."""
    end = job.wait()
    if end.faults:
        raise (IncompleteError if end.can_go_on else LaunchError)(*end.faults)
    if not end.is_complete:
        print(f"job {job.job_id}: ended before it was complete; submit it again to go on", file=sys.stderr)
        raise typer.Exit(INCOMPLETE_STATUS)
    print(f"job {job.job_id}: complete")


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

    last_of = {name: paths[-1] for name, paths in _named_files(edges or []).items()}
    files = EdgeFiles(last_of, order, entities, relations)
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
    balance: Annotated[
        Literal["random", "degree"], typer.Option("--balance", help="How entities are dealt out to partitions.")
    ] = "random",
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
    from pbgeval.importing.edge_files import ColumnForm
    from pbgeval.importing.engine import Limits
    from pbgeval.importing.graph import GraphFiles
    from pbgeval.importing.graph import import_graph as write
    from pbgeval.importing.relation_types import Partitioning, RelationTypes, partition_counts

    files = GraphFiles(
        _named_files(edges),
        ColumnForm(order, None if columns is None else tuple(columns.split(","))),
        None if types is None else RelationTypes.read(types),
        Partitioning(*partition_counts(partitions or []), balance == "degree", seed),
        entities,
        dictionary_of or (),
    )
    limits = Limits(None if max_memory is None else parse_memory(max_memory), num_cores())
    lines = _import(partial(write, files, output, limits), output, quiet)
    if not quiet:
        print("\n".join(map(printable, lines)))


def _import(write: Callable[[Observer], Sequence[str]], output: Path, quiet: bool) -> Sequence[str]:
    from pbgeval.cluster.signals import ended_by_signals
    from pbgeval.report.console import ConsoleObserver

    observer = ConsoleObserver(quiet)
    try:
        with ended_by_signals():
            return write(observer)
    except KeyboardInterrupt:
        raise IncompleteError(
            f"{output}: expected a complete import, but was interrupted; nothing is left of it, start it again"
        ) from None
    finally:
        observer.finished()


def _named_files(texts: list[str]) -> dict[str, list[Path]]:
    files: dict[str, list[Path]] = {}
    for text in texts:
        name, _, file = text.partition("=")
        if not (name and file):
            raise ConfigError(f"--edges {text}: expected NAME=FILE, test=test.txt say")
        files.setdefault(name, []).append(Path(file))
    return files


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
        Literal["producer", "known", "none"],
        typer.Option("--filter", help="producer: the lists are filtered; known: filter them."),
    ] = "producer",
    ties: Annotated[
        Literal["confidence", "order"],
        typer.Option("--ties", help="confidence: equal confidences tie; order: nothing ties."),
    ] = "confidence",
    absent: Annotated[
        Literal["bounds", "last", "zero"],
        typer.Option("--absent", help="What an unlisted true entity counts as: an interval, the last rank, no hit."),
    ] = "bounds",
    rank_type: Annotated[RankTypeName, typer.Option("--rank-type", help="The headline.")] = "realistic",
    k: Cutoffs = None,
    output: Annotated[Path | None, typer.Option("--output", help="A file for all metrics, as metrics.json.")] = None,
) -> None:
    """Ranks and bounds from the top-k lists of a rule learner: exact where the true entity is listed."""
    from pbgeval.metrics.given import Absent
    from pbgeval.models.topk import read_topk
    from pbgeval.report.lists import topk_report, topk_table
    from pbgeval.stats.ranks import RANK_TYPE_SYNONYMS
    from pbgeval.storage.writing import write_atomically

    found = read_topk(ranking, test, known or [], entities=entities, filtering=filtering, ties=ties)
    cutoffs = sorted(set(k or (1, 3, 5, 10)))
    settings = {"filter": filtering, "ties": ties, "absent": absent, "hits_at": cutoffs, "known": len(known or [])}
    headline = RANK_TYPE_SYNONYMS[rank_type].value
    report = topk_report(found, settings, Absent(absent), headline=headline, cutoffs=cutoffs)
    if output is not None:
        write_atomically(output, report.to_json())
    _show(topk_table(found, report))


def _show(*tables: DataTable) -> None:
    from rich.console import Console

    from pbgeval.report.tables import to_terminal

    console = Console()
    for table in tables:
        console.print(to_terminal(table))


@app.command()
def types(
    taxonomy: Annotated[Path, typer.Option("--taxonomy", help="Hierarchy of types: type, depth, parent by tabs.")],
    truth: Annotated[Path, typer.Option("--truth", help="True types: query, type, type, ... by tabs; or JSON.")],
    ranking: Annotated[Path, typer.Option("--ranking", help="A system's types, best first, in the same form.")],
    k: Cutoffs = None,
    gain: Annotated[
        Literal["linear", "exponential"],
        typer.Option("--gain", help="Of a type at distance d: 1 - d / depth, or base^-d."),
    ] = "linear",
    discount: Annotated[
        Literal["jk", "standard"],
        typer.Option("--discount", help="At position p: log2(p) from position 2, or log2(p + 1)."),
    ] = "jk",
    base: Annotated[float, typer.Option("--base", help="Of the exponential gain, above 1.")] = 2.0,
    as_published: Annotated[
        bool, typer.Option("--as-published", help="Let the root and repeated types gain: NDCG can pass 1.")
    ] = False,
    output: Annotated[Path | None, typer.Option("--output", help="A JSON file with the value of each query.")] = None,
) -> None:
    """Judge ranked lists of entity types by their distance from the true ones in a hierarchy (NDCG)."""
    from pbgeval.metrics.ndcg import DEFAULT_CUTOFFS, Discount, TypeProtocol, evaluate_types
    from pbgeval.metrics.taxonomy import Taxonomy, TypeGain
    from pbgeval.models.type_lists import read_type_lists
    from pbgeval.report.lists import type_document, type_table
    from pbgeval.storage.writing import write_atomically

    if not 1.0 < base < float("inf"):
        raise ConfigError(f"--base {base}: expected a number above 1")
    protocol = TypeProtocol(TypeGain(gain), Discount(discount), base, as_published)
    cutoffs = sorted(set(k or DEFAULT_CUTOFFS))
    lists = read_type_lists(truth), read_type_lists(ranking)
    result = evaluate_types(Taxonomy.read(taxonomy), *lists, cutoffs, protocol)
    if output is not None:
        write_atomically(output, type_document(result, protocol))
    _show(type_table(result, protocol))


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
    side: Annotated[
        Literal["head", "tail", "both", "lhs", "rhs"], typer.Option("--side", help="Which entity is hidden.")
    ] = "both",
    rank_type: Annotated[RankTypeName, typer.Option("--rank-type", help="Of the ranks.")] = "realistic",
    filter_: Annotated[
        Literal["raw", "filtered"] | None,
        typer.Option("--filter", help="Which figures [default: filtered if the runs are]."),
    ] = None,
    clusters: Annotated[
        Literal["key", "edge"],
        typer.Option("--clusters", help="key: queries of one key depend on each other; edge: needs no edges."),
    ] = "key",
    format_: Annotated[
        Literal["text", "json", "csv", "md", "latex", "html"],
        typer.Option("--format", help="text, md and latex: tables; html: a page; json, csv: every figure."),
    ] = "text",
    output: Annotated[Path | None, typer.Option("--output", "-o", help="File [default: standard output].")] = None,
) -> None:
    """Compare two runs on the same queries: differences, 95% intervals, p-values, per relation."""
    from pbgeval.report import comparison
    from pbgeval.report.page import comparison_page
    from pbgeval.report.report import Report
    from pbgeval.storage.writing import write_atomically

    reports = Report.read(a), Report.read(b)
    found = comparison.compare(
        *reports, edge_paths=edges, metrics=metric, side=side, rank_type=rank_type, filter=filter_, clusters=clusters
    )
    text = comparison_page(found, *reports).render() if format_ == "html" else comparison.FORMATS[format_](found)
    if output is None and format_ == "text":  # as wide as the terminal
        _show(*comparison.comparison_tables(found))
    elif output is None:
        print(text, end="")
    else:
        write_atomically(output, text)
        print(printable(str(output)))


@app.command()
def monitor(
    records: Annotated[Path, typer.Argument(help="training_stats.json, PBG's own too, or the folder where it is.")],
    metric: Annotated[
        Literal["mrr", "pos_rank", "r1", "r10", "r50", "auc", "loss"],
        typer.Option("--metric", help="Under PyTorch-BigGraph's names."),
    ] = "mrr",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File or folder of the page [default: beside the records].")
    ] = None,
) -> None:
    """Show what a training run recorded of held-out edges: print a table and write a page."""
    from pbgeval.config.explain import meanings
    from pbgeval.report.figures import training_table
    from pbgeval.report.page import page_of, read_source

    folder = records if records.is_dir() else records.parent
    source = read_source(folder, records, metric, _warn)
    if source.training is not None:
        _show(training_table(source.training))
    print(printable(str(page_of(source, meanings=meanings()).write(output or folder))))


@app.command()
def report(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Output directory of an evaluation, or of a monitor (or both).")
    ],
    form: Annotated[
        Literal["html", "md", "latex"],
        typer.Option("--format", help="html: a page; md, latex: tables, on standard output."),
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
    from pbgeval.config.explain import meanings
    from pbgeval.report.page import latex, markdown, page_of, read_source
    from pbgeval.storage.writing import write_atomically

    source = read_source(folder, monitor, metric, _warn)
    if form == "html":
        path = page_of(source, metric, meanings()).write(output or folder)
        if not source.is_complete:
            _warn(f"{folder}: this evaluation is not complete, and the page says so")
        print(printable(str(path)))
        return
    text = (markdown if form == "md" else latex)(source)
    if output is None:
        print(text, end="")
    else:
        target = output / f"report.{'tex' if form == 'latex' else form}" if output.is_dir() else output
        write_atomically(target, text)
        print(printable(str(target)))


def _warn(message: str) -> None:
    print(printable(f"warning: {message}"), file=sys.stderr)


def _print_result(report: Report) -> None:
    from pbgeval.report.figures import final_table
    from pbgeval.report.output import files_of

    if report.path is None:  # a worker of somebody else's group that does not own the output
        return
    try:
        _show(final_table(report))
        print(printable(f"{report.path}: {', '.join(files_of(report))}"), flush=True)
    except SystemExit:  # rich, when the reader of a pipe has gone: the result is written all the same
        return
    except OSError as error:
        raise OutputError(
            f"standard output: expected to print the table, got: {error.strerror}; the result is in {report.path}"
        ) from error


def main() -> None:
    """Run the command and turn faults into lines and a status."""
    from pbgeval.cluster.signals import ended_by_signals

    try:
        with ended_by_signals():
            status = app(standalone_mode=False)
        if status == INTERRUPTED_STATUS:
            raise KeyboardInterrupt
    except IncompleteError as error:
        status = _fail(list(error.faults), INCOMPLETE_STATUS)
    except EvalError as error:
        status = _fail(list(error.faults))
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE):
            raise
        status = _fail(
            [f"{error.strerror}: raise the limit (ulimit -n), and run the same command again"], INCOMPLETE_STATUS
        )
    except typer.TyperException as error:
        status = _fail([f"{error.format_message().replace('Value error, ', '').rstrip('.')}; see kgeval-dist --help"])
    except (KeyboardInterrupt, typer.Abort):
        status = _fail(
            ["interrupted: expected a complete run; the same command goes on from what is done"], INCOMPLETE_STATUS
        )
    sys.exit(status if isinstance(status, int) else 0)


def _fail(faults: list[str], status: int = 1) -> int:
    for fault in faults[:MAX_FAULTS]:
        print(printable(fault), file=sys.stderr)
    if len(faults) > MAX_FAULTS:
        print(f"... and {len(faults) - MAX_FAULTS} more", file=sys.stderr)
    return status
