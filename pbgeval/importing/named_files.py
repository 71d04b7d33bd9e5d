"""Files of edges by name, and dictionaries that exist -> folders of buckets, each made whole or not at all.

A folder that is made holds the buckets in a folder with the file's name, and `import.json` beside it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from pathlib import Path

from attrs import field, frozen

from pbgeval.errors import StorageError
from pbgeval.importing.dictionaries import Sizes, read_dictionaries
from pbgeval.importing.edge_files import ColumnForm, load_edges
from pbgeval.importing.engine import Engine, Limits
from pbgeval.importing.placement import ImportedEdges, place_edges, refuse_unknown
from pbgeval.importing.relation_types import RelationTypes
from pbgeval.progress import Observer
from pbgeval.storage.text import listed, one_line
from pbgeval.storage.writing import new_folder, remove_folder, write_atomically

_COUNTS = "import.json"
_SCRATCH = ".scratch"
SKIPPING = "kgeval-dist import-graph --dictionary skips such edges and lists the names"  # for `refuse_unknown`


@frozen
class Dictionary:
    """What numbers entities and relations."""

    folder: Path  # of entity_names_<type>_<part>.json, or the model whose labels they have
    files: Path  # folder where they are
    types: RelationTypes
    relations: tuple[str, ...]  # their names, in the order of their ids
    sizes: Sizes  # how many entities of each partition must have a name


@frozen
class NamedFiles:
    """What is split."""

    of_folder: Mapping[Path, Path]  # the file of each folder that is to be made
    evaluated: Collection[Path]  # files in which every name must be known; of others, what is unknown is left out
    dictionary: Dictionary
    form: ColumnForm = field(factory=ColumnForm)


def split_files(files: NamedFiles, limits: Limits, observer: Observer) -> None:
    """Make all folders; edges keep the order of their file within a bucket.

    Raises:
        EvalError: what is wrong with a file or a dictionary, or that something cannot be written; then no folder is
            made.
    """
    dictionary = files.dictionary
    with ExitStack() as folders:
        targets = {folder: folders.enter_context(new_folder(folder)) for folder in files.of_folder}
        scratch = next(iter(targets.values())) / _SCRATCH
        with Engine(scratch, limits, observer) as engine:
            observer.step(f"reading the dictionary {dictionary.folder}")
            types, sizes = read_dictionaries(engine, dictionary.files, dictionary.types, dictionary.relations)
            _check_sizes(dictionary, sizes)
            for folder, path in files.of_folder.items():
                observer.step(f"reading {path}")
                load_edges(engine, "edges", path, files.form)
                observer.step(f"writing edges {path.name}")
                counts = place_edges(engine, "edges", types, sizes, targets[folder] / path.name)
                if path in files.evaluated:
                    refuse_unknown(str(path), counts, targets[folder] / path.name, dictionary.folder, SKIPPING, engine)
                text = json.dumps(counts.to_dict(), indent=2, sort_keys=True)
                write_atomically(targets[folder] / _COUNTS, f"{text}\n")
        remove_folder(scratch)


def counts_of(folder: Path, name: str) -> ImportedEdges:
    """Return what became of the file with this name, of which a folder was made.

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
    """Tell whether a folder is one that `split_files` has made, and no link."""
    try:
        found = json.loads((folder / _COUNTS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return not folder.is_symlink() and isinstance(found, dict) and {"num_buckets", "num_left_out"} <= found.keys()


def _check_sizes(dictionary: Dictionary, found: Sizes) -> None:
    """Refuse dictionaries of another graph: their rows would be those of other vectors."""
    for entity_type, expected in dictionary.sizes.items():
        if list(expected) != found[entity_type]:
            raise StorageError(
                f"{dictionary.folder}: names of {listed(list(map(str, found[entity_type])))} entities of type "
                f"{entity_type} (by partition), but the checkpoint has {listed(list(map(str, expected)))} vectors; "
                "set dictionary_path to the names of this checkpoint"
            )
