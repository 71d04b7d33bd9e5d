"""The version of a checkpoint, and where its files are."""

from __future__ import annotations

import re
from pathlib import Path

from pbgeval.errors import StorageError
from pbgeval.storage.text import read_small_text


def read_checkpoint_version(checkpoint_path: Path) -> int:
    """Return the version that `checkpoint_version.txt` names; 0, as in PBG, where it is absent or empty.

    Raises:
        StorageError: the folder is missing, or the file does not hold a version.
    """
    path = checkpoint_path / "checkpoint_version.txt"
    text = (read_small_text(path) or "").strip()
    if not checkpoint_path.is_dir():
        raise StorageError(f"{checkpoint_path}: no such folder; check checkpoint_path")
    if text and not re.fullmatch("[0-9]{1,18}", text):
        raise StorageError(f"{path}: expected a version such as 12, found {text[:40]!r}; write the version again")
    return int(text or 0)


def embedding_path(checkpoint_path: Path, entity_type: str, partition: int, version: int) -> Path:
    """Return the path where PBG writes the embeddings of one partition."""
    return checkpoint_path / f"embeddings_{entity_type}_{partition}.v{version}.h5"


def model_path(checkpoint_path: Path, version: int) -> Path:
    """Return the path where PBG writes operator parameters and global embeddings."""
    return checkpoint_path / f"model.v{version}.h5"
