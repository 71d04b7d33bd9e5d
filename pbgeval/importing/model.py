"""Another system's model, and its edges -> a folder with a checkpoint in PyTorch-BigGraph's format, and its config.

FOLDER/checkpoint, entity    the model, in partitions
FOLDER/<name>                the buckets of each file of edges
FOLDER/eval.py               evaluates them against all entities
"""

from __future__ import annotations

import itertools
import pprint
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from attrs import evolve, field, frozen

from pbgeval.errors import ConfigError, DataError
from pbgeval.importing.dictionaries import RelationTypes, Sizes
from pbgeval.importing.engine import Engine
from pbgeval.importing.graph import Dictionaries, Dictionary, EdgesToSplit, split_edges
from pbgeval.importing.placement import SKIP_BY_OPTION
from pbgeval.models.formulas import TwoOperators
from pbgeval.models.model import EmbeddingModel, part_of
from pbgeval.notation import ENTITY_TYPE, Bucket, Side, distinct
from pbgeval.progress import Observer
from pbgeval.storage.arrays import path_of
from pbgeval.storage.checkpoint_files import (
    create_bucket,
    write_embeddings,
    write_entities,
    write_model,
    write_relations,
)
from pbgeval.storage.edge_columns import ColumnForm, EdgeForms
from pbgeval.storage.edges import FORM
from pbgeval.storage.left_out import UNKNOWN
from pbgeval.storage.names_digests import NamesDigests
from pbgeval.storage.npy_files import open_npy
from pbgeval.storage.text import edge_file_type, listed, plural
from pbgeval.storage.writing import check_empty, new_folder, remove_folder, temporary_folder, write_atomically

# What a model's entities and relations are called -> dictionaries of edges by name.


def dictionaries_of_model(
    model: EmbeddingModel, sizes: Sizes, pairs: Sequence[tuple[str, str]], files: Path, names: Sequence[str] = ()
) -> Dictionaries:
    """Return the labels of a model as a dictionary. Where it has none, the numbers of rows are the names.

    Args:
        model: opened.
        sizes: of the partitions of each entity type.
        pairs: the left and right entity type of each relation; one pair where all are alike.
        files: an empty folder, which gets the labels of entities.
        names: of the relations, in place of the labels.

    Raises:
        StorageError: a file of labels is not as it should be.
    """
    rows, all_rows = (_rows(model, [*sizes], labelled_too=labelled_too) for labelled_too in (False, True))
    for name, parts in sizes.items():
        if f"entity:{name}" not in rows:
            _write_entities(model, files, name, len(parts))
    numbers = tuple(map(str, range(model.num_relations)))
    of_relations = numbers if "relation" in rows else tuple(names or model.relation_names() or ())
    given = (*model.entity_labels.values(), model.relation_labels)
    label_files = tuple(path for path in given if isinstance(path, Path))
    types = _types(of_relations, pairs)
    of_names = Dictionary(Path(model.label), files, types, of_relations, sizes, rows, label_files)
    if rows == all_rows or model.rows_of_ids:
        return Dictionaries(of_names)
    return Dictionaries(of_names, evolve(of_names, types=_types(numbers, pairs), relations=numbers, rows=all_rows))


def _types(names: Sequence[str], pairs: Sequence[tuple[str, str]]) -> RelationTypes:
    if len(set(pairs)) == 1:
        return RelationTypes(other=pairs[0])
    return RelationTypes(tuple((name, *pair) for name, pair in zip(names, pairs, strict=True)), None)


def _rows(model: EmbeddingModel, entity_types: Sequence[str], *, labelled_too: bool) -> dict[str, str]:
    """Say which rows a model has, of entities and relations without labels, or of all."""
    said = {
        f"entity:{name}": f"{path_of(table) or model.label} has {table.num_rows:,} rows: ids 0 to {table.num_rows - 1}"
        for name, table in model.tables_of(entity_types).items()
        if labelled_too or isinstance(model.labels_of(name), range | None)
    }
    if labelled_too or (not model.relation_types and (model.numbers_relations or model.relation_labels is None)):
        table = model.parameter_tables.get("relations")
        num_rows = model.num_relations if table is None else table.num_rows
        each = "" if num_rows == model.num_relations else ", two of each relation"
        said["relation"] = (
            f"{path_of(table) or model.label} has {num_rows:,} rows{each}: ids 0 to {model.num_relations - 1}"
        )
    return said


