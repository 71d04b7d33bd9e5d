"""A folder of OpenBioLink's datasets -> edges by number, with what could not be numbered counted.

FOLDER/train_test_data/{train,val,test}_sample.csv   tabs between; the first three columns are head, relation, tail

Numbers are those of label files (`id<TAB>label`, as DGL-KE writes them), else the places of the sorted labels of the
training edges. An edge with another label has no number: it is dropped, and counted.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from attrs import frozen
from torch import Tensor

from pbgeval.errors import StorageError
from pbgeval.models.labels import read_labels
from pbgeval.models.triple_lines import triples_of
from pbgeval.storage.text import text_lines

DATA = "train_test_data"
FILES = {"training": "train_sample.csv", "validation": "val_sample.csv", "testing": "test_sample.csv"}


@frozen(eq=False)
class OpenBioLinkData:
    """A dataset in memory; edges are int64 (n, 3): head, relation, tail."""

    entity_to_id: Mapping[str, int]
    relation_to_id: Mapping[str, int]
    splits: Mapping[str, Tensor]  # training, validation, testing
    num_dropped: Mapping[str, int]  # of each split


def read_openbiolink(folder: Path, entities: Path | None = None, relations: Path | None = None) -> OpenBioLinkData:
    """Read a dataset; each file twice at most, a line at a time.

    Args:
        folder: with `train_test_data` in it.
        entities: a file of labels; None: from the training edges.
        relations: likewise.

    Raises:
        StorageError: a file is missing or not as it should be.
    """
    paths = {split: folder / DATA / name for split, name in FILES.items()}
    missing = next((path for path in paths.values() if not path.is_file()), None)
    if missing is not None:
        raise StorageError(f"{missing}: expected a file of OpenBioLink's dataset (record 3834052), found none")
    of_training: tuple[dict[str, int], dict[str, int]] = ({}, {})
    if entities is None or relations is None:
        of_training = _numbered_by_training(paths["training"])
    entity_to_id = of_training[0] if entities is None else _numbered_by_file(entities)
    relation_to_id = of_training[1] if relations is None else _numbered_by_file(relations)
    splits: dict[str, Tensor] = {}
    num_dropped: dict[str, int] = {}
    for split, path in paths.items():
        splits[split], num_dropped[split] = _edges(path, entity_to_id, relation_to_id)
    return OpenBioLinkData(entity_to_id, relation_to_id, splits, num_dropped)


def _numbered_by_training(path: Path) -> tuple[dict[str, int], dict[str, int]]:
    entities: set[str] = set()
    relations: set[str] = set()
    for head, relation, tail in triples_of(path):
        entities.update((head, tail))
        relations.add(relation)
    return {label: index for index, label in enumerate(sorted(entities))}, {
        label: index for index, label in enumerate(sorted(relations))
    }


def _numbered_by_file(path: Path) -> dict[str, int]:
    labels = read_labels(path, sum(1 for _ in text_lines(path)))
    ids = {label: index for index, label in enumerate(labels)}
    if len(ids) != len(labels):
        again = next(label for index, label in enumerate(labels) if ids[label] != index)
        raise StorageError(f"{path}: expected each label once, found {again!r} again")
    return ids


def _edges(path: Path, entities: Mapping[str, int], relations: Mapping[str, int]) -> tuple[Tensor, int]:
    numbers, num_dropped = array("q"), 0
    for head, relation, tail in triples_of(path):
        ids = entities.get(head), relations.get(relation), entities.get(tail)
        if None in ids:
            num_dropped += 1
        else:
            numbers.extend(number for number in ids if number is not None)
    edges_E3 = np.frombuffer(numbers, np.int64).reshape(-1, 3) if numbers else np.empty((0, 3), np.int64)
    return torch.from_numpy(edges_E3.copy()), num_dropped
