"""Open another system's model with the adapter that recognizes it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pbgeval.errors import StorageError
from pbgeval.models.arrays import DESCRIPTION, EXAMPLE, open_arrays, read_description
from pbgeval.models.dglke import is_dglke, open_dglke
from pbgeval.models.graphstorm import INFO, open_graphstorm
from pbgeval.models.libkge import open_libkge
from pbgeval.models.model import EmbeddingModel
from pbgeval.models.tensors import SAVED, is_checkpoint
from pbgeval.storage.text import did_you_mean

EXPECTED = (
    "a folder that DGL-KE (config.json, *_entity.npy) or GraphStorm (emb_info.json) saved, a checkpoint of LibKGE "
    "(.pt) or of torch.distributed (.metadata), or tables of vectors that model_options or a model.json describes, "
    f"such as {EXAMPLE}"
)
OF_PYKEEN = "trained_model.pkl"
_TABLES = (".npy", ".safetensors", ".parquet", *SAVED)


def open_model(path: Path, options: Mapping[str, Any] | None = None, *, trust_pickle: bool = False) -> EmbeddingModel:
    """Open a model of any supported system.

    Args:
        path: a folder or a file.
        options: what its files do not say, as `model_options` of a config.
        trust_pickle: whether a pickle may run what it says.

    Raises:
        StorageError: the model is of no known system, or has the wrong form.
    """
    pykeen = path / OF_PYKEEN if (path / OF_PYKEEN).is_file() else path
    if pykeen.is_file() and pykeen.suffix == ".pkl":
        # A whole object of PyKEEN's classes, not tables: without PyKEEN there is nothing to read it into.
        raise StorageError(
            f"{pykeen}: expected {EXPECTED}, found a pickle, as PyKEEN saves its models: nothing was run; in PyKEEN's "
            f"own environment `python -m pbgeval.examples.export_pykeen {pykeen} FOLDER` writes plain arrays"
        )
    if (path / INFO).is_file():
        return open_graphstorm(path, read_description(path, options or {}))
    if options and "entities" not in options and not _has_description(path) and path.is_dir() and is_dglke(path):
        raise StorageError(
            f"{path}: model_options have no effect on a folder of DGL-KE, as its files say all; remove them"
        )
    if options or _has_description(path) or (path.suffix in _TABLES and path.suffix not in SAVED and path.is_file()):
        return open_arrays(path, read_description(path, options or {}))
    if path.is_dir() and is_dglke(path):
        return open_dglke(path)
    if path.is_file() and path.suffix in SAVED:
        return open_libkge(path, trust_pickle=trust_pickle)
    raise StorageError(f"{path}: {_what_is_there(path)}; expected {EXPECTED}")


def _what_is_there(path: Path) -> str:
    """Describe a path that is not a model, and suggest one that is."""
    if not (path.is_file() or path.is_dir()):
        return f"no such file or folder{did_you_mean(path, os.path.exists)}"
    places = [path.parent] if path.is_file() else sorted(path.iterdir())
    models = [place for place in places if place.suffix == ".pt" or _has_description(place) or is_dglke(place)]
    models.sort(key=lambda place: place.name != "checkpoint_best.pt")  # LibKGE's comes first
    what = "this file is not a model" if path.is_file() else "no model in this folder"
    return f"{what}; did you mean {str(models[0])!r}?" if models else what


def _has_description(path: Path) -> bool:
    """Return whether a folder describes its own model."""
    return (path / DESCRIPTION).is_file() or is_checkpoint(path) or (path / INFO).is_file()