def _write_entities(model: EmbeddingModel, path: Path, entity_type: str, num_partitions: int) -> list[str | None]:
    """Write counts and names of all partitions; return the names' digests."""
    digests = list[str | None]()
    names, num_entities = model.entity_names(entity_type), model.tables_of([entity_type])[entity_type].num_rows
    for index in range(num_partitions):
        start, stop = part_of(num_entities, index, num_partitions)
        of_part = None if names is None else itertools.islice(names, stop - start)
        digests.append(write_entities(path, entity_type, index, stop - start, of_part))
    return digests


# Arrays of edges -> buckets of a partitioned graph, in two passes: count, then write. Memory follows a block of edges.

EDGES_AT_A_TIME = 1 << 18
ARRAYS = ".npy"


def _array_blocks(model: EmbeddingModel, paths: Sequence[Path], form: ColumnForm) -> Iterator[np.ndarray]:
    """Yield blocks of edges, int64 (n, 3): lhs, rel, rhs; or (n, 4): then the time.

    Raises:
        StorageError: a file cannot be read.
        DataError: it has another shape, or an id is out of range; names the edge.
    """
    places, num_columns = [form.order.index(letter) for letter in "hrt"], None
    entity, relation = ("entity", model.num_entities), ("relation", model.num_relations)
    for path in paths:
        array, _ = open_npy(path, "iu")
        if array.ndim != 2 or array.shape[1] not in (3, 4):
            raise DataError(f"{path}: expected {FORM}, got shape {array.shape}")
        num_columns = num_columns or array.shape[1]
        if array.shape[1] != num_columns:
            raise DataError(f"{path}: expected {num_columns} columns as in {paths[0]}, got {array.shape[1]}")
        for start in range(0, array.shape[0], EDGES_AT_A_TIME):
            block_n3 = array[start : start + EDGES_AT_A_TIME].astype(np.int64)[:, [*places, *range(3, num_columns)]]
            for column, (what, size) in enumerate((entity, relation, entity)):
                wrong = (block_n3[:, column] < 0) | (block_n3[:, column] >= size)
                if wrong.any():
                    at = int(np.flatnonzero(wrong)[0])
                    raise DataError(
                        f"{path}: edge {start + at}: the id of the {what} is {int(block_n3[at, column])}, but the "
                        f"model has ids from 0 to {size - 1}; {form.reading}"
                    )
            if (block_n3[:, 3:] < 0).any():
                at = int(np.flatnonzero(block_n3[:, 3] < 0)[0])
                raise DataError(f"{path}: edge {start + at}: the time is not an integer from 0 to 2^63 - 1")
            yield block_n3


def _import_arrays(
    model: EmbeddingModel, paths: Sequence[Path], target: Path, form: ColumnForm, num_partitions: int
) -> int:
    """Write the edges of arrays as buckets, in which they keep their order; return their number.

    Raises:
        EvalError: what is wrong with a file, or that something cannot be written.
    """
    borders = np.array([part_of(model.num_entities, index, num_partitions)[0] for index in range(num_partitions)])
    sizes, names = np.zeros(num_partitions**2, np.int64), ["lhs", "rel", "rhs", "time"]
    for block_n3 in _array_blocks(model, paths, form):
        names = names[: block_n3.shape[1]]
        sizes += np.bincount(_buckets(block_n3, borders), minlength=num_partitions**2)
    if not sizes.any():
        raise DataError(f"{listed(list(map(str, paths)))}: there are no edges in this file")
    dtypes = dict.fromkeys(names, np.dtype(np.int64))
    files = {
        code: create_bucket(target, Bucket(*divmod(code, num_partitions)), int(sizes[code]), dtypes)
        for code in np.flatnonzero(sizes).tolist()
    }
    written = np.zeros_like(sizes)
    for block_n3 in _array_blocks(model, paths, form):
        bucket_n = _buckets(block_n3, borders)
        for code in distinct(bucket_n).tolist():
            rows_n3 = block_n3[bucket_n == code]
            lhs, rhs = divmod(code, num_partitions)
            first = np.array([borders[lhs], 0, borders[rhs], 0])[: len(names)]
            files[code].write(int(written[code]), dict(zip(names, (rows_n3 - first).T, strict=True)))
            written[code] += len(rows_n3)
    for file in files.values():
        file.sync()
    return int(sizes.sum())


def _buckets(block_n3: np.ndarray, borders: np.ndarray) -> np.ndarray:
    lhs, rhs = (np.searchsorted(borders, block_n3[:, column], "right") - 1 for column in (0, 2))
    return lhs * len(borders) + rhs


VERSION = 1


