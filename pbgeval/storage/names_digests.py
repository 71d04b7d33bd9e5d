"""Read and write which names the numbers of entities and relations stand for: `names_digests.json` of an import.

Importers put the same file beside the names, the buckets and the checkpoint, so that the folders of two imports with as
many entities are not taken for those of one. Folders of PyTorch-BigGraph have none.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path

from attrs import asdict, field, frozen

from pbgeval.errors import StorageError
from pbgeval.storage.json_files import parse_json
from pbgeval.storage.shapes import TEXT, Items, Keys, OrNull, misfits
from pbgeval.storage.text import json_text, one_line, read_small_text
from pbgeval.storage.writing import write_atomically

NAMES_DIGESTS = "names_digests.json"
_DIGITS = 32
_SHAPE = Keys({"entities": Keys(others=Items(OrNull(TEXT))), "relations": OrNull(TEXT)})


class NamesDigest:
    """The digest of names in their order, known once all have passed."""

    def __init__(self) -> None:
        self._hash = sha256()

    def passed(self, names: Iterable[str]) -> Iterator[str]:
        """Yield names as they come."""
        for name in names:
            self._hash.update(json.dumps(name).encode() + b"\n")
            yield name

    def text(self) -> str:
        """Return the digest of what has passed."""
        return self._hash.hexdigest()[:_DIGITS]


@frozen
class NamesDigests:
    """Digests of the names of each partition by entity type, and of the relations; None where they have no names."""

    entities: Mapping[str, Sequence[str | None]] = field(factory=dict)
    relations: str | None = None

    def write(self, *folders: Path) -> None:
        """Write the file into folders; nothing where there are no names.

        Raises:
            OutputError: it cannot be written.
        """
        if self.relations is None and not any(any(of) for of in self.entities.values()):
            return
        for folder in folders:
            write_atomically(folder / NAMES_DIGESTS, json_text(asdict(self)))

    @classmethod
    def read(cls, folder: Path) -> NamesDigests | None:
        """Return the digests of a folder; None where there are none.

        Raises:
            StorageError: the file cannot be read or is of another form.
        """
        path = folder / NAMES_DIGESTS
        text = read_small_text(path) if folder.is_dir() else None
        if text is None:
            return None
        try:
            found = parse_json(text)
            if faults := [*misfits(found, _SHAPE)]:
                raise ValueError(faults[0])
        except ValueError as error:
            raise StorageError(f"{path}: expected digests of names, found {one_line(error)}; import again") from error
        return cls(found["entities"], found["relations"])

    def difference(self, other: NamesDigests, entity_types: Iterable[str]) -> str | None:
        """Return which of the names that both have differ; None: none do."""
        for name in entity_types:
            ours, others = (of.entities.get(name, ()) for of in (self, other))
            if all(ours) and all(others) and ours and others and [*ours] != [*others]:
                return f"entities of type {name}"
        if self.relations and other.relations and self.relations != other.relations:
            return "relations"
        return None
