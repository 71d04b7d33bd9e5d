"""Files of edges with names -> a folder with a partitioned graph in PyTorch-BigGraph's formats.

FOLDER/entity    dictionaries, unless those of an earlier import are reused
FOLDER/<name>    the buckets of each name's files of edges; `unknown.tsv` where a dictionary lacks names
FOLDER/import.json    what was read, written, left out

The folder appears once all of it is written. Memory is bounded, whatever the size of the graph.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from attrs import asdict, field, fields_dict, frozen

from pbgeval.errors import ConfigError, StorageError
from pbgeval.importing.dictionaries import (
    Partitioning,
    RelationTypes,
    Sizes,
    is_of_labels,
    make_entities,
    make_relations,
    names_that_look_alike,
    read_dictionaries,
    write_dictionaries,
    write_labels,
)
from pbgeval.importing.edge_files import OpenedEdges, load_edges, open_edges
from pbgeval.importing.engine import Engine
from pbgeval.importing.placement import (
    SKIP_BY_KEY,
    ImportedEdges,
    KnownNames,
    place_edges,
    refuse_unknown,
    unknown_kinds,
)
from pbgeval.progress import Observer
from pbgeval.storage.edge_columns import ColumnForm, EdgeForms
from pbgeval.storage.json_files import parse_json
from pbgeval.storage.left_out import UNKNOWN
from pbgeval.storage.names_digests import NamesDigests
from pbgeval.storage.text import (
    edge_file_type,
    fingerprint,
    json_text,
    listed,
    one_line,
    partitions,
    plural,
    read_bytes,
)
from pbgeval.storage.writing import check_empty, new_folder, remove_folder, write_atomically

_COUNTS = "import.json"
_SCRATCH = ".scratch"


@frozen
class GraphFiles:
    """The files to import, and how to number their entities."""

    edges: Mapping[str, Sequence[Path]]  # files by the name of the folder that their buckets get
    forms: EdgeForms = field(factory=EdgeForms)
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
    check_empty(folder)
    if not files.edges:
        raise ConfigError("--edges: give at least one NAME=FILE")
    for name in files.edges:
        if not name or "/" in name or name.startswith(".") or name in ("entity", _COUNTS):
            raise ConfigError(f"--edges {name}: {name} cannot be the name of a folder of edges; choose another")
    for name in files.dictionary_of:
        if name not in files.edges:
            raise ConfigError(f"--dictionary-of {name}: there are no such edges; choose from {', '.join(files.edges)}")
    if files.dictionary is not None and files.dictionary_of:
        raise ConfigError("--dictionary and --dictionary-of cannot be combined; remove one of them")
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
        digests = NamesDigests.read(files.dictionary) or NamesDigests()
        relations = [str(row[0]) for row in engine.run("SELECT name FROM relations ORDER BY id")]
    else:
        relations = [name for name, _, _ in types.listed]
    opened = {  # before hours of reading, too
        name: [open_edges(engine, path, files.forms.of(path, name)) for path in paths]
        for name, paths in files.edges.items()
    }
    for name, of_name in opened.items():
        relation = _only_relation(of_name, relations, str(files.dictionary or types.path))
        for file in of_name:
            observer.step(f"reading {file.path}")
            for warning in load_edges(engine, tables[name], file, relation):
                observer.warn(warning)
    if files.dictionary is None:
        observer.step("numbering entities")
        chosen = [tables[name] for name in files.dictionary_of or files.edges]
        make_relations(engine, chosen, types)
        sizes = make_entities(engine, chosen, types, files.partitioning)
        digests = write_dictionaries(engine, target / "entity", types, sizes)
        digests.write(target / "entity")
        (num_shared,) = engine.row("SELECT count(DISTINCT name) FROM relations JOIN entities USING (name)")
        if num_shared > 1 and num_shared >= engine.num_rows("relations") / 10:  # as where a column is taken for another
            reading = next(iter(opened.values()))[0].form.reading
            observer.warn(f"{num_shared:,} names are both entities and relations; {reading}")
        for warning in names_that_look_alike(engine):
            observer.warn(warning)
    imported = {}
    for name, table in tables.items():
        observer.step(f"writing edges {name}")
        of = files.dictionary or Path(", ".join(files.dictionary_of))
        known = KnownNames(of, opened[name][0].form.reading)
        imported[name] = counts = place_edges(engine, table, types, sizes, target / name, known, observer.warn)
        digests.write(target / name)
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

    @property
    def numbered(self) -> Sizes:
        """Partitions of the types whose names are the numbers of rows."""
        return {name: parts for name, parts in self.sizes.items() if f"entity:{name}" in self.rows}

    def known(self, columns: str, advice: str) -> KnownNames:
        """Describe the names for messages.

        Args:
            columns: how those of the edges are read.
            advice: what to do about edges with other names.
        """
        return KnownNames(self.folder, columns, self.rows, advice, of_model=self.folder != self.files)


@frozen
class Dictionaries:
    """The dictionary of all files, and the one of files that hold numbers of rows although there are labels."""

    of_names: Dictionary
    of_numbers: Dictionary | None = None

    def of(self, path: Path) -> Dictionary:
        """Return the dictionary of a file: LibKGE's `.del` has numbers."""
        if self.of_numbers is not None and edge_file_type(path) == "del":
            return self.of_numbers
        return self.of_names


