"""The commands `import-model` and `import-graph`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from pbgeval.command_line.options import (
    EdgeColumns,
    EdgeComment,
    EdgeDelimiter,
    EdgeFilesByName,
    MaxMemory,
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
    edge_columns: EdgeColumns = None,
    delimiter: EdgeDelimiter = None,
    comment: EdgeComment = None,
    entities: Annotated[
        Path | None,
        typer.Option(
            "--entities", metavar="FILE", help="File of labels of the entities [default: those of the model]."
        ),
    ] = None,
    relations: Annotated[
        Path | None,
        typer.Option(
            "--relations",
            metavar="FILE",
            help="File of labels of the relations [default: those of the model].",
        ),
    ] = None,
    unknown: Unknown = "skip",
    trust_pickle: Annotated[
        bool,
        typer.Option("--trust-pickle", help="Unpickle the model file. This can execute any code in it."),
    ] = False,
    max_memory: MaxMemory = None,
    quiet: Quiet = False,
) -> None:
    """Convert a model of DGL-KE, LibKGE or plain arrays.

    Writes a checkpoint in PyTorch-BigGraph's format, the edges, and a config file that evaluates them. Edges are text
    or Parquet, as for import-graph, with the model's labels (without labels, and in .del: numbers of rows), or .npy
    arrays of numbers of rows.
    """
    from pbgeval.importing.model import EdgeFiles
    from pbgeval.importing.model import import_model as write
    from pbgeval.models.opening import open_model
    from pbgeval.storage.edge_columns import EdgeForms

    paths = _named_files(edges)
    forms = EdgeForms.parse(edge_columns or [], paths, delimiter, comment)
    files = EdgeFiles(paths, forms, entities, relations, skip_unknown=unknown == "skip")
    opened, memory_bytes = open_model(model, trust_pickle=trust_pickle), _bytes_of(max_memory)
    _import(lambda observer: write(opened, output, partitions, files, memory_bytes, observer), output, quiet)


def import_graph(
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="DIR", help="New folder for the entities and the edges.")
    ],
    edges: EdgeFilesByName,
    partitions: PartitionsOfTypes = None,
    edge_columns: EdgeColumns = None,
    delimiter: EdgeDelimiter = None,
    comment: EdgeComment = None,
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
    max_memory: MaxMemory = None,
    quiet: Quiet = False,
) -> None:
    """Convert edges with names to a partitioned graph.

    Reads text with tabs (.tsv, .txt, .del), .csv or Parquet. A name may have several files.
    """
    from pbgeval.importing.dictionaries import Partitioning, RelationTypes, partition_counts
    from pbgeval.importing.graph import GraphFiles
    from pbgeval.importing.graph import import_graph as write
    from pbgeval.storage.edge_columns import EdgeForms

    paths = _named_files(edges)
    files = GraphFiles(
        paths,
        EdgeForms.parse(edge_columns or [], paths, delimiter, comment),
        None if types is None else RelationTypes.read(types),
        Partitioning(*partition_counts(partitions or []), balance == "degree", seed),
        dictionary,
        dictionary_of or (),
        skip_unknown=unknown == "skip",
    )
    _import(partial(write, files, output, _bytes_of(max_memory)), output, quiet)


def _bytes_of(max_memory: str | None) -> int | None:
    return None if max_memory is None else parse_memory(max_memory)


def _import(write: Callable[[Observer], Sequence[str]], output: Path, quiet: bool) -> None:
    from pbgeval.cluster.signals import ended_by_signals
    from pbgeval.report.console import ConsoleObserver

    observer = ConsoleObserver(quiet)
    try:
        with ended_by_signals():
            lines = write(observer)
    except KeyboardInterrupt:
        raise IncompleteError(
            f"{output}: the import was interrupted and nothing of it is left; run the same command again"
        ) from None
    finally:
        observer.finished()
    if not quiet:
        print("\n".join(map(printable, lines)))


def _named_files(texts: list[str]) -> dict[str, list[Path]]:
    files: dict[str, list[Path]] = {}
    for text in texts:
        name, _, file = text.partition("=")
        if not (name and file):
            raise ConfigError(f"--edges {text}: expected NAME=FILE, for example test=test.tsv")
        files.setdefault(name, []).append(Path(file))
    return files
