"""Another system's model, and its edges -> a folder with a checkpoint in PyTorch-BigGraph's format, and its config.

FOLDER/checkpoint, entity    the model, in partitions
FOLDER/<name>                the buckets of each file of edges
FOLDER/eval.py               evaluates them against all entities
"""

from __future__ import annotations

import difflib
import itertools
import pprint
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from attrs import define, evolve, field, frozen

from pbgeval.errors import ConfigError, DataError, OutputError, raise_first
from pbgeval.importing.edge_files import ColumnForm
from pbgeval.importing.placement import UNKNOWN, unknown_lines, unknown_names
from pbgeval.models.formulas import TwoOperators
from pbgeval.models.labels import MAX_DIGITS, read_labels
from pbgeval.models.model import EmbeddingModel, part_of
from pbgeval.notation import ENTITY_TYPE, Bucket, Side, distinct
from pbgeval.storage.arrays import open_npy
from pbgeval.storage.checkpoint_files import (
    create_bucket,
    write_embeddings,
    write_entities,
    write_model,
    write_relations,
)
from pbgeval.storage.text import one_line, plural, rows
from pbgeval.storage.writing import write_atomically

# A file of edges -> buckets of a partitioned graph, in two passes over the file: count, then write.
#
# The file is a .npy array of integers (edges, 3), or text with three columns, tabs or spaces between them: ids, or
# labels where there are files of labels. Memory follows a block of edges.

EDGES_AT_A_TIME = 1 << 18
MAX_COMPARED = 20_000  # labels that an unknown one is compared with
ORDERS = ("hrt", "htr", "rht", "rth", "thr", "trh")  # of columns: head (lhs), relation, tail (rhs)


@define
class SkippedEdges:
    """Edges with unknown labels, which are not written."""

    num_edges: int = 0
    occurrences: Counter[tuple[str, str]] = field(factory=Counter)  # of (kind, label)

    @property
    def unknown_names(self) -> str:
        """Which labels are unknown, in words."""
        num_relations = sum(kind == "relation" for kind, _ in self.occurrences)
        return unknown_names(len(self.occurrences) - num_relations, num_relations)

    def lines(self) -> Iterator[str]:
        """Return the lines of `unknown.tsv`, most frequent labels first."""
        return unknown_lines(
            (*unknown, count)
            for unknown, count in sorted(self.occurrences.items(), key=lambda item: (-item[1], item[0]))
        )


@frozen(eq=False)
class EdgeForm:
    """The meaning of the columns of edge files."""

    num_entities: int
    num_relations: int
    column_form: ColumnForm = field(factory=ColumnForm)
    entity_ids: Mapping[str, int] | None = None  # by label; None: files have ids
    relation_ids: Mapping[str, int] | None = None
    skip_unknown: bool = True  # edges with unknown labels; else they are an error
    labels: str = "--entities FILE --relations FILE"  # the options by which files may have labels

    def blocks(self, path: Path, skipped: SkippedEdges) -> Iterator[np.ndarray]:
        """Yield blocks of edges, int64 (n, 3): lhs, rel, rhs; count those with unknown labels.

        Raises:
            StorageError: the file cannot be read.
            DataError: a line is not as it should be, an id out of range, or a label unknown; it names the row or line.
        """
        first, places = 0, [self.column_form.order.index(letter) for letter in "hrt"]
        for block_n3 in _array_blocks(path) if path.suffix == ".npy" else self._text_blocks(path, skipped):
            ordered_n3 = block_n3[:, places]
            entity, relation = ("entity", self.num_entities), ("relation", self.num_relations)
            for column, (what, size) in enumerate((entity, relation, entity)):
                wrong = (ordered_n3[:, column] < 0) | (ordered_n3[:, column] >= size)
                if wrong.any():
                    at = int(np.flatnonzero(wrong)[0])
                    raise DataError(
                        f"{path}: edge {first + at}: the id of the {what} is {int(ordered_n3[at, column])}, but the "
                        f"model has ids from 0 to {size - 1}; {self.column_form.reading}"
                    )
            yield ordered_n3
            first += len(block_n3)

    def _text_blocks(self, path: Path, skipped: SkippedEdges) -> Iterator[np.ndarray]:
        ids = [self.relation_ids if letter == "r" else self.entity_ids for letter in self.column_form.order]

        def edge(number: int, line: str, columns: list[str]) -> list[int] | None:
            if len(columns) < 3:
                raise DataError(f"{path}:{number}: expected three columns, got {one_line(line)!r}")
            of_edge = list(zip(self.column_form.order, columns, ids, strict=False))
            unknown = [(letter, label) for letter, label, known in of_edge if known is not None and label not in known]
            if unknown and self.skip_unknown:
                skipped.num_edges += 1
                skipped.occurrences.update(
                    ("relation" if letter == "r" else "entity", label) for letter, label in unknown
                )
                return None
            return [self._id(path, number, *of) for of in zip(columns, ids, strict=False)]

        edges = filter(None, itertools.starmap(edge, rows(path, by_words=True)))
        while block := list(itertools.islice(edges, EDGES_AT_A_TIME)):
            yield np.array(block, np.int64)

    def _id(self, path: Path, number: int, text: str, ids: Mapping[str, int] | None) -> int:
        if ids is not None and text in ids:
            return ids[text]
        if ids is not None:
            near = difflib.get_close_matches(text, itertools.islice(ids, MAX_COMPARED), n=1)
            hint = f" (did you mean {one_line(near[0])!r}?)" if near else ""
            fault = (
                f"unknown label {one_line(text)!r}{hint}; --unknown skip leaves such edges out; "
                f"{self.column_form.reading}"
            )
        elif not (text.isascii() and text.isdigit()):
            fault = f"expected an id, got {one_line(text)!r}; for labels, add {self.labels}"
        elif len(text) > MAX_DIGITS:
            fault = f"expected an id of at most {MAX_DIGITS} digits, got {one_line(text)!r}"
        else:
            return int(text)
        raise DataError(f"{path}:{number}: {fault}")


