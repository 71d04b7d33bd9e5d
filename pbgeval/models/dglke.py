"""Open a model that DGL-KE saved. Tables are memory-mapped.

A folder with config.json (the training arguments), <dataset>_<model>_entity.npy, <dataset>_<model>_relation.npy and,
for TransR, <dataset>_<model>projection.npy. Scores are DGL-KE's but for the constant gamma that TransE, TransR and
RotatE add. RotatE's phases are relation * pi / ((gamma + 2) / hidden_dim), with the gamma of the training.
Releases up to 0.1.2 write model, emb_size and emap_file for model_name, hidden_dim and emp_file, as later ones do.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from attrs import evolve

from pbgeval.errors import StorageError
from pbgeval.models.formulas import Formula
from pbgeval.models.labels import OF_ENTITIES, OF_RELATIONS, existing_file
from pbgeval.models.model import EmbeddingModel, of_one_type
from pbgeval.storage.arrays import MappedRows, Table, npy_rows
from pbgeval.storage.json_files import read_object
from pbgeval.storage.text import listed, one_line

MARGIN = 2.0  # which DGL-KE adds to gamma where it initialises embeddings
FORMULAS: Mapping[str, Formula] = {
    "TransE": Formula("transe", norm=2),
    "TransE_l2": Formula("transe", norm=2),
    "TransE_l1": Formula("transe", norm=1),
    "DistMult": Formula("distmult"),
    "ComplEx": Formula("complex"),
    "RotatE": Formula("rotate"),
    "RESCAL": Formula("rescal"),
    "TransR": Formula("transr"),
    "SimplE": Formula("simple", clamped=True),
}


def is_dglke(path: Path) -> bool:
    """Tell whether a folder looks like a saved model of DGL-KE."""
    return (path / "config.json").is_file() and any(path.glob("*_entity.npy"))


def open_dglke(path: Path) -> EmbeddingModel:
    """Open a saved model.

    Raises:
        StorageError: a file is missing or does not fit; the model's name is none that is known.
    """
    arguments = read_object(path / "config.json", "the arguments of a training")
    key = _key(arguments, "model_name", "model")
    name = _text(path, arguments, key)
    if name not in FORMULAS:
        raise StorageError(f"{path / 'config.json'}: {key}: expected one of {', '.join(FORMULAS)}, found {name!r}")
    formula, hidden_dim = FORMULAS[name], 0.0
    if formula.kind == "rotate":
        gamma = _number(path, arguments, "gamma")
        hidden_dim = _number(path, arguments, _key(arguments, "hidden_dim", "emb_size"))
        formula = Formula("rotate", phase_unit=math.pi / ((gamma + MARGIN) / hidden_dim))
    stem = f"{_text(path, arguments, 'dataset')}_{name}"
    entities = _table(path, f"{stem}_entity.npy")
    relations = _table(path, f"{stem}_relation.npy")
    formula.check(str(path), entities.columns, relations.columns, relations.num_rows)
    if formula.kind == "rotate" and relations.columns != hidden_dim:  # its phases would be other angles
        raise StorageError(
            f"{path / 'config.json'}: hidden_dim: expected {relations.columns}, the columns of relation vectors, found "
            f"{hidden_dim:g}"
        )
    parameters: dict[str, Table] = {"relations": relations}
    if formula.kind == "transr":
        projection = _table(path, f"{stem}projection.npy")
        expected = (relations.num_rows, entities.columns * relations.columns)
        found = (projection.num_rows, projection.columns)
        if found != expected:
            raise StorageError(f"{projection.path}: expected shape {expected} (relations, projections), found {found}")
        parameters["projection"] = projection
        entities = evolve(entities, dimension=max(entities.columns, relations.columns))
    named = [arguments.get(key) for key in (_key(arguments, "emp_file", "emap_file"), "rmap_file")]
    labels = [
        existing_file(path, Path(name).name if isinstance(name, str) else "", default)
        for name, default in zip(named, (OF_ENTITIES[0], OF_RELATIONS[0]), strict=True)
    ]
    return of_one_type(str(path), "dglke", formula, entities, parameters, *labels)


def _key(arguments: Mapping[str, object], name: str, old_name: str) -> str:
    """Return the name of an argument in this release's config."""
    return name if name in arguments or old_name not in arguments else old_name


def _text(path: Path, arguments: Mapping[str, object], name: str) -> str:
    value = arguments.get(name)
    if not isinstance(value, str):
        raise StorageError(f"{path / 'config.json'}: {name}: expected a text, found {one_line(value)}")
    return value


def _number(path: Path, arguments: Mapping[str, object], name: str) -> float:
    value = arguments.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= sys.float_info.max:
        raise StorageError(f"{path / 'config.json'}: {name}: expected a finite number > 0, found {one_line(value)}")
    return float(value)


def _table(path: Path, name: str) -> MappedRows:
    if not os.path.isfile(path / name):
        found = listed(sorted(file.name for file in path.glob("*.npy")))
        raise StorageError(
            f"{path / name}: expected this file, found {found}; was the folder renamed or copied in part?"
        )
    return npy_rows(path / name)
