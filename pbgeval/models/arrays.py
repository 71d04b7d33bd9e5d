"""Plain arrays with a small description -> a model: what scripts/export_libkge.py and export_pykeen.py write.

model.json                    {"model": "complex", "reciprocal": false, "norm": 1, "phase_unit": 1.0}
entity.npy, relation.npy      a vector a row, float32
entities.tsv, relations.tsv   id<TAB>label; may be absent
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
        StorageError: a file is missing or not as it should be.
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
            raise StorageError(f"{path}: expected {', '.join(_KEYS)}, found {one_line(key)}: {one_line(value)}")
    kinds = [kind for kind in OPERATORS if kind != "transr"]
    if found.get("model") not in kinds or found.get("norm", 1) not in (1, 2):
        expected = f"model one of {', '.join(kinds)} and norm 1 or 2"
        raise StorageError(f"{path}: expected {expected}, found {one_line(found.get('model'))}, {found.get('norm', 1)}")
    return Formula(
        found["model"],
        norm=found.get("norm", 1),
        phase_unit=float(found.get("phase_unit", 1.0)),
        clamped=found.get("clamped", False),
        reciprocal=found.get("reciprocal", False),
    )