def _array_blocks(path: Path) -> Iterator[np.ndarray]:
    array, _ = open_npy(path, "iu")
    if array.ndim != 2 or array.shape[1] != 3:
        raise DataError(f"{path}: expected integers of shape (edges, 3), got shape {array.shape}")
    for start in range(0, array.shape[0], EDGES_AT_A_TIME):
        yield array[start : start + EDGES_AT_A_TIME].astype(np.int64)


def import_edges(path: Path, target: Path, form: EdgeForm, num_partitions: int) -> tuple[int, SkippedEdges]:
    """Write the edges of a file as buckets; rows keep their order within a bucket.

    Args:
        path: the file.
        target: the folder of the buckets.
        form: of the file.
        num_partitions: of the entities, which are parts as equal as can be.

    Returns:
        The number of edges that are written, and those that are not.

    Raises:
        EvalError: what is wrong with the file, or that something cannot be written.
    """
    skipped = SkippedEdges()
    borders = np.array([part_of(form.num_entities, index, num_partitions)[0] for index in range(num_partitions)])
    sizes = np.zeros(num_partitions**2, np.int64)
    for block_n3 in form.blocks(path, skipped):
        sizes += np.bincount(_buckets(block_n3, borders), minlength=num_partitions**2)
    files = {
        code: create_bucket(target, Bucket(*divmod(code, num_partitions)), int(sizes[code]))
        for code in np.flatnonzero(sizes).tolist()
    }
    if not files:
        of = f"no edge has known labels; {form.column_form.reading}" if skipped.num_edges else "there are no edges"
        raise DataError(f"{path}: {of}; check the file")
    written = np.zeros_like(sizes)
    for block_n3 in form.blocks(path, SkippedEdges()):
        bucket_n = _buckets(block_n3, borders)
        for code in distinct(bucket_n).tolist():
            rows_n3 = block_n3[bucket_n == code]
            lhs, rhs = divmod(code, num_partitions)
            columns = {"lhs": rows_n3[:, 0] - borders[lhs], "rel": rows_n3[:, 1], "rhs": rows_n3[:, 2] - borders[rhs]}
            files[code].write(int(written[code]), columns)
            written[code] += len(rows_n3)
    for file in files.values():
        file.sync()
    if skipped.num_edges:
        write_atomically(target / UNKNOWN, skipped.lines())
    return int(sizes.sum()), skipped


def _buckets(block_n3: np.ndarray, borders: np.ndarray) -> np.ndarray:
    lhs, rhs = (np.searchsorted(borders, block_n3[:, column], "right") - 1 for column in (0, 2))
    return lhs * len(borders) + rhs


