"""Plain arrays with a small description -> a model: what scripts/export_libkge.py and export_pykeen.py write.

model.json                    {"model": "complex", "reciprocal": false, "norm": 1, "phase_unit": 1.0}
entity.npy, relation.npy      a vector a row, float32
entities.tsv, relations.tsv   optional labels: one per line in the order of the rows, or id<TAB>label

Complex vectors (complex, rotate) are real parts, then imaginary parts. A rotate relation is a row of phases.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pbgeval.errors import StorageError
from pbgeval.models.formulas import OPERATORS, Formula
from pbgeval.models.model import EmbeddingModel, existing_file, read_object
from pbgeval.storage.arrays import npy_rows
from pbgeval.storage.text import one_line

DESCRIPTION = "model.json"
EXAMPLE = '{"model": "complex"}'
_KEYS: Mapping[str, type | tuple[type, ...]] = {
    "model": str,
    "reciprocal": bool,
    "norm": int,
    "phase_unit": (int, float),
    "clamped": bool,
}


def is_arrays(path: Path) -> bool:
    """Tell whether a folder is one of plain arrays."""
    return (path / DESCRIPTION).is_file()


def open_arrays(path: Path) -> EmbeddingModel:
    """Open a folder of plain arrays.

    Raises:
        StorageError: a file is missing or has the wrong form.
    """
    formula = _formula(path / DESCRIPTION)
    entities, relations = npy_rows(path / "entity.npy"), npy_rows(path / "relation.npy")
    formula.check(str(path), entities.columns, relations.columns, relations.num_rows)
    labels = [existing_file(path, name) for name in ("entities.tsv", "relations.tsv")]
    return EmbeddingModel(str(path), "arrays", formula, entities, relations, None, *labels)


def _formula(path: Path) -> Formula:
    found = read_object(path, "a description of a model")
    for key, value in found.items():
        if key not in _KEYS or not isinstance(value, _KEYS[key]):
            known = key in _KEYS
            what = f"wrong value of {key}: {one_line(value)}" if known else f"unknown key {one_line(key)}"
            raise StorageError(f"{path}: {what}; the file has the keys {', '.join(_KEYS)}, such as {EXAMPLE}")
    kinds = [kind for kind in OPERATORS if kind != "transr"]
    if found.get("model") not in kinds:
        raise StorageError(f"{path}: model must be one of {', '.join(kinds)}, got {one_line(found.get('model'))}")
    if found.get("norm", 1) not in (1, 2):
        raise StorageError(f"{path}: norm must be 1 or 2, got {found['norm']}")
    return Formula(
        found["model"],
        norm=found.get("norm", 1),
        phase_unit=float(found.get("phase_unit", 1.0)),
        clamped=found.get("clamped", False),
        reciprocal=found.get("reciprocal", False),
    )
