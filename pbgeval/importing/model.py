"""Another system's model, and its edges -> a folder with a checkpoint in PyTorch-BigGraph's format, and its config.

FOLDER/checkpoint, entity    the model, in partitions
FOLDER/<name>                the buckets of each file of edges
FOLDER/eval.py               evaluates them against all entities
"""

from __future__ import annotations

import pprint
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path

from attrs import frozen

from pbgeval.adapters.labels import read_labels
from pbgeval.adapters.model import EmbeddingModel, part_of
from pbgeval.errors import ConfigError, OutputError
from pbgeval.files import write_atomically
from pbgeval.importing.edges import ORDERS, EdgeForm, import_edges
from pbgeval.notation import Side
from pbgeval.storage import checkpoint_files

ENTITY_TYPE = "all"
VERSION = 1


@frozen
class EdgeFiles:
    """Files of edges by the names that their folders get, and how to read them."""

    paths: Mapping[str, Path]
    order: str = "hrt"
    entities: Path | None = None  # labels of ids, where files have labels
    relations: Path | None = None

    def form(self, model: EmbeddingModel) -> EdgeForm:
        """Read what labels mean.

        Raises:
            StorageError: a file of labels is not as it should be, or has not one for each.
        """
        ids = [
            None if path is None else _ids(path, size)
            for path, size in ((self.entities, model.num_entities), (self.relations, model.num_relations))
        ]
        return EdgeForm(model.num_entities, model.num_relations, self.order, *ids)


def _ids(path: Path, size: int) -> dict[str, int]:
    labels = read_labels(path, size)
    ids = {label: index for index, label in enumerate(labels)}
    if len(ids) != len(labels):
        raise ConfigError(f"{path}: expected each label once, as edges name them, found {len(labels) - len(ids)} again")
    return ids


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
        num_edges = import_edges(path, folder / name, form, num_partitions)
        lines.append(f"{folder / name}: {num_edges:,} edges of {path}")
    _write_entities(model, folder / "entity", num_partitions)
    dynamic = model.formula.dynamic
    parameters = model.parameters()
    operators = {(0, side): of_side for side, of_side in parameters.items()}
    if not dynamic:
        operators = {
            (index, Side.RHS): {name: values[index] for name, values in parameters[Side.RHS].items()}
            for index in range(model.num_relations)
        }
    checkpoint_files.write_model(folder / "checkpoint", VERSION, operators, dynamic=dynamic)
    for index in range(num_partitions):
        rows = model.partition(index, num_partitions)
        checkpoint_files.write_embeddings(folder / "checkpoint", ENTITY_TYPE, index, VERSION, rows)
    write_atomically(folder / "eval.py", _config(model, list(edges.paths), num_partitions))
    checkpoint_files.write_version(folder / "checkpoint", VERSION)
    entities = f"{model.num_entities:,} entities of dimension {model.dimension} in {num_partitions} partitions"
    lines.insert(0, f"{folder / 'checkpoint'}: {entities}, {model.num_relations:,} relations ({model.system})")
    lines.append(f"evaluate with: kgeval-dist --config {folder / 'eval.py'}")
    return lines


def _check(model: EmbeddingModel, folder: Path, num_partitions: int, edges: EdgeFiles) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise OutputError(f"{folder}: expected a new or empty folder, found one with files; choose another")
    if not 1 <= num_partitions <= model.num_entities:
        raise ConfigError(f"--partitions: expected 1 to {model.num_entities} (the entities), got {num_partitions}")
    if edges.order not in ORDERS:
        raise ConfigError(f"--order: expected one of {', '.join(ORDERS)}, got {edges.order}")
    for name in edges.paths:
        if not name or "/" in name or name in (".", "..", "checkpoint", "entity", "eval.py"):
            raise ConfigError(f"--edges {name}: expected the name of a folder, none that the model's files have")


def _write_entities(model: EmbeddingModel, path: Path, num_partitions: int) -> None:
    names = model.entity_names()
    for index in range(num_partitions):
        start, stop = part_of(model.num_entities, index, num_partitions)
        of_part = None if names is None else islice(names, stop - start)
        checkpoint_files.write_entities(path, ENTITY_TYPE, index, stop - start, of_part)
    num_dynamic = model.num_relations if model.formula.dynamic else None
    checkpoint_files.write_relations(path, num_dynamic, model.relation_names())


def _config(model: EmbeddingModel, edge_paths: list[str], num_partitions: int) -> str:
    """Return a config file; its paths are relative to it."""
    formula = model.formula
    names = [ENTITY_TYPE]
    if not formula.dynamic:
        names = list(model.relation_names() or [f"rel{index}" for index in range(model.num_relations)])
    known = [name for name in edge_paths if name in ("train", "valid")]
    evaluated = [name for name in edge_paths if name not in known] or edge_paths
    settings = {
        "entity_path": "entity",
        "checkpoint_path": "checkpoint",
        "edge_paths": evaluated,
        "filter_paths": [name for name in known if name == "valid" and name not in evaluated],
        "train_paths": [name for name in known if name == "train" and name not in evaluated],
        "dynamic_relations": formula.dynamic,
        "dimension": model.dimension,
        "global_emb": False,
        "comparator": formula.comparator,
        "candidates": "all",
    }
    arguments = "\n".join(f"        {key}={pprint.pformat(value, width=100)}," for key, value in settings.items())
    return f'''"""A model of {model.system}, converted: ranks against all entities. Paths are relative to this file."""

from pbgeval import EntitySchema, EvalConfig, RelationSchema

RELATIONS = {pprint.pformat(names, width=100, compact=True)}


def get_config() -> EvalConfig:
    schema = {{"lhs": "{ENTITY_TYPE}", "rhs": "{ENTITY_TYPE}", "operator": "{formula.operator}"}}
    return EvalConfig(
        entities={{"{ENTITY_TYPE}": EntitySchema(num_partitions={num_partitions})}},
        relations=[RelationSchema(name=name or "unnamed", **schema) for name in RELATIONS],
{arguments}
    )
'''