@frozen
class EdgesToSplit:
    """Files that become the buckets of one folder."""

    what: str  # they are called in messages
    files: Sequence[tuple[Path, ColumnForm]]
    target: Path
    dictionary: Dictionary
    refuses_unknown: bool  # names; else such edges are left out
    advice: str = SKIP_BY_KEY  # what to do about them


@frozen
class SplitEdges:
    """What became of some files."""

    counts: ImportedEdges
    warnings: Sequence[str]  # of the files


def split_edges(engine: Engine, edges: Sequence[EdgesToSplit], observer: Observer) -> list[SplitEdges]:
    """Write buckets; edges keep the order of their files.

    Raises:
        EvalError: what is wrong with a file or a dictionary, or that something cannot be written.
    """
    opened = [[open_edges(engine, path, form) for path, form in one.files] for one in edges]  # before long reading
    found = []
    loaded: Dictionary | None = None
    for one, files in zip(edges, opened, strict=True):
        if loaded is not one.dictionary:
            observer.step(f"reading the dictionary {one.dictionary.folder}")
            types, sizes = _load_dictionary(engine, one.dictionary)
            loaded = one.dictionary
        form = one.files[0][1]
        relation = _only_relation(files, list(loaded.relations), str(loaded.folder))
        warnings: list[str] = []
        for file in files:
            observer.step(f"reading {file.path}")
            warnings += load_edges(engine, "edges", file, relation)
        observer.step(f"writing edges {one.target.name}")
        known = loaded.known(form.reading, one.advice)
        counts = place_edges(engine, "edges", types, sizes, one.target, known, warnings.append)
        is_beyond = bool(loaded.rows) and not loaded.rows.keys().isdisjoint(unknown_kinds(one.target))
        if one.refuses_unknown or is_beyond:  # ids that the model lacks are not names that it does not know
            refuse_unknown(one.what, counts, one.target, known, engine, warnings)
        found.append(SplitEdges(counts, warnings))
    return found


