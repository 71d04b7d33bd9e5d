"""The commands `import-model` and `import-graph`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from pbgeval.command_line.options import (
    EdgeColumns,
    EdgeFilesByName,
    PartitionsOfTypes,
    Quiet,
    TypesOfRelations,
    Unknown,
)
from pbgeval.errors import ConfigError, IncompleteError
from pbgeval.storage.text import parse_memory, printable

if TYPE_CHECKING:
    from pbgeval.progress import Observer


def import_model(
    model: Annotated[
        Path,
        typer.Argument(metavar="MODEL", help="DGL-KE folder, LibKGE checkpoint (.pt), or folder of plain arrays."),
    ],
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="DIR", help="New folder for the checkpoint, entities, edges and eval.py."
        ),
    ],
    partitions: Annotated[
        int, typer.Option("--partitions", min=1, metavar="N", help="Number of entity partitions.")
    ] = 1,
    edges: EdgeFilesByName = [],  # noqa: B006 - typer copies it
    edge_columns: Annotated[
        str,
        typer.Option(
            "--edge-columns",
            metavar="hrt",
            help="Column order of the edges: h head, r relation, t tail.",
        ),
    ] = "hrt",
    entities: Annotated[
        Path | None,
        typer.Option("--entities", metavar="FILE", help="File of labels of the entities [default: edges contain ids]."),
    ] = None,
    relations: Annotated[
        Path | None,
        typer.Option(
            "--relations",
            metavar="FILE",
            help="File of labels of the relations [default: edges contain ids].",
        ),
    ] = None,
    unknown: Unknown = "skip",
    trust_pickle: Annotated[
        bool,
        typer.Option("--trust-pickle", help="Unpickle the model file. This can execute any code in it."),
    ] = False,
) -> None:
    """Convert a model of DGL-KE, LibKGE or plain arrays.

    Writes a checkpoint in PyTorch-BigGraph's format, the edges, and a config file that evaluates them.
    Edges are text with three columns, or .npy arrays of integers.
    """
    from pbgeval.importing.model import EdgeFiles
    from pbgeval.importing.model import import_model as write
    from pbgeval.models.opening import open_model

    last_of = {name: paths[-1] for name, paths in _named_files(edges).items()}
    files = EdgeFiles(last_of, edge_columns, entities, relations, skip_unknown=unknown == "skip")
    for line in write(open_model(model, trust_pickle=trust_pickle), output, partitions, files):
        print(printable(line))


def import_graph(
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="DIR", help="New folder for the entities and the edges.")
    ],
    edges: EdgeFilesByName,
    partitions: PartitionsOfTypes = None,
    edge_columns: EdgeColumns = None,
    types: TypesOfRelations = None,
    balance: Annotated[
        Literal["random", "degree"], typer.Option("--balance", help="How entities are assigned to partitions.")
    ] = "random",
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Seed for --balance random.")] = 0,
    dictionary: Annotated[
        Path | None,
        typer.Option(
            "--dictionary",
            metavar="DIR",
            help="Entity folder, or folder of files of labels, whose ids to reuse [default: assign new ids].",
        ),
    ] = None,
    dictionary_of: Annotated[
        list[str] | None,
        typer.Option(
            "--dictionary-of",
            metavar="NAME",
            help="Assign ids only to the names in these edges. Repeatable [default: all edges].",
        ),
    ] = None,
    unknown: Unknown = "skip",
    max_memory: Annotated[
        str | None,
        typer.Option(
            "--max-memory", metavar="SIZE", help="Memory limit, for example 4GB [default: most of the host's memory]."
        ),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Convert edges with names to a partitioned graph.

    Reads text with tabs, .csv or Parquet. A name may have several files.
    """
    from pbgeval.importing.dictionaries import Partitioning, RelationTypes, partition_counts
    from pbgeval.importing.edge_files import ColumnForm
    from pbgeval.importing.graph import GraphFiles
    from pbgeval.importing.graph import import_graph as write

    files = GraphFiles(
        _named_files(edges),
        ColumnForm.parse(edge_columns),
        None if types is None else RelationTypes.read(types),
        Partitioning(*partition_counts(partitions or []), balance == "degree", seed),
        dictionary,
        dictionary_of or (),
        skip_unknown=unknown == "skip",
    )
    lines = _import(
        partial(write, files, output, None if max_memory is None else parse_memory(max_memory)), output, quiet
    )
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
            f"{output}: the import was interrupted and nothing of it is left; run the same command again"
        ) from None
    finally:
        observer.finished()


def _named_files(texts: list[str]) -> dict[str, list[Path]]:
    files: dict[str, list[Path]] = {}
    for text in texts:
        name, _, file = text.partition("=")
        if not (name and file):
            raise ConfigError(f"--edges {text}: expected NAME=FILE, for example test=test.tsv")
        files.setdefault(name, []).append(Path(file))
    return files