VERSION = 1


@frozen
class EdgeFiles:
    """Files of edges by the names that their folders get, and how to read them."""

    paths: Mapping[str, Path]
    order: str = "hrt"
    entities: Path | None = None  # labels of ids, where files have labels
    relations: Path | None = None
    skip_unknown: bool = True

    def form(self, model: EmbeddingModel) -> EdgeForm:
        """Read what labels mean.

        Raises:
            StorageError: a file of labels is not as it should be, or has not one for each.
        """
        sizes = model.num_entities, model.num_relations
        found = model.entity_labels.get(ENTITY_TYPE), model.relation_labels
        entity_ids, relation_ids = (
            None if path is None else _ids(own if isinstance(own, tuple) and str(path) == model.label else path, size)
            for path, own, size in zip((self.entities, self.relations), found, sizes, strict=True)
        )
        form = EdgeForm(*sizes, ColumnForm(self.order), entity_ids, relation_ids, self.skip_unknown)
        places = [model.label if isinstance(of, tuple) else of for of in found]
        return evolve(form, labels="--entities {} --relations {}".format(*places)) if all(found) else form


def _ids(labels: Path | tuple[str, ...], size: int) -> dict[str, int]:
    names = read_labels(labels, size) if isinstance(labels, Path) else labels
    return {label: index for index, label in enumerate(names)}


def import_model(model: EmbeddingModel, folder: Path, num_partitions: int, edges: EdgeFiles) -> Sequence[str]:
    """Write a model and its edges; nothing larger than a range of rows or edges is held in memory but the relations.

    Args:
        model: opened.
        folder: new, or empty.
        num_partitions: of the entities: consecutive rows, parts as equal as can be.
        edges: to be written with it.

    Returns:
        What was written, a line each.

    Raises:
        EvalError: what is wrong with a file, or that something cannot be written.
    """
    _check(model, folder, num_partitions, edges)
    form = edges.form(model)
    lines = []
    for name, path in edges.paths.items():
        num_edges, skipped = import_edges(path, folder / name, form, num_partitions)
        lines.append(f"{folder / name}: {plural(num_edges, 'edge')} of {path}")
        if skipped.num_edges:
            lines.append(
                f"{folder / name / UNKNOWN}: {plural(skipped.num_edges, 'edge')} skipped ({skipped.unknown_names})"
            )
    write_dictionary(model, folder / "entity", num_partitions)
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


def _check(model: EmbeddingModel, folder: Path, num_partitions: int, edges: EdgeFiles) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise OutputError(f"{folder}: the folder is not empty; choose a new or empty one")
    raise_first(
        ConfigError,
        (
            len(model.tables) > 1 or isinstance(model.formula, TwoOperators) or model.rows_of_ids,
            f"{model.label}: import-model converts models of one entity type, whose operators act on one side and "
            "whose rows are in the order of their ids; evaluate this one as it is: model = PATH in a config",
        ),
        (
            not 1 <= num_partitions <= model.num_entities,
            f"--partitions {num_partitions}: must be from 1 to {model.num_entities}, the number of entities",
        ),
        (edges.order not in ORDERS, f"--edge-columns {edges.order}: expected one of {', '.join(ORDERS)}"),
        *(
            (
                not name or "/" in name or name in (".", "..", "checkpoint", "entity", "eval.py"),
                f"--edges {name}: {name} cannot be the name of a folder of edges; choose another",
            )
            for name in edges.paths
        ),
    )


def write_dictionary(model: EmbeddingModel, path: Path, num_partitions: int, entity_type: str = ENTITY_TYPE) -> None:
    """Write what a model's entities and relations are called as PBG's dictionaries have it.

    Raises:
        StorageError: a file of labels is not as it should be.
        OutputError: the files cannot be written.
    """
    names, num_entities = model.entity_names(entity_type), model.tables_of([entity_type])[entity_type].num_rows
    for index in range(num_partitions):
        start, stop = part_of(num_entities, index, num_partitions)
        of_part = None if names is None else itertools.islice(names, stop - start)
        write_entities(path, entity_type, index, stop - start, of_part)
    write_relations(path, model.num_relations if model.dynamic else None, model.relation_names())


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
