"""Paths of a config that name files of edges -> folders of buckets, made once; a config that names those.

They go to `imported` in the output directory, or beside all output directories where its name is not given, as that
follows from the buckets. A folder is named by what it was made of, so a run that goes on, or another one of the same
files, finds it there, and buckets of a file that has changed are made anew.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pbgeval.cluster.signals import ended_by_signals
from pbgeval.config import EvalConfig, names_file_of_edges
from pbgeval.errors import ConfigError, EvalError, IncompleteError, OutputError, StorageError
from pbgeval.importing.dictionaries import RelationTypes, Sizes, is_of_labels, write_labels
from pbgeval.importing.edge_files import ColumnForm
from pbgeval.importing.graph import Dictionary, NamedFiles, counts_of, is_made, split_files
from pbgeval.importing.model import write_dictionary
from pbgeval.importing.placement import UNKNOWN, refuse_unknown
from pbgeval.inputs.opening import Inputs, edge_paths, needs_time, open_inputs, with_edge_paths
from pbgeval.models.model import EmbeddingModel
from pbgeval.progress import Observer
from pbgeval.report.output import IMPORTED
from pbgeval.storage.arrays import path_of
from pbgeval.storage.entities import read_relation_names
from pbgeval.storage.text import fingerprint, listed
from pbgeval.storage.writing import files_below, remove_files, remove_if_empty, temporary_folder

DEFAULT_OUTPUTS = Path("results")  # in the working directory: where outputs are whose name is not given
_FORMAT = 1  # of what is made: another one is made anew
_MADE = re.compile(r"[0-9a-f]{16}")
_FILES_MADE = re.compile(rf"import\.json|[^/]+/(?:edges_[0-9]+_[0-9]+\.h5|{re.escape(UNKNOWN)})")


@contextmanager
def buckets_of_files(config: EvalConfig, output: Path | None, observer: Observer) -> Iterator[EvalConfig]:
    """Split the files of edges that a config names into buckets; yield the config that names their folders instead.

    After a fault, here or in the context, nothing is left of what was made.

    Args:
        config: checked.
        output: the output directory; None: the default one.
        observer: is told how it goes, and warned of known edges that are left out.

    Raises:
        EvalError: what is wrong with a file of edges, the dictionary or any other input.
        IncompleteError: a signal has ended it.
    """
    paths = files_of_edges(config)
    if not paths:
        yield config
        return
    store = ((output or DEFAULT_OUTPUTS) / IMPORTED).absolute()
    absent = [place for place in (store, *store.parents) if not place.exists()]
    earlier = (
        [] if output is None or absent else [place.name for place in store.iterdir() if _MADE.fullmatch(place.name)]
    )
    others = [] if output is None else [output.absolute().parent / IMPORTED]
    with temporary_folder() as labels:
        files, folder_of = _plan(config, paths, [store, *others], labels)
        if files.of_folder and output is not None and output.exists() and not output.is_dir():
            raise OutputError(f"{output}: this is a file, not a directory; choose another output")
        try:
            if files.of_folder:
                _split(files, config.max_memory_bytes, observer)
            _look_at_unknown(files, folder_of, observer)
            of_path = {str(path): str(folder / path.name) for path, folder in folder_of.items()}
            yield with_edge_paths(config, lambda path: of_path.get(path, path), dictionary_path=None, edge_columns=None)
        except EvalError as error:
            if not isinstance(error, IncompleteError):
                _remove_made(store, [folder.name for folder in files.of_folder])
                for place in absent:  # innermost first
                    remove_if_empty(place)
            raise
    used = {folder.name for folder in folder_of.values()}
    _remove_made(store, [name for name in earlier if name not in used])  # of earlier versions of the files


def _split(files: NamedFiles, memory_bytes: int | None, observer: Observer) -> None:
    try:
        with ended_by_signals():
            split_files(files, memory_bytes, observer)
    except OutputError:
        if not all(folder.is_dir() for folder in files.of_folder):
            raise
        # Another run of the same files was faster; what it made is the same.
    finally:
        observer.finished()


def files_of_edges(config: EvalConfig) -> list[Path]:
    """Return each file of text or Parquet among the paths of edges once, those that are evaluated first."""
    return [Path(path) for path in edge_paths(config) if names_file_of_edges(path) and os.path.isfile(path)]


def _plan(
    config: EvalConfig, paths: list[Path], stores: list[Path], labels: Path
) -> tuple[NamedFiles, dict[Path, Path]]:
    """Find out what is there already; return what is to be made, and the folder of each file.

    All else that can be wrong is found before: splitting may take long.
    """
    form = ColumnForm.parse(config.edge_columns, "edge_columns")
    if "time" not in form.columns and any(needs_time(config, str(path)) for path in paths):
        key = next((of for of in ("time_window", "known_until") if getattr(config, of) is not None), "breakdowns: time")
        raise ConfigError(
            f"edge_columns: no column s (time), which {key} needs; add it, as in 'hrts', or as a fifth name"
        )
    without = {str(path) for path in paths}
    # Candidates are of edges.
    inputs = open_inputs(with_edge_paths(config, lambda path: None if path in without else path, candidate_path=None))
    dictionary = _dictionary(config, inputs, labels)
    common = _digests(dictionary, config)
    folder_of: dict[Path, Path] = {}
    for path in paths:
        made_of = {"file": [path.name, fingerprint(path)], "columns": config.edge_columns, **common}
        name = hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()[:16]
        places = [store / name for store in stores]
        folder_of[path] = next((place for place in places if place.is_dir()), places[0])
    missing = {folder: path for path, folder in folder_of.items() if not folder.is_dir()}
    evaluated = [path for path in paths if str(path) in config.edge_paths]
    return NamedFiles(missing, evaluated, dictionary, form), folder_of


def _dictionary(config: EvalConfig, inputs: Inputs, labels: Path) -> Dictionary:
    """Return the dictionary that numbers the entities and relations of the config.

    Args:
        config: checked.
        inputs: without the files of edges.
        labels: an empty folder, for the labels of a model that has no dictionary.

    Raises:
        ConfigError: a type or a relation cannot be found by name.
        StorageError: names are missing, or there are too many or too few.
    """
    sizes = {
        name: [inputs.embeddings[name, part].num_rows for part in range(config.entities[name].num_partitions)]
        for name in config.used_entity_types
    }
    folder, files, rows, label_files = _named(config, inputs, sizes, labels)
    featurized = [name for name in config.used_entity_types if config.entities[name].featurized]
    if featurized:
        raise ConfigError(
            f"edge_paths: expected folders of buckets, as entity type {featurized[0]!r} is featurized, found a file; "
            "an entity that is a set of features has no name to be found by"
        )
    types = {relation.name: (relation.lhs, relation.rhs) for relation in config.relations}
    if config.dynamic_relations:
        (pair,) = types.values()
        named = read_relation_names(files)
        if named is None or len(named) != inputs.num_relations:
            found = "no such file" if named is None else f"{len(named)} names"
            raise StorageError(
                f"{files / 'dynamic_rel_names.json'}: {found}; edges by name need the names of all "
                f"{inputs.num_relations} relations: set dictionary_path to their folder"
            )
        return Dictionary(folder, files, RelationTypes(other=pair), tuple(named), sizes, rows, label_files)
    if len(types) < len(config.relations):
        names = [relation.name for relation in config.relations]
        again = sorted({name for name in names if names.count(name) > 1})
        raise ConfigError(
            f"relations: expected each name once, as edges are given by name, found {listed(again)} again; number the "
            "edges with kgeval-dist import-graph --types"
        )
    listed_types = RelationTypes(tuple((name, *pair) for name, pair in types.items()), None)
    return Dictionary(folder, files, listed_types, tuple(types), sizes, rows, label_files)


def _named(
    config: EvalConfig, inputs: Inputs, sizes: Sizes, labels: Path
) -> tuple[Path, Path, Mapping[str, str], tuple[Path, ...]]:
    """Find the names; of files of labels, write dictionaries.

    Returns:
        `folder`, `files`, `rows` and `label_files` of `Dictionary`.
    """
    folder, model = Path(config.dictionary_path or config.entity_path), inputs.model
    if isinstance(model, EmbeddingModel) and config.dictionary_path is None and not any(folder.glob("entity_names_*")):
        if len(model.entity_labels) < len(model.tables) or model.relation_names() is None:
            raise StorageError(
                f"{model.label}: edges given by name need the model's entities.tsv and relations.tsv, which are not"
                " there; add them (one label per line, in the order of the rows), set dictionary_path, or give the"
                " edges as row numbers in an array (.npy) of shape (edges, 3)"
            )
        for name in config.used_entity_types:
            write_dictionary(model, labels, config.entities[name].num_partitions, name)
        given = (*model.entity_labels.values(), model.relation_labels)
        label_files = tuple(path for path in given if isinstance(path, Path))
        return Path(model.label), labels, _rows(model, config.used_entity_types), label_files
    if not is_of_labels(folder):
        return folder, folder, {}, ()
    if model is None and any(len(parts) > 1 for parts in sizes.values()):
        raise ConfigError(
            f"{folder}: files of labels say nothing of partitions; set dictionary_path to the folder with the "
            "checkpoint's entity_names_<type>_<partition>.json"
        )
    num_relations = inputs.num_relations if config.dynamic_relations else None
    return folder, labels, {}, write_labels(folder, labels, sizes, num_relations)


def _rows(model: EmbeddingModel, entity_types: list[str]) -> dict[str, str]:
    """Say which rows a model has, of entities and relations whose names are the numbers of rows."""
    said = {
        f"entity:{name}": f"{path_of(table)} has {table.num_rows:,} rows: ids 0 to {table.num_rows - 1}"
        for name, table in model.tables_of(entity_types).items()
        if all(isinstance(labels, range) for labels in model.entity_labels.values())
    }
    if model.relation_labels == tuple(map(str, range(model.num_relations))) and "relations" in model.parameter_tables:
        table = model.parameter_tables["relations"]
        each = "" if table.num_rows == model.num_relations else ", two of each relation"
        said["relation"] = f"{path_of(table)} has {table.num_rows:,} rows{each}: ids 0 to {model.num_relations - 1}"
    return said


def _digests(dictionary: Dictionary, config: EvalConfig) -> dict[str, object]:
    """Return what all buckets were made of beside their file.

    Raises:
        StorageError: names are missing.
    """
    paths = [
        dictionary.files / f"entity_names_{entity_type}_{part}.json"
        for entity_type, parts in dictionary.sizes.items()
        for part in range(len(parts))
    ]
    advice = "edges by name need the names of all entities: set dictionary_path to their folder"
    faults = [f"{path}: no such file; {advice}" for path in paths if not path.is_file()]
    if faults:
        raise StorageError(*faults)
    return {
        "format": _FORMAT,
        "entities": {path.name: fingerprint(path) for path in paths},
        "sizes": dictionary.sizes,
        "relations": dictionary.relations,
        "types": [[relation.lhs, relation.rhs] for relation in config.relations],
    }


def _look_at_unknown(files: NamedFiles, folder_of: Mapping[Path, Path], observer: Observer) -> None:
    for path, folder in folder_of.items():
        counts = counts_of(folder, path.name)
        if path in files.evaluated:
            refuse_unknown(str(path), counts, folder / path.name, files.known)
        elif counts.num_left_out:
            observer.warn(
                f"{path}: {counts.num_left_out:,} of {counts.num_read:,} known edges are skipped: "
                f"{counts.unknown_names}; listed in {folder / path.name / UNKNOWN}"
            )


def _remove_made(store: Path, names: Collection[str]) -> None:
    """Remove folders of buckets, file by file: files that others put there stay."""
    for name in names:
        if is_made(store / name):
            made = [path for path in files_below(store, [name]) if path.startswith(f"{name}/")]
            remove_files(store, [path for path in made if _FILES_MADE.fullmatch(path.removeprefix(f"{name}/"))])
