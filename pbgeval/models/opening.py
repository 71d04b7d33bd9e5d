"""The path of another system's model -> the model, by the adapter that knows it."""

from __future__ import annotations

from pathlib import Path

from pbgeval.errors import StorageError
from pbgeval.models.arrays import is_arrays, open_arrays
from pbgeval.models.dglke import is_dglke, open_dglke
from pbgeval.models.libkge import open_libkge
from pbgeval.models.model import EmbeddingModel

EXPECTED = (
    "a folder that DGL-KE saved (config.json, *_entity.npy), a checkpoint of LibKGE (.pt) or a folder of plain arrays "
    "(model.json, entity.npy, relation.npy)"
)
OF_PYKEEN = "trained_model.pkl"


def open_model(path: Path, *, trust_pickle: bool = False) -> EmbeddingModel:
    """Open a model of any system that is known.

    Args:
        path: a folder or a file.
        trust_pickle: whether a pickle may run what it says.

    Raises:
        StorageError: the model is of no known system, or has the wrong form.
    """
    pykeen = path / OF_PYKEEN if (path / OF_PYKEEN).is_file() else path
    if pykeen.is_file() and pykeen.suffix == ".pkl":
        # A whole object of PyKEEN's classes, not tables: without PyKEEN there is nothing to read it into.
        raise StorageError(
            f"{pykeen}: expected {EXPECTED}, found a pickle, as PyKEEN saves its models: nothing was run; in PyKEEN's "
            f"own environment `python scripts/export_pykeen.py {pykeen} FOLDER` writes plain arrays"
        )
    if path.is_dir():
        if is_arrays(path):
            return open_arrays(path)
        if is_dglke(path):
            return open_dglke(path)
    elif path.is_file() and path.suffix in (".pt", ".pth"):
        return open_libkge(path, trust_pickle=trust_pickle)
    found = "a file" if path.is_file() else "a folder without them" if path.is_dir() else "no such file or folder"
    raise StorageError(f"{path}: expected {EXPECTED}, found {found}")
