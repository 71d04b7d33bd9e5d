"""(entity type, partition, row) -> the word that a table shows: the entity's name, or `type:partition:row`.

Names of a large graph do not fit in memory as Python strings, so a partition's are kept as one piece of bytes, and
only those partitions that fit a budget.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from attrs import define, field, frozen

from pbgeval.distinct import distinct
from pbgeval.errors import StorageError
from pbgeval.storage.entities import read_entity_names

BUDGET_BYTES = 256 * 2**20


@frozen(eq=False)
class _PackedNames:
    """The names of one partition."""

    encoded: bytes  # UTF-8, one after the other
    offsets: np.ndarray  # int64 (names + 1): where each starts

    @classmethod
    def of(cls, names: list[str]) -> _PackedNames:
        # JSON may hold lone surrogates, which are no UTF-8.
        encoded = [name.encode("utf-8", "backslashreplace") for name in names]
        offsets = np.zeros(len(encoded) + 1, np.int64)
        np.cumsum([len(name) for name in encoded], out=offsets[1:])
        return cls(b"".join(encoded), offsets)

    @property
    def num_bytes(self) -> int:
        return len(self.encoded) + self.offsets.nbytes

    def __getitem__(self, row: int) -> str:
        return self.encoded[self.offsets[row] : self.offsets[row + 1]].decode()


@define
class EntityLabels:
    """Names of entities, read when they are first asked for."""

    entity_path: Path
    sizes: Mapping[tuple[str, int], int]  # entities by (type, partition)
    budget_bytes: int = BUDGET_BYTES  # of names kept for the next call; those in hand come on top
    _kept: OrderedDict[tuple[str, int], _PackedNames | None] = field(factory=OrderedDict, init=False)  # oldest first

    def of(self, entity_type: str, partitions: np.ndarray, rows: np.ndarray) -> list[str]:
        """Return the labels of some entities of one type.

        Args:
            entity_type: their type.
            partitions: int64 (n).
            rows: int64 (n), in their partitions.

        Raises:
            StorageError: a file of names cannot be read, is no list of names, or has not one per entity.
        """
        labels = [""] * len(rows)
        for partition in distinct(partitions).tolist():
            names = self._names(entity_type, partition)
            for position in np.flatnonzero(partitions == partition).tolist():
                row = int(rows[position])
                labels[position] = f"{entity_type}:{partition}:{row}" if names is None else names[row]
        return labels

    def _names(self, entity_type: str, partition: int) -> _PackedNames | None:
        key = entity_type, partition
        if key not in self._kept:
            names = read_entity_names(self.entity_path, entity_type, partition)
            if names is not None and len(names) != self.sizes[key]:
                raise wrong_number_of_names(self.entity_path, entity_type, partition, self.sizes[key], len(names))
            self._kept[key] = None if names is None else _PackedNames.of(names)
            del names
            self._forget_the_oldest()
        self._kept.move_to_end(key)
        return self._kept[key]

    def _forget_the_oldest(self) -> None:
        def size() -> int:
            return sum(names.num_bytes for names in self._kept.values() if names is not None)

        while len(self._kept) > 1 and size() > self.budget_bytes:
            self._kept.popitem(last=False)


def wrong_number_of_names(
    entity_path: Path, entity_type: str, partition: int, expected: int, found: int
) -> StorageError:
    """Return the fault of a file of names that has not one for each entity."""
    return StorageError(
        f"{entity_path / f'entity_names_{entity_type}_{partition}.json'}: expected {expected} names, one per entity,"
        f" found {found}; are they the names of this graph?"
    )