@frozen
class EdgeFiles:
    """Files of edges by the names that their folders get, and how to read them."""

    paths: Mapping[str, Sequence[Path]]
    forms: EdgeForms = field(factory=EdgeForms)
    entities: Path | None = None  # labels of ids, in place of the model's own
    relations: Path | None = None
    skip_unknown: bool = True

    def labelled(self, model: EmbeddingModel) -> EmbeddingModel:
        """Return the model with the labels that are given."""
        if self.entities is not None:
            model = evolve(model, entity_labels=dict.fromkeys(model.tables, self.entities))
        return model if self.relations is None else evolve(model, relation_labels=self.relations)


def import_model(
    model: EmbeddingModel,
    folder: Path,
    num_partitions: int,
    edges: EdgeFiles,
    memory_bytes: int | None = None,
    observer: Observer | None = None,
) -> Sequence[str]:
    """Write a model and its edges; nothing larger than a range of rows is held in memory but labels and relations.

    Args:
        model: opened.
        folder: new, or empty.
        num_partitions: of the entities: consecutive rows, parts as equal as can be.
        edges: to be written with it.
        memory_bytes: that this process may take for edges by name; None: most of the host's.
        observer: is told how far the work is.

    Returns:
        What was written, a line each.

    Raises:
        EvalError: what is wrong with a file, or that something cannot be written; then nothing is left of it.
    """
    _check(model, folder, num_partitions, edges)
    with new_folder(folder) as target:
        model = edges.labelled(model)
        lines = _import_edges(model, target, folder, num_partitions, edges, memory_bytes, observer or Observer())
        evaluated, known = _write_model(model, target, num_partitions, edges)
    what = (
        f"{plural(model.num_entities, 'entity', 'entities')} of dimension {model.dimension} in "
        f"{plural(num_partitions, 'partition')}, {plural(model.num_relations, 'relation')} ({model.system})"
    )
    filtered = f"filters {' and '.join(known)}" if known else "filters nothing: name known edges valid and train"
    return [
        f"{folder / 'checkpoint'}: {what}",
        *lines,
        *([f"{folder / 'eval.py'}: evaluates {', '.join(evaluated)}; {filtered}"] if evaluated else []),
        f"evaluate with: kgeval-dist run {folder / 'eval.py'}{'' if evaluated else ' -p edge_paths=FILE'}",
    ]


def _import_edges(
    model: EmbeddingModel,
    target: Path,
    folder: Path,
    num_partitions: int,
    edges: EdgeFiles,
    memory_bytes: int | None,
    observer: Observer,
) -> list[str]:
    """Write the buckets of all edges; return a line or two of each."""
    lines: list[str] = []
    arrays = [name for name, paths in edges.paths.items() if paths[0].suffix == ARRAYS]
    for name in arrays:
        paths = edges.paths[name]
        num_edges = _import_arrays(model, paths, target / name, edges.forms.of(paths[0], name), num_partitions)
        lines.append(f"{folder / name}: {plural(num_edges, 'edge')} of {listed(list(map(str, paths)))}")
    named = [name for name in edges.paths if name not in arrays]
    if not named:
        return lines
    spans = [part_of(model.num_entities, index, num_partitions) for index in range(num_partitions)]
    sizes = {ENTITY_TYPE: [stop - start for start, stop in spans]}
    scratch = target / ".scratch"
    with temporary_folder() as labels, Engine(scratch, memory_bytes, observer) as engine:
        dictionaries = dictionaries_of_model(model, sizes, [(ENTITY_TYPE, ENTITY_TYPE)], labels)
        to_split = [
            EdgesToSplit(
                f"--edges {name}",
                [(path, edges.forms.of(path, name)) for path in edges.paths[name]],
                target / name,
                dictionaries.of(edges.paths[name][0]),
                refuses_unknown=not edges.skip_unknown,
                advice=SKIP_BY_OPTION,
            )
            for name in named
        ]
        for name, of in zip(named, split_edges(engine, to_split, observer), strict=True):
            for warning in of.warnings:
                observer.warn(warning)
            files = listed(list(map(str, edges.paths[name])))
            lines.append(f"{folder / name}: {plural(of.counts.num_written, 'edge')} of {files}")
            if of.counts.num_left_out:
                skipped = f"{plural(of.counts.num_left_out, 'edge')} skipped ({of.counts.unknown_names})"
                lines.append(f"{folder / name / UNKNOWN}: {skipped}")
    remove_folder(scratch)
    return lines