def _load_dictionary(engine: Engine, dictionary: Dictionary) -> tuple[RelationTypes, Sizes]:
    for table in ("entities", "relations"):
        engine.run(f"DROP TABLE IF EXISTS {table}")
    types, sizes = read_dictionaries(
        engine,
        dictionary.files,
        dictionary.types,
        dictionary.relations,
        dictionary.folder,
        dictionary.label_files,
        numbered=dictionary.numbered,
    )
    for entity_type, expected in dictionary.sizes.items():
        if list(expected) != sizes[entity_type]:  # the rows of another graph would be those of other vectors
            raise StorageError(
                f"{dictionary.folder}: names of {listed(list(map(str, sizes[entity_type])))} entities of type "
                f"{entity_type} (by partition), but the checkpoint has {listed(list(map(str, expected)))} "
                "vectors; set dictionary_path to the names of this checkpoint"
            )
    return types, sizes


def _only_relation(files: Sequence[OpenedEdges], names: Sequence[str], dictionary: str) -> str | None:
    """Return what the relation of files without one is called.

    Raises:
        ConfigError: there are several to choose from.
    """
    without = [file for file in files if "rel" not in file.form.columns]
    if not without or not names:
        return None
    if len(names) > 1:
        raise ConfigError(
            f"{without[0].path}: read without a column of relations ({without[0].form.flag}), but {dictionary} has "
            f"{len(names)} relations; name the column"
        )
    return names[0]


@frozen
class NamedFiles:
    """The files to split into buckets."""

    of_folder: Mapping[Path, Path]  # the file of each folder that is to be made
    evaluated: Collection[Path]  # files in which every name must be known; of others, what is unknown is left out
    dictionaries: Dictionaries
    forms: EdgeForms = field(factory=EdgeForms)

    def known(self, path: Path) -> KnownNames:
        """Whose names are known, for messages about a file."""
        return self.dictionaries.of(path).known(self.forms.of(path).reading, SKIP_BY_KEY)


def split_files(files: NamedFiles, memory_bytes: int | None, observer: Observer) -> None:
    """Make all folders; edges keep the order of their file within a bucket.

    Raises:
        EvalError: what is wrong with a file or a dictionary, or that something cannot be written; then no folder is
            made.
    """
    with ExitStack() as folders:
        targets = {folder: folders.enter_context(new_folder(folder)) for folder in files.of_folder}
        scratch = next(iter(targets.values())) / _SCRATCH
        with Engine(scratch, memory_bytes, observer) as engine:
            edges = [
                EdgesToSplit(
                    str(path),
                    [(path, files.forms.of(path))],
                    targets[folder] / path.name,
                    files.dictionaries.of(path),
                    path in files.evaluated,
                )
                for folder, path in files.of_folder.items()
            ]
            found = split_edges(engine, edges, observer)
            for (folder, path), of in zip(files.of_folder.items(), found, strict=True):
                made = {"file": fingerprint(path), "warnings": list(of.warnings)}
                write_atomically(targets[folder] / _COUNTS, json_text(of.counts.to_dict() | made))
        remove_folder(scratch)


def made_from(folder: Path, name: str) -> SplitEdges:
    """Return what became of the file with this name, whose buckets are in a folder.

    Raises:
        StorageError: the folder is not as it was made.
    """
    try:
        found = parse_json(read_bytes(folder / _COUNTS))
        counts = ImportedEdges(**{key: int(found[key]) for key in fields_dict(ImportedEdges)})
        warnings = [str(warning) for warning in found["warnings"]]
        num_buckets = sum(path.suffix == ".h5" for path in (folder / name).iterdir())
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise StorageError(
            f"{folder}: cannot read the buckets of {name}: {one_line(error)}; remove the folder"
        ) from error
    if num_buckets != counts.num_buckets:
        raise StorageError(f"{folder}: {num_buckets} of {counts.num_buckets} buckets of {name}; remove the folder")
    return SplitEdges(counts, warnings)


def is_made(folder: Path) -> bool:
    """Check whether `split_files` made a folder (links do not count)."""
    try:
        found = parse_json(read_bytes(folder / _COUNTS))
    except (OSError, ValueError):
        return False
    return not folder.is_symlink() and isinstance(found, dict) and {"num_buckets", "num_left_out"} <= found.keys()
