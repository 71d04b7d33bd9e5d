"""Open a checkpoint of LibKGE. Tables are memory-mapped.

The file is a pickle of the training's state: options under `config`, (parameters, metadata) under `model`. It is read
by `pickles`, which runs nothing of it. Entities' and relations' vectors are plain tables (lookup embedders).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from pbgeval.errors import StorageError
from pbgeval.models.formulas import Formula
from pbgeval.models.labels import existing_file
from pbgeval.models.model import EmbeddingModel, of_one_type
from pbgeval.models.pickles import StandIn, read_saved, read_trusting, stored_rows
from pbgeval.models.saved_tensors import SavedTensor
from pbgeval.storage.arrays import Table, TensorRows
from pbgeval.storage.text import listed, one_line, plural

KINDS = ("complex", "distmult", "transe", "rotate", "rescal", "simple", "cp")
RECIPROCAL = ("reciprocal_relations_model", "inverse_relations_model")
ADVICE = (
    "`kgeval-dist template export_libkge` prints a script for LibKGE's own environment that writes plain arrays; "
    "or set trust_pickle = True to run whatever the file says"
)
_TABLES = {
    embedder: [
        f"{prefix}{embedder}.{weight}"
        for prefix in ("", "_base_model.")
        for weight in ("_embeddings.weight", "embeddings.weight")  # today's name, and that of old checkpoints
    ]
    for embedder in ("_entity_embedder", "_relation_embedder")
}


def open_libkge(path: Path, *, trust_pickle: bool = False) -> EmbeddingModel:
    """Open a checkpoint.

    Args:
        path: the file.
        trust_pickle: unpickle it as Python does, which runs what the file says.

    Raises:
        StorageError: it is no such file, wants to run something, or holds a model that is not known.
    """
    checkpoint = read_trusting(path) if trust_pickle else read_saved(path, ADVICE)
    if not isinstance(checkpoint, Mapping) or "model" not in checkpoint or "config" not in checkpoint:
        found = (
            listed(sorted(map(one_line, checkpoint))) if isinstance(checkpoint, Mapping) else type(checkpoint).__name__
        )
        raise StorageError(
            f"{path}: expected a checkpoint of LibKGE with 'model' and 'config', found {found}; of other systems, say "
            "in model_options how the model scores"
        )
    config = checkpoint["config"]  # an object of LibKGE's, what stands in for it, or a plain dict
    if not isinstance(config, Mapping):
        config = config.state if isinstance(config, StandIn) else getattr(config, "__dict__", None)
    options = config.get("options", config) if isinstance(config, Mapping) else None
    if not isinstance(options, Mapping) or not isinstance(options.get("model"), str):
        raise StorageError(f"{path}: config: expected LibKGE's options with a model, found {one_line(type(config))}")
    name, formula = _formula(path, options)
    saved = checkpoint["model"]
    parameters = saved[0] if isinstance(saved, tuple) and saved else saved
    if not isinstance(parameters, Mapping):
        raise StorageError(f"{path}: model: expected parameters by name, found {type(parameters).__name__}")
    entities = _table(path, parameters, "_entity_embedder")
    relations = _table(path, parameters, "_relation_embedder")
    known = {table for tables in _TABLES.values() for table in tables}
    others = [
        one_line(key)
        for key, value in parameters.items()
        if key not in known and isinstance(value, Tensor | SavedTensor)
    ]
    if others:  # which the formula does not know: the model would score otherwise
        raise StorageError(
            f"{path}: model: expected the two tables of {name}, found {listed(sorted(others))} as well; this is "
            "another kind of model or embedder"
        )
    formula.check(str(path), entities.dimension, relations.dimension, relations.num_rows)
    labels = (
        _packaged_labels(path, checkpoint, table, number) or existing_file(path.parent, f"{table}_ids.del")
        for table, number in (("entity", entities.num_rows), ("relation", formula.num_relations(relations.num_rows)))
    )
    return of_one_type(str(path), "libkge", formula, entities, {"relations": relations}, *labels)


def _packaged_labels(path: Path, checkpoint: Mapping[str, Any], table: str, num_labels: int) -> tuple[str, ...] | None:
    """Return the labels that `kge package` stores in a checkpoint: the ids in files of edges, or else the names.

    Raises:
        StorageError: they are no texts, not one for each, or two are equal.
    """
    dataset = _section(checkpoint, "dataset")
    meta = _section(dataset, "meta") or _section(dataset, "dataset.meta")  # the names of releases
    key = next((key for key in (f"{table}_ids", f"{table}_strings") if meta.get(key) is not None), None)
    if key is None:
        return None
    where, labels = f"{path}: dataset: meta: {key}", meta[key]
    if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
        raise StorageError(f"{where}: expected a list of texts, found {type(labels).__name__}")
    if len(labels) != num_labels:
        raise StorageError(f"{where}: {plural(len(labels), 'label')} for {plural(num_labels, 'id')}")
    if len(set(labels)) < num_labels:
        again = Counter(labels).most_common(1)[0][0]
        raise StorageError(f"{where}: expected each label once, found {one_line(again)!r} again")
    return tuple(labels)


def _formula(path: Path, options: Mapping[str, Any]) -> tuple[str, Formula]:
    """Return the model's name and how it scores."""
    name: str = options["model"]
    own = _section(options, name)
    reciprocal = name in RECIPROCAL
    if reciprocal:
        own = _section(own, "base_model")
        name = _word(own.get("type"))
    norm = own.get("l_norm", _section(options, name).get("l_norm")) if name in ("transe", "rotate") else 1
    if name not in KINDS:
        raise StorageError(
            f"{path}: config: model: expected one of {', '.join([*KINDS, RECIPROCAL[0]])}, found {name!r}"
        )
    if norm not in (1, 2):
        raise StorageError(f"{path}: config: {name}.l_norm: expected 1 or 2, found {_word(norm)}")
    return name, Formula(name, norm=int(norm), reciprocal=reciprocal)


def _word(value: object) -> str:
    """Describe a value of a file; containers by type, as they may be endless."""
    return one_line(value) if isinstance(value, str | int | float | None) else type(value).__name__


def _section(options: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = options.get(name)
    return section if isinstance(section, Mapping) else {}


def _table(path: Path, parameters: Mapping[str, object], embedder: str) -> Table:
    names = _TABLES[embedder]
    found = next((parameters[name] for name in names if name in parameters), None)
    if found is None:
        held = listed(sorted(map(one_line, parameters)))
        raise StorageError(
            f"{path}: model: expected {names[0]}, found {held}; only lookup embedders have vectors that can be read"
        )
    if isinstance(found, SavedTensor):
        return stored_rows(path, found)
    if not isinstance(found, Tensor):
        raise StorageError(f"{path}: model: {names[0]}: expected a tensor, found {type(found).__name__}")
    if found.dim() != 2:
        raise StorageError(f"{path}: model: {names[0]}: expected a tensor of vectors, found shape {tuple(found.shape)}")
    return TensorRows(found.detach().float())