def _write_model(
    model: EmbeddingModel, folder: Path, num_partitions: int, edges: EdgeFiles
) -> tuple[list[str], list[str]]:
    """Write dictionaries, checkpoint and config; return the names of edges that it evaluates, and that it knows."""
    of_entities = _write_entities(model, folder / "entity", ENTITY_TYPE, num_partitions)
    num_dynamic = model.num_relations if model.dynamic else None
    of_relations = write_relations(folder / "entity", num_dynamic, model.relation_names())
    digests = NamesDigests({ENTITY_TYPE: of_entities}, of_relations)
    digests.write(folder / "entity", folder / "checkpoint", *(folder / name for name in edges.paths))
    parameters = model.parameters()
    operators = (
        {(0, side): of_side for side, of_side in parameters.items()}
        if model.dynamic
        else {
            (index, Side.RHS): {name: values[index] for name, values in parameters[Side.RHS].items()}
            for index in range(model.num_relations)
        }
    )
    write_model(folder / "checkpoint", VERSION, operators, dynamic=model.dynamic)
    for index in range(num_partitions):
        rows = model.entities.part(*part_of(model.num_entities, index, num_partitions))
        write_embeddings(folder / "checkpoint", ENTITY_TYPE, index, VERSION, rows)
    known = [name for name in edges.paths if name in ("train", "valid")]
    evaluated = [name for name in edges.paths if name not in known]
    # Without others, these are evaluated, and none is only known.
    evaluated, known = (evaluated, known) if evaluated else (known, [])
    write_atomically(folder / "eval.py", _config(model, evaluated, known, num_partitions))
    write_atomically(folder / "checkpoint" / "checkpoint_version.txt", f"{VERSION}\n")  # now it is whole
    return evaluated, known


def _check(model: EmbeddingModel, folder: Path, num_partitions: int, edges: EdgeFiles) -> None:
    check_empty(folder)
    if len(model.tables) > 1 or isinstance(model.formula, TwoOperators) or model.rows_of_ids:
        raise ConfigError(
            f"{model.label}: import-model converts models of one entity type, whose operators act on one side and "
            "whose rows are in the order of their ids; evaluate this one as it is: model = PATH in a config"
        )
    if not 1 <= num_partitions <= model.num_entities:
        raise ConfigError(
            f"--partitions {num_partitions}: must be from 1 to {model.num_entities}, the number of entities"
        )
    for name, paths in edges.paths.items():
        _check_paths(name, paths, edges.forms)


def _check_paths(name: str, paths: Sequence[Path], forms: EdgeForms) -> None:
    kinds = {(edge_file_type(path) == "del", path.suffix == ARRAYS) for path in paths}
    if len(kinds) > 1:
        raise ConfigError(
            f"--edges {name}: .npy and .del files have numbers of rows, others may have labels; give them as edges of "
            "another name"
        )
    for path in paths:
        form = forms.of(path, name)
        if path.suffix == ARRAYS and (form.names is not None or sorted(form.order) != sorted("hrt")):
            raise ConfigError(
                "--edge-columns: an array has three columns, or four with times last; expected an order of h, r and t "
                f"for {path}"
            )
    if not name or "/" in name or name in (".", "..", "checkpoint", "entity", "eval.py"):
        raise ConfigError(f"--edges {name}: {name} cannot be the name of a folder of edges; choose another")


def _config(model: EmbeddingModel, evaluated: list[str], known: list[str], num_partitions: int) -> str:
    """Return a config file; its paths are relative to it."""
    names = ([ENTITY_TYPE] if model.dynamic else model.relation_names()) or [
        f"rel{index}" for index in range(model.num_relations)
    ]
    settings = {
        "entity_path": "entity",
        "checkpoint_path": "checkpoint",
        "edge_paths": evaluated,
        "filter_paths": [name for name in known if name == "valid"],
        "train_paths": [name for name in known if name == "train"],
        "dynamic_relations": model.dynamic,
        "dimension": model.dimension,
        "global_emb": False,
        "comparator": model.formula.comparator,
        "candidates": "all",
    }
    arguments = "\n".join(f"        {key}={pprint.pformat(value, width=100)}," for key, value in settings.items())
    return f'''"""A model of {model.system}, converted: ranks against all entities. Paths are relative to this file."""

from pbgeval import EntitySchema, EvalConfig, RelationSchema

RELATIONS = {pprint.pformat(names, width=100, compact=True)}


def get_config() -> EvalConfig:
    schema = {{"lhs": "{ENTITY_TYPE}", "rhs": "{ENTITY_TYPE}", "operator": "{model.formula.operator}"}}
    return EvalConfig(
        entities={{"{ENTITY_TYPE}": EntitySchema(num_partitions={num_partitions})}},
        relations=[RelationSchema(name=name or "unnamed", **schema) for name in RELATIONS],
{arguments}
    )
'''
