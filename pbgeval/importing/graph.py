"""Files of edges with names -> a folder with a partitioned graph in PyTorch-BigGraph's formats.

FOLDER/entity    dictionaries, unless those of an earlier import are reused
FOLDER/<name>    the buckets of each name's files of edges; `unknown.tsv` where a dictionary lacks names
FOLDER/import.json    what was read, written, left out

The folder appears once all of it is written. Memory is bounded, whatever the size of the graph.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from attrs import asdict, field, frozen

from pbgeval.errors import ConfigError, OutputError, StorageError, raise_first
from pbgeval.importing.dictionaries import (
    Partitioning,
    RelationTypes,
    Sizes,
    is_of_labels,
    make_entities,
    make_relations,
    read_dictionaries,
    write_dictionaries,
    write_labels,
)
from pbgeval.importing.edge_files import ColumnForm, load_edges
from pbgeval.importing.engine import Engine
from pbgeval.importing.placement import UNKNOWN, ImportedEdges, KnownNames, place_edges, refuse_unknown
from pbgeval.progress import Observer
from pbgeval.storage.text import json_text, listed, one_line, partitions, plural
from pbgeval.storage.writing import new_folder, remove_folder, write_atomically

_COUNTS = "import.json"
_SCRATCH = ".scratch"


@frozen
class GraphFiles:
    """The files to import, and how to number their entities."""

    edges: Mapping[str, Sequence[Path]]  # files by the name of the folder that their buckets get
    form: ColumnForm = field(factory=ColumnForm)
    types: RelationTypes | None = None  # None: one entity type, `all`
    partitioning: Partitioning = field(factory=Partitioning)
    dictionary: Path | None = None  # entity folder of an earlier import, in place of new dictionaries
    dictionary_of: Sequence[str] = ()  # whose edges make the dictionaries; empty: all
    skip_unknown: bool = True  # edges with names that the dictionaries lack


def import_graph(files: GraphFiles, folder: Path, memory_bytes: int | None, observer: Observer) -> Sequence[str]:
    """Write a graph.

    Args:
        files: what to read.
        folder: new, or empty.
        memory_bytes: that this process may take; None: most of the host's.
        observer: is told how far the work is.

    Returns:
        What was written, a line each.

    Raises:
        EvalError: what is wrong with a file, or that something cannot be written; then nothing is left of it.
    """
    _check(files, folder)
    with new_folder(folder) as target:
        with Engine(target / _SCRATCH, memory_bytes, observer) as engine:
            sizes, imported = _import(engine, files, target, observer)
            num_relations = engine.num_rows("relations")
        remove_folder(target / _SCRATCH)
        document = {
            "edges": {
                name: {"files": [str(path) for path in files.edges[name]]} | counts.to_dict()
                for name, counts in imported.items()
            },
            "entities": sizes,
            "partitioning": (
                asdict(files.partitioning) if files.dictionary is None else {"entities": str(files.dictionary)}
            ),
            "dictionary_of": list(files.dictionary_of or files.edges) if files.dictionary is None else [],
        }
        write_atomically(target / _COUNTS, json_text(document))
    return _lines(files, folder, sizes, num_relations, imported)


def _check(files: GraphFiles, folder: Path) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise OutputError(f"{folder}: the folder is not empty; choose a new or empty one")
    raise_first(
        ConfigError,
        (not files.edges, "--edges: give at least one NAME=FILE"),
        *(
            (
                not name or "/" in name or name.startswith(".") or name in ("entity", _COUNTS),
                f"--edges {name}: {name} cannot be the name of a folder of edges; choose another",
            )
            for name in files.edges
        ),
        *(
            (
                name not in files.edges,
                f"--dictionary-of {name}: there are no such edges; choose from {', '.join(files.edges)}",
            )
            for name in files.dictionary_of
        ),
        (
            files.dictionary is not None and files.dictionary_of,
            "--dictionary and --dictionary-of cannot be combined; remove one of them",
        ),
    )
    if files.dictionary is None:
        files.partitioning.check((files.types or RelationTypes()).entity_types)


def _import(
    engine: Engine, files: GraphFiles, target: Path, observer: Observer
) -> tuple[Sizes, dict[str, ImportedEdges]]:
    tables = {name: f"edges_{index}" for index, name in enumerate(files.edges)}
    types = files.types or RelationTypes()
    if files.dictionary is not None:  # before hours of reading
        observer.step(f"reading the dictionary {files.dictionary}")
        types, sizes = _read_dictionary(engine, files.dictionary, files.types)
    for name, paths in files.edges.items():
        for path in paths:
            observer.step(f"reading {path}")
            load_edges(engine, tables[name], path, files.form)
    if files.dictionary is None:
        observer.step("numbering entities")
        chosen = [tables[name] for name in files.dictionary_of or files.edges]
        make_relations(engine, chosen, types)
        sizes = make_entities(engine, chosen, types, files.partitioning)
        write_dictionaries(engine, target / "entity", types, sizes)
        (num_shared,) = engine.row("SELECT count(DISTINCT name) FROM relations JOIN entities USING (name)")
        if num_shared > 1 and num_shared >= engine.num_rows("relations") / 10:  # as where a column is taken for another
            observer.warn(f"{num_shared:,} names are both entities and relations; {files.form.reading}")
    imported = {}
    for name, table in tables.items():
        observer.step(f"writing edges {name}")
        known = KnownNames(files.dictionary or Path(", ".join(files.dictionary_of)), files.form.reading)
        imported[name] = counts = place_edges(engine, table, types, sizes, target / name, known)
        if not files.skip_unknown:
            refuse_unknown(f"--edges {name}", counts, target / name, known, engine)
    return sizes, imported


def _read_dictionary(engine: Engine, folder: Path, types: RelationTypes | None) -> tuple[RelationTypes, Sizes]:
    if not is_of_labels(folder):
        return read_dictionaries(engine, folder, types)
    names = (types or RelationTypes()).entity_types
    written = engine.folder / "labels"
    label_files = write_labels(folder, written, dict.fromkeys(names), None)
    return read_dictionaries(engine, written, types, made_of=folder, label_files=label_files)


def _lines(
    files: GraphFiles, folder: Path, sizes: Sizes, num_relations: int, imported: Mapping[str, ImportedEdges]
) -> list[str]:
    of = files.dictionary or folder / "entity"
    lines = [
        *(
            f"{of}: {plural(sum(parts), 'entity', 'entities')} of type {name} in {partitions(parts)}"
            for name, parts in sizes.items()
        ),
        f"{of}: {plural(num_relations, 'relation')}",
    ]
    for name, counts in imported.items():
        repeated = f", {counts.num_repeated:,} of them duplicates" if counts.num_repeated else ""
        lines.append(
            f"{folder / name}: {plural(counts.num_written, 'edge')} in {plural(counts.num_buckets, 'bucket')}{repeated}"
        )
        if counts.num_left_out:
            lines.append(
                f"{folder / name / UNKNOWN}: {plural(counts.num_left_out, 'edge')} skipped ({counts.unknown_names})"
            )
    return lines


# Files of edges by name, and dictionaries that exist -> folders of buckets, each made whole or not at all.
#
# A folder that is made holds the buckets in a folder with the file's name, and `import.json` beside it.


@frozen
class Dictionary:
    """The names that give entities and relations their numbers."""

    folder: Path  # of entity_names_<type>_<part>.json, or the model whose labels they have
    files: Path  # folder where they are
    types: RelationTypes
    relations: tuple[str, ...]  # their names, in the order of their ids
    sizes: Sizes  # how many entities of each partition must have a name
    rows: Mapping[str, str] = {}  # of `KnownNames`
    label_files: tuple[Path, ...] = ()  # of which `files` was made


@frozen
class NamedFiles:
    """The files to split into buckets."""

    of_folder: Mapping[Path, Path]  # the file of each folder that is to be made
    evaluated: Collection[Path]  # files in which every name must be known; of others, what is unknown is left out
    dictionary: Dictionary
    form: ColumnForm = field(factory=ColumnForm)

    @property
    def known(self) -> KnownNames:
        """Whose names are known, for messages."""
        dictionary = self.dictionary
        of_model = dictionary.folder != dictionary.files
        command = "import-model" if of_model else "import-graph --dictionary"
        advice = f"kgeval-dist {command} skips such edges and lists the names"
        if of_model and dictionary.types.other is None:
            advice = "remove these edges or correct the names"  # import-model has no model of several types
        return KnownNames(dictionary.folder, self.form.reading, dictionary.rows, advice, of_model)


def split_files(files: NamedFiles, memory_bytes: int | None, observer: Observer) -> None:
    """Make all folders; edges keep the order of their file within a bucket.

    Raises:
        EvalError: what is wrong with a file or a dictionary, or that something cannot be written; then no folder is
            made.
    """
    dictionary = files.dictionary
    with ExitStack() as folders:
        targets = {folder: folders.enter_context(new_folder(folder)) for folder in files.of_folder}
        scratch = next(iter(targets.values())) / _SCRATCH
        with Engine(scratch, memory_bytes, observer) as engine:
            observer.step(f"reading the dictionary {dictionary.folder}")
            types, sizes = read_dictionaries(
                engine,
                dictionary.files,
                dictionary.types,
                dictionary.relations,
                dictionary.folder,
                dictionary.label_files,
            )
            raise_first(  # the rows of another graph would be those of other vectors
                StorageError,
                *(
                    (
                        list(expected) != sizes[entity_type],
                        f"{dictionary.folder}: names of {listed(list(map(str, sizes[entity_type])))} entities of type "
                        f"{entity_type} (by partition), but the checkpoint has {listed(list(map(str, expected)))} "
                        "vectors; set dictionary_path to the names of this checkpoint",
                    )
                    for entity_type, expected in dictionary.sizes.items()
                ),
            )
            for folder, path in files.of_folder.items():
                observer.step(f"reading {path}")
                load_edges(engine, "edges", path, files.form)
                observer.step(f"writing edges {path.name}")
                counts = place_edges(engine, "edges", types, sizes, targets[folder] / path.name, files.known)
                if path in files.evaluated:
                    refuse_unknown(str(path), counts, targets[folder] / path.name, files.known, engine)
                write_atomically(targets[folder] / _COUNTS, json_text(counts.to_dict()))
        remove_folder(scratch)


def counts_of(folder: Path, name: str) -> ImportedEdges:
    """Return the counts of the file with this name, whose buckets are in a folder.

    Raises:
        StorageError: the folder is not as it was made.
    """
    try:
        found = json.loads((folder / _COUNTS).read_text(encoding="utf-8"))
        counts = ImportedEdges(**{key: int(value) for key, value in found.items() if key != "num_left_out"})
        num_buckets = sum(path.suffix == ".h5" for path in (folder / name).iterdir())
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise StorageError(
            f"{folder}: cannot read the buckets of {name}: {one_line(error)}; remove the folder"
        ) from error
    if num_buckets != counts.num_buckets:
        raise StorageError(f"{folder}: {num_buckets} of {counts.num_buckets} buckets of {name}; remove the folder")
    return counts


def is_made(folder: Path) -> bool:
    """Check whether `split_files` made a folder (links do not count)."""
    try:
        found = json.loads((folder / _COUNTS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return not folder.is_symlink() and isinstance(found, dict) and {"num_buckets", "num_left_out"} <= found.keys()
