"""Paths of a config that name files of edges -> folders of buckets, made once; a config that names those.

They go to `imported` in the output directory, or beside all output directories where its name is not given, as that
follows from the buckets. A folder is named by what it was made of, so a run that goes on, or another one of the same
files, finds it there, and buckets of a file that has changed are made anew.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from attrs import asdict

from pbgeval.cluster.signals import ended_by_signals
from pbgeval.config import EvalConfig
from pbgeval.config.loading import IN_MEMORY
from pbgeval.errors import ConfigError, EvalError, IncompleteError, OutputError, StorageError
from pbgeval.importing.dictionaries import RelationTypes, is_of_labels, write_labels
from pbgeval.importing.graph import (
    Dictionaries,
    Dictionary,
    NamedFiles,
    is_made,
    made_from,
    split_files,
)
from pbgeval.importing.model import dictionaries_of_model
from pbgeval.importing.placement import refuse_unknown
from pbgeval.inputs.opening import Inputs, Model, files_of_edges, needs_time, open_inputs, with_edge_paths
from pbgeval.models.labels import OF_RELATIONS
from pbgeval.models.model import EmbeddingModel
from pbgeval.progress import Observer
from pbgeval.results.output import DEFAULT_OUTPUTS, IMPORTED
from pbgeval.storage.entities import read_relation_names
from pbgeval.storage.left_out import LEFT_OUT, UNKNOWN
from pbgeval.storage.text import fingerprint, listed
from pbgeval.storage.writing import files_below, remove_files, remove_if_empty, temporary_folder

_FORMAT = 3  # of what is made: another one is made anew
_MADE = re.compile(r"[0-9a-f]{16}")
_FILES_MADE = re.compile(rf"import\.json|[^/]+/(?:edges_[0-9]+_[0-9]+\.h5|{re.escape(UNKNOWN)}|{re.escape(LEFT_OUT)})")


@contextmanager
def buckets_of_files(
    config: EvalConfig,
    output: Path | None,
    observer: Observer,
    model: Model | None = None,
    *,
    made_by_others: Sequence[Path] = (),
) -> Iterator[EvalConfig]:
    """Split the files of edges of a config, which has some, into buckets; yield one that names their folders instead.

    After a fault, here or in the context, nothing is left of what was made.

    Args:
        config: checked.
        output: the output directory; None: the default one.
        observer: is told how it goes.
        model: in memory, in place of what the config names.
        made_by_others: further folders `imported`, whose buckets are used if they are of these files.

    Raises:
        EvalError: what is wrong with a file of edges, the dictionary or any other input.
        IncompleteError: a signal has ended it.
    """
    paths = files_of_edges(config)
    store = ((output or DEFAULT_OUTPUTS) / IMPORTED).absolute()
    absent = [place for place in (store, *store.parents) if not place.exists()]
    earlier = (
        [] if output is None or absent else [place.name for place in store.iterdir() if _MADE.fullmatch(place.name)]
    )
    others = [] if output is None else [output.absolute().parent / IMPORTED]
    others += [folder.absolute() for folder in made_by_others]
    with temporary_folder() as labels:
        files, folder_of = _plan(config, paths, [store, *others], labels, model)
        if files.of_folder and output is not None and output.exists() and not output.is_dir():
            raise OutputError(f"{output}: this is a file, not a directory; choose another output")
        made: list[str] = []  # by this process: others may be reading what they have made
        try:
            if files.of_folder and _split(files, config.max_memory_bytes, observer):
                made = [folder.name for folder in files.of_folder]
            for path, folder in folder_of.items():  # those that were made before, too
                _look_at(files, path, folder, observer)
            unset = dict.fromkeys(("dictionary_path", "edge_columns", "edge_delimiter", "edge_comment"))
            of_path = {str(path): str(folder / path.name) for path, folder in folder_of.items()}
            yield with_edge_paths(config, lambda path: of_path.get(path, path), **unset)
        except EvalError as error:
            if not isinstance(error, IncompleteError):
                _remove_made(store, made)
                for place in absent:  # innermost first
                    remove_if_empty(place)
            raise
    used = {folder.name for folder in folder_of.values()}
    _remove_made(store, [name for name in earlier if name not in used])  # of earlier versions of the files


def _split(files: NamedFiles, memory_bytes: int | None, observer: Observer) -> bool:
    """Make all folders; return whether this process did, or another run of the same files, which was faster."""
    try:
        with ended_by_signals():
            split_files(files, memory_bytes, observer)
    except OutputError:
        if not all(folder.is_dir() for folder in files.of_folder):
            raise
        return False
    else:
        return True
    finally:
        observer.finished()


def _plan(
    config: EvalConfig, paths: list[Path], stores: list[Path], labels: Path, model: Model | None
) -> tuple[NamedFiles, dict[Path, Path]]:
    """Find the folders that exist already; return those to make, and the folder of each file.

    All else that can be wrong is found before: splitting may take long.
    """
    forms = config.edge_forms([path.name for path in paths])
    timeless = [str(of) for of in paths if "time" not in forms.of(of).columns and needs_time(config, str(of))]
    if timeless:
        key = next((of for of in ("time_window", "known_until") if getattr(config, of) is not None), "breakdowns: time")
        raise ConfigError(
            f"{listed(timeless)}: no column s (time), which {key} needs; add it to edge_columns, as in 'hrts', or as a "
            "fifth name"
        )
    without = {str(path) for path in paths}
    # Candidates are of edges.
    others = with_edge_paths(config, lambda path: None if path in without else path, candidate_path=None)
    inputs = open_inputs(others, model)
    dictionaries = _dictionaries(config, inputs, labels)
    digests = {path: _digests(dictionaries.of(path), config) for path in paths}
    folder_of: dict[Path, Path] = {}
    for path in paths:
        made_of = {"file": [path.name, fingerprint(path)], "form": asdict(forms.of(path)), **digests[path]}
        name = hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()[:16]
        places = [store / name for store in stores]
        folder_of[path] = next((place for place in places if place.is_dir()), places[0])
    missing = {folder: path for path, folder in folder_of.items() if not folder.is_dir()}
    evaluated = [path for path in paths if config.unknown == "refuse" and str(path) in config.edge_paths]
    return NamedFiles(missing, evaluated, dictionaries, forms), folder_of


def _dictionaries(config: EvalConfig, inputs: Inputs, labels: Path) -> Dictionaries:
    """Return the dictionaries that number the entities and relations of the config.

    Args:
        config: checked.
        inputs: without the files of edges.
        labels: an empty folder, for the labels of a model that has no dictionary.

    Raises:
        ConfigError: a type or a relation cannot be found by name.
        StorageError: names are missing, or there are too many or too few.
    """
    folder = Path(config.dictionary_path or config.entity_path)
    if str(folder) == IN_MEMORY:
        raise ConfigError(
            "dictionary_path: edges by name need the names of ids; set it to a folder with entities.tsv and "
            "relations.tsv"
        )
    featurized = [name for name in config.used_entity_types if config.entities[name].featurized]
    if featurized:
        raise ConfigError(
            f"edge_paths: expected folders of buckets, as entity type {featurized[0]!r} is featurized, found a file; "
            "an entity that is a set of features has no name to be found by"
        )
    sizes = {
        name: [inputs.embeddings[name, part].num_rows for part in range(config.entities[name].num_partitions)]
        for name in config.used_entity_types
    }
    names = [relation.name for relation in config.relations]
    pairs = [(relation.lhs, relation.rhs) for relation in config.relations]
    model, files = inputs.model, folder
    label_files: tuple[Path, ...] = ()
    if isinstance(model, EmbeddingModel) and config.dictionary_path is None and not any(folder.glob("entity_names_*")):
        return dictionaries_of_model(model, sizes, pairs, labels, () if config.dynamic_relations else names)
    if is_of_labels(folder):
        if model is None and any(len(parts) > 1 for parts in sizes.values()):
            raise ConfigError(
                f"{folder}: files of labels say nothing of partitions; set dictionary_path to the folder with the "
                "checkpoint's entity_names_<type>_<partition>.json"
            )
        num_relations = inputs.num_relations if config.dynamic_relations else None
        files, label_files = labels, write_labels(folder, labels, sizes, num_relations)
    if config.dynamic_relations:
        named = read_relation_names(files)
        if named is None or len(named) != inputs.num_relations:
            needed = f"the names of all {inputs.num_relations} relations"
            advice = "set dictionary_path (in Python, evaluate_files: labels) to their folder"
            raise StorageError(
                f"{files}: expected {needed} in {', '.join(OF_RELATIONS)} or dynamic_rel_names.json, found none; "
                f"{advice}"
                if named is None
                else f"{files / 'dynamic_rel_names.json'}: expected {needed}, found {len(named)}; {advice}"
            )
        relations = RelationTypes(other=pairs[0])
        return Dictionaries(Dictionary(folder, files, relations, tuple(named), sizes, label_files=label_files))
    if len(set(names)) < len(names):
        again = sorted({name for name in names if names.count(name) > 1})
        raise ConfigError(
            f"relations: expected each name once, as edges are given by name, found {listed(again)} again; number the "
            "edges with kgeval-dist import-graph --types"
        )
    types = RelationTypes(tuple((name, *pair) for name, pair in zip(names, pairs, strict=True)), None)
    return Dictionaries(Dictionary(folder, files, types, tuple(names), sizes, label_files=label_files))


def _digests(dictionary: Dictionary, config: EvalConfig) -> dict[str, object]:
    """Return what all buckets were made of beside their file.

    Raises:
        StorageError: names are missing.
    """
    paths = [
        dictionary.files / f"entity_names_{entity_type}_{part}.json"
        for entity_type, parts in dictionary.sizes.items()
        if entity_type not in dictionary.numbered
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


def _look_at(files: NamedFiles, path: Path, folder: Path, observer: Observer) -> None:
    made = made_from(folder, path.name)
    if path in files.evaluated:
        refuse_unknown(str(path), made.counts, folder / path.name, files.known(path), warnings=made.warnings)
    for warning in made.warnings:
        observer.warn(warning)


def _remove_made(store: Path, names: Collection[str]) -> None:
    """Remove folders of buckets, file by file: files that others put there stay."""
    for name in names:
        if is_made(store / name):
            made = [path for path in files_below(store, [name]) if path.startswith(f"{name}/")]
            remove_files(store, [path for path in made if _FILES_MADE.fullmatch(path.removeprefix(f"{name}/"))])
